"""A worker process of a command with `cluster=`, which a supervisor starts."""

import contextlib
import os
import sys
from importlib import import_module

from tnctl.cli.main import leave_with
from tnctl.cli.quiet import quiet_tensorflow
from tnctl.cluster.joining.assignment import Assignment, Supervised


def is_server(assignment: Assignment) -> bool:
    """Whether the process is a dedicated server, which does without TensorFlow."""
    return assignment.rank >= assignment.ranks - int(assignment.task["conf"]["cluster"]["servers"])


def run() -> int:
    """Do what the supervisor assigns over the standard input; the exit code."""
    supervised = Supervised()  # first, for it sets the CPUs that TensorFlow may use
    if not is_server(supervised.assignment):
        quiet_tensorflow()
    from tnctl.cluster import process

    command = supervised.assignment.task["command"]
    if command == "train" or is_server(supervised.assignment):
        return process.work(supervised, process.train)  # which rank 0 alone calls
    lead = import_module(f"tnctl.cli.{command.replace('-', '_')}").lead
    return process.work(supervised, lead)


if __name__ == "__main__":
    code = 1
    try:
        # The supervisor names the command, for whoever lists the processes too.
        leave_with(f"tnctl {sys.argv[1]}" if len(sys.argv) > 1 else "tnctl", run)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    finally:
        with contextlib.suppress(OSError):  # the disk of the log may be full
            sys.stdout.flush()
            sys.stderr.flush()
        # Threads of connections would keep the interpreter waiting.
        os._exit(code)
