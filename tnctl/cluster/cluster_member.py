"""One process of a cluster: listens, joins the others, exchanges frames with them, and leaves."""

import contextlib
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tnctl import __version__
from tnctl.cluster.following import membership_of
from tnctl.cluster.joining import addresses
from tnctl.cluster.joining.addresses import HostPort
from tnctl.cluster.joining.assignment import LOST, Supervised
from tnctl.cluster.joining.digests import digests_of
from tnctl.cluster.joining.liveness import GenerationOver, Liveness, others
from tnctl.cluster.joining.members import (
    Hello,
    NotWelcome,
    Problem,
    Refusals,
    Roster,
    StartedAgain,
    Welcome,
    parse_problem,
    parse_welcome,
    to_body,
)
from tnctl.cluster.joining.patience import SECONDS_BETWEEN_LOOKS, Patience
from tnctl.cluster.node import Node
from tnctl.cluster.transport import certificates
from tnctl.cluster.transport.certificates import Certificates
from tnctl.cluster.transport.frames import Frame, FrameError, Kind, parse
from tnctl.cluster.transport.streams import Endpoint
from tnctl.cluster.worker_errors import (
    is_unexpected,
    of_worker,
    show_traceback,
)
from tnctl.errors import Failure, UserError, quoted
from tnctl.progress import say
from tnctl.schema import Conf

SECONDS_TO_LEAVE = 2.0
SECONDS_REFUSED = 10.0  # by a process that does not end, so that a setting must be wrong
FLUSHED = 0.2  # seconds in which the last frames are sent


