"""Which checkpoint a run goes on from: its newest whole one, or one that it goes back to."""

import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tnctl import files, manifest, ownership
from tnctl.checkpoint import dense_file, listing
from tnctl.checkpoint.chain import FOLDER as CHECKPOINTS
from tnctl.checkpoint.chain import (
    Checkpoint,
    name_of,
    newest_first,
    open_checkpoint,
    split,
)
from tnctl.checkpoint.listing import Stored
from tnctl.data.day_records import Fingerprint
from tnctl.data.days import calendar, conf_of_day
from tnctl.data.sources import Source
from tnctl.data.units import units_again
from tnctl.errors import Failure, UserError, quoted
from tnctl.limits import is_plain
from tnctl.manifest import DamagedError
from tnctl.masking import bare, is_masked
from tnctl.ownership import CHECKPOINT
from tnctl.progress import say
from tnctl.schema import Conf
from tnctl.training import run_folder, schedule
from tnctl.training.plan import nothing_whole
from tnctl.training.run_folder import (
    PAGE,
    REPORT,
    ROLLED_BACK,
    TENSORBOARD,
    Log,
    finished,
    refuse_no_folders,
)
from tnctl.training.state import FROM_SCRATCH, RunState, saved_sums

if TYPE_CHECKING:  # it imports TensorFlow
    from tnctl.model.building import Model

# What the user can do when the data of the pass under way is not available unchanged.
WAY_ON = (
    "go back to a checkpoint at the end of a pass (tnctl checkpoint list, tnctl rollback), or "
    f"{FROM_SCRATCH}"
)
NAMED = 20  # checkpoints that an error lists


def load_newest(
    conf: Conf,
    checkpoint: Checkpoint,
    load: Callable[[Checkpoint, Conf], "Model"],
    damaged: Sequence[str] = (),
) -> "tuple[Checkpoint, Model]":
    """The checkpoint to resume from, `checkpoint` or an older one, and its model.

    When its files are damaged the one before is taken, and so on, and that is reported; those that
    are passed over, and newer ones that are `damaged`, are moved to `damaged` under the output.
    Raises Failure when none is left, or when data has changed in the middle of which training was
    stopped.
    """
    damage: DamagedError | None = None
    passed = list(damaged)
    for folder in newest_first(files.join(conf.output, CHECKPOINTS)):
        if folder <= checkpoint.folder:
            try:
                candidate = open_checkpoint(folder)
                check_data(conf, candidate)
                saved_sums(candidate, classes=True)  # damage must be found before `passed` is
                model = load(candidate, conf)
            except DamagedError as error:
                say(str(error))
                damage = damage or error
            else:
                for unusable in passed:
                    set_aside(conf.output, unusable)
                return candidate, model
            passed.append(folder)
    assert damage is not None
    raise nothing_whole(conf.output, damage)


def set_aside(output: str, folder: str) -> None:
    """Move a checkpoint that cannot be used to `damaged`."""
    to = run_folder.set_aside(output, folder, run_folder.DAMAGED)
    if to is None:
        say(f"{folder} cannot be used, and stays: it has no file that a checkpoint can have")
    else:
        say(f"{folder} cannot be used, and is now {to}")


