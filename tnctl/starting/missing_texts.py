"""Texts that mean a missing value in the sample."""

from collections.abc import Mapping

import numpy as np

from tnctl.errors import quoted
from tnctl.starting.column_figures import Figures

KNOWN = {
    "?", "NA", "N/A", "n/a", "#N/A", "null", "NULL", "Null", "None", "NaN", "nan", "\\N", "nil",
    "<NA>",
}  # fmt: skip
OF_NUMBERS = {"-", "--", ".", "*", "none", "unknown", "Unknown", "missing", "na"}
NUMBERS = 0.9  # the share of other values that are numbers


def missing_texts(columns: Mapping[str, Figures]) -> dict[str, str]:
    """The texts, each with what shows it. The empty text is always missing."""
    texts: dict[str, str] = {}
    for name, column in columns.items():
        if column.form != "text" or not column.occurring:
            continue
        values = column.texts()
        counts = column.counts
        gone = [at for at, text in enumerate(values) if text in KNOWN and counts[at]]
        numeric = ~np.isnan(column.numbers)
        filled = (
            column.occurring
            - counts[gone].sum()
            - sum(counts[at] for at, text in enumerate(values) if text == "")
        )
        if 0 < counts[numeric].sum() >= NUMBERS * filled:
            stray = [at for at in np.flatnonzero(~numeric & (counts > 0)) if values[at]]
            gone += [int(at) for at in stray if values[at] in OF_NUMBERS]
        for at in gone:
            shown = f"{quoted(values[at])} in {counts[at]:,} rows of {name}"
            texts.setdefault(values[at], shown)
    return texts
