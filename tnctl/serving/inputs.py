"""From raw rows to the graph's inputs by serving.json and exported rows alone.

What a scorer does, here with numpy: docs/formats/graph.md and embeddings.md say how. The sums are
in the trainer's order, so the inputs are the trainer's, bit by bit.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tnctl.checkpoint.golden import RawRow
from tnctl.data.cells import Cells
from tnctl.data.features import Features
from tnctl.data.reading import Where, id_columns
from tnctl.data.windows import as_table
from tnctl.errors import Failure
from tnctl.model.graph import LENGTHS, SEQUENCES
from tnctl.model.layout import CVM_COLUMNS, LINEAR
from tnctl.serving.graph_document import GraphManifest, SignatureInput, SlotInput, conf_of
from tnctl.serving.rows.embeddings import Embeddings

# Of a group's name and ids uint64 [n]: rows float32 [n, columns], and which are known, bool [n].
Lookup = Callable[[str, NDArray[np.uint64]], tuple[NDArray[np.float32], NDArray[np.bool_]]]


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Raw rows as ids and numbers."""

    cells: dict[str, Cells]  # of every slot that has rows
    numeric: NDArray[np.float32]  # [rows, N]: numeric inputs, then one-hot slots

    @property
    def rows(self) -> int:
        return len(self.numeric)


class RawInputs:
    """The way from raw rows to ids and numbers, as serving.json describes it."""

    def __init__(self, description: GraphManifest) -> None:
        self.conf, statistics = conf_of(description)
        self._with_rows = [name for name, slot in description.slots.items() if slot.has_rows]
        spreads = [1] * len(self._with_rows)
        tables = [(self._with_rows, spreads)] if spreads else []
        self._features = Features(self.conf, tables, statistics, labelled=False)

    @property
    def columns(self) -> list[str]:
        """The columns of a raw row that are read."""
        return self._features.columns

    @property
    def id_columns(self) -> set[str]:
        """Those whose values become ids by their text: texts and integers, never fractions."""
        return id_columns(self.conf)

    def encode(
        self, rows: list[RawRow] | pa.Table, where: Where = lambda row: ("rows", row + 1)
    ) -> Encoded:
        """Rows as JSON has them, or a table with at least `columns`; a missing key is null.

        Raises BadRowsError for a value that is not what its column must hold.
        """
        table = rows if isinstance(rows, pa.Table) else as_table(self.conf, rows, self.columns)
        found = self._features.read(table, where)
        return Encoded({name: found.cells[name] for name in self._with_rows}, found.numeric)


def pooled_inputs(
    description: GraphManifest, encoded: Encoded, lookup: Lookup
) -> dict[str, NDArray[Any]]:
    """The inputs of signature `packed`, by name: float32 [rows, columns], lengths int32.

    An id that `lookup` does not know reads zeros. Columns that the graph does not read are zeros.
    """
    found: dict[str, NDArray[Any]] = {
        one.name: np.zeros((encoded.rows, one.columns), one.dtype)
        for one in description.signatures.packed
    }
    places = description.inputs
    # The sum `linear` is added up in an order of its own, so its slots come first.
    adds = description.linear.adds if LINEAR in found else ()
    names = [one for one in description.slots if one in places and one in encoded.cells]
    slots = {name: description.slots[name] for name in dict.fromkeys([*adds, *names])}
    rows = looked_up(slots, encoded.cells, lookup)
    for name, slot in slots.items():
        cells, at = encoded.cells[name], int(slot.linear)
        if slot.pooling == "none":
            if name in adds:
                for of_cells, ids in in_turn(cells):
                    found[LINEAR][of_cells] += rows[name][ids, :1]
            if name in places:
                put_sequence(rows[name][:, at:], cells, places[name], found[SEQUENCES])
            if (length := places.get(f"{name}_length")) is not None:
                found[LENGTHS][:, length.at] = cells.lengths()
            continue
        cell = pooled(rows[name], cells, slot.pooling)
        if name in adds:
            found[LINEAR] += cell[:, :1]
        if name in places:
            first = places[name].at
            found["x"][:, first : first + cell.shape[1] - at] = cell[:, at:]
    put_numbers(description, encoded.numeric, places, found)
    return found


def looked_up(
    slots: Mapping[str, SlotInput], cells: Mapping[str, Cells], lookup: Lookup
) -> dict[str, NDArray[np.float32]]:
    """Of each slot the rows of its ids. A group is looked up once: its files may be streamed."""
    of_group: dict[str, list[str]] = {}
    for name, slot in slots.items():
        assert slot.group is not None  # it has rows
        of_group.setdefault(slot.group, []).append(name)
    found: dict[str, NDArray[np.float32]] = {}
    for group, names in of_group.items():
        ids = [cells[name].ids for name in names]
        rows, _ = lookup(group, ids[0] if len(ids) == 1 else np.concatenate(ids))
        ends = np.cumsum([len(one) for one in ids])[:-1]
        found |= dict(zip(names, np.split(rows, ends), strict=True))
    return found


