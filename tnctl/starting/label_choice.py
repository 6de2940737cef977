"""Which column is the label, and which of its values count as 1."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tnctl.errors import Failure, UserError, did_you_mean, quoted, refuse_if
from tnctl.starting.column_figures import Figures

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
    columns: Mapping[str, Figures], given: str | None, positive: Sequence[str], is_named: bool
) -> ChosenLabel:
    """The label of a sample; `given` and `positive` are of the command line.

    `is_named`: the names of columns come from the data. Raises `UserError` when no column can be
    the label, or several and nothing says which.
    """
    if given is not None:
        refuse_if(given not in columns, f"no column '{given}'. {did_you_mean(given, columns)}")
        return _as_label(columns[given], positive, "as given")
    by_name = sorted(
        (LABELS.index(plain), name) for name in columns if (plain := _plain(name)) in LABELS
    )
    for _, name in by_name:
        if _is_binary(columns[name]) or (_plain(name) in RATINGS and _is_rating(columns[name])):
            return _as_label(columns[name], positive, "by its name")
    binary = [name for name, column in columns.items() if _is_binary(column)]
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


def _is_binary(column: Figures) -> bool:
    return column.lengths is None and column.distinct == 2 and column.missing * 2 < column.rows


def _is_rating(column: Figures) -> bool:
    is_number = column.number_share == 1 and column.lengths is None and not column.missing
    return is_number and 2 < column.distinct <= RATING_VALUES


def _as_label(column: Figures, positive: Sequence[str], reason: str) -> ChosenLabel:
    """A column as the label. Raises `Failure` or `UserError` for one that cannot be it."""
    name = column.name
    refuse_if(
        column.lengths is not None, f"column '{name}' has lists, and a label is one value", Failure
    )
    refuse_if(not column.distinct, f"the label in column '{name}' has no value", Failure)
    if column.distinct == 1:
        raise Failure(
            f"the label in column '{name}' is {quoted(column.examples())} in all {column.rows:,} "
            "rows that were read, so nothing can be learned. Shuffle the rows, or give label=NAME"
        )
    doubts: list[str] = []
    if column.number_share == 1 and not positive:
        keys, is_one = _by_numbers(column, doubts)
    else:
        texts = list(positive) or [_positive_of(column, doubts)]
        keys, is_one = _by_texts(column, texts), np.isin(column.texts(), texts)
    values = np.append(is_one.astype(np.float64), np.nan)[column.codes]
    rate = float(np.nanmean(values))
    refuse_if(
        rate in (0, 1),
        f"with {keys} {'every' if rate else 'no'} row has label 1 in '{name}'. Give other texts as "
        "positive=, or another label=NAME",
        Failure,
    )
    evidence = f"{reason}; 1 in {rate:.1%} of {column.rows - column.missing:,} rows"
    return ChosenLabel(name, {"column": name, **keys}, values, evidence, doubts, column.missing)


def _by_texts(column: Figures, positive: Sequence[str]) -> dict[str, object]:
    texts = column.texts()
    for text in positive:
        refuse_if(
            text not in texts,
            f"the label in column '{column.name}' is never {quoted(text)}. "
            f"{did_you_mean(text, texts[:1000])}",
        )
    if column.form == "boolean":  # the reader has 1 and 0 for them
        return {}
    return {"positive": list(positive)}


def _by_numbers(column: Figures, doubts: list[str]) -> tuple[dict[str, object], NDArray[np.bool_]]:
    """A label of numbers: as it is where it is 0 or 1, else by the number above which it is 1."""
    numbers, name = column.numbers, column.name
    present = np.unique(numbers[column.counts > 0])
    if present.min() >= 0 and present.max() <= 1:
        return {}, numbers >= 0.5
    zeros = column.counts[numbers == 0].sum()
    if len(present) == 2:
        above = max(float(present[0]), 0.0)
    elif present[0] == 0 and 2 * zeros >= column.occurring:
        above = 0.0
        doubts.append(f"above which number {name} counts as 1: most are 0, so it is 0")
    else:
        above = float(np.floor((present[0] + present[-1] + 1) / 2))
        doubts.append(f"above which number {name} counts as 1: {above:g} is about the middle")
    with np.errstate(invalid="ignore"):
        return {"above": int(above) if above.is_integer() else above}, numbers > above


def _positive_of(column: Figures, doubts: list[str]) -> str:
    """The text of two that counts as 1: a usual word, else the rarer one."""
    counts = {
        text: int(count) for text, count in zip(column.texts(), column.counts, strict=True) if count
    }
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


def variants(positive: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Further spellings of positive texts in the files of other splits, such as `>50K.`."""
    plain = {text.strip(" .").lower() for text in positive}
    return [text for text in texts if text not in positive and text.strip(" .").lower() in plain]
