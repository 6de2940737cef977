"""Warm start of several workers: together they begin with what one process begins with."""

import contextlib
import dataclasses
import shutil
from unittest import mock

import cluster_in_one_process
import numpy as np
import pytest

from tnctl import documents, schema
from tnctl.checkpoint import load as loading
from tnctl.cluster.rank_0.cluster_processes import ClusterProcesses
from tnctl.cluster.rank_0.cluster_workers import ClusterWorkers
from tnctl.cluster.workers import worker
from tnctl.errors import Failure, Stopped, UserError
from tnctl.model.building import build
from tnctl.schema import Slot
from tnctl.training.run import train
from tnctl.training.warm import dense_transfer
from tnctl.training.warm import warm_start as warm


@pytest.fixture(scope="module")
def folder(trained, tmp_path_factory):
    """A folder with clicks/, run/, a run of one process, and three/, the same run of 3 workers."""
    folder = tmp_path_factory.mktemp("warm")
    shutil.copytree(trained / "run", folder / "run")
    shutil.copytree(trained / "clicks", folder / "clicks")
    header, *lines = (folder / "clicks/train.csv").read_text().splitlines(keepends=True)
    for part in range(3):
        text = "".join([header, *lines[part::3]])
        (folder / f"clicks/part-{part}.csv").write_text(text)

    def three(values):
        values["data"]["train"] = "part-*.csv"
        values["train"]["batch_size"] = 100

    conf = conf_of(folder, three, output="three")
    trained_together(dataclasses.replace(conf, warm=schema.Warm()), 3)
    return folder


def conf_of(folder, change=None, start="run", output="new", **of_warm):
    """The conf of the run, changed by `change(values)`, with a warm start from a run."""
    values = loading.newest(str(folder / "run")).conf()
    values["data"]["root"] = str(folder / "clicks")
    values["output"] = str(folder / output)
    values["evaluation"]["ablate"] = False
    if change is not None:
        change(values)
    values["warm"] = {"start": str(folder / start), **of_warm}
    return schema.from_values(values)


@contextlib.contextmanager
def cluster(conf, workers):
    """Rank 0's processes, and the other workers as threads."""

    def alone(*arguments):
        # Keras' names of layers are of all threads: another build would clear them in between.
        with cluster_in_one_process._one_at_a_time:
            return place_mapping(*arguments)

    place_mapping, followers = dense_transfer.PlaceMapping, []
    with (
        mock.patch.object(dense_transfer, "PlaceMapping", alone),
        cluster_in_one_process.following(conf, workers, members=followers) as (node, _),
    ):
        yield ClusterProcesses(node), followers


def trained_together(conf, workers):
    with cluster(conf, workers) as (processes, _):
        return train(conf, processes=processes)


def begun_together(conf, workers):
    """The models that workers begin with, in the order of ranks, and the report."""
    with cluster(conf, workers) as (processes, followers):
        start = warm.begin(conf)
        model = processes.build(conf, start.statistics(no_measuring))
        processes.fill(start, model)
        return [model, *(follower._model for follower in followers)], start.report


def begun_alone(conf):
    """The model that one process begins with, and the report."""
    start = warm.begin(conf)
    model = build(conf, start.statistics(no_measuring))
    start.fill(model)
    return model, start.report


def no_measuring():
    raise AssertionError("nothing starts anew that needs statistics")


def assert_same(models, model):
    """The rows of all owners are the rows of one process, and every worker has all weights."""
    for tables in zip(model.tables, *(other.tables for other in models), strict=True):
        alone, *owned = (
            np.concatenate([*table.records(), np.empty(0, table.record_dtype)]) for table in tables
        )
        assert len(alone) and (len(owned) == 1 or max(map(len, owned)) < len(alone))
        assert np.concatenate(owned).tobytes() == alone.tobytes()
    for other in models:
        for array, expected in zip(
            [other.dense.flat_weights, *other.dense.flat_states, *other.moving],
            [model.dense.flat_weights, *model.dense.flat_states, *model.moving],
            strict=True,
        ):
            assert array.tobytes() == expected.tobytes()
        assert other.dense.step == model.dense.step


def other_inputs(values):
    """A slot is new, one has left, one has another name, a group is two, embeddings are wider."""
    slots = values["slots"]
    del slots["price_range"]
    slots["user"] = slots.pop("user_id") | {"column": "user_id"}
    slots["region"]["group"] = None
    slots["more"] = dataclasses.asdict(Slot(column="region"))
    values["embedding"]["width"] = 6
    values["optimizer"]["embedding"]["learning_rate"] = 0.02


OTHER_INPUTS = {"rename": {"user": "user_id"}, "drop": ["price_range"], "new": ["more"]}


