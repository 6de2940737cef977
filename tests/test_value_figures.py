"""evaluation.by: the metrics of a report for each value of a column."""

import json

import numpy as np
import pyarrow as pa
import pytest
from conftest import copy_workspace

from tnctl.errors import Failure
from tnctl.evaluation import metrics
from tnctl.evaluation.metrics import HeadExamples, Scored
from tnctl.evaluation.split_scoring import MOST_VALUES, by_value, texts_of

TRAIN = [
    "train", "conf=small.yaml", "recipe=lr", "train.batch_size=512", "evaluation.ablate=false",
    "output=run",
]  # fmt: skip


@pytest.mark.parametrize("weighted", [False, True])
def test_each_value_has_the_metrics_of_its_rows(weighted):
    random = np.random.default_rng(4)
    texts = [f"p{number}" for number in random.zipf(1.3, 5000) % 80]
    texts[:3] = [None, "", "p\n1"]
    logits = random.normal(-1, 1, 5000).astype(np.float32)
    labels = (random.random(5000) < 0.3).astype(np.float32)
    weights = random.random(5000).astype(np.float32) if weighted else None
    scored = Scored(["label"], logits[:, None], labels[:, None], weights)
    of = by_value(scored, pa.chunked_array([texts[:9], texts[9:]]))
    assert len(of) == MOST_VALUES + 1 and sum(value.examples for value in of) == 5000
    counts = [value.examples for value in of[:-1]]
    assert counts == sorted(counts, reverse=True) and of[-1].value is None
    known = np.array([text or "" for text in texts])
    for value in of[:-1]:
        rows = known == value.value
        assert rows.sum() == value.examples
        weight = None if weights is None else weights[rows]
        expected = metrics.of_head(HeadExamples(logits[rows], labels[rows], weight))
        for name in ("auc", "ne", "ctr", "pctr", "copc"):
            assert getattr(value, name) == expected[name]
    rest = ~np.isin(known, [value.value for value in of[:-1]])
    assert of[-1].examples == rest.sum()
    assert (
        of[-1].copc == pytest.approx(labels[rest].sum() / of[-1].pctr / rest.sum(), rel=1e-6)
        or weighted
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory, _workspace):
    folder = tmp_path_factory.mktemp("by")
    copy_workspace(_workspace, folder)
    return folder


def test_a_report_has_them_on_the_split_that_it_is_of(cli, folder):
    """Also of columns that are no input; a slot is one of its name."""
    done = cli(*TRAIN, "evaluation.by=[device,price_range,label]", cwd=folder)
    assert done.code == 0, done.err
    report = json.loads((folder / "run/report.json").read_text())
    assert set(report["by"]) == {"device", "price_range", "label"}
    for values in report["by"].values():
        assert sum(value["examples"] for value in values) == report["examples"]
    clicks = sum(value["ctr"] * value["examples"] for value in report["by"]["device"])
    assert clicks == pytest.approx(report["ctr"] * report["examples"])
    assert "<h2>By price_range</h2>" in (folder / "run/report.html").read_text()
    largest = report["by"]["device"][0]
    line = next(line for line in done.err.splitlines() if line.split()[:1] == [largest["value"]])
    assert line.split()[1:3] == [f"{largest['examples']:,}", f"{largest['auc']:.4f}"]
    done = cli("evaluate", "output=run", "evaluation.by=[device]", cwd=folder)
    assert done.code == 0, done.err
    assert json.loads(done.out)["by"] == {"device": report["by"]["device"]}


def test_what_cannot_be_told_apart(cli, folder):
    done = cli(*TRAIN, "evaluation.by=[nothing]", "overwrite=true", cwd=folder)
    assert done.code == 1 and "no column 'nothing'" in done.last
    neither = ["data.validation=null", "data.test=null", "overwrite=true"]
    done = cli(*TRAIN, "evaluation.by=[device]", *neither, cwd=folder)
    assert done.code == 2 and "neither is given" in done.last
    table = pa.table({"lists": [["a"], ["b", "c"]], "numbers": [1, None]})
    assert texts_of(table, "numbers").to_pylist() == ["1", None]
    with pytest.raises(Failure, match=r"evaluation\.by has lists"):
        texts_of(table, "lists")
