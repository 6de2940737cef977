"""Admission: which occurrence of an id makes its row, against exact counts in plain Python."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tnctl.tables import (
    InitialWeights,
    Pool,
    RowOptimizer,
    RowRules,
    Segment,
    SlotPlan,
    SparseTable,
    Workspace,
    key_hashes,
)

MASK = 2**64 - 1
SEED = 7
WIDTH = 4
LARGE = 1 << 22  # bytes of a sketch in which the few ids of a test do not meet
SHARDS, LINES = 64, 4
NAMES = {0: "item", 5: "user", 2: "tag", 3: "word"}
# A group without a rule, two that count, one that draws.
LIVES = {
    0: RowRules(),
    5: RowRules(admit_after=2),
    2: RowRules(admit_after=5),
    3: RowRules(admit_probability=0.3),
}
SLOTS = [(0, "sum"), (5, "mean"), (5, "sum"), (2, "mean"), (3, "mean")]


def mix64(x: int) -> int:
    """MurmurHash3's 64-bit finalizer."""
    x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCD & MASK
    x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53 & MASK
    return x ^ (x >> 33)


def key_hash(group: int, id_: int) -> int:
    return int(key_hashes(NAMES, np.array([group], np.uint16), np.array([id_], np.uint64))[0])


def makes_row(life: RowRules, hash_: int, occurrence: int) -> bool:
    """csrc/tnctl.h, "Admission"."""
    if occurrence > 255:
        return True
    if life.admit_probability < 1:
        start = mix64(mix64(SEED ^ 0x61646D6974) ^ hash_)
        draw = mix64((start + occurrence * 0x9E3779B97F4A7C15) & MASK)
        return draw < life.admit_probability * 2**64
    return occurrence >= life.admit_after


# ---- The model -------------------------------------------------------------


@dataclass
class Cells:
    """The ids of a batch, cell after cell, and a gradient for each cell."""

    ids: NDArray[np.uint64]
    offsets: NDArray[np.uint32]
    gradients: NDArray[np.float32]  # [examples, columns]

    @property
    def examples(self) -> int:
        return len(self.gradients)

    def __iter__(self) -> Iterator[tuple[int, int, int, list[int]]]:
        """Example, slot, first position and ids of each cell."""
        for cell in range(len(self.offsets) - 1):
            first, last = self.offsets[cell : cell + 2]
            yield cell // len(SLOTS), cell % len(SLOTS), int(first), self.ids[first:last].tolist()


@dataclass
class Model:
    """Exact counts, and rows that learn by plain gradient descent with learning rate 1."""

    table: SparseTable  # only for what a new row starts with
    counts: dict[tuple[int, int], int] = field(default_factory=dict)
    counting: bool = True
    rows: dict[tuple[int, int], NDArray[np.float32]] = field(default_factory=dict)

    def meet(self, key: tuple[int, int]) -> bool:
        """Whether this occurrence reads the key's row, which it may make."""
        if key in self.rows:
            return True
        life = LIVES[key[0]]
        counts = life.admit_after > 1 or life.admit_probability < 1
        if counts and not self.counting:
            return False
        if counts:
            self.counts[key] = self.counts.get(key, 0) + 1
        if counts and not makes_row(life, key_hash(*key), self.counts[key]):
            return False
        self.rows[key] = start_of(self.table, *key)
        return True

    def step(self, cells: Cells) -> NDArray[np.float32]:
        """Train on a batch; what it read, [examples, columns]."""
        read = np.zeros_like(cells.gradients)
        sums: dict[tuple[int, int], NDArray[np.float32]] = {}
        for example, slot, _, ids in cells:
            group, pooling = SLOTS[slot]
            columns = slice(slot * WIDTH, (slot + 1) * WIDTH)
            by = np.float32(len(ids) if pooling == "mean" and ids else 1)
            for id_ in ids:
                if self.meet((group, id_)):
                    read[example, columns] += self.rows[group, id_]
                    total = sums.setdefault((group, id_), np.zeros(WIDTH, np.float32))
                    total += cells.gradients[example, columns] / by
            read[example, columns] /= by
        for key, total in sums.items():
            self.rows[key] = self.rows[key] - total
        return read

    def waiting(self, group: int) -> int:
        return sum(of == group and (of, id_) not in self.rows for of, id_ in self.counts)


def start_of(table: SparseTable, group: int, id_: int) -> NDArray[np.float32]:
    """The weights of a row that is made now."""
    records = table.fresh_records(np.array([group], np.uint16), np.array([id_], np.uint64))
    return np.array(records["embedding"][0], np.float32)


def weights_of(table: SparseTable, group: int, id_: int) -> NDArray[np.float32]:
    weights = table.lookup(group, id_)
    assert weights is not None
    return weights


