"""The keys that most batches ask an owner for, counted in a sample of them in bounded memory.

Each key is in a batch once. The first batches are counted all, later ones with a probability that
falls, with the inverse of it as their weight. Sampled keys are collected, and merged into a summary
of Misra and Gries ("Finding repeated elements", 1982), as Agarwal et al. merge them ("Mergeable
summaries", 2012): when there are too many keys, the count of the largest that has no room is
subtracted from all, and keys without a count are dropped.
"""

from collections.abc import Sequence
from random import Random

import numpy as np
from numpy.typing import NDArray

from tnctl.cluster.messages.exchange import Keys
from tnctl.cluster.messages.hot_key_commands import HotKey, HotKeyList

COUNTED_ALL = 256  # batches
LEAST_PROBABILITY = 1 / 1024
MOST_OF_BATCH = 1 << 14  # keys of a table in a batch that are counted; of more, every k-th
CAPACITY = 1 << 16  # keys, of the summary and of what is collected before it is merged
GROUP_BITS = 16
FACTORS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)  # odd


class HotKeys:
    """Counts the keys of batches; called by one thread at a time."""

    def __init__(
        self,
        seed: int,
        *,
        counted_all: int = COUNTED_ALL,
        least: float = LEAST_PROBABILITY,
        capacity: int = CAPACITY,
    ) -> None:
        """Count the first `counted_all` batches, and others with a probability of `least` or more.

        At most 2 `capacity` keys are kept, and those of one batch.
        """
        self._counted_all, self._least, self._capacity = counted_all, least, capacity
        self._random = Random(seed)
        self.clear()

    def clear(self) -> None:
        """Begin to count."""
        self.batches = self.requested = 0
        self._sampled = 0.0  # batches, each by its weight
        self.error = 0.0
        """the most by which a count of the summary is too small"""
        self._codes = np.empty(0, np.uint32)  # table and group
        self._ids = np.empty(0, np.uint64)
        self._counts = np.empty(0)
        self._collected: list[tuple[NDArray[np.uint32], NDArray[np.uint64], float]] = []
        self._collected_keys = 0

    def add(self, keys: Sequence[Keys]) -> None:
        """Take the keys of a batch, by table; the arrays may change afterwards."""
        requested = sum(len(of_table.ids) for of_table in keys)
        if not requested:
            return
        self.batches += 1
        self.requested += requested
        probability = max(self._least, min(1.0, self._counted_all / self.batches))
        if probability < 1 and self._random.random() >= probability:
            return
        self._sampled += 1 / probability
        for table, of_table in enumerate(keys):
            self._collect(table, of_table, 1 / probability)
        if self._collected_keys >= self._capacity:
            self._merge()

    def take_top(self, most: int) -> HotKeyList:
        """The same as `top`; begin to count again."""
        listed = self.top(most)
        self.clear()
        return listed

    def top(self, most: int) -> HotKeyList:
        """The keys that most batches have, as far as the sample says, by upper bounds.

        Of a key that all sampled batches have it is the number of all batches.
        """
        self._merge()
        scale = self.batches / self._sampled if self._sampled else 1.0
        counts = np.minimum((self._counts + self.error) * scale, self.batches)
        largest = np.lexsort((self._ids, self._codes, -counts))[:most]
        hottest = [
            HotKey(
                table=code >> GROUP_BITS,
                group=code & ((1 << GROUP_BITS) - 1),
                id=str(id_),
                batches=count,
            )
            for code, id_, count in zip(
                self._codes[largest].tolist(),
                self._ids[largest].tolist(),
                counts[largest].tolist(),
                strict=True,
            )
        ]
        return HotKeyList(batches=self.batches, requested=self.requested, keys=tuple(hottest))

    def _collect(self, table: int, keys: Keys, weight: float) -> None:
        stride = -(-len(keys.ids) // MOST_OF_BATCH)
        if not stride:
            return
        places = slice(self._random.randrange(stride), None, stride)
        codes = keys.groups[places].astype(np.uint32)
        codes |= np.uint32(table << GROUP_BITS)
        self._collected.append((codes, keys.ids[places].copy(), weight * stride))
        self._collected_keys += len(codes)

    def _merge(self) -> None:
        """Add what was collected to the summary."""
        if not self._collected:
            return
        codes = np.concatenate([self._codes, *(codes for codes, _, _ in self._collected)])
        ids = np.concatenate([self._ids, *(ids for _, ids, _ in self._collected)])
        weights = [np.full(len(ids), weight) for _, ids, weight in self._collected]
        counts = np.concatenate([self._counts, *weights])
        self._collected, self._collected_keys = [], 0
        # Sorting one number is several times faster than sorting pairs. Should two pairs have the
        # same one, at most the count of a key is divided.
        order = np.argsort(ids * FACTORS[0] ^ codes * FACTORS[1])
        codes, ids = codes[order], ids[order]
        is_first = np.ones(len(ids), np.bool_)
        is_first[1:] = (codes[1:] != codes[:-1]) | (ids[1:] != ids[:-1])
        first = np.flatnonzero(is_first)
        counts = np.add.reduceat(counts[order], first)
        codes, ids = codes[first], ids[first]
        if len(ids) > self._capacity:
            place = len(ids) - self._capacity - 1
            largest_without_room = np.partition(counts, place)[place]
            counts -= largest_without_room
            self.error += float(largest_without_room)
            kept = counts > 0
            codes, ids, counts = codes[kept], ids[kept], counts[kept]
        self._codes, self._ids, self._counts = codes, ids, counts
