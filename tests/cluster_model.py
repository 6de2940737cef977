"""What a simulated cluster trains: numbers in dicts whose arithmetic is exact, and the data.

The update of a row depends on the order of the workers, on the value that they read, and on how
often it is applied. So whatever is lost, repeated or out of order shows in the final numbers.
"""

import copy
from dataclasses import dataclass, field
from itertools import pairwise

from tnctl.cluster.exchange import Shape, TableShape
from tnctl.cluster.replies import Owned

KEYS = 12  # of the table
DENSE = 2  # floats of each owner
PRIME = 65_521  # below 2^24, so that a float32 has every number exactly


def shape_of(rank):
    return Shape((TableShape(1, 1, counts=True, waits=True),), DENSE, figures=rank == 0)


def keys_of(row):
    """The keys of a row: two or three, one of them twice in some rows."""
    return [row % KEYS, row * 5 % KEYS, row * row % KEYS][: 2 + row % 2]


def owner_of(key, workers):
    return key % workers


def occurrences(batch):
    """The keys of a batch of rows in their order, each with its number."""
    counts = {}
    for row in batch:
        for key in keys_of(row):
            counts[key] = counts.get(key, 0) + 1
    return counts


def gradient(batch, key, value):
    """The gradient of a key, of a batch in which the key has a value."""
    return sum(row + value + 1 for row in batch if key in keys_of(row)) % PRIME


def dense_gradient(batch, place, value):
    return (sum(batch) * (place + 1) + value) % PRIME


@dataclass
class State:
    """All of one owner that a checkpoint has."""

    steps: int = 0
    rows: dict = field(default_factory=dict)
    """key -> [value, occurrences seen, shows]"""
    dense: list = field(default_factory=lambda: [0] * DENSE)
    trained: list = field(default_factory=list)
    """the rows of the data, of owner 0"""

    def begin(self, counts):
        """Find the keys of a worker, and count what occurs."""
        for key, count in counts:
            self.rows.setdefault(key, [0, 0, 0])[1] += count

    def apply(self, key, total, rows):
        entry = self.rows[key]
        entry[0] = (entry[0] * 31 + total * rows + 1) % PRIME
        entry[2] += rows

    def apply_dense(self, place, total, rows):
        self.dense[place] = (self.dense[place] * 17 + total * rows + 1) % PRIME


class OwnedState:
    """The parameters of an owner: implements OwnedParameters."""

    def __init__(self):
        self.state = State()

    @property
    def steps(self):
        return self.state.steps

    def push(self, pulled, pushes, rate):
        assert rate == 1
        for [keys], push in zip(pulled, pushes, strict=True):
            table = push.tables[0]
            for key, total, shows in zip(
                keys.ids.tolist(), table.sums[:, 0].tolist(), table.counts[:, 0].tolist(),
                strict=True,
            ):  # fmt: skip
                assert shows == push.rows
                self.state.apply(key, int(total), push.rows)
            for place, total in enumerate(push.dense.tolist()):
                self.state.apply_dense(place, int(total), push.rows)
            self.state.trained += map(int, push.labels.tolist())
        self.state.steps += 1

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

    def batches(self, rank):
        """The batches of a worker in a pass."""
        rows = [row for unit in self.units[rank :: self.workers] for row in unit]
        return [rows[n : n + self.batch_size] for n in range(0, len(rows), self.batch_size)]


def random_data(chance, workers):
    rows = chance.randrange(4, 17)
    cuts = sorted(chance.choices(range(rows + 1), k=chance.randrange(workers, 5)))
    bounds = [0, *cuts, rows]
    units = tuple(tuple(range(first, end)) for first, end in pairwise(bounds))
    return Data(units, chance.choice((1, 2, 2)), chance.choice((2, 3)), workers)


def reference(data):
    """The states of all owners after every step: one process, reduced in the order of ranks."""
    owners = [State() for _ in range(data.workers)]
    history = [copy.deepcopy(owners)]
    of_ranks = [data.batches(rank) for rank in range(data.workers)]
    for _ in range(data.passes):
        for step in range(max(map(len, of_ranks))):
            batches = [batches[step] if step < len(batches) else [] for batches in of_ranks]
            counts = [occurrences(batch) for batch in batches]
            for number, owner in enumerate(owners):
                owned = [
                    [key for key in each if owner_of(key, data.workers) == number]
                    for each in counts
                ]
                for keys, each in zip(owned, counts, strict=True):
                    owner.begin((key, each[key]) for key in keys)
                values = {key: owner.rows[key][0] for keys in owned for key in keys}
                dense = list(owner.dense)
                for keys, batch in zip(owned, batches, strict=True):
                    for key in keys:
                        owner.apply(key, gradient(batch, key, values[key]), len(batch))
                    for place in range(DENSE if batch else 0):
                        total = dense_gradient(batch, place, dense[place])
                        owner.apply_dense(place, total, len(batch))
                    if number == 0:
                        owner.trained += batch
                owner.steps += 1
            history.append(copy.deepcopy(owners))
    return history
