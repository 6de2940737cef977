"""Days on end, clocks that go backwards, two commands at once, limits of memory: from outside."""

import contextlib
import datetime
import os
import random
import resource
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_resume import Killed, kill, outcome, stop_at

pytestmark = pytest.mark.long

ROWS = 10_000
CONF = """\
defaults: [schema, {recipe: deepfm}, _self_]
recipe: {hidden: [8]}
embedding: {width: 4}
slots: {user: {}, item: {}}
numeric: {price: {transform: log1p}}
data: {root: data, format: parquet, window: 4096}
train: {batch_size: 256}
evaluation: {ablate: false}
"""


def write_rows(path, number, rows=ROWS, users=3000, new=900):
    """Clicks of users of whom `new` are others than those of the number before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(number)
    user = number * new + rng.integers(0, users, rows)
    columns = {
        "user": user, "item": rng.integers(0, 500, rows), "price": rng.exponential(10.0, rows),
        "label": (rng.random(rows) < 0.2 + 0.1 * (user % 3)).astype(np.int64),
    }  # fmt: skip
    pq.write_table(pa.table(columns), path)


def bytes_below(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_twenty_days_take_bounded_room(ran, tmp_path, monkeypatch):
    """Disk, files, threads and descriptors after each day, in one process with all commands."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "days.yaml").write_text(
        CONF.replace("data: {", 'data: {train: "{day}.parquet", ')
        + "life: {shows: {keep: true}, eviction: {unseen_days: 3}}\n"
        + "save: {full_every: 4, keep: 2, tombstone_days: 4}\n"
    )
    run, last_export, taken = tmp_path / "run", None, []
    for number in range(20):
        day = (datetime.date(2024, 1, 1) + datetime.timedelta(number)).isoformat()
        write_rows(tmp_path / f"data/{day}.parquet", number)
        since = () if last_export is None else (f"since={last_export}",)
        last_export = f"exports/{day}"
        export = ("export-embeddings", "output=run", "format=dictionary")
        commands = [
            ("train", "conf=days.yaml", "output=run", "golden=20"),
            (*export, f"to={last_export}", *since),
            (*export, "to=online"),
        ]
        if number % 8 == 7:
            commands.append(("fold", f"embeddings={last_export}", f"to=folded/{day}"))
            last_export = f"folded/{day}"
        for command in commands:
            ran(*command, cwd=tmp_path)
        assert not list(tmp_path.rglob(".tnctl*"))
        assert not list((tmp_path / "tmp").glob("tnctl*"))
        taken.append(
            {
                "checkpoints": len(list(run.glob("checkpoints/*"))),
                "bytes": bytes_below(run / "checkpoints"),
                "online": bytes_below(tmp_path / "online"),
                "files": len(list(tmp_path.glob("tmp/*"))),
                "descriptors": len(os.listdir("/proc/self/fd")),
                "threads": len(os.listdir("/proc/self/task")),
            }
        )
    # Of eviction there is as much in the second half as in the first, from the fifth day on.
    first, second = taken[5:12], taken[12:]
    for key in taken[0]:
        most = max(day[key] for day in first)
        assert max(day[key] for day in second) <= 1.1 * most + 2, (key, taken)


