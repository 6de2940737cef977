"""Who may join a cluster, and when its workers are lost. Time is an argument."""

import dataclasses
from concurrent.futures import Future

import pytest

from tnctl.cluster.joining import members
from tnctl.cluster.joining.liveness import GenerationOver, Liveness
from tnctl.cluster.joining.members import (
    Digests,
    Hello,
    NotWelcome,
    Roster,
    StartedAgain,
)
from tnctl.cluster.node import Node
from tnctl.cluster.transport.kinds import Kind, MessageError
from tnctl.cluster.transport.once import Reply
from tnctl.errors import Failure, UserError

CONF = {"data": "a" * 64, "train": "c" * 64}
OWN = Hello("secret", "1.0", 0, 3, "10.0.0.1:5", Digests(CONF, "b" * 64), f"{0:016x}")


def hello(**fields):
    rank = fields.get("rank", 1)
    fields = {
        "rank": rank, "address": f"10.0.0.1:{5 + rank}", "process": f"{rank:016x}",
    } | fields  # fmt: skip
    return members.to_body(dataclasses.replace(OWN, **fields))


def test_all_are_welcomed_once_they_are_there():
    roster = Roster(OWN, 77)
    assert roster.missing == [1, 2] and roster.welcome() is None
    assert roster.join(hello(rank=2)) == 2
    assert roster.join(hello(rank=2)) == 2  # its connection broke
    assert roster.missing == [1] and roster.welcome() is None
    roster.join(hello(rank=1))
    welcome = roster.welcome()
    assert welcome.addresses == ("10.0.0.1:5", "10.0.0.1:6", "10.0.0.1:7")
    assert [welcome.on_machine_of(rank, range(3)) for rank in range(3)] == [3, 3, 3]
    elsewhere = dataclasses.replace(welcome, addresses=("a:1", "[fd00::1]:2", "a:3"))
    assert [elsewhere.on_machine_of(rank, range(3)) for rank in range(3)] == [2, 1, 2]
    body = members.to_body(welcome)
    assert members.parse_welcome(body, OWN) == welcome and int(welcome.generation, 16) == 77
    for wrong in (dataclasses.replace(OWN, workers=2), dataclasses.replace(OWN, workers=4)):
        with pytest.raises(MessageError, match="rank 0 welcomes 3 workers"):
            members.parse_welcome(body, wrong)
    with pytest.raises(MessageError, match="generation 0000000000000000"):
        members.parse_welcome(body.replace(b"4d", b"00"), OWN)


def test_the_last_process_of_a_rank_has_it_until_all_are_welcomed():
    roster = Roster(OWN, 77)
    roster.join(hello(rank=1))
    again = {"rank": 1, "process": "e" * 16}  # at the same address
    assert roster.join(hello(**again)) == 1
    roster.join(hello(rank=2))
    assert roster.welcome().processes[1] == "e" * 16
    assert roster.join(hello(**again)) == 1  # its connection broke
    with pytest.raises(StartedAgain, match="worker 1 was started again"):
        roster.join(hello(rank=1))
    other = dataclasses.replace(OWN, rank=1, address="10.0.0.1:6")
    with pytest.raises(MessageError, match="another process as worker 1"):
        members.parse_welcome(members.to_body(roster.welcome()), other)


OTHER = Digests(CONF, "d" * 64)
ANOTHER = Digests(CONF | {"train": "e" * 64}, "b" * 64)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"GET / HTTP/1.1", "no hello of a worker"),
        (b"{}", "no hello of a worker .*'token' is missing"),
        (hello(token="Secret"), "^a wrong token$"),
        (hello(token="\udcff"), "^a wrong token$|no hello"),
        (hello(token="", version="0"), "^a wrong token$"),
        (hello(version="0.9"), r"worker 1 has tnctl '0\.9', this one 1\.0"),
        (hello(workers=2), "worker 1 of 2 joins a cluster of 3 workers"),
        (hello(rank=3), "worker 3 of 3 joins a cluster of 3"),
        (hello(rank=128), "no hello of a worker"),
        (hello(rank=0), "another process has rank 0"),
        (hello(digests=OTHER), "worker 1 has another recipe: all workers need the same"),
        (hello(digests=ANOTHER), r"worker 1 has another conf \(train\): all workers need the same"),
    ],
)
def test_who_differs_is_not_welcome(body, words):
    roster = Roster(OWN, 77)
    with pytest.raises(NotWelcome, match=words):
        roster.join(body)
    assert roster.missing == [1, 2]


