"""Rows in the tables of other processes: what a worker sends of a batch, and what an owner answers.

A table can be shared by up to 64 processes, each with a `SparseTable` that owns a range of the 64
shards (`SparseTable.set_shards`). csrc/tn_exchange.h has a picture of a step. All arrays are given
and taken as buffers: numpy arrays, or bytes-like parts of a message, which are used where they lie.
They must start at a multiple of their item's size in memory.

    keys         ids uint64 [n], groups uint16 [n], occurrences uint32 [n]
    rows         float32 [n, table.read_floats]: weights of all segments, with the columns of cvm
                 (show and click, where a table does not count and rows are found to be trained)
    waits        uint32 [n]: how many occurrences of a key, the first ones, wait for its admission
    sums         float32 [n, table.weights]: summed gradients, the widest segment first
    counts       float32 [n, 2]: show and click

Floats of half the size (bfloat16) have the sign, the exponent and the first 7 bits of the mantissa
of a float32.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl._tables import ffi, lib
from tnctl.tables.memory import check, items, output, pointer
from tnctl.tables.plans import SlotPlan
from tnctl.tables.sparse_table import SparseTable, Workspace
from tnctl.tables.sums import ExactSum


class KeyWorkspace(Workspace):
    """Batches whose rows are in other processes, one batch after the other.

    `table` says what a row consists of: it has the segments, groups and settings of the tables that
    have the rows; its own rows are not looked at. `number_keys` takes the place of `find`; after
    `set_rows`, `gather`, `accumulate` and `count` work as after a `find`. `apply` and `squares` do
    not: the owners of the rows apply (`PullWorkspace`).
    """

    def __init__(self, table: SparseTable, slots: Sequence[SlotPlan], ranks: int = 1) -> None:
        """`ranks`: the workers whose gradients are added, 1 to 64, this one included.

        `accumulate` then refuses sums beyond 2^58 / ranks, as `PullWorkspace.push_sums` does.
        """
        super().__init__(table, slots)
        self._counts: list[int] = []
        self._rows: list[Any] = []
        check(lib.tn_batch_set_ranks(self.handle, ranks))

    def number_keys(
        self,
        ids: NDArray[np.uint64],
        offsets: NDArray[np.uint32],
        examples: int,
        first_shards: Sequence[int],
        weights: NDArray[np.float32] | None = None,
    ) -> list[int]:
        """Number the distinct keys of a batch, and return how many there are of each peer.

        The cells and weights are as in `Workspace.find`. Peer p owns the shards from
        first_shards[p] up to first_shards[p + 1], none where these are equal: first_shards
        ascends from 0 to 64. Raises ValueError as `find` does.
        """
        self._counts = []
        cells = self._cells(ids, offsets, examples, weights)
        peers = len(first_shards) - 1
        check(
            lib.tn_keys(
                self.handle, *cells, examples, ffi.new("uint32_t[]", list(first_shards)), peers
            )
        )
        self._examples = examples
        n = ffi.new("uint64_t *")
        for peer in range(peers):
            check(lib.tn_keys_count(self.handle, peer, n))
            self._counts.append(int(n[0]))
        return list(self._counts)

    def write_keys(self, peer: int, ids: Any, groups: Any, occurrences: Any = None) -> None:
        """Write the keys of a peer into buffers of uint64, uint16 and uint32 [n] (None: skipped).

        n is the peer's count of keys, as `number_keys` returned it.
        """
        n = self._count(peer)
        check(
            lib.tn_keys_write(
                self.handle,
                peer,
                items(ids, np.uint64, n, write=True),
                items(groups, np.uint16, n, write=True),
                ffi.NULL if occurrences is None else items(occurrences, np.uint32, n, write=True),
            )
        )

    def set_rows(
        self, rows: Sequence[Any], waits: Sequence[Any] | None = None, training: bool = True
    ) -> None:
        """Take the rows of all peers' keys: rows[peer] is float32 [n, table.read_floats].

        waits[peer] is uint32 [n]; None, there or as a whole: no occurrence waits. Those that wait
        read zeros and take no gradient. Without `training` only `gather` may follow. The rows are
        read where they are, by each `gather`; they are kept alive until the next `number_keys`.
        Raises ValueError for waits above the key's occurrences, and when called twice.
        """
        if len(rows) != len(self._counts):
            raise ValueError(f"expected rows of {len(self._counts)} peers. Received: {len(rows)}")
        if waits is not None and len(waits) != len(rows):
            raise ValueError(f"expected waits of {len(rows)} peers. Received: {len(waits)}")
        width = self.table.read_floats
        pointers = [
            items(array, np.float32, n * width) for array, n in zip(rows, self._counts, strict=True)
        ]
        waiting: Any = ffi.NULL
        if waits is not None:
            arrays = [
                ffi.NULL if array is None else items(array, np.uint32, n)
                for array, n in zip(waits, self._counts, strict=True)
            ]
            waiting = ffi.new("const uint32_t *[]", arrays)
        check(
            lib.tn_keys_set_rows(
                self.handle, ffi.new("const float *[]", pointers), waiting, training
            )
        )
        self._rows = pointers

    def write_sums(self, peer: int, sums: Any) -> None:
        """After `accumulate`: write the summed gradients of a peer's keys, [n, table.weights]."""
        size = self._count(peer) * self.table.weights
        check(lib.tn_keys_sums(self.handle, peer, items(sums, np.float32, size, write=True)))

    def write_shows(self, peer: int, counts: Any) -> None:
        """After `count`: write show and click of a peer's keys in this batch, float32 [n, 2].

        Occurrences that wait for their key's admission are not counted.
        """
        size = 2 * self._count(peer)
        check(lib.tn_keys_shows(self.handle, peer, items(counts, np.float32, size, write=True)))

    def _count(self, peer: int) -> int:
        return _at(self._counts, peer, "peer")


