"""Complete checkpoints: their folders and manifests, and the chains that deltas make."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tnctl import files, manifest, saved_conf, schema
from tnctl.checkpoint.document import (
    CheckpointManifest,
    Clock,
    Parent,
    Position,
    Sessions,
    Table,
)
from tnctl.checkpoint.golden_lines import GoldenLine, parse_lines
from tnctl.data.day_records import DayRecord, Fingerprint
from tnctl.data.statistics_document import Statistics
from tnctl.documents import DocumentError
from tnctl.errors import Failure
from tnctl.limits import MANIFEST_BYTES
from tnctl.manifest import DamagedError
from tnctl.masking import bare_conf
from tnctl.model.recipes import defaults_of
from tnctl.progress import say
from tnctl.schema import OF_SERVING

FOLDER = "checkpoints"
STEP = "step-"  # how the names of a run's checkpoints begin
CONF = "conf.json"
GOLDEN = "golden.jsonl"
EXTRA = "extra"


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: its folder and its verified manifest."""

    folder: str
    manifest: CheckpointManifest

    @property
    def name(self) -> str:
        """The name of its folder."""
        return split(self.folder)[1]

    @property
    def step(self) -> int:
        return self.manifest.step

    @property
    def step_in_words(self) -> str:
        """The step of the weights, and how many were trained if these are more."""
        trained = self.manifest.steps_trained
        of = f", the best of {trained:,}" if trained > self.step else ""
        return f"step {self.step:,}{of}"

    @property
    def clock(self) -> Clock:
        return self.manifest.clock

    @property
    def calendar(self) -> tuple[tuple[int, int], ...]:
        """The days of the real calendar on which the run trained: (day, first step)."""
        return self.manifest.calendar

    @property
    def sessions(self) -> Sessions:
        """The processes that trained it, each with its first step."""
        return self.manifest.sessions

    @property
    def position(self) -> Position:
        return self.manifest.position

    @property
    def days(self) -> list[DayRecord]:
        """The record of the days that were trained."""
        return list(self.manifest.days)

    @property
    def data(self) -> list[Fingerprint]:
        """The files of the pass under way, as they were when it began."""
        return list(self.manifest.data)

    @property
    def statistics(self) -> Statistics:
        return self.manifest.statistics

    def table(self, name: str) -> Table:
        """What the manifest says of a table."""
        for table in self.manifest.tables:
            if table.name == name:
                return table
        known = ", ".join(table.name for table in self.manifest.tables) or "none"
        raise Failure(f"{self.folder} has no table {name}. It has {known}")

    def damaged(self, what: str) -> DamagedError:
        """The error for something that is wrong in the checkpoint."""
        return DamagedError(self.folder, what, "Take another checkpoint")

    def conf(self) -> dict[str, Any]:
        """The conf it was trained with, as plain values (tnctl.saved_conf), with all keys.

        Raises DamagedError for a file that is not JSON, or that no command can have saved.
        """
        url = files.join(self.folder, CONF)
        with offering(self):
            text = manifest.read_file(self.folder, self.manifest, CONF, most=MANIFEST_BYTES)
            try:
                content = json.loads(text)
                if not isinstance(content, dict):
                    raise ValueError("not an object")
            except (ValueError, RecursionError) as error:
                raise self.damaged(f"{url} is no valid JSON: {error}") from error
            try:
                saved_conf.check(content)
            except saved_conf.ForeignValueError as error:
                raise self.damaged(
                    f"{url} was saved by a newer tnctl or another program: {error}"
                ) from error
        return completed(content)

    def golden(self) -> list[GoldenLine]:
        """The golden rows: raw rows with the model's inputs and outputs for them."""
        with offering(self):
            text = manifest.read_file(self.folder, self.manifest, GOLDEN)
            try:
                return parse_lines(text.splitlines())
            except DocumentError as error:
                raise self.damaged(f"{files.join(self.folder, GOLDEN)}, {error}") from error

    def extra(self, name: str) -> bytes | None:
        """The bytes that the run saved as `extra/<name>`, or None."""
        path = f"{EXTRA}/{name}"
        if path not in self.manifest.files:
            return None
        with offering(self):
            return manifest.read_file(self.folder, self.manifest, path, most=MANIFEST_BYTES)

    def chain(self) -> list["Checkpoint"]:
        """The full checkpoint that this one is built on, the deltas since, and this one.

        Raises DamagedError where one is missing, or is not the one it was.
        """
        return list(self._chain)

    @cached_property
    def _chain(self) -> tuple["Checkpoint", ...]:
        links = [self]
        while (parent := links[0].manifest.parent) is not None:
            links.insert(0, _parent_of(links[0], parent))
        return tuple(links)


