"""A process of a simulated cluster: tnctl's protocol, and programs of rank 0 and of the others.

The programs are generators that yield what they wait for: seconds, or a condition.
"""

import copy
import json
from collections import deque

from cluster_model import (
    CLIP_NORM,
    KEYS,
    OwnedState,
    dense_gradient,
    gradient,
    occurrences,
    owner_of,
    shape_of,
)

from tnctl.cluster.joining import members
from tnctl.cluster.joining.liveness import GenerationOver, Liveness, others
from tnctl.cluster.joining.members import Hello, Roster, StartedAgain
from tnctl.cluster.messages.exchange import Sizes, new_exchange, no_batch
from tnctl.cluster.messages.replies import new_read, parse_read_reply, parse_reply
from tnctl.cluster.owners.owner import Owner
from tnctl.cluster.transport.frames import NOTICES, REQUESTS, Frame, FrameError, Kind, parse
from tnctl.cluster.transport.session import MOST_OPEN, Client, Request, Server

DIGESTS = members.Digests("0" * 64, "1" * 64)
TOKEN = "token of this run"


class Process:
    """One process of a rank, from its start to its end.

    `world` carries what it sends, stores what it writes, and calls it: `receive`, `link_is_down`,
    `link_is_up`.
    """

    def __init__(self, world, rank):
        self.world, self.rank, self.workers = world, rank, world.data.workers
        self.membership = world.data.membership
        self.owners = self.membership.owners  # their ranks
        self.peers = others(rank, self.membership.size)
        self.is_stopped, self.stops, self.must_end = False, 0, False
        self.exit_code = None
        self.held = []  # what happened while it was stopped
        # A process that is started again may have the address of the one before.
        address, process = f"10.0.0.{rank}:29400", f"{world.processes_started:016x}"
        self.hello = Hello(
            TOKEN, "1", rank, self.workers, address, DIGESTS, process, world.data.servers
        )
        self.generation, self.liveness, self.owner = 0, None, None
        self.roster = Roster(self.hello, world.new_generation()) if rank == 0 else None
        self.early = []  # frames of the generation that came before the welcome
        self.results = {}  # (owner, number) -> bytes of a reply
        self.commands = deque()
        self.program = self.drive() if rank == 0 else self.follow()
        self.waits_for = None
        self.after(0, self.advance)

    # ---- Events --------------------------------------------------------------

    def after(self, seconds, call):
        self.world.after(seconds, lambda: self.happen(call))

    def happen(self, call):
        """Do something as this process, if it lives, once it is not stopped."""
        if self.is_stopped:
            self.held.append(call)
        elif self.exit_code is None:
            try:
                if self.liveness is not None:
                    self.liveness.check(self.world.now)
                call()
            except GenerationOver as error:
                self.world.left(self, str(error))

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
        self.advance()

    def send(self, peer, frame):
        self.liveness.check(self.world.now)
        self.world.send(self, peer, frame)

    def receive(self, peer, data):
        frame = parse(data)
        if frame.kind in (Kind.HELLO, Kind.WELCOME):
            self.join(peer, frame)
        elif self.liveness is None:
            self.early.append((peer, data))
        else:
            try:
                self.liveness.accept(frame, peer, self.generation, self.world.now)
            except FrameError:
                self.world.refused += 1
                return
            self.take(peer, frame)
        if self.exit_code is None:
            self.advance()

    def take(self, peer, frame):
        client, server = self.clients[peer], self.servers[peer]
        if frame.kind is Kind.REPLY:
            if client.receive(frame):
                self.results[peer, frame.number] = bytes(frame.body)
        elif frame.kind is Kind.RESEND:
            for request in client.unanswered(frame.number):
                self.send(peer, request)
        elif frame.kind is Kind.HEARTBEAT:
            for answer in server.heartbeat(frame):
                self.send(peer, answer)
        elif frame.kind in REQUESTS:
            todo = server.receive(frame)
            assert len(server._replies) <= MOST_OPEN + 2
            if isinstance(todo, Request):
                self.run(peer, todo)
            elif todo is not None:
                self.send(peer, todo)

    def run(self, peer, request):
        if request.kind is Kind.EXCHANGE:
            self.exchange(peer, request.number, request.body)
        elif request.kind in NOTICES:
            answers = self.owner.notice(peer, request.kind, request.body)
            self.answer(peer, request.number, b"")
            self.answer_all(answers)
        elif request.kind is Kind.READ:
            self.answer(peer, request.number, self.owner.read(peer, request.body))
        else:
            name, *arguments = json.loads(bytes(request.body))
            self.commands.append((request.number, name, arguments))

    def exchange(self, peer, number, body):
        """Take an exchange; answer all of them if it was the last."""
        self.exchanges[peer] = number
        self.answer_all(self.owner.exchange(peer, body))

    def answer_all(self, answers):
        for notice in self.owner.take_notices():
            for peer in sorted(self.peers & set(self.owners)):
                self.acknowledged.append(self.request(peer, notice.kind, notice.body))
        for rank, answer in enumerate(answers):
            if answer is not None:
                self.answer(rank, self.exchanges.pop(rank), answer)

    def answer(self, peer, number, body):
        if peer == self.rank:
            self.results[peer, number] = bytes(body)
        else:
            self.send(peer, self.servers[peer].reply(number, body))

    def request(self, peer, kind, body):
        """Send a request: its key in `results`, once it is answered. Its own without a network."""
        if peer != self.rank:
            frame = self.clients[peer].request(kind, body)
            self.send(peer, frame)
            return peer, frame.number
        self.own_requests += 1
        if kind is Kind.READ:
            self.answer(peer, self.own_requests, self.owner.read(peer, body))
        else:
            self.exchange(peer, self.own_requests, body)
        return peer, self.own_requests

    def replies(self, keys):
        """The replies to requests, in their order, once all are there."""
        yield lambda: all(key in self.results for key in keys)
        return [self.results.pop(key) for key in keys]

    # ---- Joining and living --------------------------------------------------

    def join(self, peer, frame):
        if self.rank == 0 and frame.kind is Kind.HELLO:
            try:
                rank = self.roster.join(frame.body)
            except StartedAgain:
                self.liveness.lost(peer)
                self.liveness.check(self.world.now)
            if self.liveness is not None:
                self.world.send(self, rank, self.welcome)
        elif frame.kind is Kind.WELCOME and self.liveness is None:
            try:
                welcome = members.parse_welcome(frame.body, self.hello)
            except FrameError:
                self.world.refused += 1  # of a process that had the rank before
            else:
                self.begin(int(welcome.generation, 16))

    def begin(self, generation):
        """Become part of a generation."""
        self.generation = generation
        self.liveness = Liveness(self.rank, self.peers, 5.0, self.world.now)
        self.clients = {peer: Client(generation, self.rank) for peer in self.peers}
        self.servers = {peer: Server(generation, self.rank) for peer in self.peers}
        self.owner = self.new_owner() if self.rank in self.owners else None
        self.exchanges, self.own_requests = {}, 0
        self.acknowledged = []
        self.after(0, self.tick)
        for peer in self.peers:
            is_there = self.world.processes[peer].exit_code is None
            if not is_there or not self.world.is_up(self.rank, peer):
                self.link_is_down(peer)
        for peer, data in self.early:
            self.after(0, lambda peer=peer, data=data: self.receive(peer, data))

    def new_owner(self):
        clip_norm = CLIP_NORM * self.world.data.clips
        return Owner(
            self.shape_of(self.rank), self.workers, OwnedState(), self.rank, clip_norm,
            owners=len(self.owners),
        )  # fmt: skip

    def shape_of(self, owner):
        return shape_of(owner, self.membership)

    def keys_by_owner(self, keys):
        """Keys of each owner, in the order of `owners`."""
        return [
            [key for key in keys if owner_of(key, self.membership) == owner]
            for owner in self.owners
        ]

    def tick(self):
        self.liveness.tick(self.world.now)
        for peer, client in self.clients.items():
            self.send(peer, client.heartbeat())
        self.after(self.liveness.interval, self.tick)

    def link_is_down(self, peer):
        if self.liveness is not None:
            self.liveness.disconnected(peer, self.world.now, "it is cut off")

    def link_is_up(self, peer):
        if self.liveness is not None:
            self.liveness.connected(peer)
            for request in self.clients[peer].unanswered():
                self.send(peer, request)

    # ---- Programs ------------------------------------------------------------

    def welcome_all(self):
        """Begin a generation with the others."""
        while (welcome := self.roster.welcome()) is None:
            yield lambda: not self.roster.missing
        frame = Frame(Kind.WELCOME, self.roster.generation, 0, body=members.to_body(welcome))
        self.welcome = frame
        self.begin(self.roster.generation)
        self.world.all_are_welcome()
        for peer in self.peers:
            self.send(peer, frame)

    def drive(self):
        yield from self.welcome_all()
        world, steps_of_pass = self.world, self.world.steps_of_pass
        manifest = world.newest_manifest()
        yield from self.all_do("load", manifest)
        self.saving = None
        step = manifest
        while step < steps_of_pass * world.data.passes:
            position = step % steps_of_pass
            until = position + world.save_every
            runs = self.tell_workers("run", position, step)
            end = yield from self.train(position, step, until)
            step += end - position
            for reply in (yield from self.replies(runs)):
                assert json.loads(reply) == end, "workers stop at different steps"
            if world.chance.random() < 0.3:
                reads = self.tell_workers("read", step)
                yield from self.read_all(step)
                yield from self.replies(reads)
            yield from self.saved()  # one at a time
            self.saving = step, [*self.tell_all("stage", step), self.stage(step)]
        yield from self.saved()
        yield from self.all_do("finish")

    def saved(self):
        """Wait for the files of the checkpoint that is being written, then write its manifest."""
        if self.saving is not None:
            (step, writes), self.saving = self.saving, None
            yield from self.replies(writes)
            self.liveness.check(self.world.now)
            self.world.write_manifest(self, step)
            yield from self.all_do("committed", step)

    def tell_all(self, *command):
        return self.tell(sorted(self.peers), command)

    def tell_workers(self, *command):
        return self.tell(range(1, self.workers), command)

    def tell(self, ranks, command):
        body = json.dumps(command).encode()
        return [self.request(rank, Kind.COMMAND, body) for rank in ranks]

    def all_do(self, *command):
        sent = self.tell_all(*command)
        if command[0] == "load":
            self.load(command[1])
        yield from self.replies(sent)

    def follow(self):
        while self.liveness is None:
            hello = Frame(Kind.HELLO, 0, self.rank, body=members.to_body(self.hello))
            self.world.send(self, 0, hello)
            yield 0.4
        while True:
            yield lambda: self.commands
            number, name, arguments = self.commands.popleft()
            assert self.rank < self.workers or name not in ("run", "read"), "a server trains"
            result = None
            match name:
                case "load" if self.owner is not None:
                    self.load(*arguments)
                case "start_pass":
                    self.start_pass()
                case "run":
                    result = yield from self.train(*arguments)
                case "read":
                    yield from self.read_all(*arguments)
                case "stage" if self.owner is not None:
                    self.stage(*arguments, answers=number)
                    continue
            self.answer(0, number, json.dumps(result).encode())

    def load(self, step):
        self.owner.parameters.state = self.world.load(step, self.rank)

    def stage(self, step, answers=None):
        """Write this owner's part as it is now; later, for training continues meanwhile."""
        assert self.may_be_saved(), "a pull is open at a checkpoint"
        state = copy.deepcopy(self.state_to_save())

        def write():
            self.world.write_part(self, step, state)
            if answers is None:
                self.results["stage", step] = b""
            else:
                self.answer(0, answers, b"null")
            self.advance()

        self.after(self.world.chance.uniform(0, 1), write)
        return "stage", step

    def state_to_save(self):
        return self.owner.parameters.state

    def may_be_saved(self):
        return not self.owner.is_open

    def train(self, position, steps, until=None):
        """Train from a batch of the pass on, until rank 0 pauses; the position then.

        `steps` were trained before.
        """
        batches, nothing = self.world.data.batches(self.rank), no_batch(shape_of(0))
        pushed, values, dense, last_batch, more = [nothing] * len(self.owners), {}, {}, [], True
        step = steps + 1
        while True:
            pause = self.rank == 0 and (position == until or not more)
            has_batch = position < len(batches) and not pause
            batch = batches[position] if has_batch else []
            counts, sent, pulled = occurrences(batch), [], []
            for number, keys in enumerate(self.keys_by_owner(counts)):
                sizes = Sizes(len(batch), (len(keys),))
                body, exchange = new_exchange(
                    self.shape_of(self.owners[number]), step, pushed[number], sizes, pause=pause,
                    has_next=has_batch and position + 1 < len(batches),
                )  # fmt: skip
                if last_batch:
                    self.fill_push(exchange.push, last_batch, values[number], dense[number])
                exchange.keys[0].ids[:] = keys
                exchange.keys[0].occurrences[:] = [counts[key] for key in keys]
                pulled.append((sizes, keys))
                sent.append((self.owners[number], body))
            requests = [self.request(owner, Kind.EXCHANGE, body) for owner, body in sent]
            answers = yield from self.replies(requests)
            replies = [
                parse_reply(self.shape_of(owner), sizes, answer)
                for owner, (sizes, _), answer in zip(self.owners, pulled, answers, strict=True)
            ]
            states = {(reply.paused, reply.rows, reply.any_next) for reply in replies}
            assert len(states) == 1, "owners disagree about a step"
            if replies[0].paused:
                return position
            more = replies[0].any_next
            for number, ((_, keys), reply) in enumerate(zip(pulled, replies, strict=True)):
                values[number] = dict(zip(keys, reply.tables[0].rows[:, 0].tolist(), strict=True))
                dense[number] = reply.dense.tolist()
            pushed, last_batch = [sizes for sizes, _ in pulled], batch
            position, step = position + 1, step + 1
            yield self.world.chance.uniform(0.02, 0.3)

    def fill_push(self, push, batch, values, dense):
        table = push.tables[0]
        table.sums[:, 0] = [gradient(batch, key, int(value)) for key, value in values.items()]
        table.counts[:, 0] = len(batch)
        push.dense[:] = [
            dense_gradient(batch, place, int(value)) for place, value in enumerate(dense)
        ]
        if push.labels.size:
            push.labels[:] = batch

    def read_all(self, step):
        """Read some rows of every owner, which must be those of a step."""
        for owner, keys in zip(self.owners, self.keys_by_owner(range(KEYS)), strict=True):
            expected = self.states_at(step)[owner]
            body, read = new_read(self.shape_of(owner), [len(keys)], dense=True)
            read.keys[0].ids[:] = keys
            [answer] = yield from self.replies([self.request(owner, Kind.READ, body)])
            reply = parse_read_reply(self.shape_of(owner), [len(keys)], True, answer)
            assert reply.tables[0][:, 0].tolist() == [
                expected.rows.get(key, [0])[0] for key in keys
            ]
            assert reply.dense.tolist() == expected.dense

    def states_at(self, step):
        """What all owners must have after a step, by rank."""
        return self.world.history[step]
