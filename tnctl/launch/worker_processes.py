"""A worker process of this machine, what it writes, and the log and the terminal that show it."""

import contextlib
import fcntl
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import tty
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from tnctl.cluster.joining.assignment import Address, Assignment, line_of
from tnctl.launch.forked_process import ForkedProcess
from tnctl.progress import SHOW_CURSOR

# A control sequence, the end of a line, a return to its start, or text.
TOKEN = re.compile(rb"\x1b\[([0-9;?]*)([@-~])|\x1b[^\[]|(\n)|(\r)|[^\x1b\n\r]+")
UNFINISHED = re.compile(rb"\x1b(?:\[[0-9;?]{0,30})?\Z")
HIGHEST = 500  # lines that the cursor may go up

TAIL_BYTES = 65_536
STARTED = "== workers started, generation"  # begins the line before the output of a process


class TerminalLog:
    """Appends what is written to a terminal to a file, as plain lines."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")
        end = self._file.seek(0, 2)
        self._rows = [
            end
        ]  # where the last rows begin in the file; a row ends where the next begins
        self._row = 0  # of the cursor
        self._returned = False
        self._begun = b""

    def write(self, content: bytes) -> None:
        """Add bytes, which may end anywhere."""
        content = self._begun + content
        match = UNFINISHED.search(content)
        self._begun = match[0] if match else b""
        for token in TOKEN.finditer(content, 0, len(content) - len(self._begun)):
            if token[2] is not None:
                self._control(token[1], token[2])
            elif token[3]:
                self._end_row()
            elif token[4]:
                self._returned = True
            elif token[0][0] != 0x1B:
                self._text(token[0])
        self._file.flush()

    @property
    def is_in_a_row(self) -> bool:
        """Whether the last line has no end yet."""
        return self._file.tell() > self._rows[-1]

    def close(self) -> None:
        """End the last line, and close the file."""
        if self.is_in_a_row:
            self._file.write(b"\n")
        self._file.close()

    def _control(self, parameters: bytes, final: bytes) -> None:
        if final == b"A":
            up = int(parameters) if parameters.isdigit() else 1
            self._row = max(self._row - up, 0)
        elif final == b"K":
            self._erase()

    def _erase(self) -> None:
        """Take the cursor's row, and those below, out of the file."""
        self._file.flush()
        self._file.truncate(self._rows[self._row])
        self._file.seek(self._rows[self._row])
        del self._rows[self._row + 1 :]
        self._returned = False

    def _end_row(self) -> None:
        self._returned = False
        if self._row + 1 < len(self._rows):
            self._row += 1
            return
        self._file.write(b"\n")
        self._rows.append(self._file.tell())
        self._rows = self._rows[-HIGHEST:]
        self._row = len(self._rows) - 1

    def _text(self, text: bytes) -> None:
        if self._returned or self._row + 1 < len(self._rows):
            self._erase()
        self._file.write(text)


def is_a_terminal() -> bool:
    """Whether this process shows its lines in a terminal."""
    return os.isatty(2)


def size_of_terminal() -> bytes:
    """The size of this process's terminal (struct winsize), empty without one."""
    with contextlib.suppress(OSError):
        return fcntl.ioctl(2, termios.TIOCGWINSZ, bytes(8))
    return b""


class Output:
    """What a worker process writes: a terminal or a pipe, and its other end to read from.

    `write` is for the process that writes, and closed by whoever has started it.
    """

    def __init__(self, is_terminal: bool, size: bytes = b"") -> None:
        self._is_terminal = is_terminal
        self.read, self.write = pty.openpty() if is_terminal else os.pipe()
        if is_terminal:
            tty.setraw(self.write)
            self.resize(size)
        os.set_blocking(self.read, False)

    def resize(self, size: bytes) -> None:
        """Give it the size of another terminal."""
        if self._is_terminal and size:
            with contextlib.suppress(OSError):
                fcntl.ioctl(self.read, termios.TIOCSWINSZ, size)

    def take(self) -> bytes | None:
        """What was written, at most 64 KiB; empty when there is nothing now, None at the end."""
        try:
            return os.read(self.read, 1 << 16) or None
        except BlockingIOError:
            return b""
        except OSError:  # of a terminal that no process has open
            return None


class Display:
    """Shows what rank 0 has written: in this process's standard error, and in its log."""

    def __init__(self, log: Path) -> None:
        self._log = TerminalLog(log)

    def show(self, content: bytes) -> None:
        with contextlib.suppress(OSError):  # the disk may be full: then the log has a gap
            self._log.write(content)
        _write(content)

    def close(self, is_cut: bool) -> None:
        """`is_cut` says that rank 0 was killed, and may have left a display in the terminal."""
        end = SHOW_CURSOR if is_a_terminal() and is_cut else b""
        with contextlib.suppress(OSError):
            _write(end + b"\n" if self._log.is_in_a_row else end)
            self._log.close()


