"""The folder of a run: what is there already, and what a second command finds."""

import contextlib
import itertools
import json
import re
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from typing import Any

from pydantic import JsonValue

from tnctl import documents, files, limits, manifest, ownership
from tnctl.checkpoint import dense, listing
from tnctl.checkpoint.chain import name_of, split
from tnctl.checkpoint.document import Evaluation
from tnctl.checkpoint.load import Checkpoint, load, open_checkpoint
from tnctl.data.day_records import Fingerprint
from tnctl.data.days import conf_of_day, folders_of_days
from tnctl.data.sources import files_read, fingerprints
from tnctl.documents import DocumentError
from tnctl.errors import Failure, UserError, quoted
from tnctl.file_urls import is_plain
from tnctl.folders import Place
from tnctl.manifest import DamagedError
from tnctl.masking import bare, bare_conf, is_masked, masked
from tnctl.model.building import Model
from tnctl.model.graph import conf_to_json
from tnctl.outputs import refuse_overlap
from tnctl.ownership import CHECKPOINT, EMBEDDINGS, GRAPH, LISTS, RUN, Claims
from tnctl.progress import say
from tnctl.schema import Conf, differences
from tnctl.training import running
from tnctl.training.report import LogLine, Report
from tnctl.training.watch import Watch

REPORT = "report.json"
LOG = "log.jsonl"
PAGE = "report.html"
CHECKPOINTS = "checkpoints"
DAMAGED = "damaged"
TENSORBOARD = "tensorboard"
PREDICTIONS = "predictions"
# The formats, and suffixes, of predictions.
KINDS = ("parquet", "csv", "jsonl")
# The list of predictions that were written into the folder of a run.
PREDICTIONS_LIST = ".tnctl-predictions.json"
# The names of checkpoints, and of those that were moved to `damaged`.
CHECKPOINT_NAME = re.compile(rf"{listing.NAME.pattern}(\.\d+)?")
# Folders of a run that other commands write.
MADE_FROM_A_RUN = {"graph": GRAPH, "embeddings": EMBEDDINGS}
# Keys, and parts with all their keys, that may be others when a run is gone on with: the model and
# the figures of the report come out the same.
NOT_COMPARED = {
    "output",
    "save",
    "gate",
    "data.days",
    "train.threads",
    "train.tensorboard",
    "train.profile",
}


def start(conf: Conf) -> Checkpoint | None:
    """The checkpoint to go on from, or None for a new run.

    Raises UserError when the folder has a run of another conf.
    """
    # Whoever has started warm once need not say so again.
    skipped = NOT_COMPARED if conf.warm.start else {*NOT_COMPARED, "warm"}
    damage: DamagedError | None = None
    for folder in newest_first(conf.output):
        try:
            checkpoint = open_checkpoint(folder)
            differing = differences(bare_conf(conf_to_json(conf)), bare_conf(checkpoint.conf()))
        except DamagedError as error:
            say(str(error))
            damage = damage or error
            continue
        if differing := [key for key in differing if not {key, key.split(".")[0]} & skipped]:
            raise UserError(
                f"{conf.output} has a run of another conf; these keys differ: "
                f"{', '.join(differing)}. Choose another output, or overwrite=true to start anew"
            )
        return checkpoint
    if damage is not None:
        raise nothing_whole(conf.output, damage)
    return None


def newest_first(output: str) -> Iterator[str]:
    """The folders of checkpoints that have a manifest."""
    above = files.join(output, CHECKPOINTS)
    for name in reversed(files.list_folder(above)):
        folder = files.join(above, name)
        if files.exists(files.join(folder, manifest.NAME)):
            yield folder


def nothing_whole(output: str, damage: DamagedError) -> Failure:
    return Failure(
        f"{output} has no checkpoint that is whole: {damage.what}. Copy one there from elsewhere, "
        "or overwrite=true to start anew"
    )


