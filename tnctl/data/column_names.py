"""Which columns of the files a conf reads, and how: as text, ids or numbers."""

from collections.abc import Collection, Mapping

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
