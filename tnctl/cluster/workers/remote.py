"""The parameters of a model that the workers of a cluster hold together, as a worker sees them."""

import itertools
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tnctl.cluster.joining.membership import Membership
from tnctl.cluster.messages.exchange import (
    JOINING,
    LARGEST,
    Exchange,
    Shape,
    Sizes,
    TableShape,
    new_exchange,
    no_batch,
)
from tnctl.cluster.messages.named_arrays import write_floats
from tnctl.cluster.messages.replies import Reply, new_read, parse_read_reply, parse_reply
from tnctl.cluster.messages.shapes import first_floats, first_shards, shapes
from tnctl.cluster.messages.work import COMPUTING, IDLE, WAITING, Laps
from tnctl.cluster.transport.kinds import Body, Kind
from tnctl.data.batches import Batch
from tnctl.errors import Failure
from tnctl.model.building import Model
from tnctl.model.layout import slot_plans
from tnctl.model.parameters import (
    Buffers,
    Gradients,
    Parameters,
    PooledInputs,
    moving_statistics,
)
from tnctl.tables import KeyWorkspace, NotFiniteError


class Paused(Exception):
    """Rank 0 has paused the training: the batch was not pulled, and is to be pulled later."""


class LeftOut(Exception):
    """The step began without this worker: what it pushed was dropped, and nothing was pulled.

    The batch of that push is to be trained again, before the one that was to be pulled.
    """


class Peers(Protocol):
    """The other workers, and this one, which receive requests."""

    rank: int
    workers: int
    servers: int
    owner_seconds: float
    """of answering exchanges, so far"""
    sent_bytes: int
    received_bytes: int
    network_seconds: float
    """in which exchanges were on the way, so far"""

    def request(self, rank: int, kind: Kind, body: Body) -> "Future[Body]":
        """Send a request; its reply is the result of the future."""


@dataclass
class _Pushed:
    """What was computed on a batch, until the next exchange takes it along."""

    sizes: list[Sizes]  # by owner
    parts: list[list["_PushedTable"]]  # by owner and table
    loss: float
    logits: NDArray[np.float32]
    labels: NDArray[np.float32]
    statistics: NDArray[np.float32]


@dataclass
class _PushedTable:
    """The sums of gradients float32 [keys, weights], and shows and clicks float32 [keys, 2]."""

    sums: NDArray[np.float32]
    counts: NDArray[np.float32] | None

    @classmethod
    def of(
        cls, workspace: KeyWorkspace, owner: int, keys: int, shape: TableShape
    ) -> "_PushedTable":
        """What an owner gets of the batch that a workspace has accumulated."""
        pushed = cls(
            np.empty((keys, shape.weights), np.float32),
            np.empty((keys, 2), np.float32) if shape.counts else None,
        )
        if shape.weights:
            workspace.write_sums(owner, pushed.sums)
        if pushed.counts is not None:
            workspace.write_shows(owner, pushed.counts)
        return pushed


@dataclass(frozen=True)
class SentExchange:
    """An exchange that was sent to every owner: what it pulls of each, and the replies to come."""

    shapes: list[Shape]
    sizes: list[Sizes]
    futures: "list[Future[Body]]"

    @property
    def is_answered(self) -> bool:
        """Whether `replies` would not wait."""
        return all(future.done() for future in self.futures)

    def replies(self) -> list[Reply]:
        """Wait for the replies of all owners."""
        return [
            parse_reply(shape, pulled, future.result())
            for shape, pulled, future in zip(self.shapes, self.sizes, self.futures, strict=True)
        ]


