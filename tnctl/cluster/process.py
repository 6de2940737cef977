"""A worker process: joins the others, then trains as rank 0, or follows rank 0."""

import contextlib
import hashlib
import json
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from tnctl import __version__
from tnctl.cluster import commands
from tnctl.cluster.assignment import HOST, LOST, Supervised
from tnctl.cluster.cluster_workers import ClusterProcesses
from tnctl.cluster.follower import Follower
from tnctl.cluster.frames import Frame, FrameError, Kind, parse
from tnctl.cluster.liveness import GenerationOver, Liveness, others
from tnctl.cluster.members import (
    Digests,
    Hello,
    NotWelcome,
    Refusals,
    Roster,
    StartedAgain,
    Welcome,
    parse_welcome,
    to_body,
)
from tnctl.cluster.node import Node, Respond
from tnctl.cluster.streams import Endpoint
from tnctl.cluster.worker_errors import (
    ending_of,
    is_unexpected,
    keep_tracebacks_in,
    of_worker,
    show_traceback,
)
from tnctl.errors import quoted
from tnctl.model import recipes
from tnctl.model.graph import conf_to_json
from tnctl.progress import say
from tnctl.schema import Conf, from_values

SECONDS_TO_JOIN = 120.0
SECONDS_TO_LEAVE = 2.0
FLUSHED = 0.2  # seconds in which the last frames are sent
HANDLED = (signal.SIGINT, signal.SIGTERM)


def work(supervised: Supervised) -> int:
    """Do what the supervisor has assigned; the exit code of the process."""
    task = supervised.assignment.task
    conf = from_values(task["conf"])
    if supervised.assignment.rank == 0:
        keep_tracebacks_in(conf.output)
    member = Member(supervised, conf)
    node = member.join()
    threading.excepthook = member.end_with_thread
    try:
        if node.rank:
            follow(conf, node)
        else:
            lead(conf, node, task)
    except Exception as error:
        if is_unexpected(error):
            show_traceback(error)
        member.fail(error)
        raise ending_of(member.rank, member.workers, error) from error
    member.leave()
    return 0


def lead(conf: Conf, node: Node, task: dict[str, Any]) -> None:
    """Rank 0: train a conf to its end with all workers, and end them."""
    stops: SimpleQueue[tuple[bytes, Respond]] = SimpleQueue()
    node.route({"stop"}, stops)  # before the imports, which take seconds

    from tnctl.training.terminal_tables import show_report
    from tnctl.training.training_run import train

    processes = ClusterProcesses(node)
    threading.Thread(target=_pass_signals, args=(stops, processes), daemon=True).start()
    options = {key: task[key] for key in ("overwrite", "golden", "accept")}
    report = train(conf, **options, processes=processes)
    for reply in node.command_others(commands.End()):
        reply.result()
    show_report(conf.output, report)


def _pass_signals(stops: "SimpleQueue[tuple[bytes, Respond]]", processes: ClusterProcesses) -> None:
    """Give this process the signal that others have received: rank 0 saves, and ends all.

    Not a second one: all of them may have received the first, and it must not keep rank 0 from
    saving.
    """
    while True:
        body, respond = stops.get()
        command = commands.command_of(body)
        assert isinstance(command, commands.Stop)
        respond(commands.encode(commands.Done()))
        is_first = processes.signals is None or not processes.signals.received
        if is_first and command.signal in HANDLED:
            os.kill(os.getpid(), command.signal)


def follow(conf: Conf, node: Node) -> None:
    """Another rank: do what rank 0 commands."""

    def ask_to_stop(number: int, _: object) -> None:
        node.command(0, commands.Stop(signal=number))

    for number in HANDLED:
        signal.signal(number, ask_to_stop)
    Follower(conf, node).run()


