"""Calls between processes: every byte, both ways, and what happens when a peer is not one."""

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import grpc
import numpy as np
import pytest
from cluster_commands import until

from tnctl.cluster.transport import attempts, rpc
from tnctl.cluster.transport.kinds import Kind, MessageError
from tnctl.cluster.transport.once import Envelope
from tnctl.cluster.transport.rpc import CallRefused, Endpoint
from tnctl.errors import Failure

SECONDS = 30  # until a test gives up
TOKEN = "a-token-of-this-run"
ENVELOPE = Envelope(7, 0, Kind.READ, 1, (1,)).to_bytes()
METADATA = ((rpc.TOKEN, TOKEN), (rpc.PEER, "1"))


class Worker:
    """A process that records what happens to it, and answers with what it was sent."""

    def __init__(self, rank, ranks=2, token=TOKEN, address="127.0.0.1:0", **options):
        self.process, self.events, self.bodies = f"process {rank}", [], []
        self.changed, self.held, self.staying = threading.Condition(), None, []
        self.endpoint = Endpoint(address, token, rank, ranks, self, **options)
        self.address = f"127.0.0.1:{self.endpoint.port}"

    def joined(self, peer, body):
        return self.called(peer, None, body)

    def stayed(self, process):
        if process != self.process.encode():
            raise CallRefused("it is another process")
        self.staying.append(Future())
        return self.staying[-1]

    def called(self, peer, envelope, body):
        if body == b"wrong":
            raise MessageError("the body is wrong")
        with self.changed:
            self.bodies.append(body)
            held = self.held  # which the test may change once it sees the event
        self.add(("called", peer, envelope and envelope.number))
        reply = Future() if held is None else held
        if held is None:
            reply.set_result(body)
        return reply

    def on_stranger(self, address, reason):
        self.add(("stranger", address, reason))

    def on_refused(self, peer, reason):
        self.add(("refused", peer, reason))

    def connect(self, peer, address):
        self.endpoint.connect(peer, address, lambda process: self.add(("connected", process)))

    def watch(self, peer):
        self.endpoint.watch(
            peer,
            f"process {peer}",
            lambda reason: self.add(("lost", peer, reason)),
            lambda process: self.add(("again", process)),
            lambda farewell: self.add(("ended", farewell)),
        )

    def call(self, peer, body):
        return self.endpoint.call(peer, "Call", body, ENVELOPE)

    def add(self, event):
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()

    def until_event(self, *start):
        def happened():
            return any(event[: len(start)] == start for event in self.events)

        with self.changed:
            assert self.changed.wait_for(happened, SECONDS), self.events


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
    first, second = make(0), make(1)
    first.connect(1, second.address)
    second.connect(0, first.address)
    first.until_event("connected", "process 1")
    second.until_event("connected", "process 0")
    return first, second


def test_bodies_of_all_sizes_both_ways(pair):
    rng = np.random.default_rng(5)
    for sender, peer in ((pair[0], 1), (pair[1], 0)):
        for size in (0, 1, 15, 1 << 14, 5_000_000, 20_000_000):
            content = rng.integers(0, 256, size, dtype=np.uint8).tobytes()
            assert sender.call(peer, bytearray(content)).result(SECONDS).body == content


def test_a_reply_may_come_late_and_says_how_late(pair):
    first, second = pair
    second.held = Future()
    reply = first.call(1, b"a")
    second.until_event("called", 1 - 1, 1)
    second.held, held = None, second.held
    assert first.call(1, b"b").result(SECONDS).body == b"b"  # overtakes it
    time.sleep(0.3)
    held.set_result(b"later")
    received = reply.result(SECONDS)
    assert received.body == b"later" and 0.2 < received.held < SECONDS


def test_a_call_is_made_again_when_its_connection_breaks(make):
    """By the same caller, with the same envelope, to whoever has the address."""
    caller, first = make(0), make(1)
    first.held = Future()
    caller.connect(1, first.address)
    caller.until_event("connected", "process 1")
    caller.watch(1)
    reply = caller.call(1, b"kept")
    first.until_event("called", 0, 1)
    first.endpoint.close()
    caller.until_event("lost", 1)
    assert not reply.done()
    again = make(1, address=first.address)
    assert reply.result(SECONDS).body == b"kept" and again.bodies == [b"kept"]
    caller.until_event("again", "process 1")
    until(lambda: again.staying)


class Proxy:
    """Between a caller and a worker: connections may be closed, or carry nothing for a while."""

    def __init__(self, port):
        self.flows, self.ends = threading.Event(), []
        self.flows.set()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.server.getsockname()[1]}"
        threading.Thread(target=self.accept, args=[port], daemon=True).start()

    def accept(self, port):
        with contextlib.suppress(OSError):
            while True:
                near, far = self.server.accept()[0], socket.create_connection(("127.0.0.1", port))
                self.ends += near, far
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self.carry, args=ends, daemon=True).start()

    def carry(self, source, to):
        with contextlib.suppress(OSError):
            while content := source.recv(1 << 16):
                self.flows.wait()
                to.sendall(content)
            to.shutdown(socket.SHUT_RDWR)

    def close_all(self):
        for end in self.ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("how", ["closed", "silent"])
