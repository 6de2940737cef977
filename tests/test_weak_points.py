"""What a report says is wrong with a model, and that it says nothing where chance could be it."""

import json

import numpy as np
import pytest
from conftest import copy_workspace

from tnctl import schema
from tnctl.checkpoint.document import Epoch
from tnctl.evaluation import metrics
from tnctl.evaluation.metrics import HeadExamples, Scored
from tnctl.training.report.final_report import error_of_auc, weak_points
from tnctl.training.report.report_document import BaselineFigures, Best, Report, Timing


def conf_of(**evaluation):
    return schema.from_values({
        "recipe": {"name": "lr"}, "output": "run", "slots": {"user": {}},
        "data": {"train": "a.csv", "validation": "b.csv"}, "evaluation": evaluation,
    })  # fmt: skip


def report_of(rows, shift=0.0, skill=1.0, passes=1, running=0.7, **values):
    """A report of logits that know the truth to a share, shifted."""
    random = np.random.default_rng(3)
    truth = random.normal(-2, 1, rows)
    labels = (random.random(rows) < 1 / (1 + np.exp(-truth))).astype(np.float32)
    noise = random.normal(-2, 1, rows)
    logits = (skill * truth + (1 - skill) * noise + shift).astype(np.float32)
    scored = Scored(["label"], logits[:, None], labels[:, None])
    epochs = tuple(
        Epoch(epoch=number, step=10 * number, examples=100, loss=0.3, running_auc=running)
        for number in range(1, passes + 1)
    )
    return Report(
        metrics=scored.metrics(), split="test", steps=10 * passes, dense_weights=0, checkpoint="",
        epochs=epochs, timing=Timing(), **values,
    )  # fmt: skip


def test_a_good_model_has_none():
    assert weak_points(conf_of(), report_of(20_000)) == ()
    assert weak_points(conf_of(), report_of(20_000, passes=5, running=0.74)) == ()


def test_too_high_in_all_is_said_where_it_is_certain():
    [line] = weak_points(conf_of(), report_of(20_000, shift=0.3))
    assert line.startswith("COPC 0.8") and "fewer clicks than predicted" in line
    assert "Try evaluation.recalibrate=auto" in line
    assert weak_points(conf_of(), report_of(50, shift=0.3)) == ()
    [line] = weak_points(conf_of(recalibrate="auto"), report_of(20_000, shift=-0.3))
    assert "more clicks than predicted" in line and "recalibrate" not in line


def test_no_better_than_the_mean():
    lines = weak_points(conf_of(), report_of(20_000, skill=0.0))
    assert (
        lines[0].startswith("NE 1.") and "the mean label for every row would be better" in lines[0]
    )


def test_rows_that_are_memorised():
    best = Best(monitor="auc", value=0.7, step=20, kept=True)
    [line] = weak_points(conf_of(), report_of(20_000, passes=3, running=0.95, best=best))
    assert line.startswith("AUC 0.9500 on the rows of pass 2") and "life.admission" in line
    # The first pass trains on rows that were new to it.
    assert weak_points(conf_of(), report_of(20_000, passes=1, running=0.95)) == ()
    assert weak_points(conf_of(), report_of(40, passes=3, running=0.8)) == ()


@pytest.mark.parametrize(("auc", "lines"), [(0.95, 1), (0.70, 0)])
def test_a_baseline_that_is_better(auc, lines):
    trees = BaselineFigures(
        library="LightGBM", rows=1, rows_seen=1, columns=1, categorical=0, trees=1,
        test={"auc": auc, "logloss": 0.5},
    )  # fmt: skip
    said = weak_points(conf_of(), report_of(20_000, baseline=trees))
    assert len(said) == lines and all(line.startswith("LightGBM is better: AUC") for line in said)


def test_the_error_of_an_auc_is_that_of_a_bootstrap():
    random = np.random.default_rng(5)
    labels = (random.random(2000) < 0.2).astype(np.float32)
    scores = (labels + random.normal(0, 1, 2000)).astype(np.float32)
    drawn = []
    for _ in range(400):
        rows = random.integers(0, 2000, 2000)
        drawn.append(metrics.auc(scores[rows], labels[rows]))
    whole = metrics.of_head(HeadExamples(scores, labels))["auc"]
    assert error_of_auc(whole, labels.sum(), 2000 - labels.sum()) == pytest.approx(
        np.std(drawn), rel=0.2
    )


def test_a_run_says_it_at_its_end(cli, tmp_path, _workspace):
    copy_workspace(_workspace, tmp_path)
    done = cli(
        "train", "conf=small.yaml", "recipe=lr", "train.epochs=3", "train.batch_size=512",
        "optimizer.linear.learning_rate=9", "evaluation.ablate=false", "output=run", cwd=tmp_path,
    )  # fmt: skip
    assert done.code == 0
    points = json.loads((tmp_path / "run/report.json").read_text())["weak_points"]
    assert points and all(f"weak point: {point}" in done.err for point in points)
    assert "<h2>Weak points</h2>" in (tmp_path / "run/report.html").read_text()
