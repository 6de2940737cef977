"""Batches: rows as the tables take them, cut, chosen and put together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tnctl.data import Float32s, Float64s, Uint32s, Uint64s
from tnctl.errors import Failure
from tnctl.tables import columns as c_columns

OF_ROWS = ("numeric", "labels", "weight", "reference", "group")  # arrays with an entry per row


@dataclass
class Batch:
    """Consecutive or chosen rows of the data, ready for the tables."""

    ids: list[Uint64s]  # per table: [n_ids], example after example, cell after cell
    offsets: list[Uint32s]  # per table: [rows * cells_of_an_example + 1]
    weights: list[Float32s | None]  # per table: one per id; None without weights
    numeric: Float32s  # [rows, N]: numeric inputs, transformed, then one-hot counts
    labels: Float32s  # [rows, number of labels]; zeros when read without
    weight: Float32s | None = None  # [rows], of each example
    reference: Float64s | None = None  # [rows], NaN where missing
    group: Uint64s | None = None  # [rows], the hash of data.group's value
    carried: pa.Table | None = None  # the columns of data.carry, as they are in the files

    @property
    def rows(self) -> int:
        """The number of examples."""
        return len(self.labels)


def joined(parts: list[Batch]) -> Batch:
    """The rows of several batches, one batch after the other, as one."""
    if len(parts) == 1:
        return parts[0]
    tables = [part.carried for part in parts if part.carried is not None]
    return Batch(
        [np.concatenate(ids) for ids in zip(*(part.ids for part in parts), strict=True)],
        [_joined_offsets(ends) for ends in zip(*(part.offsets for part in parts), strict=True)],
        [_concatenated(of_ids) for of_ids in zip(*(part.weights for part in parts), strict=True)],
        **{name: _concatenated([getattr(part, name) for part in parts]) for name in OF_ROWS},
        carried=one_table(tables) if tables else None,
    )


def one_table(parts: list[pa.Table]) -> pa.Table:
    """Tables one after the other; a column may be null in one file and text in the next."""
    try:
        return pa.concat_tables(parts, promote_options="permissive")
    except pa.ArrowException as error:
        reason = str(error).split("\n")[0]
        raise Failure(
            f"the columns of data.carry have other types from file to file ({reason}). Write them "
            "alike, or carry others"
        ) from error


def _concatenated(parts: Sequence[Any]) -> Any:
    """Arrays one after the other; None when no part has any."""
    arrays = [part for part in parts if part is not None]
    return np.concatenate(arrays) if arrays else None


def _joined_offsets(parts: Sequence[Uint32s]) -> Uint32s:
    offsets = np.zeros(sum(len(part) - 1 for part in parts) + 1, np.uint32)
    at = 0
    for part in parts:  # in place: a window has tens of millions
        offsets[at + 1 : at + len(part)] = part[1:] + offsets[at]
        at += len(part) - 1
    return offsets


def batches(window: Batch, order: Uint32s, batch_size: int) -> Iterator[Batch]:
    """The batches of one window in an order (uint32 [rows]); the last one may be short."""
    for start in range(0, len(order), batch_size):
        yield taken(window, order[start : start + batch_size])


def taken(batch: Batch, chosen: Uint32s) -> Batch:
    """The chosen rows (uint32 [n]) of a batch, in the order chosen."""
    cells = [
        c_columns.take(ids, offsets, (len(offsets) - 1) // batch.rows, chosen, weights)
        for ids, offsets, weights in zip(batch.ids, batch.offsets, batch.weights, strict=True)
    ]
    arrays: dict[str, Any] = {name: getattr(batch, name) for name in OF_ROWS}
    for name, array in arrays.items():
        arrays[name] = None if array is None else array.take(chosen, axis=0)
    return Batch(
        [ids for ids, _, _ in cells],
        [offsets for _, offsets, _ in cells],
        [weights for _, _, weights in cells],
        **arrays,
        carried=None if batch.carried is None else batch.carried.take(chosen),
    )
