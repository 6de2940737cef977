"""What a sample shows of a column: values, lists in texts, times, what it tells of a label."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from tnctl.data import numbers
from tnctl.data.bad_rows import BadRowsError
from tnctl.data.formats.text_lines import numbers_of
from tnctl.data.times import is_temporal, times_of
from tnctl.errors import Failure, quoted
from tnctl.evaluation.metrics import auc
from tnctl.schema import ISO, Data, Time

NO_UTF8 = "bytes that are not UTF-8"
NUMBERS = ("integer", "number", "boolean")
FORMS = ("text", *NUMBERS, "time")  # of which an input can be made
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
TIME_OR_URL = re.compile(r"\d{1,4}[-/:]\d{1,2}([-/: T].*)?$|.*[a-z]+://|.*www\.|/", re.S)
DECIMAL_COMMA = r'^"*[+-]?\d+,\d+"*$'  # tab-separated files keep quotes
DECIMAL = r'^"*[+-]?(\d+,\d+|\d*\.?\d+([eE][+-]?\d+)?)"*$'
BUCKETS = 64
FEW_VALUES = 10
PRIOR_ROWS = 10.0  # with the mean of all rows, added to the rows of a value
FEWEST_ROWS, FEWEST_OF_A_CLASS = 200, 20  # below, nothing is said
CHANCE = 1e-6  # of rows that have one label alone: above, nothing is said
TIMES_ODDS = 5  # how much higher the odds of a label may be among rows that chance decides
GIVES_AWAY, SUSPICIOUS = 0.99, 0.95  # AUC of one column alone

# Formats of times.
TRIED = 20  # texts that decide which formats all others are tried with
MOST_WRONG = 0.05  # the share of other texts in a column of times
DATES = (
    "%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y",
    "%d %b %Y", "%d-%b-%Y", "%b %d %Y", "%b %d, %Y", "%m/%d/%y", "%d/%m/%y", "%d.%m.%y",
)  # fmt: skip
CLOCKS = (
    "", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p", " %I:%M%p",
    " %I:%M:%S%p", " %I:%M:%S:%f%p",
)  # fmt: skip
OF_TEXT = (
    ISO, *(date + clock for date in DATES for clock in CLOCKS),
    *(f"{clock} {date}" for date in DATES for clock in ("%H:%M", "%H:%M:%S")),
    *("%d-%b-%y" + clock for clock in ("", " %I.%M.%S.%f %p", " %I.%M.%S %p", " %H.%M.%S.%f")),
    "%d/%b/%Y:%H:%M:%S %z", "%a %b %d %H:%M:%S %z %Y", "%a %b %d %H:%M:%S %Y",
    "%a, %d %b %Y %H:%M:%S %z", "%a, %d %b %Y %H:%M:%S GMT",
)  # fmt: skip
MONTH = "(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
# What each text in one of these formats has, which is quicker to look for than to try them all.
A_DATE = re.compile(rf"\d[-/. ](?:\d\d?|{MONTH})[-/. ]\d|{MONTH} {{1,2}}\d|\d{{8}}t", re.I)
UNITS = {"epoch_s": 1, "epoch_ms": 1e3, "epoch_us": 1e6}  # in a second
LOWEST, HIGHEST = 3e8, 2e9  # in seconds: from 1979 to 2033
OF_DIGITS = ("%Y%m%d", "%y%m%d%H", "%Y%m%d%H", "%Y%m%d%H%M", "%Y%m%d%H%M%S")
FEWEST_HOURS = 5  # different numbers that are all a date without its century, and an hour
END = 4_102_444_800_000_000  # 2100: digits beyond, or before 1970, are no dates
ASCENDING = 0.95  # the share of rows that are not before the row above
DAY = 86_400_000_000


@dataclass(frozen=True)
class ColumnFigures:
    """A column of a sample.

    `form` is what its values are: one of FORMS, or another word for what no input can be made of.
    `codes` int64 [n] are indices of `values` [distinct], negative where a value is missing;
    `lengths` int64 [rows] says how many of the n values each row has, None when each has one.
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
        return int(self.counts.sum())

    @property
    def distinct(self) -> int:
        """How many different values occur."""
        return int(np.count_nonzero(self.counts))

    @cached_property
    def row_codes(self) -> NDArray[np.int64]:
        """The codes; of lists 0 for a row that has a value, -1 for one that has none. [rows]."""
        if self.lengths is None:
            return self.codes
        filled = np.repeat(np.arange(self.rows), self.lengths)[self.codes >= 0]
        return np.minimum(np.bincount(filled, minlength=self.rows), 1) - 1

    @property
    def missing(self) -> int:
        """How many rows have no value."""
        return int((self.row_codes < 0).sum())

    @cached_property
    def numbers(self) -> NDArray[np.float64]:
        """The number that each value is, float64 [distinct], NaN where it is none."""
        if self.form in NUMBERS:
            # Beyond 2^53 rounded: such integers are ids.
            parsed = self.values.cast(pa.float64(), safe=False)
            return np.asarray(parsed.to_numpy(zero_copy_only=False))
        if self.form == "text":
            texts = pc.ascii_trim_whitespace(self.values.cast(pa.string()))
            # To find that all are wrong takes long.
            if pc.any(pc.match_substring_regex(texts, NUMBER_START, ignore_case=True)).as_py():
                return np.asarray(numbers_of(texts)[0].to_numpy(zero_copy_only=False))
        return np.full(len(self.values), np.nan)

    @cached_property
    def number_share(self) -> float:
        """The share of its values, as they occur, that are numbers."""
        return float(self.counts[~np.isnan(self.numbers)].sum() / max(self.occurring, 1))

    @property
    def present(self) -> NDArray[np.float64]:
        """The different numbers that occur, float64 [at most distinct], in any order."""
        return self.numbers[self.counts > 0]

    @property
    def steps(self) -> NDArray[np.float64]:
        """The differences of the numbers of neighbouring rows that have one value each."""
        return np.diff(self.numbers[self.codes[self.codes >= 0]])

    @property
    def is_whole(self) -> bool:
        """Whether all of its numbers are integers."""
        filled = self.present[np.isfinite(self.present)]
        return len(filled) > 0 and bool((filled == np.floor(filled)).all())

    def texts(self) -> list[str]:
        """Its values as text, in the order of `values`."""
        if self.form == "boolean":
            return ["true" if value else "false" for value in self.values.to_pylist()]
        return list(map(str, self.values.to_pylist()))

    def without(self, tokens: set[str]) -> "ColumnFigures":
        """The column where texts that mean a missing value are missing."""
        if self.form != "text":
            return self
        is_token = pc.is_in(self.values, pa.array(sorted(tokens), self.values.type))
        gone = np.append(np.asarray(is_token.to_numpy(zero_copy_only=False)), True)
        if not gone[:-1].any():
            return self  # with what was computed of it
        return replace(self, codes=np.where(gone[self.codes], -1, self.codes))

    def examples(self) -> str:
        """Its most frequent values, as a comment shows them."""
        order = np.argsort(-self.counts, kind="stable")[: min(SHOWN, self.distinct)]
        texts = [quoted(str(self.values[int(index)].as_py()))[1:-1] for index in order]
        return ", ".join(f"{t[:SHOWN_LENGTH]}{'…' * (len(t) > SHOWN_LENGTH)}" for t in texts)


