"""`tnctl train cluster=local` up to the workers, which here only write down what they are given."""

import dataclasses
import json
import subprocess
import sys

import pytest
from conftest import CONF, write_clicks

from tnctl import files, schema
from tnctl.cluster import worker_errors
from tnctl.composing import compose
from tnctl.errors import UserError
from tnctl.launch import local_workers
from tnctl.launch.local_processes import LocalProcesses
from tnctl.training import run_folder

PROGRAM = """
import json, os, sys, time
from tnctl.cluster.joining.assignment import Supervised
given = Supervised().assignment
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
    monkeypatch.setattr(
        local_workers,
        "LocalProcesses",
        lambda *arguments, **options: LocalProcesses(
            *arguments, command, **options | {"program": None}
        ),
    )
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
    with local_workers.started(cluster, str(output), overwrite) as processes:
        return processes.logs


def test_logs_are_tnctls_files(tmp_path, monkeypatch):
    output = tmp_path / "run"
    logs = kept(output, 2)
    logs[1].write_text("lines\n")
    assert kept(output, 3)[:2] == logs
    assert logs[1].read_text() == "lines\n"
    monkeypatch.setattr(worker_errors, "_output", str(output))
    worker_errors.show_traceback(ValueError("a bug"))
    kept(output, 2, overwrite=True)
    assert sorted(path.name for path in (output / "workers").glob("*")) == [
        "rank-0.log", "rank-1.log",
    ]  # fmt: skip
    assert logs[1].read_text() == ""
    run_folder.remove(str(output), by_workers=True)
    assert logs[1].exists()
    (output / "workers/notes.txt").write_text("mine")
    run_folder.remove(str(output))
    assert [path.name for path in (output / "workers").iterdir()] == ["notes.txt"]
    logs[0].symlink_to(output / "workers/notes.txt")
    with pytest.raises(UserError, match=r"holds rank-0\.log, which tnctl did not write"):
        kept(output, 1, overwrite=True)
    assert (output / "workers/notes.txt").read_text() == "mine"


def test_logs_of_another_storage_are_written_at_the_end():
    names = ["rank-0.log", "rank-1.log"]
    local_workers.claim_logs("memory://logs/run", names)
    with local_workers.kept_logs("memory://logs/run", names) as logs:
        logs[1].write_text("lines\n")
    assert files.read_bytes("memory://logs/run/workers/rank-1.log") == b"lines\n"
    assert not logs[1].exists()
    kept("memory://logs/run", 2)  # they are tnctl's


def test_the_supervisor_imports_nothing_heavy():
    program = "import sys, tnctl.launch.local_workers; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "tnctl.launch.supervisor" in done.stdout, done.stderr
    assert not {"tensorflow", "keras", "grpc", "ray"} & set(done.stdout.split())


def test_without_grpc_a_line_names_the_extra(cli, folder, monkeypatch):
    monkeypatch.setattr(local_workers, "find_spec", lambda _: None)
    done = cli(*RUN, cwd=folder)
    assert done.code == 2 and "pip install 'tnctl[cluster]'" in done.line
    assert not (folder / "run").exists()
