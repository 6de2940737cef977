"""A run goes back to an earlier checkpoint: all that was saved, logged and reported later."""

from collections.abc import Sequence

from tnctl import files, ownership
from tnctl.checkpoint import listing
from tnctl.checkpoint.chain import FOLDER as CHECKPOINTS
from tnctl.checkpoint.chain import Checkpoint
from tnctl.checkpoint.listing import Stored
from tnctl.data.days import calendar
from tnctl.errors import Failure, UserError
from tnctl.ownership import CHECKPOINT, RUN, Claims
from tnctl.training.run_folder import (
    LOG,
    PAGE,
    REPORT,
    ROLLED_BACK,
    TENSORBOARD,
    finished,
    refuse_no_folders,
    set_aside,
)
from tnctl.training.run_log import Log

NAMED = 20  # checkpoints that an error lists


def roll_back(output: str, step: int | None, day: str | None) -> tuple[Checkpoint, list[str]]:
    """The checkpoint of a step, or of the end of a day, and where the later ones are now.

    The run is then as it was when that checkpoint was saved. If this is interrupted, the same call
    completes it; training would resume from the newest checkpoint that is left. Raises UserError
    when there is no such checkpoint, or when a file of the run was changed, Failure when a later
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
        claims = Claims(output, RUN)
        claims.add([LOG, REPORT, PAGE])
        report = finished(output)
        if report is None or files.join(output, report.checkpoint) != target.folder:
            # First: a run without a report is one to be trained, whatever is done of the rest.
            for name in (REPORT, PAGE):
                files.remove_file(files.join(output, name))
        moved = [_moved(output, entry) for entry in reversed(later) if entry.complete]
        for entry in later:
            ownership.remove_inner(entry.folder, CHECKPOINT)  # what was never completed
        Log(output, content.manifest.metrics.log_lines)
        if files.list_folder(files.join(output, TENSORBOARD)):
            from tnctl.training.event_file import EventFile

            EventFile(output, content.manifest.steps_trained, claims).close()
        return content, moved


def _moved(output: str, entry: Stored) -> str:
    """Where a checkpoint is after it is set aside."""
    to = set_aside(output, entry.folder, ROLLED_BACK)
    if to is None:
        raise _stays(entry.folder, "has no file of which something says that tnctl wrote it")
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
