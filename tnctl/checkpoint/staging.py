"""What a checkpoint holds: tables, dense weights, inference graph, conf, golden rows, manifest."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from tnctl import __version__, files, outputs
from tnctl.checkpoint import dense_file, rows, sketch_file, tombstones
from tnctl.checkpoint.chain import CONF, EXTRA, GOLDEN, Checkpoint
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
from tnctl.checkpoint.golden_lines import GoldenLine
from tnctl.checkpoint.table_document import (
    Group,
    Life,
    Optimizer,
    Segment,
    Table,
    described_record,
)
from tnctl.data.day_records import DayRecord, Fingerprint
from tnctl.manifest import Opening
from tnctl.masking import masked
from tnctl.model import graph, recipes
from tnctl.model.building import Model
from tnctl.ownership import CHECKPOINT

GRAPH = "graph"


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What is saved beside the model; `extras` are the bytes of the files extra/<name>."""

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


class InferenceGraph:
    """The inference graph of a run: exported once, its weights filled in at each save."""

    def __init__(self) -> None:
        self._folder: files.TemporaryFolder | None = None

    def write(self, opening: Opening, model: Model) -> None:
        """Write the files of the graph, with the model's weights now, into the checkpoint.

        The first call exports the graph into a local folder; later ones only replace its weights.
        """
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
    """Write a full checkpoint into `folder` at once; `contents` are the fields of `Contents`."""
    with outputs.output_folder(folder, CHECKPOINT) as output:
        inventory = output.inventory()
        given = Contents(**contents)
        document = stage(inventory.writing, model, given, InferenceGraph())
        write_golden(inventory.writing, given.golden)
        inventory.complete(document)


def stage(
    opening: Opening,
    model: Model,
    contents: Contents,
    inference: InferenceGraph,
    *,
    parent: Checkpoint | None = None,
    removed: Mapping[str, Iterable[NDArray[Any]]] | None = None,
    suffix: str = "",
) -> CheckpointManifest:
    """Write the files of a checkpoint but golden.jsonl; return its manifest without `files`.

    It is a delta of `parent`, or a full one. `removed` has the removed keys to keep, by the tables'
    names, arrays [n] of REMOVED_DTYPE; `suffix` is what the names of compressed rows files end
    with.
    """
    model.check_aliases()
    tables = tuple(
        write_table(opening, model, number, parent, (removed or {}).get(layout.name, ()), suffix)
        for number, layout in enumerate(model.layout.tables)
    )
    dense = dense_file.write(opening, model)
    inference.write(opening, model)
    conf = json.dumps(graph.conf_to_json(model.conf), indent=2, ensure_ascii=False, allow_nan=False)
    extras = {f"{EXTRA}/{name}": data for name, data in contents.extras.items()}
    for path, data in {CONF: f"{conf}\n".encode(), **extras}.items():
        with opening(path) as stream:
            stream.write(data)
    settings = dict(model.conf.recipe)
    name = settings.pop("name")
    return CheckpointManifest(
        format=CheckpointManifest.FORMAT,
        version=CheckpointManifest.VERSION,
        tnctl=__version__,
        kind="delta" if parent else "full",
        parent=Parent(folder=parent.name, sha256=parent.manifest.sha256) if parent else None,
        saved=datetime.now(UTC).isoformat(timespec="seconds"),
        clock=contents.clock,
        position=contents.position,
        finished=contents.finished,
        recipe=Recipe(name=masked(name), settings=masked(settings), sha256=recipes.digest_of(name)),
        statistics=model.statistics.measured(),
        tables=tables,
        dense=dense,
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
    """Write golden.jsonl: last, for it can be written while training continues."""
    with opening(GOLDEN) as stream:
        stream.write(b"".join(line.to_json() for line in lines))


def write_table(
    opening: Opening,
    model: Model,
    number: int,
    parent: Checkpoint | None,
    removed: Iterable[NDArray[Any]],
    suffix: str,
) -> Table:
    """Write the files of a table; returns its part of the manifest.

    Of rows those that changed since `parent`, or all; `removed` and `suffix` as in `stage`.
    """
    layout, table = model.layout.tables[number], model.tables[number]
    folder = f"tables/{layout.name}"

    def records(first: int, last: int) -> Iterator[NDArray[Any]]:
        # No more keys than there are groups share a hash, and those must fit, and one more.
        most = max(rows.BYTES_PER_READ // table.record_dtype.itemsize, len(layout.groups) + 1)
        return table.records(first, last, most, parent.step + 1 if parent else 0)

    decays = {name: model.conf.life_of(name).shows.decay for name in layout.groups}
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
            Group(name=name, number=group, **dataclasses.asdict(table.figures(group)))
            for name, group in layout.groups.items()
        ),
        life=Life(
            shows=layout.kind.shows,
            cvm=layout.kind.cvm,
            decay=decays if layout.kind.shows else None,
        ),
        record=described_record(table.record_dtype),
        files=rows.write(opening, folder, suffix, table.record_dtype.itemsize, table.rows, records),
        tombstones=tombstones.write(opening, folder, removed),
        sketch=sketch_file.write(opening, folder, table),
    )
