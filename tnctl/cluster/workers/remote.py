"""The parameters of a model that the workers of a cluster hold together, as a worker sees them.

A message takes the gradients of a batch along with the keys of a later one: of the next, or, when
rows are requested ahead, of the one after it. Then the numbering of two batches is needed at a
time: of batch k, whose sums are still to be computed, and of k + 1. So sets of workspaces take
turns.
"""

import itertools
import operator
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.cluster.messages.exchange import (
    JOINING,
    LARGEST,
    Push,
    PushedTable,
    ReadReply,
    Reply,
    Sizes,
    new_exchange,
    new_read,
    no_batch,
    parse_read_reply,
    parse_reply,
)
from tnctl.cluster.messages.named_arrays import write_floats
from tnctl.cluster.messages.shapes import first_floats, shapes
from tnctl.cluster.messages.work import COMPUTING, IDLE, WAITING, Laps
from tnctl.cluster.node import Node
from tnctl.cluster.transport.kinds import Body, Kind
from tnctl.data.batches import Batch
from tnctl.errors import Failure
from tnctl.model.building import Model
from tnctl.model.layout import slot_plans
from tnctl.model.parameters import Buffers, Gradients, Parameters, PooledInputs, moving_statistics
from tnctl.tables import KeyWorkspace, NotFiniteError

SECONDS_BETWEEN_LOOKS = 0.2  # whether there was a request to stop, while a pull is held


class Paused(Exception):
    """Rank 0 has paused the training: the batch was not pulled, and is to be pulled later."""


class LeftOut(Exception):
    """The step began without this worker: what it pushed was dropped, and nothing was pulled.

    The batch of that push is to be trained again, before the one that was to be pulled.
    """


@dataclass(frozen=True)
class Sent:
    """An exchange that was sent to every owner, whose replies are to come."""

    number: int  # of the batch, since training began or went on
    sizes: list[Sizes]  # of what it pulls, by owner
    futures: "list[Future[Body]]"


