"""Random draws that are a pure function of numbers, for generated data: no state, any order."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tnctl.tables.columns import mix64


def bits(seed: int, streams: int, stream: int, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """64 random bits for each number [n]: SplitMix64 with MurmurHash3's finalizer.

    A number has `streams` independent draws; this is draw `stream` of them.
    """
    with np.errstate(over="ignore"):
        state = numbers * np.uint64(streams) + np.uint64(stream)
        return mix64(state * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed))


def sixteenth(draws: NDArray[np.uint64], part: int) -> NDArray[np.uint64]:
    """Part 0 to 3 of draws of 64 bits: 16 bits each."""
    return (draws >> np.uint64(16 * part)) & np.uint64(0xFFFF)


def below(share: NDArray[np.float64], draws: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Whether a uniform number of 53 bits, from 64 bits each, is below `share`."""
    return (draws >> np.uint64(11)) * 2.0**-53 < share


def near_normal(draws: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Near-normal numbers of deviation 1 from 64 bits each: four uniforms summed."""
    total = draws.view("<u2").reshape(-1, 4).sum(axis=1, dtype=np.int64)
    scaled: NDArray[np.float64] = (total - 2 * 65_535) * (np.sqrt(3.0) / 65_536)
    return scaled


def popular(weights: NDArray[np.float64]) -> tuple[NDArray[np.uint16], NDArray[np.float64]]:
    """The number of each 16-bit draw, in proportion to weights; and their shares."""
    bounds = np.round(np.cumsum(weights) / weights.sum() * 65_536).astype(np.int64)
    chosen = np.searchsorted(bounds, np.arange(65_536), side="right").astype(np.uint16)
    return chosen, np.diff(bounds, prepend=0) / 65_536


def standardized(
    columns: NDArray[np.float64], popularity: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Columns [n, k] with mean 0 and deviation 1 over the popularity [n] of their rows."""
    centred = columns - popularity @ columns
    return centred / np.sqrt(popularity @ centred**2)


def offsets_of(counts: NDArray[np.uint64]) -> pa.Array:
    """Where lists of so many values begin, and the last one ends: int32 [n + 1]."""
    return pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
