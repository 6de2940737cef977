"""The checkpoints of a run: staged while training pauses, completed while it continues."""

import dataclasses
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl import files, ownership
from tnctl.checkpoint import listing, rows, tombstones
from tnctl.checkpoint.chain import FOLDER, Checkpoint, following, name_of
from tnctl.checkpoint.document import CheckpointManifest
from tnctl.checkpoint.golden_lines import GoldenLine
from tnctl.checkpoint.merging import Keys
from tnctl.checkpoint.pruning import prune
from tnctl.checkpoint.spool import Spool
from tnctl.checkpoint.staging import Contents, InferenceGraph, stage, write_golden
from tnctl.errors import Failure
from tnctl.manifest import NAME, DamagedError
from tnctl.model.building import Model
from tnctl.ownership import CHECKPOINT
from tnctl.progress import say, size
from tnctl.schema import Conf


class Saver:
    """Saves the checkpoints of a run, one after the other, and removes old ones.

    `last` is the checkpoint that the run is resumed from: deltas are built on it. None: a new run.
    """

    def __init__(self, conf: Conf, last: Checkpoint | None) -> None:
        self._conf, self._last = conf, last
        earlier = () if last is None else last.sessions
        # Two runs have the same steps: exports tell their checkpoints apart by the sessions.
        self._sessions = (*earlier, (uuid.uuid4().hex, self._first_step()))
        self._parent = files.join(conf.output, FOLDER)
        self._remote = files.local_path(conf.output) is None
        spool = conf.save.spool or tempfile.gettempdir()
        self._spool = files.local_path(spool) or Path(spool)
        self._graph = InferenceGraph()
        self._names: set[str] | None = None  # of folders, once they were listed
        # Keys that were removed since the last checkpoint, by the tables' names.
        self._removed: dict[str, NDArray[Any]] = {}
        self._protected: int | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.seconds_stalled = self.seconds_waited = 0.0
        self.bytes_written = 0

    def check_room(self, model: Model) -> None:
        """Raise Failure when not even a checkpoint of the initial model can be staged.

        Called before the first step, so that this is reported before hours of training. First the
        checkpoints that killed processes did not complete are removed, which frees space.
        """
        self._clean()
        if self._remote:
            try:
                # Only to see that a folder can be made in save.spool.
                Spool(self._parent, self._spool).abandon()
            except Failure as error:
                raise Failure(f"save.spool: {error}") from error
        self._check_free_space(model, self._parent_of_next())

    def save(
        self, model: Model, contents: Contents, *, full: bool = False, name_step: int | None = None
    ) -> str:
        """Stage a checkpoint and return its folder, relative to the output.

        When this returns, training may continue; `wait` returns when the checkpoint is complete.
        It is a delta when `save.full_every` says so, unless it must be `full`: whenever the model
        is not what the last checkpoint became by training. `calendar` and `sessions` of `contents`
        are filled in. `name_step` is the step that the folder is named after, when training went
        further than the model's clock. First waits for the checkpoint before: raises Failure for
        what went wrong with that one, and when there is no room.
        """
        self.wait()
        started = time.perf_counter()
        self._clean()
        parent = None if full else self._parent_of_next()
        self._check_free_space(model, parent)
        step = contents.clock.step
        contents = dataclasses.replace(
            contents, calendar=self._calendar(step), sessions=self._sessions
        )
        name = self._free_name(step if name_step is None else name_step)
        spool = Spool(files.join(self._parent, name), self._spool)
        try:
            content = stage(
                spool.writing,
                model,
                contents,
                self._graph,
                parent=parent,
                removed=self._tombstones(model, contents, parent),
                suffix=".zst" if self._conf.save.compression == "zstd" else "",
            )
        except BaseException:
            spool.abandon()
            raise
        self._thread = threading.Thread(
            target=self._complete,
            args=(spool, content, contents.golden, parent, self._protected),
            name="tnctl-commit",
            daemon=True,
        )
        self._thread.start()
        self.seconds_stalled += time.perf_counter() - started
        return f"{FOLDER}/{name}"

    def protect(self, step: int | None) -> None:
        """From the next `save` on, keep the checkpoints of the best step whatever their age."""
        self._protected = step

    def check(self) -> None:
        """Raise the error of the last checkpoint, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait(self) -> None:
        """Return when the last checkpoint is complete. Raises its error, once."""
        if self._thread is not None:
            started = time.perf_counter()
            self._thread.join()
            self._thread = None
            self.seconds_waited += time.perf_counter() - started
        self.check()

    def _complete(
        self,
        spool: Spool,
        content: CheckpointManifest,
        golden: list[GoldenLine],
        parent: Checkpoint | None,
        protected: int | None,
    ) -> None:
        """Complete a staged checkpoint while training continues; runs in a thread."""
        try:
            try:
                write_golden(spool.writing, golden)
                manifest = spool.complete(content)
            except BaseException:
                spool.abandon()
                raise
            self._last = following(parent, spool.folder, manifest)
            self._removed.clear()
            self.bytes_written += spool.bytes
            if self._conf.save.keep:
                steps = () if protected is None else (protected,)
                prune(self._conf.output, self._conf.save.keep, steps)
        except BaseException as error:
            self._error = error  # `wait` and `check` raise it

    def _parent_of_next(self) -> Checkpoint | None:
        """What the next checkpoint is a delta of; None when a full one is due."""
        if self._last is None or len(self._last.chain()) >= self._conf.save.full_every:
            return None
        return self._last

    def _free_name(self, step: int) -> str:
        """A name for the folder; a second checkpoint of a step takes -02, which sorts after it."""
        assert self._names is not None
        name, number = name_of(step), 1
        while name in self._names:
            number += 1
            name = f"{name_of(step)}-{number:02d}"
        self._names.add(name)
        return name

    def _first_step(self) -> int:
        """The first step after the last checkpoint."""
        return 1 if self._last is None else self._last.step + 1

    def _clean(self) -> None:
        """Once: remove the checkpoints that killed processes did not complete."""
        if self._names is not None:
            return
        self._names = set()
        for name in files.list_folder(self._parent):
            folder = files.join(self._parent, name)
            if listing.NAME.fullmatch(name) and not files.exists(files.join(folder, NAME)):
                ownership.remove_inner(folder, CHECKPOINT)
            if files.lies_at(folder):
                self._names.add(name)

    def _check_free_space(self, model: Model, parent: Checkpoint | None) -> None:
        """Raise Failure when the files will not fit where they are staged."""
        local = files.local_path(self._conf.output)
        place, key = (self._spool, "save.spool") if local is None else (local, "output")
        needed = 4 * sum(model.dense.sizes) * (2 + len(model.dense.states))
        needed += sum(len(table.sketch) for table in model.tables)
        if parent is None:  # how many rows a delta has is known only when it is written
            needed += sum(table.rows * table.record_dtype.itemsize for table in model.tables)
        free = files.free_bytes(place)
        if free < needed:
            raise Failure(
                f"{place}: no space is left there for a checkpoint ({size(free)} of "
                f"{size(needed)}). "
                f"Free some, or choose another folder: {key}=FOLDER"
            )

    def _tombstones(
        self, model: Model, contents: Contents, parent: Checkpoint | None
    ) -> dict[str, Iterable[NDArray[Any]]]:
        """The removed keys to keep, by the tables' names: arrays [n] of REMOVED_DTYPE.

        In a delta those since its parent, in a full one also those that the last one has and that
        are not too old; without keys that have a row again.
        """
        kept: dict[str, Iterable[NDArray[Any]]] = {}
        days = contents.clock.days or contents.calendar
        first = tombstones.first_step_kept(days, self._conf.save.tombstone_days)
        for layout, table in zip(model.layout.tables, model.tables, strict=True):
            keys = Keys({number: name for name, number in layout.groups.items()})
            removed = table.take_removed()
            if (earlier := self._removed.get(layout.name)) is not None:
                both = tombstones.merged([removed], [earlier], keys)
                removed = np.concatenate([removed[:0], *both])
            if len(removed):
                self._removed[layout.name] = removed
            older: Iterable[NDArray[Any]] = ()
            if parent is None and self._last is not None:
                older = self._kept_by(self._last, layout.name, first)
            # `removed` is kept whatever its steps: a day without rows adds no step.
            newest = tombstones.merged([removed], older, keys)
            kept[layout.name] = tombstones.without_rows(newest, table)
        return kept

    @staticmethod
    def _kept_by(checkpoint: Checkpoint, table: str, first: int) -> Iterator[NDArray[Any]]:
        """The removed keys that a checkpoint has from a step on, as far as they can be read."""
        try:
            for removed in rows.tombstones(checkpoint, table):
                yield removed[removed["step"] >= first]
        except DamagedError as error:
            # Training does not depend on them.
            say(f"{error.what}: keys that were removed from {table} before are forgotten")

    def _calendar(self, step: int) -> tuple[tuple[int, int], ...]:
        """The days of the real calendar on which the run trained: (day, first step)."""
        earlier = () if self._last is None else self._last.calendar
        today = datetime.now(UTC).date().toordinal()
        if earlier and earlier[-1][0] >= today:
            return earlier
        # The model to be saved, the best, may be of an earlier step than the last checkpoint.
        first = max(min(self._first_step(), step), earlier[-1][1] if earlier else 0)
        return (*earlier, (today, first))[-self._conf.save.tombstone_days - 1 :]
