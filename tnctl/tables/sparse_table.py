"""Sparse tables: (group, 64-bit id) -> a row of weights and optimizer state.

A batch of examples goes through a workspace: find, gather, accumulate, apply.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl._tables import ffi, lib
from tnctl.tables.memory import Pool, array_over, check, output, pointer
from tnctl.tables.plans import (
    ALL_SHARDS,
    UPDATES,
    Figures,
    InitialWeights,
    RowRules,
    Segment,
    Shards,
    SlotPlan,
)
from tnctl.tables.records import (
    CVM_COLUMNS,
    REMOVED_DTYPE,
    days_of_clock,
    key_hashes,
    key_pointers,
    record_dtype,
)

OUTPUTS = {"concat": lib.TN_CONCAT, "sum": lib.TN_SUM}
INITIALS = {"zeros": lib.TN_ZEROS, "uniform": lib.TN_UNIFORM, "normal": lib.TN_NORMAL}
LAST_HASH = 2**64 - 1
RECORDS_AT_A_TIME = 1 << 17


class SparseTable:
    """A growing table of rows with the same segments. All methods take the table's lock.

    The key of a row is (group, id): the slots of a share group have one group, whose number is part
    of the key. The hash of a key is made from the group's name instead, so it is the same in every
    table (see `key_hashes`).

    `updates` says which rows a step updates: the rows of the batch (`touched`), or `all` of the
    table, as a dense variable trains. With `shows` rows keep show and click; with `cvm` too, two
    columns made of them are read after the weights of each `concat` segment, wherever rows are
    read, and gradients have them too (ignored). `sketch_bytes` is the size of the counters of
    admission, which groups with such a rule need.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        seed: int,
        pool: Pool,
        updates: str = "touched",
        shows: bool = False,
        cvm: bool = False,
        sketch_bytes: int = 0,
    ) -> None:
        self.segments = tuple(segments)
        if updates not in UPDATES:
            raise ValueError(f"expected updates to be one of {UPDATES}. Received: {updates!r}")
        self.shows, self.cvm = shows, cvm
        self._pool = pool
        self._names: dict[int, str] = {}  # of groups
        self._shards = ALL_SHARDS
        parts, out = ffi.new("tn_segment[]", len(segments)), ffi.new("tn_table **")
        for part, segment in zip(parts, segments, strict=True):
            part.width, part.output = segment.width, OUTPUTS[segment.output]
            segment.optimizer.fill(part.optimizer)
        check(lib.tn_table_new(parts, len(segments), seed, pool.handle, out))
        self.handle = ffi.gc(out[0], lib.tn_table_free)
        check(lib.tn_table_set_updates(self.handle, updates == "all"))
        check(lib.tn_table_set_shows(self.handle, shows, cvm))
        check(lib.tn_table_set_sketch(self.handle, sketch_bytes))

    def add_group(self, number: int, name: str, initial: Sequence[InitialWeights]) -> None:
        """Declare a share group, before any row of it: its number in keys, and its name in hashes.

        `initial` has one entry per segment: how the weights of new rows start. Raises ValueError
        for another length, and for a number that is declared already.
        """
        if len(initial) != len(self.segments):
            raise ValueError(f"expected {len(self.segments)} initials. Received: {len(initial)}")
        initials = ffi.new("tn_initial[]", [(INITIALS[i.kind], i.scale) for i in initial])
        check(lib.tn_table_add_group(self.handle, number, name.encode(), initials))
        self._names[number] = name

    def set_learning_rate(self, segment: int, learning_rate: float) -> None:
        check(lib.tn_table_set_learning_rate(self.handle, segment, learning_rate))

    def set_step(self, step: int) -> None:
        """What rows record as `changed` from now on, and what decay counts."""
        check(lib.tn_table_set_step(self.handle, step))

    def set_counting(self, counting: bool) -> None:
        """Whether occurrences count, for admission and for show and click; at first they do.

        Not in later passes over the same examples: then only ids that were admitted get rows, and
        show and click stay.
        """
        check(lib.tn_table_set_counting(self.handle, counting))

    def set_inserting(self, inserting: bool) -> None:
        """Whether a `find` with `insert` gives rows to keys that have none; at first it does.

        Else the rows that are there are trained; other keys read zeros and get no gradient.
        """
        check(lib.tn_table_set_inserting(self.handle, inserting))

    def set_shards(self, first: int, count: int) -> None:
        """Own `count` of the 64 shards, from `first` on, in a table that has had no row yet.

        Keys of other shards are refused with NotOwnedError where rows are found or inserted. Raises
        ValueError for a range that is empty or leaves the 64, and for a table with rows.
        """
        check(lib.tn_table_set_shards(self.handle, first, count))
        self._shards = Shards(first, count)

    @property
    def shards(self) -> Shards:
        """The shards that this table owns: all, or as `set_shards` says."""
        return self._shards

    def set_life(self, group: int, life: RowRules) -> None:
        """Set the rules of a declared group.

        Raises ValueError for numbers out of their range, for rules by show or score in a table
        without `shows`, and for admission in a table without a sketch.
        """
        rules = ffi.new("tn_life *")
        life.fill(rules)
        check(lib.tn_table_set_life(self.handle, group, rules))

    def set_days(self, days: Sequence[tuple[int, int]]) -> None:
        """Set all days: (day, first step) each, neither lower than the one before it.

        `days_of_steps` says which day a step is of. The table reads rows at the last day.
        """
        numbers, first_steps = days_of_clock(days)
        check(
            lib.tn_table_set_days(
                self.handle,
                pointer(numbers, np.uint32),
                pointer(first_steps, np.uint32),
                len(days),
            )
        )

    @property
    def day(self) -> int:
        """The last of the days, or 0 without days."""
        return int(lib.tn_table_day(self.handle))

    def evict(self) -> int:
        """Remove the rows that their groups' rules name; returns how many were removed.

        Between steps: the current batch needs a new `find` then. The memory is used for new rows.
        """
        return self._removed(lib.tn_evict)

    def bound(self) -> int:
        """Reduce groups with more than `most_rows` to 15/16 of it; returns how many were removed.

        The least valuable rows are removed: the lowest scores, without shows the longest unseen.
        Between steps, as `evict`.
        """
        return self._removed(lib.tn_evict_surplus)

    def _removed(self, remove: Any) -> int:
        evicted = ffi.new("uint64_t *")
        check(remove(self.handle, evicted))
        return int(evicted[0])

    def take_removed(self) -> NDArray[Any]:
        """The n keys removed since the last call, REMOVED_DTYPE [n], in (hash, group) order.

        Each once, with the table's step at its last removal, even if it has a row again.
        """
        keys = np.empty(lib.tn_removed_keys(self.handle), REMOVED_DTYPE)
        buffer = ffi.from_buffer(keys, require_writable=True)
        n = ffi.new("uint64_t *")
        check(lib.tn_take_removed(self.handle, buffer, len(keys), n))
        return keys[: n[0]]

    def figures(self, group: int) -> Figures:
        out = self._figures(group)
        return Figures(out.rows, out.admitted, max(out.waiting, 0), out.evicted)

    def _figures(self, group: int) -> Any:
        out = ffi.new("tn_figures *")
        check(lib.tn_table_figures(self.handle, group, out))
        return out

    def waiting(self, group: int) -> int:
        """The estimate of the ids that wait for a row, below 0 where it is too low.

        The estimates of the parts of a table are to be added before the sum is raised to 0.
        """
        return int(self._figures(group).waiting)

    def set_figures(self, group: int, figures: Figures) -> None:
        """Set `waiting` and `evicted`, as a checkpoint has them; the other figures follow."""
        values = ffi.new("tn_figures *", {"waiting": figures.waiting, "evicted": figures.evicted})
        check(lib.tn_table_set_figures(self.handle, group, values))

    @property
    def rows(self) -> int:
        return int(lib.tn_table_rows(self.handle))

    def group_rows(self, number: int) -> int:
        return int(lib.tn_table_group_rows(self.handle, number))

    @property
    def index_bytes(self) -> int:
        return int(lib.tn_table_index_bytes(self.handle))

    @property
    def row_bytes(self) -> int:
        return int(lib.tn_table_row_bytes(self.handle))

    @property
    def stride(self) -> int:
        """Bytes of a row in memory."""
        return int(lib.tn_table_stride(self.handle))

    @property
    def groups(self) -> list[int]:
        """The numbers of the declared groups."""
        return list(self._names)

    @property
    def weights(self) -> int:
        """Weights of a row, of all segments."""
        return sum(segment.width for segment in self.segments)

    @property
    def read_floats(self) -> int:
        """What is read of a row: the weights of all segments, and the columns of cvm."""
        return sum(s.width + CVM_COLUMNS * self.has_cvm(s) for s in self.segments)

    @property
    def record_dtype(self) -> np.dtype[Any]:
        """The dtype of one encoded row (tnctl.tables.record_dtype)."""
        dtype = record_dtype(self.segments, self.shows)
        assert dtype.itemsize == lib.tn_table_record_size(self.handle)
        return dtype

    def records(
        self,
        first: int = 0,
        last: int = LAST_HASH,
        at_a_time: int = RECORDS_AT_A_TIME,
        changed_from: int = 0,
    ) -> Iterator[NDArray[Any]]:
        """The rows with first <= hash <= last in (hash, group) order: arrays of `record_dtype`.

        Each has at most `at_a_time` records. With `changed_from` only rows whose `changed` is that
        step or a later one. Each array is new: it stays valid after the next one is taken.
        """
        dtype = self.record_dtype
        written, following = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        more = ffi.new("int *", 1)
        while more[0]:
            out = np.empty(at_a_time, dtype)
            buffer = ffi.from_buffer(out, require_writable=True)
            check(
                lib.tn_encode(
                    self.handle,
                    first,
                    last,
                    changed_from,
                    buffer,
                    at_a_time,
                    written,
                    following,
                    more,
                )
            )
            first = following[0]
            if written[0]:
                yield out[: written[0]]

    def reserve(self, rows: int) -> None:
        """Make the index as large as it will be with `rows` rows: call it before a load.

        Rows are loaded in the order of their hash, which would crowd them in a part of a smaller
        index.
        """
        check(lib.tn_table_reserve(self.handle, rows))

    def insert_records(self, records: Any) -> None:
        """Insert a buffer of records, as `records` yields them; all are checked before any goes in.

        Call `reserve` before many. Raises ValueError for records that are not in (hash, group)
        order, of a group that the table lacks, or of a key that it has.
        """
        size = self.record_dtype.itemsize
        data = memoryview(records).cast("B")
        if data.nbytes % size:
            raise ValueError(f"expected records of {size} bytes. Received: {data.nbytes} bytes")
        check(lib.tn_decode(self.handle, ffi.from_buffer(data), data.nbytes // size))

    def fresh_records(self, groups: NDArray[np.uint16], ids: NDArray[np.uint64]) -> NDArray[Any]:
        """The records, of `record_dtype` [n], that keys [n] would have if inserted at this step.

        Nothing is inserted. Raises ValueError for a group that the table lacks.
        """
        records = np.empty(len(ids), self.record_dtype)
        buffer = ffi.from_buffer(records, require_writable=True)
        check(lib.tn_initial_records(self.handle, *key_pointers(groups, ids), buffer))
        return records

    def owned(self, groups: NDArray[np.uint16], ids: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which of n keys are of shards that this table owns, bool [n]."""
        if self._shards == ALL_SHARDS:
            return np.ones(len(ids), np.bool_)
        first, last = self._shards.hashes
        hashes = self.hashes(groups, ids)
        return (hashes >= np.uint64(first)) & (hashes <= np.uint64(last))

    def contains(self, groups: NDArray[np.uint16], ids: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which of n keys have a row, bool [n]. Raises ValueError for a group that is not there."""
        has_row = np.empty(len(ids), np.uint8)
        keys = key_pointers(groups, ids)
        check(lib.tn_table_contains(self.handle, *keys, output(has_row)))
        return has_row.view(np.bool_)

    def hashes(self, groups: NDArray[np.uint16], ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The hash of each of n keys, uint64 [n], as `key_hashes` computes it."""
        return key_hashes(self._names, groups, ids)

    @property
    def sketch(self) -> NDArray[np.uint8]:
        """The counters of admission, uint8 [n], to be saved or filled; n is 0 without a sketch.

        It is the table's own memory, valid as long as the table lives.
        """
        size = ffi.new("uint64_t *")
        address = lib.tn_table_sketch(self.handle, size)
        return array_over(address, size[0], np.uint8) if size[0] else np.empty(0, np.uint8)

    def has_cvm(self, segment: Segment) -> bool:
        """Whether two columns of show and click are read after a segment's weights."""
        return self.cvm and segment.output == "concat"

    def lookup(self, group: int, id_: int) -> NDArray[np.float32] | None:
        """What is read of a key, float32 [columns]: all weights and cvm columns; None: no row."""
        weights = np.zeros(self.read_floats, np.float32)
        has_row, to = ffi.new("int *"), output(weights)
        check(lib.tn_table_lookup(self.handle, group, id_, to, has_row))
        return weights if has_row[0] else None


POOLINGS = {"sum": lib.TN_POOL_SUM, "mean": lib.TN_POOL_MEAN, "sqrtn": lib.TN_POOL_SQRTN}


class Workspace:
    """Memory for batches of the given slots, one after the other; one batch at a time per table."""

    def __init__(self, table: SparseTable, slots: Sequence[SlotPlan]) -> None:
        self.table = table
        self._slots = len(slots)
        self._examples = 0
        self._apart = any(slot.apart for slot in slots)
        plans = [(slot.group, POOLINGS[slot.pooling], slot.apart, slot.column) for slot in slots]
        out = ffi.new("tn_batch **")
        check(lib.tn_batch_new(table.handle, ffi.new("tn_slot[]", plans), len(slots), out))
        self.handle = ffi.gc(out[0], lib.tn_batch_free)

    def find(
        self,
        ids: NDArray[np.uint64],
        offsets: NDArray[np.uint32],
        examples: int,
        insert: bool,
        weights: NDArray[np.float32] | None = None,
    ) -> None:
        """Look up `examples` x slots cells: cell c has ids[offsets[c]:offsets[c + 1]].

        ids are uint64 [n], offsets uint32 [cells + 1]. With `insert`, missing ids get rows;
        without, they read zeros and nothing is written. `weights` (float32 [n], copied) weigh the
        pooling: `sum` is the sum of weight x row, `mean` divides it by the sum of the weights,
        `sqrtn` by the root of the sum of their squares. Where this divisor is not above 0 the cell
        is zeros and gets no gradient. Raises ValueError for weights that are NaN, infinite or
        beyond 2^58.
        """
        cells = self._cells(ids, offsets, examples, weights)
        check(lib.tn_find(self.handle, *cells, examples, insert))
        self._examples = examples

    def _cells(
        self,
        ids: NDArray[np.uint64],
        offsets: NDArray[np.uint32],
        examples: int,
        weights: NDArray[np.float32] | None,
    ) -> tuple[Any, Any, Any]:
        """Pointers to the ids, offsets and weights of a batch, whose lengths agree."""
        if len(offsets) != examples * self._slots + 1 or offsets[-1] != len(ids):
            raise ValueError(
                f"expected {examples * self._slots + 1} offsets that end at {len(ids)}. "
                f"Received: {len(offsets)} that end at {offsets[-1] if len(offsets) else None}"
            )
        if weights is not None and len(weights) != len(ids):
            raise ValueError(f"expected {len(ids)} weights. Received: {len(weights)}")
        return (
            pointer(ids, np.uint64),
            pointer(offsets, np.uint32),
            ffi.NULL if weights is None else pointer(weights, np.float32),
        )

    @property
    def rows(self) -> int:
        """Distinct rows of the last inserting `find`."""
        return int(lib.tn_batch_rows(self.handle))

    def leave_out(self, clicks: NDArray[np.float32]) -> None:
        """Leave an example's own clicks, float32 [examples], out of what `gather` reads of it.

        After a `find` with `insert`, in a table with cvm. It matters where the table does not count
        (`SparseTable.set_counting`), for then the examples were counted before: what they added
        themselves is missing in the columns of cvm that they read. Raises as `count` does.
        """
        check(lib.tn_leave_out(self.handle, self._clicks(clicks)))

    def gather(
        self,
        outputs: Sequence[NDArray[np.float32]],
        apart: NDArray[np.float32] | None = None,
        add: bool = False,
    ) -> None:
        """Pool the found rows into outputs[segment], float32 [examples or more, columns].

        The `concat` values of slots set apart go to `apart`, float32 [examples or more, columns],
        which all segments share; without such slots nothing is done to it. A `sum` segment is
        added to what its output holds when `add` is true.
        """
        given = self._matrices(outputs, apart, write=True)
        check(lib.tn_gather(self.handle, *given, add))

    def accumulate(
        self,
        gradients: Sequence[NDArray[np.float32]],
        apart: NDArray[np.float32] | None = None,
    ) -> None:
        """Sum gradients, shaped as gather's outputs, per row. Raises NotFiniteError."""
        check(lib.tn_accumulate(self.handle, *self._matrices(gradients, apart, write=False)))

    def count(self, clicks: NDArray[np.float32]) -> None:
        """Count the batch, found with `insert`: `apply` adds to each row's show and click.

        It adds the row's occurrences to show, and to click the sum of their examples' clicks,
        float32 [examples], at least 0. Raises ValueError for others, and in a table without shows.
        """
        check(lib.tn_count(self.handle, self._clicks(clicks)))

    def _clicks(self, clicks: NDArray[np.float32]) -> Any:
        if len(clicks) != self._examples:
            raise ValueError(f"expected {self._examples} clicks. Received: {len(clicks)}")
        return pointer(clicks, np.float32)

    def squares(self) -> float:
        """The sum of squares of the gradients that `apply` would use, clipped and with l2."""
        squares = ffi.new("double *")
        check(lib.tn_norm(self.handle, squares))
        return float(squares[0])

    def apply(self, scale: float = 1.0) -> None:
        """Update every row of the batch, or of the table, once with its summed gradient * scale."""
        check(lib.tn_apply(self.handle, scale))

    def _matrices(
        self,
        arrays: Sequence[NDArray[np.float32]],
        apart: NDArray[np.float32] | None,
        write: bool,
    ) -> tuple[Any, Any, Any, Any]:
        """Pointers and strides of the segments' arrays, then of those set apart."""
        segments = len(self.table.segments)
        if len(arrays) != segments:
            raise ValueError(f"expected {segments} arrays. Received: {len(arrays)}")
        matrices = list(arrays)
        if self._apart:
            if apart is None:
                raise ValueError("expected a matrix for the slots set apart. Received: none")
            matrices += [apart] * segments
        for array in matrices:
            if array.ndim != 2 or len(array) < self._examples:
                raise ValueError(f"expected [{self._examples}, columns]. Received: {array.shape}")
        self._kept = [pointer(array, np.float32, write) for array in matrices]
        kind = "float *[]" if write else "const float *[]"
        pointers = ffi.new(kind, self._kept)
        strides = ffi.new("uint32_t[]", [array.shape[1] for array in matrices])
        if not self._apart:
            return pointers, strides, ffi.NULL, ffi.NULL
        # Beside views into an array, keep the array itself: C reads both halves of it.
        self._kept += [pointers, strides]
        return pointers, strides, pointers + segments, strides + segments
