"""The protocol of a cluster, part by part: frames, bodies, sessions, the barrier of an owner."""

import random
import struct
from dataclasses import asdict

import numpy as np
import pytest

from tnctl.cluster import exchange, frames, replies
from tnctl.cluster.exchange import Shape, Sizes, TableShape, new_exchange, parse_exchange
from tnctl.cluster.frames import Frame, FrameError, Kind
from tnctl.cluster.owner import Owner
from tnctl.cluster.replies import Owned
from tnctl.cluster.session import MOST_OPEN, Client, Request, Server
from tnctl.errors import Failure

SHAPE = Shape(
    (TableShape(3, 5, counts=True, waits=True), TableShape(0, 2), TableShape(1, 1, waits=True)),
    dense=7,
    figures=True,
    statistics=3,
)
PUSHED, PULLED = Sizes(5, (3, 4, 1)), Sizes(9, (2, 5, 0))

# ---- Frames ------------------------------------------------------------------


def test_a_frame_is_what_was_sent():
    frame = Frame(Kind.EXCHANGE, 2**63 + 5, 63, 7, (3, 5, 8), b"body")
    received = frames.parse(frame.to_bytes())
    assert received == frame and len(frame.header()) == frames.HEADER_BYTES
    assert frame.header()[:8] == b"TNCF\x01\x00\x05\x00"


def test_a_body_is_not_copied():
    received = frames.parse(bytearray(Frame(Kind.COMMAND, 1, 0, 1, body=b"body").to_bytes()))
    assert isinstance(received.body, memoryview) and received.body.obj is not None


def header(**fields):
    """A header with some fields of another value."""
    values = {
        "magic": b"TNCF", "version": 1, "kind": Kind.REPLY, "generation": 4, "sender": 1,
        "reserved": 0, "number": 3, "first": 0, "second": 0, "third": 0, "body": 0,
    } | fields  # fmt: skip
    return struct.pack("<4sHHQII5Q", *values.values())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"magic": b"HTTP"}, "no frame of tnctl"),
        ({"version": 2}, "version 2"),
        ({"kind": 0}, "unknown kind 0"),
        ({"kind": 99}, "unknown kind 99"),
        ({"sender": 64}, "worker 64"),
        ({"reserved": 1}, "reserved"),
        ({"generation": 0}, "generation 0"),
        ({"kind": Kind.HELLO}, "generation 4"),
        ({"number": 0}, "number 0"),
        ({"first": 2, "second": 1, "third": 3}, "awaits 2, 1, 3"),
        ({"third": 5}, "awaits 0, 0, 5"),
        ({"body": 1 << 40}, "the limit is"),
        ({"kind": Kind.RESEND, "body": 1}, "the limit is 0"),
    ],
)
def test_a_wrong_header_is_refused(fields, words):
    frames.unpack(header())
    with pytest.raises(FrameError, match=words):
        frames.unpack(header(**fields))


def test_a_body_of_another_length_is_refused():
    for body in (b"123", b"12345", b""):
        with pytest.raises(FrameError, match="its header says 4"):
            frames.parse(header(body=4) + body)
    for length in (0, 1, 63):
        with pytest.raises(FrameError, match=f"{length} bytes instead of 64"):
            frames.parse(header()[:length])


# ---- Bodies ------------------------------------------------------------------


def fill(chance, value):
    """Fill every array in a dataclass or tuple with random numbers."""
    if isinstance(value, np.ndarray):
        value[...] = chance.integers(0, 1000, value.shape)
    elif isinstance(value, tuple):
        for entry in value:
            fill(chance, entry)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            fill(chance, getattr(value, name))


def arrays_of(value):
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, tuple):
        for entry in value:
            yield from arrays_of(entry)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from arrays_of(getattr(value, name))


def bodies(chance, shape=SHAPE, pushed=PUSHED, pulled=PULLED):
    """A body of each kind, what was written, and how it is parsed."""
    owned = [Owned(10 * n, 100 * n) for n in range(len(shape.tables))]
    made = [
        (
            new_exchange(shape, 8, pushed, pulled, rate_factor=0.1, loss=0.7, has_next=True),
            lambda body: parse_exchange(shape, pushed, body),
        ),
        (
            replies.new_reply(shape, pulled, owned, rows=20, any_next=True),
            lambda body: replies.parse_reply(shape, pulled, body),
        ),
        (
            replies.new_read(shape, pulled.keys, dense=True),
            lambda body: replies.parse_read(shape, body),
        ),
        (
            replies.new_read_reply(shape, pulled.keys, dense=True),
            lambda body: replies.parse_read_reply(shape, pulled.keys, True, body),
        ),
    ]
    for (body, written), parse in made:
        fill(chance, written)
        yield body, written, parse


