"""The folder of a run: what is there already, and what a second command finds."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from tnctl import files, manifest
from tnctl.checkpoint.load import Checkpoint, load, open_checkpoint
from tnctl.data.days import conf_of_day
from tnctl.data.sources import fingerprints
from tnctl.errors import Failure, UserError
from tnctl.manifest import DamagedError
from tnctl.model.building import Model
from tnctl.model.graph import conf_to_json
from tnctl.progress import say
from tnctl.schema import Conf, differences
from tnctl.training import running

REPORT = "report.json"
LOG = "log.jsonl"
PAGE = "report.html"
CHECKPOINTS = "checkpoints"
DAMAGED = "damaged"
TENSORBOARD = "tensorboard"
PREDICTIONS = "predictions"
# The formats, and suffixes, of predictions.
KINDS = ("parquet", "csv", "jsonl")
# Folders beside the checkpoints, and the file that shows that tnctl made them.
MADE_FROM_A_RUN = {"graph": "serving.json", "embeddings": "manifest.json"}
# Other folders of a run, and how the names of what tnctl puts there start.
FOLDERS = {
    CHECKPOINTS: ("step-",),
    DAMAGED: ("step-",),
    TENSORBOARD: ("events.out.tfevents.", "plugins"),
}
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


def start(conf: Conf, overwrite: bool) -> Checkpoint | None:
    """The checkpoint to go on from, or None for a new run.

    Raises UserError when the folder has a run of another conf; `overwrite` removes it.
    """
    if overwrite:
        remove(conf.output)
        return None
    # Whoever has started warm once need not say so again.
    skipped = NOT_COMPARED if conf.warm.start else {*NOT_COMPARED, "warm"}
    damage: DamagedError | None = None
    for folder in newest_first(conf.output):
        try:
            checkpoint = open_checkpoint(folder)
            differing = differences(conf_to_json(conf), checkpoint.conf())
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
                found.extra(running.NAME)  # not to find out later that it is damaged
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
    """Move a checkpoint that cannot be used out of the way of those to come."""
    to = files.join(output, f"{DAMAGED}/{folder.rsplit('/', 1)[-1]}")
    files.remove(to)
    files.move(folder, to)
    say(f"{folder} cannot be used, and is now {to}")


def check_data(conf: Conf, checkpoint: Checkpoint) -> None:
    """Raise Failure when data has changed that a checkpoint is in the middle of.

    Of data that was passed over whole nothing is read again.
    """
    if not checkpoint.data:
        return
    before = {one["file"]: one for one in checkpoint.data}
    there = fingerprints(conf_of_day(conf, checkpoint.position.day), "train")
    now = {one["file"]: one for one in there}
    for name in [*before, *now]:
        if before.get(name) != now.get(name):
            raise Failure(
                f"{name} is not what training stopped in the middle of: it was "
                f"{_in_words(before.get(name))}, and is {_in_words(now.get(name))}. Put the old "
                "one back, or overwrite=true to start anew"
            )
    if list(before) != list(now):
        raise Failure(
            "the files of data.train come in another order than before training stopped. Name "
            "them as before, or overwrite=true to start anew"
        )


def _in_words(fingerprint: dict[str, Any] | None) -> str:
    if fingerprint is None:
        return "not among the files of data.train"
    words = f"of {fingerprint['bytes']:,} bytes"
    if "etag" in fingerprint:
        return f"{words} with etag {fingerprint['etag']}"
    modified = fingerprint.get("modified")
    if isinstance(modified, int):
        modified = datetime.fromtimestamp(modified / 1e9, UTC).isoformat(sep=" ")
    return words if modified is None else f"{words}, modified {modified}"


def newest_of_step(output: str, step: int) -> str:
    """The folder of the last checkpoint that was saved after so many steps."""
    folder = files.join(output, CHECKPOINTS)
    found = [name for name in files.list_folder(folder) if name.startswith(f"step-{step:010d}")]
    return files.join(folder, found[-1])


def remove(output: str) -> None:
    """Remove a run, and nothing that tnctl did not make; first what says that it is finished."""
    for name in (REPORT, LOG, PAGE, *(f"{PREDICTIONS}.{kind}" for kind in KINDS)):
        files.remove(files.join(output, name))
    for name, starts in FOLDERS.items():
        remove_from(files.join(output, name), starts)
    for name, mark in MADE_FROM_A_RUN.items():
        if files.exists(files.join(output, f"{name}/{mark}")):
            files.remove(files.join(output, name))


def remove_from(folder: str, starts: tuple[str, ...]) -> None:
    """Remove what has a name that starts so, and the folder if it is empty then."""
    names = files.list_folder(folder)
    for name in names:
        if name.startswith(starts):
            files.remove(files.join(folder, name))
    if names and all(name.startswith(starts) for name in names):
        files.remove(folder)


def finished(conf: Conf) -> dict[str, Any] | None:
    """The report of a finished run, or None."""
    url = files.join(conf.output, REPORT)
    if not files.exists(url):
        return None
    report: dict[str, Any] = json.loads(files.read_bytes(url))
    return report


class Log:
    """log.jsonl: one JSON object per line, each with its `event` and the `step` it is about.

    A local file is appended to. Object stores cannot append: there the whole is written at each
    `flush`, which comes with evaluations and checkpoints and not with every line.
    """

    def __init__(self, output: str, lines: int | None = None) -> None:
        """A new log; with `lines`, the one that is there, of which so many count."""
        self._url = files.join(output, LOG)
        self._local = files.local_path(self._url)
        self.events: list[dict[str, Any]] = []
        if lines is not None and files.exists(self._url):
            self.events = list(_events(files.read_bytes(self._url)))[:lines]
        # Now, for an output that cannot be written should not be found out after hours.
        files.write_bytes(self._url, _lines(self.events))

    def add(self, event: str, **fields: Any) -> None:
        """One more line."""
        self.events.append({"event": event, **fields})
        if self._local is not None:
            with files.translated(self._url, "written"), self._local.open("ab") as stream:
                stream.write(_lines(self.events[-1:]))

    def flush(self) -> None:
        """Everything so far is in the file afterwards."""
        if self._local is None:
            files.write_bytes(self._url, _lines(self.events))


def _lines(events: list[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(event)}\n" for event in events).encode()


def _events(text: bytes) -> Iterator[dict[str, Any]]:
    """The events of an earlier process; a line that was cut is none."""
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event
