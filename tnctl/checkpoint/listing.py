"""The checkpoints of an output, as their manifests tell. No rows are read."""

import contextlib
import re
from dataclasses import dataclass, replace

from tnctl import files, manifest
from tnctl.checkpoint.chain import FOLDER, Checkpoint, split
from tnctl.checkpoint.document import CheckpointManifest
from tnctl.errors import Failure, UserError
from tnctl.progress import say

NAME = re.compile(r"step-(\d{10})(?:-\d\d)?")


@dataclass(frozen=True)
class Stored:
    """One folder of checkpoints; `problem` says why it cannot be used, None when it can."""

    name: str
    folder: str
    manifest: CheckpointManifest | None  # None when it is absent or damaged
    problem: str | None
    complete: bool = True  # it has a manifest, be it damaged

    @property
    def step(self) -> int:
        match = NAME.fullmatch(self.name)
        return int(match[1]) if match else 0

    @property
    def parent(self) -> str | None:
        """The name of the checkpoint that this one is a delta of."""
        parent = None if self.manifest is None else self.manifest.parent
        return None if parent is None else parent.folder

    @property
    def bytes(self) -> int:
        """The bytes of its files, without the manifest."""
        stored = {} if self.manifest is None else self.manifest.files
        return sum(entry.bytes for entry in stored.values())

    @property
    def rows(self) -> int:
        """The rows of all tables of the model, those of its parents too."""
        return sum(table.rows for table in (self.manifest.tables if self.manifest else ()))

    @property
    def day(self) -> str | None:
        """The name of the day that was trained last, or is under way."""
        if self.manifest is None:
            return None
        days = self.manifest.days
        return self.manifest.position.day or (days[-1].day if days else None)


def stored(folder: str) -> list[Stored]:
    """What is in a folder of checkpoints, the oldest first."""
    found = [_stored(folder, name) for name in files.list_folder(folder) if NAME.fullmatch(name)]
    return with_chains(found)


def _stored(parent: str, name: str) -> Stored:
    folder = files.join(parent, name)
    if not files.exists(files.join(folder, manifest.NAME)):
        problem = f"{folder} has no {manifest.NAME}: it was never completed"
        return Stored(name, folder, None, problem, complete=False)
    try:
        return Stored(name, folder, manifest.read(folder, CheckpointManifest), None)
    except Failure as error:
        return Stored(name, folder, None, str(error))


def with_chains(found: list[Stored]) -> list[Stored]:
    """The same with the problem of each whose chain of parents is broken. Ascending steps."""
    usable: dict[str, Stored] = {}
    checked = []
    for one in found:
        problem = one.problem or broken_link(one, usable)
        if problem is None:
            usable[one.name] = one
            checked.append(one)
        else:
            checked.append(replace(one, problem=problem))
    return checked


def broken_link(one: Stored, usable: dict[str, Stored]) -> str | None:
    """Why a delta cannot be read from the usable checkpoints before it; None when it can."""
    if one.manifest is None or one.manifest.parent is None:
        return None
    parent = usable.get(one.manifest.parent.folder)
    if parent is None or parent.manifest is None:
        return f"{one.folder} is a delta of {one.parent}, which is not there or damaged"
    if one.manifest.parent.sha256 != parent.manifest.sha256:
        return f"{one.folder} is a delta of another {one.parent} than the one that is there"
    return None


@dataclass(frozen=True)
class Entry:
    """One checkpoint as `tnctl checkpoint list` tells of it."""

    name: str
    folder: str
    step: int
    day: str | None
    kind: str
    parent: str | None
    rows: int
    bytes: int
    saved: str | None  # when, in ISO 8601
    monitor: str | None
    value: float | None  # of the monitored metric, at its last evaluation
    finished: bool
    best: bool
    problem: str | None


def entries(found: list[Stored]) -> list[Entry]:
    """What manifests and the newest conf tell of checkpoints, the oldest first."""
    best, monitor = best_steps(found), monitored(found)
    return [
        Entry(
            name=one.name,
            folder=one.folder,
            step=one.step,
            day=one.day,
            kind="delta" if one.parent else "full",
            parent=one.parent,
            rows=one.rows,
            bytes=one.bytes,
            saved=None if one.manifest is None else one.manifest.saved,
            monitor=monitor,
            value=value_of(one, monitor),
            finished=one.manifest is not None and one.manifest.finished,
            best=one.step in best,
            problem=one.problem,
        )
        for one in found
    ]


def monitored(found: list[Stored]) -> str | None:
    """The metric that the newest usable checkpoint's conf monitors; None where it is damaged."""
    newest = newest_usable(found)
    if newest is not None and newest.manifest is not None:
        with contextlib.suppress(Failure):
            evaluation = Checkpoint(newest.folder, newest.manifest).conf().get("evaluation")
            monitor = evaluation.get("monitor") if isinstance(evaluation, dict) else None
            return monitor if isinstance(monitor, str) else None
    return None


def newest_usable(found: list[Stored]) -> Stored | None:
    """The newest checkpoint that has no problem."""
    return next((one for one in reversed(found) if one.problem is None), None)


def value_of(one: Stored, monitor: str | None) -> float | None:
    """The monitored metric at the last evaluation before a checkpoint."""
    if one.manifest is None or monitor is None or not one.manifest.metrics.evaluations:
        return None
    return one.manifest.metrics.evaluations[-1].figure(monitor)


def best_steps(found: list[Stored]) -> set[int]:
    """The step of the best model so far, by the newest usable manifest."""
    newest = newest_usable(found)
    if newest is None or newest.manifest is None:
        return set()
    watch = newest.manifest.metrics.watch
    return set() if watch.best is None else {watch.best_step}


def folder_meant(url: str) -> tuple[str, str | None]:
    """The folder of checkpoints that a URL means, and the name of the one in it, if it is one.

    A URL is a run's output, its folder of checkpoints, or the folder of one checkpoint.
    """
    above, name = split(url)
    if NAME.fullmatch(name) or files.exists(files.join(url, manifest.NAME)):
        return above, name
    if any(NAME.fullmatch(entry) for entry in files.list_folder(url)):
        return url, None
    return files.join(url, FOLDER), None


def all_meant(url: str) -> list[Stored]:
    """The checkpoints of an output or of a folder of them. Raises Failure when there is none."""
    folder, name = folder_meant(url)
    if name is not None:
        raise UserError(f"{url} is one checkpoint. Give the output of its run, or {folder}")
    found = stored(folder)
    if not found:
        raise Failure(f"{url} has no checkpoint. Give the output of a run, or check the URL")
    return found


def one_meant(url: str, usable: bool = True) -> str:
    """The folder of the checkpoint that a URL means: itself, or the newest usable one of a run.

    A damaged one is left out with a word; unless `usable`, it is what is meant. Raises Failure
    when there is none.
    """
    if folder_meant(url)[1] is not None:
        return url.rstrip("/")
    found = all_meant(url)
    damage: str | None = None
    for one in reversed(found):
        if one.problem is None or (one.complete and not usable):
            if damage is not None:
                say(f"{damage}; going on with {one.folder}")
            return one.folder
        if one.complete:
            damage = damage or one.problem
    raise Failure(f"{url} has no usable checkpoint: {damage or found[-1].problem}")
