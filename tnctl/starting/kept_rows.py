"""The rows of training files that are kept for validation and test, where no file is for them."""

from collections.abc import Mapping
from typing import Any

from tnctl.starting.column import Column
from tnctl.starting.time_forms import are_in_order

# For validation, and of few rows more; for a test as many, where there are enough for both.
SHARE, LARGER_SHARE = 0.1, 0.2
FEW_ROWS, ENOUGH_ROWS = 5_000, 20_000


def kept_rows(
    rows: int, files: int, columns: Mapping[str, Column], event: str | None, has_test: bool
) -> tuple[dict[str, Any], str]:
    """`data.split` for so many rows of so many files, and why these.

    `event` is the column of the event's time; `has_test` says whether files are for the test.
    """
    share = SHARE if rows >= FEW_ROWS else LARGER_SHARE
    keys: dict[str, Any] = {"validation": share}
    each = f"{share:.0%} of its rows"
    if rows >= ENOUGH_ROWS and not has_test:
        keys["test"] = share
        each = f"{each} for validation and as many for the test"
    no_file = "there is one file" if files == 1 else "no file is for validation"
    for name, column in columns.items():
        if column.times and are_in_order(column.figures, column.times):
            keys["by"] = "last"
            return keys, f"{no_file}, in the order of {name}: the last {each}"
    at_random = f"{no_file}: {each.replace('its', 'the')}, at random"
    if event is not None:
        at_random += f", as they are not in the order of {event}: sort them by it to keep the last"
    return keys, at_random
