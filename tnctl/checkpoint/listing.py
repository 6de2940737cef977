"""The checkpoints of an output, as their manifests describe them, for lists and pruning."""

import contextlib
import re
from dataclasses import dataclass, replace

from tnctl import files, manifest
from tnctl.checkpoint.chain import FOLDER, Checkpoint, split
from tnctl.checkpoint.document import CheckpointManifest, number_of
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
    def model_step(self) -> int:
        """The step of the weights: the last checkpoint may have earlier weights."""
        return self.step if self.manifest is None else self.manifest.step

    @property
    def parent(self) -> str | None:
        """The name of the checkpoint that this one is a delta of."""
        if self.manifest is None or self.manifest.parent is None:
            return None
        return self.manifest.parent.folder

    @property
    def bytes(self) -> int:
        """The bytes of its files, without the manifest."""
        return 0 if self.manifest is None else self.manifest.total_bytes

    @property
    def day(self) -> str | None:
        """The name of the day that was trained last, or is being trained."""
        if self.manifest is None:
            return None
        days = self.manifest.days
        return days[-1].day if days else self.manifest.position.day


def stored(folder: str) -> list[Stored]:
    """What is in a folder of checkpoints, the oldest first."""
    entries: dict[str, Stored] = {}
    for name in filter(NAME.fullmatch, files.list_folder(folder)):
        entry = _stored(folder, name)
        entries[name] = replace(entry, problem=entry.problem or broken_link(entry, entries))
    return [*entries.values()]


def _stored(parent: str, name: str) -> Stored:
    folder = files.join(parent, name)
    if not files.exists(files.join(folder, manifest.NAME)):
        problem = f"{folder} has no {manifest.NAME}: it was never completed"
        return Stored(name, folder, None, problem, complete=False)
    try:
        return Stored(name, folder, manifest.read(folder, CheckpointManifest), None)
    except Failure as error:
        return Stored(name, folder, None, str(error))


def broken_link(delta: Stored, earlier: dict[str, Stored]) -> str | None:
    """Why a delta cannot be read from the checkpoints before it, by name; None when it can."""
    link = None if delta.manifest is None else delta.manifest.parent
    if link is None:
        return None
    parent = earlier.get(link.folder)
    if parent is None or parent.manifest is None or parent.problem is not None:
        return f"{delta.folder} is a delta of {link.folder}, which is not there or damaged"
    if link.sha256 != parent.manifest.sha256:
        return f"{delta.folder} is a delta of another {link.folder} than the one that is there"
    return None


@dataclass(frozen=True)
class Entry:
    """One checkpoint as `tnctl checkpoint list` shows it."""

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
    value: float | None  # of the monitored metric, of these weights or of their last day
    finished: bool
    best: bool
    problem: str | None


def entries(checkpoints: list[Stored]) -> list[Entry]:
    """What manifests and the newest conf say of checkpoints, the oldest first."""
    best, monitor = best_steps(checkpoints), monitored(checkpoints)
    return [
        Entry(
            name=checkpoint.name,
            folder=checkpoint.folder,
            step=checkpoint.step,
            day=checkpoint.day,
            kind="delta" if checkpoint.parent else "full",
            parent=checkpoint.parent,
            rows=0 if checkpoint.manifest is None else checkpoint.manifest.rows,
            bytes=checkpoint.bytes,
            saved=None if checkpoint.manifest is None else checkpoint.manifest.saved,
            monitor=monitor,
            value=value_of(checkpoint.manifest, monitor),
            finished=checkpoint.manifest is not None and checkpoint.manifest.finished,
            best=checkpoint.model_step in best,
            problem=checkpoint.problem,
        )
        for checkpoint in checkpoints
    ]


def newest_usable(checkpoints: list[Stored]) -> Checkpoint | None:
    """The newest checkpoint that has no problem."""
    for entry in reversed(checkpoints):
        if entry.problem is None and entry.manifest is not None:
            return Checkpoint(entry.folder, entry.manifest)
    return None


def monitored(checkpoints: list[Stored]) -> str | None:
    """The metric that the newest usable checkpoint's conf monitors; None where it is damaged."""
    newest = newest_usable(checkpoints)
    with contextlib.suppress(Failure):
        return None if newest is None else newest.conf()["evaluation"]["monitor"]
    return None


def value_of(content: CheckpointManifest | None, monitor: str | None) -> float | None:
    """The monitored metric of a checkpoint's weights; None where they were not evaluated.

    A run by days that evaluates nothing else has the metric of its last day, before it was trained.
    """
    if content is None or monitor is None:
        return None
    figures = content.validation
    if content.days and not content.metrics.evaluations:
        figures = content.days[-1].before
    return number_of(figures or {}, monitor)


def best_steps(checkpoints: list[Stored]) -> set[int]:
    """The step of the best model so far, by the newest usable manifest."""
    newest = newest_usable(checkpoints)
    if newest is None or newest.manifest.metrics.watch.best is None:
        return set()
    return {newest.manifest.metrics.watch.best_step}


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
    checkpoints = stored(folder)
    if not checkpoints:
        place = files.in_folder(url)
        raise Failure(f"{url} has no checkpoint{place}. Give the output of a run, or check the URL")
    return checkpoints


def one_meant(url: str, usable: bool = True) -> str:
    """The folder of the checkpoint that a URL means: itself, or the newest usable one of a run.

    Damaged ones are passed over, and the first is reported; unless `usable`, a damaged one is
    taken too. Raises Failure when there is none.
    """
    if folder_meant(url)[1] is not None:
        return url.rstrip("/")
    checkpoints = all_meant(url)
    damage: str | None = None
    for checkpoint in reversed(checkpoints):
        if checkpoint.problem is None or (checkpoint.complete and not usable):
            if damage is not None:
                say(f"{damage}; using {checkpoint.folder}")
            return checkpoint.folder
        if checkpoint.complete:
            damage = damage or checkpoint.problem
    raise Failure(f"{url} has no usable checkpoint: {damage or checkpoints[-1].problem}")
