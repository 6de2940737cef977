"""What a supervisor gives to each worker process: one line of JSON, as its standard input.

A worker ends when its supervisor does, whatever it does. Imports nothing heavy, for the CPUs that a
process may use are set before libraries start their threads.
"""

import ctypes
import json
import os
import signal
from dataclasses import dataclass, field
from typing import Any

from tnctl import documents
from tnctl.documents import DocumentError
from tnctl.errors import Failure

# The exit code of a worker that has lost another one: all are started again (EX_TEMPFAIL).
LOST = os.EX_TEMPFAIL
# The exit code of a worker whose others did not join in time: nothing is started again.
NOT_JOINED = os.EX_UNAVAILABLE
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
    task: dict[str, Any] = field(repr=False)  # the conf, which may have passwords, and arguments
    # Where it listens: a name, an IP address, or None for the one from which it reaches rank 0.
    host: str | None = LOOPBACK
    port: int = 0  # where it listens; of 0 the system chooses one
    is_reserved: bool = False  # whether the supervisor has bound the port
    reached_at: str | None = None  # HOST:PORT for the others; None: where it listens
    rank_0: str  # HOST:PORT of rank 0


def take_assignment() -> Assignment:
    """Read the assignment of this process, take its CPUs, and from now on end with the supervisor.

    Raises Failure when the process was started by something that assigns nothing.
    """
    with open(0, "rb", closefd=False) as file:
        line = file.read()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        assignment: Assignment = documents.parse(Assignment, line)
    except DocumentError as error:
        raise Failure(
            f"a worker is started by a command with cluster=local, and not by itself ({error})"
        ) from None
    end_with(assignment.supervisor)
    os.sched_setaffinity(0, assignment.cpus)
    return assignment


def end_with(supervisor: int) -> None:
    """Have the kernel kill this process, be it stopped, when its parent, the supervisor, ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:  # it has ended before
        os._exit(LOST)


def line_of(assignment: Assignment) -> bytes:
    """An assignment as the line that is sent."""
    return json.dumps(documents.plain(assignment)).encode() + b"\n"
