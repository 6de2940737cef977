"""The clusters that are predicted: on this machine, and of many nodes with 10 billion rows."""

import dataclasses
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.cluster_arithmetic import (
    ASYNC,
    HYBRID,
    SYNC,
    WITH_SERVER,
    Calibration,
    Keys,
    LocalStep,
    Prediction,
    predict_local,
    predict_with_server,
)
from benchmarks.cluster_nodes import Nodes, predict_nodes
from benchmarks.cluster_runs import FIRST_SHARE
from benchmarks.key_counts import distinct_keys, distinct_keys_up_to, expected_distinct, sizes_of
from benchmarks.workload import load

LOCAL_WORKERS = (1, 2, 3)
WORKERS = (8, 64, 512)
CURVE = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
GIGABIT = 1e9
LINKS = (10 * GIGABIT, 100 * GIGABIT)
CORES = 16
ROWS = 10**10
NODE_BYTES = 256 << 30
MODES = (SYNC, ASYNC, HYBRID)
# What may help, beside another mode: the name, changes of the nodes, the factor of the batch.
CHANGES: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("as it is", {}, 1),
    ("a batch 4 times as large", {}, 4),
    ("half the bytes on the way (bfloat16)", {"bytes_factor": 0.5}, 1),
    ("a frame for a fifth of its CPU", {"frame_factor": 0.2}, 1),
    ("1 in 32 workers is not waited for", {"backup": 32}, 1),
    ("async", {"mode": ASYNC}, 1),
    ("hybrid", {"mode": HYBRID}, 1),
)


@dataclasses.dataclass(frozen=True)
class Model:
    """All predictions, of one calibration; keys are counted in W1, or expected of larger slots."""

    calibration: Calibration
    rows: int
    """of W1, which the workers of this machine train"""
    local: dict[tuple[str, int], Prediction]
    nodes: dict[tuple[str, float, int], Prediction]
    helped: dict[tuple[str, int], Prediction]


def predict(calibration: Calibration, rows: int) -> Model:
    """All predictions of a calibration."""
    local = {
        (mode, workers): predict_local(
            calibration, keys_of_data(rows, calibration.job.batch, workers), workers, mode
        )
        for workers in LOCAL_WORKERS
        for mode in MODES
    }
    for mode in MODES:
        keys = keys_of_data(rows, calibration.job.batch, 1)
        local[mode + WITH_SERVER, 1] = predict_with_server(calibration, keys, mode)
    nodes = {
        (mode, bits, workers): of_nodes(calibration, Nodes(workers, CORES, bits, mode))
        for mode in MODES
        for bits in LINKS
        for workers in CURVE
    }
    helped = {}
    for workers in WORKERS[1:]:
        for name, change, factor in CHANGES:
            values = dict(change)
            if "backup" in values:
                values["backup"] = workers // values["backup"]
            changed = Nodes(workers, CORES, LINKS[0], **values)
            helped[name, workers] = of_nodes(with_batch(calibration, factor), changed)
    return Model(calibration, rows, local, nodes, helped)


def keys_of_data(rows: int, batch: int, workers: int) -> Keys:
    """Distinct keys of W1 in the steps whose speed is measured: those after the first ones."""
    ids, first = _ids(rows), int(rows * FIRST_SHARE)
    new = _distinct_up_to(rows, first)
    steps = (rows - first) / (batch * workers)
    return Keys(
        of_batch=float(distinct_keys(ids, batch).mean()),
        of_step=float(distinct_keys(ids, batch * workers).mean()),
        new=(new[1] - new[0]) / steps,
    )


@cache
def _ids(rows: int) -> NDArray[np.uint64]:
    return load().ids[:rows]


@cache
def _distinct_up_to(rows: int, first: int) -> list[int]:
    return distinct_keys_up_to(_ids(rows), [first, rows])


def of_nodes(calibration: Calibration, nodes: Nodes) -> Prediction:
    """A cluster whose tables have all of `ROWS` keys already, of slots that are as much larger."""
    batch = calibration.job.batch
    keys = Keys(_expected_keys(batch), _expected_keys(batch * nodes.workers), new=0.0)
    return predict_nodes(calibration, keys, nodes, ROWS, NODE_BYTES)


@cache
def _expected_keys(rows: int) -> float:
    return expected_distinct(sizes_of(ROWS), rows)


def with_batch(calibration: Calibration, factor: int) -> Calibration:
    """The same with a larger batch, whose local step takes as many times longer."""
    job = replace(calibration.job, batch=calibration.job.batch * factor)

    def scaled(step: LocalStep) -> LocalStep:
        seconds = ("seconds", "compute", "parameters", "figures", "rest")
        return replace(step, **{name: factor * getattr(step, name) for name in seconds})

    steps = {name: scaled(getattr(calibration, name)) for name in ("alone", "busy", "together")}
    # The optimizer's step on the dense weights does not grow, which is small beside the rest.
    return replace(calibration, job=job, **steps)
