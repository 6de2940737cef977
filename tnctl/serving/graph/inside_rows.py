"""`tnctl split-graph rows=inside`: a SavedModel that has the rows, and takes ids or raw values.

It is made of a split graph: its signatures stay, and `by_id` and `by_value` look up and pool what
`by_slot` takes. Plain TensorFlow operations do it, so any server runs it: the hash of a key is
computed in int64, whose products wrap, and found by binary search among the hashes of its group,
which ascend. TensorFlow compares signed integers, so the highest bit of each hash is flipped.

The last hash of a group is the largest of all, and its last row zeros: so a search always ends at
an entry, and an unknown id reads that row.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tnctl import system
from tnctl.checkpoint.chain import Checkpoint
from tnctl.errors import Failure, refuse_if
from tnctl.model.graph import BY_SLOT, save_module
from tnctl.model.layout import EMBEDDING, LINEAR
from tnctl.progress import say
from tnctl.schema import Conf
from tnctl.serving.graph import value_cells
from tnctl.serving.graph.graph_document import (
    BY_ID,
    BY_VALUE,
    LENGTH,
    OF_LINEAR,
    OF_WEIGHTS,
    GraphManifest,
    InsideRows,
    RowInput,
    SlotInput,
    fed_slots,
)
from tnctl.serving.graph.id_cells import (
    TOP_BIT,
    Cell,
    as_int64,
    given_cell,
    kept_ids,
    mix64,
)
from tnctl.serving.graph.loaded_graph import load_graph
from tnctl.serving.rows.precision import (
    COUNTS,
    SCALE,
    Arrays,
    LookedUp,
    Payloads,
    Precision,
    RowShape,
    Uint64s,
    decode,
    encode,
)
from tnctl.serving.rows.row_formats import hashes_of
from tnctl.serving.rows.selection import SelectedGroup, Wanted, select
from tnctl.tables.columns import group_salt

HASH_BYTES = 8
INDEX_BYTES = 1.5  # of a row in the index of a dictionary
LARGEST = np.uint64(2**64 - 1)


class StoredGroup:
    """The rows of a share group in memory, and one of zeros: hashes ascend, [rows + 1]."""

    def __init__(self, group: SelectedGroup) -> None:
        self.name, self.shape, self.rows = group.name, group.shape, group.rows
        self.hashes = np.full(group.rows + 1, LARGEST)
        self.payload: Payloads = np.zeros((group.rows + 1, group.shape.stride), np.uint8)

    def lookup(self, ids: Uint64s) -> LookedUp:
        """Rows float32 [n, columns] of ids [n], zeros where unknown; and which are known."""
        hashes = hashes_of(self.name, ids)
        places = np.searchsorted(self.hashes[: self.rows], hashes)
        known = self.hashes[places] == hashes
        known &= places < self.rows
        return decode(self.payload[np.where(known, places, self.rows)], self.shape), known

    def arrays(self) -> Arrays:
        """What the graph keeps as variables: `hashes` int64 [rows + 1], parts of rows by name.

        `exact` float32 [rows + 1, columns] has all that is not rounded: the row itself, or of lower
        precision linear weight, counts and scale; `embedding` [rows + 1, width] the rest.
        """
        hashes = (self.hashes ^ np.uint64(2**63)).view(np.int64)
        if self.shape.precision == "float32":
            return {"hashes": hashes, "exact": self.payload.view("<f4")}
        stored = self.payload.view(self.shape.payload)[:, 0]
        exact = [
            stored[name].reshape(len(stored), -1)
            for name in (LINEAR, COUNTS, SCALE)
            if name in (stored.dtype.names or ())
        ]
        parts = {"exact": np.concatenate(exact, axis=1)} if exact else {}
        return {"hashes": hashes, **parts} | (
            {EMBEDDING: stored[EMBEDDING]} if self.shape.width else {}
        )


class StoredRows:
    """All rows of a checkpoint in memory, in a precision; what `check_embeddings` looks up.

    Raises Failure when there is no memory for them, and for weights that the precision cannot hold.
    """

    def __init__(self, checkpoint: Checkpoint, conf: Conf, precision: Precision) -> None:
        selection = select(checkpoint, conf.slots, Wanted(precision=precision))
        self.precision = precision
        needed = sum(map(bytes_of, selection.groups))
        # TensorFlow copies them into variables, and the checked graph is loaded beside these.
        system.require(needed, 2 * needed, "a graph with the rows inside")
        self.stored = {group.name: StoredGroup(group) for group in selection.groups}
        self.groups: dict[str, RowShape] = {
            name: group.shape for name, group in self.stored.items()
        }
        ends = dict.fromkeys(self.stored, 0)
        for part in selection.parts():
            group, first = self.stored[part.group.name], ends[part.group.name]
            ends[part.group.name] = end = first + len(part.ids)
            group.hashes[first:end] = part.hashes
            group.payload[first:end] = encode(part.rows, group.shape)
        for name, group in self.stored.items():
            refuse_if(
                ends[name] != group.rows,
                f"group {name} has {ends[name]:,} rows, and {group.rows:,} were expected. Take "
                "another checkpoint",
                Failure,
            )

    @property
    def exact(self) -> bool:
        """Whether rows are the trainer's own."""
        return self.precision == "float32"

    def lookup(self, group: str, ids: Uint64s) -> LookedUp:
        """Rows float32 [n, columns] of ids of a group, zeros where unknown; which are known."""
        return self.stored[group].lookup(ids)


