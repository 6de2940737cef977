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
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, cast

import numpy as np
import tensorflow as tf

from tnctl import files, system
from tnctl.checkpoint.chain import GOLDEN, Checkpoint
from tnctl.checkpoint.golden_lines import MOST_LINES
from tnctl.errors import refuse_if
from tnctl.model.graph import BY_SLOT, save_module
from tnctl.model.layout import EMBEDDING, LINEAR
from tnctl.progress import say
from tnctl.schema import Conf
from tnctl.serving.golden_checks import GoldenFile
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
from tnctl.serving.rows.export import export
from tnctl.serving.rows.precision import COUNTS, SCALE, Arrays, Precision, RowShape
from tnctl.tables.columns import group_salt
from tnctl.tables.dictionary import Dictionary

HASH_BYTES = 8
LARGEST = np.int64(2**63 - 1)


def groups_read(description: GraphManifest) -> list[str]:
    """The share groups of the slots that a graph reads."""
    slots = fed_slots(description).values()
    return list(dict.fromkeys(slot.group for slot in slots if slot.group is not None))


def variables_of(stored: Dictionary) -> tuple[RowShape, Arrays]:
    """The rows of a dictionary as the graph has them, and one of zeros after them.

    `hashes` int64 [rows + 1]; `exact` float32 [rows + 1, columns], which has all that is not
    rounded: the row itself, or of lower precision linear weight, counts and scale; of lower
    precision `embedding` [rows + 1, width].
    """
    shape = RowShape(stored.linear, stored.width, stored.cvm, cast(Precision, stored.precision))
    hashes, _, payload = stored.records(0, stored.rows)
    payload = np.append(payload, np.zeros((1, shape.stride), np.uint8), axis=0)
    arrays = {"hashes": np.append(hashes.view(np.int64) ^ TOP_BIT, LARGEST)}
    if shape.precision == "float32":
        return shape, arrays | {"exact": payload.view("<f4")}
    fields = payload.view(shape.payload)[:, 0]
    names = [name for name in (LINEAR, COUNTS, SCALE) if name in (fields.dtype.names or ())]
    if names:
        exact = [fields[name].reshape(len(fields), -1) for name in names]
        arrays["exact"] = np.concatenate(exact, axis=1)
    if shape.width:
        arrays[EMBEDDING] = fields[EMBEDDING]
    return shape, arrays


class GroupRows(tf.Module):
    """The rows of a share group as variables."""

    def __init__(self, group: str, stored: Dictionary) -> None:
        super().__init__()
        self._shape, arrays = variables_of(stored)
        self._unknown = stored.rows
        parts = {
            name: tf.Variable(array, trainable=False, name=f"{group}_{name}")
            for name, array in arrays.items()
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


def add_rows(
    checkpoint: Checkpoint,
    conf: Conf,
    description: GraphManifest,
    folder: str,
    to: str,
    precision: Precision,
) -> tuple[GraphManifest, GoldenFile | None]:
    """Write the SavedModel in `folder` with all rows of its checkpoint into `to`.

    Returns serving.json as it is then, with `golden` of the rows, and their golden rows. Raises
    Failure when there is no memory for the rows, UserError where two inputs would have one name.
    """
    names = groups_read(description)
    given = dataclasses.replace(
        description.signatures, by_id=id_inputs(description), by_value=value_inputs(description)
    )
    with files.TemporaryFolder("rows") as temporary, ExitStack() as stack:
        exported = files.join(temporary, "rows")
        content = export(
            checkpoint,
            conf,
            exported,
            encoding="dictionary",
            precision=precision,
            golden=MOST_LINES,
        )
        entries = [entry for entry in content.groups if entry.group in names]
        paths = {entry.group: f"{exported}/{entry.group}" for entry in entries}
        stored = {
            name: stack.enter_context(closing(Dictionary(f"{path}.dictionary")))
            for name, path in paths.items()
        }
        needed = sum((group.rows + 1) * (HASH_BYTES + group.stride) for group in stored.values())
        # TensorFlow has them twice while they are written, and again where they are checked.
        system.require(needed, 2 * needed, "a graph with the rows inside")
        sizes = [
            Path(path + suffix).stat().st_size
            for path in paths.values()
            for suffix in (".dictionary", ".index")
        ]
        description = dataclasses.replace(
            description,
            version=GraphManifest.VERSION,
            signatures=given,
            golden=content.golden,
            rows=InsideRows(
                precision=precision,
                groups={name: group.rows for name, group in stored.items()},
                bytes=needed,
                dictionary_bytes=sum(sizes),
            ),
        )
        save_with_rows(folder, to, description, stored)
        golden = Path(exported, GOLDEN)
        read = GoldenFile(str(golden), golden.read_bytes()) if content.golden else None
    return description, read


def save_with_rows(
    folder: str, to: str, description: GraphManifest, stored: Mapping[str, Dictionary]
) -> None:
    """Write the SavedModel in `folder` with the signatures that `description` has into `to`."""
    module = tf.Module()
    module.dense = load_graph(folder)
    module.groups = {name: GroupRows(name, group) for name, group in stored.items()}
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
