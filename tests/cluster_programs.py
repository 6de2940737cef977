"""What simulated processes do: rank 0 commands training and checkpoints, the others follow.

A worker trains in one of two ways: in steps with all others, or as its batches arrive.
"""

import copy
import json
import math
from collections import deque
from dataclasses import dataclass, field

from cluster_model import CLIP_NORM, KEYS, OwnedState, occurrences, owner_of, shape_of
from cluster_processes import Process

from tnctl.cluster.messages import named_arrays
from tnctl.cluster.messages.exchange import (
    JOINING,
    Sizes,
    new_exchange,
    new_read,
    no_batch,
    parse_read_reply,
    parse_reply,
)
from tnctl.cluster.owners.arrivals import Arrivals
from tnctl.cluster.owners.barrier import Barrier
from tnctl.cluster.transport.kinds import Kind


@dataclass
class Pulled:
    """A batch that was pulled: its step, and of each owner its keys' values and dense weights."""

    batch: list
    step: int
    values: list
    dense: list

    @property
    def sizes(self):
        return [Sizes(len(self.batch), (len(values),)) for values in self.values]


@dataclass
class Lineage:
    """What workers did in the steps of a generation."""

    pulled: dict = field(default_factory=dict)
    """step -> {rank: batch}"""
    pushed: dict = field(default_factory=dict)
    """step -> the ranks whose gradients were taken"""


class Program(Process):
    """Checkpoints, reads and exchanges, however workers train."""

    def drive(self):
        """Rank 0: train to the end, with pauses and checkpoints."""
        world, self.saving = self.world, None
        step = world.newest_manifest()
        position = world.position_at(step)
        yield from self.all_do("load", step)
        while position.passes < world.data.passes:
            yield from self.train_until_a_pause(position, step)
            last, step = step, self.owner.parameters.steps
            world.positions[step] = self.generation, copy.deepcopy(position)
            if world.chance.random() < 0.3:
                reads = self.tell_workers("read", step)
                yield from self.read_all(step)
                yield from self.replies(reads)
            if step > last:
                yield from self.saved()
                self.saving = step, self.tell(range(self.membership.size), "stage", step)
        yield from self.saved()
        yield from self.all_do("finish")

    def saved(self):
        """Wait for the files of the checkpoint that is being written, then write its manifest."""
        if self.saving is not None:
            (step, writes), self.saving = self.saving, None
            yield from self.replies(writes)
            self.world.write_manifest(self, step)
            yield from self.all_do("committed", step)

    def follow(self):
        """Another rank: do what rank 0 commands until it finishes."""
        name = ""
        while name != "finish":
            yield lambda: not self.node.commands.empty()
            body, respond = self.node.commands.get()
            name, arguments = parsed(body)
            assert self.rank < self.workers or name not in ("run", "read"), "a server trains"
            result = None
            match name:
                case "load":
                    self.load(*arguments)
                case "run":
                    result = yield from self.train(*arguments)
                case "read":
                    yield from self.read_all(*arguments)
            respond(json.dumps(result).encode())

    def begin(self):
        super().begin()
        self.node.route(self.stage, self.stage)

    def tell(self, ranks, *command):
        body = named_arrays.packed(
            {}, {"command": command[0], "arguments": json.dumps(command[1:])}
        )
        return [self.node.request(rank, Kind.COMMAND, body) for rank in ranks]

    def tell_workers(self, *command):
        return self.tell(range(1, self.workers), *command)

    def all_do(self, *command):
        sent = self.tell(sorted(self.peers), *command)
        if command[0] == "load":
            self.load(command[1])
        yield from self.replies(sent)

    def replies(self, futures):
        """The replies to requests, in their order, once all are there."""
        yield lambda: all(future.done() for future in futures)
        return [bytes(future.result()) for future in futures]

    # ---- An owner ------------------------------------------------------------

    def load(self, step):
        self.owner = self.kept = None
        if self.rank in self.owners:
            state = OwnedState(self.world.load(step, self.rank), self.workers)
            self.owner = self.new_owner(self.shape_of(self.rank), state)
        self.node.serve_owner(self.owner)

    def stage(self, body, respond):
        """Write this owner's part as it is now; later, for training continues meanwhile."""
        [step] = parsed(body)[1]
        if self.owner is None:
            respond(b"")
            return
        assert not self.owner.is_open, "a pull is open at a checkpoint"
        state = copy.deepcopy(self.owner.parameters.state)

        def write():
            self.world.write_part(self, step, state)
            respond(b"")

        self.after(self.world.chance.uniform(0, 1), write)

    def shape_of(self, owner):
        return shape_of(owner, self.membership)

    # ---- A worker ------------------------------------------------------------

    def exchange(self, step, batch, **flags):
        """Send every owner the gradients that are kept, and the keys of a batch.

        The requests, the sizes of what is pulled, and the keys of each owner.
        """
        last, self.kept = self.kept, None
        counts, shape, rule = occurrences(batch), self.shape_of, self.world.rule
        pushed = [no_batch(shape(0))] * len(self.owners) if last is None else last.sizes
        keys_of_all, sizes, requests = self.by_owner(counts), [], []
        for number, (owner, keys) in enumerate(zip(self.owners, keys_of_all, strict=True)):
            sizes.append(Sizes(len(batch), (len(keys),)))
            body, exchange = new_exchange(shape(owner), step, pushed[number], sizes[-1], **flags)
            if last is not None:
                push, [table] = exchange.push, exchange.push.tables
                table.sums[:, 0] = [
                    rule.gradient(last.batch, key, int(value))
                    for key, value in last.values[number].items()
                ]
                table.counts[:, 0] = len(last.batch)
                push.dense[:] = [
                    rule.dense_gradient(last.batch, place, int(value))
                    for place, value in enumerate(last.dense[number])
                ]
                if push.labels.size:
                    push.labels[:] = last.batch
            exchange.keys[0].ids[:] = keys
            exchange.keys[0].occurrences[:] = [counts[key] for key in keys]
            requests.append(self.node.request(owner, Kind.EXCHANGE, body))
        return requests, sizes, keys_of_all

    def answers(self, requests, sizes, keys_of_all):
        """The replies of all owners to an exchange, and the values of the keys of each."""
        answers = yield from self.replies(requests)
        replies = [
            parse_reply(self.shape_of(owner), of_owner, answer)
            for owner, of_owner, answer in zip(self.owners, sizes, answers, strict=True)
        ]
        values = [
            dict(zip(keys, reply.tables[0].rows[:, 0].tolist(), strict=False))
            for keys, reply in zip(keys_of_all, replies, strict=True)
        ]
        return replies, values

    def keep(self, batch, replies, values, step=0):
        """Keep what was computed on a batch for the next exchange."""
        self.kept = Pulled(batch, step, values, [each.dense.tolist() for each in replies])

    def by_owner(self, keys):
        """Keys of each owner, in the order of `owners`."""
        return [
            [key for key in keys if owner_of(key, self.membership) == owner]
            for owner in self.owners
        ]

    def computing(self):
        """The seconds that a batch takes."""
        return self.world.chance.uniform(0.02, 0.3) * self.world.slowness[self.rank]

    def read_all(self, step):
        """Read some rows of every owner, which must be those of a step."""
        expected = self.world.states_at(self.generation, step)
        for owner, keys in zip(self.owners, self.by_owner(range(KEYS)), strict=True):
            body, read = new_read(self.shape_of(owner), [len(keys)], dense=True)
            read.keys[0].ids[:] = keys
            [answer] = yield from self.replies([self.node.request(owner, Kind.READ, body)])
            reply = parse_read_reply(self.shape_of(owner), [len(keys)], True, answer)
            rows = expected[owner].rows
            assert reply.tables[0][:, 0].tolist() == [rows.get(key, [0])[0] for key in keys]
            assert reply.dense.tolist() == expected[owner].dense