def test_a_held_call_is_made_again_and_leaves_nothing_behind(make, monkeypatch, how):
    """There is room for one call, what watches, and one more: those that broke must be over."""
    monkeypatch.setattr(rpc, "CALLS_PER_PEER", 0)
    monkeypatch.setattr(rpc, "STRANGERS", 3)
    # Pings are answered late on a busy machine, and are to notice the silence only.
    seconds = 20 if how == "closed" else 5
    caller, answers = make(0, timeout=seconds), make(1, timeout=seconds)
    proxy, answers.held = Proxy(answers.endpoint.port), Future()
    caller.connect(1, proxy.address)
    caller.until_event("connected", "process 1")
    caller.watch(1)
    reply = caller.call(1, b"kept")
    for number in range(1, 3):
        until(lambda: len(answers.bodies) == number == len(answers.staying))  # noqa: B023
        caller.events.clear()
        broken = time.monotonic()
        proxy.close_all() if how == "closed" else proxy.flows.clear()
        caller.until_event("lost", 1)
        assert how == "silent" or time.monotonic() - broken < 5
        proxy.flows.set()
        caller.until_event("again", "process 1")
    until(lambda: len(answers.bodies) == 3)
    answers.held.set_result(b"late")
    assert reply.result(SECONDS).body == b"late" and answers.bodies == [b"kept"] * 3
    assert answers.events == [("called", 0, 1)] * 3
    proxy.server.close()


def test_a_call_for_which_there_is_no_room_waits(make, monkeypatch):
    """Strangers that call often must not end a training."""
    monkeypatch.setattr(rpc, "CALLS_PER_PEER", 0)
    monkeypatch.setattr(rpc, "STRANGERS", 1)
    caller, answers = make(0), make(1)
    caller.connect(1, answers.address)
    caller.until_event("connected", "process 1")
    answers.held = Future()
    replies = [caller.call(1, b"first")]
    answers.until_event("called", 0, 1)
    replies.append(caller.call(1, b"second"))
    time.sleep(0.2)
    assert answers.bodies == [b"first"] and not replies[1].done()
    answers.held.set_result(b"done")
    assert [reply.result(SECONDS).body for reply in replies] == [b"done"] * 2


@pytest.mark.parametrize("token", [TOKEN, "another"])
def test_whoever_has_the_address_later_is_not_asked_all_the_time(make, token):
    caller, first = make(0), make(1)
    caller.connect(1, first.address)
    caller.until_event("connected", "process 1")
    caller.watch(1)
    until(lambda: first.staying)
    first.endpoint.close()
    other = make(1, token=token, address=first.address)
    other.process = "another process"
    if token == TOKEN:
        caller.until_event("again", "another process")
    else:
        other.until_event("stranger")
    caller.events.clear()
    other.endpoint.strangers = 0
    time.sleep(1)
    assert len(caller.events) + other.endpoint.strangers < 50


