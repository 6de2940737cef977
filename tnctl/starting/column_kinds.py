"""What each column is to a model: an id, a number, several values, or nothing it can learn from."""

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.errors import quoted
from tnctl.starting import multiple_values
from tnctl.starting.column_figures import Figures
from tnctl.starting.column_value import (
    best_value_auc,
    bucket_codes,
    codes_of_rows,
    held_out_auc,
    noise,
    rows_of_one_label,
)
from tnctl.starting.time_forms import TimeForm, time_form

ID_WORDS = {
    "id", "ids", "uid", "uuid", "guid", "key", "code", "hash", "user", "member", "visitor", "item",
    "movie", "product", "ad", "ads", "campaign", "advertiser", "publisher", "site", "domain", "app",
    "device", "category", "cat", "cate", "brand", "shop", "seller", "city", "zip", "zipcode",
    "region", "country", "gender", "sex", "occupation", "position", "channel", "type", "group",
    "class", "os", "browser", "model", "ip", "carrier", "hour", "weekday", "dow", "month", "cookie",
    "session", "resource", "dept", "department", "store", "sku", "artist", "song", "author", "mgr",
}  # fmt: skip
NUMBER_WORDS = {
    "age", "count", "counts", "cnt", "num", "number", "price", "amount", "cost", "total", "sum",
    "avg", "mean", "rate", "ratio", "hours", "minutes", "seconds", "days", "duration", "length",
    "size", "width", "height", "weight", "distance", "salary", "gain", "loss", "balance", "year",
    "years", "temperature", "views", "percent", "pct", "bid", "quantity", "qty", "lat", "lon",
    "latitude", "longitude", "past", "quality", "value", "income", "score", "clicks", "spend",
}  # fmt: skip
BUCKETS = 64
MOST_BUCKETS = 1_000_000
UNIQUE = 0.999  # the share of distinct values of a row identifier
FEWEST_UNIQUE = 20  # rows in which no value comes again, before that means something
GIVES_AWAY, SUSPICIOUS = 0.99, 0.95  # AUC of one column alone
DEPENDS = 0.01  # the AUC, at least, by which ids are better than buckets, or buckets than ids
STRONG, REPEATED = 0.05, 10  # the same of values that occur less often than so on average
OF_ONE_DAY = 10  # how often values occur on average that all keep to one day, unless by chance
ONCE = 3  # how often values occur of which uneven ones are amounts, whatever they tell
LONGEST = 50  # values of a list that are used
SKEWED = 10.0  # the largest number in deviations
FEW_VALUES = 10
DAYS_OF_WEEK = 7


@dataclass
class Input:
    """An entry of `slots` or `numeric`: its settings, and what shows them."""

    section: str
    name: str
    column: str
    settings: dict[str, Any]
    evidence: str


@dataclass
class Column:
    """A column of the data: its kind in words, and the inputs that it becomes, if any."""

    figures: Figures
    kind: str
    inputs: list[Input] = field(default_factory=list)
    remark: str = ""  # why it is no input
    warning: str = ""
    separator: str | None = None  # of several values in a text
    times: TimeForm | None = None


@dataclass(frozen=True)
class Context:
    """What the kind of a column depends on beside it."""

    format: str
    delimiter: str | None
    labels: NDArray[np.float64]  # [rows]
    buckets: int  # that the number of rows allows
    numbers_only: frozenset[str] = frozenset()  # columns that are numbers for certain
    ids_only: frozenset[str] = frozenset()
    days: NDArray[np.int64] | None = None  # the number of the day that each row is of


def tokens_of(name: str) -> list[str]:
    """The words of a column's name, in lower case."""
    cut = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return [token for token in re.split(r"[^a-z]+", cut.lower()) if token]


