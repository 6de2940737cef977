"""Asynchronous training by processes, one of which is killed or asked to stop."""

import signal

import pytest
from cluster_commands import Training, split_training_data, trained_once

ASYNC = ["cluster.mode=async", "cluster.staleness=8"]

pytestmark = [pytest.mark.alone, pytest.mark.long]


@pytest.fixture
def parts(workspace):
    """A workspace with its training data in files of different sizes."""
    split_training_data(workspace)
    return workspace


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_worker_is_started_again_and_every_row_is_trained_once(parts, rank):
    with Training(parts, *ASYNC) as training:
        training.until_saved()
        training.signal(rank, signal.SIGKILL)
        assert training.wait() == 0, training.said
    assert f"worker {rank} was killed by SIGKILL: all workers start again" in training.said
    assert "resuming from run/checkpoints/" in training.said
    assert trained_once(training.run) and "Traceback" not in training.said


def test_a_signal_saves_and_the_same_command_resumes(parts):
    with Training(parts, *ASYNC) as training:
        training.until_saved()
        training.signal(1, signal.SIGTERM)
        assert training.wait() == 143, training.said
    assert "is saved. Run the same command again to resume" in training.said
    with Training(parts, *ASYNC) as training:
        assert training.wait() == 0, training.said
    assert trained_once(training.run) and "Traceback" not in training.said
