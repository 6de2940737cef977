"""The parameters that a worker owns: its shards of every table, its slice of the dense weights."""

from collections.abc import Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.cluster.joining.membership import Membership
from tnctl.cluster.messages.exchange import Keys, Owned, Push, Read, ReadReply, Reply
from tnctl.cluster.messages.named_arrays import Floats, write_floats
from tnctl.cluster.messages.shapes import shapes, slice_of
from tnctl.cluster.node import Node
from tnctl.cluster.owners.arrivals import Arrivals
from tnctl.cluster.owners.barrier import Barrier
from tnctl.cluster.owners.owner import Owner
from tnctl.errors import refuse_if
from tnctl.model.layout import table_life
from tnctl.model.parameter_tables import (
    MovingStatistics,
    ParameterTables,
    TableUpdates,
    move_statistics,
)
from tnctl.schema import Conf
from tnctl.tables import DenseTable, ExactSum, PullWorkspace, RankKeys, weighted_sum
from tnctl.training.state import PassSums


class OwnedPart:
    """The part of a model that one worker or server of a cluster owns.

    It does what `Parameters` does in one process, with the sums of all workers: they are
    reduced in the order of the ranks, each weighted by its share of the step's rows. Rank 0 also
    keeps the moving statistics of batch norms, and adds up the sums of the pass in `sums`.
    """

    def __init__(
        self,
        model: ParameterTables,
        membership: Membership,
        rank: int,
        steps: int,
        moving: MovingStatistics,
    ) -> None:
        """`steps` were trained before. `moving` are all moving statistics."""
        self.steps = steps
        self.sums: PassSums | None = None
        self._model = model
        self._first, self._last = slice_of(model, membership, rank)
        self._updates = TableUpdates(model)
        self._moving = moving
        self._sizes = [len(array) for array, _ in moving]
        self._pulls = [PullWorkspace(table) for table in model.tables]
        self._reads = [PullWorkspace(table) for table in model.tables]
        self._gradient = np.empty(0, np.float32)  # reduced, of the slice
        self._trained = [not table.kind.frozen for table in model.layout.tables]

    def reduce(self, _: Sequence[Sequence[Keys]], pushes: Sequence[Push], rate: float) -> None:
        """Add up the gradients of a step. Raises NotFiniteError when a sum is not finite."""
        shares = _shares(pushes)
        self._updates.set_rate_factor(rate)
        with self._model.pool.awake():
            for number, workspace in enumerate(self._pulls):
                if self._trained[number]:
                    for rank, push in enumerate(pushes):
                        if push.rows:
                            workspace.push_sums(rank, push.tables[number].sums, shares[rank])
            self._gradient = self._reduced([push.dense for push in pushes], shares)
            self._model.dense.check_slice(self._gradient, self._first)

    def squares(self) -> list[ExactSum]:
        """The squares of the reduced gradients: of each table that is trained, of the slice."""
        with self._model.pool.awake():
            trained = [
                workspace.exact_squares()
                for workspace, is_trained in zip(self._pulls, self._trained, strict=True)
                if is_trained
            ]
            of_dense = self._model.dense.exact_squares_of_slice(self._gradient, self._first)
        return [*trained, of_dense]

    def apply(self, pushes: Sequence[Push], scale: float) -> None:
        """Apply the reduced gradients, times `scale`."""
        with self._model.pool.awake():
            for number, workspace in enumerate(self._pulls):
                for rank, push in enumerate(pushes):
                    if push.rows and (counts := push.tables[number].counts) is not None:
                        workspace.push_shows(rank, counts)
                if self._trained[number]:
                    workspace.apply(scale)
            self._model.dense.apply_slice(self._gradient, self._first, scale)
        self.end_step()
        self._take_figures(pushes, _shares(pushes))

    def end_step(self) -> None:
        """Count a step whose gradients are applied, and remove rows that are due."""
        self.steps += 1
        self._updates.remove_rows(self.steps)

    def pull(self, keys: Sequence[Sequence[Keys]], replies: Sequence[Reply]) -> None:
        """Find the keys of all workers in rank order, inserting, and fill the reply of each."""
        for number, (table, workspace) in enumerate(
            zip(self._model.tables, self._pulls, strict=True)
        ):
            table.set_step(self.steps + 1)
            workspace.find([_of_rank(of_rank[number]) for of_rank in keys], insert=True)
            for rank, reply in enumerate(replies):
                part = reply.tables[number]
                if part.rows.dtype == np.float32:
                    workspace.read(rank, part.rows)
                else:
                    rows = np.empty(part.rows.shape, np.float32)
                    workspace.read(rank, rows)
                    write_floats(part.rows, rows)
                if part.waits is not None:
                    workspace.write_waits(rank, part.waits)
        for reply in replies:
            self._read_dense(reply.dense)

    def read(self, read: Read, reply: ReadReply) -> None:
        """Fill the reply with rows as they are; those of keys without a row are zeros."""
        for workspace, keys, rows in zip(self._reads, read.keys, reply.tables, strict=True):
            if len(keys.ids):
                workspace.find([_of_rank(keys)], insert=False)
                workspace.read(0, rows)
        self._read_dense(reply.dense)

    def owned(self) -> list[Owned]:
        """How many rows and bytes this part of each table has."""
        return [
            Owned(table.rows, table.index_bytes + table.row_bytes) for table in self._model.tables
        ]

    def _read_dense(self, slice_: NDArray[np.float32]) -> None:
        if len(slice_):
            slice_[:] = self._model.dense.flat_weights[self._first : self._last]

    def _take_figures(self, pushes: Sequence[Push], shares: Sequence[float]) -> None:
        """Rank 0: the moving statistics, and the sums of the pass."""
        if any(len(push.statistics) for push in pushes):
            joint = self._joint_statistics(pushes, shares)
            move_statistics(self._moving, joint, self._model.dense.step)
        if self.sums is not None:
            for push in pushes:
                if push.rows:
                    self.sums.add(push.loss, push.logits, push.labels)

    def _joint_statistics(
        self, pushes: Sequence[Push], shares: Sequence[float]
    ) -> list[NDArray[np.float32]]:
        """Mean and variance of all rows, from those of each worker's: mean and E[x^2] add up."""
        known = [(push, share) for push, share in zip(pushes, shares, strict=True) if push.rows]
        if len(known) == 1:
            return cut(known[0][0].statistics, self._sizes)
        joint: list[Any] = []
        parts = [(cut(push.statistics.astype(np.float64), self._sizes), s) for push, s in known]
        for place in range(0, len(self._sizes), 2):
            mean = sum(share * part[place] for part, share in parts)
            squares = sum(share * (part[place + 1] + part[place] ** 2) for part, share in parts)
            joint += [mean, np.maximum(squares - mean**2, 0)]
        return [array.astype(np.float32) for array in joint]

    def _reduced(
        self, gradients: Sequence[NDArray[np.float32]], shares: Sequence[float]
    ) -> NDArray[np.float32]:
        reduced = np.zeros(self._last - self._first, np.float32)
        for gradient, share in zip(gradients, shares, strict=True):
            if len(gradient):
                weighted_sum(reduced, gradient, share)
        return reduced


