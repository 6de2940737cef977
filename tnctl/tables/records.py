"""What is read of rows in records: decay, days, the columns of cvm, hashes of keys."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl._tables import lib
from tnctl.tables.memory import check, pointer

CVM_COLUMNS = 2
# A key that was removed, and the table's step then.
REMOVED_DTYPE = np.dtype([("id", "<u8"), ("group", "<u2"), ("step", "<u4")])


def decay_factors(f: float, counts: NDArray[np.uint32]) -> NDArray[np.float32]:
    """Powers of f, one per count (steps since a row's `changed`), float32 [n], as tables read.

    A weight of a record, multiplied by its factor in float32, is what `lookup` and `gather` give.
    """
    factors = np.empty(len(counts), np.float32)
    lib.tn_decay_factors(
        f, pointer(counts, np.uint32), len(counts), pointer(factors, np.float32, True)
    )
    return factors


def cvm_columns(
    show: NDArray[np.float32], click: NDArray[np.float32], factors: NDArray[np.float32]
) -> NDArray[np.float32]:
    """What a table with `cvm` reads after the weights of records, float32 [n, 2].

    With s = show * factor and c = click * factor it is [s, ln(c + 1) - ln(s + 1)]; the factors are
    `decay_factors` of the days since each record's `changed`.
    """
    if not len(show) == len(click) == len(factors):
        raise ValueError(
            "expected a click and a factor for each show. Received: "
            f"{len(show)}, {len(click)} and {len(factors)}"
        )
    columns = np.empty((len(show), CVM_COLUMNS), np.float32)
    given = [np.ascontiguousarray(array) for array in (show, click, factors)]
    lib.tn_cvm_columns(
        *(pointer(array, np.float32) for array in given),
        len(show),
        pointer(columns, np.float32, True),
    )
    return columns


def days_of_steps(days: Sequence[tuple[int, int]], steps: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The day of each step [n], by the one rule of csrc/tnctl.h (tn_days_of_steps), uint32 [n].

    `days` are (day, first step), ascending. A step before the first day is of the first day;
    without days all are of day 0.
    """
    numbers, first_steps = days_of_clock(days)
    days_of = np.empty(len(steps), np.uint32)
    lib.tn_days_of_steps(
        pointer(numbers, np.uint32),
        pointer(first_steps, np.uint32),
        len(days),
        pointer(np.ascontiguousarray(steps), np.uint32),
        len(steps),
        pointer(days_of, np.uint32, True),
    )
    return days_of


def days_of_clock(
    days: Sequence[tuple[int, int]],
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """(day, first step) pairs as two arrays, uint32 [n] each."""
    pairs = np.array(days, np.uint32).reshape(-1, 2)
    return np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])


def key_hashes(
    names: Mapping[int, str], groups: NDArray[np.uint16], ids: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """The hash of each key: what rows are ordered by (and then by group), uint64 [n].

    `names` are those of the groups by number: with the id, all that a hash depends on. Raises
    ValueError for a group without a name.
    """
    count = max(names, default=-1) + 1
    salts, declared = np.zeros(count, np.uint64), np.zeros(count, np.uint8)
    for number, name in names.items():
        salts[number], declared[number] = lib.tn_group_salt(name.encode()), 1
    hashes = np.empty(len(ids), np.uint64)
    check(
        lib.tn_key_hashes(
            pointer(salts, np.uint64),
            pointer(declared, np.uint8),
            count,
            *key_pointers(groups, ids),
            pointer(hashes, np.uint64, True),
        )
    )
    return hashes


def key_pointers(groups: NDArray[np.uint16], ids: NDArray[np.uint64]) -> tuple[Any, Any, int]:
    """Pointers to keys, of fields of records too, and how many they are."""
    if len(groups) != len(ids):
        raise ValueError(f"expected a group for each of {len(ids)} ids. Received: {len(groups)}")
    flat = (np.ascontiguousarray(groups), np.ascontiguousarray(ids))
    return pointer(flat[0], np.uint16), pointer(flat[1], np.uint64), len(ids)
