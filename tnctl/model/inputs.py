"""What a recipe sees: named views of the tensors that the tables fill."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tnctl.errors import UserError, did_you_mean
from tnctl.model.layers import Columns
from tnctl.model.layout import Layout


class Inputs:
    """The inputs of a dense model, as symbolic Keras tensors. B is the batch.

    - `x` [B, W]: every pooled slot's embedding, side by side, then the numbers; the input of a
      deep tower as it is
    - `linear` [B, 1]: the sum of the linear weights of all slots' ids
    - `embeddings` [B, S, d]: the pooled embeddings of the S slots that have one, stacked; they
      must be of one width
    - `numeric` [B, N]: the numeric inputs, transformed, then the one-hot slots
    - `slot(name)` [B, d]: one slot's pooled embedding
    - `sequence(name)`: the embeddings [B, L, d] of a slot with pooling=none, zeros past its end,
      and how many there are, int32 [B]
    - `slots`, `numbers`: what there is by name, and its width; `sequences`: by name, [L, d]

    An input that the conf does not have is None (`x`, `linear`, `embeddings`, `numeric`).
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.x: Any = keras.Input((layout.width,), name="x") if layout.width else None
        self.linear: Any = keras.Input((1,), name="linear") if layout.has_linear else None
        self._sequences: Any = None
        self._lengths: Any = None
        if layout.sequences:
            self._sequences = keras.Input((layout.sequences_width,), name="sequences")
            self._lengths = keras.Input((len(layout.sequences),), name="lengths", dtype="int32")
        self.slots = {name: width for name, (_, width) in layout.pooled.items()}
        self.numbers = dict(layout.numeric)
        self.sequences = {name: (one.length, one.width) for name, one in layout.sequences.items()}

    @property
    def tensors(self) -> list[Any]:
        """The tensors that exist, in the order the model is called with."""
        every = (self.x, self.linear, self._sequences, self._lengths)
        return [tensor for tensor in every if tensor is not None]

    @property
    def embeddings(self) -> Any:
        columns = self._layout.numeric_at
        if not columns:
            return None
        widths = list(self.slots.values())
        usual = max(set(widths), key=widths.count)
        odd = [name for name, width in self.slots.items() if width != usual]
        if odd:
            raise UserError(
                f"this recipe needs embeddings of one width, and slots.{odd[0]} has "
                f"{self.slots[odd[0]]} where others have {usual}. Leave its width out, or take "
                "width=0 (a linear weight only)"
            )
        flat = self.x
        if columns < self._layout.width:
            flat = Columns(0, columns, name="embedding_columns")(self.x)
        return keras.layers.Reshape((len(widths), usual), name="embeddings")(flat)

    @property
    def numeric(self) -> Any:
        if not self._layout.numeric:
            return None
        # Nothing trains the numbers, so their gradient need not be computed.
        return ops.stop_gradient(self.x[:, self._layout.numeric_at :])

    def slot(self, name: str) -> Any:
        """One slot's pooled embedding [B, d]."""
        column, width = self._place(name, self._layout.pooled, "pooled slot with an embedding")
        return Columns(column, width)(self.x)

    def number(self, name: str) -> Any:
        """One numeric input or one-hot slot [B, n]."""
        places = self._layout.numeric_columns
        column, width = self._place(name, places, "numeric input or one-hot slot")
        return ops.stop_gradient(self.x[:, column : column + width])

    def sequence(self, name: str) -> tuple[Any, Any]:
        """A slot with pooling=none: its embeddings [B, L, d], and their number, int32 [B]."""
        one = self._place(name, self._layout.sequences, "slot with pooling=none")
        size = one.length * one.width
        flat = Columns(one.column, size)(self._sequences)
        values = keras.layers.Reshape((one.length, one.width), name=f"{name}_sequence")(flat)
        return values, self._lengths[:, one.number]

    def _place(self, name: str, places: dict[str, Any], kind: str) -> Any:
        if name not in places:
            choice: Sequence[str] = list(places)
            raise UserError(f"the conf has no {kind} '{name}'. {did_you_mean(name, choice)}")
        return places[name]