def served_lookup(description: GraphManifest, embeddings: Embeddings) -> Lookup:
    """The lookup of embeddings that go with a graph. Raises Failure for those of another model."""
    ours, theirs = description.checkpoint, embeddings.manifest.checkpoint
    if ours.sha256 != theirs.sha256:
        raise Failure(
            f"the graph is of {ours.folder}, step {ours.step:,}, and the embeddings are of "
            f"{theirs.folder}, step {theirs.step:,}. Take those of one checkpoint"
        )
    check_rows(description, embeddings)
    if embeddings.manifest.filter.slots is None:
        return embeddings.lookup
    return rows_left_out(description, embeddings)


def check_rows(description: GraphManifest, embeddings: Embeddings) -> None:
    """Raise Failure unless the rows of embeddings are those that the graph's slots read."""
    for name, slot in description.slots.items():
        shape = embeddings.groups.get(slot.group or "")
        if shape and (shape.linear, shape.width, shape.cvm) != (slot.linear, slot.width, slot.cvm):
            raise Failure(
                f"slot {name} of the graph reads other rows than those that the embeddings have "
                f"of group {slot.group}. Split and export again"
            )


def rows_left_out(description: GraphManifest, embeddings: Embeddings) -> Lookup:
    """The lookup of embeddings of which a filter left out slots: their ids are unknown."""
    columns = {
        slot.group: slot.width + slot.linear + CVM_COLUMNS * slot.cvm
        for slot in description.slots.values()
    }

    def lookup(
        group: str, ids: NDArray[np.uint64]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        if group in embeddings.groups:
            return embeddings.lookup(group, ids)
        return np.zeros((len(ids), columns[group]), np.float32), np.zeros(len(ids), bool)

    return lookup


def pooled(rows: NDArray[np.float32], cells: Cells, pooling: str) -> NDArray[np.float32]:
    """The rows [ids, columns] of each cell as one: float32 [cells, columns].

    Added in the order of the ids and divided once: by n (mean) or the float32 root of n (sqrtn); a
    cell without ids is zeros, and of one id its row. With a weight per id, rows are multiplied
    first; mean divides by the sum of the weights, sqrtn by the root of the sum of their squares,
    and a divisor that is not above 0 gives zeros.
    """
    if cells.weights is None:
        if cells.offsets is None:
            return rows
        lengths = cells.lengths()
        total = added(rows, cells)
        single = lengths == 1
        total[single] = rows[starts_of(cells)[single]]
        if pooling != "sum":
            several = lengths > 1
            divisor = lengths[several].astype(np.float32)
            total[several] /= (divisor if pooling == "mean" else np.sqrt(divisor))[:, np.newaxis]
        return total
    weights = cells.weights[:, np.newaxis]
    total = added(rows * weights, cells)
    if pooling != "sum":
        divisor = added(weights if pooling == "mean" else weights * weights, cells)
        if pooling == "sqrtn":
            divisor = np.sqrt(divisor)
        positive = divisor[:, 0] > 0
        total[positive] /= divisor[positive]
        total[~positive] = 0
    return total


def starts_of(cells: Cells) -> NDArray[np.int64]:
    """Where the ids of each cell begin."""
    lengths = cells.lengths()
    return np.cumsum(lengths) - lengths


def added(values: NDArray[np.float32], cells: Cells) -> NDArray[np.float32]:
    """The sums [cells, columns] of the values [ids, columns] of each cell, in their order."""
    total = np.zeros((len(cells.lengths()), values.shape[1]), np.float32)
    for of_cells, places in in_turn(cells):
        total[of_cells] += values[places]
    return total


def in_turn(cells: Cells) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """First the cells with an id and the places of their first ids, then of their second ones."""
    lengths, starts = cells.lengths(), starts_of(cells)
    longest_first = np.argsort(-lengths, kind="stable")
    ascending = np.sort(lengths)
    for number in range(int(ascending[-1]) if len(ascending) else 0):
        longer = len(lengths) - int(np.searchsorted(ascending, number, side="right"))
        of_cells = longest_first[:longer]
        yield of_cells, starts[of_cells] + number


def put_sequence(
    rows: NDArray[np.float32],
    cells: Cells,
    place: SignatureInput,
    sequences: NDArray[np.float32],
) -> None:
    """Put the rows of each cell one after the other into their place; zeros follow."""
    lengths = cells.lengths()
    examples = np.repeat(np.arange(len(lengths)), lengths)
    places = np.arange(len(rows)) - np.repeat(starts_of(cells), lengths)
    own = np.zeros((len(lengths), *place.shape), np.float32)
    own[examples, places] = rows
    columns = slice(place.at, place.end)
    sequences[:, columns] = own.reshape(len(lengths), -1)


def put_numbers(
    description: GraphManifest,
    numeric: NDArray[np.float32],
    places: Mapping[str, SignatureInput],
    found: Mapping[str, NDArray[Any]],
) -> None:
    """The numeric inputs and one-hot slots, which stand side by side in `numeric`, into x."""
    first = 0
    widths = {name: one.width for name, one in description.numeric.items()}
    widths |= {name: slot.columns for name, slot in description.slots.items() if slot.indicator}
    for name, width in widths.items():
        if (place := places.get(name)) is not None:
            columns = slice(place.at, place.at + width)
            found["x"][:, columns] = numeric[:, first : first + width]
        first += width
