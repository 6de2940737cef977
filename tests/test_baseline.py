"""`baseline=true`: boosted trees on the rows of a run, beside its recipe in the report."""

import collections
import json
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import tnctl
from tnctl import system
from tnctl.data import statistics
from tnctl.data.batches import Batch
from tnctl.errors import Failure, UserError
from tnctl.evaluation.metrics import auc
from tnctl.model import building
from tnctl.schema import Slot
from tnctl.system import Limit
from tnctl.tables.columns import mix64
from tnctl.training import baseline
from tnctl.training.baseline import (
    CATEGORIES,
    SALT,
    VALUES,
    BaselineRows,
    RowSample,
    TreeColumns,
    baseline_of,
)

pytest.importorskip("lightgbm")
FEW = ["baseline=true", "baseline.trees=20", "train.threads=1", "evaluation.ablate=false"]


def batch_of(slots, numbers=None, labels=None, weights=None):
    """A batch with a table for each slot, of lists of ids row by row."""
    rows = len(slots[0])
    ids = [np.array([i for row in slot for i in row], np.uint64) for slot in slots]
    ends = [np.cumsum([0, *map(len, slot)]).astype(np.uint32) for slot in slots]
    numeric = np.zeros((rows, 0), np.float32) if numbers is None else numbers
    labels = np.zeros((rows, 1), np.float32) if labels is None else labels
    return Batch(ids, ends, weights or [None] * len(slots), numeric, labels)


def test_many_buckets_of_numbers_are_categories_too():
    """More than a tree has bins: ids that were stored as floats are such."""
    slots = [Slot(ids="quantiles", buckets=buckets) for buckets in (100, 1000)]
    few, many = [n % 100 for n in range(3000)], [n * n % 307 for n in range(3000)]
    many = [n if n % 2 else 900 - n for n in range(300)] * 10
    batch = batch_of([[[n] for n in few], [[n] if n else [] for n in many]])
    columns = TreeColumns(slots, [batch])
    assert (columns.width, columns.categorical) == (3, [1])
    matrix = columns.matrix(batch)
    assert matrix[:, 0].tolist() == few
    assert matrix[:, 2].tolist() == [n or -1 for n in many]
    assert len(set(matrix[:, 1].tolist())) == len(set(many))
    codes = dict(zip(many, matrix[:, 1].tolist(), strict=True))
    assert [codes[n] for n in many] == matrix[:, 1].tolist()


def numbered(first, end):
    """Rows whose only id, and label, is their number."""
    numbers = np.arange(first, end)
    return batch_of([[[n] for n in numbers]], labels=numbers[:, None].astype(np.float32))


def lowest(seed, rows, count):
    """The rows with the lowest hashes, ascending."""
    hashes = [int(mix64(mix64(np.array([seed ^ SALT], np.uint64)) ^ np.uint64(r))[0])
              for r in range(rows)]  # fmt: skip
    return sorted(sorted(range(rows), key=hashes.__getitem__)[:count])


def held(sample):
    labels = np.concatenate([part.labels[:, 0] for part in sample.parts]).astype(int).tolist()
    assert labels == np.concatenate([part.ids[0] for part in sample.parts]).tolist()
    return labels


def sampled(monkeypatch, sample, rows, window):
    """A sample of `rows` numbers, read in windows; each row takes 10 bytes."""
    monkeypatch.setattr(baseline, "cost", lambda batch: 10 * batch.rows)
    for first in range(0, rows, window):
        sample.add(numbered(first, min(first + window, rows)))
        assert sample.rows * 10 <= sample._budget
    sample.finish()
    assert sample.rows_seen == rows
    return held(sample) if sample.rows else []


@pytest.mark.parametrize(("most", "kept"), [(None, 1000), (1000, 1000), (100, 100), (1, 1)])
def test_a_sample_has_the_lowest_hashes(monkeypatch, most, kept):
    sample = RowSample(3, math.inf, most)
    assert sampled(monkeypatch, sample, 1000, 70) == lowest(3, 1000, kept)


@pytest.mark.parametrize(("budget", "least"), [(3000, 100), (0, 0)])
def test_a_sample_fits_into_its_bytes(monkeypatch, budget, least):
    rows = sampled(monkeypatch, RowSample(5, budget, None), 2000, 130)
    assert len(rows) >= least and rows == lowest(5, 2000, len(rows))
    assert not rows or rows != lowest(6, 2000, len(rows))


def frequencies(rows):
    """The ids of rows, the most frequent first, equal ones ascending; and how often each is."""
    counts = collections.Counter(i for row in rows for i in row)
    return sorted(counts, key=lambda i: (-counts[i], i)), counts


