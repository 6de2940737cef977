"""The dense table against float64 models of its optimizers."""

import numpy as np
import pytest

from tnctl.tables import DenseTable, NotFiniteError, Optimizer, Pool, aligned

SIZES = [7, 64, 1, 1000, 0]
ADAM = Optimizer("adam", 0.01, epsilon=1e-7, beta1=0.9, beta2=0.99)
ADAGRAD = Optimizer("adagrad", 0.05, epsilon=1e-7, initial_accumulator=0.1)


def make_table(optimizer: Optimizer, threads: int = 3) -> DenseTable:
    table = DenseTable(SIZES, optimizer, Pool(threads))
    rng = np.random.default_rng(0)
    for weights in table.weights:
        weights[:] = rng.normal(size=weights.size)
    return table


def random_gradients(rng: np.random.Generator) -> list[np.ndarray]:
    # Scales apart by thousands: Adam must not care, AdaGrad must.
    return [(10.0**i * 1e-2 * rng.normal(size=n)).astype(np.float32) for i, n in enumerate(SIZES)]


def test_adam_equals_kingma_and_ba() -> None:
    table = make_table(ADAM)
    w = [weights.astype(float) for weights in table.weights]
    m, v = [np.zeros(n) for n in SIZES], [np.zeros(n) for n in SIZES]
    rng = np.random.default_rng(1)
    for t in range(1, 201):
        gradients = random_gradients(rng)
        table.apply(gradients)
        rate = 0.01 * np.sqrt(1 - 0.99**t) / (1 - 0.9**t)
        for i, g in enumerate(gradients):
            m[i] = 0.9 * m[i] + 0.1 * g.astype(float)
            v[i] = 0.99 * v[i] + 0.01 * g.astype(float) ** 2
            w[i] -= rate * m[i] / (np.sqrt(v[i]) + 1e-7)
        tolerance = 1e-6 if t == 1 else 1e-4
        for real, wanted in zip(table.weights, w, strict=True):
            np.testing.assert_allclose(real, wanted, tolerance, tolerance)
    assert table.step == 200
    for k, wanted_state in enumerate((m, v)):
        for real, wanted in zip(table.states[k], wanted_state, strict=True):
            np.testing.assert_allclose(real, wanted, 1e-4, 1e-4 * abs(wanted).max(initial=0))


def test_adam_step_is_that_of_keras() -> None:
    """keras.optimizers.Adam.update_step, operation by operation in float32: the same bits."""
    table = make_table(Optimizer("adam", 0.01, epsilon=1e-7, beta1=0.5, beta2=0.75), threads=1)
    f = np.float32
    w = [weights.copy() for weights in table.weights]
    m, v = [np.zeros(n, f) for n in SIZES], [np.zeros(n, f) for n in SIZES]
    rng = np.random.default_rng(2)
    for t in range(1, 21):
        gradients = random_gradients(rng)
        table.apply(gradients)
        # These betas are exact in float32, so alpha is rounded only once.
        alpha = f(float(f(0.01)) * np.sqrt(1 - 0.75**t) / (1 - 0.5**t))
        for i, g in enumerate(gradients):
            m[i] += (g - m[i]) * f(1 - 0.5)
            v[i] += (g * g - v[i]) * f(1 - 0.75)
            w[i] -= m[i] * alpha / (np.sqrt(v[i]) + f(1e-7))
    for real, wanted in zip(table.weights, w, strict=True):
        np.testing.assert_array_equal(real, wanted)


def test_adagrad_keeps_one_sum_per_coordinate() -> None:
    table = make_table(ADAGRAD)
    assert all((state == np.float32(0.1)).all() for state in table.states[0])
    w = [weights.astype(float) for weights in table.weights]
    G = [np.full(n, 0.1) for n in SIZES]
    rng = np.random.default_rng(3)
    for step in range(200):
        gradients = random_gradients(rng)
        table.apply(gradients)
        for i, g in enumerate(gradients):
            G[i] += g.astype(float) ** 2
            w[i] -= 0.05 * g / (np.sqrt(G[i]) + 1e-7)
        tolerance = 1e-6 if step == 0 else 1e-4
        for real, wanted in zip(table.weights, w, strict=True):
            np.testing.assert_allclose(real, wanted, tolerance, tolerance)
    for real, wanted in zip(table.states[0], G, strict=True):
        np.testing.assert_allclose(real, wanted, 1e-4)


@pytest.mark.parametrize("optimizer", [ADAM, ADAGRAD])
def test_same_bytes_for_any_number_of_threads(optimizer: Optimizer) -> None:
    dumps = set()
    for threads in (1, 2, 5):
        table = make_table(optimizer, threads)
        rng = np.random.default_rng(4)
        for _ in range(20):
            table.apply(random_gradients(rng))
        dumps.add(b"".join(weights.tobytes() for weights in table.weights))
    assert len(dumps) == 1