def some_cells(rng: np.random.Generator, examples: int = 40) -> Cells:
    """Few ids, often several times in a batch; gradients and divisors that sum without rounding."""
    sizes = rng.choice([0, 1, 1, 1, 2, 4], examples * len(SLOTS))
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.uint32)
    ids = (rng.zipf(1.3, offsets[-1]) % 400).astype(np.uint64)
    gradients = rng.integers(-8, 9, (examples, len(SLOTS) * WIDTH)).astype(np.float32)
    return Cells(ids, offsets, gradients)


def new_table(threads: int, sketch_bytes: int = LARGE) -> tuple[SparseTable, Workspace]:
    segment = Segment("embedding", WIDTH, "concat", RowOptimizer("sgd", learning_rate=1.0))
    table = SparseTable([segment], SEED, Pool(threads), sketch_bytes=sketch_bytes)
    for number, name in NAMES.items():
        table.add_group(number, name, [InitialWeights("uniform", 0.5)])
        table.set_life(number, LIVES[number])
    plans = [SlotPlan(group, pooling, i * WIDTH) for i, (group, pooling) in enumerate(SLOTS)]
    return table, Workspace(table, plans)


def train(table: SparseTable, batch: Workspace, cells: Cells, step: int) -> NDArray[np.float32]:
    table.set_step(step)
    out = np.full_like(cells.gradients, np.nan)
    batch.find(cells.ids, cells.offsets, cells.examples, insert=True)
    batch.gather([out])
    batch.accumulate([cells.gradients])
    batch.apply()
    return out


def records_of(table: SparseTable) -> NDArray[Any]:
    parts = list(table.records())
    return np.concatenate(parts) if parts else np.empty(0, table.record_dtype)


# ---- Counting --------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 3])
def test_rows_are_made_as_the_rules_say(threads: int) -> None:
    rng = np.random.default_rng(3)
    table, batch = new_table(threads)
    model = Model(table)
    for step in range(1, 31):
        cells = some_cells(rng)
        read = train(table, batch, cells, step)
        np.testing.assert_allclose(read, model.step(cells), rtol=1e-6, atol=1e-6)
        met = {(SLOTS[slot][0], id_) for _, slot, _, ids in cells for id_ in ids}
        assert batch.rows == len(met & model.rows.keys())
        assert table.rows == len(model.rows)
    assert 0 < table.rows < len(model.counts)
    for record in records_of(table):
        wanted = model.rows[int(record["group"]), int(record["id"])]
        np.testing.assert_allclose(record["embedding"], wanted, rtol=1e-6, atol=1e-5)
    for group, life in LIVES.items():
        figures = table.figures(group)
        assert figures.waiting == model.waiting(group), life
        assert figures.rows == figures.admitted == sum(of == group for of, _ in model.rows)


@pytest.mark.parametrize("threads", [1, 3])
def test_later_passes_over_the_same_examples_count_nothing(threads: int) -> None:
    """Ids that wait after the first pass wait for ever; of other data they count again."""
    rng = np.random.default_rng(9)
    table, batch = new_table(threads)
    model, step = Model(table), 0
    for cells_of_data in ([some_cells(rng) for _ in range(6)] for _ in range(2)):
        for number in range(3):
            model.counting = number == 0
            table.set_counting(model.counting)
            earlier = table.sketch.copy()
            for cells in cells_of_data:
                step += 1
                read = train(table, batch, cells, step)
                np.testing.assert_allclose(read, model.step(cells), rtol=1e-5, atol=1e-5)
            assert table.rows == len(model.rows)
            assert np.array_equal(earlier, table.sketch) == (number > 0)
            assert [table.figures(g).waiting for g in LIVES] == [model.waiting(g) for g in LIVES]
    assert 0 < table.rows < len(model.counts)


def test_a_gradient_that_reaches_no_row_may_be_anything() -> None:
    table, batch = new_table(1)
    cells = Cells(
        np.array([1], np.uint64),
        np.array([0, 0, 1, 1, 1, 1], np.uint32),
        np.full((1, len(SLOTS) * WIDTH), np.nan, np.float32),
    )
    for step in (1, 2):
        cells.gradients[:] = np.nan if step == 1 else 1
        assert not np.isnan(train(table, batch, cells, step)).any()
    assert table.rows == 1
    np.testing.assert_allclose(weights_of(table, 5, 1), start_of(table, 5, 1) - 1, rtol=1e-6)


