"""A worker process of a command with `cluster=`, which a supervisor starts."""

import contextlib
import ctypes
import os
import sys
from pkgutil import resolve_name
from typing import NoReturn

from tnctl.cluster.joining.assignment import Assignment, take_assignment
from tnctl.model import quiet_tensorflow
from tnctl.system import leave_with

PR_SET_NAME = 15  # of linux/prctl.h


def is_server(assignment: Assignment) -> bool:
    """Whether the process is a dedicated server, which does without TensorFlow."""
    return assignment.rank >= assignment.ranks - int(assignment.task["conf"]["cluster"]["servers"])


def run() -> int:
    """Do what the supervisor assigns; the exit code."""
    assignment = take_assignment()  # first, for it sets the CPUs that TensorFlow may use
    rank = assignment.rank
    name = f"tnctl {'server' if is_server(assignment) else 'worker'} {rank}"
    # For whoever lists processes; of a longer name the first 15 bytes.
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())
    if not is_server(assignment):
        quiet_tensorflow()
    from tnctl.cluster import process

    # Only rank 0 calls it. A server would import what it does without.
    lead = assignment.task.get("lead") if rank == 0 else None
    return process.work(assignment, resolve_name(lead) if lead else process.train)


def main(command: str) -> NoReturn:
    """Do what the supervisor assigns, for a command of tnctl, and end the process."""
    code = 1
    try:
        leave_with(f"tnctl {command}" if command else "tnctl", run)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    finally:
        with contextlib.suppress(OSError):  # the disk of the log may be full
            sys.stdout.flush()
            sys.stderr.flush()
        # Threads of connections would keep the interpreter waiting.
        os._exit(code)


if __name__ == "__main__":
    # The supervisor names the command, for whoever lists the processes too.
    main(sys.argv[1] if len(sys.argv) > 1 else "")
