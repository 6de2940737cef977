"""evaluation.recalibrate: the fit, and the model that a run ends with, wherever it answers."""

import json
import shutil
import signal

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from clicks import clicks
from cluster_in_one_process import train_together
from conftest import copy_workspace

import tnctl
from tnctl import documents, manifest
from tnctl.checkpoint.document import CheckpointManifest
from tnctl.documents import DocumentError
from tnctl.evaluation import metrics, platt_scaling
from tnctl.evaluation.metrics import HeadExamples
from tnctl.evaluation.platt_scaling import NoFitError, fit
from tnctl.model.parameter_tables import Recalibration
from tnctl.serving.graph.graph_document import GraphManifest
from tnctl.training import saving

RECALIBRATED = "evaluation.recalibrate=true"
# Overconfident, and with the odds of a part of the negatives where all are evaluated.
TRAIN = [
    "train", "conf=small.yaml", "recipe=lr", "train.batch_size=512", "evaluation.ablate=false",
    "optimizer.linear.learning_rate=1", "train.epochs=2", "golden=20",
]  # fmt: skip


# ---- The fit -------------------------------------------------------------------------


def planted(slope, intercept, count=20_000, seed=1):
    """Logits, and labels drawn by the probabilities of slope * logit + intercept."""
    random = np.random.default_rng(seed)
    logits = random.normal(-1, 2, count).astype(np.float32)
    chances = 1 / (1 + np.exp(-(slope * logits.astype(np.float64) + intercept)))
    return logits, chances, (random.random(count) < chances).astype(np.float32)


@pytest.mark.parametrize(("slope", "intercept"), [(1, 0), (0.3, -2), (4, 1.5), (1e-3, 0.2)])
def test_what_was_planted_is_found(slope, intercept):
    logits, chances, _ = planted(slope, intercept)
    # Labels that are the probabilities themselves leave no noise, whatever the weights.
    weights = np.random.default_rng(2).random(len(logits)).astype(np.float32)
    for weight in (None, weights):
        fitted = fit(HeadExamples(logits, chances.astype(np.float32), weight))
        assert fitted.slope == pytest.approx(slope, rel=1e-4)
        assert fitted.intercept == pytest.approx(intercept, rel=1e-4, abs=1e-5)


def slow_fit(logits, labels, weights):
    """Gradient descent, its rate below 2 / curvature, which is at most (1 + z^2) / 4."""
    z, y, w = (array.astype(np.float64) for array in (logits, labels, weights))
    rate = 4 * w.sum() / (w * (1 + z * z)).sum()
    slope = intercept = 0.0
    for _ in range(4000):
        residuals = w * (1 / (1 + np.exp(-(slope * z + intercept))) - y) / w.sum()
        slope, intercept = slope - rate * (residuals @ z), intercept - rate * residuals.sum()
    return slope, intercept


@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_the_fit_of_a_slow_model(weighted):
    logits, _, labels = planted(0.5, -0.7, 400)
    weights = np.ones(len(logits), np.float32)
    if weighted:
        weights = np.random.default_rng(3).integers(0, 4, len(logits)).astype(np.float32)
        # A row of no weight counts for nothing, whatever is in it.
        logits[weights == 0] = np.nan
    counted = weights > 0
    slow = slow_fit(logits[counted], labels[counted], weights[counted])
    fitted = fit(HeadExamples(logits, labels, weights if weighted else None))
    assert (fitted.slope, fitted.intercept) == pytest.approx(slow, rel=1e-5)
    # The mean prediction is the mean label, and the order of rows stays.
    after = fitted.of(logits[counted])
    assert after.dtype == np.float32
    mean = metrics.mean(metrics.sigmoid(after), weights[counted])
    assert mean == pytest.approx(metrics.mean(labels[counted], weights[counted]), rel=1e-6)
    assert np.array_equal(
        np.argsort(after, kind="stable"), np.argsort(logits[counted], kind="stable")
    )


def test_large_and_far_logits_are_fitted():
    logits, chances, _ = planted(2, 1)
    soft = chances.astype(np.float32)
    for scale, shift in ((1e4, 0), (1e-4, 0), (1, 300)):
        fitted = fit(HeadExamples((scale * logits + shift).astype(np.float32), soft))
        assert fitted.slope == pytest.approx(2 / scale, rel=1e-3)
        assert fitted.intercept == pytest.approx(1 - 2 * shift / scale, rel=1e-3)


