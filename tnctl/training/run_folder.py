"""The folder of a run: its files, of which one is its log, and their removal."""

import contextlib
import dataclasses
import itertools
import json
import math
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from pydantic import JsonValue

from tnctl import documents, files, limits, manifest, ownership
from tnctl.checkpoint import dense_file, listing
from tnctl.checkpoint.chain import FOLDER as CHECKPOINTS
from tnctl.checkpoint.chain import Checkpoint, name_of, newest_first, open_checkpoint, split
from tnctl.checkpoint.listing import Stored
from tnctl.data.days import calendar, folders_of_days
from tnctl.data.sources import files_read
from tnctl.documents import DocumentError
from tnctl.errors import Failure, UserError
from tnctl.manifest import DamagedError
from tnctl.masking import bare_conf, masked
from tnctl.outputs import Place, refuse_overlap
from tnctl.ownership import CHECKPOINT, EMBEDDINGS, GRAPH, LOG, RUN, WORKER_LOGS, WORKERS, Survey
from tnctl.progress import say
from tnctl.saved_conf import conf_to_json
from tnctl.schema import Conf
from tnctl.training.report.report_document import TENSORBOARD, LogLine, Report

REPORT = "report.json"
PAGE = "report.html"
RESULTS = (LOG, REPORT, PAGE)  # what a run writes beside its checkpoints, at any rate
DAMAGED = "damaged"
ROLLED_BACK = "rolled_back"
FOLDERS = (CHECKPOINTS, DAMAGED, ROLLED_BACK, TENSORBOARD, WORKER_LOGS)
PREDICTIONS = "predictions"
# The formats, and suffixes, of predictions.
KINDS = ("parquet", "csv", "jsonl")
# Keys, and sections with all their keys, that may change when a run is resumed: the model and the
# figures of the report do not depend on them.
NOT_COMPARED = {
    "output",
    "save",
    "baseline",
    "gate",
    "cluster",
    "paths",
    "evaluation.by",
    "data.days",
    "data.bad_rows",
    "data.skip_empty",
    "train.threads",
    "train.tensorboard",
    "train.profile",
}
# A line of log.jsonl: which fields it has beside `event` and `step` depends on `event`.
Event = dict[str, JsonValue]
# The last events of a run that ended with an error, was asked to stop, or was ended by a search.
FAILED, STOPPED, PRUNED = "failed", "stopped", "pruned"
OF_THE_END = ("kept", "recalibrated")  # of the model that a run ends with
# The names of checkpoints, and of those that were set aside.
CHECKPOINT_NAME = re.compile(rf"{listing.NAME.pattern}(\.\d+)?")
NAMED = 20  # checkpoints that an error lists
# Folders of a run that other commands write.
MADE_FROM_A_RUN = {"graph": GRAPH, "embeddings": EMBEDDINGS}


def compared(conf: Conf, skipped: Collection[str] = NOT_COMPARED) -> dict[str, Any]:
    """The values of a conf as they are saved, without the keys and sections of `skipped`."""
    values = bare_conf(conf_to_json(conf))
    for key in skipped:
        section, _, name = key.rpartition(".")
        (values.get(section, {}) if section else values).pop(name, None)
    return dict(values)


def check(conf: Conf) -> None:
    """Raise UserError for an output that a run cannot be written into."""
    refuse_data_in_places(conf)
    refuse_no_folders(conf.output)


def refuse_no_folders(output: str) -> None:
    """Raise UserError when a file or link has the name of a folder that a run writes into."""
    for entry in files.listed(output):
        if entry.name in FOLDERS and entry.kind != "folder":
            kind = "file" if entry.kind == "file" else "symbolic link"
            raise UserError(
                f"{files.join(output, entry.name)} is a {kind}, and a run writes a folder of that "
                "name. Move it away, or choose another output"
            )


def refuse_data_in_places(conf: Conf) -> None:
    """Raise UserError when data of the run lies where the run writes.

    For files by day the folder is checked that contains all of them.
    """
    names = (*FOLDERS, *RESULTS)
    written = [files.join(conf.output, name) for name in names]
    refuse_overlap(written, files_read(conf), "output")
    for folder in filter(files.exists, folders_of_days(conf)):
        place = Place(folder)
        if any(place.is_same(Place(url)) or place.is_inside(Place(url)) for url in written):
            refuse_overlap(written, [place.url], "output")


