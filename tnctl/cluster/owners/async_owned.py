"""The parameters that a worker owns in asynchronous training."""

from collections.abc import Sequence
from dataclasses import dataclass
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from tnctl.cluster.messages.exchange import Keys, Push
from tnctl.cluster.owners.owned import OwnedPart, cut
from tnctl.model.parameter_tables import (
    MovingStatistics,
    ParameterTables,
    TableUpdates,
    move_statistics,
)
from tnctl.tables import DenseTable, RankKeys


@dataclass(frozen=True)
class PushFigures:
    """Of a push, for the sums of the pass: its mean loss, logits and labels float32 [rows]."""

    loss: float
    logits: NDArray[np.float32]
    labels: NDArray[np.float32]


class AsyncOwnedPart(OwnedPart):
    """The part of a model that one worker owns, which changes while the worker computes.

    The thread that owns applies pushes while TensorFlow computes with the model's dense weights. So
    the slice of them that is owned is a table of its own, and the model gets it back at a pause.
    Owner 0 puts the figures of each push into `figures`, for the thread that trains.
    """

    def __init__(
        self,
        model: ParameterTables,
        rank: int,
        workers: int,
        steps: int,
        moving: MovingStatistics,
        servers: int = 0,
    ) -> None:
        """`steps` were trained before. `moving` are all moving statistics."""
        super().__init__(model, rank, workers, steps, moving, servers)
        self.figures: SimpleQueue[PushFigures] = SimpleQueue()
        self._workers = workers
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
            self.figures.put(PushFigures(push.loss, push.logits.copy(), push.labels.copy()))
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
