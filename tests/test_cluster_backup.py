"""cluster.backup: steps that begin without some workers, and no row that is lost or trained twice.

`Exchanges` runs owners of the product with simple workers: messages between two of them keep their
order, everything else is random. Faults of the network are those of cluster_simulation.py.
"""

import heapq
import json
import random
import time
from dataclasses import replace
from pathlib import Path

import cluster_in_one_process
import pytest
from cluster_model import (
    CLIP_NORM,
    OwnedState,
    State,
    dense_gradient,
    gradient,
    occurrences,
    owner_of,
    shape_of,
    train_step,
)
from test_cluster import conf_of, parts  # noqa: F401 - a fixture

from tnctl.cluster.messages.exchange import JOINING, Sizes, new_exchange, no_batch
from tnctl.cluster.messages.participants import new_participants, parse_participants
from tnctl.cluster.messages.replies import parse_reply
from tnctl.cluster.owners.owner import Owner
from tnctl.cluster.transport.frames import FrameError, Kind
from tnctl.cluster.workers.share import Share

NOTHING = no_batch(shape_of(0))


class Exchanges:
    """N workers that train lists of batches, and N owners."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.workers = self.chance.choice((2, 3, 3, 4))
        self.backup = self.chance.randrange(1, self.workers)
        self.clip_norm = self.chance.choice((0.0, CLIP_NORM))
        self.owners = [
            Owner(shape_of(rank), self.workers, OwnedState(), rank, self.clip_norm, self.backup)
            for rank in range(self.workers)
        ]
        self.data = [
            [[100 * rank + 10 * n + row for row in range(self.chance.choice((1, 2, 3)))]
             for n in range(self.chance.choice((0, 1, 3, 6, 9)))]
            for rank in range(self.workers)
        ]  # fmt: skip
        self.seconds = [self.chance.choice((0.1, 0.1, 1.0)) for _ in range(self.workers)]
        self.now, self.count, self.events, self.last = 0.0, 0, [], {}
        self.pulled, self.pushed, self.left_out, self.pauses = {}, {}, [0] * self.workers, 0
        self.pause_at = sorted(self.chance.sample(range(1, 12), self.chance.choice((0, 2))))
        self.answers = [{} for _ in range(self.workers)]
        self.programs = [self.work(rank) for rank in range(self.workers)]
        self.is_ending, self.is_over = False, [False] * self.workers
        for rank in range(self.workers):
            self.after(0, lambda rank=rank: self.advance(rank))

    def run(self):
        while self.events:
            self.now, _, call = heapq.heappop(self.events)
            call()
            assert self.now < 1000, "training does not end"
        assert all(self.is_over), "all wait for each other"
        return self

    def after(self, seconds, call):
        self.count += 1
        heapq.heappush(self.events, (self.now + seconds, self.count, call))

    def send(self, sender, receiver, call):
        """Call something later, in the order in which one sends to the other."""
        delay = self.chance.choice((0, 0.01, self.chance.expovariate(10)))
        arrival = max(self.now + delay, self.last.get((sender, receiver), 0) + 1e-9)
        self.last[sender, receiver] = arrival
        self.after(arrival - self.now, call)

    def arrive(self, owner, answers):
        for notice in self.owners[owner].take_notices():
            for other in set(range(self.workers)) - {owner}:
                self.send(owner, other, lambda other=other, notice=notice: self.arrive(
                    other, self.owners[other].notice(owner, notice.kind, notice.body)))  # fmt: skip
        for rank, answer in enumerate(answers):
            if answer is not None:
                self.send(owner, rank, lambda rank=rank, answer=answer: self.answer(
                    rank, owner, bytes(answer)))  # fmt: skip

    def answer(self, rank, owner, body):
        self.answers[rank][owner] = body
        if len(self.answers[rank]) == self.workers:
            self.advance(rank)

    def advance(self, rank):
        seconds = next(self.programs[rank], None)
        if seconds is not None:
            self.after(seconds, lambda: self.advance(rank))

    def exchange(self, rank, step, batch, pushed, *, pause, has_next):
        """Send an exchange to all owners; `pushed` is (batch, values, dense) or None."""
        self.answers[rank], counts, pulled = {}, occurrences(batch), []
        for owner in range(self.workers):
            keys = [key for key in counts if owner_of(key, self.workers) == owner]
            of_push = NOTHING
            if pushed is not None:
                of_push = Sizes(len(pushed[0]), (len(pushed[1][owner]),))
            body, exchange = new_exchange(
                shape_of(owner), step, of_push, Sizes(len(batch), (len(keys),)), pause=pause,
                has_next=has_next,
            )  # fmt: skip
            if pushed is not None:
                self.fill(exchange.push, pushed[0], pushed[1][owner], pushed[2][owner])
            exchange.keys[0].ids[:] = keys
            exchange.keys[0].occurrences[:] = [counts[key] for key in keys]
            pulled.append(keys)
            self.send(rank, owner, lambda owner=owner, body=body: self.arrive(
                owner, self.owners[owner].exchange(rank, body)))  # fmt: skip
        return pulled

    def fill(self, push, batch, values, dense):
        push.tables[0].sums[:, 0] = [gradient(batch, key, int(v)) for key, v in values.items()]
        push.tables[0].counts[:] = len(batch)
        push.dense[:] = [dense_gradient(batch, n, int(value)) for n, value in enumerate(dense)]
        if push.labels.size:
            push.labels[:] = batch

    def work(self, rank):
        """What a worker does; yields the seconds for which it computes, or None to wait."""
        batches, step, joins, pushed, more = list(self.data[rank]), 1, False, None, True
        while True:
            pauses = rank == 0 and (bool(self.pause_at and step >= self.pause_at[0]) or not more)
            self.is_ending = not more if pauses else self.is_ending
            batch = batches[0] if batches and not pauses else []
            pulled = self.exchange(
                rank, JOINING if joins else step, batch, pushed, pause=pauses,
                has_next=len(batches) > 1,
            )  # fmt: skip
            yield None
            replies = [
                parse_reply(shape_of(n), Sizes(len(batch), (len(keys),)), self.answers[rank][n])
                for n, keys in enumerate(pulled)
            ]
            outcomes = {(r.left_out, r.paused, r.step, r.rows, r.any_next) for r in replies}
            assert len({outcome[0] for outcome in outcomes}) == 1, "owners disagree"
            if replies[0].left_out:
                assert rank != 0 and not pauses
                self.left_out[rank] += 1
                batches[:0] = [pushed[0]] if pushed is not None else []
                pushed, joins = None, True
                continue
            assert len(outcomes) == 1, "owners disagree about a step"
            reply = replies[0]
            if pushed is not None:
                self.pushed.setdefault(pushed[3], set()).add(rank)
            assert joins or reply.step == step
            joins, step, pushed = False, reply.step, None
            if reply.paused:
                if self.is_ending:
                    assert not batches
                    self.is_over[rank] = True
                    return
                if rank == 0:
                    self.pauses += 1
                    del self.pause_at[0]
                continue
            more = reply.any_next
            if batch:
                assert batches.pop(0) == batch
                values = [
                    dict(zip(keys, r.tables[0].rows[:, 0].tolist(), strict=True))
                    for keys, r in zip(pulled, replies, strict=True)
                ]
                pushed = batch, values, [r.dense.tolist() for r in replies], step
                self.pulled.setdefault(step, {})[rank] = batch
            if reply.rows:
                step += 1
            yield self.seconds[rank] * self.chance.choice((0.5, 1, 1, 5))

    def replay(self):
        """The states of all owners if one process pulls and pushes what took part in each step."""
        states = [State() for _ in range(self.workers)]
        for step in sorted(self.pulled):
            batches = [self.pulled[step].get(rank, []) for rank in range(self.workers)]
            train_step(states, batches, self.pushed.get(step, set()), bool(self.clip_norm))
        return states


SEEDS = range(300)


def test_every_row_is_trained_once_and_owners_agree():
    worlds = [Exchanges(seed).run() for seed in SEEDS]
    for world in worlds:
        rows = sorted(row for batches in world.data for batch in batches for row in batch)
        assert sorted(world.owners[0].parameters.state.trained) == rows
        for owner, state in zip(world.owners, world.replay(), strict=True):
            assert owner.parameters.state == state
            assert not owner.is_open
        assert world.left_out[0] == 0
    assert sum(any(world.left_out) for world in worlds) > 50
    assert sum(world.pauses > 0 and any(world.left_out) for world in worlds) > 10


def leave_out_by_each_owner(patch):
    """Every owner decides by itself."""

    def participants(self):
        rank, self.rank = self.rank, 0
        try:
            return decide(self)
        finally:
            self.rank = rank

    decide = Owner._participants
    patch.setattr(Owner, "_participants", participants)


def late_pushes_are_taken(patch):
    """A late worker joins the next step with what it pushes, and is not answered before."""
    leave_out = Owner._leave_out

    def keep(self, rank, exchange):
        self.parameters.state.trained += map(int, exchange.push.labels.tolist())
        return leave_out(self, rank, exchange)

    patch.setattr(Owner, "_leave_out", keep)


def pauses_do_not_wait(patch):
    participants = Owner._participants

    def hasten(self):
        if self.rank == 0 and 0 in self._held and self._held[0].pause:
            return frozenset(self._held) if len(self._held) > 1 or self.workers == 2 else None
        return participants(self)

    patch.setattr(Owner, "_participants", hasten)


@pytest.mark.parametrize(
    "broken", [leave_out_by_each_owner, late_pushes_are_taken, pauses_do_not_wait]
)
def test_a_broken_rule_is_found(broken, monkeypatch):
    broken(monkeypatch)
    with pytest.raises((AssertionError, FrameError, KeyError, ValueError)):
        for seed in SEEDS:
            world = Exchanges(seed).run()
            rows = sorted(row for batches in world.data for batch in batches for row in batch)
            assert sorted(world.owners[0].parameters.state.trained) == rows


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (new_participants(1, [0, 1])[:-1], "has 15 bytes, the least is 16"),
        (new_participants(1, [1, 2]), r"names \[1, 2\] of 3 workers"),
        (new_participants(1, [0]), r"names \[0\] of 3"),
        (new_participants(1, [0, 1, 3]), r"names \[0, 1, 3\] of 3"),
    ],
)
def test_participants_that_cannot_be_are_refused(body, words):
    with pytest.raises(FrameError, match=words):
        parse_participants(body, 3, 2)


def test_a_notice_that_is_not_expected_is_refused():
    owner = Owner(shape_of(1), 3, OwnedState(), 1, 0.0, 1)
    for rank, step in ((2, 1), (0, 2)):
        with pytest.raises(FrameError, match=f"owner {rank} names workers of step {step}"):
            owner.notice(rank, Kind.PARTICIPANTS, new_participants(step, [0, 1]))


def test_a_slow_worker_is_left_out_and_trains_all_of_its_rows(parts, monkeypatch):  # noqa: F811
    """Threads, tables and TensorFlow of the product; every row is in the pass once."""
    conf = conf_of(
        parts, monkeypatch, "data.train=part-*.csv", "train.batch_size=64", "train.epochs=2",
        "optimizer.clip_norm=5",
    )  # fmt: skip
    conf = replace(conf, cluster=replace(conf.cluster, backup=1))
    train = Share._train

    def slowly(share, rate_factor):
        if share.node.rank == 2:
            time.sleep(0.1)
        train(share, rate_factor)

    monkeypatch.setattr(Share, "_train", slowly)
    report, errors = cluster_in_one_process.train_together(conf, 3)
    assert not errors
    rows = sum(len(path.read_text().splitlines()) - 1 for path in Path("clicks").glob("part-*.csv"))
    assert [epoch.examples for epoch in report.epochs] == [rows, rows]
    left_out = [worker.left_out for worker in report.timing.workers]
    assert left_out[2] > left_out[0]
    assert "<th scope='col'>left out</th>" in Path("run/report.html").read_text()
    lines = [json.loads(line) for line in Path("run/log.jsonl").read_text().splitlines()]
    logged = [line["timing"]["workers"][2]["left_out"] for line in lines if line["event"] == "step"]
    assert 0 < sum(logged) <= left_out[2]
