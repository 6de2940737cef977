"""The graph's inputs from raw rows, by serving.json and exported rows alone.

A scorer in numpy, as docs/formats/graph.md and embeddings.md describe it. Numbers are added in the
trainer's order, so the inputs are the trainer's, bit by bit.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tnctl.checkpoint.golden_lines import RawRow
from tnctl.data import Float64s, numbers
from tnctl.data.arrow_tables import as_table
from tnctl.data.column_names import value_columns
from tnctl.data.features import Features, vectors
from tnctl.data.file_pieces import Where
from tnctl.data.formats.jsonl_files import cutters
from tnctl.data.slot_encoder import Cells, Encoder
from tnctl.errors import Failure
from tnctl.model.graph import LENGTHS, SEQUENCES
from tnctl.model.layout import LINEAR, LINEARS
from tnctl.schema import Conf
from tnctl.serving.graph import graph_cells
from tnctl.serving.graph.graph_document import (
    OF_LINEAR,
    GraphManifest,
    RowInput,
    SignatureInput,
    SlotInput,
    conf_of,
)
from tnctl.serving.rows.embeddings import Embeddings
from tnctl.serving.rows.precision import Arrays, Floats, LookedUp, Uint64s
from tnctl.tables.records import CVM_COLUMNS

# Of a group's name and ids uint64 [n]: rows float32 [n, columns], and which are known, bool [n].
Lookup = Callable[[str, Uint64s], LookedUp]


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Raw rows as ids and numbers."""

    cells: dict[str, Cells]  # of every slot that has rows
    numeric: Floats  # [rows, N]: numeric inputs, then one-hot slots
    one_hot: dict[str, Cells] = dataclasses.field(default_factory=dict)  # where they are known

    @property
    def rows(self) -> int:
        return len(self.numeric)


class RawInputs:
    """Turns raw rows into ids and numbers as serving.json describes it."""

    def __init__(self, description: GraphManifest) -> None:
        self.conf, statistics = conf_of(description)
        self._with_rows = [name for name, slot in description.slots.items() if slot.has_rows]
        tables = [(self._with_rows, [1] * len(self._with_rows))] if self._with_rows else []
        self._features = Features(self.conf, tables, statistics, labelled=False)
        self._cutters = cutters(self.conf)
        self.columns = self._features.columns  # of a raw row, those that are read

    def encode(
        self, rows: list[RawRow] | pa.Table, where: Where = lambda row: ("rows", row + 1)
    ) -> Encoded:
        """Rows as JSON has them, or a table with at least `columns`; a missing key is null.

        Raises BadRowsError for a value that is not what its column must hold.
        """
        table = rows if isinstance(rows, pa.Table) else as_table(rows, self._cutters, self.columns)
        columns = self._features.read(table, where)
        return Encoded(
            {name: columns.cells[name] for name in self._with_rows},
            columns.batch.numeric,
            {name: columns.cells[name] for name, slot in self.conf.slots.items() if slot.indicator},
        )

    def values(self, description: GraphManifest, rows: list[RawRow], where: Where) -> Arrays:
        """The inputs of signature `by_value`, by name, as its caller makes them of raw rows."""
        table, inputs = as_table(rows, self._cutters, self.columns), description.signatures.by_value
        whole = {name: numbers.flat(table.column(name)) for name in self.columns}
        held = {(given.holds, given.of) for given in inputs or ()}
        cells = {
            name: raw_cells(encoder, whole, where)
            for name, encoder in graph_cells.encoders_of(description).items()
            if ("values", name) in held
        }
        read = [name for name in self.conf.numeric if ("numbers", name) in held]
        return row_arrays(
            inputs, cells, {name: raw_numbers(whole, name, self.conf, where) for name in read}
        )


def raw_cells(encoder: Encoder, whole: Mapping[str, pa.Array], where: Where) -> Cells:
    """The values of a slot as the graph takes them, in the place of ids."""
    slot, data, dtype = encoder.slot, encoder.data, graph_cells.dtype_of(encoder.slot)
    weights = None if slot.weights is None else whole[slot.weights]
    parts, of_parts = encoder.parts(whole[encoder.column], where, weights)
    array, lengths = parts.values, parts.lengths
    owners = np.arange(len(array)) if lengths is None else numbers.owners_of(lengths)
    # In a sequence a missing value has its place.
    kept = np.ones(len(array), bool) if slot.pooling == "none" else ~numbers.is_null(array)
    values: Any
    if dtype == "float64":
        values = numbers.parsed(array, [*data.missing, ""], encoder.column, where)
    elif dtype == "int64":
        values, missing = encoder.ids.encode(array, where, True)
        kept &= ~missing
    else:
        # Golden rows may have bytes that are no UTF-8.
        texts = numbers.texts(array, encoder.column, where).cast(pa.large_binary())
        values = texts.fill_null(b"").to_numpy(zero_copy_only=False)
    rows = len(array) if lengths is None else len(lengths)
    lengths = np.bincount(owners[kept], minlength=rows)
    of_kept = None if of_parts is None else of_parts[kept].astype(np.float32)
    return Cells(values[kept], numbers.offsets_of(lengths), of_kept)


