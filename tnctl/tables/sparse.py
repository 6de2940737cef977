"""Sparse tables: (group, 64-bit id) -> a row of weights and optimizer state."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl._tables import ffi, lib
from tnctl.tables.memory import Pool, array_over, check, pointer

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
CVM_COLUMNS = 2
# A key that was removed, and the table's step then.
REMOVED_DTYPE = np.dtype([("id", "<u8"), ("group", "<u2"), ("step", "<u4")])
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


def cvm_columns(
    show: NDArray[np.float32], click: NDArray[np.float32], factors: NDArray[np.float32]
) -> NDArray[np.float32]:
    """What a table with `cvm` reads after the weights of records, float32 [n, 2].

    With s = show * factor and c = click * factor it is [s, ln(c + 1) - ln(s + 1)]; the factors are
    `decay_factors` of the days since each record's `changed`.
    """
    if not len(show) == len(click) == len(factors):
        raise ValueError(
            "expected a click and a factor for each show. Received: "
            f"{len(show)}, {len(click)} and {len(factors)}"
        )
    columns = np.empty((len(show), CVM_COLUMNS), np.float32)
    given = [np.ascontiguousarray(array) for array in (show, click, factors)]
    lib.tn_cvm_columns(
        *(pointer(array, np.float32) for array in given),
        len(show),
        pointer(columns, np.float32, True),
    )
    return columns


@dataclass(frozen=True)
class Life:
    """The rules by which rows of a group come and go; all off by default. See csrc/tnctl.h.

    A row is made by the occurrence number `admit_after` of its id, or by each one with
    `admit_probability`. `evict` removes rows not updated for more than `unseen_steps` or
    `unseen_days`, rows whose decayed show is below `show` (with `both`: only if they are unseen for
    too long as well), and rows whose (show - clicks) * nonclick + clicks * click is below
    `score`. `bound` removes the least valuable rows beyond `most_rows`. 0 turns a rule off.
    """

    admit_after: int = 1
    admit_probability: float = 1.0
    show_decay: float = 1.0
    unseen_steps: int = 0
    unseen_days: int = 0
    show: float = 0.0
    both: bool = False
    score: float = 0.0
    nonclick: float = 0.1
    click: float = 1.0
    most_rows: int = 0

    def fill(self, target: Any) -> None:
        """Write these rules into a tn_life."""
        for field in fields(self):
            setattr(target, field.name, getattr(self, field.name))


@dataclass(frozen=True)
class Figures:
    """A group's rows, and those ever made and removed; ids that wait for a row, estimated."""

    rows: int = 0
    admitted: int = 0
    waiting: int = 0
    evicted: int = 0


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
    table, as a dense variable trains. With `shows` rows keep show and click; with `cvm` too, two
    columns made of them are read after the weights of each `concat` segment, wherever rows are
    read, and gradients have them too (ignored). `sketch_bytes` are those of the counters of
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
        given = ffi.new("tn_segment[]", len(segments))
        for target, segment in zip(given, segments, strict=True):
            target.width, target.output = segment.width, OUTPUTS[segment.output]
            segment.optimizer.fill(target.optimizer)
        out = ffi.new("tn_table **")
        check(lib.tn_table_new(given, len(segments), seed, pool.handle, out))
        self.handle = ffi.gc(out[0], lib.tn_table_free)
        check(lib.tn_table_set_updates(self.handle, updates == "all"))
        check(lib.tn_table_set_shows(self.handle, shows, cvm))
        check(lib.tn_table_set_sketch(self.handle, sketch_bytes))

    def add_group(self, number: int, name: str, initial: Sequence[Initial]) -> None:
        """Declare a group; `initial` has one entry per segment."""
        if len(initial) != len(self.segments):
            raise ValueError(f"expected {len(self.segments)} initials. Received: {len(initial)}")
        given = ffi.new("tn_initial[]", [(INITIALS[i.kind], i.scale) for i in initial])
        check(lib.tn_table_add_group(self.handle, number, name.encode(), given))
        self._names[number] = name

    def set_learning_rate(self, segment: int, learning_rate: float) -> None:
        check(lib.tn_table_set_learning_rate(self.handle, segment, learning_rate))

    def set_step(self, step: int) -> None:
        """What rows record as `changed` from now on, and what decay counts."""
        check(lib.tn_table_set_step(self.handle, step))

    def set_life(self, group: int, life: Life) -> None:
        """Set the rules of a declared group.

        Raises ValueError for numbers out of their range, for rules by show or score in a table
        without `shows`, and for admission in a table without a sketch.
        """
        given = ffi.new("tn_life *")
        life.fill(given)
        check(lib.tn_table_set_life(self.handle, group, given))

    def set_days(self, days: Sequence[tuple[int, int]]) -> None:
        """Set all days: (day, first step) each, neither ever falling.

        A step is of the last day that began by then, and of the first day before that. The table
        reads rows at the last day.
        """
        numbers = np.array([day for day, _ in days], np.uint32)
        first_steps = np.array([step for _, step in days], np.uint32)
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
        """Remove the rows that their groups' rules name; how many went.

        Between steps: a batch under way needs a new `find` then. The memory is used for new rows.
        """
        return self._removed(lib.tn_evict)

    def bound(self) -> int:
        """Bring groups with more than `most_rows` down to 15/16 of it; how many rows went.

        The least valuable go: those of the lowest score, without shows the longest unseen. As
        `evict`, between steps.
        """
        return self._removed(lib.tn_bound)

    def _removed(self, remove: Any) -> int:
        evicted = ffi.new("uint64_t *")
        check(remove(self.handle, evicted))
        return int(evicted[0])

    def take_removed(self) -> NDArray[Any]:
        """The keys removed since the last call, of REMOVED_DTYPE, in (hash, group) order.

        Each once, with the table's step at its last removal, whether it came back since or not.
        """
        keys = np.empty(lib.tn_removed_keys(self.handle), REMOVED_DTYPE)
        buffer = ffi.from_buffer(keys, require_writable=True)
        n = ffi.new("uint64_t *")
        check(lib.tn_take_removed(self.handle, buffer, len(keys), n))
        return keys[: n[0]]

    def figures(self, group: int) -> Figures:
        out = ffi.new("tn_figures *")
        check(lib.tn_table_figures(self.handle, group, out))
        return Figures(out.rows, out.admitted, out.waiting, out.evicted)

    def set_figures(self, group: int, figures: Figures) -> None:
        """Go on from figures of a checkpoint: `waiting` and `evicted`, which the others follow."""
        given = ffi.new("tn_figures *")
        given.waiting, given.evicted = figures.waiting, figures.evicted
        check(lib.tn_table_set_figures(self.handle, group, given))

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
        """One encoded row: id, group, flags, changed, state and weights of each segment; shows."""
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
        if self.shows:
            parts += [("show", "<f4", (1,)), ("click", "<f4", (1,))]
        dtype: np.dtype[Any] = np.dtype(parts)
        assert dtype.itemsize == lib.tn_table_record_size(self.handle)
        return dtype

    def records(
        self,
        first: int = 0,
        last: int = LAST_HASH,
        at_a_time: int = RECORDS_AT_A_TIME,
        changed_from: int = 0,
    ) -> Iterator[NDArray[Any]]:
        """The rows with first <= hash <= last in (hash, group) order, `at_a_time` or fewer.

        With `changed_from` only those whose `changed` is that step or a later one. Each array is
        new: it stays valid after the next one is taken.
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

        Rows come in the order of their hash, which would crowd them in a part of a smaller one.
        """
        check(lib.tn_table_reserve(self.handle, rows))

    def insert_records(self, records: Any) -> None:
        """Insert rows as `records` gave them, a buffer; all are checked before any goes in.

        See `reserve` for many. Raises ValueError for records that are not in (hash, group) order,
        of a group that the table lacks, or of a key that it has.
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
        out = np.empty(len(ids), self.record_dtype)
        buffer = ffi.from_buffer(out, require_writable=True)
        check(lib.tn_fresh(self.handle, *_keys(groups, ids), buffer))
        return out

    def contains(self, groups: NDArray[np.uint16], ids: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which of the keys [n] have a row. Raises ValueError for a group that the table lacks."""
        found = np.empty(len(ids), np.uint8)
        check(
            lib.tn_table_contains(self.handle, *_keys(groups, ids), pointer(found, np.uint8, True))
        )
        return found.view(np.bool_)

    def hashes(self, groups: NDArray[np.uint16], ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The hash of each key [n], as `key_hashes` gives it."""
        return key_hashes(self._names, groups, ids)

    @property
    def sketch(self) -> NDArray[np.uint8]:
        """The counters of admission, to be saved and filled, while the table lives; may be none."""
        size = ffi.new("uint64_t *")
        address = lib.tn_table_sketch(self.handle, size)
        return array_over(address, size[0], np.uint8) if size[0] else np.empty(0, np.uint8)

    def has_cvm(self, segment: Segment) -> bool:
        """Whether two columns of show and click are read after a segment's weights."""
        return self.cvm and segment.output == "concat"

    def lookup(self, group: int, id_: int) -> NDArray[np.float32] | None:
        """What is read of a key, float32: all segments' weights, cvm's columns; or None."""
        widths = [one.width + CVM_COLUMNS * self.has_cvm(one) for one in self.segments]
        weights = np.zeros(sum(widths), np.float32)
        found = ffi.new("int *")
        check(
            lib.tn_table_lookup(self.handle, group, id_, pointer(weights, np.float32, True), found)
        )
        return weights if found[0] else None


def key_hashes(
    names: Mapping[int, str], groups: NDArray[np.uint16], ids: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """The hash of each key: what rows are ordered by (and then by group), uint64 [n].

    `names` are those of the groups by number: with the id, all that a hash depends on. Raises
    ValueError for a group without a name.
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
            *_keys(groups, ids),
            pointer(hashes, np.uint64, True),
        )
    )
    return hashes


def _keys(groups: NDArray[np.uint16], ids: NDArray[np.uint64]) -> tuple[Any, Any, int]:
    """Pointers to keys, of fields of records too, and how many they are."""
    if len(groups) != len(ids):
        raise ValueError(f"expected a group for each of {len(ids)} ids. Received: {len(groups)}")
    flat = (np.ascontiguousarray(groups), np.ascontiguousarray(ids))
    return pointer(flat[0], np.uint16), pointer(flat[1], np.uint64), len(ids)


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

    def count(self, clicks: NDArray[np.float32]) -> None:
        """Count the batch, found with `insert`: `apply` adds to each row's show and click.

        To show its occurrences; to click the clicks of those, `clicks` having one per example,
        float32 [examples], at least 0. Raises ValueError for others, and in a table without shows.
        """
        if len(clicks) != self._examples:
            raise ValueError(f"expected {self._examples} clicks. Received: {len(clicks)}")
        check(lib.tn_count(self.handle, pointer(clicks, np.float32)))

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
