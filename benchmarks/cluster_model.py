"""The arithmetic of a cluster: from the costs of single processes to a thousand nodes.

    python -m benchmarks.cluster_model [--check] [--page docs/cluster-model.md] [--json FILE]

Measures single processes on two CPUs (two minutes), and predicts what a step of DeepFM on W1 takes
with 1 to 3 workers here, and with 8 to 512 workers of 16 cores over 10 and 100 GbE, of a model with
10 billion rows. `--check` also trains with one process on one CPU and with 2 and 3 workers here, in
all modes, and shows both. `--save` keeps the measured costs, which `--calibration` uses instead of
measuring.
"""

import argparse
import dataclasses
import json
import os
import shutil
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import cluster_calibration, cluster_page, timing
from benchmarks.cluster_arithmetic import ONE_PROCESS, WITH_SERVER, Prediction
from benchmarks.cluster_costs import OWNER_PARTS, WORKER_PARTS
from benchmarks.cluster_predictions import MODES, Model, predict
from benchmarks.cluster_runs import (
    NO_WARMUP,
    finish,
    has_servers,
    modes,
    prepared,
    running,
    speed_of,
)
from benchmarks.workload import EXAMPLES, FOLDER

OUTPUT = FOLDER / "cluster-model-runs"
CALIBRATION_ROWS = 512_000
CHECKED = (2, 3)
WITHIN = 0.15  # of what is measured


def main() -> None:
    given = arguments()
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2 and (given.check or not given.calibration):
        sys.exit("two CPUs are needed")
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(parents=True)
    if given.calibration:
        calibration = cluster_calibration.load(given.calibration)
    else:
        conf = prepared(min(given.rows, CALIBRATION_ROWS))
        calibration = cluster_calibration.calibrate(conf, OUTPUT, given.batch, cpus)
    if given.save:
        cluster_calibration.save(calibration, given.save)
    missing = cluster_calibration.missing_parts(calibration, [*WORKER_PARTS, *OWNER_PARTS])
    if missing:
        sys.exit(f"the calibration has no cost of {missing}: measure again")
    model = predict(calibration, given.rows)
    measured: dict[tuple[str, int], float] = {}
    if given.check:
        measured = check(given, calibration.job.batch, cpus)
    document = cluster_page.document(model, measured)
    print(cluster_page.as_text(document))
    if given.page:
        cluster_page.write(given.page, document, model)
    if given.json:
        given.json.write_text(json.dumps(as_json(model, measured), indent=1) + "\n")
    far = [
        f"{mode} with {workers} workers"
        for (mode, workers), rate in measured.items()
        if workers > 1 and abs(model.local[mode, workers].examples_per_second / rate - 1) > WITHIN
    ]
    if far:
        sys.exit(f"not within {WITHIN:.0%} of what is measured: {', '.join(far)}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=EXAMPLES, help="of W1, trained by --check")
    parser.add_argument("--batch", type=int, default=4096, help="of a worker")
    parser.add_argument("--check", action="store_true", help="train with 1 to 3 workers here")
    parser.add_argument("--rounds", type=int, default=2, help="of --check")
    there_are = ",".join(mode for mode in MODES if mode in modes())
    parser.add_argument("--modes", default=there_are, help="cluster.mode, of --check")
    parser.add_argument("--timeout", type=float, default=5.0, help="cluster.timeout of --check")
    parser.add_argument("--calibration", type=Path, help="a file of --save")
    parser.add_argument("--save", type=Path, help="keep the measured costs in a file")
    parser.add_argument("--json", type=Path, help="write all predictions into a file")
    parser.add_argument("--page", type=Path, help="write a page with a plot beside it")
    return parser.parse_args()


# ---- What is measured --------------------------------------------------------------


def check(
    given: argparse.Namespace, batch: int, cpus: Sequence[int]
) -> dict[tuple[str, int], float]:
    """Examples per second by mode and workers, and of one process on one CPU: medians.

    All of them take turns.
    """
    checked = given.modes.split(",")
    kinds = [(ONE_PROCESS, 1), *((mode, n) for mode in checked for n in CHECKED)]
    if has_servers():
        kinds += [(mode + WITH_SERVER, 1) for mode in checked]
    rates: dict[tuple[str, int], list[float]] = {kind: [] for kind in kinds}
    for _ in range(given.rounds):
        for kind in kinds:
            rates[kind].append(measure(*kind, given, batch, cpus))
    return {kind: statistics.median(of_kind) for kind, of_kind in rates.items()}


def measure(
    mode: str, workers: int, given: argparse.Namespace, batch: int, cpus: Sequence[int]
) -> float:
    """Examples per second of `tnctl train` with so many workers on the CPUs, or a server too."""
    overrides, used = [f"train.batch_size={batch}"], set(cpus)
    if mode == ONE_PROCESS:
        used = {cpus[0]}
    else:
        name = mode.removesuffix(WITH_SERVER)
        overrides += [
            "cluster=local",
            f"cluster.workers={workers}",
            f"cluster.mode={name}",
            NO_WARMUP,
        ]
        overrides += [f"cluster.timeout={given.timeout}"]
        overrides += ["cluster.servers=1"] * (name != mode)
    output = OUTPUT / f"check-{mode.replace(' ', '-')}-{workers}"
    with running(prepared(given.rows), output, overrides, used) as process:
        finish(process, output)
    rate = speed_of(output)
    shutil.rmtree(output)
    return rate


def as_json(model: Model, measured: dict[tuple[str, int], float]) -> dict[str, Any]:
    """Everything, with lists in the place of the keys of predictions."""

    def of(predictions: dict[Any, Prediction]) -> list[dict[str, Any]]:
        return [
            {"of": list(key), **dataclasses.asdict(prediction)}
            for key, prediction in predictions.items()
        ]

    return {
        "machine": timing.machine(),
        "rows": model.rows,
        "calibration": dataclasses.asdict(model.calibration),
        "local": of(model.local),
        "nodes": of(model.nodes),
        "helped": of(model.helped),
        "measured_examples_per_second": [
            {"of": list(kind), "rate": rate} for kind, rate in measured.items()
        ],
    }


if __name__ == "__main__":
    main()