def kind_of(column: Figures, context: Context) -> Column:
    """The kind of a column, and the inputs that it becomes."""
    if column.form not in ("text", "integer", "number", "boolean", "time"):
        remark = f"values {column.form}"
        return Column(column, "unsupported", [], remark, f"{column.name} is left out: {remark}")
    if not column.occurring:
        return Column(column, "empty", remark="no value in the rows that were read")
    if column.distinct == 1 and not column.missing and column.lengths is None:
        return Column(column, "constant", remark=f"always {column.examples()}")
    if times := time_form(column, set(tokens_of(column.name))):
        return _checked(_time(column, times), context)
    if context.days is not None and _changes_daily(column, context.days):
        remark = f"no value of a day occurs on another: {column.examples()}"
        return Column(column, "day", remark=remark)
    if multiple_values.has_decimal_commas(column) and context.delimiter != ",":
        return Column(
            column,
            "decimal commas",
            remark=f"numbers with a comma, such as {column.examples()}: write them with a point",
        )
    if separator := multiple_values.separator_of(column, context.delimiter):
        parts = multiple_values.parts_of(column, separator)
        return _checked(_several(parts, separator), context)
    if column.lengths is not None:
        return _checked(_several(column, None), context)
    return _checked(_single(column, context), context)


def _changes_daily(column: Figures, days: NDArray[np.int64]) -> bool:
    """Whether each value keeps to one of several days: the model of the days before has none."""
    if column.lengths is not None or column.occurring < OF_ONE_DAY * column.distinct:
        return False
    occurring = column.codes >= 0
    pairs = np.unique(np.stack([column.codes[occurring], days[occurring]]), axis=1)
    return len(pairs[0]) == column.distinct and len(np.unique(pairs[1])) > 1


def _checked(result: Column, context: Context) -> Column:
    """The same, or left out where the column gives the label away."""
    column = result.figures
    if not result.inputs:
        return result
    codes = codes_of_rows(column)
    areas = [held_out_auc(codes, context.labels)]
    if column.lengths is not None:
        areas.append(best_value_auc(column, context.labels))
    if column.number_share == 1 and column.lengths is None and column.distinct > FEW_VALUES:
        areas.append(held_out_auc(bucket_codes(column), context.labels))
    best = max(max(area, 1 - area) for area in areas)
    if best >= GIVES_AWAY:
        # Ranked by it alone nearly every row with label 1 comes before every row with label 0.
        remark = f"it gives the label away: alone it has an AUC of {best:.3f}"
        return Column(column, "giveaway", remark=remark, warning=f"{column.name}: {remark}")
    if best >= SUSPICIOUS:
        result.warning = (
            f"{column.name} alone has an AUC of {best:.3f}: is it known before the label is?"
        )
    elif column.distinct <= FEW_VALUES and (value := rows_of_one_label(column, context.labels, 1)):
        result.warning = (
            f"{column.name}: all {value[1]:,} rows with {quoted(value[0])} have label 1. Is it "
            "known before the label is?"
        )
    return result


def _time(column: Figures, times: TimeForm) -> Column:
    """A time: its hour and its weekday, where the sample has several of them."""
    result = Column(column, "time", times=times)
    shown = f"a time {times.words}"
    example = column.examples().split(", ")[0]
    if times.format is None:
        result.remark = f"{shown}, such as {example}, but not all values are in one format"
        return result
    days = f"{shown}, {times.range}"
    base = "" if column.name.lower() == "hour" else f"{column.name}_"
    hours, weekdays = len(times.part("hour")), len(times.part("weekday"))
    wanted = [(f"{base}hour", "hour", f"{days}: {hours} hours of the day")] if hours > 1 else []
    if weekdays == DAYS_OF_WEEK and not times.is_ambiguous:
        wanted.append((f"{base}weekday", "weekday", f"{days}: all weekdays"))
    for name, ids, evidence in wanted:
        settings = {"ids": ids, **_missing(column)}
        result.inputs.append(Input("slots", name, column.name, settings, evidence))
    if not wanted:
        result.remark = (
            f"{days}, such as {example}: the rows that were read have one hour of the day and not "
            "all weekdays"
            if not times.is_ambiguous
            else f"{shown}, such as {example}: day and month could be exchanged"
        )
    return result


