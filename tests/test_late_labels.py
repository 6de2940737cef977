"""`mature_days`: labels that arrive late are trained by visits of their own to earlier days."""

import json
import os
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
import tensorflow as tf
from cluster_in_one_process import train_together
from test_resume import Killed, kill, names, nothing, outcome, stop_at

from tnctl.checkpoint import load as loading
from tnctl.composing import compose
from tnctl.data import generated, statistics
from tnctl.data.bad_rows import Skipped
from tnctl.data.days import conf_of_day
from tnctl.data.unit_records import WHOLE, Remainder
from tnctl.data.windows import training_batches
from tnctl.evaluation.split_scoring import features_of
from tnctl.model.building import build
from tnctl.model.parameters import Buffers, Gradients, Parameters
from tnctl.saved_conf import conf_of
from tnctl.tables.columns import hash_bytes

ROWS, BATCH = 300, 100
STEPS = ROWS // BATCH
SLOTS = ("user_id", "item_id", "device")
CONF = f"""\
defaults: [schema, {{recipe: shared_bottom}}, _self_]
recipe: {{bottom: [8], hidden: [4], activation: tanh}}
embedding: {{width: 4}}
slots: {{user_id: {{}}, item_id: {{}}, device: {{}}}}
data:
  root: clicks
  train: "{{day}}.csv"
  window: 200
  labels: {{click: {{column: label}}, buy: {{column: bought, mature_days: 2}}}}
train: {{batch_size: {BATCH}, threads: 1}}
life: {{shows: {{keep: true, decay: 1}}}}
optimizer: {{dense: {{name: adagrad}}}}
evaluation: {{ablate: false}}
"""
TRAIN = ("train", "conf=late.yaml", "output=run", "golden=10")
# 2024-01-04 is missing, so two days are mature on the day after it.
DAYS = (1, 2, 3, 5)
VISITS = [(1, "click"), (2, "click"), (1, "buy"), (3, "click"), (2, "buy"), (3, "buy"),
          (5, "click")]  # fmt: skip


def name_of(day):
    return f"2024-01-0{day}"


def write_day(folder, day, users="", rows=ROWS):
    table = generated.rows(day * ROWS, day * ROWS + rows)
    click = table.column("label").to_numpy()
    bought = click * (np.arange(rows) % 3 > 0)
    columns = {slot: table.column(slot) for slot in SLOTS}
    if users:
        columns["user_id"] = pa.array([f"{users}{row}" for row in range(rows)])
    columns |= {"label": pa.array(click), "bought": pa.array(bought)}
    folder.joinpath("clicks").mkdir(exist_ok=True)
    pa.csv.write_csv(pa.table(columns), folder / f"clicks/{name_of(day)}.csv")


def with_days(folder, days):
    folder.mkdir(exist_ok=True)
    (folder / "late.yaml").write_text(CONF)
    for day in days:
        write_day(folder, day)
    return folder


@pytest.fixture(scope="module")
def _four(tmp_path_factory, ran):
    folder = with_days(tmp_path_factory.mktemp("late") / "four", DAYS)
    return folder, ran(*TRAIN, cwd=folder).err


@pytest.fixture
def folder(tmp_path):
    """A folder of one's own with the four days, and no run."""
    return with_days(tmp_path / "own", DAYS)


def conf_in(folder, monkeypatch, *overrides):
    monkeypatch.chdir(folder)
    given = ["output=run", *overrides]
    return compose.compose_run(folder / "late.yaml", given, takes_cluster=True)


def report_of(folder):
    return json.loads((folder / "run/report.json").read_text())


def model_of(folder):
    checkpoint = loading.newest(str(folder / "run"))
    return loading.load(checkpoint, conf_of(checkpoint.conf(), checkpoint.folder))


def records_of(model):
    [table] = model.tables
    return np.concatenate(list(table.records()))


# ---- What is trained -----------------------------------------------------------------