def raw_numbers(whole: Mapping[str, pa.Array], name: str, conf: Conf, where: Where) -> Float64s:
    """The numbers of an input as they are read, float64 [rows, width], NaN where missing."""
    number, data = conf.numeric[name], conf.data
    if not number.is_age:
        return vectors(whole, name, dataclasses.replace(number, clip=None), data, where)
    columns = value_columns(name, number)
    return np.stack([numbers.parsed(whole[c], data.missing, c, where) for c in columns], axis=1)


def pooled_inputs(description: GraphManifest, encoded: Encoded, lookup: Lookup) -> Arrays:
    """The inputs of signature `packed`, by name: float32 [rows, columns], lengths int32.

    Where by_slot takes the parts of `linear`, `linears` too. An id that `lookup` does not know
    reads zeros. Columns that the graph does not read are zeros.
    """
    inputs: Arrays = {
        packed.name: np.zeros((encoded.rows, packed.columns), packed.dtype)
        for packed in description.signatures.packed
    }
    parts = description.inputs
    linears = {part.name.removesuffix(OF_LINEAR): part for part in description.signatures.linears}
    if linears:
        columns = sum(part.columns for part in linears.values())
        inputs[LINEARS] = np.zeros((encoded.rows, columns), np.float32)
    # The sum `linear` is added up in the order of linear.adds, so its slots come first.
    adds = description.linear.adds if LINEAR in inputs else ()
    read = [name for name in description.slots if name in parts and name in encoded.cells]
    slots = {name: description.slots[name] for name in dict.fromkeys([*adds, *read])}
    rows = looked_up(slots, encoded.cells, lookup)
    for name, slot in slots.items():
        cells, first = encoded.cells[name], int(slot.linear)
        if slot.pooling == "none":
            if name in adds:
                for turn, (examples, ids) in enumerate(in_turn(cells)):
                    inputs[LINEAR][examples] += rows[name][ids, :1]
                    if name in linears:
                        inputs[LINEARS][examples, linears[name].at + turn] = rows[name][ids, 0]
            if name in parts:
                put_sequence(rows[name][:, first:], cells, parts[name], inputs[SEQUENCES])
            if (length := parts.get(f"{name}_length")) is not None:
                inputs[LENGTHS][:, length.at] = cells.lengths()
            continue
        cell = pooled(rows[name], cells, slot.pooling)
        if name in adds:
            inputs[LINEAR] += cell[:, :1]
            if name in linears:
                inputs[LINEARS][:, linears[name].at] = cell[:, 0]
        if name in parts:
            at = parts[name].at
            inputs["x"][:, at : at + cell.shape[1] - first] = cell[:, first:]
    put_numbers(description, encoded.numeric, inputs)
    return inputs


def looked_up(
    slots: Mapping[str, SlotInput], cells: Mapping[str, Cells], lookup: Lookup
) -> dict[str, Floats]:
    """Of each slot the rows of its ids, float32 [ids, columns].

    A group is looked up once: its files may be streamed.
    """
    rows: dict[str, Floats] = {}
    for group in dict.fromkeys(slot.group for slot in slots.values()):
        assert group is not None  # its slots have rows
        names = [name for name, slot in slots.items() if slot.group == group]
        ids = [cells[name].ids for name in names]
        of_ids, _ = lookup(group, np.concatenate(ids))
        ends = np.cumsum([len(array) for array in ids])[:-1]
        rows |= dict(zip(names, np.split(of_ids, ends), strict=True))
    return rows


def served_lookup(description: GraphManifest, embeddings: Embeddings) -> Lookup:
    """The lookup of embeddings that go with a graph. Raises Failure for another model's."""
    ours, theirs = description.checkpoint, embeddings.manifest.checkpoint
    if ours.sha256 != theirs.sha256:
        raise Failure(
            f"the graph is of {ours.folder}, step {ours.step:,}, and the embeddings are of "
            f"{theirs.folder}, step {theirs.step:,}. Take both from one checkpoint"
        )
    if embeddings.manifest.filter.slots is None:
        return embeddings.lookup
    return rows_left_out(description, embeddings)


def rows_left_out(description: GraphManifest, embeddings: Embeddings) -> Lookup:
    """The lookup of embeddings of which a filter left out slots: their ids are unknown."""
    columns = {
        slot.group: slot.width + slot.linear + CVM_COLUMNS * slot.cvm
        for slot in description.slots.values()
    }

    def lookup(group: str, ids: Uint64s) -> LookedUp:
        if group in embeddings.groups:
            return embeddings.lookup(group, ids)
        return np.zeros((len(ids), columns[group]), np.float32), np.zeros(len(ids), bool)

    return lookup


