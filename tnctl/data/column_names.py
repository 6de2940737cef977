"""Which columns of the files a conf reads, how, and the paths to columns within columns.

A path is names with dots between them. A name leads into a struct, also through lists: of a list of
structs it is the list of this field. `key` and `value` of a map are the lists of its keys and
values. Into a column that is null throughout, as pandas gives one without rows, it is null. A
column whose own name has dots is meant before any path.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tnctl.data import numbers
from tnctl.data.file_pieces import require
from tnctl.errors import Failure, did_you_mean, shortened
from tnctl.schema import Conf, Data, Label, Numeric, Slot, time_columns


def slot_column(name: str, slot: Slot) -> str:
    """The column that a slot is read from."""
    return slot.column or name


def slot_columns(name: str, slot: Slot, slots: Collection[str]) -> list[str]:
    """Every column that a slot reads itself: its values and their weights, or parts of a cross.

    `slots` are the names of all slots: a part of a cross that is none of them is a column.
    """
    if slot.cross is not None:
        return [part for part in slot.cross if part not in slots]
    return [slot_column(name, slot), *([slot.weights] if slot.weights else [])]


def numeric_columns(name: str, numeric: Numeric) -> list[str]:
    """Every column that a numeric input reads: its values, and a time that they are after."""
    return value_columns(name, numeric) + (
        [numeric.since_column] if numeric.since_column is not None else []
    )


def value_columns(name: str, numeric: Numeric) -> list[str]:
    """The columns of a numeric input's values, one unless it has `columns`."""
    return list(numeric.columns) if numeric.columns else [numeric.column or name]


def takes_fractions(name: str, slot: Slot, data: Data) -> bool:
    """Whether the values of a slot are numbers of any kind; else they are texts or integers."""
    if slot.kind.of_times:
        return data.time_of(slot_column(name, slot)).is_number
    return slot.kind.of_numbers


def separators(
    slots: Mapping[str, Slot], numeric: Mapping[str, Numeric]
) -> dict[str, set[str | None]]:
    """Every column that slots and numeric inputs read, and the separators that they split it by."""
    inputs = [(slot_columns(name, slot, slots), slot.separator) for name, slot in slots.items()]
    inputs += [(numeric_columns(name, n), n.separator) for name, n in numeric.items()]
    by_column: dict[str, set[str | None]] = {}
    for columns, separator in inputs:
        for column in columns:
            by_column.setdefault(column, set()).add(separator)
    return by_column


def columns_read(conf: Conf, labelled: bool = True) -> list[str]:
    """Every column that training needs, each once; without labels: what prediction needs."""
    names, data = list(separators(conf.slots, conf.numeric)), conf.data
    if labelled:
        names += [label.column for label in data.all_labels.values()]
        names += [column for column in (data.weight, data.reference, data.group) if column]
    return list(dict.fromkeys(names))


def ways_of_labels(data: Data) -> dict[str, str]:
    """The column of each label that is a number, and the way out of a text that is none."""
    return {
        label.column: way_of_label(key)
        for key, label in label_keys(data).items()
        if label.positive is None
    }


def label_keys(data: Data) -> dict[str, Label]:
    """Every label by the key of the conf that describes it."""
    if not data.labels:
        return {"data.label": data.label}
    return {f"data.labels.{name}": label for name, label in data.labels.items()}


def way_of_label(key: str) -> str:
    """The way out of a text in the column of the label that `key` describes."""
    return (
        f"For a label of texts, name those that count as 1: {key}.positive=[yes]. Else mend or "
        "remove the row"
    )


def id_columns(conf: Conf, hashed: bool = True) -> set[str]:
    """The columns of ids, and of times as text: texts and integers, never fractions.

    With `hashed` also those of data.group and data.split.by, whose values are hashed too.
    """
    slots, data = conf.slots, conf.data
    names = {name for name in (data.group, data.split.column) if name and hashed}
    for name, slot in slots.items():
        if slot.cross is not None:
            names |= set(slot_columns(name, slot, slots))
        elif not takes_fractions(name, slot, data):
            names.add(slot_column(name, slot))
    of_times = time_columns(slots, conf.numeric)
    return names | {column for column in of_times if not data.time_of(column).is_number}


def text_columns(conf: Conf) -> set[str]:
    """The columns whose text matters: a file that has only text must not parse them as numbers."""
    by_column, data = separators(conf.slots, conf.numeric), conf.data
    split = {column for column, by in by_column.items() if by != {None}}
    labels = {label.column for label in data.all_labels.values() if label.positive is not None}
    return {*data.carry} | id_columns(conf) | split | labels


# ---- Columns within columns of Arrow: fields of structs, keys and values of maps, by path

DOT = "."
KEY, VALUE = "key", "value"
DEEPEST = 32  # structs within structs
LONGEST_KIND = 80  # characters of a type in a message


