"""`tnctl import tensornet=DIR`: TensorNet's tables become the first checkpoint of a run."""

import uuid
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl import files, outputs
from tnctl.checkpoint import listing, rows
from tnctl.checkpoint.chain import FOLDER, name_of
from tnctl.checkpoint.document import (
    Clock,
    Metrics,
    Position,
    WarmDense,
    WarmInput,
    WarmReport,
)
from tnctl.checkpoint.owners import GroupPart, PartSize, StagedPart, TablePart, named, spool_of
from tnctl.checkpoint.staging import Contents, InferenceGraph, stage, write_golden
from tnctl.data import statistics
from tnctl.data.day_records import DayRecord
from tnctl.data.days import calendar, conf_of_day, daily, days_of
from tnctl.errors import UserError, refuse_if
from tnctl.manifest import Inventory
from tnctl.masking import masked
from tnctl.model.building import Model, build
from tnctl.model.layout import plan
from tnctl.ownership import CHECKPOINT
from tnctl.progress import Display, say, table, waiting
from tnctl.schema import Conf
from tnctl.tensornet import dense_weights, joined_records
from tnctl.tensornet.joined_records import (
    Ages,
    JoinCounts,
    JoinedTable,
    PartedRows,
    Weights,
    parts_needed,
    weights_of,
)
from tnctl.tensornet.table_files import (
    FTRL,
    LONGEST_AGE,
    TensorNetFolder,
    described,
    rows_of,
    source_at,
)

TOLERANCE = 2e-5  # of a text's six digits, over the sums


def import_tables(conf: Conf, url: str, tables: str | None, dense: str | None) -> str:
    """Write a checkpoint of TensorNet's weights in a folder as the first of conf.output.

    `tables` and `dense` are the arguments of the command, or None. Returns the checkpoint's folder.
    Raises UserError for a conf whose rows or optimizers are others, Failure for damaged files.
    """
    refuse_if(
        conf.optimizer.updates == "all",
        "optimizer.updates=all makes every row before the first step, and TensorNet has only rows "
        "that were trained. Take updates=touched",
    )
    refuse_if(
        any(slot.vectors for slot in conf.slots.values()),
        "slots.NAME.vectors makes rows before the first step, and TensorNet has only rows that "
        "were trained. Import without this slot, then add it in a warm start",
    )
    outputs.refuse_overlap([conf.output], [url], "output")
    with files.locked(conf.output):
        refuse_run(conf.output)
        source = source_at(url)
        measured = measured_inputs(conf)
        weights = paired(conf, source, tables, measured)
        with waiting("building the model"):
            model = build(conf, measured)
        notes = [
            f"table {name} is left out: tables= does not name it"
            for name in source.tables
            if name not in weights
        ]
        trained_dense = import_dense(model, source, dense, notes)
        spool = files.TemporaryFolder("import", spool_of(conf.save))
        try:
            parted, ages = part_rows(source, weights, Path(spool.name))
            return Saving(conf, model, source, parted, ages, notes, trained_dense).save()
        finally:
            spool.cleanup()


def refuse_run(output: str) -> None:
    """Raise UserError when an output has a checkpoint."""
    for name in files.list_folder(files.join(output, FOLDER)):
        if listing.NAME.fullmatch(name):
            raise UserError(
                f"{output} has a run already ({FOLDER}/{name}), and an import begins one. Choose "
                "another output=URL"
            )


def measured_inputs(conf: Conf) -> statistics.Statistics:
    """What inputs need to know of the training data; it is only read where they need anything."""
    needs = statistics.standardized(conf.numeric) or statistics.bucketed(conf.slots)
    if needs and daily(conf):
        conf = conf_of_day(conf, next(iter(days_of(conf).there), None))
    return statistics.measure(conf)


def paired(
    conf: Conf, source: TensorNetFolder, given: str | None, measured: statistics.Statistics
) -> dict[str, Weights]:
    """The weights that each table has, by its name; a table that `given` does not name has none.

    Raises UserError where a table cannot be, or may not be only, one of the conf's.
    """
    known = weights_of(conf, plan(conf, measured))
    starts = {name: described(table.files[0]) for name, table in source.tables.items()}
    if given is None:
        chosen = joined_records.matched(starts, known)
    else:
        chosen = joined_records.named_weights(given, known)
        if unknown := sorted(chosen.keys() - starts.keys()):
            raise UserError(
                f"tables=: {source.folder} has no table {unknown[0]}. It has {', '.join(starts)}"
            )
    for name, weights in chosen.items():
        joined_records.check(name, starts[name], weights, conf.slots)
    return chosen


