"""Batch size, passes and width of the model, by the number of rows."""

import math
from typing import Any

STEPS_OF_A_PASS = 150
LEAST_BATCH, MOST_BATCH = 32, 4096
ROWS_TRAINED = 1_000_000  # in all passes together, unless validation ends training before
MOST_PASSES = 20
SMALL, MIDDLE = 300_000, 3_000_000  # rows


def sections(rows: int) -> dict[str, tuple[dict[str, Any], str]]:
    """The sections recipe, train and evaluation for so many training rows."""
    exponent = round(math.log2(max(rows / STEPS_OF_A_PASS, 1)))
    batch = min(max(2**exponent, LEAST_BATCH), MOST_BATCH)
    passes = min(max(round(ROWS_TRAINED / max(rows, 1)), 1), MOST_PASSES)
    steps = -(-rows // batch)
    chosen: dict[str, tuple[dict[str, Any], str]] = {}
    if rows < SMALL:
        chosen["recipe"] = (
            {"hidden": [64, 32], "dropout": 0.3},
            "a small tower, with dropout, for few rows",
        )
    elif rows < MIDDLE:
        chosen["recipe"] = ({"hidden": [128, 64]}, f"for some {rows:,} rows")
    chosen["train"] = (
        {"batch_size": batch, "epochs": passes},
        f"{steps:,} steps in a pass, {steps * passes:,} in all",
    )
    if passes > 1:
        chosen["evaluation"] = (
            {"keep": "best", "patience": 2},
            "training ends when validation does not get better, and the best model is kept",
        )
    return chosen
