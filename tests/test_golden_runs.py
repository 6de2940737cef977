"""Runs that an older version left in the middle end with the metrics that it came to itself.

tests/golden/make_runs.py has them made by that version.
"""

import importlib
import json
import tarfile
from pathlib import Path

import pytest
import yaml
from test_growing_confs import take_out

from tnctl.checkpoint import staging

GOLDEN = Path(__file__).parent / "golden"
CASES = [
    f"{case}-{workers}"
    for case in ("plain", "days", "deltas", "life", "warm", "prepared")
    for workers in (1, 2)
]
LONG = ("plain-2", "days-2", "deltas-2", "warm-2", "prepared-2")
# Other CPUs round sums otherwise: a few times 1e-7 per step, which training does not enlarge by
# more than ten in these short runs. One pair of examples in another order moves the AUC by 1/500.
LOSS, AUC = 1e-4, 2.5e-3


@pytest.fixture
def make_runs(monkeypatch, tmp_path):
    """The module; checkpoints are saved without graphs, which take a third of the time."""

    def write_nothing(_, opening, __):
        with opening("graph/saved_model.pb"):
            pass

    monkeypatch.setattr(staging.InferenceGraph, "write", write_nothing)
    monkeypatch.syspath_prepend(str(GOLDEN))
    monkeypatch.chdir(tmp_path)
    return importlib.import_module("make_runs")


def unpack(*names):
    for name in names:
        with tarfile.open(GOLDEN / f"runs/{name}.tar.xz") as stream:
            stream.extractall(filter="data")


def expected(case):
    return json.loads((GOLDEN / "runs/reports.json").read_text())[case]


def same(received, recorded, key=""):
    """Compare plain values; numbers that are no counts may differ as said above."""
    assert type(received) is type(recorded), key
    if isinstance(recorded, dict):
        # Later versions may report more.
        for name, value in recorded.items():
            same(received[name], value, f"{key}.{name}")
    elif isinstance(recorded, list):
        assert len(received) == len(recorded), key
        for place, value in enumerate(recorded):
            same(received[place], value, f"{key}[{place}]")
    elif isinstance(recorded, float):
        apart = AUC if "auc" in key else LOSS
        assert received == pytest.approx(recorded, rel=0, abs=apart), key
    else:
        assert received == recorded, key


def resumed(make_runs, case):
    """The report of a run that is resumed in this process."""
    name, workers = case.split("-")
    return make_runs.train(make_runs.values_of(make_runs.CASES[name][0]), int(workers))


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.long if case in LONG else ()) for case in CASES]
)
def test_a_run_of_an_older_version_is_resumed(make_runs, case, capfd):
    unpack("data", case)
    same(resumed(make_runs, case), expected(case))
    assert "resuming from run/checkpoints/" in capfd.readouterr().err


def test_a_run_whose_conf_lacks_keys_is_resumed(make_runs, tmp_path):
    """As if all these keys were newer than the run."""
    unpack("data", "days-1")
    keys = ("crosses", "baseline", "data.split", "slots.user.frozen", "train.loss.gamma",
            "optimizer.dense.beta1", "life.eviction")  # fmt: skip
    for checkpoint in Path("run/checkpoints").iterdir():
        (checkpoint / "graph").mkdir()
        (checkpoint / "graph/saved_model.pb").touch()  # named by the manifest, and not read
    take_out(tmp_path / "run", keys)
    same(resumed(make_runs, "days-1"), expected("days-1"))


@pytest.mark.long
def test_processes_resume_a_run_of_an_older_version(make_runs, process, tmp_path):
    unpack("data", "deltas-2")
    values = make_runs.values_of(make_runs.CASES["deltas"][0])
    conf = {"defaults": ["schema", "_self_"], **values}
    Path("run.yaml").write_text(yaml.safe_dump(conf, sort_keys=False))
    workers = ("cluster=local", "cluster.workers=2")
    done = process("train", "conf=run.yaml", *workers, "golden=1", cwd=tmp_path)
    assert done.code == 0 and "resuming from" in done.err, done.err
    report = json.loads(Path("run/report.json").read_text())
    same({key: report[key] for key in expected("deltas-2")}, expected("deltas-2"))
