"""What a checkpoint holds: tables, dense weights, inference graph, conf, golden rows, manifest."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from tnctl import __version__, files, outputs
from tnctl.checkpoint import dense_file, rows, sketch_file, tombstones
from tnctl.checkpoint.chain import (
    CONF,
    EXTRA,
    FOLDER,
    GOLDEN,
    Checkpoint,
    name_of,
)
from tnctl.checkpoint.document import (
    CheckpointManifest,
    Clock,
    Golden,
    Metrics,
    Parent,
    Position,
    Recipe,
    Sessions,
)
from tnctl.checkpoint.golden import GoldenLine
from tnctl.checkpoint.table_document import (
    Group,
    Life,
    Optimizer,
    RecordField,
    RowsFile,
    Segment,
    SketchFile,
    Table,
    TombstonesFile,
)
from tnctl.data.day_records import DayRecord, Fingerprint
from tnctl.manifest import Opening
from tnctl.masking import masked
from tnctl.model import graph, recipes
from tnctl.model.building import Model
from tnctl.model.layout import TableLayout
from tnctl.ownership import CHECKPOINT
from tnctl.schema import Conf
from tnctl.tables import SparseTable

GRAPH = "graph"

__all__ = ["Clock", "Contents", "Graph", "Position", "folder_of", "save", "stage"]


@dataclass(frozen=True)
class Contents:
    """What is saved beside the model."""

    clock: Clock
    position: Position
    finished: bool
    golden: list[GoldenLine]
    metrics: Metrics
    extras: Mapping[str, bytes] = field(default_factory=dict)
    data: Sequence[Fingerprint] = ()
    days: Sequence[DayRecord] = ()
    calendar: tuple[tuple[int, int], ...] = ()
    sessions: Sessions = ()


def folder_of(output: str, step: int) -> str:
    """The folder of the (first) checkpoint of a step."""
    return files.join(output, f"{FOLDER}/{name_of(step)}")


class Graph:
    """The inference graph of a run: exported once, its weights filled in at each save."""

    def __init__(self) -> None:
        self._folder: files.TemporaryFolder | None = None

    def write(self, opening: Opening, model: Model) -> None:
        """Write the graph with the model's weights, by a local folder: TensorFlow needs one."""
        if self._folder is None:
            folder = files.TemporaryFolder("graph")
            graph.save(model, folder.name)
            self._folder = folder
        else:
            graph.refill(model, self._folder.name)
        root = Path(self._folder.name)
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            with opening(f"{GRAPH}/{path.relative_to(root).as_posix()}") as stream:
                stream.write(path.read_bytes())


def save(model: Model, folder: str, **contents: Any) -> None:
    """Write a full checkpoint into `folder` at once; `contents` are those of `Contents`."""
    with outputs.output_folder(folder, CHECKPOINT) as output:
        inventory = output.inventory()
        given = Contents(**contents)
        content = stage(inventory.writing, model, given, Graph())
        write_golden(inventory.writing, given.golden)
        inventory.complete(content)


