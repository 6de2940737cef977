"""Hundreds of simulated clusters in a bad world, and proof that they find broken protocols.

The worlds are alike but for what a step is: of all workers, of most of them (`cluster.backup`), or
of one alone (`cluster.mode=async`).
"""

import math
import os
from collections import Counter
from concurrent.futures import Future

import pytest
from cluster_model import OwnedState
from cluster_processes import Process
from cluster_simulation import SEED, AsyncWorld, BackupWorld, World, check_servers, simulate

from tnctl.cluster.joining.liveness import GenerationOver, Liveness
from tnctl.cluster.messages.exchange import new_squares
from tnctl.cluster.owners.arrivals import Arrivals
from tnctl.cluster.owners.barrier import Barrier
from tnctl.cluster.transport.kinds import Kind
from tnctl.cluster.transport.once import Answers
from tnctl.tables import ExactSum

SEEDS = {World: 500, BackupWorld: 50, AsyncWorld: 60}
LONG_SEEDS = {World: 1_500, BackupWorld: 700, AsyncWorld: 1_000}
REASONS = (
    "killed",
    "this process was stopped",
    "worker could not be reached",
    "worker has ended",
)
KINDS = Kind.EXCHANGE, Kind.READ, Kind.COMMAND, Kind.SQUARES


def named(policy):
    return policy.__name__


@pytest.mark.parametrize("policy", SEEDS, ids=named)
def test_a_cluster_in_a_bad_world_trains_every_row_once_per_pass(policy):
    seeds = [int(os.environ[SEED])] if SEED in os.environ else range(SEEDS[policy])
    worlds = [simulate(seed, policy) for seed in seeds]
    if len(worlds) == 1:
        return  # the seed that somebody wants to see
    # Otherwise nothing was tested.
    check_servers(worlds)
    reasons = sum((world.reasons for world in worlds), Counter())
    kinds = sum((world.kinds for world in worlds), Counter())
    generations = sum(world.generations for world in worlds)
    assert generations > (2 if policy is World else 1.5) * len(worlds)
    assert reasons["killed"] > 20
    if policy is World:
        assert sum(world.refused for world in worlds) > len(worlds)
        assert {world.data.workers for world in worlds} == {1, 2, 3, 4}
        assert min(reasons[text] for text in REASONS) >= 10, reasons
        assert min(kinds[kind] for kind in KINDS) >= 10, kinds
    elif policy is BackupWorld:
        assert sum(world.left_out > 0 for world in worlds) > 15
        assert min(kinds[Kind.PARTICIPANTS], kinds[Kind.SQUARES]) > 10, kinds
    else:
        assert {world.staleness for world in worlds} == {None, 0, 1, 3}


@pytest.mark.long
@pytest.mark.parametrize("policy", SEEDS, ids=named)
def test_a_cluster_in_a_bad_world_for_long(policy):
    for seed in range(SEEDS[policy], LONG_SEEDS[policy]):
        simulate(seed, policy)


def test_a_seed_is_a_world():
    worlds = [simulate(7) for _ in range(2)]
    assert len({(world.now, world.count, world.generations) for world in worlds}) == 1


# ---- Broken protocols --------------------------------------------------------


def replies_are_not_kept(patch):
    admit = Answers.admit

    def forget(self, envelope):
        reply, is_new = admit(self, envelope)
        return (reply if is_new or not reply.done() else Future()), is_new  # as if it were running

    patch.setattr(Answers, "admit", forget)


def calls_run_again(patch):
    admit = Answers.admit

    def run(self, envelope):
        reply, is_new = admit(self, envelope)
        return (reply, True) if is_new else (Future(), reply.done())

    patch.setattr(Answers, "admit", run)


def calls_of_other_generations_run(patch):
    patch.setattr(Process, "is_of_this_generation", lambda *_: True)


def a_pause_counts(patch):
    answers = Barrier._answers

    def count(self, exchanges):
        if exchanges[0].pause:
            for [keys] in (each.keys for each in exchanges):
                pairs = zip(keys.ids.tolist(), keys.occurrences.tolist(), strict=True)
                self.parameters.state.begin(pairs)
        return answers(self, exchanges)

    patch.setattr(Barrier, "_answers", count)


def pushes_are_in_the_order_of_arrival(patch):
    meet, reduce, apply = Barrier._meet, OwnedState.reduce, OwnedState.apply

    def arrived(self):
        self.parameters.order = list(self._held)
        return meet(self)

    def reduce_in_order(self, pulled, pushes, rate):
        reduce(self, *([each[rank] for rank in self.order] for each in (pulled, pushes)), rate)

    def apply_in_order(self, pushes, scale):
        apply(self, [pushes[rank] for rank in self.order], scale)

    patch.setattr(Barrier, "_meet", arrived)
    patch.setattr(OwnedState, "reduce", reduce_in_order)
    patch.setattr(OwnedState, "apply", apply_in_order)


