"""The Ray actor that supervises one worker process. Ray places it, and starts it again elsewhere.

It runs on the node of its worker, and neither imports TensorFlow nor carries tensors: it starts the
process, passes on what that writes and how it ends, and kills it. It is asked for these events
again and again.
"""

import asyncio
import contextlib
import os
import secrets
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from tnctl.cluster.joining.assignment import Assignment, end_with
from tnctl.launch.spawn import COMMAND, MOST_COUNTED, Ended, WorkerProcess, reserved_port

POLL_SECONDS = 0.1
HOLD_SECONDS = 2.0  # that a question waits for an event
LEASE_SECONDS = 10.0  # without a question, after which it kills its worker
TO_READ = 1.0  # seconds in which the last output of a worker that has ended is read
MOST_EVENTS = 64  # not yet asked for, beyond which a worker that writes has to wait
ANY_ADDRESS = "0.0.0.0"


class Written(NamedTuple):
    """What a worker has written to its standard output (1) or error (2)."""

    descriptor: int
    content: bytes


@dataclass(frozen=True)
class Place:
    """Where an actor runs."""

    actor: str  # another one whenever it was started again
    node: str
    address: str  # of the node
    port: int  # on which its worker may listen
    cpus: tuple[int, ...]  # of the node that it may use


class WorkerActor:
    """Supervises one worker process. Its methods run in turns, in one thread."""

    def __init__(self, lease: float, silence: float) -> None:
        """`lease` is for how many seconds its worker lives without a question, inf for ever.

        A worker that is stopped for `silence` seconds is killed.
        """
        end_with(os.getppid())  # the raylet: a node that Ray takes for dead must not train
        self._port = contextlib.ExitStack()
        self._place = _place_of_this_process(self._port.enter_context(reserved_port(ANY_ADDRESS)))
        self._lease, self._silence = lease, silence
        self._worker: WorkerProcess | None = None
        self._events: asyncio.Queue[Written | Ended] = asyncio.Queue(MOST_EVENTS)
        self._tasks: list[asyncio.Task[None]] = []
        self._asked = time.monotonic()

    async def place(self) -> Place:
        return self._place

    async def start(self, actor: str, values: dict[str, Any], folder: str) -> str | None:
        """Start its worker process, in place of an earlier one: why it cannot be started, or None.

        `values` are those of an Assignment without what is this machine's. An actor that was
        started again since `actor` starts nothing: the next question shows it.
        """
        if actor != self._place.actor:
            return None
        await self.end()
        node = f"the node {self._place.address}"
        if not os.path.isdir(folder):
            return (
                f"{node} has no folder {folder}, in which the command was given. Give it in a "
                "folder that all nodes share"
            )
        try:
            assignment = Assignment(**values, supervisor=os.getpid(), is_reserved=True)
            await self._start(assignment, folder)
        except OSError as error:
            return f"{node} cannot start a worker: {error}"
        return None

    async def _start(self, assignment: Assignment, folder: str) -> None:
        loop, outputs = asyncio.get_running_loop(), {}
        for descriptor in (1, 2):
            read, outputs[descriptor] = os.pipe()
            reader = asyncio.StreamReader()
            protocol = partial(asyncio.StreamReaderProtocol, reader)
            await loop.connect_read_pipe(protocol, os.fdopen(read, "rb"))
            self._tasks.append(loop.create_task(self._read(descriptor, reader)))
        # Ray has set it to the CPUs that it counts.
        environment = os.environ | {"OMP_NUM_THREADS": str(len(assignment.cpus))}
        command = [*COMMAND, assignment.task["command"]]
        self._asked = time.monotonic()
        try:
            self._worker = WorkerProcess(
                command, assignment, outputs[1], outputs[2], folder, environment
            )
        finally:
            for output in outputs.values():
                os.close(output)
        self._tasks.append(loop.create_task(self._watch(self._worker, list(self._tasks))))

    async def _read(self, descriptor: int, reader: asyncio.StreamReader) -> None:
        """Take what the worker writes."""
        while content := await reader.read(1 << 16):
            await self._events.put(Written(descriptor, content))

    async def _watch(self, worker: WorkerProcess, reading: list[asyncio.Task[None]]) -> None:
        """Wait for the end of the worker.

        Kill it when it is stopped too long, and when nobody asks any more, for others may then be
        started in its place.
        """
        looked = time.monotonic()
        while worker.ended() is None and looked < self._asked + self._lease:
            await asyncio.sleep(POLL_SECONDS)
            now = time.monotonic()
            worker.look(min(now - looked, MOST_COUNTED), self._silence)
            looked = now
        worker.kill()
        # What it has started may write for longer.
        await asyncio.wait(reading, timeout=TO_READ)
        while (ended := worker.ended()) is None:
            await asyncio.sleep(POLL_SECONDS)
        await self._events.put(ended)

    async def events(self) -> list[Written | Ended] | None:
        """What has happened, as soon as there is something; empty when nothing has for a while.

        None of an actor without a worker, since it was started again.
        """
        # Of this worker: a question about an earlier one may still be held.
        queue, events = self._events, []
        self._asked = time.monotonic()
        if self._worker is None:
            return None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HOLD_SECONDS):
                events.append(await queue.get())
        while not queue.empty():
            events.append(queue.get_nowait())
        return events

    async def signal(self, number: int) -> None:
        """Send the worker a signal."""
        if self._worker is not None:
            self._worker.signal(number)

    async def end(self) -> Ended | None:
        """Kill its worker, if it is left, and wait for it: how it has ended, unless killed here."""
        for task in self._tasks:
            task.cancel()
        worker, self._worker, self._tasks = self._worker, None, []
        self._events = asyncio.Queue(MOST_EVENTS)
        if worker is None:
            return None
        worker.kill()
        return worker.close()


def _place_of_this_process(port: int) -> Place:
    import ray

    return Place(
        actor=secrets.token_hex(8),
        node=ray.get_runtime_context().get_node_id(),
        address=ray.util.get_node_ip_address(),
        port=port,
        cpus=tuple(sorted(os.sched_getaffinity(0))),
    )
