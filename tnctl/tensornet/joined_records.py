"""Rows of TensorNet's tables as records of a checkpoint: the tables of a row are joined by sign.

The rows are first parted by the hashes of their keys, so that a part fits into memory.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl import files
from tnctl.errors import Failure
from tnctl.model.layout import LINEAR, TableLayout
from tnctl.tables import SparseTable, key_hashes
from tnctl.tables.columns import group_salt, mix64
from tnctl.tensornet.conf_tables import Weights
from tnctl.tensornet.table_files import LONGEST_AGE

BYTES_PER_PART = 64 << 20
MOST_PARTS = 256  # as many files are open at a time
INFLATED = 4  # bytes of rows for each stored byte, about


def parts_needed(stored_bytes: int) -> int:
    """How many parts a table is cut into whose files have so many bytes: a power of two."""
    count = 1
    while count < MOST_PARTS and INFLATED * stored_bytes / count > BYTES_PER_PART:
        count *= 2
    return count


class PartedRows:
    """The rows of a table of TensorNet in `count` parts, each of an equal range of hashes.

    `group` is the name that salts the hashes of their keys.
    """

    def __init__(self, folder: Path, name: str, group: str, dtype: np.dtype[Any], count: int):
        self.name, self.group, self._dtype, self.count = name, group, dtype, count
        self._folder = folder
        self._salt = np.uint64(group_salt(group))
        self.rows = 0

    def write(self, blocks: Iterable[NDArray[Any]]) -> Generator[NDArray[Any], None, None]:
        """Write all rows, arrays [n] of the dtype, and yield each array when it is written."""
        shift = np.uint64(64 - (self.count.bit_length() - 1))
        with ExitStack() as stack:
            streams = [
                stack.enter_context(files.open_output(str(self._path(number)), durable=False))
                for number in range(self.count)
            ]
            for rows in blocks:
                if self.count == 1:
                    streams[0].write(rows.view("u1").data)
                else:
                    numbers = (mix64(rows["id"] ^ self._salt) >> shift).astype(np.uint16)
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
            rows = np.fromfile(path, self._dtype)
            path.unlink()
        rows = rows[np.argsort(rows["id"], kind="stable")]
        same = rows["id"][1:] == rows["id"][:-1]
        if same.any():
            sign = int(rows["id"][np.argmax(same)])
            raise Failure(
                f"table {self.name} has two rows of sign {sign}: it has files of two checkpoints, "
                "or of another number of ranks. Copy it again into an empty folder"
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
    """What was joined: rows of each group by its number, and rows that were not in both tables."""

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
        sources: Sequence[tuple[Weights, PartedRows]],
        show_decays: Mapping[str, float],
        ages: Ages,
    ) -> None:
        """`show_decays` are what a day leaves of shows, by the groups' names."""
        self._table, self._ages, self._decays = table, ages, show_decays
        self._names = {number: name for name, number in layout.groups.items()}
        # Of a row in both tables, what the embedding's says comes last and stays.
        self._sources = sorted(sources, key=lambda source: source[0].segment.name != LINEAR)
        self.counts = JoinCounts(dict.fromkeys(self._names, 0))

    def records(self, parts: range) -> Iterator[NDArray[Any]]:
        """The records of parts, each part's in (hash, group) order. Raises Failure."""
        for part in parts:
            groups = [self._of_group(number, part) for number in self._names]
            records = np.concatenate(groups) if len(groups) > 1 else groups[0]
            hashes = key_hashes(self._names, records["group"].copy(), records["id"].copy())
            yield records[np.lexsort((records["group"], hashes))]

    def _of_group(self, number: int, part: int) -> NDArray[Any]:
        """The records of a group in a part, in the order of their ids."""
        sources = [
            (weights, parted.read(part))
            for weights, parted in self._sources
            if weights.number == number
        ]
        ids = np.unique(np.concatenate([np.zeros(0, np.uint64), *(r["id"] for _, r in sources)]))
        records = self._table.fresh_records(np.full(len(ids), number, np.uint16), ids)
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
        self.counts.rows[number] += len(ids)
        self._fill_life(records, shown, self._decays[self._names[number]])
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
