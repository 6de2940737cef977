"""A row's life in the C table, against a model in plain Python: counts, days, removal, memory."""

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tnctl.tables import (
    Figures,
    InitialWeights,
    Pool,
    RowOptimizer,
    RowRules,
    Segment,
    SlotPlan,
    SparseTable,
    Workspace,
    cvm_columns,
    decay_factors,
    key_hashes,
)

WIDTH = 3
COLUMNS = WIDTH + 2
NAMES = {0: "item", 5: "user"}
SLOTS = [(0, "sum"), (0, "mean"), (5, "sqrtn")]
EXAMPLES = 40
SGD = RowOptimizer("sgd", 0.5)
OFF = RowRules()

Ids = NDArray[np.uint64]
Floats = NDArray[np.float32]


def new_table(
    threads: int, lives: dict[int, RowRules], shows: bool = True, **more: Any
) -> SparseTable:
    segments = [Segment("linear", 1, "sum", SGD), Segment("embedding", WIDTH, "concat", SGD)]
    table = SparseTable(segments, 7, Pool(threads), shows=shows, **more)
    for number, name in NAMES.items():
        table.add_group(
            number, name, [InitialWeights("zeros", 0.0), InitialWeights("uniform", 0.1)]
        )
        table.set_life(number, lives.get(number, OFF))
    return table


def new_batch(table: SparseTable) -> Workspace:
    wide = COLUMNS if table.cvm else WIDTH
    return Workspace(
        table, [SlotPlan(group, kind, i * wide) for i, (group, kind) in enumerate(SLOTS)]
    )


def random_cells(random: np.random.Generator, first: int) -> tuple[Ids, NDArray[np.uint32]]:
    """Ids from a range that moves, so that old ones are seen no more; 0 to 3 a cell."""
    counts = random.integers(0, 4, EXAMPLES * len(SLOTS))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32)
    return (first + random.integers(0, 60, offsets[-1])).astype(np.uint64), offsets


def step(
    batch: Workspace, number: int, ids: Ids, offsets: NDArray[np.uint32], clicks: Floats | None
) -> Floats:
    """A step of training; the embedding's columns that it gathered."""
    batch.table.set_step(number)
    wide = COLUMNS if batch.table.cvm else WIDTH
    batch.find(ids, offsets, EXAMPLES, insert=True)
    outputs = [np.zeros((EXAMPLES, n), np.float32) for n in (1, wide * len(SLOTS))]
    if clicks is not None and batch.table.cvm:
        batch.leave_out(clicks)
    batch.gather(outputs)
    batch.accumulate([np.ones_like(output) for output in outputs])
    if clicks is not None:
        batch.count(clicks)
    batch.apply()
    return outputs[1]


def records_of(table: SparseTable) -> NDArray[Any]:
    return np.concatenate([np.empty(0, table.record_dtype), *table.records()])


# ---- The model -------------------------------------------------------------


@dataclass
class ModelRow:
    changed: int
    show: np.float32 = field(default_factory=lambda: np.float32(0))
    click: np.float32 = field(default_factory=lambda: np.float32(0))


