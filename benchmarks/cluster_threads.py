"""The CPU of two workers' steps, by what the threads of their processes do.

A thread in each worker reads the CPU time of all threads from /proc/self/task. Python knows the
names of its threads, and so those of gRPC for Python; gRPC's own threads have names of the system.
All of these are transport, but for what the threads that answer calls do in `Node._own`, where an
owner applies and reads rows. So is what other threads do in `Endpoint.call`. The CPU of both is
added up call by call. The main thread also answers its own part of each exchange.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import timing

SAMPLES = "TNCTL_BENCHMARK_SAMPLES"  # the folder that workers write their samples to
SECONDS_BETWEEN = 0.5
WORKERS = 2
FIRST_CALLS = 30  # in a step of two workers each makes one
OF_PYTHON = ("tnctl-peer", "tnctl-calls", "tnctl-liveness", "channel_spin", "_serve", "grpc")
OF_SYSTEM = ("grpc", "event_engine", "timer_manager", "resolver", "default-executor")
TRANSPORT, OWNER, MAIN, REST = "transport", "owner", "main thread", "other threads"


# ---- In a worker ---------------------------------------------------------------


def kind_of(name: str, system_name: str) -> str:
    """What a thread does; `name` is empty for one that Python does not know."""
    if any(part in name for part in OF_PYTHON) or system_name.startswith(OF_SYSTEM):
        return TRANSPORT
    return {"MainThread": MAIN}.get(name, REST)


def cpu_seconds() -> Counter[str]:
    """The CPU of this process's threads so far, by what they do."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    seconds: Counter[str] = Counter()
    for task in Path("/proc/self/task").iterdir():
        try:
            used = int((task / "schedstat").read_text().split()[0]) / 1e9
            system_name = (task / "comm").read_text().strip()
        except OSError:  # it has ended
            continue
        seconds[kind_of(names.get(int(task.name), ""), system_name)] += used
    return seconds


class Sampler:
    """Writes a line per sample: calls, CPU of making and of answering them, by kind of thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.calls, self.calling, self.owning = 0, 0.0, 0.0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while (node := sys.modules.get("tnctl.cluster.node")) is None or not hasattr(node, "Node"):
            time.sleep(0.01)
        from tnctl.cluster.transport.rpc import Endpoint

        self._measure(Endpoint, node.Node)
        with self._path.open("w") as stream:
            while True:
                counts = {"calls": self.calls, "calling": self.calling, "owning": self.owning}
                stream.write(json.dumps(counts | cpu_seconds()) + "\n")
                stream.flush()
                time.sleep(SECONDS_BETWEEN)

    def _measure(self, endpoint: Any, node: Any) -> None:
        call, answer = endpoint.call, node._own

        def calling(*arguments: Any) -> Any:
            started = time.thread_time()
            reply = call(*arguments)
            with self._lock:
                self.calls += 1
                self.calling += time.thread_time() - started
            return reply

        def owning(*arguments: Any) -> None:
            started = time.thread_time()
            answer(*arguments)
            if threading.current_thread().name.startswith("tnctl-calls"):
                with self._lock:
                    self.owning += time.thread_time() - started

        endpoint.call, node._own = calling, owning


def work() -> None:
    """As tnctl.launch.worker, with a sampler."""
    from tnctl.launch.worker import run
    from tnctl.system import leave_with

    Sampler(Path(os.environ[SAMPLES]) / f"{os.getpid()}.jsonl")
    try:
        leave_with("tnctl train", run)
    except SystemExit as ended:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended.code if isinstance(ended.code, int) else 1)


# ---- The run ---------------------------------------------------------------------


def supervise(conf_file: str, output: str, overrides: Sequence[str]) -> int:
    """`tnctl train cluster=local` with workers that have a sampler."""
    from tnctl.cluster.joining.liveness import SILENCE
    from tnctl.composing import compose
    from tnctl.launch.spawn import LocalProcesses, membership_of
    from tnctl.launch.supervisor import TRAIN, supervise

    values = [f"output={output}/run", "cluster=local", f"cluster.workers={WORKERS}", *overrides]
    conf = compose.compose_run(Path(conf_file), values, takes_cluster=True)
    task = {
        "command": TRAIN, "conf": dataclasses.asdict(conf), "overwrite": True, "golden": 0,
        "accept": False,
    }  # fmt: skip
    folder, silence = Path(output), conf.cluster.timeout * SILENCE
    folder.mkdir(parents=True)
    command = (sys.executable, "-m", "benchmarks.cluster_threads", "work")
    membership = membership_of(conf.cluster)
    return supervise(LocalProcesses(TRAIN, membership, folder, silence, command=command), task)


def show(conf: Path, output: Path, overrides: Sequence[str]) -> None:
    """A run, and a table of the CPU of its steps."""
    samples = output.with_suffix(".samples")
    samples.mkdir()
    subprocess.run(
        [sys.executable, "-m", "benchmarks.cluster_threads", "supervise", str(conf), str(output),
         *overrides],
        env={**os.environ, SAMPLES: str(samples)},
        check=True,
    )  # fmt: skip
    totals: Counter[str] = Counter()
    for path in samples.iterdir():
        totals.update(between(path))
    steps = totals.pop("calls") / WORKERS
    calling, owning = totals.pop("calling"), totals.pop("owning")
    totals[MAIN] -= calling
    totals[TRANSPORT] += calling - owning
    totals[OWNER] += owning
    cpu = sum(totals.values())
    rows = [["CPU of a step of 2 workers", "ms", "share"]]
    rows += [
        [kind, f"{1e3 * totals[kind] / steps:.2f}", f"{totals[kind] / cpu:.1%}"]
        for kind in (TRANSPORT, OWNER, MAIN, REST)
    ]
    print(timing.table([*rows, ["together", f"{1e3 * cpu / steps:.2f}", ""]]))


def between(path: Path) -> Counter[str]:
    """What a worker has used from its first steps to its last ones."""
    samples = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    last = max(sample["calls"] for sample in samples)
    first = next((s for s in samples if s["calls"] >= FIRST_CALLS), None)
    final = next(sample for sample in samples if sample["calls"] == last)
    if first is None or first["calls"] == last:
        sys.exit("too few steps: use more --rows or a smaller --batch")
    return Counter({name: value - first.get(name, 0) for name, value in final.items()})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("do", choices=("work", "supervise"))
    parser.add_argument("arguments", nargs="*")
    given = parser.parse_args()
    if given.do == "work":
        work()
    sys.exit(supervise(given.arguments[0], given.arguments[1], given.arguments[2:]))