def expected_columns(slot, trained, rows):
    """What one slot's columns of `rows` should be, of a sample `trained`: lists of floats."""
    ids, counts = frequencies(trained)
    if any(len(row) > 1 for row in trained):
        top = sorted(ids[:VALUES])
        return [[len(row), *(row.count(value) for value in top)] for row in rows]
    if slot.kind.of_numbers:
        return [[row[0] if row else -1] for row in rows]
    columns = []
    for row in rows:
        code = math.nan
        if row:
            code = min(ids.index(row[0]) if row[0] in counts else len(ids), CATEGORIES)
        columns.append([code])
        if len(ids) > CATEGORIES:
            columns[-1].append(counts[row[0]] if row else -1)
    return columns


def drawn(random, rows, high, most):
    return [random.integers(0, high, random.integers(0, most + 1)).tolist() for _ in range(rows)]


def test_columns_of_slots_and_numbers():
    random = np.random.default_rng(1)
    buckets = Slot(ids="boundaries", boundaries=[1.0, 2.0])
    slots = [Slot(), Slot(), buckets, Slot(separator="|"), Slot(separator="|"), Slot()]
    shapes = [(5, 1), (4 * CATEGORIES, 1), (3, 1), (4, 3), (100, 4), (9, 0)]
    trained = [drawn(random, 4000, *shape) for shape in shapes]
    numbers = random.normal(size=(4000, 2)).astype(np.float32)
    numbers[7, 1] = np.nan
    parts = [
        batch_of([slot[first:end] for slot in trained], numbers[first:end])
        for first, end in ((0, 1500), (1500, 4000))
    ]
    columns = TreeColumns(slots, parts)
    # Of each split there may be ids that the sample has not, and rows with more values than its.
    unseen = [drawn(random, 60, 2 * high, most) for high, most in shapes]
    unseen[0][0], unseen[5][1] = [3, 1], [4]
    other = random.normal(size=(60, 2)).astype(np.float32)
    for rows, of_rows in ((unseen, other), (trained, numbers)):
        expected = [
            expected_columns(slot, sampled, read_ids)
            for slot, sampled, read_ids in zip(slots, trained, rows, strict=True)
        ]
        wanted = np.concatenate([*(np.array(slot, np.float32) for slot in expected), of_rows], 1)
        np.testing.assert_array_equal(columns.matrix(batch_of(rows, of_rows)), wanted)
    assert columns.categorical == [0, 1, 3 + 1 + 5 + 1 + VALUES]
    assert columns.width == wanted.shape[1]
    np.testing.assert_array_equal(columns.whole_matrix(parts), wanted)
    assert all(part.ids == [] for part in parts)


def test_weights_of_values_are_summed():
    weights = [np.array([0.5, 2.0, 0.25, -1.0], np.float32)]
    batch = batch_of([[[7, 7], [], [8, 9]]], weights=weights)
    columns = TreeColumns([Slot(separator="|")], [batch])
    assert columns.matrix(batch).tolist() == [[2, 2.5, 0, 0], [0, 0, 0, 0], [2, 0, 0.25, -1]]


def run_of(folder, *overrides):
    """A conf of the clicks and its model, which is not trained."""
    conf = tnctl.compose(folder / "small.yaml", [f"output={folder}/out", *FEW, *overrides])
    conf.data.root = str(folder / "clicks")
    return conf, building.build(conf, statistics.measure(conf))


def test_the_trees_learn_what_can_be_learned(workspace):
    """Beside the probabilities that the clicks were drawn with, which no model can beat."""
    conf, model = run_of(workspace, "baseline.trees=60")
    result = baseline_of(conf, model)[0]
    rows = BaselineRows(conf, model)
    [window] = list(rows.windows("test"))
    best = auc(window.reference, window.labels[:, 0])
    assert 0.6 < result.test["auc"] < best
    assert result.test["examples"] == 700
    assert result.trees < 60  # data.validation has ended it
    assert (result.rows, result.rows_seen) == (3000, 3000)
    assert result.head is None
    # Trees tell a missing number from 0.
    assert math.isnan(rows.features.missing_number)