class ArrivingPart(OwnedPart):
    """The part of a model that one worker owns, which changes while the worker computes.

    The thread that owns applies pushes while TensorFlow computes with the model's dense weights. So
    the slice of them that is owned is a table of its own, and the model gets it back at a pause.
    Owner 0 puts the mean loss, the logits and the labels of each push into `figures`, for the
    thread that trains.
    """

    def __init__(
        self,
        model: ParameterTables,
        membership: Membership,
        rank: int,
        steps: int,
        moving: MovingStatistics,
    ) -> None:
        """`steps` were trained before. `moving` are all moving statistics."""
        super().__init__(model, membership, rank, steps, moving)
        self.figures: SimpleQueue[tuple[float, Floats, Floats]] = SimpleQueue()
        self._workers = membership.workers
        self._pushed = 0  # of the step that is under way
        self._dense = self._slice_of(model.dense)
        self._updates = TableUpdates(model, self._dense)

    def _slice_of(self, dense: DenseTable) -> DenseTable:
        owned = DenseTable([self._last - self._first], dense.optimizer, self._model.pool)
        owned.step = dense.step
        slice_ = slice(self._first, self._last)
        arrays = [owned.flat_weights, *owned.flat_states]
        for array, whole in zip(arrays, [dense.flat_weights, *dense.flat_states], strict=True):
            array[: self._last - self._first] = whole[slice_]
        return owned

    def push_one(self, keys: Sequence[Keys], push: Push, rate: float) -> None:
        """Apply the push of one worker. Raises NotFiniteError before anything is changed."""
        self._updates.set_rate_factor(rate)
        with self._model.pool.awake():
            self._add_sums(keys, push)
            gradient = np.ascontiguousarray(push.dense)
            self._dense.check_slice(gradient, 0)
            self._apply_sums(push)
            self._dense.apply_slice(gradient, 0)
        if len(push.statistics):
            moments = cut(push.statistics, self._sizes)
            move_statistics(self._moving, moments, self._dense.step)
        if len(push.logits):
            # Copies: the arrays are views of the whole message.
            self.figures.put((push.loss, push.logits.copy(), push.labels.copy()))
        self._pushed += 1
        if self._pushed == self._workers:
            self.end_step()

    def _add_sums(self, keys: Sequence[Keys], push: Push) -> None:
        """Add up the gradients of a push. Raises NotFiniteError."""
        for number, (table, workspace) in enumerate(
            zip(self._model.tables, self._pulls, strict=True)
        ):
            table.set_step(self.steps + 1)
            if self._trained[number]:
                workspace.find_again(RankKeys(keys[number].ids, keys[number].groups))
                workspace.push_sums(0, push.tables[number].sums)

    def _apply_sums(self, push: Push) -> None:
        """Apply what was added up, and the shows and clicks of the push."""
        for number, workspace in enumerate(self._pulls):
            if self._trained[number]:
                if (counts := push.tables[number].counts) is not None:
                    workspace.push_shows(0, counts)
                workspace.apply()

    def pause(self) -> None:
        """Count a step that was begun as a whole one, and give the model the dense slice."""
        if self._pushed:
            self.end_step()
        dense, slice_ = self._model.dense, slice(self._first, self._last)
        arrays = [dense.flat_weights, *dense.flat_states]
        owned = [self._dense.flat_weights, *self._dense.flat_states]
        for whole, array in zip(arrays, owned, strict=True):
            whole[slice_] = array[: self._last - self._first]
        dense.step = self._dense.step

    def end_step(self) -> None:
        self._pushed = 0
        super().end_step()

    def _read_dense(self, slice_: NDArray[np.float32]) -> None:
        if len(slice_):
            slice_[:] = self._dense.flat_weights[: self._last - self._first]


