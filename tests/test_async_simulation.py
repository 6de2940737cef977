"""Simulated clusters in a bad world that train asynchronously, and proof that they find faults."""

import math
import os
from collections import Counter
from functools import partial

import cluster_simulation
import pytest
from async_simulation import AsyncWorld
from cluster_simulation import SEED, check_servers
from test_cluster_simulation import (
    duplicates_run_again,
    generations_are_mixed,
    nothing_is_sent_again,
    replies_are_not_kept,
)

from tnctl.cluster.owners.async_owner import AsyncOwner

SEEDS = [int(os.environ[SEED])] if SEED in os.environ else range(60)
simulate = partial(cluster_simulation.simulate, kind=AsyncWorld, test="test_async_simulation")


def test_every_row_is_trained_once_and_none_is_too_far_ahead():
    worlds = [simulate(seed) for seed in SEEDS]
    if len(worlds) > 1:  # otherwise nothing was tested
        assert sum(world.generations for world in worlds) > 1.5 * len(worlds)
        reasons = sum((world.reasons for world in worlds), Counter())
        assert reasons["killed"] > 20
        check_servers(worlds)
        assert {world.staleness for world in worlds} == {None, 0, 1, 3}


@pytest.mark.long
def test_every_row_is_trained_once_for_long():
    for seed in range(60, 1_000):
        simulate(seed)


# ---- Broken protocols --------------------------------------------------------


def nobody_is_held(patch):
    patch.setattr(AsyncOwner, "slowest", math.inf)


def workers_without_data_hold_others(patch):
    def slowest(owner):
        return min((worker.pushed for worker in owner._workers), default=math.inf)

    patch.setattr(AsyncOwner, "slowest", property(slowest))


def pushes_are_of_the_newest_pull(patch):
    take = AsyncOwner._take_push

    def swapped(self, worker, exchange):
        worker.open.rotate()
        take(self, worker, exchange)

    patch.setattr(AsyncOwner, "_take_push", swapped)


def the_step_that_was_begun_is_not_counted(patch):
    def pause(self):
        self.is_paused = True

    patch.setattr(AsyncOwner, "_pause", pause)


def a_held_pull_is_forgotten(patch):
    released = AsyncOwner._released

    def forget(self, rank):
        answers = released(self, rank)
        self._held.clear()
        return answers

    patch.setattr(AsyncOwner, "_released", forget)


@pytest.mark.parametrize("broken", [
    nobody_is_held,
    workers_without_data_hold_others,
    pushes_are_of_the_newest_pull,
    the_step_that_was_begun_is_not_counted,
    a_held_pull_is_forgotten,
    duplicates_run_again,
    generations_are_mixed,
    nothing_is_sent_again,
    replies_are_not_kept,
], ids=lambda function: function.__name__)  # fmt: skip
def test_a_broken_protocol_is_found(broken, monkeypatch):
    broken(monkeypatch)
    with pytest.raises(AssertionError, match=f"{SEED}="):
        for seed in range(500):
            simulate(seed)


def servers_apply_pushes_twice(patch):
    take = AsyncOwner._take_push

    def twice(self, worker, exchange):
        if exchange.push.rows and not self.shape.figures:  # rank 0 has them
            parameters = self.parameters
            clock = parameters.state.steps, parameters.pushed
            parameters.push_one(worker.open[0].exchange.keys, exchange.push, self._rate)
            parameters.state.steps, parameters.pushed = clock
        take(self, worker, exchange)

    patch.setattr(AsyncOwner, "_take_push", twice)


def test_a_server_that_applies_pushes_twice_is_found(monkeypatch):
    servers_apply_pushes_twice(monkeypatch)
    with pytest.raises(AssertionError, match=f"{SEED}="):
        simulate(next(seed for seed in range(500) if AsyncWorld(seed).data.servers))