@pytest.mark.parametrize(
    ("logits", "labels", "weights", "said"),
    [
        ([1, 2, 3], [0, 0, 0], None, "all of one class"),
        ([1, 2, 3], [1, 1, 1], None, "all of one class"),
        ([1, 2, 3], [0, 0, 1], [1, 1, 0], "all of one class"),
        ([1, 2, 3], [0, 1, 1], [0, 0, 0], "all of one class"),
        ([], [], None, "all of one class"),
        ([2, 2, 2], [0, 1, 1], None, "all equal"),
        ([1, np.nan, 3], [0, 1, 1], None, "infinite or NaN"),
        ([1, np.inf, 3], [0, 1, 1], None, "infinite or NaN"),
        ([1, 2, 3, 4], [0, 0, 1, 1], None, "does not converge"),
        ([1, 2, 2, 4], [0, 0, 1, 1], None, "does not converge"),
        ([4, 3, 2, 1], [0, 0, 1, 1], None, "does not converge"),
        ([1, 2, 3, 4], [1, 0, 1, 0], None, "the slope would be -"),
    ],
)
def test_what_cannot_be_fitted_is_said(logits, labels, weights, said):
    arrays = [None if a is None else np.array(a, np.float32) for a in (logits, labels, weights)]
    with pytest.raises(NoFitError, match=said):
        fit(HeadExamples(*arrays))


# ---- A run ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory, _workspace):
    """A folder with small.yaml and clicks/."""
    folder = tmp_path_factory.mktemp("recalibrated")
    copy_workspace(_workspace, folder)
    return folder


def train(cli, folder, output, *more, code=0):
    done = cli(*TRAIN, f"output={output}", *more, cwd=folder)
    assert done.code == code, done.err
    return done


@pytest.fixture(scope="module")
def runs(cli, folder):
    """The same with a run, `plain`, and the same run recalibrated, `run`; nobody writes to them."""
    train(cli, folder, "plain")
    (folder / "said.txt").write_text(train(cli, folder, "run", RECALIBRATED).err)
    return folder


def report_of(run):
    return json.loads((run / "report.json").read_text())


def newest(run):
    return run / report_of(run)["checkpoint"]


def result(run):
    """All of a run that does not depend on the clock."""
    report, checkpoint = report_of(run), newest(run)
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    kept = {key: report[key] for key in report if key not in ("timing", "checkpoint")}
    files = [*sorted(checkpoint.glob("tables/*/*.rows")), checkpoint / "dense.bin"]
    log = [{key: line[key] for key in line if key != "timing"} for line in lines]
    golden = (checkpoint / "golden.jsonl").read_bytes()
    return kept, log, golden, [path.read_bytes() for path in files]


def test_a_run_ends_recalibrated(runs):
    folder, said = runs, (runs / "said.txt").read_text()
    report, plain = report_of(folder / "run"), report_of(folder / "plain")
    assert "recalibration" not in plain
    head = report["recalibration"]["label"]
    before, after = head["before"], head["after"]
    assert 0 < head["slope"] < 0.9  # it was overconfident
    assert after["logloss"] < 0.99 * before["logloss"] and after["ne"] < before["ne"]
    assert after["copc"] == pytest.approx(1, rel=1e-6) != before["copc"]
    assert before == {key: plain["validation"][key] for key in before}
    assert after == {key: report["validation"][key] for key in after}
    # On other data too, and the weights, the order and all that came before are the same.
    assert report["logloss"] < plain["logloss"]
    for of_split in (report, report["validation"]):
        same = plain if of_split is report else plain["validation"]
        assert of_split["auc"] == pytest.approx(same["auc"], abs=1e-6)
    assert result(folder / "run")[3] == result(folder / "plain")[3]
    for key in ("evaluations", "epochs", "best"):
        assert report[key] == plain[key]
    *lines, last = result(folder / "run")[1]
    assert lines == result(folder / "plain")[1]
    assert last == {
        "event": "recalibrated", "step": report["steps"], "recalibration": report["recalibration"],
        "validation": report["validation"],
    }  # fmt: skip
    assert f"recalibrated on data.validation: slope {head['slope']:.5g}, intercept" in said
    assert "Recalibration" in (folder / "run/report.html").read_text()
    assert "Recalibration" not in (folder / "plain/report.html").read_text()


