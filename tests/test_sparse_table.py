"""The sparse table against a model in plain Python and float64."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tnctl.tables import (
    InitialWeights,
    NotFiniteError,
    Pool,
    RowOptimizer,
    Segment,
    SlotPlan,
    SparseTable,
    Workspace,
)

MASK = 2**64 - 1
SEED = 20
ADAGRAD = RowOptimizer("adagrad", 0.05, epsilon=1e-8, initial_accumulator=0.1)
ADAM = RowOptimizer("adam", 0.01, epsilon=1e-8, beta1=0.9, beta2=0.999)
OPTIMIZERS = {"adagrad": ADAGRAD, "adam": ADAM}
GROUPS = {0: "item", 7: "user", 3: "tag"}  # number -> name, in the order they are declared
INITIALS = {
    0: [InitialWeights("uniform", 0.01), InitialWeights("normal", 0.1)],
    7: [InitialWeights("zeros", 0.0), InitialWeights("uniform", 0.5)],
    3: [InitialWeights("normal", 1.0), InitialWeights("zeros", 0.0)],
}
# The first two share a group.
SLOTS = [(0, "sum"), (0, "mean"), (7, "sqrtn"), (3, "sum"), (7, "mean")]


# ---- The model -------------------------------------------------------------


def mix64(x: int) -> int:
    """MurmurHash3's 64-bit finalizer."""
    x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCD & MASK
    x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53 & MASK
    return x ^ (x >> 33)


def salt(name: str) -> int:
    """tn_group_salt: the hash of the name's bytes, as docs/formats/ids.md writes it."""
    data = name.encode()
    h = 0
    for start in range(0, len(data), 8):
        h = mix64(h ^ int.from_bytes(data[start : start + 8], "little"))
    return mix64(h ^ len(data))


def key_hash(group: int, id_: int) -> int:
    return mix64(id_ ^ salt(GROUPS[group]))


def initial_weight(group: int, id_: int, segment: int, coordinate: int) -> np.float32:
    """Depends on (seed, group name, id, segment, coordinate) and on nothing else."""
    initial = INITIALS[group][segment]
    row_seed = mix64((mix64(SEED ^ salt(GROUPS[group])) + segment) & MASK)
    z = mix64((mix64(row_seed ^ key_hash(group, id_)) + coordinate * 0x9E3779B97F4A7C15) & MASK)
    if initial.kind == "uniform":
        unit = np.float32((z >> 40) / 2**23 - 1)
    elif initial.kind == "normal":
        pieces = [(z >> shift) & 0xFFFF for shift in (0, 16, 32, 48)]
        factor = np.float32(0.8660254) / np.float32(65535)
        unit = np.float32(sum(2 * piece - 65535 for piece in pieces)) * factor
    else:
        unit = np.float32(0)
    return np.float32(initial.scale) * unit


@dataclass
class ModelRow:
    """A row in float64: per segment its weights and state."""

    weights: list[np.ndarray]
    state: list[dict[str, Any]]


class Model:
    """(group, id) -> row, every formula written out."""

    def __init__(self, segments: list[Segment]) -> None:
        self.segments = segments
        self.rows: dict[tuple[int, int], ModelRow] = {}

    def insert(self, group: int, id_: int) -> None:
        if (group, id_) in self.rows:
            return
        weights = [
            np.array([initial_weight(group, id_, s, j) for j in range(segment.width)], np.float64)
            for s, segment in enumerate(self.segments)
        ]
        state: list[dict[str, Any]] = [
            {"G": segment.optimizer.initial_accumulator}
            if segment.optimizer.name == "adagrad"
            else {"t": 0, "m": np.zeros(segment.width), "v": np.zeros(segment.width)}
            for segment in self.segments
        ]
        self.rows[group, id_] = ModelRow(weights, state)

    def pooled(self, group: int, pooling: str, ids: list[int], segment: int) -> np.ndarray:
        total = np.zeros(self.segments[segment].width)
        for id_ in ids:
            row = self.rows.get((group, id_))
            total += 0 if row is None else row.weights[segment]
        return total / divisor(pooling, len(ids))

    def apply(self, gradients: dict[tuple[int, int], list[np.ndarray]]) -> None:
        for key, gradient in gradients.items():
            row = self.rows[key]
            for s, segment in enumerate(self.segments):
                update(segment.optimizer, row.weights[s], row.state[s], gradient[s])


def divisor(pooling: str, count: int) -> float:
    if pooling == "sum" or count == 0:
        return 1
    return count if pooling == "mean" else math.sqrt(count)


