"""Rows of a checkpoint as they are read at its step and day, weights, show and click decayed."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.checkpoint import rows
from tnctl.checkpoint.chain import Checkpoint
from tnctl.checkpoint.table_document import LAST_HASH, Table
from tnctl.tables import days_of_steps, weight_factors


def known_rows(
    checkpoint: Checkpoint, table: str, first: int = 0, last: int = LAST_HASH
) -> Iterator[NDArray[Any]]:
    """The rows of a table, arrays [n] of its record dtype, all of groups that the manifest has.

    Those with first <= hash <= last, in (hash, group) order.

    Raises DamagedError. The checksum of a file is checked only after its last record.
    """
    known = np.zeros(1 << 16, bool)
    known[[group.number for group in checkpoint.table(table).groups]] = True
    for records in rows.stream(checkpoint, table, first, last):
        if not known[records["group"]].all():
            rows.raise_damage(checkpoint, table, "has a row of a group that is not there")
        yield records


def as_read(records: NDArray[Any], table: Table, step: int) -> NDArray[Any]:
    """Records [n] of the table's record dtype with the weights that are read at a step."""
    for segment in table.segments:
        optimizer = segment.optimizer.rule()
        if optimizer.decays:
            records = records.copy()
            unread = (step - records["changed"]).astype(np.uint32)
            factors = weight_factors(optimizer, segment.name, records, unread)
            records[segment.name] *= factors[:, np.newaxis]
    return records


def shows_as_read(
    records: NDArray[Any], table: Table, days: Sequence[tuple[int, int]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Show and click of records [n], float64 [n] each, as they are read on the last of the days.

    `days` are (day, first step), ascending.
    """
    decays = np.ones(1 << 16)
    for group in table.groups:
        decays[group.number] = (table.life.decay or {})[group.name]
    left = decays[records["group"]] ** unseen_days(records["changed"], days)
    return records["show"][:, 0] * left, records["click"][:, 0] * left


def unseen_days(changed: NDArray[np.uint32], days: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """The days between the steps of last updates [n] and the last of the days, int64 [n].

    `days_of_steps` gives the day of a step.
    """
    last_day = days[-1][0] if days else 0
    return last_day - days_of_steps(days, changed).astype(np.int64)
