"""Sparse tables: (group, 64-bit id) -> a row of weights and optimizer state."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl._tables import ffi, lib
from tnctl.tables.memory import Pool, check, pointer

OPTIMIZERS = {
    "adagrad": lib.TN_ADAGRAD,
    "adam": lib.TN_ADAM,
    "sgd": lib.TN_SGD,
    "adagrad_coordinate": lib.TN_ADAGRAD_COORDINATE,
    "ftrl": lib.TN_FTRL,
    "tensornet_adagrad": lib.TN_TENSORNET_ADAGRAD,
    "tensornet_adam": lib.TN_TENSORNET_ADAM,
    "tensornet_ftrl": lib.TN_TENSORNET_FTRL,
}
# The settings of each, beside the learning rate and the extras.
SETTINGS: dict[str, tuple[str, ...]] = {
    "adagrad": ("epsilon", "initial_accumulator"),
    "adam": ("epsilon", "beta1", "beta2"),
    "sgd": ("momentum", "nesterov"),
    "adagrad_coordinate": ("epsilon", "initial_accumulator"),
    "ftrl": ("initial_accumulator", "l1", "l2", "beta"),
    "tensornet_adagrad": ("epsilon", "initial_accumulator", "beta1", "beta2"),
    "tensornet_adam": ("epsilon", "beta1", "beta2"),
    "tensornet_ftrl": ("l1", "l2", "beta"),
}
EXTRAS = ("l2", "decay", "clip", "bound", "max_norm")
UPDATES = ("touched", "all")
OUTPUTS = {"concat": lib.TN_CONCAT, "sum": lib.TN_SUM}
INITIALS = {"zeros": lib.TN_ZEROS, "uniform": lib.TN_UNIFORM, "normal": lib.TN_NORMAL}
POOLINGS = {"sum": lib.TN_POOL_SUM, "mean": lib.TN_POOL_MEAN, "sqrtn": lib.TN_POOL_SQRTN}
LAST_HASH = 2**64 - 1
RECORDS_AT_A_TIME = 1 << 17


@dataclass(frozen=True)
class Optimizer:
    """An update rule, of rows (one state per row or per weight) or of dense weights.

    `sgd` (with `momentum`, `nesterov`); `adagrad`, one accumulator per row, per weight when dense
    (Duchi et al. 2011); `adagrad_coordinate`, one per weight; `adam` (Kingma & Ba 2015, algorithm
    1, steps counted per row); `ftrl` (FTRL-proximal, McMahan et al. 2013, algorithm 1);
    `tensornet_adagrad`, `tensornet_adam` and `tensornet_ftrl` with TensorNet's formulas (its
    mom_decay_rate is `beta1`, its grad_decay_rate `beta2`; its FTRL is not for dense weights).

    The extras, off at 0: `l2` adds l2*w to the gradient of what is updated (FTRL has its own),
    `clip` bounds each summed gradient, `bound` each weight, `max_norm` the L2 norm of a row's
    segment (not dense). `decay` takes learning_rate*decay of every weight at every step: of rows
    by the learning rate that the table was made with, of dense weights (AdamW) by today's. The
    formulas, and the order of all this, stand in csrc/tnctl.h.
    """

    name: str
    learning_rate: float
    epsilon: float = 1e-8
    initial_accumulator: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.999
    momentum: float = 0.0
    nesterov: bool = False
    l1: float = 0.0
    beta: float = 1.0
    l2: float = 0.0
    decay: float = 0.0
    clip: float = 0.0
    bound: float = 0.0
    max_norm: float = 0.0

    def fill(self, target: Any) -> None:
        """Write this optimizer into a tn_optimizer."""
        target.kind = OPTIMIZERS[self.name]
        for field in fields(self)[1:]:
            setattr(target, field.name, getattr(self, field.name))

    def described(self) -> dict[str, Any]:
        """The name and the settings that this rule has; extras only where they are on."""
        settings = ["learning_rate", *SETTINGS[self.name]]
        settings += [key for key in EXTRAS if getattr(self, key) and key not in settings]
        return {"name": self.name, **{key: getattr(self, key) for key in settings}}

    def state_names(self, width: int) -> list[tuple[str, str, int]]:
        """The floats of state of one row: (name, numpy dtype, count), in order."""
        if self.name in ("adagrad", "tensornet_adagrad"):
            return [("accumulator", "<f4", 1)]
        steps = [("steps", "<u4", 1)] if self.name == "adam" else []
        return steps + [(name, "<f4", width) for name in self.dense_state_names()]

    def dense_state_names(self) -> list[str]:
        """The states of dense weights, each one float per weight, in order."""
        if self.name == "sgd":
            return ["m"] if self.momentum > 0 else []
        return {
            "adagrad": ["accumulator"],
            "adagrad_coordinate": ["accumulator"],
            "ftrl": ["n", "z"],
            "tensornet_ftrl": ["n", "z"],
            "tensornet_adagrad": ["d", "accumulator", "m"],
        }.get(self.name, ["m", "v"])

    @property
    def decay_factor(self) -> float:
        """What a step of the table leaves of a weight of a row: f, as `decay_factors` takes it."""
        return 1 - float(np.float32(self.learning_rate)) * float(np.float32(self.decay))


def decay_factors(f: float, counts: NDArray[np.uint32]) -> NDArray[np.float32]:
    """Powers of f, one per count (steps since a row's `changed`), float32 [n], as tables read.

    A weight of a record, multiplied by its factor in float32, is what `lookup` and `gather` give.
    """
    factors = np.empty(len(counts), np.float32)
    lib.tn_decay_factors(
        f, pointer(counts, np.uint32), len(counts), pointer(factors, np.float32, True)
    )
    return factors


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
    """A slot of a batch: its group's number, its pooling, its first column in a concat output.

    A slot set `apart` has its columns in the matrix apart; a sequence is such slots, one a place.
    """

    group: int
    pooling: str
    column: int
    apart: bool = False


class SparseTable:
    """A growing table of rows with the same segments. All methods take the table's lock.

    `updates` says which rows a step updates: those of the batch (`touched`), or `all` of the
    table, as a dense variable trains.
    """

    def __init__(
        self, segments: Sequence[Segment], seed: int, pool: Pool, updates: str = "touched"
    ) -> None:
        self.segments = tuple(segments)
        if updates not in UPDATES:
            raise ValueError(f"expected updates to be one of {UPDATES}. Received: {updates!r}")
        self._pool = pool
        given = ffi.new("tn_segment[]", len(segments))
        for target, segment in zip(given, segments, strict=True):
            target.width, target.output = segment.width, OUTPUTS[segment.output]
            segment.optimizer.fill(target.optimizer)
        out = ffi.new("tn_table **")
        check(lib.tn_table_new(given, len(segments), seed, pool.handle, out))
        self.handle = ffi.gc(out[0], lib.tn_table_free)
        check(lib.tn_table_set_updates(self.handle, updates == "all"))

    def add_group(self, number: int, name: str, initial: Sequence[Initial]) -> None:
        """Declare a group; `initial` has one entry per segment."""
        if len(initial) != len(self.segments):
            raise ValueError(f"expected {len(self.segments)} initials. Received: {len(initial)}")
        given = ffi.new("tn_initial[]", [(INITIALS[i.kind], i.scale) for i in initial])
        check(lib.tn_table_add_group(self.handle, number, name.encode(), given))

    def set_learning_rate(self, segment: int, learning_rate: float) -> None:
        check(lib.tn_table_set_learning_rate(self.handle, segment, learning_rate))

    def set_step(self, step: int) -> None:
        """What rows record as `changed` from now on, and what decay counts."""
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
    def stride(self) -> int:
        """Bytes of a row in memory."""
        return int(lib.tn_table_stride(self.handle))

    @property
    def record_dtype(self) -> np.dtype[Any]:
        """One encoded row: id, group, flags, changed, then state and weights of each segment."""
        parts: list[tuple[Any, ...]] = [
            ("id", "<u8"),
            ("group", "<u2"),
            ("flags", "<u2"),
            ("changed", "<u4"),
        ]
        for segment in self.segments:
            for name, kind, count in segment.optimizer.state_names(segment.width):
                parts.append((f"{segment.name}.{name}", kind, (count,)))
        parts += [(one.name, "<f4", (one.width,)) for one in self.segments]
        dtype: np.dtype[Any] = np.dtype(parts)
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
        self._apart = any(slot.apart for slot in slots)
        given = ffi.new(
            "tn_slot[]",
            [(slot.group, POOLINGS[slot.pooling], slot.apart, slot.column) for slot in slots],
        )
        out = ffi.new("tn_batch **")
        check(lib.tn_batch_new(table.handle, given, len(slots), out))
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

        With `insert`, missing ids get rows; without, they read zeros and nothing is written.
        `weights` (float32, one per id, copied) weigh the pooling: a sum is that of weight x row, a
        mean that over the sum of the weights, a sqrtn over the root of the sum of their squares.
        Where that is not above 0 a cell is zeros, and no gradient goes through it. Raises
        ValueError for weights that are NaN, infinite or beyond 2^58.
        """
        if len(offsets) != examples * self._slots + 1 or offsets[-1] != len(ids):
            raise ValueError(
                f"expected {examples * self._slots + 1} offsets that end at {len(ids)}. "
                f"Received: {len(offsets)} that end at {offsets[-1] if len(offsets) else None}"
            )
        if weights is not None and len(weights) != len(ids):
            raise ValueError(f"expected {len(ids)} weights. Received: {len(weights)}")
        check(
            lib.tn_find(
                self.handle,
                pointer(ids, np.uint64),
                pointer(offsets, np.uint32),
                ffi.NULL if weights is None else pointer(weights, np.float32),
                examples,
                insert,
            )
        )
        self._examples = examples

    @property
    def rows(self) -> int:
        """Distinct rows that the last inserting `find` met."""
        return int(lib.tn_batch_rows(self.handle))

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
        given = list(arrays)
        if self._apart:
            if apart is None:
                raise ValueError("expected a matrix for the slots set apart. Received: none")
            given += [apart] * segments
        for array in given:
            if array.ndim != 2 or len(array) < self._examples:
                raise ValueError(f"expected [{self._examples}, columns]. Received: {array.shape}")
        self._kept = [pointer(array, np.float32, write) for array in given]
        kind = "float *[]" if write else "const float *[]"
        pointers = ffi.new(kind, self._kept)
        strides = ffi.new("uint32_t[]", [array.shape[1] for array in given])
        if not self._apart:
            return pointers, strides, ffi.NULL, ffi.NULL
        # Beside views into an array, keep the array itself: C reads both halves of it.
        self._kept += [pointers, strides]
        return pointers, strides, pointers + segments, strides + segments
