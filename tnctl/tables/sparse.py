"""Sparse tables: (group, 64-bit id) -> a row of weights and optimizer state."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl._tables import ffi, lib
from tnctl.tables.memory import Pool, check, pointer

OPTIMIZERS = {"adagrad": lib.TN_ADAGRAD, "adam": lib.TN_ADAM}
OUTPUTS = {"concat": lib.TN_CONCAT, "sum": lib.TN_SUM}
INITIALS = {"zeros": lib.TN_ZEROS, "uniform": lib.TN_UNIFORM, "normal": lib.TN_NORMAL}
POOLINGS = {"sum": lib.TN_POOL_SUM, "mean": lib.TN_POOL_MEAN, "sqrtn": lib.TN_POOL_SQRTN}
LAST_HASH = 2**64 - 1
RECORDS_AT_A_TIME = 1 << 17


@dataclass(frozen=True)
class Optimizer:
    """An update rule: `adagrad` (per row; dense: per coordinate) or `adam`."""

    name: str
    learning_rate: float
    epsilon: float = 1e-8
    initial_accumulator: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.999

    def fill(self, target: Any) -> None:
        """Write this optimizer into a tn_optimizer."""
        target.kind = OPTIMIZERS[self.name]
        target.learning_rate = self.learning_rate
        target.epsilon = self.epsilon
        target.initial_accumulator = self.initial_accumulator
        target.beta1, target.beta2 = self.beta1, self.beta2

    def described(self) -> dict[str, Any]:
        """The name and the settings that this rule has."""
        settings = {
            "adagrad": ("learning_rate", "epsilon", "initial_accumulator"),
            "adam": ("learning_rate", "epsilon", "beta1", "beta2"),
        }
        return {"name": self.name, **{key: getattr(self, key) for key in settings[self.name]}}

    def state_names(self, width: int) -> list[tuple[str, str, int]]:
        """The floats of state of one row: (name, numpy dtype, count), in order."""
        if self.name == "adagrad":
            return [("accumulator", "<f4", 1)]
        return [("steps", "<u4", 1), ("m", "<f4", width), ("v", "<f4", width)]


@dataclass(frozen=True)
class Segment:
    """A part of every row: `concat` is pooled to each slot's columns, `sum` over all slots."""

    name: str
    width: int
    output: str
    optimizer: Optimizer


@dataclass(frozen=True)
class Initial:
    """How the weights of a new row start: `zeros`, `uniform` in ±scale, or `normal`."""

    kind: str
    scale: float


@dataclass(frozen=True)
class SlotPlan:
    """A slot of a batch: its group's number, its pooling, its first column in a concat output."""

    group: int
    pooling: str
    column: int


