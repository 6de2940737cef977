"""Worker processes that Ray places, on this machine or on the nodes of a cluster.

This process does not know Ray: one beside it, `ray_driver`, is Ray's driver, and may be ended by
Ray at any time. A Ray of this machine is then started again.
"""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

from tnctl.cluster.joining.liveness import SILENCE
from tnctl.cluster.joining.members import Problem
from tnctl.cluster.joining.membership import Membership
from tnctl.errors import Failure, quoted, refuse_if
from tnctl.launch import ray_messages as messages
from tnctl.launch.supervisor import TRAIN
from tnctl.launch.worker_processes import Display, begin_log, last_lines
from tnctl.progress import say
from tnctl.schema import Cluster

NEEDS_RAY = "cluster=ray needs a package that is not installed: pip install 'tnctl[ray]'"
COMMAND = (sys.executable, "-P", "-m", "tnctl.launch.ray_driver")
# Seconds until workers have ended: of a Ray of this machine, and of nodes that cannot be reached.
TO_END, TO_END_FAR = 5.0, 30.0
TO_LEAVE = 10.0


def address_of_ray(variable: str | None) -> str | None:
    """The Ray of the variable RAY_ADDRESS, None for one of this machine. Raises UserError."""
    if variable is None or variable in ("", "local"):
        return None
    refuse_if(
        "://" in variable,
        f"RAY_ADDRESS={quoted(variable)} is of a server that takes jobs: give the command to "
        "`ray job submit`, or give it on a node of the cluster with RAY_ADDRESS=auto",
    )
    return variable


