"""The costs of single processes on this machine, from which a cluster is predicted."""

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import timing
from benchmarks.cluster import cpu_of_others
from benchmarks.cluster_arithmetic import INSERT, Calibration, Cost, LocalStep
from benchmarks.cluster_traffic import Job
from tnctl.cluster.messages.exchange import TableShape

Observations = Sequence[dict[str, Any]]


def calibrate(conf: Path, output: Path, batch: int, cpus: Sequence[int]) -> Calibration:
    """Measure on two CPUs. Only the two processes of cluster_transport.py exchange anything.

    A process alone and one on each CPU at the same time are both measured: they share caches and
    memory.
    """
    started, used = time.perf_counter(), cpu_of_others()
    [alone] = _run("local", conf, batch, {output / "alone": cpus[:1]})
    busy = _run("parts", conf, batch, {output / f"cpu-{cpu}": [cpu] for cpu in cpus})
    [together] = _run("local", conf, batch, {output / "together": cpus})
    transport = subprocess.run(
        [sys.executable, "-m", "benchmarks.cluster_transport", *map(str, cpus[:2])],
        stdout=subprocess.PIPE, check=True, text=True,
    )  # fmt: skip
    *round_trips, at_once = json.loads(transport.stdout)
    first_trip, peers = round_trips[0], at_once["peers"]
    first = busy[0]
    observations = [observation for result in busy for observation in result["observations"]]
    return Calibration(
        machine=timing.machine(),
        cpus=len(cpus),
        job=Job(
            tables=tuple(TableShape(**table) for table in first["tables"]),
            dense=first["dense"],
            ids_per_row=first["ids_per_row"],
            batch=batch,
            statistics=first["statistics"],
        ),
        alone=LocalStep(**alone["local"]),
        busy=_mean([LocalStep(**result["local"]) for result in busy]),
        together=LocalStep(**together["local"]),
        parts=costs_of(observations),
        frame=fitted([(1, trip["bytes"], trip["cpu"]) for trip in round_trips]),
        further_frame=max((at_once["cpu"] - first_trip["cpu"]) / (peers - 1), 0.0),
        gap=max(first_trip["seconds"] - 2 * first_trip["cpu"], 0.0),
        row_bytes=first["row_bytes"],
        process_bytes=first["process_bytes"],
        others=max((cpu_of_others() - used) / (time.perf_counter() - started), 0.0),
    )


def _run(
    what: str, conf: Path, batch: int, cpus: Mapping[Path, Sequence[int]]
) -> list[dict[str, Any]]:
    """What processes measure that run at the same time, by their outputs; exits if one fails."""
    processes: dict[Path, subprocess.Popen[str]] = {}
    command = [sys.executable, "-m", "benchmarks.cluster_costs", what, str(conf)]
    try:
        for output, used in cpus.items():
            with output.with_suffix(".log").open("w") as log:
                processes[output] = subprocess.Popen(
                    [*command, str(output), str(batch), *map(str, used)],
                    stdout=subprocess.PIPE, stderr=log, text=True,
                )  # fmt: skip
        results = [process.communicate()[0] for process in processes.values()]
    finally:
        for process in processes.values():
            process.kill()
    for output, process in processes.items():
        if process.returncode:
            sys.exit(output.with_suffix(".log").read_text())
    return [json.loads(result) for result in results]


def _mean(steps: Sequence[LocalStep]) -> LocalStep:
    rows = [dataclasses.astuple(step) for step in steps]
    return LocalStep(*(sum(values) / len(rows) for values in zip(*rows, strict=True)))


def costs_of(observations: Observations) -> dict[str, Cost]:
    """The cost of each part that was observed."""
    names = dict.fromkeys(observation["part"] for observation in observations)
    return {
        name: fitted(
            [
                (observation["calls"], observation["units"], observation["seconds"])
                for observation in observations
                if observation["part"] == name
            ]
        )
        for name in names
    }


def fitted(points: Sequence[tuple[float, float, float]]) -> Cost:
    """The cost per call and per unit of (calls, units, seconds): neither is below 0.

    Least squares of the relative errors, so that small clusters count as much as large ones.
    """
    calls, units, seconds = np.array(points, float).T
    seconds = np.maximum(seconds, 1e-9)
    columns = np.stack([calls, units], axis=1) / seconds[:, None]
    best, least = np.zeros(2), np.inf
    for chosen in ([0, 1], [0], [1]):
        used = columns[:, chosen]
        if not used.any(axis=0).all():
            continue
        solution = np.linalg.lstsq(used, np.ones(len(seconds)), rcond=None)[0]
        error = float(np.square(used @ solution - 1).sum())
        if (solution >= 0).all() and error < least - 1e-12:
            best, least = np.zeros(2), error
            best[chosen] = solution
    return Cost(*best.tolist())


# ---- In a file ------------------------------------------------------------------


def save(calibration: Calibration, path: Path) -> None:
    path.write_text(json.dumps(dataclasses.asdict(calibration), indent=1) + "\n")


def load(path: Path) -> Calibration:
    """What `save` wrote."""
    values = json.loads(path.read_text())
    job = values["job"]
    job["tables"] = tuple(TableShape(**table) for table in job["tables"])
    job["slices_begin"] = tuple(job["slices_begin"])
    for name in ("alone", "busy", "together"):
        values[name] = LocalStep(**values[name])
    values["parts"] = {name: Cost(**cost) for name, cost in values["parts"].items()}
    return Calibration(**{**values, "job": Job(**job), "frame": Cost(**values["frame"])})


def missing_parts(calibration: Calibration, parts: Sequence[str]) -> list[str]:
    """Parts without a cost, as in a file of an earlier version."""
    return [part for part in (*parts, INSERT) if part not in calibration.parts]
