"""The checkpoints of a run: staged while training pauses, completed while it continues."""

import contextlib
import dataclasses
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from tnctl import files, ownership
from tnctl.checkpoint import listing, pruning
from tnctl.checkpoint.chain import FOLDER, Checkpoint, following, name_of
from tnctl.checkpoint.document import CheckpointManifest
from tnctl.checkpoint.golden_lines import GoldenLine
from tnctl.checkpoint.owners import (
    EarlierTombstones,
    LocalOwners,
    Owners,
    PartRequest,
    PartSize,
    StagedPart,
    merged_files,
    named,
    spool_of,
)
from tnctl.checkpoint.rows import first_step_kept
from tnctl.checkpoint.spool import Spool
from tnctl.checkpoint.staging import Contents, InferenceGraph, stage, write_golden
from tnctl.errors import Failure
from tnctl.limits import size
from tnctl.manifest import NAME, FileEntry
from tnctl.model.building import Model
from tnctl.ownership import CHECKPOINT
from tnctl.schema import Conf


class Saver:
    """Saves the checkpoints of a run, one after the other, and removes old ones.

    `last` is the checkpoint that the run is resumed from: deltas are built on it. None: a new run.
    `owners` have the rows; by default this process has all. Only this process writes the
    manifest and removes checkpoints.
    """

    def __init__(self, conf: Conf, last: Checkpoint | None, owners: Owners | None = None) -> None:
        self._conf, self._last = conf, last
        self._owners = LocalOwners(conf) if owners is None else owners
        earlier = () if last is None else last.sessions
        # Two runs have the same steps: exports tell their checkpoints apart by the sessions.
        self._sessions = (*earlier, (uuid.uuid4().hex, self._first_step()))
        self._parent = files.join(conf.output, FOLDER)
        self._spool = spool_of(conf.save)
        self._graph = InferenceGraph()
        self._names: set[str] | None = None  # of folders, once they were listed
        self._protected: int | None = None
        # Not the thread: after a signal handler has raised in its `join`, Python 3.11 takes the
        # thread for ended.
        self._completed: threading.Event | None = None
        self._error: BaseException | None = None
        self.seconds_stalled = self.seconds_waited = 0.0
        self.bytes_written = 0

    def check_room(self, model: Model) -> None:
        """Raise Failure when not even a checkpoint of the initial model can be staged.

        Called before the first step, so that this is reported before hours of training. First the
        checkpoints that killed processes did not complete are removed, which frees space.
        """
        self._clean()
        self._measured(model, self._parent_of_next())

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
        sizes = self._measured(model, parent)
        step = contents.clock.step
        contents = dataclasses.replace(
            contents, calendar=self._calendar(step), sessions=self._sessions
        )
        name = self._free_name(step if name_step is None else name_step)
        requests = self._requests(name, model, contents, parent, sizes)
        spool = Spool(files.join(self._parent, name), self._spool)
        try:
            staged = self._owners.stage(model, requests)
            content = stage(spool.writing, model, contents, self._graph, staged, parent=parent)
        except BaseException:
            self._abandon(spool)
            raise
        self._completed = threading.Event()
        thread = threading.Thread(
            target=self._complete,
            args=(spool, content, staged, contents.golden, parent),
            kwargs={"protected": self._protected, "completed": self._completed},
            name="tnctl-commit",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError:  # no more threads
            self._completed = None
            self._abandon(spool)
            raise
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
        if self._completed is not None:
            started = time.perf_counter()
            self._completed.wait()
            self._completed = None
            self.seconds_waited += time.perf_counter() - started
        self.check()

    def _complete(
        self,
        spool: Spool,
        content: CheckpointManifest,
        staged: Sequence[StagedPart],
        golden: list[GoldenLine],
        parent: Checkpoint | None,
        *,
        protected: int | None,
        completed: threading.Event,
    ) -> None:
        """Complete a staged checkpoint while training continues; runs in a thread."""
        try:
            try:
                write_golden(spool.writing, golden)
                written = self._owners.finish()
                entries = merged_files(staged, written)
                if len(written) > 1:
                    check_there(spool.folder, entries)
                spool.include(entries)
                manifest = spool.complete(content)
            except BaseException:
                self._abandon(spool)
                raise
            self._last = following(parent, spool.folder, manifest)
            self._owners.committed()
            self.bytes_written += spool.bytes
            if self._conf.save.keep:
                steps = () if protected is None else (protected,)
                pruning.prune(self._conf.output, self._conf.save.keep, steps)
        except BaseException as error:
            self._error = error  # `wait` and `check` raise it
        finally:
            completed.set()

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
                ownership.remove_known(folder, CHECKPOINT)
            if files.lies_at(folder):
                self._names.add(name)

    def _abandon(self, spool: Spool) -> None:
        """Drop what was staged of a checkpoint. The caller raises what went wrong first."""
        try:
            with contextlib.suppress(Failure):
                self._owners.abandon()
        finally:
            spool.abandon()

    def _measured(self, model: Model, parent: Checkpoint | None) -> list[PartSize]:
        """The sizes of the owners' parts. Raises Failure when they will not fit."""
        sizes = self._owners.measure(model, is_delta=parent is not None)
        dense = 4 * sum(model.dense.sizes) * (2 + len(model.dense.states))
        if (local := files.local_path(self._conf.output)) is not None:
            needed = dense + sum(part.bytes for part in sizes)
            require_room(str(local), files.free_bytes(local), needed, "output")
            return sizes
        for rank, part in enumerate(sizes):
            assert part.place is not None and part.free is not None
            owner = part.owner or f"worker {rank}"
            place = part.place if len(sizes) == 1 else f"{owner}: {part.place}"
            needed = part.bytes + (dense if rank == 0 else 0)
            require_room(place, part.free, needed, "save.spool")
        return sizes

    def _requests(
        self,
        name: str,
        model: Model,
        contents: Contents,
        parent: Checkpoint | None,
        sizes: Sequence[PartSize],
    ) -> list[PartRequest]:
        """What each owner is to write into the checkpoint of this name."""
        earlier: EarlierTombstones | None = None
        if parent is None and self._last is not None and has_tombstones(self._last):
            # A delta has the keys removed since its parent, a full checkpoint older ones too.
            days = contents.clock.days or contents.calendar
            first = first_step_kept(days, self._conf.save.tombstone_days)
            earlier = EarlierTombstones(folder=self._last.name, first_step=first)
        suffix = ".zst" if self._conf.save.compression == "zstd" else ""
        tables = [layout.name for layout in model.layout.tables]
        return [
            PartRequest(
                folder=name,
                step=contents.clock.step,
                changed_from=0 if parent is None else parent.step + 1,
                tables=names,
                earlier=earlier,
            )
            for names in named(tables, sizes, suffix)
        ]

    def _calendar(self, step: int) -> tuple[tuple[int, int], ...]:
        """The days of the real calendar on which the run trained: (day, first step)."""
        earlier = () if self._last is None else self._last.calendar
        today = datetime.now(UTC).date().toordinal()
        if earlier and earlier[-1][0] >= today:
            return earlier
        # The model to be saved, the best, may be of an earlier step than the last checkpoint.
        first = max(min(self._first_step(), step), earlier[-1][1] if earlier else 0)
        return (*earlier, (today, first))[-self._conf.save.tombstone_days - 1 :]


def has_tombstones(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint, or one that it is built on, has removed keys; also if one is lost."""
    try:
        tables = [table for link in checkpoint.chain() for table in link.manifest.tables]
    except Failure:
        return True
    return any(entry.rows for table in tables for entry in table.removed_files)


def require_room(place: str, free: int, needed: int, key: str) -> None:
    """Raise Failure when a folder, which the key of the conf names, has not the bytes needed."""
    if free < needed:
        raise Failure(
            f"{place}: no space is left there for a checkpoint ({size(free)} of "
            f"{size(needed)}). "
            f"Free some, or choose another folder: {key}=FOLDER"
        )


def check_there(folder: str, entries: Mapping[str, FileEntry]) -> None:
    """Raise Failure unless files that other processes wrote are in a folder, with their sizes."""
    for name, entry in entries.items():
        url = files.join(folder, name)
        if not files.exists(url) or files.size(url) != entry.bytes:
            raise Failure(
                f"{url} is not there as the worker that wrote it says. All workers need the same "
                "output: give a folder that all machines share"
            )
