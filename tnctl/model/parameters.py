"""The parameters of a model, sparse and dense, as a step uses them: pull, then push."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.data.batches import Batch
from tnctl.model.building import Model, batch_norms, tensor_over
from tnctl.model.graph import SEQUENCES, packed_inputs
from tnctl.model.layout import LINEAR, Layout, slot_plans
from tnctl.model.parameter_tables import MovingStatistics, TableUpdates, move_statistics
from tnctl.tables import Workspace, aligned, clipping_factor


class Buffers:
    """Inputs and labels of up to `batch_size` examples.

    `x` float32 [batch_size, W], `linear` [batch_size, 1], `sequences` [batch_size, Ws], `lengths`
    int32 [batch_size, n], `labels` float32 [batch_size, labels], `weight` float32 [batch_size].
    """

    def __init__(self, model: Model, batch_size: int) -> None:
        layout = model.layout
        self._layout = layout
        self.batch_size = batch_size
        self.x = aligned((batch_size, layout.width))
        self.linear = aligned((batch_size, 1))
        self.sequences = aligned((batch_size, layout.sequences_width))
        self.lengths = aligned((batch_size, len(layout.sequences)), np.int32)
        self.labels = aligned((batch_size, len(model.conf.data.all_labels)))
        self.weight = aligned(batch_size)
        self._inputs = [getattr(self, entry.name) for entry in packed_inputs(layout)]
        self._targets = [self.labels] + ([self.weight] if model.conf.data.weight else [])
        self._whole = [tensor_over(array) for array in [*self._inputs, *self._targets]]

    def fill_dense(self, batch: Batch) -> None:
        """Write the numbers, the lengths of sequences, labels and weights of a batch."""
        rows, layout = batch.rows, self._layout
        if layout.numeric:
            self.x[:rows, layout.numeric_at :] = batch.numeric
        if layout.sequences:
            self._fill_lengths(batch)
        self.labels[:rows] = batch.labels
        if batch.weight is not None:
            self.weight[:rows] = batch.weight

    def _fill_lengths(self, batch: Batch) -> None:
        """Write the number of values of each sequence: of the ids in its cells."""
        for table, offsets in zip(self._layout.tables, batch.offsets, strict=True):
            starts = offsets[:-1].reshape(batch.rows, table.cells)
            ends = offsets[1:].reshape(batch.rows, table.cells)
            cell = 0
            for name, spread in zip(table.slots, table.spreads, strict=True):
                if (sequence := self._layout.sequences.get(name)) is not None:
                    counts = ends[:, cell + spread - 1] - starts[:, cell]
                    self.lengths[: batch.rows, sequence.number] = counts
                cell += spread

    def inputs(self, rows: int) -> list[Any]:
        """The inputs that exist, in the model's order: the first `rows`."""
        return self.tensors(rows)[: len(self._inputs)]

    def tensors(self, rows: int) -> list[Any]:
        """The inputs, then labels, then weights if the conf has them: the first `rows`."""
        if rows == self.batch_size:
            return self._whole
        return [tensor_over(array[:rows]) for array in [*self._inputs, *self._targets]]


@dataclass(frozen=True)
class Gradients:
    """The results of a step's computation on a batch: TensorFlow tensors, read in place.

    `inputs` are the gradients of x, linear and sequences (those that exist), `dense` the gradients
    of the trainable variables in their order, `statistics` the mean and variance of each batch
    norm.
    """

    inputs: list[Any]
    dense: list[Any]
    statistics: list[Any]


