"""A worker process of a command with `cluster=`, which a supervisor starts."""

import contextlib
import gc
import os
import signal
import sys
from functools import cache
from importlib import import_module
from pkgutil import resolve_name
from typing import NoReturn

from tnctl.cluster.joining.assignment import Assignment, Supervised
from tnctl.launch.forked_process import Program, name_process
from tnctl.launch.supervisor import TRAIN
from tnctl.model import quiet_tensorflow
from tnctl.system import leave_with


def is_server(assignment: Assignment) -> bool:
    """Whether the process is a dedicated server, which does without TensorFlow."""
    return assignment.rank >= assignment.ranks - int(assignment.task["conf"]["cluster"]["servers"])


def run() -> int:
    """Do what the supervisor assigns over the standard input; the exit code."""
    supervised = Supervised()  # first, for it sets the CPUs that TensorFlow may use
    rank = supervised.assignment.rank
    name_process(f"tnctl {'server' if is_server(supervised.assignment) else 'worker'} {rank}")
    if not is_server(supervised.assignment):
        quiet_tensorflow()
    from tnctl.cluster import process

    # Only rank 0 calls it. A server would import what it does without.
    lead = supervised.assignment.task.get("lead") if supervised.assignment.rank == 0 else None
    return process.work(supervised, resolve_name(lead) if lead else process.train)


@cache  # workers are started again
def load(command: str) -> None:
    """Import what a worker of a command needs, in a process that is copied for each worker."""
    quiet_tensorflow()
    import_module("tnctl.cluster.process")
    import_module("tnctl.cluster.rank_0.cluster_processes")
    import_module("tnctl.cluster.workers.worker")
    if command == TRAIN:
        import_module("tnctl.training.report.terminal_tables")
        import_module("tnctl.training.run")
    gc.collect()
    gc.freeze()  # a collection would write to all objects, and so copy their memory


def main(command: str) -> NoReturn:
    """Do what the supervisor assigns, for a command of tnctl, and end the process."""
    code = 1
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # of a copy
            signal.signal(signal.SIGINT, signal.default_int_handler)
        leave_with(f"tnctl {command}" if command else "tnctl", run)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    finally:
        with contextlib.suppress(OSError):  # the disk of the log may be full
            sys.stdout.flush()
            sys.stderr.flush()
        # Threads of connections would keep the interpreter waiting.
        os._exit(code)


PROGRAM = Program(load, main)

if __name__ == "__main__":
    # The supervisor names the command, for whoever lists the processes too.
    main(sys.argv[1] if len(sys.argv) > 1 else "")
