"""The Ray actor that supervises one worker process. Ray places it, and starts it again elsewhere.

It runs on the node of its worker, and neither imports TensorFlow nor carries tensors: it starts the
process, passes on what that writes, its port and its exit code, and kills it. It is asked for
these events again and again; each stays until the next question says that it has arrived.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import time
from dataclasses import dataclass
from typing import Any

from tnctl.cluster.joining.assignment import Address, Assignment, end_with
from tnctl.launch.local_processes import COMMAND, MOST_COUNTED
from tnctl.launch.ray_messages import Ended, Port, Written
from tnctl.launch.supervisor import TRAIN
from tnctl.launch.worker_processes import Output, WorkerProcess

POLL_SECONDS = 0.2
HOLD_SECONDS = 2.0  # that a question waits for an event
LEASE_SECONDS = 10.0  # without a question, after which it kills its worker
MOST_EVENTS = 64  # not yet delivered, beyond which a worker that writes has to wait

Event = Written | Port | Ended


@dataclass(frozen=True)
class Place:
    """Where an actor runs."""

    actor: str  # another one whenever it was started again
    node: str
    address: str  # of the node
    cpus: tuple[int, ...]  # of the node that it may use


class WorkerActor:
    """Supervises one worker process. Its methods run in turns, in one thread."""

    def __init__(self, lease: float, silence: float) -> None:
        """`lease` is for how many seconds its worker lives without a question, inf for ever.

        A worker that is stopped for `silence` seconds is killed.
        """
        end_with(os.getppid())  # the raylet: a node that Ray takes for dead must not train
        self._place = _place_of_this_process()
        self._lease, self._silence = lease, silence
        self._process: WorkerProcess | None = None
        self._rank, self._code = 0, -signal.SIGKILL
        self._outputs: list[Output] = []  # of what it says and, of some commands, its results
        self._port = -1
        self._events: list[Event] = []
        self._delivered = 0
        self._asked = time.monotonic()
        self._change = asyncio.Event()

    async def place(self) -> Place:
        return self._place

    async def start(self, actor: str, values: dict[str, Any], folder: str) -> str | None:
        """Start its worker process, in place of an earlier one: why it cannot be started, or None.

        `values` are those of an Assignment without what is this machine's. An actor that was
        started again since `actor` starts nothing: the next question shows it.
        """
        if actor != self._place.actor:
            return None
        await self.end(actor)
        if not os.path.isdir(folder):
            return (
                f"the node {self._place.address} has no folder {folder}, in which the command was "
                "given. Give it in a folder that all nodes share"
            )
        self._events, self._delivered, self._asked = [], 0, time.monotonic()
        try:
            self._begin(values, folder)
        except OSError as error:
            return f"the node {self._place.address} cannot start a worker: {error}"
        return None

    def _begin(self, values: dict[str, Any], folder: str) -> None:
        self._rank = values["rank"]
        is_first = self._rank == 0
        self._outputs = [Output(is_terminal=False)]
        command = values["task"]["command"]
        printed = None
        if is_first and command != TRAIN:  # whose results are apart from what it says
            self._outputs.append(Output(is_terminal=False))
            printed = self._outputs[1].write
        port_pipe = None
        if is_first:
            self._port, port_pipe = os.pipe()
        try:
            self._process = WorkerProcess(
                [*COMMAND, command],
                self._rank,
                self._outputs[0].write,
                [] if port_pipe is None else [port_pipe],
                folder,
                # Ray has set it to the CPUs that it counts.
                os.environ | {"OMP_NUM_THREADS": str(len(values["cpus"]))},
                printed=printed,
            )
        finally:
            for output in self._outputs:
                os.close(output.write)
            if port_pipe is not None:
                os.close(port_pipe)
        self._process.send(Assignment(**values, supervisor=os.getpid(), port_pipe=port_pipe))
        loop = asyncio.get_running_loop()
        self._read_on()
        loop.add_reader(self._process.ended, self._reap)
        if is_first:
            loop.add_reader(self._port, self._read_port)
        self._polling = loop.create_task(self._poll(self._process))

    async def events(self, actor: str, first: int) -> list[Event] | None:
        """What has happened, from the event with the number `first` on: as soon as there is one.

        Empty when nothing has happened for a while, and None of an actor that was started again
        since `actor`.
        """
        if actor != self._place.actor:
            return None
        self._asked = time.monotonic()
        del self._events[: first - self._delivered]
        self._delivered = first
        if self._process is not None:
            self._read_on()
        if not self._events:
            self._change.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HOLD_SECONDS):
                    await self._change.wait()
        return list(self._events)

    async def address(self, actor: str, address: str) -> None:
        """Give the worker the address of rank 0."""
        if self._process is not None and actor == self._place.actor:
            self._process.send(Address(address))

    async def signal(self, actor: str, number: int) -> None:
        """Send the worker a signal."""
        if self._process is not None and actor == self._place.actor:
            self._process.signal(number)

    async def end(self, actor: str) -> int | None:
        """Kill its worker, if it is left, and wait for it; the exit code, None without one."""
        if actor != self._place.actor:
            return None
        if self._process is not None:
            self._process.kill()
            self._reap()
        return self._code

    def _put(self, event: Event) -> None:
        self._events.append(event)
        self._change.set()

    def _read_on(self) -> None:
        """Take what the worker will write."""
        for number, output in enumerate(self._outputs):
            asyncio.get_running_loop().add_reader(output.read, self._read, number)

    def _read(self, number: int) -> None:
        """Take what the worker has written, while there is room for it."""
        loop, output = asyncio.get_running_loop(), self._outputs[number]
        if len(self._events) >= MOST_EVENTS:
            loop.remove_reader(output.read)
        elif content := output.take():
            self._put(Written(self._rank, content, is_printed=number > 0))
        elif content is None:
            loop.remove_reader(output.read)

    def _read_port(self) -> None:
        port = os.read(self._port, 16).strip()
        if port.isdigit():
            self._put(Port(int(port)))
        asyncio.get_running_loop().remove_reader(self._port)

    def _reap(self) -> None:
        """The worker has ended, or was killed."""
        assert self._process is not None
        loop = asyncio.get_running_loop()
        self._polling.cancel()
        loop.remove_reader(self._process.ended)
        process = self._process
        code = process.close()
        for number, output in enumerate(self._outputs):
            while content := output.take():
                self._put(Written(self._rank, content, is_printed=number > 0))
            loop.remove_reader(output.read)
            os.close(output.read)
        if self._port >= 0:
            loop.remove_reader(self._port)
            os.close(self._port)
        self._process, self._outputs, self._port = None, [], -1
        self._code = code
        self._put(Ended(self._rank, code, process.describe(code)))

    async def _poll(self, process: WorkerProcess) -> None:
        """Kill the worker when it is stopped too long, and when nobody asks any more.

        Others may then be started in its place.
        """
        looked = time.monotonic()
        while looked < self._asked + self._lease:
            await asyncio.sleep(POLL_SECONDS)
            now = time.monotonic()
            process.poll(min(now - looked, MOST_COUNTED), self._silence)
            looked = now
        process.kill()


def _place_of_this_process() -> Place:
    import ray

    return Place(
        actor=secrets.token_hex(8),
        node=ray.get_runtime_context().get_node_id(),
        address=ray.util.get_node_ip_address(),
        cpus=tuple(sorted(os.sched_getaffinity(0))),
    )