def by_hand(conf):
    """The model after all visits: one label's loss at a time, and new rows where clicks are."""
    model = build(conf, statistics.measure(conf_of_day(conf, name_of(1))))
    parameters, buffers = Parameters(model), Buffers(model, BATCH)
    [table] = model.tables
    features, clock = features_of(conf, model), []

    @tf.function(autograph=False)
    def gradient(inputs, y, label):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(inputs)
            tape.watch(model.variables)
            z = model.network(inputs, training=True)[label][:, 0]
            entropy = tf.maximum(z, 0) - z * y + tf.math.log1p(tf.exp(-tf.abs(z)))
            loss = tf.reduce_mean(entropy)
        nothing = tf.UnconnectedGradients.ZERO
        return tape.gradient(loss, (inputs, model.variables), unconnected_gradients=nothing)

    for passes, (day, label) in enumerate(VISITS):
        under_way = next(d for d, of in VISITS[passes:] if of == "click")
        if not clock or clock[-1][0] != date(2024, 1, under_way).toordinal():
            clock.append((date(2024, 1, under_way).toordinal(), parameters.steps + 1))
            table.set_days(clock)
        table.set_counting(label == "click")
        source = training_batches(
            conf_of_day(conf, name_of(day)), features, passes, [Remainder(WHOLE, 0, 0)],
            Skipped("train", 0),
        )  # fmt: skip
        for batch, _ in source:
            parameters.pull(batch, buffers)
            *inputs, labels = buffers.tensors(batch.rows)
            gradients = gradient(inputs, labels[:, ("click", "buy").index(label)], label)
            parameters.push(batch, Gradients(*gradients, []), 1.0)
    return model


def test_each_visit_trains_its_label_alone(_four, monkeypatch):
    folder, _ = _four
    expected = by_hand(conf_in(folder, monkeypatch))
    trained = model_of(folder)
    rows, rows_expected = records_of(trained), records_of(expected)
    for field in ("id", "group", "changed", "show", "click"):
        assert np.array_equal(rows[field], rows_expected[field]), field
    for field in set(rows.dtype.names) - {"id", "group", "changed", "show", "click", "flags"}:
        np.testing.assert_allclose(rows[field], rows_expected[field], rtol=1e-5, atol=1e-6)
    dense, dense_expected = trained.dense, expected.dense
    np.testing.assert_allclose(dense.flat_weights, dense_expected.flat_weights, atol=1e-6)


def test_a_second_visit_counts_nothing(_four):
    folder, _ = _four
    rows = records_of(model_of(folder))
    clicks = sum(
        pyarrow.csv.read_csv(folder / f"clicks/{name_of(day)}.csv").column("label").to_numpy().sum()
        for day in DAYS
    )
    assert rows["show"].sum() == len(DAYS) * ROWS * len(SLOTS)
    assert rows["click"].sum() == clicks * len(SLOTS) > 0


@pytest.mark.parametrize("recipe", ["shared_bottom", "esmm", "mmoe", "ple"])
def test_a_head_that_no_label_trains_yet_stays(tmp_path, monkeypatch, ran, recipe):
    """Its weight in the loss is 0, and its label is not taken for 0."""
    folder = with_days(tmp_path / "one", (1,))
    settings = [f"recipe={recipe}"]
    if recipe != "shared_bottom":
        settings.append("~recipe.bottom")
    if recipe == "esmm":
        text = CONF.replace("click: ", "ctr: ").replace("buy: ", "ctcvr: ")
        (folder / "late.yaml").write_text(text)
    ran(*TRAIN, *settings, cwd=folder)
    trained = model_of(folder)
    conf = conf_in(folder, monkeypatch, *settings)
    start = build(conf, statistics.measure(conf_of_day(conf, name_of(1))))
    late = "cvr" if recipe == "esmm" else "buy"
    moved = {
        name: not np.array_equal(now.numpy(), initial.numpy())
        for name, now, initial in zip(
            start.variable_names, trained.variables, start.variables, strict=True
        )
    }
    # The first experts of a label are read by the shared gate of ple, which clicks train.
    of_late = [name for name in moved if name.startswith(late) and "_expert_0_" not in name]
    assert of_late and not any(moved[name] for name in of_late)
    prompt = "ctr" if recipe == "esmm" else "click"
    assert all(is_moved for name, is_moved in moved.items() if f"{prompt}_logit" in name)