def bytes_of(group: SelectedGroup) -> int:
    """The bytes of a group's variables."""
    return (group.rows + 1) * (HASH_BYTES + group.shape.stride)


def with_rows(description: GraphManifest, rows: StoredRows) -> GraphManifest:
    """serving.json of a graph, as it is with the rows inside.

    Raises UserError where two of its inputs have one name.
    """
    stored = [rows.stored[name] for name in groups_read(description)]
    return dataclasses.replace(
        description,
        version=GraphManifest.VERSION,
        signatures=dataclasses.replace(
            description.signatures,
            by_id=id_inputs(description),
            by_value=value_inputs(description),
        ),
        rows=InsideRows(
            precision=rows.precision,
            groups={group.name: group.rows for group in stored},
            bytes=sum(group.hashes.nbytes + group.payload.nbytes for group in stored),
            dictionary_bytes=sum(map(dictionary_bytes, stored)),
        ),
    )


def groups_read(description: GraphManifest) -> list[str]:
    """The share groups of the slots that a graph reads."""
    slots = fed_slots(description).values()
    return list(dict.fromkeys(slot.group for slot in slots if slot.group is not None))


def dictionary_bytes(group: StoredGroup) -> int:
    """About how many bytes the same rows have as a dictionary, with its index."""
    return int(group.rows * (HASH_BYTES + group.shape.stride + INDEX_BYTES))


class GroupRows(tf.Module):
    """The rows of a share group as variables."""

    def __init__(self, group: StoredGroup) -> None:
        super().__init__()
        self._shape, self._unknown = group.shape, group.rows
        parts = {
            name: tf.Variable(array, trainable=False, name=f"{group.name}_{name}")
            for name, array in group.arrays().items()
        }
        self.hashes, self.parts = parts.pop("hashes"), parts

    def find(self, hashes: Any, kept: Any) -> Any:
        """The rows float32 [n, columns] of hashes int64 [n], zeros where unknown or not kept."""
        places = tf.searchsorted(self.hashes, hashes, out_type=tf.int64)
        known = (tf.gather(self.hashes, places) == hashes) & kept
        places = tf.where(known, places, self._unknown)
        parts = {name: tf.gather(part, places) for name, part in self.parts.items()}
        shape = self._shape
        if shape.precision == "float32" or not shape.width:
            return parts["exact"]
        embedding, exact = tf.cast(parts[EMBEDDING], tf.float32), parts.get("exact")
        if exact is None:
            return embedding
        if shape.scaled:
            embedding *= exact[:, -1:]
        first = int(shape.linear)
        counts = exact[:, first : first + shape.counts]
        return tf.concat([exact[:, :first], embedding, counts], axis=1)


