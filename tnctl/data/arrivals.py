"""Generated clicks of users and items that keep arriving: the data that `conf=demo` trains on.

A row is a pure function of its number, as in generated.py, so any part of the stream can be made
alone. Who is in a row follows Simon (1955, "On a class of skew distribution functions", Biometrika
42): with probability SHARE[slot] the row brings a new id, else it repeats the id of an earlier row,
drawn uniformly from all rows before it and FOUNDERS[slot] that were there at the start. So new ids
never end, and numbers of occurrences follow Zipf's law: the id of rank r occurs in proportion to
r^-(1 - SHARE), and has P(k occurrences) ~ k^-(1 + 1 / (1 - SHARE)). An id is named by the place of
its first occurrence, row number + FOUNDERS, which tells when it arrived.

    logit(row) = BIAS + sum over shown slots s, ids i in s:   main[s][i]
                      + sum over numbers k:                   weight[k] * z_k
                      + sum over pairs s < t in INTERACTING:  <factor_s, factor_t>
                      + hidden[taste of the user][kind of the item]
    label      ~ Bernoulli(sigmoid(logit))

- A user has one of KINDS tastes, an item one of KINDS kinds, uniformly by the hash of the id. No
  column shows them: a model has to learn them from the clicks of each id.
- A user has a city and an age band, an item a category, 0 to 4 tags, a price and a rating. Missing
  are the city in 1 row of 16, the age band of 1 user of 4, the rating of 1 item of 8; what is
  missing has no effect.
- The column `planted` is the logit. `reachable` is the logit of what can be known of it: the
  probability of a click for who knows the whole truth, but the taste or kind of no id that did not
  occur before (founders count as known); it is the mean over all KINDS of them. No model that was
  trained on earlier rows can expect a better AUC than its. A model reaches less where an id has
  occurred only a few times.
"""

from collections.abc import Collection, Iterator
from datetime import date, timedelta
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tnctl.data import Bools, Float64s, Uint64s
from tnctl.data.file_pieces import Piece, require
from tnctl.data.generated import (
    Effects,
    bits,
    effects_of,
    lists_of,
    near_normal,
    parsed_range,
    pieces_of,
    sixteenth,
    sixteenths,
    standardized,
    truth,
    uniform,
)
from tnctl.errors import UserError, refuse_if

DATA_SEED = 0x61727269766C  # "arrivl"
FIRST_DAY = date(2026, 1, 1)
SHARE = {"user_id": 0.25, "item_id": 0.1}  # of rows that bring a new id
FOUNDERS = {"user_id": 1000, "item_id": 100}
KINDS = 8
RANK = 3
BIAS = -1.3
MAIN = 0.25
FACTOR = 0.35
HIDDEN = {"user_id": 0.5, "item_id": 0.6, "both": 0.5}  # deviations of the parts of `hidden`
TAGS = "tags"
LISTED = 4  # the most tags of an item
SHOWN = {
    "category": 60,
    "city": 500,
    "age_band": 8,
    "device": 5,
    "hour": 24,
    "position": 6,
    TAGS: 2000,
}
INTERACTING = ("category", "age_band", "device")
NUMERIC = {"price": -0.25, "rating": 0.3}
NAME = "arrivals"  # in the place of a file's
COLUMNS = [*SHARE, *SHOWN, *NUMERIC, "label", "planted", "reachable"]
MOST_ROWS = 1 << 40
# Independent draws of a row or id; 16-bit parts of them are named in the functions.
STREAMS = 32
ARRIVAL = {"user_id": 0, "item_id": 1}
LABEL_DRAW, CONTEXT_DRAW, MISSING_DRAW = 2, 3, 4  # of a row
USER_DRAW, ITEM_DRAW, TAG_DRAW, PRICE_DRAW, RATING_DRAW = 8, 9, 10, 11, 12  # of an id
TRUTH_DRAW, HIDDEN_DRAW = 16, 24  # of an entry of the tables of effects

Ids = Uint64s
Logits = Float64s


_draw = partial(bits, DATA_SEED, STREAMS)  # 64 random bits of a stream for each number


@cache
def effects(name: str) -> Effects:
    """The truth about a shown slot."""
    numbers = truth(_draw, TRUTH_DRAW, list(SHOWN).index(name), SHOWN[name], 1 + RANK)
    return effects_of(name, numbers, MAIN, FACTOR)


