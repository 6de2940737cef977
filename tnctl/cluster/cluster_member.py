"""One process of a cluster: listens, joins the others, exchanges calls with them, and leaves."""

import contextlib
import os
import secrets
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from functools import partial
from pathlib import Path

from tnctl import __version__
from tnctl.cluster.joining import addresses
from tnctl.cluster.joining.addresses import HostPort
from tnctl.cluster.joining.assignment import LOST, NOT_JOINED, Assignment
from tnctl.cluster.joining.liveness import GenerationOver, Liveness
from tnctl.cluster.joining.members import (
    Hello,
    NotWelcome,
    Problem,
    Roster,
    StartedAgain,
    Welcome,
    digests_of,
    parse_problem,
    parse_welcome,
    problem_of,
    to_body,
)
from tnctl.cluster.joining.membership import Membership
from tnctl.cluster.joining.patience import SECONDS_BETWEEN_LOOKS, Patience
from tnctl.cluster.node import Node
from tnctl.cluster.transport import certificates
from tnctl.cluster.transport.certificates import Certificates
from tnctl.cluster.transport.kinds import Body, MessageError
from tnctl.cluster.transport.once import Envelope, Reply
from tnctl.cluster.transport.rpc import CallRefused, Endpoint
from tnctl.cluster.worker_errors import (
    is_unexpected,
    of_worker,
    show_traceback,
)
from tnctl.errors import Failure, UserError, quoted
from tnctl.progress import say
from tnctl.schema import Cluster, Conf

SECONDS_TO_LEAVE = 2.0
SECONDS_REFUSED = 10.0  # by a process that does not end, so that a setting must be wrong
FLUSHED = 0.2  # seconds in which the last replies are sent
MOST_REFUSED = 20  # hosts and reasons that have lines: more would fill the log


def membership_of(assignment: Assignment, cluster: Cluster) -> Membership:
    """The processes of the cluster that a process is assigned to."""
    return Membership(assignment.ranks - cluster.servers, cluster.servers)


