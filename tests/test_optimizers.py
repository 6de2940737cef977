"""Every optimizer and extra against models in plain float64; `updates: all` against Keras."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tnctl import schema
from tnctl.optimizer_table import KINDS
from tnctl.tables import (
    DenseTable,
    InitialWeights,
    Pool,
    RowOptimizer,
    Segment,
    SlotPlan,
    SparseTable,
    Workspace,
    decay_factors,
    plans,
    weight_factors,
)
from tnctl.training import run

RULES = {
    "sgd": RowOptimizer("sgd", 0.01),
    "momentum": RowOptimizer("sgd", 0.01, momentum=0.9),
    "nesterov": RowOptimizer("sgd", 0.01, momentum=0.5, nesterov=True),
    "adagrad": RowOptimizer("adagrad", 0.05, initial_accumulator=0.1),
    "adagrad_coordinate": RowOptimizer("adagrad_coordinate", 0.05, initial_accumulator=0.01),
    "adam": RowOptimizer("adam", 0.01),
    "ftrl": RowOptimizer("ftrl", 0.1, initial_accumulator=0.1, l1=0.05, l2=0.1),
    "ftrl_without_beta": RowOptimizer("ftrl", 0.1, beta=0.0, initial_accumulator=0.2),
    "tensornet_adagrad": RowOptimizer(
        "tensornet_adagrad", 0.05, initial_accumulator=0.1, beta1=0.5, beta2=0.99
    ),
    "tensornet_adam": RowOptimizer("tensornet_adam", 0.002),
    "tensornet_ftrl": RowOptimizer("tensornet_ftrl", 4.0, l1=0.1, l2=1.0),
}
EXTRAS: dict[str, dict[str, float]] = {
    "none": {},
    "clip": {"clip": 0.5},
    "l2": {"l2": 0.1},
    "bound": {"bound": 0.05},
    "max_norm": {"max_norm": 0.2},
    "decay": {"decay": 0.2},
    "scale": {},
    "together": {"clip": 0.8, "l2": 0.05, "bound": 0.3, "max_norm": 0.5, "decay": 0.1},
}
SCALES = {"scale": 0.25, "together": 0.5}
GROUPS = (4, 9)
SLOTS = [(4, "sum"), (9, "mean"), (4, "sum")]


# ---- The models --------------------------------------------------------------


def fresh_state(o: RowOptimizer, width: int, dense: bool, steps: int = 0) -> dict[str, Any]:
    accumulators = width if dense or o.name == "adagrad_coordinate" else 1
    return {
        "t": steps,
        "m": np.zeros(width),
        "v": np.zeros(width),
        "d": np.zeros(width),
        "z": np.zeros(width),
        "n": np.full(width, 0.0 if o.name == "tensornet_ftrl" else o.initial_accumulator),
        "G": np.full(accumulators, o.initial_accumulator),
    }


def adagrad(o: RowOptimizer, w: np.ndarray, s: dict[str, Any], g: np.ndarray, dense: bool) -> None:
    by_coordinate = dense or o.name == "adagrad_coordinate"
    s["G"] += g**2 if by_coordinate else (g**2).mean()
    w -= o.learning_rate * g / (np.sqrt(s["G"]) + o.epsilon)


def sgd(o: RowOptimizer, w: np.ndarray, s: dict[str, Any], g: np.ndarray, _dense: bool) -> None:
    s["m"] = o.momentum * s["m"] + g
    w -= o.learning_rate * (g + o.momentum * s["m"] if o.nesterov else s["m"])


def adam(o: RowOptimizer, w: np.ndarray, s: dict[str, Any], g: np.ndarray, dense: bool) -> None:
    s["t"] += 1
    s["m"] = o.beta1 * s["m"] + (1 - o.beta1) * g
    s["v"] = o.beta2 * s["v"] + (1 - o.beta2) * g**2
    rate = o.learning_rate
    if dense or o.name == "adam":
        rate *= np.sqrt(1 - o.beta2 ** s["t"]) / (1 - o.beta1 ** s["t"])
    w -= rate * s["m"] / (np.sqrt(s["v"]) + o.epsilon)


def ftrl(o: RowOptimizer, w: np.ndarray, s: dict[str, Any], g: np.ndarray, _dense: bool) -> None:
    alpha = o.learning_rate if o.name == "ftrl" else 1 / o.learning_rate
    s["z"] += g - (np.sqrt(s["n"] + g**2) - np.sqrt(s["n"])) / alpha * w
    s["n"] += g**2
    shrunk = -(s["z"] - np.sign(s["z"]) * o.l1) / ((o.beta + np.sqrt(s["n"])) / alpha + o.l2)
    w[:] = np.where(np.abs(s["z"]) <= o.l1, 0, shrunk)


def tensornet_adagrad(
    o: RowOptimizer, w: np.ndarray, s: dict[str, Any], g: np.ndarray, dense: bool
) -> None:
    if not dense:
        adagrad(o, w, s, g, dense)
        return
    s["d"] = o.beta2 * s["d"] + 1
    s["G"] = o.beta2 * s["G"] + g**2
    s["m"] += (g - s["m"]) * (1 - o.beta1)
    w -= o.learning_rate * s["m"] / (np.sqrt(s["G"]) / np.sqrt(s["d"]) + o.epsilon)


MODELS: dict[str, Callable[..., None]] = {
    "sgd": sgd,
    "adagrad": adagrad,
    "adagrad_coordinate": adagrad,
    "adam": adam,
    "ftrl": ftrl,
    "tensornet_adagrad": tensornet_adagrad,
    "tensornet_adam": adam,
    "tensornet_ftrl": ftrl,
}


def final_gradient(o: RowOptimizer, w: np.ndarray, g: np.ndarray) -> np.ndarray:
    g = np.clip(g, -o.clip, o.clip) if o.clip else g
    return g if o.name.endswith("ftrl") else g + o.l2 * w


def update(
    o: RowOptimizer,
    w: np.ndarray,
    state: dict[str, Any],
    g: np.ndarray,
    scale: float,
    kept: float,
    dense: bool = False,
) -> None:
    """One update of one row, or of a dense variable, in place."""
    g = final_gradient(o, w, g) * scale
    w *= kept
    MODELS[o.name](o, w, state, g, dense)
    if o.bound:
        np.clip(w, -o.bound, o.bound, w)
    if o.max_norm and np.linalg.norm(w) > o.max_norm:
        w *= o.max_norm / np.linalg.norm(w)


class RowModel:
    """(group, id) -> weights [width] in float64, decayed eagerly: every row at every step."""

    def __init__(self, table: SparseTable, everything: bool) -> None:
        self.table, self.everything = table, everything
        self.optimizer, self.width = table.segments[0].optimizer, table.segments[0].width
        self.weights: dict[tuple[int, int], np.ndarray] = {}
        self.states: dict[tuple[int, int], dict[str, Any]] = {}
        self.fresh: set[tuple[int, int]] = set()

    def insert(self, keys: set[tuple[int, int]], step: int) -> None:
        """Rows take their initial weights from the table; test_sparse_table.py tests those."""
        for key in keys - self.weights.keys():
            weights = self.table.lookup(*key)
            assert weights is not None
            self.weights[key] = weights.astype(float)
            steps = step - 1 if self.everything else 0
            self.states[key] = fresh_state(self.optimizer, self.width, False, steps)
            self.fresh.add(key)

    def gradients(self, sums: dict[tuple[int, int], np.ndarray]) -> dict[tuple[int, int], Any]:
        keys = self.weights if self.everything else sums
        return {key: sums.get(key, np.zeros(self.width)) for key in keys}

    def squares(self, sums: dict[tuple[int, int], np.ndarray]) -> float:
        final = [
            final_gradient(self.optimizer, self.weights[key], g)
            for key, g in self.gradients(sums).items()
        ]
        return float(sum((g**2).sum() for g in final))

    def apply(self, sums: dict[tuple[int, int], np.ndarray], scale: float) -> None:
        o = self.optimizer
        keep = 1 - np.float32(self.rate_at_first) * o.decay
        gradients = self.gradients(sums)
        for key, weights in self.weights.items():
            kept = 1 if key in self.fresh and not self.everything else keep
            if key in gradients:
                update(o, weights, self.states[key], gradients[key], scale, kept)
            else:
                weights *= kept
        self.fresh.clear()

    rate_at_first = 0.0


# ---- Rows --------------------------------------------------------------------


def make_table(
    optimizer: RowOptimizer, width: int, threads: int = 2, updates: str = "touched"
) -> SparseTable:
    table = SparseTable([Segment("w", width, "concat", optimizer)], 3, Pool(threads), updates)
    for group in GROUPS:
        table.add_group(group, f"group{group}", [InitialWeights("normal", 0.1)])
    return table


def make_batch(table: SparseTable) -> Workspace:
    width = table.segments[0].width
    return Workspace(
        table, [SlotPlan(g, pooling, i * width) for i, (g, pooling) in enumerate(SLOTS)]
    )


class Cells:
    """Random ids of a batch, more of them from step to step, many of them twice."""

    def __init__(self, rng: np.random.Generator, examples: int, universe: int) -> None:
        counts = rng.choice([0, 1, 1, 2, 3], examples * len(SLOTS))
        self.examples = examples
        self.offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32)
        self.ids = (rng.random(self.offsets[-1]) ** 2 * universe).astype(np.uint64)

    def each(self) -> Any:
        """(example, slot, group, id, divisor) of every id."""
        for cell, (start, end) in enumerate(zip(self.offsets, self.offsets[1:], strict=False)):
            example, slot = divmod(cell, len(SLOTS))
            group, pooling = SLOTS[slot]
            for id_ in self.ids[start:end]:
                yield example, slot, group, int(id_), end - start if pooling == "mean" else 1

    def keys(self) -> set[tuple[int, int]]:
        return {(group, id_) for _, _, group, id_, _ in self.each()}


def check_steps(
    optimizer: RowOptimizer,
    width: int,
    scale: float,
    steps: int = 200,
    updates: str = "touched",
    tolerance: float = 2e-4,
) -> None:
    rng = np.random.default_rng(width)
    table = make_table(optimizer, width, updates=updates)
    batch, model = make_batch(table), RowModel(table, updates == "all")
    model.rate_at_first = optimizer.learning_rate
    columns = width * len(SLOTS)
    for step in range(1, steps + 1):
        if step == steps // 2:
            table.set_learning_rate(0, optimizer.learning_rate / 2)
            model.optimizer = replace(optimizer, learning_rate=optimizer.learning_rate / 2)
        table.set_step(step)
        cells = Cells(rng, int(rng.integers(0, 5)), 5 + step // 2)
        batch.find(cells.ids, cells.offsets, cells.examples, insert=True)
        model.insert(cells.keys(), step)
        output = np.full((cells.examples, columns), np.nan, np.float32)
        batch.gather([output])
        gradient = rng.normal(size=output.shape).astype(np.float32)
        pooled = np.zeros_like(output, np.float64)
        sums: dict[tuple[int, int], np.ndarray] = {}
        for example, slot, group, id_, divisor in cells.each():
            part = slice(slot * width, (slot + 1) * width)
            pooled[example, part] += model.weights[group, id_] / divisor
            row = sums.setdefault((group, id_), np.zeros(width))
            row += gradient[example, part].astype(float) / divisor
        np.testing.assert_allclose(output, pooled, tolerance, tolerance)
        batch.accumulate([gradient])
        np.testing.assert_allclose(batch.squares(), model.squares(sums), 1e-4, 1e-6)
        batch.apply(scale)
        model.apply(sums, scale)
    assert table.rows == len(model.weights) > 20
    for key, weights in model.weights.items():
        np.testing.assert_allclose(table.lookup(*key), weights, tolerance, tolerance)
    check_records(table, model, steps, tolerance)


def check_records(table: SparseTable, model: RowModel, step: int, tolerance: float) -> None:
    """Records hold rows as they were written; decay_factors brings their weights to today."""
    [records] = table.records()
    keep = replace(model.optimizer, learning_rate=model.rate_at_first).decay_factor
    factors = decay_factors(keep, np.uint32(step) - records["changed"])
    read = records["w"] * factors[:, None]
    if model.everything:
        assert (records["changed"] == step).all()
    for record, weights in zip(records, read, strict=True):
        key = int(record["group"]), int(record["id"])
        np.testing.assert_array_equal(weights, table.lookup(*key))
        state = model.states[key]
        if model.optimizer.name == "adam":
            assert record["w.steps"] == state["t"]
        if model.optimizer.name.endswith("ftrl"):
            np.testing.assert_allclose(record["w.n"], state["n"], tolerance, tolerance)
            np.testing.assert_allclose(record["w.z"], state["z"], 1e-3, 1e-3)


@pytest.mark.parametrize("width", [1, 8])
@pytest.mark.parametrize("rule", RULES)
def test_rows_equal_the_model(rule: str, width: int) -> None:
    check_steps(RULES[rule], width, 1.0)


@pytest.mark.parametrize("extra", [extra for extra in EXTRAS if extra != "none"])
@pytest.mark.parametrize("rule", RULES)
def test_rows_with_extras_equal_the_model(rule: str, extra: str) -> None:
    optimizer = with_extra(rule, extra)
    # Decay counts across gaps of many steps; 60 steps of 3 coordinates see all of it.
    check_steps(optimizer, 3, SCALES.get(extra, 1.0), steps=60)


@pytest.mark.long
@pytest.mark.parametrize("width", [1, 64])
@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("rule", RULES)
def test_rows_with_extras_equal_the_model_at_length(rule: str, extra: str, width: int) -> None:
    check_steps(with_extra(rule, extra), width, SCALES.get(extra, 1.0))


def with_extra(rule: str, extra: str) -> RowOptimizer:
    settings = EXTRAS[extra]
    if rule.endswith("ftrl") or rule.startswith("ftrl"):
        settings = {key: value for key, value in settings.items() if key != "l2"}
    return replace(RULES[rule], **settings)


@pytest.mark.parametrize("extra", ["none", "l2", "together"])
@pytest.mark.parametrize("rule", RULES)
def test_all_rows_equal_the_model(rule: str, extra: str) -> None:
    check_steps(with_extra(rule, extra), 8, SCALES.get(extra, 1.0), steps=60, updates="all")


def test_a_large_sum_of_ftrl_still_moves() -> None:
    """sqrt(n + g^2) - sqrt(n) would lose all of its digits."""
    optimizer = RowOptimizer("ftrl", 1.0, initial_accumulator=1e7, beta=0.0)
    table = make_table(optimizer, 1, 1)
    batch = Workspace(table, [SlotPlan(4, "sum", 0)])
    w = z = 0.0
    n = 1e7
    for _ in range(10):
        batch.find(np.array([1], np.uint64), np.array([0, 1], np.uint32), 1, insert=True)
        w = float(table.lookup(4, 1)[0]) if z == 0 else w
        batch.accumulate([np.ones((1, 1), np.float32)])
        batch.apply()
        z += 1 - (np.sqrt(n + 1) - np.sqrt(n)) * w
        n += 1
        w = -z / np.sqrt(n)
    np.testing.assert_allclose(table.lookup(4, 1), w, 1e-6)


def test_ftrl_rests_at_learning_rate_zero() -> None:
    for rule in ("ftrl", "tensornet_ftrl"):
        table = make_table(RULES[rule], 3, 1)
        trained = train(table, 1)
        table.set_learning_rate(0, 0.0)
        assert train(table, 1) == trained


def test_decayed_rows_are_read_by_the_clock() -> None:
    """A step reads what the step before left; a reader at rest reads the clock's own step."""
    table = make_table(RowOptimizer("sgd", 0.5, decay=0.5), 2, 1)
    batch = Workspace(table, [SlotPlan(4, "sum", 0)])
    id_, ends, output = np.array([7], np.uint64), np.array([0, 1], np.uint32), np.zeros((1, 2))
    output = output.astype(np.float32)
    table.set_step(10)
    batch.find(id_, ends, 1, insert=True)
    start = table.lookup(4, 7)
    for now, past in ((10, 0), (11, 1), (13, 3), (1010, 1000)):
        table.set_step(now)
        for insert, steps in ((False, past), (True, max(past - 1, 0))):
            batch.find(id_, ends, 1, insert)
            batch.gather([output])
            wanted = start * np.float32(0.75**steps)
            np.testing.assert_array_equal(output[0], wanted)
        np.testing.assert_array_equal(table.lookup(4, 7), start * np.float32(0.75**past))
    [records] = table.records()
    np.testing.assert_array_equal(records["w"][0], start)
    assert records["changed"][0] == 10
    factors = decay_factors(0.75, np.array([0, 1, 2, 1000], np.uint32))
    np.testing.assert_array_equal(factors, np.float32([1, 0.75, 0.75**2, 0.75**1000]))