def _write(content: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody may read it any more
        sys.stderr.flush()
        while content:
            content = content[os.write(2, content) :]


class WorkerProcess:
    """One worker: a process in a session of its own, so that Ctrl-C does not reach it."""

    def __init__(
        self,
        program: Sequence[str] | Callable[[], NoReturn],
        rank: int,
        output: int,
        passed: Sequence[int],
        folder: str | None = None,
        environment: dict[str, str] | None = None,
        *,
        inherits_output: bool = False,
        printed: int | None = None,
    ) -> None:
        """`output` is the descriptor of its standard output and error, `passed` are others.

        `program` is a command, which runs in `folder` with the variables of `environment`, by
        default this process's; or what a copy of this process calls, which ends it. With
        `inherits_output` its standard output is this process's, with `printed` that descriptor.
        """
        self.rank = rank
        stdout = None if inherits_output else output if printed is None else printed
        stdin, self._stdin = os.pipe()
        try:
            self.process: ForkedProcess | subprocess.Popen[bytes] = (
                ForkedProcess(program, stdin=stdin, stdout=stdout, stderr=output, pass_fds=passed)
                if callable(program)
                else subprocess.Popen(
                    program, cwd=folder, env=environment, stdin=stdin, stdout=stdout,
                    stderr=output, pass_fds=passed, start_new_session=True,
                )
            )  # fmt: skip
        except BaseException:
            os.close(self._stdin)
            raise
        finally:
            os.close(stdin)
        self.ended = os.pidfd_open(self.process.pid)  # readable when it has ended
        os.set_blocking(self._stdin, False)
        self._unsent = b""
        self._stopped: float | None = None  # seconds; None while it runs
        self.stopped_for: float | None = None  # seconds, if it was killed for it

    def send(self, document: Assignment | Address) -> None:
        """Write a line to its standard input, or what it takes of it; `flush` writes the rest."""
        self._unsent += line_of(document)
        self.flush()

    def flush(self) -> None:
        """Write as much as its standard input takes without waiting, unless it has ended."""
        # A stopped worker does not read, and a long conf does not fit into the pipe.
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            if self._unsent:
                self._unsent = self._unsent[os.write(self._stdin, self._unsent) :]

    def poll(self, elapsed: float, silence: float) -> None:
        """Send what waits, and kill it when it was stopped for `silence` seconds.

        To be called at short intervals: `elapsed` is what the time since the last call counts.
        """
        self.flush()
        seconds = self._stopped_seconds(elapsed)
        if seconds >= silence and self.stopped_for is None:
            self.stopped_for = seconds
            self.kill()

    def describe(self, code: int) -> str:
        """What its exit code means; a negative one is of a signal."""
        if code >= 0:
            return f"ended with exit code {code}"
        if self.stopped_for is not None:
            return f"was stopped for {self.stopped_for:.1f} s"
        return f"was killed by {signal.Signals(-code).name}"

    def _stopped_seconds(self, elapsed: float) -> float:
        """How many seconds it has been stopped by a signal such as SIGSTOP; 0 while it runs.

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
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.ended, number)

    def kill(self) -> None:
        """Kill it with all processes of its session, stopped ones too, before it is waited for."""
        with contextlib.suppress(ProcessLookupError):  # a copy may have no session of its own yet
            os.killpg(self.process.pid, signal.SIGKILL)
        self.signal(signal.SIGKILL)

    def close(self) -> int:
        """Wait for its end; its exit code."""
        code = self.process.wait()
        os.close(self._stdin)
        os.close(self.ended)
        return code


def last_lines(log: Path, most: int) -> list[str]:
    """The last lines of a worker's output since it was started last."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        lines = file.read().decode("utf-8", "backslashreplace").splitlines()
        starts = [number for number, line in enumerate(lines) if line.startswith(STARTED)]
        return [line for line in lines[starts[-1] + 1 if starts else 0 :] if line.strip()][-most:]
    return []


def begin_log(log: Path, generation: int) -> None:
    """Write a line that parts the output of one generation from the one before."""
    # A full disk is reported when rank 0 writes to it.
    with contextlib.suppress(OSError), log.open("a+b") as file:
        if file.tell():  # the worker may have been killed in the middle of a line
            file.seek(-1, os.SEEK_END)
            file.write(b"" if file.read(1) == b"\n" else b"\n")
        file.write(f"{STARTED} {generation}\n".encode())
