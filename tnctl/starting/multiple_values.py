"""Texts that hold several values: what separates them."""

import json
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tnctl.starting.column_figures import Figures, of_values

# The first are rarely a part of a value; those after need more to show that they separate.
SURE, UNSURE = ("|", ";", "\x02", "\x03"), (",", " ", ":", "/")
LEAST_SHARE = 0.02  # of the values that have the separator
ROWS_TRIED = 20_000
SEVERAL_LENGTHS = 3  # that lists of codes have, where few codes come again
CODE = re.compile(r"[A-Za-z_]{0,12}-?\d+|[0-9a-fA-F]{6,}")
NUMBER = re.compile(r"[+-]?\d*\.?\d+([eE][+-]?\d+)?")
TIME = re.compile(r"\d{1,4}[-/:]\d{1,2}([-/: T].*)?")
URL = re.compile(r"[a-z]+://|www\.|^/")
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")


def separator_of(column: Figures) -> str | None:
    """What separates the values of a column of text, None where a text is one value.

    The texts are those of rows from the first to the last: the most frequent texts may all be
    lists of one value.
    """
    if column.form != "text" or column.lengths is not None or column.number_share > 0.95:
        return None
    filled = column.codes[column.codes >= 0]
    places = np.linspace(0, len(filled) - 1, min(ROWS_TRIED, len(filled))).astype(np.int64)
    texts = column.values.take(pa.array(np.unique(filled[places])))
    values = [str(text) for text in texts.to_pylist()]
    if not values:
        return None
    if sum(_is_json_list(value) for value in values) > 0.9 * len(values):
        return "json"
    if sum(bool(TIME.fullmatch(value) or URL.search(value)) for value in values) > len(values) / 2:
        return None
    for sign in (*SURE, *UNSURE):
        if _separates(sign, values):
            return sign
    return None


def _is_json_list(value: str) -> bool:
    if not (value.startswith("[") and value.endswith("]")):
        return False
    try:
        values = json.loads(value)
    except (ValueError, RecursionError):
        return False
    return isinstance(values, list) and not any(isinstance(v, list | dict) for v in values)


def _separates(sign: str, values: list[str]) -> bool:
    """Whether texts are made of few parts that come again with other parts."""
    having = [value for value in values if sign in value]
    if len(having) < max(2, LEAST_SHARE * len(values)):
        return False
    lists = [[part.strip() for part in value.split(sign)] for value in having]
    parts = [part for parts in lists for part in parts if part]
    distinct = set(parts)
    numeric = [bool(NUMBER.fullmatch(part)) for part in parts]
    if sign in (*SURE, " ") and parts and all(numeric) and any("." in part for part in parts):
        return len(having) > 0.5 * len(values)  # a vector, or the weights of other values
    codes = sum(bool(CODE.fullmatch(part)) for part in parts) > 0.95 * len(parts)
    lengths = {len(part_list) for part_list in lists}
    if codes and len(lengths) >= SEVERAL_LENGTHS and sign in (*SURE, ","):
        return True
    if not parts or len(distinct) > 0.5 * len(parts):
        return False
    alone = [value for value in values if sign not in value]
    known = sum(value in distinct for value in alone) >= 0.5 * len(alone)
    several = len(lengths) > 1 or bool(alone)
    if sign in SURE:
        return known or len(alone) < 0.2 * len(values)
    if sign == ",":
        return several and known and len(distinct) < len(set(having)) * 2
    return several and codes and (known or sign == " ")


def has_decimal_commas(column: Figures) -> bool:
    """Whether nearly all of its texts are numbers, some with a comma, as Europeans write them."""
    if column.form != "text" or not column.distinct:
        return False
    texts = [text.strip('"') for text in column.texts()]  # tab-separated files keep quotes
    commas = np.array([bool(DECIMAL_COMMA.fullmatch(text)) for text in texts])
    either = commas | np.array([bool(NUMBER.fullmatch(text)) for text in texts])
    of_commas, of_either = column.counts[commas].sum(), column.counts[either].sum()
    return bool(of_either > 0.98 * column.occurring and of_commas > 0.3 * column.occurring)


def parts_of(column: Figures, separator: str) -> Figures:
    """The figures of the parts of a column's texts."""
    texts = pc.fill_null(column.values, "")
    if separator == "json":
        lists = pa.array([_json_texts(text.as_py()) for text in texts], pa.list_(pa.large_string()))
    else:
        lists = pc.split_pattern(texts, separator)
    padded = pa.concat_arrays(
        [lists.cast(pa.list_(pa.large_string())), pa.array([[]], pa.list_(pa.large_string()))]
    )
    codes = np.where(column.codes < 0, len(padded) - 1, column.codes)
    taken = padded.take(pa.array(codes))
    lengths = pc.list_value_length(taken).to_numpy(zero_copy_only=False).astype(np.int64)
    parts = of_values(column.name, pc.list_flatten(taken), column.rows, lengths, strip=True)
    return replace(parts, form="text").without({""})


def _json_texts(text: str) -> list[str | None]:
    if not _is_json_list(text):
        return []
    return [None if value is None else str(value) for value in json.loads(text)]
