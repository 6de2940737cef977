"""The folder of a run: what is there already, and what a second command finds."""

import json
from typing import Any

from tnctl import files
from tnctl.checkpoint.load import Checkpoint, newest
from tnctl.errors import UserError
from tnctl.model.graph import conf_to_json
from tnctl.schema import Conf, differences

REPORT = "report.json"
LOG = "log.jsonl"
PAGE = "report.html"
BEST = "best"
TENSORBOARD = "tensorboard"
PREDICTIONS = "predictions"
# The formats, and suffixes, of predictions.
KINDS = ("parquet", "csv", "jsonl")
# Folders beside the checkpoints, and the file that shows that tnctl made them.
MADE_FROM_A_RUN = {"graph": "serving.json", "embeddings": "manifest.json"}
# Other folders of a run, and how the names of what tnctl puts there start.
FOLDERS = {
    "checkpoints": ("step-",),
    BEST: ("step-",),
    TENSORBOARD: ("events.out.tfevents.", "plugins"),
}
NOT_COMPARED = {"output"}


def start(conf: Conf, overwrite: bool) -> Checkpoint | None:
    """The checkpoint to go on from, or None for a new run.

    Raises UserError when the folder has a run of another conf; `overwrite` removes it.
    """
    if overwrite:
        remove(conf.output)
        return None
    checkpoint = newest(conf.output)
    if checkpoint is not None:
        differing = [
            key
            for key in differences(conf_to_json(conf), checkpoint.conf())
            if key not in NOT_COMPARED
        ]
        if differing:
            raise UserError(
                f"{conf.output} has a run of another conf; these keys differ: "
                f"{', '.join(differing)}. Choose another output, or overwrite=true to start anew"
            )
    return checkpoint


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

    def __init__(self, output: str, steps: int | None = None) -> None:
        """A new log; with `steps`, the one that is there as far as that many steps reach."""
        self._url = files.join(output, LOG)
        self._local = files.local_path(self._url)
        self.events: list[dict[str, Any]] = []
        if steps is not None and files.exists(self._url):
            self.events = _events_until(files.read_bytes(self._url), steps)
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


def _events_until(text: bytes, steps: int) -> list[dict[str, Any]]:
    """The events of an earlier process, without those after a step; a cut last line is none."""
    found = []
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("step", 0) <= steps:
            found.append(event)
    return found
