"""What no message may exceed: refused in one line by whoever would send it, or not sent again."""

from types import SimpleNamespace

import cluster_in_one_process
import numpy as np
import pytest
from tnctl.cluster.transport.session import Client, Server

from tnctl.cluster.joining import members
from tnctl.cluster.messages import shapes
from tnctl.cluster.node import Node
from tnctl.cluster.transport import frames
from tnctl.cluster.transport.frames import Frame, Kind
from tnctl.cluster.workers.row_service import RowService
from tnctl.errors import Failure


def test_a_request_that_is_too_large_is_refused_by_its_sender(monkeypatch):
    monkeypatch.setitem(frames.BODY_LIMITS, Kind.READ, 100)
    nodes = cluster_in_one_process.cluster(2)
    with pytest.raises(Failure, match=r"worker 1: .* \(read\) has 101 bytes, and the limit is 100"):
        nodes[1].request(0, Kind.READ, bytes(101))
    nodes[0].serve_owner(SimpleNamespace(read=lambda _, body: bytes(body)))
    assert nodes[1].request(0, Kind.READ, bytes(100)).result(10) == bytes(100)
    assert nodes[0].request(0, Kind.READ, bytes(101)).result(10) == bytes(101)  # to itself
    for node in nodes:
        node.close()


def test_a_reply_that_is_too_large_ends_all_with_a_line(monkeypatch):
    monkeypatch.setitem(frames.BODY_LIMITS, Kind.REPLY, 100)
    nodes = cluster_in_one_process.cluster(2)
    nodes[0].serve_owner(SimpleNamespace(read=lambda *_: bytes(101)))
    with pytest.raises(Failure, match=r"worker 0: .* \(reply\) has 101 bytes"):
        nodes[1].request(0, Kind.READ, b"").result(10)
    assert str(nodes[0].error) == str(nodes[1].error)
    for node in nodes:
        node.close()


@pytest.mark.parametrize(("workers", "fits"), [(1, True), (2, False), (3, False), (4, True)])
def test_dense_weights_beyond_a_message_are_refused(monkeypatch, workers, fits):
    monkeypatch.setattr(shapes, "DENSE_BYTES", 4 * 330)
    dense = SimpleNamespace(
        flat_weights=np.zeros(1000, np.float32),
        chunk_starts=np.append(np.arange(0, 1000, 16), 1000),
    )
    model = SimpleNamespace(dense=dense)
    if fits:
        shapes.check_dense(model, workers)
    else:
        with pytest.raises(Failure, match=r"have 4,000 bytes.* Use at least 4 workers"):
            shapes.check_dense(model, workers)


def test_the_message_of_an_error_always_fits_its_frame():
    for message in ("\N{GRINNING FACE}" * 10**6, '"' * 10**6, "short"):
        body = members.to_body(members.problem_of(Failure(message)))
        assert len(body) <= frames.BODY_LIMITS[Kind.FATAL]
        assert message.startswith(members.parse_problem(body).message.removesuffix("..."))


def test_what_is_still_being_sent_is_not_sent_again():
    """A large request or reply takes longer than heartbeats, which overtake it."""
    client, server = Client(1, 0), Server(1, 1)
    sent, is_sending = [], [True]
    node = Node(0, 2, 1, lambda _, frame: sent.append(frame.kind), lambda _: is_sending[0])
    request = client.request(Kind.READ, b"")
    assert server.receive(request).number == 1
    server.reply(1, b"large")
    assert [server.heartbeat(client.heartbeat(), is_sending=True) for _ in range(3)] == [[]] * 3
    assert not server.heartbeat(client.heartbeat())
    assert [reply.kind for reply in server.heartbeat(client.heartbeat())] == [Kind.REPLY]
    reply = node.request(1, Kind.READ, b"large")
    for state in (True, False):
        is_sending[0] = state
        node.receive(Frame(Kind.RESEND, 1, 1, 1))
        node.receive(Frame(Kind.HEARTBEAT, 1, 1))
        barrier = node.command(0, RowService.end)
        node.commands.get(timeout=10)[1](b"")
        assert barrier.result(10) == b""
    assert sent == [Kind.READ, Kind.READ] and not reply.done()
    node.close()
