"""A simulated cluster that trains in hybrid mode; its world is that of cluster_simulation.py.

Dense weights are those of the reference, exactly, after each step. Rows get their gradients in any
order, so these are sums: at each checkpoint a row has one for each time that its key occurs in the
rows of the data that were trained.
"""

import dataclasses
import json
from collections import Counter, deque

from async_simulation import AsyncProcess, OwnedSums, Sums
from cluster_model import State, dense_gradient, keys_of, new_state, occurrences, owner_of
from cluster_processes import Process
from cluster_simulation import World

from tnctl.cluster.messages.exchange import Sizes, new_exchange
from tnctl.cluster.messages.replies import Owned, new_read, parse_read_reply, parse_reply
from tnctl.cluster.owners.hybrid_owner import HybridOwner, dense_shape, row_shape
from tnctl.cluster.transport.frames import Kind


class DenseState:
    """The dense weights of an owner: implements OwnedParameters."""

    def __init__(self):
        self.state = State()

    @property
    def steps(self):
        return self.state.steps

    def push(self, _, pushes, rate):
        assert rate == 1
        for push in pushes:
            for place, total in enumerate(push.dense.tolist()):
                self.state.apply_dense(place, total, push.rows, 1.0)
            self.state.trained += map(int, push.labels.tolist())
        self.state.steps += 1

    def pull(self, _, replies):
        for reply in replies:
            if reply.dense.size:
                reply.dense[:] = self.state.dense

    def owned(self):
        return []


class RowSums(OwnedSums):
    """The rows of an owner: implements RowParameters."""

    def __init__(self, workers, dense):
        super().__init__(workers)
        self.dense = dense

    def push_one(self, keys, push, _):
        assert self.dense.steps == self.steps + 1, "rows and dense weights are in different steps"
        sums = push.tables[0].sums[:, 0].tolist()
        for key, total in zip(keys[0].ids.tolist(), sums, strict=True):
            self.state.rows[key][0] += int(total)

    def end_step(self):
        self.state.steps += 1

    def read(self, _, reply):
        reply.dense[:] = self.dense.state.dense

    def owned(self):
        return [Owned(len(self.state.rows), 0)]

    def pause(self):
        assert self.steps == self.dense.steps, "rows and dense weights are in different steps"

    def pull(self, keys, replies):
        [[each]], _ = keys, replies
        for key, count in zip(each.ids.tolist(), each.occurrences.tolist(), strict=True):
            self.state.rows.setdefault(key, [0, 0])[1] += count