def update(o: RowOptimizer, w: np.ndarray, state: dict[str, Any], g: np.ndarray) -> None:
    if o.name == "adagrad":
        state["G"] += (g**2).sum() / len(g)
        w -= o.learning_rate * g / (math.sqrt(state["G"]) + o.epsilon)
        return
    state["t"] += 1
    state["m"] = o.beta1 * state["m"] + (1 - o.beta1) * g
    state["v"] = o.beta2 * state["v"] + (1 - o.beta2) * g**2
    rate = o.learning_rate * math.sqrt(1 - o.beta2 ** state["t"]) / (1 - o.beta1 ** state["t"])
    w -= rate * state["m"] / (np.sqrt(state["v"]) + o.epsilon)


# ---- Tables and batches ----------------------------------------------------


def segments_of(width: int, optimizer: RowOptimizer) -> list[Segment]:
    return [Segment("linear", 1, "sum", ADAGRAD), Segment("embedding", width, "concat", optimizer)]


def make_table(width: int = 8, optimizer: RowOptimizer = ADAGRAD, threads: int = 2) -> SparseTable:
    table = SparseTable(segments_of(width, optimizer), SEED, Pool(threads))
    for number, name in GROUPS.items():
        table.add_group(number, name, INITIALS[number])
    return table


def make_batch(table: SparseTable) -> Workspace:
    width = table.segments[1].width
    return Workspace(
        table, [SlotPlan(g, pooling, i * width) for i, (g, pooling) in enumerate(SLOTS)]
    )


Cells = list[list[list[int]]]  # [example][slot] -> ids


def random_cells(rng: np.random.Generator, examples: int, universe: int) -> Cells:
    def cell() -> list[int]:
        count = rng.choice([0, 1, 1, 1, 2, 5])
        # Squares gather at the low ids: duplicates in an example and across slots.
        ids = (rng.random(count) ** 2 * universe).astype(int)
        return [int(id_) * 0x9E3779B97F4A7C15 & MASK for id_ in ids]

    return [[cell() for _ in SLOTS] for _ in range(examples)]


def flat(cells: Cells) -> tuple[np.ndarray, np.ndarray, int]:
    in_order = [cell for example in cells for cell in example]
    offsets = np.cumsum([0, *map(len, in_order)]).astype(np.uint32)
    return np.array([i for cell in in_order for i in cell], np.uint64), offsets, len(cells)


def outputs_for(table: SparseTable, examples: int, fill: float = np.nan) -> list[np.ndarray]:
    columns = [1, table.segments[1].width * len(SLOTS)]
    return [np.full((examples, c), fill, np.float32) for c in columns]


def model_gather(model: Model, cells: Cells) -> list[np.ndarray]:
    width = model.segments[1].width
    linear, embedding = np.zeros((len(cells), 1)), np.zeros((len(cells), len(SLOTS) * width))
    for b, example in enumerate(cells):
        for slot, ids in enumerate(example):
            linear[b] += model.pooled(*SLOTS[slot], ids, 0)
            columns = slice(slot * width, (slot + 1) * width)
            embedding[b, columns] = model.pooled(*SLOTS[slot], ids, 1)
    return [linear, embedding]


def model_sums(
    model: Model, cells: Cells, gradients: list[np.ndarray]
) -> dict[tuple[int, int], list[np.ndarray]]:
    width = model.segments[1].width
    sums: dict[tuple[int, int], list[np.ndarray]] = {}
    for b, example in enumerate(cells):
        for slot, ids in enumerate(example):
            group, pooling = SLOTS[slot]
            for id_ in ids:
                row = sums.setdefault((group, id_), [np.zeros(1), np.zeros(width)])
                row[0] += gradients[0][b] / divisor(pooling, len(ids))
                columns = slice(slot * width, (slot + 1) * width)
                row[1] += gradients[1][b, columns].astype(float) / divisor(pooling, len(ids))
    return sums


def random_gradients(rng: np.random.Generator, table: SparseTable, n: int) -> list[np.ndarray]:
    return [rng.normal(size=o.shape).astype(np.float32) for o in outputs_for(table, n)]


def train(table: SparseTable, steps: int, examples: int = 32, seed: int = 5) -> None:
    """Take steps of random batches, without a model beside them."""
    rng = np.random.default_rng(seed)
    batch = make_batch(table)
    for step in range(steps):
        table.set_step(step)
        batch.find(*flat(random_cells(rng, examples, 20 * (step + 1))), insert=True)
        batch.accumulate(random_gradients(rng, table, examples))
        batch.apply()