def stage(
    opening: Opening,
    model: Model,
    contents: Contents,
    inference: Graph,
    *,
    parent: Checkpoint | None = None,
    removed: Mapping[str, Iterable[NDArray[Any]]] | None = None,
    suffix: str = "",
) -> CheckpointManifest:
    """Write the files of a checkpoint but golden.jsonl; return its manifest without `files`.

    It is a delta of `parent`, or a full one. `removed` has the removed keys to keep, by the tables'
    names; `suffix` is that of compressed rows files.
    """
    model.check_aliases()
    tables = []
    for number, layout in enumerate(model.layout.tables):
        table, folder = model.tables[number], f"tables/{layout.name}"
        written = rows.write(
            opening,
            folder,
            suffix,
            table.record_dtype.itemsize,
            table.rows,
            partial(records_of, table, len(layout.groups), parent),
        )
        kept = tombstones.write(opening, folder, (removed or {}).get(layout.name, ()))
        counters = sketch_file.write(opening, folder, table)
        tables.append(described_table(model, number, tuple(written), kept, counters))
    dense_part = dense_file.write(opening, model)
    inference.write(opening, model)
    with opening(CONF) as stream:
        stream.write(as_json(graph.conf_to_json(model.conf)))
    for name, data in contents.extras.items():
        with opening(f"{EXTRA}/{name}") as stream:
            stream.write(data)
    settings = dict(model.conf.recipe)
    name = settings.pop("name")
    return CheckpointManifest(
        format=CheckpointManifest.FORMAT,
        version=CheckpointManifest.VERSION,
        tnctl=__version__,
        kind="full" if parent is None else "delta",
        parent=None
        if parent is None
        else Parent(folder=parent.name, sha256=parent.manifest.sha256),
        saved=datetime.now(UTC).isoformat(timespec="seconds"),
        clock=contents.clock,
        position=contents.position,
        finished=contents.finished,
        recipe=Recipe(name=masked(name), settings=masked(settings), sha256=recipes.digest_of(name)),
        statistics=model.statistics.measured(),
        tables=tuple(tables),
        dense=dense_part,
        heads=tuple(model.heads),
        logit_correction=model.logit_correction,
        golden=Golden(rows=len(contents.golden)),
        metrics=contents.metrics,
        data=tuple(contents.data),
        days=tuple(contents.days),
        calendar=contents.calendar,
        sessions=contents.sessions,
    )


def write_golden(opening: Opening, lines: list[GoldenLine]) -> None:
    """Write golden.jsonl: the last file of a checkpoint, for it can wait until training goes on."""
    with opening(GOLDEN) as stream:
        stream.write(b"".join(line.text() for line in lines))


def records_of(
    table: SparseTable, groups: int, parent: Checkpoint | None, first: int, last: int
) -> Iterator[NDArray[Any]]:
    """The rows of a range of hashes that changed since a checkpoint, or all."""
    # No more keys than there are groups share a hash, and those must fit, and one more.
    most = max(rows.BYTES_PER_READ // table.record_dtype.itemsize, groups + 1)
    changed_from = 0 if parent is None else parent.step + 1
    return table.records(first, last, most, changed_from)


def life_of(conf: Conf, layout: TableLayout) -> Life:
    """Whether rows keep show and click and are read with them, and what a day leaves of those."""
    decay = None
    if layout.kind.shows:
        decay = {name: conf.life_of(name).shows.decay for name in layout.groups}
    return Life(shows=layout.kind.shows, cvm=layout.kind.cvm, decay=decay)


def described_group(table: SparseTable, name: str, number: int) -> Group:
    """How many rows a group has, and what became of its ids: `waiting` is an estimate."""
    figures = table.figures(number)
    return Group(
        name=name,
        number=number,
        rows=figures.rows,
        admitted=figures.admitted,
        waiting=figures.waiting,
        evicted=figures.evicted,
    )


def described_table(
    model: Model,
    number: int,
    written: tuple[RowsFile, ...],
    removed: TombstonesFile | None,
    counters: SketchFile | None,
) -> Table:
    """What a reader of the rows needs: groups, slots, the fields of a record, the files."""
    layout, table = model.layout.tables[number], model.tables[number]
    return Table(
        name=layout.name,
        rows=table.rows,
        slots=tuple(layout.slots),
        segments=tuple(
            Segment(
                name=segment.name,
                width=segment.width,
                output=segment.output,
                optimizer=Optimizer.of(segment.optimizer),
            )
            for segment in table.segments
        ),
        groups=tuple(
            described_group(table, name, group_number)
            for name, group_number in layout.groups.items()
        ),
        life=life_of(model.conf, layout),
        record=tuple(
            RecordField(
                name=name,
                type=dtype.base.str,
                count=int(dtype.itemsize // dtype.base.itemsize),
            )
            for name, dtype in (
                (name, fields[0]) for name, fields in (table.record_dtype.fields or {}).items()
            )
        ),
        files=written,
        tombstones=removed,
        sketch=counters,
    )


def as_json(value: Any) -> bytes:
    """JSON text with a line end."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"
