"""The checkpoints of a run: staged while training stands still, completed while it goes on."""

import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl import files, ownership
from tnctl.checkpoint import listing, rows, tombstones
from tnctl.checkpoint.chain import FOLDER, Checkpoint, following, name_of
from tnctl.checkpoint.document import CheckpointManifest, Metrics
from tnctl.checkpoint.golden import GoldenLine
from tnctl.checkpoint.merging import Keys
from tnctl.checkpoint.pruning import prune
from tnctl.checkpoint.spool import Spool
from tnctl.checkpoint.staging import Clock, Contents, Graph, Position, stage, write_golden
from tnctl.data.day_records import DayRecord, Fingerprint
from tnctl.errors import Failure
from tnctl.manifest import NAME, DamagedError
from tnctl.model.building import Model
from tnctl.ownership import CHECKPOINT
from tnctl.progress import say, size
from tnctl.schema import Conf


class Saver:
    """Saves the checkpoints of a run, one after the other, and removes old ones.

    `last` is the checkpoint that training goes on from, None for a new run: deltas are built on it.
    """

    def __init__(self, conf: Conf, last: Checkpoint | None) -> None:
        self._conf, self._last = conf, last
        # By it exports know what a checkpoint came from: steps are equal in any two runs.
        before = () if last is None else last.sessions
        first = 1 if last is None else last.step + 1
        self._sessions = (*before, (uuid.uuid4().hex, first))
        self._parent = files.join(conf.output, FOLDER)
        self._remote = files.local_path(conf.output) is None
        spool = conf.save.spool or tempfile.gettempdir()
        self._spool = files.local_path(spool) or Path(spool)
        self._graph = Graph()
        self._names: set[str] | None = None  # of folders, once they were listed
        # Keys that were removed since the last checkpoint, by the tables' names.
        self._removed: dict[str, NDArray[Any]] = {}
        self._protected: int | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.seconds_stalled = self.seconds_waited = 0.0
        self.bytes_written = 0

    def check_room(self, model: Model) -> None:
        """Raise Failure when already a checkpoint of the model as it is cannot be staged.

        To be told before the first step, and not by the first checkpoint.
        """
        if self._names is None:
            self._clean()
        if self._remote:
            try:
                Spool(self._parent, self._spool).abandon()
            except Failure as error:
                raise Failure(f"save.spool: {error}") from error
        self._check_room(model, self._parent_of_next())

    def save(
        self,
        model: Model,
        *,
        clock: Clock,
        position: Position,
        finished: bool,
        golden: list[GoldenLine],
        metrics: Metrics,
        extras: Mapping[str, bytes] | None = None,
        data: Sequence[Fingerprint] = (),
        days: Sequence[DayRecord] = (),
        full: bool = False,
        name_step: int | None = None,
    ) -> str:
        """Stage a checkpoint and return its folder, relative to the output.

        When this returns, training may go on; `wait` tells when it is complete. It is a delta when
        `save.full_every` says so, unless it must be `full`: whenever the model is not what became
        of the last checkpoint by training. The one before is waited for first. `name_step` is the
        step that the folder is named after, when training went further than the model's clock.
        Raises Failure for what went wrong with that one, and when there is no room.
        """
        self.wait()
        started = time.perf_counter()
        if self._names is None:
            self._clean()
        parent = None if full else self._parent_of_next()
        self._check_room(model, parent)
        name = self._free_name(clock.step if name_step is None else name_step)
        spool = Spool(files.join(self._parent, name), self._spool)
        contents = Contents(
            clock,
            position,
            finished,
            golden,
            metrics,
            extras or {},
            data,
            days,
            self._calendar(clock.step),
            self._sessions,
        )
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
            args=(spool, content, golden, parent, self._protected),
            name="tnctl-commit",
            daemon=True,
        )
        self._thread.start()
        self.seconds_stalled += time.perf_counter() - started
        return f"{FOLDER}/{name}"

    def protect(self, step: int | None) -> None:
        """From the next `save` on, keep the checkpoints of this step, the best, whatever their age.

        None: of no step.
        """
        self._protected = step

    def check(self) -> None:
        """Raise what went wrong with the last checkpoint, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait(self) -> None:
        """Return when the last checkpoint is complete. Raises what went wrong with it, once."""
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
        """What is left to do while training goes on."""
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
            self._error = error  # of whoever waits

    def _parent_of_next(self) -> Checkpoint | None:
        """What the next checkpoint is a delta of; None when it is a full one's turn."""
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

    def _clean(self) -> None:
        """Remove what killed processes left of checkpoints that they did not complete."""
        self._names = set()
        for name in files.list_folder(self._parent):
            folder = files.join(self._parent, name)
            if listing.NAME.fullmatch(name) and not files.exists(files.join(folder, NAME)):
                ownership.remove_inner(folder, CHECKPOINT)
            if files.lies_at(folder):
                self._names.add(name)

    def _check_room(self, model: Model, parent: Checkpoint | None) -> None:
        """Raise Failure when the files will not fit where they are staged."""
        local = files.local_path(self._conf.output)
        place, key = (self._spool, "save.spool") if local is None else (local, "output")
        needed = 4 * sum(model.dense.sizes) * (2 + len(model.dense.states))
        for table in model.tables:
            needed += len(table.sketch)
            # How much of a table a delta is, is not known before.
            if parent is None:
                needed += table.rows * table.record_dtype.itemsize
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
        """The removed keys to keep, by the tables' names.

        In a delta those since its parent, in a full one also those that the last one has and that
        are not too old; without keys that have a row again.
        """
        kept: dict[str, Iterable[NDArray[Any]]] = {}
        first = tombstones.first_step_kept(
            contents.clock.days or contents.calendar, self._conf.save.tombstone_days
        )
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
                older = tombstones.since(self._kept_by(self._last, layout.name), first)
            # Those since the last checkpoint are kept whatever the clock says: an empty day has no
            # step of its own.
            found = tombstones.merged([removed], older, keys)
            kept[layout.name] = tombstones.without_rows(found, table)
        return kept

    @staticmethod
    def _kept_by(checkpoint: Checkpoint, table: str) -> Iterator[NDArray[Any]]:
        """The removed keys that a checkpoint has, as far as they can be read."""
        try:
            yield from rows.tombstones(checkpoint, table)
        except DamagedError as error:
            # Nothing that is trained depends on them.
            say(f"{error.what}: keys that were removed from {table} before are forgotten")

    def _calendar(self, step: int) -> tuple[tuple[int, int], ...]:
        """The days of the real calendar on which the run trained: (day, first step)."""
        before = () if self._last is None else self._last.calendar
        today = datetime.now(UTC).date().toordinal()
        if before and before[-1][0] >= today:
            return before
        first = 1 if self._last is None else self._last.step + 1
        # The best model may be of a step before those of the day before.
        first = max(min(first, step), before[-1][1] if before else 0)
        return (*before, (today, first))[-self._conf.save.tombstone_days - 1 :]