class Member:
    """A process as one of its generation: its connections, and whether all are alive."""

    def __init__(self, assignment: Assignment, conf: Conf) -> None:
        self.rank, self.membership = assignment.rank, membership_of(assignment, conf.cluster)
        runs_recipe = not self.membership.is_server(self.rank)
        self._assignment, self._timeout = assignment, conf.cluster.timeout
        self._patience = Patience(conf.cluster.patience)
        self._command = assignment.task["command"]
        self.process = secrets.token_hex(8)
        self._others = frozenset(range(self.membership.size)) - {self.rank}
        self._lock = threading.Lock()
        self._node: Node | None = None
        self._liveness: Liveness | None = None
        self._change = threading.Condition()  # of what follows
        self._welcome: Welcome | None = None
        self._connected: set[int] = set()
        self._joined: set[int] = set()  # those that rank 0 has not welcomed yet
        self._left: set[int] = set()  # those that have finished
        self._answer: Future[Body] = Future()  # to all that join
        self._farewell: Future[Body] = Future()  # to all that wait for the end of this process
        self._addresses: dict[int, str] = {}  # of the others, as far as they are known
        self._is_leaving = False
        self._refused: Counter[str] = Counter()  # calls, by what a line says of them
        self._is_listening = threading.Event()
        listens_on, host = self._host()
        encryption = certificates.read(conf.tls)
        if encryption is None and self.rank == 0 and not addresses.is_loopback(listens_on):
            say("warning: traffic between workers is not encrypted (cluster.tls encrypts it)")
        digests = digests_of(
            conf, runs_recipe=runs_recipe and assignment.task.get("runs_recipe", True)
        )
        self._endpoint = self._listen(listens_on, encryption)
        self._hello = Hello(
            token=assignment.token,
            version=__version__,
            rank=self.rank,
            workers=self.membership.workers,
            servers=self.membership.servers,
            address=assignment.reached_at or str(HostPort(host, self._endpoint.port)),
            digests=digests,
            process=self.process,
        )
        self._roster = Roster(self._hello, secrets.randbits(63) + 1)
        # Where the address is known before, others call at once.
        self._is_listening.set()

    # ---- Joining -----------------------------------------------------------------

    def join(self) -> Node:
        """Connect to all other workers.

        Raises UserError, with exit code NOT_JOINED when they do not come in time.
        """
        if self.rank == 0:
            self._take(self._roster.welcome())  # of a cluster of one worker
        else:
            self._addresses[0] = self._assignment.rank_0
            self._endpoint.connect(0, self._assignment.rank_0, self._say_hello)
        self._wait(lambda: self._welcome is not None)
        assert self._welcome is not None
        self._addresses = dict(enumerate(self._welcome.addresses))
        self._liveness = Liveness(
            self.rank, self._timeout, time.monotonic(), self.membership, _seconds_of_threads
        )
        threading.Thread(target=self._live, name="tnctl-liveness", daemon=True).start()
        for peer in self._others:
            if peer in self._connected:
                # It may end while this process waits for those that have ended before.
                self._watch(peer)
            else:
                self._endpoint.connect(
                    peer, self._welcome.addresses[peer], partial(self._on_connected, peer)
                )
        self._wait(lambda: self._connected >= self._others)
        node = Node(
            self.rank, self.membership.workers, int(self._welcome.generation, 16), self._call,
            self._fail_others, self.membership.servers,
        )  # fmt: skip
        node.on_machine = self._welcome.on_machine_of(self.rank, self.membership.writers)
        with self._change:
            self._node = node
            self._change.notify_all()
        return node

    def _listen(self, host: str, encryption: Certificates | None) -> Endpoint:
        """The endpoint, which listens; waits for an address that another process still has."""
        assignment = self._assignment
        listen = partial(
            Endpoint,
            str(HostPort(host, assignment.port)),
            assignment.token,
            self.rank,
            self.membership.size,
            self,
            encryption,
            self._timeout,
            is_reserved=assignment.is_reserved,
        )
        # It may be the process that had this rank before, which ends.
        return self._patience.attempt(listen, Failure, f"{self._name(self.rank)}: ", after=0)

    def _host(self) -> tuple[str, str]:
        """The IP address to listen on, and the host under which the others reach it."""
        try:
            return addresses.listening(self._assignment, self._patience)
        except OSError as error:
            raise UserError(
                f"{self._name(self.rank)}: the address of worker 0 "
                f"({self._assignment.rank_0}), or its own: {error.strerror}, for "
                f"{self._patience.seconds:g} s (cluster.patience)",
                NOT_JOINED,
            ) from error

    def _say_hello(self, _: str) -> None:
        """Another rank than 0, connected to rank 0: join, and wait for the welcome."""
        with self._change:
            self._connected.add(0)
        reply = self._endpoint.call(0, "Join", to_body(self._hello))

        def take(reply: "Future[Reply]") -> None:
            try:
                body = reply.result().body
                if not self._ends_by(body):
                    self._take(parse_welcome(body, self._hello))
            except (CallRefused, MessageError) as error:
                self._lose(f"{self._name(0)} does not welcome this process: {error}")

        reply.add_done_callback(take)

    def _wait(self, condition: Callable[[], bool]) -> None:
        with self._change:
            while not self._change.wait_for(condition, SECONDS_BETWEEN_LOOKS):
                # Whoever is refused ends, and those that refuse it go on.
                seconds = min(SECONDS_REFUSED, self._patience.seconds / 2)
                for peer, reason in self._endpoint.attempts.mistakes(seconds).items():
                    raise UserError(
                        f"{self._name(self.rank)} does not connect to {self._name(peer)}: {reason}"
                    )
                if self._patience.is_over:
                    limit = f"{self._patience.seconds:g} s (cluster.patience)"
                    raise UserError(self._missing(f"did not join within {limit}"), NOT_JOINED)
                self._patience.tell(
                    f"{self._name(self.rank)}: {self._missing('did not join so far')}"
                )

    def _missing(self, verb: str) -> str:
        """Which processes are not connected, where, and why the last attempt for each failed."""
        missing = sorted(self._others - self._connected - self._joined)
        names = [
            self._name(peer)
            + (f" at {self._addresses[peer]}" if peer in self._addresses else "")
            + (f" ({why})" if (why := self._endpoint.attempts.reason(peer)) else "")
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

    def _ends_by(self, body: Body) -> bool:
        """Whether a reply is the problem of another process, which ends this one."""
        try:
            problem = parse_problem(body)
        except MessageError:
            return False
        if self._node is None:
            say(f"tnctl {self._command}: {problem.message}")
            os._exit(problem.exit_code)
        self._node.end(problem.error())
        return True

    # ---- Calls of others -----------------------------------------------------------

    def joined(self, peer: int, body: bytes) -> "Future[Body]":
        """Rank 0: another process joins."""
        self._is_listening.wait()
        try:
            if self._roster.join(body) != peer:
                raise NotWelcome(f"{self._name(peer)} says that it is another one")
        except NotWelcome as error:
            with self._change:
                if self._welcome is not None:  # it cannot harm those that are welcome
                    raise MessageError(str(error)) from error
                self._fail_all(f"refused {self._name(peer)}: {error}")
            return self._answer
        except StartedAgain as error:
            if (liveness := self._liveness) is None:
                self._lose(str(error))
            else:
                with self._lock:
                    liveness.lost(peer)
                self._check()
        with self._change:
            welcome = self._roster.welcome()
            self._joined = self._joined | {peer} if welcome is None else set()
            if welcome is not None:
                self._take(welcome)
                _answer_once(self._answer, to_body(welcome))
        return self._answer

    def _fail_all(self, message: str) -> None:
        """Rank 0: end, before all are welcome, with all workers that have called."""
        say(f"tnctl {self._command}: {message}")
        problem = problem_of(UserError(f"worker 0 has {message}"))
        _answer_once(self._answer, to_body(problem))
        # Not here, for this thread sends the reply to the one that is refused.
        threading.Timer(FLUSHED, os._exit, [problem.exit_code]).start()

    def stayed(self, process: bytes) -> "Future[Body]":
        """Another process wants to know when the one with this number ends."""
        if process != self.process.encode():
            # A caller that waited for the end of the one before would not notice it.
            raise CallRefused(f"{self._name(self.rank)} is another process")
        return self._farewell

    def called(self, peer: int, envelope: Envelope, body: bytes) -> "Future[Body]":
        """Another process makes a numbered call, in its generation."""
        if envelope.caller != peer:
            raise MessageError(f"it calls as {self._name(envelope.caller)}")
        with self._change:
            self._change.wait_for(lambda: self._node is not None)
        assert self._node is not None
        if envelope.generation != self._node.generation:
            raise CallRefused(f"{self._name(self.rank)} is of another generation")
        self._check()
        return self._node.answer(peer, envelope, body)

    def on_stranger(self, address: str, reason: str) -> None:
        """A call without the token, or of no peer, was refused."""
        host = address.rpartition(":")[0]  # a stranger has another port each time
        self._refuse(f"connections from {quoted(host)}", reason)

    def on_refused(self, peer: int, reason: str) -> None:
        """A call of a peer was refused since it is wrong."""
        self._refuse(f"messages of {self._name(peer)}", reason)

    def _refuse(self, what: str, reason: str) -> None:
        """Say that something is refused: the first time, the tenth, the hundredth and so on."""
        line = f"refused {what}: {reason}"
        with self._lock:
            if line not in self._refused and len(self._refused) == MOST_REFUSED:
                return
            self._refused[line] += 1
            count = self._refused[line]
        if str(count).strip("0") == "1":
            say(line + (f" ({count:,} times)" if count > 1 else ""))

    # ---- While the generation lives ------------------------------------------------

    def _call(self, peer: int, envelope: Envelope, body: Body) -> "Future[Reply]":
        self._check()
        reply = self._endpoint.call(peer, "Call", body, envelope.to_bytes())
        reply.add_done_callback(self._lose_if_refused)
        return reply

    def _lose_if_refused(self, reply: "Future[Reply]") -> None:
        if (error := reply.exception()) is not None:
            self._lose(str(error))

    def _watch(self, peer: int) -> None:
        """Notice when the connection to a peer breaks, and when the peer ends."""
        assert self._liveness is not None and self._welcome is not None
        liveness, expected = self._liveness, self._welcome.processes[peer]

        def lost(reason: str) -> None:
            with self._lock:
                liveness.disconnected(peer, time.monotonic(), reason)

        def connected(process: str) -> None:
            with self._lock:
                liveness.connected(peer)
                if process != expected:
                    liveness.lost(peer)
            self._check()

        def ended(farewell: bytes) -> None:
            with self._change:
                self._left.add(peer)
                self._change.notify_all()
            with self._lock:
                liveness.left(peer)
            if farewell and not self._ends_by(farewell):
                self._lose(f"{self._name(peer)} ends with what is no problem")

        self._endpoint.watch(peer, expected, lost, connected, ended)

    def _on_connected(self, peer: int, _: str) -> None:
        self._watch(peer)
        with self._change:
            self._connected.add(peer)
            self._change.notify_all()

    def _check(self) -> None:
        """Before anything is sent or answered. The process ends when the generation is over."""
        assert self._liveness is not None
        try:
            with self._lock:
                self._liveness.check(time.monotonic())
        except GenerationOver as error:
            self._lose(str(error))

    def _live(self) -> None:
        """See whether this process and all others are alive; takes no table's lock."""
        assert self._liveness is not None
        while not self._is_leaving:
            try:
                with self._lock:
                    self._liveness.tick(time.monotonic())
            except GenerationOver as error:
                self._lose(str(error))
            time.sleep(self._liveness.interval)

    def _lose(self, reason: str) -> None:
        """The generation is over: send and write nothing more."""
        if not self._is_leaving:
            with contextlib.suppress(OSError):  # the disk of the log may be full
                print(f"{self._name(self.rank)}: {reason}", file=sys.stderr, flush=True)
            os._exit(LOST)

    # ---- The end ---------------------------------------------------------------------

    def fail(self, error: BaseException) -> None:
        """Report to the others what ends this worker, which is about to exit."""
        assert self._node is not None
        self._node.fail(error)
        time.sleep(FLUSHED)

    def _fail_others(self, problem: Problem) -> None:
        _answer_once(self._farewell, to_body(problem))

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
        _answer_once(self._farewell, b"")
        with self._change:
            # Whoever ends first must not be taken for lost by others that still end.
            self._change.wait_for(lambda: self._left >= self._others, SECONDS_TO_LEAVE)
        self._is_leaving = True
        time.sleep(FLUSHED)
        self._endpoint.close()


def _answer_once(reply: "Future[Body]", content: bytes) -> None:
    with contextlib.suppress(InvalidStateError):  # what was said first counts
        reply.set_result(content)


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
