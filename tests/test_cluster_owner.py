"""The barrier of an owner: steps, pauses, reads, and what it refuses."""

import numpy as np
import pytest

from tnctl.cluster.messages.exchange import (
    Owned,
    Shape,
    Sizes,
    TableShape,
    new_exchange,
    new_read,
    parse_read_reply,
    parse_reply,
)
from tnctl.cluster.owners.barrier import Barrier
from tnctl.cluster.transport.kinds import MessageError
from tnctl.errors import Failure

TABLE = Shape((TableShape(1, 1, waits=True),), dense=1, figures=True)


class SumsOfGradients:
    """Parameters whose rows are sums, of steps or of pushes one by one, and a record of rates."""

    def __init__(self, workers=1):
        self.workers, self.steps, self.pushes = workers, 0, 0
        self.rows, self.dense, self.rates = {}, np.zeros(1, np.float32), []

    def reduce(self, pulled, _, rate):
        self.pulled = pulled
        self.rates.append(rate)

    def apply(self, pushes, scale):
        assert scale == 1
        for keys, push in zip(self.pulled, pushes, strict=True):
            for id_, total in zip(keys[0].ids.tolist(), push.tables[0].sums[:, 0], strict=True):
                if id_ in self.rows:
                    self.rows[id_] += total
            self.dense += push.dense.sum()
        self.steps += 1

    def push_one(self, keys, push, rate):
        self.reduce([keys], [push], rate)
        self.apply([push], 1)
        self.pushes += 1
        self.steps = self.pushes // self.workers

    def pause(self):
        self.steps = -(-self.pushes // self.workers)
        self.pushes = self.steps * self.workers

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


def exchange(owner, rank, body):
    """The replies that can be given now, in rank order."""
    return [answer for _, answer in sorted(owner.exchange(rank, body, rank))]


def received(ids, body):
    return parse_reply(TABLE, Sizes(2 * len(ids), (len(ids),)), body)


def test_a_step_begins_when_all_workers_are_there():
    owner = Barrier(TABLE, 2, SumsOfGradients())
    assert exchange(owner, 1, sent(1, pulled=[6, 7], rank=1)) == []
    first, second = exchange(owner, 0, sent(1, pulled=[5, 6], has_next=True, rate_factor=0.5))
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
    assert exchange(owner, 0, sent(2, [5, 6], [6], rate_factor=0.25)) == []
    first, second = exchange(owner, 1, sent(2, [6, 7], [], rank=1, rate_factor=9))
    assert received([6], first).tables[0].rows.tolist() == [[2]]
    assert received([6], first).dense.tolist() == [20]
    assert not received([6], first).any_next
    assert received([], second).dense.size == 0 and received([], second).rows == 2
    assert owner.parameters.rows == {5: 1, 6: 2, 7: 1} and owner.parameters.rates == [0.25]


def test_a_pause_pushes_and_pulls_nothing():
    owner = Barrier(TABLE, 2, SumsOfGradients())
    exchange(owner, 0, sent(1, pulled=[5]))
    exchange(owner, 1, sent(1, pulled=[6]))
    with pytest.raises(MessageError, match="worker 1 reads during step 1"):
        owner.read(1, new_read(TABLE, [1], dense=True)[0])
    exchange(owner, 1, sent(2, [6], [8, 9], has_next=True))
    answers = exchange(owner, 0, sent(2, [5], pause=True))
    for answer, ids in zip(answers, ([], [8, 9]), strict=True):
        reply = received(ids, answer)
        assert (reply.paused, reply.rows, reply.any_next) == (True, 0, False)
    assert not owner.is_open and owner.parameters.steps == 1
    assert owner.parameters.rows == {5: 1, 6: 1}
    body, read = new_read(TABLE, [2], dense=True)
    read.keys[0].ids[:] = [6, 8]
    reply = parse_read_reply(TABLE, [2], True, owner.read(1, body))
    assert reply.tables[0].tolist() == [[1], [0]] and reply.dense.tolist() == [20]
    # Sent again, without the push.
    exchange(owner, 1, sent(2, pulled=[8, 9], has_next=True))
    [first, _] = exchange(owner, 0, sent(2))
    assert received([], first).any_next and received([], first).rows == 4
    assert owner.parameters.steps == 1 and sorted(owner.parameters.rows) == [5, 6, 8, 9]


def test_a_step_of_no_rows_is_none():
    owner = Barrier(TABLE, 1, SumsOfGradients())
    [answer] = exchange(owner, 0, sent(1))
    assert received([], answer).rows == 0 and not owner.is_open
    [answer] = exchange(owner, 0, sent(1, pulled=[4]))
    assert received([4], answer).rows == 2 and owner.parameters.steps == 0


@pytest.mark.parametrize(
    ("rank", "body", "words"),
    [
        (1, sent(3, pulled=[4]), "worker 1: an exchange of step 3, the next is 1"),
        (1, sent(0, pulled=[4]), "worker 1: an exchange of step 0, the next is 1"),
        (1, sent(1, pause=True), "worker 1: an exchange pauses the training, which rank 0"),
        (0, sent(1, drain=True), "worker 0: an exchange drains the training, which is for"),
        (0, sent(1, pulled=[4], pause=True), "worker 0: an exchange pauses and pulls 2 rows"),
        (1, sent(1, pushed=[4]), "worker 1: an exchange pushes 2 rows, pulled were 0"),
        (2, sent(1), "worker 2: it sent two exchanges of step 1"),
        (1, b"", "worker 1: a message of 0 bytes has a header of 0"),
    ],
)
def test_an_exchange_that_does_not_fit_names_the_worker(rank, body, words):
    owner = Barrier(TABLE, 3, SumsOfGradients())
    exchange(owner, 2, sent(1, pulled=[4]))
    with pytest.raises(MessageError, match=words):
        exchange(owner, rank, body)
    assert owner.parameters.rows == {}


def test_a_gradient_that_is_nan_names_the_worker_and_the_step():
    owner = Barrier(TABLE, 1, SumsOfGradients())
    exchange(owner, 0, sent(1, pulled=[4]))
    body, written = new_exchange(TABLE, 2, Sizes(2, (1,)), Sizes(0, (0,)))
    written.push.dense[:] = np.nan
    with pytest.raises(Failure, match="step 1: worker 0: a gradient of a dense weight is NaN"):
        exchange(owner, 0, body)
    assert owner.parameters.steps == 0 and owner.is_open
