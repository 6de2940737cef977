"""Batch size, passes and width of the model, by the number of rows."""

from typing import Any

from tnctl.data.batch_sizes import by_rows

ROWS_TRAINED = 1_000_000  # in all passes together, unless validation ends training before
MOST_PASSES = 20
SMALL, MIDDLE = 300_000, 3_000_000  # rows


Sections = dict[str, tuple[dict[str, Any], str]]


def sections(rows: int) -> Sections:
    """The sections recipe, train and evaluation for so many training rows."""
    passes = min(max(round(ROWS_TRAINED / max(rows, 1)), 1), MOST_PASSES)
    batch, steps = _batch(rows)
    chosen = _recipe(rows)
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


def daily_sections(rows: int, days: int) -> Sections:
    """The sections recipe and train for so many rows in a day, of which so many are there."""
    batch, steps = _batch(rows)
    return {
        **_recipe(rows * days),
        "train": ({"batch_size": batch, "epochs": 1}, f"some {steps:,} steps in a day"),
    }


def _batch(rows: int) -> tuple[int, int]:
    """The batch size, and the steps in a pass."""
    batch = by_rows(rows)
    return batch, -(-rows // batch)


def _recipe(rows: int) -> Sections:
    """The section recipe, unless its defaults are good for so many rows."""
    if rows < SMALL:
        few = "a small tower, with dropout, for few rows"
        return {"recipe": ({"hidden": [64, 32], "dropout": 0.3}, few)}
    if rows < MIDDLE:
        return {"recipe": ({"hidden": [128, 64]}, f"for some {rows:,} rows")}
    return {}
