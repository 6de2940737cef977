"""What a sample shows of a column: its values, how often each occurs, numbers and lengths."""

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

NO_UTF8 = "bytes that are not UTF-8"
NUMBER_START = r"^[+-]?(?:[0-9.]|inf|nan)"
SHOWN = 3  # values that a comment shows
SHOWN_LENGTH = 24  # characters of each


@dataclass(frozen=True)
class Figures:
    """A column of a sample.

    `form` is what its values are: text, integer, number, boolean, time, or another word for what
    no input can be made of. `codes` int64 [n] are places in `values` [distinct], negative where a
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
        """The same where texts that mean a missing value are missing."""
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
            places = np.where(counts == 1, np.cumsum(counts) - 1, 0)
            array = values.take(pa.array(places, mask=counts == 0))
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
