"""What a checkpoint holds: tables, dense weights, inference graph, conf, golden rows, manifest."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tnctl import __version__, files, outputs
from tnctl.checkpoint import dense_file, owners, rows
from tnctl.checkpoint.chain import CONF, EXTRA, GOLDEN, STEP, Checkpoint
from tnctl.checkpoint.document import (
    CheckpointManifest,
    Clock,
    Golden,
    Group,
    LifeEntry,
    Metrics,
    OptimizerEntry,
    Parent,
    Position,
    Recipe,
    SegmentEntry,
    Sessions,
    Table,
    described_record,
)
from tnctl.checkpoint.golden_lines import GoldenLine
from tnctl.checkpoint.owners import GroupPart, PartRequest, StagedPart, TablePart
from tnctl.data.day_records import DayRecord, Fingerprint
from tnctl.manifest import Opening
from tnctl.masking import masked
from tnctl.model import graph, recipes
from tnctl.model.building import Model
from tnctl.model.parameter_tables import Recalibration
from tnctl.ownership import CHECKPOINT
from tnctl.saved_conf import conf_to_json

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
        self._recalibration: dict[str, Recalibration] = {}  # of the exported graph

    def write(self, opening: Opening, model: Model) -> None:
        """Write the files of the graph, with the model's weights now, into the checkpoint.

        The first call exports the graph into a local folder; later ones only replace its weights,
        unless the model has been recalibrated.
        """
        if self._folder is None or self._recalibration != model.recalibration:
            folder = files.TemporaryFolder("graph")
            graph.save(model, folder.name)
            self._folder, self._recalibration = folder, model.recalibration
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
        counts = [rows.files_needed(t.rows, t.record_dtype.itemsize) for t in model.tables]
        size = owners.PartSize(files=tuple(counts), bytes=0)
        [names] = owners.named([layout.name for layout in model.layout.tables], [size], "")
        request = PartRequest(folder=STEP, step=given.clock.step, changed_from=0, tables=names)
        part = owners.write_part(inventory.writing, model, request, [()] * len(names))
        document = stage(inventory.writing, model, given, InferenceGraph(), [part])
        write_golden(inventory.writing, given.golden)
        inventory.complete(document)


def stage(
    opening: Opening,
    model: Model,
    contents: Contents,
    inference: InferenceGraph,
    staged: Sequence[StagedPart],
    *,
    parent: Checkpoint | None = None,
) -> CheckpointManifest:
    """Write the files of a checkpoint, without golden.jsonl and what is staged: the tables' files.

    Returns its manifest without `files`. It is a delta of `parent`, or a full one.
    """
    model.check_aliases()
    tables = tuple(
        described_table(model, index, [part.tables[index] for part in staged])
        for index in range(len(model.tables))
    )
    dense = dense_file.write(opening, model)
    inference.write(opening, model)
    conf = json.dumps(conf_to_json(model.conf), indent=2, ensure_ascii=False, allow_nan=False)
    extras = {f"{EXTRA}/{name}": data for name, data in contents.extras.items()}
    for path, data in {CONF: f"{conf}\n".encode(), **extras}.items():
        with opening(path) as stream:
            stream.write(data)
    settings = dict(model.conf.recipe)
    name = settings.pop("name")
    return CheckpointManifest(
        format=CheckpointManifest.FORMAT,
        # The oldest that has what is written.
        version=3 if model.recalibration else 2 if any(t.tombstone_files for t in tables) else 1,
        tnctl=__version__,
        kind="delta" if parent else "full",
        parent=Parent(folder=parent.name, sha256=parent.manifest.sha256) if parent else None,
        saved=datetime.now(UTC).isoformat(timespec="seconds"),
        clock=contents.clock,
        position=contents.position,
        finished=contents.finished,
        recipe=Recipe(
            name=masked(name),
            settings=masked(settings),
            sha256=recipes.digest_of(model.conf.recipe_name),
        ),
        statistics=model.statistics,
        tables=tables,
        dense=dense,
        heads=tuple(model.heads),
        logit_correction=model.logit_correction,
        recalibration=dict(model.recalibration) or None,
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


def described_table(model: Model, index: int, of_owners: Sequence[TablePart]) -> Table:
    """What the manifest says of a table, of which each owner has a part."""
    layout, table = model.layout.tables[index], model.tables[index]
    groups = tuple(
        merged_group(name, number, [part.groups[position] for part in of_owners])
        for position, (name, number) in enumerate(layout.groups.items())
    )
    decays = {name: model.conf.life_of(name).shows.decay for name in layout.groups}
    removed = tuple(part.tombstones for part in of_owners if part.tombstones)
    counters = tuple(part.sketch for part in of_owners if part.sketch)
    is_of_one = len(of_owners) == 1
    return Table(
        name=layout.name,
        rows=sum(group.rows for group in groups),
        slots=tuple(layout.slots),
        segments=tuple(
            SegmentEntry(
                name=segment.name,
                width=segment.width,
                output=segment.output,
                optimizer=OptimizerEntry.of(segment.optimizer),
            )
            for segment in table.segments
        ),
        groups=groups,
        life=LifeEntry(
            shows=layout.kind.shows,
            cvm=layout.kind.cvm,
            decay=decays if layout.kind.shows else None,
        ),
        record=described_record(table.record_dtype),
        files=tuple(entry for part in of_owners for entry in part.files),
        tombstones=removed[0] if removed and is_of_one else None,
        sketch=counters[0] if counters and is_of_one else None,
        tombstone_files=None if is_of_one else removed,
        sketch_files=None if is_of_one else counters or None,
    )


def merged_group(name: str, number: int, of_owners: Sequence[GroupPart]) -> Group:
    """What the manifest says of a share group, of whose rows each owner has a part."""
    count, evicted = (sum(getattr(g, key) for g in of_owners) for key in ("rows", "evicted"))
    return Group(
        name=name,
        number=number,
        rows=count,
        admitted=count + evicted,
        waiting=max(0, sum(group.waiting for group in of_owners)),
        evicted=evicted,
    )
