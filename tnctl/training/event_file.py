"""An event file of TensorBoard, as records. What goes into them is in tensorboard.py."""

import os
import re
import socket
import time
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.summary.writer.record_writer import RecordWriter

from tnctl import files
from tnctl.ownership import Claims
from tnctl.training.run_folder import TENSORBOARD


class EventFile:
    """Writes an event file into `tensorboard` under the output of a run.

    It is appended to a local file; for another storage to one in a temporary folder, which is
    copied at each `flush`.
    """

    def __init__(self, output: str, steps: int, claims: Claims) -> None:
        """Events of an earlier process after `steps` no longer count.

        `claims` records the name of the file before it is written.
        """
        self._url = files.join(output, TENSORBOARD)
        local = files.local_path(self._url)
        self._spool = files.TemporaryFolder("tensorboard") if local is None else None
        folder = local if self._spool is None else Path(self._spool.name)
        assert folder is not None
        host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())
        name = f"events.out.tfevents.{time.time():.6f}.{host}.{os.getpid()}"
        claims.add([f"{TENSORBOARD}/{name}"])
        with files.translated(self._url, "written"):
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = RecordWriter((folder / name).open("ab"))
        # The first event of a file names its version; a restart drops what comes after its step.
        self.add(Event(file_version="brain.Event:2"), 0)
        self.add(Event(session_log=SessionLog(status=SessionLog.START)), steps + 1)

    def flush(self) -> None:
        """Make all events so far visible in the output."""
        with files.translated(self._url, "written"):
            self._writer.flush()
        if self._spool is not None:
            files.upload_folder(self._spool.name, self._url)

    def close(self) -> None:
        """End the file."""
        self._writer.close()
        if self._spool is not None:
            files.upload_folder(self._spool.name, self._url)
            self._spool.cleanup()

    def add(self, event: Any, steps: int) -> None:
        """Write an event, of after so many steps."""
        event.step, event.wall_time = steps, time.time()
        with files.translated(self._url, "written"):
            self._writer.write(event.SerializeToString())