def dump(table: SparseTable) -> bytes:
    return b"".join(records.tobytes() for records in table.records())


def all_records(table: SparseTable) -> np.ndarray:
    return np.concatenate([*table.records(), np.empty(0, table.record_dtype)])


# ---- Steps -----------------------------------------------------------------


def check_rows(table: SparseTable, model: Model, tolerance: float) -> None:
    assert table.rows == len(model.rows)
    for record in all_records(table):
        row = model.rows[int(record["group"]), int(record["id"])]
        for s, name in enumerate(["linear", "embedding"]):
            np.testing.assert_allclose(record[name], row.weights[s], tolerance, tolerance)


@pytest.mark.parametrize("width", [1, 3, 64])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_200_steps_equal_the_model(width: int, optimizer: str) -> None:
    rng = np.random.default_rng(width)
    table = make_table(width, OPTIMIZERS[optimizer])
    batch, model = make_batch(table), Model(list(table.segments))
    for step in range(200):
        examples = int(rng.integers(0, 9))
        cells = random_cells(rng, examples, 5 + 2 * step)
        gradients = random_gradients(rng, table, examples)
        outputs = outputs_for(table, examples)
        for example in cells:
            for (group, _), ids in zip(SLOTS, example, strict=True):
                for id_ in ids:
                    model.insert(group, id_)
        batch.find(*flat(cells), insert=True)
        batch.gather(outputs)
        for output, wanted in zip(outputs, model_gather(model, cells), strict=True):
            np.testing.assert_allclose(output, wanted, 1e-4, 1e-4)
        batch.accumulate(gradients)
        batch.apply()
        sums = model_sums(model, cells, gradients)
        assert batch.rows == len(sums)
        model.apply(sums)
    check_rows(table, model, 1e-4)
    for number in GROUPS:
        assert table.group_rows(number) == sum(group == number for group, _ in model.rows)


def test_two_tables_add_into_one_sum() -> None:
    first, second = make_table(3), make_table(5)
    cells = random_cells(np.random.default_rng(0), 6, 30)
    outputs = [outputs_for(table, 6) for table in (first, second)]
    batches = [make_batch(table) for table in (first, second)]
    for batch, output in zip(batches, outputs, strict=True):
        batch.find(*flat(cells), insert=True)
        batch.gather(output)
    shared = outputs_for(first, 6)[0]
    batches[0].gather([shared, outputs[0][1]])
    np.testing.assert_array_equal(shared, outputs[0][0])
    batches[1].gather([shared, outputs[1][1]], add=True)
    np.testing.assert_allclose(shared, outputs[0][0] + outputs[1][0], 1e-6, 1e-6)


# ---- Weights of ids, slots set apart ---------------------------------------


def factors(pooling: str, weights: np.ndarray) -> np.ndarray:
    """What each row of a cell counts for, in its values and in its gradient."""
    by = {"sum": 1.0, "mean": weights.sum(), "sqrtn": math.sqrt((weights**2).sum())}[pooling]
    return weights / by if by > 0 else np.zeros(len(weights))


def weighted_gather(
    model: Model, cells: Cells, weights: np.ndarray, offsets: np.ndarray
) -> list[np.ndarray]:
    width = model.segments[1].width
    linear, embedding = np.zeros((len(cells), 1)), np.zeros((len(cells), len(SLOTS) * width))
    for b, example in enumerate(cells):
        for slot, ids in enumerate(example):
            group, pooling = SLOTS[slot]
            first = offsets[b * len(SLOTS) + slot]
            shares = factors(pooling, weights[first : first + len(ids)].astype(float))
            for id_, share in zip(ids, shares, strict=True):
                row = model.rows[group, id_]
                linear[b] += share * row.weights[0]
                embedding[b, slot * width : (slot + 1) * width] += share * row.weights[1]
    return [linear, embedding]


def weighted_sums(
    cells: Cells, weights: np.ndarray, offsets: np.ndarray, gradients: list[np.ndarray], width: int
) -> dict[tuple[int, int], list[np.ndarray]]:
    sums: dict[tuple[int, int], list[np.ndarray]] = {}
    for b, example in enumerate(cells):
        for slot, ids in enumerate(example):
            group, pooling = SLOTS[slot]
            first = offsets[b * len(SLOTS) + slot]
            shares = factors(pooling, weights[first : first + len(ids)].astype(float))
            for id_, share in zip(ids, shares, strict=True):
                row = sums.setdefault((group, id_), [np.zeros(1), np.zeros(width)])
                row[0] += share * gradients[0][b]
                row[1] += share * gradients[1][b, slot * width : (slot + 1) * width]
    return sums


