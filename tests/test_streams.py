"""Frames between processes: every byte, both ways, and what happens when a peer is not one."""

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import grpc
import numpy as np
import pytest
from tnctl.cluster.transport.frame_parts import (
    BULK,
    HEADER,
    PART_BYTES,
    URGENT,
    Joiner,
    Outgoing,
    PartError,
    cut,
)
from tnctl.cluster.transport.streams import Endpoint

from tnctl.cluster.transport import attempts, streams
from tnctl.errors import Failure

SECONDS = 30  # until a test gives up
TOKEN = "a-token-of-this-run"
BUSY = b"keep the interpreter busy"


class Worker:
    """An endpoint that records what happens to it."""

    def __init__(self, rank, ranks=2, token=TOKEN, address="127.0.0.1:0", **options):
        self.events, self.frames, self.changed = [], [], threading.Condition()
        self.answer = None
        self.endpoint = Endpoint(
            address, token, rank, ranks,
            on_frame=self.on_frame,
            on_connected=lambda peer: self.add(("connected", peer)),
            on_lost=lambda peer, reason: self.add(("lost", peer, reason)),
            on_stranger=lambda address, reason: self.add(("stranger", address, reason)),
            **options,
        )  # fmt: skip
        self.address = f"127.0.0.1:{self.endpoint.port}"

    def on_frame(self, peer, frame):
        if self.answer:
            self.answer(peer, frame)
        with self.changed:
            self.frames.append((peer, bytes(frame), time.monotonic()))
            self.changed.notify_all()

    def add(self, event):
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()

    def until(self, condition):
        with self.changed:
            assert self.changed.wait_for(condition, SECONDS), (self.events, len(self.frames))

    def until_event(self, *start):
        self.until(lambda: any(event[: len(start)] == start for event in self.events))


@pytest.fixture
def make():
    workers = []

    def made(*arguments, **options):
        workers.append(Worker(*arguments, **options))
        return workers[-1]

    yield made
    for worker in workers:
        worker.endpoint.close()


@pytest.fixture
def pair(make):
    accepts, dials = make(0), make(1)
    dials.endpoint.connect(0, accepts.address)
    accepts.until_event("connected", 1)
    dials.until_event("connected", 0)
    return accepts, dials


SIZES = (0, 1, 15, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES, 20_000_000)


def test_frames_of_all_sizes_both_ways(pair):
    rng = np.random.default_rng(5)
    contents = [rng.integers(0, 256, size, dtype=np.uint8) for size in SIZES]
    for sender, receiver, peer in ((pair[0], pair[1], 1), (pair[1], pair[0], 0)):
        for content in contents:
            middle = len(content) // 3
            buffers = [content[:middle].data, b"", memoryview(content[middle:])]
            assert sender.endpoint.send(peer, buffers)
        receiver.until(lambda receiver=receiver: len(receiver.frames) == len(SIZES))
        assert [frame for _, frame, _ in receiver.frames] == [c.tobytes() for c in contents]


def test_floats_of_a_frame_are_aligned(pair):
    accepts, dials = pair
    floats = []
    accepts.answer = lambda _, frame: floats.append(np.frombuffer(frame, np.float32))
    for count in (9, 500_000):
        dials.endpoint.send(0, [np.arange(count, dtype=np.float32).data])
    accepts.until(lambda: len(accepts.frames) == 2)
    assert [len(values) for values in floats] == [9, 500_000]
    assert all(values.flags.aligned and values[-1] == len(values) - 1 for values in floats)


def test_the_sent_buffer_may_change_at_once(pair):
    accepts, dials = pair
    content = np.ones(4_000_000, np.uint8)
    dials.endpoint.send(0, [content.data])
    content[:] = 7
    accepts.until(lambda: accepts.frames)
    assert set(accepts.frames[0][1]) == {1}


def test_an_urgent_frame_overtakes_a_large_one(pair):
    accepts, dials = pair
    dials.endpoint.send(0, [bytes(20_000_000)])
    for number in range(5):
        assert dials.endpoint.send(0, [bytes([number])], urgent=True)
    accepts.until(lambda: len(accepts.frames) == 6)
    assert [len(frame) for _, frame, _ in accepts.frames] == [1, 1, 1, 1, 1, 20_000_000]


