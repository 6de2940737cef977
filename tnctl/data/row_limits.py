"""Rows and windows beyond the limits of tnctl/limits.py: refused, naming the row."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tnctl import limits
from tnctl.data.bad_rows import refuse
from tnctl.data.file_pieces import Where
from tnctl.errors import UserError


def refuse_many(
    lengths: pa.Array, most: int, kind: str, column: str, where: Where
) -> NDArray[np.int64]:
    """Lengths of the values of a column as int64 [rows], 0 where null.

    Raises `BadRowsError` where one is over `most`; `kind` names what is counted.
    """
    counts = pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    refuse(
        counts > most,
        where,
        lambda row: (
            f"{counts[row]:,} {kind}, and a row has at most {most:,}. Split or remove the row"
        ),
        column,
    )
    return counts


def refuse_many_ids(counts: NDArray[np.float64], subject: str, where: Where) -> None:
    """Raise `BadRowsError` for rows with more ids (counts: [rows]) than a row may have."""
    refuse(
        counts > limits.ROW_VALUES,
        where,
        lambda row: (
            f"{subject} {counts[row]:,.0f} ids, and a row has at most {limits.ROW_VALUES:,}. Give "
            "slots a max_length, or remove the row"
        ),
    )


def refuse_long_rows(offsets: Sequence[NDArray[np.int32] | None], where: Where) -> None:
    """Raise `BadRowsError` for rows with more ids in all slots than a row may have.

    `offsets` has the offsets int32 [rows + 1] of each slot's cells; None: one id in every row.
    """
    lengths = [np.diff(ends) for ends in offsets if ends is not None]
    one_each = len(offsets) - len(lengths)
    # The sum of the longest cells is beyond the limit in hardly any data.
    if one_each + sum(int(cells.max(initial=0)) for cells in lengths) > limits.ROW_VALUES:
        counts = np.sum(lengths, axis=0, dtype=np.float64) + one_each
        refuse_many_ids(np.asarray(counts), "the slots have", where)


def refuse_large_window(ids: float) -> None:
    """Raise `UserError` for more ids than a window may have."""
    if ids > limits.WINDOW_IDS:
        raise UserError(
            f"a window has over {limits.WINDOW_IDS:,} ids. Take a smaller data.window, or give "
            "slots a max_length"
        )
