"""Generated clicks whose truth is known: the data that `conf=deepfm` trains on by itself.

A row is a pure function of its number, so a range such as "0:2000000" is data, any part of it can
be made alone, and disjoint ranges never share a draw. What is planted:

    logit(row) = BIAS
               + sum over slots s, ids i in s:        main[s][i]
               + sum over numeric inputs k:           weight[k] * z_k
               + sum over pairs s < t in INTERACTING: <v_s, v_t>,   v_s = sum of factor[s][i]
    label      ~ Bernoulli(sigmoid(logit))

- Every slot draws its ids on its own, with probability ~ 1 / rank; `interests` draws 0 to 4.
- `main` and the RANK-dimensional `factor` are near-normal draws, their mean over the popularity of
  the ids taken away: so an interaction has no main effect, and an additive model cannot see it.
- z_k is a unit normal; the file shows exp(z) - 1, or z scaled and shifted, so that log1p or
  standardize give it back. `quality` is null in 1 row of 16 and has z = 0 there.
- The column `planted` is the logit (no model has a better AUC), and `planted_additive` the logit
  without its interactions, which is about as far as logistic regression can come.

Three things more, for models of more than one label or of sequences; they change nothing above:

- `purchase` ~ label * Bernoulli(sigmoid(BUY_BIAS + sum over slots s in BUYING of buy[s][i])); the
  column `planted_purchase` is the logit of its probability.
- `history`, 0 to HISTORY items: each is of the kind of item_id (number % KINDS) with probability
  ALIKE[label], drawn by popularity among these, else drawn by popularity from all. So
  `planted_history`, the logit of a click for who sees the history too, is `planted` plus, for each
  item of it, ln P(item | label 1) / P(item | label 0).
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tnctl.data import Bools, Float64s, Uint64s
from tnctl.data.file_pieces import Piece, counted, require
from tnctl.errors import UserError
from tnctl.tables.columns import mix64


def bits(seed: int, streams: int, stream: int, numbers: Uint64s) -> Uint64s:
    """64 random bits for each number [n]: SplitMix64 with MurmurHash3's finalizer.

    A number has `streams` independent draws; this is draw `stream` of them.
    """
    with np.errstate(over="ignore"):
        state = numbers * np.uint64(streams) + np.uint64(stream)
        return mix64(state * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed))


def sixteenth(draws: Uint64s, part: int) -> Uint64s:
    """Part 0 to 3 of draws of 64 bits: 16 bits each."""
    return (draws >> np.uint64(16 * part)) & np.uint64(0xFFFF)


def sixteenths(draws: Uint64s) -> NDArray[np.uint16]:
    """The four parts of draws [n] of 64 bits, as `sixteenth` has them: [n, 4]."""
    return draws.astype("<u8", copy=False).view("<u2").reshape(-1, 4)


def uniform(draws: Uint64s) -> Float64s:
    """Numbers of 53 bits in [0, 1), from 64 bits each."""
    return (draws >> np.uint64(11)).astype(np.float64) * 2.0**-53


def near_normal(draws: Uint64s) -> Float64s:
    """Near-normal numbers of deviation 1 from 64 bits each: four uniforms summed."""
    total = sixteenths(draws).sum(axis=1, dtype=np.int64)
    scaled: Float64s = (total - 2 * 65_535) * (np.sqrt(3.0) / 65_536)
    return scaled


def popular(weights: Float64s) -> tuple[NDArray[np.uint16], Float64s]:
    """The number of each 16-bit draw, in proportion to weights; and their shares."""
    bounds = np.round(np.cumsum(weights) / weights.sum() * 65_536).astype(np.int64)
    chosen = np.searchsorted(bounds, np.arange(65_536), side="right").astype(np.uint16)
    return chosen, np.diff(bounds, prepend=0) / 65_536


def standardized(columns: Float64s, popularity: Float64s) -> Float64s:
    """Columns [n, k] with mean 0 and deviation 1 over the popularity [n] of their rows."""
    centred = columns - popularity @ columns
    return centred / np.sqrt(popularity @ centred**2)


def truth(
    draw: Callable[[int, Uint64s], Uint64s],
    stream: int,
    index: int,
    n: int,
    width: int,
) -> Float64s:
    """Near-normal numbers [n, width] of table `index` of effects, by draws from `stream`."""
    # Numbers of rows and ids stay far below, so these draws are no others.
    numbers = np.arange(n, dtype=np.uint64) + np.uint64((1 << 50) + (index << 20))
    return np.stack([near_normal(draw(stream + k, numbers)) for k in range(width)], axis=1)


@dataclass
class Effects:
    """The truth about one slot of n ids, which are drawn with probability ~ 1 / rank."""

    texts: pa.Array  # string [n]
    chosen: NDArray[np.uint16]  # [65536]: the id of each 16-bit draw
    main: NDArray[np.floating]  # [n]
    factor: NDArray[np.floating]  # [n, width - 1]


def effects_of(name: str, numbers: Float64s, main: float, factor: float) -> Effects:
    """Effects of the deviations `main` and `factor`, from near-normal numbers [n, width]."""
    n = len(numbers)
    chosen, popularity = popular(1.0 / np.arange(1, n + 1))
    columns = standardized(numbers, popularity)
    texts = pa.array([f"{name[0]}{i}" if n > 50 else str(i) for i in range(n)], pa.string())
    return Effects(texts, chosen, main * columns[:, 0], factor * columns[:, 1:])


def lists_of(texts: pa.Array, ids: NDArray[Any], counts: Uint64s) -> tuple[pa.Array, Bools]:
    """Lists of the first counts[i] ids of row i, by their texts; and which ids these are.

    `ids` has the shape [n, most], as has the second result.
    """
    listed = np.arange(ids.shape[1], dtype=np.uint64) < counts[:, None]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), texts.take(pa.array(ids[listed]))), listed


def parsed_range(spec: Any, most: int) -> tuple[int, int] | None:
    """The first row and the end, at most `most`, of a text such as "0:2000000"; None for others."""
    first, colon, end = str(spec).partition(":")
    if colon and first.isdecimal() and end.isdecimal() and int(first) < int(end) <= most:
        return int(first), int(end)
    return None


def pieces_of(
    name: str, make: Callable[[int, int], pa.Table], first: int, end: int, needed: list[str]
) -> Iterator[Piece]:
    """Rows `first` to `end` - 1, in order, with the columns `needed` of what `make` makes."""
    for start in range(first, end, PIECE_ROWS):
        table = make(start, min(start + PIECE_ROWS, end))
        yield Piece(table.select(needed), counted(name, start))


DATA_SEED = 0x636C69636B73  # "clicks"
PIECE_ROWS = 65_536
MOST_ROWS = (1 << 48) - 1
NAME = "generated data"  # in the place of a file's
BIAS = -1.62
RANK = 3
MAIN = 0.35
FACTOR = 0.4
INTERESTS = "interests"
LISTED = 4  # the most interests of a row
SLOTS = {
    "user_id": 300,
    "item_id": 200,
    "category": 30,
    "advertiser": 60,
    "site": 500,
    "hour": 24,
    "weekday": 7,
    "device": 5,
    "region": 50,
    "position": 6,
    "age_band": 8,
    INTERESTS: 40,
}
INTERACTING = ("user_id", "item_id", "category", "advertiser", "device", "region", INTERESTS)
NUMERIC = {"price": -0.25, "past_clicks": 0.3, "quality": 0.2}
PURCHASES = ["purchase", "planted_purchase"]
HISTORIES = ["history", "planted_history"]
COLUMNS = [
    *SLOTS, *NUMERIC, "label", "planted", "planted_additive", *PURCHASES, *HISTORIES,
]  # fmt: skip
BUYING = ("user_id", "item_id", "device")
BUY = 0.6
BUY_BIAS = -1.3
HISTORY = 8  # the most items of a row's history
KINDS = 8
ALIKE = {0: 0.1, 1: 0.3}
# One 64-bit draw of a row gives four 16-bit ones. Draws 0 to 2 are for slots with one id.
INTEREST_DRAW, COUNT_DRAW, LABEL_DRAW, NUMERIC_DRAW, DRAWS = 3, 4, 5, 6, 16
PURCHASE_DRAW, ITEM_DRAW, ALIKE_DRAW, LENGTH_DRAW = 9, 10, 12, 14


_draw = partial(bits, DATA_SEED, DRAWS)  # 64 random bits of a stream for each number


def _index(name: str) -> int:
    return list(SLOTS).index(name)


@cache
def _planted(name: str) -> Effects:
    numbers = truth(_draw, 0, _index(name), SLOTS[name], 1 + RANK)
    planted = effects_of(name, numbers, MAIN, FACTOR)
    planted.main, planted.factor = (
        effect.astype(np.float32) for effect in (planted.main, planted.factor)
    )
    return planted


def row_range(split: str, spec: Any) -> tuple[int, int]:
    """The first row and the end of a range such as "0:2000000"."""
    if (parsed := parsed_range(spec, MOST_ROWS)) is None:
        raise UserError(
            f"data.{split} of generated data is a range of rows such as 0:2000000. "
            f"Received: data.{split}={spec}"
        )
    return parsed


def pieces(first: int, end: int, needed: list[str]) -> Iterator[Piece]:
    """Rows `first` to `end` - 1, in order, with the columns `needed`."""
    require(NAME, needed, COLUMNS)
    yield from pieces_of(NAME, partial(rows, needed=needed), first, end, needed)


def rows(first: int, end: int, needed: Collection[str] = COLUMNS) -> pa.Table:
    """Rows `first` to `end` - 1: string, list<string>, float64 inputs, float32 label and logits.

    Purchases and histories only when `needed`: they take as long as all the rest.
    """
    numbers = np.arange(first, end, dtype=np.uint64)
    columns: dict[str, pa.Array] = {}
    additive = np.full(len(numbers), BIAS, np.float32)
    total = np.zeros((len(numbers), RANK), np.float32)
    square = np.zeros(len(numbers), np.float32)
    for name in SLOTS:
        columns[name], main, factor = _slot(name, numbers)
        additive += main
        if factor is not None:
            total += factor
            square += np.einsum("ij,ij->i", factor, factor)
    for index, name in enumerate(NUMERIC):
        columns[name], effect = _numeric(index, name, numbers)
        additive += effect
    logit = additive + 0.5 * (np.einsum("ij,ij->i", total, total) - square)
    chance = 1 + np.exp(-logit.astype(np.float64))
    label = uniform(_draw(LABEL_DRAW, numbers)) * chance < 1
    columns["label"] = pa.array(label.astype(np.float32))
    columns["planted"] = pa.array(logit)
    columns["planted_additive"] = pa.array(additive)
    if not set(PURCHASES).isdisjoint(needed):
        columns |= _purchases(numbers, label, logit)
    if not set(HISTORIES).isdisjoint(needed):
        columns |= _histories(numbers, label, logit)
    return pa.table(columns)


def _slot(name: str, numbers: np.ndarray) -> tuple[pa.Array, np.ndarray, np.ndarray | None]:
    """The column of a slot, its main effect per row, and its factor if it interacts."""
    planted = _planted(name)
    if name == INTERESTS:
        return _interests(planted, numbers)
    ids = _ids(name, numbers)
    factor = planted.factor[ids] if name in INTERACTING else None
    return planted.texts.take(pa.array(ids)), planted.main[ids], factor


def _ids(name: str, numbers: np.ndarray) -> np.ndarray:
    """The id, from 0, that each row has in a slot with one."""
    stream, part = divmod(_index(name), 4)
    return _planted(name).chosen[sixteenth(_draw(stream, numbers), part)]


def _sixteen(stream: int, numbers: np.ndarray, count: int) -> np.ndarray:
    """`count` 16-bit draws of each number, [n, count]: four of each stream from `stream` on."""
    draws = [sixteenths(_draw(stream + k, numbers)) for k in range((count + 3) // 4)]
    return np.concatenate(draws, axis=1)[:, :count]


def _interests(
    planted: Effects, numbers: np.ndarray
) -> tuple[pa.Array, np.ndarray, np.ndarray | None]:
    counts = (_draw(COUNT_DRAW, numbers) >> np.uint64(32)) % np.uint64(LISTED + 1)
    ids = planted.chosen[_sixteen(INTEREST_DRAW, numbers, LISTED)]
    column, listed = lists_of(planted.texts, ids, counts)
    main = np.where(listed, planted.main[ids], np.float32(0)).sum(axis=1, dtype=np.float32)
    factor = np.zeros((len(numbers), RANK), np.float32)
    for index in range(LISTED):
        factor += planted.factor[ids[:, index]] * listed[:, index, None]
    return column, main, factor


def _numeric(index: int, name: str, numbers: np.ndarray) -> tuple[pa.Array, np.ndarray]:
    """The column of a numeric input, and its effect per row."""
    z = near_normal(_draw(NUMERIC_DRAW + index, numbers))
    missing = None
    if name == "quality":
        missing = (_draw(COUNT_DRAW, numbers) & np.uint64(15)) == 0
        shown = 50 + 10 * z
        z = np.where(missing, 0.0, z)
    else:
        shown = np.sign(z) * np.expm1(np.abs(z))
    return pa.array(shown, mask=missing), (NUMERIC[name] * z).astype(np.float32)


def _purchases(numbers: np.ndarray, label: np.ndarray, logit: np.ndarray) -> dict[str, pa.Array]:
    """The columns PURCHASES."""
    buys = np.full(len(numbers), BUY_BIAS)
    for name in BUYING:
        buys += _buy(name)[_ids(name, numbers)]
    purchase = label & (uniform(_draw(PURCHASE_DRAW, numbers)) * (1 + np.exp(-buys)) < 1)
    clicks = logit.astype(np.float64)
    both = -np.log(np.exp(-clicks) + np.exp(-buys) + np.exp(-clicks - buys))
    return {
        "purchase": pa.array(purchase.astype(np.float32)),
        "planted_purchase": pa.array(both.astype(np.float32)),
    }


@cache
def _buy(name: str) -> np.ndarray:
    """What each id of a slot adds to the logit of a purchase after a click."""
    return BUY * truth(_draw, 1 + RANK, _index(name), SLOTS[name], 1)[:, 0]


@dataclass
class Kinds:
    """Items drawn by popularity within their kind, and the log-odds that one in a history adds."""

    chosen: np.ndarray  # uint16 [KINDS, 65536]: the item of each 16-bit draw
    alike: np.ndarray  # float64 [items]: ln P(item | 1) / P(item | 0), of the kind of item_id
    unlike: float  # the probability with any other item


@cache
def _kinds() -> Kinds:
    items = np.arange(SLOTS["item_id"])
    weights = 1.0 / (items + 1)
    _, popularity = popular(weights)
    drawn = [popular(weights * (items % KINDS == kind)) for kind in range(KINDS)]
    within = sum(shares for _, shares in drawn)
    chances = {y: (1 - share) * popularity + share * within for y, share in ALIKE.items()}
    unlike = np.log((1 - ALIKE[1]) / (1 - ALIKE[0]))
    return Kinds(np.stack([c for c, _ in drawn]), np.log(chances[1] / chances[0]), float(unlike))


def _histories(numbers: np.ndarray, label: np.ndarray, logit: np.ndarray) -> dict[str, pa.Array]:
    """The columns HISTORIES."""
    planted, kinds = _planted("item_id"), _kinds()
    kind = (_ids("item_id", numbers) % KINDS)[:, None]
    lengths = (_draw(LENGTH_DRAW, numbers) >> np.uint64(32)) % np.uint64(HISTORY + 1)
    draws = _sixteen(ITEM_DRAW, numbers, HISTORY)
    share = np.where(label, ALIKE[1], ALIKE[0])[:, None]
    of_kind = _sixteen(ALIKE_DRAW, numbers, HISTORY) < share * 65_536
    items = np.where(of_kind, kinds.chosen[kind, draws], planted.chosen[draws])
    history, listed = lists_of(planted.texts, items, lengths)
    tells = np.where(items % KINDS == kind, kinds.alike[items], kinds.unlike)
    seen = logit.astype(np.float64) + np.where(listed, tells, 0.0).sum(axis=1)
    return {"history": history, "planted_history": pa.array(seen.astype(np.float32))}
