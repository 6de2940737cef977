"""The worker processes of this machine: how they are started, watched and ended.

A worker is a program in a session of its own, so that Ctrl-C of a terminal does not reach it. Rank
0 writes where its command does, and the others write logs. A worker that is stopped (SIGSTOP) for
too long is killed: before all have joined nobody else notices.
"""

import contextlib
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from tnctl.cluster.joining.assignment import LOOPBACK, Assignment, line_of
from tnctl.cluster.joining.membership import Membership
from tnctl.launch.environment import Place
from tnctl.progress import SHOW_CURSOR
from tnctl.schema import Cluster
from tnctl.system import shares

TRAIN = "train"  # the command that saves checkpoints, and continues from them
# -P: no module is imported from the folder in which the command was given.
COMMAND = (sys.executable, "-P", "-m", "tnctl.launch.worker")
# Seconds of a worker's stop for each look at it: longer ones were a stop of this process itself.
MOST_COUNTED = 0.4
TAIL_BYTES = 65_536
STARTED = "== workers started, generation"  # begins the line before the output of a process


class Ended(NamedTuple):
    """How a process has ended."""

    code: int
    """as that of subprocess: negative for a process that was killed by a signal"""
    cause: str
    """what has happened, in words"""


class WorkerProcess:
    """One worker process, which `command` runs."""

    def __init__(
        self,
        command: Sequence[str],
        assignment: Assignment,
        stdout: int | None,
        stderr: int | None,
        folder: str | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        """It writes to these descriptors, by default to those of this process."""
        # A file in memory: a worker that is stopped reads nothing, and a pipe would fill.
        with os.fdopen(os.memfd_create("assignment"), "w+b") as file:
            file.write(line_of(assignment))
            file.seek(0)
            self._process = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=file, stdout=stdout, stderr=stderr,
                start_new_session=True,
            )  # fmt: skip
        self.pid = self._process.pid
        self.ending = os.pidfd_open(self.pid)  # readable when it has ended
        self._stopped: float | None = None  # seconds; None while it runs
        self._stopped_for: float | None = None  # seconds, if it was killed for it
        self._is_killed = False

    def ended(self) -> Ended | None:
        """How it has ended; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        if code >= 0:
            return Ended(code, f"ended with exit code {code}")
        if self._stopped_for is not None:
            return Ended(code, f"was stopped for {self._stopped_for:.1f} s")
        return Ended(code, f"was killed by {signal.Signals(-code).name}")

    def look(self, elapsed: float, silence: float) -> None:
        """Kill it when it was stopped by a signal such as SIGSTOP for `silence` seconds.

        To be called at short intervals: `elapsed` is what the time since the last call counts. A
        stop counts from the call that notices it.
        """
        if self._process.returncode is not None or self._stopped_for is not None:
            return
        try:
            options = os.WSTOPPED | os.WCONTINUED | os.WNOHANG
            change = os.waitid(os.P_PID, self.pid, options)
        except ChildProcessError:  # it has ended, and is not waited for yet
            return
        if change is not None:  # the latest one
            self._stopped = 0.0 if change.si_code == os.CLD_STOPPED else None
        elif self._stopped is not None:
            self._stopped += elapsed
            if self._stopped >= silence:
                self._stopped_for = self._stopped
                self.kill()

    def signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.ending, number)

    def kill(self) -> None:
        """Kill it with all processes of its session, stopped ones too, unless it has ended."""
        if self.ended() is None:
            self._is_killed = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> Ended | None:
        """Wait for it: how it has ended, None if it was killed by `kill`."""
        self._process.wait()
        os.close(self.ending)
        ended = self.ended()
        # Of one that was about to end when it was killed the code is its own.
        is_killed = self._is_killed and self._stopped_for is None
        return None if ended and is_killed and ended.code == -signal.SIGKILL else ended

    @property
    def is_cut(self) -> bool:
        """Whether a signal has ended it."""
        return (self._process.returncode or 0) < 0


class LocalProcesses:
    """The processes of a cluster on this machine: all of them, or one."""

    def __init__(
        self,
        name: str,
        membership: Membership,
        folder: Path,
        silence: float,
        place: Place | None = None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        """`name` is the command of tnctl that they run, which `command` is given.

        With `place` it is the one process that this says, else all. All but rank 0 write logs in
        `folder`, which are there. A worker that is stopped for `silence` seconds is lost.
        """
        self.name, self.membership, self.folder = name, membership, folder
        self.ranks = range(membership.size)
        if place is not None:
            self.ranks = range(place.rank, place.rank + 1)
        self._silence, self._place, self._command = silence, place, [*command, name]
        self._token = (place and place.token) or secrets.token_urlsafe(32)
        self._workers: dict[int, WorkerProcess] = {}
        self._looked = 0.0
        self._stack = ExitStack()
        self._selector: selectors.BaseSelector
        self._followed: BinaryIO | None = None

    def start(self, generation: int, task: dict[str, Any]) -> None:
        """Start all of them with the same task, plain values."""
        self._stack = stack = ExitStack()
        self._selector = stack.enter_context(selectors.DefaultSelector())
        addresses, cpus = self._addresses(), self._cpus()
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()  # what this command has said comes before what rank 0 says
        for rank in self.ranks:
            assignment = Assignment(
                token=self._token,
                rank=rank,
                ranks=self.membership.size,
                generation=generation,
                cpus=cpus[rank],
                supervisor=os.getpid(),
                task=task,
                **addresses[rank],
            )
            log = self._log(rank, generation)
            self._workers[rank] = worker = WorkerProcess(self._command, assignment, log, log)
            self._selector.register(worker.ending, selectors.EVENT_READ, rank)
        self._looked = time.monotonic()

    def _addresses(self) -> list[dict[str, Any]]:
        """Where each process listens and is reached, and where rank 0 is, as in an Assignment."""
        if self._place:
            return [self._place.addresses] * self.membership.size
        ports = [self._stack.enter_context(reserved_port()) for _ in self.ranks]
        of_all = {"is_reserved": True, "rank_0": f"{LOOPBACK}:{ports[0]}"}
        return [{"port": port, **of_all} for port in ports]

    def _cpus(self) -> dict[int, tuple[int, ...]]:
        """The CPUs of each rank: workers share them; servers have all, for they work in turns."""
        there = os.sched_getaffinity(0)
        cpus = dict.fromkeys(self.ranks, tuple(sorted(there)))
        if workers := [rank for rank in self.ranks if not self.membership.is_server(rank)]:
            cpus.update(zip(workers, shares(there, len(workers)), strict=True))
        return cpus

    def _log(self, rank: int, generation: int) -> int | None:
        """The descriptor that a rank writes to, None: that of this process."""
        if rank == 0:
            return None
        log = self.folder / self.membership.log_name(rank)
        begin_log(log, generation)
        if len(self.ranks) == 1:
            self._followed = self._stack.enter_context(log.open("rb"))
            self._followed.seek(0, os.SEEK_END)
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
        self._stack.callback(os.close, descriptor)
        return descriptor

    def _show_log(self) -> None:
        """Show what the only process of this command has written, unless it is rank 0."""
        if self._followed is not None:
            with contextlib.suppress(OSError, ValueError):  # nobody may read it any more
                os.write(2, self._followed.read())

    def wait(self, seconds: float) -> dict[int, Ended]:
        """Wait for what happens, at most so long: the ranks that have ended, and how."""
        endings = {}
        for key, _ in self._selector.select(seconds):
            if (ended := self._workers[key.data].ended()) is not None:
                self._selector.unregister(key.fileobj)
                endings[key.data] = ended
        now = time.monotonic()
        for worker in self._workers.values():
            worker.look(min(now - self._looked, MOST_COUNTED), self._silence)
        self._looked = now
        self._show_log()
        return endings

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank, unless it has ended; a handler of signals may call it."""
        if rank in self._workers:
            self._workers[rank].signal(number)

    def end(self) -> dict[int, Ended]:
        """Kill all that are left, stopped ones too, and wait for each.

        How those have ended that were not killed here.
        """
        for worker in self._workers.values():
            worker.kill()
        endings = {rank: worker.close() for rank, worker in self._workers.items()}
        self._show_log()
        if 0 in self._workers and self._workers[0].is_cut and os.isatty(2):
            with contextlib.suppress(OSError):  # it may have left a display
                os.write(2, SHOW_CURSOR + b"\n")
        self._stack.close()
        self._workers, self._followed = {}, None
        return {rank: ended for rank, ended in endings.items() if ended is not None}


@contextmanager
def reserved_port(host: str = LOOPBACK) -> Iterator[int]:
    """A port of a host of this machine on which a worker may listen, while the block runs.

    With SO_REUSEADDR another user could listen before it, and be sent the token.
    """
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((host, 0))
        yield bound.getsockname()[1]


def membership_of(cluster: Cluster) -> Membership:
    """The workers and servers of a conf that says how many there are."""
    assert cluster.workers is not None
    return Membership(cluster.workers, cluster.servers)


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