@dataclass(frozen=True)
class RankKeys:
    """The keys that a rank has in its batch, as buffers: ids, groups; occurrences None: all 1."""

    ids: Any
    groups: Any
    occurrences: Any = None


class PullWorkspace:
    """Rows of a table for the keys that other processes have in their batches.

    `find`, then `read` and `write_waits` for each rank; then `push_sums` (and `push_shows`) of each
    rank in the order of the ranks, and `apply`. When rows of the table are removed in between, the
    calls after it raise ValueError. One batch at a time per table, as for `Workspace`.
    """

    def __init__(self, table: SparseTable) -> None:
        """Raises ValueError for a table without groups."""
        self.table = table
        self._counts: list[int] = []
        slot = (min(table.groups, default=0), lib.TN_POOL_SUM, 0, 0)  # any: it is not looked at
        out = ffi.new("tn_batch **")
        check(lib.tn_batch_new(table.handle, ffi.new("tn_slot[]", [slot]), 1, out))
        self.handle = ffi.gc(out[0], lib.tn_batch_free)

    def find(self, ranks: Sequence[RankKeys], insert: bool) -> list[int]:
        """Find the rows of the keys of 1 to 64 ranks, and return how many keys each rank has.

        With `insert` missing keys get rows, in the order of the ranks and of their keys, once they
        are admitted; without, nothing is written, and only `read` may follow. A key may be in the
        lists of several ranks, or twice in one: it has one row. Raises ValueError, with nothing
        changed, for keys of shards that the table does not own (`NotOwnedError`), for groups that
        it lacks, and for keys without an occurrence.
        """
        return self._find(ranks, lib.TN_PULL_INSERT if insert else lib.TN_PULL_READ)

    def find_again(self, keys: RankKeys) -> None:
        """Find the rows of keys that were pulled before, to push to them as rank 0 of 1.

        A key whose row was removed gets none, and what is pushed for it is ignored. Occurrences do
        not count for admission again. Raises as `find` does.
        """
        self._find([keys], lib.TN_PULL_AGAIN)

    def _find(self, ranks: Sequence[RankKeys], missing: int) -> list[int]:
        self._counts = []
        keys = ffi.new("tn_rank_keys[]", len(ranks))
        counts, kept = [], []
        for key, rank in zip(keys, ranks, strict=True):
            n = _length(rank.ids, np.uint64)
            kept += [items(rank.ids, np.uint64, n), items(rank.groups, np.uint16, n)]
            key.ids, key.groups, key.n = kept[-2], kept[-1], n
            if rank.occurrences is not None:
                kept.append(items(rank.occurrences, np.uint32, n))
                key.occurrences = kept[-1]
            counts.append(n)
        check(lib.tn_pull(self.handle, keys, len(ranks), missing))
        self._counts = counts
        return list(counts)

    @property
    def rows(self) -> int:
        """Distinct rows of the last inserting `find`."""
        return int(lib.tn_batch_rows(self.handle))

    def read(self, rank: int, rows: Any) -> None:
        """Write the rows of a rank's keys as they read, float32 [n, table.read_floats].

        Keys without a row read zeros.
        """
        size = self._count(rank) * self.table.read_floats
        check(lib.tn_pull_read(self.handle, rank, items(rows, np.float32, size, write=True)))

    def write_waits(self, rank: int, waits: Any) -> None:
        """Write how many occurrences of each of a rank's keys wait for its admission, uint32 [n].

        As many as the key has: it got no row.
        """
        n = self._count(rank)
        check(lib.tn_pull_waits(self.handle, rank, items(waits, np.uint32, n, write=True)))

    def push_sums(self, rank: int, sums: Any, weight: float = 1.0) -> None:
        """Add weight * sums, float32 [n, table.weights], to the gradients of a rank's rows.

        `weight`, from 0 to 1, is rounded to float32. Ranks push in ascending order, each at most
        once; sums of keys without a row are ignored. Raises NotFiniteError, with nothing added, for
        sums that are NaN, infinite or beyond 2^58 / ranks.
        """
        size = self._count(rank) * self.table.weights
        check(lib.tn_push_sums(self.handle, rank, items(sums, np.float32, size), weight))

    def push_shows(self, rank: int, counts: Any) -> None:
        """Add show and click of a rank's keys, float32 [n, 2], to what `apply` counts.

        Ranks push in ascending order, each at most once. Raises ValueError for counts that are
        negative or not finite, and in a table without shows.
        """
        size = 2 * self._count(rank)
        check(lib.tn_push_shows(self.handle, rank, items(counts, np.float32, size)))

    def exact_squares(self) -> ExactSum:
        """The sum of squares of the gradients that `apply` would use, clipped and with l2."""
        squares = ExactSum()
        check(lib.tn_norm_words(self.handle, squares.pointer()))
        return squares

    def apply(self, scale: float = 1.0) -> None:
        """Update every row that was found once with its reduced gradient * scale."""
        check(lib.tn_apply(self.handle, scale))

    def _count(self, rank: int) -> int:
        return _at(self._counts, rank, "rank")


