"""A simulated cluster that trains asynchronously; its world is that of cluster_simulation.py.

No two runs end with the same numbers, so sums are checked instead: at each checkpoint a row has one
for each time that its key occurs in the rows of the data that were trained, and each of these was
trained as often as the position says.
"""

import copy
import json
import math
from collections import Counter, deque
from dataclasses import dataclass, field

from cluster_model import keys_of, occurrences, owner_of
from cluster_processes import Process
from cluster_simulation import World

from tnctl.cluster.messages.exchange import Sizes, new_exchange
from tnctl.cluster.messages.replies import Owned, new_read, parse_read_reply, parse_reply
from tnctl.cluster.owners.arrivals import Arrivals
from tnctl.cluster.transport.kinds import Kind


@dataclass
class Sums:
    """All of one owner that a checkpoint has."""

    steps: int = 0
    rows: dict = field(default_factory=dict)
    """key -> [sum of gradients, occurrences seen]"""
    dense: int = 0
    trained: list = field(default_factory=list)
    """the rows of the data, of owner 0"""


class OwnedSums:
    """The parameters of an owner: implements AsyncParameters."""

    def __init__(self, workers):
        self.workers, self.state, self.pushed = workers, Sums(), 0

    @property
    def steps(self):
        return self.state.steps

    def push_one(self, keys, push, rate):
        assert rate == 1
        table = push.tables[0]
        for key, total in zip(keys[0].ids.tolist(), table.sums[:, 0].tolist(), strict=True):
            self.state.rows[key][0] += int(total)
        self.state.dense += int(push.dense[:1].sum())
        self.state.trained += map(int, push.labels.tolist())
        self.pushed += 1
        if self.pushed == self.workers:
            self.state.steps, self.pushed = self.state.steps + 1, 0

    def pull(self, keys, replies):
        [[each]], [reply] = keys, replies
        for key, count in zip(each.ids.tolist(), each.occurrences.tolist(), strict=True):
            self.state.rows.setdefault(key, [0, 0])[1] += count
        reply.dense[:] = self.state.dense

    def read(self, _, reply):
        reply.dense[:] = self.state.dense

    def owned(self):
        return [Owned(len(self.state.rows), 0)]

    def pause(self):
        if self.pushed:
            self.state.steps, self.pushed = self.state.steps + 1, 0


@dataclass
class Position:
    """How far a pass is: units that are done, and offsets in others."""

    passes: int = 0
    done: set = field(default_factory=set)
    open: dict = field(default_factory=dict)

    def add(self, done, offsets):
        self.done |= set(done)
        self.open |= {int(unit): offset for unit, offset in offsets.items()}
        self.open = {unit: at for unit, at in self.open.items() if unit not in self.done}

    def trained(self, data):
        """The rows trained so far."""
        units = [unit for unit in data.units for _ in range(self.passes)]
        units += [data.units[number] for number in self.done]
        units += [data.units[number][:at] for number, at in self.open.items()]
        return [row for unit in units for row in unit]