class Steps(Program):
    """Training in steps of all workers, or of most of them (`cluster.backup`)."""

    def new_owner(self, shape, state):
        return Barrier(
            shape, self.workers, state, rank=self.rank, owners=len(self.owners),
            clip_norm=CLIP_NORM * self.world.data.clips, backup=self.world.backup,
        )  # fmt: skip

    def train_until_a_pause(self, position, step):
        runs = self.tell_workers("run", position.batches, step)
        end, is_over = yield from self.train(position.batches, step)
        ends = [json.loads(reply)[0] for reply in (yield from self.replies(runs))]
        position.batches = [end, *ends]
        if is_over:
            position.passes, position.batches = position.passes + 1, [0] * self.workers

    def train(self, positions, step):
        """Train from a batch on until rank 0 pauses; the next batch, and whether none is left.

        `step` is the last one that was trained.
        """
        batches, at = self.world.data.batches(self.rank), positions[self.rank]
        step, joins, more, steps = step + 1, False, True, 0
        while True:
            pause = self.rank == 0 and (not more or steps == self.world.save_every)
            batch = batches[at] if at < len(batches) and not pause else []
            last, has_next = self.kept, at + 1 < len(batches)
            sent = self.exchange(JOINING if joins else step, batch, pause=pause, has_next=has_next)
            replies, values = yield from self.answers(*sent)
            reply = replies[0]
            assert len({each.left_out for each in replies}) == 1, "owners leave out others"
            if reply.left_out:
                assert self.rank != 0, "rank 0 is left out"
                self.world.left_out += 1
                at, joins = at - (last is not None), True
                continue
            states = {(each.paused, each.step, each.rows, each.any_next) for each in replies}
            assert len(states) == 1, "owners disagree about a step"
            if last is not None:
                self.lineage.pushed.setdefault(last.step, set()).add(self.rank)
            assert joins or reply.step == step, "a worker is in another step than its owners"
            step, joins = reply.step, False
            if reply.paused:
                return at, not more
            more, steps = reply.any_next, steps + 1
            if batch:
                self.keep(batch, replies, values, step)
                self.lineage.pulled.setdefault(step, {})[self.rank] = batch
                at += 1
            step += bool(reply.rows)
            yield self.computing()

    @property
    def lineage(self):
        return self.world.lineages.setdefault(self.generation, Lineage())