def part_rows(
    source: TensorNetFolder, weights: Mapping[str, Weights], folder: Path
) -> tuple[list[PartedRows], Ages]:
    """The rows of tables, parted by the hashes of their keys; and their ages.

    Raises UserError where weights of FTRL do not follow from the conf.
    """
    present, done, count = np.zeros(LONGEST_AGE + 1, np.bool_), 0, 0
    stored = sum(source.tables[name].bytes for name in weights)
    all_parted: list[PartedRows] = []
    with Display("import", stored or None) as display:
        for name, of_table in weights.items():
            source_table = source.tables[name]
            spool = folder / str(len(all_parted))
            parted = PartedRows(spool, source_table, of_table, parts_needed(stored))
            all_parted.append(parted)
            trained = np.zeros(2, np.int64)
            blocks = chain.from_iterable(rows_of(url, of_table.form) for url in source_table.files)
            with closing(parted.write(blocks)) as written:
                for read in written:
                    present[read["age"]] = True
                    trained += trained_by_ftrl(of_table, read)
                    count += len(read)
                    display.update(min(done, stored), f"{count:,} rows")
            if 2 * trained[1] > trained[0]:
                rule = of_table.segment.optimizer
                raise UserError(
                    f"{trained[1]:,} of {trained[0]:,} trained weights of table {name} do not "
                    f"follow from its z and n with learning_rate {rule.learning_rate:g}, beta "
                    f"{rule.beta:g}, l1 {rule.l1:g} and l2 {rule.l2:g} of {of_table.name}. Take "
                    "the learning_rate, beta, lambda1 and lambda2 of TensorNet"
                )
            done += source_table.bytes
        display.update(stored, f"{count:,} rows of {len(weights)} tables read")
        display.finish()
    day = calendar(source.day or "")
    return all_parted, Ages(present, 0 if day is None else day.toordinal())


@dataclass
class Saving:
    """Writes a checkpoint of rows that are parted, with the clock that makes them so old."""

    conf: Conf
    model: Model
    source: TensorNetFolder
    parted: list[PartedRows]
    ages: Ages
    notes: list[str]
    trained_dense: bool

    def save(self) -> str:
        """Write the checkpoint, and return its folder."""
        step = self.ages.step
        folder = files.join(self.conf.output, f"{FOLDER}/{name_of(step)}")
        with (
            waiting("saving a checkpoint"),
            outputs.output_folder(folder, CHECKPOINT, [self.source.folder]) as output,
        ):
            inventory = output.inventory()
            written = [self._write(inventory, index) for index in range(len(self.model.tables))]
            part = StagedPart(tables=tuple(entry for entry, _ in written))
            self._note([counts for _, counts in written])
            contents = self._contents(part)
            document = stage(inventory.writing, self.model, contents, InferenceGraph(), [part])
            write_golden(inventory.writing, [])
            inventory.complete(document)
        self._print()
        say(f"{folder} is saved: tnctl train goes on from it")
        return folder

    def _write(self, inventory: Inventory, index: int) -> tuple[TablePart, JoinCounts]:
        """Write the files of a table of the model."""
        layout, sparse = self.model.layout.tables[index], self.model.tables[index]
        sparse.set_step(self.ages.step)
        sources = [parted for parted in self.parted if parted.weights.table_index == index]
        decays = {name: self.conf.life_of(name).shows.decay for name in layout.groups}
        joined = JoinedTable(layout, sparse, sources, decays, self.ages)
        size = sparse.record_dtype.itemsize
        most = sum(parted.rows for parted in sources)
        part_count = max((parted.count for parted in sources), default=1)
        count = min(rows.files_needed(most, size), part_count)  # of at most MOST_PARTS
        suffix = ".zst" if self.conf.save.compression == "zstd" else ""
        names = named([layout.name], [PartSize(files=(count,), bytes=0)], suffix)[0][0]
        shift = 64 - (part_count.bit_length() - 1)
        entries = rows.write_files(
            inventory.writing,
            names.rows,
            rows.ranges(count),
            size,
            lambda first, last: joined.records(range(first >> shift, (last >> shift) + 1)),
        )
        groups = tuple(
            GroupPart(name=name, rows=joined.counts.rows[group], evicted=0, waiting=0)
            for name, group in layout.groups.items()
        )
        sketch = rows.write_sketch(inventory.writing, names.sketch, sparse.sketch, {})
        return TablePart(
            name=layout.name, groups=groups, files=entries, sketch=sketch
        ), joined.counts

    def _note(self, counts: list[JoinCounts]) -> None:
        """What of the rows is not as TensorNet had it, a line each."""
        incomplete = sum(entry.incomplete for entry in counts)
        differing = sum(entry.differing for entry in counts)
        if incomplete:
            self.notes.append(
                f"{incomplete:,} rows are in one of two tables: their other weights are initialised"
            )
        if differing:
            self.notes.append(
                f"{differing:,} rows have other shows or days in two tables: those of the "
                "embedding are kept"
            )
        imported = {parted.weights.name for parted in self.parted}
        for weights in weights_of(self.conf, self.model.layout):
            if weights.name not in imported:
                self.notes.append(f"{weights.name} is initialised: no table has it")
        for layout in self.model.layout.tables:
            if not layout.kind.shows:
                groups = ", ".join(layout.groups)
                self.notes.append(
                    f"show and click of {groups} are left out: life.shows.keep=true keeps them"
                )
        day = self._day()
        if day is not None:
            self.notes.append(f"{day} and the days before it count as trained")

    def _day(self) -> str | None:
        """The day that TensorNet trained last, where the conf trains day by day too."""
        day = self.source.day
        return day if day and daily(self.conf) and calendar(day) else None

    def _contents(self, part: StagedPart) -> Contents:
        """What the checkpoint has beside the model: a run that has not read any data yet."""
        step, day = self.ages.step, self._day()
        records = []
        if day is not None:
            records.append(
                DayRecord(
                    day=day,
                    number=self.ages.today,
                    first_step=1,
                    last_step=step,
                    rows=0,
                    before=None,
                    accepted=["it was trained by TensorNet"],
                )
            )
        return Contents(
            clock=Clock(step, self.ages.days),
            position=Position(),
            finished=False,
            golden=[],
            metrics=Metrics(steps=step, warm=self._report(part)),
            days=records,
            sessions=((uuid.uuid4().hex, 1),),
        )

    def _report(self, part: StagedPart) -> WarmReport:
        """What was imported, as report.json has it of a warm start; schedules begin after it."""
        count_of = {group.name: group.rows for entry in part.tables for group in entry.groups}
        groups = {parted.weights.group for parted in self.parted}
        group_of = {name: slot.group or name for name, slot in self.conf.slots.items()}
        inputs = [
            WarmInput(
                input=name,
                outcome="matched" if group_of.get(name) in groups else "new",
                from_=None,
                rows=count_of.get(group_of.get(name, "")),
            )
            for name in [*group_of, *self.conf.numeric]
        ]
        names = list(self.model.variable_names)
        old, new = (names, []) if self.trained_dense else ([], names)
        return WarmReport(
            from_=masked(self.source.folder),
            step=self.ages.step,
            optimizer="match",
            inputs=inputs,
            dense=WarmDense(matched=old, partly=[], new=new, dropped=[]),
            notes=self.notes,
        )

    def _print(self) -> None:
        """Print which table became which weights, and the notes."""
        lines = [
            (
                parted.source.name,
                str(parted.weights.form.dim),
                parted.weights.form.rule.name,
                f"{parted.source.ranks:,}",
                f"{parted.rows:,}",
                parted.weights.name,
            )
            for parted in self.parted
        ]
        heads = ("table", "dim", "optimizer", "ranks", "rows", "became")
        table(f"tables of {self.source.folder}", heads, lines)
        for note in self.notes:
            say(note)


