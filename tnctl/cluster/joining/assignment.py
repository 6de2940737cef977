"""What a supervisor gives to each worker process over its standard input, which stays open.

The first line is the assignment. Unless that has the address of rank 0, rank 0 reports the port
that it listens on through a pipe, and the second line for the others is its address. When the
standard input ends the supervisor has ended, and the worker ends at once, whatever it does. Imports
nothing heavy, for the CPUs that a process may use are set before libraries start their threads.
"""

import ctypes
import json
import os
import queue
import signal
import threading
from dataclasses import dataclass, field
from typing import Any

from tnctl import documents
from tnctl.documents import DocumentError
from tnctl.errors import Failure

# The exit code of a worker that has lost another one: all are started again (EX_TEMPFAIL).
LOST = os.EX_TEMPFAIL
LOOPBACK = "127.0.0.1"  # where workers of one machine listen
PR_SET_PDEATHSIG = 1  # of linux/prctl.h


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What one worker process has to do."""

    token: str = field(repr=False)  # of this run
    rank: int
    ranks: int
    generation: int  # from 1 on: how often the workers were started
    cpus: tuple[int, ...]  # those of this machine that it may use
    supervisor: int  # the process that sent it
    port_pipe: int | None = None  # rank 0: the descriptor that its port is written to, if any
    task: dict[str, Any] = field(repr=False)  # the conf, which may have passwords, and arguments
    # Where it listens: a name, an IP address, or None for the one from which it reaches rank 0.
    host: str | None = LOOPBACK
    port: int = 0  # where it listens; of 0 the system chooses one
    reached_at: str | None = None  # HOST:PORT for the others; None: where it listens
    rank_0: str | None = None  # HOST:PORT of rank 0; None: it comes as the second line


@dataclass(frozen=True)
class Address:
    """Where rank 0 listens, for the other ranks."""

    address: str


class Supervised:
    """A worker process's side of the pipe from its supervisor."""

    def __init__(self) -> None:
        """Read the assignment, take its CPUs, and from now on end when the supervisor does.

        Raises Failure when the process was started by something that sends no assignment.
        """
        self._received = b""
        self.assignment = _parse(Assignment, self._line())
        end_with(self.assignment.supervisor)
        os.sched_setaffinity(0, self.assignment.cpus)
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="tnctl-supervised", daemon=True).start()

    def report_port(self, port: int) -> None:
        """Rank 0: the port that it listens on, if the supervisor passes it to the others."""
        pipe = self.assignment.port_pipe
        if pipe is not None:
            os.write(pipe, b"%d\n" % port)
            os.close(pipe)

    def address(self, seconds: float) -> str | None:
        """The other ranks: where rank 0 is reached (HOST:PORT); None after `seconds` without it."""
        if self.assignment.rank_0 is not None:
            return self.assignment.rank_0
        try:
            return _parse(Address, self._lines.get(timeout=seconds)).address
        except queue.Empty:
            return None

    def _read(self) -> None:
        while line := self._line():
            self._lines.put(line)
        os._exit(LOST)

    def _line(self) -> bytes:
        """The next line; what there is of it at the end of the input."""
        # Not by sys.stdin, whose lock a reading thread would hold when the interpreter ends.
        while b"\n" not in self._received and (content := os.read(0, 1 << 16)):
            self._received += content
        line, end, self._received = self._received.partition(b"\n")
        return line + end


def end_with(supervisor: int) -> None:
    """Have the kernel kill this process, be it stopped, when its parent, the supervisor, ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:  # it has ended before
        os._exit(LOST)


def _parse(kind: Any, line: bytes) -> Any:
    try:
        return documents.parse(kind, line)
    except DocumentError as error:
        raise Failure(
            f"a worker is started by a command with cluster=local, and not by itself ({error})"
        ) from None


def line_of(document: Assignment | Address) -> bytes:
    """A document as the line that is sent."""
    return json.dumps(documents.plain(document)).encode() + b"\n"
