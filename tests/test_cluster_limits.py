"""What no message may exceed: refused in one line by whoever would send it."""

from types import SimpleNamespace

import cluster_in_one_process
import numpy as np
import pytest

from tnctl.cluster.joining import members
from tnctl.cluster.messages import shapes
from tnctl.cluster.transport import kinds
from tnctl.cluster.transport.kinds import Kind
from tnctl.errors import Failure


def test_a_request_that_is_too_large_is_refused_by_its_sender(monkeypatch):
    monkeypatch.setitem(kinds.BODY_LIMITS, Kind.READ, 100)
    nodes = cluster_in_one_process.cluster(2)
    with pytest.raises(Failure, match=r"worker 1: .* \(read\) has 101 bytes, and the limit is 100"):
        nodes[1].request(0, Kind.READ, bytes(101))
    nodes[0].serve_owner(SimpleNamespace(read=lambda _, body: bytes(body)))
    assert nodes[1].request(0, Kind.READ, bytes(100)).result(10) == bytes(100)
    assert nodes[0].request(0, Kind.READ, bytes(101)).result(10) == bytes(101)  # to itself


def test_a_reply_that_is_too_large_ends_all_with_a_line(monkeypatch):
    monkeypatch.setitem(kinds.BODY_LIMITS, Kind.REPLY, 100)
    nodes = cluster_in_one_process.cluster(2)
    nodes[0].serve_owner(SimpleNamespace(read=lambda *_: bytes(101)))
    with pytest.raises(Failure, match=r"worker 0: .* \(reply\) has 101 bytes"):
        nodes[1].request(0, Kind.READ, b"").result(10)
    assert str(nodes[0].error) == str(nodes[1].error)


class AnswersLast:
    """An owner that answers all when the last of two has asked: bytes of a worker's rank."""

    def __init__(self):
        self.waiting = []

    def exchange(self, rank, _, handle):
        self.waiting.append((handle, bytes(10 * rank)))
        return self.waiting if len(self.waiting) == 2 else []

    def take_notices(self):
        return []


@pytest.mark.parametrize("last", [0, 1])
def test_a_reply_counts_for_whom_it_is_for(monkeypatch, last):
    """Whoever's exchange is the last; and what a process sends to itself has no limit."""
    monkeypatch.setitem(kinds.BODY_LIMITS, Kind.REPLY, 9)
    nodes = cluster_in_one_process.cluster(2)
    nodes[0].serve_owner(AnswersLast())
    replies = {rank: nodes[rank].request(0, Kind.EXCHANGE, b"") for rank in (1 - last, last)}
    with pytest.raises(Failure, match=r"\(reply\) has 10 bytes, and the limit is 9"):
        replies[1].result(10)
    monkeypatch.setitem(kinds.BODY_LIMITS, Kind.REPLY, 10)
    nodes = cluster_in_one_process.cluster(2)
    nodes[0].serve_owner(AnswersLast())
    replies = {rank: nodes[rank].request(0, Kind.EXCHANGE, b"") for rank in (1 - last, last)}
    assert [len(replies[rank].result(10)) for rank in range(2)] == [0, 10]
    assert nodes[0].sent_bytes == nodes[1].received_bytes == 10


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


def test_the_message_of_an_error_is_cut_off():
    for message in ("\N{GRINNING FACE}" * 10**6, '"' * 10**6, "short"):
        body = members.to_body(members.problem_of(Failure(message)))
        assert len(body) <= 1 << 18
        assert message.startswith(members.parse_problem(body).message.removesuffix("..."))