class RemoteParameters(Parameters):
    """Pulls rows and dense weights of their owners, and pushes gradients with the next pull.

    A push is kept until the next `pull` or `exchange`, so `steps` counts a step that its owners
    apply a little later. `has_next` is sent with a pull: whether this worker has a batch after it.
    """

    def __init__(self, model: Model, peers: Peers, main_label: int) -> None:
        """`main_label` is the column of the labels that the sums of the pass are of."""
        self.steps = 0
        self.has_next = False
        self.laps = Laps()
        self.last: list[Reply] = []
        """the replies of all owners to the last exchange"""
        self._model, self._peers, self._main_label = model, peers, main_label
        self._left_out = 0  # how often
        self._reported = self._sums_of_peers()  # until the last exchange
        membership = peers.workers, peers.servers
        self._owners = Membership(*membership).owners  # their ranks
        self._shapes = shapes(model, peers.workers, moving_statistics(model), peers.servers)
        self._slices = list(itertools.pairwise(first_floats(model, *membership)))
        self._first_shards = first_shards(*membership)
        self._use(self._new_workspaces())
        self._gradient = np.zeros(len(model.dense.flat_weights), np.float32)
        self._counts: list[list[int]] = []  # of the keys pulled last, by table and owner
        self._pushed: _Pushed | None = None
        self._rate_factor = 1.0  # of the step whose rows were pulled last
        self._joins = False
        self.is_settled = True
        """whether owners have applied all that was pulled"""

    # ---- As a step uses them ---------------------------------------------------

    def pull(self, batch: Batch, buffers: Buffers) -> None:
        """Read the rows of a batch into the buffers.

        Raises Paused or LeftOut, and then nothing was pulled.
        """
        self._fill(batch, buffers, self._exchange(batch))

    def _fill(self, batch: Batch, buffers: Buffers, replies: Sequence[Reply]) -> None:
        """Take the rows of the batch that the workspaces have, and the dense weights."""
        for number, workspace in enumerate(self._keys):
            tables = [reply.tables[number] for reply in replies]
            waits = [table.waits for table in tables]
            workspace.set_rows([table.rows for table in tables], waits)
        self._inputs.leave_out(batch)
        self._gather(batch, buffers)
        for (first, last), reply in zip(self._slices, replies, strict=True):
            if len(reply.dense):
                self._model.dense.flat_weights[first:last] = reply.dense

    def read(self, batch: Batch, buffers: Buffers) -> None:
        """The same while training pauses, read-only: ids without a row read zeros."""
        counts_of_tables = self._number(batch)
        owners = range(len(self._owners))
        counts = list(zip(*counts_of_tables, strict=True))
        futures = []
        for owner in owners:
            body, read = new_read(self._shapes[owner], counts[owner], dense=False)
            for workspace, keys in zip(self._keys, read.keys, strict=True):
                workspace.write_keys(owner, keys.ids, keys.groups)
            futures.append(self._peers.request(self._owners[owner], Kind.READ, body))
        replies = [
            parse_read_reply(self._shapes[owner], counts[owner], False, futures[owner].result())
            for owner in owners
        ]
        for number, workspace in enumerate(self._keys):
            workspace.set_rows([reply.tables[number] for reply in replies], training=False)
        self._gather(batch, buffers)

    def read_dense(self) -> None:
        """Read all dense weights, while training pauses."""
        nothing = [0] * len(self._keys)
        futures = [
            self._peers.request(rank, Kind.READ, new_read(shape, nothing, dense=True)[0])
            for rank, shape in zip(self._owners, self._shapes, strict=True)
        ]
        for owner, (first, last) in enumerate(self._slices):
            reply = parse_read_reply(self._shapes[owner], nothing, True, futures[owner].result())
            self._model.dense.flat_weights[first:last] = reply.dense

    def push(self, batch: Batch, gradients: Gradients, rate_factor: float) -> None:
        """Keep the gradients of the batch that was pulled last for the next exchange.

        Raises NotFiniteError for gradients beyond 2^58 / workers, before anything is sent.
        """
        if gradients.inputs:
            self._inputs.accumulate(gradients.inputs, batch.rows)
        self._flatten(gradients.dense)
        clicks = np.ascontiguousarray(batch.labels[:, 0])
        tables = list(zip(self._keys, self._shapes[0].tables, strict=True))
        for workspace, shape in tables:
            if shape.counts:
                workspace.count(clicks)
        parts = [
            [
                _PushedTable.of(workspace, owner, counts[owner], shape)
                for (workspace, shape), counts in zip(tables, self._counts, strict=True)
            ]
            for owner in range(len(self._owners))
        ]
        statistics = [np.asarray(memoryview(moment)).reshape(-1) for moment in gradients.statistics]
        self._pushed = _Pushed(
            [Sizes(batch.rows, tuple(len(table.sums) for table in part)) for part in parts],
            parts,
            loss=0.0,
            logits=np.empty(0, np.float32),
            labels=np.ascontiguousarray(batch.labels[:, self._main_label]),
            statistics=np.concatenate(statistics) if statistics else np.empty(0, np.float32),
        )
        self._rate_factor = rate_factor
        self.steps += 1

    def add_result(self, loss: float, logits: NDArray[np.float32]) -> None:
        """The mean loss and the main logits, float32 [B], of the batch that was pushed last."""
        assert self._pushed is not None
        self._pushed.loss, self._pushed.logits = loss, np.array(logits)

    # ---- Without a batch -------------------------------------------------------

    def pause(self) -> None:
        """Push what is kept and let all workers pause; only rank 0 may."""
        self._exchange(None, pause=True)

    def take_part(self, rate_factor: float) -> None:
        """Push what is kept, and take part in a step without a batch. Raises Paused or LeftOut."""
        if self._exchange(None)[0].rows:
            self._rate_factor = rate_factor
            self.steps += 1

    # ---- The parts -------------------------------------------------------------

    def _number(self, batch: Batch) -> list[list[int]]:
        """Number the distinct keys of a batch; how many there are, by table and owner."""
        parts = zip(self._keys, batch.ids, batch.offsets, batch.weights, strict=True)
        return [
            workspace.number_keys(ids, offsets, batch.rows, self._first_shards, weights)
            for workspace, ids, offsets, weights in parts
        ]

    def _new_workspaces(self) -> list[KeyWorkspace]:
        """What numbers the keys of a batch, by table."""
        plans = [slot_plans(self._model.conf.slots, table) for table in self._model.layout.tables]
        return [
            KeyWorkspace(table, of_table, self._peers.workers)
            for table, of_table in zip(self._model.tables, plans, strict=True)
        ]

    def _use(self, workspaces: list[KeyWorkspace]) -> None:
        self._keys = workspaces
        self._inputs = PooledInputs(self._model.layout, workspaces)

    def _exchange(self, batch: Batch | None, *, pause: bool = False) -> list[Reply]:
        """Send every owner the push that is kept and the keys of a batch; return the replies."""
        if batch is not None:
            self._counts = self._number(batch)
        sent = self._send(batch, JOINING if self._joins else self.steps + 1, pause=pause)
        replies = self._replies(sent, IDLE if batch is None and not pause else WAITING)
        self._follow(replies)
        self.last, self.is_settled = replies, replies[0].rows == 0
        if replies[0].paused and not pause:
            raise Paused
        return replies

    def _send(
        self, batch: Batch | None, step: int, *, pause: bool = False, drain: bool = False
    ) -> SentExchange:
        """Send every owner the push that is kept and the keys of a batch, which are numbered."""
        pushed, self._pushed = self._pushed, None
        futures: dict[int, Future[Body]] = {}
        sizes: dict[int, Sizes] = {}
        # This worker's own part last: it is answered here, while the others work.
        for owner in sorted(
            range(len(self._shapes)), key=lambda n: self._owners[n] == self._peers.rank
        ):
            shape = self._shapes[owner]
            pulled = no_batch(shape)
            if batch is not None:
                pulled = Sizes(batch.rows, tuple(counts[owner] for counts in self._counts))
            body, exchange = new_exchange(
                shape,
                step,
                no_batch(shape) if pushed is None else pushed.sizes[owner],
                pulled,
                rate_factor=self._rate_factor,
                loss=0.0 if pushed is None else pushed.loss,
                pause=pause,
                has_next=self.has_next,
                drain=drain,
            )
            if len(exchange.work):
                exchange.work[:] = self._take_work()
            if pushed is not None:
                self._write_push(owner, pushed, exchange)
            if batch is not None:
                for workspace, keys_ in zip(self._keys, exchange.keys, strict=True):
                    workspace.write_keys(owner, keys_.ids, keys_.groups, keys_.occurrences)
            futures[owner] = self._peers.request(self._owners[owner], Kind.EXCHANGE, body)
            sizes[owner] = pulled
        owners = range(len(self._shapes))
        return SentExchange(
            self._shapes, [sizes[owner] for owner in owners], [futures[owner] for owner in owners]
        )

    def _replies(self, sent: SentExchange, kind: int) -> list[Reply]:
        """Wait for the replies to an exchange: a lap of a kind, WAITING or IDLE."""
        self.laps.lap(COMPUTING)
        replies = sent.replies()
        self.laps.lap(kind)
        return replies

    def _follow(self, replies: Sequence[Reply]) -> None:
        """Take the step of the replies. Raises LeftOut."""
        if all(reply.left_out for reply in replies):
            self._joins = True
            self._left_out += 1
            raise LeftOut
        if len({(reply.left_out, reply.step) for reply in replies}) > 1:
            raise Failure("owners have answered an exchange as parts of different steps")
        if self._joins:
            self._joins, self.steps = False, replies[0].step - 1

    def _take_work(self) -> list[float]:
        """What this worker did since the last exchange."""
        self.laps.lap(COMPUTING)
        sums, reported = self._sums_of_peers(), self._reported
        self._reported = sums
        of_peers = (total - earlier for total, earlier in zip(sums, reported, strict=True))
        return [*self.laps.take(), *of_peers]

    def _sums_of_peers(self) -> list[float]:
        peers = self._peers
        return [
            peers.owner_seconds, peers.sent_bytes, peers.received_bytes, self._left_out,
            peers.network_seconds,
        ]  # fmt: skip

    def _write_push(self, owner: int, pushed: _Pushed, exchange: Exchange) -> None:
        push = exchange.push
        for table, part in zip(push.tables, pushed.parts[owner], strict=True):
            write_floats(table.sums, part.sums)
            if table.counts is not None and part.counts is not None:
                table.counts[:] = part.counts
        first, last = self._slices[owner]
        if len(push.dense):
            write_floats(push.dense, self._gradient[first:last])
        if len(push.logits):
            push.logits[:], push.labels[:] = pushed.logits, pushed.labels
            push.statistics[:] = pushed.statistics

    def _gather(self, batch: Batch, buffers: Buffers) -> None:
        self._inputs.gather(buffers)
        buffers.fill_dense(batch)

    def _flatten(self, gradients: Sequence[Any]) -> None:
        """Copy the dense gradients to where their weights are in the flat dense table."""
        dense = self._model.dense
        for gradient, offset, size in zip(gradients, dense.offsets, dense.sizes, strict=True):
            self._gradient[offset : offset + size] = np.asarray(memoryview(gradient)).reshape(-1)
        limit = LARGEST / self._peers.workers
        if len(self._gradient) and not (
            -limit <= self._gradient.min() and self._gradient.max() <= limit
        ):
            raise NotFiniteError
