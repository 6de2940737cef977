"""W1: a made-up click log with the shape of Criteo's.

26 slots whose cardinalities are Criteo's, the five largest scaled down so that all slots have
10 million keys together; ids drawn by Zipf(1.05) within a slot; 13 numeric features; labels from
a logistic model over both. The same bits on every machine with the same numpy random streams.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(__file__).parent / "data"
SEED = 20240607
EXAMPLES = 1_024_000
KEYS = 10_000_000
NUMERIC = 13
DIM = 8
HIDDEN = (400, 400, 400)
# fmt: off
CRITEO = (1461, 584, 10131227, 2202608, 306, 24, 12518, 634, 4, 93146, 5684, 8351593, 3195, 28,
          14993, 5461306, 11, 5653, 2173, 4, 7046547, 18, 16, 286181, 105, 142572)
# fmt: on
SLOTS = len(CRITEO)
LARGE = 1_000_000


@dataclass(frozen=True)
class Workload:
    """The examples: ids uint64 [N, 26], numeric float32 [N, 13], labels float32 [N]."""

    ids: NDArray[np.uint64]
    numeric: NDArray[np.float32]
    labels: NDArray[np.float32]
    slot_sizes: NDArray[np.int64]


def slot_sizes() -> NDArray[np.int64]:
    """How many keys each slot has: KEYS in all."""
    sizes = np.array(CRITEO, np.int64)
    large = sizes > LARGE
    scale = (KEYS - sizes[~large].sum()) / sizes[large].sum()
    sizes[large] = (sizes[large] * scale).astype(np.int64)
    sizes[sizes.argmax()] += KEYS - sizes.sum()
    return sizes


def splitmix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The output of the SplitMix64 generator at each state."""
    x = values + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def keys_of(slot: int, ranks: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The ids of a slot's values by rank, below 2**63; ranks past the slot's size are new ids."""
    return splitmix64(np.uint64(slot << 40) | ranks.astype(np.uint64)) & np.uint64(2**63 - 1)


def all_keys(slot: int) -> NDArray[np.uint64]:
    """The ids of all values of a slot, the most frequent first."""
    return keys_of(slot, np.arange(slot_sizes()[slot]))


def zipf(rng: np.random.Generator, n: int, count: int, exponent: float = 1.05) -> NDArray[np.int64]:
    """`count` ranks below n from (nearly) Zipf's law, by inverting its integral."""
    power = 1 - exponent
    x = (((n + 1.0) ** power - 1.0) * rng.random(count) + 1.0) ** (1.0 / power)
    return np.minimum(x.astype(np.int64) - 1, n - 1)


def generate() -> Workload:
    """Make the examples anew (about ten seconds)."""
    rng = np.random.default_rng(SEED)
    sizes = slot_sizes()
    ids = np.empty((EXAMPLES, SLOTS), np.uint64)
    logits = np.full(EXAMPLES, -1.1)
    for slot, size in enumerate(sizes.tolist()):
        ids[:, slot] = keys_of(slot, zipf(rng, size, EXAMPLES))
        weights = (splitmix64(ids[:, slot]) >> np.uint64(40)) / 2**24  # in [0, 1), 24 bits
        logits += (weights - 0.5) * 1.2
    numeric = np.log1p(rng.exponential(3.0, (EXAMPLES, NUMERIC))).astype(np.float32)
    logits += numeric @ rng.normal(0, 0.15, NUMERIC)
    labels = (rng.random(EXAMPLES) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    return Workload(ids, numeric, labels, sizes)


def load(folder: Path = FOLDER) -> Workload:
    """The examples, kept in `folder` after the first call."""
    paths = [folder / f"{name}.npy" for name in ("ids", "numeric", "labels")]
    if not paths[-1].exists():  # the last one written
        folder.mkdir(parents=True, exist_ok=True)
        made = generate()
        for path, array in zip(paths, (made.ids, made.numeric, made.labels), strict=True):
            np.save(path, array)
    return Workload(*(np.load(path) for path in paths), slot_sizes())
