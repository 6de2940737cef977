"""Starts the workers of a run on this machine, and starts them again when some are lost.

Exit codes of workers: 0 has finished; LOST (75), or killed by a signal: all are killed and started
again, from the last checkpoint; killed by SIGINT or SIGTERM, which ask to stop, before it could
handle them: all are killed; anything else is what a single process would have ended with, and is
the code of the whole run.

A worker that is stopped (SIGSTOP) for too long is killed: the others notice the silence of a worker
only after all have joined.
"""

import itertools
import os
import secrets
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from tnctl.cluster.assignment import HOST, LOST, Address, Assignment
from tnctl.errors import Failure, Stopped
from tnctl.launch.worker_processes import Display, WorkerProcess, begin_log, shares
from tnctl.progress import say

# -P: no module is imported from the folder in which the command was given.
COMMAND = (sys.executable, "-P", "-m", "tnctl.cli.worker")
MOST_LOSSES = 3  # without a new checkpoint between them
HANDLED = (signal.SIGINT, signal.SIGTERM)
POLL_SECONDS = 0.2
# Seconds of a worker's stop for each look at it: longer ones were a stop of this process itself.
MOST_COUNTED = 2 * POLL_SECONDS
TO_FOLLOW = 10.0  # seconds that the others have to end after rank 0 has finished
TO_REPORT = 3.0  # seconds that rank 0 has to report what another worker failed with
TO_SAVE = 600.0  # seconds that rank 0 has to save after a signal
TO_END = 2.0  # seconds after a second signal
LINES_OF_A_LOSS, LINES_OF_A_TRACEBACK = 5, 200
COMMAND_SHOWN = "tnctl train"  # how the last line of a worker that failed begins


