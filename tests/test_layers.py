"""Each layer against a float64 numpy model of its formula, forward and backward."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tnctl.errors import UserError
from tnctl.model import layers

ROWS, WIDTH = 7, 4
STEP = 3


@pytest.fixture(autouse=True)
def _fresh_names():
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)


def drawn(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


X = drawn(ROWS, WIDTH)


def call(layer, *inputs, training=True, step=STEP, seed=0, **options):
    """What a layer makes of arrays; batch norm and dropout take `training`."""
    if "training" in layer._call_signature.parameters:
        options["training"] = training
    with layers.at_step(tf.constant(step, tf.int64), seed):
        return layer(*inputs, **options)


def forward(layer, *inputs, **options):
    """The same in a graph, where written-out gradients want to be."""
    return tf.function(lambda *tensors: call(layer, *tensors, **options), autograph=False)(
        *map(tf.constant, inputs)
    )


def randomize(layer, seed=2):
    """Weights away from where they start, so that each of them counts."""
    random = np.random.default_rng(seed)
    for variable in layer.variables:
        value = random.normal(size=variable.shape) * 0.6
        if "variance" in variable.name:
            value = np.abs(value) + 0.5
        variable.assign(value.astype(np.float32))


def named(layer):
    """The weights of a layer in float64 by their path inside of it; `dense_1` is `dense` there."""
    return {
        variable.path.partition("/")[2]: np.asarray(variable).astype(np.float64)
        for variable in layer.variables
    }


def difference(function, array, at, step=1e-5):
    kept = array[at]
    array[at] = kept + step
    above = function()
    array[at] = kept - step
    below = function()
    array[at] = kept
    return (above - below) / (2 * step)


def check(layer, model, *inputs, training=True, rtol=2e-5, **options):
    """Output and all gradients of a layer are those of model(weights, *inputs) in float64."""
    forward(layer, *inputs, training=training, **options)  # builds it
    randomize(layer)
    weights = named(layer)
    given = [array.astype(np.float64) if array.dtype == np.float32 else array for array in inputs]
    expected = model(weights, *given)
    probe = np.random.default_rng(9).normal(size=expected.shape)

    floats = [n for n, array in enumerate(inputs) if array.dtype == np.float32]
    trained = [variable.value for variable in layer.trainable_variables]

    @tf.function(autograph=False)
    def function(*tensors):
        watched = [*(tensors[n] for n in floats), *trained]
        with tf.GradientTape() as tape:
            tape.watch(watched)
            output = call(layer, *tensors, training=training, **options)
            loss = tf.reduce_sum(output * tf.constant(probe, tf.float32))
        return output, tape.gradient(loss, watched)

    output, gradients = function(*map(tf.constant, inputs))
    np.testing.assert_allclose(output, expected, rtol=rtol, atol=rtol)
    paths = [variable.path.partition("/")[2] for variable in layer.trainable_variables]
    arrays = [*(given[n] for n in floats), *(weights[path] for path in paths)]
    for name, gradient, array in zip(
        [*(f"input {n}" for n in floats), *paths], gradients, arrays, strict=True
    ):
        measured = np.zeros_like(array)
        for at in np.ndindex(array.shape):
            measured[at] = difference(lambda: (model(weights, *given) * probe).sum(), array, at)
        np.testing.assert_allclose(gradient, measured, rtol=2e-3, atol=2e-4, err_msg=name)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def standardized(x, where, epsilon):
    rows = x if where is None else x[where]
    return (x - rows.mean(axis=0)) / np.sqrt(rows.var(axis=0) + epsilon)


def dice(weights, s, where=None, prefix=""):
    p = sigmoid(standardized(s, where, 1e-8))
    return p * s + (1 - p) * weights[f"{prefix}alpha"] * s


def mlp(activation=np.tanh, batch_norm=False, residual=False, where=None):
    """The numpy model of a two-layer Mlp; `activation` is a function or the word dice or prelu."""

    def model(weights, x):
        for name in ("dense", "dense_1"):
            y = x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]
            if batch_norm:
                y = standardized(y, where, 1e-5)
                y = y * weights[f"{name}/batch_norm/gamma"] + weights[f"{name}/batch_norm/beta"]
            if activation == "dice":
                y = dice(weights, y, where, f"{name}/dice/")
            elif activation == "prelu":
                y = np.maximum(y, 0) + weights[f"{name}/prelu/alpha"] * np.minimum(y, 0)
            else:
                y = activation(y)
            x = x + y if residual and x.shape == y.shape else y
        return x

    return model


PLAIN = {
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "linear": lambda x: x,
}


@pytest.mark.parametrize("name", [*PLAIN, "prelu", "dice"])
def test_a_tower_of_every_activation(name):
    check(layers.Mlp([5, 3], name), mlp(PLAIN.get(name, name)), X)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("name", ["tanh", "dice"])
def test_a_tower_with_batch_norm_and_residuals(name, residual):
    layer = layers.Mlp([WIDTH, 5], name, batch_norm=True, residual=residual)
    check(layer, mlp(PLAIN.get(name, name), batch_norm=True, residual=residual), X)


def test_a_tower_without_layers_is_its_input():
    np.testing.assert_array_equal(forward(layers.Mlp([]), X), X)


def test_rows_that_do_not_count_are_in_no_statistic():
    where = np.arange(ROWS) % 3 != 0
    layer = layers.Mlp([5, 3], "dice", batch_norm=True)
    model = mlp("dice", batch_norm=True, where=where)
    check(layer, model, X, where=tf.constant(where))
    moved = X.copy()
    moved[~where] += 100
    first, second = (forward(layer, x, where=tf.constant(where)).numpy() for x in (X, moved))
    np.testing.assert_array_equal(first[where], second[where])


def test_batch_norm_hands_out_its_statistics_and_assigns_nothing():
    layer, theirs = layers.BatchNorm(momentum=0.9), keras.layers.BatchNormalization(momentum=0.9)
    layer.build(X.shape)
    theirs.build(X.shape)
    for seed in range(3):
        x = drawn(ROWS, WIDTH, seed=seed) * 3 + 1
        old_values = [variable.numpy() for variable in layer.non_trainable_variables]
        got, mean, variance = tf.function(
            lambda x: (call(layer, x), *layer.batch_statistics), autograph=False
        )(x)
        expected = theirs(x, training=True)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(mean, x.mean(axis=0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(variance, x.var(axis=0), rtol=1e-5)
        moving = (layer.moving_mean, layer.moving_variance)
        for statistic, kept in zip(moving, old_values, strict=True):
            np.testing.assert_array_equal(statistic.numpy(), kept)
        for statistic, measured in zip(moving, (mean, variance), strict=True):
            statistic.assign(layer.momentum * statistic + (1 - layer.momentum) * measured)
    np.testing.assert_allclose(
        call(layer, X, training=False), theirs(X, training=False), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("name", ["tanh", "dice"])
def test_inference_takes_the_moving_statistics(name):
    layer = layers.Mlp([5], name, batch_norm=True)
    forward(layer, X)
    randomize(layer)
    w = named(layer)

    def moving(x, prefix, epsilon):
        mean, variance = w[f"{prefix}/moving_mean"], w[f"{prefix}/moving_variance"]
        return (x - mean) / np.sqrt(variance + epsilon)

    y = X.astype(np.float64) @ w["dense/kernel"] + w["dense/bias"]
    y = moving(y, "dense/batch_norm", 1e-5) * w["dense/batch_norm/gamma"]
    y = y + w["dense/batch_norm/beta"]
    if name == "tanh":
        expected = np.tanh(y)
    else:
        p = sigmoid(moving(y, "dense/dice/standardized", 1e-8))
        expected = p * y + (1 - p) * w["dense/dice/alpha"] * y
    np.testing.assert_allclose(forward(layer, X, training=False), expected, rtol=2e-5, atol=2e-5)
    # One row alone: nothing of the batch is left in it.
    alone = forward(layer, X[:1], training=False)
    np.testing.assert_allclose(alone, expected[:1], rtol=2e-5, atol=2e-5)


def test_batch_norm_of_one_row_and_of_none_that_counts():
    layer = layers.BatchNorm()
    np.testing.assert_array_equal(forward(layer, X[:1]), np.zeros((1, WIDTH)))
    nothing = forward(layer, X, where=tf.zeros(ROWS, tf.bool))
    assert np.isfinite(nothing).all()


def test_dropout_is_a_function_of_layer_seed_and_step():
    x = np.ones((200, 50), np.float32)
    layer, other = layers.Dropout(0.3, name="a"), layers.Dropout(0.3, name="b")
    mask = call(layer, x).numpy()
    np.testing.assert_array_equal(np.unique(mask), np.float32([0, 1 / 0.7]))
    assert abs((mask == 0).mean() - 0.3) < 0.02
    np.testing.assert_array_equal(call(layer, x), mask)
    np.testing.assert_array_equal(call(layers.Dropout(0.3, name="a"), x), mask)
    for different in (
        call(layer, x, step=STEP + 1),
        call(layer, x, seed=1),
        call(other, x),
    ):
        agree = ((different.numpy() == 0) == (mask == 0)).mean()
        assert agree == pytest.approx(0.3**2 + 0.7**2, abs=0.03)
    np.testing.assert_array_equal(call(layer, x, training=False), x)
    np.testing.assert_array_equal(call(layers.Dropout(0.0), x), x)


def test_dropout_needs_a_step():
    with pytest.raises(RuntimeError, match="at_step"):
        layers.Dropout(0.5)(X, training=True)


def test_dropout_comes_after_the_activation_and_passes_gradients_of_what_is_left():
    layer = layers.Mlp([6], "sigmoid", dropout=0.5)

    @tf.function(autograph=False)
    def function(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = call(layer, x)
        return y, tape.gradient(y, x)

    y, gradient = function(tf.constant(X))
    whole = forward(layer, X, training=False).numpy()
    left = y.numpy() != 0
    assert 0 < left.mean() < 1
    np.testing.assert_allclose(y.numpy()[left], 2 * whole[left], rtol=1e-6)
    kernel = np.asarray(layer.hidden[0].kernel)
    expected = (2 * left * whole * (1 - whole)) @ kernel.T
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)


def test_l2_adds_itself_times_the_kernel_to_the_gradient():
    strength = 0.3
    for layer in (
        layers.Mlp([5, 3], l2=strength),
        layers.Logit(l2=strength),
        layers.VectorCross(2, l2=strength),
        layers.MatrixCross(2, l2=strength),
        layers.MatrixCross(2, 3, l2=strength),
        layers.MixtureCross(2, 3, 2, l2=strength),
        layers.NumericFactors(2, l2=strength),
        layers.Dense(3, use_bias=False, l2=strength),
    ):
        forward(layer, X)
        randomize(layer)
        with tf.GradientTape() as tape:
            loss = tf.add_n(layer.losses)
        gradients = tape.gradient(loss, [variable.value for variable in layer.trainable_variables])
        norms = 0.0
        for variable, gradient in zip(layer.trainable_variables, gradients, strict=True):
            if "bias" in variable.name:
                assert gradient is None
                continue
            np.testing.assert_allclose(gradient, strength * np.asarray(variable), rtol=1e-5)
            norms += float((np.asarray(variable) ** 2).sum())
        assert float(loss) == pytest.approx(strength / 2 * norms, rel=1e-5)
    plain = layers.Mlp([5])
    forward(plain, X)
    assert plain.losses == []


def test_a_logit_a_bias_and_columns():
    check(layers.Logit(), lambda w, x: x @ w["kernel"] + w["bias"], X)
    check(layers.Logit(use_bias=False), lambda w, x: x @ w["kernel"], X)
    check(layers.Bias(), lambda w, x: x + w["bias"], X[:, :1])
    check(layers.Columns(1, 2), lambda _, x: x[:, 1:3], X)
    check(layers.Columns(0, WIDTH), lambda _, x: x, X)


def test_what_does_not_exist_is_left_out():
    np.testing.assert_array_equal(layers.total(None, X, None), X)
    np.testing.assert_array_equal(layers.total(X, None, X), 2 * X)
    np.testing.assert_array_equal(layers.concatenated(None, X), X)
    np.testing.assert_array_equal(layers.concatenated(X, None, X), np.hstack([X, X]))
    assert layers.linear_model(None, None) is None


def test_the_factorization_machine_and_the_vectors_of_numbers():
    def pairs(_, v):
        count = v.shape[1]
        return sum(
            (v[:, i] * v[:, j]).sum(axis=1, keepdims=True)
            for i in range(count)
            for j in range(i + 1, count)
        )

    check(layers.FactorizationMachine(), pairs, drawn(ROWS, 3, 2))
    check(layers.NumericFactors(3), lambda w, x: x[:, :, None] * w["factors"], X)


def test_inner_products():
    def products(_, v):
        pairs = itertools.combinations(range(v.shape[1]), 2)
        return np.stack([(v[:, i] * v[:, j]).sum(axis=1) for i, j in pairs], axis=1)

    check(layers.InnerProducts(), products, drawn(ROWS, 4, 2))
    check(layers.InnerProducts(), products, drawn(ROWS, 2, 3))


@pytest.mark.parametrize("context", [True, False])
@pytest.mark.parametrize("hidden", [[], [5]])
def test_gates(hidden, context):
    def gated(w, x, *given):
        h = given[0] if given else w["context"]
        if hidden:
            h = np.tanh(h @ w["hidden/dense/kernel"] + w["hidden/dense/bias"])
        return 2 * sigmoid(h @ w["gate/kernel"] + w["gate/bias"]) * x

    layer = layers.Gated(hidden, "sigmoid", 2, width=3)
    for dense in layer.hidden.hidden:
        dense.activation = tf.tanh  # differences of a rectifier are none at 0
    check(layer, gated, X, *[drawn(ROWS, 3, seed=5)] * context)


def vector_cross(w, x):
    start = x
    for layer in range(w["bias"].shape[0]):
        outer = start[:, :, None] * x[:, None, :]  # x_0 x_l^T
        x = outer @ w["kernel"][:, layer] + w["bias"][layer] + x
    return x


def matrix_cross(count):
    def model(w, x):
        start = x
        for layer in range(count):
            kernel = w.get(f"kernel_{layer}")
            if kernel is None:
                kernel = w[f"v_{layer}"] @ w[f"u_{layer}"]
            x = start * (x @ kernel + w[f"bias_{layer}"]) + x
        return x

    return model


def mixture_cross(count, rank, experts):
    def model(w, x):
        start = x
        for layer in range(count):
            scores = np.exp(x @ w[f"gates_{layer}"])
            gates = scores / scores.sum(axis=1, keepdims=True)
            total = x
            for number in range(experts):
                of = slice(number * rank, (number + 1) * rank)
                h = np.tanh(np.tanh(x @ w[f"v_{layer}"][:, of]) @ w[f"c_{layer}"][number])
                expert = start * (h @ w[f"u_{layer}"][of] + w[f"bias_{layer}"])
                total = total + gates[:, number : number + 1] * expert
            x = total
        return x

    return model


@pytest.mark.parametrize("count", [1, 3])
def test_cross_networks(count):
    check(layers.VectorCross(count), vector_cross, X)
    check(layers.MatrixCross(count), matrix_cross(count), X)
    check(layers.MatrixCross(count, 2), matrix_cross(count), X)
    check(layers.MixtureCross(count, 2, 3), mixture_cross(count, 2, 3), X)


LENGTHS = np.array([0, 1, 2, 3, 3, 1, 2], np.int32)
LONGEST = 3


def attention(softmax, activation):
    def model(w, sequence, lengths, target):
        count, longest, width = sequence.shape
        pairs, present = [], []
        for row in range(count):
            for place in range(longest):
                e, t = sequence[row, place], target[row]
                pairs.append(np.concatenate([e, e * t, t]))
                present.append(place < lengths[row])
        where = np.array(present)
        unit = {path.removeprefix("unit/"): value for path, value in w.items()}
        h = mlp(activation, where=where)(unit, np.array(pairs))
        scores = (h @ w["score/kernel"] + w["score/bias"]).reshape(count, longest)
        output = np.zeros((count, width))
        for row in range(count):
            weights_of_row = scores[row, : lengths[row]]
            if softmax:
                weights_of_row = np.exp(weights_of_row) / np.exp(weights_of_row).sum()
            output[row] = weights_of_row @ sequence[row, : lengths[row]]
        return output

    return model


@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("name", ["tanh", "dice"])
def test_attention(name, softmax):
    sequence, target = drawn(ROWS, LONGEST, WIDTH, seed=3), drawn(ROWS, WIDTH, seed=4)
    layer = layers.TargetAttention([5, 3], name, softmax)
    model = attention(softmax, PLAIN.get(name, name))
    check(layer, model, sequence, LENGTHS, target)
    output = forward(layer, sequence, LENGTHS, target).numpy()
    np.testing.assert_array_equal(output[0], np.zeros(WIDTH))  # no behavior at all
    # What lies behind the end of a sequence changes nothing.
    behind = np.arange(LONGEST)[None, :] >= LENGTHS[:, None]
    changed = sequence.copy()
    changed[behind] = 50
    np.testing.assert_allclose(
        forward(layer, changed, LENGTHS, target), output, rtol=1e-5, atol=1e-6
    )


class Slots:
    """Inputs as side_by_side sees them."""

    def sequence(self, name):
        longest, width = {"items": (3, 4), "shops": (3, 2), "long": (5, 4)}[name]
        return drawn(ROWS, longest, width), np.full(ROWS, longest - (name == "shops"), np.int32)

    def slot(self, name):
        return drawn(ROWS, {"item": 4, "shop": 2}[name])


def test_behaviors_and_targets_side_by_side():
    sequence, lengths, target = layers.side_by_side(Slots(), "items", "item")
    assert (sequence.shape, target.shape) == ((ROWS, 3, 4), (ROWS, 4))
    assert set(np.asarray(lengths)) == {3}
    sequence, lengths, target = layers.side_by_side(Slots(), ["items", "shops"], ["item", "shop"])
    assert (sequence.shape, target.shape) == ((ROWS, 3, 6), (ROWS, 6))
    assert set(np.asarray(lengths)) == {2}
    for behavior, of, words in (
        ("items", "shop", "one width. Received: 4 and 2"),
        (["items", "long"], ["item", "item"], "one max_length. Received: 3 and 5"),
        (["items", "shops"], "item", "each behavior has its target"),
        ([], [], "each behavior has its target"),
    ):
        with pytest.raises(UserError, match=words):
            layers.side_by_side(Slots(), behavior, of)


def test_the_logit_of_both():
    def model(_, a, b):
        p = sigmoid(a) * sigmoid(b)
        return np.log(p / (1 - p))

    check(layers.LogitOfBoth(), model, drawn(ROWS, 1, seed=3) * 2, drawn(ROWS, 1, seed=4) * 2)
    a, b = tf.constant([[-90.0], [90.0], [1000.0]]), tf.constant([[-80.0], [50.0], [1000.0]])
    with tf.GradientTape() as tape:
        tape.watch([a, b])
        y = layers.LogitOfBoth()(a, b)
    np.testing.assert_allclose(y[:, 0], [-170, 50, 1000 - np.log(2)], rtol=1e-6)
    assert all(np.isfinite(gradient).all() for gradient in tape.gradient(y, [a, b]))


SEQUENCE = drawn(ROWS, LONGEST, WIDTH, seed=3)
EVERY = {
    "tower": (lambda: layers.Mlp([4, 4], "dice", batch_norm=True, dropout=0.2, residual=True), 1),
    "prelu": (lambda: layers.Mlp([4, 4], "prelu"), 1),
    "vectors": (lambda: layers.VectorCross(2), 1),
    "matrices": (lambda: layers.MatrixCross(2, 2), 1),
    "mixture": (lambda: layers.MixtureCross(2, 2, 3), 1),
    "attention": (lambda: layers.TargetAttention([4], "dice", softmax=True), 3),
}


def whole(make, count, compiled):
    """Output and gradients of a layer in a concrete function, as a training step has it."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    layer = make()
    inputs = [X] if count == 1 else [SEQUENCE, LENGTHS, X]
    forward(layer, *inputs)

    @tf.function(autograph=False, jit_compile=compiled)
    def function(x, *others):
        variables = [variable.value for variable in layer.trainable_variables]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([x, *variables])
            y = tf.cast(call(layer, x, *others), tf.float32)
            loss = tf.reduce_sum(tf.square(y))
        return y, tape.gradient(loss, [x, *variables])

    y, gradients = function(*map(tf.constant, inputs))
    return [np.asarray(array, np.float32) for array in (y, *gradients)]