def _coverage(column: Figures) -> str:
    share = column.missing / max(column.rows, 1)
    gaps = "none missing" if not column.missing else f"{share:.1%} missing"
    if column.missing and share < 0.001:
        gaps = f"{column.missing:,} missing"
    return f"{column.distinct:,} values, {gaps}; {column.examples()}"


def _missing(column: Figures) -> dict[str, Any]:
    return {"missing": "value"} if column.missing else {}


def _single(column: Figures, context: Context) -> Column:
    unique = column.distinct >= UNIQUE * column.occurring and column.occurring >= FEWEST_UNIQUE
    if column.form == "boolean":
        settings: dict[str, Any] = {}
        if context.format == "jsonl":  # whose booleans are no ids
            settings = {"ids": "boundaries", "boundaries": [0.5]}
        return _slot(column, {**settings, **_missing(column)})
    if column.name in context.ids_only:
        return _slot(column, _missing(column))
    if column.number_share < 1 and column.form == "text":
        if unique:
            return Column(
                column, "row identifier", remark=f"every row has another: {column.examples()}"
            )
        return _slot(column, _missing(column))
    is_number = (
        column.name in context.numbers_only or not column.is_whole or column.form == "number"
    )
    if not is_number and unique and _is_row_number(column):
        return Column(
            column, "row identifier", remark=f"every row has another: {column.examples()}"
        )
    if column.form == "number" and column.is_whole and _last_word(column) in ID_WORDS:
        return _ids_as_floats(column)
    if is_number:
        return _number(column, context)
    return _integers(column, context)


def _ids_as_floats(column: Figures) -> Column:
    """Ids that a gap made floats, as pandas does: each number is a bucket of its own."""
    settings = {"ids": "quantiles", "buckets": min(MOST_BUCKETS, 2 * column.distinct + 2)}
    result = _slot(column, settings | _missing(column))
    result.inputs[0].evidence += "; ids that are stored as floats, a bucket each"
    return result


def _last_word(column: Figures) -> str:
    """The last word of a name that says whether its numbers are ids or amounts."""
    known = ID_WORDS | NUMBER_WORDS
    return next((token for token in reversed(tokens_of(column.name)) if token in known), "")


def _is_row_number(column: Figures) -> bool:
    tokens = tokens_of(column.name)
    rows = column.numbers[column.codes[column.codes >= 0]]
    if tokens and tokens[-1] in ID_WORDS:
        return True
    steps = np.abs(np.diff(rows))
    return len(steps) > 0 and bool(np.median(steps) == 1)


def _integers(column: Figures, context: Context) -> Column:
    """Integers are ids or numbers: by the name, by what each would tell, by how they spread."""
    zeros = column.form == "text" and any(
        re.fullmatch(r"0\d+", text) for text in column.texts()[:1000]
    )
    word = _last_word(column)
    signs = bool(np.abs(column.numbers[column.counts > 0]).max() > 2**53)
    if (
        word in ID_WORDS
        or signs
        or zeros
        or (column.distinct <= FEW_VALUES and word not in NUMBER_WORDS)
    ):
        return _slot(column, _missing(column))
    if word in NUMBER_WORDS or column.distinct >= UNIQUE * column.occurring:
        return _number(column, context)
    repeats = column.occurring / column.distinct
    if repeats < ONCE and _is_uneven(column):
        return _number(column, context)
    of_ids = held_out_auc(column.codes, context.labels)
    of_buckets = held_out_auc(bucket_codes(column), context.labels)
    differing = max(DEPENDS, noise(context.labels))
    if repeats < REPEATED:  # too rare to learn an effect of each
        differing = max(differing, STRONG)
    if of_ids > of_buckets + differing:
        result = _slot(column, _missing(column))
        result.inputs[0].evidence += "; integers, by their effect ids"
        return result
    result = _number(column, context)
    if column.distinct <= context.buckets or of_buckets > of_ids + differing or _is_uneven(column):
        return result
    ids = _slot(column, _missing(column))
    ids.inputs[0].evidence += "; integers that may be ids, so they are that too"
    result.kind = "id or number"
    for entry in result.inputs:
        if entry.name == column.name:
            entry.name = f"{column.name}_bucket"
    result.inputs.insert(0, ids.inputs[0])
    return result