def test_the_logits_are_lightgbms(workspace):
    """Without validation data, and with weights: the same model by LightGBM's own interface."""
    import lightgbm

    for split in ("train", "test"):
        path = workspace / f"clicks/{split}.csv"
        header, *lines = path.read_text().splitlines()
        weighted = [f"{line},{1 + row % 3}" for row, line in enumerate(lines)]
        path.write_text("\n".join([f"{header},weight", *weighted]) + "\n")
    conf, model = run_of(workspace, "data.validation=null", "data.weight=weight", "seed=9")
    rows = BaselineRows(conf, model)
    sample = rows.sample("train", math.inf, 1000)
    columns = TreeColumns(rows.slots, sample.parts)
    matrices = [columns.matrix(part) for part in sample.parts]
    labels = np.concatenate([part.labels[:, 0] for part in sample.parts])
    weights = np.concatenate([part.weight for part in sample.parts])
    trees = baseline.trained(conf, rows, columns, sample.parts, None)
    assert trees.current_iteration() == 20
    data = lightgbm.Dataset(
        np.concatenate(matrices), labels, weight=weights, categorical_feature=columns.categorical
    )
    same = lightgbm.train(
        {"objective": "binary", "learning_rate": 0.05, "deterministic": True, "seed": 9,
         "force_col_wise": True, "verbosity": -1}, data, 20,
    )  # fmt: skip
    scored = rows.scored("test", columns, trees)
    [window] = list(rows.windows("test"))
    expected = same.predict(columns.matrix(window), raw_score=True)
    np.testing.assert_array_equal(scored.logits[:, 0], expected.astype(np.float32))
    np.testing.assert_array_equal(scored.weight, window.weight)
    assert all(part.ids == [] for part in sample.parts)


def test_losses_negatives_and_fractions(workspace):
    conf, model = run_of(workspace, "train.loss.name=mse", "evaluation.monitor=mse")
    squared = baseline_of(conf, model)[0].test
    assert "logloss" not in squared
    assert squared["mse"] < squared["ctr"] * (1 - squared["ctr"])
    conf, model = run_of(workspace, "data.negatives=0.25")
    sampled = baseline_of(conf, model)[0]
    assert sampled.rows == sampled.rows_seen < 2000
    # Trained on a quarter of the negatives, corrected for it.
    assert 0.8 < sampled.test["copc"] < 1.25
    # Labels that are no classes, such as shares of clicks.
    for split in ("train", "validation", "test"):
        path = workspace / f"clicks/{split}.csv"
        header, *lines = path.read_text().splitlines()
        names = header.split(",")
        at = names.index('"label"' if '"label"' in names else "label")
        cells = [line.split(",") for line in lines]
        for row in cells:
            row[at] = "0.75" if row[at].startswith("1") else "0.25"
        path.write_text("\n".join([header, *(",".join(row) for row in cells)]) + "\n")
    conf, model = run_of(workspace)
    fractions = baseline_of(conf, model)[0].test
    assert fractions["pctr"] == pytest.approx(fractions["ctr"], abs=0.05)


def test_the_main_head_of_several(tmp_path):
    conf = tnctl.compose(
        "esmm",
        [f"output={tmp_path}/out", *FEW, "data.train=0:3000", "data.validation=3000:4000",
         "data.test=4000:5000"],
    )  # fmt: skip
    model = building.build(conf, statistics.measure(conf))
    result = baseline_of(conf, model)[0]
    assert result.head == model.heads[0]
    assert result.test["examples"] == 1000


def test_a_sample_fits_into_memory(workspace, monkeypatch):
    conf, model = run_of(workspace)
    for free, words in ((1_000_000, None), (0, "no row of data.train fits into the memory")):
        limit = Limit("ulimit -v", 1 << 30, free)
        monkeypatch.setattr(system, "tightest", lambda limit=limit: limit)
        conf.seed += 1
        if words is not None:
            with pytest.raises(Failure, match=words):
                baseline_of(conf, model)
            continue
        result = baseline_of(conf, model)[0]
        assert 100 < result.rows < 3000 == result.rows_seen
        assert result.test["examples"] == 700


@pytest.fixture(scope="module")
def with_baseline(_trained, tmp_path_factory, ran):
    """A finished run that got a baseline, its output, and the report that it had before."""
    import shutil

    folder = tmp_path_factory.mktemp("baseline") / "copy"
    shutil.copytree(_trained, folder)
    report = json.loads((folder / "run/report.json").read_text())
    done = ran("train", "conf=small.yaml", "output=run", *FEW[:3], "baseline.rows=1000",
               "evaluation.ablate=true", cwd=folder)  # fmt: skip
    return SimpleNamespace(folder=folder, run=folder / "run", done=done, report=report)


def read(run):
    return json.loads((run / "report.json").read_text())


def test_a_finished_run_gets_one_and_is_not_trained(with_baseline):
    report = read(with_baseline.run)
    baseline = report.pop("baseline")
    timing, earlier = report.pop("timing"), with_baseline.report.pop("timing")
    points = report.pop("weak_points", [])
    assert all(point.startswith("LightGBM") for point in points)
    assert report == with_baseline.report
    assert timing.pop("baseline_seconds") > 0
    assert timing == earlier
    assert baseline["rows"] == 1000 and baseline["rows_seen"] == 3000
    assert baseline["library"].startswith("LightGBM ")
    assert baseline["trees"] <= 20
    assert baseline["test"]["examples"] == report["examples"] == 700
    assert baseline["test"]["ctr"] == report["ctr"]
    assert baseline["validation"]["ctr"] == report["validation"]["ctr"]
    assert "calibration" not in baseline["test"]
    for figures in (baseline["test"], baseline["validation"]):
        base = figures["ctr"]
        entropy = -(base * math.log(base) + (1 - base) * math.log(1 - base))
        assert figures["ne"] == pytest.approx(figures["logloss"] / entropy)