def test_lazy_l2_is_l2_of_every_step():
    """Against a row that gets the gradient l2 * w at every step, its accumulator left as it is."""
    rate, l2, start = 0.1, 0.3, 0.5
    table = make_table(
        RowOptimizer("adagrad", rate, lazy_l2=l2, epsilon=1e-8, initial_accumulator=start), 2, 1
    )
    batch = Workspace(table, [SlotPlan(4, "sum", 0)])
    id_, ends = np.array([7], np.uint64), np.array([0, 1], np.uint32)
    w, total = table.fresh_records(np.array([4], np.uint16), id_)["w"][0].astype(np.float64), start
    random, last = np.random.default_rng(1), 0
    for step in (1, 2, 3, 7, 8, 20, 21):
        for _ in range(last + 1, step):
            w = w - rate / np.sqrt(total) * l2 * w if last else w
        table.set_step(step)
        batch.find(id_, ends, 1, insert=True)
        gradient = random.normal(size=(1, 2)).astype(np.float32)
        batch.accumulate([gradient])
        batch.apply(1.0)
        w = w - rate / np.sqrt(total) * l2 * w if last else w
        total += float((gradient.astype(np.float64) ** 2).mean())
        w, last = w - rate / np.sqrt(total) * gradient[0], step
        np.testing.assert_allclose(table.lookup(4, 7), w, rtol=1e-5)
    [records] = table.records()
    for steps in (0, 1, 50):
        table.set_step(21 + steps)
        factors = weight_factors(table.segments[0].optimizer, "w", records, np.uint32([steps]))
        np.testing.assert_array_equal(table.lookup(4, 7), records["w"][0] * factors[0])
    # So much that a step leaves nothing.
    strong = make_table(
        RowOptimizer("adagrad", 1.0, lazy_l2=9.0, epsilon=1e-8, initial_accumulator=start), 2, 1
    )
    batch = Workspace(strong, [SlotPlan(4, "sum", 0)])
    strong.set_step(1)
    batch.find(id_, ends, 1, insert=True)
    assert strong.lookup(4, 7).any()
    strong.set_step(2)
    assert not strong.lookup(4, 7).any()