class RayProcesses:
    """One process for each of the files `logs`, which its output is appended to.

    Those of dedicated servers are behind those of all workers.
    """

    first = 0

    def __init__(
        self, logs: Sequence[Path], log: Path, cluster: Cluster, name: str = TRAIN
    ) -> None:
        """`log` is for what Ray itself says; `name` is the command of tnctl that they run.

        What one other than train writes to the standard output is written to this process's.
        """
        self.name, self.has_begun = name, False
        self.logs, self._log, self._cluster = logs, log, cluster
        assert cluster.workers is not None
        self.membership = Membership(cluster.workers, cluster.servers)
        self._address = address_of_ray(os.environ.get("RAY_ADDRESS"))
        there, wanted = len(os.sched_getaffinity(0)), (cluster.cpus or 0) * cluster.workers
        refuse_if(
            self._address is None and wanted > max(there, cluster.workers),
            f"cluster.cpus={cluster.cpus} for {cluster.workers} workers are {wanted} CPUs, and "
            f"this machine has {there}. Leave it out, or name a Ray with RAY_ADDRESS",
        )
        self._token = secrets.token_urlsafe(32)
        self._driver: _DriverProcess | None = None
        self._display: Display | None = None
        self._generation = 0
        self._codes: dict[int, int] = {}
        self._causes: dict[int, str] = {}
        self._requests: deque[object] = deque()  # of handlers of signals

    def start(self, generation: int, task: dict[str, Any]) -> None:
        """Have all of them started with the same task, plain values."""
        self._codes, self._causes, self.has_begun = {}, {}, False
        self._requests.clear()
        self._generation = generation
        begin_log(self.logs[0], generation)
        self._display = Display(self.logs[0])
        if self._driver is None:
            self._driver = _DriverProcess(self._address, self._log, self._cluster)
        self._driver.send(
            messages.Start(
                generation=generation,
                token=self._token,
                task=task,
                folder=os.getcwd(),
            )
        )

    def wait(self, seconds: float) -> dict[int, int]:
        """Wait for what happens, at most so long: the exit codes of ranks that have ended.

        Raises UserError when Ray cannot be used, or not any more, or has no room for all.
        """
        assert self._driver is not None
        while self._requests:
            self._driver.send(self._requests.popleft())
        known = set(self._codes)
        try:
            for message in self._driver.received(seconds):
                self._take(message)
        except EOFError:
            self._take_end_of_driver()
        return {rank: code for rank, code in self._codes.items() if rank not in known}

    def _take(self, message: object) -> None:
        """Do what a message of the driver asks for."""
        match message:
            case messages.Written(rank, content, is_printed):
                self._write(rank, content, is_printed)
            case messages.Ended(rank, code, cause):
                self._codes[rank], self._causes[rank] = code, cause
            case messages.Lost(rank, cause):
                self._codes[rank], self._causes[rank] = -signal.SIGKILL, cause
            case messages.Began():
                self.has_begun = True
                for log in self.logs[1:]:
                    begin_log(log, self._generation)
            case messages.Note(line):
                say(line)
            case messages.Refused(reason, exit_code):
                raise Problem(reason, exit_code).error()

    def _write(self, rank: int, content: bytes, is_printed: bool) -> None:
        if is_printed:
            sys.stdout.buffer.write(content)
            sys.stdout.flush()
        elif rank == 0:
            assert self._display is not None
            self._display.show(content)
        else:
            with contextlib.suppress(OSError), self.logs[rank].open("ab") as log:
                log.write(content)

    def _take_end_of_driver(self) -> None:
        """Ray has ended its driver. Raises Failure unless it can be started again."""
        assert self._driver is not None
        was_connected = self._driver.is_connected
        self._driver.close()
        self._driver = None
        lines = last_lines(self._log, 1)
        if not was_connected:
            raise Failure(f"Ray could not be used: {lines[0] if lines else 'it says nothing'}")
        if self._address is not None:
            raise Failure(
                f"the Ray of RAY_ADDRESS={quoted(self._address)} cannot be reached any more "
                f"({self._log}). Run the same command again: it resumes from the last checkpoint"
            )
        for rank in set(range(len(self.logs))) - self._codes.keys():
            self._codes[rank] = -signal.SIGKILL
            self._causes[rank] = "was lost with the Ray of this machine, which is started again"

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank, unless it has ended; a handler of signals may call it."""
        self._requests.append(messages.Signal(rank, number))

    def resize(self) -> None:
        """Rank 0 writes lines, which depend on no terminal."""

    def end(self) -> dict[int, int]:
        """Kill all that are left: the exit codes of those that were not killed here."""
        codes = {}
        if self._driver is not None and (over := self._over(self._driver)) is not None:
            codes = over.codes
        elif self._driver is not None:
            self._driver.close()
            self._driver = None
        if self._display is not None:
            self._display.close(is_cut=(self._codes | codes).get(0, -1) < 0)
            self._display = None
        return codes

    def _over(self, driver: "_DriverProcess") -> messages.Over | None:
        """Have the driver end all workers; None when it cannot."""
        if not driver.is_connected:
            return None
        driver.send(messages.End())
        limit = time.monotonic() + (TO_END if self._address is None else TO_END_FAR)
        with contextlib.suppress(EOFError):
            while time.monotonic() < limit:
                for message in driver.received(0.1):
                    if isinstance(message, messages.Over):
                        return message
                    if isinstance(message, messages.Written):
                        self._write(message.rank, message.content, message.is_printed)
        return None

    def describe(self, rank: int, code: int) -> str:
        """What has happened to a worker that was lost with a negative exit code."""
        return self._causes.get(rank, f"was killed by {signal.Signals(-code).name}")

    def close(self) -> None:
        """Leave Ray; a Ray of this machine ends."""
        if self._driver is not None:
            if self._address is not None:
                self._driver.leave()
            self._driver.close()
            self._driver = None


class _DriverProcess:
    """Ray's driver, and a Ray of this machine, in a session of their own."""

    def __init__(self, address: str | None, log: Path, cluster: Cluster) -> None:
        self._temporary = tempfile.mkdtemp(prefix="tnctl-ray-")
        self._connection, theirs = Pipe()
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*COMMAND, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                # Ray lets its processes import from its driver's folder.
                cwd=self._temporary,
                env=os.environ | (_variables_of_own_ray() if address is None else {}),
                start_new_session=True,
            )
        theirs.close()
        self.is_connected = False
        assert cluster.workers is not None
        self.send(
            messages.Connect(
                address=address,
                temporary=self._temporary,
                workers=cluster.workers,
                servers=cluster.servers,
                patience=cluster.patience,
                cpus=cluster.cpus,
                silence=cluster.timeout * SILENCE,
            )
        )

    def send(self, message: object) -> None:
        """Send it a message, unless it has ended."""
        with contextlib.suppress(OSError):
            self._connection.send(message)

    def received(self, seconds: float) -> Iterator[object]:
        """The messages that come within some seconds. Raises EOFError when it has ended."""
        with _as_end_of_file():
            is_there = self._connection.poll(seconds)
        while is_there:
            with _as_end_of_file():
                message = self._connection.recv()
            self.is_connected |= isinstance(message, messages.Connected)
            yield message
            with _as_end_of_file():
                is_there = self._connection.poll(0)

    def leave(self) -> None:
        """Let it end by itself."""
        self.send(messages.Leave())
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(TO_LEAVE)

    def close(self) -> None:
        """Kill it, and all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._connection.close()
        shutil.rmtree(self._temporary, ignore_errors=True)


@contextmanager
def _as_end_of_file() -> Iterator[None]:
    try:
        yield
    except ConnectionError as error:
        raise EOFError from error


def _variables_of_own_ray() -> dict[str, str]:
    """The environment of a Ray that only this command uses, unless the user's says otherwise."""
    variables = {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # its ports are on 127.0.0.1
        # Without a token Ray makes one for all of the user's, in the home folder.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_worker_niceness": "0",  # as with cluster=local
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    return {name: value for name, value in variables.items() if name not in os.environ}