def _is_uneven(column: Figures) -> bool:
    """Whether distinct integers crowd at one end, as amounts do."""
    values = np.sort(column.numbers[column.counts > 0])
    spread = (values - values[0]) / (values[-1] - values[0])
    even = np.linspace(0, 1, len(values))
    return bool(np.abs(spread - even).max() > 0.25)


def _slot(column: Figures, settings: dict[str, Any]) -> Column:
    return Column(
        column, "id", [Input("slots", column.name, column.name, settings, _coverage(column))]
    )


def _number(column: Figures, context: Context) -> Column:
    """A number: buckets with an embedding each, and beside many even values the number itself."""
    values = column.numbers[(column.counts > 0) & np.isfinite(column.numbers)]
    if not len(values):
        return Column(column, "unsupported", remark=f"no finite number: {column.examples()}")
    infinite = bool(np.isinf(column.numbers).any())
    low, high = float(values.min()), float(values.max())
    shown = f"{column.distinct:,} numbers from {low:g} to {high:g}"
    if column.missing:
        shown += f", {column.missing / column.rows:.1%} missing"
    inputs = []
    if not infinite:
        settings: dict[str, Any] = {"ids": "quantiles", **_missing(column)}
        if context.buckets != BUCKETS:
            settings["buckets"] = context.buckets
        inputs.append(Input("slots", column.name, column.name, settings, shown))
    finite = np.isfinite(column.numbers) & (column.counts > 0)
    transform = transform_of(column.numbers[finite], column.counts[finite])
    # Logarithms are not of the scale of other inputs, so beside buckets they do harm.
    if infinite or (column.distinct > context.buckets and transform == "standardize"):
        numeric: dict[str, Any] = {"transform": transform}
        if infinite:
            numeric["clip"] = [low, high]
        name = f"{column.name}_number"
        inputs.append(Input("numeric", name, column.name, numeric, shown))
    return Column(column, "number", inputs)


def transform_of(values: NDArray[np.float64], weights: NDArray[np.int64] | None = None) -> str:
    """log1p for numbers [n] with a long tail, else standardize; `weights` say how often each is."""
    mean = np.average(values, weights=weights)
    deviation = np.sqrt(np.average((values - mean) ** 2, weights=weights))
    if deviation and (values.max() - mean) / deviation > SKEWED and values.min() > -10:
        return "log1p"
    return "standardize"


def _several(column: Figures, separator: str | None) -> Column:
    """Several values in a row: ids whose embeddings are averaged, or a vector of numbers."""
    assert column.lengths is not None
    filled = column.lengths[column.lengths > 0]
    settings: dict[str, Any] = {} if separator is None else {"separator": separator}
    same = len(filled) > 0 and bool((filled == filled[0]).all())
    if column.form == "number" or (column.number_share == 1 and not column.is_whole):
        if not same:
            remark = "lists of numbers of several lengths, beside no ids"
            return Column(column, "numbers", remark=remark, separator=separator)
        width = int(filled[0])
        settings |= {"width": width, "transform": "standardize"}
        shown = f"{width} numbers in each row; {column.examples()}"
        entry = Input("numeric", column.name, column.name, settings, shown)
        return Column(column, "vector", [entry])
    if column.form == "boolean":
        return Column(column, "unsupported", remark="lists of true and false: write 0 and 1")
    padded = separator is None and column.form == "integer" and same and _is_padded(column)
    if padded:
        settings |= {"ids": "integer", "padding": 0}
    settings["pooling"] = "mean"
    if int(filled.max(initial=0)) > LONGEST:
        settings |= {"max_length": LONGEST, "keep": "last"}
    if column.missing and not padded:
        settings["missing"] = "value"
    mean = float(column.lengths.mean())
    shown = f"{mean:.1f} values in a row, at most {int(filled.max(initial=0)):,}; " + _coverage(
        column
    )
    entry = Input("slots", column.name, column.name, settings, shown)
    return Column(column, "several", [entry], separator=separator)


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
