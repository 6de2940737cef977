"""A worker process of `tnctl train cluster=local`, which the supervisor starts."""

import contextlib
import os
import sys

from tnctl.cli.main import leave_with
from tnctl.cli.quiet import quiet_tensorflow
from tnctl.cluster.assignment import Supervised


def run() -> int:
    """Do what the supervisor assigns over the standard input; the exit code."""
    supervised = Supervised()  # first, for it sets the CPUs that TensorFlow may use
    quiet_tensorflow()
    from tnctl.cluster.process import work

    return work(supervised)


if __name__ == "__main__":
    code = 1
    try:
        leave_with("tnctl train", run)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    finally:
        with contextlib.suppress(OSError):  # the disk of the log may be full
            sys.stdout.flush()
            sys.stderr.flush()
        # Threads of connections would keep the interpreter waiting.
        os._exit(code)
