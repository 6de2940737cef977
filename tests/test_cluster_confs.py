"""What a conf can say, with several workers: it is what one process gives, or it is refused."""

import csv
import dataclasses
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import units
from cluster_in_one_process import train_together

from tnctl import schema
from tnctl.checkpoint import load as loading
from tnctl.cluster.joining.membership import Membership
from tnctl.cluster.workers import worker
from tnctl.cluster.workers.row_service import RowService
from tnctl.composing import compose
from tnctl.data.statistics_document import Statistics
from tnctl.data.windows import kept_negatives
from tnctl.errors import Failure, UserError
from tnctl.tables.plans import shards_of
from tnctl.training.run import train

BATCH, STEPS = 32, 8  # of one worker, in a pass
# What is measured on the data depends on its order, but for these.
MEASURED = ["~slots.price_range", "numeric.quality.mean=0", "numeric.quality.deviation=1"]


def composed(folder, monkeypatch, *overrides):
    monkeypatch.chdir(folder)
    return compose.compose_run(folder / "small.yaml", ["train.threads=1", *overrides])


def together(conf, workers, **options):
    report, errors = train_together(conf, workers, **options)
    assert not errors
    return report


def write(path, header, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *lines, ""]))


@pytest.fixture
def marked(workspace):
    """Clicks with the weight of each example and a second label."""
    for split in ("train", "validation", "test"):
        path = workspace / f"clicks/{split}.csv"
        header, *lines = path.read_text().replace('"', "").splitlines()
        label = header.split(",").index("label")
        write(path, f"{header},importance,bought", [
            f"{line},{0.5 + number % 4 / 4},{int(number % 3 == 0) * int(line.split(',')[label])}"
            for number, line in enumerate(lines)
        ])  # fmt: skip
    return workspace


def cut(folder, workers, days=1):
    """The same batches for so many workers, in `shared`, and for one process, in `together`."""
    header, *lines = (folder / "clicks/train.csv").read_text().splitlines()
    rows = iter(lines)
    for day in range(1, days + 1):
        of_worker = [list(itertools.islice(rows, BATCH * STEPS)) for _ in range(workers)]
        for rank, part in enumerate(of_worker):
            write(folder / f"clicks/shared/day=2024-01-0{day}/worker-{rank}.csv", header, part)
        steps = [slice(step * BATCH, (step + 1) * BATCH) for step in range(STEPS)]
        of_steps = [row for step in steps for part in of_worker for row in part[step]]
        write(folder / f"clicks/together/day=2024-01-0{day}/all.csv", header, of_steps)


def conf_of(folder, monkeypatch, side, workers, days, overrides):
    """A conf of one side; a step has the same rows on both."""
    conf = composed(
        folder, monkeypatch, *MEASURED, *overrides, f"data.train='{side}/day={days}/*.csv'",
        f"train.batch_size={BATCH * workers if side == 'together' else BATCH}", f"output={side}",
        "data.shuffle=false", "optimizer.embedding.name=sgd", "optimizer.linear.name=sgd",
        "optimizer.dense.name=sgd",
    )  # fmt: skip
    if side == "together":
        return conf
    cluster = dataclasses.replace(conf.cluster, start="env", workers=workers)
    return dataclasses.replace(conf, cluster=cluster)


def both(folder, monkeypatch, workers, days, overrides):
    """The reports, and the newest checkpoints, of one process and of several workers."""
    alone, shared = (
        conf_of(folder, monkeypatch, side, workers, days, overrides)
        for side in ("together", "shared")
    )
    reports = train(alone, golden=20), together(shared, workers, golden=20)
    return *reports, *map(loading.newest, ("together", "shared"))


def same_models(expected, received):
    """Equal keys, clocks and counts; weights that differ by the rounding of sums."""
    models = [
        loading.load(checkpoint, schema.from_values(checkpoint.conf()))
        for checkpoint in (expected, received)
    ]
    for arrays in zip(*(model.dense.weights for model in models), strict=True):
        np.testing.assert_allclose(*arrays, rtol=0, atol=1e-5)
    for tables in zip(*(model.tables for model in models), strict=True):
        alone, shared = (np.concatenate(list(table.records())) for table in tables)
        for name in alone.dtype.names[:4]:
            np.testing.assert_array_equal(alone[name], shared[name], name)
        for name in alone.dtype.names[4:]:
            np.testing.assert_allclose(alone[name], shared[name], rtol=1e-4, atol=1e-5)
    for alone, shared in zip(expected.golden(), received.golden(), strict=True):
        assert (alone.row, alone.ids) == (shared.row, shared.ids)
        near(alone.logits, shared.logits)