@pytest.mark.parametrize("life", [RowRules(admit_after=255), RowRules(admit_probability=1e-9)])
def test_a_full_counter_makes_rows(life: RowRules) -> None:
    table, batch = new_table(1)
    table.set_life(5, life)
    cells = Cells(
        np.full(254, 3, np.uint64),
        np.array([0, 0, 254, 254, 254, 254], np.uint32),
        np.zeros((1, len(SLOTS) * WIDTH), np.float32),
    )
    train(table, batch, cells, 1)
    assert table.rows == 0 and table.figures(5).waiting == 1 and table.sketch.max() == 254
    cells = Cells(cells.ids[:1], np.minimum(cells.offsets, 1), cells.gradients)
    train(table, batch, cells, 2)
    assert table.rows == (life.admit_after == 255)
    train(table, batch, cells, 3)
    assert table.rows == 1 and table.figures(5).waiting == 0


# ---- The sketch ------------------------------------------------------------


def counters_of(sketch: NDArray[np.uint8], hash_: int) -> list[int]:
    """The counters of a key, read from the sketch's bytes."""
    width = len(sketch) // (SHARDS * LINES)
    lines = sketch.reshape(SHARDS, LINES, width)[hash_ >> 58]
    first = mix64((hash_ + 0x9E3779B97F4A7C15) & MASK)
    second = mix64(((first << 32 | first >> 32) + 0x9E3779B97F4A7C15) & MASK)
    words = [first & 0xFFFFFFFF, first >> 32, second & 0xFFFFFFFF, second >> 32]
    return [int(line[word * width >> 32]) for line, word in zip(lines, words, strict=True)]


def test_a_small_sketch_counts_too_much_as_seldom_as_the_header_says() -> None:
    width = 40
    table, batch = new_table(2, sketch_bytes=width * SHARDS * LINES)
    table.set_life(2, RowRules(admit_after=255))
    rng = np.random.default_rng(6)
    true: dict[int, int] = {}
    for step in range(1, 11):
        ids = (rng.zipf(1.2, 2000) % 5000).astype(np.uint64)
        offsets = np.array([0, 0, 0, 0, len(ids), len(ids)], np.uint32)
        train(table, batch, Cells(ids, offsets, np.zeros((1, len(SLOTS) * WIDTH), "f4")), step)
        for id_ in ids.tolist():
            true[id_] = true.get(id_, 0) + 1
    sketch, totals = table.sketch, [0] * SHARDS
    hashes = {id_: key_hash(2, id_) for id_ in true}
    for id_, count in true.items():
        totals[hashes[id_] >> 58] += count
    beyond = 0
    for id_, count in true.items():
        least = min(counters_of(sketch, hashes[id_]))
        assert least >= min(count, 254)
        beyond += least - count > math.e / width * totals[hashes[id_] >> 58]
    assert beyond / len(true) < math.exp(-LINES)
    assert table.figures(2).waiting <= len(true)


@pytest.mark.parametrize("threads", [1, 3])
def test_saved_and_restored_it_goes_on_exactly(threads: int) -> None:
    rng = np.random.default_rng(8)
    first, batch = new_table(2, sketch_bytes=5000)
    for step in range(1, 11):
        train(first, batch, some_cells(rng), step)
    second, other = new_table(threads, sketch_bytes=5000)
    second.reserve(first.rows)
    second.insert_records(records_of(first).tobytes())
    second.sketch[:] = first.sketch
    for group in LIVES:
        second.set_figures(group, first.figures(group))
    for step in range(11, 21):
        cells = some_cells(rng)
        assert np.array_equal(train(first, batch, cells, step), train(second, other, cells, step))
    assert np.array_equal(records_of(first), records_of(second))
    assert np.array_equal(first.sketch, second.sketch)
    assert [first.figures(g) for g in LIVES] == [second.figures(g) for g in LIVES]


@pytest.mark.parametrize("counting", [True, False])
def test_an_evicted_id_keeps_its_count(counting: bool) -> None:
    table, batch = new_table(1)
    table.set_life(5, RowRules(admit_after=2, unseen_steps=3))
    cells = Cells(
        np.array([1, 1, 2], np.uint64),
        np.array([0, 0, 3, 3, 3, 3], np.uint32),
        np.zeros((1, len(SLOTS) * WIDTH), np.float32),
    )
    train(table, batch, cells, 1)
    assert table.figures(5).rows == 1 and table.figures(5).waiting == 1
    table.set_step(9)
    assert table.evict() == 1
    table.set_counting(counting)
    again = Cells(cells.ids[:1], np.minimum(cells.offsets, 1), cells.gradients)
    assert train(table, batch, again, 10)[0, WIDTH : 2 * WIDTH].any()
    figures = table.figures(5)
    assert (figures.rows, figures.admitted, figures.evicted, figures.waiting) == (1, 2, 1, 1)
