"""Checkpoints that several workers wrote, loaded by any number of them, and exported by one."""

import shutil
from pathlib import Path

import cluster_in_one_process
import numpy as np
import pytest
from dataless_runs import LIFE, Run, conf_of
from mutated_documents import reseal
from test_checkpoint_owners import DividedRun, _graph, in_json

from tnctl.checkpoint import dense_file
from tnctl.checkpoint.chain import open_checkpoint
from tnctl.cluster.rank_0.cluster_processes import ClusterProcesses
from tnctl.cluster.workers.worker import Worker
from tnctl.manifest import DamagedError
from tnctl.training import run

STEPS = (9, 4)

__all__ = ["_graph"]  # a fixture: the checkpoints have no real graph


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The runs of one owner and of three, with the same rows, and the folders of each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tnctl.checkpoint.staging.InferenceGraph.write", write_nothing)
        home = tmp_path_factory.mktemp("saved")
        runs = (
            Run(conf_of(home / "one", life=LIFE)),
            DividedRun(conf_of(home / "three", life=LIFE), 3),
        )
        folders = []
        for steps in STEPS:
            for run in runs:
                run.train(steps).evict()
            folders.append([Path(run.save(golden=[])) for run in runs])
    return runs, folders


def write_nothing(_self, opening, _model):
    with opening("graph/saved_model.pb") as stream:
        stream.write(b"a graph")


def copied(folder, to):
    """The same checkpoint in an output of its own."""
    shutil.copytree(folder, to / "checkpoints" / folder.name)
    return to / "checkpoints" / folder.name


class Models:
    """The models that workers load."""

    def __init__(self, monkeypatch):
        self.loaded = {}
        load = Worker._loaded

        def remember(member, *arguments):
            model = self.loaded[member.node.rank] = load(member, *arguments)
            return model

        monkeypatch.setattr(Worker, "_loaded", remember)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_any_number_of_workers_loads_the_same_bytes(saved, monkeypatch, workers):
    (_, run), [*_, (_, folder)] = saved
    models = Models(monkeypatch)
    with cluster_in_one_process.following(run.conf, workers) as (node, errors):
        model = ClusterProcesses(node).load(open_checkpoint(str(folder)), run.conf)
    assert not errors
    by_rank = [models.loaded[rank] for rank in range(workers)]
    assert by_rank[0] is model
    loaded = b"".join(part.tobytes() for model in by_rank for part in model.tables[0].records())
    assert [loaded] == run.records()
    for model in by_rank:
        for ours, theirs in zip(*map(dense_file.arrays_of, (run.model, model)), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    sketch = sum(model.tables[0].sketch.astype(int) for model in by_rank)
    np.testing.assert_array_equal(sketch, run.model.tables[0].sketch)


def test_rows_of_all_workers_are_as_many_as_the_manifest_says(saved, tmp_path):
    """Each file is what its entry says, and a table's total is another."""
    (_, run), [*_, (_, folder)] = saved
    folder = copied(folder, tmp_path)
    [table] = in_json(folder)["tables"]
    group = table["groups"][0]
    group["rows"] += 1
    group["admitted"] = group["rows"] + group["evicted"]
    reseal(folder, tables=[table | {"rows": table["rows"] + 1}])
    checkpoint = open_checkpoint(str(folder))
    with (
        cluster_in_one_process.following(run.conf, 2) as (node, errors),
        pytest.raises(DamagedError, match=r"has \d+ rows, the manifest says \d+\. ") as refused,
    ):
        ClusterProcesses(node).load(checkpoint, run.conf)
    assert not errors and "\n" not in str(refused.value)


def test_a_damaged_part_of_any_worker_is_passed_over(saved, tmp_path, capsys):
    """The checkpoint before it is loaded by all, as in one process."""
    _, folders = saved
    older, newer = (copied(three, tmp_path) for _, three in folders)
    conf = conf_of(tmp_path, life=LIFE)
    entry = open_checkpoint(str(newer)).manifest.tables[0].files[-1]  # of the last owner
    content = bytearray((newer / entry.file).read_bytes())
    content[-5] ^= 1
    (newer / entry.file).write_bytes(content)
    with cluster_in_one_process.following(conf, 3) as (node, errors):
        checkpoint, _ = run.load_newest(
            conf, open_checkpoint(str(newer)), ClusterProcesses(node).load
        )
    assert not errors
    assert checkpoint.folder == str(older)
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first.startswith("worker 2: ") and entry.file in first and "cannot be used" in last
