"""Trials that are trained at the same time, by processes of this machine that share its CPUs.

This process alone has the record: a trial asks it through a pipe whether it is poor. A process ends
as soon as this one does. It does not see the terminal, whose Ctrl-C this process hands on.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING

from tnctl.cpu_shares import shares
from tnctl.errors import Stopped
from tnctl.schema import Conf
from tnctl.training.signals import Signals

if TYPE_CHECKING:
    from tnctl.training.search.trial_run import Outcome

SECONDS_BETWEEN_LOOKS = 0.2


@dataclass(frozen=True)
class Task:
    """A trial for a process."""

    number: int
    conf: Conf
    golden: int


@dataclass
class TrialProcess:
    """A process that trains one trial after the other."""

    cpus: Sequence[int]
    number: int | None = None
    """the trial that it trains"""
    _process: multiprocessing.process.BaseProcess | None = None
    _connection: "Connection[object, object] | None" = field(default=None, repr=False)

    def start(self, task: Task) -> None:
        """Begin a trial, in a new process where there is none."""
        self.number = task.number
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._connection, theirs = context.Pipe()
            self._process = context.Process(target=serve, args=(theirs, tuple(self.cpus)))
            self._process.start()
            theirs.close()
        with suppress(OSError):  # it has ended, which `take` finds
            self.connection.send(task)

    @property
    def connection(self) -> "Connection[object, object]":
        """The pipe to the process."""
        assert self._connection is not None
        return self._connection

    def take(self) -> "Outcome | tuple[float | None, ...]":
        """What a process has sent: the evaluations of its trial so far, or how it ended."""
        from tnctl.training.search.trial_run import Outcome

        try:
            message = self.connection.recv()
        except (EOFError, OSError):
            return Outcome("failed", message=f"its process {self._end()}", exit_code=1)
        assert isinstance(message, Outcome | tuple)
        return message

    def answer(self, is_poor: bool) -> None:
        """Say whether the trial is to be stopped."""
        with suppress(OSError):
            self.connection.send(is_poor)

    def interrupt(self) -> None:
        """Ask the trial to save and stop."""
        if self._process is not None and self._process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()
            self._end()

    def _end(self) -> str:
        """Wait for the end of the process; how it was, in words."""
        assert self._process is not None
        self._process.join()
        code = self._process.exitcode or 0
        self.connection.close()
        self._process = self._connection = None
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"


def train_together(
    workers: int,
    tasks: Iterator[Task],
    judge: Callable[[int, Sequence[float | None]], bool],
    ended: Callable[[int, "Outcome"], None],
) -> None:
    """Train trials by so many processes until there are none left.

    `tasks` is asked for the next trial whenever a process is free. Raises Stopped after Ctrl-C or
    SIGTERM, when all trials that were being trained have saved.
    """
    idle = deque(TrialProcess(cpus) for cpus in shares(os.sched_getaffinity(0), workers))
    processes, busy, is_asked = list(idle), list[TrialProcess](), False
    with Signals() as signals:
        try:
            while True:
                while idle and not signals.received and (task := next(tasks, None)) is not None:
                    busy.append(idle.popleft())
                    busy[-1].start(task)
                if not busy:
                    break
                if signals.received and not is_asked:
                    is_asked = True
                    for process in busy:
                        process.interrupt()
                ready = wait([process.connection for process in busy], SECONDS_BETWEEN_LOOKS)
                for process in [process for process in busy if process.connection in ready]:
                    number, message = process.number, process.take()
                    assert number is not None
                    if isinstance(message, tuple):
                        process.answer(judge(number, message))
                        continue
                    busy.remove(process)
                    idle.append(process)
                    if not signals.received or message.state in ("complete", "pruned"):
                        ended(number, message)
            signals.check()
        except Stopped as error:
            raise Stopped(
                "stopped: the trials are saved. Run the same command again to resume",
                error.exit_code,
            ) from None
        finally:
            for process in processes:
                process.kill()


def serve(connection: "Connection[object, object]", cpus: Sequence[int]) -> None:
    """Train the trials that arrive, in a process of its own, as long as its parent lives."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.sched_setaffinity(0, cpus)
    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silence, descriptor)
    from tnctl.training.search.trial_run import run_trial

    def judge(values: Sequence[float | None]) -> bool:
        connection.send(tuple(values))
        return bool(connection.recv())

    while True:
        task = connection.recv()
        assert isinstance(task, Task)
        connection.send(run_trial(task.conf, task.golden, judge))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