def refuse_foreign(output: str) -> Survey:
    """The files of a run beside its checkpoints, which are those with names that a run writes.

    Raises UserError when a link has the name of one of its results, and where there is no log of a
    run, for a file with such a name, and for a folder of a checkpoint without a manifest.
    """
    content = ownership.survey_by_name(output, [RUN], lambda name: name.startswith(TENSORBOARD))
    is_run = ownership.is_run(output)
    for name in RESULTS:
        if name in content.foreign or (name in content.owned and not is_run):
            raise ownership.foreign_file(output, name)
    if is_run:
        return content
    for name in files.list_folder(files.join(output, CHECKPOINTS)):
        place = f"{CHECKPOINTS}/{name}"
        if CHECKPOINT_NAME.fullmatch(name) and not ownership.has_manifest(
            files.join(output, place)
        ):
            raise ownership.foreign_file(output, place)
    return dataclasses.replace(content, owned=(), subfolders=())


def remove(output: str, by_workers: bool = False) -> None:
    """Remove a run: the files that tnctl wrote, first the report, which marks it as finished.

    The logs of workers stay when the new run is trained `by_workers`, whose supervisor has emptied
    them. Raises UserError, before anything is removed, when a new run could not write there.
    """
    content = refuse_foreign(output)
    # The log is the last: by it the other files are known.
    others = sorted(set(content.owned) - {LOG}, key=lambda name: name != REPORT)
    ownership.remove(dataclasses.replace(content, owned=tuple(others)), itself=False)
    for above in (CHECKPOINTS, DAMAGED, ROLLED_BACK):
        for entry in files.listed(files.join(output, above)):
            if entry.kind != "folder" or not CHECKPOINT_NAME.fullmatch(entry.name):
                continue
            folder = files.join(output, f"{above}/{entry.name}")
            if content.owned or ownership.has_manifest(folder):
                ownership.remove_known(folder, CHECKPOINT)
        files.remove_empty_folder(files.join(output, above))
    if not by_workers:
        ownership.remove_known(files.join(output, WORKER_LOGS), WORKERS)
    for name, format_ in MADE_FROM_A_RUN.items():
        if not files.is_link(folder := files.join(output, name)):
            ownership.remove(ownership.survey(folder, format_))
    ownership.remove(dataclasses.replace(content, owned=(LOG,) if content.owned else ()))


def set_aside(output: str, folder: str, into: str) -> str | None:
    """Move a checkpoint to the folder `into` of its run; where it is now.

    No later one gets its name there. Files in it that no checkpoint can have are not moved. None,
    and nothing is moved, when there are no others. Completes a move that was interrupted.
    """
    if files.is_link(folder):
        return None
    checkpoint = ownership.survey_by_name(folder, [CHECKPOINT])
    if not checkpoint.owned:
        return None
    name = split(folder)[1]
    names = itertools.chain([name], (f"{name}.{number}" for number in itertools.count(2)))
    urls = (files.join(output, f"{into}/{free}") for free in names)
    to = next(url for url in urls if _can_be_moved_to(folder, url))
    _move(checkpoint, to)
    return to


def _can_be_moved_to(folder: str, to: str) -> bool:
    """Whether nothing is in the folder `to`, or what an interrupted move of `folder` left there."""
    if not files.list_folder(to):
        return True
    urls = [files.join(above, manifest.NAME) for above in (folder, to)]
    if not all(map(files.exists, urls)):
        return False
    text, text_there = (files.read_bytes(url, most=limits.MANIFEST_BYTES) for url in urls)
    return text == text_there


