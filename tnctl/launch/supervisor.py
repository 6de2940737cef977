"""Starts workers of a run, and starts them again when some are lost.

They are all workers of a cluster, or a part of them, whose first then is what rank 0 is below.

Exit codes of workers: 0 has finished; LOST (75), or killed by a signal: all are killed and started
again, from the last checkpoint; NOT_JOINED: the others did not come, and the run ends; killed by
SIGINT or SIGTERM, which ask to stop, before it could handle them: all are killed; anything else is
what a single process would have ended with, and is the code of the whole run.
"""

import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from tnctl import files
from tnctl.checkpoint.chain import FOLDER as CHECKPOINTS
from tnctl.checkpoint.chain import newest_first
from tnctl.cluster.joining.assignment import LOST, NOT_JOINED
from tnctl.cluster.joining.members import Problem
from tnctl.cluster.joining.membership import Membership
from tnctl.errors import Stopped
from tnctl.launch.spawn import TRAIN, Ended, last_lines
from tnctl.manifest import NAME as MANIFEST
from tnctl.progress import say

HANDLED = (signal.SIGINT, signal.SIGTERM)
POLL_SECONDS = 0.2
TO_FOLLOW = 10.0  # seconds that the others have to end after rank 0 has finished
TO_REPORT = 3.0  # seconds that rank 0 has to report what another worker failed with
TO_SAVE = 600.0  # seconds that rank 0 has to save after a signal
TO_END = 2.0  # seconds after a second signal
LINES_OF_A_LOSS, LINES_OF_A_TRACEBACK = 5, 200