def near(expected, received):
    """Documents whose numbers are those of the other within the rounding of sums."""
    if isinstance(expected, dict):
        assert expected.keys() == received.keys()
        for key in expected:
            near(expected[key], received[key])
    elif isinstance(expected, list | tuple):
        for inner in zip(expected, received, strict=True):
            near(*inner)
    elif isinstance(expected, float):
        assert math.isclose(expected, received, rel_tol=1e-3, abs_tol=1e-3), (expected, received)
    else:
        assert expected == received


def figures_of(report):
    """What a report has of the model and its training."""
    keys = ("steps", "epochs", "evaluations", "days", "best", "tables", "life", "metrics")
    values = dataclasses.asdict(report)
    return {key: values[key] for key in keys}


DAYS = [
    "data.weight=importance", "data.group=user_id", "life.admission.after=2",
    "life.shows.cvm=true", "life.shows.decay=0.9", "life.eviction.unseen_days=1",
    "slots.interests.pooling=none", "slots.interests.max_length=3", "slots.user_id.frozen=true",
    "save.full_every=3", "optimizer.embedding.weight_decay=0.01", "evaluation.ablate=false",
    "+optimizer.schedule={name: day, end: 0.1}",
]  # fmt: skip


@pytest.mark.long
def test_days_with_a_gate_and_the_life_of_rows(marked, monkeypatch, capsys, ran):
    cut(marked, 2, days=3)
    report, shared_report, expected, received = both(marked, monkeypatch, 2, "{day}", DAYS)
    near(figures_of(report), figures_of(shared_report))
    assert [day.rows for day in shared_report.days] == [2 * BATCH * STEPS] * 3
    assert [day.new_ids for day in report.days] == [day.new_ids for day in shared_report.days]
    assert shared_report.days[-1].evicted["item_id"] > 0
    assert received.manifest.kind == "delta"  # and is read with its base by one process
    same_models(expected, received)
    for command in (["export-embeddings", "output=shared"], ["checkpoint", "verify", "shared"]):
        ran(*command, cwd=marked)
    # The next day lacks an input, and has files for two of three workers.
    for rank in range(2):
        path = marked / f"clicks/shared/day=2024-01-03/worker-{rank}.csv"
        header, *rows = (line.split(",") for line in path.read_text().splitlines())
        column = header.index("device")
        lines = [",".join([*row[:column], "", *row[column + 1 :]]) for row in rows]
        write(Path(str(path).replace("-03", "-04")), ",".join(header), lines)
    conf = conf_of(marked, monkeypatch, "shared", 3, "{day}", DAYS)
    with pytest.raises(Failure, match=r"2024-01-04 looks broken: slots\.device: coverage 0\.0%"):
        train_together(conf, 3)
    capsys.readouterr()
    continued = together(conf, 3, accept=True)
    assert "has 2 parts for 3 workers. Workers without data: 1." in capsys.readouterr().err
    assert [day.rows for day in continued.days] == [2 * BATCH * STEPS] * 4
    assert "slots.device: coverage 0.0%" in continued.days[-1].accepted[0]
    assert continued.days[-1].new_ids["item_id"] < 1
    assert continued.steps == 4 * STEPS
    for group, life in continued.life.items():
        assert life.evicted == sum((day.evicted or {}).get(group, 0) for day in continued.days)