@pytest.mark.parametrize("width", [1, 3, 64])
@pytest.mark.parametrize("lowest", [0.5, 0.0, -1.0])
def test_weighted_steps_equal_the_model(width: int, lowest: float) -> None:
    """Weights of 0 or less make cells that nothing divides; sums of 0.01 or less are avoided."""
    rng = np.random.default_rng(width)
    table = make_table(width)
    batch, model = make_batch(table), Model(list(table.segments))
    for step in range(60):
        cells = random_cells(rng, 8, 5 + 2 * step)
        ids, offsets, examples = flat(cells)
        weights = (np.floor(rng.uniform(lowest, 2, len(ids)) * 4) / 4).astype(np.float32)
        for example in cells:
            for (group, _), of_cell in zip(SLOTS, example, strict=True):
                for id_ in of_cell:
                    model.insert(group, id_)
        outputs, gradients = outputs_for(table, 8), random_gradients(rng, table, 8)
        given = weights.copy()
        batch.find(ids, offsets, examples, insert=True, weights=given)
        given[:] = np.nan  # they were copied
        batch.gather(outputs)
        wanted = weighted_gather(model, cells, weights, offsets)
        for output, values in zip(outputs, wanted, strict=True):
            np.testing.assert_allclose(output, values, 1e-4, 1e-4)
        batch.accumulate(gradients)
        batch.apply()
        model.apply(weighted_sums(cells, weights, offsets, gradients, width))
    check_rows(table, model, 1e-4)


def test_weights_hold_for_one_batch() -> None:
    """With weights of 1, and with none after others, the bytes are the same."""
    dumps = []
    for weights in (None, 1.0):
        table = make_table(threads=2)
        train(table, 5)
        batch, rng = make_batch(table), np.random.default_rng(3)
        given = flat(random_cells(rng, 30, 60))
        if weights is None:
            batch.find(*given, insert=True, weights=np.full(len(given[0]), 0.5, np.float32))
        ones = None if weights is None else np.ones(len(given[0]), np.float32)
        batch.find(*given, insert=True, weights=ones)
        outputs = outputs_for(table, 30)
        batch.gather(outputs)
        batch.accumulate(random_gradients(rng, table, 30))
        batch.apply()
        dumps.append((dump(table), *(output.tobytes() for output in outputs)))
    assert dumps[0] == dumps[1]


LENGTH = 5  # of the sequences below


def sequence_batch(table: SparseTable, apart: bool) -> Workspace:
    """SLOTS as they are, and a sequence of `item` before the last of them."""
    width = table.segments[1].width
    plain = [SlotPlan(g, pooling, i * width) for i, (g, pooling) in enumerate(SLOTS)]
    first = 1 if apart else len(SLOTS) * width  # beside the others, or in a matrix of its own
    places = [SlotPlan(0, "sum", first + i * width, apart) for i in range(LENGTH)]
    return Workspace(table, [*plain[:-1], *places, plain[-1]])


def sequence_cells(rng: np.random.Generator, examples: int) -> Cells:
    """The cells of sequence_batch: a sequence has 0 to LENGTH ids, then empty places."""
    cells = random_cells(rng, examples, 40)
    for example in cells:
        filled = rng.integers(0, LENGTH + 1)
        places = [[int(id_)] for id_ in rng.integers(0, 9, filled)] + [[]] * (LENGTH - filled)
        example[-1:-1] = places
    return cells


