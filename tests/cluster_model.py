"""What a simulated cluster trains: numbers in dicts whose arithmetic is exact, and the data.

The update of a row depends on the order of the workers, on the value that they read, and on how
often it is applied. So whatever is lost, repeated or out of order shows in the final numbers.
"""

import copy
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from tnctl.cluster.joining.membership import Membership
from tnctl.cluster.messages.exchange import Owned, Shape, TableShape
from tnctl.tables import ExactSum

KEYS = 12  # of the table
DENSE = 2  # floats of each owner of rows
CLIP_NORM = 1000.0  # of worlds that clip: norms are below and above it
PRIME = 65_521  # below 2^24, so that a float32 has every number exactly


ONLY_WORKERS = Membership(4)


def shape_of(rank, membership=ONLY_WORKERS):
    dense = DENSE if rank in membership.writers else 0
    return Shape((TableShape(1, 1, counts=True, waits=True),), dense, figures=rank == 0)


def keys_of(row):
    """The keys of a row: two or three, one of them twice in some rows."""
    return [row % KEYS, row * 5 % KEYS, row * row % KEYS][: 2 + row % 2]


def owner_of(key, membership):
    writers = membership.writers
    return writers[key % len(writers)]


def occurrences(batch):
    """The keys of a batch of rows in their order, each with its number."""
    counts = {}
    for row in batch:
        for key in keys_of(row):
            counts[key] = counts.get(key, 0) + 1
    return counts


class Mixed:
    """Synchronous training: whatever is lost, repeated or out of order shows in the numbers."""

    @staticmethod
    def gradient(batch, key, value):
        """The gradient of a key, of a batch in which the key has a value."""
        return sum(row + value + 1 for row in batch if key in keys_of(row)) % PRIME

    @staticmethod
    def dense_gradient(batch, place, value):
        return (sum(batch) * (place + 1) + value) % PRIME

    @staticmethod
    def changed(value, total, factor, rows):
        """A number after a gradient, which was summed up over so many rows."""
        return (value * factor + total * rows + 1) % PRIME


class Added:
    """Asynchronous training, which has any order: numbers count what was trained."""

    @staticmethod
    def gradient(batch, key, _):
        return occurrences(batch)[key]

    @staticmethod
    def dense_gradient(batch, *_):
        return len(batch)

    @staticmethod
    def changed(value, total, *_):
        return value + total


def exact(number):
    """An integer below 2^53 as an exact sum."""
    exact_sum = ExactSum()
    bits = int(np.float64(number).view(np.uint64))
    if bits:
        words = [[bits & (1 << 52) - 1 | 1 << 52, 0]]
        exact_sum.add(np.array([bits >> 52], np.uint16), np.array(words, np.uint64))
    return exact_sum


def scale_of(squares, dense_squares):
    """What a gradient is multiplied by in a world that clips."""
    norm = float(squares + dense_squares) ** 0.5
    return CLIP_NORM / norm if norm > CLIP_NORM else 1.0


@dataclass
class State:
    """All of one owner that a checkpoint has."""

    steps: int = 0
    rows: dict = field(default_factory=dict)
    """key -> [value, occurrences seen, shows]"""
    dense: list = field(default_factory=lambda: [0] * DENSE)
    trained: list = field(default_factory=list)
    """the rows of the data, of owner 0"""
    rule: type = Mixed

    def begin(self, counts):
        """Find the keys of a worker, and count what occurs."""
        for key, count in counts:
            self.rows.setdefault(key, [0, 0, 0])[1] += count

    def apply(self, key, total, rows, scale=1):
        entry = self.rows[key]
        entry[0] = self.rule.changed(entry[0], int(total * scale), 31, rows)
        entry[2] += rows

    def apply_dense(self, place, total, rows, scale=1):
        self.dense[place] = self.rule.changed(self.dense[place], int(total * scale), 17, rows)


def new_state(rank, membership, rule=Mixed):
    return State(dense=[0] * shape_of(rank, membership).dense, rule=rule)


class OwnedState:
    """The parameters of an owner: implements StepParameters and ArrivingParameters."""

    def __init__(self, state, workers):
        self.state, self.workers, self.pushed = state, workers, 0

    @property
    def steps(self):
        return self.state.steps

    def reduce(self, pulled, pushes, rate):
        assert rate == 1
        self.pushes = pushes
        self.reduced = [
            list(zip(keys.ids.tolist(), push.tables[0].sums[:, 0].tolist(), strict=True))
            if push.rows
            else []
            for [keys], push in zip(pulled, pushes, strict=True)
        ]

    def squares(self):
        totals = [int(total) for sums in self.reduced for _, total in sums]
        of_dense = [int(total) for push in self.pushes for total in push.dense.tolist()]
        return [exact(sum(total**2 for total in part)) for part in (totals, of_dense)]

    def apply(self, pushes, scale):
        for sums, push in zip(self.reduced, pushes, strict=True):
            assert (push.tables[0].counts[:, 0] == push.rows).all()
            for key, total in sums:
                self.state.apply(key, total, push.rows, scale)
            for place, total in enumerate(push.dense.tolist()):
                self.state.apply_dense(place, total, push.rows, scale)
            self.state.trained += map(int, push.labels.tolist())
        self.state.steps += 1

    def push_one(self, keys, push, rate):
        self.reduce([keys], [push], rate)
        self.apply([push], 1)
        self.pushed = (self.pushed + 1) % self.workers
        self.state.steps -= self.pushed > 0

    def pause(self):
        self.state.steps += self.pushed > 0
        self.pushed = 0

    def pull(self, keys, replies):
        for [each] in keys:
            self.state.begin(zip(each.ids.tolist(), each.occurrences.tolist(), strict=True))
        for [each], reply in zip(keys, replies, strict=True):
            rows = [self.state.rows[key] for key in each.ids.tolist()]
            reply.tables[0].rows[:, 0] = [row[0] for row in rows]
            reply.tables[0].waits[:] = [row[1] for row in rows]
            if reply.dense.size:
                reply.dense[:] = self.state.dense

    def read(self, read, reply):
        nothing = [0]
        ids = read.keys[0].ids.tolist()
        reply.tables[0][:, 0] = [self.state.rows.get(key, nothing)[0] for key in ids]
        reply.dense[:] = self.state.dense

    def owned(self):
        return [Owned(len(self.state.rows), 64 * len(self.state.rows))]