class AsyncProcess(Process):
    """A worker: requests two batches ahead, and takes units as it needs them."""

    def new_owner(self):
        return Arrivals(
            self.shape_of(self.rank), self.workers, OwnedSums(self.workers),
            staleness=self.world.staleness, warmup_steps=self.world.warmup_steps,
        )  # fmt: skip

    def run(self, peer, handle, kind, body):
        command = json.loads(body) if kind is Kind.COMMAND else [None]
        match command:
            case ["lease"]:
                self.answer(handle, json.dumps(self.next_unit()).encode())
            case ["drain", training]:
                self.drained = training
                self.answer(handle, b"null")
            case _:
                super().run(peer, handle, kind, body)

    def answer_all(self, answers):
        super().answer_all(answers)
        self.check_staleness()

    def check_staleness(self):
        owner = self.owner
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

    def begin(self, *arguments):
        super().begin(*arguments)
        self.trainings = self.drained = 0

    @property
    def is_draining(self):
        """As an owner this worker sees it in messages of rank 0, else it is a command."""
        if self.owner is not None:
            return self.owner.is_draining
        return self.drained >= self.trainings

    def may_be_saved(self):
        return self.owner.is_paused

    # ---- Rank 0 ----------------------------------------------------------------

    def drive(self):
        yield from self.welcome_all()
        world = self.world
        step = world.newest_manifest()
        self.position, self.saving = world.position_at(step), None
        yield from self.all_do("load", step)
        while self.position.passes < world.data.passes:
            self.leases = deque(
                [unit, self.position.open.get(unit, 0)]
                for unit in range(len(world.data.units))
                if unit not in self.position.done
            )
            self.start_pass()
            yield from self.all_do("start_pass")
            while len(self.position.done) < len(world.data.units):
                yield from self.stage_of_training()
                yield from self.check_reads()
                if self.owner.parameters.steps > step:
                    step = self.owner.parameters.steps
                    yield from self.saved()
                    self.saving = step, [*self.tell_all("stage", step), self.stage(step)]
                    world.positions[step] = self.generation, copy.deepcopy(self.position)
            self.position = Position(self.position.passes + 1)
        yield from self.saved()
        yield from self.all_do("finish")

    def next_unit(self):
        return self.leases.popleft() if self.leases else None

    def stage_of_training(self):
        """Train until this worker has trained some batches, or all have ended; then pause."""
        self.number = 0
        yield from self.replies(self.messages([])[0])
        runs = self.tell_workers("run")
        self.trainings += 1
        yield from self.train(self.world.chance.randrange(1, 5))
        self.position.add(*self.progress)
        for reply in (yield from self.replies(runs)):
            self.position.add(*json.loads(reply))
        requests, sizes = self.messages([], has_next=False, pause=True)
        answers = yield from self.replies(requests)
        clocks = {
            parse_reply(self.shape_of(owner), of_owner, answer).steps
            for owner, of_owner, answer in zip(self.owners, sizes, answers, strict=True)
        }
        assert clocks == {self.owner.parameters.steps}, "clocks differ"

    def check_reads(self):
        """While training pauses, all owners have the same number of rows."""
        requests = [
            self.request(owner, Kind.READ, new_read(self.shape_of(owner), [0], dense=True)[0])
            for owner in self.owners
        ]
        answers = yield from self.replies(requests)
        dense = [
            parse_read_reply(self.shape_of(owner), [0], True, answer).dense.tolist()
            for owner, answer in zip(self.owners, answers, strict=True)
        ]
        rows = len(self.position.trained(self.world.data))
        assert dense == [[rows] * self.shape_of(owner).dense for owner in self.owners]

    # ---- A worker --------------------------------------------------------------

    def start_pass(self):
        self.unit, self.has_ended, self.kept = None, False, None

    def train(self, limit=None):
        """Train until rank 0 drains or no unit is left; rank 0 after `limit` batches."""
        self.number, self.kept = (self.number if self.rank == 0 else 0), None
        self.done, self.offsets = [], {}
        if self.rank != 0:
            self.trainings += 1
        requested, trained = deque(), 0
        while True:
            while len(requested) < 2 and not self.is_draining and not self.has_ended:
                batch = yield from self.next_batch()
                if batch is not None:
                    requested.append((batch, self.messages(batch[0])[0]))
            if self.kept is not None:
                yield from self.replies(self.messages([])[0])
            if not requested:
                break
            (rows, unit, end), requests = requested.popleft()
            yield from self.replies(requests)
            yield self.world.chance.uniform(0.02, 0.3) * self.world.slowness[self.rank]
            self.kept = rows
            self.offsets[unit] = end
            if end == len(self.world.data.units[unit]):
                self.done.append(unit)
            trained += 1
            if trained == limit and not self.is_draining:
                drains = self.messages([], drain=True)[0]
                if self.world.data.servers:
                    drains += self.tell_workers("drain", self.trainings)
                yield from self.replies(drains)
        yield from self.replies(self.messages([], has_next=False)[0])
        self.progress = self.done, self.offsets
        return self.progress

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
        [reply] = yield from self.replies([self.request(0, Kind.COMMAND, b'["lease"]')])
        return json.loads(reply)

    def messages(self, batch, **flags):
        """Send every owner the gradients that are kept, and the keys of a batch."""
        pushed, self.kept = self.kept or [], None
        counts, of_pushed = occurrences(batch), occurrences(pushed)
        self.number += bool(batch)
        requests, all_sizes = [], []
        by_owner = zip(self.owners, *map(self.keys_by_owner, (counts, of_pushed)), strict=True)
        for owner, keys, old in by_owner:
            sizes = Sizes(len(batch), (len(keys),))
            body, exchange = new_exchange(
                self.shape_of(owner), self.number, Sizes(len(pushed), (len(old),)), sizes,
                **{"has_next": not self.has_ended, **flags},
            )  # fmt: skip
            if pushed:
                exchange.push.tables[0].sums[:, 0] = [of_pushed[key] for key in old]
                exchange.push.dense[:] = len(pushed)
            if exchange.push.labels.size:
                exchange.push.labels[:] = pushed
            exchange.keys[0].ids[:] = keys
            exchange.keys[0].occurrences[:] = [counts[key] for key in keys]
            requests.append(self.request(owner, Kind.EXCHANGE, body))
            all_sizes.append(sizes)
        return requests, all_sizes


class AsyncWorld(World):
    """A world whose workers train asynchronously, some of them slowly."""

    process_of = AsyncProcess

    def prepare(self):
        self.positions = {}
        self.staleness = self.chance.choice((None, 0, 1, 3))
        self.warmup_steps = self.chance.choice((0, 0, 3))
        self.slowness = [self.chance.choice((1, 1, 1, 4)) for _ in range(self.data.workers)]

    def position_at(self, step):
        if not step:
            return Position()
        return copy.deepcopy(self.positions[step][1])

    def load(self, step, rank):
        return super().load(step, rank) if step else Sums()

    def check_part(self, process, step, state):
        assert state.steps == step, f"rank {process.rank} is at {state.steps} instead of {step}"

    def write_manifest(self, process, step):
        generation, position = self.positions[step]
        assert generation == process.generation
        trained = self.parts[step, 0][1].trained
        assert sorted(trained) == sorted(position.trained(self.data)), "rows trained once per pass"
        keys = Counter(key for row in trained for key in keys_of(row))
        for rank in self.data.membership.owners:
            owned = {
                k: [n, n] for k, n in keys.items() if owner_of(k, self.data.membership) == rank
            }
            assert self.parts[step, rank][1].rows == owned, "each occurrence is counted once"
        super().write_manifest(process, step)