@dataclass
class Model:
    """Rows by (group, id), one at a time; no weights."""

    lives: dict[int, RowRules]
    days: list[tuple[int, int]] = field(default_factory=list)
    step: int = 0
    rows: dict[tuple[int, int], ModelRow] = field(default_factory=dict)
    evicted: dict[int, int] = field(default_factory=lambda: dict.fromkeys(NAMES, 0))
    removed: dict[tuple[int, int], int] = field(default_factory=dict)

    def day_of(self, step: int) -> int:
        begun = [day for day, first in self.days if first <= step]
        return begun[-1] if begun else self.days[0][0] if self.days else 0

    def age(self, row: ModelRow) -> int:
        return self.day_of(2**32) - self.day_of(row.changed)

    def shows(self, group: int, row: ModelRow) -> tuple[np.float32, np.float32]:
        factor = np.float32(1)
        if self.age(row):
            factor = decay_factors(
                self.lives[group].show_decay, np.array([self.age(row)], np.uint32)
            )[0]
        return np.float32(row.show * factor), np.float32(row.click * factor)

    def train(self, number: int, ids: Ids, offsets: NDArray[np.uint32], clicks: Floats) -> None:
        self.step = number
        counted: dict[tuple[int, int], list[np.float32]] = {}
        for cell in range(len(offsets) - 1):
            group = SLOTS[cell % len(SLOTS)][0]
            for id_ in ids[offsets[cell] : offsets[cell + 1]]:
                key = (group, int(id_))
                self.rows.setdefault(key, ModelRow(number))
                sums = counted.setdefault(key, [np.float32(0), np.float32(0)])
                sums[0] = np.float32(sums[0] + np.float32(1))
                sums[1] = np.float32(sums[1] + clicks[cell // len(SLOTS)])
        for key, (show, click) in counted.items():
            old = self.shows(key[0], self.rows[key])
            self.rows[key] = ModelRow(number, np.float32(old[0] + show), np.float32(old[1] + click))

    def score(self, group: int, row: ModelRow) -> float:
        life = self.lives[group]
        show, click = (float(value) for value in self.shows(group, row))
        return (show - click) * life.nonclick + click * life.click

    def named(self, group: int, row: ModelRow) -> bool:
        life = self.lives[group]
        unseen = 0 < life.unseen_steps < self.step - row.changed
        unseen |= 0 < life.unseen_days < self.age(row)
        below = life.show > 0 and float(self.shows(group, row)[0]) < life.show
        cheap = life.score > 0 and self.score(group, row) < life.score
        return cheap or ((below and unseen) if life.both else (below or unseen))

    def remove(self, keys: list[tuple[int, int]]) -> int:
        for key in keys:
            del self.rows[key]
            self.evicted[key[0]] += 1
            self.removed[key] = self.step
        return len(keys)

    def evict(self) -> int:
        return self.remove([key for key, row in self.rows.items() if self.named(key[0], row)])

    def bound(self, keep_shows: bool) -> int:
        removed = 0
        for group in NAMES:
            most = self.lives[group].most_rows
            keys = [key for key in self.rows if key[0] == group]
            if 0 < most < len(keys):
                keys.sort(
                    key=lambda key: (
                        np.float32(self.score(key[0], self.rows[key])) if keep_shows else 0,
                        self.rows[key].changed,
                        hash_of(key),
                    )
                )
                removed += self.remove(keys[: len(keys) - most + most // 16])
        return removed


def hash_of(key: tuple[int, int]) -> int:
    groups, ids = np.array([key[0]], np.uint16), np.array([key[1]], np.uint64)
    return int(key_hashes(NAMES, groups, ids)[0])


def check_rows(table: SparseTable, model: Model) -> None:
    records = records_of(table)
    rows = sorted(model.rows.items(), key=lambda entry: (hash_of(entry[0]), entry[0][0]))
    assert [(r["group"], r["id"], r["changed"]) for r in records] == [
        (*key, row.changed) for key, row in rows
    ]
    if table.shows:
        assert records["show"][:, 0].tolist() == [row.show for _, row in rows]
        assert records["click"][:, 0].tolist() == [row.click for _, row in rows]
    for group in NAMES:
        n = sum(key[0] == group for key in model.rows)
        assert table.figures(group) == Figures(n, n + model.evicted[group], 0, model.evicted[group])


# ---- The table beside the model --------------------------------------------

LIVES = {
    "none": RowRules(show_decay=0.9),
    "unseen steps": RowRules(show_decay=0.9, unseen_steps=15),
    "unseen days": RowRules(show_decay=0.9, unseen_days=1),
    "show": RowRules(show_decay=0.7, show=1.5),
    "show or unseen": RowRules(show_decay=0.7, show=1.5, unseen_days=1),
    "show and unseen": RowRules(show_decay=0.7, show=1.5, unseen_days=1, both=True),
    "score": RowRules(show_decay=0.8, score=0.8),
    "score of its own": RowRules(show_decay=0.8, score=2.0, nonclick=0.5, click=3.0),
    "bound": RowRules(show_decay=0.9, most_rows=50),
    "all": RowRules(show_decay=0.5, unseen_days=2, show=0.5, score=0.3, most_rows=70),
}


@pytest.mark.parametrize("rules", LIVES)
def test_counts_days_and_removal(rules: str) -> None:
    random = np.random.default_rng(len(rules))
    lives = {0: LIVES[rules], 5: replace(LIVES[rules], show_decay=1.0)}
    table, model = new_table(2, lives), Model(lives)
    batch = new_batch(table)
    days: list[tuple[int, int]] = []
    for number in range(1, 201):
        if number % 20 == 1:
            days.append((number // 20 * 2 + 700_000, number))  # every other day has no data
            table.set_days(days)
            model.days = days
            assert table.day == days[-1][0]
        ids, offsets = random_cells(random, number)
        clicks = random.integers(0, 2, EXAMPLES).astype(np.float32)
        step(batch, number, ids, offsets, clicks)
        model.train(number, ids, offsets, clicks)
        if number % 10 == 0:
            assert table.evict() == model.evict()
            check_rows(table, model)
        if number % 3 == 0:
            assert table.bound() == model.bound(keep_shows=True)
        if number % 50 == 0:
            taken = table.take_removed()
            keys = sorted(model.removed, key=lambda key: (hash_of(key), key[0]))
            assert taken.tolist() == [
                (id_, group, model.removed[group, id_]) for group, id_ in keys
            ]
            assert len(table.take_removed()) == 0
            model.removed = {}
    check_rows(table, model)
    assert (sum(model.evicted.values()) > 50) == (rules != "none")


@pytest.mark.parametrize("ties", ["all equal", "few values", "many values"])
def test_bound_of_many_rows_of_equal_worth(ties: str) -> None:
    """The first row that stays is found by counting; ties go by `changed`, then by hash."""
    n, most = 30_000, 16_000
    random = np.random.default_rng(4)
    table = new_table(2, {0: RowRules(most_rows=most), 5: OFF})
    ids = random.integers(0, 2**63, n).astype(np.uint64)
    records = table.fresh_records(np.zeros(n, np.uint16), ids)
    highest = {"all equal": 1, "few values": 3, "many values": 10**6}[ties]
    records["show"] = random.integers(0, highest, (n, 1))
    records["changed"] = random.integers(0, highest, n)
    hashes = key_hashes(NAMES, records["group"], ids)
    table.insert_records(records[np.argsort(hashes)])
    assert table.bound() == n - most + most // 16
    score = (records["show"][:, 0].astype(np.float64) * 0.1).astype(np.float32)
    stays = np.lexsort((hashes, records["changed"], score))[n - most + most // 16 :]
    assert set(records_of(table)["id"]) == set(ids[stays])


def test_rows_that_all_train_keep_their_counts_through_days() -> None:
    """With updates=all each step sets every row's `changed`: decay must not be lost by it."""
    table = new_table(2, {0: RowRules(show_decay=0.5), 5: OFF}, updates="all")
    batch = new_batch(table)
    id_, none = np.array([1], np.uint64), np.zeros(0, np.uint64)
    offsets = np.minimum(np.arange(EXAMPLES * len(SLOTS) + 1), 1).astype(np.uint32)
    for number in range(1, 7):
        table.set_days([(day, day) for day in range(1, number + 1)])
        ids, ends = (id_, offsets) if number == 1 else (none, np.zeros_like(offsets))
        step(batch, number, ids, ends, np.ones(EXAMPLES, np.float32))
    row = records_of(table)[0]
    assert (row["changed"], row["show"][0], row["click"][0]) == (6, 0.5**5, 0.5**5)


# ---- CVM -------------------------------------------------------------------


def test_cvm_columns_are_libms() -> None:
    random = np.random.default_rng(5)
    show = np.concatenate([10 ** random.uniform(-30, 30, 100_000), np.arange(1000), [0, 3e38]])
    click = np.where(random.random(len(show)) < 0.5, show * random.random(len(show)), show)
    click[:1000] = show[:1000] * (1 + random.uniform(-1e-6, 1e-6, 1000))  # logs that cancel
    show, click = show.astype(np.float32), click.astype(np.float32)
    columns = cvm_columns(show, click, np.ones(len(show), np.float32))
    assert (columns[:, 0] == show).all()
    ratio = (click.astype(np.longdouble) + 1) / (show.astype(np.longdouble) + 1)
    wanted = np.log1p(ratio - 1).astype(np.float64)
    assert np.all(np.abs(columns[:, 1] - wanted) <= 1e-7 * np.abs(wanted) + 4e-16)  # of 1 + x
    assert columns[-2].tolist() == [0, 0]  # show 0
    same = cvm_columns(show, show, np.ones(len(show), np.float32))
    assert not same[:, 1].any()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("apart", [False, True])
def test_cvm_columns_are_pooled_as_weights_are(weighted: bool, apart: bool) -> None:
    """Sums, means and roots, of ids with weights, in matrices apart; a missing id is zeros."""
    random = np.random.default_rng(6)
    lives = dict.fromkeys(NAMES, RowRules(show_decay=0.5))
    table = new_table(2, lives, cvm=True)
    batch = new_batch(table)
    for number in (1, 2, 3):
        table.set_days([(day, day) for day in range(1, number + 1)])
        ids, offsets = random_cells(random, 20 * number)
        step(batch, number, ids, offsets, random.random(EXAMPLES, np.float32))
    table.set_days([(1, 1), (2, 2), (3, 3), (5, 4)])
    ids, offsets = random_cells(random, 10)
    weights = random.random(len(ids), np.float32) if weighted else None
    slots = [
        SlotPlan(group, kind, i * COLUMNS, apart and i == 1)
        for i, (group, kind) in enumerate(SLOTS)
    ]
    reader = Workspace(table, slots)
    reader.find(ids, offsets, EXAMPLES, insert=False, weights=weights)
    outputs = [np.zeros((EXAMPLES, n), np.float32) for n in (1, COLUMNS * len(SLOTS))]
    matrix = np.zeros((EXAMPLES, COLUMNS * len(SLOTS)), np.float32)
    reader.gather(outputs, matrix if apart else None)
    stored = {(int(r["group"]), int(r["id"])): r for r in records_of(table)}
    known_ids = 0
    for cell in range(EXAMPLES * len(SLOTS)):
        example, slot = divmod(cell, len(SLOTS))
        group, kind = SLOTS[slot]
        sums, squares, total = np.zeros(COLUMNS), 0.0, 0.0
        for k in range(offsets[cell], offsets[cell + 1]):
            weight = 1.0 if weights is None else float(weights[k])
            total, squares = total + weight, squares + weight**2
            row = stored.get((group, int(ids[k])))
            if row is not None:
                known_ids += 1
                left = 0.5 ** (5 - int(row["changed"]))
                show, click = row["show"][0] * left, row["click"][0] * left
                read = [*row["embedding"], show, math.log(click + 1) - math.log(show + 1)]
                sums += weight * np.array(read)
                direct = table.lookup(group, int(ids[k]))
                assert direct is not None
                np.testing.assert_allclose(direct[1:], read, rtol=1e-6, atol=1e-7)
        by = {"sum": 1.0, "mean": total, "sqrtn": math.sqrt(squares)}[kind] or 1.0
        source = matrix if slots[slot].apart else outputs[1]
        got = source[example, slot * COLUMNS : (slot + 1) * COLUMNS]
        np.testing.assert_allclose(got, sums / by, rtol=2e-6, atol=1e-6)
    assert known_ids > 20


@pytest.mark.parametrize("threads", [1, 3])
def test_in_a_later_pass_an_example_reads_the_counts_of_all_others(threads: int) -> None:
    random = np.random.default_rng(11)
    table = new_table(threads, {}, cvm=True)
    batch = new_batch(table)
    data = [
        (*random_cells(random, 0), random.integers(0, 2, EXAMPLES).astype(np.float32))
        for _ in range(5)
    ]
    totals: Counter[tuple[int, int]] = Counter()
    clicked: Counter[tuple[int, int]] = Counter()
    of_examples: list[list[Counter[tuple[int, int]]]] = []
    for number, (ids, offsets, clicks) in enumerate(data, 1):
        step(batch, number, ids, offsets, clicks)
        of_examples.append([Counter() for _ in range(EXAMPLES)])
        for cell in range(len(offsets) - 1):
            example, slot = divmod(cell, len(SLOTS))
            for id_ in ids[offsets[cell] : offsets[cell + 1]].tolist():
                of_examples[-1][example][SLOTS[slot][0], id_] += 1
                totals[SLOTS[slot][0], id_] += 1
                clicked[SLOTS[slot][0], id_] += int(clicks[example])
    counted = records_of(table)[["id", "group", "show", "click"]].tolist()
    table.set_counting(False)
    for number, (ids, offsets, clicks) in enumerate(data):
        read = step(batch, 6 + number, ids, offsets, clicks)
        for cell in range(len(offsets) - 1):
            example, slot = divmod(cell, len(SLOTS))
            group, kind = SLOTS[slot]
            wanted = np.zeros(2)
            cell_ids = ids[offsets[cell] : offsets[cell + 1]].tolist()
            for id_ in cell_ids:
                times = of_examples[number][example][group, id_]
                show = totals[group, id_] - times
                click = clicked[group, id_] - times * clicks[example]
                wanted += show, math.log(click + 1) - math.log(show + 1)
            by = {"sum": 1.0, "mean": len(cell_ids), "sqrtn": math.sqrt(len(cell_ids))}[kind] or 1
            got = read[example, slot * COLUMNS + WIDTH : (slot + 1) * COLUMNS]
            np.testing.assert_allclose(got, wanted / by, rtol=2e-6, atol=1e-6)
    after = records_of(table)[["id", "group", "show", "click"]].tolist()
    assert after == counted
    reader = new_batch(table)
    ids, offsets, clicks = data[0]
    reader.find(ids, offsets, EXAMPLES, insert=False)
    with pytest.raises(ValueError, match="TN_NO_BATCH"):
        reader.leave_out(clicks)


def test_what_was_not_counted_is_not_left_out_below_zero() -> None:
    """The third occurrence makes the row, and it alone is counted."""
    table = new_table(1, {0: RowRules(admit_after=3)}, cvm=True, sketch_bytes=65536)
    batch = Workspace(table, [SlotPlan(0, "sum", 0)])
    ids, offsets = np.full(3, 9, np.uint64), np.arange(4, dtype=np.uint32)
    clicks = np.array([1, 0, 1], np.float32)
    for counting in (True, False):
        table.set_counting(counting)
        batch.find(ids, offsets, 3, insert=True)
        batch.leave_out(clicks)
        outputs = [np.full((3, n), np.nan, np.float32) for n in (1, COLUMNS)]
        batch.gather(outputs)
        assert not outputs[1][:, WIDTH:].any()
        batch.accumulate([np.ones((3, n), np.float32) for n in (1, COLUMNS)])
        batch.count(clicks)
        batch.apply()
    row = records_of(table)[0]
    assert (row["show"][0], row["click"][0]) == (1, 1)


def test_gradients_of_counts_are_ignored() -> None:
    results = []
    for wrong in (0.0, 1e9, np.inf):
        table = new_table(1, {}, cvm=True)
        batch = Workspace(table, [SlotPlan(0, "mean", 0)])
        batch.find(np.array([1, 2], np.uint64), np.array([0, 2], np.uint32), 1, insert=True)
        gradient = np.array([[1, 2, 3, wrong, wrong]], np.float32)
        batch.accumulate([np.ones((1, 1), np.float32), gradient])
        batch.apply()
        results.append(records_of(table).tobytes())
    assert results[0] == results[1] == results[2]


# ---- Memory, batches, wrong calls ------------------------------------------


def test_memory_of_removed_rows_is_used_again() -> None:
    table = new_table(2, dict.fromkeys(NAMES, RowRules(unseen_steps=2)))
    batch = Workspace(table, [SlotPlan(0, "sum", 0)])
    n, sizes = 20_000, []
    for number in range(1, 25):
        ids = np.arange(number * n, (number + 1) * n, dtype=np.uint64)
        table.set_step(number)
        batch.find(ids, np.arange(n + 1, dtype=np.uint32), n, insert=True)
        if number % 3 == 0:
            table.evict()
        sizes.append(table.row_bytes + table.index_bytes)
    assert table.figures(0).evicted > 15 * n
    assert max(sizes) <= 1.05 * sizes[5]


def test_a_batch_ends_when_rows_are_removed() -> None:
    table = new_table(2, dict.fromkeys(NAMES, RowRules(unseen_steps=1)))
    batch, reader = (Workspace(table, [SlotPlan(0, "sum", 0)]) for _ in range(2))
    cells = np.array([1, 2], np.uint64), np.array([0, 1, 2], np.uint32), 2
    matrices = [np.zeros((2, n), np.float32) for n in (1, WIDTH)]
    batch.find(*cells, insert=True)
    reader.find(*cells, insert=False)
    assert table.evict() == 0
    batch.gather(matrices)
    reader.gather(matrices)
    table.set_step(2)
    assert table.evict() == 2
    for call in (
        lambda: batch.gather(matrices),
        lambda: reader.gather(matrices),
        lambda: batch.accumulate(matrices),
        lambda: batch.count(np.zeros(2, np.float32)),
        batch.apply,
    ):
        with pytest.raises(ValueError, match="tn_find"):
            call()
    reader.find(*cells, insert=False)
    reader.gather(matrices)
    assert not matrices[1].any()


def test_steps_before_the_first_day_are_of_it() -> None:
    """A table that trained without days is not decayed to nothing when days begin."""
    table = new_table(1, {0: RowRules(show_decay=0.5, unseen_days=3), 5: OFF})
    batch = Workspace(table, [SlotPlan(0, "sum", 0)])
    table.set_step(1)
    batch.find(np.array([4], np.uint64), np.array([0, 1], np.uint32), 1, insert=True)
    table.set_days([(738_000, 100)])
    assert table.evict() == 0
    table.set_days([(738_000, 100), (738_004, 200)])
    assert table.evict() == 1
