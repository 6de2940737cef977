"""The dense table against float64 models of its optimizers."""

import numpy as np
import pytest

from tnctl.tables import DenseTable, NotFiniteError, Pool, RowOptimizer, aligned

SIZES = [7, 64, 1, 1000, 0]
ADAM = RowOptimizer("adam", 0.01, epsilon=1e-7, beta1=0.9, beta2=0.99)


def make_table(optimizer: RowOptimizer, threads: int = 3) -> DenseTable:
    table = DenseTable(SIZES, optimizer, Pool(threads))
    rng = np.random.default_rng(0)
    for weights in table.weights:
        weights[:] = rng.normal(size=weights.size)
    return table


def random_gradients(rng: np.random.Generator) -> list[np.ndarray]:
    # Scales apart by thousands: Adam must not care, AdaGrad must.
    return [(10.0**i * 1e-2 * rng.normal(size=n)).astype(np.float32) for i, n in enumerate(SIZES)]


def test_a_far_step_is_set_at_once() -> None:
    """The powers of the betas stop at the smallest doubles, not at 0; setting must not spin."""
    table = DenseTable([1], ADAM, Pool(1))
    table.step = 10**15
    assert table.step == 10**15
    table.apply([np.ones(1, np.float32)])
    assert table.step == 10**15 + 1
    # No correction is left: m = 0.1, v = 0.01.
    np.testing.assert_allclose(table.weights[0], -0.01 * 0.1 / 0.1, 1e-5)


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
