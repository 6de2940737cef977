"""Rows to records and back: ranges, deltas, fresh records, many keys at once."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tnctl.tables import (
    InitialWeights,
    Pool,
    RowOptimizer,
    Segment,
    SlotPlan,
    SparseTable,
    Workspace,
)

NAMES = {0: "item", 9: "user", 4: "tag"}
SEGMENTS = [
    Segment("linear", 1, "sum", RowOptimizer("ftrl", learning_rate=0.1)),
    Segment("embedding", 5, "concat", RowOptimizer("adam", learning_rate=0.1)),
]


def new_table(threads: int) -> SparseTable:
    table = SparseTable(SEGMENTS, 3, Pool(threads))
    for number, name in NAMES.items():
        table.add_group(number, name, [InitialWeights("zeros", 0.0), InitialWeights("normal", 0.1)])
    return table


def train(table: SparseTable, ids: dict[int, NDArray[np.uint64]], step: int) -> None:
    """One example whose cells are the ids of each group."""
    batch = Workspace(table, [SlotPlan(group, "sum", 0) for group in ids])
    flat = np.concatenate(list(ids.values()))
    offsets = np.cumsum([0, *map(len, ids.values())]).astype(np.uint32)
    table.set_step(step)
    batch.find(flat, offsets, 1, insert=True)
    rng = np.random.default_rng(step)
    batch.accumulate([rng.standard_normal((1, n)).astype(np.float32) for n in (1, 5)])
    batch.apply()


def filled_table(rows: int, threads: int = 2, steps: int = 5) -> SparseTable:
    """About `rows` rows, changed at steps 1 to `steps`."""
    table, rng = new_table(threads), np.random.default_rng(1)
    for step in range(1, steps + 1):
        chosen = {group: rng.integers(0, rows, rows // 6).astype(np.uint64) for group in NAMES}
        train(table, chosen, step)
    return table


def all_records(table: SparseTable, **options: int) -> NDArray[Any]:
    parts = list(table.records(**options))
    return np.concatenate(parts) if parts else np.empty(0, table.record_dtype)


# ---- Deltas ----------------------------------------------------------------


def test_a_delta_is_the_rows_changed_from_a_step_on() -> None:
    table = filled_table(3000)
    whole = all_records(table)
    assert set(whole["changed"].tolist()) == {1, 2, 3, 4, 5}
    for step in (0, 1, 2, 5, 6, 2**32 - 1):
        wanted = whole[whole["changed"] >= step]
        assert np.array_equal(all_records(table, changed_from=step), wanted)
    half = 2**63
    parts = [
        all_records(table, first=0, last=half - 1, changed_from=4, at_a_time=100),
        all_records(table, first=half, changed_from=4, at_a_time=100),
    ]
    assert np.array_equal(np.concatenate(parts), whole[whole["changed"] >= 4])


# ---- Loading ---------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("at_a_time", [100, 1 << 17])
def test_loaded_records_are_the_same_again(threads: int, at_a_time: int) -> None:
    table = filled_table(4000)
    copy = new_table(threads)
    copy.reserve(table.rows)
    for records in table.records(at_a_time=at_a_time):
        copy.insert_records(records.view("u1"))
    assert np.array_equal(all_records(copy), all_records(table))
    assert [copy.group_rows(group) for group in NAMES] == [table.group_rows(g) for g in NAMES]
    # it trains on as the one it came from
    ids = {group: np.arange(1000, 2000, dtype=np.uint64) for group in NAMES}
    for each in (table, copy):
        train(each, ids, 6)
    assert np.array_equal(all_records(copy), all_records(table))


# ---- Keys ------------------------------------------------------------------


def test_fresh_records_are_those_of_rows_just_inserted() -> None:
    table = new_table(3)
    ids = {group: np.arange(100, dtype=np.uint64) * 7 for group in NAMES}
    batch = Workspace(table, [SlotPlan(group, "sum", 0) for group in NAMES])
    table.set_step(12)
    offsets = np.array([0, 100, 200, 300], np.uint32)
    batch.find(np.concatenate(list(ids.values())), offsets, 1, insert=True)
    whole = all_records(table)
    other = new_table(2)
    other.set_step(12)
    assert np.array_equal(other.fresh_records(whole["group"], whole["id"]), whole)
    assert other.rows == 0
    backwards = other.fresh_records(whole["group"][::-1], whole["id"][::-1])
    assert np.array_equal(backwards, whole[::-1])
    assert len(other.fresh_records(np.empty(0, np.uint16), np.empty(0, np.uint64))) == 0


def test_contains_tells_for_each_key() -> None:
    table = filled_table(2000)
    there = all_records(table)
    rng = np.random.default_rng(2)
    groups = rng.choice(list(NAMES), 5000).astype(np.uint16)
    ids = rng.integers(0, 4000, 5000).astype(np.uint64)
    known = set(zip(there["group"].tolist(), there["id"].tolist(), strict=True))
    wanted = [key in known for key in zip(groups.tolist(), ids.tolist(), strict=True)]
    assert table.contains(groups, ids).tolist() == wanted
    assert any(wanted) and not all(wanted)
    assert table.contains(there["group"], there["id"]).all()