class RemoteParameters(Parameters):
    """Pulls rows and dense weights of their owners, and pushes gradients with a later request.

    With `ahead` 0 all workers exchange in steps: `steps` counts them, also the one whose push is
    kept. With 1 owners answer as requests arrive: `steps` counts the batches of this worker, and
    `clock` the steps of all, as owner 0 said last.

    `has_next` is sent with each request: whether this worker has a batch after it. `rate_factor` is
    that of the push; with `ahead`, of all pushes from now on. Owners take rank 0's.
    """

    def __init__(self, model: Model, node: Node, steps: int, ahead: int = 0) -> None:
        self.steps, self.ahead = steps, ahead
        self.label = 0
        """the column of the labels that the sums of the pass are of"""
        self.has_next, self.rate_factor = False, 1.0
        self.is_over = False
        """whether nothing is trained any more before the next `start`"""
        self.is_interrupted: Callable[[], bool] | None = None
        """on rank 0, with `ahead`: whether there was a request to stop"""
        self.requested: deque[Sent] = deque()
        """the batches that were requested and are not pulled"""
        self.laps = Laps()
        self.last: list[Reply] = []
        """the replies of all owners to the last exchange"""
        self._model, self._node = model, node
        self._left_out = 0  # how often
        self._reported = self._sums_of_node()  # until the last exchange
        self._owners = node.membership.owners  # their ranks
        self._shapes = shapes(model, node.workers, moving_statistics(model), node.servers)
        self._nothing = [no_batch(shape) for shape in self._shapes]
        self._slices = list(itertools.pairwise(first_floats(model, node.workers, node.servers)))
        self._first_shards = node.membership.first_shards
        self._gradient = np.zeros(len(model.dense.flat_weights), np.float32)
        self._clock, self._requests = steps, 0
        self._sets = [self._new_workspaces() for _ in range(ahead + 1)]
        self._use(0)
        self._pulled: list[Sizes] = []  # by owner, of the batch that was pulled last
        self._pushed: list[Push] | None = None  # by owner: what the next exchange takes along
        self._joins = False

    @property
    def clock(self) -> int:
        """The steps of all workers, as far as this one knows."""
        return self._clock if self.ahead else self.steps

    # ---- As a step uses them ---------------------------------------------------

    def request(self, batch: Batch) -> None:
        """Send the push that is kept, and request the rows of a batch."""
        self._requests += 1
        self._use(self._requests)
        self.requested.append(self._send(self._number(batch)))
        self.laps.lap(COMPUTING)

    def pull(self, batch: Batch, buffers: Buffers) -> None:
        """Read the rows of a batch, the one that was requested first, into the buffers.

        Raises Paused or LeftOut, and then nothing was pulled.
        """
        if not self.requested:
            self.request(batch)
        sent = self.requested.popleft()
        if self.is_interrupted is not None:
            self._wait(sent, self.is_interrupted)
        replies = self._replies(sent)
        self._use(sent.number)
        self._pulled = sent.sizes
        for number, workspace in enumerate(self._keys):
            tables = [reply.tables[number] for reply in replies]
            waits = [table.waits for table in tables]
            workspace.set_rows([table.rows for table in tables], waits)
        self._inputs.leave_out(batch)
        self._gather(batch, buffers)
        self._set_dense(replies)

    def read(self, batch: Batch, buffers: Buffers) -> None:
        """The same while training pauses, read-only: ids without a row read zeros."""
        replies = self._read(self._number(batch), dense=False)
        for number, workspace in enumerate(self._keys):
            workspace.set_rows([reply.tables[number] for reply in replies], training=False)
        self._gather(batch, buffers)

    def read_dense(self) -> None:
        """Read all dense weights, while training pauses."""
        self._set_dense(self._read(self._nothing, dense=True))

    def push(self, batch: Batch, gradients: Gradients, rate_factor: float) -> None:
        """Keep the gradients of the batch that was pulled last for the next exchange.

        Raises NotFiniteError for gradients beyond 2^58 / workers, before anything is sent.
        """
        if gradients.inputs:
            self._inputs.accumulate(gradients.inputs, batch.rows)
        self._flatten(gradients.dense)
        clicks = np.ascontiguousarray(batch.labels[:, 0])
        for workspace, shape in zip(self._keys, self._shapes[0].tables, strict=True):
            if shape.counts:
                workspace.count(clicks)
        labels = np.ascontiguousarray(batch.labels[:, self.label])
        nothing = np.empty(0, np.float32)
        moments = [np.asarray(memoryview(moment)).reshape(-1) for moment in gradients.statistics]
        joint = np.concatenate([nothing, *moments])
        self._pushed = [
            Push(batch.rows, 0.0, self._sums(owner), self._gradient[a:b], nothing, labels, joint)
            for owner, (a, b) in enumerate(self._slices)
        ]
        self.rate_factor = rate_factor
        self.steps += 1

    def add_result(self, loss: float, logits: NDArray[np.float32]) -> None:
        """The mean loss and the main logits, float32 [B], of the batch that was pushed last."""
        assert self._pushed is not None
        logits = np.array(logits)
        self._pushed = [replace(push, loss=loss, logits=logits) for push in self._pushed]

    # ---- Without a batch -------------------------------------------------------

    def start(self) -> None:
        """Training begins, or goes on after a pause."""
        self.laps.restart()
        self.has_next, self.is_over, self._requests = True, False, 0

    def send_push(self) -> None:
        """Send the push that is kept, if there is one."""
        if self._pushed is not None:
            self._exchange()

    def take_part(self, rate_factor: float) -> None:
        """Push what is kept, and take part in a step without a batch. Raises Paused or LeftOut.

        With `ahead`: tell owners the rate, and whether this worker goes on, and read the clock.
        """
        if self.ahead:
            self.rate_factor = rate_factor
        if self._exchange()[0].rows:
            self.rate_factor = rate_factor
            self.steps += 1

    def drain(self) -> None:
        """Rank 0: let no worker request a further batch, which in steps lets all workers pause."""
        self._exchange(drain=bool(self.ahead), pause=not self.ahead)

    def pause(self) -> None:
        """Rank 0, when no worker trains any more: the model is that of the clock from now on."""
        if self.ahead:
            self._exchange(pause=True)

    # ---- Requests --------------------------------------------------------------

    def _exchange(self, *, pause: bool = False, drain: bool = False) -> list[Reply]:
        """Send every owner the push that is kept, without keys; return the replies."""
        return self._replies(self._send(self._nothing, pause=pause, drain=drain), pause=pause)

    def _send(self, pulled: list[Sizes], *, pause: bool = False, drain: bool = False) -> Sent:
        """Send every owner the push that is kept and the keys that were numbered, if any."""
        pushed, self._pushed = self._pushed, None
        step = JOINING if self._joins else self.steps + 1
        futures: dict[int, Future[Body]] = {}
        # This worker's own part last: it is answered here, while the others work.
        for owner in sorted(
            range(len(self._owners)), key=lambda n: self._owners[n] == self._node.rank
        ):
            shape, push = self._shapes[owner], pushed[owner] if pushed else None
            body, exchange = new_exchange(
                shape, self._requests if self.ahead else step,
                (self._pulled if push else self._nothing)[owner], pulled[owner],
                rate_factor=self.rate_factor, loss=push.loss if push else 0.0, pause=pause,
                has_next=self.has_next, drain=drain,
            )  # fmt: skip
            if len(exchange.work):
                exchange.work[:] = self._take_work()
            if push:
                _write(push, exchange.push)
            if pulled[owner].rows:
                for workspace, keys in zip(self._keys, exchange.keys, strict=True):
                    workspace.write_keys(owner, keys.ids, keys.groups, keys.occurrences)
            futures[owner] = self._node.request(self._owners[owner], Kind.EXCHANGE, body)
        return Sent(self._requests, pulled, [futures[owner] for owner in sorted(futures)])

    def _wait(self, sent: Sent, is_interrupted: Callable[[], bool]) -> None:
        """Wait for replies, which may be held for a worker that reads nothing any more.

        After a request to stop owners are asked to hold no pull.
        """
        self.laps.lap(COMPUTING)
        while wait(sent.futures, SECONDS_BETWEEN_LOOKS).not_done:
            if is_interrupted():
                self._exchange(drain=True)
                break
        self.laps.lap(WAITING)

    def _replies(self, sent: Sent, *, pause: bool = False) -> list[Reply]:
        """Wait for the replies to an exchange. Raises Paused or LeftOut."""
        self.laps.lap(COMPUTING)
        replies = [
            parse_reply(shape, pulled, future.result())
            for shape, pulled, future in zip(self._shapes, sent.sizes, sent.futures, strict=True)
        ]
        self.laps.lap(WAITING if pause or sent.sizes[0].rows else IDLE)
        if all(reply.left_out for reply in replies):
            self._joins = True
            self._left_out += 1
            raise LeftOut
        is_of_a_step = pause or not self.ahead
        if is_of_a_step and len({(reply.left_out, reply.step) for reply in replies}) > 1:
            raise Failure("owners have answered an exchange as parts of different steps")
        if self._joins:
            self._joins, self.steps = False, replies[0].step - 1
        self.last, self._clock = replies, max(self._clock, replies[0].steps)
        self.is_over = replies[0].paused or (self.ahead > 0 and not self.has_next)
        if replies[0].paused and not pause:
            raise Paused
        return replies

    def _read(self, sizes: list[Sizes], *, dense: bool) -> list[ReadReply]:
        """Read the rows of keys that were numbered, or all dense weights."""
        futures = []
        for owner, (rank, shape) in enumerate(zip(self._owners, self._shapes, strict=True)):
            body, read = new_read(shape, sizes[owner].keys, dense=dense)
            if not dense:
                for workspace, keys in zip(self._keys, read.keys, strict=True):
                    workspace.write_keys(owner, keys.ids, keys.groups)
            futures.append(self._node.request(rank, Kind.READ, body))
        return [
            parse_read_reply(shape, of_owner.keys, dense, future.result())
            for shape, of_owner, future in zip(self._shapes, sizes, futures, strict=True)
        ]

    def _take_work(self) -> list[float]:
        """What this worker did since the last exchange."""
        self.laps.lap(COMPUTING)
        earlier, self._reported = self._reported, self._sums_of_node()
        return [*self.laps.take(), *map(operator.sub, self._reported, earlier)]

    def _sums_of_node(self) -> list[float]:
        node = self._node
        return [
            node.owner_seconds, node.sent_bytes, node.received_bytes, self._left_out,
            node.network_seconds,
        ]  # fmt: skip

    # ---- The parts -------------------------------------------------------------

    def _new_workspaces(self) -> tuple[list[KeyWorkspace], PooledInputs]:
        """What numbers the keys of a batch, by table, and what its rows are pooled into."""
        layout, slots = self._model.layout, self._model.conf.slots
        workspaces = [
            KeyWorkspace(table, slot_plans(slots, of_table), self._node.workers)
            for table, of_table in zip(self._model.tables, layout.tables, strict=True)
        ]
        return workspaces, PooledInputs(layout, workspaces)

    def _use(self, number: int) -> None:
        """Use the workspaces of a batch, by its number."""
        self._keys, self._inputs = self._sets[number % len(self._sets)]

    def _number(self, batch: Batch) -> list[Sizes]:
        """Number the distinct keys of a batch; how many there are, by owner."""
        parts = zip(self._keys, batch.ids, batch.offsets, batch.weights, strict=True)
        counts = [
            workspace.number_keys(ids, offsets, batch.rows, self._first_shards, weights)
            for workspace, ids, offsets, weights in parts
        ]
        return [
            Sizes(batch.rows, tuple(of_table[owner] for of_table in counts))
            for owner in range(len(self._owners))
        ]

    def _sums(self, owner: int) -> tuple[PushedTable, ...]:
        """What an owner gets of the batch that the workspaces have accumulated."""
        tables, counts_of_keys = [], self._pulled[owner].keys
        shapes_of_tables = self._shapes[owner].tables
        for workspace, keys, shape in zip(
            self._keys, counts_of_keys, shapes_of_tables, strict=True
        ):
            sums = np.empty((keys, shape.weights), np.float32)
            counts = np.empty((keys, 2), np.float32) if shape.counts else None
            if shape.weights:
                workspace.write_sums(owner, sums)
            if counts is not None:
                workspace.write_shows(owner, counts)
            tables.append(PushedTable(sums, counts))
        return tuple(tables)

    def _gather(self, batch: Batch, buffers: Buffers) -> None:
        self._inputs.gather(buffers)
        buffers.fill_dense(batch)

    def _set_dense(self, replies: Sequence[Reply | ReadReply]) -> None:
        for (first, last), reply in zip(self._slices, replies, strict=True):
            if len(reply.dense):
                self._model.dense.flat_weights[first:last] = reply.dense

    def _flatten(self, gradients: Sequence[Any]) -> None:
        """Copy the dense gradients to where their weights are in the flat dense table."""
        dense = self._model.dense
        for gradient, offset, size in zip(gradients, dense.offsets, dense.sizes, strict=True):
            self._gradient[offset : offset + size] = np.asarray(memoryview(gradient)).reshape(-1)
        limit = LARGEST / self._node.workers
        if len(self._gradient) and not (
            -limit <= self._gradient.min() and self._gradient.max() <= limit
        ):
            raise NotFiniteError


def _write(push: Push, to: Push) -> None:
    """Write a push to where an exchange has it."""
    for table, part in zip(to.tables, push.tables, strict=True):
        write_floats(table.sums, part.sums)
        if table.counts is not None and part.counts is not None:
            table.counts[:] = part.counts
    if len(to.dense):
        write_floats(to.dense, push.dense)
    if len(to.logits):
        to.logits[:], to.labels[:] = push.logits, push.labels
        to.statistics[:] = push.statistics
