"""Squares that several owners add up: the sum of one process, whoever has which part."""

import itertools

import numpy as np
import pytest

from tnctl.cluster.messages.exchange import add_squares, new_squares
from tnctl.cluster.transport.kinds import MessageError
from tnctl.tables import DenseTable, ExactSum, Pool, RowOptimizer, clipping_factor

SIZES = [5000, 3, 12_289, 40]


@pytest.fixture(scope="module")
def gradients():
    """A dense table with gradients of all sizes, one by one and as they lie in the flat buffer."""
    chance = np.random.default_rng(5)
    optimizer = RowOptimizer(name="adam", learning_rate=0.1, l2=0.01, clip=1e12)
    table = DenseTable(SIZES, optimizer, Pool(2))
    table.flat_weights[:] = chance.normal(size=len(table.flat_weights))
    each = [
        (chance.normal(size=size) * 10.0 ** chance.integers(-20, 12, size)).astype(np.float32)
        for size in SIZES
    ]
    flat = np.zeros(len(table.flat_weights), np.float32)
    for gradient, offset in zip(each, table.offsets, strict=True):
        flat[offset : offset + len(gradient)] = gradient
    return table, each, flat


def sums_of_slices(table, flat, bounds):
    return [
        table.exact_squares_of_slice(flat[first:last], first)
        for first, last in itertools.pairwise(bounds)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_slices_add_up_to_the_whole_bit_for_bit(gradients, seed):
    table, each, flat = gradients
    starts = table.chunk_starts
    assert starts.tolist() == [0, 4096, 5008, 5024, 9120, 13216, 17312, 17328, 17376]
    chance = np.random.default_rng(seed)
    bounds = sorted({0, len(flat), *chance.choice(starts, 3).tolist()})
    parts = sums_of_slices(table, flat, bounds)
    totals = []
    for order in (parts, parts[::-1]):
        together = ExactSum()
        for part in order:
            add_squares(7, [together], new_squares(7, [part]))
        totals.append(together.total())
    assert totals == [table.squares(each)] * 2
    final = np.concatenate(each).astype(np.float64)
    final = np.clip(final, -1e12, 1e12)
    weights = np.concatenate(table.weights)
    assert totals[0] == pytest.approx(((final + 0.01 * weights) ** 2).sum(), rel=1e-6)


def test_halves_of_an_integer_carry():
    exact = ExactSum()
    for _ in range(3):
        exact.add(np.array([1023 + 52], np.uint16), np.array([2**64 - 1, 0], np.uint64))
    assert exact.words[1023 + 52].tolist() == [2**64 - 3, 2]
    assert exact.total() == 3.0 * 2**64
    [exponents, words] = exact.parts()
    assert exponents.tolist() == [1075] and words.tolist() == [[2**64 - 3, 2]]
    with pytest.raises(ValueError, match="TN_BAD_VALUE"):
        exact.add(np.array([2048], np.uint16), np.array([1, 0], np.uint64))
    assert ExactSum().total() == 0.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda body: body[:15], "a message of 15 bytes has a header of"),
        (lambda _: new_squares(8, [ExactSum()] * 2), "is of step 8, the next is 7"),
        (
            lambda _: new_squares(7, [ExactSum()]),
            r"a notice of squares has no 1.exponents of U16 \[0\]",
        ),
        (lambda _: new_squares(7, [ExactSum()] * 3), "a notice of squares has 2 arrays too many"),
        (lambda body: body + bytes(8), "its arrays make"),
        (lambda body: body[:-2] + b"\xd4\x02", "exponents that no square"),
        (lambda body: body[:-2] + b"\x00\x05", "exponents that no square"),
    ],
)
def test_squares_that_do_not_fit_are_refused(gradients, change, words):
    table, _, flat = gradients
    [squares] = sums_of_slices(table, flat, [0, len(flat)])
    body = new_squares(7, [squares, ExactSum()])
    mine = [ExactSum(), ExactSum()]
    with pytest.raises(MessageError, match=words):
        add_squares(7, mine, change(bytes(body)))
    add_squares(7, mine, body)
    assert mine[0].total() == squares.total() and mine[1].total() == 0


def test_the_factor_of_a_norm():
    assert clipping_factor(5.0, [9.0, 7.0], 9.0) == 1.0
    assert clipping_factor(2.5, [9.0, 7.0], 9.0) == 0.5