def test_closing_ends_all_threads(make):
    threads = set(threading.enumerate())
    caller, answers = make(0, ranks=3), make(1, ranks=3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        caller.connect(1, answers.address)
        caller.connect(2, f"127.0.0.1:{silent.getsockname()[1]}")
        caller.until_event("connected", "process 1")
        caller.watch(1)
        answers.held = Future()
        reply = caller.call(1, b"held")
        until(lambda: answers.bodies and answers.staying)
        started = time.monotonic()
        for worker in (answers, caller):
            worker.endpoint.close()
        until(lambda: set(threading.enumerate()) <= threads)
        assert time.monotonic() - started < 15 and not reply.done()


def test_a_process_that_ends_says_so(pair):
    first, second = pair
    first.watch(1)
    until(lambda: second.staying)
    second.staying[0].set_result(b"farewell")
    first.until_event("ended", b"farewell")


def test_calls_that_are_wrong_are_refused(pair):
    first, second = pair
    with pytest.raises(CallRefused, match="the body is wrong"):
        first.call(1, b"wrong").result(SECONDS)
    second.until_event("refused", 0, "the body is wrong")
    with pytest.raises(CallRefused, match="an envelope has 5 bytes"):
        first.endpoint.call(1, "Call", b"", b"12345").result(SECONDS)
    with pytest.raises(CallRefused, match="it is another process"):
        first.endpoint.call(1, "Stay", b"process 2").result(SECONDS)


def code_of(channel, method, body, metadata):
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(method)(body, metadata=metadata, timeout=SECONDS)
    assert TOKEN not in f"{caught.value!r} {caught.value.details()}"
    return caught.value.code()


def test_strangers_are_refused_and_counted(make):
    accepts = make(0, ranks=3)
    with grpc.insecure_channel(accepts.address) as channel:
        for rank, token in ((1, "another"), (1, TOKEN[:-1]), (7, TOKEN), (0, TOKEN)):
            metadata = ((rpc.TOKEN, token), (rpc.PEER, str(rank)))
            code = code_of(channel, f"/{rpc.SERVICE}/Call", bytes(5_000_000), metadata)
            assert code == (
                grpc.StatusCode.NOT_FOUND if token == TOKEN else grpc.StatusCode.UNAUTHENTICATED
            )
        code = code_of(channel, f"/{rpc.SERVICE}/Call", b"", ())
        assert code == grpc.StatusCode.UNAUTHENTICATED
        code = code_of(channel, "/other.Service/Other", b"x", METADATA)
        assert code == grpc.StatusCode.UNIMPLEMENTED
    assert {event[0] for event in accepts.events} == {"stranger"}
    assert accepts.endpoint.strangers == len(accepts.events) == 5 and not accepts.bodies
    assert TOKEN not in repr(accepts.events) + repr(accepts.endpoint)


def until_failed(worker, peer, words=""):
    reason = worker.endpoint.attempts.reason
    until(lambda: reason(peer) is not None and reason(peer).startswith(words))


def test_a_worker_with_another_token_is_not_connected(make):
    accepts, dials = make(0), make(1, token="another")
    dials.connect(0, accepts.address)
    accepts.until_event("stranger")
    until_failed(dials, 0, "it refuses the token of this worker")
    # It may be a process of an earlier run, which ends.
    assert dials.endpoint.attempts.mistakes(SECONDS) == {}
    assert dials.endpoint.attempts.mistakes(0.0) == {0: dials.endpoint.attempts.reason(0)}
    assert not dials.events


def test_what_may_pass_is_a_mistake_when_it_has_lasted():
    now = [0.0]
    seen = attempts.Attempts(lambda: now[0])
    for reason in (attempts.OTHER_TOKEN, "it cannot be reached (UNAVAILABLE)"):
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
        dials.connect(0, address)
        until_failed(dials, 0)
        assert dials.endpoint.attempts.mistakes(0.0) == {}
        server.shutdown(socket.SHUT_RDWR)
    assert not attempts.speaks_tls(address)  # nobody listens
    assert not attempts.speaks_tls(make(0).address)


def test_what_is_no_grpc_is_ignored(make):
    accepts, dials = make(0), make(1)
    for content in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(5000), b""):
        with socket.create_connection(("127.0.0.1", accepts.endpoint.port)) as stranger:
            stranger.sendall(content)
    dials.connect(0, accepts.address)
    dials.until_event("connected", "process 0")
    assert not accepts.bodies


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
from concurrent.futures import Future
from tnctl.cluster.transport.rpc import Endpoint
class Busy:
    process = "process 1"
    def stayed(self, *_):
        return Future()
    def called(self, peer, envelope, body):
        ctypes.PyDLL(None).usleep(int(body))  # no other thread of Python runs meanwhile
        reply = Future()
        reply.set_result(b"done")
        return reply
endpoint = Endpoint("127.0.0.1:0", {TOKEN!r}, 1, 2, Busy(), timeout=float(sys.argv[1]))
print(endpoint.port, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def peer_of(worker, timeout):
    """Another process that the worker is connected to, and watches."""
    command = [sys.executable, "-c", PROGRAM, str(timeout)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as peer:
        try:
            worker.connect(1, f"127.0.0.1:{int(peer.stdout.readline())}")
            worker.until_event("connected", "process 1")
            worker.watch(1)
            yield peer
        finally:
            peer.kill()


@pytest.mark.alone
def test_a_connection_ends_with_a_peer_that_is_stopped_not_with_one_that_is_busy(make):
    """Threads of gRPC answer pings while the interpreter waits."""
    worker = make(0, timeout=8)
    with peer_of(worker, 8) as peer:
        # Longer than pings wait for an answer: 0.4 of the timeout.
        assert worker.call(1, b"5000000").result(SECONDS).body == b"done"
        assert worker.events == [("connected", "process 1")]
        peer.send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        worker.until_event("lost", 1)
        assert time.monotonic() - stopped < 8  # 3.2 s, and a busy machine
        peer.send_signal(signal.SIGCONT)
        worker.until_event("again", "process 1")


@pytest.mark.alone
def test_a_killed_peer_is_noticed_at_once(make):
    worker = make(0, timeout=60)  # pings would take 24 s
    with peer_of(worker, 60) as peer:
        worker.call(1, b"0").result(SECONDS)
        killed = time.monotonic()
        peer.kill()
        worker.until_event("lost", 1)
        assert time.monotonic() - killed < 10
