"""The folder of a run: what is there already, and what a second command finds."""

import json
from typing import Any

from tnctl import files
from tnctl.checkpoint.load import Checkpoint, newest
from tnctl.errors import UserError
from tnctl.model.graph import conf_to_json
from tnctl.schema import Conf

REPORT = "report.json"
LOG = "log.jsonl"
# Folders beside the checkpoints, and the file that shows that tnctl made them.
MADE_FROM_A_RUN = {"graph": "serving.json", "embeddings": "manifest.json"}
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
        differing = differences(conf_to_json(conf), checkpoint.conf())
        if differing:
            raise UserError(
                f"{conf.output} has a run of another conf; these keys differ: "
                f"{', '.join(differing)}. Choose another output, or overwrite=true to start anew"
            )
    return checkpoint


def remove(output: str) -> None:
    """Remove a run, and nothing that tnctl did not make; first what says that it is finished."""
    files.remove(files.join(output, REPORT))
    files.remove(files.join(output, LOG))
    checkpoints = files.join(output, "checkpoints")
    for name in files.list_folder(checkpoints):
        if name.startswith("step-"):
            files.remove(files.join(checkpoints, name))
    for name, mark in MADE_FROM_A_RUN.items():
        if files.exists(files.join(output, f"{name}/{mark}")):
            files.remove(files.join(output, name))


def finished(conf: Conf) -> dict[str, Any] | None:
    """The report of a finished run, or None."""
    url = files.join(conf.output, REPORT)
    if not files.exists(url):
        return None
    report: dict[str, Any] = json.loads(files.read_bytes(url))
    return report


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """The dotted keys whose values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = dict.fromkeys([*one, *other])
        return [
            found
            for key in keys
            if (where := f"{path}.{key}".lstrip(".")) not in NOT_COMPARED
            for found in differences(one.get(key), other.get(key), where)
        ]
    return [] if one == other else [path]


class Log:
    """log.jsonl: one JSON object per line, rewritten whole, for object stores cannot append."""

    def __init__(self, output: str) -> None:
        self._url = files.join(output, LOG)
        self._lines: list[str] = []

    def add(self, event: str, **fields: Any) -> None:
        self._lines.append(json.dumps({"event": event, **fields}))
        self.write()

    def write(self) -> None:
        """Write the lines so far; none make an empty file."""
        files.write_bytes(self._url, "".join(f"{line}\n" for line in self._lines).encode())