def test_every_answer_is_recalibrated(cli, ran, runs):
    folder = runs
    run, plain = folder / "run", folder / "plain"
    report = report_of(run)
    fitted = {key: report["recalibration"]["label"][key] for key in ("slope", "intercept")}

    def of(logits):
        logits = np.asarray(logits, np.float32)
        return logits * np.float32(fitted["slope"]) + np.float32(fitted["intercept"])

    # Checkpoint, and its golden rows.
    content = json.loads((newest(run) / "manifest.json").read_text())
    assert (content["version"], content["recalibration"]) == (3, {"label": fitted})
    assert content["metrics"]["validation"] == report["validation"]
    assert content["metrics"]["evaluations"] == report["evaluations"]
    old = json.loads((newest(plain) / "manifest.json").read_text())
    assert old["version"] == 1 and "recalibration" not in old
    lines = [
        [json.loads(line) for line in (newest(of_run) / "golden.jsonl").read_text().splitlines()]
        for of_run in (run, plain)
    ]
    for line, plain_line in zip(*lines, strict=True):
        assert line["logits"]["label"] == of(plain_line["logits"]["label"])
        assert line["x"] == plain_line["x"]
    # evaluate and predict.
    for split in ("validation", "test"):
        only = ["data.test=null"] if split == "validation" else []
        done = ran("evaluate", "output=run", *only, cwd=folder)
        expected = report if split == "test" else report["validation"]
        assert {key: json.loads(done.out)[key] for key in expected if key in metrics.METRICS} == {
            key: expected[key] for key in expected if key in metrics.METRICS
        }
    for output in ("run", "plain"):
        done = ran("predict", f"output={output}", f"to={output}.parquet", cwd=folder)
    logits, plain_logits = (
        pq.read_table(folder / f"{o}.parquet")["logit"] for o in ("run", "plain")
    )
    assert np.array_equal(logits.to_numpy(), of(plain_logits.to_numpy()))
    # Split graph with its golden rows, and serving.json.
    ran("split-graph", "output=run", "to=graph", cwd=folder)
    document = manifest.read(str(folder / "graph"), GraphManifest, "serving.json")
    assert vars(document.recalibration["label"]) == fitted
    assert cli("export-embeddings", "output=run", "to=embeddings", cwd=folder).code == 0
    done = cli("verify-serving", "output=run", "graph=graph", "embeddings=embeddings", cwd=folder)
    assert done.code == 0, done.err + done.out
    # What reads checkpoints and runs.
    shown = json.loads(cli("checkpoint", "inspect", "run", "--json", cwd=folder).out)
    assert shown["metrics"]["validation.logloss"] == report["validation"]["logloss"]
    assert shown["recalibration"] == {"label": fitted}
    shown = cli("checkpoint", "inspect", "run", cwd=folder).out
    assert f"slope: {fitted['slope']:.6g}" in shown
    runs = json.loads(cli("runs", ".", "--json", cwd=folder).out)["runs"]
    losses = {entry["name"]: entry["validation"]["logloss"] for entry in runs}
    assert losses["run"] == report["validation"]["logloss"]
    assert losses["plain"] == report_of(plain)["validation"]["logloss"]
    opened = tnctl.open(run)
    assert opened.report.recalibration["label"].slope == fitted["slope"]
    scores = opened.predict(pyarrow.csv.read_csv(folder / "clicks/test.csv"))
    assert scores["logit"].to_numpy().tolist() == logits.to_numpy().tolist()


def test_a_lost_report_is_made_again_and_a_finished_run_stays(cli, runs):
    folder = runs
    shutil.copytree(folder / "run", folder / "again")
    earlier = result(folder / "again")
    assert "nothing to do" in train(cli, folder, "again", RECALIBRATED).err
    (folder / "again/report.json").unlink()
    train(cli, folder, "again", RECALIBRATED)
    assert result(folder / "again") == earlier