def test_a_peer_that_does_not_read_makes_the_sender_wait(make, monkeypatch):
    monkeypatch.setattr(streams, "WAITING_BYTES", 1 << 20)
    accepts, dials = make(0), make(1)
    dials.endpoint.connect(0, accepts.address)
    dials.until_event("connected", 0)
    held, sent = threading.Event(), []
    accepts.answer = lambda *_: held.wait(SECONDS)

    def send():
        sent.extend(dials.endpoint.send(0, [bytes(size << 20)]) for size in (8, 40, 0, 8))

    sender = threading.Thread(target=send)
    sender.start()
    sender.join(0.3)
    assert sender.is_alive() and dials.endpoint.is_sending(0)
    assert dials.endpoint.send(0, [b"alive"], urgent=True)
    held.set()
    accepts.until(lambda: len(accepts.frames) == 5)
    sender.join()
    assert sent == [True] * 4 and not dials.endpoint.is_sending(0)
    assert sorted(len(frame) for _, frame, _ in accepts.frames) == [0, 5, *(8 << 20,) * 2, 40 << 20]


def test_a_stream_is_opened_again(make):
    accepts, dials = make(0), make(1)
    address = accepts.address
    dials.endpoint.connect(0, address)
    dials.until_event("connected", 0)
    accepts.endpoint.close()
    dials.until_event("lost", 0)
    assert not dials.endpoint.send(0, [b"dropped"])
    again = make(0, address=address)
    dials.until(lambda: dials.events.count(("connected", 0)) == 2)
    dials.endpoint.send(0, [b"kept"])
    again.until(lambda: again.frames)
    assert again.frames[0][1] == b"kept"


def test_a_second_stream_of_a_peer_takes_the_place_of_the_first(make):
    accepts, first = make(0), make(1)
    first.endpoint.connect(0, accepts.address)
    accepts.until_event("connected", 1)
    second = make(1)
    second.endpoint.connect(0, accepts.address)
    accepts.until_event("lost", 1, "it has opened another stream")
    first.endpoint.close()
    accepts.until(lambda: accepts.events[-1] == ("connected", 1))
    second.until_event("connected", 0)


def test_strangers_are_refused_and_counted(make):
    accepts = make(0, ranks=3)
    for rank, token in ((1, "another"), (1, TOKEN[:-1]), (7, TOKEN), (0, TOKEN)):
        with grpc.insecure_channel(accepts.address) as channel:
            call = channel.stream_stream(f"/{streams.SERVICE}/{streams.METHOD}")(
                iter([bytes(100)]), metadata=((streams.TOKEN, token), (streams.PEER, str(rank)))
            )
            is_known = token == TOKEN
            assert call.code() == (
                grpc.StatusCode.NOT_FOUND if is_known else grpc.StatusCode.UNAUTHENTICATED
            )
            assert TOKEN not in f"{call!r} {call.details()} {call.debug_error_string()}"
    with grpc.insecure_channel(accepts.address) as channel:
        method = channel.stream_stream(f"/{streams.SERVICE}/{streams.METHOD}")
        assert method(iter([])).code() == grpc.StatusCode.UNAUTHENTICATED
        other = channel.unary_unary("/other.Service/Other")
        with pytest.raises(grpc.RpcError) as caught:
            other(b"x")
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    accepts.until(lambda: len(accepts.events) == 5)
    assert {event[0] for event in accepts.events} == {"stranger"}
    assert accepts.endpoint.strangers == 5 and not accepts.frames
    assert TOKEN not in repr(accepts.events) + repr(accepts.endpoint)


def test_a_worker_with_another_token_is_not_connected(make):
    accepts, dials = make(0), make(1, token="another")
    dials.endpoint.connect(0, accepts.address)
    accepts.until_event("stranger")
    deadline = time.monotonic() + SECONDS
    while dials.endpoint.failure(0) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert dials.endpoint.failure(0).startswith("it refuses the token of this worker")
    # It may be a process of an earlier run, which ends.
    assert dials.endpoint.mistakes(SECONDS) == {}
    assert dials.endpoint.mistakes(0.0) == {0: dials.endpoint.failure(0)}
    assert not dials.events


def test_what_may_pass_is_a_mistake_when_it_has_lasted():
    now = [0.0]
    seen = attempts.Attempts(lambda: now[0])
    for reason in (attempts.OTHER_TOKEN, "its connection is lost (UNAVAILABLE)"):
        seen.failed(0, reason)
        now[0] += 9
        seen.failed(0, reason)
        assert seen.reason(0) == reason and seen.mistakes(10) == {}
    seen.failed(0, attempts.OTHER_TOKEN)  # the time in which nobody listened does not count
    now[0] += 9
    assert seen.mistakes(10) == {}
    now[0] += 1
    assert seen.mistakes(10) == {0: attempts.OTHER_TOKEN}
    seen.failed(2, attempts.USES_TLS)
    assert seen.mistakes(99) == {2: attempts.USES_TLS}
    seen.succeeded(0)
    assert seen.reason(0) is None and list(seen.mistakes(10)) == [2]


