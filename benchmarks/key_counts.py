"""How many distinct keys batches have: counted in the data, or expected of Zipf's law.

A key is a slot and an id in it. Whatever the size of a batch, each of its distinct keys travels
once to the owner of its row, so these counts decide how large the messages of a cluster are.
"""

import numpy as np
from numpy.typing import NDArray

from benchmarks.workload import CRITEO, LARGE, slot_sizes

EXPONENT = 1.05  # of workload.zipf
EXACT_RANKS = 1 << 16  # ranks above are taken together
RANKS_PER_BIN = 1.01  # the last rank of a bin, as a multiple of its first one


def distinct_keys(ids: NDArray[np.uint64], batch: int) -> NDArray[np.int64]:
    """Distinct keys of each whole batch of consecutive rows: of ids [rows, slots], int64 [n]."""
    whole = len(ids) // batch
    ordered = np.sort(ids[: whole * batch].reshape(whole, batch, -1), axis=1)
    changes = (ordered[:, 1:] != ordered[:, :-1]).sum(axis=(1, 2))
    return changes + ids.shape[1]


def distinct_keys_up_to(ids: NDArray[np.uint64], rows: list[int]) -> list[int]:
    """Distinct keys of the first rows[i] rows, of ids [all rows, slots]."""
    first_rows = [np.unique(column, return_index=True)[1] for column in ids.T]
    ordered = np.sort(np.concatenate(first_rows))
    return np.searchsorted(ordered, rows).tolist()


def sizes_of(keys: int) -> NDArray[np.int64]:
    """The sizes of W1's slots with `keys` keys in all: its five large slots are scaled."""
    sizes, large = slot_sizes(), np.array(CRITEO) > LARGE
    scale = (keys - sizes[~large].sum()) / sizes[large].sum()
    sizes[large] = (sizes[large] * scale).astype(np.int64)
    sizes[sizes.argmax()] += keys - sizes.sum()
    return sizes


def expected_distinct(sizes: NDArray[np.int64], rows: int) -> float:
    """The expected distinct keys of so many rows with one id per slot, drawn as W1's are."""
    return sum(_expected_of_slot(size, rows) for size in sizes.tolist())


def _expected_of_slot(size: int, rows: int) -> float:
    exact = min(size, EXACT_RANKS)
    bins = max(int(np.log(size / exact) / np.log(RANKS_PER_BIN)), 1) if size > exact else 0
    tail = np.round(np.geomspace(exact, size, bins + 1)) if bins else np.array([exact])
    edges = np.concatenate([np.arange(exact, dtype=float), tail])
    power, counts = 1 - EXPONENT, np.diff(edges)
    # Rank r is drawn when the inverted integral lies between r + 1 and r + 2.
    first = edges[:-1] + 1
    share = first**power * np.expm1(power * np.log1p(counts / first)) / ((size + 1) ** power - 1)
    return float((-np.expm1(rows * np.log1p(-share / counts)) * counts).sum())