# ---- Threads, loading ----------------------------------------------------------


def train(table: SparseTable, steps: int, seed: int = 5, first: int = 1) -> bytes:
    """Steps of random batches; all records, and what the norms were."""
    rng = np.random.default_rng(seed)
    batch, norms = make_batch(table), []
    for step in range(first, first + steps):
        table.set_step(step)
        cells = Cells(rng, 40, 20 * step)
        batch.find(cells.ids, cells.offsets, cells.examples, insert=True)
        columns = table.segments[0].width * len(SLOTS)
        batch.accumulate([rng.normal(size=(40, columns)).astype(np.float32)])
        norms.append(batch.squares())
        batch.apply(0.5)
    return b"".join(r.tobytes() for r in table.records()) + np.array(norms).tobytes()


@pytest.mark.parametrize("updates", ["touched", "all"])
@pytest.mark.parametrize("rule", ["adam", "momentum", "ftrl"])
def test_training_goes_on_from_records(rule: str, updates: str) -> None:
    """Rows of a loaded table lie in another order; neither weights nor norms may know."""
    table, copy = (make_table(with_extra(rule, "together"), 5, 2, updates) for _ in range(2))
    train(table, 8)
    for records in table.records():
        copy.insert_records(records.view("u1"))
    assert train(table, 4, seed=6, first=9) == train(copy, 4, seed=6, first=9)


