"""The process of a command that Ray knows as its driver: places the workers, and passes on events.

It is a process of its own, for Ray ends its driver when the node's raylet or the head is gone. It
decides nothing. Of a connection to Ray that is lost the command learns by the end of this process.
"""

import asyncio
import contextlib
import os
import queue
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tnctl.cluster.joining.assignment import LOST, end_with
from tnctl.errors import quoted
from tnctl.launch import ray_messages as messages
from tnctl.launch.ray_actor import LEASE_SECONDS, Place
from tnctl.launch.ray_placement import (
    ActorGroup,
    NoRoom,
    Placement,
    cpus_of_each,
    hosts_of,
    seconds_until_ended,
)

OBJECT_STORE_BYTES = 80 << 20  # near the least that Ray takes; nothing is kept in it
# Seconds in which the head of Ray must answer: of a Ray on this machine, and of another.
HEAD_SECONDS, FAR_HEAD_SECONDS = 5.0, 20.0
TO_CONNECT = 10.0
RETRY_SECONDS = 0.2
MARGIN_SECONDS = 3.0  # beyond a lease, until its worker has ended for certain


class Driver:
    """The actors of a run, and the generation of workers that they supervise."""

    def __init__(self, connect: messages.Connect, send: Callable[[object], None]) -> None:
        self._connect, self._send = connect, send
        self.address, self._is_own = connect.address, connect.address is None
        self._lease = float("inf") if self._is_own else LEASE_SECONDS
        self._placement = Placement(connect, lambda line: send(messages.Note(line)))
        self._places: list[Place] = []  # of each rank
        self._hosts: list[str] = []
        self._is_started = False  # whether all actors have their workers
        self._signals: list[messages.Signal] = []  # that came before
        self._heard: dict[str, float] = {}  # when each actor has answered last
        self._task: asyncio.Task[None] | None = None
        self._codes: dict[int, int] = {}
        self._references: set[Any] = set()

    # ---- Ray ----------------------------------------------------------------------

    def connect(self) -> None:
        """Start or join Ray, and have it place an actor for each worker and server."""
        import ray

        connect, cpus = self._connect, self._connect.cpus
        if connect.address is None:
            ray.init(
                address="local",
                num_cpus=connect.workers + connect.servers,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                log_to_driver=False,
                _temp_dir=connect.temporary,
            )
        else:
            _require_listener(connect.address)
            ray.init(address=connect.address, log_to_driver=False)
            nodes = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
            cpus = cpus or cpus_of_each(map(int, nodes), connect.workers, connect.servers)
        # A system may send it to all processes: rank 0 saves, and needs its supervisor.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        self._placement.request(cpus, ActorGroup(self._lease, connect.silence))

    async def watch_head(self) -> None:
        """End this process when the head of Ray does not answer any more.

        With a Ray of its own also when the head, or the raylet, has ended: Ray would end this
        process too, but seconds later.
        """
        import ray

        if self._is_own:
            for process in _processes_of_ray():
                ended = os.pidfd_open(process)
                asyncio.get_running_loop().add_reader(ended, os._exit, 1)

        seconds = HEAD_SECONDS if self._is_own else FAR_HEAD_SECONDS
        while True:
            answer = asyncio.get_running_loop().run_in_executor(None, ray.nodes)
            done, _ = await asyncio.wait([answer], timeout=seconds)
            if not done or answer.exception() is not None:
                print(f"the head of Ray did not answer for {seconds:.0f} s", flush=True)
                os._exit(1)
            await asyncio.sleep(1)

    # ---- What the command asks for ----------------------------------------------------

    def take(self, message: object) -> None:
        """Begin to do what the command asks for."""
        if isinstance(message, messages.Start):
            self._is_started, self._signals = False, []
            self._begin(self._run(message))
        elif isinstance(message, messages.End):
            self._begin(self._end())
        elif isinstance(message, messages.Signal):
            self._signals.append(message)
            self._pass_signals()

    def _pass_signals(self) -> None:
        """Send the workers what signals are for them, once they are there."""
        while self._is_started and self._signals:
            passed = self._signals.pop(0)
            self._tell(passed.rank, "signal", passed.number)

    def _begin(self, job: Coroutine[Any, Any, None]) -> None:
        """Do something in place of what is being done."""
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.get_running_loop().create_task(self._guarded(job))

    async def _guarded(self, job: Coroutine[Any, Any, None]) -> None:
        try:
            await job
        except NoRoom as error:
            self._send(messages.Refused(str(error), LOST))
        except Exception as error:
            traceback.print_exc()
            reasons = [line for line in str(error).splitlines() if line.strip()]
            reason = reasons[-1].strip() if reasons else type(error).__name__
            self._send(messages.Refused(f"Ray cannot supervise the workers: {reason}"))

    def _tell(self, rank: int, method: str, *arguments: object) -> None:
        """Call a method of an actor without waiting; of one that was started again it is void."""
        call = getattr(self._placement.actor(rank), method).options(max_task_retries=0)
        self._references.add(call.remote(self._places[rank].actor, *arguments))

    async def _run(self, start: messages.Start) -> None:
        """Start a worker on each actor, once all are placed, and pass on what happens to them."""
        self._codes, self._references = {}, set()
        former, self._places = self._places, await self._placement.places()
        lease = self._lease + MARGIN_SECONDS
        await asyncio.sleep(seconds_until_ended(former, self._places, self._heard, lease))
        self._hosts, cpus = hosts_of(self._places), self._placement.shares(self._places)
        ranks = range(len(self._places))
        self._send(messages.Began())
        self._heard = {place.actor: time.monotonic() for place in self._places}
        starts = []
        for rank in ranks:
            values = {
                "token": start.token,
                "rank": rank,
                "ranks": len(ranks),
                "generation": start.generation,
                "host": self._hosts[rank],
                "cpus": cpus[rank],
                "task": start.task,
            }
            starts.append(self._reached(rank, "start", values, start.folder))
        # One that could not be reached is noticed below.
        for refusal in await asyncio.gather(*starts):
            if refusal is not None:
                self._send(messages.Refused(refusal))
                return
        self._is_started = True
        self._pass_signals()
        await asyncio.gather(*map(self._watch, ranks))

    async def _watch(self, rank: int) -> None:
        """Pass on what happens to a worker until it has ended."""
        first, place = 0, self._places[rank]
        while True:
            events = await self._reached(rank, "events", first)
            if events is None:
                cause = f"was lost with the Ray actor that supervised it on {place.address}"
                self._send(messages.Lost(rank, cause))
                return
            first += len(events)
            for event in events:
                if isinstance(event, messages.Port):
                    for other in range(1, len(self._places)):
                        self._tell(other, "address", f"{self._hosts[0]}:{event.port}")
                    continue
                self._send(event)
                if isinstance(event, messages.Ended):
                    self._codes[rank] = event.code
                    return

    async def _reached(self, rank: int, method: str, *arguments: object) -> Any:
        """What a method of an actor returns; None when it cannot be reached."""
        from ray.exceptions import RayActorError

        call = getattr(self._placement.actor(rank), method).options(max_task_retries=0)
        limit = time.monotonic() + LEASE_SECONDS
        while (seconds := limit - time.monotonic()) > 0:
            answer = asyncio.ensure_future(call.remote(self._places[rank].actor, *arguments))
            if not (await asyncio.wait([answer], timeout=seconds))[0]:
                break
            try:
                result = answer.result()
            except RayActorError:
                await asyncio.sleep(RETRY_SECONDS)
            else:
                if result is not None:
                    self._heard[self._places[rank].actor] = time.monotonic()
                return result
        return None

    async def _end(self) -> None:
        """Kill all workers that are left."""
        self._is_started = False
        if self._hosts:
            left = set(range(len(self._places))) - self._codes.keys()
            codes = await asyncio.gather(*(self._reached(rank, "end") for rank in left))
            ended = zip(left, codes, strict=True)
            # One that was about to end when it was killed has another code.
            self._codes |= {r: c for r, c in ended if c is not None and c != -signal.SIGKILL}
            self._hosts = []
        self._send(messages.Over(self._codes))