def squares_of_others_are_not_waited_for(patch):
    complete = Barrier._complete

    def hasten(self):
        if self._squares:
            nothing = [ExactSum() for _ in self._squares]
            body = new_squares(self.parameters.steps + 1, nothing)
            self._of_others = dict.fromkeys(range(1, self.workers), body) | self._of_others
        return complete(self)

    patch.setattr(Barrier, "_complete", hasten)


def a_server_applies_pushes_twice(patch):
    apply = OwnedState.apply

    def twice(self, pushes, scale):
        apply(self, pushes, scale)
        if not any(push.labels.size for push in pushes):  # rank 0 has them
            apply(self, pushes, scale)
            self.state.steps -= 1

    patch.setattr(OwnedState, "apply", twice)


def squares_of_as_many_owners_as_workers_are_waited_for(patch):
    patch.setattr(Barrier, "owners", property(lambda _: 0, lambda *_: None))


def silence_is_not_noticed(patch):
    patch.setattr(Liveness, "silence", 1e9)
    patch.setattr(Liveness, "window", 1e9)


def a_process_does_not_notice_its_own_silence(patch):
    def check(self, _):
        if self._reason is not None:
            raise GenerationOver(self._reason)

    patch.setattr(Liveness, "check", check)


def a_process_at_an_old_address_is_taken_for_the_one_before(patch):
    patch.setattr(Liveness, "lost", lambda *_: None)


def leave_out_by_each_owner(patch):
    """Every owner decides by itself."""

    def participants(self):
        rank, self.rank = self.rank, 0
        try:
            return decide(self)
        finally:
            self.rank = rank

    decide = Barrier._participants
    patch.setattr(Barrier, "_participants", participants)


def late_pushes_are_taken(patch):
    """A late worker joins the next step with what it pushes, and is not answered before."""
    leave_out = Barrier._leave_out

    def keep(self, rank, exchange):
        self.parameters.state.trained += map(int, exchange.push.labels.tolist())
        return leave_out(self, rank, exchange)

    patch.setattr(Barrier, "_leave_out", keep)


def nobody_is_held(patch):
    patch.setattr(Arrivals, "slowest", math.inf)


def workers_without_data_hold_others(patch):
    def slowest(owner):
        return min((worker.pushed for worker in owner._workers), default=math.inf)

    patch.setattr(Arrivals, "slowest", property(slowest))


def pushes_are_of_the_newest_pull(patch):
    take = Arrivals._take_push

    def swapped(self, worker, exchange):
        worker.open.rotate()
        take(self, worker, exchange)

    patch.setattr(Arrivals, "_take_push", swapped)


def the_step_that_was_begun_is_not_counted(patch):
    patch.setattr(OwnedState, "pause", lambda _: None)


def a_held_pull_is_forgotten(patch):
    released = Arrivals._released

    def forget(self, rank):
        answers = released(self, rank)
        self._held.clear()
        return answers

    patch.setattr(Arrivals, "_released", forget)


OF_EVERY_POLICY = [
    a_server_applies_pushes_twice,
    calls_of_other_generations_run,
    calls_run_again,
    replies_are_not_kept,
]
OF_CALLS = [
    a_process_at_an_old_address_is_taken_for_the_one_before,
    a_process_does_not_notice_its_own_silence,
    silence_is_not_noticed,
]
BROKEN = {
    World: [
        *OF_EVERY_POLICY,
        *OF_CALLS,
        a_pause_counts,
        pushes_are_in_the_order_of_arrival,
        squares_of_as_many_owners_as_workers_are_waited_for,
        squares_of_others_are_not_waited_for,
    ],
    BackupWorld: [
        *OF_EVERY_POLICY,
        late_pushes_are_taken,
        leave_out_by_each_owner,
        squares_of_as_many_owners_as_workers_are_waited_for,
    ],
    AsyncWorld: [
        *OF_EVERY_POLICY,
        a_held_pull_is_forgotten,
        nobody_is_held,
        pushes_are_of_the_newest_pull,
        the_step_that_was_begun_is_not_counted,
        workers_without_data_hold_others,
    ],
}


@pytest.mark.parametrize(
    ("policy", "broken"),
    [(policy, broken) for policy, all_broken in BROKEN.items() for broken in all_broken],
    ids=named,
)
def test_a_broken_protocol_is_found(policy, broken, monkeypatch):
    broken(monkeypatch)
    with pytest.raises(AssertionError, match=f"{SEED}=") as caught:
        for seed in range(500):
            simulate(seed, policy)
    print(caught.value)