def pooled(rows: Floats, cells: Cells, pooling: str) -> Floats:
    """The rows [ids, columns] of each cell as one: float32 [cells, columns].

    Added in the order of the ids and divided once: by n (mean) or the float32 root of n (sqrtn); a
    cell without ids is zeros, and of one id its row. With a weight per id, rows are multiplied
    first; mean divides by the sum of the weights, sqrtn by the root of the sum of their squares,
    and a divisor that is not above 0 gives zeros.
    """
    if cells.weights is None and cells.offsets is None:
        return rows
    lengths = cells.lengths()
    weights = None if cells.weights is None else cells.weights[:, np.newaxis]
    total = added(rows if weights is None else rows * weights, cells)
    if weights is None:
        single = lengths == 1
        total[single] = rows[starts_of(cells)[single]]
    if pooling == "sum":
        return total
    if weights is None:
        divisor = lengths[:, np.newaxis].astype(np.float32)
    else:
        divisor = added(weights if pooling == "mean" else weights * weights, cells)
    positive = divisor[:, 0] > 0
    total[positive] /= (divisor if pooling == "mean" else np.sqrt(divisor))[positive]
    total[~positive] = 0
    return total


def starts_of(cells: Cells) -> NDArray[np.int64]:
    """Where the ids of each cell begin, int64 [cells]."""
    lengths = cells.lengths()
    return np.cumsum(lengths) - lengths


def added(values: Floats, cells: Cells) -> Floats:
    """The sums [cells, columns] of the values [ids, columns] of each cell, in their order."""
    total = np.zeros((len(cells.lengths()), values.shape[1]), np.float32)
    for rows, positions in in_turn(cells):
        total[rows] += values[positions]
    return total


def in_turn(cells: Cells) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """The k-th ids of all cells that have one, for k = 0, 1, ...

    Each time the indices of these cells and of their k-th ids: int64 [cells left] both.
    """
    lengths, starts = cells.lengths(), starts_of(cells)
    cells_left = np.argsort(-lengths, kind="stable")
    for turn in range(int(lengths.max(initial=0))):
        cells_left = cells_left[: np.searchsorted(-lengths[cells_left], -turn)]
        yield cells_left, starts[cells_left] + turn


def put_sequence(
    rows: Floats,
    cells: Cells,
    part: SignatureInput,
    sequences: Floats,
) -> None:
    """Put rows float32 [ids, columns] into their part of sequences float32 [B, columns of all].

    The rows of a cell come one after the other, then zeros up to the length of the sequence.
    """
    sequences[:, part.at : part.end] = padded(rows, cells, part.shape[0]).reshape(
        len(sequences), -1
    )


def padded(values: NDArray[Any], cells: Cells, most: int) -> NDArray[Any]:
    """The values [ids, ...] of each cell one after the other, then zeros: [cells, most, ...]."""
    lengths = cells.lengths()
    examples = np.repeat(np.arange(len(lengths)), lengths)
    positions = np.arange(len(values)) - np.repeat(starts_of(cells), lengths)
    nothing: Any = b"" if values.dtype == object else 0
    array = np.full((len(lengths), most, *values.shape[1:]), nothing, values.dtype)
    array[examples, positions] = values
    return array


def put_numbers(description: GraphManifest, numeric: Floats, inputs: Arrays) -> None:
    """Copy the columns of `numeric` to their columns of inputs["x"], those that the graph reads."""
    for name, columns in number_columns(description).items():
        if (part := description.inputs.get(name)) is not None:
            inputs["x"][:, part.at : part.end] = numeric[:, columns]


def number_columns(description: GraphManifest) -> dict[str, slice]:
    """By name, the columns of numeric inputs and then of one-hot slots in Encoded.numeric."""
    widths = {name: number.width for name, number in description.numeric.items()}
    widths |= {name: slot.columns for name, slot in description.slots.items() if slot.indicator}
    ends = itertools.accumulate(widths.values())
    return {name: slice(end - widths[name], end) for name, end in zip(widths, ends, strict=True)}


def id_arrays(description: GraphManifest, encoded: Encoded) -> Arrays:
    """The inputs of signature `by_id`, by name: ids int64 [rows, N], lengths int32, float32."""
    columns = number_columns(description)
    of_numbers = {name: encoded.numeric[:, columns[name]] for name in description.numeric}
    return row_arrays(description.signatures.by_id, encoded.cells | encoded.one_hot, of_numbers)


def row_arrays(
    inputs: Iterable[RowInput] | None, cells: Mapping[str, Cells], of_numbers: Mapping[str, Any]
) -> Arrays:
    """The inputs of a signature that looks rows up, of the ids or values of slots, and numbers."""
    arrays: Arrays = {}
    for given in inputs or ():
        if given.holds == "numbers":
            arrays[given.name] = of_numbers[given.of]
            continue
        of_slot = cells[given.of]
        lengths = of_slot.lengths()
        held: Any = of_slot.weights if given.holds == "weights" else of_slot.ids
        if given.holds == "length":
            arrays[given.name] = lengths.astype(np.int32)
        else:
            held = held.view(np.int64) if held.dtype == np.uint64 else held
            arrays[given.name] = padded(held, of_slot, int(lengths.max(initial=0)))
    return arrays
