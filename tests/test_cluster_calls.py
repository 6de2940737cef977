"""Commands between members: what was called is what is run, and any other bytes are refused."""

import itertools
import json
import random
import struct

import cluster_in_one_process
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load
from test_cluster_protocol import mutated

from tnctl.cluster.messages import commands, named_arrays
from tnctl.cluster.messages.commands import command
from tnctl.cluster.transport.kinds import Kind, MessageError
from tnctl.data.unit_records import Remainder, Unit
from tnctl.documents import Count, Name
from tnctl.errors import Failure

ARRAYS = {
    "flags": np.array([True, False, True]),
    "ids": np.array([1, 2**64 - 1], np.uint64),
    "nothing": np.empty((0, 5)),
    "rows": np.arange(6, dtype=np.float32).reshape(2, 3),
    "groups": np.array([7, 65_535, 9], np.uint16),
    "bytes": np.frombuffer(b"abcde", np.uint8),
}
METADATA = {"command": "look", "text": 'a "text" \N{SNOWMAN}'}


class Target:
    """Something whose methods are called."""

    @command
    def look_at(
        self, table: Count, ids: NDArray[np.uint64], units: tuple[Remainder, ...], name: Name
    ) -> tuple[NDArray[np.uint64], NDArray[np.float32]]:
        self.given = table, ids.tolist(), units, name
        return ids[::-1], np.full((len(ids), 2), table, np.float32)

    @command
    def find_unit(self, number: Count) -> Unit | None:
        return Unit(number, f"file {number}") if number else None

    @command
    def some_array(self, kind: Name) -> NDArray[np.generic]:
        return np.arange(3).astype(kind)


# ---- Named arrays --------------------------------------------------------------


def same(arrays, expected):
    assert arrays.keys() == expected.keys()
    for name, array in arrays.items():
        assert array.dtype == expected[name].dtype and array.shape == expected[name].shape
        assert array.tobytes() == expected[name].tobytes()


def test_a_body_has_the_layout_of_safetensors():
    body = bytes(named_arrays.packed(ARRAYS, METADATA))
    assert named_arrays.metadata_of(body) == METADATA
    same(load(body), ARRAYS)  # as the package of the format reads it
    for buffer in (body, bytearray(body), memoryview(body)):
        metadata, parsed = named_arrays.parse(buffer)
        assert metadata == METADATA
        same(parsed, ARRAYS)
        assert all(array.flags.aligned for array in parsed.values())
        assert parsed["ids"].flags.writeable == isinstance(buffer, bytearray)
    assert named_arrays.parse(named_arrays.packed({}, {})) == ({}, {})


def with_header(header, data=b""):
    text = (
        header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    )
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype="U8", shape=(2,), offsets=(0, 2)):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


FIRST_AND_SECOND = tuple(
    json.dumps(entry(offsets=offsets)).encode() for offsets in ((0, 2), (2, 4))
)


@pytest.mark.parametrize("body", [
    b"", b"1234567", struct.pack("<Q", 0), struct.pack("<Q", 2**63), struct.pack("<Q", 8) + b"{}",
    with_header(b"[" * 60_000), with_header(b"[]"), with_header({}), with_header(b"\xff"),
    with_header({"__metadata__": entry()}, b"12"),
    with_header({"__metadata__": {}, "a": {"text": "a"}}),
    with_header({"__metadata__": {}, "a": entry(offsets=(1, 3))}, b"123"),
    with_header({"__metadata__": {}, "a": entry(), "b": entry()}, b"12"),
    with_header({"__metadata__": {}, "a": entry(), "b": entry(offsets=(2, 4))}, b"123"),
    with_header({"__metadata__": {}, "a": entry(), "b": entry(offsets=(2, 4))}, b"12345"),
    with_header({"__metadata__": {}, "b": entry(), "a": entry("U64", [0], (2, 2))}, b"12"),
    with_header(b'{"__metadata__":{},"a":%b,"a":%b}' % FIRST_AND_SECOND, b"1234"),
    with_header({"__metadata__": {}, "a": entry(shape=[2.0])}, b"12"),
    with_header({"__metadata__": {}, "a": entry(shape=[True], offsets=[0, 1])}, b"1"),
    with_header({"__metadata__": {}, "a": entry(shape=[-2], offsets=[0, -2])}, b""),
    with_header({"__metadata__": {}, "a": entry(shape=[2**40, 0], offsets=[0, 0])}),
    with_header({"__metadata__": {}, "a": entry(shape=[1] * 9, offsets=[0, 1])}, b"1"),
    with_header({"__metadata__": {}, "a": entry("F16")}, b"12"),
    with_header({"__metadata__": {}, "a": entry("BOOL")}, b"\1\2"),
    with_header({"__metadata__": {"a": 1}}), with_header({"__metadata__": {"a": []}}),
    with_header({"__metadata__": {}, "a": entry(["U8"])}, b"12"),
    with_header({"__metadata__": {}, "a": entry(shape="12")}, b"12"),
    with_header({"__metadata__": {}, "a": entry(shape=[-1, -2])}, b"12"),
    with_header({"__metadata__": {}, "a": entry("U64", [2**61], [0, 2**64])}),
    with_header({"__metadata__": {}, "a": entry(shape=[2**70, 0], offsets=[0, 0])}),
    with_header({"__metadata__": {"a": "x" * named_arrays.MOST_HEADER_BYTES}}),
])  # fmt: skip
def test_a_body_that_is_written_in_no_way_is_refused(body):
    with pytest.raises(MessageError, match=r"^a message .{10,200}$"):
        named_arrays.parse(body)


