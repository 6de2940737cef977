"""Commands that only read a model, run by several workers: what one process says, byte for byte."""

import contextlib
import dataclasses
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import cluster_commands
import cluster_in_one_process
import env_commands
import numpy as np
import pytest
from conftest import CONF, run_process, write_clicks

from tnctl import schema
from tnctl.checkpoint import load as loading
from tnctl.cluster.messages import prediction_blocks
from tnctl.cluster.rank_0.cluster_processes import ClusterProcesses
from tnctl.composing import compose
from tnctl.errors import Failure
from tnctl.evaluation import predictions
from tnctl.evaluation.model_readers import LocalReader
from tnctl.serving import verification
from tnctl.serving.graph.splitting import split
from tnctl.serving.rows.export import export
from tnctl.training.run import train

# A unit of a single row, and windows that end within units.
BOUNDS = [0, 150, 160, 400, 401, 700]
OVERRIDES = [
    "output=run", "data.test=test-*.csv", "data.window=256", "data.carry=[user_id,label]",
    "life.shows.cvm=true", "optimizer.embedding.weight_decay=0.1", "evaluation.ablate=false",
]  # fmt: skip
# Put before all modules of a worker: the one of a rank does something once, at a command of rank 0.
AT_A_COMMAND = """
import os, signal, sys, time
def begin():
    from tnctl.cluster.messages import commands
    from tnctl.cluster.node import Node
    rank, name = os.environ["AT"].split()
    def act(at, called):
        if (at, called) == (int(rank), name):
            if not os.path.exists("acted"):
                open("acted", "w").close()
                exec(os.environ["ACTION"])
    send, run = Node.command, commands.run
    def send_and_act(self, to, method, *given):
        sent = send(self, to, method, *given)
        act(self.rank, method.__name__)
        return sent
    def run_and_act(target, body):
        act(getattr(target, "node", None) and target.node.rank, commands.name_of(body))
        return run(target, body)
    Node.command, commands.run = send_and_act, run_and_act
if "tnctl.launch.worker" in sys.orig_argv:
    begin()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A trained run, its exports, and test data in files; the current folder of these tests."""
    folder = tmp_path_factory.mktemp("reading")
    write_clicks(folder / "clicks")
    (folder / "small.yaml").write_text(CONF)
    header, *lines = (folder / "clicks/test.csv").read_text().splitlines(keepends=True)
    for number, (first, end) in enumerate(itertools.pairwise(BOUNDS)):
        (folder / f"clicks/test-{number}.csv").write_text("".join([header, *lines[first:end]]))
    with contextlib.chdir(folder):
        train(conf_of(), golden=20)
        checkpoint = loading.newest("run")
        split(checkpoint, conf_of(), "run/graph")
        export(checkpoint, conf_of(), "run/embeddings", precision="int8")
        yield folder


def conf_of(*overrides, servers=0):
    conf = compose.compose(Path("small.yaml").resolve(), [*OVERRIDES, *overrides])
    return dataclasses.replace(conf, cluster=schema.Cluster(servers=servers))


@contextlib.contextmanager
def reading(conf, workers):
    """The model of the run as several workers have it."""
    with cluster_in_one_process.following(conf, workers) as (node, errors):
        yield ClusterProcesses(node).readers(loading.newest("run"), conf)
    assert errors == []


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("workers, servers", [
    (2, 0), (3, 0), (2, 2), pytest.param(1, 3, marks=pytest.mark.long),
])  # fmt: skip
def test_metrics_and_predictions_are_those_of_one_process(tmp_path, workers, servers, monkeypatch):
    monkeypatch.setattr(prediction_blocks, "BLOCK_BYTES", 2000)  # several blocks of each unit
    conf = conf_of(servers=servers)
    alone = LocalReader(loading.newest("run"), conf)
    with reading(conf, workers) as together:
        assert together.metrics("test") == alone.metrics("test")
        rows = sum(table.rows for table in alone.model.tables)
        of_worker_0 = sum(table.rows for table in together.model.tables)
        assert of_worker_0 == 0 if servers else 0 < of_worker_0 < rows
        for kind in ("parquet", "csv", "jsonl") if (workers, servers) == (2, 0) else ["csv"]:
            for name, reader in (("alone", alone), ("together", together)):
                to, tables = str(tmp_path / f"{name}.{kind}"), reader.predictions("test")
                assert predictions.predict(reader.model, tables, conf, "test", to, kind) == 700
            written = [(tmp_path / f"{name}.{kind}").read_bytes() for name in ("alone", "together")]
            assert written[0] == written[1]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("workers, servers", [(3, 0), (1, 2)])
def test_what_is_read_of_keys_is_what_one_process_reads(workers, servers):
    conf = conf_of(servers=servers)
    alone = LocalReader(loading.newest("run"), conf)
    with reading(conf, workers) as together:
        for place, table in enumerate(alone.model.tables):
            records = np.concatenate(list(table.records()))
            groups = np.append(records["group"], [0, 0]).astype(np.uint16)
            ids = np.append(records["id"], np.array([1, 2], np.uint64))
            rows, known = together.rows(place, groups, ids)
            expected, there = alone.rows(place, groups, ids)
            assert rows.tobytes() == expected.tobytes() and rows.any()
            assert known.tolist() == there.tolist() and known.sum() == len(records)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("workers, servers", [(2, 0), (1, 2)])