def test_what_closes_all_connections_may_yet_begin(make):
    """As a proxy does whose server still starts: it is no worker with TLS."""
    dials = make(1)

    def close_all(server):
        with contextlib.suppress(OSError):
            while True:
                server.accept()[0].close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        threading.Thread(target=close_all, args=[server], daemon=True).start()
        assert not attempts.speaks_tls(address)
        dials.endpoint.connect(0, address)
        deadline = time.monotonic() + SECONDS
        while dials.endpoint.failure(0) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert dials.endpoint.failure(0) and dials.endpoint.mistakes(0.0) == {}
        server.shutdown(socket.SHUT_RDWR)
    assert not attempts.speaks_tls(address)  # nobody listens
    assert not attempts.speaks_tls(make(0).address)


def test_what_is_no_grpc_is_ignored(make):
    accepts, dials = make(0), make(1)
    for content in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(5000), b""):
        with socket.create_connection(("127.0.0.1", accepts.endpoint.port)) as stranger:
            stranger.sendall(content)
    dials.endpoint.connect(0, accepts.address)
    dials.until_event("connected", 0)
    assert not accepts.frames


def raw_call(worker, parts):
    """A peer with the token that sends any messages; the call's code."""
    with grpc.insecure_channel(worker.address) as channel:
        call = channel.stream_stream(f"/{streams.SERVICE}/{streams.METHOD}")(
            iter(parts), metadata=((streams.TOKEN, TOKEN), (streams.PEER, "1"))
        )
        return call.code()


def test_garbage_of_a_peer_ends_its_stream(make):
    accepts = make(0, limit=1000)
    for parts in ([b"short"], [HEADER.pack(0, 1001) + bytes(1001)], [bytes([9]) * 16]):
        accepts.events.clear()
        raw_call(accepts, parts)
        accepts.until_event("lost", 1)
    raw_call(accepts, [bytes(PART_BYTES + 17)])  # larger than gRPC's own limit
    assert not accepts.frames


def test_the_address_is_the_only_one(make):
    accepts = make(0)
    rows = [
        row.split()
        for name in ("tcp", "tcp6")
        for row in Path(f"/proc/net/{name}").read_text().splitlines()
    ]
    listening = [row[1].partition(":") for row in rows if row[3] == "0A"]
    hosts = [host for host, _, port in listening if int(port, 16) == accepts.endpoint.port]
    loopback = f"{struct.unpack('<I', socket.inet_aton('127.0.0.1'))[0]:08X}"
    # gRPC listens on 127.0.0.1 as an address of IPv6.
    assert hosts and all(host.removeprefix("0" * 16 + "FFFF0000") == loopback for host in hosts)
    with pytest.raises(Failure, match="cannot listen on"):
        make(1, address=accepts.address)


PROGRAM = f"""
import ctypes, sys
from tnctl.cluster.transport.streams import Endpoint
def ignored(*_): pass
def answer(peer, frame):
    if frame == {BUSY!r}:
        ctypes.PyDLL(None).usleep(2_500_000)  # no other thread of Python runs meanwhile
    endpoint.send(peer, [frame])
endpoint = Endpoint("127.0.0.1:0", {TOKEN!r}, 1, 2, on_frame=answer, on_connected=ignored,
    on_lost=ignored, on_stranger=ignored)
endpoint.connect(0, sys.argv[1])
sys.stdin.read()
"""


@pytest.mark.alone
def test_a_connection_ends_with_a_peer_that_is_stopped_not_with_one_that_is_busy(make):
    """Threads of gRPC answer pings while the interpreter waits."""
    accepts = make(0, timeout=2)
    command = [sys.executable, "-c", PROGRAM, accepts.address]
    peer = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        accepts.until_event("connected", 1)
        accepts.endpoint.send(1, [BUSY])  # it answers when it is not busy any more
        started = time.monotonic()
        accepts.until(lambda: accepts.frames)
        assert time.monotonic() - started >= 2.5 and len(accepts.events) == 1
        peer.send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        accepts.until_event("lost", 1)
        assert time.monotonic() - stopped < 2.5
    finally:
        peer.kill()
        peer.communicate()


