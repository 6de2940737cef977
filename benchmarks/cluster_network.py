"""Training over a network with a limit and a delay: two workers in network namespaces.

    python -m benchmarks.cluster_network [--modes MODE,...] [--rounds N] [--rows N] [--seconds N]

Two commands with cluster=env, each in a namespace and on one CPU, train W1 over a link of this
machine: without a limit, at 1 Gbit/s (tc's tbf), the same with 1 ms more for a round trip (a relay,
relay.py), and at 100 Mbit/s. Speeds are those of the first pass without the first 30 % of its
steps. At 100 Mbit/s training continues until the display has named what limits it, or for
`--seconds`. Needs the right to make namespaces (root), and two CPUs; without, a line says so.
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
    NO_WARMUP,
    SECONDS,
    modes,
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
PORT, RELAYED = 29400, 29401
SLOW = "slow: "
IDLE_SECONDS = 3.0
NAMES = str.maketrans(" /,", "---")


@dataclass(frozen=True)
class Network:
    """A limit in bits per second, None without, and milliseconds that a round trip takes more."""

    name: str
    bits: float | None
    milliseconds: float = 0.0
    is_slow: bool = False


NETWORKS = (
    Network("no limit", None),
    Network("1 Gbit/s", 1e9),
    Network("1 Gbit/s, 1 ms", 1e9, 1.0),
    Network("100 Mbit/s", 1e8, is_slow=True),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modes", default="", help="of cluster.mode (default: all there are)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--rows", type=int, default=ROWS, help="of W1")
    parser.add_argument("--batch", type=int, default=4096, help="train.batch_size, of a worker")
    parser.add_argument("--seconds", type=float, default=75, help="of a slow network, at most")
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
    for mode in given.modes.split(",") if given.modes else modes():
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
            seconds = given.seconds if network.is_slow else 0.0
            runs[network.name].append(run(network, conf, output, overrides, seconds))
            shutil.rmtree(output)
    return runs


def show(mode: str, runs: "dict[str, list[Measurement]]") -> None:
    """A table of a mode, and what was said of slow networks."""
    base = statistics.median(run.rate for run in runs[NETWORKS[0].name])
    rows = [[f"{mode}, 2 workers", "examples/s", "of no limit", "MB/s sent", "relay's cores"]]
    for name, of_network in runs.items():
        rate = statistics.median(run.rate for run in of_network)
        bytes_ = statistics.median(run.bytes_per_second for run in of_network)
        relay = max(run.relay_cores for run in of_network)
        rows.append(
            [name, f"{rate:,.0f}", f"{rate / base:.1%}", f"{bytes_ / 1e6:.1f}", f"{relay:.2f}"]
        )
    print(timing.table(rows))
    for network in NETWORKS:
        for run in runs[network.name] if network.is_slow else ():
            print(f"{network.name}: {run.slow or 'nothing was said of what limits'}", flush=True)


def cores_of_others() -> float:
    """The cores that other processes use while nothing is measured."""
    used = timing.cpu_of_others()
    time.sleep(IDLE_SECONDS)
    return (timing.cpu_of_others() - used) / IDLE_SECONDS


# ---- A run -----------------------------------------------------------------------


@dataclass(frozen=True)
class Measurement:
    """A run: examples per second, bytes per second that worker 0 sends, and what limited it."""

    rate: float
    bytes_per_second: float
    relay_cores: float
    slow: str


def run(
    network: Network, conf: Path, output: Path, overrides: Sequence[str], seconds: float
) -> Measurement:
    """Train over a network until a pass is over, and for so many seconds, or until `SLOW`."""
    logs = [output.with_name(f"{output.name}-{rank}.output") for rank in range(2)]
    with network_nodes.two_nodes() as nodes:
        nodes.limit(network.bits)
        started = time.monotonic()
        with relayed(nodes, network.milliseconds) as used:
            token, given = secrets.token_hex(16), [f"conf={conf}", f"output={output}", *overrides]
            with contextlib.ExitStack() as stack:
                commands = [
                    stack.enter_context(command(nodes, rank, network, token, given, logs[rank]))
                    for rank in range(2)
                ]
                slow = await_pass(commands, output, logs, seconds)
                elapsed = time.monotonic() - started
    return Measurement(
        rate=speed_of(output),
        bytes_per_second=sent_per_second(output),
        relay_cores=used[0] / elapsed if used else 0.0,
        slow=slow,
    )


@contextlib.contextmanager
def relayed(nodes: Nodes, milliseconds: float) -> Iterator[list[float]]:
    """A relay in node 1 to worker 0, if there is a delay; then the seconds of CPU it has used."""
    used: list[float] = []
    if not milliseconds:
        yield used
        return
    relay = [sys.executable, "-m", "benchmarks.relay", "127.0.0.1", str(RELAYED)]
    there = [nodes.addresses[0], str(PORT), str(milliseconds / 2)]
    process = subprocess.Popen(
        nodes.command(1, [*relay, *there]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield used
        answer, _ = process.communicate("")
        used.append(float(answer))
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def command(
    nodes: Nodes, rank: int, network: Network, token: str, given: Sequence[str], log: Path
) -> "Iterator[subprocess.Popen[bytes]]":
    """The command of a worker on one CPU, killed with its worker when the block ends."""
    cpu = sorted(os.sched_getaffinity(0))[rank]
    is_relayed = rank == 1 and network.milliseconds
    worker_0 = f"127.0.0.1:{RELAYED}" if is_relayed else f"{nodes.addresses[0]}:{PORT}"
    environment = os.environ | {
        "TNCTL_RANK": str(rank), "TNCTL_WORKERS": "2", "TNCTL_TOKEN": token,
        "TNCTL_ADDRESS": worker_0, "TNCTL_BIND": nodes.addresses[rank],
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
    commands: "Sequence[subprocess.Popen[bytes]]",
    output: Path,
    logs: Sequence[Path],
    seconds: float,
) -> str:
    """Wait for the end of a pass, and the line that names what limits; "" when there was none."""
    deadline, training_since = time.monotonic() + SECONDS, 0.0
    while time.monotonic() < deadline:
        if any(command.poll() is not None for command in commands):
            break
        steps = steps_of(output)
        if steps and not training_since:
            training_since = time.monotonic()
        said = [line for line in logs[0].read_text().splitlines() if line.startswith(SLOW)]
        has_time = training_since and time.monotonic() - training_since < seconds
        if steps and steps[-1].epoch > 1 and (said or not has_time):
            return said[0].removeprefix(SLOW) if said else ""
        time.sleep(0.2)
    sys.exit("".join(log.read_text() for log in logs))


if __name__ == "__main__":
    main()
