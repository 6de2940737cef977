"""Which columns of the files a conf reads, and how: as text, ids or numbers."""

from tnctl.schema import Conf, Numeric, Slot


def slot_column(name: str, slot: Slot) -> str:
    """The column that a slot is read from."""
    return slot.column or name


def slot_columns(conf: Conf, name: str, slot: Slot) -> list[str]:
    """Every column that a slot reads itself: its values and their weights, or parts of a cross."""
    if slot.cross is not None:
        return [part for part in slot.cross if part not in conf.slots]
    return [slot_column(name, slot), *([slot.weights] if slot.weights else [])]


def numeric_columns(name: str, numeric: Numeric) -> list[str]:
    """The columns that a numeric input is read from, one unless it has `columns`."""
    return list(numeric.columns) if numeric.columns else [numeric.column or name]


def separators(conf: Conf) -> dict[str, set[str | None]]:
    """Every column that slots and numeric inputs read, and the separators that they split it by."""
    inputs = [(slot_columns(conf, name, slot), slot.separator) for name, slot in conf.slots.items()]
    inputs += [
        (numeric_columns(name, numeric), numeric.separator)
        for name, numeric in conf.numeric.items()
    ]
    by_column: dict[str, set[str | None]] = {}
    for columns, separator in inputs:
        for column in columns:
            by_column.setdefault(column, set()).add(separator)
    return by_column


def columns_read(conf: Conf, labelled: bool = True) -> list[str]:
    """Every column that training needs, each once; without labels: what prediction needs."""
    names, data = list(separators(conf)), conf.data
    if labelled:
        names += [label.column for label in data.all_labels.values()]
        names += [column for column in (data.weight, data.reference, data.group) if column]
    return list(dict.fromkeys(names))


def id_columns(conf: Conf) -> set[str]:
    """The columns whose values become ids by their text: texts and integers, never fractions."""
    names = {conf.data.group} if conf.data.group else set()
    for name, slot in conf.slots.items():
        if slot.cross is not None:
            names |= set(slot_columns(conf, name, slot))
        elif not slot.kind.of_numbers:
            names.add(slot_column(name, slot))
    return names


def text_columns(conf: Conf) -> set[str]:
    """The columns whose text matters: a file that has only text must not parse them as numbers."""
    split = {column for column, by in separators(conf).items() if by != {None}}
    labels = {label.column for label in conf.data.all_labels.values() if label.positive is not None}
    return {*conf.data.carry} | id_columns(conf) | split | labels
