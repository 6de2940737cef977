"""What a sample shows of a column: its values, and what they alone tell of the label."""

import json
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from tnctl.data import numbers
from tnctl.data.formats.text_lines import numbers_of
from tnctl.errors import quoted
from tnctl.evaluation.metrics import auc

NO_UTF8 = "bytes that are not UTF-8"
NUMBER_START = r"^[+-]?(?:[0-9.]|inf|nan)"
SHOWN = 3  # values that a comment shows
SHOWN_LENGTH = 24  # characters of each
TEXTS = pa.list_(pa.large_string())
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
BUCKETS = 64
FEW_VALUES = 10
PRIOR_ROWS = 10.0  # with the mean of all rows, added to the rows of a value
FEWEST_ROWS, FEWEST_OF_A_CLASS = 200, 20  # below, nothing is said
CHANCE = 1e-6  # of rows that have one label alone: above, nothing is said
TIMES_ODDS = 5  # how much higher the odds of a label may be among rows that chance decides
GIVES_AWAY, SUSPICIOUS = 0.99, 0.95  # AUC of one column alone


@dataclass(frozen=True)
class Figures:
    """A column of a sample.

    `form` is what its values are: text, integer, number, boolean, time, or another word for what
    no input can be made of. `codes` int64 [n] are indices of `values` [distinct], negative where a
    value is missing; `lengths` int64 [rows] says how many of the n values each row has, None when
    each has one.
    """

    name: str
    rows: int
    form: str
    values: pa.Array
    codes: NDArray[np.int64]
    lengths: NDArray[np.int64] | None = None

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """How often each value occurs, int64 [distinct]."""
        return np.bincount(self.codes[self.codes >= 0], minlength=len(self.values))

    @property
    def occurring(self) -> int:
        """How many values occur that are not missing."""
        return int((self.codes >= 0).sum())

    @property
    def distinct(self) -> int:
        """How many different values occur."""
        return int((self.counts > 0).sum())

    @cached_property
    def has_value(self) -> NDArray[np.bool_]:
        """Which rows have a value, bool [rows]."""
        present = self.codes >= 0
        if self.lengths is None:
            return present
        owners = np.repeat(np.arange(self.rows), self.lengths)
        return np.bincount(owners[present], minlength=self.rows) > 0

    @property
    def missing(self) -> int:
        """How many rows have no value."""
        return self.rows - int(self.has_value.sum())

    @cached_property
    def numbers(self) -> NDArray[np.float64]:
        """The number that each value is, float64 [distinct], NaN where it is none."""
        if self.form in ("integer", "number", "boolean"):
            # Beyond 2^53 rounded: such integers are ids.
            floats = self.values.cast(pa.float64(), safe=False)
            return np.asarray(floats.to_numpy(zero_copy_only=False))
        if self.form != "text":
            return np.full(len(self.values), np.nan)
        texts = pc.ascii_trim_whitespace(self.values.cast(pa.string()))
        if not pc.any(pc.match_substring_regex(texts, NUMBER_START, ignore_case=True)).as_py():
            return np.full(len(texts), np.nan)  # to find that all are wrong takes long
        parsed, _ = numbers_of(texts)
        return np.asarray(parsed.to_numpy(zero_copy_only=False))

    @cached_property
    def number_share(self) -> float:
        """The share of its values, as they occur, that are numbers."""
        of_numbers = self.counts[~np.isnan(self.numbers)].sum()
        return float(of_numbers / max(self.occurring, 1))

    @property
    def is_whole(self) -> bool:
        """Whether all of its numbers are integers."""
        filled = self.numbers[np.isfinite(self.numbers) & (self.counts > 0)]
        return len(filled) > 0 and bool((filled == np.floor(filled)).all())

    def texts(self) -> list[str]:
        """Its values as text, in the order of `values`."""
        if self.form == "boolean":
            return ["true" if value else "false" for value in self.values.to_pylist()]
        return [str(value) for value in self.values.to_pylist()]

    def without(self, tokens: set[str]) -> "Figures":
        """The column where texts that mean a missing value are missing."""
        if self.form != "text" or not tokens:
            return self
        is_token = pc.is_in(self.values, pa.array(sorted(tokens), self.values.type))
        gone = np.append(np.asarray(is_token.to_numpy(zero_copy_only=False)), True)
        if not gone[:-1].any():
            return self  # with what was computed of it
        return replace(self, codes=np.where(gone[self.codes], -1, self.codes))

    def examples(self) -> str:
        """Its most frequent values, as a comment shows them."""
        order = np.argsort(-self.counts, kind="stable")[:SHOWN]
        return ", ".join(
            _short(str(self.values[int(at)].as_py())) for at in order if self.counts[at]
        )


def _short(text: str) -> str:
    shown = quoted(text)[1:-1]
    return shown if len(shown) <= SHOWN_LENGTH else f"{shown[:SHOWN_LENGTH]}…"