# ---- Dense -------------------------------------------------------------------

SIZES = [7, 5000, 1, 0]
DENSE_RULES = [rule for rule in RULES if rule != "tensornet_ftrl"]


def make_dense(optimizer: RowOptimizer, threads: int = 3) -> DenseTable:
    table = DenseTable(SIZES, optimizer, Pool(threads))
    rng = np.random.default_rng(0)
    for weights in table.weights:
        weights[:] = 0.1 * rng.normal(size=weights.size)
    return table


@pytest.mark.parametrize("extra", [extra for extra in EXTRAS if extra != "max_norm"])
@pytest.mark.parametrize("rule", DENSE_RULES)
def test_dense_weights_equal_the_model(rule: str, extra: str) -> None:
    optimizer, scale = replace(with_extra(rule, extra), max_norm=0.0), SCALES.get(extra, 1.0)
    table = make_dense(optimizer)
    w = [weights.astype(float) for weights in table.weights]
    states = [fresh_state(optimizer, size, True) for size in SIZES]
    rng = np.random.default_rng(1)
    for step in range(200):
        if step == 100:
            optimizer = replace(optimizer, learning_rate=optimizer.learning_rate / 2)
            table.set_learning_rate(optimizer.learning_rate)
        g = [rng.normal(size=size).astype(np.float32) for size in SIZES]
        final = [final_gradient(optimizer, a, b.astype(float)) for a, b in zip(w, g, strict=True)]
        wanted = sum((part**2).sum() for part in final)
        np.testing.assert_allclose(table.squares(g), wanted, 1e-4)
        table.apply(g, scale)
        kept = 1 - optimizer.learning_rate * optimizer.decay
        for weights, state, gradient in zip(w, states, g, strict=True):
            update(optimizer, weights, state, gradient.astype(float), scale, kept, dense=True)
    assert table.step == 200
    for real, wanted in zip(table.weights, w, strict=True):
        np.testing.assert_allclose(real, wanted, 2e-4, 2e-4)
    names = {"accumulator": "G"}
    for name, arrays in zip(table.state_names, table.states, strict=True):
        for array, state in zip(arrays, states, strict=True):
            np.testing.assert_allclose(array, state[names.get(name, name)], 1e-3, 1e-3)


