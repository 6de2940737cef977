"""Training over a network with a limit and a delay: two workers in network namespaces.

    python -m benchmarks.cluster_network [--modes MODE,...] [--rounds N] [--rows N]

Two commands with cluster=env, each in a namespace and on one CPU, train W1 over a link of this
machine: without a limit, at 1 Gbit/s (tc's tbf), and at 100 Mbit/s. Speeds are those of the first
pass without the first 30 % of its steps. Needs the right to make namespaces (root), and two CPUs;
without, a line says so.
"""

import argparse
import contextlib
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import network_nodes, timing
from benchmarks.cluster_runs import (
    MODES,
    NO_WARMUP,
    SECONDS,
    on_cpus,
    prepared,
    sent_per_second,
    speed_of,
    steps_of,
)
from benchmarks.network_nodes import Nodes
from benchmarks.workload import FOLDER

OUTPUT = FOLDER / "network-runs"
ROWS = 512_000
PORT = 29400
IDLE_SECONDS = 3.0
NAMES = str.maketrans(" /,", "---")


@dataclass(frozen=True)
class Network:
    """A limit in bits per second, None without."""

    name: str
    bits: float | None


NETWORKS = (Network("no limit", None), Network("1 Gbit/s", 1e9), Network("100 Mbit/s", 1e8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modes", default=",".join(MODES), help="of cluster.mode (default: all)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--rows", type=int, default=ROWS, help="of W1")
    parser.add_argument("--batch", type=int, default=4096, help="train.batch_size, of a worker")
    parser.add_argument("--wire", default="float32", help="cluster.wire")
    parser.add_argument("--timeout", type=float, default=5.0, help="cluster.timeout")
    given = parser.parse_args()
    reason = network_nodes.reason_against()
    if reason is None and len(os.sched_getaffinity(0)) < 2:
        reason = "two CPUs are needed"
    if reason is not None:
        sys.exit(f"nothing is measured: {reason}")
    conf = prepared(given.rows)
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(parents=True)
    for mode in given.modes.split(","):
        others = cores_of_others()
        show(mode, measured(conf, mode, given))
        print(f"{given.rounds} rounds; before them other processes used {others:.2f} cores\n")


def measured(conf: Path, mode: str, given: argparse.Namespace) -> "dict[str, list[Measurement]]":
    """The runs of each network, which take turns."""
    runs: dict[str, list[Measurement]] = {network.name: [] for network in NETWORKS}
    for number in range(given.rounds):
        for network in NETWORKS[:: -1 if number % 2 else 1]:
            output = OUTPUT / f"{mode}-{network.name.translate(NAMES)}-{number}"
            overrides = [
                f"train.batch_size={given.batch}", f"cluster.mode={mode}", NO_WARMUP,
                f"cluster.wire={given.wire}", f"cluster.timeout={given.timeout}",
                "train.epochs=1000",
            ]  # fmt: skip
            runs[network.name].append(run(network, conf, output, overrides))
            shutil.rmtree(output)
    return runs


def show(mode: str, runs: "dict[str, list[Measurement]]") -> None:
    """A table of a mode."""
    base = statistics.median(run.rate for run in runs[NETWORKS[0].name])
    rows = [[f"{mode}, 2 workers", "examples/s", "of no limit", "MB/s sent"]]
    for name, of_network in runs.items():
        rate = statistics.median(run.rate for run in of_network)
        bytes_ = statistics.median(run.bytes_per_second for run in of_network)
        rows.append([name, f"{rate:,.0f}", f"{rate / base:.1%}", f"{bytes_ / 1e6:.1f}"])
    print(timing.table(rows), flush=True)


def cores_of_others() -> float:
    """The cores that other processes use while nothing is measured."""
    used = timing.cpu_of_others()
    time.sleep(IDLE_SECONDS)
    return (timing.cpu_of_others() - used) / IDLE_SECONDS


# ---- A run -----------------------------------------------------------------------


@dataclass(frozen=True)
class Measurement:
    """A run: examples per second, and bytes per second that worker 0 sends."""

    rate: float
    bytes_per_second: float


def run(network: Network, conf: Path, output: Path, overrides: Sequence[str]) -> Measurement:
    """Train over a network until a pass is over."""
    logs = [output.with_name(f"{output.name}-{rank}.output") for rank in range(2)]
    token, given = secrets.token_hex(16), [f"conf={conf}", f"output={output}", *overrides]
    with network_nodes.two_nodes() as nodes, contextlib.ExitStack() as stack:
        nodes.limit(network.bits)
        commands = [
            stack.enter_context(command(nodes, rank, token, given, logs[rank])) for rank in range(2)
        ]
        await_pass(commands, output, logs)
    return Measurement(rate=speed_of(output), bytes_per_second=sent_per_second(output))


@contextlib.contextmanager
def command(
    nodes: Nodes, rank: int, token: str, given: Sequence[str], log: Path
) -> "Iterator[subprocess.Popen[bytes]]":
    """The command of a worker on one CPU, killed with its worker when the block ends."""
    cpu = sorted(os.sched_getaffinity(0))[rank]
    environment = os.environ | {
        "TNCTL_RANK": str(rank), "TNCTL_WORKERS": "2", "TNCTL_TOKEN": token,
        "TNCTL_ADDRESS": f"{nodes.addresses[0]}:{PORT}", "TNCTL_BIND": nodes.addresses[rank],
    }  # fmt: skip
    program = [sys.executable, "-m", "tnctl", "train", "cluster=env", *given]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            nodes.command(rank, program), env=environment, stdout=stream, stderr=stream,
            preexec_fn=partial(on_cpus, {cpu}, os.getpid()),
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()  # its worker ends with it
        process.wait()


def await_pass(
    commands: "Sequence[subprocess.Popen[bytes]]", output: Path, logs: Sequence[Path]
) -> None:
    """Wait for the end of a pass. Exits with the output when a command ends before."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and all(command.poll() is None for command in commands):
        steps = steps_of(output)
        if steps and steps[-1].epoch > 1:
            return
        time.sleep(0.2)
    sys.exit("".join(log.read_text() for log in logs))


if __name__ == "__main__":
    main()
