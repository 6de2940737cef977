"""The memory that a batch passes through: C fills it, TensorFlow reads it in place."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.data.features import Window
from tnctl.model.aliases import tensor_over
from tnctl.model.building import Model
from tnctl.model.layout import slot_plans
from tnctl.tables import Workspace, aligned


class Buffers:
    """Inputs and labels of up to `batch_size` examples, with a workspace per table.

    `x` float32 [batch_size, W], `linear` [batch_size, 1], `sequences` [batch_size, Ws], `lengths`
    int32 [batch_size, n], `labels` float32 [batch_size, labels], `weight` float32 [batch_size].
    """

    def __init__(self, model: Model, batch_size: int) -> None:
        self.model = model
        self.batch_size = batch_size
        layout = model.layout
        self.x = aligned((batch_size, layout.width))
        self.linear = aligned((batch_size, 1))
        self.sequences = aligned((batch_size, layout.sequences_width))
        self.lengths = aligned((batch_size, len(layout.sequences)), np.int32)
        self.labels = aligned((batch_size, len(model.conf.data.all_labels)))
        self.weight = aligned(batch_size)
        self._inputs = [
            array
            for array, exists in (
                (self.x, layout.width),
                (self.linear, layout.has_linear),
                (self.sequences, layout.sequences),
                (self.lengths, layout.sequences),
            )
            if exists
        ]
        self._targets = [self.labels] + ([self.weight] if model.conf.data.weight else [])
        self._whole = [tensor_over(array) for array in [*self._inputs, *self._targets]]
        self._batches = [
            Workspace(table, slot_plans(model.conf, layout))
            for table, layout in zip(model.tables, layout.tables, strict=True)
        ]
        # The first table with linear weights sets `linear`, the others add to it.
        with_linear = [number for number, table in enumerate(layout.tables) if table.linear]
        self._adds = [bool(with_linear) and n > with_linear[0] for n in range(len(self._batches))]
        self._trained = [
            workspace
            for workspace, table in zip(self._batches, layout.tables, strict=True)
            if not table.kind.frozen
        ]

        self._counting = [
            workspace
            for workspace, table in zip(self._batches, layout.tables, strict=True)
            if table.kind.shows
        ]

    def find(self, batch: Window, insert: bool) -> None:
        """Find the rows of a batch, inserting those that the tables lack."""
        for workspace, ids, offsets, weights in zip(
            self._batches, batch.ids, batch.offsets, batch.weights, strict=True
        ):
            workspace.find(ids, offsets, batch.rows, insert, weights)

    def fill(self, batch: Window, insert: bool) -> None:
        """Find the rows of a batch, pool them into the inputs, and add numbers and labels."""
        rows = batch.rows
        with self.model.pool.awake():
            self.find(batch, insert)
            for workspace, add in zip(self._batches, self._adds, strict=True):
                outputs = self._of_segments(workspace, self.x, self.linear)
                workspace.gather(outputs, self.sequences, add)
        if self.model.layout.numeric:
            self.x[:rows, self.model.layout.numeric_at :] = batch.numeric
        if self.model.layout.sequences:
            self._fill_lengths(batch)
        self.labels[:rows] = batch.labels
        if batch.weight is not None:
            self.weight[:rows] = batch.weight

    def _fill_lengths(self, batch: Window) -> None:
        """How many values each sequence has: the ids of its cells."""
        for table, offsets in zip(self.model.layout.tables, batch.offsets, strict=True):
            starts = offsets[:-1].reshape(batch.rows, table.cells)
            ends = offsets[1:].reshape(batch.rows, table.cells)
            cell = 0
            for name, spread in zip(table.slots, table.spreads, strict=True):
                if (one := self.model.layout.sequences.get(name)) is not None:
                    counts = ends[:, cell + spread - 1] - starts[:, cell]
                    self.lengths[: batch.rows, one.number] = counts
                cell += spread

    def inputs(self, rows: int) -> list[Any]:
        """The inputs that exist, in the model's order: the first `rows`."""
        return self.tensors(rows)[: len(self._inputs)]

    def tensors(self, rows: int) -> list[Any]:
        """The inputs, then labels, then weights if the conf has them: the first `rows`."""
        if rows == self.batch_size:
            return self._whole
        return [tensor_over(array[:rows]) for array in [*self._inputs, *self._targets]]

    def accumulate(self, gradients: list[Any]) -> None:
        """Sum the gradients of x, linear and sequences (those that exist) per row.

        Raises NotFiniteError.
        """
        arrays = iter(np.asarray(memoryview(gradient)) for gradient in gradients)
        layout = self.model.layout
        x = next(arrays) if layout.width else self.x
        linear = next(arrays) if layout.has_linear else self.linear
        sequences = next(arrays) if layout.sequences else self.sequences
        for workspace in self._trained:
            workspace.accumulate(self._of_segments(workspace, x, linear), sequences)

    def count(self, batch: Window) -> None:
        """Count shows and clicks of the rows of the batch, where rows keep them.

        After the gradients and before `apply`: what a step reads is from before it.
        """
        if self._counting:
            clicks = np.ascontiguousarray(batch.labels[:, 0])
            for workspace in self._counting:
                workspace.count(clicks)

    def squares(self) -> float:
        """The sum of squares of all rows' gradients, after `accumulate`."""
        return sum(workspace.squares() for workspace in self._trained)

    def apply(self, scale: float) -> None:
        """Update the rows of the batch with their gradients times `scale`."""
        for workspace in self._trained:
            workspace.apply(scale)

    def _of_segments(
        self, workspace: Workspace, x: NDArray[np.float32], linear: NDArray[np.float32]
    ) -> list[NDArray[np.float32]]:
        of = {"sum": linear, "concat": x}
        return [of[segment.output] for segment in workspace.table.segments]
