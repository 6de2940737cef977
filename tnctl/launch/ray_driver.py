"""The process of a command that Ray knows as its driver: supervises workers that Ray has placed.

It is a process of its own, for Ray ends its driver when the node's raylet or the head is gone. The
command supervises it as `cluster=local` does a worker: a Ray of this machine is started again. What
Ray says, also by this process's standard output and error, is in a log; lines go to the command's.
"""

import contextlib
import json
import math
import os
import secrets
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tnctl.cluster.joining.addresses import HostPort
from tnctl.cluster.joining.assignment import LOOPBACK, LOST, take_assignment
from tnctl.cluster.joining.liveness import SILENCE
from tnctl.cluster.joining.members import Problem
from tnctl.cluster.joining.membership import Membership
from tnctl.errors import Failure, Stopped, UserError, quoted, refuse_if
from tnctl.launch.ray_actor import LEASE_SECONDS, Place, Written
from tnctl.launch.ray_placement import NoRoom, Placement, cpus_of_each
from tnctl.launch.spawn import Ended, LocalProcesses, begin_log, membership_of
from tnctl.launch.supervisor import HANDLED, supervise
from tnctl.progress import console
from tnctl.schema import Cluster, from_values

COMMAND = (sys.executable, "-P", "-m", "tnctl.launch.ray_driver")
LOG_OF_RAY = "ray.log"  # what Ray itself says, beside the logs of workers
END = "end"  # a file in the driver's folder: the exit code of the run, and why it ends
OBJECT_STORE_BYTES = 80 << 20  # near the least that Ray takes; nothing is kept in it
# Seconds in which the head of Ray must answer: of a Ray on this machine, and of another.
HEAD_SECONDS, FAR_HEAD_SECONDS = 5.0, 20.0
TO_CONNECT = 10.0
MARGIN_SECONDS = 3.0  # beyond a lease, until its worker has ended for certain
OF_OWN_RAY = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # its ports are on 127.0.0.1
    # Without a token Ray makes one for all of the user's, in the home folder.
    "RAY_AUTH_MODE": "token",
    "RAY_worker_niceness": "0",  # as with cluster=local
    "RAY_USAGE_STATS_ENABLED": "0",
}


def address_of_ray() -> str | None:
    """The Ray of the variable RAY_ADDRESS, None for one of this machine. Raises UserError."""
    address = os.environ.get("RAY_ADDRESS", "local") or "local"
    refuse_if(
        "://" in address,
        f"RAY_ADDRESS={quoted(address)} is of a server that takes jobs: give the command to "
        "`ray job submit`, or give it on a node of the cluster with RAY_ADDRESS=auto",
    )
    return None if address == "local" else address


# ---- In the command ----------------------------------------------------------------