def factors(cell: Cell) -> Any:
    """What each row is multiplied by, float32 [B, N]: its weight, or 1; 0 where it does not count.

    A weight that does not count may be NaN.
    """
    ones = tf.cast(cell.kept, tf.float32)
    return ones if cell.weights is None else tf.where(cell.kept, cell.weights, 0.0)


def pooled(rows: Any, cell: Cell, pooling: str) -> Any:
    """The rows [B, N, columns] of each cell as one, [B, columns]: docs/formats/embeddings.md."""
    weights = factors(cell)
    total = tf.reduce_sum(
        rows if cell.weights is None else rows * weights[:, :, tf.newaxis], axis=1
    )
    if pooling == "sum":
        return total
    if pooling == "sqrtn":
        divisor = tf.sqrt(tf.reduce_sum(weights * weights, axis=1, keepdims=True))
    else:
        divisor = tf.reduce_sum(weights, axis=1, keepdims=True)
    positive = divisor > 0
    return tf.where(positive, total / tf.where(positive, divisor, 1.0), 0.0)


def looked_up(
    slots: Mapping[str, SlotInput], cells: Mapping[str, Cell], groups: Mapping[str, GroupRows]
) -> dict[str, Any]:
    """Of each slot the rows float32 [B, N, columns] of its ids. A group is searched once."""
    names = sorted(slots, key=lambda name: slots[name].group or "")
    if not names:
        return {}
    flat = {name: tf.reshape(cells[name].ids, [-1]) for name in names}
    salted = [flat[name] ^ as_int64(group_salt(slots[name].group or "")) for name in names]
    hashes = mix64(tf.concat(salted, axis=0)) ^ TOP_BIT
    kept = tf.concat([tf.reshape(cells[name].kept, [-1]) for name in names], axis=0)
    sizes = {name: tf.size(flat[name]) for name in names}
    rows: dict[str, Any] = {}
    first = tf.constant(0)
    for group in dict.fromkeys(slots[name].group for name in names):
        members = [name for name in names if slots[name].group == group]
        end = first + tf.add_n([sizes[name] for name in members])
        of_group = groups[group or ""].find(hashes[first:end], kept[first:end])
        parts = tf.split(of_group, tf.stack([sizes[name] for name in members]))
        for name, part in zip(members, parts, strict=True):
            shape = tf.concat([tf.shape(cells[name].ids), [part.shape[1]]], axis=0)
            rows[name] = tf.reshape(part, shape)
        first = end
    return rows


def slot_tensors(
    description: GraphManifest,
    cells: Mapping[str, Cell],
    numbers: Mapping[str, Any],
    groups: Mapping[str, GroupRows],
) -> dict[str, Any]:
    """The inputs of signature by_slot, of the cells of slots and the numeric inputs by name."""
    slots = {name: slot for name, slot in description.slots.items() if name in cells}
    cells = {name: kept_ids(slot, cells[name]) for name, slot in slots.items()}
    rows = looked_up({n: slot for n, slot in slots.items() if slot.has_rows}, cells, groups)
    given, linears = dict(numbers), {}
    for name, cell in cells.items():
        slot, first = slots[name], int(slots[name].linear)
        if slot.indicator:
            hot = tf.one_hot(tf.where(cell.kept, cell.ids, -1), slot.columns)
            given[name] = tf.reduce_sum(hot * factors(cell)[:, :, tf.newaxis], axis=1)
        elif slot.pooling == "none":
            given[name], linears[name] = rows[name][:, :, first:], rows[name][:, :, 0]
            given[name + LENGTH] = tf.reduce_sum(tf.cast(cell.kept, tf.int32), axis=1)
        else:
            row = pooled(rows[name], cell, slot.pooling)
            given[name], linears[name] = row[:, first:], row[:, :1]
    adds = description.linear.adds
    given |= {name + OF_LINEAR: linears[name] for name in adds if description.signatures.linears}
    if LINEAR in description.inputs:
        total = tf.zeros_like(linears[adds[0]][:, :1])
        for name in adds:
            total += tf.reduce_sum(linears[name], axis=1, keepdims=True)
        given[LINEAR] = total
    return {name: given[name] for name in description.inputs}


