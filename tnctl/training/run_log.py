"""log.jsonl: what happened in a run, one JSON object per line."""

import contextlib
import json
import math
from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from tnctl import documents, files
from tnctl.documents import DocumentError
from tnctl.masking import masked
from tnctl.training.report.report_document import LogLine
from tnctl.training.run_folder import LOG

# A line of log.jsonl: which fields it has beside `event` and `step` depends on `event`.
Event = dict[str, JsonValue]
# The last events of a run that ended with an error, was asked to stop, or was ended by a search.
FAILED, STOPPED, PRUNED = "failed", "stopped", "pruned"
OF_THE_END = ("kept", "recalibrated")  # of the model that a run ends with


class Log:
    """log.jsonl: one JSON object per line, each with its `event` and the `step` it is about.

    A local file is appended to. Object stores cannot append: there the whole file is written at
    each `flush`, which is called for evaluations and checkpoints and not for every line.
    """

    def __init__(self, output: str, lines: int | None = None) -> None:
        """A new log; with `lines`, the existing log, cut to its first so many lines."""
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
