"""What the modes of a cluster do to the AUC, beside one process, over paired seeds.

    python -m benchmarks.cluster_auc [--data generated|adult] [--modes MODE,...]
        [--wires float32,bfloat16] [--seeds N]

Trains DeepFM on a million generated rows, and on UCI Adult (in the folder TNCTL_TEST_DATA), with
one process and with each mode of two workers. `async` keeps the conf of one process, batch and
learning rates; `sync` has batches of half its rows, so that a step has as many. Each mode is
trained with each of `--wires`, the values of cluster.wire (default: float32). Shown is the mean
difference of the test AUC of the same seeds, and two standard errors of that mean: a mode is as
good as one process where the difference is at most 0.001, or two standard errors.
"""

import argparse
import itertools
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import timing
from benchmarks.cluster_runs import MODES
from benchmarks.workload import FOLDER

OUTPUT = FOLDER / "auc-runs"
WORKERS = 2
PARTS = 8  # files of Adult's rows, since a text file is read by one worker
WITHIN = 0.001


@dataclass(frozen=True)
class Task:
    """What is trained: overrides, and the batch of one process."""

    name: str
    overrides: tuple[str, ...]
    batch: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=("generated", "adult"), help="(default: both)")
    parser.add_argument("--modes", default=",".join(MODES), help="of cluster.mode (default: all)")
    parser.add_argument("--wires", default="float32", help="of cluster.wire (default: float32)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000, help="generated, of training")
    parser.add_argument("--epochs", type=int, default=20, help="of Adult")
    parser.add_argument("--timeout", type=float, default=5.0, help="cluster.timeout")
    given = parser.parse_args()
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(parents=True)
    tasks = {"generated": generated, "adult": adult}
    for name in [given.data] if given.data else tasks:
        task = tasks[name](given)
        if task is None:
            print("adult: TNCTL_TEST_DATA is not set to the folder that has adult/")
            continue
        variants = list(itertools.product(given.modes.split(","), given.wires.split(",")))
        show(task, variants, range(1, given.seeds + 1), given.timeout)


def generated(given: argparse.Namespace) -> Task:
    train, test = f"0:{given.rows}", f"{given.rows}:{given.rows + 200_000}"
    overrides = ("conf=deepfm", f"data.train={train}", f"data.test={test}")
    return Task(f"generated, {given.rows:,} rows", overrides, 1024)


def adult(given: argparse.Namespace) -> Task | None:
    """Adult in several files; None without its data."""
    root = os.environ.get("TNCTL_TEST_DATA")
    if not root:
        return None
    folder = OUTPUT / "adult"
    folder.mkdir()
    lines = (Path(root) / "adult/adult.data").read_text().strip().splitlines(keepends=True)
    bounds = [len(lines) * part // PARTS for part in range(PARTS + 1)]
    for part, (first, end) in enumerate(itertools.pairwise(bounds)):
        (folder / f"part-{part}.data").write_text("".join(lines[first:end]))
    shutil.copy(Path(root) / "adult/adult.test", folder)
    overrides = (
        "conf=adult", "recipe=deepfm", f"data.root={folder}", "data.train=part-*.data",
        f"train.epochs={given.epochs}",
    )  # fmt: skip
    return Task("Adult", overrides, 256)


def show(
    task: Task, variants: Sequence[tuple[str, str]], seeds: Sequence[int], timeout: float
) -> None:
    """A table: a row for one process, and for each (mode, wire)."""
    alone = {seed: auc_of(task, seed, [], task.batch) for seed in seeds}
    first = ["one process", f"{statistics.mean(alone.values()):.5f}", "", "", ""]
    rows = [
        [task.name, "mean AUC", "difference", "2 standard errors", f"within {WITHIN} or these"],
        first,
    ]
    for mode, wire in variants:
        cluster = [
            "cluster=local", f"cluster.workers={WORKERS}", f"cluster.mode={mode}",
            f"cluster.wire={wire}", f"cluster.timeout={timeout}",
        ]  # fmt: skip
        batch = task.batch // WORKERS if mode == "sync" else task.batch
        of_mode = {seed: auc_of(task, seed, cluster, batch) for seed in seeds}
        differences = [of_mode[seed] - alone[seed] for seed in seeds]
        mean, twice = statistics.mean(differences), two_standard_errors(differences)
        rows.append(
            [
                f"{mode}, {wire}, {WORKERS} workers", f"{statistics.mean(of_mode.values()):.5f}",
                f"{mean:+.5f}", f"{twice:.5f}", "yes" if abs(mean) <= max(WITHIN, twice) else "NO",
            ]
        )  # fmt: skip
    print(timing.table(rows) + f"\n{len(seeds)} seeds\n", flush=True)


def two_standard_errors(differences: Sequence[float]) -> float:
    """Of the mean; NaN of one difference."""
    if len(differences) < 2:
        return math.nan
    return 2 * statistics.stdev(differences) / math.sqrt(len(differences))


def auc_of(task: Task, seed: int, cluster: Sequence[str], batch: int) -> float:
    """The test AUC of a run. Exits with its output when it fails."""
    output = OUTPUT / "run"
    shutil.rmtree(output, ignore_errors=True)
    command = [sys.executable, "-m", "tnctl", "train", *task.overrides, *cluster]
    settings = [
        f"output={output}", f"seed={seed}", f"train.batch_size={batch}", "evaluation.ablate=false",
        "golden=0",
    ]  # fmt: skip
    done = subprocess.run([*command, *settings], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    auc: float = json.loads((output / "report.json").read_text())["auc"]
    return auc


if __name__ == "__main__":
    main()
