"""`tnctl train cluster=local` as processes, to which faults are done."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

from tnctl import files
from tnctl.checkpoint import load, rows
from tnctl.errors import Failure

SECONDS = 240  # for anything, on a slow machine
FILES = 6
ROWS, EPOCHS = 3000, 3
TRAIN = [
    "train", "conf=small.yaml", "cluster=local", "cluster.workers=2", "output=run",
    "data.train=part-*.csv", "train.batch_size=8", f"train.epochs={EPOCHS}",
    "save.every_steps=50", "evaluation.ablate=false", "golden=0",
]  # fmt: skip
KEEP_SHOWS = ["life.shows.keep=true"]
# Calls something in each worker.
IN_WORKERS = """
if "tnctl.launch.worker" in sys.orig_argv:
    threading.Thread(target={call}, daemon=True).start()
"""


def importing(folder):
    """The environment in which modules of a folder come first."""
    return {"PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


def split_training_data(folder):
    """Put the training data of a workspace into files of different sizes."""
    header, *lines = (folder / "clicks/train.csv").read_text().splitlines(keepends=True)
    even = np.linspace(0, len(lines), FILES + 1).astype(int)
    bounds = np.add(even, [0, 7, -31, 5, 40, -3, 0])
    for number, (first, end) in enumerate(itertools.pairwise(bounds)):
        text = "".join([header, *lines[first:end]])
        (folder / f"clicks/part-{number}.csv").write_text(text)


def number_rows(folder):
    """Give each row an id of its own, as another slot: its shows say how often it was trained."""
    conf = (folder / "small.yaml").read_text()
    (folder / "small.yaml").write_text(conf.replace("slots:\n", "slots:\n  row: {}\n"))
    others = [folder / f"clicks/{split}.csv" for split in ("train", "validation", "test")]
    for path in (*others, *(folder / f"clicks/part-{number}.csv" for number in range(FILES))):
        header, *lines = path.read_text().splitlines()
        numbered = [f"{line},{path.stem}-{place}" for place, line in enumerate(lines)]
        path.write_text("\n".join([f"{header},row", *numbered, ""]))


class Training:
    """A command that trains with some workers; all processes end with the block."""

    def __init__(self, folder, *overrides, prefix=(), environment=None, timeout=60):
        self.folder, self.run = folder, folder / "run"
        self.err = folder / "stderr"
        given = [*TRAIN, f"cluster.timeout={timeout}", *overrides]
        values = dict(text.split("=", 1) for text in given if "=" in text)
        self.size = int(values["cluster.workers"]) + int(values.get("cluster.servers", 0))
        with self.err.open("w") as err:
            self.supervisor = subprocess.Popen(
                [*prefix, sys.executable, "-m", "tnctl", *given], cwd=folder, stderr=err,
                stdout=err, env=os.environ | (environment or {}), start_new_session=True,
            )  # fmt: skip
        self.seen = set()  # of worker processes

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pids = [self.supervisor.pid, *self.workers()]
        for pid in {*pids, *self.seen} if self.supervisor.poll() is None else self.seen:
            if pid == self.supervisor.pid or is_a_worker(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.supervisor.wait()

    def workers(self):
        """The process ids of the workers, in the order of their ranks."""
        path = Path(f"/proc/{self.supervisor.pid}/task/{self.supervisor.pid}/children")
        with contextlib.suppress(OSError):
            pids = [int(pid) for pid in path.read_text().split()]
            pids = [pid for pid in pids if is_a_worker(pid)]
            self.seen.update(pids)
            return pids
        return []

    @property
    def said(self):
        return self.err.read_text()

    def until(self, condition):
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert self.supervisor.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            self.workers()
            time.sleep(0.02)

    def until_saved(self, more_than=()):
        """Wait for a checkpoint, beyond those that are known."""
        self.until(lambda: self.checkpoints() - set(more_than) and len(self.workers()) == self.size)

    def checkpoints(self):
        return {path.parent.name for path in self.run.glob("checkpoints/*/manifest.json")}

    def until_restarted(self, times=1):
        self.until(lambda: self.said.count("all workers start again") >= times)

    def wait(self):
        try:
            code = self.supervisor.wait(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end: {self.said}") from None
        assert all_ended(self.seen)
        return code

    def signal(self, rank, number):
        os.kill(self.workers()[rank], number)


def is_a_worker(pid):
    """Workers and servers name themselves."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().startswith(("tnctl worker", "tnctl server"))
    return False


def state_of(pid):
    """The letter of a process's state, Z of one that has ended; None without it."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return None


def lives(pid):
    return state_of(pid) not in (None, "Z")


def all_ended(pids):
    return all(not lives(pid) or not is_a_worker(pid) for pid in pids)


def is_locked(output):
    try:
        with files.locked(str(output)):
            return False
    except Failure:
        return True


def resume(folder, *overrides, run="run"):
    """The same command trains to the end, every row once."""
    with Training(folder, *overrides) as training:
        assert training.wait() == 0, training.said
    assert f"resuming from {run}/checkpoints/" in training.said
    assert trained_once(folder / run)
    assert "Traceback" not in training.said


def check_rows(run, epochs=EPOCHS, count=ROWS):
    """Each row was trained once per pass, as the report and the log say; of the first, also shows.

    These need `number_rows` and KEEP_SHOWS.
    """
    assert trained_once(run, epochs, count)
    assert shows_of_rows(run) == {1: count}


def shows_of_rows(run):
    """How many rows were shown how often."""
    checkpoint = load.newest(str(run))
    [(table, group)] = [
        (table, group)
        for table in checkpoint.manifest.tables
        for group in table.groups
        if group.name == "row"
    ]
    saved = np.concatenate(list(rows.stream(checkpoint, table.name)))
    return Counter(saved["show"][saved["group"] == group.number, 0].tolist())


def trained_once(run, epochs=EPOCHS, count=ROWS):
    """Whether each row was trained once per pass, as the report and the log say."""
    report = json.loads((run / "report.json").read_text())
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    logged = [line["examples"] for line in lines if line["event"] == "epoch"]
    return [epoch["examples"] for epoch in report["epochs"]] == [count] * epochs == logged


def until(condition, seconds=SECONDS):
    """Wait for a condition."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