def figures(name: str, column: pa.ChunkedArray, strip: bool) -> Figures:
    """The figures of a column [rows] of a sample; `strip` removes blanks around texts."""
    array = numbers.flat(column)
    rows, lengths = len(array), None
    if pt.is_dictionary(array.type):
        array = array.dictionary_decode()
    if numbers.has_values(array.type):
        values, counts = numbers.listed(array)
        if counts.max(initial=0) <= 1:
            indices = np.where(counts == 1, np.cumsum(counts) - 1, 0)
            array = values.take(pa.array(indices, mask=counts == 0))
        else:
            array, lengths = values, counts
    return of_values(name, array, rows, lengths, strip)


def of_values(
    name: str, array: pa.Array, rows: int, lengths: NDArray[np.int64] | None, strip: bool
) -> Figures:
    """The figures of values [n]; as in `figures`."""
    form, array = _form_of(array)
    if form == "text" and strip:
        array = pc.ascii_trim_whitespace(array)
    if form in ("text", "integer", "number", "boolean", "time"):
        encoded = array.dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        return Figures(name, rows, form, encoded.dictionary, codes, lengths)
    return Figures(name, rows, form, pa.array([], pa.string()), np.full(len(array), -1), lengths)


def _form_of(array: pa.Array) -> tuple[str, pa.Array]:
    """What values are, and the values in one type for each form."""
    if pt.is_dictionary(array.type):
        array = array.dictionary_decode()
    array = numbers.plain(array)
    kind = array.type
    if pt.is_null(kind):
        return "text", array.cast(pa.string())
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        try:
            return "text", array.cast(pa.large_string())
        except pa.ArrowInvalid:
            return NO_UTF8, array
    if numbers.is_text(kind):
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            return NO_UTF8, array
        return "text", array.cast(pa.large_string())
    if pt.is_boolean(kind):
        return "boolean", array
    if pt.is_integer(kind):
        return "integer", array
    if pt.is_floating(kind) or pt.is_decimal(kind):
        as_float: Any = array.cast(pa.float64(), safe=False)
        return "number", pc.if_else(pc.is_nan(as_float), None, as_float)
    if pt.is_timestamp(kind) or pt.is_date(kind):
        return "time", array.cast(pa.timestamp("us"), safe=False)
    return f"of the type {kind}", array


# ---- Texts that hold several values ---------------------------------------------------------


def separator_of(column: Figures) -> str | None:
    """What separates the values of a column of text, None where a text is one value.

    The texts are of rows from the first to the last: the most frequent texts may all be lists of
    one value.
    """
    if column.form != "text" or column.lengths is not None or column.number_share > 0.95:
        return None
    filled = column.codes[column.codes >= 0]
    indices = np.linspace(0, len(filled) - 1, min(ROWS_TRIED, len(filled))).astype(np.int64)
    texts = column.values.take(pa.array(np.unique(filled[indices])))
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
    if separator == "json":
        lists = pa.array([_json_texts(text) for text in column.texts()], TEXTS)
    else:
        lists = pc.split_pattern(column.values, separator).cast(TEXTS)
    taken = lists.take(pa.array(column.codes, mask=column.codes < 0))
    lengths = pc.list_value_length(taken).fill_null(0).to_numpy(zero_copy_only=False)
    texts, lengths = pc.list_flatten(taken), lengths.astype(np.int64)
    parts = of_values(column.name, texts, column.rows, lengths, strip=True)
    return replace(parts, form="text").without({""})


def _json_texts(text: str) -> list[str | None]:
    if not _is_json_list(text):
        return []
    return [None if value is None else str(value) for value in json.loads(text)]


# ---- What a column alone tells of the label -------------------------------------------------


def held_out_auc(codes: NDArray[np.int64], labels: NDArray[np.float64]) -> float:
    """The AUC of the label's mean of each value, measured on the other half of the rows.

    `codes` int [rows], from -1; `labels` [rows], NaN where missing. 0.5 where there is too little.
    """
    present = ~np.isnan(labels)
    codes, labels = codes[present] + 1, labels[present]
    positive = int(labels.sum())
    if len(labels) < FEWEST_ROWS or min(positive, len(labels) - positive) < FEWEST_OF_A_CLASS:
        return 0.5
    half = np.arange(len(labels)) % 2 == 0
    areas = []
    for fitted in (half, ~half):
        size = int(codes.max()) + 1
        counts = np.bincount(codes[fitted], minlength=size)
        sums = np.bincount(codes[fitted], labels[fitted], size)
        prior = labels[fitted].mean()
        means = (sums + PRIOR_ROWS * prior) / (counts + PRIOR_ROWS)
        area = auc(means[codes[~fitted]], labels[~fitted])
        areas.append(0.5 if area is None else area)  # a half may have one class alone
    return float(np.mean(areas))


