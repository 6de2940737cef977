"""What each column is to a model: an id, a number, several values, or nothing it can learn from."""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.errors import quoted
from tnctl.starting import multiple_values
from tnctl.starting.column import Column, Context, Input, coverage, missing_key, slot_of, tokens_of
from tnctl.starting.column_figures import NO_UTF8, Figures
from tnctl.starting.column_value import (
    GIVES_AWAY,
    SUSPICIOUS,
    best_value_auc,
    bucket_codes,
    codes_of_rows,
    held_out_auc,
    in_words,
    noise,
    rows_of_one_label,
)
from tnctl.starting.number_inputs import REPEATED, ids_as_floats, number_of
from tnctl.starting.time_forms import may_be_times, time_form
from tnctl.starting.time_inputs import time_of

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
UNIQUE = 0.999  # the share of distinct values of a row identifier
FEWEST_UNIQUE = 20  # rows in which no value comes again, before that means something
BUCKET_EACH = 2  # times the usual buckets: of so many values each may have one
DEPENDS = 0.01  # the AUC, at least, by which ids are better than buckets, or buckets than ids
STRONG = 0.05  # the same of values that are rare
OF_ONE_DAY = 10  # how often values occur on average that all keep to one day, unless by chance
ONCE = 3  # how often values occur of which uneven ones are amounts, whatever they tell
CODES_APART = 2  # the least mean distance of codes, where they are densest
LONGEST = 50  # values of a list that are used
FEW_VALUES = 10


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
    """The same of a column that has several values."""
    tokens = tokens_of(column.name)
    is_other = bool(tokens) and tokens[-1] in ID_WORDS | NUMBER_WORDS
    if times := time_form(column, set(tokens), is_other):
        return time_of(column, times, context)
    if context.days is not None and _changes_daily(column, context.days):
        remark = f"no value of a day occurs on another: {column.examples()}"
        return Column(column, "day", remark=remark)
    if multiple_values.has_decimal_commas(column, context.delimiter):
        remark = f"numbers with a comma, such as {column.examples()}: write them with a point"
        warning = f"{column.name} is left out: {remark}"
        return Column(column, "decimal commas", [], remark, warning)
    if separator := multiple_values.separator_of(column):
        return _several(multiple_values.parts_of(column, separator), separator)
    if column.lengths is not None:
        return _several(column, None)
    return _single(column, context)


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
    if rows := rows_of_one_label(_codes_by_value(column), context.labels):
        value = quoted(column.texts()[rows[0]]) if column.lengths is None else "values"
        return _giveaway(column, in_words(rows, value))
    if not result.inputs:
        return result
    codes = codes_of_rows(column)
    areas = [held_out_auc(codes, context.labels)]
    if column.lengths is not None:
        owners = np.repeat(np.arange(column.rows), column.lengths)
        areas.append(best_value_auc(column.codes, owners, context.labels))
    if column.number_share == 1 and column.lengths is None and column.distinct > FEW_VALUES:
        areas.append(held_out_auc(bucket_codes(column), context.labels))
    best = max(max(area, 1 - area) for area in areas)
    if best >= GIVES_AWAY:
        # Ranked by it alone nearly every row with label 1 comes before every row with label 0.
        return _giveaway(column, f"alone it has an AUC of {best:.3f}")
    if best >= SUSPICIOUS:
        result.warning = (
            f"{column.name} alone has an AUC of {best:.3f}: is it known before the label is?"
        )
    return result


def _codes_by_value(column: Figures) -> NDArray[np.int64]:
    """The code of each row's value, int64 [rows]; of lists 0 where a row has values, else -1."""
    if column.lengths is None:
        return column.codes
    return np.where(column.has_value, 0, -1)


def _giveaway(column: Figures, reason: str) -> Column:
    remark = f"it gives the label away: {reason}"
    return Column(column, "giveaway", remark=remark, warning=f"{column.name}: {remark}")


def _single(column: Figures, context: Context) -> Column:
    unique = column.distinct >= UNIQUE * column.occurring and column.occurring >= FEWEST_UNIQUE
    if column.form == "boolean":
        settings: dict[str, Any] = {}
        if context.format == "jsonl":  # whose booleans are no ids
            settings = {"ids": "boundaries", "boundaries": [0.5]}
        return slot_of(column, {**settings, **missing_key(column)})
    if column.name in context.ids_only:
        return slot_of(column, missing_key(column))
    if column.number_share < 1 and column.form == "text":
        if unique:
            remark = f"no value comes again: {column.examples()}"
            if may_be_times(column):
                remark = f"it may be a time: data.times says how it is written. {remark}"
            return Column(column, "row identifier", remark=remark)
        result = slot_of(column, missing_key(column))
        if may_be_times(column):
            result.warning = (
                f"{column.name} may be a time, and is an id of the whole text: data.times says how "
                f"it is written. {column.examples()}"
            )
        return result
    is_number = (
        column.name in context.numbers_only or not column.is_whole or column.form == "number"
    )
    if not is_number and unique and _is_row_number(column):
        return Column(column, "row identifier", remark=f"no value comes again: {column.examples()}")
    if column.form == "number" and column.is_whole and _last_word(column) in ID_WORDS:
        return ids_as_floats(column, context)
    if is_number:
        return number_of(column, context)
    return _integers(column, context)


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
        return slot_of(column, missing_key(column))
    if word in NUMBER_WORDS or column.distinct >= UNIQUE * column.occurring:
        return number_of(column, context)
    if _are_codes(column):
        result = slot_of(column, missing_key(column))
        result.inputs[0].evidence += "; integers that come again, with gaps between: ids"
        return result
    repeats = column.occurring / column.distinct
    if repeats < ONCE and _is_uneven(column):
        return number_of(column, context)
    of_ids = held_out_auc(column.codes, context.labels)
    of_buckets = held_out_auc(bucket_codes(column), context.labels)
    differing = max(DEPENDS, noise(context.labels))
    if repeats < REPEATED:  # too rare to learn an effect of each
        differing = max(differing, STRONG)
    if of_ids > of_buckets + differing:
        result = slot_of(column, missing_key(column))
        result.inputs[0].evidence += "; integers, by their effect ids"
        return result
    result = number_of(column, context)
    if column.distinct <= context.buckets or of_buckets > of_ids + differing or _is_uneven(column):
        return result
    # There are buckets: a column with infinite values has been made an id by its size.
    bucket = next(entry for entry in result.inputs if entry.name == column.name)
    if column.distinct <= BUCKET_EACH * context.buckets:
        bucket.settings["buckets"] = column.distinct
        bucket.evidence += "; integers that may be ids, so each has a bucket"
        return result
    bucket.name = f"{column.name}_bucket"
    ids = slot_of(column, missing_key(column))
    ids.inputs[0].evidence += "; integers that may be ids, so they are that too"
    result.kind = "id or number"
    result.inputs.insert(0, ids.inputs[0])
    return result


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
    shown = f"{mean:.1f} values in a row, at most {int(filled.max(initial=0)):,}; " + coverage(
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