class RayDriver(LocalProcesses):
    """The driver, and a Ray of this machine, in a session of their own."""

    def __init__(self, name: str, cluster: Cluster, folder: Path) -> None:
        """`folder` is that of the logs of workers, and of what Ray itself says."""
        super().__init__(name, Membership(1), folder, cluster.timeout * SILENCE, command=COMMAND)
        self._address = address_of_ray()
        workers = membership_of(cluster).workers
        there, wanted = len(os.sched_getaffinity(0)), (cluster.cpus or 0) * workers
        refuse_if(
            self._address is None and wanted > max(there, workers),
            f"cluster.cpus={cluster.cpus} for {workers} workers are {wanted} CPUs, and this "
            f"machine has {there}. Leave it out, or name a Ray with RAY_ADDRESS",
        )
        self._temporary = ""

    def start(self, generation: int, task: dict[str, Any]) -> None:
        """Start the driver, with the task of the workers."""
        # Below a folder of this user: Ray lets all users write into its own.
        self._temporary = os.path.join(tempfile.mkdtemp(prefix="tnctl-ray-"), "r")
        os.mkdir(self._temporary)
        folders = {"logs": str(self.folder), "temporary": self._temporary}
        super().start(generation, {"task": task, **folders})

    def wait(self, seconds: float) -> dict[int, Ended]:
        """Wait for the end of the driver. Raises UserError when the run ends with an error."""
        endings = super().wait(seconds)
        end = Path(self._temporary) / END
        if 0 not in endings or -endings[0].code in HANDLED:
            return endings
        if end.exists():
            code, message = json.loads(end.read_text())
            if message is None:
                return {0: Ended(code, "")}
            raise Stopped(message, code) if code > 128 else Problem(message, code).error()
        if self._address is not None:
            raise Failure(
                f"the Ray of RAY_ADDRESS={quoted(self._address)} cannot be reached any more "
                f"({self.folder / LOG_OF_RAY}). Run the same command again: it resumes from the "
                "last checkpoint"
            )
        cause = "was lost with the Ray of this machine, which is started again"
        return {0: Ended(-signal.SIGKILL, cause)}

    def end(self) -> dict[int, Ended]:
        """Kill the driver, and all that it has started."""
        groups = [worker.pid for worker in self._workers.values()]
        super().end()
        for group in groups:
            # Agents of Ray may be left, and who watches for the end of this process.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        shutil.rmtree(os.path.dirname(self._temporary), ignore_errors=True)
        return {}


# ---- In the driver -----------------------------------------------------------------