def test_serving_is_verified_against_the_rows_of_all_owners(workers, servers):
    conf, checkpoint = conf_of(servers=servers), loading.newest("run")
    places = "run/graph", "run/embeddings"
    alone = verification.verify(checkpoint, conf, *places)
    with cluster_in_one_process.following(conf, workers) as (node, _):
        readers = ClusterProcesses(node).readers
        assert verification.verify(checkpoint, conf, *places, readers=readers) == alone
    assert all(finding.held for finding in alone) and len(alone) > 8


def test_a_bad_row_ends_all_with_a_line_that_names_worker_and_file(folder, capsys):
    path = folder / "clicks/test-1.csv"
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    price = lines[0].strip().replace('"', "").split(",").index("price")
    cells = lines[3].split(",")
    cells[price] = "dear"
    path.write_text("".join([*lines[:3], ",".join(cells), *lines[4:]]))
    conf = conf_of()
    try:
        for command in ("metrics", "predictions"):
            with (
                pytest.raises(Failure, match=r"^worker 1: .*test-1\.csv, line 4, column 'price'"),
                reading(conf, 2) as together,
            ):
                list(getattr(together, command)("test"))
        with reading(conf_of("data.bad_rows=1"), 2) as together:
            assert sum(table.num_rows for table in together.predictions("test")) == 699
            capsys.readouterr()
            together.metrics("test")
        assert "data.test: 1 rows cannot be read and were left out" in capsys.readouterr().err
    finally:
        path.write_text(text)


@pytest.mark.usefixtures("folder")
def test_a_damaged_checkpoint_is_one_line(tmp_path):
    shutil.copytree(loading.newest("run").folder, tmp_path / "step-0000000012")
    path = max((tmp_path / "step-0000000012/tables").rglob("*.rows*"))
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)
    checkpoint, conf = loading.open_checkpoint(str(tmp_path / "step-0000000012")), conf_of()
    with (
        pytest.raises(Failure, match="damaged") as error,
        cluster_in_one_process.following(conf, 2) as (node, _),
    ):
        ClusterProcesses(node).readers(checkpoint, conf)
    assert str(error.value).count("worker") <= 1 and "\n" not in str(error.value)


def test_what_others_send_is_checked():
    with pytest.raises(Failure, match="predictions of another worker are wrong"):
        prediction_blocks.parsed(np.zeros(9, np.uint8))


def test_where_only_the_command_line_can_start_workers(folder, cli):
    done = cli("evaluate", "output=run", "cluster.workers=2", cwd=folder)
    assert done.code == 2 and "add cluster=local" in done.line
    done = cli("export-embeddings", "output=run", "cluster=local", "to=redis://h/0", cwd=folder)
    assert done.code == 2 and "rows in Redis are written by one process" in done.line
    done = cli("split-graph", "output=run", "cluster=local", cwd=folder)
    assert done.code == 2 and "this command runs in one process" in done.line
    done = cli("verify-serving", "graph=run/graph", "cluster=local", cwd=folder)
    assert done.code == 2 and "belongs to a model" in done.line


# ---- Processes ---------------------------------------------------------------

ON_WORKERS = ("cluster=local", "cluster.workers=2", "cluster.timeout=60")


def checkpoint_of(folder):
    return next((folder / "run/checkpoints").iterdir())


@pytest.mark.alone
def test_processes_export_a_checkpoint_alone(folder, tmp_path):
    """The golden rows are looked up by both workers, and checked."""
    given = [f"checkpoint={checkpoint_of(folder)}", f"to={tmp_path}/e"]
    done = run_process("export-embeddings", *given, *ON_WORKERS, cwd=tmp_path)
    assert done.code == 0 and done.out == "", done.err
    checkpoint = loading.newest(str(folder / "run"))
    export(checkpoint, conf_of(), str(tmp_path / "alone"))
    golden = [(tmp_path / to / "golden.jsonl").read_bytes() for to in ("e", "alone")]
    assert golden[0] == golden[1]
    assert {path.name for path in tmp_path.iterdir()} == {"e", "alone"}


READINGS = (
    ("evaluate", "output=run", "data.test=test-*.csv"),
    ("predict", "output=run", "data.test=test-*.csv", "to=predictions.csv"),
    ("export-embeddings", "output=run", "to=e", "format=text"),
    ("verify-serving", "output=run"),
)
# The command of worker 0 at which a worker is killed, of each.
KILLED_AT = ("evaluate", "read_predictions", "write_selected", "read_rows")


@pytest.fixture
def copies(folder, tmp_path):
    """A folder with the run and its data twice: in `alone` and in `together`."""
    for copy in ("alone", "together"):
        for name in ("run", "clicks"):
            shutil.copytree(folder / name, tmp_path / copy / name)
    return tmp_path