@pytest.mark.long
def test_the_best_model_of_several_heads(marked, monkeypatch, ran):
    """Stops early, in the middle of a pass; keeps an earlier model; every command reads it."""
    cut(marked, 3)
    header, *lines = (marked / "clicks/validation.csv").read_text().splitlines()
    bounds = [0, 100, 100, 500, len(lines)]  # one of the files has no row
    for number, span in enumerate(itertools.pairwise(bounds)):
        write(marked / f"clicks/validation-{number}.csv", header, lines[slice(*span)])
    report, shared_report, expected, received = both(
        marked, monkeypatch, 3, "*", ["recipe=esmm", "recipe.hidden=[16,8]",
        "+data.labels.ctr.column=label", "+data.labels.ctcvr.column=bought", "train.epochs=4",
        "data.validation=validation-*.csv", "evaluation.every_steps=3", "evaluation.keep=best",
        "evaluation.monitor=logloss", "evaluation.min_delta=0.5", "evaluation.patience=4",
        "optimizer.schedule.name=plateau", "optimizer.schedule.patience=1",
        "save.every_steps=4", "save.full_every=3", "evaluation.ablate=true"],
    )  # fmt: skip
    assert (shared_report.best.step, shared_report.steps) == (3, 12)
    near(figures_of(report), figures_of(shared_report))
    near(report.importance, shared_report.importance)
    assert list(shared_report.metrics["heads"]) == ["ctcvr"]
    assert received.step == 3
    same_models(expected, received)
    lines = [json.loads(line) for line in Path("shared/log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["event"] == "evaluation"] == [3, 6, 8, 9, 12]
    norms = [Path(side, "report.html").read_text() for side in ("together", "shared")]
    assert norms[0].count("<tr>") == norms[1].count("<tr>")
    for command in (
        ["evaluate"], ["predict"], ["export-embeddings"], ["split-graph"], ["verify-serving"],
        ["ablate"],
    ):  # fmt: skip
        done = ran(*command, "output=shared", cwd=marked)
        if command == ["evaluate"]:
            near(json.loads(done.out)["logloss"], shared_report.metrics["logloss"])
    for command in ("list", "inspect", "verify"):
        done = ran("checkpoint", command, "shared", cwd=marked)


@pytest.mark.parametrize("workers", [pytest.param(2, marks=pytest.mark.long), 3])
def test_negatives_bad_rows_and_the_bound_of_rows(tmp_path, monkeypatch, workers):
    """Sampled by unit, so they are the same rows for all numbers of workers."""
    monkeypatch.chdir(tmp_path)
    conf = units.conf_of(tmp_path, "csv", units.write_csv(tmp_path, 8, bad=units.BAD))
    conf = dataclasses.replace(
        conf,
        output="run",
        data=dataclasses.replace(
            conf.data, negatives=0.3, bad_rows=len(units.BAD), validation=conf.data.train
        ),
        life=schema.Life(eviction=schema.Eviction(rows=31)),
        evaluation=schema.Evaluation(ablate=False),
    )
    report = together(conf, workers)
    assert report.epochs[0].skipped_rows == len(units.BAD)
    kept = 0
    for index, path in enumerate(sorted(tmp_path.glob("*.csv"))):
        labels = [row["y"] for row in csv.DictReader(path.open()) if row["y"] != "x"]
        numbers = np.arange(len(labels), dtype=np.uint64) + (index << 40)
        kept += int((kept_negatives(conf.seed, 0.3, numbers) | (np.array(labels) == "1")).sum())
    assert report.epochs[0].examples == kept
    checkpoint = loading.newest("run")
    assert checkpoint.manifest.logit_correction == pytest.approx(math.log(0.3))
    assert report.metrics["examples"] == units.ROWS - len(units.BAD)
    assert report.life["a"].evicted > 0
    [table] = loading.load(checkpoint, conf).tables
    records = np.concatenate(list(table.records()))
    hashes = table.hashes(records["group"], records["id"])
    for rank in range(workers):
        first, last = shards_of(rank, workers).hashes
        owned = records["group"][(hashes >= np.uint64(first)) & (hashes <= np.uint64(last))]
        assert 0 < np.bincount(owned).max() <= 31 // workers
    # No worker has so many, and all together have more.
    fewer = dataclasses.replace(conf.data, bad_rows=len(units.BAD) - 1)
    conf = dataclasses.replace(conf, output="other", data=fewer)
    with pytest.raises(Failure, match=r"over 4 rows that cannot be read.* The first: .*part-"):
        train_together(conf, workers)


def test_what_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "rows.csv", "a,b,y,n", ["a1,w1,1,2"])
    write(tmp_path / "part-0.csv", "a,b,y,n", [])
    write(tmp_path / "part-1.csv", "a,b,y,n", [])
    conf = units.conf_of(tmp_path, "csv", "part-*.csv", validation="rows.csv")
    conf = dataclasses.replace(conf, output="run")
    with pytest.raises(Failure) as of_one:
        train(conf)
    with pytest.raises(Failure) as of_several:
        train_together(conf, 2)
    assert str(of_one.value) == str(of_several.value)
    bounded = dataclasses.replace(conf, life=schema.Life(eviction=schema.Eviction(rows=1)))
    with pytest.raises(UserError, match="is 1 rows, and 2 workers own at least one each"):
        worker.built(bounded, Statistics({"n": None}), 0, Membership(2))

    def see_output(self, name, content):
        return self.node.rank == 0 and bool(name and content)

    monkeypatch.setattr(RowService, "see_output", see_output)
    with pytest.raises(UserError, match="output=run: worker 1 does not see the file that worker 0"):
        train_together(conf, 2)
    assert not list(tmp_path.glob("run/workers/seen*"))
