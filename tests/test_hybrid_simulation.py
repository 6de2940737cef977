"""Simulated clusters in a bad world that train in hybrid mode, and proof that they find faults."""

import os
from collections import Counter
from functools import partial

import cluster_simulation
import pytest
from cluster_simulation import SEED, check_servers
from hybrid_simulation import HybridWorld
from test_async_simulation import (
    nobody_is_held,
    pushes_are_of_the_newest_pull,
    servers_apply_pushes_twice,
    workers_without_data_hold_others,
)
from test_cluster_simulation import (
    duplicates_run_again,
    generations_are_mixed,
    nothing_is_sent_again,
    replies_are_not_kept,
)

from tnctl.cluster.owners.async_owner import AsyncOwner
from tnctl.cluster.owners.hybrid_owner import HybridOwner, RowOwner
from tnctl.cluster.owners.owner import Owner

SEEDS = [int(os.environ[SEED])] if SEED in os.environ else range(60)
simulate = partial(cluster_simulation.simulate, kind=HybridWorld, test="test_hybrid_simulation")


def test_dense_weights_are_in_step_and_every_row_is_trained_once():
    worlds = [simulate(seed) for seed in SEEDS]
    if len(worlds) > 1:  # otherwise nothing was tested
        assert sum(world.generations for world in worlds) > 1.5 * len(worlds)
        reasons = sum((world.reasons for world in worlds), Counter())
        assert reasons["killed"] > 20
        check_servers(worlds)
        assert {world.staleness for world in worlds} == {None, 0, 1, 3}


@pytest.mark.long
def test_dense_weights_are_in_step_for_long():
    for seed in range(60, 1_500):
        simulate(seed)


# ---- Broken protocols --------------------------------------------------------


def a_step_leaves_the_last_worker_out(patch):
    def participants(owner):
        there = frozenset(owner._held)
        return there if len(there) >= max(1, owner.workers - 1) and 0 in there else None

    patch.setattr(Owner, "_participants", participants)


def each_push_of_rows_is_a_step(patch):
    def take(owner, worker, exchange):
        if exchange.push.rows:
            owner.due.discard(worker.open[0].rank)
            AsyncOwner._take_push(owner, worker, exchange)
            owner.parameters.end_step()

    patch.setattr(RowOwner, "_take_push", take)


def rows_of_a_worker_are_forgotten(patch):
    def take(owner, worker, exchange):
        if exchange.push.rows:
            pull = worker.open.popleft()
            worker.pushed += 1
            owner.due.remove(pull.rank)
            if not owner.due:
                owner.parameters.end_step()

    patch.setattr(RowOwner, "_take_push", take)


def the_dense_weights_of_a_step_begin_another_for_the_rows(patch):
    exchange = HybridOwner.exchange

    def with_all_due(owner, rank, kind, body, handle):
        answers = exchange(owner, rank, kind, body, handle)
        owner.rows.due = set(range(owner.dense.workers))
        return answers

    patch.setattr(HybridOwner, "exchange", with_all_due)


@pytest.mark.parametrize("broken", [
    a_step_leaves_the_last_worker_out,
    each_push_of_rows_is_a_step,
    rows_of_a_worker_are_forgotten,
    the_dense_weights_of_a_step_begin_another_for_the_rows,
    nobody_is_held,
    workers_without_data_hold_others,
    pushes_are_of_the_newest_pull,
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


def test_a_server_that_applies_pushes_twice_is_found(monkeypatch):
    servers_apply_pushes_twice(monkeypatch)
    with pytest.raises(AssertionError, match=f"{SEED}="):
        simulate(next(seed for seed in range(500) if HybridWorld(seed).data.servers))