def id_inputs(description: GraphManifest) -> tuple[RowInput, ...]:
    """The inputs of signature by_id. Raises UserError where two have one name."""
    inputs = []
    for name, slot in fed_slots(description).items():
        inputs += slot_row_inputs(name, slot, "int64", "ids")
    inputs += number_inputs(description, "float32")
    twice = doubles(inputs)
    refuse_if(
        twice,
        f"rows=inside: {', '.join(twice)} would be two inputs of the graph. Rename that slot or "
        "number",
    )
    return tuple(inputs)


def value_inputs(description: GraphManifest) -> tuple[RowInput, ...] | None:
    """The inputs of signature by_value; None, and a line that says why, where there is none."""
    inputs: list[RowInput] = []
    reason = value_cells.refusal(description)
    if reason is None:
        for name, slot in value_cells.value_slots(description).items():
            inputs += slot_row_inputs(name, slot, value_cells.dtype_of(slot), "values")
        inputs += number_inputs(description, "float64")
        if twice := doubles(inputs):
            reason = f"{', '.join(twice)} would be two inputs"
    if reason is not None:
        say(f"no signature by_value: {reason}")
    return tuple(inputs) if reason is None else None


def slot_row_inputs(name: str, slot: SlotInput, dtype: Any, holds: Any) -> list[RowInput]:
    """The inputs that a slot is given as: its ids or values, how many there are, weights."""
    inputs = [
        RowInput(name=name, dtype=dtype, shape=(None,), of=name, holds=holds),
        RowInput(name=name + LENGTH, dtype="int32", shape=(), of=name, holds="length"),
    ]
    if slot.weights is not None:
        weights = RowInput(
            name=name + OF_WEIGHTS, dtype="float32", shape=(None,), of=name, holds="weights"
        )
        inputs.append(weights)
    return inputs


def number_inputs(description: GraphManifest, dtype: Any) -> list[RowInput]:
    """The numeric inputs that the graph reads."""
    return [
        RowInput(name=name, dtype=dtype, shape=(number.width,), of=name, holds="numbers")
        for name, number in description.numeric.items()
        if name in description.inputs
    ]


def doubles(inputs: list[RowInput]) -> list[str]:
    """The names that several inputs have."""
    names = [given.name for given in inputs]
    return sorted({name for name in names if names.count(name) > 1})


def add_rows(folder: str, to: str, description: GraphManifest, rows: StoredRows) -> None:
    """Write the SavedModel in `folder`, which `description` describes, with rows into `to`.

    `description` has the inputs of the signatures that are added.
    """
    module = tf.Module()
    module.dense = load_graph(folder)
    module.groups = {name: GroupRows(rows.stored[name]) for name in groups_read(description)}
    dense = module.dense.signatures
    signatures = {name: dense[name] for name in dense}

    def by_id(**inputs: Any) -> dict[str, Any]:
        slots = fed_slots(description)
        cells = {name: given_cell(name, slots[name], inputs, inputs[name]) for name in slots}
        return scores(cells, inputs)

    def by_value(**inputs: Any) -> dict[str, Any]:
        values = value_cells.Values(description, inputs)
        cells = {name: values.cell(name) for name in fed_slots(description)}
        read = [name for name in description.numeric if name in description.inputs]
        return scores(cells, {name: values.numbers(name) for name in read})

    def scores(cells: Mapping[str, Cell], numbers: Mapping[str, Any]) -> dict[str, Any]:
        given = slot_tensors(description, cells, numbers, module.groups)
        outputs: dict[str, Any] = dense[BY_SLOT](**given)
        return outputs

    functions = {BY_ID: by_id, BY_VALUE: by_value}
    for name, inputs in description.signatures.with_rows.items():
        specs = {
            given.name: tf.TensorSpec([None, *given.shape], given.dtype, given.name)
            for given in inputs
        }
        traced = tf.function(functions[name], autograph=False)
        signatures[name] = traced.get_concrete_function(**specs)
    save_module(module, to, signatures)
