"""What a recipe sees: named views of the two tensors that the tables fill."""

from typing import Any

import keras
from keras import ops

from tnctl.errors import UserError, did_you_mean
from tnctl.model.layers import LeadingColumns
from tnctl.model.layout import Layout


class Inputs:
    """The inputs of a dense model, as symbolic Keras tensors. B is the batch.

    - `x` [B, W]: every slot's pooled embedding, side by side, then the numeric inputs; the input
      of a deep tower as it is
    - `linear` [B, 1]: the sum of the linear weights of all slots' ids
    - `embeddings` [B, S, d]: the pooled embeddings of the S slots, stacked
    - `numeric` [B, N]: the numeric inputs, transformed
    - `slot(name)` [B, d]: one slot's pooled embedding

    An input that the conf does not have is None (`x`, `linear`, `embeddings`, `numeric`).
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.x: Any = keras.Input((layout.width,), name="x") if layout.width else None
        self.linear: Any = keras.Input((1,), name="linear") if layout.tables else None

    @property
    def tensors(self) -> list[Any]:
        """The tensors that exist, in the order the model is called with."""
        return [tensor for tensor in (self.x, self.linear) if tensor is not None]

    @property
    def embeddings(self) -> Any:
        columns = self._layout.numeric_at
        if not columns:
            return None
        [table] = self._layout.tables
        flat = self.x
        if columns < self._layout.width:
            flat = LeadingColumns(columns, name="embedding_columns")(self.x)
        return keras.layers.Reshape((len(table.slots), table.width), name="embeddings")(flat)

    @property
    def numeric(self) -> Any:
        if not self._layout.numeric:
            return None
        # Nothing trains the numbers, so their gradient need not be computed.
        return ops.stop_gradient(self.x[:, self._layout.numeric_at :])

    def slot(self, name: str) -> Any:
        """One slot's pooled embedding [B, d]."""
        if name not in self._layout.slots:
            raise UserError(
                f"the conf has no slot '{name}'. {did_you_mean(name, self._layout.slots)}"
            )
        column, width = self._layout.columns_of(name)
        return self.x[:, column : column + width]
