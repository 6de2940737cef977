"""Values to ids, columns to cells, and the order of examples."""

import random
from itertools import pairwise, product

import numpy as np
import pyarrow as pa
import pytest

from tnctl.tables import columns

MASK = 2**64 - 1


# ---- Hashing ---------------------------------------------------------------


def mix64(x: int) -> int:
    x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCD & MASK
    x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53 & MASK
    return x ^ (x >> 33)


def hash_bytes(data: bytes, seed: int = 0) -> int:
    """docs/formats/ids.md."""
    h = seed
    for start in range(0, len(data), 8):
        h = mix64(h ^ int.from_bytes(data[start : start + 8].ljust(8, b"\0"), "little"))
    return mix64(h ^ len(data))


VALUES = [
    *(bytes(range(1, 1 + length)) for length in range(41)),
    *(b"\0" * length for length in range(1, 18)),
    *(text.encode() for text in ("é", "日本語のテキスト", "🙂🙃" * 5, "a\0b")),
]


@pytest.mark.parametrize("seed", [0, 1, MASK])
def test_strings_hash_by_the_formula(seed: int) -> None:
    wanted = [hash_bytes(value, seed) for value in VALUES]
    assert [columns.hash_bytes(value, seed) for value in VALUES] == wanted
    # With seed 1 the formula gives "" and "\x01" one id: h of the latter is mix64(1 ^ 1) = 0.
    assert len(set(wanted)) == len(VALUES) - (seed == 1)
    ends = np.cumsum([0, *map(len, VALUES)])
    for dtype in (np.int32, np.int64):
        ids = columns.hash_strings(b"".join(VALUES), ends.astype(dtype), seed)
        assert ids.tolist() == wanted


def test_strings_may_start_inside_the_buffer() -> None:
    data = np.frombuffer(b"skipabcde", np.uint8)
    ids = columns.hash_strings(data, np.array([4, 4, 7, 9], np.int32))
    assert ids.tolist() == [hash_bytes(b""), hash_bytes(b"abc"), hash_bytes(b"de")]
    assert columns.hash_strings(b"", np.zeros(1, np.int32)).tolist() == []


def test_views_hash_as_their_strings() -> None:
    texts = [value.decode("latin-1").encode().decode() for value in VALUES] * 3
    wanted = [hash_bytes(text.encode(), 5) for text in texts]
    array = pa.array(texts, pa.string_view())
    _, views, *buffers = array.buffers()
    assert columns.hash_views(views, buffers, 5).tolist()[: len(texts)] == wanted
    part = memoryview(views)[16 * 7 : 16 * 90]
    assert columns.hash_views(part, buffers, 5).tolist() == wanted[7:90]
    assert columns.hash_views(b"", []).tolist() == []


def test_views_must_stay_inside_their_buffers() -> None:
    def view(length: int, buffer: int, offset: int) -> bytes:
        return np.array([length, 0, buffer, offset], np.int32).tobytes()

    buffers = [b"x" * 20, b"y" * 30]
    wanted = [hash_bytes(b"x" * 20), hash_bytes(b"y" * 13)]
    assert columns.hash_views(view(20, 0, 0) + view(13, 1, 17), buffers).tolist() == wanted
    for wrong in ((21, 0, 0), (13, 1, 18), (13, 2, 0), (13, -1, 0), (13, 0, -1), (-1, 0, 0)):
        with pytest.raises(ValueError, match="TN_BAD_VALUE"):
            columns.hash_views(view(20, 0, 0) + view(*wrong), buffers)
    with pytest.raises(ValueError, match=r"views of 16 bytes. Received: 17 bytes"):
        columns.hash_views(b"\0" * 17, buffers)


def test_integers_hash_as_their_decimal_text() -> None:
    signed = [0, 1, -1, 9, 10, -10, 99999999, 100000000, 2**63 - 1, -(2**63)]
    signed += [random.Random(i).randrange(-(2**63), 2**63) >> i % 64 for i in range(200)]
    wanted = [hash_bytes(str(value).encode(), 3) for value in signed]
    assert columns.hash_integers(np.array(signed, np.int64), 3).tolist() == wanted
    unsigned = [0, 7, 2**63, MASK, 10**19]
    wanted = [hash_bytes(str(value).encode()) for value in unsigned]
    assert columns.hash_integers(np.array(unsigned, np.uint64)).tolist() == wanted
    assert columns.hash_integers(np.empty(0, np.int64)).tolist() == []


def test_hashes_never_change() -> None:
    """Written down once: every dictionary in the field depends on them."""
    assert columns.hash_bytes(b"") == 0
    assert columns.hash_bytes(b"abc", 5) == 6736217793247014632
    assert columns.group_salt("a") == 2629854443495744410
    assert mix64(1) == 0xB456BCFC34C2CB2C


def test_group_salt_and_mix64() -> None:
    for name in ("", "user", "a_long_group_name_of_many_words", "naïve"):
        assert columns.group_salt(name) == hash_bytes(name.encode())
    values = np.array([0, 1, 2**63, MASK, 123456789], np.uint64)
    assert columns.mix64(values).tolist() == [mix64(int(value)) for value in values]
    assert values.tolist() == [0, 1, 2**63, MASK, 123456789]