# ---- What is recorded ----------------------------------------------------------------


def test_a_late_label_is_judged_when_it_is_mature(_four, tmp_path, ran):
    """By the model before it is trained on the day; the day's own figures are of other labels."""
    folder, said = _four
    days = report_of(folder)["days"]
    assert [day["late"]["buy"] and day["late"]["buy"]["during"] for day in days] == [
        name_of(3), name_of(5), name_of(5), None
    ]  # fmt: skip
    assert [(day["first_step"], day["last_step"]) for day in days] == [
        (1, 3), (4, 6), (7, 12), (13, 21)
    ]  # fmt: skip
    first = days[0]["late"]["buy"]
    assert (first["first_step"], first["last_step"]) == (7, 9)
    assert all("heads" not in (day["before"] or {}) for day in days)
    two = with_days(tmp_path / "two", DAYS)
    ran(*TRAIN, "data.days=..2024-01-02", cwd=two)
    done = ran("evaluate", "output=run", f"data.test={name_of(1)}.csv", cwd=two)
    of_buy = json.loads(done.out)["heads"]["buy"]
    known = {key: value for key, value in first["before"].items() if key in of_buy}
    assert "auc" in known and known == {key: of_buy[key] for key in known}
    done = ran("evaluate", "output=run", f"data.test={name_of(3)}.csv", cwd=two)
    of_click = json.loads(done.out)
    of_day = days[2]["before"]
    assert {key: of_click[key] for key in of_day} == of_day
    assert f"{name_of(1)}  before it is trained on buy: auc {first['before']['auc']:.4f}" in said
    # One day after the other comes to the same.
    for day in (3, 5):
        ran(*TRAIN, f"data.days=..{name_of(day)}", cwd=two)
    assert outcome(two / "run")["digest"] == outcome(folder / "run")["digest"]
    assert report_of(two)["days"] == days


def test_the_log_the_report_and_the_statistics(_four):
    folder, _ = _four
    log = [json.loads(line) for line in (folder / "run/log.jsonl").read_text().splitlines()]
    late = [line for line in log if line["event"] == "late"]
    assert [(line["step"], line["day"]) for line in late] == [
        (9, name_of(1)), (15, name_of(2)), (18, name_of(3))
    ]  # fmt: skip
    assert late[0]["late"] == report_of(folder)["days"][0]["late"]
    epochs = [(line["day"], line["labels"]) for line in log if line["event"] == "epoch"]
    assert epochs == [(name_of(day), [label]) for day, label in VISITS]
    assert "auc of buy" in (folder / "run/report.html").read_text()
    record = loading.newest(str(folder / "run")).days
    assert [list(day.statistics.labels) for day in record] == [["click"]] * len(DAYS)


def test_files_that_are_written_again_with_the_label(tmp_path, ran):
    """Their new ids get no row, and that they have changed is no surprise until then."""
    folder = with_days(tmp_path / "again", (1, 2))
    ran(*TRAIN, cwd=folder)
    write_day(folder, 1, users="new")
    assert "is trained already and is not again" not in ran(*TRAIN, cwd=folder).err
    write_day(folder, 3)
    ran(*TRAIN, cwd=folder)
    model = model_of(folder)
    assert report_of(folder)["days"][0]["late"]["buy"]["before"]["examples"] == ROWS
    groups = np.full(2, model.layout.tables[0].groups["user_id"], np.uint16)
    ids = np.array([hash_bytes(b"new0"), hash_bytes(b"new1")], np.uint64)
    assert not model.tables[0].contains(groups, ids).any()
    write_day(folder, 1)
    assert f"{name_of(1)} is trained already and is not again" in ran(*TRAIN, cwd=folder).err