def _processes_of_ray() -> Iterator[int]:
    """The head and the raylet that this process has started, by their process ids."""
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            program = Path(f"/proc/{child}/cmdline").read_bytes().partition(b"\0")[0]
            if program.endswith((b"/gcs_server", b"/raylet")):
                yield int(child)


def _require_listener(address: str) -> None:
    """Raise OSError when nothing listens on HOST:PORT, for which Ray would wait for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), TO_CONNECT).close()


async def drive(connection: Connection, driver: Driver) -> None:
    """Do what the command asks for, until it asks to leave, or ends."""
    loop = asyncio.get_running_loop()
    leave = asyncio.Event()

    def read() -> None:
        with contextlib.suppress(EOFError, OSError):
            while not isinstance(message := connection.recv(), messages.Leave):
                loop.call_soon_threadsafe(driver.take, message)
        loop.call_soon_threadsafe(leave.set)

    threading.Thread(target=read, daemon=True).start()
    watching = loop.create_task(driver.watch_head())
    await leave.wait()
    watching.cancel()


def end_group_with(command: int, descriptor: int) -> None:
    """Start a process that kills the group of this one, its leader, when the command ends.

    The kernel kills this process only, and agents of a Ray outlive it for a minute or longer. The
    new process closes the descriptor; it is forked, so there must be no other thread.
    """
    ended = os.pidfd_open(command)
    if os.fork():
        os.close(ended)
        return
    os.close(descriptor)
    for number in (signal.SIGINT, signal.SIGTERM):  # Ray sends it to the group as it ends
        signal.signal(number, signal.SIG_IGN)
    select.select([ended], [], [])
    os.killpg(0, signal.SIGKILL)


def run(descriptor: int, command: int) -> None:
    """Be the driver of the command with this process id, which has the socket's other end."""
    end_with(command)
    end_group_with(command, descriptor)
    connection = Connection(descriptor)
    outgoing: queue.SimpleQueue[object] = queue.SimpleQueue()

    def write() -> None:  # the command may be stopped, and then reads nothing
        with contextlib.suppress(OSError):
            while True:
                connection.send(outgoing.get())

    threading.Thread(target=write, daemon=True).start()
    driver = Driver(connection.recv(), outgoing.put)
    try:
        driver.connect()
    except Exception as error:
        traceback.print_exc()
        reason = " ".join(str(error).split()) or type(error).__name__
        address = driver.address
        which = "Ray" if address is None else f"the Ray of RAY_ADDRESS={quoted(address)}"
        outgoing.put(messages.Refused(f"{which} cannot be used: {reason}"))
        time.sleep(60)  # until the command ends this process
        os._exit(1)
    outgoing.put(messages.Connected())
    asyncio.run(drive(connection, driver))

    import ray

    ray.shutdown()


if __name__ == "__main__":
    try:
        run(*map(int, sys.argv[1:]))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