def test_hashing_refuses_what_does_not_fit() -> None:
    with pytest.raises(TypeError, match="float64"):
        columns.hash_integers(np.array([1.5]))
    with pytest.raises(TypeError, match="int32"):
        columns.hash_integers(np.array([1], np.int32))
    with pytest.raises(TypeError, match="uint32"):
        columns.hash_strings(b"abc", np.array([0, 3], np.uint32))
    with pytest.raises(ValueError, match="ascend inside 0 to 3"):
        columns.hash_strings(b"abc", np.array([0, 4], np.int32))
    with pytest.raises(ValueError, match="ascend inside 0 to 3"):
        columns.hash_strings(b"abc", np.array([-1, 3], np.int64))
    with pytest.raises(ValueError, match="ascend inside 0 to 3"):
        columns.hash_strings(b"abc", np.array([0, 9, 3], np.int32))


# ---- Cells -----------------------------------------------------------------

Column = list[list[int]]


def random_column(rng: np.random.Generator, rows: int, single: bool) -> Column:
    counts = np.ones(rows, int) if single else rng.integers(0, 4, rows)
    return [rng.integers(0, 2**64, count, dtype=np.uint64).tolist() for count in counts]


def as_arrays(column: Column, single: bool) -> tuple[np.ndarray, np.ndarray | None]:
    ids = np.array([id_ for cell in column for id_ in cell], np.uint64)
    return ids, None if single else np.cumsum([0, *map(len, column)]).astype(np.int32)


def as_cells(ids: np.ndarray, offsets: np.ndarray) -> list[list[int]]:
    assert offsets[0] == 0 and offsets[-1] == len(ids)
    return [ids[a:b].tolist() for a, b in pairwise(offsets)]


@pytest.mark.parametrize("rows", [0, 1, 512, 1300])
@pytest.mark.parametrize("kinds", ["s", "m", "sms", "mm", "s" * 26])
def test_interleave(rows: int, kinds: str) -> None:
    rng = np.random.default_rng(rows)
    given = [random_column(rng, rows, kind == "s") for kind in kinds]
    arrays = [as_arrays(column, kind == "s") for column, kind in zip(given, kinds, strict=True)]
    ids, offsets, weights = columns.interleave([a[0] for a in arrays], [a[1] for a in arrays], rows)
    assert as_cells(ids, offsets) == [column[row] for row in range(rows) for column in given]
    assert weights is None


@pytest.mark.parametrize("rows", [0, 1, 513])
@pytest.mark.parametrize("spread", [[1, 1, 1], [3, 1, 2], [1, 5, 1], [2, 2, 7]])
def test_interleave_spreads_columns_over_cells(rows: int, spread: list[int]) -> None:
    rng = np.random.default_rng(rows)
    given = [random_column(rng, rows, kind == "s") for kind in "mms"]
    arrays = [as_arrays(column, kind == "s") for column, kind in zip(given, "mms", strict=True)]
    ids, offsets, _ = columns.interleave(
        [a[0] for a in arrays], [a[1] for a in arrays], rows, spread
    )
    wanted = []
    for row in range(rows):
        for column, cells in zip(given, spread, strict=True):
            if cells == 1:
                wanted.append(column[row])
            else:
                wanted += [column[row][i : i + 1] for i in range(cells)]
    assert as_cells(ids, offsets) == wanted


@pytest.mark.parametrize("spread", [None, [1, 2, 1, 3]])
def test_weights_go_with_their_ids(spread: list[int] | None) -> None:
    rows, kinds = 600, "mmss"
    rng = np.random.default_rng(2)
    arrays = [as_arrays(random_column(rng, rows, kind == "s"), kind == "s") for kind in kinds]
    weights = [rng.random(len(ids)).astype(np.float32) for ids, _ in arrays]
    weight_of = dict(zip(arrays[0][0].tolist(), weights[0].tolist(), strict=True))
    weight_of |= dict(zip(arrays[2][0].tolist(), weights[2].tolist(), strict=True))
    ids, offsets, out = columns.interleave(
        [a[0] for a in arrays],
        [a[1] for a in arrays],
        rows,
        spread,
        [weights[0], None, weights[2], None],
    )
    assert out is not None and out.dtype == np.float32
    assert out.tolist() == [weight_of.get(id_, 1.0) for id_ in ids.tolist()]
    cells = sum(spread or [1] * 4)
    chosen = rng.permutation(rows)[:50].astype(np.uint32)
    ids, _, out = columns.take(ids, offsets, cells, chosen, out)
    assert out is not None
    assert out.tolist() == [weight_of.get(id_, 1.0) for id_ in ids.tolist()]