@pytest.mark.parametrize("width", [1, 3, 8])
@pytest.mark.parametrize("weighted", [False, True])
def test_sequences_set_apart_are_the_same_rows(width: int, weighted: bool) -> None:
    """Slots set apart and slots beside the others: other matrices, the same bytes in the table."""
    rng, examples = np.random.default_rng(width), 20
    tables = [make_table(width, threads=threads) for threads in (1, 3)]
    beside, apart = (sequence_batch(t, a) for t, a in zip(tables, (False, True), strict=True))
    columns = len(SLOTS) * width
    for _ in range(20):
        given = flat(sequence_cells(rng, examples))
        weights = rng.uniform(-0.5, 2, len(given[0])).astype(np.float32) if weighted else None
        wide = [np.full((examples, c), np.nan, np.float32) for c in (1, columns + LENGTH * width)]
        narrow = outputs_for(tables[1], examples)
        sequence = np.full((examples + 2, 1 + LENGTH * width + 3), 7, np.float32)
        beside.find(*given, insert=True, weights=weights)
        beside.gather(wide)
        apart.find(*given, insert=True, weights=weights)
        apart.gather(narrow, sequence)
        np.testing.assert_array_equal(narrow[0], wide[0])
        np.testing.assert_array_equal(narrow[1], wide[1][:, :columns])
        np.testing.assert_array_equal(sequence[:examples, 1:-3], wide[1][:, columns:])
        assert (sequence[:, [0, -1, -2, -3]] == 7).all() and (sequence[examples:] == 7).all()
        gradients = [rng.normal(size=w.shape).astype(np.float32) for w in wide]
        beside.accumulate(gradients)
        sequence[:examples, 1:-3] = gradients[1][:, columns:]
        apart.accumulate([gradients[0], gradients[1][:, :columns].copy()], sequence)
        beside.apply()
        apart.apply()
    assert dump(tables[0]) == dump(tables[1])
    assert tables[0].rows > 50


# ---- Initial weights -------------------------------------------------------


@pytest.mark.parametrize("group", GROUPS)
def test_initial_weights_are_the_documented_function(group: int) -> None:
    table = make_table(64)
    batch = Workspace(table, [SlotPlan(group, "sum", 0)])
    ids = [0, 1, 12345, 2**63, MASK]
    batch.find(np.array(ids, np.uint64), np.arange(6, dtype=np.uint32), 5, insert=True)
    for id_ in ids:
        wanted = [initial_weight(group, id_, 0, 0)]
        wanted += [initial_weight(group, id_, 1, j) for j in range(64)]
        np.testing.assert_array_equal(table.lookup(group, id_), np.array(wanted, np.float32))


def test_initial_weights_do_not_depend_on_arrival() -> None:
    ids = np.random.default_rng(0).integers(0, 2**64, 5000, dtype=np.uint64)
    dumps = set()
    for order, threads in ((ids, 1), (ids[::-1].copy(), 3), (np.sort(ids), 2)):
        table = make_table(threads=threads)
        batch = Workspace(table, [SlotPlan(0, "sum", 0)])
        for part in np.array_split(order, threads):
            batch.find(part, np.arange(len(part) + 1, dtype=np.uint32), len(part), insert=True)
        dumps.add(dump(table))
    assert len(dumps) == 1


@pytest.mark.parametrize(
    ("kind", "deviation", "bound"), [("uniform", 1 / math.sqrt(3), 1.0), ("normal", 1.0, 3.47)]
)
def test_initial_weights_spread(kind: str, deviation: float, bound: float) -> None:
    table = SparseTable([Segment("e", 16, "concat", ADAGRAD)], SEED, Pool(1))
    table.add_group(0, "g", [InitialWeights(kind, 0.25)])
    batch = Workspace(table, [SlotPlan(0, "sum", 0)])
    n = 20000
    batch.find(np.arange(n, dtype=np.uint64), np.arange(n + 1, dtype=np.uint32), n, insert=True)
    weights = all_records(table)["e"] / 0.25
    assert abs(weights.mean()) < 0.01
    assert abs(weights.std() / deviation - 1) < 0.01
    assert np.abs(weights).max() <= bound
    correlation = np.corrcoef(weights.T) - np.eye(16)
    assert np.abs(correlation).max() < 0.03


# ---- Threads, reading, refusals --------------------------------------------


