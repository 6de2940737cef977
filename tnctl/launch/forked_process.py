"""A worker process that begins as a copy of its supervisor, which has imported its modules.

To import TensorFlow takes longer than all else that a worker does before its first step. The
supervisor imports once, and each worker, also each that is started again, is ready at once.
"""

import contextlib
import ctypes
import fcntl
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

PR_SET_NAME = 15  # of linux/prctl.h
TENSORFLOW = "tf_"  # begins the names of its threads
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGWINCH, signal.SIGTSTP)


@dataclass(frozen=True)
class Program:
    """What worker processes run, by the name of their command of tnctl."""

    load: Callable[[str], None]
    """Imports what they need, in the process that is copied for each of them."""
    main: Callable[[str], NoReturn]
    """Does what is assigned over the standard input, and ends the process."""

    def may_be_forked(self, command: str) -> bool:
        """Whether a copy of this process may run it; if so, its modules are imported now.

        Only the thread that forks lives on in the copy, and locks of others stay locked. Those that
        libraries have in C handle that; TensorFlow's, which compute, do not.
        """
        if threading.active_count() > 1 or _computes():
            return False
        self.load(command)
        return True


def _computes() -> bool:
    """Whether TensorFlow has started the threads that compute, as the first operation does."""
    tasks = Path("/proc/self/task").glob("*/comm")
    return any(task.read_text().startswith(TENSORFLOW) for task in tasks)


class ForkedProcess:
    """A copy of this process in a session of its own, with the interface of subprocess.Popen."""

    def __init__(
        self,
        run: Callable[[], NoReturn],
        *,
        stdin: int,
        stdout: int | None,
        stderr: int,
        pass_fds: Sequence[int],
    ) -> None:
        """`run` ends the process. It has no descriptors but these; without `stdout` this one's."""
        self.returncode: int | None = None
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        # The copy must not handle a signal as its parent does.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        try:
            with warnings.catch_warnings():
                # Threads of NumPy's and Arrow's libraries count, which handle forks.
                warnings.simplefilter("ignore", DeprecationWarning)
                self.pid = os.fork()
            if self.pid == 0:
                try:
                    _become_a_process(stdin, stdout, stderr, pass_fds)
                    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                    run()
                finally:
                    os._exit(1)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._waited(os.WNOHANG)

    def wait(self) -> int:
        """Wait for its end; its exit code."""
        code = self._waited(0)
        assert code is not None
        return code

    def _waited(self, options: int) -> int | None:
        # A handler of signals may have waited for it meanwhile.
        with contextlib.suppress(ChildProcessError):
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, options)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def _become_a_process(stdin: int, stdout: int | None, stderr: int, pass_fds: Sequence[int]) -> None:
    """What a new program would have: a session, its descriptors, and no handlers of signals."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    # Of SIGINT too: before the program handles it, its death says what has ended it.
    for number in HANDLED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    # A program that calls tnctl may have replaced them, and each writes to what it has replaced.
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    # Any of these may have the number of another one where a standard stream was closed.
    standard = {number: fd for number, fd in enumerate((stdin, stdout, stderr)) if fd is not None}
    copies = {number: fcntl.fcntl(fd, fcntl.F_DUPFD, 3) for number, fd in standard.items()}
    for target, copy in copies.items():
        os.dup2(copy, target)
    kept = {0, 1, 2, *pass_fds}
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor not in kept:
            with contextlib.suppress(OSError):  # that of the listing
                os.close(descriptor)


def name_process(name: str) -> None:
    """Name this process, for whoever lists processes; of a longer name the first 15 bytes."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())