@pytest.mark.alone
def test_a_killed_peer_is_noticed_at_once_and_a_stopped_one_by_its_silence(make):
    accepts = make(0)
    command = [sys.executable, "-c", PROGRAM, accepts.address]
    peer = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        accepts.until_event("connected", 1)
        accepts.endpoint.send(1, [b"a" * 3_000_000])
        accepts.until(lambda: accepts.frames)
        peer.send_signal(signal.SIGSTOP)
        status = Path(f"/proc/{peer.pid}/status")
        deadline = time.monotonic() + SECONDS
        while "State:\tT" not in status.read_text() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert accepts.endpoint.send(1, [b"b"], urgent=True)
        time.sleep(0.5)
        assert len(accepts.frames) == 1
        peer.send_signal(signal.SIGCONT)
        accepts.until(lambda: len(accepts.frames) == 2)
        killed = time.monotonic()
        peer.kill()
        accepts.until_event("lost", 1)
        assert time.monotonic() - killed < 3
    finally:
        peer.kill()
        peer.communicate()


# ---- Parts, without a network ------------------------------------------------


def test_parts_of_two_lanes_are_joined():
    joiner = Joiner(10 * PART_BYTES)
    bulk, urgent = os.urandom(2 * PART_BYTES + 5), os.urandom(PART_BYTES + 1)
    first, second, third = cut([bulk], BULK)
    head, tail = cut([urgent], URGENT)
    joined = [joiner.add(part) for part in (first, head, second, tail, third)]
    assert joined[:3] == [None] * 3
    assert [bytes(frame) for frame in joined[3:]] == [urgent, bulk]


def test_parts_that_do_not_fit_are_refused():
    first, second, third = cut([bytes(2 * PART_BYTES + 5)], BULK)
    wrong = [
        [third],  # not the first
        [first, third],
        [first, first, first],
        [first, *cut([b"x"], BULK)],
        [first[:-1]],
        [first, second, third + b"x"],
        [HEADER.pack(BULK, 4 * PART_BYTES) + bytes(PART_BYTES)],
        [HEADER.pack(BULK, 2**63) + bytes(PART_BYTES)],
        [HEADER.pack(2, 1) + b"x"],
        [b""],
    ]
    for parts in wrong:
        joiner = Joiner(3 * PART_BYTES)
        with pytest.raises(PartError):
            assert all(joiner.add(part) is None for part in parts)


def test_mutated_parts_never_make_a_frame_that_was_not_sent():
    rng = np.random.default_rng(13)
    whole = list(cut([bytes(range(256)) * 8200], BULK))  # three parts
    made = refused = 0
    for _ in range(300):
        parts = [bytearray(part) for part in whole]
        for _ in range(rng.integers(0, 3)):
            part = parts[rng.integers(len(parts))]
            match rng.integers(4):
                case 0:
                    part[rng.integers(HEADER.size)] ^= 1 << rng.integers(8)
                case 1:
                    del part[rng.integers(len(part)) :]
                case 2:
                    part += bytes(rng.integers(1, 50))
                case 3:
                    parts.insert(rng.integers(len(parts) + 1), bytearray(part))
        joiner = Joiner(1 << 23)
        try:
            frames = [joiner.add(bytes(part)) for part in parts]
        except PartError:
            refused += 1
            continue
        whole_frames = [frame for frame in frames if frame is not None]
        made += len(whole_frames)
        assert all(len(frame) == 256 * 8200 for frame in whole_frames)
    assert made > 50 and refused > 100


def test_what_waits_is_bounded():
    outgoing, made, ended = Outgoing(10), [], []

    def parts():
        for number in range(5):
            made.append(number)
            yield bytes(6)

    sender = threading.Thread(target=lambda: ended.append(outgoing.put(parts(), BULK)))
    sender.start()
    sender.join(0.1)
    # Two wait, a third is made and has no room.
    assert sender.is_alive() and made == [0, 1, 2] and outgoing.is_sending
    assert outgoing.put([b"y"], URGENT)
    assert [next(outgoing) for _ in range(6)] == [b"y", *[bytes(6)] * 5]
    sender.join()
    assert ended == [True] and not outgoing.is_sending
    sender = threading.Thread(target=lambda: ended.append(outgoing.put(parts(), BULK)))
    sender.start()
    sender.join(0.1)
    outgoing.end()
    sender.join()
    assert ended == [True, False]
    assert list(outgoing) == [] and not outgoing.put([b"z"], URGENT)