def test_reading_writes_nothing_and_reads_zeros() -> None:
    table = make_table()
    train(table, 5)
    rows = dump(table)
    batch, reader = make_batch(table), Model(list(table.segments))
    for record in all_records(table):
        weights = [record["linear"].astype(float), record["embedding"].astype(float)]
        reader.rows[int(record["group"]), int(record["id"])] = ModelRow(weights, [])
    cells = random_cells(np.random.default_rng(9), 50, 400)  # known and unknown ids
    outputs = outputs_for(table, 50)
    batch.find(*flat(cells), insert=False)
    batch.gather(outputs)
    for output, wanted in zip(outputs, model_gather(reader, cells), strict=True):
        np.testing.assert_allclose(output, wanted, 1e-5, 1e-6)
    with pytest.raises(ValueError, match="TN_NO_BATCH"):
        batch.accumulate(outputs)
    with pytest.raises(ValueError, match="TN_NO_BATCH"):
        batch.apply()
    assert dump(table) == rows
    unknown: Cells = [[[MASK - i] for i in range(len(SLOTS))]]
    batch.find(*flat(unknown), insert=False)
    batch.gather(outputs)
    assert not outputs[0][0].any() and not outputs[1][0].any()
    assert table.lookup(0, MASK) is None


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("segment", [0, 1])
def test_gradient_that_is_not_finite_changes_nothing(bad: float, segment: int) -> None:
    table = make_table(threads=3)
    train(table, 3)
    batch = make_batch(table)
    rng = np.random.default_rng(1)
    cells = random_cells(rng, 30, 10)
    batch.find(*flat(cells), insert=True)
    rows = dump(table)
    gradients = random_gradients(rng, table, 30)
    example = next(b for b, slots in enumerate(cells) if slots[0])
    gradients[segment][example, 0] = bad
    with pytest.raises(NotFiniteError, match="NaN, infinite or beyond"):
        batch.accumulate(gradients)
    with pytest.raises(ValueError, match="TN_NO_BATCH"):
        batch.apply()
    assert dump(table) == rows
    gradients[segment][example, 0] = 1
    batch.accumulate(gradients)
    batch.apply()
    assert dump(table) != rows


# ---- What the wrappers refuse ----------------------------------------------


def test_find_refuses_arrays_that_do_not_fit() -> None:
    batch = make_batch(make_table())
    ids, offsets, n = flat([[[1], [2], [3], [4], [5, 6]]])
    for given, error, message in (
        ((ids.astype(np.int64), offsets, n), TypeError, "Received: int64"),
        ((ids, offsets.astype(np.int32), n), TypeError, "Received: int32"),
        ((np.repeat(ids, 2)[::2], offsets, n), ValueError, "C-contiguous"),
        ((ids[:5].copy(), offsets, n), ValueError, "expected 6 offsets that end at 5"),
        ((ids, offsets, 2), ValueError, "expected 11 offsets"),
        ((ids, np.array([1, 1, 2, 3, 4, 6], np.uint32), n), ValueError, "TN_BAD_VALUE"),
        ((ids, np.array([0, 3, 2, 3, 4, 6], np.uint32), n), ValueError, "TN_BAD_VALUE"),
    ):
        with pytest.raises(error, match=message):
            batch.find(*given, insert=True)
    assert batch.table.rows == 0


def test_gather_refuses_arrays_that_do_not_fit() -> None:
    table = make_table()
    batch = make_batch(table)
    batch.find(*flat(random_cells(np.random.default_rng(0), 4, 9)), insert=True)
    good = outputs_for(table, 4)
    for outputs, error, message in (
        (good[:1], ValueError, "expected 2 arrays"),
        ([good[0], good[1].astype(float)], TypeError, "Received: float64"),
        ([good[0], np.asfortranarray(good[1])], ValueError, "C-contiguous"),
        ([good[0][:3], good[1]], ValueError, r"expected \[4, columns\]. Received: \(3, 1\)"),
        ([good[0].reshape(-1), good[1]], ValueError, "Received: "),
        # The last slot has no columns.
        ([good[0], good[1][:, :-1].copy()], ValueError, "TN_BAD_VALUE"),
    ):
        with pytest.raises(error, match=message):
            batch.gather(outputs)
    good[0].flags.writeable = False
    with pytest.raises(ValueError, match="can be written"):
        batch.gather(good)
    good[0] = np.zeros_like(good[0])
    good[1] = np.zeros_like(good[1])
    good[1].flags.writeable = False
    batch.accumulate(good)  # gradients are only read


# ---- Memory ----------------------------------------------------------------


def test_memory_per_key() -> None:
    """At most 40 bytes a key beyond weights and state, on the average of 100,000 to 1 M rows."""
    table = make_table()
    batch = Workspace(table, [SlotPlan(0, "sum", 0)])
    rng = np.random.default_rng(0)
    beyond = []
    while table.rows < 1_000_000:
        ids = rng.integers(0, 2**64, 20_000, dtype=np.uint64)
        batch.find(ids, np.arange(len(ids) + 1, dtype=np.uint32), len(ids), insert=True)
        if table.rows >= 100_000:
            used = (table.index_bytes + table.row_bytes) / table.rows
            beyond.append(used - 4 * (1 + 1 + 1 + 8))
    assert np.mean(beyond) <= 40
    assert max(beyond) <= 64