@pytest.mark.parametrize("pushed", [PUSHED, Sizes(2, (0, 0, 0)), Sizes(0, (0, 0, 0))], ids=str)
@pytest.mark.parametrize("pulled", [PULLED, Sizes(2, (0, 0, 0)), Sizes(0, (0, 0, 0))], ids=str)
@pytest.mark.parametrize("shape", [SHAPE, Shape(SHAPE.tables, 4)], ids=["figures", "none"])
def test_a_body_is_what_was_written(pushed, pulled, shape):
    for body, written, parse in bodies(np.random.default_rng(1), shape, pushed, pulled):
        frame = frames.parse(Frame(Kind.EXCHANGE, 1, 0, 1, body=body).to_bytes())
        received = parse(frame.body)
        np.testing.assert_equal(asdict(received), asdict(written))
        for array in arrays_of(received):
            assert array.flags.aligned and not (array.size and array.flags.writeable)
        parse(body)  # of a bytearray too
        with pytest.raises(FrameError):
            parse(bytes(body) + bytes(8))
        with pytest.raises(FrameError):
            parse(bytes(body)[:-8])


def test_the_bytes_of_an_exchange_are_those_of_its_arrays():
    """Fixed part 48 and 3 x 8; sums, counts and dense; figures; ids, groups, occurrences."""
    body, _ = new_exchange(SHAPE, 1, PUSHED, PULLED)
    pushed = 3 * 3 * 4 + 4 + 3 * 8 + 1 * 4 + 4 + 7 * 4 + 4
    figures = 2 * (5 * 4 + 4) + 3 * 4 + 4
    pulled = 2 * 8 + 8 + 8 + 5 * 8 + 16
    assert len(body) == 48 + 24 + pushed + figures + pulled


def test_what_a_worker_did_not_pull_is_not_pushed():
    body, _ = new_exchange(SHAPE, 1, PUSHED, PULLED)
    with pytest.raises(FrameError, match=r"pushes 3 \+ 4 \+ 1 keys of 5 rows, pulled were 0 \+"):
        parse_exchange(SHAPE, Sizes(0, (0, 0, 0)), body)
    with pytest.raises(FrameError, match="is of 7 dense weights and 3 statistics, this owner"):
        parse_exchange(Shape(SHAPE.tables, 8, True, 3), PUSHED, body)
    with pytest.raises(FrameError, match="has 3 tables, the model has 2"):
        parse_exchange(Shape(SHAPE.tables[:2], 7, True, 3), PUSHED, body)
    keys_of_nothing, _ = new_exchange(SHAPE, 1, PUSHED, Sizes(0, (0, 1, 0)))
    with pytest.raises(FrameError, match=r"pulls 0 \+ 1 \+ 0 keys of 0 rows"):
        parse_exchange(SHAPE, PUSHED, keys_of_nothing)
    for rate in (float("nan"), float("inf"), -1.0):
        body, _ = new_exchange(SHAPE, 1, PUSHED, PULLED, rate_factor=rate)
        with pytest.raises(FrameError, match="rate factor"):
            parse_exchange(SHAPE, PUSHED, body)


@pytest.mark.parametrize("array", ["sums", "counts", "dense", "statistics"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.0**58])
def test_a_push_that_is_not_finite_is_refused(array, value):
    _, written = new_exchange(SHAPE, 1, PUSHED, PULLED)
    exchange.check_finite(written.push, 2)
    owner = written.push.tables[0] if array in ("sums", "counts") else written.push
    getattr(owner, array).flat[2] = value
    if array == "statistics" and value == 2.0**58:
        return
    with pytest.raises(Failure, match="is NaN, infinite or beyond"):
        exchange.check_finite(written.push, 2)
    getattr(owner, array).flat[2] = 2.0**57
    exchange.check_finite(written.push, 2)


def mutated(chance, body, others):
    """Bytes changed, cut, inserted, repeated, taken from another body, or any."""
    body = bytearray(body)
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        place = chance.randrange(len(body) + 1)
        # Lengths and flags are at the start.
        place = chance.choice((place, min(place, chance.randrange(112))))
        kind = chance.randrange(7)
        if kind < 2 and body:
            body[place % len(body)] ^= 1 << chance.randrange(8)
        elif kind == 2:
            body[place : place + 4] = struct.pack(
                "<I", chance.choice((0, 1, 255, 2**31, 2**32 - 1))
            )
        elif kind == 3:
            body[place : place + 8] = struct.pack("<Q", chance.choice((0, 1, 2**63, 2**64 - 1)))
        elif kind == 4:
            del body[place : place + chance.choice((1, 4, 8, 1000))]
        elif kind == 5:
            body[place:place] = chance.randbytes(chance.choice((1, 4, 8, 64)))
        else:
            body[place:] = chance.choice(others)[place:]
    return body