def import_dense(
    model: Model, source: TensorNetFolder, given: str | None, notes: list[str]
) -> bool:
    """Give a model TensorNet's dense weights where `dense=` says their order; whether it has them.

    Raises UserError where they are of another network or optimizer, Failure for damaged files.
    """
    if given is None:
        if source.dense:
            usual = dense_weights.usual_order(model)
            notes.append(
                "the dense weights are new: TensorNet's have no names. Where its network is this "
                f"conf's, give their order by its names, such as dense={usual}"
            )
        return False
    if not source.dense:
        raise UserError(f"dense= is given, and {source.folder} has no dense_table. Leave it out")
    order = dense_weights.order_of(given, model)
    dense = dense_weights.read(source.dense, sum(model.dense.sizes))
    dense_weights.fill(model, dense, order)
    return True


def trained_by_ftrl(weights: Weights, rows: NDArray[Any]) -> NDArray[np.int64]:
    """How many weights of rows [n] FTRL has trained, and how many of these are not by the conf.

    Its state gives them; nothing does of other optimizers, where both are 0.
    """
    if weights.form.rule is not FTRL:
        return np.zeros(2, np.int64)
    rule = weights.segment.optimizer
    rate = float(rule.learning_rate) or 1.0
    slope = rate if rule.name == "tensornet_ftrl" else 1 / rate
    z, n = rows["z"].astype(np.float64), rows["n"].astype(np.float64)
    divisor = (rule.beta + np.sqrt(n)) * slope + rule.l2
    updated = (n > 0) & (divisor > 0)  # a new row has initial weights
    divisor = np.where(updated, divisor, 1.0)
    expected = (np.clip(z, -rule.l1, rule.l1) - z) / divisor
    allowed = TOLERANCE * ((np.abs(z) + rule.l1) / divisor + np.abs(expected))
    # Zeros are zeros by many settings.
    updated &= (expected != 0) | (rows["weights"] != 0)
    differing = updated & (np.abs(rows["weights"] - expected) > allowed)
    return np.array([updated.sum(), differing.sum()])
