"""Simulated clusters with backup workers in a bad world, and proof that they find faults."""

import os
from collections import Counter
from functools import partial

import cluster_simulation
import pytest
from backup_simulation import BackupWorld
from cluster_simulation import SEED
from test_cluster_backup import late_pushes_are_taken, leave_out_by_each_owner
from test_cluster_simulation import (
    duplicates_run_again,
    generations_are_mixed,
    nothing_is_sent_again,
    replies_are_not_kept,
)

from tnctl.cluster.transport.frames import Kind

SEEDS = [int(os.environ[SEED])] if SEED in os.environ else range(50)
simulate = partial(cluster_simulation.simulate, kind=BackupWorld, test="test_backup_simulation")


def test_steps_without_all_workers_train_every_row_once():
    worlds = [simulate(seed) for seed in SEEDS]
    if len(worlds) > 1:  # otherwise nothing was tested
        assert sum(world.generations for world in worlds) > 1.5 * len(worlds)
        reasons = sum((world.reasons for world in worlds), Counter())
        assert reasons["killed"] > 20
        assert sum(world.left_out > 0 for world in worlds) > 15
        kinds = sum((world.kinds for world in worlds), Counter())
        assert min(kinds[Kind.PARTICIPANTS], kinds[Kind.SQUARES]) > 10, kinds


@pytest.mark.long
def test_steps_without_all_workers_for_long():
    for seed in range(50, 700):
        simulate(seed)


@pytest.mark.parametrize("broken", [
    leave_out_by_each_owner,
    late_pushes_are_taken,
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