def fuzz(rounds):
    chance = random.Random(rounds)
    made = list(bodies(np.random.default_rng(1)))
    whole = [Frame(Kind.EXCHANGE, 1, 0, 9, (1, 2, 3), body).to_bytes() for body, _, _ in made]
    refused = 0
    for _ in range(rounds):
        if chance.random() < 0.3:
            text, parse = mutated(chance, chance.choice(whole), whole), frames.parse
        else:
            body, _, parse = chance.choice(made)
            text = mutated(chance, body, [other for other, _, _ in made])
        try:
            received = parse(text)
        except FrameError as error:
            assert "\n" not in str(error) and 10 < len(str(error)) < 300
            refused += 1
        else:  # every array is within the bytes
            assert sum(array.nbytes for array in arrays_of(received)) <= len(text)
    return refused


def test_damaged_bytes_are_refused_or_read():
    assert 10_000 < fuzz(20_000) < 20_000


@pytest.mark.long
def test_damaged_bytes_are_refused_or_read_for_long():
    fuzz(1_000_000)


def test_any_bytes_are_refused():
    chance = random.Random(2)
    for _ in range(2000):
        text = chance.randbytes(chance.randrange(200))
        for parse in (
            frames.parse,
            lambda body: parse_exchange(SHAPE, PUSHED, body),
            lambda body: replies.parse_reply(SHAPE, PULLED, body),
            lambda body: replies.parse_read(SHAPE, body),
        ):
            with pytest.raises(FrameError):
                parse(text)


# ---- Sessions ----------------------------------------------------------------


def session():
    return Client(1, 0), Server(1, 1)


def test_requests_run_once_and_in_their_order():
    client, server = session()
    first, second, third = (client.request(Kind.COMMAND, bytes([n])) for n in range(3))
    assert server.receive(second) == Frame(Kind.RESEND, 1, 1, 1)
    assert client.unanswered(1) == [first, second, third]
    assert server.receive(first) == Request(1, Kind.COMMAND, b"\0")
    assert server.receive(first) is None  # it is running
    assert server.receive(second) == Request(2, Kind.COMMAND, b"\1")
    answer = server.reply(2, b"later")  # before the first
    assert client.receive(answer) and not client.receive(answer)
    assert server.receive(second) == answer  # again, from the cache
    assert [frame.number for frame in client.unanswered()] == [1, 3]
    assert server.receive(third).number == 3
    assert client.receive(server.reply(1, b""))
    assert client.receive(server.reply(3, b"", Kind.ERROR_REPLY))
    assert client.unanswered() == [] and server.replies_kept == 3
    assert server.heartbeat(client.heartbeat()) == [] and server.replies_kept == 0
    assert server.receive(second) is None  # answered long ago
    with pytest.raises(FrameError, match="worker 1 answers request 4, not sent yet"):
        client.receive(Frame(Kind.REPLY, 1, 1, 4))


def test_two_requests_may_stay_open():
    """A pass and a checkpoint, and thousands of exchanges while they last."""
    client, server = session()
    for _ in range(2):
        server.receive(client.request(Kind.COMMAND, b""))
    for _ in range(3000):
        request = client.request(Kind.EXCHANGE, b"")
        client.receive(server.reply(server.receive(request).number, b""))
        assert server.replies_kept <= 4
    assert [frame.number for frame in client.unanswered()] == [1, 2]


@pytest.mark.parametrize("left_open", [0, 1, 2, 3])
def test_no_more_requests_may_be_open_than_are_kept(left_open):
    client, server = session()
    for number in range(1, 35 if left_open == 3 else 200):
        server.receive(client.request(Kind.READ, b""))
        if number > left_open:
            client.receive(server.reply(number, b""))
        assert server.replies_kept <= MOST_OPEN + 2
    assert client.is_full() == (left_open == 3)
    if left_open == 3:
        with pytest.raises(FrameError, match="more than 32 requests open"):
            client.request(Kind.READ, b"")
        client.receive(server.reply(2, b""))
        assert not client.is_full()


def test_a_client_that_opens_more_is_refused():
    server = Server(1, 1)
    with pytest.raises(FrameError, match="worker 0 has more than 32 requests open"):
        for number in range(1, 100):
            server.receive(Frame(Kind.READ, 1, 0, number, (1, 2, 3)))