@cache
def hidden() -> Logits:
    """What the taste of the user and the kind of the item add to the logit: [KINDS, KINDS]."""
    even = np.full(KINDS, 1 / KINDS)
    users, items = (
        standardized(truth(_draw, HIDDEN_DRAW, index, KINDS, 1 + RANK), even) for index in (0, 1)
    )
    both = users[:, 1:] @ items[:, 1:].T
    return (
        HIDDEN["user_id"] * users[:, :1]
        + HIDDEN["item_id"] * items[:, 0]
        + HIDDEN["both"] * both / both.std()
    )


def row_range(split: str, spec: Any) -> tuple[int, int]:
    """The first row and the end of "0:2000000", or of a day such as "2026-01-03/500000"."""
    if parsed := parsed_range(spec, MOST_ROWS):
        return parsed
    name, _, rows = str(spec).partition("/")
    day = _number(name)
    if day is not None and rows.isdecimal() and 0 < (day + 1) * int(rows) <= MOST_ROWS:
        return day * int(rows), (day + 1) * int(rows)
    raise UserError(
        f"data.{split} of data.format=arrivals is a range of rows such as 0:2000000, or a day and "
        "its number of rows such as 2026-01-03/500000 ({day}/500000 for daily training). "
        f"Received: data.{split}={spec}"
    )


def _number(name: str) -> int | None:
    """The number of a day, from 0; None for a text that is none."""
    try:
        number = (date.fromisoformat(name) - FIRST_DAY).days
    except ValueError:
        return None
    return number if number >= 0 and name == date.fromisoformat(name).isoformat() else None


def days(wanted: list[str] | tuple[str | None, str | None], most: int) -> list[str]:
    """The days of data.days: a list, or all of a range of at most `most`, which needs an end.

    Raises UserError.
    """
    first, last = (wanted[0], wanted[-1]) if isinstance(wanted, tuple) else (None, None)
    refuse_if(
        isinstance(wanted, tuple) and last is None,
        "data.format=arrivals has days without end: name the last one, such as "
        "data.days=..2026-01-07",
    )
    for day in filter(None, wanted):
        refuse_if(
            _number(day) is None,
            f"the days of data.format=arrivals are dates from {FIRST_DAY} on, such as "
            f"2026-01-31. Received: data.days with {day}",
        )
    if isinstance(wanted, list):
        return wanted
    begin, end = _number(first or FIRST_DAY.isoformat()) or 0, _number(str(last)) or 0
    refuse_if(
        end - begin >= most,
        f"data.days={first or ''}..{last} is over {most:,} days. Take fewer",
    )
    return [(FIRST_DAY + timedelta(days=n)).isoformat() for n in range(begin, end + 1)]


def pieces(first: int, end: int, needed: list[str], seen: int) -> Iterator[Piece]:
    """Rows `first` to `end` - 1, in order, with the columns `needed`.

    `seen`: of how many rows, from the first of the stream, `reachable` knows the ids.
    """
    require(NAME, needed, COLUMNS)
    yield from pieces_of(NAME, partial(rows, needed=needed, seen=seen), first, end, needed)


def rows(
    first: int, end: int, needed: Collection[str] = COLUMNS, seen: int | None = None
) -> pa.Table:
    """Rows `first` to `end` - 1: string and list<string> ids, float64 numbers and logits, label.

    `reachable` is there when it is `needed`, and knows the ids of the rows before `seen`; without
    it, of the rows before `first`.
    """
    numbers = np.arange(first, end, dtype=np.uint64)
    users, items = (arrived(name, numbers) for name in SHARE)
    columns = {
        "user_id": _named("u", users),
        "item_id": _named("i", items),
    }
    shown = np.full(len(numbers), BIAS)
    total = np.zeros((len(numbers), RANK))
    square = np.zeros(len(numbers))
    for name, ids, missing in _single(numbers, users, items):
        of_slot = effects(name)
        columns[name] = of_slot.texts.take(pa.array(ids, mask=missing))
        shown += of_slot.main[ids] * ~missing
        if name in INTERACTING:
            factor = of_slot.factor[ids] * ~missing[:, None]
            total += factor
            square += np.einsum("ij,ij->i", factor, factor)
    shown += 0.5 * (np.einsum("ij,ij->i", total, total) - square)
    columns[TAGS], of_tags = _tags(items)
    shown += of_tags
    for name in NUMERIC:
        columns[name], effect = _numeric(name, items)
        shown += effect
    tastes, kinds = classes(users, items)
    logit = shown + hidden()[tastes, kinds]
    label = uniform(_draw(LABEL_DRAW, numbers)) < _sigmoid(logit)
    columns["label"] = pa.array(label.astype(np.float32))
    columns["planted"] = pa.array(logit)
    if "reachable" in needed:
        seen = first if seen is None else seen
        known = [
            ids < seen + FOUNDERS[name] for name, ids in zip(SHARE, (users, items), strict=True)
        ]
        columns["reachable"] = pa.array(_reachable(shown, tastes, kinds, *known))
    return pa.table(columns)


