"""TensorNet's tables as the conf's: which weights of its rows each has, and their rows as records.

The tables of a row are joined by its sign. The rows are first parted by the hashes of their keys,
so that a part fits into memory.
"""

import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl import files
from tnctl.errors import Failure, UserError, did_you_mean, quoted
from tnctl.model.layout import LINEAR, Layout, TableLayout, segments
from tnctl.schema import Conf, Slot
from tnctl.tables import Segment, SparseTable, key_hashes
from tnctl.tables.columns import group_salt, mix64
from tnctl.tensornet.table_files import (
    LONGEST_AGE,
    RULES,
    Described,
    RowForm,
    Rule,
    SourceTable,
)

GIVEN = re.compile(r"([^:,]+):([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)?)")
BYTES_PER_PART = 64 << 20
MOST_PARTS = 256  # as many files are open at a time
INFLATED = 4  # bytes of rows for each stored byte, about


@dataclass(frozen=True)
class Weights:
    """The weights of a share group that a table of TensorNet has: a segment of its rows.

    `table_index` is the table's in the layout, `group_index` the group's in the table.
    """

    table_index: int
    group: str
    group_index: int
    segment: Segment

    @property
    def name(self) -> str:
        """As `tables=` and messages have it."""
        return f"{self.group}.{self.segment.name}"

    @property
    def form(self) -> RowForm:
        """The rows that TensorNet has of them. Raises UserError for another optimizer."""
        return RowForm(rule_of(self.segment, self.name), self.segment.width)


def rule_of(segment: Segment, name: str) -> Rule:
    """TensorNet's optimizer of a segment's state. Raises UserError when it has none."""
    optimizer = segment.optimizer.name
    for rule in RULES:
        if optimizer in rule.optimizers:
            return rule
    raise UserError(
        f"{name} is trained with {optimizer}, whose state TensorNet's tables do not have. Take "
        "adagrad, or with compat=tensornet adam or ftrl"
    )


def weights_of(conf: Conf, layout: Layout) -> list[Weights]:
    """All weights of rows that the layout of a conf has."""
    return [
        Weights(table_index, group, group_index, segment)
        for table_index, table in enumerate(layout.tables)
        for group, group_index in table.groups.items()
        for segment in segments(conf, table)
    ]


def named_weights(given: str, known: Sequence[Weights]) -> dict[str, Weights]:
    """The weights that `tables=NAME:GROUP.SEGMENT,…` gives to each table; without GROUP. the only.

    Raises UserError for weights that the conf does not have, and for names that come twice.
    """
    chosen: dict[str, Weights] = {}
    for entry in given.strip("[]{} ").split(","):
        match = GIVEN.fullmatch(entry.strip())
        if match is None:
            raise UserError(
                "tables= is NAME:GROUP.SEGMENT for each table, by commas, with the segments linear "
                f"and embedding. Received: {quoted(entry)}"
            )
        name, received = match[1], match[2]
        fitting = [w for w in known if received in (w.name, w.segment.name)]
        if len(fitting) != 1:
            raise UserError(
                f"tables={entry.strip()}: the conf has {len(fitting) or 'no'} {received}. "
                f"{did_you_mean(received, [weights.name for weights in known])}"
            )
        if name in chosen or fitting[0] in chosen.values():
            raise UserError(f"tables= has {name} or {fitting[0].name} twice. Received: {given}")
        chosen[name] = fitting[0]
    return chosen


def matched(sources: Mapping[str, Described], known: Sequence[Weights]) -> dict[str, Weights]:
    """The weights that each table of TensorNet has, where only one pairing is possible by width.

    Raises UserError otherwise.
    """
    pairs: dict[str, Weights] = {}
    for name, source in sources.items():
        fitting = [weights for weights in known if weights.segment.width == source.dim]
        if not fitting:
            raise UserError(
                f"table {name} has dim {source.dim}, and the rows of this conf have "
                f"{in_words(known)}. Give the slots that width (slots.NAME.width, "
                "embedding.width), or name the tables to import: tables=NAME:GROUP.SEGMENT"
            )
        if len(fitting) > 1:
            raise UserError(
                f"table {name} with dim {source.dim} may have {in_words(fitting)}: TensorNet's "
                "keys do not say which slot they are of. Say it with "
                f"tables={name}:{fitting[0].name},…, or give slots that share rows there one group"
            )
        if (taken := next((n for n, w in pairs.items() if w == fitting[0]), None)) is not None:
            raise UserError(
                f"tables {taken} and {name} both have dim {source.dim}, and this conf has only "
                f"{fitting[0].name} of that width. Say which it is: tables={name}:"
                f"{fitting[0].name}"
            )
        pairs[name] = fitting[0]
    return pairs