def figures(name: str, column: pa.ChunkedArray, strip: bool) -> ColumnFigures:
    """The figures of a column [rows] of a sample; `strip` removes blanks around texts."""
    array = numbers.plain(numbers.flat(column))
    if numbers.has_values(array.type):
        values, lengths = numbers.listed(array)
        if lengths.max(initial=0) > 1:
            return of_values(name, values, len(array), lengths, strip)
        array = numbers.single(array, name, _nowhere)
    return of_values(name, array, len(array), None, strip)


def _nowhere(row: int) -> tuple[str, int]:
    """The place of a row whose errors nobody reads."""
    return "", row


def of_values(
    name: str, array: pa.Array, rows: int, lengths: NDArray[np.int64] | None, strip: bool
) -> ColumnFigures:
    """The figures of values [n]; as in `figures`."""
    form, array = _form_of(array)
    if form == "text" and strip:
        array = pc.ascii_trim_whitespace(array)
    if form not in FORMS:
        array = pa.nulls(len(array), pa.string())
    encoded = array.dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return ColumnFigures(name, rows, form, encoded.dictionary, codes, lengths)


def _form_of(array: pa.Array) -> tuple[str, pa.Array]:
    """What values are, and the values in one type for each form."""
    array = numbers.plain(array)
    kind = array.type
    if pt.is_null(kind) or numbers.is_text(kind):
        try:  # bytes are checked where they become text
            return "text", array.cast(pa.large_binary()).cast(pa.large_string())
        except pa.ArrowInvalid:
            return NO_UTF8, array
    if pt.is_boolean(kind):
        return "boolean", array
    if pt.is_integer(kind):
        return "integer", array
    if pt.is_floating(kind) or pt.is_decimal(kind):
        as_float: Any = array.cast(pa.float64(), safe=False)
        return "number", pc.if_else(pc.is_nan(as_float), None, as_float)
    if is_temporal(kind):
        return "time", array.cast(pa.timestamp("us"), safe=False)
    return f"of the type {kind}", array