def check_data(conf: Conf, checkpoint: Checkpoint) -> None:
    """Raise Failure when data has changed in the middle of which a checkpoint was saved.

    Data of completed passes is not read again, and may change.
    """
    if not checkpoint.data:
        return
    # An earlier tnctl named the files of a glob by whole paths.
    source = Source(conf, "train")
    data = [replace(file, file=source.saved_name(file.file)) for file in checkpoint.data]
    earlier = {file.file: file for file in bare(data)}
    position = checkpoint.position
    source_now = Source(conf_of_day(conf, position.day), "train")
    try:
        fingerprints_now = source_now.fingerprints()
    except files.AbsentError as error:
        names = [source.url_of(file.file) for file in data if is_plain(file.file)]
        names = [name for name in names if not is_masked(name) and not files.exists(name)]
        if not names:
            raise
        raise Failure(
            f"{names[0]} is missing, and training stopped in the middle of it. Put it back, or "
            f"{WAY_ON}"
        ) from error
    current = {file.file: file for file in bare(list(fingerprints_now))}
    for name in [*earlier, *current]:
        if earlier.get(name) != current.get(name):
            raise Failure(
                f"{name} differs from when training stopped in the middle of the data: it was "
                f"{_in_words(earlier.get(name))}, and is {_in_words(current.get(name))}. Put the "
                f"old one back, or {WAY_ON}"
            )
    if list(earlier) != list(current):
        raise Failure(
            "the files of data.train come in another order than before training stopped. Name "
            f"them in the earlier order, or {WAY_ON}"
        )
    if position.units is not None:
        units_again(source_now, position.units, WAY_ON)


def _in_words(fingerprint: Fingerprint | None) -> str:
    if fingerprint is None:
        return "not among the files of data.train"
    size = "unknown" if fingerprint.bytes is None else f"{fingerprint.bytes:,}"
    words = f"of {size} bytes"
    if fingerprint.etag is not None:
        return f"{words} with etag {quoted(fingerprint.etag)}"
    modified = fingerprint.modified
    if isinstance(modified, int):
        with contextlib.suppress(ValueError, OverflowError, OSError):  # beyond the calendar
            modified = datetime.fromtimestamp(modified / 1e9, UTC).isoformat(sep=" ")
    return words if modified is None else f"{words}, modified {modified}"


def state_of(conf: Conf, checkpoint: Checkpoint, more: bool) -> RunState:
    """The state of a run that is resumed, with `more` passes than it was begun with.

    The best model is one whose checkpoint is still there.
    """
    state = RunState.restored(checkpoint, conf.train.loss)
    if state.trained and more:
        state.trained, state.recalibrated = False, None
    stopping, lost = state.stopping, state.stopping.best_step
    if not schedule.keeps_best(conf) or state.trained or stopping.best is None:
        return state
    if newest_whole(conf.output, lost, names_of_chain(checkpoint.folder)) is None:
        stopping.best, stopping.best_step = None, 0
        say(f"the best model, of step {lost:,}, is lost; the next evaluation counts as the best")
    return state


def newest_whole(output: str, step: int, needed: Collection[str], read: bool = False) -> str | None:
    """The newest checkpoint of a step that a model can be loaded from, None without one.

    Files must be there with their sizes and, with `read`, with their checksums. A damaged
    checkpoint is reported and set aside, unless its name is one of `needed`.
    """
    for folder in newest_first(files.join(output, CHECKPOINTS)):
        name = split(folder)[1]
        if not name.startswith(name_of(step)):
            continue
        try:
            _check_whole(open_checkpoint(folder), read)
        except DamagedError as error:
            say(str(error))
            if name in needed:
                return None
            set_aside(output, folder)
        else:
            return folder
    return None


def _check_whole(checkpoint: Checkpoint, read: bool) -> None:
    """Raise DamagedError unless all files that a model is loaded from are whole."""
    for link in checkpoint.chain():
        tables = link.manifest.tables
        names = [entry.file for table in tables for entry in table.files]
        if link is checkpoint:
            names += [entry.file for table in tables for entry in table.all_sketch_files]
            names.append(dense_file.NAME)
        for name in names:
            with manifest.present(link.folder, link.manifest, name):
                if read:
                    manifest.check_stored(link.folder, link.manifest, name, "Take another")
                    continue
                url, expected = files.join(link.folder, name), link.manifest.files[name].bytes
                if (size := files.size(url)) != expected:
                    what = f"{url} is damaged: {size:,} bytes, the manifest says {expected:,}"
                    raise DamagedError(link.folder, what, "Take another checkpoint")