@pytest.mark.parametrize("name", EVERY)
def test_bfloat16_is_near(name):
    exact = whole(*EVERY[name], compiled=False)
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        rough = whole(*EVERY[name], compiled=False)
    finally:
        keras.config.set_dtype_policy("float32")
    for array, other in zip(rough, exact, strict=True):
        assert np.abs(array - other).max() <= 0.1 * max(1, np.abs(other).max())


LONG = pytest.mark.long  # seconds of compiling each


@pytest.mark.parametrize(
    "name", [name if name == "tower" else pytest.param(name, marks=LONG) for name in EVERY]
)
def test_xla_computes_the_same(name):
    plain, compiled = (whole(*EVERY[name], compiled) for compiled in (False, True))
    for array, other in zip(compiled, plain, strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: layers.Mlp([0]), "at least 1 wide. Received: 0"),
        (lambda: layers.Mlp([3], "rely"), "no activation 'rely'. Did you mean 'relu'"),
        (lambda: layers.Mlp([3], dropout=1.0), "dropout must be .* below 1. Received: 1.0"),
        (lambda: layers.Mlp([3], dropout=-0.1), "dropout must be"),
        (lambda: layers.Mlp([3], l2=-1.0), "l2 must be at least 0. Received: -1.0"),
        (lambda: layers.VectorCross(0), "at least 1 layer. Received: layers=0"),
        (lambda: layers.MixtureCross(1, 0, 2), "low_rank and experts of at least 1"),
        (lambda: layers.BatchNorm(momentum=2), "momentum"),
    ],
)
def test_settings_that_make_no_layer(make, words):
    with pytest.raises(UserError, match=words):
        make()
