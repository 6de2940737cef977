"""A process of a simulated cluster: it joins, stays and leaves as cluster_member.py does.

What it requests and answers goes through the product's `Node`; what the threads of a `Member` do is
done by events. The programs of cluster_programs.py run in it: generators that yield what they wait
for, seconds or a condition.
"""

from functools import partial

from cluster_channels import OK, REFUSED, TIMEOUT, Channel, Violation

from tnctl.cluster.joining import members
from tnctl.cluster.joining.liveness import GenerationOver, Liveness
from tnctl.cluster.joining.members import Hello, Roster, StartedAgain
from tnctl.cluster.node import Node
from tnctl.cluster.transport.kinds import MessageError
from tnctl.cluster.transport.once import MOST_OPEN, Envelope

DIGESTS = members.Digests({"data": "0" * 64}, "1" * 64)
TOKEN = "token of this run"
MOST_SECONDS_TO_JOIN = 40.0
SECONDS_TO_LEAVE = 2.0


class Ended(BaseException):
    """The process ends at once, as lost; of a kind that the product does not catch."""


class Process:
    """One process of a rank, from its start to its end.

    `world` has the network and the storage, and calls what happens to the process: `happen`.
    """

    def __init__(self, world, rank):
        self.world, self.rank, self.workers = world, rank, world.data.workers
        self.membership = world.data.membership
        self.owners = self.membership.owners  # their ranks
        self.peers = frozenset(range(self.membership.size)) - {rank}
        self.is_stopped, self.stops, self.must_end = False, 0, False
        self.exit_code = None
        self.held = []  # what happened while it was stopped
        number = world.processes_started
        # A process that is started again may have the address of the one before.
        port = 29400 if rank == 0 or world.keeps_addresses else number
        self.hello = Hello(
            TOKEN, "1", rank, self.workers, f"10.0.0.{rank}:{port}", DIGESTS, f"{number:016x}",
            world.data.servers,
        )  # fmt: skip
        self.roster = Roster(self.hello, world.new_generation()) if rank == 0 else None
        self.generation, self.liveness, self.node, self.welcome = 0, None, None, None
        self.channels, self.connected, self.left = {}, set(), set()
        self.joining, self.staying, self.farewell, self.is_leaving = [], [], None, False
        self.early = []  # calls that wait for the node, or for calls before them
        self.program, self.waits_for = self.live(), None
        self.after(0, lambda: None)
        self.after(MOST_SECONDS_TO_JOIN, self.must_have_joined)

    # ---- Events --------------------------------------------------------------

    def after(self, seconds, call):
        self.world.after(seconds, lambda: self.happen(call))

    def happen(self, call):
        """Do something as this process, if it lives, once it is not stopped."""
        if self.is_stopped:
            self.held.append(call)
        elif self.exit_code is None:
            try:
                self.check()
                call()
                self.serve_early()
                self.advance()
            except Ended as end:
                self.world.lost(self, str(end))

    def advance(self):
        """Run the program until it waits for something that is not so."""
        while self.waits_for is None or self.waits_for():
            wanted = next(self.program, "end")
            if wanted == "end":
                self.world.exited(self, 0)
                return
            self.waits_for = wanted
            if not callable(wanted):
                self.waits_for = lambda: False
                self.after(wanted, self.wake)
                return

    def wake(self):
        self.waits_for = None

    def check(self):
        if self.liveness is not None and not self.is_leaving:
            try:
                self.liveness.check(self.world.now)
            except GenerationOver as error:
                raise Ended(str(error)) from None

    def live(self):
        yield from self.join()
        yield from self.drive() if self.rank == 0 else self.follow()
        yield from self.leave()

    # ---- Joining -------------------------------------------------------------

    def join(self):
        if self.rank == 0:
            self.welcome = self.roster.welcome()  # of a cluster of one worker
        else:
            self.connect(0, self.world.processes[0].hello.address, self.say_hello)
        yield lambda: self.welcome is not None
        self.generation = int(self.welcome.generation, 16)
        self.liveness = Liveness(self.rank, TIMEOUT, self.world.now, self.membership)
        self.after(0, self.tick)
        for peer in sorted(self.peers):
            if peer in self.connected:
                self.watch(peer)
            else:
                self.connect(peer, self.welcome.addresses[peer], partial(self.watch, peer))
        yield lambda: self.connected >= self.peers
        self.begin()

    def connect(self, peer, address, then):
        channel = self.channels[peer] = Channel(self.world, self, peer, address)

        def take(code, _):
            if code != OK:
                channel.begin("here", take)
                return
            self.connected.add(peer)
            then()

        channel.begin("here", take)

    def say_hello(self):
        self.channels[0].call("join", members.to_body(self.hello)).add_done_callback(self.take)

    def take(self, reply):
        if reply.exception() is not None:
            raise Violation(f"rank {self.rank} is not welcome: {reply.exception()}")
        try:
            self.welcome = members.parse_welcome(reply.result().body, self.hello)
        except MessageError as error:
            raise Ended(str(error)) from None

    def begin(self):
        """Become part of a generation."""
        self.node = Node(
            self.rank, self.workers, self.generation, self.call, self.fail_others,
            self.membership.servers,
        )  # fmt: skip
        if self.rank == 0:
            self.world.all_are_welcome()

    def must_have_joined(self):
        if self.node is None:
            raise Violation(f"rank {self.rank} does not join")

    # ---- Calls of others -----------------------------------------------------

    def serve(self, attempt, answer):
        """A call arrives; `answer` takes a code, and what is answered."""
        peer = attempt.channel.caller.rank
        if attempt.method == "here":
            answer(OK, self.hello.process.encode())
        elif attempt.method == "join":
            self.joined(peer, attempt.body, partial(answer, OK))
        elif attempt.method == "stay":
            self.stayed(attempt.body, answer)
        else:
            self.early.append((peer, Envelope.parse(attempt.envelope), attempt.body, answer))

    def stayed(self, process, answer):
        if process != self.hello.process.encode():
            answer(REFUSED, f"{self.membership.name(self.rank)} is another process".encode())
        elif self.farewell is not None:
            answer(OK, self.farewell)
        else:
            self.staying.append(partial(answer, OK))

    def serve_early(self):
        """Run the calls that may be run now: some let others be."""
        while self.node is not None and (
            ready := [
                call
                for call in self.early
                if not self.is_of_this_generation(call[1])
                or not self.node._answers[call[0]].is_early(call[1])
            ]
        ):
            self.early.remove(ready[0])
            self.called(*ready[0])

    def called(self, peer, envelope, body, answer):
        if not self.is_of_this_generation(envelope):
            self.world.refused += 1
            answer(REFUSED, f"{self.membership.name(self.rank)} is of another generation".encode())
            return
        reply = self.node.answer(peer, envelope, body)
        if len(self.node._answers[peer]._replies) > MOST_OPEN:
            raise Violation("more replies are kept than calls may be open")
        reply.add_done_callback(lambda reply: answer(OK, reply.result()))

    def is_of_this_generation(self, envelope):
        return envelope.generation == self.generation

    def joined(self, peer, body, answer):
        try:
            assert self.roster.join(body) == peer
        except StartedAgain as error:
            if self.liveness is None:
                raise Ended(str(error)) from None
            self.liveness.lost(peer)
            self.check()
        self.joining.append(answer)
        self.welcome = self.roster.welcome()
        if self.welcome is not None:
            joining, self.joining = self.joining, []
            for each in joining:
                each(members.to_body(self.welcome))

    # ---- While the generation lives ------------------------------------------

    def call(self, peer, envelope, body):
        self.check()
        self.world.called(self, peer, envelope, bytes(body))
        reply = self.channels[peer].call("call", body, envelope.to_bytes())
        reply.add_done_callback(self.end_if_refused)
        return reply

    def end_if_refused(self, reply):
        if reply.exception() is not None:
            raise Ended(str(reply.exception()))

    def watch(self, peer):
        """Notice when the connection to a peer breaks, and when the peer ends."""

        def connected(process):
            self.liveness.connected(peer)
            if process != self.welcome.processes[peer]:
                self.liveness.lost(peer)

        def ended(farewell):
            assert not farewell
            self.left.add(peer)
            self.liveness.left(peer)

        self.channels[peer].watch(
            self.welcome.processes[peer],
            lambda reason: self.liveness.disconnected(peer, self.world.now, reason),
            connected,
            ended,
        )

    def tick(self):
        try:
            self.liveness.tick(self.world.now)
        except GenerationOver as error:
            raise Ended(str(error)) from None
        self.after(self.liveness.interval, self.tick)

    def fail_others(self, problem):
        raise Violation(problem.message)

    def leave(self):
        """End in peace: the run is finished, and the others know it."""
        self.farewell = b""
        for answer in self.staying:
            answer(b"")
        waited = self.world.now + SECONDS_TO_LEAVE
        self.after(SECONDS_TO_LEAVE, lambda: None)
        yield lambda: self.left >= self.peers or self.world.now >= waited
        self.is_leaving = True
        yield 0.2
