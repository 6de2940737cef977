"""Rows in the tables of other processes, against a model in numpy and against one table."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tnctl.optimizer_table import KINDS
from tnctl.tables import (
    DenseTable,
    InitialWeights,
    NotFiniteError,
    NotOwnedError,
    Pool,
    PullWorkspace,
    RankKeys,
    RowOptimizer,
    RowRules,
    Segment,
    SlotPlan,
    SparseTable,
    Workspace,
    key_hashes,
    weighted_sum,
)
from tnctl.tables.plans import NAMES

GROUPS = {0: "user", 5: "item"}
SGD = RowOptimizer("sgd", learning_rate=0.5)
ALL = (0, 64)
Array = NDArray[Any]


def make_table(
    shards: tuple[int, int] = ALL, threads: int = 1, rule: RowOptimizer = SGD, **settings: Any
) -> SparseTable:
    segments = [Segment("linear", 1, "sum", rule), Segment("embedding", 3, "concat", rule)]
    table = SparseTable(segments, 7, Pool(threads), **settings)
    table.set_shards(*shards)
    for number, name in GROUPS.items():
        table.add_group(number, name, [InitialWeights("zeros", 0), InitialWeights("uniform", 0.5)])
    return table


def records_of(*tables: SparseTable) -> Array:
    return np.concatenate([*(part for table in tables for part in table.records())])


# ---- Shards ------------------------------------------------------------------


def test_a_table_refuses_keys_of_other_shards() -> None:
    whole, part = make_table(threads=2), make_table((0, 20), threads=2)
    ids = np.arange(1000, dtype=np.uint64)
    groups = np.zeros(1000, np.uint16)
    shards = key_hashes(GROUPS, groups, ids) >> np.uint64(58)
    offsets = np.arange(1001, dtype=np.uint32)
    for table in (whole, part):
        workspace = Workspace(table, [SlotPlan(0, "sum", 0)])
        owned = ids if table is whole else ids[shards < 20]
        workspace.find(owned, offsets[: len(owned) + 1], len(owned), True)
        if table is part:
            for insert in (True, False):
                with pytest.raises(NotOwnedError, match="TN_NOT_OWNED"):
                    workspace.find(ids, offsets, 1000, insert)
            with pytest.raises(NotOwnedError):
                PullWorkspace(part).find([RankKeys(ids, groups)], True)
            assert part.rows == len(owned)
            with pytest.raises(NotOwnedError):
                make_table((0, 20)).insert_records(records_of(whole).tobytes())
    records = records_of(whole)
    split = [records[: part.rows], records[part.rows :]]
    assert np.array_equal(split[0], records_of(part))
    other = make_table((20, 44), threads=3)
    other.reserve(len(split[1]))
    other.insert_records(split[1].tobytes())
    assert np.array_equal(records_of(part, other), records)


# ---- What is not a message ----------------------------------------------------


def pulled(ranks: int = 1) -> tuple[PullWorkspace, int]:
    """A pull of 5 keys per rank."""
    pull = PullWorkspace(make_table(threads=2, shows=True))
    ids, groups = np.arange(5, dtype=np.uint64), np.array([0, 5, 0, 5, 0], np.uint16)
    pull.find([RankKeys(ids, groups)] * ranks, True)
    return pull, 5


WRONG_PUSHES: dict[str, tuple[Callable[[PullWorkspace], None], str]] = {
    "NaN": (lambda p: p.push_sums(0, np.full((5, 4), np.nan, np.float32)), "TN_NOT_FINITE"),
    "too large": (lambda p: p.push_sums(0, np.full((5, 4), 2.0**57, np.float32)), "TN_NOT_FINITE"),
    "size": (lambda p: p.push_sums(0, np.zeros((4, 4), np.float32)), "expected 20 items"),
    "bytes": (lambda p: p.push_sums(0, b"abc"), "buffer size"),
    "rank": (lambda p: p.push_sums(2, np.zeros((5, 4), np.float32)), "expected a rank below 2"),
    "weight": (lambda p: p.push_sums(0, np.zeros((5, 4), np.float32), 1.5), "TN_BAD_VALUE"),
    "no weight": (lambda p: p.push_sums(0, np.zeros((5, 4), np.float32), np.nan), "TN_BAD_VALUE"),
    "counts": (lambda p: p.push_shows(0, np.full((5, 2), -1, np.float32)), "TN_BAD_VALUE"),
    "no counts": (lambda p: p.push_shows(0, np.full((5, 2), np.inf, np.float32)), "TN_BAD_VALUE"),
    "unaligned": (lambda p: p.push_sums(0, memoryview(bytes(81))[1:]), "multiple of their size"),
}


@pytest.mark.parametrize("wrong", WRONG_PUSHES)
def test_a_wrong_push_changes_nothing(wrong: str) -> None:
    pull, n = pulled(ranks=2)
    fresh = records_of(pull.table)
    push, message = WRONG_PUSHES[wrong]
    with pytest.raises((ValueError, NotFiniteError), match=message):
        push(pull)
    for rank in range(2):
        pull.push_sums(rank, np.ones((n, 4), np.float32), 0.5)
    with pytest.raises(ValueError, match="TN_BAD_VALUE"):
        pull.push_sums(0, np.ones((n, 4), np.float32), 0.5)  # again
    pull.apply()
    np.testing.assert_array_equal(
        records_of(pull.table)["embedding"], fresh["embedding"] - np.float32(0.5)
    )


def test_rows_found_again_take_a_push_and_rows_that_are_gone_do_not() -> None:
    """Another pull came in between, which inserted rows; two rows were evicted, one inserted."""
    table = make_table(threads=2, shows=True, sketch_bytes=1 << 16)
    table.set_life(5, RowRules(admit_after=3))
    pull, other = PullWorkspace(table), PullWorkspace(table)
    keys = RankKeys(np.arange(6, dtype=np.uint64), np.array([0, 5, 0, 5, 0, 0], np.uint16))
    table.set_step(1)
    pull.find([keys], True)
    assert table.rows == 4  # those of group 5 wait, after one occurrence
    table.set_step(2)
    other.find([RankKeys(np.array([4, 5, 9], np.uint64), np.zeros(3, np.uint16))], True)
    other.push_sums(0, np.ones((3, 4), np.float32))
    other.apply()
    table.set_life(0, RowRules(unseen_steps=1))
    table.set_step(3)
    assert table.evict() == 2  # 0 and 2
    expected = records_of(table)
    for _ in range(3):
        pull.find_again(keys)  # does not count for admission
    pull.push_sums(0, np.arange(24, dtype=np.float32).reshape(6, 4))
    pull.push_shows(0, np.ones((6, 2), np.float32))
    pull.apply()
    records = records_of(table)
    assert table.rows == len(records) == 3 and set(records["id"]) == {4, 5, 9}
    # The widest segment is first in sums.
    moved = expected["embedding"] - records["embedding"]
    by_id = dict(zip(records["id"].tolist(), moved.tolist(), strict=True))
    assert by_id == {4: [8, 8.5, 9], 5: [10, 10.5, 11], 9: [0, 0, 0]}
    assert dict(zip(records["id"].tolist(), records["changed"].tolist(), strict=True)) == {
        4: 3, 5: 3, 9: 2,
    }  # fmt: skip
    pull.find([keys], False)
    with pytest.raises(ValueError, match="TN_NO_BATCH"):
        pull.push_sums(0, np.ones((6, 4), np.float32))


def test_a_key_that_is_sent_twice_has_one_row() -> None:
    pull = PullWorkspace(make_table())
    pull.find([RankKeys(np.array([7, 7], np.uint64), np.zeros(2, np.uint16))], True)
    records_before = records_of(pull.table)
    assert len(records_before) == pull.rows == 1
    pull.push_sums(0, np.ones((2, 4), np.float32))
    pull.apply()
    np.testing.assert_array_equal(records_of(pull.table)["linear"], records_before["linear"] - 1)


def test_mutated_keys_are_refused_or_found() -> None:
    """4,000 messages, some bytes of which are not as they were sent."""
    rng = np.random.default_rng(5)
    table = make_table((0, 32), sketch_bytes=1 << 16)
    table.set_life(5, RowRules(admit_after=200))
    pull, refused = PullWorkspace(table), 0
    ids = np.arange(200, dtype=np.uint64)
    groups = np.where(ids % 2 == 1, 5, 0).astype(np.uint16)
    owned = key_hashes(GROUPS, groups, ids) >> np.uint64(63) == 0
    ids, groups = ids[owned][:40], groups[owned][:40]
    for _ in range(4000):
        parts = [bytearray(part.tobytes()) for part in (ids, groups, np.ones(40, np.uint32))]
        for _ in range(rng.integers(0, 3)):
            part = parts[rng.integers(3)]
            part[rng.integers(len(part))] = rng.integers(256)
        records_before = table.rows
        try:
            pull.find([RankKeys(*parts), RankKeys(*parts)], True)
        except ValueError:
            refused += 1
            assert table.rows == records_before
            continue
        waits, rows = np.empty(40, np.uint32), np.empty((40, 4), np.float32)
        pull.write_waits(1, waits)
        pull.read(1, rows)
        assert (waits <= np.frombuffer(parts[2], np.uint32)).all()
        for rank in range(2):
            pull.push_sums(rank, np.ones_like(rows), 0.5)
        pull.apply()
    assert 500 < refused < 3500
    table_records = records_of(table)
    assert len(table_records) == table.rows and np.isfinite(table_records["embedding"]).all()


# ---- Dense slices -------------------------------------------------------------


@pytest.mark.parametrize("slices", [1, 2, 3, 7])
@pytest.mark.parametrize("kind", [kind for kind in NAMES if not KINDS[kind].rows_only])
def test_dense_slices_are_the_whole(kind: str, slices: int) -> None:
    rng = np.random.default_rng(4)
    sizes = [5, 3000, 16, 0, 1, 47]
    rule = RowOptimizer(kind, 0.1, epsilon=1e-6, beta1=0.9, beta2=0.99, decay=0.01, bound=0.8)
    whole, *parts = [DenseTable(sizes, rule, Pool(threads)) for threads in (2, *[1] * slices)]
    total = len(whole.flat_weights)
    bounds = [total * i // slices // 16 * 16 for i in range(slices)] + [total]
    for _ in range(4):
        flat = rng.standard_normal(total).astype(np.float32)
        whole.apply([flat[o : o + n].copy() for o, n in zip(whole.offsets, sizes, strict=True)])
        for part, first, last in zip(parts, bounds, bounds[1:], strict=False):
            part.check_slice(flat[first:last], first)
            part.apply_slice(memoryview(flat[first:last].tobytes()), first)
    for part, first, last in zip(parts, bounds, bounds[1:], strict=False):
        assert part.step == whole.step == 4
        for ours, theirs in zip(
            [part.flat_weights, *part.flat_states],
            [whole.flat_weights, *whole.flat_states],
            strict=True,
        ):
            assert ours[first:last].tobytes() == theirs[first:last].tobytes()
    assert whole.weights[1].any()


def test_dense_slices_are_checked() -> None:
    table = DenseTable([20], SGD, Pool(1))
    for first, count in [(-1, 4), (0, 33), (32, 1)]:
        with pytest.raises(ValueError, match="expected a slice of 32 floats"):
            table.apply_slice(np.zeros(count, np.float32), first)
    with pytest.raises(NotFiniteError):
        table.check_slice(np.full(4, np.inf, np.float32), 10)
    table.check_slice(np.full(4, np.inf, np.float32), 20)  # between variables
    assert table.step == 0


def test_weighted_sum_is_numpys() -> None:
    rng = np.random.default_rng(6)
    out = rng.standard_normal(1003).astype(np.float32)
    values = rng.standard_normal(1003).astype(np.float32)
    wanted = out + np.float32(0.3) * values
    weighted_sum(out, memoryview(values.tobytes()), 0.3)
    np.testing.assert_array_equal(out, wanted)
    with pytest.raises(ValueError, match="expected 1003 items"):
        weighted_sum(out, values[1:], 0.3)
    with pytest.raises(ValueError, match="TN_BAD_VALUE"):
        weighted_sum(out, values, -0.1)
