"""The inputs of a recipe: named views of the tensors that the tables fill."""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
from keras import ops

from tnctl.errors import UserError, did_you_mean
from tnctl.model.layers import Columns, VectorProjection, concatenated
from tnctl.model.layout import Layout
from tnctl.schema import SINGLE_LABEL, SLOT_NAME
from tnctl.tables.records import CVM_COLUMNS


class Inputs:
    """The inputs of a dense model, as symbolic Keras tensors. B is the batch.

    All are float32 but lengths.

    - `x` [B, W]: every pooled slot's embedding, side by side, then the numbers. With
      `life.shows.cvm` two counts follow each embedding
    - `deep` [B, W]: the input of a deep tower: x, but with ln(show + 1) in the place of each show
    - `linear` [B, 1]: the sum of the linear weights of all slots' ids
    - `embeddings` [B, S, d]: the pooled embeddings of the S slots that have one, stacked; they
      must be of one width
    - `numeric` [B, N]: the numeric inputs, transformed, then the one-hot slots
    - `slot(name)` [B, d]: one slot's pooled embedding
    - `sequence(name)`: the embeddings [B, L, d] of a slot with pooling=none, zeros past its end,
      and how many there are, int32 [B]
    - `counts(name)`: with `life.shows.cvm` the show and ln(click + 1) - ln(show + 1) of a slot's
      ids, [B, 2], pooled as its embedding is, or of a sequence [B, L, 2]; nothing trains them
    - `tower(name, tensor)`: names an output [B, d] that `split-graph head=NAME` cuts out
    - `labels`: the names of `data.labels`, which the heads of a recipe for any labels have; a
      single one without a name is called label
    - `slots`, `numbers`: name -> width of those that exist; `sequences`: name -> (L, d)

    Only `x` and `deep` have the counts beside the embeddings. An input that the conf does not have
    is None (`x`, `deep`, `linear`, `embeddings`, `numeric`).
    """

    def __init__(self, layout: Layout, labels: Iterable[str] = (SINGLE_LABEL,)) -> None:
        self._layout, self._seen = layout, layout.projected or layout
        self._matrices = matrices_of(layout)
        self.labels = tuple(labels)
        self._x: Any = keras.Input((layout.width,), name="x") if layout.width else None
        self._first = layout.pooled[layout.unserved][1] if layout.unserved else 0
        self.x: Any = self._served() if self._first or self._matrices else self._x
        self.linear: Any = keras.Input((1,), name="linear") if layout.has_linear else None
        self._sequences: Any = None
        self._lengths: Any = None
        if layout.sequences:
            self._sequences = keras.Input((layout.sequences_width,), name="sequences")
            self._lengths = keras.Input((len(layout.sequences),), name="lengths", dtype="int32")
        self._with_cvm = layout.with_cvm
        self.towers: dict[str, Any] = {}
        self.slots = {
            name: self._weights(name, columns)
            for name, (_, columns) in self._seen.pooled.items()
            if name != layout.unserved
        }
        self.numbers = dict(layout.numeric)
        self.sequences = {
            name: (place.length, self._weights(name, place.width))
            for name, place in self._seen.sequences.items()
        }

    def _served(self) -> Any:
        """The columns of x without those of the position, and with vectors times their matrix."""
        parts, end = [], self._first
        for name, (first, columns) in self._layout.pooled.items():
            if name in self._matrices:
                parts += [Columns(end, first - end)(self._x)] if end < first else []
                parts.append(self._matrices[name](Columns(first, columns)(self._x)))
                end = first + columns
        if end < self._layout.width:
            parts.append(Columns(end, self._layout.width - end)(self._x))
        return concatenated(*parts) if parts else None

    def _weights(self, name: str, columns: int) -> int:
        """How many of a slot's columns are its embedding; the others are counts."""
        return columns - CVM_COLUMNS if name in self._with_cvm else columns

    @property
    def tensors(self) -> list[Any]:
        """The tensors that exist, in the order the model is called with."""
        every = (self._x, self.linear, self._sequences, self._lengths)
        return [tensor for tensor in every if tensor is not None]

    @property
    def deep(self) -> Any:
        columns = [
            self._seen.pooled[name][0] - self._first + self.slots[name]
            for name in self.slots
            if name in self._with_cvm
        ]
        if not columns:
            return self.x
        shows = ops.stop_gradient(ops.take(self.x, columns, axis=1))
        # Weights of a pooling may be below 0, and so may their shows.
        logs = ops.log1p(ops.maximum(shows, 0))
        places = np.zeros((len(columns), self.x.shape[1]), np.float32)
        places[np.arange(len(columns)), columns] = 1
        return ops.where(places.any(axis=0), ops.matmul(logs, places), self.x)

    @property
    def embeddings(self) -> Any:
        """The stacked embeddings [B, S, d], or None. Raises UserError when their widths differ."""
        # Of all embeddings, which come before the numbers.
        columns = self._seen.numeric_at - self._first
        if not columns:
            return None
        widths = list(self.slots.values())
        usual = max(set(widths), key=widths.count)
        if odd := [name for name, width in self.slots.items() if width != usual]:
            raise UserError(
                f"this recipe needs embeddings of one width, and slots.{odd[0]} has "
                f"{self.slots[odd[0]]} where others have {usual}. Leave its width out, or take "
                "width=0 (a linear weight only)"
            )
        counted = [name in self._with_cvm for name in self.slots]
        if any(counted) and not all(counted):  # slots have unequal columns: one slice for each
            flat = concatenated(*map(self.slot, self.slots))
            return keras.layers.Reshape((len(widths), usual), name="embeddings")(flat)
        flat = self.x
        if columns < self.x.shape[1]:
            flat = Columns(0, columns, name="embedding_columns")(self.x)
        each = columns // len(widths)
        stacked = keras.layers.Reshape((len(widths), each), name="embeddings")(flat)
        return stacked[:, :, :usual] if each > usual else stacked

    @property
    def numeric(self) -> Any:
        if not self._layout.numeric:
            return None
        # Nothing trains the numbers, so their gradient need not be computed.
        return ops.stop_gradient(self._x[:, self._layout.numeric_at :])

    @property
    def position(self) -> Any:
        """The embedding [B, d] of `position.slot`, which is no part of the other inputs."""
        return Columns(0, self._weights(str(self._layout.unserved), self._first))(self._x)

    def tower(self, name: str, tensor: Any) -> Any:
        """Name a tensor [B, d], such as an item's vector, to be served alone; returns it."""
        shape = tuple(getattr(tensor, "shape", ()))
        if len(shape) != 2 or not SLOT_NAME.fullmatch(name) or name in self.towers:
            raise UserError(
                "a tower is a tensor [B, d] and a name of its own, as a slot's. "
                f"Received: {name} {list(shape)}"
            )
        self.towers[name] = tensor
        return tensor

    def slot(self, name: str) -> Any:
        """One slot's pooled embedding [B, d]."""
        width = self._place(name, self.slots, "pooled slot with an embedding")
        first, columns = self._layout.pooled[name]
        if name in self._matrices:
            return Columns(0, width)(self._matrices[name](Columns(first, columns)(self._x)))
        return Columns(first, width)(self._x)

    def number(self, name: str) -> Any:
        """One numeric input or one-hot slot [B, n]."""
        places = self._layout.numeric_columns
        column, width = self._place(name, places, "numeric input or one-hot slot")
        return ops.stop_gradient(self._x[:, column : column + width])

    def field(self, name: str) -> Any:
        """The `slot` or the `number` of this name, [B, d]."""
        self._place(name, self.slots | self._layout.numeric_columns, "pooled slot or number")
        return self.slot(name) if name in self.slots else self.number(name)

    def sequence(self, name: str) -> tuple[Any, Any]:
        """A slot with pooling=none: its embeddings [B, L, d], and their number, int32 [B]."""
        if name in self._layout.pooled:
            raise UserError(
                f"slots.{name} is pooled, and this recipe needs a sequence. Give "
                f"slots.{name}.pooling=none and slots.{name}.max_length=N"
            )
        place = self._place(name, self._layout.sequences, "slot with pooling=none")
        flat = Columns(place.column, place.length * place.width)(self._sequences)
        if name in self._matrices:
            flat = self._matrices[name](flat)
        values = keras.layers.Reshape((place.length, self._seen.sequences[name].width))(flat)
        if place.cvm:
            values = values[:, :, :-CVM_COLUMNS]
        return values, self._lengths[:, place.number]

    def counts(self, name: str) -> Any:
        """The two counts of a slot with life.shows.cvm: [B, 2], of a sequence [B, L, 2]."""
        self._place(name, dict.fromkeys(sorted(self._with_cvm)), "slot with life.shows.cvm")
        place = self._layout.sequences.get(name)
        if place is None:
            column = sum(self._layout.pooled[name]) - CVM_COLUMNS
            return ops.stop_gradient(self._x[:, column : column + CVM_COLUMNS])
        flat = self._sequences[:, place.column : place.column + place.length * place.width]
        values = ops.reshape(flat, (-1, place.length, place.width))
        return ops.stop_gradient(values[:, :, -CVM_COLUMNS:])

    def _place(self, name: str, places: dict[str, Any], kind: str) -> Any:
        if name not in places:
            raise UserError(f"the conf has no {kind} '{name}'. {did_you_mean(name, places)}")
        return places[name]


def matrices_of(layout: Layout) -> dict[str, VectorProjection]:
    """The matrix of each slot with vectors; slots of a share group have the same matrix."""
    matrices: dict[str, VectorProjection] = {}
    for table, seen in zip(layout.tables, (layout.projected or layout).tables, strict=True):
        if table.kind.vectors:
            kept = table.kind.columns - table.width
            of_groups = [
                VectorProjection(table.width, seen.width, kept, name=f"vectors_of_{group}")
                for group in table.groups
            ]
            numbers = zip(table.slots, table.group_of, strict=True)
            matrices |= {slot: of_groups[number] for slot, number in numbers}
    return matrices