def load_newest(conf: Conf, checkpoint: Checkpoint) -> tuple[Checkpoint, Model]:
    """The model to go on with, and the checkpoint it is of: `checkpoint`, or one before it.

    When its files are damaged the one before is taken, and so on, and that is said; those that are
    passed over are moved to `damaged` under the output. Raises Failure when none is left, or when
    data that training was in the middle of has changed.
    """
    damage: DamagedError | None = None
    passed: list[str] = []
    for folder in newest_first(conf.output):
        # Of those that are newer, the manifest or the conf is damaged.
        if folder <= checkpoint.folder:
            try:
                found = open_checkpoint(folder)
                check_data(conf, found)
                running.read(found, classes=True)  # not to find out later that it is damaged
                model = load(found, conf)
            except DamagedError as error:
                say(str(error))
                damage = damage or error
            else:
                for one in passed:
                    set_aside(conf.output, one)
                return found, model
        passed.append(folder)
    assert damage is not None
    raise nothing_whole(conf.output, damage)


def set_aside(output: str, folder: str) -> None:
    """Move a checkpoint that cannot be used out of the way of those to come.

    Files in it that tnctl did not write stay.
    """
    checkpoint = ownership.survey(folder, CHECKPOINT)
    if files.is_link(folder) or not checkpoint.owned:
        say(f"{folder} cannot be used, and stays: nothing says that tnctl wrote its files")
        return
    name = split(folder)[1]
    taken = set(files.list_folder(files.join(output, DAMAGED)))
    names = (name if number == 1 else f"{name}.{number}" for number in itertools.count(1))
    to = files.join(output, f"{DAMAGED}/{next(free for free in names if free not in taken)}")
    ownership.move(checkpoint, CHECKPOINT, to)
    say(f"{folder} cannot be used, and is now {to}")


def check_data(conf: Conf, checkpoint: Checkpoint) -> None:
    """Raise Failure when data has changed that a checkpoint is in the middle of.

    Of data that was passed over whole nothing is read again.
    """
    if not checkpoint.data:
        return
    before = {one.file: one for one in bare(list(checkpoint.data))}
    way = way_on(conf.output, checkpoint)
    try:
        there = fingerprints(conf_of_day(conf, checkpoint.position.day), "train")
    except files.AbsentError as error:
        files_trained = [entry.file for entry in checkpoint.data]
        names = [name for name in files_trained if is_plain(name) and not is_masked(name)]
        gone = next((name for name in names if not files.exists(name)), None)
        if gone is None:
            raise
        raise Failure(
            f"{gone} is gone, and training stopped in the middle of it. Put it back, or {way}"
        ) from error
    now = {one.file: one for one in bare(list(there))}
    for name in [*before, *now]:
        if before.get(name) != now.get(name):
            raise Failure(
                f"{name} is not what training stopped in the middle of: it was "
                f"{_in_words(before.get(name))}, and is {_in_words(now.get(name))}. Put the old "
                f"one back, or {way}"
            )
    if list(before) != list(now):
        raise Failure(
            "the files of data.train come in another order than before training stopped. Name "
            f"them as before, or {way}"
        )


def way_on(output: str, checkpoint: Checkpoint) -> str:
    """What can be done when the data of the pass under way cannot be had as it was."""
    later: list[str] = []
    for folder in newest_first(output):
        name = split(folder)[1]
        if name < checkpoint.name:
            with contextlib.suppress(Failure):
                found = open_checkpoint(folder)
                found.chain()
                if found.position.window == found.position.offset == 0 and not found.data:
                    those = later[0] if len(later) == 1 else f"{later[-1]} to {later[0]}"
                    return (
                        f"remove the checkpoints of this pass ({those}) and say the same command: "
                        "it goes on from the end of the one before"
                    )
        later.append(name)
    return "overwrite=true to start anew"


def _in_words(fingerprint: Fingerprint | None) -> str:
    if fingerprint is None:
        return "not among the files of data.train"
    size = "unknown" if fingerprint.bytes is None else f"{fingerprint.bytes:,}"
    words = f"of {size} bytes"
    if fingerprint.etag is not None:
        return f"{words} with etag {quoted(fingerprint.etag)}"
    modified = fingerprint.modified
    if isinstance(modified, int):
        with contextlib.suppress(ValueError, OverflowError, OSError):  # of no such year
            modified = datetime.fromtimestamp(modified / 1e9, UTC).isoformat(sep=" ")
    return words if modified is None else f"{words}, modified {modified}"