def _at(counts: Sequence[int], index: int, what: str) -> int:
    if not 0 <= index < len(counts):
        raise ValueError(f"expected a {what} below {len(counts)}. Received: {index}")
    return counts[index]


def _length(array: Any, dtype: type[np.generic]) -> int:
    """Items of a buffer. Raises ValueError when it has a part of one."""
    size, item_bytes = memoryview(array).nbytes, np.dtype(dtype).itemsize
    if size % item_bytes:
        raise ValueError(f"expected a multiple of {item_bytes} bytes. Received: {size}")
    return size // item_bytes


def weighted_sum(out: NDArray[np.float32], values: Any, weight: float) -> None:
    """Out += weight * values, float32 of one size: each product and each sum rounded to float32.

    Called for the ranks in their order, into zeros, it reduces dense gradients as `push_sums` does
    those of rows.
    """
    to = pointer(out, np.float32, True)
    check(lib.tn_weighted_sum(to, items(values, np.float32, out.size), weight, out.size))


def to_bfloat16(values: NDArray[np.float32], out: NDArray[np.uint16]) -> None:
    """Round float32 to the nearest bfloat16, of two as near to the even one; their bits to `out`.

    Both are contiguous and have as many elements. Beyond the largest bfloat16 it is infinity; NaN
    remains NaN.
    """
    if values.size != out.size:
        raise ValueError(f"expected {values.size} elements. Received: {out.size}")
    lib.tn_to_bfloat16(pointer(values, np.float32), values.size, pointer(out, np.uint16, True))


def from_bfloat16(halves: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The float32 of the bits of bfloat16, exactly, in an array of the same shape."""
    values = np.empty(halves.shape, np.float32)
    lib.tn_from_bfloat16(pointer(halves, np.uint16), halves.size, output(values))
    return values
