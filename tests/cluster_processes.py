"""A process of a simulated cluster: its calls, and programs of rank 0 and of the others.

What transport/rpc.py does with gRPC, and cluster_member.py with threads, is done by events here: a
call whose connection broke is made again, with the same envelope, when there is another one.

The programs are generators that yield what they wait for: seconds, or a condition.
"""

import copy
import json
from collections import deque
from dataclasses import dataclass, field, replace

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
from tnctl.cluster.messages.exchange import JOINING, Sizes, new_exchange, no_batch
from tnctl.cluster.messages.replies import new_read, parse_read_reply, parse_reply
from tnctl.cluster.owners.barrier import Barrier
from tnctl.cluster.transport.kinds import NOTICES, Kind, MessageError
from tnctl.cluster.transport.once import MOST_OPEN, Answers, Calls, Envelope

DIGESTS = members.Digests("0" * 64, "1" * 64)
TOKEN = "token of this run"


@dataclass(frozen=True)
class Packet:
    """What travels: of the kind "join", "welcome", "call", "reply" or "refused"."""

    kind: str
    sender: int
    generation: int = 0
    number: int = 0
    envelope: bytes = b""
    body: bytes = b""


@dataclass
class Position:
    """The passes that are done, and how many batches of the next one by each worker."""

    passes: int
    batches: list


@dataclass
class Lineage:
    """What workers did in the steps of a generation."""

    pulled: dict = field(default_factory=dict)
    """step -> {rank: batch}"""
    pushed: dict = field(default_factory=dict)
    """step -> the ranks whose gradients were taken"""