def in_words(weights: Sequence[Weights]) -> str:
    """Names and widths in a message."""
    return ", ".join(f"{entry.name} ({entry.segment.width})" for entry in weights) or "no weights"


def check(name: str, source: Described, weights: Weights, slots: Mapping[str, Slot]) -> None:
    """Raise UserError unless a table of TensorNet can be these weights of a conf with `slots`."""
    form, optimizer = weights.form, weights.segment.optimizer
    if source.dim != form.dim:
        raise UserError(
            f"table {name} has dim {source.dim}, and {weights.name} has the width {form.dim}. "
            "Give the slots of the group the same width"
        )
    if source.optimizer is not None and source.optimizer.lower() != form.rule.name.lower():
        raise UserError(
            f"table {name} was trained with {source.optimizer}, and {weights.name} is trained with "
            f"{optimizer.name}, whose state is another. Take the same optimizer; later "
            "warm.optimizer=fresh can change it"
        )
    if optimizer.decays:
        setting = "lazy_l2" if optimizer.lazy_l2 else "weight_decay"
        raise UserError(
            f"{weights.name} has a {setting}, which TensorNet does not have. Import without it, "
            "and begin another run from the result with warm.start"
        )
    for slot_name, slot in slots.items():
        if (slot.group or slot_name) == weights.group and slot.ids != "integer":
            raise UserError(
                f"slots.{slot_name}.ids is {slot.ids}, and TensorNet's signs are ids as they are "
                "given. Take ids=integer"
            )


# ---- Rows as records ----------------------------------------------------------------------


def parts_needed(stored_bytes: int) -> int:
    """How many parts a table is cut into whose files have `bytes` bytes: a power of two."""
    count = 1
    while count < MOST_PARTS and INFLATED * stored_bytes / count > BYTES_PER_PART:
        count *= 2
    return count


class PartedRows:
    """The rows of a table of TensorNet, with these weights, in `count` parts.

    Each part has an equal range of the hashes of the rows' keys.
    """

    def __init__(self, folder: Path, source: SourceTable, weights: Weights, count: int) -> None:
        self.source, self.weights, self.count = source, weights, count
        self._folder = folder
        self.rows = 0

    def write(self, blocks: Iterable[NDArray[Any]]) -> Generator[NDArray[Any], None, None]:
        """Write all rows, arrays [n] of the dtype, and yield each array when it is written."""
        shift = np.uint64(64 - (self.count.bit_length() - 1))
        salt = np.uint64(group_salt(self.weights.group))
        with ExitStack() as stack:
            streams = [
                stack.enter_context(files.open_output(str(self._path(number)), durable=False))
                for number in range(self.count)
            ]
            for rows in blocks:
                if self.count == 1:
                    streams[0].write(rows.view("u1").data)
                else:
                    numbers = (mix64(rows["id"] ^ salt) >> shift).astype(np.uint16)
                    order = np.argsort(numbers, kind="stable")
                    parted = rows[order]
                    ends = np.cumsum(np.bincount(numbers, minlength=self.count)).tolist()
                    for stream, start, end in zip(streams, [0, *ends], ends, strict=False):
                        if end > start:
                            stream.write(parted[start:end].view("u1").data)
                self.rows += len(rows)
                yield rows

    def read(self, number: int) -> NDArray[Any]:
        """The rows of a part in ascending order of their signs, array [n] of the dtype.

        The part is removed. Raises Failure when a sign has two rows.
        """
        path = self._path(number)
        with files.translated(str(path)):
            rows = np.fromfile(path, self.weights.form.dtype)
            path.unlink()
        rows = rows[np.argsort(rows["id"], kind="stable")]
        same = rows["id"][1:] == rows["id"][:-1]
        if same.any():
            sign = int(rows["id"][np.argmax(same)])
            raise Failure(
                f"table {self.source.name} has two rows of sign {sign}: it has files of two "
                "checkpoints, or of another number of ranks. Copy it again into an empty folder"
            )
        return rows

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:05d}.rows"