class RayProcesses:
    """Worker processes on the nodes of Ray, each supervised by an actor."""

    def __init__(
        self, name: str, cluster: Cluster, folder: Path, streams: Sequence[IO[bytes]]
    ) -> None:
        """`streams` are the standard output and error of the command."""
        self.name, self.membership, self.folder = name, membership_of(cluster), folder
        self.ranks = range(self.membership.size)
        self._streams, self._token = streams, secrets.token_urlsafe(32)
        address, silence = address_of_ray(), cluster.timeout * SILENCE
        cpus = _connect(address, cluster, self.membership)
        self._lease = math.inf if address is None else LEASE_SECONDS
        self._placement = Placement(self.membership, cpus, cluster.patience, is_own=address is None)
        self._placement.request(self._lease, silence)
        self._places: list[Place] = []
        self._heard: dict[str, float] = {}  # when each actor has answered last
        self._asking: dict[Any, int] = {}  # the rank of each question for events
        self._signals: deque[tuple[int, int]] = deque()

    def start(self, generation: int, task: dict[str, Any]) -> None:
        """Start a worker on each actor, once all are placed. Raises UserError."""
        self._asking = {}
        self._signals.clear()
        with _default_signals():
            try:
                former, self._places = self._places, self._placement.places()
            except NoRoom as error:
                raise UserError(str(error), LOST) from None
            lease = self._lease + MARGIN_SECONDS
            time.sleep(max(seconds_until_ended(former, self._places, self._heard, lease), 0.0))
        self._heard = {place.actor: time.monotonic() for place in self._places}
        hosts, cpus = hosts_of(self._places), self._placement.shares(self._places)
        rank_0 = str(HostPort(hosts[0], self._places[0].port))
        starts = {}
        for rank, place in enumerate(self._places):
            values = {
                "token": self._token,
                "rank": rank,
                "ranks": len(self.ranks),
                "generation": generation,
                "host": hosts[rank],
                "port": place.port,
                "rank_0": rank_0,
                "cpus": cpus[rank],
                "task": task,
            }
            start = self._placement.actors[rank].start
            starts[start.remote(place.actor, values, os.getcwd())] = rank
            if rank:
                begin_log(self._log(rank), generation)
        # One that cannot be reached is noticed by the first question.
        for refusal in self._answers(starts).values():
            refuse_if(refusal is not None, str(refusal), Failure)
        for rank in self.ranks:
            self._ask(rank)

    def _log(self, rank: int) -> Path:
        return self.folder / self.membership.log_name(rank)

    def _answers(self, questions: dict[Any, int]) -> dict[int, Any]:
        """The answers of ranks that can be reached."""
        import ray

        there, _ = ray.wait(list(questions), num_returns=len(questions), timeout=LEASE_SECONDS)
        answers = {}
        for question in there:
            with contextlib.suppress(ray.exceptions.RayActorError):
                answers[questions[question]] = ray.get(question)
        return answers

    def _ask(self, rank: int) -> None:
        self._asking[self._placement.actors[rank].events.remote()] = rank

    def wait(self, seconds: float) -> dict[int, Ended]:
        """Wait for what happens, at most so long: the ranks that have ended, and how."""
        import ray

        while self._signals:
            rank, number = self._signals.popleft()
            self._placement.actors[rank].signal.remote(number)
        endings: dict[int, Ended] = {}
        if not self._asking:
            time.sleep(seconds)
            return endings
        ray.wait(list(self._asking), timeout=seconds)
        there, _ = ray.wait(list(self._asking), num_returns=len(self._asking), timeout=0)
        for question in there:
            rank = self._asking.pop(question)
            try:
                events = ray.get(question)
            except ray.exceptions.RayActorError:
                events = None
            if events is None:
                address = self._places[rank].address
                cause = f"was lost with the Ray actor that supervised it on {address}"
                events = [Ended(-signal.SIGKILL, cause)]
            else:
                self._heard[self._places[rank].actor] = time.monotonic()
            for event in events:
                if isinstance(event, Ended):
                    endings[rank] = event
                else:
                    self._write(rank, event)
            if rank not in endings:
                self._ask(rank)
        return endings

    def _write(self, rank: int, written: Written) -> None:
        """Show what rank 0 has written, or append it to the log of another rank."""
        with contextlib.suppress(OSError):  # a full disk, or nobody may read it any more
            if rank == 0:
                stream = self._streams[written.descriptor - 1]
                stream.write(written.content)
                stream.flush()
            else:
                with self._log(rank).open("ab") as log:
                    log.write(written.content)

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank, unless it has ended; a handler of signals may call it."""
        self._signals.append((rank, number))  # Ray may be at work where the signal came

    def end(self) -> dict[int, Ended]:
        """Kill all that are left: how those have ended that were not killed here."""
        left = {self._placement.actors[rank].end.remote(): rank for rank in self._asking.values()}
        self._asking = {}
        endings = self._answers(left) if left else {}
        return {rank: ended for rank, ended in endings.items() if ended is not None}


def hosts_of(places: Sequence[Place]) -> list[str]:
    """The address that each worker listens on: of one machine only where all are on one."""
    if len({place.node for place in places}) == 1:
        return [LOOPBACK] * len(places)
    return [place.address for place in places]


def seconds_until_ended(
    former: Sequence[Place], places: Sequence[Place], heard: Mapping[str, float], lease: float
) -> float:
    """How long to wait until workers have ended whose nodes Ray could not reach any more.

    `former` are the places of the generation before, by rank as `places`, or empty. `heard` says
    when each actor of them has answered last: its worker lives at most `lease` seconds longer.
    """
    moved = zip(former, places, strict=False)
    gone = [heard[place.actor] for place, later in moved if later.node != place.node]
    return max(gone) + lease - time.monotonic() if gone else 0.0


def _connect(address: str | None, cluster: Cluster, membership: Membership) -> int | None:
    """Start or join Ray: the CPUs of each worker, None without a number.

    Raises Failure where that cannot be.
    """
    import ray

    cpus = cluster.cpus
    try:
        if address is None:
            ray.init(
                address="local",
                num_cpus=membership.size,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                log_to_driver=False,
                _temp_dir=os.getcwd(),
            )
        else:
            _require_listener(address)
            ray.init(address=address, log_to_driver=False)
            nodes = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
            cpus = cpus or cpus_of_each(map(int, nodes), membership.workers, membership.servers)
    except Exception as error:
        traceback.print_exc()
        reason = " ".join(str(error).split()) or type(error).__name__
        which = "Ray" if address is None else f"the Ray of RAY_ADDRESS={quoted(address)}"
        raise Failure(f"{which} cannot be used: {reason}") from error
    threading.Thread(target=_watch_ray, args=[address is None], daemon=True).start()
    return cpus


def _require_listener(address: str) -> None:
    """Raise OSError when nothing listens on HOST:PORT, for which Ray would wait for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), TO_CONNECT).close()


