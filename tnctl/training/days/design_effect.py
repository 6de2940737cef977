"""How much more the figures of a day vary than those of as many independent examples would.

Examples of a session have one user, similar items and similar labels. Of n examples in such
clusters, a share varies as one of n / d independent examples does: d is its design effect (Kish,
"Survey Sampling", 1965). It is estimated from the sums of clusters that are nearly independent of
each other, in two ways, of which the larger is taken:

- Contiguous blocks of the file's order, of several lengths: the estimate grows with the length
  until a block is longer than what is correlated (Flyvbjerg & Petersen, "Error estimates on
  averages of correlated data", 1989).
- With data.group, all examples of a group together, and groups at random in 64 clusters: random
  groups (Wolter, "Introduction to Variance Estimation", 2007, chapter 2). They find what is
  correlated wherever it stands in the file.

Of a histogram it is the mean of the generalised design effects, by which a chi-square statistic of
clustered data is too large (Rao & Scott, "The analysis of categorical data from complex sample
surveys", 1981).
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.tables.columns import mix64

MOST_BLOCKS = 256
FEWEST_BLOCKS = 16
GROUP_BITS = 6  # 64 random groups

Sums = NDArray[np.float64]  # [clusters, places]


class Clusters:
    """Sums of clusters of a day's examples, by name, added up window by window.

    Memory is bounded: blocks double in length as the day grows.
    """

    def __init__(self) -> None:
        self._examples = 0
        self._length = 1  # of a block, in examples
        self._window: list[NDArray[np.int64]] = []  # of its examples: the block, the random group
        self._sums: dict[str, tuple[Sums, Sums]] = {}  # of blocks, of random groups

    def begin(self, rows: int, groups: NDArray[np.uint64] | None) -> None:
        """Begin a window of so many examples; `groups` [rows] are the hashes of data.group.

        A group of more than a quarter of the window is none (of missing values, all are one).
        """
        while self._examples + rows > MOST_BLOCKS * self._length:
            self._length *= 2
            for blocks, _ in self._sums.values():
                joined = in_pairs(blocks)
                blocks[:] = 0
                blocks[: len(joined)] = joined
        numbers = np.arange(self._examples, self._examples + rows)
        self._window = [numbers // self._length]
        if groups is not None:
            _, places, sizes = np.unique(groups, return_inverse=True, return_counts=True)
            keys = np.where(4 * sizes[places] > rows, numbers.astype(np.uint64), groups)
            self._window.append((mix64(keys) >> np.uint64(64 - GROUP_BITS)).astype(np.int64))
        self._examples += rows

    def add_share(self, name: str, values: NDArray[np.float64]) -> None:
        """Add a value from 0 to 1 for each example of the window, [rows]: two places."""
        self._add_pairs(name, values, 1 - values)

    def add_lengths(self, name: str, lengths: NDArray[np.int64]) -> None:
        """Add how many ids each example of the window has, [rows]."""
        self._add_pairs(name, lengths, lengths > 0)

    def _add_pairs(self, name: str, first: NDArray[Any], second: NDArray[Any]) -> None:
        for sums, clusters in self._of(name, 2):
            sums[:, 0] += np.bincount(clusters, first, len(sums))
            sums[:, 1] += np.bincount(clusters, second, len(sums))

    def add_counts(
        self, name: str, places: int, counts: NDArray[np.int64], place: NDArray[np.int64]
    ) -> None:
        """Count occurrences in a histogram of so many places.

        `counts` [rows] is how many each example of the window has, `place` [their sum] where each
        of them belongs, example after example.
        """
        for sums, clusters in self._of(name, places):
            keys = np.repeat(clusters, counts) * places + place
            sums += np.bincount(keys, minlength=sums.size).reshape(sums.shape)

    def effect(self, name: str) -> float:
        """The design effect of a histogram or share, 1 or more; 1 where nothing was added."""
        return self._largest(name, histogram_effect)

    def length_effect(self, name: str) -> float:
        """The same of the mean length of examples that have any id."""
        return self._largest(name, length_effect)

    def _largest(self, name: str, effect: Callable[[Sums], float]) -> float:
        if name not in self._sums:
            return 1.0
        blocks, groups = self._sums[name]
        effects = [1.0, effect(groups)]
        while len(blocks) >= FEWEST_BLOCKS:
            effects.append(effect(blocks))
            blocks = in_pairs(blocks)
        return max(effects)

    def _of(self, name: str, places: int) -> Iterator[tuple[Sums, NDArray[np.int64]]]:
        if name not in self._sums:
            of_groups = np.zeros((1 << GROUP_BITS, places))
            self._sums[name] = np.zeros((MOST_BLOCKS, places)), of_groups
        return zip(self._sums[name], self._window, strict=False)


def in_pairs(sums: Sums) -> Sums:
    """The sums of each two clusters that follow each other, of an even number."""
    return sums[0::2] + sums[1::2]


def histogram_effect(sums: Sums) -> float:
    """The mean generalised design effect of a histogram, from the counts of its clusters.

    With k places of the shares p it is the mean over k - 1 of n var(p_i) / p_i. 0 when fewer than
    FEWEST_BLOCKS clusters or 2 places have any.
    """
    sums = sums[:, sums.any(axis=0)]
    sums = sums[sums.any(axis=1)]
    clusters, places = sums.shape
    if clusters < FEWEST_BLOCKS or places < 2:
        return 0.0
    totals = sums.sum(axis=0)
    expected = sums.sum(axis=1, keepdims=True) * (totals / totals.sum())
    squares = ((sums - expected) ** 2).sum(axis=0) * clusters / (clusters - 1)
    return float((squares / totals).sum() / (places - 1))


def length_effect(sums: Sums) -> float:
    """The design effect of a mean length, from the ids and the examples with any of each cluster.

    It is n var(length) / length^2 of n ids, whose number varies as that of independent ones does
    when it is 1. 0 when fewer than FEWEST_BLOCKS clusters have any.
    """
    sums = sums[sums.any(axis=1)]
    clusters = len(sums)
    if clusters < FEWEST_BLOCKS:
        return 0.0
    ids, examples = sums.sum(axis=0)
    residuals = sums[:, 0] - ids / examples * sums[:, 1]
    return float((residuals**2).sum() * clusters / (clusters - 1) / ids)
