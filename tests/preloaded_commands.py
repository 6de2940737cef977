"""tnctl as processes that begin as copies of one that has imported TensorFlow.

Tests that start and kill many commands would spend most of their time on imports.
"""

import gc
import multiprocessing
import os
import subprocess
import sys

from tnctl.cli.main import main
from tnctl.model import quiet_tensorflow

FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload([__name__])

if multiprocessing.current_process().name == "MainProcess" and "pytest" not in sys.modules:
    quiet_tensorflow()  # this is the server
    import tnctl.training.report.terminal_tables
    import tnctl.training.run  # noqa: F401

    gc.collect()
    gc.freeze()  # a collection would write to all objects, and so copy their memory


def run(arguments, folder, environment, log):
    """A command in a session of its own, whose output is appended to a file."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = ["tnctl", *arguments]
    main()


class Command:
    """`tnctl ARGUMENTS`, with the interface of subprocess.Popen."""

    def __init__(self, arguments, folder, log):
        self._process = FORKSERVER.Process(
            target=run, args=(list(arguments), str(folder), dict(os.environ), str(log))
        )
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self):
        return self._process.exitcode

    poll = returncode.fget

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("tnctl", timeout)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self._process.kill()