@pytest.mark.parametrize("when", ["before the fit", "before the save", "a signal in the fit"])
def test_a_run_that_was_killed_ends_the_same(cli, runs, monkeypatch, when):
    folder = runs
    output = when.replace(" ", "_")

    class KilledError(BaseException):
        pass

    def kill(*_, **__):
        raise KilledError

    fitted = platt_scaling.fit

    def interrupted(head):
        signal.raise_signal(signal.SIGINT)
        return fitted(head)

    with monkeypatch.context() as patch:
        if when == "before the fit":
            patch.setattr(platt_scaling, "fit", kill)
        elif when == "before the save":
            patch.setattr(saving, "recalibrate", kill)
        else:
            patch.setattr(platt_scaling, "fit", interrupted)
        if when == "a signal in the fit":
            done = cli(*TRAIN, f"output={output}", RECALIBRATED, cwd=folder)
            assert done.code == 130 and "Run the same command again to resume" in done.last
        else:
            with pytest.raises(KilledError):
                cli(*TRAIN, f"output={output}", RECALIBRATED, cwd=folder)
    assert not (folder / output / "report.json").exists()
    train(cli, folder, output, RECALIBRATED)
    assert result(folder / output) == result(folder / "run")


def test_more_passes_begin_without(cli, runs):
    folder = runs
    shutil.copytree(folder / "run", folder / "longer")
    train(cli, folder, "longer", RECALIBRATED, "train.epochs=3")
    train(cli, folder, "at_once", RECALIBRATED, "train.epochs=3")
    assert result(folder / "longer") == result(folder / "at_once")


def test_a_warm_start_begins_without(cli, runs):
    folder = runs
    more = ["warm.start=run", "train.epochs=1"]
    train(cli, folder, "warm", *more)
    content = json.loads((newest(folder / "warm") / "manifest.json").read_text())
    assert "recalibration" not in content and content["version"] == 1


def test_the_best_model_is_recalibrated(cli, folder):
    best = ["evaluation.keep=best", "evaluation.every_steps=2", "optimizer.linear.learning_rate=3"]
    train(cli, folder, "best", RECALIBRATED, *best)
    report = report_of(folder / "best")
    step = report["best"]["step"]
    assert report["best"]["kept"] and step < report["steps"]
    at_step = {entry["step"]: entry["validation"] for entry in report["evaluations"]}
    figures = report["recalibration"]["label"]["before"]
    assert figures == {key: at_step[step][key] for key in figures}
    kept, last = result(folder / "best")[1][-2:]
    assert (kept["event"], kept["step"], kept["validation"]) == ("kept", step, at_step[step])
    assert (last["event"], last["step"]) == ("recalibrated", step)
    content = json.loads((newest(folder / "best") / "manifest.json").read_text())
    assert content["metrics"]["validation"] == report["validation"] != at_step[step]
    assert cli("checkpoint", "verify", "best", cwd=folder).code == 0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["data.validation=null"], "evaluation.recalibrate needs data.validation"),
        (["train.loss.name=mse", "evaluation.monitor=mse"], "does not predict"),
    ],
)
def test_what_cannot_be_recalibrated_is_refused_before_training(cli, folder, more, said):
    done = train(cli, folder, "refused", RECALIBRATED, *more, code=2)
    assert said in done.last
    assert not (folder / "refused/checkpoints").exists()


def test_auto_is_where_there_is_data_and_a_probability(cli, folder):
    train(cli, folder, "auto", "evaluation.recalibrate=auto")
    assert report_of(folder / "auto")["recalibration"]["label"]["slope"] < 0.9
    for name, more in {
        "without": ["data.validation=null"],
        "squared": ["train.loss.name=mse", "evaluation.monitor=mse"],
    }.items():
        train(cli, folder, name, "evaluation.recalibrate=auto", *more)
        assert "recalibration" not in report_of(folder / name)


def test_without_test_data_half_of_validation_judges(cli, folder):
    train(cli, folder, "halved", RECALIBRATED, "data.test=null")
    train(cli, folder, "before", "data.test=null")
    report, plain = report_of(folder / "halved"), report_of(folder / "before")
    examples = plain["intervals"]["examples"]
    assert examples == plain["examples"]
    assert report["intervals"]["examples"] == pytest.approx(examples / 2, rel=0.1)
    # Half of the rows was fitted to, so the mean of all is not quite right.
    assert report["logloss"] < plain["logloss"] and abs(report["copc"] - 1) > 1e-4