# ---- Texts that hold several values ---------------------------------------------------------


def separator_of(column: ColumnFigures) -> str | None:
    """What separates the values of a column of text, None where a text is one value.

    The texts are of rows from the first to the last: the most frequent texts may all be lists of
    one value.
    """
    if column.form != "text" or column.lengths is not None or column.number_share > 0.95:
        return None
    filled = column.codes[column.codes >= 0]
    if not len(filled):
        return None
    indices = np.linspace(0, len(filled) - 1, min(ROWS_TRIED, len(filled))).astype(np.int64)
    texts = column.values.take(pa.array(np.unique(filled[indices]))).to_pylist()
    if sum(_json_list(text) is not None for text in texts) > 0.9 * len(texts):
        return "json"
    if sum(bool(TIME_OR_URL.match(text)) for text in texts) > len(texts) / 2:
        return None
    return next((sign for sign in (*SURE, *UNSURE) if _separates(sign, texts)), None)


def _json_list(text: str) -> list[Any] | None:
    """The JSON list that a text is, of values alone; else None."""
    if not (text.startswith("[") and text.endswith("]")):
        return None
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return None if any(isinstance(value, list | dict) for value in values) else values


def _separates(sign: str, texts: list[str]) -> bool:
    """Whether texts are made of few parts that come again with other parts."""
    having = [text for text in texts if sign in text]
    if len(having) < max(2, LEAST_SHARE * len(texts)):
        return False
    lists = [[part.strip() for part in text.split(sign)] for text in having]
    parts = [part for parts in lists for part in parts if part]
    distinct, lengths = set(parts), set(map(len, lists))
    if not parts:
        return False
    is_sure = sign in SURE
    if (
        (is_sure or sign == " ")
        and all(map(NUMBER.fullmatch, parts))
        and any("." in part for part in parts)
    ):
        return len(having) > 0.5 * len(texts)  # a vector, or the weights of other values
    are_codes = sum(bool(CODE.fullmatch(part)) for part in parts) > 0.95 * len(parts)
    if are_codes and len(lengths) >= SEVERAL_LENGTHS and (is_sure or sign == ","):
        return True
    if len(distinct) > 0.5 * len(parts):
        return False
    alone = [text for text in texts if sign not in text]
    are_known = sum(text in distinct for text in alone) >= 0.5 * len(alone)
    if is_sure:
        return are_known or len(alone) < 0.2 * len(texts)
    if len(lengths) == 1 and not alone:
        return False
    if sign == ",":
        return are_known and len(distinct) < len(set(having)) * 2
    return are_codes and (are_known or sign == " ")


def has_decimal_commas(column: ColumnFigures) -> bool:
    """Whether nearly all of its texts are numbers, some with a comma, as Europeans write them."""
    if column.form != "text":
        return False
    commas, either = (
        column.counts[pc.match_substring_regex(column.values, pattern).to_numpy(False)].sum()
        for pattern in (DECIMAL_COMMA, DECIMAL)
    )
    return bool(either > 0.98 * column.occurring and commas > 0.3 * column.occurring)


def parts_of(column: ColumnFigures, separator: str) -> ColumnFigures:
    """The figures of the parts of a column's texts."""
    if separator == "json":
        lists = pa.array(
            [
                [None if value is None else str(value) for value in _json_list(text) or []]
                for text in column.texts()
            ],
            TEXTS,
        )
    else:
        lists = pc.split_pattern(column.values, separator).cast(TEXTS)
    parts, lengths = numbers.listed(lists.take(pa.array(column.codes, mask=column.codes < 0)))
    return of_values(column.name, parts, column.rows, lengths, strip=True).without({""})


# ---- Times: dates, and instants as text or as numbers -----------------------------------------


