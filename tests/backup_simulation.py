"""A simulated cluster whose steps do not wait for all workers (`cluster.backup`).

Its world is that of cluster_simulation.py. Which workers a step leaves out depends on the network,
so what must come out is computed afterwards: a single process pulls and pushes what the workers
were told to have taken part in.
"""

import copy
import json
from collections import Counter
from dataclasses import dataclass, field

from cluster_model import (
    CLIP_NORM,
    OwnedState,
    keys_of,
    new_state,
    occurrences,
    shape_of,
    train_step,
)
from cluster_processes import Process
from cluster_simulation import World

from tnctl.cluster.messages.exchange import JOINING, Sizes, new_exchange, no_batch
from tnctl.cluster.messages.replies import parse_reply
from tnctl.cluster.owners.owner import Owner
from tnctl.cluster.transport.frames import Kind


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


class BackupProcess(Process):
    """A worker: its batches that a step leaves out are trained again."""

    def new_owner(self):
        clip_norm = CLIP_NORM * self.world.data.clips
        return Owner(
            self.shape_of(self.rank), self.workers, OwnedState(), self.rank, clip_norm,
            self.world.backup, len(self.owners),
        )  # fmt: skip

    def states_at(self, step):
        return self.world.states_at(self.generation, step)

    # ---- Rank 0 ----------------------------------------------------------------

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

    # ---- A worker --------------------------------------------------------------

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


class BackupWorld(World):
    """A world whose steps begin without some workers; some workers are slow."""

    process_of = BackupProcess

    def prepare(self):
        workers = self.data.workers
        self.backup = self.chance.randrange(1, workers) if workers > 1 else 0
        self.slowness = [self.chance.choice((1, 1, 1, 6)) for _ in range(workers)]
        self.positions, self.lineages = {0: Position(0, [0] * workers)}, {}
        self.left_out = 0

    def states_at(self, generation, step):
        """The states of all owners by rank: one process continues from the newest manifest."""
        ranks, lineage = range(self.data.workers), self.lineages.get(generation, Lineage())
        first = self.newest_manifest()
        owners = {
            rank: self.load(first, rank) if first else new_state(rank, self.membership)
            for rank in self.membership.owners
        }
        for number in range(first + 1, step + 1):
            batches = [lineage.pulled[number].get(rank, []) for rank in ranks]
            train_step(self.data, owners, batches, lineage.pushed.get(number, set()))
        return owners

    def check_part(self, process, step, state):
        expected = self.states_at(process.generation, step)[process.rank]
        assert state == expected, f"rank {process.rank} differs at {step}"

    def write_manifest(self, process, step):
        """Each row was trained as often as the position says, by each owner."""
        position, data = self.positions[step], self.data
        batches = [
            batch
            for rank, done in enumerate(position.batches)
            for batch in data.batches(rank) * position.passes + data.batches(rank)[:done]
        ]
        rows = [row for batch in batches for row in batch]
        assert sorted(self.parts[step, 0][1].trained) == sorted(rows), "rows trained once per pass"
        shows = Counter()
        for batch in batches:
            for key in {key for row in batch for key in keys_of(row)}:
                shows[key] += len(batch)
        shown = Counter()
        for rank in data.membership.owners:
            shown.update({key: row[2] for key, row in self.parts[step, rank][1].rows.items()})
        assert shown == shows, "each gradient is applied once"
        super().write_manifest(process, step)

    def check_end(self):
        rows = [row for unit in self.data.units for row in unit]
        trained = self.parts[self.manifests[-1], 0][1].trained
        assert sorted(trained) == sorted(rows * self.data.passes), "rows trained once per pass"
