"""`tnctl train cluster=local` up to the workers, which here only write down what they are given."""

import dataclasses
import json
import subprocess
import sys
from functools import partial

import pytest
from conftest import CONF, write_clicks

from tnctl import files, schema
from tnctl.cluster import worker_errors
from tnctl.composing import compose
from tnctl.errors import UserError
from tnctl.launch import run
from tnctl.launch.spawn import LocalProcesses
from tnctl.training import run_folder

PROGRAM = """
import json, os, sys, time
from tnctl.cluster.joining.assignment import take_assignment
given = take_assignment()
with open(f"given-{given.generation}-{given.rank}", "w") as file:
    json.dump(given.task, file)
if given.task["golden"] == given.generation and given.rank == 0:
    os.makedirs("run/checkpoints/step-0000000001")
    open("run/checkpoints/step-0000000001/manifest.json", "w").close()
print("rank", given.rank, flush=True)
if given.generation < 3:
    # Rank 0 waits for rank 1, which is lost as soon as rank 0 has written its file.
    while given.rank == 0 or not os.path.exists(f"done-{given.generation}"):
        open(f"done-{given.generation}", "w").close() if given.rank == 0 else None
        time.sleep(0.01)
    sys.exit(75)
"""
RUN = ("train", "conf=own.yaml", "output=run", "cluster=local", "cluster.workers=2")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "own.yaml").write_text(CONF)
    command = (sys.executable, "-c", PROGRAM)
    monkeypatch.setattr(run, "LocalProcesses", partial(LocalProcesses, command=command))
    write_clicks(tmp_path / "clicks")
    return tmp_path


def given(folder, generation, rank=1):
    return json.loads((folder / f"given-{generation}-{rank}").read_text())


@pytest.mark.alone
def test_workers_get_the_conf_and_overwrite_until_there_is_a_checkpoint(ran, folder):
    ran(*RUN, "overwrite=true", "golden=2", cwd=folder)
    conf = compose.compose(folder / "own.yaml", list(RUN[2:]))
    tasks = [given(folder, generation) for generation in (1, 2, 3)]
    assert tasks[0]["conf"] == dataclasses.asdict(conf) and conf.cluster.workers == 2
    assert [task["overwrite"] for task in tasks] == [True, True, False]
    assert all(task["golden"] == 2 and task["accept"] is False for task in tasks)
    log = (folder / "run/workers/rank-1.log").read_text()
    assert log.count("rank 1") == 3 and "generation 3" in log
    assert not (folder / "run/.tnctl-lock").exists()


def kept(output, workers, overwrite=False):
    cluster = schema.Cluster(start="local", workers=workers)
    with run.logs_of(str(output), cluster, None, overwrite) as folder:
        return [folder / f"rank-{rank}.log" for rank in range(workers)]


def test_logs_are_tnctls_files(tmp_path, monkeypatch):
    output = tmp_path / "run"
    logs = kept(output, 2)
    logs[1].write_text("lines\n")
    logs[0].write_text("of a version in which worker 0 had a log\n")
    assert kept(output, 3)[:2] == logs
    assert logs[1].read_text() == "lines\n"
    monkeypatch.setattr(worker_errors, "_output", str(output))
    worker_errors.show_traceback(ValueError("a bug"))
    kept(output, 2, overwrite=True)
    assert [path.name for path in (output / "workers").glob("*")] == ["rank-1.log"]
    assert logs[1].read_text() == ""
    run_folder.remove(str(output), by_workers=True)
    assert logs[1].exists()
    (output / "workers/notes.txt").write_text("mine")
    run_folder.remove(str(output))
    assert [path.name for path in (output / "workers").iterdir()] == ["notes.txt"]
    logs[1].symlink_to(output / "workers/notes.txt")
    with pytest.raises(UserError, match=r"holds rank-1\.log, which tnctl did not write"):
        kept(output, 2, overwrite=True)
    assert (output / "workers/notes.txt").read_text() == "mine"


def test_logs_of_another_storage_are_written_at_the_end():
    log = kept("memory://logs/run", 2)[1]
    assert files.read_bytes("memory://logs/run/workers/rank-1.log") == b""
    with run.kept_logs("memory://logs/run", ["rank-1.log"]) as folder:
        (folder / "rank-1.log").write_text("lines\n")
    assert files.read_bytes("memory://logs/run/workers/rank-1.log") == b"lines\n"
    assert not log.exists()
    kept("memory://logs/run", 2)  # they are tnctl's


def test_the_supervisor_imports_nothing_heavy():
    program = "import sys, tnctl.launch.run; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "tnctl.launch.supervisor" in done.stdout, done.stderr
    assert not {"tensorflow", "keras", "grpc", "ray"} & set(done.stdout.split())


def test_without_grpc_a_line_names_the_extra(cli, folder, monkeypatch):
    monkeypatch.setattr(run, "find_spec", lambda _: None)
    done = cli(*RUN, cwd=folder)
    assert done.code == 2 and "pip install 'tnctl[cluster]'" in done.line
    assert not (folder / "run").exists()
