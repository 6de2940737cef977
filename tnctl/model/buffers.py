"""The memory that a batch passes through: C fills it, TensorFlow reads it in place."""

from typing import Any

import numpy as np

from tnctl.data.batches import Batch
from tnctl.model.aliases import tensor_over
from tnctl.model.building import Model
from tnctl.model.graph import packed_inputs
from tnctl.tables import aligned


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
