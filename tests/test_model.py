"""The dense model and the training step, against a float64 numpy model of DeepFM."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.autograph.impl import api as autograph

from tnctl.data.batches import Batch
from tnctl.data.statistics_document import Statistics
from tnctl.evaluation.inference import Inference
from tnctl.model import building, graph
from tnctl.model.layout import slot_plans
from tnctl.schema import Conf, Data, Embedding, Initial, Numeric, Optimizer, Optimizers, Slot, Train
from tnctl.tables import Workspace, aligned
from tnctl.training.step import TrainingStep, gradient_function

BATCH, SLOTS, WIDTH, NUMBERS = 6, 3, 4, 2
RATE, START, EPSILON = 0.05, 1e-6, 1e-8


def make(batch_size=BATCH, precision="float32", pooling="sum", **optimizers):
    conf = Conf(
        recipe={"name": "deepfm", "hidden": [5, 3], "activation": "tanh"},
        slots={name: Slot(pooling=pooling) for name in "abc"},
        numeric={"m": Numeric(), "n": Numeric()},
        embedding=Embedding(WIDTH, Initial("normal", 0.5)),
        optimizer=Optimizers(**optimizers),
        data=Data(train="none"),
        train=Train(batch_size=batch_size, threads=2, precision=precision),
    )
    return building.build(conf, Statistics())


def batch_of(rows, seed=0, several=False):
    """Few ids, so that they meet again in a batch; with `several`, cells of 0 to 3 ids."""
    random = np.random.default_rng(seed)
    counts = random.integers(0, 4, rows * SLOTS) if several else np.ones(rows * SLOTS, int)
    ids = random.integers(0, 5, counts.sum()).astype(np.uint64)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32)
    numeric = random.normal(size=(rows, NUMBERS)).astype(np.float32)
    labels = (random.random((rows, 1)) < 0.4).astype(np.float32)
    return Batch([ids], [offsets], [None], numeric, labels, None, None, None, None)


def forward(weights, x, linear):
    """The logits of DeepFM in float64: equations 1, 2 and 4 of the paper, pair by pair."""
    v = x[:, : SLOTS * WIDTH].reshape(len(x), SLOTS, WIDTH)
    numeric = x[:, SLOTS * WIDTH :]
    pairs = sum((v[:, i] * v[:, j]).sum(axis=1) for i in range(SLOTS) for j in range(i + 1, SLOTS))
    h = x
    for k in (0, 1):
        h = np.tanh(h @ weights[f"deep/{k}/kernel"] + weights[f"deep/{k}/bias"])
    deep = h @ weights["deep_logit/kernel"] + weights["deep_logit/bias"]
    return linear[:, 0] + (numeric @ weights["numeric/kernel"])[:, 0] + pairs + deep[:, 0]


def loss_of(weights, x, linear, labels):
    z = forward(weights, x, linear)
    return np.mean(np.maximum(z, 0) - z * labels + np.log1p(np.exp(-np.abs(z))))


def named(model):
    """The dense variables under the names that `forward` uses, float64, from the C memory."""
    variables, dense = {}, 0
    for path, variable, memory in zip(
        model.variable_names, model.variables, model.dense.weights, strict=True
    ):
        name = path
        if path.split("/")[0] not in ("numeric", "deep_logit"):
            name = f"deep/{dense // 2}/{path.split('/')[-1]}"
            dense += 1
        variables[name] = memory.reshape(tuple(variable.shape)).astype(np.float64)
    return variables


def difference(function, array, at, step=1e-6):
    """The central difference of a function of `array` in one coordinate."""
    kept = array[at]
    array[at] = kept + step
    above = function()
    array[at] = kept - step
    below = function()
    array[at] = kept
    return (above - below) / (2 * step)


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_are_finite_differences(compiled):
    model = make()
    random = np.random.default_rng(3)
    x32 = aligned((BATCH, SLOTS * WIDTH + NUMBERS))
    linear32, labels32, number = aligned((BATCH, 1)), aligned((BATCH, 1)), aligned(1, np.int64)
    x32[:] = random.normal(size=x32.shape) * 0.5
    linear32[:] = random.normal(size=linear32.shape) * 0.5
    labels32[:] = random.random((BATCH, 1))  # soft labels too
    function = gradient_function(model, BATCH, compiled)
    loss, logits, (of_x, of_linear), of_dense, statistics = function(
        *(building.tensor_over(array) for array in (x32, linear32, labels32, number))
    )
    assert not statistics
    weights = named(model)
    x, linear, labels = (a.astype(np.float64) for a in (x32, linear32, labels32))
    labels = labels[:, 0]
    np.testing.assert_allclose(logits[:, 0], forward(weights, x, linear), rtol=2e-5, atol=2e-6)
    assert float(loss) == pytest.approx(loss_of(weights, x, linear, labels), rel=1e-5)

    def of(array):
        return lambda at: difference(lambda: loss_of(weights, x, linear, labels), array, at)

    # Of x the embeddings' columns count: numbers are not trained, and their gradient is not whole.
    columns = SLOTS * WIDTH
    pairs = [(np.asarray(of_x)[:, :columns], x[:, :columns]), (np.asarray(of_linear), linear)]
    pairs += [(np.asarray(g), w) for g, w in zip(of_dense, weights.values(), strict=True)]
    for gradient, array in pairs:
        measured = np.array([of(array)(at) for at in np.ndindex(array.shape)]).reshape(array.shape)
        assert gradient.shape == array.shape
        np.testing.assert_allclose(gradient, measured, rtol=1e-3, atol=1e-6)


def pooled(model, batch, pooling):
    """What a batch finds in the rows themselves: x, linear, and which rows each cell has."""
    [table] = model.tables
    x = np.zeros((batch.rows, SLOTS * WIDTH + NUMBERS))
    linear = np.zeros((batch.rows, 1))
    cells = []
    for cell in range(batch.rows * SLOTS):
        example, slot = divmod(cell, SLOTS)
        ids = batch.ids[0][batch.offsets[0][cell] : batch.offsets[0][cell + 1]]
        rows = [table.lookup(slot, int(id_)) for id_ in ids]
        divisor = {"sum": 1, "mean": len(ids), "sqrtn": np.sqrt(len(ids))}[pooling] or 1
        for row in rows:
            linear[example] += row[0] / divisor
            x[example, slot * WIDTH : (slot + 1) * WIDTH] += row[1:] / divisor
        cells.append((example, slot, [(slot, int(id_)) for id_ in ids], divisor))
    x[:, SLOTS * WIDTH :] = batch.numeric
    return x, linear, cells


@pytest.mark.parametrize("pooling", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("several", [False, True])
def test_a_step_is_adagrad_on_rows_and_adam_on_dense_weights(pooling, several):
    model = make(
        pooling=pooling,
        linear=Optimizer(learning_rate=RATE),
        embedding=Optimizer(learning_rate=RATE),
        dense=Optimizer("adam", 0.01),
    )
    [table] = model.tables
    step = TrainingStep(model, BATCH)
    step(batch_of(BATCH, 1, several))  # rows exist, with state, and Adam has moments
    state = {(int(r["group"]), int(r["id"])): r for part in table.records() for r in part}
    moments = [[a.astype(np.float64) for a in part] for part in model.dense.states]
    dense = [a.astype(np.float64) for a in model.dense.weights]

    rows = 4  # a partial batch
    batch = batch_of(rows, 1, several)  # the first rows of the same ids: all are known
    known = all(
        table.lookup(slot, int(id_)) is not None
        for _, slot, keys, _ in pooled_keys(batch)
        for id_ in keys
    )
    if not known:
        step(batch)
        state = {(int(r["group"]), int(r["id"])): r for part in table.records() for r in part}
        moments = [[a.astype(np.float64) for a in part] for part in model.dense.states]
        dense = [a.astype(np.float64) for a in model.dense.weights]
    x, linear, cells = pooled(model, batch, pooling)
    weights, labels = named(model), batch.labels[:, 0].astype(np.float64)
    of_x, of_linear = np.zeros_like(x), np.zeros_like(linear)
    for gradient, array in ((of_x, x), (of_linear, linear)):
        for at in np.ndindex(array.shape):
            gradient[at] = difference(lambda: loss_of(weights, x, linear, labels), array, at)
    of_dense = []
    for array in weights.values():
        g = [difference(lambda: loss_of(weights, x, linear, labels), array, at)
             for at in np.ndindex(array.shape)]  # fmt: skip
        of_dense.append(np.array(g))

    result = step(batch)
    assert result.loss == pytest.approx(loss_of(weights, x, linear, labels), rel=1e-4)
    logits = forward(weights, x, linear)
    np.testing.assert_allclose(result.logits[:, 0], logits, rtol=1e-4, atol=1e-5)

    sums = {}
    for example, slot, keys, divisor in cells:
        for key in keys:
            sums_of_row = sums.setdefault(key, [np.zeros(1), np.zeros(WIDTH)])
            sums_of_row[0] += of_linear[example] / divisor
            sums_of_row[1] += of_x[example, slot * WIDTH : (slot + 1) * WIDTH] / divisor
    for key, gradients in sums.items():
        before, after = state[key], table.lookup(*key)
        for name, gradient, got in (
            ("linear", gradients[0], after[:1]),
            ("embedding", gradients[1], after[1:]),
        ):
            accumulator = before[f"{name}.accumulator"][0] + np.mean(gradient**2)
            expected = before[name] - RATE * gradient / (np.sqrt(accumulator) + EPSILON)
            np.testing.assert_allclose(got, expected, rtol=2e-3, atol=2e-5)
    count = model.dense.step
    for place, gradient in enumerate(of_dense):
        m = 0.9 * moments[0][place] + 0.1 * gradient
        v = 0.999 * moments[1][place] + 0.001 * gradient**2
        rate = 0.01 * np.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        expected = dense[place] - rate * m / (np.sqrt(v) + 1e-7)
        # The move is about m / sqrt(v): of a gradient near 0, float32 knows the sign at best.
        sure = np.abs(gradient) > 1e-6
        assert sure.any()
        got = model.dense.weights[place][sure]
        np.testing.assert_allclose(got, expected[sure], rtol=1e-3, atol=1e-4)


def pooled_keys(batch):
    for cell in range(batch.rows * SLOTS):
        ids = batch.ids[0][batch.offsets[0][cell] : batch.offsets[0][cell + 1]]
        yield (*divmod(cell, SLOTS), ids, 1)


def test_variables_live_in_the_memory_of_the_dense_table():
    for precision in ("float32", "bfloat16"):
        model = make(precision=precision)
        model.check_aliases()
        for variable, memory in zip(model.variables, model.dense.weights, strict=True):
            memory += 1
            np.testing.assert_array_equal(variable.numpy().reshape(-1), memory)
            assert memory.ctypes.data % 64 == 0
        step = TrainingStep(model, BATCH)
        old_weights = [memory.copy() for memory in model.dense.weights]
        step(batch_of(BATCH))
        for network in (model.network, model.inference_network):
            variables = [variable.value for variable in network.trainable_variables]
            for variable, memory, old in zip(
                variables, model.dense.weights, old_weights, strict=True
            ):
                np.testing.assert_array_equal(variable.numpy().reshape(-1), memory)
                assert not np.array_equal(memory, old)
        model.check_aliases()


def test_an_assigned_variable_is_noticed():
    model = make()
    variable = model.variables[2]
    variable.assign(variable * 2)
    with pytest.raises(RuntimeError, match="left the memory of the dense table"):
        model.check_aliases()
    building.move_variables(model.variables, model.dense.weights)
    model.check_aliases()
    model.network.set_weights(model.network.get_weights())
    with pytest.raises(RuntimeError, match="left the memory"):
        model.check_aliases()


def test_inference_writes_nothing_and_unknown_ids_read_zeros():
    model = make()
    TrainingStep(model, BATCH)(batch_of(BATCH))
    [table] = model.tables
    records = [part.tobytes() for part in table.records()]
    inference = Inference(model, BATCH)
    batch = batch_of(BATCH, 5)
    batch.ids[0][:] += np.uint64(1000)
    x, linear = np.zeros((BATCH, SLOTS * WIDTH + NUMBERS)), np.zeros((BATCH, 1))
    x[:, SLOTS * WIDTH :] = batch.numeric
    expected = forward(named(model), x, linear)
    np.testing.assert_allclose(inference(batch)[:, 0], expected, rtol=1e-4, atol=1e-6)
    assert [part.tobytes() for part in table.records()] == records


def test_a_batch_in_parts_has_the_logits_of_the_whole():
    """The partial function of the last batch against the compiled one, and inference."""
    batch = batch_of(BATCH)
    whole = TrainingStep(make(), BATCH)(batch).logits.copy()
    part = TrainingStep(make(100), 100)(batch).logits.copy()
    np.testing.assert_allclose(whole, part, rtol=1e-5, atol=1e-6)


def test_tensorflow_reads_the_buffers_in_place_or_refuses_them():
    buffer = aligned((BATCH, 3))
    tensor = building.tensor_over(buffer)
    buffer[2, 1] = 5
    assert tensor.numpy()[2, 1] == 5
    assert building.address(tensor) == buffer.ctypes.data
    assert building.address(tf.constant(buffer)) != buffer.ctypes.data
    with pytest.raises(ValueError, match="64"):
        building.tensor_over(aligned(100)[1:])


def test_a_slot_may_have_its_own_initial_scale():
    conf = make().conf
    first, second = list(conf.slots)[:2]
    conf.slots[first].initial_scale = 0.0
    model = building.build(conf, Statistics())
    [table], [layout] = model.tables, model.layout.tables
    batch = Workspace(table, slot_plans(conf.slots, layout))
    ids = np.arange(1, len(layout.slots) + 1, dtype=np.uint64)
    batch.find(ids, np.arange(len(ids) + 1, dtype=np.uint32), 1, insert=True)
    weights = {
        name: table.lookup(layout.group_of[i], int(ids[i]))[1:]
        for i, name in enumerate(layout.slots)
    }
    assert not weights[first].any()
    assert weights[second].any()


def test_a_graph_is_saved_without_python_files(tmp_path, monkeypatch):
    """Autograph writes them into TMPDIR, where a killed command leaves them."""
    converted = []
    monkeypatch.setattr(autograph, "_convert_actual", lambda *given: converted.append(given))
    graph.save(make(), str(tmp_path))
    assert (tmp_path / "saved_model.pb").exists()
    assert not converted