def test_interleave_refuses_columns_that_are_too_short() -> None:
    ids = np.arange(4, dtype=np.uint64)
    with pytest.raises(ValueError, match="not 5"):
        columns.interleave([ids], [None], 5)
    with pytest.raises(ValueError, match="not 6"):
        columns.interleave([ids], [np.array([0, 6], np.int32)], 1)
    with pytest.raises(ValueError, match="offsets of 2 rows"):
        columns.interleave([ids], [np.array([0, 4], np.int32)], 2)
    with pytest.raises(ValueError, match="ascend"):
        columns.interleave([ids], [np.array([0, 9, 4], np.int32)], 2)
    with pytest.raises(TypeError, match="int64"):
        columns.interleave([ids.astype(np.int64)], [None], 4)
    with pytest.raises(ValueError, match="ascend"):
        columns.interleave([ids], [np.array([-1, 4], np.int32)], 1)
    with pytest.raises(ValueError, match=r"spread of 1 cell or more. Received: 0"):
        columns.interleave([ids], [None], 4, [0])
    with pytest.raises(ValueError, match="4 ids has 3 weights"):
        columns.interleave([ids], [None], 4, None, [np.ones(3, np.float32)])
    with pytest.raises(TypeError, match="float64"):
        columns.interleave([ids], [None], 4, None, [np.ones(4)])


@pytest.mark.parametrize("slots", [1, 3])
def test_take(slots: int) -> None:
    rng = np.random.default_rng(slots)
    cells = random_column(rng, 40 * slots, single=False)
    ids, ends = as_arrays(cells, single=False)
    for chosen in ([], [0], [39, 39, 0], rng.permutation(40).tolist()):
        picked = np.array(chosen, np.uint32)
        out = columns.take(ids, ends.astype(np.uint32), slots, picked)
        assert as_cells(*out[:2]) == [cells[i * slots + s] for i in chosen for s in range(slots)]
        assert out[2] is None
    with pytest.raises(IndexError):
        columns.take(ids, ends.astype(np.uint32), slots, np.array([40], np.uint32))


# ---- Crosses ---------------------------------------------------------------


@pytest.mark.parametrize("kinds", ["ss", "ms", "smm", "mmmm", "sss"])
def test_cross_is_the_product_of_each_row(kinds: str) -> None:
    rows, rng = 300, np.random.default_rng(len(kinds))
    given = [random_column(rng, rows, kind == "s") for kind in kinds]
    arrays = [as_arrays(column, kind == "s") for column, kind in zip(given, kinds, strict=True)]
    ids, offsets = columns.cross([a[0] for a in arrays], [a[1] for a in arrays], rows, seed=4)
    assert (offsets is None) == ("m" not in kinds)
    wanted = [
        [
            hash_bytes(b"".join(id_.to_bytes(8, "little") for id_ in chosen), 4)
            for chosen in product(*(column[row] for column in given))
        ]
        for row in range(rows)
    ]
    ends = np.arange(rows + 1) if offsets is None else offsets
    assert as_cells(ids, ends) == wanted
    # What comes out is a column, which may be interleaved or crossed again.
    again, ends, _ = columns.interleave([ids], [offsets], rows)
    assert as_cells(again, ends) == wanted


def test_cross_never_changes() -> None:
    """Written down once: every dictionary in the field depends on it."""
    first, second = np.array([1], np.uint64), np.array([2], np.uint64)
    ids, offsets = columns.cross([first, second], [None, None], 1)
    assert ids.tolist() == [12176528023714092370] and offsets is None
    assert columns.cross([second, first], [None, None], 1)[0].tolist() != ids.tolist()


def test_cross_refuses_what_does_not_fit() -> None:
    ids, many = np.arange(4, dtype=np.uint64), np.zeros(70000, np.uint64)
    row = np.array([0, 70000], np.int32)
    with pytest.raises(ValueError, match=r"2 columns or more to cross. Received: 1"):
        columns.cross([ids], [None], 4)
    with pytest.raises(ValueError, match="not 5"):
        columns.cross([ids, ids], [None, None], 5)
    with pytest.raises(ValueError, match=r"smaller data\.window"):
        columns.cross([many, many], [row, row], 1)
    none, ends = columns.cross([ids[:0], ids[:0]], [np.zeros(1, np.int32), None], 0)
    assert len(none) == 0 and ends is not None and ends.tolist() == [0]


# ---- Order -----------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 2, 3, 100, 65537])
def test_permutation_is_one(n: int) -> None:
    order = columns.permutation(1, 2, 3, n)
    np.testing.assert_array_equal(np.sort(order), np.arange(n))
    np.testing.assert_array_equal(order, columns.permutation(1, 2, 3, n))


def test_permutation_is_fisher_and_yates() -> None:
    for seed, epoch, window, n in [(0, 0, 0, 10), (7, 1, 2**40, 257), (MASK, MASK, MASK, 33)]:
        key = mix64((mix64(mix64(seed) ^ epoch) + window) & MASK)
        wanted = list(range(n))
        for i in range(n, 1, -1):
            j = (mix64((key + i) & MASK) >> 32) * i >> 32
            wanted[i - 1], wanted[j] = wanted[j], wanted[i - 1]
        assert columns.permutation(seed, epoch, window, n).tolist() == wanted


def test_permutation_never_changes() -> None:
    """Written down once: a run resumes by it."""
    assert columns.permutation(1, 2, 3, 8).tolist() == [2, 5, 4, 3, 0, 7, 6, 1]
