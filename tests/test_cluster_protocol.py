"""Bodies of messages between workers: what was written is read, anything else is refused."""

import json
import random
import struct
from dataclasses import asdict

import numpy as np
import pytest
from safetensors.numpy import load

from tnctl.cluster.messages import exchange
from tnctl.cluster.messages.exchange import (
    Owned,
    Shape,
    Sizes,
    TableShape,
    new_exchange,
    new_read,
    new_read_reply,
    new_reply,
    parse_exchange,
    parse_read,
    parse_read_reply,
    parse_reply,
)
from tnctl.cluster.transport.kinds import MessageError
from tnctl.errors import Failure

SHAPE = Shape(
    (TableShape(3, 5, counts=True, waits=True), TableShape(0, 2), TableShape(1, 1, waits=True)),
    dense=7,
    figures=True,
    statistics=3,
)
PUSHED, PULLED = Sizes(5, (3, 4, 1)), Sizes(9, (2, 5, 0))


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
            new_reply(shape, pulled, owned, rows=20, any_next=True),
            lambda body: parse_reply(shape, pulled, body),
        ),
        (
            new_read(shape, pulled.keys, dense=True),
            lambda body: parse_read(shape, body),
        ),
        (
            new_read_reply(shape, pulled.keys, dense=True),
            lambda body: parse_read_reply(shape, pulled.keys, True, body),
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
        received = parse(bytes(body))
        np.testing.assert_equal(asdict(received), asdict(written))
        for array in arrays_of(received):
            assert array.flags.aligned and not (array.size and array.flags.writeable)
        parse(body)  # of a bytearray too
        with pytest.raises(MessageError):
            parse(bytes(body) + bytes(8))
        with pytest.raises(MessageError):
            parse(bytes(body)[:-8])


def test_the_package_of_the_format_reads_the_arrays_of_an_exchange():
    body, written = new_exchange(SHAPE, 1, PUSHED, PULLED)
    fill(np.random.default_rng(1), written)
    arrays = load(bytes(body))
    figures = ["dense", "labels", "logits", "statistics", "work"]
    pushed = ["0.counts", "0.sums", "1.sums", "2.sums"]
    pulled = [f"{table}.{name}" for table in range(3) for name in ("groups", "ids")]
    assert sorted(arrays) == sorted(figures + pushed + pulled + ["0.occurrences", "2.occurrences"])
    np.testing.assert_equal(arrays["0.sums"], written.push.tables[0].sums)
    np.testing.assert_equal(arrays["1.ids"], written.keys[1].ids)
    assert arrays["work"].dtype == np.float64 and arrays["dense"].shape == (7,)


def test_numbers_are_exact():
    largest, third = 2**64 - 1, 1 / 3
    body, _ = new_exchange(SHAPE, largest, PUSHED, PULLED, rate_factor=5e-324, loss=-third)
    received = parse_exchange(SHAPE, PUSHED, body)
    assert (received.step, received.rate_factor, received.push.loss) == (largest, 5e-324, -third)
    body, _ = new_exchange(SHAPE, 1, PUSHED, PULLED, loss=float("nan"), rate_factor=1.7e308)
    received = parse_exchange(SHAPE, PUSHED, body)
    assert np.isnan(received.push.loss) and received.rate_factor == 1.7e308


def test_what_a_worker_did_not_pull_is_not_pushed():
    body, _ = new_exchange(SHAPE, 1, PUSHED, PULLED)
    with pytest.raises(MessageError, match="pushes 5 rows, pulled were 0"):
        parse_exchange(SHAPE, Sizes(0, (0, 0, 0)), body)
    with pytest.raises(MessageError, match=r"has no 1.sums of F32 \[5, 0\]"):
        parse_exchange(SHAPE, Sizes(5, (3, 5, 1)), body)
    with pytest.raises(MessageError, match=r"an exchange has no dense of F32 \[8\]"):
        parse_exchange(Shape(SHAPE.tables, 8, True, 3), PUSHED, body)
    with pytest.raises(MessageError, match="an exchange has 4 arrays too many"):
        parse_exchange(Shape(SHAPE.tables[:2], 7, True, 3), Sizes(5, (3, 4)), body)
    keys_of_nothing, _ = new_exchange(SHAPE, 1, PUSHED, Sizes(0, (0, 1, 0)))
    with pytest.raises(MessageError, match=r"pulls 1 keys of 0 rows"):
        parse_exchange(SHAPE, PUSHED, keys_of_nothing)
    for rate in (float("nan"), float("inf"), -1.0):
        body, _ = new_exchange(SHAPE, 1, PUSHED, PULLED, rate_factor=rate)
        with pytest.raises(MessageError, match="rate factor"):
            parse_exchange(SHAPE, PUSHED, body)


@pytest.mark.parametrize("array", ["sums", "counts", "dense", "statistics", "logits", "labels"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.0**58])
def test_a_push_that_is_not_finite_is_refused(array, value):
    _, written = new_exchange(SHAPE, 1, PUSHED, PULLED)
    exchange.check_finite(written.push, 2)
    owner = written.push.tables[0] if array in ("sums", "counts") else written.push
    getattr(owner, array).flat[2] = value
    if array in ("statistics", "logits", "labels") and value == 2.0**58:
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
        # The header is at the start.
        place = chance.choice((place, min(place, chance.randrange(600))))
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


def with_another_header(chance, body):
    """A body whose header has another number, text or name, or one less."""
    [length] = struct.unpack_from("<Q", body)
    header = json.loads(body[8 : 8 + length])
    scalars = json.loads(header["__metadata__"].pop("scalars"))
    changed = chance.choice([scalars, header, *header.values()])
    name = chance.choice([*changed, "a"])
    kinds = [entry["dtype"] for entry in header.values() if "dtype" in entry]
    values = [
        0, 1, 2, 8, -1, 2**30, 2**62, 2**64, 1.0, float("inf"), True, None, "a", [], {}, [[0, 0]],
        [0, 0], [3, 3], [1, 3], [2**63, 2], *kinds, *changed.values(),
    ]  # fmt: skip
    if chance.randrange(3) or name not in changed:
        changed[name] = chance.choice(values)
    else:
        value = changed.pop(name)
        if chance.randrange(2):
            changed[chance.choice(["0.ids", "1.ids", "step", "shape", "a"])] = value
    if isinstance(header.get("__metadata__"), dict):
        header["__metadata__"]["scalars"] = json.dumps(scalars)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return bytearray(struct.pack("<Q", len(text)) + text + body[8 + length :])


def fuzz(rounds):
    chance = random.Random(rounds)
    made = list(bodies(np.random.default_rng(1)))
    refused = 0
    for _ in range(rounds):
        body, written, parse = chance.choice(made)
        if chance.randrange(4):
            text = mutated(chance, body, [other for other, _, _ in made])
        else:
            text = with_another_header(chance, body)
        try:
            received = parse(text)
        except MessageError as error:
            assert "\n" not in str(error) and 10 < len(str(error)) < 300
            refused += 1
        else:  # every array is within the bytes, and is what the reader works with
            assert sum(array.nbytes for array in arrays_of(received)) <= len(text)
            kinds = [[(a.dtype, a.shape) for a in arrays_of(m)] for m in (received, written)]
            assert kinds[0] == kinds[1]
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
            lambda body: parse_exchange(SHAPE, PUSHED, body),
            lambda body: parse_reply(SHAPE, PULLED, body),
            lambda body: parse_read(SHAPE, body),
        ):
            with pytest.raises(MessageError):
                parse(text)