def _move(checkpoint: Survey, to: str) -> None:
    """Move the files of a checkpoint that tnctl wrote to another folder.

    The manifest is copied first and moved last: if a move is interrupted both folders have it, and
    the same move completes it.
    """
    if manifest.NAME in checkpoint.owned:
        text = files.read_bytes(files.join(checkpoint.folder, manifest.NAME))
        files.write_bytes(files.join(to, manifest.NAME), text)
    for name in sorted(checkpoint.owned, key=lambda name: name == manifest.NAME):
        files.move_file(files.join(checkpoint.folder, name), files.join(to, name))
    ownership.remove(checkpoint)


def report_set_aside(output: str, folder: str) -> None:
    """Move a checkpoint that cannot be used to `damaged`."""
    to = set_aside(output, folder, DAMAGED)
    if to is None:
        say(f"{folder} cannot be used, and stays: it has no file that a checkpoint can have")
    else:
        say(f"{folder} cannot be used, and is now {to}")


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
            report_set_aside(output, folder)
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


def finished(output: str) -> Report | None:
    """The report of a finished run, or None, also for a report that is damaged."""
    url = files.join(output, REPORT)
    if not files.exists(url):
        return None
    try:
        return Report.parse(files.read_bytes(url, most=limits.MANIFEST_BYTES))
    except DocumentError as error:
        say(f"{url} is damaged and is written again ({error})")
        return None


class Log:
    """log.jsonl: one JSON object per line, each with its `event` and the `step` it is about.

    A local file is appended to. Object stores cannot append: there the whole file is written at
    each `flush`, which is called for evaluations and checkpoints and not for every line.
    """

    def __init__(self, output: str, lines: int | None = None) -> None:
        """A new log; with `lines`, the existing log, cut to its first `lines` lines."""
        self._url = files.join(output, LOG)
        self._local = files.local_path(self._url)
        self.events: list[Event] = []
        self.earlier_seconds = 0.0
        """the time of the run until now, at the last line of the existing log that has one"""
        if lines is not None and files.exists(self._url):
            existing = list(_events(files.read_bytes(self._url)))
            self.earlier_seconds, self.events = _seconds_of(existing), existing[:lines]
        # An output that cannot be written is refused now and not after hours.
        files.write_bytes(self._url, _lines(self.events))

    def add(self, event: str, **fields: Any) -> None:
        """One more line."""
        self.events.append(masked({"event": event, **fields}))
        if self._local is not None:
            with files.translated(self._url, "written"), self._local.open("ab") as stream:
                stream.write(_lines(self.events[-1:]))

    def go_on(self) -> None:
        """Remove the lines about the end of a run, which is not its end any more."""
        while self.events and self.events[-1]["event"] in OF_THE_END:
            self.events.pop()
        files.write_bytes(self._url, _lines(self.events))

    def flush(self) -> None:
        """Write all lines to storage that cannot append; local lines are written already."""
        if self._local is None:
            files.write_bytes(self._url, _lines(self.events))


def lines_of(output: str, most: int) -> list[LogLine]:
    """The lines of a run's log that are valid. Raises Failure beyond `most` bytes of it."""
    content = files.read_bytes(files.join(output, LOG), most=most)
    return [LogLine.of(event) for event in _events(content)]


def is_of_a_run(output: str, most: int) -> bool:
    """Whether a run can have written a log: it is empty, or has a valid line. Raises Failure."""
    content = files.read_bytes(files.join(output, LOG), most=most)
    return not content or next(_events(content), None) is not None


def _seconds_of(events: list[Event]) -> float:
    """The time of the run at its last line that has one."""
    for event in reversed(events):
        match event.get("timing"):
            case {"seconds": int() | float() as seconds} if 0 <= seconds < math.inf:
                return float(seconds)
    return 0.0


def _lines(events: list[Event]) -> bytes:
    return "".join(f"{json.dumps(event)}\n" for event in events).encode()


def _events(text: bytes) -> Iterator[Event]:
    """The events of an earlier process; incomplete and invalid lines are left out."""
    for line in text.splitlines():
        with contextlib.suppress(DocumentError):
            event = documents.parse(dict[str, JsonValue], line)
            LogLine.of(event)
            yield event


# ---- Going back ---------------------------------------------------------------


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
        refuse_foreign(output)
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
    to = set_aside(output, entry.folder, ROLLED_BACK)
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
