"""What each column is: the label, an id, a number, a list, a time, or nothing to learn from."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.errors import Failure, UserError, did_you_mean, quoted, refuse_if
from tnctl.starting.column_figures import (
    BUCKETS,
    FEW_VALUES,
    FORMS,
    GIVES_AWAY,
    NO_UTF8,
    SUSPICIOUS,
    ColumnFigures,
    TimeForm,
    best_auc,
    bucket_codes,
    has_decimal_commas,
    held_out_auc,
    in_words,
    noise,
    parts_of,
    rows_of_one_label,
    separator_of,
    time_form,
)
from tnctl.starting.file_form import FileForm

# The likeliest first. A prefix is_ or has_, and a suffix _label, do not matter.
LABELS = (
    "label", "labels", "target", "click", "clicked", "clicks", "clk", "ctr", "y", "action",
    "conversion", "converted", "purchase", "purchased", "buy", "bought", "order", "ordered",
    "outcome", "response", "churn", "churned", "default", "defaulted", "survived", "class",
    "install", "installed", "subscribed", "deposit", "fraud", "approved", "income", "like", "liked",
    "result", "rating", "ratings", "stars", "score",
)  # fmt: skip
RATINGS = LABELS[LABELS.index("rating") :]  # they may be numbers
RATING_VALUES = 21
POSITIVE = {"1", "true", "t", "yes", "y", "click", "clicked", "positive", "good"}
UNIQUE = 0.999  # the share of distinct values of a row identifier
FEWEST_UNIQUE = 20  # rows in which no value comes again, before that means something
DEPENDS = 0.01  # the AUC, at least, by which ids are better than buckets, or buckets than ids
STRONG = 0.05  # the share of rare values
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
class ProposedInput:
    """An entry of `slots` or `numeric`: its settings, and what shows them."""

    section: str
    name: str
    column: str
    settings: dict[str, Any]
    evidence: str


@dataclass
class Column:
    """A column of the data: its kind in words, and the inputs that it becomes, if any."""

    figures: ColumnFigures
    kind: str
    inputs: list[ProposedInput] = field(default_factory=list)
    remark: str = ""  # why it is no input
    warning: str = ""
    times: TimeForm | None = None


@dataclass(frozen=True)
class Context:
    """What the kind of a column depends on beside it."""

    form: FileForm
    labels: NDArray[np.float64]  # [rows]
    rows: int  # about how many there are in all

    @property
    def buckets(self) -> int:
        """How many buckets the number of rows allows."""
        return max(FEWEST_BUCKETS, min(BUCKETS, self.rows // ROWS_OF_A_BUCKET))


def kind_of(column: ColumnFigures, context: Context) -> Column:
    """The kind of a column, and the inputs that it becomes; none where it gives the label away."""
    result = _recognised(column, context)
    column, reason = result.figures, ""
    if rows := rows_of_one_label(column.row_codes, context.labels):
        value = quoted(column.texts()[rows[0]]) if column.lengths is None else "values"
        reason = in_words(rows, value)
    elif result.inputs:
        best = best_auc(column, context.labels)
        if best >= GIVES_AWAY:
            # Ranked by it alone nearly every row with label 1 comes before every row with label 0.
            reason = f"alone it has an AUC of {best:.3f}"
        elif best >= SUSPICIOUS:
            result.warning = (
                f"{column.name} alone has an AUC of {best:.3f}: is it known before the label is?"
            )
    if not reason:
        return result
    remark = f"it gives the label away: {reason}"
    return Column(column, "giveaway", remark=remark, warning=f"{column.name}: {remark}")


def _recognised(column: ColumnFigures, context: Context) -> Column:
    """The kind of a column by its values: the first of these that fits."""
    shown = column.examples()
    is_text = column.form == "text" and column.number_share < 1
    is_unique = column.distinct >= UNIQUE * column.occurring and column.occurring >= FEWEST_UNIQUE
    if column.form == NO_UTF8:
        return _left_out(column, f"it has {NO_UTF8}. Save it as UTF-8")
    if column.form not in FORMS:
        return _left_out(column, f"values {column.form}")
    if not column.occurring:
        return Column(column, "empty", remark="no value in the rows that were read")
    if column.distinct == 1 and not column.missing and column.lengths is None:
        return Column(column, "constant", remark=f"always {shown}")
    if times := time_form(column):
        return Column(column, "time", times=times)
    if context.form.keys.get("delimiter") != "," and has_decimal_commas(column):
        remark = f"numbers with a comma, such as {shown}: write them with a point"
        return _left_out(column, remark, "decimal commas")
    if separator := separator_of(column):
        return _list_of(parts_of(column, separator), separator)
    if column.lengths is not None:
        return _list_of(column, None)
    if column.form == "boolean" and context.form.format == "jsonl":  # whose booleans are no ids
        result = _id_of(column)
        result.inputs[0].settings |= {"ids": "boundaries", "boundaries": [0.5]}
        return result
    if column.form == "boolean" or column.name in context.form.ids:
        return _id_of(column)
    if is_unique and (is_text or _ascends(column)):
        return Column(column, "row identifier", remark=f"no value comes again: {shown}")
    if is_text:
        return _id_of(column)
    if np.isinf(column.numbers).any():
        return Column(column, "unsupported", remark=f"infinite numbers: {shown}")
    if is_unique or not column.is_whole:
        return _number_of(column, context)
    return _integers(column, context)


def _left_out(column: ColumnFigures, remark: str, kind: str = "unsupported") -> Column:
    """A column that the user should know is no input."""
    warning = f"{column.name} is left out: {remark}"
    return Column(column, kind, remark=remark, warning=warning)


# ---- One value in a row ------------------------------------------------------------------


def _ascends(column: ColumnFigures) -> bool:
    """Whether integers go up from row to row, or by 1 where they go up."""
    steps = column.steps
    return column.is_whole and bool((steps > 0).all() or np.median(np.abs(steps)) == 1)


def _integers(column: ColumnFigures, context: Context) -> Column:
    """Integers are ids or numbers: by what each would tell, and by how they spread."""
    zeros = column.form == "text" and any(re.fullmatch(r"0\d+", t) for t in column.texts()[:1000])
    if zeros or np.abs(column.present).max() > 2**53:
        return _id_of(column)
    if column.distinct <= FEW_VALUES:
        return _id_of(column, ASKED)
    if _are_codes(column):
        return _id_of(column, "integers that come again, with gaps between: ids. ")
    is_uneven = _is_uneven(column.present)
    if not (is_uneven and column.occurring < ONCE * column.distinct):
        of_ids = held_out_auc(column.codes, context.labels)
        gain = of_ids - held_out_auc(bucket_codes(column), context.labels)
        # Values that are too rare have no effect each that can be learned.
        least = DEPENDS if column.occurring >= REPEATED * column.distinct else STRONG
        least = max(least, noise(context.labels))
        if gain > least:
            return _id_of(column, "integers, by their effect ids. ")
        if gain < -least:
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


def _are_codes(column: ColumnFigures) -> bool:
    """Whether integers come again though most of those between never occur, as codes do.

    Where amounts and counts are densest, nearly all between occur, if most come again; or all in
    steps, such as multiples of 50. Where 0 occurs, the others may be amounts.
    """
    occurs = (column.counts > 0) & np.isfinite(column.numbers)
    values = np.unique(column.numbers[occurs].astype(np.int64))
    half = len(values) // 2
    if np.median(column.counts[occurs]) < ONCE or 0 in values or not half:
        return False
    narrowest = int((values[half:] - values[:-half]).min())
    return narrowest > CODES_APART * half * int(np.gcd.reduce(values - values[0]))


def _is_uneven(present: NDArray[np.float64]) -> bool:
    """Whether distinct integers [n] crowd at one end, as amounts do."""
    values = np.sort(present)
    spread = (values - values[0]) / (values[-1] - values[0])
    return bool(np.abs(spread - np.linspace(0, 1, len(values))).max() > 0.25)


def _id_of(column: ColumnFigures, shown: str = "") -> Column:
    """A slot of ids: a row for each text or integer; of ids as floats a bucket for each."""
    settings: dict[str, Any] = {}
    if column.form == "number":  # as pandas makes integers of a column with gaps
        buckets = min(MOST_BUCKETS, 2 * column.distinct + 2)
        settings = {"ids": "quantiles", "buckets": buckets}
        shown += "Floats: write integers where there are more in all rows. "
    if column.missing:
        settings["missing"] = "value"
    slot = ProposedInput("slots", column.name, column.name, settings, shown + _coverage(column))
    return Column(column, "id", [slot])


def _coverage(column: ColumnFigures) -> str:
    gaps = "none missing" if not column.missing else f"{column.missing / column.rows:.2%} missing"
    return f"{column.distinct:,} values, {gaps}; {column.examples()}"


def _number_of(column: ColumnFigures, context: Context, shown: str = "") -> Column:
    """A number: buckets with an embedding each, and beside many even values the number itself."""
    values, counts = column.present, column.counts[column.counts > 0]
    shown += f"{column.distinct:,} numbers from {values.min():g} to {values.max():g}"
    settings: dict[str, Any] = {"ids": "row_quantiles"}
    if column.missing:
        shown += f", {column.missing / column.rows:.1%} missing"
        settings["missing"] = "value"
    buckets = context.buckets
    if column.occurring < REPEATED * column.distinct:  # too rare to have an effect of their own
        in_all = column.occurring * max(context.rows, column.rows) // column.rows
        buckets = max(FEWEST_BUCKETS, min(buckets, in_all // ROWS_WHERE_RARE))
    if buckets != BUCKETS:
        settings["buckets"] = buckets
    inputs = [ProposedInput("slots", column.name, column.name, settings, shown)]
    # Numbers with a long tail, standardized, are not of the scale of other inputs.
    if column.distinct > context.buckets and not _has_long_tail(values, counts):
        standardized = {"transform": "standardize"}
        name = f"{column.name}_number"
        inputs.append(ProposedInput("numeric", name, column.name, standardized, shown))
    return Column(column, "number", inputs)


def _has_long_tail(values: NDArray[np.float64], counts: NDArray[np.int64]) -> bool:
    """Whether the largest of numbers [n] is many deviations above their mean; most are above 0."""
    mean = np.average(values, weights=counts)
    deviation = np.sqrt(np.average((values - mean) ** 2, weights=counts))
    return bool(deviation and values.max() - mean > SKEWED * deviation and values.min() > -10)


# ---- Several values in a row -------------------------------------------------------------


def _list_of(column: ColumnFigures, separator: str | None) -> Column:
    """Several values in a row: ids whose embeddings are averaged, or a vector of numbers."""
    assert column.lengths is not None
    filled = column.lengths[column.lengths > 0]
    longest = int(filled.max(initial=0))
    settings: dict[str, Any] = {} if separator is None else {"separator": separator}
    if column.form == "number" or (column.number_share == 1 and not column.is_whole):
        if not len(filled) or filled.min() < longest:
            remark = "lists of numbers: the weights of a slot of lists? (slots.NAME.weights)"
            return Column(column, "numbers", remark=remark)
        settings |= {"width": longest, "transform": "standardize"}
        shown = f"{longest} numbers in each row; {column.examples()}"
        entry = ProposedInput("numeric", column.name, column.name, settings, shown)
        return Column(column, "vector", [entry])
    if column.form == "boolean":
        return Column(column, "unsupported", remark="lists of true and false: write 0 and 1")
    is_matrix = separator is None and column.form == "integer" and column.lengths.min() == longest
    padded = is_matrix and longest > 1 and _is_padded(column, longest)
    if padded:
        settings |= {"ids": "integer", "padding": 0}
    settings["pooling"] = "mean"
    if longest > LONGEST:
        settings |= {"max_length": LONGEST, "keep": "last"}
    if column.missing and not padded:
        settings["missing"] = "value"
    mean = float(column.lengths.mean())
    shown = f"{mean:.1f} values in a row, at most {longest:,}; {_coverage(column)}"
    return Column(
        column, "several", [ProposedInput("slots", column.name, column.name, settings, shown)]
    )


def _is_padded(column: ColumnFigures, length: int) -> bool:
    """Whether lists of one length end in zeros, which occur nowhere else in them."""
    if (column.codes < 0).any():
        return False
    zero = (column.numbers[column.codes] == 0).reshape(-1, length)
    return bool(
        zero.any() and (column.numbers >= 0).all() and not (zero[:, :-1] & ~zero[:, 1:]).any()
    )


# ---- The label ---------------------------------------------------------------------------


@dataclass
class ChosenLabel:
    """The label: the keys of data.label, the label of each row as 0 or 1, and what shows it.

    `doubts` are what could not be known.
    """

    column: str
    keys: dict[str, object]
    values: NDArray[np.float64]  # [rows], NaN where missing
    evidence: str
    doubts: list[str] = field(default_factory=list)
    missing: int = 0


def choose_label(
    columns: Mapping[str, ColumnFigures], given: str | None, positive: Sequence[str], is_named: bool
) -> ChosenLabel:
    """The label of a sample; `given` and `positive` are of the command line.

    `is_named`: the names of columns come from the data. Raises `UserError` when no column can be
    the label, or several and nothing says which.
    """
    if given is not None:
        refuse_if(given not in columns, f"no column '{given}'. {did_you_mean(given, columns)}")
        return _as_label(columns[given], positive, "as given")
    by_name = sorted((LABELS.index(p), name) for name in columns if (p := _plain(name)) in LABELS)
    binary = [
        name
        for name, column in columns.items()
        if column.lengths is None and column.distinct == 2 and column.missing * 2 < column.rows
    ]
    for _, name in by_name:
        if name in binary or (_plain(name) in RATINGS and _is_rating(columns[name])):
            return _as_label(columns[name], positive, "by its name")
    if not is_named:  # first or last, as most files have it
        names = list(columns)
        ends = [name for name in (names[0], names[-1]) if name in binary]
        binary = sorted(ends, key=lambda name: columns[name].number_share < 1)[:1] or binary
    if len(binary) == 1:
        chosen = _as_label(columns[binary[0]], positive, "it has two values")
        chosen.doubts.append(f"whether {chosen.column} is the label: no name says so (label=NAME)")
        return chosen
    refuse_if(
        binary,
        f"which column is the label? {', '.join(binary[:10])} have two values. Give label=NAME",
    )
    for _, name in by_name:
        if columns[name].lengths is None and columns[name].distinct == 1:
            return _as_label(columns[name], positive, "")  # which says what is wrong with it
    raise UserError(
        "no column looks like a label (0 and 1, or two texts). Give label=NAME. "
        f"{did_you_mean('label', columns)}"
    )


def _plain(name: str) -> str:
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    return re.sub(r"^(is|has|was|did)_|_(label|flag)$", "", plain) or plain


def _is_rating(column: ColumnFigures) -> bool:
    is_number = column.number_share == 1 and column.lengths is None and not column.missing
    return is_number and 2 < column.distinct <= RATING_VALUES


def _as_label(column: ColumnFigures, positive: Sequence[str], reason: str) -> ChosenLabel:
    """A column as the label. Raises `Failure` or `UserError` for one that cannot be it."""
    name = f"the label in column '{column.name}'"
    refuse_if(column.lengths is not None, f"{name} has lists. A label is one value", Failure)
    refuse_if(
        column.distinct < 2,
        f"{name} is {quoted(column.examples())} in all {column.rows:,} rows that were read, so "
        "nothing can be learned. Shuffle the rows, or give label=NAME",
        Failure,
    )
    doubts: list[str] = []
    if column.number_share == 1 and not positive:
        keys, is_one = _by_numbers(column, doubts)
    else:
        texts = column.texts()
        positive = list(positive) or [_positive_of(column, doubts)]
        for text in positive:
            refuse_if(
                text not in texts,
                f"{name} is never {quoted(text)}. {did_you_mean(text, texts[:1000])}",
            )
        # Of booleans the reader has 1 and 0.
        keys = {} if column.form == "boolean" else {"positive": positive}
        is_one = np.isin(texts, positive)
    values = np.append(is_one.astype(np.float64), np.nan)[column.codes]
    rate = float(np.nanmean(values))
    refuse_if(
        rate in (0, 1),
        f"{name} is 1 in {'every' if rate else 'no'} row with {keys}. Give other texts as "
        "positive=, or another label=NAME",
        Failure,
    )
    evidence = f"{reason}; 1 in {rate:.1%} of {column.rows - column.missing:,} rows"
    keys = {"column": column.name, **keys}
    return ChosenLabel(column.name, keys, values, evidence, doubts, column.missing)


def _by_numbers(
    column: ColumnFigures, doubts: list[str]
) -> tuple[dict[str, object], NDArray[np.bool_]]:
    """A label of numbers: as it is where it is 0 or 1, else by the number above which it is 1."""
    numbers, present = column.numbers, np.unique(column.present)
    if present[0] >= 0 and present[-1] <= 1:
        return {}, numbers >= 0.5
    doubt = f"above which number {column.name} counts as 1: "
    if len(present) == 2:
        above = max(float(present[0]), 0.0)
    elif present[0] == 0 and 2 * column.counts[numbers == 0].sum() >= column.occurring:
        above = 0.0
        doubts.append(f"{doubt}most are 0, so it is 0")
    else:
        above = float(np.floor((present[0] + present[-1] + 1) / 2))
        doubts.append(f"{doubt}{above:g} is about the middle")
    with np.errstate(invalid="ignore"):
        return {"above": int(above) if above.is_integer() else above}, numbers > above


def _positive_of(column: ColumnFigures, doubts: list[str]) -> str:
    """The text of two that counts as 1: a usual word, else the rarer one."""
    occurring = zip(column.texts(), column.counts, strict=True)
    counts = {text: count for text, count in occurring if count}
    refuse_if(
        len(counts) > 2,
        f"the label in column '{column.name}' has {len(counts):,} different texts, such as "
        f"{column.examples()}. Give positive=TEXT, those that count as 1, by commas",
    )
    by_word = [text for text in counts if text.strip().lower() in POSITIVE]
    if len(by_word) == 1:
        return by_word[0]
    rarer = min(counts, key=lambda text: (counts[text], text))
    doubts.append(f"which text of {column.name} counts as 1: {quoted(rarer)} is the rarer one")
    return rarer


def spellings(positive: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Further spellings of positive texts in the files of other splits, such as `>50K.`."""
    plain = {text.strip(" .").lower() for text in positive}
    return [text for text in texts if text not in positive and text.strip(" .").lower() in plain]