@dataclass
class Trained:
    """A batch that was pulled: its step, and of each owner its keys' values and dense weights."""

    batch: list
    step: int
    values: list
    dense: list

    @property
    def sizes(self):
        return [Sizes(len(self.batch), (len(values),)) for values in self.values]


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
        self.early = []  # calls of the generation that came before the welcome
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

    def send(self, peer, packet):
        self.liveness.check(self.world.now)
        self.world.send(self, peer, packet)

    def receive(self, packet):
        peer = packet.sender
        if packet.kind in ("join", "welcome"):
            self.join(packet)
        elif self.liveness is None:
            self.early.append(packet)
        elif packet.kind == "call":
            self.take(peer, packet)
        elif packet.generation == self.generation:
            if packet.kind == "refused":
                raise GenerationOver("a process is of another generation")
            if self.calls[peer].answered(packet.number):
                del self.open[peer, packet.number]
                self.results[peer, packet.number] = packet.body
        if self.exit_code is None:
            self.advance()

    def take(self, peer, packet):
        """A call arrives, for the first time or again."""
        if not self.is_of_this_generation(packet):
            self.world.refused += 1
            self.send(peer, replace(packet, kind="refused", sender=self.rank))
            return
        answers = self.answers[peer]
        self.waiting[peer].append(packet)
        while ready := [
            packet
            for packet in self.waiting[peer]
            if not answers.is_early(Envelope.parse(packet.envelope))
        ]:
            for packet in ready:
                self.waiting[peer].remove(packet)
                self.admit(peer, packet)
                self.advance()  # a command is done before the calls behind it

    def is_of_this_generation(self, packet):
        return packet.generation == self.generation

    def admit(self, peer, packet):
        envelope = Envelope.parse(packet.envelope)
        reply, is_new = self.answers[peer].admit(envelope)
        assert len(self.answers[peer]._replies) <= MOST_OPEN

        def send(reply):
            answer = Packet("reply", self.rank, self.generation, packet.number, b"", reply.result())
            self.send(peer, answer)

        reply.add_done_callback(lambda reply: self.after(0, lambda: send(reply)))
        if is_new:
            self.run(peer, (peer, reply), envelope.kind, packet.body)

    def run(self, peer, handle, kind, body):
        """Run a request; `handle` is for its reply."""
        if kind is Kind.EXCHANGE:
            self.answer_all(self.owner.exchange(peer, body, handle))
        elif kind in NOTICES:
            answers = self.owner.notice(peer, kind, body)
            self.answer_all([(handle, b""), *answers])
        elif kind is Kind.READ:
            self.answer(handle, self.owner.read(peer, body))
        else:
            name, *arguments = json.loads(body)
            self.commands.append((handle, name, arguments))

    def answer_all(self, answers):
        for notice in self.owner.take_notices():
            for peer in sorted(self.peers & set(self.owners)):
                self.request(peer, notice.kind, bytes(notice.body))
        for handle, answer in answers:
            self.answer(handle, answer)

    def answer(self, handle, body):
        peer, reply = handle
        if peer == self.rank:
            self.results[peer, reply] = bytes(body)
        else:
            reply.set_result(bytes(body))

    def request(self, peer, kind, body):
        """Send a request: its key in `results`, once it is answered. Its own without a network."""
        if peer == self.rank:
            self.own_requests += 1
            self.run(peer, (peer, self.own_requests), kind, bytes(body))
            return peer, self.own_requests
        envelope = self.calls[peer].envelope(kind)
        key = peer, envelope.number
        self.open[key] = Packet(
            "call", self.rank, self.generation, envelope.number, envelope.to_bytes(), bytes(body)
        )
        self.world.kinds[kind] += 1
        self.send(peer, self.open[key])
        return key

    def call_again(self, peer, packet):
        """A call has failed, since what it sent or its reply was lost."""
        if self.open.get((peer, packet.number)) is packet:
            self.send(peer, packet)

    def replies(self, keys):
        """The replies to requests, in their order, once all are there."""
        yield lambda: all(key in self.results for key in keys)
        return [self.results.pop(key) for key in keys]

    # ---- Joining and living --------------------------------------------------

    def join(self, packet):
        if self.rank == 0 and packet.kind == "join":
            try:
                rank = self.roster.join(packet.body)
            except StartedAgain:
                self.liveness.lost(packet.sender)
                self.liveness.check(self.world.now)
            if self.liveness is not None:
                self.world.send(self, rank, self.welcome)
        elif packet.kind == "welcome" and self.liveness is None:
            try:
                welcome = members.parse_welcome(packet.body, self.hello)
            except MessageError:
                self.world.refused += 1  # of a process that had the rank before
            else:
                self.begin(int(welcome.generation, 16), welcome.processes)

    def begin(self, generation, processes):
        """Become part of a generation."""
        self.generation, self.processes = generation, processes
        self.liveness = Liveness(self.rank, 5.0, self.world.now)
        self.calls = {peer: Calls(generation, self.rank) for peer in self.peers}
        self.answers = {peer: Answers() for peer in self.peers}
        self.waiting = {peer: [] for peer in self.peers}
        self.open, self.own_requests = {}, 0
        self.owner = self.new_owner() if self.rank in self.owners else None
        self.after(0, self.tick)
        for peer in self.peers:
            is_there = self.world.processes[peer].exit_code is None
            if not is_there or not self.world.is_up(self.rank, peer):
                self.link_is_down(peer)
        for packet in self.early:
            self.after(0, lambda packet=packet: self.receive(packet))

    def new_owner(self):
        clip_norm = CLIP_NORM * self.world.data.clips
        return Barrier(
            self.shape_of(self.rank), self.workers, OwnedState(), rank=self.rank,
            clip_norm=clip_norm, backup=self.world.backup, owners=len(self.owners),
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
        self.after(self.liveness.interval, self.tick)

    def link_is_down(self, peer):
        """What `Stay` shows when its connection breaks."""
        if self.liveness is not None:
            self.liveness.disconnected(peer, self.world.now, "it is cut off")

    def link_is_up(self, peer):
        """What `Here` shows: which process answers. Calls without a reply are made again."""
        if self.liveness is not None:
            self.liveness.connected(peer)
            if self.world.processes[peer].hello.process != self.processes[peer]:
                self.liveness.lost(peer)
            self.liveness.check(self.world.now)
            for (receiver, _), packet in list(self.open.items()):
                if receiver == peer:
                    self.send(peer, packet)

    # ---- Programs ------------------------------------------------------------

    def welcome_all(self):
        """Begin a generation with the others."""
        while (welcome := self.roster.welcome()) is None:
            yield lambda: not self.roster.missing
        self.welcome = Packet("welcome", 0, self.roster.generation, body=members.to_body(welcome))
        self.begin(self.roster.generation, welcome.processes)
        self.world.all_are_welcome()
        for peer in self.peers:
            self.send(peer, self.welcome)

    def drive(self):
        yield from self.welcome_all()
        world = self.world
        step = world.newest_manifest()
        position = copy.deepcopy(world.positions[step])
        yield from self.all_do("load", step)
        self.saving = None
        while position.passes < world.data.passes:
            runs = self.tell_workers("run", position.batches, step)
            end, is_over = yield from self.train(position.batches, step)
            others = [json.loads(reply)[0] for reply in (yield from self.replies(runs))]
            position.batches = [end, *others]
            if is_over:
                position = Position(position.passes + 1, [0] * self.workers)
            last_saved, step = step, self.owner.parameters.steps
            if world.chance.random() < 0.3:
                reads = self.tell_workers("read", step)
                yield from self.read_all(step)
                yield from self.replies(reads)
            if step > last_saved:
                yield from self.saved()
                world.positions[step] = copy.deepcopy(position)
                self.saving = step, [*self.tell_all("stage", step), self.stage(step)]
        if world.positions[step] != position:  # a pass ended with a pause at a checkpoint
            world.positions[step] = copy.deepcopy(position)
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
            join = Packet("join", self.rank, body=members.to_body(self.hello))
            self.world.send(self, 0, join)
            yield 0.4
        while True:
            yield lambda: self.commands
            handle, name, arguments = self.commands.popleft()
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
                    self.stage(*arguments, answers=handle)
                    continue
            self.answer(handle, json.dumps(result).encode())

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
                self.answer(answers, b"null")
            self.advance()

        self.after(self.world.chance.uniform(0, 1), write)
        return "stage", step

    def state_to_save(self):
        return self.owner.parameters.state

    def may_be_saved(self):
        return not self.owner.is_open

    def train(self, positions, step):
        """Train from a batch on until rank 0 pauses; the next batch, and whether none is left.

        `step` is the last one that was trained.
        """
        batches, at = self.world.data.batches(self.rank), positions[self.rank]
        step, last, joins, more, steps = step + 1, None, False, True, 0
        while True:
            pause = self.rank == 0 and (not more or steps == self.world.save_every)
            batch = batches[at] if at < len(batches) and not pause else []
            pulled, replies = yield from self.exchange_with_all(
                JOINING if joins else step, batch, last, pause=pause, has_next=at + 1 < len(batches)
            )
            if replies[0].left_out:
                assert self.rank != 0, "rank 0 is left out"
                self.world.left_out += 1
                at -= last is not None
                last, joins = None, True
                continue
            reply = replies[0]
            if last is not None:
                self.lineage.pushed.setdefault(last.step, set()).add(self.rank)
            assert joins or reply.step == step, "a worker is in another step than its owners"
            step, last, joins = reply.step, None, False
            if reply.paused:
                return at, not more
            more, steps = reply.any_next, steps + 1
            if batch:
                values = [
                    dict(zip(keys, each.tables[0].rows[:, 0].tolist(), strict=True))
                    for keys, each in zip(pulled, replies, strict=True)
                ]
                last = Trained(batch, step, values, [each.dense.tolist() for each in replies])
                self.lineage.pulled.setdefault(step, {})[self.rank] = batch
                at += 1
            step += bool(reply.rows)
            yield self.world.chance.uniform(0.02, 0.3) * self.world.slowness[self.rank]

    @property
    def lineage(self):
        return self.world.lineages.setdefault(self.generation, Lineage())

    def exchange_with_all(self, step, batch, last, **flags):
        """The keys of each owner that are pulled, and the replies, of which all must be alike."""
        counts, pulled, requests, all_sizes = occurrences(batch), [], [], []
        pushed = [no_batch(shape_of(0))] * len(self.owners) if last is None else last.sizes
        for number, keys in enumerate(self.keys_by_owner(counts)):
            owner = self.owners[number]
            sizes = Sizes(len(batch), (len(keys),))
            body, exchange = new_exchange(
                self.shape_of(owner), step, pushed[number], sizes, **flags
            )
            if last is not None:
                self.fill_push(exchange.push, last.batch, last.values[number], last.dense[number])
            exchange.keys[0].ids[:] = keys
            exchange.keys[0].occurrences[:] = [counts[key] for key in keys]
            pulled.append(keys)
            all_sizes.append(sizes)
            requests.append((owner, body))
        sent = [self.request(owner, Kind.EXCHANGE, body) for owner, body in requests]
        answers = yield from self.replies(sent)
        replies = [
            parse_reply(self.shape_of(owner), sizes, answer)
            for owner, sizes, answer in zip(self.owners, all_sizes, answers, strict=True)
        ]
        assert len({reply.left_out for reply in replies}) == 1, "owners leave out different workers"
        if not replies[0].left_out:
            states = {(each.paused, each.step, each.rows, each.any_next) for each in replies}
            assert len(states) == 1, "owners disagree about a step"
        return pulled, replies

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
        return self.world.states_at(self.generation, step)
