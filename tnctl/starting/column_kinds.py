"""What each column is to a model: an id, a number, several values, or nothing it can learn from."""

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.errors import quoted
from tnctl.schema import ISO
from tnctl.starting.column_figures import (
    BUCKETS,
    FEW_VALUES,
    GIVES_AWAY,
    NO_UTF8,
    SUSPICIOUS,
    Figures,
    alike_rows,
    best_auc,
    bucket_codes,
    has_decimal_commas,
    held_out_auc,
    in_words,
    noise,
    parts_of,
    separator_of,
)
from tnctl.starting.conf_text import Input, scalar
from tnctl.starting.file_form import FileForm
from tnctl.starting.time_forms import TimeForm, time_form

UNIQUE = 0.999  # the share of distinct values of a row identifier
FEWEST_UNIQUE = 20  # rows in which no value comes again, before that means something
DEPENDS = 0.01  # the AUC, at least, by which ids are better than buckets, or buckets than ids
STRONG = 0.05  # the same of values that are rare
ONCE = 3  # how often values occur of which uneven ones are amounts, whatever they tell
REPEATED = 10  # how often values occur on average that have an effect of their own
CODES_APART = 2  # the least mean distance of codes, where they are densest
LONGEST = 50  # values of a list that are used
FEWEST_BUCKETS, MOST_BUCKETS = 8, 1_000_000
BUCKET_EACH = 2  # times the usual buckets: up to this number of values, each may have one
ROWS_OF_A_BUCKET = 200
ROWS_WHERE_RARE = 1000  # of a bucket of values that are rarer
SKEWED = 10.0  # the largest number in deviations
ASKED = "id or number? "


@dataclass
class Column:
    """A column of the data: its kind in words, and the inputs that it becomes, if any."""

    figures: Figures
    kind: str
    inputs: list[Input] = field(default_factory=list)
    remark: str = ""  # why it is no input
    warning: str = ""
    times: TimeForm | None = None


