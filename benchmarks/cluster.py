"""Training by several workers on this machine, beside one process: `tnctl train` on W1.

    python -m benchmarks.cluster [--rounds N] [--rows N] [--batch N] [--only PART] [--mode MODE]

Kinds of runs take turns, each a command of its own on one pass over W1: one process and a cluster
of one worker on all CPUs, one process on one CPU and a cluster of two workers with one CPU each.
Then, on all CPUs, one process and, in each mode, one worker whose rows and dense weights a server
owns. A speed is measured over the logged steps, without the first 30 %. Then: the CPU of a step
with two workers by what its threads do (cluster_threads.py), the time from the command to the
first steps, also with workers that a Ray of the command places, and the time from the loss of a
worker to the first step after it.
"""

import argparse
import os
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from benchmarks import cluster_threads, timing
from benchmarks.cluster_runs import (
    MODES,
    NO_WARMUP,
    await_checkpoint,
    await_steps,
    finish,
    kill_worker,
    prepared,
    running,
    speed_of,
    steps_of,
)
from benchmarks.workload import EXAMPLES, FOLDER

OUTPUT = FOLDER / "cluster-runs"
LOCAL, ONE_WORKER = "one process", "cluster of 1"
LOCAL_ONE_CPU, TWO_WORKERS = "one process, 1 CPU", "cluster of 2, 1 CPU each"
WITH_SERVER = "1 worker and 1 server"
PARTS = ("speed", "servers", "threads", "start", "recovery")
Runs = Mapping[str, tuple[Sequence[str], set[int]]]  # overrides and CPUs, by name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=EXAMPLES, help="of W1")
    parser.add_argument("--batch", type=int, default=4096, help="train.batch_size, of a worker")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--mode", choices=MODES, default="sync", help="cluster.mode")
    parser.add_argument("--timeout", type=float, default=5.0, help="cluster.timeout")
    given = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        parser.error("two CPUs are needed")
    conf = prepared(given.rows)
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(parents=True)
    batch, timeout = f"train.batch_size={given.batch}", f"cluster.timeout={given.timeout}"
    start = ["cluster=local", f"cluster.mode={given.mode}", NO_WARMUP, timeout]
    workers = {n: [*start, f"cluster.workers={n}"] for n in (1, 2)}
    parts = [given.only] if given.only else PARTS
    if "speed" in parts:
        show_speeds(conf, given, workers)
    if "servers" in parts:
        show_servers(conf, given, workers[1])
    if "threads" in parts:
        cluster_threads.show(conf, OUTPUT / "threads", [batch, timeout])
    if "start" in parts:
        show_start(conf, workers, given.rounds)
    if "recovery" in parts:
        show_recovery(conf, batch, workers[2], given.rounds)


def show_speeds(conf: Path, given: argparse.Namespace, workers: Mapping[int, list[str]]) -> None:
    """With all CPUs, and with one CPU for each process."""
    cpus = sorted(os.sched_getaffinity(0))
    runs: Runs = {
        LOCAL: ([], set(cpus)),
        ONE_WORKER: (workers[1], set(cpus)),
        LOCAL_ONE_CPU: ([], {cpus[0]}),
        TWO_WORKERS: (workers[2], set(cpus[:2])),
    }
    comparisons = {
        f"{len(cpus)} CPUs": (LOCAL, ONE_WORKER),
        "1 CPU a process": (LOCAL_ONE_CPU, TWO_WORKERS),
    }
    show_runs(f"training, {given.mode}", conf, given, runs, comparisons)


def show_servers(conf: Path, given: argparse.Namespace, worker: Sequence[str]) -> None:
    """One worker with its rows and dense weights on a server, in all modes, with all CPUs."""
    cpus = set(os.sched_getaffinity(0))
    runs: Runs = {LOCAL: ([], cpus)} | {
        f"{mode}, {WITH_SERVER}": ([*worker, "cluster.servers=1", f"cluster.mode={mode}"], cpus)
        for mode in MODES
    }
    show_runs("training with a server", conf, given, runs, {f"{len(cpus)} CPUs": tuple(runs)})