class Processes(Protocol):
    """The worker processes of a run: how they are started, watched and ended."""

    name: str  # the command of tnctl that they run
    membership: Membership  # of the whole cluster
    ranks: range  # of these processes
    folder: Path  # of the logs of all but the first, whose output is shown

    def start(self, generation: int, task: dict[str, Any]) -> None:
        """Start all of them with the same task, plain values. Raises UserError."""

    def wait(self, seconds: float) -> dict[int, Ended]:
        """Wait for what happens, at most so long: the ranks that have ended, and how."""

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank, unless it has ended; a handler of signals may call it."""

    def end(self) -> dict[int, Ended]:
        """Kill all that are left: how those have ended that were not killed here."""


class Supervisor:
    """Decides what becomes of a run. `run` may be called once, in the main thread."""

    def __init__(
        self,
        task: Callable[[], dict[str, Any]],
        newest: Callable[[], object],
        processes: Processes,
        restarts: int = 2,
        lost_code: int = 1,
    ) -> None:
        """`task` makes what the workers of a generation are given, plain values.

        `newest` is anything that differs when there is a new checkpoint. Lost workers are started
        again `restarts` times without a new checkpoint in between; then `lost_code` is the exit
        code.
        """
        self._task, self._newest, self._processes = task, newest, processes
        self._restarts, self._lost_code = restarts, lost_code
        self._first, self._name = processes.ranks[0], processes.name
        self._called = processes.membership.name
        self._endings: dict[int, Ended] = {}
        self._signals: list[int] = []
        self._deadline = float("inf")

    def run(self) -> int:
        """Supervise the workers until the run ends; its exit code.

        Raises UserError when workers are lost again and again, and Stopped when a signal has ended
        them before rank 0 could save.
        """
        losses = 0
        with self._handled():
            for generation in itertools.count(1):
                newest = self._newest()
                try:
                    self._start(generation)
                    code = self._watch()
                finally:
                    self._endings |= self._processes.end()
                if code != LOST:
                    return self._lost_code if code == NOT_JOINED else code
                losses = losses + 1 if self._newest() == newest else 1
                self._report_loss(losses)
        raise AssertionError

    def _start(self, generation: int) -> None:
        self._endings, self._deadline = {}, float("inf")
        self._processes.start(generation, self._task())
        if self._signals:  # it came before rank 0 was started
            self._deadline = time.monotonic() + TO_END
            self._processes.signal(self._first, self._signals[-1])

    def _watch(self) -> int:
        """Wait until the generation is decided; the exit code of the run, or LOST."""
        while True:
            endings = self._processes.wait(POLL_SECONDS)
            self._endings |= endings
            for rank, ended in endings.items():
                self._set_deadline(rank, ended.code)
            if (code := self._decided()) is not None:
                return code

    def _set_deadline(self, rank: int, code: int) -> None:
        """After a worker has ended: how long rank 0, or the others, may take to end too."""
        if rank == self._first:
            seconds = TO_FOLLOW
        elif code in (0, LOST) or code < 0:
            return
        else:
            # It has been told to stop, and rank 0 saves; or it failed, and rank 0 says with what.
            is_stopped = code in [128 + number for number in HANDLED]
            seconds = TO_SAVE if is_stopped else TO_REPORT
        self._deadline = min(self._deadline, time.monotonic() + seconds)

    def _decided(self) -> int | None:
        """What the exit codes so far mean for the run; None when more must be waited for."""
        is_over = time.monotonic() >= self._deadline
        others = {rank: ended.code for rank, ended in self._endings.items()}
        first = others.pop(self._first, None)
        if first == 0:
            is_over = is_over or len(self._endings) == len(self._processes.ranks)
            return 0 if is_over else None
        if first is not None and 0 < first != LOST:
            return first
        failed = [rank for rank, code in others.items() if 0 < code != LOST]
        is_lost = first is not None or any(code < 0 or code == LOST for code in others.values())
        if failed and (is_lost or is_over):
            self._report_failure(failed[0])
            return others[failed[0]]
        ended_by = [-ended.code for ended in self._endings.values() if -ended.code in HANDLED]
        if signals := (self._signals or ended_by) if is_lost or is_over else []:
            raise self._stopped_by(signals[0])
        return LOST if is_lost else None

    def _stopped_by(self, number: int) -> Stopped:
        way = "and nothing is in force that it did not complete. Run the same command again"
        if self._name == TRAIN:
            way = (
                "before the workers have saved. Run the same command again: it resumes from the "
                "last checkpoint, if there is one"
            )
        return Stopped(f"stopped by {signal.Signals(number).name} {way}", 128 + number)

    def _report_loss(self, losses: int) -> None:
        """Say which workers were lost. Raises UserError after too many losses."""
        # One that was killed is why others ended.
        killed = {rank: ended.cause for rank, ended in self._endings.items() if ended.code < 0}
        causes = killed or {
            rank: "has lost another one"
            for rank, ended in self._endings.items()
            if ended.code == LOST
        }
        for rank in sorted(causes.keys() - {self._first}):  # whose lines are shown already
            name = f"{self._called(rank)}: "
            for line in self._last_lines(rank, LINES_OF_A_LOSS):
                say(line if line.startswith(name) else f"{name}{line}")
        cause = ", ".join(f"{self._called(rank)} {text}" for rank, text in sorted(causes.items()))
        between, start = "", ""
        if self._name == TRAIN:
            between, start = " and no checkpoint was saved in between", " from the last checkpoint"
        if losses > self._restarts:
            memory = ", and at the machine's memory" if killed else ""
            often = f"{losses} times{between}; the last time" if losses > 1 else "once:"
            raise Problem(
                f"workers were lost {often} {cause}. Look at {self._processes.folder}{memory}",
                self._lost_code,
            ).error()
        say(f"{cause}: all workers start again{start}")

    def _report_failure(self, rank: int) -> None:
        """Show the message of a worker that rank 0 could not show."""
        lines = self._last_lines(rank, LINES_OF_A_TRACEBACK)
        code = self._endings[rank].code
        message = lines[-1] if lines else f"ended with exit code {code} and said nothing"
        message = message.removeprefix(f"tnctl {self._name}: ")
        if not message.startswith(("worker ", "server ")):
            message = f"{self._called(rank)}: {message}"
        is_named = "Its traceback is in" in message
        if not is_named and any(line.startswith("Traceback") for line in lines):
            message += f". Its traceback is in {self._log(rank)}"
        say(f"tnctl {self._name}: {message}")

    def _log(self, rank: int) -> Path:
        return self._processes.folder / self._processes.membership.log_name(rank)

    def _last_lines(self, rank: int, most: int) -> list[str]:
        return last_lines(self._log(rank), most)

    @contextmanager
    def _handled(self) -> Iterator[None]:
        """Pass Ctrl-C and SIGTERM to rank 0 while the block runs."""
        previous: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in HANDLED:
                # Ignored signals stay ignored, such as Ctrl-C for commands in the background.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    previous[number] = signal.signal(number, self._handle)
            # While it is ignored, which is inherited, the system keeps no exit codes.
            previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            yield
        finally:
            for handled, handler in previous.items():
                signal.signal(handled, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        """The first signal lets rank 0 save and end all; after the second all end at once."""
        self._signals.append(number)
        seconds = TO_SAVE if len(self._signals) == 1 else TO_END
        self._deadline = min(self._deadline, time.monotonic() + seconds)
        if self._first not in self._endings:
            self._processes.signal(self._first, number)


def supervise(processes: Processes, task: dict[str, Any], lost_code: int = 1) -> int:
    """Have processes do a task until the run ends; its exit code. Raises as `Supervisor.run`."""
    restarts = task["conf"]["cluster"]["restarts"]
    if processes.name != TRAIN:
        return Supervisor(lambda: task, lambda: None, processes, restarts, lost_code).run()
    newest = partial(newest_checkpoint, task["conf"]["output"])
    at_start = newest()

    def renewed() -> dict[str, Any]:
        # Until there is a checkpoint of this run, the one before may still be there.
        return task | {"overwrite": task["overwrite"] and newest() == at_start}

    return Supervisor(renewed, newest, processes, restarts, lost_code).run()


def newest_checkpoint(output: str) -> object:
    """What differs when an output has another newest checkpoint; None without one."""
    for folder in newest_first(files.join(output, CHECKPOINTS)):
        return folder, files.fingerprint(files.join(folder, MANIFEST))
    return None