def test_a_day_without_files_when_its_label_is_mature(folder, cli, ran):
    ran(*TRAIN, "data.days=..2024-01-02", cwd=folder)
    (folder / f"clicks/{name_of(1)}.csv").unlink()
    done = cli(*TRAIN, "data.days=..2024-01-03", cwd=folder)
    assert done.code == 1
    assert done.last == (
        "tnctl train: 2024-01-01 is to be trained on buy now, and has no row any more. Put its "
        "files back, or accept=true to go on without"
    )
    ran(*TRAIN, "data.days=..2024-01-03", "accept=true", cwd=folder)
    first = report_of(folder)["days"][0]["late"]["buy"]
    assert (first["before"], report_of(folder)["steps"]) == (None, 3 * STEPS)


# ---- Kills and clusters --------------------------------------------------------------


def test_a_killed_visit_is_resumed(folder, cli, ran, monkeypatch, tmp_path):
    """Killed in a second visit, in the day's own after it, and between two second visits."""
    overrides = ["train.epochs=2", "life.shows={keep: true, cvm: true, decay: 0.9}",
                 "recipe.dropout=0.1", "evaluation.recalibrate=true"]  # fmt: skip
    ran(*TRAIN, *overrides, cwd=folder)
    whole = outcome(folder / "run")
    os.rename(folder / "run", tmp_path / "whole")
    saving = [*overrides, "save.every_steps=2", "save.full_every=3"]
    for step, saved in ((17, 16), (23, 22), (34, 33)):
        stop_at(monkeypatch, step, kill)
        with pytest.raises(Killed):
            cli(*TRAIN, *saving, cwd=folder)
        assert names(folder / "run")[-1] == f"step-{saved:010d}"
    stop_at(monkeypatch, 0, nothing)
    ran(*TRAIN, *saving, cwd=folder)
    assert outcome(folder / "run") == whole


@pytest.mark.parametrize(("workers", "mode"), [(1, "sync"), (2, "sync"), (2, "async")])
def test_workers(_four, tmp_path, monkeypatch, workers, mode):
    """One worker ends with the bytes of one process; more count what it counts."""
    alone, _ = _four
    folder = with_days(tmp_path / "cluster", DAYS)
    conf = conf_in(folder, monkeypatch, f"cluster.mode={mode}", "cluster.start=local")
    train_together(conf, workers, golden=10)
    if workers == 1:
        assert outcome(folder / "run")["digest"] == outcome(alone / "run")["digest"]
    rows, expected = (records_of(model_of(of)) for of in (folder, alone))
    for field in ("id", "group", "show", "click"):
        assert np.array_equal(rows[field], expected[field]), field
    late = [day["late"]["buy"] for day in report_of(folder)["days"]]
    assert [of and of["during"] for of in late] == [name_of(3), name_of(5), name_of(5), None]
    epochs = report_of(folder)["epochs"]
    assert [(epoch["day"], epoch["labels"], epoch["examples"]) for epoch in epochs] == [
        (name_of(day), [label], ROWS) for day, label in VISITS
    ]


# ---- Errors --------------------------------------------------------------------------

REFUSED = {
    "negative": (["data.labels.buy.mature_days=-1"], "mature_days"),
    "no days": ([f"data.train={name_of(1)}.csv"], "has no {day}: it is never mature"),
    "all": (["data.labels.click.mature_days=1"], "where all are late, train each day later"),
    "the first": (
        ["data.labels.buy.mature_days=0", "data.labels.click.mature_days=1"],
        "label click has mature_days=1, and the first label is trained with its day",
    ),
    "too few days": (
        [f"data.days={name_of(2)}..{name_of(3)}"],
        f"label buy has mature_days=2, and data.days={name_of(2)}..{name_of(3)} has 2 days: it is "
        "never mature. Leave the end of data.days open, or take more days",
    ),
    "too few days of a list": ([f"data.days=[{name_of(2)},{name_of(1)}]"], "has 2 days"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_labels_that_no_visit_could_train(folder, cli, case):
    overrides, words = REFUSED[case]
    done = cli(*TRAIN, *overrides, cwd=folder)
    assert done.code == 2 and words in done.last, done.err
    assert not (folder / "run/checkpoints").exists()
