"""The data that names the ids of an export: `values=` of `tnctl export-embeddings`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from tnctl import files
from tnctl.data import numbers, sources
from tnctl.data.bad_rows import Skipped
from tnctl.data.file_pieces import Where
from tnctl.data.formats.prepared_document import SPLITS
from tnctl.data.slot_values import NamedIds, SlotValues
from tnctl.data.statistics import Statistics
from tnctl.errors import refuse_if
from tnctl.manifest import Inventory
from tnctl.progress import Display, say
from tnctl.schema import Conf, Data, Paths
from tnctl.serving.rows import value_files
from tnctl.serving.rows.export_document import SlotEntry, ValuesEntry
from tnctl.serving.rows.value_files import RowsOf
from tnctl.serving.rows.value_runs import ValueRuns

BYTES_IN_MEMORY = 128 << 20  # of the values of all slots
LEAST_BYTES = 1 << 20  # of a slot


@dataclass(frozen=True)
class ValueSource:
    """A split whose columns have values of slots: of the conf, or of files in its format."""

    named: str
    conf: Conf
    split: str

    @classmethod
    def of(cls, conf: Conf, named: str) -> "ValueSource":
        """`named` is train, validation or test, or the name, glob or URL of files.

        Raises UserError for a split that has no files of its own.
        """
        data = replace(conf.data, prepared=None)  # which has ids, and no values
        if named in SPLITS:
            spec = sources.split_of(data, named).spec
            refuse_if(spec is None, f"values={named}: the conf has no data.{named}. Name files")
            refuse_if(
                sources.DAY in str(spec),
                f"values={named}: data.{named} names the files of many days. Name them with a "
                f"glob, such as values='{str(spec).replace(sources.DAY, '*')}'",
            )
            return cls(named, replace(conf, data=data), named)
        refuse_if(
            data.is_generated,
            f"values={named}: the data of this conf are generated. Take values=train",
        )
        _refuse_absent(named, data)
        return cls(
            named, replace(conf, data=replace(data, root=None, test=named), paths=Paths()), "test"
        )

    def urls(self) -> list[str]:
        """The files that are read. Raises Failure when there are none."""
        return sources.files_of(self.conf, self.split)

    def readers(self, slots: Sequence[SlotEntry], statistics: Statistics) -> dict[str, SlotValues]:
        """What reads the slots whose columns are there. Raises UserError when none is."""
        present = sources.columns_of(self.conf, self.split)
        readers = {
            entry.slot: SlotValues(
                entry.slot, slot, self.conf.data, statistics.lists_of(entry.slot, slot)
            )
            for entry in slots
            if (slot := self.conf.slots[entry.slot]).cross is None
        }
        chosen = {
            name: reader
            for name, reader in readers.items()
            if present is None or reader.column in present
        }
        columns = ", ".join(dict.fromkeys(reader.column for reader in readers.values()))
        refuse_if(
            not chosen,
            f"values={self.named}: no column of an exported slot is there. Slots are read from: "
            f"{columns or 'none, they are crosses'}",
        )
        if unnamed := [entry.slot for entry in slots if entry.slot not in chosen]:
            say(f"values: none of slots {', '.join(unnamed)} (crosses, or no column of theirs)")
        return chosen


def _refuse_absent(named: str, data: Data) -> None:
    try:
        files.expand(named)
    except files.AbsentError as error:
        splits = [split for split in SPLITS if sources.split_of(data, split).spec is not None]
        raise files.AbsentError(
            f"values={named}: no such file was found. values= takes a split of the conf "
            f"({', '.join(splits) or 'which has none'}), or the name or a glob of files"
        ) from error


def write_values(
    source: ValueSource,
    slots: Sequence[SlotEntry],
    statistics: Statistics,
    inventory: Inventory,
    rows_of: RowsOf,
) -> tuple[ValuesEntry, ...]:
    """Write a file of values for each slot that the data has. Raises UserError and Failure."""
    readers = source.readers(slots, statistics)
    most = max(BYTES_IN_MEMORY // len(readers), LEAST_BYTES)
    with files.TemporaryFolder("values") as folder:
        runs: dict[str, ValueRuns] = {}
        for entry in slots:
            if entry.slot in readers:
                place = Path(folder, entry.slot)
                place.mkdir()
                runs[entry.slot] = ValueRuns(place, entry.group, most)
        collect(source, readers, runs)
        entries = [
            value_files.write(inventory, entry, runs[entry.slot].sorted(), rows_of)
            for entry in slots
            if entry.slot in runs
        ]
    values = sum(entry.values for entry in entries)
    several = values - sum(entry.ids for entry in entries)
    more = f", {several:,} of them of an id that has another one too" if several else ""
    say(f"values: {values:,} of {len(entries)} slots{more}")
    return tuple(entries)


def collect(
    source: ValueSource, readers: dict[str, SlotValues], runs: dict[str, ValueRuns]
) -> None:
    """Read all values of the data into the runs of their slots."""
    not_text: set[str] = set()

    def add(name: str, named: NamedIds) -> None:
        runs[name].add(named.ids, named.values)
        if named.not_text:
            not_text.add(name)

    def read(table: pa.Table, where: Where) -> dict[str, NamedIds]:
        columns = {name: numbers.flat(table.column(readers[name].column)) for name in from_data}
        return {name: readers[name].read(column, where) for name, column in columns.items()}

    for name, reader in readers.items():
        add(name, reader.known())
    from_data = [name for name, reader in readers.items() if not reader.of_buckets]
    needed = list(dict.fromkeys(readers[name].column for name in from_data))
    conf, split = source.conf, source.split
    skipped, done = Skipped(split, conf.data.bad_rows), 0
    with Display("values", sources.count_hint(conf, split)) as display:
        for piece in sources.pieces(conf, split, needed) if needed else ():
            skipped.add(piece.skipped, piece.reason, piece.first)
            named, _ = skipped.good(piece.table, piece.where, read)
            for name in from_data:
                add(name, named[name])
            done += piece.table.num_rows
            display.update(done, f"{done:,} rows")
    skipped.report()
    if not_text:
        say(f"values: those that are not UTF-8 are left out (slots {', '.join(sorted(not_text))})")
