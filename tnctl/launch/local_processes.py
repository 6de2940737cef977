"""The worker processes of this machine: how they are started, watched and ended.

A worker that is stopped (SIGSTOP) for too long is killed: the others notice the silence of a worker
only after all have joined.
"""

import os
import secrets
import selectors
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from tnctl.cluster.joining.addresses import HostPort
from tnctl.cluster.joining.assignment import LOOPBACK, Address, Assignment
from tnctl.cluster.joining.membership import Membership
from tnctl.launch.forked_process import Program
from tnctl.launch.supervisor import TRAIN
from tnctl.launch.worker_processes import (
    Display,
    Output,
    WorkerProcess,
    begin_log,
    is_a_terminal,
    size_of_terminal,
)
from tnctl.system import shares

# -P: no module is imported from the folder in which the command was given.
COMMAND = (sys.executable, "-P", "-m", "tnctl.launch.worker")
# Seconds of a worker's stop for each look at it: longer ones were a stop of this process itself.
MOST_COUNTED = 0.4


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which workers of a cluster are processes of this machine, and where they are reached.

    `host`, `port`, `reached_at` and `rank_0` are those of their assignments.
    """

    first: int = 0  # rank of the first of them
    workers: int  # of the whole cluster
    servers: int = 0
    token: str = field(repr=False)
    host: str | None = LOOPBACK
    port: int = 0
    reached_at: str | None = None
    rank_0: str | None = None


class LocalProcesses:
    """One process for each of the files `logs`, which its output is appended to."""

    def __init__(
        self,
        logs: Sequence[Path],
        silence: float,
        command: Sequence[str] = COMMAND,
        *,
        name: str = TRAIN,
        place: Place | None = None,
        servers: int = 0,
        program: Program | None = None,
    ) -> None:
        """A worker that is stopped for `silence` seconds is lost.

        `name` is the command of tnctl that they run; what one other than train writes to the
        standard output is written to this process's. Without `place` they are the whole cluster,
        of which the last `servers` are dedicated servers. Workers begin as copies of this process
        that run `program`, where that is given and possible. Servers, which do without TensorFlow,
        and the others run `command`.
        """
        self.logs, self.name, self._silence = logs, name, silence
        self._command, self._program = [*command, name], program
        self._place = place or Place(
            workers=len(logs) - servers, servers=servers, token=secrets.token_urlsafe(32)
        )
        self.first, self.has_begun = self._place.first, True
        self.membership = Membership(self._place.workers, self._place.servers)
        self._workers: list[WorkerProcess] = []
        self._codes: dict[int, int] = {}
        self._causes: dict[int, str] = {}
        self._looked = 0.0
        self._output: Output | None = None
        self._display: Display | None = None
        self._port = -1
        self._selector = selectors.DefaultSelector()

    def start(self, generation: int, task: dict[str, Any]) -> None:
        """Start all of them with the same task, plain values."""
        self._codes, self._causes, self._selector = {}, {}, selectors.DefaultSelector()
        for log in self.logs:
            begin_log(log, generation)
        place = self._place
        cpus = self._cpus(range(place.first, place.first + len(self.logs)))
        program = self._program_of_workers()
        self._port, port_pipe = os.pipe()
        self._output = Output(is_a_terminal(), size_of_terminal())
        self._display = Display(self.logs[0])
        with ExitStack() as stack:
            # Only workers have these, so that their end is seen.
            stack.callback(os.close, port_pipe)
            stack.callback(os.close, self._output.write)
            for rank, log in enumerate(self.logs, place.first):
                if rank == place.first:
                    output, passed = self._output.write, [port_pipe]
                else:
                    output, passed = os.open(log, os.O_WRONLY | os.O_APPEND), []
                    stack.callback(os.close, output)
                worker = WorkerProcess(
                    program if rank < place.workers else self._command, rank, output, passed,
                    inherits_output=rank == 0 and self.name != TRAIN,
                )  # fmt: skip
                self._workers.append(worker)
                worker.send(
                    Assignment(
                        token=place.token,
                        rank=rank,
                        ranks=place.workers + place.servers,
                        generation=generation,
                        cpus=cpus[rank - place.first],
                        supervisor=os.getpid(),
                        port_pipe=None if rank else port_pipe,
                        task=task,
                        host=place.host,
                        port=place.port,
                        reached_at=place.reached_at,
                        rank_0=place.rank_0,
                    )
                )
        self._selector.register(self._output.read, selectors.EVENT_READ, self._copy)
        self._selector.register(self._port, selectors.EVENT_READ, self._pass_address)
        for worker in self._workers:
            self._selector.register(worker.ended, selectors.EVENT_READ, worker)
        self._looked = time.monotonic()

    def _program_of_workers(self) -> Sequence[str] | Callable[[], NoReturn]:
        """A command, or what copies of this process run."""
        program, place = self._program, self._place
        if program is None or place.first >= place.workers or not program.may_be_forked(self.name):
            return self._command
        return partial(program.main, self.name)

    def _cpus(self, ranks: Sequence[int]) -> list[tuple[int, ...]]:
        """The CPUs of each rank: workers share them; servers have all, for they work in turns."""
        there = os.sched_getaffinity(0)
        workers = sum(rank < self._place.workers for rank in ranks)
        return [
            *(shares(there, workers) if workers else ()),
            *[tuple(sorted(there))] * (len(ranks) - workers),
        ]

    def wait(self, seconds: float) -> dict[int, int]:
        """Wait for what happens, at most so long: the exit codes of ranks that have ended."""
        codes = {}
        for key, _ in self._selector.select(seconds):
            if isinstance(key.data, WorkerProcess):
                self._selector.unregister(key.fileobj)
                code = key.data.process.wait()
                codes[key.data.rank], self._causes[key.data.rank] = code, key.data.describe(code)
            elif not key.data():
                self._selector.unregister(key.fileobj)
        self._codes |= codes
        now = time.monotonic()
        for worker in self._workers:
            worker.poll(min(now - self._looked, MOST_COUNTED), self._silence)
        self._looked = now
        return codes

    def _copy(self) -> bool:
        """Show what rank 0 has written; False at its end."""
        assert self._output is not None and self._display is not None
        while content := self._output.take():
            self._display.show(content)
        return content is not None

    def _pass_address(self) -> bool:
        """Give the others the port that rank 0 has reported."""
        port = os.read(self._port, 16).strip()
        if port.isdigit():
            for worker in self._workers[1:]:
                worker.send(Address(str(HostPort(self._place.host or LOOPBACK, int(port)))))
        return False

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank, unless it has ended; a handler of signals may call it."""
        if rank - self.first < len(self._workers):
            self._workers[rank - self.first].signal(number)

    def end(self) -> dict[int, int]:
        """Kill all that are left, stopped ones too, and wait for each.

        The exit codes of those that were not killed here.
        """
        codes = {}
        for worker in self._workers:
            if (code := worker.process.poll()) is None:
                worker.kill()
            else:
                codes[worker.rank] = code
        for worker in self._workers:
            code = worker.close()
            # Of one that was about to end when it was killed the code is its own.
            if code != -signal.SIGKILL or worker.stopped_for is not None:
                codes[worker.rank] = code
        for worker in self._workers:
            if worker.rank in codes:
                self._causes[worker.rank] = worker.describe(codes[worker.rank])
        if self._output is not None and self._display is not None:
            self._copy()
            self._display.close(is_cut=(self._codes | codes).get(self.first, -1) < 0)
            os.close(self._output.read)
            os.close(self._port)
        self._selector.close()
        self._workers, self._output, self._display = [], None, None
        return codes

    def describe(self, rank: int, code: int) -> str:
        """What has happened to a worker that was lost with a negative exit code."""
        return self._causes.get(rank, f"was killed by signal {-code}")

    def resize(self) -> None:
        """Give rank 0 the size of this process's terminal; a handler of signals may call it."""
        if self._output is not None:
            self._output.resize(size_of_terminal())
