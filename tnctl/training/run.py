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
MADE_BY_A_RUN = ("checkpoints", "graph", "embeddings", REPORT, LOG)
NOT_COMPARED = {"output"}


def start(conf: Conf, overwrite: bool) -> Checkpoint | None:
    """The checkpoint to go on from, or None for a new run.

    Raises UserError when the folder has a run of another conf; `overwrite` removes it.
    """
    if overwrite:
        for name in MADE_BY_A_RUN:
            files.remove(files.join(conf.output, name))
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
        files.write_bytes(self._url, ("\n".join(self._lines) + "\n").encode())
