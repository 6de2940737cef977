"""Batch size, passes and width of the model, by the number of rows."""

import math
from typing import Any

STEPS_OF_A_PASS = 150
LEAST_BATCH, MOST_BATCH = 32, 4096
# Rows that are trained on in all passes together: more when validation ends training in time.
ROWS_TRAINED, ROWS_VALIDATED = 250_000, 1_000_000
MOST_PASSES, MOST_VALIDATED = 12, 20
RARE, PASSES_OF_RARE = 10.0, 3
SMALL, MIDDLE = 300_000, 3_000_000  # rows


def sections(
    rows: int, has_validation: bool, repeats: float
) -> dict[str, tuple[dict[str, Any], str]]:
    """The sections recipe, train and evaluation for so many training rows.

    `repeats` is how often the ids of the rarest slot occur on average: rare ids are learned by
    heart in a few passes.
    """
    exponent = round(math.log2(max(rows / STEPS_OF_A_PASS, 1)))
    batch = min(max(2**exponent, LEAST_BATCH), MOST_BATCH)
    trained = ROWS_VALIDATED if has_validation else ROWS_TRAINED
    most = MOST_VALIDATED if has_validation else MOST_PASSES
    passes = min(max(round(trained / max(rows, 1)), 1), most)
    if repeats < RARE and not has_validation:
        passes = min(passes, PASSES_OF_RARE)
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
    if has_validation and passes > 1:
        chosen["evaluation"] = (
            {"keep": "best", "patience": 2},
            "training ends when validation does not get better, and the best model is kept",
        )
    return chosen
