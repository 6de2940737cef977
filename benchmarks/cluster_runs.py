"""Runs of `tnctl train` on W1 as processes, and what their logs say of their speed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from benchmarks.workload import FOLDER, HIDDEN, NUMERIC, SLOTS, load
from tnctl.cluster.joining.assignment import end_with

MODES = ("sync", "async")
GROUPS = 32  # row groups of W1, which workers share evenly
NO_WARMUP = "cluster.warmup_batches=0"  # for speeds; it would be much of so short a run
SECONDS = 900  # until a run is given up
FIRST_SHARE = 0.3  # of the logged steps, which are left out of speeds


@dataclass(frozen=True)
class LoggedStep:
    """A step in log.jsonl; `seconds` is the time since the start of the run.

    `sent_bytes` are those of worker 0 since the line before, 0 in one process.
    """

    epoch: int
    step: int
    examples: int
    rows: int
    seconds: float
    sent_bytes: int


def prepared(rows: int) -> Path:
    """The conf file of DeepFM on so many rows of W1, prepared; written once."""
    folder = FOLDER / f"cluster-{rows}"
    conf, clicks = folder / "w1.yaml", folder / "w1.parquet"
    if not conf.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _write(clicks, rows)
        unprepared = folder / "unprepared.yaml"
        data = {"train": str(clicks), "format": "parquet", "window": rows // GROUPS}
        unprepared.write_text(_conf(data))
        prepare = [sys.executable, "-m", "tnctl", "prepare", f"conf={unprepared}"]
        subprocess.run([*prepare, f"to={folder / 'prepared'}"], check=True)
        clicks.unlink()
        conf.write_text(_conf({**data, "prepared": str(folder / "prepared")}))
    return conf


def _conf(data: dict[str, Any]) -> str:
    return yaml.safe_dump(
        {
            "defaults": ["schema", {"recipe": "deepfm"}, "_self_"],
            "recipe": {"hidden": list(HIDDEN)},
            "slots": {f"s{slot}": {"ids": "integer"} for slot in range(SLOTS)},
            "numeric": {f"n{place}": {} for place in range(NUMERIC)},
            "data": {"label": {"column": "label"}, **data},
            "evaluation": {"ablate": False},
        },
        sort_keys=False,
    )


def _write(path: Path, rows: int) -> None:
    workload = load()
    columns = {"label": pa.array(workload.labels[:rows])}
    for place in range(NUMERIC):
        columns[f"n{place}"] = pa.array(np.ascontiguousarray(workload.numeric[:rows, place]))
    for slot in range(SLOTS):
        ids = np.ascontiguousarray(workload.ids[:rows, slot]).astype(np.int64)
        columns[f"s{slot}"] = pa.array(ids)
    pq.write_table(pa.table(columns), path, row_group_size=rows // GROUPS)


def on_cpus(cpus: set[int], parent: int) -> None:
    """Called in a new process: use these CPUs only, and end with the parent."""
    end_with(parent)
    os.sched_setaffinity(0, cpus)


@contextmanager
def running(
    conf: Path, output: Path, overrides: Sequence[str], cpus: set[int] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A run of `tnctl train` on some CPUs, killed with its workers when the block ends.

    It ends also when this process is killed.
    """
    command = [sys.executable, "-m", "tnctl", "train", f"conf={conf}", f"output={output}"]
    log = output.with_suffix(".output")
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*command, *overrides],
            stdout=stream,
            stderr=stream,
            preexec_fn=partial(on_cpus, cpus or os.sched_getaffinity(0), os.getpid()),
        )
    try:
        yield process
    finally:
        process.kill()  # its workers end with it
        process.wait()


def finish(process: "subprocess.Popen[bytes]", output: Path) -> None:
    """Wait for a run. Exits with its output when it fails."""
    if process.wait(SECONDS):
        sys.exit(output.with_suffix(".output").read_text())


def steps_of(output: Path) -> list[LoggedStep]:
    """The lines of log.jsonl about steps, so far."""
    try:
        text = (output / "log.jsonl").read_text()
    except FileNotFoundError:
        return []
    lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    return [
        LoggedStep(
            epoch=line["epoch"],
            step=line["step"],
            examples=line["examples"],
            rows=line["rows"],
            seconds=line["timing"]["seconds"],
            sent_bytes=line["timing"].get("workers", [{}])[0].get("sent_bytes", 0),
        )
        for line in lines
        if line["event"] == "step"
    ]


def speed_of(output: Path) -> float:
    """Examples per second between logged steps of the first pass, without the first ones."""
    steps = [step for step in steps_of(output) if step.epoch == 1]
    first, last = steps[int(len(steps) * FIRST_SHARE)], steps[-1]
    seconds = last.seconds - first.seconds
    if seconds <= 0:
        sys.exit("too few steps: use more --rows or a smaller --batch")
    return (last.examples - first.examples) / seconds


def sent_per_second(output: Path) -> float:
    """Bytes that worker 0 sends per second, of the same steps."""
    steps = [step for step in steps_of(output) if step.epoch == 1]
    first = int(len(steps) * FIRST_SHARE)
    sent = sum(step.sent_bytes for step in steps[first + 1 :])
    return sent / (steps[-1].seconds - steps[first].seconds)


def await_steps(
    process: "subprocess.Popen[bytes]",
    output: Path,
    condition: Callable[[list[LoggedStep]], bool],
) -> list[LoggedStep]:
    """Wait until the logged steps are as they should be. Exits when the run ends before."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        steps = steps_of(output)
        if condition(steps):
            return steps
        time.sleep(0.01)
    sys.exit(output.with_suffix(".output").read_text())


def await_checkpoint(process: "subprocess.Popen[bytes]", output: Path, after: int = -1) -> int:
    """Wait for a checkpoint of a run of a step above `after`: the newest step."""

    def newest() -> int:
        folders = [path.parent.name for path in output.glob("checkpoints/*/manifest.json")]
        return max((int(name.removeprefix("step-")) for name in folders), default=-1)

    await_steps(process, output, lambda _: newest() > after)
    return newest()


def kill_worker(process: "subprocess.Popen[bytes]", rank: int) -> None:
    """Kill a worker of a run with SIGKILL."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[rank]), signal.SIGKILL)