class Ages:
    """Days without a show that rows have, and the clock on which they are so old.

    A checkpoint knows the step of a row's last change, and the first step of each day. So each age
    gets a step of its own, older ones first; `step` is the last, of the rows that are 0 days old.
    """

    def __init__(self, present: NDArray[np.bool_], today: int) -> None:
        """`present` bool [LONGEST_AGE + 1] says which ages there are; `today` is a day's number."""
        present[0] = True
        ages = np.flatnonzero(present)[::-1]
        self.step, self.today = len(ages), max(today, int(ages[0]))
        self._steps = np.zeros(LONGEST_AGE + 1, np.uint32)
        self._steps[ages] = np.arange(1, len(ages) + 1)
        self.days = tuple((self.today - int(age), at + 1) for at, age in enumerate(ages))

    def steps_of(self, ages: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """The step of the last change of rows of these ages, uint32 [n]."""
        return self._steps[ages]


@dataclass
class JoinCounts:
    """What was joined: rows of each group by its index, and rows that were not in both tables."""

    rows: dict[int, int] = field(default_factory=dict)
    incomplete: int = 0
    """rows with weights of one table, whose others are initialised"""
    differing: int = 0
    """rows whose tables have other shows or days; those of the embedding are kept"""


class JoinedTable:
    """The records of one table of a layout, made of the parted rows of TensorNet's tables."""

    def __init__(
        self,
        layout: TableLayout,
        table: SparseTable,
        sources: Sequence[PartedRows],
        show_decays: Mapping[str, float],
        ages: Ages,
    ) -> None:
        """`show_decays` are what a day leaves of shows, by the groups' names."""
        self._table, self._ages, self._decays = table, ages, show_decays
        self._names = {index: name for name, index in layout.groups.items()}
        # Of a row in both tables, what the embedding's says comes last and stays.
        self._sources = sorted(sources, key=lambda s: s.weights.segment.name != LINEAR)
        self.counts = JoinCounts(dict.fromkeys(self._names, 0))

    def records(self, parts: range) -> Iterator[NDArray[Any]]:
        """The records of parts, each part's in (hash, group) order. Raises Failure."""
        for part in parts:
            groups = [self._of_group(group, part) for group in self._names]
            records = np.concatenate(groups) if len(groups) > 1 else groups[0]
            hashes = key_hashes(self._names, records["group"].copy(), records["id"].copy())
            yield records[np.lexsort((records["group"], hashes))]

    def _of_group(self, group: int, part: int) -> NDArray[Any]:
        """The records of a group in a part, in the order of their ids."""
        sources = [
            (parted.weights, parted.read(part))
            for parted in self._sources
            if parted.weights.group_index == group
        ]
        ids = np.unique(np.concatenate([np.zeros(0, np.uint64), *(r["id"] for _, r in sources)]))
        records = self._table.fresh_records(np.full(len(ids), group, np.uint16), ids)
        shown = np.zeros((len(ids), 3))
        counted = np.zeros(len(ids), bool)  # in the table before
        for weights, rows in sources:
            at = np.searchsorted(ids, rows["id"])
            segment = weights.segment.name
            records[segment][at] = rows["weights"]
            for name in weights.form.rule.states:
                records[f"{segment}.{name}"][at] = rows[name]
            counts = np.stack([rows["age"], rows["show"], rows["click"]], axis=1)
            self.counts.differing += int((counted[at] & (shown[at] != counts).any(axis=1)).sum())
            self.counts.incomplete += len(ids) - len(rows)
            counted[at], shown[at] = True, counts
        self.counts.rows[group] += len(ids)
        self._fill_life(records, shown, self._decays[self._names[group]])
        return records

    def _fill_life(self, records: NDArray[Any], shown: NDArray[np.float64], decay: float) -> None:
        """The step of the last change, and show and click as of its day: read today they decay."""
        ages = shown[:, 0].astype(np.uint32)
        records["changed"] = self._ages.steps_of(ages)
        if "show" not in (records.dtype.names or ()):
            return
        left = decay ** shown[:, 0]
        for at, name in enumerate(("show", "click"), 1):
            with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
                stored = np.where(shown[:, at] > 0, shown[:, at] / left, 0).astype(np.float32)
            if not np.isfinite(stored).all():
                row = int(np.argmin(np.isfinite(stored)))
                raise Failure(
                    f"sign {records['id'][row]} has {name} {shown[row, at]:g} after "
                    f"{ages[row]:,} days, which life.shows.decay={decay:g} cannot leave. Take the "
                    "show_decay_rate of TensorNet"
                )
            records[name] = stored[:, np.newaxis]