def test_it_is_shown_beside_the_recipe(with_baseline):
    report = read(with_baseline.run)
    page = (with_baseline.run / "report.html").read_text()
    for metric in ("auc", "logloss", "ne"):
        for value in (report[metric], report["baseline"]["test"][metric]):
            assert f"{value:.5f}" in with_baseline.done.err, metric
            assert f"<td>{value:.5f}</td>" in page, metric
    assert report["baseline"]["library"] in with_baseline.done.err
    assert "trained on 33.3% of the rows" in page


def test_a_run_with_one_is_left_alone(with_baseline, cli):
    stored = (with_baseline.run / "report.json").read_bytes()
    for given in (FEW, []):
        done = cli("train", "conf=small.yaml", "output=run", *given[:3], cwd=with_baseline.folder)
        assert done.code == 0 and "is finished: nothing to do" in done.err
    assert (with_baseline.run / "report.json").read_bytes() == stored


GIVEN = ["conf=small.yaml", "output=run", *FEW[:3]]


def test_a_run_that_is_killed_while_trees_are_trained_trains_only_them_again(
    run_copy, cli, ran, monkeypatch
):
    run = run_copy / "run"
    (run / "report.json").unlink()
    steps = json.loads((run / "log.jsonl").read_text().splitlines()[-1])["step"]

    class Killed(BaseException):
        pass

    def kill(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(baseline, "trained", kill)
        with pytest.raises(Killed):
            cli("train", *GIVEN, cwd=run_copy)
    assert not (run / "report.json").exists()
    ran("train", *GIVEN, cwd=run_copy)
    report = read(run)
    assert report["steps"] == steps and report["baseline"]["trees"] > 0


def test_refused_before_anything_is_trained(workspace, cli, monkeypatch):
    days = ["data.train=day-{day}.csv", "data.validation=null", "data.test=null"]
    for given, words in (
        (days, "every day is another"),
        (["cluster=local"], "baseline is for one process"),
        (["baseline.leaves=1"], "baseline.leaves must be between 2 and 131,072"),
    ):
        done = cli("train", *GIVEN, *given, cwd=workspace)
        assert done.code == 2 and words in done.line, done.err
    done = cli("train", "conf=small.yaml", "baseline=perhaps", cwd=workspace)
    assert done.code == 2 and "baseline.enabled must be true or false" in done.line
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    done = cli("train", *GIVEN, cwd=workspace)
    assert done.code == 2 and "pip install 'tnctl[baseline]'" in done.line
    assert not (workspace / "run").exists()
    with pytest.raises(UserError, match=r"tnctl\[baseline\]"):
        baseline.library()


def test_it_is_recalibrated_as_the_recipe_is(workspace, ran):
    """Fitted on data.validation, so there the mean prediction is the mean label."""
    given = ["conf=small.yaml", "recipe=lr", *FEW, "baseline.learning_rate=0.9",
             "baseline.patience=20"]  # fmt: skip
    reports = []
    for recalibrate in ("false", "true"):
        output = f"output={recalibrate}"
        done = ran("train", *given, output, f"evaluation.recalibrate={recalibrate}", cwd=workspace)
        reports.append(read(workspace / recalibrate))
    plain, fitted = [report["baseline"] for report in reports]
    assert (
        "recalibration" not in plain
        and "slope of" not in (workspace / "false/report.html").read_text()
    )
    slopes = [report["slope"] for report in
              (*reports[1]["recalibration"].values(), fitted["recalibration"])]  # fmt: skip
    assert 0 < slopes[1] != pytest.approx(1, abs=0.05)
    for split in ("validation", "test"):
        assert fitted[split]["auc"] == pytest.approx(plain[split]["auc"], abs=1e-6)
    assert fitted["validation"]["pctr"] == pytest.approx(fitted["validation"]["ctr"], abs=1e-6)
    assert fitted["validation"]["logloss"] < plain["validation"]["logloss"] - 1e-4
    assert fitted["test"]["logloss"] != plain["test"]["logloss"]
    [line] = [line for line in done.err.splitlines() if line.startswith("slope of recalibration")]
    assert line.split()[-2:] == [f"{slope:.5g}" for slope in slopes]
    assert "slope of recalibration" in (workspace / "true/report.html").read_text()
