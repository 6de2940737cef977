"""A metric is one entry of `METRICS` (docs/extending.md): a toy one, through the real commands."""

import json
from dataclasses import fields

import pytest

from tnctl import schema
from tnctl.evaluation.metrics import METRICS, Metric, main_metrics

TRAIN = ("train", "conf=small.yaml", "output=run", "golden=0", "evaluation.ablate=false")


def recall(head):
    """The share of clicks with a prediction above the mean prediction."""
    clicks = head.targets >= 0.5
    return float((clicks & (head.predictions > head.predictions.mean())).sum() / clicks.sum())


def declaration_of_monitor():
    [monitor] = [field for field in fields(schema.Evaluation) if field.name == "monitor"]
    return monitor.metadata["declaration"]


@pytest.fixture
def toy(monkeypatch):
    """What an author adds: an entry of METRICS, and a choice of evaluation.monitor."""
    metric = Metric("recall", recall, title="Recall", greater_is_better=True)
    monkeypatch.setitem(METRICS, "recall", metric)
    declaration = declaration_of_monitor()
    choices = declaration.choices
    object.__setattr__(declaration, "choices", (*choices, "recall"))
    yield metric
    object.__setattr__(declaration, "choices", choices)


@pytest.mark.usefixtures("toy")
def test_a_toy_metric_is_reported_and_chooses_the_best_model(workspace, cli, ran):
    overrides = ("evaluation.monitor=recall", "evaluation.keep=best", "evaluation.every_steps=2",
                 "optimizer.embedding.learning_rate=0.5")  # fmt: skip
    done = ran(*TRAIN, *overrides, cwd=workspace)
    assert "recall 0." in done.err and "Recall" in done.err
    lines = map(json.loads, (workspace / "run/log.jsonl").read_text().splitlines())
    logged = [line["validation"]["recall"] for line in lines if line["event"] == "evaluation"]
    report = json.loads((workspace / "run/report.json").read_text())
    assert len(set(logged)) > 1
    assert (report["best"]["monitor"], report["best"]["value"]) == ("recall", max(logged))
    assert report["best"]["kept"]
    assert ">recall<" in (workspace / "run/report.html").read_text()
    evaluated = cli("evaluate", "output=run", "data.test=null", cwd=workspace)
    assert json.loads(evaluated.out)["recall"] == max(logged)


def test_the_schema_and_the_registry_agree_on_what_can_be_monitored():
    usable = {name for name, metric in METRICS.items() if metric.greater_is_better is not None}
    assert set(declaration_of_monitor().choices) == usable
    assert all(name == metric.name for name, metric in METRICS.items())


def test_main_metrics_have_titles():
    metrics = {"mse": 0.2, "auc": 0.7, "ctr": 0.1, "calibration": [], "logloss": 0.5}
    shown = [(metric.title, value) for metric, value in main_metrics(metrics)]
    assert shown == [("AUC", 0.7), ("logloss", 0.5)]
    del metrics["logloss"]
    assert [metric.name for metric, _ in main_metrics(metrics)] == ["auc", "mse"]
    # A metric that is undefined is there, without a value; one that was not computed is not.
    shown = [(metric.name, value) for metric, value in main_metrics({"auc": None, "mse": 0.2})]
    assert shown == [("auc", None), ("mse", 0.2)]