# ---- Calls ---------------------------------------------------------------------

UNITS = (Remainder(Unit(3, "a file"), 1, 2), Remainder(Unit(4)))
IDS = np.array([5, 2**64 - 1], np.uint64)


def test_what_was_called_is_run():
    target = Target()
    request = commands.request(Target.look_at, 7, IDS, UNITS, name="a")
    assert commands.name_of(request) == "look_at" and len(request) < 600
    ids, rows = commands.result(Target.look_at, commands.run(target, request))
    assert target.given == (7, IDS.tolist(), UNITS, "a")
    assert ids.tolist() == IDS.tolist()[::-1] and rows.tolist() == [[7, 7]] * 2
    for number, unit in ((0, None), (9, Unit(9, "file 9"))):
        reply = commands.run(target, commands.request(Target.find_unit, number))
        assert commands.result(Target.find_unit, reply) == unit
    for kind in ("float64", "uint16"):
        reply = commands.run(target, commands.request(Target.some_array, kind))
        assert commands.result(Target.some_array, reply).dtype == kind


def test_other_calls_are_refused():
    def refused(words, body, target=None):
        with pytest.raises(Failure, match=words) as error:
            commands.run(target or Target(), body)
        assert "\n" not in str(error.value)

    unknown = "a command is unknown: do all workers have the same version"
    refused(unknown, named_arrays.packed({}, {"command": "__init__"}))
    refused(unknown, named_arrays.packed({}, {}))
    refused(unknown, commands.request(Target.find_unit, 1), target=object())
    wrong = "^a message of another worker is wrong: "
    refused(wrong + ".*table", commands.request(Target.look_at, -1, IDS, UNITS, "a"))
    refused(wrong + ".*name", commands.request(Target.look_at, 1, IDS, UNITS, "a b"))
    refused(wrong + ".*other arrays", commands.request(Target.look_at, 1, ARRAYS["rows"], (), "a"))
    text = {"json": np.frombuffer(b'{"number": true}', np.uint8)}
    refused(wrong + ".*number", named_arrays.packed(text, {"command": "find_unit"}))
    refused(wrong, named_arrays.packed({}, {"command": "find_unit"}))
    reply = commands.run(Target(), commands.request(Target.find_unit, 1))
    with pytest.raises(Failure, match=wrong + ".*other arrays"):
        commands.result(Target.some_array, reply)


def test_a_call_that_fails_or_is_unknown_ends_all_with_a_line():
    for body, words in (
        (b"12345678901234567", "worker 0: a message of 17 bytes has a header"),
        (
            named_arrays.packed({}, {"command": "find_unit"}),
            "a message of another worker is wrong: ",
        ),
    ):
        nodes = cluster_in_one_process.cluster(2)
        nodes[0].route(Target.find_unit, commands.answering(Target()))
        with pytest.raises(Failure, match=words):
            nodes[1].request(0, Kind.COMMAND, body).result(10)
        assert str(nodes[0].error) == str(nodes[1].error)


def fuzz(rounds):
    """How many of so many damaged requests and replies are refused."""
    chance = random.Random(rounds)
    calls = [
        commands.request(Target.look_at, 7, IDS, UNITS, "a"),
        commands.request(Target.find_unit, 3),
        commands.request(Target.some_array, "float32"),
    ]
    replies = [
        commands.run(Target(), commands.request(Target.find_unit, 3)),
        commands.run(Target(), calls[0]),
    ]
    refused = 0
    for number in range(rounds):
        is_call = number % 2
        bodies = calls if is_call else replies
        which = chance.randrange(len(bodies))
        body = mutated(chance, bodies[which], bodies)
        try:
            if is_call:
                called = commands.COMMANDS[commands.name_of(body)]
                values = called.arguments.decode(body)
            else:
                method = (Target.find_unit, Target.look_at)[which]
                values = commands.COMMANDS[method.__name__].results.decode(body)
        except (MessageError, Failure, KeyError) as error:
            assert "\n" not in str(error) and len(str(error)) < 400
            refused += 1
        else:
            arrays = [value for value in values.values() if isinstance(value, np.ndarray)]
            assert sum(array.nbytes for array in arrays) <= len(body)
    return refused


def test_damaged_calls_are_refused_or_read():
    assert 2_000 < fuzz(4_000) < 4_000


@pytest.mark.long
def test_damaged_calls_are_refused_or_read_for_long():
    fuzz(200_000)


def test_any_bytes_are_no_call():
    chance = random.Random(2)
    for length in itertools.chain(range(100), [1000] * 100):
        with pytest.raises(MessageError):
            commands.name_of(chance.randbytes(length))