@pytest.mark.parametrize("optimizer", [ADAM, ADAGRAD])
def test_training_goes_on_from_copied_state(optimizer: Optimizer) -> None:
    table, copy = make_table(optimizer), make_table(optimizer)
    rng = np.random.default_rng(5)
    for _ in range(30):
        table.apply(random_gradients(rng))
    copy.step = table.step
    for to, given in zip([copy.weights, *copy.states], [table.weights, *table.states], strict=True):
        for target, source in zip(to, given, strict=True):
            target[:] = source
    for gradients in [random_gradients(rng) for _ in range(5)]:
        table.apply(gradients)
        copy.apply(gradients)
    for a, b in zip(table.weights, copy.weights, strict=True):
        np.testing.assert_array_equal(a, b)
    assert copy.step == table.step == 35


def test_a_far_step_is_set_at_once() -> None:
    """The powers of the betas stop at the smallest doubles, not at 0; setting must not spin."""
    table = DenseTable([1], ADAM, Pool(1))
    table.step = 10**15
    assert table.step == 10**15
    table.apply([np.ones(1, np.float32)])
    assert table.step == 10**15 + 1
    # No correction is left: m = 0.1, v = 0.01.
    np.testing.assert_allclose(table.weights[0], -0.01 * 0.1 / 0.1, 1e-5)


def test_learning_rate() -> None:
    table = make_table(ADAM)
    weights_before = [weights.copy() for weights in table.weights]
    table.set_learning_rate(0.0)
    table.apply(random_gradients(np.random.default_rng(6)))
    for a, b in zip(table.weights, weights_before, strict=True):
        np.testing.assert_array_equal(a, b)
    for wrong in (-1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="TN_BAD_VALUE"):
            table.set_learning_rate(wrong)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_check_finds_any_number_that_is_not_finite(bad: float) -> None:
    table = make_table(ADAM)
    gradients = random_gradients(np.random.default_rng(7))
    table.check(gradients)
    for i, at in ((0, 0), (0, 6), (3, 333), (3, 999)):
        kept = gradients[i][at]
        gradients[i][at] = bad
        with pytest.raises(NotFiniteError):
            table.check(gradients)
        gradients[i][at] = kept
    assert table.step == 0


def test_variables_lie_on_64_byte_boundaries_and_apart() -> None:
    table = make_table(ADAM)
    for flats in (table.weights, *table.states):
        assert [flat.size for flat in flats] == SIZES
        assert all(flat.ctypes.data % 64 == 0 for flat in flats if flat.size)
    weights_before = [weights.copy() for weights in table.weights]
    gradients = [np.zeros(n, np.float32) for n in SIZES]
    gradients[1][:] = 1
    table.apply(gradients)
    for i, (a, b) in enumerate(zip(table.weights, weights_before, strict=True)):
        assert (a == b).all() == (i != 1)


def test_gradients_that_do_not_fit_are_refused() -> None:
    table = make_table(ADAM)
    good = random_gradients(np.random.default_rng(8))
    with pytest.raises(TypeError, match="Received: float64"):
        table.apply([good[0].astype(float), *good[1:]])
    with pytest.raises(ValueError, match="a gradient of 7 floats"):
        table.apply([good[0][:6], *good[1:]])
    with pytest.raises(ValueError, match="zip"):
        table.apply(good[:2])
    with pytest.raises(ValueError, match="C-contiguous"):
        table.apply([np.repeat(good[0], 2)[::2], *good[1:]])
    assert table.step == 0


def test_settings_out_of_range_are_refused() -> None:
    for optimizer in (
        Optimizer("adam", 0.1, beta1=1.0),
        Optimizer("adam", 0.1, beta2=-0.1),
        Optimizer("adam", np.inf),
        Optimizer("adagrad", 0.1, initial_accumulator=-1),
        Optimizer("adagrad", 0.1, epsilon=np.nan),
    ):
        with pytest.raises(ValueError, match="TN_BAD_VALUE"):
            DenseTable([1], optimizer, Pool(1))


def test_too_many_weights_are_no_memory() -> None:
    with pytest.raises(MemoryError, match="TN_NO_MEMORY"):
        DenseTable([2**62], ADAM, Pool(1))  # as bytes it would wrap to 0


def test_aligned_arrays() -> None:
    for shape in (0, 1, (3, 5), (1 << 20, 2)):
        array = aligned(shape)
        assert array.dtype == np.float32 and not array.any()
        assert array.shape == (shape if isinstance(shape, tuple) else (shape,))
        assert array.size == 0 or array.ctypes.data % 64 == 0
        array[...] = 1