class Parameters:
    """All parameters of a model. A step pulls a batch, computes, and pushes the same batch.

    Here they are in this process's tables; a subclass has rows in other processes.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.steps = 0
        """the steps applied so far"""
        self._updates = TableUpdates(model)
        self._moving = moving_statistics(model)
        layout = model.layout
        self._workspaces = [
            Workspace(table, slot_plans(model.conf.slots, table_layout))
            for table, table_layout in zip(model.tables, layout.tables, strict=True)
        ]
        self._inputs = PooledInputs(layout, self._workspaces)
        pairs = list(zip(self._workspaces, layout.tables, strict=True))
        self._trained = [workspace for workspace, table in pairs if not table.kind.frozen]
        self._counting = [workspace for workspace, table in pairs if table.kind.shows]

    def find(self, batch: Batch, insert: bool) -> None:
        """Find the rows of a batch, inserting those that the tables lack."""
        for workspace, ids, offsets, weights in zip(
            self._workspaces, batch.ids, batch.offsets, batch.weights, strict=True
        ):
            workspace.find(ids, offsets, batch.rows, insert, weights)

    def pull(self, batch: Batch, buffers: Buffers) -> None:
        """Read the rows of a batch into the buffers; ids without a row get one."""
        for table in self.model.tables:
            table.set_step(self.steps + 1)
        self._find_and_gather(batch, buffers, insert=True)

    def read(self, batch: Batch, buffers: Buffers) -> None:
        """Read the rows of a batch into the buffers; ids without a row read zeros."""
        self._find_and_gather(batch, buffers, insert=False)

    def _find_and_gather(self, batch: Batch, buffers: Buffers, insert: bool) -> None:
        with self.model.pool.awake():
            self.find(batch, insert)
            if insert:
                self._inputs.leave_out(batch)
            self._inputs.gather(buffers)
        buffers.fill_dense(batch)

    def push(self, batch: Batch, gradients: Gradients, rate_factor: float) -> None:
        """Update everything with the gradients of the batch that was pulled last.

        `rate_factor` multiplies every learning rate. Raises NotFiniteError before any change.
        """
        self._updates.set_rate_factor(rate_factor)
        with self.model.pool.awake():
            if gradients.inputs:
                self._inputs.accumulate(gradients.inputs, batch.rows)
            self.model.dense.check(gradients.dense)
            scale = self._scale(gradients.dense)
            # Now all gradients are known to be finite. Rows get the counts when they are applied,
            # so this step has read the counts from before it.
            if self._counting:
                clicks = np.ascontiguousarray(batch.labels[:, 0])
                for workspace in self._counting:
                    workspace.count(clicks)
            for workspace in self._trained:
                workspace.apply(scale)
            self.model.dense.apply(gradients.dense, scale)
        self.steps += 1
        self._updates.remove_rows(self.steps)
        statistics = [np.asarray(memoryview(moment)) for moment in gradients.statistics]
        move_statistics(self._moving, statistics, self.model.dense.step)

    def _scale(self, dense: list[Any]) -> float:
        """The factor that reduces the norm of all gradients together to optimizer.clip_norm."""
        limit = self.model.conf.optimizer.clip_norm
        if not limit:
            return 1.0
        of_tables = [workspace.squares() for workspace in self._trained]
        return clipping_factor(limit, of_tables, self.model.dense.squares(dense))


class PooledInputs:
    """The inputs that rows are pooled into, table after table, and the gradients of these."""

    def __init__(self, layout: Layout, workspaces: Sequence[Workspace]) -> None:
        """A workspace for each table of the layout."""
        self._names = [entry.name for entry in packed_inputs(layout)]
        self._workspaces = workspaces
        # The first table with linear weights sets `linear`, the others add to it.
        with_linear = [position for position, table in enumerate(layout.tables) if table.linear]
        self._adds = [
            bool(with_linear) and position > with_linear[0]
            for position in range(len(layout.tables))
        ]
        pairs = zip(workspaces, layout.tables, strict=True)
        self._trained = [workspace for workspace, table in pairs if not table.kind.frozen]

    def leave_out(self, batch: Batch) -> None:
        """Leave what the examples of a batch to be trained have counted themselves out of it."""
        clicks = np.ascontiguousarray(batch.labels[:, 0])
        for workspace in self._workspaces:
            if workspace.table.cvm:
                workspace.leave_out(clicks)

    def gather(self, buffers: Buffers) -> None:
        """Pool the rows of the batch that the workspaces have into the buffers."""
        for workspace, add in zip(self._workspaces, self._adds, strict=True):
            outputs = _of_segments(workspace, buffers.x, buffers.linear)
            workspace.gather(outputs, buffers.sequences, add)

    def accumulate(self, gradients: Sequence[Any], rows: int) -> None:
        """Sum the gradients per row; they are of the inputs that exist, but lengths."""
        arrays = {
            name: np.asarray(memoryview(gradient))
            for name, gradient in zip(self._names, gradients, strict=False)
        }
        nothing = np.empty((rows, 0), np.float32)  # for an input that does not exist
        x, linear, sequences = (arrays.get(name, nothing) for name in ("x", LINEAR, SEQUENCES))
        for workspace in self._trained:
            workspace.accumulate(_of_segments(workspace, x, linear), sequences)


def moving_statistics(model: Model) -> MovingStatistics:
    """The memory of each moving statistic in the order of `batch_statistics`, and its momentum."""
    variables = model.network.non_trainable_variables
    positions = {id(variable): position for position, variable in enumerate(variables)}
    return [
        (model.moving[positions[id(variable)]], layer.momentum)
        for layer in batch_norms(model.network)
        for variable in (layer.moving_mean, layer.moving_variance)
    ]


def _of_segments(
    workspace: Workspace, x: NDArray[np.float32], linear: NDArray[np.float32]
) -> list[NDArray[np.float32]]:
    arrays = {"sum": linear, "concat": x}
    return [arrays[segment.output] for segment in workspace.table.segments]