def test_a_heartbeat_shows_what_was_lost():
    client, server = session()
    first, _ = client.request(Kind.READ, b"1"), client.request(Kind.READ, b"2")
    assert server.heartbeat(client.heartbeat()) == [Frame(Kind.RESEND, 1, 1, 1)]
    server.receive(first)
    assert server.heartbeat(client.heartbeat()) == [Frame(Kind.RESEND, 1, 1, 2)]
    for frame in client.unanswered(2):
        server.receive(frame)
    assert server.heartbeat(client.heartbeat()) == []  # both are running
    lost = server.reply(2, b"")
    assert server.heartbeat(client.heartbeat()) == []  # it may be on its way
    assert server.heartbeat(client.heartbeat()) == [lost]
    assert client.receive(lost)
    assert server.heartbeat(client.heartbeat()) == [] and server.replies_kept == 1


def test_a_session_survives_a_bad_link():
    """Frames lost, doubled and reordered at random: each request runs once, in order."""
    for seed in range(60):
        chance = random.Random(seed)
        client, server = session()
        on_way, ran, answered, running = [], [], [], []
        while len(answered) < 60:
            if len(ran) < 60 and not client.is_full() and client._last < 60:
                on_way.append(client.request(Kind.EXCHANGE, b""))
            if chance.random() < 0.1:
                on_way.append(client.heartbeat())
            if running and chance.random() < 0.5:
                number = running.pop(chance.randrange(len(running)))
                on_way.append(server.reply(number, bytes([number])))
            if not on_way:
                continue
            frame = on_way.pop(chance.randrange(min(len(on_way), 5)))
            if chance.random() < 0.1:
                on_way.append(frame)
            if chance.random() < 0.2:
                continue
            if frame.kind is Kind.RESEND:
                on_way += client.unanswered(frame.number)
            elif frame.kind is Kind.HEARTBEAT:
                on_way += server.heartbeat(frame)
            elif frame.kind is Kind.REPLY:
                assert frame.body == bytes([frame.number])
                answered += [frame.number] * client.receive(frame)
            else:
                result = server.receive(frame)
                if isinstance(result, Request):
                    ran.append(result.number)
                    running.append(result.number)
                elif result is not None:
                    on_way.append(result)
            assert server.replies_kept <= MOST_OPEN + 2
        assert ran == list(range(1, 61)) and sorted(answered) == ran


# ---- An owner ----------------------------------------------------------------

TABLE = Shape((TableShape(1, 1, waits=True),), dense=1, figures=True)


class SumsOfGradients:
    """Parameters whose rows are sums, and a record of the calls."""

    def __init__(self):
        self.steps, self.rows, self.dense, self.rates = 0, {}, np.zeros(1, np.float32), []
        self.fails = False

    def push(self, pulled, pushes, rate):
        if self.fails:
            raise Failure("the disk is full")
        for keys, push in zip(pulled, pushes, strict=True):
            for id_, total in zip(keys[0].ids.tolist(), push.tables[0].sums[:, 0], strict=True):
                self.rows[id_] += total
            self.dense += push.dense.sum()
        self.rates.append(rate)
        self.steps += 1

    def pull(self, keys, replies):
        for each, reply in zip(keys, replies, strict=True):
            for place, id_ in enumerate(each[0].ids.tolist()):
                reply.tables[0].rows[place] = self.rows.setdefault(id_, 0)
                reply.tables[0].waits[place] = each[0].occurrences[place]
            reply.dense[:] = self.dense

    def read(self, read, reply):
        for place, id_ in enumerate(read.keys[0].ids.tolist()):
            reply.tables[0][place] = self.rows.get(id_, 0)
        reply.dense[:] = self.dense

    def owned(self):
        return [Owned(len(self.rows), 64 * len(self.rows))]


def sent(step, pushed=(), pulled=(), rank=0, **flags):
    """The body of an exchange that pushes 1 to each of some ids and pulls others."""
    before, after = (Sizes(2 * len(ids), (len(ids),)) for ids in (pushed, pulled))
    body, written = new_exchange(TABLE, step, before, after, **flags)
    written.push.tables[0].sums[:] = 1
    written.push.dense[:] = 10
    written.keys[0].ids[:] = pulled
    written.keys[0].occurrences[:] = rank + 1
    return body


def received(ids, body):
    return replies.parse_reply(TABLE, Sizes(2 * len(ids), (len(ids),)), body)