class Member:
    """A process as one of its generation: its connections, and whether all are alive."""

    def __init__(self, supervised: Supervised, conf: Conf) -> None:
        assignment = supervised.assignment
        self.rank, self.workers = assignment.rank, assignment.ranks
        self._supervised, self._timeout = supervised, conf.cluster.timeout
        self._generation = 0
        self._node: Node | None = None
        self._liveness: Liveness | None = None
        self._lock = threading.Lock()
        self._connected: set[int] = set()
        self._change = threading.Condition()
        self._is_leaving = False
        self._refusals = Refusals()
        self._endpoint = Endpoint(
            f"{HOST}:0",
            assignment.token,
            self.rank,
            self.workers,
            on_frame=self._on_frame,
            on_connected=self._on_connected,
            on_lost=self._on_lost,
            on_stranger=self._on_stranger,
        )
        self._hello = Hello(
            token=assignment.token,
            version=__version__,
            rank=self.rank,
            workers=self.workers,
            address=f"{HOST}:{self._endpoint.port}",
            digests=digests_of(conf),
        )
        self._roster = Roster(self._hello, secrets.randbits(63) + 1)
        self._welcome: Welcome | None = None

    # ---- Joining -----------------------------------------------------------------

    def join(self) -> Node:
        """Connect to all other workers. The process ends as lost when they do not come in time."""
        deadline = time.monotonic() + SECONDS_TO_JOIN
        if self.rank == 0:
            self._supervised.report_port(self._endpoint.port)
            self._take(self._roster.welcome())  # of a cluster of one worker
        else:
            address = self._supervised.address(SECONDS_TO_JOIN)
            if address is None:
                self._lose(
                    f"worker 0 did not listen within {SECONDS_TO_JOIN:.0f} s: it hangs, or its "
                    "imports take longer"
                )
            else:
                self._endpoint.connect(0, address)
        self._wait(lambda: self._welcome is not None, deadline)
        assert self._welcome is not None
        for peer in range(1, self.rank):
            self._endpoint.connect(peer, self._welcome.addresses[peer])
        peers = others(self.rank, self.workers)
        self._wait(lambda: self._connected >= peers, deadline)
        with self._lock:
            self._generation = int(self._welcome.generation, 16)
            self._liveness = Liveness(self.rank, peers, self._timeout, time.monotonic())
            self._node = Node(
                self.rank, self.workers, self._generation, self._send, self._endpoint.is_sending
            )
        threading.Thread(target=self._live, name="tnctl-heartbeat", daemon=True).start()
        return self._node

    def _wait(self, condition: Callable[[], bool], deadline: float) -> None:
        with self._change:
            if not self._change.wait_for(condition, deadline - time.monotonic()):
                self._lose(self._missing())

    def _missing(self) -> str:
        """Which workers did not join, and why the last attempt to connect to each failed."""
        missing = sorted(others(self.rank, self.workers) - self._connected)
        failures = {peer: self._endpoint.failure(peer) for peer in missing}
        names = [f"{peer} ({reason})" if reason else f"{peer}" for peer, reason in failures.items()]
        return (
            f"{len(missing)} of {self.workers} workers did not join within "
            f"{SECONDS_TO_JOIN:.0f} s: {', '.join(names)}"
        )

    def _take(self, welcome: Welcome | None) -> None:
        with self._change:
            self._welcome = welcome or self._welcome
            self._change.notify_all()

    def _on_hello(self, peer: int, frame: Frame) -> None:
        """Rank 0: a worker joins. Raises GenerationOver when another process had its rank."""
        try:
            if self._roster.join(frame.body) != peer:
                raise NotWelcome(f"worker {peer} says that it is another one")
        except NotWelcome as error:
            if self._node is not None:  # it cannot harm those that train
                raise FrameError(str(error)) from error
            say(f"refused worker {peer}: {error}")
            os._exit(1)
        except StartedAgain as error:
            with self._lock:
                if self._liveness is None:
                    raise GenerationOver(str(error)) from error
                self._liveness.lost(peer)
                self._liveness.check(time.monotonic())
        welcome = self._roster.welcome()
        if welcome is not None:
            answer = Frame(Kind.WELCOME, self._roster.generation, 0, body=to_body(welcome))
            for rank in range(1, self.workers):
                # A thread that reads must not wait until there is room to send.
                self._endpoint.send(rank, [answer.header(), memoryview(answer.body)], urgent=True)
            self._take(welcome)

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
            self._refuse(f"a frame of worker {peer}", str(error))
        except GenerationOver as error:
            self._lose(str(error))

    def _parsed(self, peer: int, content: memoryview, node: Node | None) -> Frame | None:
        try:
            return parse(content)
        except FrameError as error:
            if node is None:
                raise
            # Sent again it would be the same: without an end the training would wait for it.
            node.fail(FrameError(f"a frame of worker {peer} is wrong: {error}"))
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
                print(f"worker {self.rank}: {reason}", file=sys.stderr, flush=True)
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
            print(f"tnctl train: {of_worker(self.rank, error)}", file=sys.stderr, flush=True)
        finally:
            os._exit(1)

    def leave(self) -> None:
        """End in peace: the run is finished, and the others know it."""
        goodbye = Frame(Kind.GOODBYE, self._generation, self.rank)
        for peer in others(self.rank, self.workers):
            self._send(peer, goodbye)
        with self._change:
            # Whoever ends first must not be taken for lost by others that still end.
            self._change.wait_for(lambda: not self._connected, SECONDS_TO_LEAVE)
        self._is_leaving = True
        time.sleep(FLUSHED)
        self._endpoint.close()


def digests_of(conf: Conf) -> Digests:
    """What must be the same on all workers."""
    text = json.dumps(conf_to_json(conf), sort_keys=True).encode()
    return Digests(
        conf=hashlib.sha256(text).hexdigest(),
        recipe=recipes.digest_of(conf.recipe["name"]),
    )