def _watch_ray(is_own: bool) -> None:
    """End this process when the head of Ray does not answer any more.

    With a Ray of its own also when the head, or the raylet, has ended: Ray would end this process
    too, but seconds later.
    """
    import ray

    endings = select.poll()
    for process in _processes_of_ray() if is_own else ():
        endings.register(os.pidfd_open(process))
    seconds, asking = HEAD_SECONDS if is_own else FAR_HEAD_SECONDS, ThreadPoolExecutor(1)
    try:
        while not endings.poll(1000):
            asking.submit(ray.nodes).result(seconds)
    except Exception as error:
        print(f"the head of Ray did not answer for {seconds:.0f} s: {error!r}", flush=True)
    os._exit(1)


def _processes_of_ray() -> Iterator[int]:
    """The head and the raylet that this process has started, by their process ids."""
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            program = Path(f"/proc/{child}/cmdline").read_bytes().partition(b"\0")[0]
            if program.endswith((b"/gcs_server", b"/raylet")):
                yield int(child)


@contextmanager
def _default_signals() -> Iterator[None]:
    """Signals that ask to stop end this process while the block runs."""
    previous = {number: signal.signal(number, signal.SIG_DFL) for number in HANDLED}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _end_group_with(command: int) -> None:
    """Start a process that kills the group of this one, its leader, when the command ends.

    The kernel kills this process only, and agents of a Ray outlive it for a minute or longer. It is
    forked, so there must be no other thread.
    """
    ended = os.pidfd_open(command)
    if os.fork():
        os.close(ended)
        return
    for number in HANDLED:  # Ray sends it to the group as it ends
        signal.signal(number, signal.SIG_IGN)
    select.select([ended], [], [])
    os.killpg(0, signal.SIGKILL)


def _run(given: dict[str, Any], streams: Sequence[IO[bytes]]) -> tuple[int, str | None]:
    """Train, or read, with workers that Ray places: the exit code, and the line of an error."""
    task, folder = given["task"], Path(given["logs"])
    cluster = from_values(task["conf"]).cluster
    try:
        with contextlib.chdir(given["temporary"]):  # Ray lets its processes import from there
            processes = RayProcesses(task["command"], cluster, folder, streams)
        return supervise(processes, task), None
    except (UserError, Stopped) as error:
        return error.exit_code, str(error)
    except Exception as error:
        traceback.print_exc()
        reasons = [line for line in str(error).splitlines() if line.strip()]
        reason = reasons[-1].strip() if reasons else type(error).__name__
        return 1, f"Ray cannot supervise the workers: {reason}"


def main() -> None:
    """Be the driver of the command that has assigned its task, and end the process."""
    for number in HANDLED:
        signal.signal(number, signal.SIG_DFL)
    assignment = take_assignment()
    _end_group_with(assignment.supervisor)
    given = assignment.task
    if address_of_ray() is None:
        token = {"RAY_AUTH_TOKEN": secrets.token_hex(32)}
        os.environ |= OF_OWN_RAY | token | dict(os.environ)
    streams = [os.fdopen(os.dup(descriptor), "wb") for descriptor in (1, 2)]
    console.file = os.fdopen(os.dup(2), "w")
    with open(Path(given["logs"]) / LOG_OF_RAY, "ab") as log:
        for descriptor in (1, 2):
            os.dup2(log.fileno(), descriptor)
    end = _run(given, streams)
    (Path(given["temporary"]) / END).write_text(json.dumps(end))
    if address_of_ray() is not None:
        import ray

        ray.shutdown()
    os._exit(end[0])


if __name__ == "__main__":
    main()
