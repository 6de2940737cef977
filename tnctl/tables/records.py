"""Records, the encoded rows of tables: their fields, decay, days, the columns of cvm, hashes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl._tables import lib
from tnctl.tables.memory import check, output, pointer
from tnctl.tables.plans import RowOptimizer, Segment

CVM_COLUMNS = 2  # show and ln(click + 1) - ln(show + 1)
# One number each in a record; all other fields are arrays.
KEY_FIELDS = (("id", "<u8"), ("group", "<u2"), ("flags", "<u2"), ("changed", "<u4"))
# A key that was removed, and the step of the table at its removal.
REMOVED_DTYPE = np.dtype([("id", "<u8"), ("group", "<u2"), ("step", "<u4")])


def record_dtype(segments: Sequence[Segment], shows: bool) -> np.dtype[Any]:
    """The dtype of one record of a table with these segments, packed.

    In this order: KEY_FIELDS; of each segment the states of its optimizer; of each segment its
    weights, float32 [width]; with `shows` also show and click, float32 [1] each.
    """
    arrays = [
        (f"{segment.name}.{name}", kind, (count,))
        for segment in segments
        for name, kind, count in segment.optimizer.state_names(segment.width)
    ]
    arrays += [(segment.name, "<f4", (segment.width,)) for segment in segments]
    arrays += [(name, "<f4", (1,)) for name in ("show", "click") if shows]
    return np.dtype([*KEY_FIELDS, *arrays])


def decay_factors(f: float, counts: NDArray[np.uint32]) -> NDArray[np.float32]:
    """F to the power of each count, uint32 [n] -> float32 [n], rounded as tables round it.

    A count is the number of steps since a row's `changed`. A weight of a record, multiplied by its
    factor in float32, is what `lookup` and `gather` give.
    """
    factors = np.empty(len(counts), np.float32)
    lib.tn_decay_factors(f, pointer(counts, np.uint32), len(counts), output(factors))
    return factors


def weight_factors(
    optimizer: RowOptimizer, segment: str, records: NDArray[Any], steps: NDArray[np.uint32]
) -> NDArray[np.float32]:
    """What is left of the weights of a segment of records [n], float32 [n], as tables round it.

    `steps` uint32 [n] is how many there were since each record's `changed`.
    """
    if not optimizer.lazy_l2:
        return decay_factors(optimizer.decay_factor, steps)
    accumulators = np.ascontiguousarray(records[f"{segment}.accumulator"][:, 0])
    factors = np.empty(len(steps), np.float32)
    lib.tn_lazy_factors(
        float(np.float32(optimizer.learning_rate)) * float(np.float32(optimizer.lazy_l2)),
        optimizer.epsilon,
        pointer(accumulators, np.float32),
        pointer(steps, np.uint32),
        len(steps),
        output(factors),
    )
    return factors


def cvm_columns(
    show: NDArray[np.float32], click: NDArray[np.float32], factors: NDArray[np.float32]
) -> NDArray[np.float32]:
    """What a table with `cvm` reads after the weights of n records: [n] each -> float32 [n, 2].

    With s = show * factor and c = click * factor it is [s, ln(c + 1) - ln(s + 1)]; the factors are
    `decay_factors` of the days since each record's `changed`.
    """
    if not len(show) == len(click) == len(factors):
        raise ValueError(
            "expected a click and a factor for each show. Received: "
            f"{len(show)}, {len(click)} and {len(factors)}"
        )
    columns = np.empty((len(show), CVM_COLUMNS), np.float32)
    inputs = [np.ascontiguousarray(array) for array in (show, click, factors)]
    lib.tn_cvm_columns(
        *(pointer(array, np.float32) for array in inputs),
        len(show),
        output(columns),
    )
    return columns


def days_of_steps(days: Sequence[tuple[int, int]], steps: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The day of each step, uint32 [n] -> uint32 [n], by tn_days_of_steps of csrc/tnctl.h.

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
        output(days_of),
    )
    return days_of


def days_of_clock(
    days: Sequence[tuple[int, int]],
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """N pairs of (day, first step) as two arrays, uint32 [n] each."""
    pairs = np.array(days, np.uint32).reshape(-1, 2)
    return np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])


def key_hashes(
    names: Mapping[int, str], groups: NDArray[np.uint16], ids: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """The hash of each key of groups [n] and ids [n]: uint64 [n].

    Rows are ordered by it, and then by group. `names` are the names of the groups by number: a
    hash depends on the name and the id alone. Raises ValueError for a group without a name.
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
            output(hashes),
        )
    )
    return hashes


def key_pointers(groups: NDArray[np.uint16], ids: NDArray[np.uint64]) -> tuple[Any, Any, int]:
    """What C takes for keys, groups [n] and ids [n]: two pointers, and n."""
    if len(groups) != len(ids):
        raise ValueError(f"expected a group for each of {len(ids)} ids. Received: {len(groups)}")
    numbers = pointer(np.ascontiguousarray(groups), np.uint16)
    return numbers, pointer(np.ascontiguousarray(ids), np.uint64), len(ids)