@dataclass(frozen=True)
class Data:
    """Units of rows, dealt to the workers in turn, and trained in passes."""

    units: tuple
    passes: int
    batch_size: int
    workers: int
    clips: bool = False
    servers: int = 0

    @property
    def membership(self):
        return Membership(self.workers, self.servers)

    def batches(self, rank):
        """The batches of a worker in a pass."""
        rows = [row for unit in self.units[rank :: self.workers] for row in unit]
        return [rows[n : n + self.batch_size] for n in range(0, len(rows), self.batch_size)]


@dataclass
class Dealt:
    """The passes that are done, and how many batches of the next one by each worker."""

    passes: int
    batches: list

    def trained(self, data):
        """The batches trained so far."""
        return [
            batch
            for rank, done in enumerate(self.batches)
            for batch in data.batches(rank) * self.passes + data.batches(rank)[:done]
        ]


@dataclass
class Leased:
    """The passes that are done, and of the next one the units that are, and offsets in others."""

    passes: int = 0
    done: set = field(default_factory=set)
    open: dict = field(default_factory=dict)

    def add(self, done, offsets):
        self.done |= set(done)
        self.open |= {int(unit): offset for unit, offset in offsets.items()}
        self.open = {unit: at for unit, at in self.open.items() if unit not in self.done}

    def trained(self, data):
        """The units trained so far, or the parts of them."""
        units = [unit for unit in data.units for _ in range(self.passes)]
        units += [data.units[number] for number in self.done]
        return units + [data.units[number][:at] for number, at in self.open.items()]


def random_data(chance, workers):
    rows = chance.randrange(4, 17)
    cuts = sorted(chance.choices(range(rows + 1), k=chance.randrange(workers, 5)))
    bounds = [0, *cuts, rows]
    units = tuple(tuple(range(first, end)) for first, end in pairwise(bounds))
    passes, batch_size = chance.choice((1, 2, 2)), chance.choice((2, 3))
    clips, servers = chance.random() < 0.4, chance.choice((0, 0, 1, 2))
    return Data(units, passes, batch_size, workers, clips, servers)


def reference(data):
    """The states of all owners by rank after every step: one process, reduced in their order."""
    membership = data.membership
    owners = {rank: new_state(rank, membership) for rank in membership.owners}
    history = [copy.deepcopy(owners)]
    of_ranks = [data.batches(rank) for rank in range(data.workers)]
    for _ in range(data.passes):
        for step in range(max(map(len, of_ranks))):
            batches = [batches[step] if step < len(batches) else [] for batches in of_ranks]
            train_step(data, owners, batches, range(data.workers))
            history.append(copy.deepcopy(owners))
    return history


def train_step(data, owners, batches, pushed):
    """One step of all owners: pull a batch of each rank, and apply the pushes of some ranks."""
    counts = [occurrences(batch) for batch in batches]
    sums = [
        sums_of(*pull_of(owner, rank, counts, data.membership), batches)
        for rank, owner in owners.items()
    ]
    sums = [[[entry for entry in part if entry[0] in pushed] for part in of] for of in sums]
    scale = 1.0
    if data.clips:
        parts_of_all = zip(*sums, strict=True)
        scale = scale_of(*(sum(t**2 for part in of for *_, t in part) for of in parts_of_all))
    for (owner_rank, owner), (of_rows, of_dense) in zip(owners.items(), sums, strict=True):
        for rank, batch in enumerate(batches):
            for of_rank, key, total in of_rows:
                if of_rank == rank:
                    owner.apply(key, total, len(batch), scale)
            for of_rank, place, total in of_dense:
                if of_rank == rank:
                    owner.apply_dense(place, total, len(batch), scale)
            if owner_rank == 0 and rank in pushed:
                owner.trained += batch
        owner.steps += 1


def pull_of(owner, rank, counts, membership):
    """The keys of each rank that an owner owns, their values, and its dense weights."""
    keys = [[key for key in each if owner_of(key, membership) == rank] for each in counts]
    for of_rank, each in zip(keys, counts, strict=True):
        owner.begin((key, each[key]) for key in of_rank)
    return keys, {key: owner.rows[key][0] for each in keys for key in each}, list(owner.dense)


def sums_of(keys, values, dense, batches):
    """(rank, key, gradient) of the rows, and (rank, place, gradient) of the dense weights."""
    of_rows = [
        (rank, key, Mixed.gradient(batch, key, values[key]))
        for rank, (of_rank, batch) in enumerate(zip(keys, batches, strict=True))
        for key in of_rank
    ]
    of_dense = [
        (rank, place, Mixed.dense_gradient(batch, place, dense[place]))
        for rank, batch in enumerate(batches)
        for place in range(len(dense) if batch else 0)
    ]
    return of_rows, of_dense