def newest_of_step(output: str, step: int) -> str | None:
    """The folder of the last complete checkpoint that was saved after so many steps."""
    start = name_of(step)
    found = (one for one in newest_first(output) if split(one)[1].startswith(start))
    return next(found, None)


def find_best(
    conf: Conf, checkpoint: Checkpoint, watch: Watch, evaluations: list[Evaluation]
) -> None:
    """Make the best of a run that goes on one whose checkpoint is there, or none.

    Where that of the best is lost, it is the best of those that are left, and that is said.
    """
    if watch.best is None:
        return
    monitor, higher = conf.evaluation.monitor, conf.evaluation.higher_is_better
    values = {one.step: one.figure(monitor) for one in evaluations}
    known = {step: value for step, value in values.items() if value is not None}
    others = sorted(known, key=lambda step: known[step], reverse=higher)
    needed = names_of_chain(checkpoint.folder)
    lost = watch.best_step
    if is_whole(conf.output, lost, needed):
        return
    for step in others:
        if step != lost and is_whole(conf.output, step, needed):
            watch.best, watch.best_step = known[step], step
            say(f"the best model, of step {lost:,}, is lost; that of step {step:,} is the best now")
            return
    watch.best, watch.best_step = None, 0
    say(f"the best model, of step {lost:,}, is lost; the next evaluation is the best anew")


def is_whole(output: str, step: int, needed: Collection[str], read: bool = False) -> bool:
    """Whether there is a checkpoint of so many steps that a model can be loaded from.

    Files must be there in their sizes and, with `read`, with their checksums. What is damaged is
    told and set aside, unless its name is one of `needed`.
    """
    while (folder := newest_of_step(output, step)) is not None:
        try:
            _check_whole(open_checkpoint(folder), read)
        except DamagedError as error:
            say(str(error))
            if split(folder)[1] in needed:
                return False
            set_aside(output, folder)
        else:
            return True
    return False


def _check_whole(checkpoint: Checkpoint, read: bool) -> None:
    """Raise DamagedError unless all that a model is loaded from is there."""
    for one in checkpoint.chain():
        tables = one.manifest.tables
        names = [entry.file for table in tables for entry in table.files]
        if one is checkpoint:
            names += [table.sketch.file for table in tables if table.sketch is not None]
            names.append(dense.NAME)
        for name in names:
            with manifest.present(one.folder, one.manifest, name):
                if read:
                    manifest.check_stored(one.folder, one.manifest, name, "Take another")
                    continue
                url, said = files.join(one.folder, name), one.manifest.files[name].bytes
                if (size := files.size(url)) != said:
                    what = f"{url} is damaged: {size:,} bytes, the manifest says {said:,}"
                    raise DamagedError(one.folder, what, "Take another checkpoint")


def names_of_chain(folder: str) -> set[str]:
    """The names of a checkpoint and of those that it is built on, none when it is damaged."""
    try:
        return {one.name for one in open_checkpoint(folder).chain()}
    except Failure:
        return set()


def claims_of(output: str) -> Claims:
    """The list of the files that a run has beside its checkpoints.

    Raises UserError when there is a file with the name of one of them that is not of a run.
    """
    claims = Claims(output, RUN)
    claims.add([LOG, REPORT, PAGE])
    return claims


def refuse_no_folders(output: str) -> None:
    """Raise UserError when a file or link has the name of a folder that a run writes into."""
    for entry in files.listed(output):
        if entry.name in (CHECKPOINTS, DAMAGED, TENSORBOARD) and entry.kind != "folder":
            kind = "file" if entry.kind == "file" else "symbolic link"
            raise UserError(
                f"{files.join(output, entry.name)} is a {kind}, and a run writes a folder of that "
                "name. Move it away, or choose another output"
            )


def places(output: str) -> list[str]:
    """Where a run writes: what its data must not lie in."""
    return [
        files.join(output, name) for name in (CHECKPOINTS, DAMAGED, TENSORBOARD, LOG, REPORT, PAGE)
    ]