def ftrl(values):
    settings = {"name": "ftrl", "learning_rate": 0.1, "initial_accumulator": 0.2}
    values["optimizer"].update(linear=settings, embedding=settings)


def decaying(values):
    values["life"]["shows"]["keep"] = True
    values["optimizer"]["embedding"]["weight_decay"] = 0.1


@pytest.mark.parametrize(
    ("workers", "start", "change", "keys"),
    [
        ([3], "run", None, {}),
        ([2, 3], "three", other_inputs, OTHER_INPUTS),
        ([2], "three", ftrl, {"optimizer": "fresh"}),
        ([3], "three", decaying, {"dense": "fresh"}),
    ],
)
def test_workers_begin_with_what_one_process_begins_with(
    folder, capsys, workers, start, change, keys
):
    conf = conf_of(folder, change, start=start, **keys)
    model, report = begun_alone(conf)
    shown_alone = capsys.readouterr().err
    assert "warm start from" in shown_alone
    for number in workers:
        models, report_together = begun_together(conf, number)
        assert_same(models, model)
        assert documents.plain(report_together) == documents.plain(report)
        assert capsys.readouterr().err == shown_alone
    if change is other_inputs:
        assert any("copied to" in note for note in report.notes)
        assert {entry.outcome for entry in report.inputs} == {"matched", "new", "dropped"}


def test_one_worker_trains_on_with_the_bytes_of_the_local_path(folder):
    change, keys = other_inputs, OTHER_INPUTS
    alone = train(conf_of(folder, change, start="three", output="alone", **keys))
    conf = conf_of(folder, change, start="three", output="one", **keys)
    report = trained_together(conf, 1)
    digests = [loading.digest(loading.newest(str(folder / run))) for run in ("alone", "one")]
    assert digests[0] == digests[1]
    assert report.warm == alone.warm


def test_it_is_done_again_after_a_fault_until_there_is_a_checkpoint(folder, monkeypatch):
    def change(values):
        other_inputs(values)
        values["data"]["train"] = "part-*.csv"
        values["train"]["batch_size"] = 100

    conf = conf_of(folder, change, output="faults", **OTHER_INPUTS)
    _, expected = begun_alone(conf)
    with monkeypatch.context() as patch:
        patch.setattr(worker, "start_again", mock.Mock(side_effect=Failure("lost")))
        with pytest.raises(UserError, match=r"^worker [12]: lost$"):
            trained_together(conf, 3)
    assert loading.newest(conf.output) is None
    with monkeypatch.context() as patch:
        cluster_in_one_process.stop_at(patch, ClusterWorkers, 5)
        with pytest.raises(Stopped, match="step-0000000016 is saved"):
            trained_together(conf, 3)
    # From now on it is not done again.
    monkeypatch.setattr(ClusterProcesses, "fill", None)
    monkeypatch.setattr(warm.WarmStart, "fill", None)
    report = trained_together(conf, 3)
    assert report.steps == 12 + 10
    assert [epoch.examples for epoch in report.epochs] == [3000]
    assert documents.plain(report.warm) == documents.plain(expected)


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        (None, {"start": "nowhere"}),
        (lambda values: values["embedding"].update(width=3), {}),
        (lambda values: values["recipe"].update(hidden=[16, 4]), {}),
    ],
)
def test_what_is_refused_is_refused_with_the_same_line(folder, change, keys):
    lines = []
    for workers in (0, 2):
        with pytest.raises(UserError) as refused:
            conf = conf_of(folder, change, output=f"refused-{workers}", **keys)
            trained_together(conf, workers) if workers else train(conf)
        lines.append(str(refused.value))
    assert lines[0] == lines[1]
    assert "\n" not in lines[0]


def test_a_damaged_checkpoint_ends_all_with_one_line(folder, tmp_path):
    shutil.copytree(folder / "three", tmp_path / "three")
    shutil.copytree(folder / "run", tmp_path / "run")
    shutil.copytree(folder / "clicks", tmp_path / "clicks")
    # The last owner's alone.
    path = sorted(tmp_path.glob("three/checkpoints/*/tables/*/*.rows"))[-1]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"^worker 2: .*\.rows is damaged") as failed:
        begun_together(conf_of(tmp_path, start="three"), 3)
    assert "\n" not in str(failed.value)


def test_a_checkpoint_that_is_written_again_meanwhile_is_refused(folder):
    conf = conf_of(folder)
    checkpoint = loading.newest(str(folder / "run"))
    with pytest.raises(Failure, match="has been written again since the warm start began"):
        worker.start_again(conf, checkpoint.folder, "0" * 64)