def test_a_step_begins_when_all_workers_are_there():
    owner = Owner(TABLE, 2, SumsOfGradients())
    assert owner.exchange(1, sent(1, pulled=[6, 7], rank=1)) == []
    first, second = owner.exchange(0, sent(1, pulled=[5, 6], has_next=True, rate_factor=0.5))
    assert owner.is_open and owner.parameters.steps == 0
    reply = received([5, 6], first)
    assert (reply.paused, reply.any_next, reply.rows, reply.owned) == (
        False,
        True,
        8,
        (Owned(0, 0),),
    )
    assert reply.tables[0].waits.tolist() == [1, 1]
    assert received([6, 7], second).tables[0].waits.tolist() == [2, 2]
    # Of step 2, and with the gradients of step 1.
    assert owner.exchange(0, sent(2, [5, 6], [6], rate_factor=0.25)) == []
    first, second = owner.exchange(1, sent(2, [6, 7], [], rank=1, rate_factor=9))
    assert received([6], first).tables[0].rows.tolist() == [[2]]
    assert received([6], first).dense.tolist() == [20]
    assert not received([6], first).any_next
    assert received([], second).dense.size == 0 and received([], second).rows == 2
    assert owner.parameters.rows == {5: 1, 6: 2, 7: 1} and owner.parameters.rates == [0.25]


def test_a_pause_pushes_and_pulls_nothing():
    owner = Owner(TABLE, 2, SumsOfGradients())
    owner.exchange(0, sent(1, pulled=[5]))
    owner.exchange(1, sent(1, pulled=[6]))
    with pytest.raises(FrameError, match="worker 1 reads during step 1"):
        owner.read(1, replies.new_read(TABLE, [1], dense=True)[0])
    owner.exchange(1, sent(2, [6], [8, 9], has_next=True))
    answers = owner.exchange(0, sent(2, [5], pause=True))
    for answer, ids in zip(answers, ([], [8, 9]), strict=True):
        reply = received(ids, answer)
        assert (reply.paused, reply.rows, reply.any_next) == (True, 0, False)
    assert not owner.is_open and owner.parameters.steps == 1
    assert owner.parameters.rows == {5: 1, 6: 1}
    body, read = replies.new_read(TABLE, [2], dense=True)
    read.keys[0].ids[:] = [6, 8]
    reply = replies.parse_read_reply(TABLE, [2], True, owner.read(1, body))
    assert reply.tables[0].tolist() == [[1], [0]] and reply.dense.tolist() == [20]
    # Sent again, without the push.
    owner.exchange(1, sent(2, pulled=[8, 9], has_next=True))
    [first, _] = owner.exchange(0, sent(2))
    assert received([], first).any_next and received([], first).rows == 4
    assert owner.parameters.steps == 1 and sorted(owner.parameters.rows) == [5, 6, 8, 9]


def test_a_step_of_no_rows_is_none():
    owner = Owner(TABLE, 1, SumsOfGradients())
    [answer] = owner.exchange(0, sent(1))
    assert received([], answer).rows == 0 and not owner.is_open
    [answer] = owner.exchange(0, sent(1, pulled=[4]))
    assert received([4], answer).rows == 2 and owner.parameters.steps == 0


@pytest.mark.parametrize(
    ("rank", "body", "words"),
    [
        (1, sent(3, pulled=[4]), "worker 1: an exchange of step 3, the next is 1"),
        (1, sent(0, pulled=[4]), "worker 1: an exchange of step 0, the next is 1"),
        (1, sent(1, pause=True), "worker 1: an exchange pauses the training, which rank 0"),
        (0, sent(1, pulled=[4], pause=True), "worker 0: an exchange pauses and pulls 2 rows"),
        (1, sent(1, pushed=[4]), "worker 1: an exchange pushes 1 keys of 2 rows, pulled were 0"),
        (2, sent(1), "worker 2 sent two exchanges of step 1"),
        (1, b"", "worker 1: an exchange has 0 bytes, the least is 48"),
    ],
)
def test_an_exchange_that_does_not_fit_names_the_worker(rank, body, words):
    owner = Owner(TABLE, 3, SumsOfGradients())
    owner.exchange(2, sent(1, pulled=[4]))
    with pytest.raises(FrameError, match=words):
        owner.exchange(rank, body)
    assert owner.parameters.rows == {}


def test_a_gradient_that_is_nan_names_the_worker_and_the_step():
    owner = Owner(TABLE, 1, SumsOfGradients())
    owner.exchange(0, sent(1, pulled=[4]))
    body, written = new_exchange(TABLE, 2, Sizes(2, (1,)), Sizes(0, (0,)))
    written.push.dense[:] = np.nan
    with pytest.raises(Failure, match="step 1: worker 0: a gradient of a dense weight is NaN"):
        owner.exchange(0, body)
    assert owner.parameters.steps == 0 and owner.is_open
