"""An owner in asynchronous training: what it applies, answers and holds, and what it refuses."""

import numpy as np
import pytest
from test_cluster_owner import TABLE, SumsOfGradients

from tnctl.cluster.messages import replies
from tnctl.cluster.messages.exchange import Sizes, new_exchange
from tnctl.cluster.owners.arrivals import Arrivals
from tnctl.cluster.transport.kinds import MessageError
from tnctl.errors import Failure


def sizes(ids):
    return Sizes(2 * len(ids), (len(ids),))


def sent(number, pushed=(), pulled=(), **flags):
    """The body of a message that pushes 1 to each of some ids, and pulls others as `number`."""
    flags = {"has_next": True, **flags}
    body, written = new_exchange(TABLE, number, sizes(pushed), sizes(pulled), **flags)
    written.push.tables[0].sums[:] = 1
    written.keys[0].ids[:] = pulled
    written.keys[0].occurrences[:] = 1
    return body


def owner_of(workers, staleness=None, warmup_steps=0):
    """An owner that rank 0 has let begin."""
    owner = Arrivals(TABLE, workers, SumsOfGradients(workers), staleness, warmup_steps)
    assert [handle for handle, _ in owner.exchange(0, sent(0, rate_factor=0.5), "begin")] == [
        "begin"
    ]
    return owner


def read_of(answers, handle, ids):
    [body] = [body for of, body in answers if of == handle]
    return replies.parse_reply(TABLE, sizes(ids), body).tables[0].rows[:, 0].tolist()


def test_a_gradient_of_a_row_that_is_gone_is_dropped():
    owner = owner_of(1)
    owner.exchange(0, sent(1, [], [5, 6]), "a")
    del owner.parameters.rows[5]
    owner.exchange(0, sent(1, [5, 6]), "b")
    assert owner.parameters.rows == {6: 1}


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_who_is_ahead_is_held_until_the_slowest_comes_nearer(staleness):
    owner = owner_of(3, staleness)
    for number in range(1, staleness + 2):
        pushed = [4] if number > 2 else []
        assert [handle for handle, _ in owner.exchange(1, sent(number, pushed, [4]), number)] == [
            number
        ]
    held = staleness + 2
    pushed = [4] if held > 2 else []
    assert owner.exchange(1, sent(held, pushed, [4]), held) == []
    if held <= 2:
        owner.exchange(1, sent(held, [4]), "alone")  # no pull: answered at once
    assert owner.exchange(0, sent(1, [], [4]), "0") and owner.exchange(2, sent(1, [], [4]), "2")
    assert [handle for handle, _ in owner.exchange(0, sent(1, [4]), "0")] == ["0"]
    assert owner.slowest == 0
    answers = owner.exchange(2, sent(1, [4]), "2")
    expected = ["2", held] if owner.slowest else ["2"]
    assert [handle for handle, _ in answers] == expected


def handles(answers):
    return [handle for handle, _ in answers]


def test_workers_take_turns_in_the_warm_up():
    owner = owner_of(2, warmup_steps=2)
    assert handles(owner.exchange(1, sent(1, [], [4]), "b1")) == []  # worker 0 is first
    assert handles(owner.exchange(1, sent(2, [], [4]), "b2")) == []
    assert handles(owner.exchange(0, sent(1, [], [4]), "a1")) == ["a1"]
    answers = owner.exchange(0, sent(2, [4], [4]), "a2")
    assert handles(answers) == ["b1"] and read_of(answers, "b1", [4]) == [1]
    answers = owner.exchange(1, sent(3, [4], [4]), "b3")
    assert handles(answers) == ["a2"] and read_of(answers, "a2", [4]) == [2]
    answers = owner.exchange(0, sent(3, [4], [4]), "a3")
    assert handles(answers) == ["b2"] and read_of(answers, "b2", [4]) == [3]
    answers = owner.exchange(
        1, sent(4, [4], [4]), "b4"
    )  # step 2 ends, and all that is held is read
    assert handles(answers) == ["b3", "a3", "b4"]


def test_a_worker_without_data_misses_its_turn():
    owner = owner_of(3, warmup_steps=9)
    assert owner.exchange(2, sent(1, [], [4]), "c1") == []
    assert len(owner.exchange(0, sent(0, has_next=False), "end")) == 1
    answers = owner.exchange(1, sent(0, has_next=False), "end")
    assert [handle for handle, _ in answers] == ["end", "c1"]


def test_who_waits_for_another_worker_is_reported():
    owner = owner_of(2, 0)
    for rank, number, ids in [(1, 1, [4]), (0, 1, [4]), (1, 2, [4])]:
        owner.exchange(rank, sent(number, [], ids), number)
    owner.exchange(1, sent(2, [4]), "push")  # is held until worker 0 has pushed
    owner.exchange(0, sent(1, [4]), "push")
    owner.exchange(1, sent(2, [4], has_next=False), "push")
    reports = [owner.work.get_nowait() for _ in range(owner.work.qsize())]
    assert [(report.rank, report.waited_for) for report in reports] == [
        (0, None), (1, None), (0, None), (1, None), (1, None), (0, None), (1, 0),
    ]  # fmt: skip