@dataclass(frozen=True)
class Context:
    """What the kind of a column depends on beside it."""

    form: FileForm
    labels: NDArray[np.float64]  # [rows]
    rows: int  # about how many there are in all
    ids: Collection[str] = ()  # columns that are ids for certain

    @property
    def buckets(self) -> int:
        """How many buckets the number of rows allows."""
        return max(FEWEST_BUCKETS, min(BUCKETS, self.rows // ROWS_OF_A_BUCKET))


def kind_of(column: Figures, context: Context) -> Column:
    """The kind of a column, and the inputs that it becomes."""
    if column.form not in ("text", "integer", "number", "boolean", "time"):
        remark = f"values {column.form}"
        if column.form == NO_UTF8:
            remark = f"it has {NO_UTF8}. Save it as UTF-8"
        return Column(column, "unsupported", [], remark, f"{column.name} is left out: {remark}")
    if not column.occurring:
        return Column(column, "empty", remark="no value in the rows that were read")
    if column.distinct == 1 and not column.missing and column.lengths is None:
        return Column(column, "constant", remark=f"always {column.examples()}")
    return _checked(_recognised(column, context), context)


def _recognised(column: Figures, context: Context) -> Column:
    """The kind of a column that has several values, and the inputs that it becomes."""
    if times := time_form(column):
        return Column(column, "time", remark=_remark_of(column, times), times=times)
    if context.form.keys.get("delimiter") != "," and has_decimal_commas(column):
        remark = f"numbers with a comma, such as {column.examples()}: write them with a point"
        warning = f"{column.name} is left out: {remark}"
        return Column(column, "decimal commas", [], remark, warning)
    if separator := separator_of(column):
        return _several(parts_of(column, separator), separator)
    if column.lengths is not None:
        return _several(column, None)
    return _single(column, context)


def _remark_of(column: Figures, times: TimeForm) -> str:
    """What a time says, and the slot by which its hour would be an input."""
    if times.format is None:
        return f"times, but not all are in one format: {column.examples()}"
    name = column.name
    shown = f"a time, {times.range}"
    if times.is_ambiguous:
        shown += ", if day and month are not exchanged"
    shown += f". Its hour: {scalar({f'{name}_hour': {'column': name, 'ids': 'hour'}})[1:-1]}"
    if times.format == ISO:
        return shown
    return f"{shown}, data.times: {scalar({name: {'format': times.format}})}"


# ---- Columns that give the label away ----------------------------------------------------


def _checked(result: Column, context: Context) -> Column:
    """A column as it is, or left out where it gives the label away."""
    column = result.figures
    if rows := alike_rows(column, context.labels):
        value = quoted(column.texts()[rows[0]]) if column.lengths is None else "values"
        return _giveaway(column, in_words(rows, value))
    if not result.inputs:
        return result
    best = best_auc(column, context.labels)
    if best >= GIVES_AWAY:
        # Ranked by it alone nearly every row with label 1 comes before every row with label 0.
        return _giveaway(column, f"alone it has an AUC of {best:.3f}")
    if best >= SUSPICIOUS:
        result.warning = (
            f"{column.name} alone has an AUC of {best:.3f}: is it known before the label is?"
        )
    return result


def _giveaway(column: Figures, reason: str) -> Column:
    remark = f"it gives the label away: {reason}"
    return Column(column, "giveaway", remark=remark, warning=f"{column.name}: {remark}")


# ---- One value in a row ------------------------------------------------------------------


def _single(column: Figures, context: Context) -> Column:
    unique = column.distinct >= UNIQUE * column.occurring and column.occurring >= FEWEST_UNIQUE
    if column.form == "boolean":
        result = _id_of(column)
        if context.form.format == "jsonl":  # whose booleans are no ids
            result.inputs[0].settings |= {"ids": "boundaries", "boundaries": [0.5]}
        return result
    if column.name in context.ids:
        return _id_of(column)
    is_text = column.form == "text" and column.number_share < 1
    if unique and (is_text or _ascends(column)):
        return Column(column, "row identifier", remark=f"no value comes again: {column.examples()}")
    if is_text:
        return _id_of(column)
    if np.isinf(column.numbers).any():
        return Column(column, "unsupported", remark=f"infinite numbers: {column.examples()}")
    if unique or not column.is_whole:
        return _number_of(column, context)
    return _integers(column, context)


def _ascends(column: Figures) -> bool:
    """Whether integers go up from row to row, or by 1 where they go up."""
    steps = np.diff(column.numbers[column.codes[column.codes >= 0]])
    return column.is_whole and bool((steps > 0).all() or np.median(np.abs(steps)) == 1)


def _integers(column: Figures, context: Context) -> Column:
    """Integers are ids or numbers: by what each would tell, and by how they spread."""
    zeros = column.form == "text" and any(re.fullmatch(r"0\d+", t) for t in column.texts()[:1000])
    if zeros or np.abs(column.numbers[column.counts > 0]).max() > 2**53:
        return _id_of(column)
    if column.distinct <= FEW_VALUES:
        return _id_of(column, ASKED)
    if _are_codes(column):
        return _id_of(column, "integers that come again, with gaps between: ids. ")
    is_uneven = _is_uneven(column)
    if is_uneven and column.occurring < ONCE * column.distinct:
        return _number_of(column, context, ASKED)
    of_ids = held_out_auc(column.codes, context.labels)
    of_buckets = held_out_auc(bucket_codes(column), context.labels)
    differing = max(DEPENDS, noise(context.labels))
    if column.occurring < REPEATED * column.distinct:  # too rare to learn an effect of each
        differing = max(differing, STRONG)
    if of_ids > of_buckets + differing:
        return _id_of(column, "integers, by their effect ids. ")
    if of_buckets > of_ids + differing:
        return _number_of(column, context, "integers, by their effect a number. ")
    result = _number_of(column, context, ASKED)
    bucket = result.inputs[0]
    if is_uneven or column.distinct <= context.buckets:
        return result
    if column.distinct <= BUCKET_EACH * context.buckets:
        bucket.settings["buckets"] = column.distinct
        return result
    bucket.name = f"{column.name}_bucket"
    return Column(column, "id or number", [*_id_of(column, ASKED).inputs, *result.inputs])


def _are_codes(column: Figures) -> bool:
    """Whether integers come again though most of those between never occur, as codes do.

    Where amounts and counts are densest, nearly all between occur, if most come again; or all in
    steps, such as multiples of 50. Where 0 occurs, the others may be amounts.
    """
    occurs = (column.counts > 0) & np.isfinite(column.numbers)
    values = np.unique(column.numbers[occurs].astype(np.int64))
    steps = values - values[0]
    half = len(steps) // 2
    if np.median(column.counts[occurs]) < ONCE or 0 in values or not half:
        return False
    narrowest = int((steps[half:] - steps[:-half]).min())
    return narrowest > CODES_APART * half * int(np.gcd.reduce(steps))


def _is_uneven(column: Figures) -> bool:
    """Whether distinct integers crowd at one end, as amounts do."""
    values = np.sort(column.numbers[column.counts > 0])
    spread = (values - values[0]) / (values[-1] - values[0])
    even = np.linspace(0, 1, len(values))
    return bool(np.abs(spread - even).max() > 0.25)


def _id_of(column: Figures, shown: str = "") -> Column:
    """A slot of ids: a row for each text or integer; of ids as floats a bucket for each."""
    settings: dict[str, Any] = {"missing": "value"} if column.missing else {}
    if column.form == "number":  # as pandas makes integers of a column with gaps
        buckets = min(MOST_BUCKETS, 2 * column.distinct + 2)
        settings = {"ids": "quantiles", "buckets": buckets, **settings}
        shown += "Floats: write integers where there are more in all rows. "
    shown += _coverage(column)
    return Column(column, "id", [Input("slots", column.name, column.name, settings, shown)])


def _coverage(column: Figures) -> str:
    share = column.missing / max(column.rows, 1)
    gaps = "none missing" if not column.missing else f"{share:.1%} missing"
    if column.missing and share < 0.001:
        gaps = f"{column.missing:,} missing"
    return f"{column.distinct:,} values, {gaps}; {column.examples()}"


def _number_of(column: Figures, context: Context, shown: str = "") -> Column:
    """A number: buckets with an embedding each, and beside many even values the number itself."""
    occurs = column.counts > 0
    values, counts = column.numbers[occurs], column.counts[occurs]
    shown += f"{column.distinct:,} numbers from {values.min():g} to {values.max():g}"
    settings: dict[str, Any] = {"ids": "row_quantiles"}
    if column.missing:
        shown += f", {column.missing / column.rows:.1%} missing"
        settings["missing"] = "value"
    if (buckets := _buckets(column, context)) != BUCKETS:
        settings["buckets"] = buckets
    inputs = [Input("slots", column.name, column.name, settings, shown)]
    # Numbers with a long tail, standardized, are not of the scale of other inputs.
    if column.distinct > context.buckets and not _has_long_tail(values, counts):
        standardized = {"transform": "standardize"}
        name = f"{column.name}_number"
        inputs.append(Input("numeric", name, column.name, standardized, shown))
    return Column(column, "number", inputs)


def _buckets(column: Figures, context: Context) -> int:
    """The number of buckets: fewer where values are too rare to have an effect of their own."""
    if column.occurring >= REPEATED * column.distinct:
        return context.buckets
    occurring = column.occurring * max(context.rows, column.rows) // column.rows  # in all rows
    return max(FEWEST_BUCKETS, min(context.buckets, occurring // ROWS_WHERE_RARE))


def _has_long_tail(values: NDArray[np.float64], counts: NDArray[np.int64]) -> bool:
    """Whether the largest of numbers [n] is many deviations above their mean; most are above 0."""
    mean = np.average(values, weights=counts)
    deviation = np.sqrt(np.average((values - mean) ** 2, weights=counts))
    return bool(deviation and values.max() - mean > SKEWED * deviation and values.min() > -10)


# ---- Several values in a row -------------------------------------------------------------


def _several(column: Figures, separator: str | None) -> Column:
    """Several values in a row: ids whose embeddings are averaged, or a vector of numbers."""
    assert column.lengths is not None
    filled = column.lengths[column.lengths > 0]
    longest = int(filled.max(initial=0))
    settings: dict[str, Any] = {} if separator is None else {"separator": separator}
    same = len(filled) > 0 and bool((filled == filled[0]).all())
    if column.form == "number" or (column.number_share == 1 and not column.is_whole):
        if not same:
            remark = "lists of numbers: the weights of a slot of lists? (slots.NAME.weights)"
            return Column(column, "numbers", remark=remark)
        settings |= {"width": longest, "transform": "standardize"}
        shown = f"{longest} numbers in each row; {column.examples()}"
        entry = Input("numeric", column.name, column.name, settings, shown)
        return Column(column, "vector", [entry])
    if column.form == "boolean":
        return Column(column, "unsupported", remark="lists of true and false: write 0 and 1")
    padded = separator is None and column.form == "integer" and same and _is_padded(column)
    if padded:
        settings |= {"ids": "integer", "padding": 0}
    settings["pooling"] = "mean"
    if longest > LONGEST:
        settings |= {"max_length": LONGEST, "keep": "last"}
    if column.missing and not padded:
        settings["missing"] = "value"
    mean = float(column.lengths.mean())
    shown = f"{mean:.1f} values in a row, at most {longest:,}; {_coverage(column)}"
    return Column(column, "several", [Input("slots", column.name, column.name, settings, shown)])


def _is_padded(column: Figures) -> bool:
    """Whether lists of one length end in zeros, which occur nowhere else in them."""
    assert column.lengths is not None
    length = int(column.lengths.max())
    if length < 2 or not (column.lengths == length).all() or (column.codes < 0).any():
        return False
    zero = (column.numbers[column.codes] == 0).reshape(-1, length)
    if not zero.any() or (column.numbers < 0).any():
        return False
    return not bool((zero[:, :-1] & ~zero[:, 1:]).any())