def show_runs(
    title: str,
    conf: Path,
    given: argparse.Namespace,
    runs: Runs,
    comparisons: Mapping[str, tuple[str, ...]],
) -> None:
    """Repeat the runs in turns, and show their speeds relative to the first of a comparison."""
    rates: dict[str, list[float]] = {name: [] for name in runs}
    batch = f"train.batch_size={given.batch}"

    def run(name: str) -> None:
        cluster, affinity = runs[name]
        output = fresh("speed")
        with running(conf, output, [batch, *cluster], affinity) as process:
            finish(process, output)
        rates[name].append(speed_of(output))
        shutil.rmtree(output)

    others = in_turns(list(runs), given.rounds, run)
    timing.show(
        title,
        "samples",
        {
            heading: timing.Comparison(given.batch, {name: rates[name] for name in names}, others)
            for heading, names in comparisons.items()
        },
    )


def in_turns(names: Sequence[str], rounds: int, run: Callable[[str], None]) -> list[float]:
    """Call `run` with all names in each round, in turns: the CPUs that others used, by round."""
    others = []
    for number in range(rounds):
        started, used = time.perf_counter(), cpu_of_others()
        for name in names[:: -1 if number % 2 else 1]:
            run(name)
        others.append(max(0.0, (cpu_of_others() - used) / (time.perf_counter() - started)))
    return others


def cpu_of_others() -> float:
    """Seconds of CPU that neither this process nor runs that have ended have used."""
    times = os.times()
    return timing.cpu_of_others() - times.children_user - times.children_system


def fresh(name: str) -> Path:
    """An output that does not exist."""
    output = OUTPUT / name
    shutil.rmtree(output, ignore_errors=True)
    return output


def show_start(conf: Path, workers: Mapping[int, list[str]], rounds: int) -> None:
    """Seconds from the command to step 10 of 64 rows, which take no time beside the rest."""
    runs = {
        LOCAL: [],
        ONE_WORKER: workers[1],
        "cluster of 2": workers[2],
    }
    if find_spec("ray") is not None:
        os.environ.pop("RAY_ADDRESS", None)  # the command starts a Ray
        runs["cluster of 2, by Ray"] = [*workers[2], "cluster.start=ray"]
    seconds: dict[str, list[float]] = {name: [] for name in runs}

    def run(name: str) -> None:
        output = fresh("start")
        started = time.monotonic()
        with running(conf, output, ["train.batch_size=64", *runs[name]]) as process:
            await_steps(process, output, bool)
            seconds[name].append(time.monotonic() - started)
            process.terminate()  # a Ray that is killed leaves its folder
            process.wait()

    others = in_turns(list(runs), rounds, run)
    rows = [["seconds from the command to step 10", "median", "least", "most", "later"]]
    for name, times in seconds.items():
        later = statistics.median(np.subtract(times, seconds[LOCAL]))
        rows.append([*in_words(name, times), f"{later:.2f}"])
    print(timing.table(rows))
    print("later: than one process, the median of the differences within a round.")
    print(f"Other programs used {statistics.median(others):.2f} CPUs (median).\n")


def show_recovery(conf: Path, batch: str, workers: Sequence[str], rounds: int) -> None:
    """Seconds from SIGKILL of a worker to the next logged step, of a model with W1's rows."""
    overrides = [batch, *workers, "train.epochs=1000"]
    table = [["recovery, s", "median", "least", "most"]]
    for rank, times in recoveries(conf, overrides, rounds).items():
        table.append(in_words(f"worker {rank} killed", times))
    print(timing.table(table))


def recoveries(conf: Path, overrides: Sequence[str], rounds: int) -> dict[int, list[float]]:
    """The seconds of each recovery, by the worker that is killed."""
    output = fresh("recovery")
    seconds: dict[int, list[float]] = {0: [], 1: []}
    with running(conf, output, overrides) as process:
        kept = -1
        for number in range(2 * rounds):
            # After three losses without a new checkpoint the run would end.
            kept = await_checkpoint(process, output, kept)
            await_steps(
                process, output, lambda steps, n=kept: bool(steps) and steps[-1].step > n + 20
            )
            rank, at_kill = number % 2, len(steps_of(output))
            kill_worker(process, rank)
            killed = time.monotonic()
            # As training resumes, the lines after those of the checkpoint are removed.
            remaining = await_steps(process, output, lambda steps, n=at_kill: len(steps) < n)
            count = len(remaining)
            await_steps(process, output, lambda steps, n=count: len(steps) > n)
            seconds[rank].append(time.monotonic() - killed)
    return seconds


def in_words(name: str, seconds: Sequence[float]) -> list[str]:
    figures = (statistics.median(seconds), min(seconds), max(seconds))
    return [name, *(f"{figure:.2f}" for figure in figures)]


if __name__ == "__main__":
    main()