class Supervisor:
    """The workers of one run. `run` may be called once, in the main thread."""

    def __init__(
        self,
        task: Callable[[int], dict[str, Any]],
        logs: Sequence[Path],
        newest: Callable[[], object],
        silence: float,
        command: Sequence[str] = COMMAND,
    ) -> None:
        """A worker for each of the files `logs`, which its output is appended to.

        `task` makes what the workers of a generation are given, plain values; `newest` is anything
        that differs when there is a new checkpoint. A worker that is stopped for `silence` seconds
        is lost.
        """
        self._task, self._logs, self._newest, self._command = task, logs, newest, command
        self._silence = silence
        self._token = secrets.token_urlsafe(32)
        self._workers: list[WorkerProcess] = []
        self._ended: list[WorkerProcess] = []  # those of the generation before
        self._display: Display | None = None
        self._codes: dict[int, int] = {}
        self._stopped: dict[int, float] = {}  # those killed since they were stopped: seconds
        self._signals: list[int] = []
        self._deadline = float("inf")

    def run(self) -> int:
        """Supervise the workers until the run ends; its exit code.

        Raises Failure when workers are lost again and again, and Stopped when a signal has ended
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
                    self._end_all()
                if code != LOST:
                    return code
                losses = losses + 1 if self._newest() == newest else 1
                self._report_loss(losses)
        raise AssertionError

    def _start(self, generation: int) -> None:
        self._codes, self._stopped, self._deadline = {}, {}, float("inf")
        for log in self._logs:
            begin_log(log, generation)
        task, cpus = self._task(generation), shares(os.sched_getaffinity(0), len(self._logs))
        self._port, port_pipe = os.pipe()
        self._display = Display(self._logs[0])
        with ExitStack() as stack:
            # Only workers have these, so that their end is seen.
            stack.callback(os.close, port_pipe)
            stack.callback(os.close, self._display.write)
            for rank, log in enumerate(self._logs):
                if rank == 0:
                    output, passed = self._display.write, [port_pipe]
                else:
                    output, passed = os.open(log, os.O_WRONLY | os.O_APPEND), []
                    stack.callback(os.close, output)
                worker = WorkerProcess(self._command, rank, log, output, passed)
                self._workers.append(worker)
                worker.send(
                    Assignment(
                        token=self._token,
                        rank=rank,
                        ranks=len(self._logs),
                        generation=generation,
                        cpus=cpus[rank],
                        supervisor=os.getpid(),
                        port_pipe=None if rank else port_pipe,
                        task=task,
                    )
                )
        if self._signals:  # it came before rank 0 was started
            self._deadline = time.monotonic() + TO_END
            self._workers[0].signal(self._signals[-1])

    def _watch(self) -> int:
        """Wait until the generation is decided; the exit code of the run, or LOST."""
        assert self._display is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._display.read, selectors.EVENT_READ, self._copy)
            selector.register(self._port, selectors.EVENT_READ, self._pass_address)
            for worker in self._workers:
                selector.register(worker.ended, selectors.EVENT_READ, worker)
            looked = time.monotonic()
            while True:
                for key, _ in selector.select(POLL_SECONDS):
                    if isinstance(key.data, WorkerProcess):
                        selector.unregister(key.fileobj)
                        self._codes[key.data.rank] = key.data.process.wait()
                        self._set_deadline(key.data.rank)
                    elif not key.data():
                        selector.unregister(key.fileobj)
                if (code := self._decided()) is not None:
                    return code
                now = time.monotonic()
                self._poll(min(now - looked, MOST_COUNTED))
                looked = now

    def _poll(self, elapsed: float) -> None:
        """Send what waits, and kill workers that were stopped too long; `elapsed` is in seconds."""
        for worker in self._workers:
            worker.flush()
            seconds = worker.stopped_seconds(elapsed)
            if seconds >= self._silence and worker.rank not in self._stopped:
                self._stopped[worker.rank] = seconds
                worker.kill()

    def _copy(self) -> bool:
        assert self._display is not None
        return self._display.copy()

    def _pass_address(self) -> bool:
        """Give the others the port that rank 0 has reported."""
        port = os.read(self._port, 16).strip()
        if port.isdigit():
            for worker in self._workers[1:]:
                worker.send(Address(f"{HOST}:{int(port)}"))
        return False

    def _set_deadline(self, rank: int) -> None:
        """After a worker has ended: how long rank 0, or the others, may take to end too."""
        code = self._codes[rank]
        if rank == 0:
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
        others = {rank: code for rank, code in self._codes.items() if rank}
        failed = [rank for rank, code in others.items() if 0 < code != LOST]
        first = self._codes.get(0)
        if first == 0:
            return 0 if len(self._codes) == len(self._workers) or is_over else None
        if first is not None and 0 < first != LOST:
            return first
        is_lost = first is not None or any(code < 0 or code == LOST for code in others.values())
        if failed and (is_lost or is_over):
            self._report_failure(failed[0])
            return others[failed[0]]
        ended_by = [-code for code in self._codes.values() if -code in HANDLED]
        if signals := (self._signals or ended_by) if is_lost or is_over else []:
            number = signals[0]
            raise Stopped(
                f"stopped by {signal.Signals(number).name} before the workers have saved. Run the "
                "same command again: it resumes from the last checkpoint, if there is one",
                128 + number,
            )
        return LOST if is_lost else None

    def _end_all(self) -> None:
        """Kill all workers that are left, stopped ones too, and wait for each."""
        for worker in self._workers:
            if (code := worker.process.poll()) is None:
                worker.kill()
            else:
                self._codes[worker.rank] = code
        for worker in self._workers:
            code = worker.close()
            if code != -signal.SIGKILL:  # it was about to end when it was killed
                self._codes[worker.rank] = code
        if self._display is not None:
            self._display.close(is_cut=self._codes.get(0, -1) < 0)
            os.close(self._port)
        self._ended, self._workers, self._display = self._workers, [], None

    def _report_loss(self, losses: int) -> None:
        """Say which workers were lost. Raises Failure after too many losses."""
        # One that was killed is why others ended.
        causes = {
            rank: f"worker {rank} was killed by {signal.Signals(-code).name}"
            for rank, code in self._codes.items()
            if code < 0
        }
        for rank, seconds in self._stopped.items():
            causes[rank] = f"worker {rank} was stopped for {seconds:.1f} s"
        if not causes:
            lost = [rank for rank, code in self._codes.items() if code == LOST]
            causes = {rank: f"worker {rank} has lost another one" for rank in lost}
        for rank in sorted(causes):
            self._show_lines(rank, LINES_OF_A_LOSS)
        cause = ", ".join(text for _, text in sorted(causes.items()))
        if losses >= MOST_LOSSES:
            raise Failure(
                f"workers were lost {losses} times and no checkpoint was saved in between; the "
                f"last time {cause}. Look at {self._logs[0].parent}, and at the machine's memory"
            )
        say(f"{cause}: all workers start again from the last checkpoint")

    def _report_failure(self, rank: int) -> None:
        """Show the message of a worker that rank 0 could not show."""
        lines = self._last_lines(rank, LINES_OF_A_TRACEBACK)
        code = self._codes[rank]
        message = lines[-1] if lines else f"ended with exit code {code} and said nothing"
        message = message.removeprefix(f"{COMMAND_SHOWN}: ")
        if not message.startswith("worker "):
            message = f"worker {rank}: {message}"
        is_named = "Its traceback is in" in message
        if not is_named and any(line.startswith("Traceback") for line in lines):
            message += f". Its traceback is in {self._logs[rank]}"
        say(f"{COMMAND_SHOWN}: {message}")

    def _show_lines(self, rank: int, most: int) -> None:
        if rank:  # those of rank 0 are shown already
            for line in self._last_lines(rank, most):
                say(line if line.startswith(f"worker {rank}: ") else f"worker {rank}: {line}")

    def _last_lines(self, rank: int, most: int) -> list[str]:
        return (self._workers or self._ended)[rank].last_lines(most)

    @contextmanager
    def _handled(self) -> Iterator[None]:
        """Pass Ctrl-C and SIGTERM to rank 0 while the block runs."""
        previous: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in HANDLED:
                # Ignored signals stay ignored, such as Ctrl-C for commands in the background.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    previous[number] = signal.signal(number, self._handle)
            previous[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, self._resize)
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
        if self._workers and 0 not in self._codes:
            self._workers[0].signal(number)

    def _resize(self, *_: object) -> None:
        if self._display is not None:
            self._display.resize()