def _parent_of(child: Checkpoint, parent: Parent) -> Checkpoint:
    """The checkpoint that a delta is built on."""
    folder = files.join(split(child.folder)[0], parent.folder)
    if not files.exists(files.join(folder, manifest.NAME)):
        what = f"{folder}, which is not there or not complete"
    elif (checkpoint := open_checkpoint(folder)).manifest.sha256 != parent.sha256:
        what = f"another {folder} than the one that is there"
    else:
        return checkpoint
    way = "Bring that one back, or take an earlier checkpoint"
    raise DamagedError(child.folder, f"{child.folder} is a delta of {what}", way)


def following(parent: Checkpoint | None, folder: str, manifest: CheckpointManifest) -> Checkpoint:
    """A checkpoint that was just written on `parent`: its chain is known, and not read again."""
    checkpoint = Checkpoint(folder, manifest)
    checkpoint.__dict__["_chain"] = (*(parent.chain() if parent else ()), checkpoint)
    return checkpoint


def split(folder: str) -> tuple[str, str]:
    """The folder that a checkpoint's folder is in, and its name."""
    above, slash, name = folder.rstrip("/").rpartition("/")
    return above or ("/" if slash else "."), name


def open_checkpoint(folder: str) -> Checkpoint:
    """The checkpoint in a folder. Raises Failure unless it is complete."""
    return Checkpoint(folder, manifest.read(folder, CheckpointManifest))


def newest(output: str) -> Checkpoint | None:
    """The newest complete checkpoint of a run, or None.

    One whose manifest is damaged, or the manifest of a checkpoint it is built on, is passed over
    and reported. Raises its DamagedError when there is no other.
    """
    damage: DamagedError | None = None
    for folder in newest_first(files.join(output, FOLDER)):
        try:
            checkpoint = open_checkpoint(folder)
            checkpoint.chain()
        except DamagedError as error:
            damage = damage or error
            continue
        if damage is not None:
            say(f"{damage}; using {folder}")
        return checkpoint
    if damage is not None:
        raise damage
    return None


def newest_first(parent: str) -> Iterator[str]:
    """The folders in a folder that have a manifest, by their names from the last to the first."""
    for name in reversed(files.list_folder(parent)):
        folder = files.join(parent, name)
        if files.exists(files.join(folder, manifest.NAME)):
            yield folder


def newest_or_fail(output: str) -> Checkpoint:
    """The newest complete checkpoint of a run. Raises Failure when there is none."""
    checkpoint = newest(output)
    if checkpoint is None:
        raise Failure(
            f"{output} has no complete checkpoint{files.in_folder(output)}. Train first (tnctl "
            f"train … output={output}), or name one with checkpoint=URL"
        )
    return checkpoint


def name_of(step: int) -> str:
    """The name of the (first) checkpoint of a step."""
    return f"{STEP}{step:010d}"


def before(checkpoint: Checkpoint, damaged: str) -> Checkpoint | None:
    """The newest complete checkpoint before one that does not need the folder `damaged`."""
    parent, name = split(checkpoint.folder)
    for folder in newest_first(parent):
        earlier = split(folder)[1]
        # Checkpoints of other names are of other runs.
        if earlier >= name or not (earlier.startswith(STEP) and name.startswith(STEP)):
            continue
        with contextlib.suppress(Failure):
            candidate = open_checkpoint(folder)
            if all(link.folder != damaged for link in candidate.chain()):
                return candidate
    return None


@contextlib.contextmanager
def offering(checkpoint: Checkpoint) -> Iterator[None]:
    """A DamagedError from inside the block offers the checkpoint before, if there is one."""
    try:
        yield
    except DamagedError as error:
        earlier = before(checkpoint, error.folder)
        if earlier is None:
            raise
        way = f"Take the one before it: checkpoint={earlier.folder}"
        raise DamagedError(error.folder, error.what, way) from error


def completed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values of a conf with all keys, and with all settings of its shipped recipe.

    A key that is absent has the value that the version without it worked by
    (`tnctl.schema.values.ABSENT`).
    """
    full = schema.completed(values)
    recipe = full["recipe"]
    if isinstance(recipe, Mapping):
        defaults = defaults_of(str(recipe.get("name"))).items()
        # Behind those that are there: a conf that is saved again keeps its order.
        full["recipe"] = {**recipe, **{key: value for key, value in defaults if key not in recipe}}
    return full


def differing_keys(values: Mapping[str, Any], saved: Mapping[str, Any]) -> list[str]:
    """The dotted keys whose values differ, of a conf and a saved one.

    Secrets of URLs do not, and what only matters to a split graph.
    """
    keys = schema.differences(bare_conf(completed(values)), bare_conf(completed(saved)))
    return [key for key in keys if not OF_SERVING.fullmatch(key)]