class HybridProcess(Process):
    """A worker: takes part in each step, and requests the rows of the batch after its own."""

    takes_turns = False  # all are in step
    check_staleness = AsyncProcess.check_staleness

    def new_owner(self):
        dense = DenseState()
        return HybridOwner(
            self.shape_of(self.rank), self.workers, dense, RowSums(self.workers, dense), self.rank,
            self.world.staleness, self.world.warmup_steps, owners=len(self.owners),
        )  # fmt: skip

    def run(self, peer, request):
        if request.kind is Kind.DENSE:
            self.exchange(peer, request.number, request.body, Kind.DENSE)
        else:
            super().run(peer, request)

    def request(self, peer, kind, body):
        if peer == self.rank and kind is Kind.DENSE:
            self.own_requests += 1
            self.exchange(peer, self.own_requests, body, kind)
            return peer, self.own_requests
        return super().request(peer, kind, body)

    def exchange(self, peer, number, body, kind=Kind.EXCHANGE):
        for (of, of_number), answer in self.owner.exchange(peer, kind, body, (peer, number)):
            self.answer(of, of_number, answer)
        self.check_staleness(self.owner.rows)

    def may_be_saved(self):
        return self.owner.rows.is_paused and not self.owner.dense.is_open

    def load(self, step):
        dense, rows = self.owner.dense.parameters, self.owner.rows.parameters
        dense.state, rows.state = self.world.load(step, self.rank)

    def state_to_save(self):
        return self.owner.dense.parameters.state, self.owner.rows.parameters.state

    # ---- Rank 0 ----------------------------------------------------------------

    def drive(self):
        yield from self.welcome_all()
        world, steps_of_pass = self.world, self.world.steps_of_pass
        step = world.newest_manifest()
        yield from self.all_do("load", step)
        self.saving = None
        while step < steps_of_pass * world.data.passes:
            position = step % steps_of_pass
            self.number, self.kept = 0, None
            yield from self.replies(self.row_messages([])[0])
            runs = self.tell_workers("run", position, step)
            end = yield from self.train(position, step, position + world.save_every)
            for reply in (yield from self.replies(runs)):
                assert json.loads(reply) == end, "workers stop at different steps"
            step += end - position
            requests, sizes = self.row_messages([], has_next=False, pause=True)
            answers = yield from self.replies(requests)
            for owner, of_owner, answer in zip(self.owners, sizes, answers, strict=True):
                reply = parse_reply(row_shape(self.shape_of(owner)), of_owner, answer)
                assert reply.steps == step, "clocks differ"
            yield from self.check_reads(step)
            yield from self.saved()
            self.saving = step, [*self.tell_all("stage", step), self.stage(step)]
        yield from self.saved()
        yield from self.all_do("finish")

    def check_reads(self, step):
        """While training pauses, the dense weights are those of the step."""
        requests = [
            self.request(owner, Kind.READ, new_read(self.shape_of(owner), [0], dense=True)[0])
            for owner in self.owners
        ]
        answers = yield from self.replies(requests)
        for owner, answer in zip(self.owners, answers, strict=True):
            reply = parse_read_reply(self.shape_of(owner), [0], True, answer)
            assert reply.dense.tolist() == self.world.history[step][owner].dense

    # ---- A worker --------------------------------------------------------------

    def start_pass(self):
        pass

    def train(self, position, step, until=None):
        """Train from a batch of the pass on, until rank 0 pauses; the position then.

        `step` is the last one that was trained.
        """
        batches = self.world.data.batches(self.rank)
        self.number, self.kept, self.row_next = 0, None, True
        requested, any_next = deque(), True
        while True:
            pause = self.rank == 0 and not any_next
            drain = self.rank == 0 and any_next and position >= until
            may_request = any_next and not drain
            has_batch = bool(requested) or (may_request and position < len(batches))
            has_next = may_request and position + 1 < len(batches)
            batch = batches[position] if has_batch else []
            replies = yield from self.replies_of_dense(
                step + 1, batch, has_next=has_next, pause=pause, drain=drain
            )
            assert len({(r.paused, r.rows, r.any_next, r.step) for r in replies}) == 1
            if replies[0].paused:
                yield from self.replies(self.row_messages([], has_next=False)[0])
                assert not requested
                return position
            any_next = replies[0].any_next
            if batch and not requested:
                requested.append(self.row_messages(batch)[0])
            if has_next and any_next:
                requested.append(self.row_messages(batches[position + 1])[0])
            elif self.kept is not None or self.row_next:
                self.row_next = False
                yield from self.replies(self.row_messages([], has_next=False)[0])
            if batch:
                yield from self.replies(requested.popleft())
                yield self.world.chance.uniform(0.02, 0.3) * self.world.slowness[self.rank]
                self.kept = batch, [reply.dense.tolist() for reply in replies]
            if replies[0].rows:
                position, step = position + 1, step + 1

    def replies_of_dense(self, step, batch, **flags):
        """Send every owner the dense gradients of the batch that is kept; their replies."""
        pushed, values = self.kept or ([], None)
        requests, sizes = [], Sizes(len(batch), ())
        for number, owner in enumerate(self.owners):
            shape = dense_shape(self.shape_of(owner))
            body, exchange = new_exchange(shape, step, Sizes(len(pushed), ()), sizes, **flags)
            if pushed:
                exchange.push.dense[:] = [
                    dense_gradient(pushed, place, int(value))
                    for place, value in enumerate(values[number])
                ]
            if exchange.push.labels.size:
                exchange.push.labels[:] = pushed
            requests.append(self.request(owner, Kind.DENSE, body))
        answers = yield from self.replies(requests)
        return [
            parse_reply(dense_shape(self.shape_of(owner)), sizes, answer)
            for owner, answer in zip(self.owners, answers, strict=True)
        ]

    def row_messages(self, batch, has_next=True, **flags):
        """Send every owner the gradients of the rows that are kept, and the keys of a batch."""
        pushed, _ = self.kept or ([], None)
        self.kept = None
        counts, of_pushed = occurrences(batch), occurrences(pushed)
        self.number += bool(batch)
        requests, all_sizes = [], []
        by_owner = zip(self.owners, *map(self.keys_by_owner, (counts, of_pushed)), strict=True)
        for owner, keys, old in by_owner:
            of_push, sizes = Sizes(len(pushed), (len(old),)), Sizes(len(batch), (len(keys),))
            body, exchange = new_exchange(
                row_shape(self.shape_of(owner)), self.number, of_push, sizes,
                has_next=has_next, **flags,
            )  # fmt: skip
            if pushed:
                exchange.push.tables[0].sums[:, 0] = [of_pushed[key] for key in old]
            exchange.keys[0].ids[:] = keys
            exchange.keys[0].occurrences[:] = [counts[key] for key in keys]
            requests.append(self.request(owner, Kind.EXCHANGE, body))
            all_sizes.append(sizes)
        return requests, all_sizes


class HybridWorld(World):
    """A world whose workers train in hybrid mode, some of them slowly."""

    process_of = HybridProcess

    def prepare(self):
        self.data = dataclasses.replace(self.data, clips=False)
        super().prepare()
        self.staleness = self.chance.choice((None, 0, 1, 3))
        self.warmup_steps = self.chance.choice((0, 0, 3))
        self.slowness = [self.chance.choice((1, 1, 1, 4)) for _ in range(self.data.workers)]

    def load(self, step, rank):
        if step:
            return super().load(step, rank)
        return new_state(rank, self.membership), Sums()

    def check_part(self, process, step, state):
        dense, rows = state
        expected = self.history[step][process.rank]
        assert (dense.steps, dense.dense) == (step, expected.dense), f"rank {process.rank} differs"
        assert dense.trained == expected.trained and rows.steps == step
        trained = self.history[step][0].trained
        keys = Counter(key for row in trained for key in keys_of(row))
        owned = {k: [n, n] for k, n in keys.items() if owner_of(k, self.membership) == process.rank}
        assert rows.rows == owned, "each occurrence is counted once, each gradient applied once"

    def check_end(self):
        assert self.manifests[-1] == len(self.history) - 1, "training ended too early"
