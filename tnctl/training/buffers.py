"""The memory that a batch passes through: C fills it, TensorFlow reads it in place."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.data.features import Window
from tnctl.model.aliases import tensor_over
from tnctl.model.building import Model
from tnctl.model.layout import slot_plans
from tnctl.tables import Batch, aligned


class Buffers:
    """Inputs and labels of up to `batch_size` examples, with a workspace per table.

    `x` float32 [batch_size, W], `linear` and `labels` float32 [batch_size, 1] and [batch_size].
    """

    def __init__(self, model: Model, batch_size: int) -> None:
        self.model = model
        self.batch_size = batch_size
        self.x = aligned((batch_size, model.layout.width))
        self.linear = aligned((batch_size, 1))
        self.labels = aligned(batch_size)
        self._inputs = [
            array
            for array, exists in ((self.x, model.layout.width), (self.linear, model.tables))
            if exists
        ]
        self._whole = [tensor_over(array) for array in [*self._inputs, self.labels]]
        self._batches = [
            Batch(table, slot_plans(model.conf, layout))
            for table, layout in zip(model.tables, model.layout.tables, strict=True)
        ]

    def fill(self, batch: Window, insert: bool) -> None:
        """Find the rows of a batch, pool them into x and linear, and add numbers and labels."""
        rows = batch.rows
        with self.model.pool.awake():
            for number, workspace in enumerate(self._batches):
                workspace.find(batch.ids[number], batch.offsets[number], rows, insert)
                workspace.gather(self._of_segments(workspace, self.x, self.linear), add=number > 0)
        if self.model.layout.numeric:
            self.x[:rows, self.model.layout.numeric_at :] = batch.numeric
        self.labels[:rows] = batch.labels

    def tensors(self, rows: int) -> list[Any]:
        """The inputs that exist, in the model's order, then the labels: the first `rows`."""
        if rows == self.batch_size:
            return self._whole
        return [tensor_over(array[:rows]) for array in [*self._inputs, self.labels]]

    def accumulate(self, gradients: list[Any]) -> None:
        """Sum the gradients of the inputs that exist per row. Raises NotFiniteError."""
        arrays = [np.asarray(memoryview(gradient)) for gradient in gradients]
        linear = arrays[-1]
        x = arrays[0]
        for workspace in self._batches:
            workspace.accumulate(self._of_segments(workspace, x, linear))

    def apply(self) -> None:
        """Update the rows of the batch."""
        for workspace in self._batches:
            workspace.apply()

    def _of_segments(
        self, workspace: Batch, x: NDArray[np.float32], linear: NDArray[np.float32]
    ) -> list[NDArray[np.float32]]:
        of = {"sum": linear, "concat": x}
        return [of[segment.output] for segment in workspace.table.segments]
