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
OUTCOMES = frozenset(LABELS) - {"class", "income", "score", "default", "result", "action", "order"}
RATINGS = {"rating", "ratings", "stars", "score"}
RATING_VALUES = 21
POSITIVE = {
    "1", "1.0", "true", "t", "yes", "y", "click", "clicked", "pos", "positive", "good", "won",
    "converted", "purchased", "buy", "bought", "churned", "fraud", "spam", "approved", "success",
    "paid", "active", "like", "liked", "+",
}  # fmt: skip
NEGATIVE = {"0", "no", "n", "f", "false", "none", "neg", "negative", "-", "bad", "lost", "failure"}


@dataclass
class ChosenLabel:
    """The label: the keys of data.label, the label of each row as 0 or 1, and what shows it.

    `others` are columns that look like outcomes too, and `doubts` what could not be known.
    """

    column: str
    keys: dict[str, object]
    values: NDArray[np.float64]  # [rows], NaN where missing
    evidence: str
    others: list[str] = field(default_factory=list)
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
        chosen = _as_label(columns[given], positive)
        chosen.evidence = f"as given; {chosen.evidence}"
    else:
        chosen = _found_label(columns, positive, is_named)
    chosen.others = [
        name
        for name, column in columns.items()
        if name != chosen.column and _is_binary(column) and _plain(name) in OUTCOMES
    ]
    return chosen


def _plain(name: str) -> str:
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    return re.sub(r"^(is|has|was|did)_|_(label|flag)$", "", plain) or plain


def _is_binary(column: Figures) -> bool:
    return column.lengths is None and column.distinct == 2 and column.missing * 2 < column.rows


def _is_rating(column: Figures) -> bool:
    return (
        column.lengths is None
        and 2 < column.distinct <= RATING_VALUES
        and column.number_share == 1
        and not column.missing
    )


def _found_label(
    columns: Mapping[str, Figures], positive: Sequence[str], is_named: bool
) -> ChosenLabel:
    for wanted in LABELS:
        for name, column in columns.items():
            if _plain(name) != wanted:
                continue
            if _is_binary(column) or (wanted in RATINGS and _is_rating(column)):
                chosen = _as_label(column, positive)
                chosen.evidence = f"by its name; {chosen.evidence}"
                return chosen
    binary = [name for name, column in columns.items() if _is_binary(column)]
    names = list(columns)
    at_ends = [name for name in (names[0], names[-1]) if name in binary]
    if not is_named and at_ends:
        binary = [
            min(at_ends, key=lambda name: (not _is_zero_or_one(columns[name]), names.index(name)))
        ]
        if len(at_ends) > 1 and not _is_zero_or_one(columns[binary[0]]):
            binary = at_ends
    if len(binary) == 1:
        chosen = _as_label(columns[binary[0]], positive)
        place = "at the end of the line" if not is_named else "the only one with two values"
        chosen.evidence = f"{place}; {chosen.evidence}"
        chosen.doubts.append(f"whether {chosen.column} is the label: no name says so (label=NAME)")
        return chosen
    if binary:
        raise UserError(
            f"which column is the label? {', '.join(binary[:10])} have two values. Give label=NAME"
        )
    for name, column in columns.items():
        if _plain(name) in LABELS and column.lengths is None and column.distinct == 1:
            return _as_label(column, positive)  # which says what is wrong with it
    raise UserError(
        "no column looks like a label (0 and 1, or two texts). Give label=NAME. "
        f"{did_you_mean('label', columns)}"
    )


def _is_zero_or_one(column: Figures) -> bool:
    return set(column.numbers[column.counts > 0].tolist()) == {0.0, 1.0}


def _as_label(column: Figures, positive: Sequence[str]) -> ChosenLabel:
    """A column as the label. Raises `Failure` for one that cannot be it."""
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
    keys: dict[str, object]
    doubts: list[str] = []
    if positive:
        keys, of_values = _by_texts(column, positive), np.isin(column.texts(), positive)
    elif column.number_share == 1:
        keys, of_values, doubts = _by_numbers(column)
    else:
        refuse_if(
            column.distinct > 2,
            f"the label in column '{name}' has {column.distinct:,} different texts, such as "
            f"{column.examples()}. Give positive=TEXT, those that count as 1, by commas",
        )
        chosen, doubts = _positive_of(column)
        keys, of_values = _by_texts(column, [chosen]), np.array(column.texts()) == chosen
    by_code = np.append(of_values.astype(np.float64), np.nan)
    values = by_code[column.codes]
    rate = float(np.nanmean(values))
    refuse_if(
        rate in (0, 1),
        f"with {keys} {'every' if rate else 'no'} row has label 1 in '{name}'. Give other texts as "
        "positive=, or another label=NAME",
        Failure,
    )
    evidence = f"1 in {rate:.1%} of {column.rows - column.missing:,} rows"
    return ChosenLabel(name, {"column": name, **keys}, values, evidence, [], doubts, column.missing)


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


def _by_numbers(column: Figures) -> tuple[dict[str, object], NDArray[np.bool_], list[str]]:
    """A label of numbers: as it is where it is 0 or 1, else by the number above which it is 1."""
    numbers, name = column.numbers, column.name
    present = np.unique(numbers[column.counts > 0])
    doubts: list[str] = []
    if present.min() >= 0 and present.max() <= 1:
        return {}, numbers >= 0.5, doubts
    is_zero = numbers == 0
    if present[0] == 0 and 2 * column.counts[is_zero].sum() >= column.occurring:
        above = 0.0
        if len(present) > 2:
            doubts.append(f"above which number {name} counts as 1: most are 0, so it is 0")
    elif len(present) == 2:
        above = float(present[0]) if present[0] >= 0 else 0.0
    else:
        above = float(np.floor((present[0] + present[-1] + 1) / 2))
        doubts.append(f"above which number {name} counts as 1: {above:g} is about the middle")
    with np.errstate(invalid="ignore"):
        return {"above": int(above) if above.is_integer() else above}, numbers > above, doubts


def _positive_of(column: Figures) -> tuple[str, list[str]]:
    """The text of two that counts as 1."""
    present = [text for text, n in zip(column.texts(), column.counts, strict=True) if n]
    first, second = sorted(present, key=len)
    plain = {text: text.strip().lower() for text in present}
    by_word = [text for text in present if plain[text] in POSITIVE]
    if len(by_word) == 1:
        return by_word[0], []
    by_other = [text for text in present if plain[text] not in NEGATIVE]
    if len(by_other) == 1:
        return by_other[0], []
    # click and no_click; >50K and <=50K
    if plain[second].endswith(plain[first]) and re.match(r"(no|non|not|un)", plain[second]):
        return first, []
    greater = [text for text in present if text.startswith(">")]
    if len(greater) == 1:
        return greater[0], []
    counts = dict(zip(column.texts(), column.counts.tolist(), strict=True))
    rarer = min(present, key=lambda text: (counts[text], text))
    return rarer, [f"which text of {column.name} counts as 1: {quoted(rarer)} is the rarer one"]


def variants(positive: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Further spellings of positive texts in the files of other splits, such as `>50K.`."""
    plain = {text.strip(" .").lower() for text in positive}
    return [text for text in texts if text not in positive and text.strip(" .").lower() in plain]