def names_of_chain(folder: str) -> set[str]:
    """The names of a checkpoint and of those that it is built on, none when it is damaged."""
    try:
        return {link.name for link in open_checkpoint(folder).chain()}
    except Failure:
        return set()


def roll_back(output: str, step: int | None, day: str | None) -> tuple[Checkpoint, list[str]]:
    """The checkpoint of a step, or of the end of a day, and where the later ones are now.

    The run is then as it was when that checkpoint was saved. If this is interrupted, the same call
    completes it; training would resume from the newest checkpoint that is left. Raises UserError
    when there is no such checkpoint, or no log of a run beside its results, Failure when a later
    checkpoint cannot be moved, and while another process trains into the output.
    """
    if not files.list_folder(files.join(output, CHECKPOINTS)):
        raise Failure(f"{output} has no checkpoint. Give the output of a run")
    with files.locked(output):
        refuse_no_folders(output)
        checkpoints = listing.stored(files.join(output, CHECKPOINTS))
        target, content = _meant(output, checkpoints, step, day)
        later = [entry for entry in checkpoints if entry.name > target.name]
        for entry in later:
            if entry.complete and files.is_link(entry.folder):
                raise _stays(entry.folder, "is a symbolic link")
        run_folder.refuse_foreign(output)
        report = finished(output)
        if report is None or files.join(output, report.checkpoint) != target.folder:
            # First: a run without a report is one to be trained, whatever is done of the rest.
            for name in (REPORT, PAGE):
                files.remove_file(files.join(output, name))
        moved = [_moved(output, entry) for entry in reversed(later) if entry.complete]
        for entry in later:
            ownership.remove_known(entry.folder, CHECKPOINT)  # what was never completed
        Log(output, content.manifest.metrics.log_lines)
        if files.list_folder(files.join(output, TENSORBOARD)):
            from tnctl.training.report.tensorboard import EventFile

            EventFile(output, content.manifest.steps_trained).close()
        return content, moved


def _moved(output: str, entry: Stored) -> str:
    """Where a checkpoint is after it is set aside."""
    to = run_folder.set_aside(output, entry.folder, ROLLED_BACK)
    if to is None:
        raise _stays(entry.folder, "has no file that a checkpoint can have")
    return to


def _stays(folder: str, why: str) -> Failure:
    return Failure(f"{folder} {why}, and is not moved. Move it away, and run the command again")


def _meant(
    output: str, checkpoints: Sequence[Stored], step: int | None, day: str | None
) -> tuple[Stored, Checkpoint]:
    """The newest usable checkpoint of a step, or of the end of a day. Raises UserError."""
    usable = [entry for entry in checkpoints if entry.problem is None]
    if not usable:
        raise Failure(f"{output} has no usable checkpoint: {checkpoints[-1].problem}")
    for entry in reversed(usable):
        is_meant = entry.step == step if day is None else is_same(ended_day(entry), day)
        if is_meant and entry.manifest is not None:
            return entry, Checkpoint(entry.folder, entry.manifest)
    what = f"of step {step:,}" if day is None else f"of the end of day {day}"
    kept = ", ".join(map(in_words, usable[-NAMED:]))
    older = f"{len(usable) - NAMED:,} older ones, " if len(usable) > NAMED else ""
    raise UserError(f"{output} has no checkpoint {what}. It has {older}{kept}")


def ended_day(entry: Stored) -> str:
    """The last whole day that a checkpoint was trained on; empty in the middle of one."""
    days = () if entry.manifest is None else entry.manifest.days
    return days[-1].day if days and days[-1].last_step is not None else ""


def is_same(day: str, other: str) -> bool:
    """Whether two names are of one day, as 2024-01-31 and 20240131 are."""
    return (calendar(day) or day) == (calendar(other) or other)


def in_words(entry: Stored) -> str:
    """A checkpoint by its step and day."""
    if entry.day is None:
        return f"step {entry.step:,}"
    return f"step {entry.step:,} ({'end of' if ended_day(entry) else 'in'} {entry.day})"