def exported(folder):
    """The rows of an export as text, of all its parts."""
    return sorted(line for path in folder.glob("*.txt*") for line in path.read_bytes().splitlines())


def same_files(folder):
    """Assert that the commands have written the same in both folders."""
    written = [folder / name / "predictions.csv" for name in ("alone", "together")]
    assert written[0].read_bytes() == written[1].read_bytes()
    rows = [exported(folder / name / "e") for name in ("alone", "together")]
    assert rows[0] == rows[1] != []


def in_environment(command, folder, servers=0, timeout=60, **variables):
    """The exit codes, outputs and errors of a command that a scheduler starts for each process."""
    port = env_commands.free_port()
    keys = ["cluster=env", f"cluster.servers={servers}", f"cluster.timeout={timeout}"]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tnctl", *command, *keys], cwd=folder,
            env={
                **os.environ, "TNCTL_TOKEN": env_commands.TOKEN, "TNCTL_RANK": str(rank),
                "TNCTL_WORKERS": "2", "TNCTL_SERVERS": str(servers),
                "TNCTL_ADDRESS": f"127.0.0.1:{port}", **variables,
            },
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2 + servers)
    ]  # fmt: skip
    try:
        out, err = zip(*(process.communicate(timeout=240) for process in processes), strict=True)
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], out, err


@pytest.mark.alone
@pytest.mark.long
@pytest.mark.parametrize("servers", [0, 1])
def test_commands_of_an_environment_do_what_one_process_does(copies, servers):
    for command in READINGS:
        alone = run_process(*command, cwd=copies / "alone")
        codes, out, err = in_environment(command, copies / "together", servers)
        assert codes == [0] * (2 + servers), err
        assert out[0] == alone.out and not any(out[1:])
    same_files(copies)
    assert not list(Path(tempfile.gettempdir()).glob("tnctl-verify-serving-*"))


@pytest.mark.alone
@pytest.mark.long
@pytest.mark.parametrize("start", ["local", pytest.param("ray", marks=[
    pytest.mark.ray, pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed"),
])])  # fmt: skip
def test_processes_print_and_write_what_one_process_does(copies, start):
    keys = [f"cluster={start}", "cluster.workers=2", "cluster.servers=1", "cluster.timeout=60"]
    for command in READINGS:
        alone = run_process(*command, cwd=copies / "alone")
        together = run_process(*command, *keys, cwd=copies / "together")
        assert together.code == 0 and together.out == alone.out, together.err
    same_files(copies)
    wrong = ["evaluate", "output=run", "data.test=nowhere.csv", *keys]
    done = run_process(*wrong, cwd=copies / "together")
    assert done.code == 1 and done.last.startswith("tnctl evaluate: ") and "nowhere" in done.last


@pytest.mark.alone
@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_commands_of_an_environment_start_again_when_a_worker_is_killed(copies, rank):
    patched = patches_of(copies, AT_A_COMMAND)
    for command, at in zip(READINGS, KILLED_AT, strict=True):
        alone = run_process(*command, cwd=copies / "alone")
        codes, out, err = in_environment(
            command,
            copies / "together",
            timeout=10,
            **patched,
            AT=f"{rank} {at}",
            ACTION="os.kill(os.getpid(), signal.SIGKILL)",
        )
        assert codes == [0, 0], (at, err)
        assert out == (alone.out, "") and "Traceback" not in "".join(err)
        assert f"worker {rank} was killed by SIGKILL: all workers start again" in err[rank]
        (copies / "together/acted").unlink()
    same_files(copies)


def patches_of(folder, code):
    """The environment in which code is run before all modules."""
    (folder / "patches").mkdir(exist_ok=True)
    (folder / "patches/sitecustomize.py").write_text(code)
    return cluster_commands.importing(folder / "patches")


@pytest.mark.alone
@pytest.mark.long
def test_an_interrupted_export_ends_all_and_the_next_one_completes_it(folder, tmp_path):
    given = [f"checkpoint={checkpoint_of(folder)}", f"to={tmp_path}/e", *ON_WORKERS]
    environment = patches_of(tmp_path, AT_A_COMMAND)
    environment |= {"AT": "1 write_selected", "ACTION": "time.sleep(200)"}
    with subprocess.Popen(
        [sys.executable, "-m", "tnctl", "export-embeddings", *given],
        cwd=tmp_path, env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True,
    ) as command:  # fmt: skip
        deadline = time.monotonic() + 240
        while not (tmp_path / "acted").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        command.send_signal(signal.SIGINT)
        _, err = command.communicate(timeout=60)
    assert command.returncode == 130
    assert err.splitlines()[-1] == "tnctl export-embeddings: interrupted"
    assert not (tmp_path / "e").exists()
    done = run_process("export-embeddings", *given, cwd=tmp_path, env=environment)
    assert done.code == 0, done.err
    assert sorted(os.listdir(tmp_path)) == ["acted", "e", "patches"]