def paths_of(schema: pa.Schema) -> list[str]:
    """The columns of a file; instead of structs, lists of them and maps, all that is in them."""
    return [path for field in schema for path in _paths(field.name, field.type, DEEPEST)]


def _paths(start: str, kind: pa.DataType, depth: int) -> list[str]:
    fields = _fields_of(_without_lists(kind)) if depth else {}
    if not fields:
        return [start]
    return [
        path
        for name, inner in fields.items()
        for path in _paths(f"{start}{DOT}{name}", inner, depth - 1)
    ]


def columns_of(needed: Iterable[str], names: Sequence[str]) -> list[str]:
    """The columns that paths start from, each once; a path itself where there is none."""
    return list(dict.fromkeys(_column(path, names) for path in needed))


def require_paths(url: str, needed: Sequence[str], schema: pa.Schema) -> None:
    """Refuse a file that lacks a column or field, naming the nearest one it has."""
    require(url, columns_of(needed, schema.names), schema.names)
    for path in needed:
        column = _column(path, schema.names)
        kind = schema.field(column).type
        for name in _fields(path, column):
            kind, fields = _without_lists(kind), _fields_of(_without_lists(kind))
            if pt.is_null(kind):
                break
            if name not in fields:
                shown = shortened(str(kind), LONGEST_KIND)
                way = did_you_mean(name, fields) if fields else "Name the column alone"
                raise Failure(f"{url} has no column '{path}': '{column}' is {shown}. {way}")
            kind = fields[name]


def stored_columns(needed: Iterable[str], schema: pa.Schema) -> list[str]:
    """What is read for paths: columns and fields of structs, none of them within another.

    Fields within lists and maps are read with all others.
    """
    stored = set[str]()
    for path in needed:
        at = _column(path, schema.names)
        kind = schema.field(at).type
        for name in _fields(path, at):
            if not pt.is_struct(kind):
                break
            kind, at = _fields_of(kind)[name], f"{at}{DOT}{name}"
        stored.add(at)
    return [
        path for path in sorted(stored) if not any(path.startswith(f"{o}{DOT}") for o in stored)
    ]


def selected(batch: pa.RecordBatch, needed: Sequence[str]) -> pa.Table:
    """The columns and fields `needed` of a batch that has them, each under its path.

    Lists in lists are joined: their values are those of the row.
    """
    names, arrays = batch.schema.names, []
    for path in needed:
        column = _column(path, names)
        arrays.append(_joined(_at(batch.column(column), _fields(path, column))))
    return pa.Table.from_arrays(arrays, names=list(needed))


def _joined(array: pa.Array) -> pa.Array:
    if not numbers.has_values(array.type) or not numbers.has_values(array.type.value_type):
        return array
    values, lengths = numbers.listed(array)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    while numbers.has_values(values.type):
        values, inner = numbers.listed(values)
        ends = np.concatenate([[0], np.cumsum(inner)])[ends]
    return pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), values, mask=array.is_null())


def _column(path: str, names: Sequence[str]) -> str:
    """The column that a path starts from; the path itself where there is none."""
    parts = path.split(DOT)
    starts = (DOT.join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((start for start in starts if start in names), path)


def _fields(path: str, column: str) -> Sequence[str]:
    return path[len(column) + 1 :].split(DOT) if len(path) > len(column) else ()


def _without_lists(kind: pa.DataType) -> pa.DataType:
    while numbers.has_values(kind):
        kind = kind.value_type
    return kind


def _fields_of(kind: pa.DataType) -> dict[str, pa.DataType]:
    if pt.is_map(kind):
        return {KEY: kind.key_type, VALUE: kind.item_type}
    return {field.name: field.type for field in kind} if pt.is_struct(kind) else {}


def _at(array: pa.Array, fields: Sequence[str]) -> pa.Array:
    kind = array.type
    if not fields or pt.is_null(kind):
        return array
    if pt.is_struct(kind):
        return _at(pc.struct_field(array, [fields[0]]), fields[1:])
    if pt.is_map(kind):
        values = array.keys if fields[0] == KEY else array.items
        return _list(array, values, fields[1:])
    if not (pt.is_list(kind) or pt.is_large_list(kind)):
        array = array.cast(pa.large_list(kind.value_type))
    return _list(array, array.values, fields)


def _list(array: pa.Array, values: pa.Array, fields: Sequence[str]) -> pa.Array:
    """The lists of an array or map [n], each value replaced by what is in its `fields`."""
    first, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
    within = _at(values.slice(first, end - first), fields)
    offsets = pc.subtract(array.offsets, array.offsets[0])
    make = pa.LargeListArray if pt.is_int64(offsets.type) else pa.ListArray
    return make.from_arrays(offsets, within, mask=array.is_null() if array.null_count else None)
