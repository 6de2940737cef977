"""What simulated processes do: rank 0 commands training and checkpoints, the others follow.

A worker trains in one of two ways: in steps with all others, or as its batches arrive.
"""

import copy
import json
import math
from collections import deque
from dataclasses import dataclass, field
from functools import partial

from cluster_model import CLIP_NORM, KEYS, OwnedState, occurrences, owner_of, shape_of
from cluster_processes import Process

from tnctl.cluster.messages import named_arrays
from tnctl.cluster.messages.exchange import JOINING, Sizes, new_exchange, no_batch
from tnctl.cluster.messages.replies import new_read, parse_read_reply, parse_reply
from tnctl.cluster.owners.arrivals import Arrivals
from tnctl.cluster.owners.barrier import Barrier
from tnctl.cluster.transport.frames import Kind


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
        body = named_arrays.packed({}, {"command": command[0], "arguments": json.dumps(command[1:])})
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
        self.owner = None
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

    def exchange(self, step, batch, last=None, **flags):
        """Send every owner the gradients of the last batch, and the keys of another one.

        The requests, the sizes of what is pulled, and the keys of each owner.
        """
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


def parsed(body):
    """The name and the arguments of a command."""
    command = named_arrays.metadata_of(body)
    return command["command"], json.loads(command["arguments"])