class SparseTable:
    """A growing table of rows with the same segments. All methods take the table's lock."""

    def __init__(self, segments: Sequence[Segment], seed: int, pool: Pool) -> None:
        self.segments = tuple(segments)
        self._pool = pool
        given = ffi.new("tn_segment[]", len(segments))
        for target, segment in zip(given, segments, strict=True):
            target.width, target.output = segment.width, OUTPUTS[segment.output]
            segment.optimizer.fill(target.optimizer)
        out = ffi.new("tn_table **")
        check(lib.tn_table_new(given, len(segments), seed, pool.handle, out))
        self.handle = ffi.gc(out[0], lib.tn_table_free)

    def add_group(self, number: int, name: str, initial: Sequence[Initial]) -> None:
        """Declare a group; `initial` has one entry per segment."""
        if len(initial) != len(self.segments):
            raise ValueError(f"expected {len(self.segments)} initials. Received: {len(initial)}")
        given = ffi.new("tn_initial[]", [(INITIALS[i.kind], i.scale) for i in initial])
        check(lib.tn_table_add_group(self.handle, number, name.encode(), given))

    def set_learning_rate(self, segment: int, learning_rate: float) -> None:
        check(lib.tn_table_set_learning_rate(self.handle, segment, learning_rate))

    def set_step(self, step: int) -> None:
        """What rows record as `changed` from now on."""
        check(lib.tn_table_set_step(self.handle, step))

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
    def record_dtype(self) -> np.dtype[Any]:
        """One encoded row: id, group, flags, changed, then state and weights of each segment."""
        fields: list[tuple[Any, ...]] = [
            ("id", "<u8"),
            ("group", "<u2"),
            ("flags", "<u2"),
            ("changed", "<u4"),
        ]
        for segment in self.segments:
            for name, kind, count in segment.optimizer.state_names(segment.width):
                fields.append((f"{segment.name}.{name}", kind, (count,)))
        fields += [(one.name, "<f4", (one.width,)) for one in self.segments]
        dtype: np.dtype[Any] = np.dtype(fields)
        assert dtype.itemsize == lib.tn_table_record_size(self.handle)
        return dtype

    def records(
        self, first: int = 0, last: int = LAST_HASH, at_a_time: int = RECORDS_AT_A_TIME
    ) -> Iterator[NDArray[Any]]:
        """The rows with first <= hash <= last in (hash, group) order, `at_a_time` or fewer.

        Each array is new: it stays valid after the next one is taken.
        """
        dtype = self.record_dtype
        written, following, more = (
            ffi.new(f"{kind} *") for kind in ("uint64_t", "uint64_t", "int")
        )
        more[0] = 1
        while more[0]:
            out = np.empty(at_a_time, dtype)
            buffer = ffi.from_buffer(out, require_writable=True)
            check(
                lib.tn_encode(self.handle, first, last, buffer, at_a_time, written, following, more)
            )
            first = following[0]
            if written[0]:
                yield out[: written[0]]

    def insert_records(self, records: Any) -> None:
        """Insert rows as `records` gave them, a buffer; all are checked before any goes in."""
        size = self.record_dtype.itemsize
        data = memoryview(records).cast("B")
        if data.nbytes % size:
            raise ValueError(f"expected records of {size} bytes. Received: {data.nbytes} bytes")
        check(lib.tn_decode(self.handle, ffi.from_buffer(data), data.nbytes // size))

    def lookup(self, group: int, id_: int) -> NDArray[np.float32] | None:
        """The weights of a key, all segments after each other, or None."""
        weights = np.zeros(sum(segment.width for segment in self.segments), np.float32)
        found = ffi.new("int *")
        check(
            lib.tn_table_lookup(self.handle, group, id_, pointer(weights, np.float32, True), found)
        )
        return weights if found[0] else None


class Batch:
    """A workspace for batches of the given slots; one batch at a time per table."""

    def __init__(self, table: SparseTable, slots: Sequence[SlotPlan]) -> None:
        self.table = table
        self._slots = len(slots)
        self._examples = 0
        given = ffi.new(
            "tn_slot[]", [(slot.group, POOLINGS[slot.pooling], slot.column) for slot in slots]
        )
        out = ffi.new("tn_batch **")
        check(lib.tn_batch_new(table.handle, given, len(slots), out))
        self.handle = ffi.gc(out[0], lib.tn_batch_free)

    def find(
        self, ids: NDArray[np.uint64], offsets: NDArray[np.uint32], examples: int, insert: bool
    ) -> None:
        """Look up `examples` x slots cells: cell c has ids[offsets[c]:offsets[c + 1]].

        With `insert`, missing ids get rows; without, they read zeros and nothing is written.
        """
        if len(offsets) != examples * self._slots + 1 or offsets[-1] != len(ids):
            raise ValueError(
                f"expected {examples * self._slots + 1} offsets that end at {len(ids)}. "
                f"Received: {len(offsets)} that end at {offsets[-1] if len(offsets) else None}"
            )
        check(
            lib.tn_find(
                self.handle, pointer(ids, np.uint64), pointer(offsets, np.uint32), examples, insert
            )
        )
        self._examples = examples

    @property
    def rows(self) -> int:
        """Distinct rows that the last inserting `find` met."""
        return int(lib.tn_batch_rows(self.handle))

    def gather(self, outputs: Sequence[NDArray[np.float32]], add: bool = False) -> None:
        """Pool the found rows into outputs[segment], float32 [examples or more, columns].

        A `sum` segment is added to what its output holds when `add` is true.
        """
        check(lib.tn_gather(self.handle, *self._matrices(outputs, write=True), add))

    def accumulate(self, gradients: Sequence[NDArray[np.float32]]) -> None:
        """Sum gradients, shaped as gather's outputs, per row. Raises NotFiniteError."""
        check(lib.tn_accumulate(self.handle, *self._matrices(gradients, write=False)))

    def apply(self) -> None:
        """Update every row of the batch once with its summed gradient."""
        check(lib.tn_apply(self.handle))

    def _matrices(self, arrays: Sequence[NDArray[np.float32]], write: bool) -> tuple[Any, Any]:
        if len(arrays) != len(self.table.segments):
            raise ValueError(f"expected {len(self.table.segments)} arrays. Received: {len(arrays)}")
        for array in arrays:
            if array.ndim != 2 or len(array) < self._examples:
                raise ValueError(f"expected [{self._examples}, columns]. Received: {array.shape}")
        pointers = [pointer(array, np.float32, write) for array in arrays]
        self._kept = pointers
        kind = "float *[]" if write else "const float *[]"
        return ffi.new(kind, pointers), ffi.new("uint32_t[]", [array.shape[1] for array in arrays])