def arrived(name: str, numbers: Ids) -> Ids:
    """The id of a slot in each row: the place of its first occurrence, row number + FOUNDERS."""
    share, founders = SHARE[name], np.uint64(FOUNDERS[name])
    ids = numbers + founders
    left, places = np.arange(len(ids)), ids.copy()
    while len(left):
        draws = _draw(ARRIVAL[name], places)
        is_first = (places < founders) | (sixteenth(draws, 0) < round(share * 65_536))
        ids[left[is_first]] = places[is_first]
        repeats = ~is_first
        left, places = left[repeats], (draws[repeats] >> np.uint64(16)) % places[repeats]
    return ids


def classes(users: Ids, items: Ids) -> tuple[Ids, Ids]:
    """The hidden taste of each user, and the hidden kind of each item."""
    most = np.uint64(KINDS)
    return (
        sixteenth(_draw(USER_DRAW, users), 0) % most,
        sixteenth(_draw(ITEM_DRAW, items), 0) % most,
    )


def _named(letter: str, ids: Ids) -> pa.Array:
    return pc.binary_join_element_wise(letter, pc.cast(pa.array(ids), pa.string()), "")


def _single(
    numbers: Ids, users: Ids, items: Ids
) -> Iterator[tuple[str, NDArray[np.uint16], Bools]]:
    """Each slot with one id, the id of each row, and where it is missing."""
    of_user, of_item = _draw(USER_DRAW, users), _draw(ITEM_DRAW, items)
    of_row = _draw(CONTEXT_DRAW, numbers)
    missing = {
        "city": sixteenth(_draw(MISSING_DRAW, numbers), 0) % np.uint64(16) == 0,
        "age_band": sixteenth(of_user, 3) % np.uint64(4) == 0,
    }
    for name, draws, part in (
        ("category", of_item, 1),
        ("city", of_user, 1),
        ("age_band", of_user, 2),
        ("device", of_row, 0),
        ("hour", of_row, 1),
        ("position", of_row, 2),
    ):
        ids = effects(name).chosen[sixteenth(draws, part)]
        yield name, ids, missing.get(name, np.zeros(len(numbers), bool))


def _tags(items: Ids) -> tuple[pa.Array, Logits]:
    """The tags of each row's item, and their effects summed."""
    shown, draws = effects(TAGS), _draw(TAG_DRAW, items)
    counts = sixteenth(_draw(ITEM_DRAW, items), 2) % np.uint64(LISTED + 1)
    ids = shown.chosen[sixteenths(draws)]
    column, listed = lists_of(shown.texts, ids, counts)
    return column, np.where(listed, shown.main[ids], 0.0).sum(axis=1)


def _numeric(name: str, items: Ids) -> tuple[pa.Array, Logits]:
    """The column of a number of the item, and its effect on each row."""
    if name == "price":
        z = near_normal(_draw(PRICE_DRAW, items))
        return pa.array(np.exp(2 + z)), NUMERIC[name] * z
    z = near_normal(_draw(RATING_DRAW, items))
    missing = sixteenth(_draw(ITEM_DRAW, items), 3) % np.uint64(8) == 0
    return pa.array(3 + z, mask=missing), NUMERIC[name] * np.where(missing, 0.0, z)


def _reachable(
    shown: Logits,
    tastes: Ids,
    kinds: Ids,
    users_known: Bools,
    items_known: Bools,
) -> Logits:
    """The logit of the mean probability over the tastes and kinds of ids that are not known."""
    table = hidden()
    logit = shown + table[tastes, kinds]
    for unknown, effect in (
        (~users_known & items_known, lambda at: table[:, kinds[at]].T),
        (users_known & ~items_known, lambda at: table[tastes[at]]),
        (~users_known & ~items_known, lambda _: table.ravel()),
    ):
        at = np.flatnonzero(unknown)
        mean = _sigmoid(shown[at, None] + effect(at)).mean(axis=1)
        logit[at] = np.log(mean) - np.log1p(-mean)
    return logit


def _sigmoid(logit: Logits) -> Logits:
    return 1 / (1 + np.exp(-logit))