def test_the_token_is_not_shown():
    assert "secret" not in repr(OWN)
    with pytest.raises(NotWelcome) as caught:
        Roster(OWN, 77).join(hello(token="guess"))
    assert "guess" not in str(caught.value) and "secret" not in str(caught.value)


# ---- Living ------------------------------------------------------------------


def living():
    return Liveness(0, 5.0, 100.0)


def until(liveness, first, last):
    """Tick at each interval."""
    now = first
    while now <= last:
        liveness.tick(now)
        now += liveness.interval


def test_a_process_runs_while_any_of_its_threads_does():
    liveness = living()
    assert (liveness.interval, liveness.silence, liveness.window) == (0.5, 4.0, 2.5)
    until(liveness, 100, 100)
    for now in (103, 106, 109):  # the thread that ticks waits
        liveness.check(now)
    liveness.tick(112)
    with pytest.raises(GenerationOver, match=r"this process was stopped for 4\.0 s"):
        liveness.check(116)


def test_a_process_that_computes_is_not_stopped():
    """Such as one that parses a large document, while its other threads wait."""
    ran = {1: 10.0, 2: 5.0}
    liveness = Liveness(0, 5.0, 100.0, ran=ran.copy)
    ran |= {1: 10.5, 2: 11.0, 3: 50.0}  # a new thread says nothing
    liveness.tick(109.9)  # stopped for 3.9 s at most
    ran[2] += 0.8
    with pytest.raises(GenerationOver, match=r"this process was stopped for 4\.1 s"):
        liveness.check(114.8)


def test_a_worker_that_has_finished_is_not_lost():
    liveness = living()
    liveness.left(2)
    liveness.disconnected(2, 100.0, "its call ended")
    liveness.lost(2)
    until(liveness, 100, 120)


def test_a_process_that_was_stopped_ends_before_it_sends():
    liveness = living()
    until(liveness, 100, 110)
    liveness.check(113.9)
    for call in (liveness.check, liveness.tick):
        with pytest.raises(GenerationOver, match=r"this process was stopped for 4\.0 s"):
            call(117.9)


def test_a_connection_may_be_away_for_half_of_the_timeout():
    liveness = living()
    liveness.disconnected(1, 100.0, "its call ended")
    until(liveness, 100, 102)
    liveness.disconnected(1, 102.0, "its call ended")  # tried again: counted from the first time
    liveness.connected(1)
    until(liveness, 102.5, 110)
    liveness.disconnected(1, 110.0, "its call ended")
    with pytest.raises(GenerationOver, match=r"worker 1 could not be reached for 2\.5 s"):
        until(liveness, 110, 113)


def test_a_process_that_is_known_to_have_ended_ends_the_generation():
    liveness = living()
    liveness.lost(2)
    with pytest.raises(GenerationOver, match="worker 2 has ended"):
        liveness.check(100.1)


def test_a_problem_is_the_same_on_another_worker():
    for error in (Failure("step 3: NaN"), UserError("conf: no slot 'x'")):
        received = members.parse_problem(members.to_body(members.problem_of(error))).error()
        assert (str(received), type(received)) == (str(error), type(error))
    for body in (b"", b"[]", b'{"message": "x", "exit_code": 0}', b'{"message": 1}'):
        with pytest.raises(MessageError):
            members.parse_problem(body)


def test_what_comes_after_the_end_of_all_is_dropped_without_a_word(capsys):
    calls, problems = [], []

    def call(*arguments):
        calls.append((arguments, Future()))
        return calls[-1][1]

    node = Node(0, 3, 1, call, problems.append)
    replies = [node.request(rank, Kind.READ, b"") for rank in (1, 2)]
    node.end(Failure("worker 1: no space is left"))
    for (rank, envelope, _), future in calls:
        future.set_result(Reply(b""))
        assert not node.answer(rank, envelope, b"{}").done()
    for reply in replies:
        with pytest.raises(Failure, match="no space is left"):
            reply.result(10)
    node.fail(ValueError("what follows from it"))
    assert capsys.readouterr().err == "" and str(node.error) == "worker 1: no space is left"
    assert not problems