def test_staleness_counts_what_was_applied_since_the_rows_were_read():
    owner, rng = owner_of(3), np.random.default_rng(5)
    applied, read, expected = 0, {rank: [] for rank in range(3)}, []
    pulled, pushed = [0] * 3, [0] * 3
    for _ in range(300):
        rank = int(rng.integers(3))
        push = [4] if len(read[rank]) == 2 or (read[rank] and rng.random() < 0.5) else []
        if push:
            at, ahead = read[rank].pop(0)
            expected.append((rank, applied - at, ahead))
            applied += 1
            pushed[rank] += 1
        pulls = [4] if len(read[rank]) < 2 and rng.random() < 0.8 else []
        pulled[rank] += len(pulls)
        if pulls:
            read[rank].append((applied, max(pulled[rank] - 1 - min(pushed), 0)))
        owner.exchange(rank, sent(pulled[rank], push, pulls), "")
    batches = [owner.batches.get_nowait() for _ in range(owner.batches.qsize())]
    of_pushes = [(batch.rank, batch.stale, batch.ahead) for batch in batches]
    assert of_pushes == expected and len({stale for _, stale, _ in expected}) > 5
    assert max(ahead for _, _, ahead in expected) > 3


def test_a_pause_answers_what_is_held_and_ends_the_step():
    owner = owner_of(2, 0)
    owner.exchange(1, sent(1, [], [4]), "a")
    assert owner.exchange(1, sent(2, [], [4]), "b") == []
    owner.exchange(1, sent(2, [4]), "c")
    assert not owner.is_draining
    answers = owner.exchange(0, sent(0, drain=True), "drain")
    assert [handle for handle, _ in answers] == ["drain", "b"] and owner.is_draining
    with pytest.raises(MessageError, match="worker 1 reads during step 1"):
        owner.read(1, replies.new_read(TABLE, [0], dense=True)[0])
    with pytest.raises(MessageError, match="pauses the training while batches are open"):
        owner.exchange(0, sent(0, pause=True), "pause")
    owner.exchange(1, sent(2, [4], has_next=False), "d")
    assert owner.parameters.pushes == 2
    owner.exchange(1, sent(2, has_next=False), "e")
    owner.exchange(0, sent(1, [], [4]), "f")
    owner.exchange(0, sent(1, [4], has_next=False), "g")
    [(_, body)] = owner.exchange(0, sent(1, pause=True, has_next=False), "pause")
    assert replies.parse_reply(TABLE, sizes([]), body).steps == 2 and owner.is_paused
    owner.read(1, replies.new_read(TABLE, [0], dense=True)[0])
    with pytest.raises(MessageError, match="worker 1: it sent an exchange while training pauses"):
        owner.exchange(1, sent(1, [], [4]), "h")
    owner.exchange(0, sent(1, [], [4]), "i")  # all count from 1 again
    assert not owner.is_paused and not owner.is_draining


@pytest.mark.parametrize(("rank", "body", "words"), [
    (1, sent(3, [], [4]), "worker 1: an exchange of batch 3, the next is 2"),
    (1, sent(1, [4, 5]), "worker 1: an exchange pushes 2 keys of 4 rows, pulled were 1"),
    (2, sent(0, [4]), "worker 2: an exchange pushes 1 keys of 2 rows, pulled were 0"),
    (2, sent(0, pause=True), "worker 2: an exchange pauses the training, which rank 0 decides"),
    (2, sent(0, drain=True), "worker 2: an exchange pauses the training, which rank 0 decides"),
    (0, sent(1, [], [4], pause=True), "worker 0: an exchange pauses and pulls 2 rows"),
    (1, b"", "worker 1: an exchange has 0 bytes"),
])  # fmt: skip
def test_a_message_that_does_not_fit_names_the_worker(rank, body, words):
    owner = owner_of(3)
    owner.exchange(1, sent(1, [], [4]), "a")
    with pytest.raises(MessageError, match=words):
        owner.exchange(rank, body, "b")
    assert owner.parameters.pushes == 0


def test_a_worker_has_two_pulls_open_at_most_and_pushes_none_that_is_held():
    owner = owner_of(2, 0)
    owner.exchange(1, sent(1, [], [4]), "a")
    owner.exchange(1, sent(2, [], [4, 5]), "b")
    with pytest.raises(MessageError, match="worker 1: an exchange pulls a batch while 2 are open"):
        owner.exchange(1, sent(3, [], [4]), "c")
    owner.exchange(1, sent(2, [4]), "d")
    with pytest.raises(MessageError, match="pushes 2 keys of 4 rows, pulled were 0"):
        owner.exchange(1, sent(2, [4, 5]), "e")


def test_a_gradient_that_is_nan_names_the_worker_and_the_step():
    owner = owner_of(1)
    owner.exchange(0, sent(1, [], [4]), "a")
    body, written = new_exchange(TABLE, 1, sizes([4]), sizes([]))
    written.push.dense[:] = np.nan
    with pytest.raises(Failure, match="step 1: worker 0: a gradient of a dense weight is NaN"):
        owner.exchange(0, body, "b")
    assert owner.parameters.pushes == 0
