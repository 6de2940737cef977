"""`tnctl split-graph rows=inside`: a SavedModel that has the rows, and takes ids or raw values.

It is made of a split graph: its signatures stay, and `by_id` and `by_value` look up and pool what
`by_slot` takes. Plain TensorFlow operations do it, so any server runs it: the hash of a key is
computed in int64, whose products wrap, and found by binary search among the hashes of its group,
which ascend. TensorFlow compares signed integers, so the highest bit of each hash is flipped.

The last hash of a group is the largest of all, and its last row zeros: so a search always ends at
an entry, and an unknown id reads that row.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import numpy as np
import tensorflow as tf

from tnctl import files, system
from tnctl.checkpoint.chain import GOLDEN, Checkpoint
from tnctl.checkpoint.golden_lines import MOST_LINES
from tnctl.data.slot_encoder import Encoder
from tnctl.errors import refuse_if
from tnctl.model.graph import BY_SLOT, concrete, save_module
from tnctl.model.layout import EMBEDDING, LINEAR
from tnctl.progress import say
from tnctl.schema import Conf
from tnctl.serving.golden_checks import GoldenFile
from tnctl.serving.graph.graph_cells import (
    TOP_BIT,
    Cell,
    dtype_of,
    encoders_of,
    given_cell,
    int64,
    kept_ids,
    mix64,
    numbers_of,
    refusal,
    searched,
    value_cell,
)
from tnctl.serving.graph.graph_document import (
    BY_ID,
    BY_VALUE,
    LENGTH,
    OF_LINEAR,
    OF_WEIGHTS,
    GraphManifest,
    InsideRows,
    RowInput,
    Signatures,
    SlotInput,
    conf_of,
    fed_slots,
)
from tnctl.serving.graph.loaded_graph import load_graph
from tnctl.serving.rows.export import export
from tnctl.serving.rows.export_document import ExportManifest
from tnctl.serving.rows.precision import COUNTS, SCALE, Arrays, Precision, RowShape
from tnctl.tables.columns import group_salt
from tnctl.tables.dictionary import Dictionary

HASH_BYTES = 8
LARGEST = np.int64(2**63 - 1)


class GroupRows(tf.Module):
    """The rows of a share group as variables, and one of zeros after them."""

    def __init__(self, group: str, stored: Dictionary) -> None:
        super().__init__()
        precision = cast(Precision, stored.precision)
        shape = RowShape(stored.linear, stored.width, stored.cvm, precision)
        hashes, _, payload = stored.records(0, stored.rows)
        payload = np.append(payload, np.zeros((1, shape.stride), np.uint8), axis=0)
        parts: Arrays = {EMBEDDING: payload.view("<f4")}  # of float32 the whole row
        if precision != "float32":
            fields = payload.view(shape.payload)
            parts = {
                name: fields[name].reshape(len(payload), -1) for name in fields.dtype.names or ()
            }
        ordered = np.append(hashes.view(np.int64) ^ TOP_BIT, LARGEST)
        self.hashes = tf.Variable(ordered, trainable=False, name=f"{group}_hashes")
        self.parts = {
            name: tf.Variable(array, trainable=False, name=f"{group}_{name}")
            for name, array in parts.items()
        }

    def find(self, hashes: Any) -> Any:
        """The rows float32 [B, N, columns] of hashes int64 [B, N], zeros where unknown."""
        places = searched(self.hashes, hashes)
        known = tf.gather(self.hashes, places) == hashes
        places = tf.where(known, places, self.hashes.shape[0] - 1)
        parts = {
            name: tf.cast(tf.gather(part, places), tf.float32) for name, part in self.parts.items()
        }
        if SCALE in parts:
            parts[EMBEDDING] *= parts[SCALE]
        return tf.concat([parts[n] for n in (LINEAR, EMBEDDING, COUNTS) if n in parts], axis=-1)


def factors(cell: Cell) -> Any:
    """What each row is multiplied by, float32 [B, N]: its weight, or 1; 0 where it does not count.

    A weight that does not count may be NaN.
    """
    ones = tf.cast(cell.kept, tf.float32)
    return ones if cell.weights is None else tf.where(cell.kept, cell.weights, 0.0)


def pooled(rows: Any, weights: Any, pooling: str) -> Any:
    """The rows [B, N, columns] of each cell, times weights [B, N], as one: [B, columns].

    docs/formats/embeddings.md.
    """
    total = tf.reduce_sum(rows, axis=1)
    if pooling == "sum":
        return total
    if pooling == "sqrtn":
        divisor = tf.sqrt(tf.reduce_sum(weights * weights, axis=1, keepdims=True))
    else:
        divisor = tf.reduce_sum(weights, axis=1, keepdims=True)
    return tf.where(divisor > 0, tf.math.divide_no_nan(total, divisor), 0.0)


def looked_up(
    slots: Mapping[str, SlotInput], cells: Mapping[str, Cell], groups: Mapping[str, GroupRows]
) -> dict[str, Any]:
    """Of each slot that has rows those of its ids, float32 [B, N, columns], by `factors`."""
    named = {name: slot.group for name, slot in slots.items() if slot.group is not None}
    if not named:
        return {}
    salted = [cells[name].ids ^ int64(group_salt(group)) for name, group in named.items()]
    # Hashed in one go: a graph of small batches takes as long as it has operations.
    hashes = mix64(tf.concat([tf.reshape(ids, [-1]) for ids in salted], axis=0)) ^ TOP_BIT
    parts = tf.split(hashes, [tf.size(ids) for ids in salted], num=len(salted))
    return {
        name: groups[named[name]].find(tf.reshape(part, tf.shape(ids)))
        * factors(cells[name])[:, :, tf.newaxis]
        for name, part, ids in zip(named, parts, salted, strict=True)
    }


def slot_tensors(
    description: GraphManifest,
    cells: Mapping[str, Cell],
    numbers: Mapping[str, Any],
    groups: Mapping[str, GroupRows],
) -> dict[str, Any]:
    """The inputs of signature by_slot, of the cells of slots and the numeric inputs by name."""
    slots = fed_slots(description)
    rows = looked_up(slots, cells, groups)
    given, linears = dict(numbers), {}
    for name, slot in slots.items():
        cell, first = cells[name], int(slot.linear)
        if slot.indicator:
            hot = tf.one_hot(cell.ids, slot.columns) * factors(cell)[:, :, tf.newaxis]
            given[name] = tf.reduce_sum(hot, axis=1)
        elif slot.pooling == "none":
            given[name], linears[name] = rows[name][:, :, first:], rows[name][:, :, 0]
            given[name + LENGTH] = tf.reduce_sum(tf.cast(cell.kept, tf.int32), axis=1)
        else:
            row = pooled(rows[name], factors(cell), slot.pooling)
            given[name], linears[name] = row[:, first:], row[:, :1]
    adds = description.linear.adds
    given |= {name + OF_LINEAR: linears[name] for name in adds if description.signatures.linears}
    if LINEAR in description.inputs:
        given[LINEAR] = sum(tf.reduce_sum(linears[n], axis=1, keepdims=True) for n in adds)
    return {name: given[name] for name in description.inputs}


def inputs_of_rows(
    description: GraphManifest, dtypes: Mapping[str, Any], holds: Any, of_numbers: Any
) -> tuple[tuple[RowInput, ...], str]:
    """The inputs of a signature that looks rows up, and the names that two of them have.

    `dtypes` are of the ids or values (`holds`) of slots, by name, `of_numbers` of numeric inputs.
    """
    inputs: list[RowInput] = []
    for name, dtype in dtypes.items():
        parts: list[tuple[str, Any, Any, Any]] = [
            ("", dtype, (None,), holds),
            (LENGTH, "int32", (), "length"),
        ]
        if name in description.slots and description.slots[name].weights is not None:
            parts.append((OF_WEIGHTS, "float32", (None,), "weights"))
        inputs += [
            RowInput(name=name + end, dtype=kind, shape=shape, of=name, holds=what)
            for end, kind, shape, what in parts
        ]
    inputs += [
        RowInput(name=name, dtype=of_numbers, shape=(number.width,), of=name, holds="numbers")
        for name, number in description.numeric.items()
        if name in description.inputs
    ]
    counts = Counter(given.name for given in inputs)
    return tuple(inputs), ", ".join(sorted(name for name in counts if counts[name] > 1))


def with_rows(description: GraphManifest) -> Signatures:
    """The signatures of a graph that has the rows.

    Without by_value, and with a line that says why, where the graph cannot make ids of values.
    Raises UserError where two inputs of by_id have one name.
    """
    by_id, twice = inputs_of_rows(
        description, dict.fromkeys(fed_slots(description), "int64"), "ids", "float32"
    )
    refuse_if(
        twice,
        f"rows=inside: {twice} would be two inputs of the graph. Rename that slot or number",
    )
    encoders = encoders_of(description)
    slots = {name: of.slot for name, of in encoders.items() if of.slot.cross is None}
    dtypes = {name: dtype_of(slot) for name, slot in slots.items()}
    known = dataclasses.replace(description.signatures, by_id=by_id)
    reason = refusal(description, encoders)
    if reason is None:
        by_value, twice = inputs_of_rows(description, dtypes, "values", "float64")
        if not twice:
            return dataclasses.replace(known, by_value=by_value)
        reason = f"{twice} would be two inputs"
    say(f"no signature by_value: {reason}")
    return known


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
    signatures = with_rows(description)
    with files.TemporaryFolder("rows") as temporary:
        rows = files.join(temporary, "rows")
        content = export(
            checkpoint, conf, rows, encoding="dictionary", precision=precision, golden=MOST_LINES
        )
        assert isinstance(content, ExportManifest)  # not of a server
        read = {slot.group for slot in fed_slots(description).values()}
        groups = [entry for entry in content.groups if entry.group in read]
        needed = sum((entry.rows + 1) * (HASH_BYTES + entry.shape.stride) for entry in groups)
        # TensorFlow has them twice while they are written, and again where they are checked.
        system.require(needed, 2 * needed, "a graph with the rows inside")
        inside = InsideRows(
            precision=precision,
            groups={entry.group: entry.rows for entry in groups},
            bytes=needed,
            dictionary_bytes=sum(content.files[name].bytes for g in groups for name in g.names),
        )
        description = dataclasses.replace(
            description,
            version=max(description.version, GraphManifest.WITH_ROWS),
            signatures=signatures,
            golden=content.golden,
            rows=inside,
        )
        save_with_rows(folder, to, description, rows)
        golden = Path(rows, GOLDEN)
        return description, (
            GoldenFile(str(golden), golden.read_bytes()) if content.golden else None
        )


def save_with_rows(folder: str, to: str, description: GraphManifest, rows: str) -> None:
    """Write the SavedModel in `folder` with the signatures that `description` has into `to`.

    `rows` is the folder of an export as dictionaries.
    """
    module = tf.Module()
    module.dense, module.groups = load_graph(folder), {}
    assert description.rows is not None
    for name in description.rows.groups:
        with closing(Dictionary(f"{rows}/{name}.dictionary")) as stored:
            module.groups[name] = GroupRows(name, stored)
    dense, encoders = module.dense.signatures, encoders_of(description)
    data = conf_of(description)[0].data

    def by_id(**inputs: Any) -> Any:
        return scores(lambda encoder: given_cell(encoder, inputs), inputs)

    def by_value(**inputs: Any) -> Any:
        numbers = {
            name: numbers_of(number, data, inputs[name])
            for name, number in description.numeric.items()
            if name in description.inputs
        }
        return scores(lambda encoder: value_cell(encoder.name, encoders, inputs), numbers)

    def scores(cell: Callable[[Encoder], Cell], numbers: Mapping[str, Any]) -> Any:
        cells = {
            name: kept_ids(encoders[name], cell(encoders[name])) for name in fed_slots(description)
        }
        return dense[BY_SLOT](**slot_tensors(description, cells, numbers, module.groups))

    functions = {BY_ID: by_id, BY_VALUE: by_value}
    of_rows = {
        name: concrete(functions[name], inputs)
        for name, inputs in description.signatures.with_rows.items()
    }
    save_module(module, to, {**dense, **of_rows})