@dataclass(frozen=True)
class TimeForm:
    """How a column writes times, and what they are.

    `format` is that of data.times, None where no format has all values. `times` int64 [rows] are
    those of the rows that have one, in microseconds since 1970. `is_ambiguous`: another format,
    with day and month exchanged, has all values too.
    """

    format: str | None
    times: NDArray[np.int64]
    is_ambiguous: bool = False

    @property
    def range(self) -> str:
        """The first and the last day, in words."""
        days = (self.times // DAY).astype("datetime64[D]")
        return f"{days.min()} to {days.max()}"

    @property
    def are_in_order(self) -> bool:
        """Whether the rows are nearly in the order of their times."""
        steps = np.diff(self.times)
        forwards, backwards = int((steps > 0).sum()), int((steps < 0).sum())
        is_ascending = forwards > 9 * backwards and backwards < (1 - ASCENDING) * len(steps)
        return is_ascending and not self.is_ambiguous


def time_form(column: ColumnFigures) -> TimeForm | None:
    """How a column writes times; None for a column of something else."""
    if column.lengths is not None or column.distinct < 2:
        return None
    occurs = column.counts > 0
    values = column.values.filter(pa.array(occurs))
    formats = _time_formats(column, values)
    read = {format: times for format in formats if (times := _times_in(values, format)) is not None}
    if not read:
        most_wrong = MOST_WRONG * len(values)
        if all(_times_in(values, format, most_wrong) is None for format in formats):
            return None
        return TimeForm(None, np.empty(0, np.int64))
    (format, times), *others = read.items()
    of_values = np.zeros(len(occurs), np.int64)
    of_values[occurs] = times
    differ = any((other != times).any() for _, other in others)
    return TimeForm(format, of_values[column.codes[column.codes >= 0]], differ)


def _time_formats(column: ColumnFigures, values: pa.Array) -> Sequence[str]:
    """The formats in which the values that occur may be times."""
    if column.form == "time":
        return [ISO]
    if column.form == "text" and column.number_share < 0.05:
        first = values.slice(0, TRIED)
        # One of those that are tried may be wrong.
        if not any(A_DATE.search(text) for text in first.slice(0, 2).to_pylist()):
            return []
        return [format for format in OF_TEXT if _times_in(first, format, 1) is not None]
    present = column.present
    if column.number_share < 1 or not column.is_whole or not np.isfinite(present).all():
        return []
    digits = [format for format in OF_DIGITS if _are_digits(present, format)][:1]
    # In units since 1970 they ascend from row to row as times do, not by one as numbers of rows.
    steps = column.steps
    if digits or column.name.lower().endswith("id") or (steps >= 0).mean() <= ASCENDING:
        return digits
    return [
        unit
        for unit, second in UNITS.items()
        if (steps == 1).mean() < ASCENDING
        and LOWEST * second <= present.min()
        and present.max() < HIGHEST * second
    ]


def _times_in(values: pa.Array, format: str, most_wrong: float = 0) -> NDArray[np.int64] | None:
    """The times of values [n] that are in a format, int64; None where over `most_wrong` are not."""
    data = Data(times={"": Time(format=format)})
    try:
        times = times_of(values, "", data, _nowhere)
    except BadRowsError as error:
        if len(error.rows) > most_wrong:
            return None
        left = np.delete(np.arange(len(values)), error.rows)
        return _times_in(values.take(pa.array(left)), format)
    except Failure:
        return None
    return None if times.missing.any() else times.values


def _are_digits(present: NDArray[np.float64], format: str) -> bool:
    """Whether all different numbers [n] are dates as digits, such as 20261120."""
    digits = len(format) + 2 * format.count("%Y")
    if not (10 ** (digits - 1) <= present.min() and present.max() < 10**digits):
        return False
    if format.startswith("%y") and len(present) < FEWEST_HOURS:
        return False
    times = _times_in(pa.array(present.astype(np.int64)), format)
    return times is not None and times.min() >= 0 and times.max() < END


# ---- What a column alone tells of the label -------------------------------------------------


def _classes(labels: NDArray[np.float64]) -> tuple[int, int]:
    """How many labels [rows], NaN where missing, are 0, and how many are 1."""
    positive = int(np.nansum(labels))
    return int(np.count_nonzero(~np.isnan(labels))) - positive, positive


def _are_few(classes: tuple[int, int]) -> bool:
    return sum(classes) < FEWEST_ROWS or min(classes) < FEWEST_OF_A_CLASS


def held_out_auc(codes: NDArray[np.int64], labels: NDArray[np.float64]) -> float:
    """The AUC of the label's mean of each value, measured on the other half of the rows.

    `codes` int [rows], from -1; `labels` [rows], NaN where missing. 0.5 where there is too little.
    """
    if _are_few(_classes(labels)):
        return 0.5
    present = ~np.isnan(labels)
    codes, labels = codes[present] + 1, labels[present]
    half = np.arange(len(labels)) % 2 == 0
    areas = []
    size = int(codes.max()) + 1
    for fitted in (half, ~half):
        counts = np.bincount(codes[fitted], minlength=size)
        sums = np.bincount(codes[fitted], labels[fitted], size)
        means = (sums + PRIOR_ROWS * labels[fitted].mean()) / (counts + PRIOR_ROWS)
        area = auc(means[codes[~fitted]], labels[~fitted])
        areas.append(0.5 if area is None else area)  # a half may have one class alone
    return float(np.mean(areas))


def rows_of_one_label(
    codes: NDArray[np.int64], labels: NDArray[np.float64]
) -> tuple[int, bool, int, int] | None:
    """The most rows with a value, or without it, that have one label alone, too many for chance.

    `codes` int [rows], -1 where missing, which is a value too; `labels` [rows], NaN where missing.
    Returns the code, whether the rows have it, the label (0 or 1), and the number of these rows.

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
    # All [label 1 or 0, with the value or without it, values].
    of_value = np.stack([ones, rows - ones])[:, np.newaxis]
    of_label = of_value.sum(axis=-1, keepdims=True)
    agreeing = np.concatenate([of_value, of_label - of_value], axis=1)
    count = np.stack([rows, total - rows])
    odds = times * of_label / (total - of_label)
    is_sure = (agreeing == count) & (count * np.log1p(1 / odds) > -np.log(CHANCE))
    sure = np.where(is_sure, count, 0)
    label, without, code = np.unravel_index(sure.argmax(), sure.shape)
    if not sure.any():
        return None
    return int(code) - 1, not without, 1 - int(label), int(sure.max())


def in_words(rows: tuple[int, bool, int, int], value: str) -> str:
    """Rows of one label, as messages say them; `value` is the words for the value."""
    code, has_it, label, number = rows
    if code < 0:
        value, has_it = "a value", not has_it
    return f"all {number:,} rows {'with' if has_it else 'without'} {value} have label {label}"


def noise(labels: NDArray[np.float64]) -> float:
    """Two standard deviations of the AUC of a score without any effect, for such labels [rows]."""
    negative, positive = _classes(labels)
    return float(2 * np.sqrt((1 / positive + 1 / negative) / 12))


def best_auc(column: ColumnFigures, labels: NDArray[np.float64]) -> float:
    """The AUC by a column alone: by its values, or buckets of numbers.

    Of lists by how many values a row has, or whether it has the value that tells the most.
    """
    if column.lengths is None:
        areas = [held_out_auc(column.codes, labels)]
        if column.number_share == 1 and column.distinct > FEW_VALUES:
            areas.append(held_out_auc(bucket_codes(column), labels))
    else:
        areas = [held_out_auc(np.minimum(column.lengths, BUCKETS), labels)]
        negative, positive = classes = _classes(labels)
        if not _are_few(classes):
            owners = np.repeat(np.arange(column.rows), column.lengths)
            used = (column.codes >= 0) & ~np.isnan(labels[owners])
            owners, codes = np.unique(np.stack([owners[used], column.codes[used]]), axis=1)
            rows = np.bincount(codes, minlength=1)
            clicks = np.bincount(codes, labels[owners], minlength=1)
            differences = np.abs(clicks / positive - (rows - clicks) / negative)
            areas.append(0.5 + differences.max() / 2)
    return float(max(max(area, 1 - area) for area in areas))


def bucket_codes(column: ColumnFigures) -> NDArray[np.int64]:
    """The bucket of each row's number, int64 [rows], -1 where missing: equal numbers of values."""
    finite = column.present[np.isfinite(column.present)]
    shares = np.linspace(0, 1, BUCKETS + 1)[1:-1]
    edges = np.unique(np.quantile(finite, shares, method="lower"))
    of_values = np.searchsorted(edges, column.numbers, side="right")
    of_values[np.isnan(column.numbers)] = -1
    return np.append(of_values, -1)[column.codes]
