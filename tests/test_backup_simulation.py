"""Simulated clusters with backup workers in a bad world, and proof that they find faults."""

import os
from collections import Counter
from functools import partial

import cluster_simulation
import pytest
from backup_simulation import BackupWorld
from cluster_simulation import SEED, check_servers
from test_cluster_simulation import (
    a_server_applies_pushes_twice,
    duplicates_run_again,
    generations_are_mixed,
    nothing_is_sent_again,
    replies_are_not_kept,
    squares_of_as_many_owners_as_workers_are_waited_for,
)

from tnctl.cluster.owners.owner import Owner
from tnctl.cluster.transport.frames import Kind

SEEDS = [int(os.environ[SEED])] if SEED in os.environ else range(50)
simulate = partial(cluster_simulation.simulate, kind=BackupWorld, test="test_backup_simulation")


def test_steps_without_all_workers_train_every_row_once():
    worlds = [simulate(seed) for seed in SEEDS]
    if len(worlds) > 1:  # otherwise nothing was tested
        assert sum(world.generations for world in worlds) > 1.5 * len(worlds)
        reasons = sum((world.reasons for world in worlds), Counter())
        assert reasons["killed"] > 20
        check_servers(worlds)
        assert sum(world.left_out > 0 for world in worlds) > 15
        kinds = sum((world.kinds for world in worlds), Counter())
        assert min(kinds[Kind.PARTICIPANTS], kinds[Kind.SQUARES]) > 10, kinds


@pytest.mark.long
def test_steps_without_all_workers_for_long():
    for seed in range(50, 700):
        simulate(seed)


# ---- Broken protocols --------------------------------------------------------


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


@pytest.mark.parametrize("broken", [
    leave_out_by_each_owner,
    late_pushes_are_taken,
    pauses_do_not_wait,
    a_server_applies_pushes_twice,
    squares_of_as_many_owners_as_workers_are_waited_for,
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
