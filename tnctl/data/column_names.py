"""Which columns of the files a conf reads, and how: as text, ids or numbers."""

from collections.abc import Collection, Mapping

from tnctl.schema import Conf, Data, Label, Numeric, Slot


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
    """The columns that a numeric input is read from, one unless it has `columns`."""
    return list(numeric.columns) if numeric.columns else [numeric.column or name]


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


def id_columns(slots: Mapping[str, Slot], data: Data | None = None) -> set[str]:
    """The columns whose values become ids by their text: texts and integers, never fractions.

    With `data` also the columns of data.group and data.split.by, whose values are hashed too.
    """
    hashed = (data.group, data.split.column) if data else ()
    names = {column for column in hashed if column}
    for name, slot in slots.items():
        if slot.cross is not None:
            names |= set(slot_columns(name, slot, slots))
        elif not slot.kind.of_numbers:
            names.add(slot_column(name, slot))
    return names


def text_columns(conf: Conf) -> set[str]:
    """The columns whose text matters: a file that has only text must not parse them as numbers."""
    by_column, data = separators(conf.slots, conf.numeric), conf.data
    split = {column for column, by in by_column.items() if by != {None}}
    labels = {label.column for label in data.all_labels.values() if label.positive is not None}
    return {*data.carry} | id_columns(conf.slots, data) | split | labels