def refuse_data_in_places(conf: Conf) -> None:
    """Raise UserError when data of the run lies where the run writes.

    Of files by day the folder is looked at that all of them lie in.
    """
    refuse_overlap(places(conf.output), files_read(conf), "output")
    common = [folder for folder in folders_of_days(conf) if files.exists(folder)]
    written = [Place(url) for url in places(conf.output)]
    for folder in map(Place, common):
        if any(folder.is_same(place) or folder.is_inside(place) for place in written):
            refuse_overlap(places(conf.output), [folder.url], "output")


def refuse_foreign(output: str) -> ownership.Survey:
    """The files of a run beside its checkpoints.

    Raises UserError when another file or link has a name that a run writes.
    """
    survey = ownership.survey(output, RUN, (*LISTS, PREDICTIONS_LIST))
    for name in (*LISTS, LOG, REPORT, PAGE):
        if name in survey.foreign:
            raise ownership.foreign_file(output, name)
    return survey


def remove(output: str) -> None:
    """Remove a run: the files that tnctl wrote, first the report that says that it is finished.

    Raises UserError, before anything is removed, when a new run could not write there.
    """
    ownership.remove(refuse_foreign(output), RUN)
    for above in (CHECKPOINTS, DAMAGED):
        for entry in files.listed(files.join(output, above)):
            if entry.kind != "folder" or not CHECKPOINT_NAME.fullmatch(entry.name):
                continue
            folder = files.join(output, f"{above}/{entry.name}")
            ownership.remove_inner(folder, CHECKPOINT)
        files.remove_empty_folder(files.join(output, above))
    for name, format_ in MADE_FROM_A_RUN.items():
        ownership.remove_inner(files.join(output, name), format_)


def finished(conf: Conf) -> Report | None:
    """The report of a finished run, or None, also for one that was cut."""
    url = files.join(conf.output, REPORT)
    if not files.exists(url):
        return None
    try:
        return Report.parse(files.read_bytes(url, most=limits.MANIFEST_BYTES))
    except DocumentError as error:
        say(f"{url} is damaged: it is made again ({error})")
        return None


# A line of log.jsonl: what each has beside `event` and `step` goes by its event.
Event = dict[str, JsonValue]


def finish(claims: Claims) -> None:
    """Note what the files of a run are at its end: one that is changed later is the user's."""
    names = [name for name in (LOG, REPORT, PAGE) if name in claims.names]
    claims.finish({name: manifest.entry_of(files.join(claims.folder, name)) for name in names})


def new_log(output: str) -> tuple[Claims, "Log"]:
    """The list of the files of a new run, and its log."""
    return claims_of(output), Log(output)


class Log:
    """log.jsonl: one JSON object per line, each with its `event` and the `step` it is about.

    A local file is appended to. Object stores cannot append: there the whole is written at each
    `flush`, which comes with evaluations and checkpoints and not with every line.
    """

    def __init__(self, output: str, lines: int | None = None) -> None:
        """A new log; with `lines`, the one that is there, of which so many count."""
        self._url = files.join(output, LOG)
        self._local = files.local_path(self._url)
        self.events: list[Event] = []
        if lines is not None and files.exists(self._url):
            self.events = list(_events(files.read_bytes(self._url)))[:lines]
        # Now, for an output that cannot be written should not be found out after hours.
        files.write_bytes(self._url, _lines(self.events))

    def add(self, event: str, **fields: Any) -> None:
        """One more line."""
        self.events.append(masked({"event": event, **fields}))
        if self._local is not None:
            with files.translated(self._url, "written"), self._local.open("ab") as stream:
                stream.write(_lines(self.events[-1:]))

    def lines(self) -> list[LogLine]:
        """The lines as the page reads them."""
        return [LogLine.of(event) for event in self.events]

    def flush(self) -> None:
        """Everything so far is in the file afterwards."""
        if self._local is None:
            files.write_bytes(self._url, _lines(self.events))


def _lines(events: list[Event]) -> bytes:
    return "".join(f"{json.dumps(event)}\n" for event in events).encode()


def _events(text: bytes) -> Iterator[Event]:
    """The events of an earlier process; a line that was cut, or is of another form, is none."""
    for line in text.splitlines():
        with contextlib.suppress(DocumentError):
            event = documents.parse(dict[str, JsonValue], line)
            LogLine.of(event)
            yield event