def test_one_after_another():
    logits = np.linspace(-3, 3, 7, dtype=np.float32)
    first, second = Recalibration(slope=0.5, intercept=1), Recalibration(slope=2, intercept=-0.25)
    assert second.after(first).of(logits) == pytest.approx(second.of(first.of(logits)))
    assert second.after(first, 0.0) == first
    half = second.after(Recalibration(slope=1, intercept=0), 0.5)
    assert (half.slope, half.intercept) == (1.5, -0.125)


RECIPE = """\
from tnctl.model import layers


def build(inputs):
    return {"ctr": layers.Logit()(inputs.slot("user")), "buy": layers.Logit()(inputs.slot("item"))}
"""
CONF = """\
defaults: [schema, _self_]
recipe: {name: mine.py}
embedding: {width: 4, linear: false}
slots: {user: {}, item: {}}
data:
  format: jsonl
  train: train.jsonl
  validation: validation.jsonl
  labels: {ctr: {column: clicked}, buy: {column: bought}}
train: {batch_size: 64, epochs: 5}
optimizer: {embedding: {learning_rate: 0.3}}
evaluation: {recalibrate: true, ablate: false, keep: last}
"""


def test_each_head_by_itself(ran, tmp_path):
    rows = list(clicks(500))
    for row in rows[300:]:
        row["bought"] = 0
    for name, part in (("train", rows[:300]), ("validation", rows[300:])):
        lines = "".join(f"{json.dumps(row)}\n" for row in part)
        (tmp_path / f"{name}.jsonl").write_text(lines)
    (tmp_path / "mine.py").write_text(RECIPE)
    (tmp_path / "conf.yaml").write_text(CONF)
    done = ran("train", "conf=conf.yaml", "output=run", cwd=tmp_path)
    # Ids that nobody has clicked by say little, so the slope is small, but of one head only.
    assert "head buy is not recalibrated on data.validation: its labels are all of one" in done.err
    report = report_of(tmp_path / "run")
    [(head, fitted)] = report["recalibration"].items()
    assert head == "ctr" and fitted["after"]["logloss"] < fitted["before"]["logloss"]
    others = report["evaluations"][-1]["validation"]["heads"]["buy"]
    assert report["validation"]["heads"]["buy"] == others
    ran("split-graph", "output=run", "to=graph", "head=buy", cwd=tmp_path)
    content = json.loads((tmp_path / "graph/serving.json").read_text())
    assert content["heads"] == ["buy"] and "recalibration" not in content
    ran("split-graph", "output=run", "to=whole", cwd=tmp_path)
    content = json.loads((tmp_path / "whole/serving.json").read_text())
    assert list(content["recalibration"]) == ["ctr"]


def test_several_workers_recalibrate_too(folder, monkeypatch):
    monkeypatch.chdir(folder)
    overrides = [*(text for text in TRAIN[2:-1]), RECALIBRATED, "train.threads=1"]
    conf = tnctl.compose("small.yaml", [*overrides, "output=workers", "train.epochs=1"])
    report, errors = train_together(conf, 2, golden=5)
    assert not errors
    head = report.recalibration["label"]
    assert head.after["logloss"] < head.before["logloss"]
    assert head.after == {key: report.validation[key] for key in head.after}
    table = pyarrow.csv.read_csv(folder / "clicks/validation.csv")
    predictions = tnctl.open("workers").predict(table)["prediction"].to_numpy()
    assert predictions.mean() == pytest.approx(report.validation["pctr"], rel=1e-5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c["recalibration"]["label"].update(slope=0), "slope"),
        (lambda c: c["recalibration"]["label"].update(slope=-1.5), "slope"),
        (lambda c: c["recalibration"]["label"].update(slope=1e39), "slope"),
        (lambda c: c["recalibration"]["label"].update(intercept="0"), "intercept"),
    ],
)
def test_manifests_are_checked(runs, change, said):
    content = json.loads((newest(runs / "run") / "manifest.json").read_text())
    change(content)
    with pytest.raises(DocumentError, match=said):
        documents.parse(CheckpointManifest, json.dumps(content).encode())