@pytest.mark.parametrize("rule", DENSE_RULES)
def test_dense_threads_and_copied_state(rule: str) -> None:
    optimizer = replace(with_extra(rule, "together"), max_norm=0.0)
    tables = [make_dense(optimizer, threads) for threads in (1, 2, 3, 5)]
    for table in tables:
        rng = np.random.default_rng(2)
        for _ in range(12):
            g = [rng.normal(size=size).astype(np.float32) for size in SIZES]
            table.apply(g, 1 / np.sqrt(table.squares(g)))
    copy = make_dense(optimizer)
    copy.step = 12
    for to, given in zip([copy.weights, *copy.states], [table.weights, *table.states], strict=True):
        for target, source in zip(to, given, strict=True):
            target[:] = source
    squares = set()
    for table in (*tables, copy):
        squares.add(table.squares(g))
        table.apply(g)
    assert (
        len({b"".join(array.tobytes() for array in table.weights) for table in (*tables, copy)})
        == 1
    )
    assert len(squares) == 1


# ---- Keras ---------------------------------------------------------------------


def test_all_rows_train_as_an_embedding_of_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adam with L2 on the whole table, step by step; rows exist from step 1."""
    import keras
    import tensorflow as tf

    ids, width, penalty = 30, 10, 0.02
    o = RowOptimizer("adam", 0.01, epsilon=1e-7, l2=penalty)
    table = SparseTable([Segment("w", width, "concat", o)], 1, Pool(2), updates="all")
    table.add_group(0, "ids", [InitialWeights("uniform", 0.05)])
    batch = Workspace(table, [SlotPlan(0, "sum", 0)])
    monkeypatch.setattr(run, "IDS_AT_A_TIME", 16)
    run.insert_counted(table, 0, ids)
    assert table.rows == ids
    variable = keras.Variable(np.stack([table.lookup(0, i) for i in range(ids)]))
    adam = keras.optimizers.Adam(0.01, epsilon=1e-7)
    adam.build([variable])
    rng = np.random.default_rng(4)
    for step in range(1, 101):
        chosen = rng.integers(0, ids // 2, 8)  # half of the rows are never in a batch
        target = rng.normal(size=(8, width)).astype(np.float32)
        with tf.GradientTape() as tape:
            looked_up = tf.gather(variable.value, chosen)
            loss = tf.reduce_sum((looked_up - target) ** 2) / 2
            loss += penalty / 2 * tf.reduce_sum(variable.value**2)
        dense = tf.convert_to_tensor(tape.gradient(loss, variable.value))
        table.set_step(step)
        batch.find(chosen.astype(np.uint64), np.arange(9, dtype=np.uint32), 8, insert=True)
        output = np.zeros((8, width), np.float32)
        batch.gather([output])
        batch.accumulate([output - target])
        np.testing.assert_allclose(batch.squares(), (dense.numpy() ** 2).sum(), 1e-5)
        batch.apply()
        adam.apply([dense], [variable])
        real = np.stack([table.lookup(0, i) for i in range(ids)])
        np.testing.assert_allclose(real, variable.numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("rule", ["adamw", "ftrl", "nesterov"])
def test_dense_weights_train_as_in_keras(rule: str) -> None:
    import keras

    keras_optimizers = keras.optimizers
    o, theirs = {
        "adamw": (
            RowOptimizer("adam", 0.01, epsilon=1e-7, decay=0.1),
            keras_optimizers.AdamW(0.01, epsilon=1e-7, weight_decay=0.1),
        ),
        "ftrl": (
            RowOptimizer("ftrl", 0.1, initial_accumulator=0.1, l1=0.01, l2=0.02, beta=0.5),
            keras_optimizers.Ftrl(
                0.1,
                l1_regularization_strength=0.01,
                l2_regularization_strength=0.01,  # Keras doubles it
                beta=0.5,
            ),
        ),
        "nesterov": (
            RowOptimizer("sgd", 0.01, momentum=0.9, nesterov=True),
            keras_optimizers.SGD(0.01, momentum=0.9, nesterov=True),
        ),
    }[rule]
    table = DenseTable([50], o, Pool(1))
    rng = np.random.default_rng(9)
    table.weights[0][:] = rng.normal(size=50)
    variable = keras.Variable(table.weights[0].copy())
    theirs.build([variable])
    for _ in range(100):
        gradient = rng.normal(size=50).astype(np.float32)
        table.apply([gradient])
        theirs.apply([keras.ops.convert_to_tensor(gradient)], [variable])
    np.testing.assert_allclose(table.weights[0], variable.numpy(), rtol=0, atol=2e-6)


def test_rows_of_all_that_come_later_are_as_old_as_the_table() -> None:
    table = make_table(RowOptimizer("adam", 0.01), 2, 1, "all")
    batch = Workspace(table, [SlotPlan(4, "sum", 0)])
    for step, id_ in ((1, 5), (2, 6), (7, 8)):
        table.set_step(step)
        batch.find(np.array([id_], np.uint64), np.array([0, 1], np.uint32), 1, insert=True)
        batch.accumulate([np.ones((1, 2), np.float32)])
        batch.apply()
    [records] = table.records()
    assert {int(r["id"]): int(r["w.steps"][0]) for r in records} == {5: 3, 6: 3, 8: 7}


# ---- Settings ------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_states_have_names(rule: str) -> None:
    names = {
        "sgd": [],
        "momentum": ["m"],
        "nesterov": ["m"],
        "adagrad": ["accumulator"],
        "adagrad_coordinate": ["accumulator"],
        "adam": ["steps", "m", "v"],
        "tensornet_adagrad": ["accumulator"],
        "tensornet_adam": ["m", "v"],
    }.get(rule, ["n", "z"])
    table = make_table(RULES[rule], 3)
    assert list(table.record_dtype.names or ())[4:-1] == [f"w.{name}" for name in names]
    train(table, 2)
    for records in table.records():
        for name in names:
            assert np.isfinite(records[f"w.{name}"]).all()


# ---- The table of optimizers in C --------------------------------------------


def test_the_schema_has_the_optimizers_and_settings_of_the_table_in_c() -> None:
    """By its own names: csrc/tn_optimizer.c is where they are declared."""
    assert set(schema.RULES) == {*plans.NAMES, "adamw"}
    assert schema.RULES["adamw"] == schema.RULES["adam"] == dict(plans.settings("adam"))
    assert schema.RULES["sgd"] == {"momentum": 0.0, "nesterov": False}
    assert schema.RULES["ftrl"] == {"initial_accumulator": 0.0, "l1": 0.0, "beta": 1.0}
    assert schema.RULES["tensornet_adagrad"] == {
        "epsilon": 1e-8,
        "initial_accumulator": 0.0,
        "momentum_decay": 1.0,
        "gradient_decay": 1.0,
    }
    for name in schema.RULES:
        in_c, settings = schema.Optimizer(name=name).in_c(None, 1)
        assert in_c == ("adam" if name == "adamw" else name)
        assert set(settings) == {*plans.settings(in_c), *plans.EXTRAS}
    assert schema.Optimizer(name="adamw").in_c("tensornet", 1)[0] == "tensornet_adam"


def test_initial_gradients_are_of_examples_and_not_of_batches() -> None:
    """Every example of a batch has the gradient 1 of its loss, the mean over the batch 1 / size."""
    for size in (1, 32, 4096):
        optimizer = schema.Optimizer(initial_gradients=17)
        _, settings = optimizer.in_c(None, size)
        assert settings["initial_accumulator"] == pytest.approx(17 * (1 / size) ** 2)
        # So the first step of a row in one example is the same.
        step = (1 / size) / np.sqrt(settings["initial_accumulator"] + (1 / size) ** 2)
        assert step == pytest.approx(1 / np.sqrt(18))


def test_defaults_come_from_the_table_in_c() -> None:
    assert RowOptimizer("adam", 0.1).epsilon == plans.settings("adam")["epsilon"] == 1e-7
    assert RowOptimizer("adagrad", 0.1).beta == 0.0  # it has none
    with pytest.raises(TypeError, match="no setting momentun"):
        RowOptimizer("sgd", 0.1, momentun=0.9)
    rows_only = [name for name in plans.NAMES if KINDS[name].rows_only]
    assert rows_only == ["tensornet_ftrl"]
