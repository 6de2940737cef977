"""The worker processes of one generation on this machine: started, heard, and killed."""

import contextlib
import fcntl
import itertools
import os
import pty
import signal
import subprocess
import sys
import termios
import tty
from collections.abc import Iterable, Sequence
from pathlib import Path

from tnctl.cluster.assignment import Address, Assignment, line_of
from tnctl.launch.terminal_log import TerminalLog

SHOW_CURSOR = b"\x1b[?25h"
TAIL_BYTES = 65_536


def shares(cpus: Iterable[int], workers: int) -> list[tuple[int, ...]]:
    """The CPUs of each worker: contiguous parts of the sorted CPUs, none of them empty.

    When there are more workers than CPUs, neighbours have the same one.
    """
    ordered = sorted(cpus)
    bounds = [rank * len(ordered) // workers for rank in range(workers + 1)]
    return [
        tuple(ordered[start : max(end, start + 1)]) for start, end in itertools.pairwise(bounds)
    ]


class Display:
    """Where rank 0 shows its lines and its live display: a terminal if this process has one.

    What it shows is copied to this process's standard error, and into its log. `write` is for the
    process that shows, and closed by whoever has started it.
    """

    def __init__(self, log: Path) -> None:
        self.is_terminal = os.isatty(2)
        self.read, self.write = pty.openpty() if self.is_terminal else os.pipe()
        if self.is_terminal:
            tty.setraw(self.write)
            self.resize()
        os.set_blocking(self.read, False)
        self._log = TerminalLog(log)

    def resize(self) -> None:
        """Give the size of this process's terminal to rank 0's."""
        if self.is_terminal:
            with contextlib.suppress(OSError):
                size = fcntl.ioctl(2, termios.TIOCGWINSZ, bytes(8))
                fcntl.ioctl(self.read, termios.TIOCSWINSZ, size)

    def copy(self) -> bool:
        """Copy what has come; False at the end."""
        while True:
            try:
                content = os.read(self.read, 1 << 16)
            except BlockingIOError:
                return True
            except OSError:  # of a terminal that no process has open
                return False
            if not content:
                return False
            with contextlib.suppress(OSError):  # the disk may be full: then the log has a gap
                self._log.write(content)
            _write(content)

    def close(self, is_cut: bool) -> None:
        """`is_cut` says that rank 0 was killed, and may have left a display in the terminal."""
        self.copy()
        end = SHOW_CURSOR if self.is_terminal and is_cut else b""
        with contextlib.suppress(OSError):
            _write(end + b"\n" if self._log.is_in_a_row else end)
            self._log.close()
        os.close(self.read)


def _write(content: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody may read it any more
        sys.stderr.flush()
        while content:
            content = content[os.write(2, content) :]


class WorkerProcess:
    """One worker: a process in a session of its own, so that Ctrl-C does not reach it."""

    def __init__(
        self, command: Sequence[str], rank: int, log: Path, output: int, passed: Sequence[int]
    ) -> None:
        """`output` is the descriptor of its standard output and error, `passed` are others."""
        self.rank, self.log = rank, log
        self.process = subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=passed,
            start_new_session=True,
        )
        self.ended = os.pidfd_open(self.process.pid)  # readable when it has ended
        assert self.process.stdin is not None
        self._stdin = self.process.stdin
        os.set_blocking(self._stdin.fileno(), False)
        self._unsent = b""
        self._stopped: float | None = None  # seconds; None while it runs

    def send(self, document: Assignment | Address) -> None:
        """Write a line to its standard input, or what it takes of it; `flush` writes the rest."""
        self._unsent += line_of(document)
        self.flush()

    def flush(self) -> None:
        """Write as much as its standard input takes without waiting, unless it has ended."""
        # A stopped worker does not read, and a long conf does not fit into the pipe.
        with contextlib.suppress(BrokenPipeError):
            if self._unsent:
                self._unsent = self._unsent[self._stdin.write(self._unsent) or 0 :]

    def stopped_seconds(self, elapsed: float) -> float:
        """How many seconds it has been stopped by a signal such as SIGSTOP; 0 while it runs.

        To be called at short intervals: `elapsed` is what the time since the last call counts.
        A stop counts from the call that notices it.
        """
        if self.process.returncode is not None:
            return 0.0
        try:
            options = os.WSTOPPED | os.WCONTINUED | os.WNOHANG
            change = os.waitid(os.P_PID, self.process.pid, options)
        except ChildProcessError:  # it has ended, and is not waited for yet
            return 0.0
        if change is not None:  # the latest one
            self._stopped = 0.0 if change.si_code == os.CLD_STOPPED else None
        elif self._stopped is not None:
            self._stopped += elapsed
        return self._stopped or 0.0

    def signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill it with all processes of its session, stopped ones too, before it is waited for."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> int:
        """Wait for its end; its exit code."""
        code = self.process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        os.close(self.ended)
        return code

    def last_lines(self, most: int) -> list[str]:
        """The last lines of its output."""
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().decode("utf-8", "backslashreplace").splitlines()
            return [line for line in lines if line.strip() and not line.startswith("== ")][-most:]
        return []


def begin_log(log: Path, generation: int) -> None:
    """Write a line that parts the output of one generation from the one before."""
    # A full disk is reported when rank 0 writes to it.
    with contextlib.suppress(OSError), log.open("a+b") as file:
        if file.tell():  # the worker may have been killed in the middle of a line
            file.seek(-1, os.SEEK_END)
            file.write(b"" if file.read(1) == b"\n" else b"\n")
        file.write(f"== workers started, generation {generation}\n".encode())