def best_value_auc(
    codes: NDArray[np.int64], owners: NDArray[np.int64], labels: NDArray[np.float64]
) -> float:
    """The AUC of whether a row's list has a value, for the value that tells the most.

    `codes` int [values], -1 where missing, and `owners`, the row of each; `labels` [rows], NaN
    where missing. 0.5 where there is too little.
    """
    present = ~np.isnan(labels)
    positive = int(labels[present].sum())
    negative = int(present.sum()) - positive
    if len(labels) < FEWEST_ROWS or min(positive, negative) < FEWEST_OF_A_CLASS:
        return 0.5
    used = (codes >= 0) & present[owners]
    owners, codes = np.unique(np.stack([owners[used], codes[used]]), axis=1)
    rows = np.bincount(codes, minlength=1)
    clicks = np.bincount(codes, labels[owners], minlength=1)
    return float(0.5 + np.abs(clicks / positive - (rows - clicks) / negative).max() / 2)


def alike_rows(column: Figures, labels: NDArray[np.float64]) -> tuple[int, bool, int, int] | None:
    """As `rows_of_one_label`, of the values of a column; of lists by whether a row has any."""
    codes = column.codes if column.lengths is None else np.where(column.has_value, 0, -1)
    return rows_of_one_label(codes, labels)


def rows_of_one_label(
    codes: NDArray[np.int64], labels: NDArray[np.float64]
) -> tuple[int, bool, int, int] | None:
    """The most rows with a value, or without it, that have one label alone, too many for chance.

    `codes` int [rows], -1 where missing, which is a value too; `labels` [rows], NaN where missing.
    Returns the code, whether the rows have it, the label (0 or 1), and how many rows there are.

    Values differ in their odds, and of many values some differ much. So the odds that chance has
    are those of all rows, times the number of values. The two splits that each column has, by the
    missing value and by the most frequent one, are not chosen among many: times `TIMES_ODDS`.
    """
    present = ~np.isnan(labels)
    codes, labels = codes[present] + 1, labels[present]
    total, positive = len(labels), labels.sum()
    if not 0 < positive < total:
        return None
    rows = np.bincount(codes, minlength=2)
    ones = np.bincount(codes, labels, len(rows))
    times = np.full(len(rows), max(TIMES_ODDS, np.count_nonzero(rows[1:])))
    times[0] = times[1 + int(rows[1:].argmax())] = TIMES_ODDS
    best: tuple[int, bool, int, int] | None = None
    for label, of_label in ((1, ones), (0, rows - ones)):
        odds = times * of_label.sum() / (total - of_label.sum())
        for has_it, n, agreeing in (
            (True, rows, of_label),
            (False, total - rows, of_label.sum() - of_label),
        ):
            is_sure = (agreeing == n) & (n * np.log1p(1 / odds) > -np.log(CHANCE))
            at = int(np.where(is_sure, n, 0).argmax())
            if is_sure[at] and (best is None or n[at] > best[3]):
                best = at - 1, has_it, label, int(n[at])
    return best


def in_words(rows: tuple[int, bool, int, int], value: str) -> str:
    """Rows of one label, as messages say them; `value` is the words for the value."""
    code, has_it, label, number = rows
    if code < 0:
        value, has_it = "a value", not has_it
    return f"all {number:,} rows {'with' if has_it else 'without'} {value} have label {label}"


def noise(labels: NDArray[np.float64]) -> float:
    """Two standard deviations of the AUC of a score without any effect, for such labels [rows]."""
    positive = np.nansum(labels)
    negative = np.count_nonzero(~np.isnan(labels)) - positive
    if not positive or not negative:
        return 1.0
    return float(2 * np.sqrt((1 / positive + 1 / negative) / 12))


def best_auc(column: Figures, labels: NDArray[np.float64]) -> float:
    """The AUC by a column alone: by its values, buckets of numbers, or how many values it has."""
    if column.lengths is None:
        areas = [held_out_auc(column.codes, labels)]
        if column.number_share == 1 and column.distinct > FEW_VALUES:
            areas.append(held_out_auc(bucket_codes(column), labels))
    else:
        owners = np.repeat(np.arange(column.rows), column.lengths)
        areas = [
            held_out_auc(np.minimum(column.lengths, BUCKETS), labels),
            best_value_auc(column.codes, owners, labels),
        ]
    return max(max(area, 1 - area) for area in areas)


def bucket_codes(column: Figures, buckets: int = BUCKETS) -> NDArray[np.int64]:
    """The bucket of each row's number, int64 [rows], -1 where missing: equal numbers of values."""
    edges = edges_of(column.numbers[column.counts > 0], buckets)
    of_values = np.searchsorted(edges, column.numbers, side="right")
    of_values[np.isnan(column.numbers)] = -1
    return np.append(of_values, -1)[column.codes]


def edges_of(numbers: NDArray[np.float64], buckets: int = BUCKETS) -> NDArray[np.float64]:
    """The edges between buckets of equally many of the numbers, each of which is there once."""
    filled = np.sort(numbers[np.isfinite(numbers)])
    indices = np.linspace(0, len(filled) - 1, buckets + 1)[1:-1].astype(np.int64)
    return np.unique(filled[indices]) if len(filled) else filled