class Streams(Program):
    """Asynchronous training: a worker requests two batches ahead, and takes units as it needs."""

    def begin(self):
        super().begin()
        self.trainings = self.drained = 0
        self.passes = self.owner = None
        self.node.route(self.lease, self.lease)
        self.node.route(self.drain, self.drain)

    def new_owner(self, shape, state):
        world = self.world
        return Arrivals(
            shape, self.workers, state, staleness=world.staleness, warmup_steps=world.warmup_steps
        )

    def advance(self):
        if self.node is not None and self.owner is not None:
            self.check_staleness(self.owner)
        super().advance()

    def check_staleness(self, owner):
        if owner.is_draining:
            return
        pulled = [p for w in owner._workers for p in w.open if not p.is_held]
        staleness = owner.staleness
        if owner.parameters.steps < owner.warmup_steps:
            assert len(pulled) <= 1, "workers do not take turns"
            staleness = 0
        if staleness is not None:
            pushed = [w.pushed for w in owner._workers if w.has_next or w.open]
            most = min(pushed, default=math.inf) + 1 + staleness
            assert max((p.number for p in pulled), default=0) <= most, "a worker is too far ahead"

    # ---- Rank 0 ----------------------------------------------------------------

    def lease(self, _, respond):
        respond(json.dumps(self.next_unit()).encode())

    def next_unit(self):
        return self.leases.popleft() if self.leases else None

    def train_until_a_pause(self, position, _):
        """Train until this worker has trained some batches, or all have ended; then pause."""
        units = self.world.data.units
        if self.passes != position.passes:
            self.leases = deque(
                [unit, position.open.get(unit, 0)]
                for unit in range(len(units))
                if unit not in position.done
            )
            self.start_pass(position.passes)
        self.number = 0
        yield from self.replies(self.message([])[0])
        runs = self.tell_workers("run", position.passes)
        position.add(*(yield from self.train(position.passes, self.world.chance.randrange(1, 5))))
        for reply in (yield from self.replies(runs)):
            position.add(*json.loads(reply))
        replies, _ = yield from self.answers(*self.message([], has_next=False, pause=True))
        assert {reply.steps for reply in replies} == {self.owner.parameters.steps}, "clocks differ"
        if len(position.done) == len(units):
            position.passes, position.done, position.open = position.passes + 1, set(), {}

    # ---- A worker --------------------------------------------------------------

    def drain(self, body, respond):
        [self.drained] = parsed(body)[1]
        respond(b"")

    @property
    def is_draining(self):
        """As an owner this worker sees it in messages of rank 0, else it is a command."""
        return self.drained >= self.trainings if self.owner is None else self.owner.is_draining

    def start_pass(self, passes):
        self.passes, self.unit, self.has_ended = passes, None, False

    def train(self, passes, limit=None):
        """Train until rank 0 drains or no unit is left; rank 0 after `limit` batches."""
        self.trainings += 1
        if self.rank != 0:
            self.number = 0
        if self.passes != passes:
            self.start_pass(passes)
        self.done, self.offsets = [], {}
        requested, trained = deque(), 0
        while True:
            while len(requested) < 2 and not self.is_draining and not self.has_ended:
                if (batch := (yield from self.next_batch())) is not None:
                    requested.append((*batch, self.message(batch[0])))
            if not requested:
                break
            if self.kept is not None:
                yield from self.replies(self.message([])[0])
            rows, unit, end, sent = requested.popleft()
            replies, values = yield from self.answers(*sent)
            yield self.computing()
            self.keep(rows, replies, values)
            self.offsets[unit] = end
            if end == len(self.world.data.units[unit]):
                self.done.append(unit)
            trained += 1
            if trained == limit and not self.is_draining:
                drains = self.message([], drain=True)[0]
                if self.world.data.servers:
                    drains += self.tell_workers("drain", self.trainings)
                yield from self.replies(drains)
        yield from self.replies(self.message([], has_next=False)[0])
        return self.done, self.offsets

    def next_batch(self):
        """The next rows, their unit, and where they end in it; None when no unit is left."""
        units, size = self.world.data.units, self.world.data.batch_size
        while self.unit is None:
            self.unit = self.next_unit() if self.rank == 0 else (yield from self.leased())
            if self.unit is None:
                self.has_ended = True
                return None
            if self.unit[1] == len(units[self.unit[0]]):
                self.done.append(self.unit[0])
                self.unit = None
        unit, first = self.unit
        end = min(first + size, len(units[unit]))
        self.unit = [unit, end] if end < len(units[unit]) else None
        return list(units[unit][first:end]), unit, end

    def leased(self):
        [reply] = yield from self.replies(self.tell([0], "lease"))
        return json.loads(reply)

    def message(self, batch, **flags):
        """An exchange of the next batch, or of none."""
        self.number += bool(batch)
        return self.exchange(self.number, batch, **{"has_next": not self.has_ended, **flags})


def parsed(body):
    """The name and the arguments of a command."""
    command = named_arrays.metadata_of(body)
    return command["command"], json.loads(command["arguments"])