def test_clocks_that_go_backwards(trained, cli, ran, tmp_path, monkeypatch):
    """Every look at the time of day is days before the last one; the run is killed in between."""
    from tnctl.checkpoint import saver

    clock = [2e9]

    def earlier():
        clock[0] = max(clock[0] - 3.7 * 86_400, 0.0)
        return clock[0]

    class Backwards(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.datetime.fromtimestamp(earlier(), tz)

    folder = tmp_path / "backwards"
    folder.mkdir()
    for name in ("clicks", "small.yaml"):
        (folder / name).symlink_to(trained / name)
    command = ("train", "conf=small.yaml", "output=run", "save.every_steps=3", "save.full_every=3",
               "save.tombstone_days=2", "train.tensorboard=true")  # fmt: skip
    monkeypatch.setattr(time, "time", earlier)
    monkeypatch.setattr(time, "time_ns", lambda: int(earlier() * 1e9))
    monkeypatch.setattr(saver, "datetime", Backwards)
    for step in (5, 8):
        with monkeypatch.context() as patch, contextlib.suppress(Killed):
            stop_at(patch, step, kill)
            cli(*command, cwd=folder)
    done = ran(*command, cwd=folder)
    assert outcome(folder / "run")["digest"] == outcome(trained / "run")["digest"]
    for words in ("list run", "inspect run", "verify run", "prune run keep=1 yes=true"):
        done = cli("checkpoint", *words.split(), cwd=folder)
        assert done.code == 0 and "Traceback" not in done.err, done.err


def start(folder, *command):
    return subprocess.Popen(
        [sys.executable, "-m", "tnctl", *command],
        cwd=folder, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def ended(process):
    """The exit code of a command that did what it should or said in one line why not."""
    error = process.communicate(timeout=200)[1]
    assert "Traceback" not in error, error
    assert process.returncode in (0, 1, 2), error
    return process.returncode


def test_two_commands_at_once(cli, ran, tmp_path):
    write_rows(tmp_path / "data/train.parquet", 0)
    write_rows(tmp_path / "data/test.parquet", 1)
    conf = CONF.replace("data: {", "data: {train: train.parquet, test: test.parquet, ")
    (tmp_path / "two.yaml").write_text(conf + "output: run\n")
    commands = {
        "graph": ("split-graph", "output=run", "to=graph"),
        "embeddings": ("export-embeddings", "output=run", "to=embeddings", "format=dictionary"),
        "scores": ("predict", "output=run", "to=scores.csv", "overwrite=true"),
        "prepared": ("prepare", "conf=two.yaml", "to=prepared"),
        "compacted": ("checkpoint", "compact", "run", "to=compacted"),
    }
    # Beside training, whose checkpoints go as soon as the next is there.
    training = start(tmp_path, "train", "conf=two.yaml", "train.epochs=40", "golden=5",
                     "save.every_steps=10", "save.keep=1", "save.full_every=2")  # fmt: skip
    while not list(tmp_path.glob("run/checkpoints/*/manifest.json")) and training.poll() is None:
        time.sleep(0.05)
    for name in ("embeddings", "scores", "compacted"):
        ended(start(tmp_path, *commands[name]))
    ended(start(tmp_path, "checkpoint", "prune", "run", "keep=1", "yes=true"))
    assert ended(start(tmp_path, "train", "conf=two.yaml", "train.epochs=40")) in (0, 1)
    assert ended(training) == 0
    # Two of a kind at one place.
    for name, command in commands.items():
        first = start(tmp_path, *command)
        time.sleep(random.random())
        second = start(tmp_path, *command)
        codes = [ended(first), ended(second)]
        assert 0 in codes or (name == "compacted" and (tmp_path / name).exists()), codes
    assert cli("checkpoint", "verify", "run", cwd=tmp_path).code == 0
    assert cli("checkpoint", "verify", "compacted", cwd=tmp_path).code == 0
    ran("verify-serving", "output=run", "graph=graph", "embeddings=embeddings", cwd=tmp_path)
    assert len((tmp_path / "scores.csv").read_text().splitlines()) == ROWS + 1
    command = ("train", "conf=two.yaml", "data.prepared=prepared", "output=second")
    assert cli(*command, cwd=tmp_path).code == 0


@pytest.mark.parametrize("limit", ["RLIMIT_DATA", "RLIMIT_AS"])
def test_training_at_a_limit_of_memory(cli, tmp_path, limit):
    """Tables outgrow a limit: one line, a checkpoint, and with more memory the rest."""
    for part in range(4):
        write_rows(tmp_path / f"data/{part}.parquet", part, 1_000_000, users=10**9, new=0)
    conf = CONF.replace("data: {", 'data: {train: "*.parquet", ').replace("width: 4", "width: 32")
    (tmp_path / "large.yaml").write_text(conf.replace("window: 4096", "window: 65536"))
    command = ("train", "conf=large.yaml", "output=run", "golden=5", "train.batch_size=8192")
    allowed = {"RLIMIT_DATA": 1_900 << 20, "RLIMIT_AS": 4_400 << 20}[limit]
    number = getattr(resource, limit)
    limited = subprocess.run(
        [sys.executable, "-m", "tnctl", *command],
        cwd=tmp_path, text=True, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, timeout=200,
        preexec_fn=lambda: resource.setrlimit(number, (allowed, allowed)),
    )  # fmt: skip
    assert limited.returncode == 1 and "Traceback" not in limited.stderr, limited.stderr
    line = limited.stderr.splitlines()[-1]
    assert "before memory runs out: ulimit -" in line and "the tables hold" in line
    assert len(list(tmp_path.glob("run/checkpoints/*/manifest.json"))) == 1
    done = cli(*command, cwd=tmp_path)
    assert done.code == 0 and "resuming from" in done.err, done.err