class Member:
    """A process as one of its generation: its connections, and whether all are alive."""

    def __init__(self, supervised: Supervised, conf: Conf) -> None:
        assignment = supervised.assignment
        self.rank, self.membership = assignment.rank, membership_of(supervised, conf.cluster)
        runs_recipe = not self.membership.is_server(self.rank)
        self._supervised, self._timeout = supervised, conf.cluster.timeout
        self._patience = Patience(conf.cluster.patience)
        self._command = assignment.task["command"]
        self._generation = 0
        self._node: Node | None = None
        self._liveness: Liveness | None = None
        self._lock = threading.Lock()
        self._connected: set[int] = set()
        self._addresses: dict[int, str] = {}  # of the others, as far as they are known
        self._change = threading.Condition()
        self._is_leaving = False
        self._refusals = Refusals()
        listens_on, host = self._host()
        encryption = certificates.read(conf.tls)
        if encryption is None and self.rank == 0 and not addresses.is_loopback(listens_on):
            say("warning: traffic between workers is not encrypted (cluster.tls encrypts it)")
        digests = digests_of(
            conf, runs_recipe=runs_recipe and assignment.task.get("runs_recipe", True)
        )
        self._welcome: Welcome | None = None
        # Where the address is known before, others connect at once: callbacks wait for the roster.
        with self._lock:
            self._endpoint = self._listen(listens_on, encryption)
            self._hello = Hello(
                token=assignment.token,
                version=__version__,
                rank=self.rank,
                workers=self.membership.workers,
                servers=self.membership.servers,
                address=assignment.reached_at or str(HostPort(host, self._endpoint.port)),
                digests=digests,
                process=secrets.token_hex(8),
            )
            self._roster = Roster(self._hello, secrets.randbits(63) + 1)

    # ---- Joining -----------------------------------------------------------------

    def join(self) -> Node:
        """Connect to all other workers. The process ends as lost when they do not come in time."""
        if self.rank == 0:
            self._supervised.report_port(self._endpoint.port)
            self._take(self._roster.welcome())  # of a cluster of one worker
        else:
            address = self._supervised.address(self._patience.seconds)
            if address is None:
                seconds = self._patience.seconds
                self._lose(
                    f"worker 0 did not listen within {seconds:g} s: it hangs, or its imports take "
                    "longer"
                )
            else:
                self._addresses[0] = address
                self._endpoint.connect(0, address)
        self._wait(lambda: self._welcome is not None)
        assert self._welcome is not None
        self._addresses = dict(enumerate(self._welcome.addresses))
        for peer in range(1, self.rank):
            self._endpoint.connect(peer, self._welcome.addresses[peer])
        peers = others(self.rank, self.membership.size)
        self._wait(lambda: self._connected >= peers)
        with self._lock:
            self._generation = int(self._welcome.generation, 16)
            self._liveness = Liveness(
                self.rank, peers, self._timeout, time.monotonic(), self.membership,
                _seconds_of_threads,
            )  # fmt: skip
            self._node = Node(
                self.rank, self.membership.workers, self._generation, self._send,
                self._endpoint.is_sending, self.membership.servers,
            )  # fmt: skip
            self._node.on_machine = self._welcome.on_machine_of(self.rank, self.membership.writers)
        threading.Thread(target=self._live, name="tnctl-heartbeat", daemon=True).start()
        return self._node

    def _listen(self, host: str, encryption: Certificates | None) -> Endpoint:
        """The endpoint, which listens; waits for an address that another process still has."""
        assignment = self._supervised.assignment
        listen = partial(
            Endpoint,
            str(HostPort(host, assignment.port)),
            assignment.token,
            self.rank,
            self.membership.size,
            on_frame=self._on_frame,
            on_connected=self._on_connected,
            on_lost=self._on_lost,
            on_stranger=self._on_stranger,
            certificates=encryption,
            timeout=self._timeout,
        )
        if not assignment.port:
            return listen()
        # It may be the process that had this rank before, which ends.
        return self._patience.attempt(listen, Failure, f"{self._name(self.rank)}: ", after=0)

    def _host(self) -> tuple[str, str]:
        """The IP address to listen on, and the host under which the others reach it."""
        assignment = self._supervised.assignment
        try:
            return addresses.listening(assignment, assignment.rank_0, self._patience)
        except OSError as error:
            self._lose(f"the address of worker 0, {assignment.rank_0}: {error.strerror}")
            raise

    def _wait(self, condition: Callable[[], bool]) -> None:
        with self._change:
            while not self._change.wait_for(condition, SECONDS_BETWEEN_LOOKS):
                # Whoever is refused ends, and those that refuse it go on.
                seconds = min(SECONDS_REFUSED, self._patience.seconds / 2)
                for peer, reason in self._endpoint.mistakes(seconds).items():
                    raise UserError(
                        f"{self._name(self.rank)} does not connect to {self._name(peer)}: {reason}"
                    )
                if self._patience.is_over:
                    self._lose(self._missing(f"did not join within {self._patience.seconds:g} s"))
                self._patience.tell(
                    f"{self._name(self.rank)}: {self._missing('did not join so far')}"
                )

    def _missing(self, verb: str) -> str:
        """Which processes are not connected, where, and why the last attempt for each failed."""
        missing = sorted(others(self.rank, self.membership.size) - self._connected)
        names = [
            self._name(peer)
            + (f" at {self._addresses[peer]}" if peer in self._addresses else "")
            + (f" ({why})" if (why := self._endpoint.failure(peer)) else "")
            for peer in missing
        ]
        kind = "workers and servers" if self.membership.servers else "workers"
        return f"{len(missing)} of {self.membership.size} {kind} {verb}: {', '.join(names)}"

    def _name(self, rank: int) -> str:
        return self.membership.name(rank)

    def _take(self, welcome: Welcome | None) -> None:
        with self._change:
            self._welcome = welcome or self._welcome
            self._change.notify_all()

    def _on_hello(self, peer: int, frame: Frame) -> None:
        """Rank 0: a worker joins. Raises GenerationOver when another process had its rank."""
        try:
            if self._roster.join(frame.body) != peer:
                raise NotWelcome(f"{self._name(peer)} says that it is another one")
        except NotWelcome as error:
            if self._node is not None:  # it cannot harm those that train
                raise FrameError(str(error)) from error
            self._fail_all(f"refused {self._name(peer)}: {error}")
        except StartedAgain as error:
            with self._lock:
                if self._liveness is None:
                    raise GenerationOver(str(error)) from error
                self._liveness.lost(peer)
                self._liveness.check(time.monotonic())
        welcome = self._roster.welcome()
        if welcome is not None:
            answer = Frame(Kind.WELCOME, self._roster.generation, 0, body=to_body(welcome))
            for rank in range(1, self.membership.size):
                # A thread that reads must not wait until there is room to send.
                self._endpoint.send(rank, [answer.header(), memoryview(answer.body)], urgent=True)
            self._take(welcome)

    def _fail_all(self, message: str) -> None:
        """Rank 0: end, before all are welcome, with all workers that are connected."""
        say(message)
        fatal = Frame(
            Kind.FATAL, self._roster.generation, 0, body=to_body(Problem(f"worker 0 has {message}"))
        )
        for rank in sorted(self._connected):
            self._endpoint.send(rank, [fatal.header(), memoryview(fatal.body)], urgent=True)
        time.sleep(FLUSHED)
        os._exit(1)

    # ---- Callbacks of connections ----------------------------------------------------

    def _on_frame(self, peer: int, content: memoryview) -> None:
        with self._lock:
            node, liveness = self._node, self._liveness
        try:
            frame = self._parsed(peer, content, node)
            if frame is None:
                return
            if frame.kind is Kind.HELLO and self.rank == 0:
                self._on_hello(peer, frame)
                return
            if node is None or liveness is None:
                if frame.kind is Kind.WELCOME and peer == 0:
                    self._take(parse_welcome(frame.body, self._hello))
                elif frame.kind is Kind.FATAL and peer == 0:
                    problem = parse_problem(frame.body)
                    say(f"tnctl {self._command}: {problem.message}")
                    os._exit(problem.exit_code)
                return
            with self._lock:
                liveness.accept(frame, peer, self._generation, time.monotonic())
            if frame.kind is Kind.GOODBYE:
                with self._change:
                    self._connected.discard(peer)
                    self._change.notify_all()
            else:
                node.receive(frame)
        except FrameError as error:
            self._refuse(f"a frame of {self._name(peer)}", str(error))
        except GenerationOver as error:
            self._lose(str(error))

    def _parsed(self, peer: int, content: memoryview, node: Node | None) -> Frame | None:
        try:
            return parse(content)
        except FrameError as error:
            if node is None:
                raise
            # Sent again it would be the same: without an end the training would wait for it.
            node.fail(FrameError(f"a frame of {self._name(peer)} is wrong: {error}"))
            return None

    def _on_connected(self, peer: int) -> None:
        with self._lock:
            node, liveness = self._node, self._liveness
            if liveness is not None:
                liveness.connected(peer)
        if node is not None:
            node.connected(peer)
        elif peer == 0:
            hello = Frame(Kind.HELLO, 0, self.rank, body=to_body(self._hello))
            self._endpoint.send(0, [hello.header(), memoryview(hello.body)], urgent=True)
        with self._change:
            self._connected.add(peer)
            self._change.notify_all()

    def _on_lost(self, peer: int, reason: str) -> None:
        with self._lock:
            if self._liveness is not None:
                self._liveness.disconnected(peer, time.monotonic(), reason)
        with self._change:
            self._connected.discard(peer)
            self._change.notify_all()

    def _on_stranger(self, address: str, reason: str) -> None:
        self._refuse(f"a connection from {quoted(address)}", reason)

    def _refuse(self, what: str, reason: str) -> None:
        with self._lock:
            line = self._refusals.line(what, reason)
        if line is not None:
            say(line)

    # ---- While the generation lives ----------------------------------------------------

    def _send(self, peer: int, frame: Frame) -> None:
        assert self._liveness is not None
        try:
            with self._lock:
                self._liveness.check(time.monotonic())
        except GenerationOver as error:
            self._lose(str(error))
        urgent = frame.kind is Kind.HEARTBEAT
        self._endpoint.send(peer, [frame.header(), memoryview(frame.body)], urgent=urgent)

    def _live(self) -> None:
        """Send heartbeats, and see whether all others are alive; takes no table's lock."""
        assert self._liveness is not None and self._node is not None
        while not self._is_leaving:
            try:
                with self._lock:
                    self._liveness.tick(time.monotonic())
            except GenerationOver as error:
                self._lose(str(error))
            for peer, frame in self._node.heartbeats().items():
                self._send(peer, frame)
            time.sleep(self._liveness.interval)

    def _lose(self, reason: str) -> None:
        """The generation is over: send and write nothing more."""
        if not self._is_leaving:
            with contextlib.suppress(OSError):  # the disk of the log may be full
                print(f"{self._name(self.rank)}: {reason}", file=sys.stderr, flush=True)
            os._exit(LOST)

    def fail(self, error: BaseException) -> None:
        """Report to the others what ends this worker, which is about to exit."""
        assert self._node is not None
        self._node.fail(error)
        self._node.close(SECONDS_TO_LEAVE)
        time.sleep(FLUSHED)

    def end_with_thread(self, raised: threading.ExceptHookArgs) -> None:
        """End the process when a thread has ended by an exception, which nothing else notices."""
        error = raised.exc_value or raised.exc_type()
        try:
            if is_unexpected(error):
                show_traceback(error)
            self.fail(error)
            line = f"tnctl {self._command}: {of_worker(self.rank, error, self.membership)}"
            print(line, file=sys.stderr, flush=True)
        finally:
            os._exit(1)

    def leave(self) -> None:
        """End in peace: the run is finished, and the others know it."""
        goodbye = Frame(Kind.GOODBYE, self._generation, self.rank)
        for peer in others(self.rank, self.membership.size):
            self._send(peer, goodbye)
        with self._change:
            # Whoever ends first must not be taken for lost by others that still end.
            self._change.wait_for(lambda: not self._connected, SECONDS_TO_LEAVE)
        self._is_leaving = True
        time.sleep(FLUSHED)
        self._endpoint.close()


def _seconds_of_threads() -> dict[int, float]:
    """For how long each thread has run or waited for a CPU; not while the process was stopped.

    By the system's list: in a process that was forked Python has another number of its main thread.
    """
    seconds = {}
    # A thread may end meanwhile, and a kernel may not count.
    with contextlib.suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError, ValueError):
                text = Path(f"/proc/self/task/{thread}/schedstat").read_text()
                ran, waited, _ = map(int, text.split())
                seconds[int(thread)] = (ran + waited) / 1e9
    return seconds