def _shares(pushes: Sequence[Push]) -> list[float]:
    rows = sum(push.rows for push in pushes)
    return [push.rows / rows for push in pushes]


def _of_rank(keys: Keys) -> RankKeys:
    return RankKeys(keys.ids, keys.groups, keys.occurrences)


def cut(array: NDArray[Any], sizes: Sequence[int]) -> list[NDArray[Any]]:
    """An array in parts of these sizes."""
    return np.split(array, np.cumsum(sizes)[:-1])


# ---- What a process owns, as a worker or a dedicated server -----------------------


def take_shards(model: ParameterTables, membership: Membership, rank: int) -> None:
    """Let the tables of a model without rows own the shards of a rank, with their bounds."""
    shards, owners = membership.shards(rank), len(membership.writers)
    if not shards.count:
        return
    for layout, table in zip(model.layout.tables, model.tables, strict=True):
        table.set_shards(shards.first, shards.count)
        for number, life in zip(layout.groups.values(), layout.lives, strict=True):
            rules = table_life(life, table.stride)
            if rules.most_rows:
                # Keys are spread evenly, so each owner keeps its share of the bound.
                most_rows = rules.most_rows // owners
                kind = "servers" if membership.servers else "workers"
                refuse_if(
                    most_rows == 0,
                    f"the bound of a share group (life.eviction) is {rules.most_rows} rows, and "
                    f"{owners} {kind} own at least one each. Raise it, or take fewer {kind}",
                )
                table.set_life(number, replace(rules, most_rows=most_rows))


def new_owner(
    conf: Conf, model: ParameterTables, node: Node, steps: int, moving: MovingStatistics
) -> tuple[OwnedPart, Owner[Any]]:
    """What a process owns, and what answers exchanges for it, in the mode of the conf.

    `steps` were trained before. `moving` are all moving statistics, on rank 0.
    """
    owners, workers = node.membership.owners, node.workers
    shape = shapes(model, workers, moving, node.servers)[owners.index(node.rank)]
    part = model, node.membership, node.rank, steps, moving
    cluster = conf.cluster
    if cluster.mode == "async":
        arriving = ArrivingPart(*part)
        return arriving, Arrivals(
            shape,
            workers,
            arriving,
            staleness=cluster.staleness,
            warmup_steps=-(-cluster.warmup_batches // workers),
            totals=node.totals,
        )
    owned = OwnedPart(*part)
    return owned, Barrier(
        shape,
        workers,
        owned,
        rank=node.rank,
        clip_norm=conf.optimizer.clip_norm,
        backup=cluster.backup,
        owners=len(owners),
        totals=node.totals,
    )
