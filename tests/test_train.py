"""`tnctl train`: what it writes, that it repeats, and what the same command does again."""

import contextlib
import hashlib
import json
import os
import pty
import re
import signal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pytest

import tnctl
from tnctl import documents, manifest
from tnctl.checkpoint.document import CheckpointManifest
from tnctl.training import schedule

TRAIN = ("train", "conf=small.yaml", "output=run")


def report_of(run, timing=False):
    report = json.loads((run / "report.json").read_text())
    assert set(report["timing"]) >= {"seconds", "examples_per_second"}
    return report if timing else {k: v for k, v in report.items() if k != "timing"}


def log_of(run):
    """The lines of log.jsonl, without what depends on the clock."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert all("timing" in line for line in lines)
    return [{k: v for k, v in line.items() if k != "timing"} for line in lines]


def checkpoints(run):
    return sorted((run / "checkpoints").iterdir())


def weights_of(checkpoint):
    """The bytes of everything that training changes."""
    paths = [*sorted((checkpoint / "tables").rglob("*.rows")), checkpoint / "dense.bin"]
    return {str(p.relative_to(checkpoint)): digest(p.read_bytes()) for p in paths}


def digest(data):
    return hashlib.sha256(data).hexdigest()


def state_of(folder):
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.stat().st_ino)
        for path in folder.rglob("*")
        if path.is_file()  # a lock comes and goes in the output
    }


def train(cli, folder, *overrides, expected=0):
    done = cli(*TRAIN, *overrides, cwd=folder)
    assert done.code == expected, done.err
    return done


def test_a_run_writes_what_it_says(trained):
    run = trained / "run"
    assert sorted(path.name for path in run.iterdir()) == [
        "checkpoints",
        "log.jsonl",
        "report.html",
        "report.json",
    ]
    [checkpoint] = checkpoints(run)
    assert checkpoint.name == "step-0000000012"
    content = documents.plain(manifest.read(str(checkpoint), CheckpointManifest))
    files = {str(p.relative_to(checkpoint)) for p in checkpoint.rglob("*") if p.is_file()}
    assert files == {"manifest.json", *content["files"]}
    assert {"dense.bin", "conf.json", "golden.jsonl", "graph/saved_model.pb"} <= files
    assert content["clock"]["step"] == 12
    assert content["finished"] is True
    assert len((checkpoint / "golden.jsonl").read_text().splitlines()) == 200
    report = report_of(run)
    assert report["split"] == "test"
    assert (report["examples"], report["steps"]) == (700, 12)
    assert report["checkpoint"] == "checkpoints/step-0000000012"
    for key in ("auc", "logloss", "ne", "ctr", "pctr", "copc", "accuracy", "mse", "mae", "mape",
                "reference_auc"):  # fmt: skip
        assert np.isfinite(report[key])
    assert sum(bucket["count"] for bucket in report["calibration"]) == 700
    assert sum(part["negatives"] + part["positives"] for part in report["histogram"]) == 700
    [epoch] = report["epochs"]
    assert (epoch["epoch"], epoch["examples"]) == (1, 3000)
    assert epoch["validation"]["examples"] == 900
    [evaluation] = report["evaluations"]
    assert evaluation == {"step": 12, "epoch": 1, "validation": epoch["validation"]}
    best = {"monitor": "auc", "value": epoch["validation"]["auc"], "step": 12, "kept": True}
    assert report["best"] == best
    step, *others = log_of(run)
    assert (step["event"], step["step"], step["examples"]) == ("step", 10, 2560)
    assert 0 < step["loss"] < 1
    assert others == [
        {"event": "evaluation", **evaluation, "better": True},
        {"event": "epoch", **epoch},
    ]
    assert (
        sum(table["rows"] for table in content["tables"]) == report["tables"]["embedding4"]["rows"]
    )


def test_it_shows_where_it_is_and_prints_nothing_else(trained, process):
    done = process(*TRAIN, "overwrite=true", "output=shown", "golden=0", cwd=trained)
    assert done.code == 0
    assert done.out == ""
    assert "3,000 examples" in done.err
    assert re.search(r"\nAUC \(test\) .*\nAUC of the reference .*\nlogloss ", done.err)
    assert "shown/report.json" in done.err
    assert "0000 " not in done.err  # TensorFlow's own lines
    [checkpoint] = checkpoints(trained / "shown")
    assert (checkpoint / "golden.jsonl").read_bytes() == b""
    # A process of its own and this one: the same bytes, the same report.
    assert weights_of(checkpoint) == weights_of(checkpoints(trained / "run")[0])
    plain, shown = report_of(trained / "run"), report_of(trained / "shown")
    assert {**plain, "checkpoint": ""} == {**shown, "checkpoint": ""}


def test_the_metrics_are_those_of_the_scored_rows(trained, cli, ran):
    """`evaluate` in a new process state gives the report's figures exactly."""
    done = ran("evaluate", "output=run", cwd=trained)
    shown = json.loads(done.out)
    report = report_of(trained / "run")
    del shown["checkpoint"]
    assert {**report, **shown} == report
    assert "calibration" in shown and "histogram" not in shown
    done = cli("evaluate", "output=run", "data.test=null", cwd=trained)
    assert json.loads(done.out) | report["epochs"][0]["validation"] == json.loads(done.out)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_same_seed_gives_the_same_bytes_for_any_threads(trained, workspace, cli, threads):
    train(cli, workspace, f"train.threads={threads}")
    assert weights_of(checkpoints(workspace / "run")[0]) == weights_of(
        checkpoints(trained / "run")[0]
    )
    assert report_of(workspace / "run") == report_of(trained / "run")


def test_another_seed_gives_another_model(trained, workspace, cli):
    train(cli, workspace, "seed=2")
    weights, others = (weights_of(checkpoints(f / "run")[0]) for f in (workspace, trained))
    assert all(weights[name] != others[name] for name in weights)


def test_a_finished_run_is_left_alone(run_copy, cli):
    state = state_of(run_copy)
    done = train(cli, run_copy)
    assert "finished" in done.err
    assert "overwrite=true" in done.err
    assert state_of(run_copy) == state


def test_another_conf_is_refused_by_its_keys(run_copy, cli):
    state = state_of(run_copy)
    changes = ["seed=2", "recipe.hidden=[3]", "slots.device.pooling=mean", "data.shuffle=false"]
    done = train(cli, run_copy, *changes, expected=2)
    for key in (change.split("=")[0] for change in changes):
        assert key in done.line
    assert "train.batch_size" not in done.line
    assert "overwrite=true" in done.line
    assert state_of(run_copy) == state


def test_every_row_is_trained_in_every_epoch(workspace, cli):
    """Also those of the last partial batch, and a batch larger than the data."""
    for batch_size, steps in ((256, 12), (4096, 1), (2999, 2)):
        train(cli, workspace, f"train.batch_size={batch_size}", "train.epochs=2", "overwrite=true",
              "data.test=null")  # fmt: skip
        report = report_of(workspace / "run")
        assert report["steps"] == 2 * steps
        assert [epoch["examples"] for epoch in report["epochs"]] == [3000, 3000]
        assert report["split"] == "validation"
        assert report["epochs"][1]["loss"] < report["epochs"][0]["loss"]


def test_without_evaluation_data(workspace, cli):
    train(cli, workspace, "data.test=null", "data.validation=null", "data.reference=null")
    report = report_of(workspace / "run")
    assert report["split"] is None
    assert "auc" not in report
    done = cli("evaluate", "output=run", cwd=workspace)
    assert done.code == 2
    assert "data.test" in done.last


# On so few rows the embeddings soon know them by heart, and validation gets worse.
OVERFITS = ["train.epochs=5", "optimizer.embedding.learning_rate=0.5", "train.batch_size=512",
            "data.test=null", "golden=0"]  # fmt: skip


def test_keep_best_ends_with_the_best_model(workspace, cli):
    # Rows that decay are read by the clock of the best, not by that of the last.
    overrides = [*OVERFITS, "evaluation.every_steps=4", "optimizer.embedding.lazy_l2=0.0001"]
    train(cli, workspace, *overrides, "output=last")
    last = report_of(workspace / "last")
    values = [evaluation["validation"]["auc"] for evaluation in last["evaluations"]]
    assert [evaluation["step"] for evaluation in last["evaluations"]] == sorted(
        {*range(4, 31, 4), *range(6, 31, 6)}
    )
    best = int(np.argmax(values))
    assert 0 < best < len(values) - 1
    assert last["best"]["step"] == last["evaluations"][best]["step"]
    assert last["best"]["kept"] is False
    assert last["auc"] == values[-1]

    train(cli, workspace, *overrides, "evaluation.keep=best")
    run = workspace / "run"
    report = report_of(run)
    assert report["evaluations"] == last["evaluations"]
    assert report["epochs"] == last["epochs"]
    assert (report["auc"], report["steps"]) == (values[best], 30)
    assert report["best"] == {**last["best"], "kept": True}
    # The newest checkpoint is the kept model.
    assert report["checkpoint"] == "checkpoints/step-0000000030"
    done = cli("evaluate", "output=run", cwd=workspace)
    assert json.loads(done.out)["auc"] == values[best]
    weights = weights_of(checkpoints(run)[-1])
    assert weights != weights_of(checkpoints(workspace / "last")[-1])
    assert weights == weights_of(run / f"checkpoints/step-{report['best']['step']:010d}")
    assert cli("checkpoint", "verify", "run", cwd=workspace).code == 0
    inspected = cli("checkpoint", "inspect", "run", cwd=workspace).out
    assert "steps_trained: 30" in inspected
    done = cli("predict", "output=run", "to=scores.csv", cwd=workspace)
    assert f"by the model of step {report['best']['step']}, the best of 30 written to" in done.last
    metrics_of_the_weights_kept(cli, workspace, report, last)
    # A report that was lost is made of it again.
    (run / "report.json").unlink()
    train(cli, workspace, *overrides, "evaluation.keep=best")
    assert report_of(run) == report


def metrics_of_the_weights_kept(cli, workspace, report, last):
    """Wherever a run or its checkpoint has metrics, they are of the weights that it has."""
    at_step = {entry["step"]: entry["validation"] for entry in report["evaluations"]}
    kept = report["best"]["step"]
    assert (report["validation"], last["validation"]) == (at_step[kept], at_step[30])
    assert report["validation"]["auc"] == report["auc"]
    logged = [line for line in log_of(workspace / "run") if line["event"] == "kept"]
    assert [(line["step"], line["validation"]) for line in logged] == [(kept, at_step[kept])]
    assert not any(line["event"] == "kept" for line in log_of(workspace / "last"))

    content = json.loads((checkpoints(workspace / "run")[-1] / "manifest.json").read_text())
    assert content["clock"]["step"] == kept < content["metrics"]["evaluations"][-1]["step"]
    assert content["metrics"]["validation"] == at_step[kept]
    for output, step in (("run", kept), ("last", 30)):
        done = cli("checkpoint", "inspect", output, "--json", cwd=workspace)
        shown = json.loads(done.out)
        assert (shown["step"], shown["metrics"]["validation.auc"]) == (step, at_step[step]["auc"])
        entries = json.loads(cli("checkpoint", "list", output, "--json", cwd=workspace).out)
        for entry in entries:  # the last is named after how far training went
            of_step = step if entry["finished"] else entry["step"]
            assert entry["value"] == at_step[of_step]["auc"]
            assert entry["best"] == (of_step == kept)
        done = cli("checkpoint", "inspect", output, cwd=workspace)
        assert f"{at_step[step]['auc']:.6g}" in done.out
    done = cli("checkpoint", "diff", "run", "last", "--json", cwd=workspace)
    aucs = [at_step[kept]["auc"], at_step[30]["auc"]]
    assert json.loads(done.out)["metrics"]["validation.auc"] == aucs


@pytest.mark.long
def test_a_run_keeps_the_best_model_where_it_can(workspace, cli):
    auto = "evaluation.keep=auto"
    train(cli, workspace, *OVERFITS, "evaluation.every_steps=4", auto)
    report = report_of(workspace / "run")
    values = [evaluation["validation"]["auc"] for evaluation in report["evaluations"]]
    assert values[-1] < max(values) == report["auc"]
    assert report["best"]["kept"] is True
    train(cli, workspace, "data.validation=null", auto, "output=without")
    assert "best" not in report_of(workspace / "without")

    def keeps(*overrides):
        return schedule.keeps_best(tnctl.compose(workspace / "small.yaml", [*overrides]))

    assert keeps(auto) and not keeps("data.validation=null", auto)
    assert not keeps("data.train=day-{day}.csv", "data.window=1024", auto)
    assert keeps("data.validation=null", "data.split.validation=0.1", auto)
    assert keeps("evaluation.keep=best") and not keeps("evaluation.keep=last")


def test_early_stopping(workspace, cli):
    overrides = [*OVERFITS, "evaluation.patience=2", "evaluation.keep=best"]
    done = train(cli, workspace, *overrides)
    report = report_of(workspace / "run")
    values = [evaluation["validation"]["auc"] for evaluation in report["evaluations"]]
    assert len(values) < 5
    assert int(np.argmax(values)) == len(values) - 3
    assert report["auc"] == max(values)
    assert "stopped early: 2 evaluations without a better auc" in done.err
    assert "finished" in train(cli, workspace, *overrides).err
    # In the middle of an epoch too, and for good.
    overrides = [*OVERFITS, "evaluation.patience=2", "evaluation.every_steps=4",
                 "evaluation.min_delta=1"]  # fmt: skip
    train(cli, workspace, *overrides, "overwrite=true")
    report = report_of(workspace / "run")
    assert [evaluation["step"] for evaluation in report["evaluations"]] == [4, 6, 8]
    assert (report["steps"], report["epochs"][1]["examples"]) == (8, 2 * 512)
    content = documents.plain(
        manifest.read(str(checkpoints(workspace / "run")[-1]), CheckpointManifest)
    )
    assert content["finished"] is True
    (workspace / "run/report.json").unlink()
    train(cli, workspace, *overrides)
    assert report_of(workspace / "run") == report


PLATEAU = ["+optimizer.schedule={name: plateau, patience: 1, reduce: 0.5, end: 0.2}",
           "evaluation.min_delta=0.5"]  # fmt: skip


def rates(run):
    return [line["rate_factor"] for line in log_of(run) if line["event"] == "step"]


@pytest.mark.long
def test_plateaus_and_schedules_reach_the_steps(workspace, cli):
    train(cli, workspace, "train.batch_size=300", "train.epochs=4", *PLATEAU)
    assert rates(workspace / "run") == [1, 1, 0.5, 0.25]
    weights = weights_of(checkpoints(workspace / "run")[0])
    cosine = "+optimizer.schedule={name: cosine, warmup_steps: 20, decay_steps: 20}"
    train(cli, workspace, "train.batch_size=300", "train.epochs=4", cosine, "overwrite=true")
    factors = rates(workspace / "run")
    assert factors[:2] == [9 / 20, 19 / 20]
    assert factors[2] == pytest.approx((1 + np.cos(np.pi * 9 / 20)) / 2)
    # The first step of a warm-up has rate 0, and another rate is another model, sparse and dense.
    other = weights_of(checkpoints(workspace / "run")[0])
    assert all(weights[name] != other[name] for name in weights)


def test_a_rate_of_nothing_changes_nothing(workspace, cli):
    off = "+optimizer.schedule={name: step, boundaries: [5], factors: [0.0]}"
    train(cli, workspace, "train.batch_size=500", off, "train.epochs=3")
    first, second, third = (dense_of(path) for path in checkpoints(workspace / "run"))
    assert first == second == third
    aucs = [figures["auc"] for figures in evaluations(workspace / "run")]
    assert aucs[0] == aucs[1] == aucs[2]


def dense_of(checkpoint):
    """The dense weights, without their optimizer's state."""
    content = documents.plain(manifest.read(str(checkpoint), CheckpointManifest))["dense"]
    count = sum(int(np.prod(variable["shape"])) for variable in content["variables"])
    return (checkpoint / "dense.bin").read_bytes()[16 : 16 + 4 * count]


def evaluations(run):
    return [evaluation["validation"] for evaluation in report_of(run)["evaluations"]]


def test_what_needs_validation_says_so(workspace, cli):
    for change in ("evaluation.patience=3", "evaluation.keep=best", "evaluation.every_steps=5",
                   "+optimizer.schedule={name: plateau}"):  # fmt: skip
        done = train(cli, workspace, "data.validation=null", change, expected=2)
        assert "data.validation=FILES" in done.line
    assert not (workspace / "run").exists()
    loss = "+train.loss={name: mse}"
    for monitor in ("logloss", "ne"):
        done = train(cli, workspace, loss, f"evaluation.monitor={monitor}", expected=2)
        assert f"evaluation.monitor={monitor} " in done.line and "monitor=mse" in done.line


def test_squared_error(workspace, cli):
    train(cli, workspace, "+train.loss={name: mse}", "evaluation.monitor=mse", "data.test=null")
    report = report_of(workspace / "run")
    assert "logloss" not in report
    assert 0.5 < report["auc"] < 1
    assert report["mse"] == report["best"]["value"]
    assert report["epochs"][0]["running_auc"] is None


@pytest.mark.long
def test_of_one_class_there_is_no_auc_anywhere(workspace, cli):
    clicks = pa.csv.read_csv(workspace / "clicks/validation.csv")
    pa.csv.write_csv(clicks.filter(pc.equal(clicks["label"], 0)), workspace / "clicks/others.csv")
    overrides = ["data.validation=others.csv", "data.test=others.csv", "train.epochs=2"]
    done = train(cli, workspace, *overrides, "evaluation.keep=best", "evaluation.patience=1")
    run = workspace / "run"
    report = report_of(run)
    # It is neither better nor worse: nothing is the best, and patience does not end.
    assert [figures["auc"] for figures in evaluations(run)] == [None, None]
    assert (report["auc"], report["reference_auc"]) == (None, None)
    assert "best" not in report
    assert report["validation"] == evaluations(run)[-1]
    assert "validation  auc -  reference -  logloss 0." in done.err
    assert done.err.count("evaluation.monitor=auc is undefined on these examples") == 2
    assert re.search(r"^AUC \(test\) +-$", done.err, re.MULTILINE)
    # Inputs are compared by a metric that there is.
    assert report["importance_of"] == "logloss on data.validation"
    assert any(report["importance"].values())
    evaluated = json.loads(cli("evaluate", "output=run", cwd=workspace).out)
    assert evaluated["auc"] is None and evaluated["logloss"] == report["logloss"]
    shown = json.loads(cli("checkpoint", "list", "run", "--json", cwd=workspace).out)
    assert [entry["value"] for entry in shown] == [None, None]


def test_groups_and_weights(workspace, cli):
    overrides = ["data.group=user_id", "data.weight=region"]
    for metric in ("gauc", "ndcg"):
        output = f"output={metric}"
        monitor = ["evaluation.ndcg_at=5", f"evaluation.monitor={metric}", output]
        train(cli, workspace, *overrides, *monitor)
        report = report_of(workspace / metric)
        assert 0.2 < report[metric] < 1
        assert report["best"]["value"] == evaluations(workspace / metric)[0][metric]
        evaluated = json.loads(cli("evaluate", output, cwd=workspace).out)
        assert evaluated["ndcg"] == report["ndcg"]
    other = json.loads(cli("evaluate", output, "evaluation.ndcg_at=1", cwd=workspace).out)
    assert other["ndcg"] < report["ndcg"] and other["gauc"] == report["gauc"]
    html = (workspace / "ndcg/report.html").read_text()
    assert "NDCG at rank 5" in html and f"{report['ndcg']:.5f}" in html
    for words in (
        "evaluation.monitor=ndcg needs evaluation.ndcg_at",
        "evaluation.ndcg_at needs data.group",
    ):
        done = cli(
            "train", "conf=deepfm", words.split(" needs ")[0].replace("_at", "_at=3"), cwd=workspace
        )
        assert (done.code, words in done.line) == (2, True), done.err


def test_tensorboard(workspace, cli):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    train(cli, workspace, "train.tensorboard=true", "train.profile=[3,5]", "train.epochs=2")
    folder = workspace / "run/tensorboard"
    events = EventAccumulator(str(folder))
    events.Reload()
    tags = events.Tags()
    assert tags["graph"]
    assert {"train/loss", "train/running_auc", "train/rate_factor", "train/rows", "validation/auc",
            "validation/logloss", "train/examples_per_second"} <= set(tags["tensors"])  # fmt: skip
    loss = events.Tensors("train/loss")
    lines = [line for line in log_of(workspace / "run") if line["event"] == "step"]
    assert [logged.step for logged in loss] == [line["step"] for line in lines] == [10, 20]
    assert [float(make_ndarray(logged.tensor_proto)) for logged in loss] == pytest.approx(
        [line["loss"] for line in lines]
    )
    auc = [float(make_ndarray(event.tensor_proto)) for event in events.Tensors("validation/auc")]
    assert auc == pytest.approx([figures["auc"] for figures in evaluations(workspace / "run")])
    # Histograms: [buckets, (left, right, count)] of weights, and of the norms of embeddings.
    for prefix in ("dense/", "norms/embedding4"):
        tag = next(tag for tag in tags["tensors"] if tag.startswith(prefix))
        [_, last] = events.Tensors(tag)
        assert make_ndarray(last.tensor_proto)[:, 2].sum() > 0
    assert list(folder.glob("plugins/profile/*/*.xplane.pb"))
    train(cli, workspace, "overwrite=true")
    assert not folder.exists()


def test_tensorboard_on_another_storage(workspace, cli):
    import fsspec

    train(cli, workspace, "train.tensorboard=true", "output=memory://board/run")
    storage = fsspec.filesystem("memory")
    names = [name.split("/")[-1] for name in storage.ls("/board/run/tensorboard", detail=False)]
    assert len(names) == 1
    assert names[0].startswith("events.out.tfevents.")
    assert storage.size(f"/board/run/tensorboard/{names[0]}") > 1000
    lines = storage.cat("/board/run/log.jsonl").decode().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["step", "evaluation", "epoch"]
    storage.rm("/board", recursive=True)


def test_a_terminal_sees_it_live_and_ctrl_c_leaves_it_clean(workspace):
    command = [sys.executable, "-m", "tnctl", *TRAIN, "train.epochs=500", "golden=0"]
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    running = subprocess.Popen(command, cwd=workspace, stderr=theirs, env=environment)
    os.close(theirs)
    seen, sent = b"", False
    try:
        with contextlib.suppress(OSError):  # of Linux, when the other side is closed
            while part := os.read(ours, 1 << 16):
                seen += part
                if not sent and b"epoch 2/500" in seen:
                    running.send_signal(signal.SIGINT)
                    sent = True
        running.wait(timeout=60)
    finally:
        running.kill()
        os.close(ours)
    text = seen.decode()
    assert running.returncode == 130
    assert "Traceback" not in text
    for words in ("\x1b[2mexamples/s", "rows\x1b[0m", "\x1b[2mwaited", "epoch 1/500"):
        assert words in text
    assert re.search(
        r"tnctl train: stopped after step [\d,]+: run/checkpoints/step-\d{10} is saved\. "
        "Run the same command again to resume$",
        text.splitlines()[-1],
    )
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is back


def test_a_gradient_that_is_not_finite_is_one_line(workspace, cli):
    lines = (workspace / "clicks/train.csv").read_text().splitlines(keepends=True)
    price = lines[0].strip().replace('"', "").split(",").index("price")
    cells = lines[50].split(",")
    cells[price] = "3e38"
    lines[50] = ",".join(cells)
    (workspace / "clicks/train.csv").write_text("".join(lines))
    copies = ", ".join(f"price{number}: {{column: price}}" for number in range(20))
    overrides = [f"+numeric={{{copies}}}", "~slots.price_range"]
    done = train(cli, workspace, *overrides, expected=1)
    for words in ("gradient", "NaN, infinite", "no weight was changed", "learning_rate", "log1p"):
        assert words in done.last
    assert not list(workspace.glob("run/checkpoints/*/manifest.json"))
    train(cli, workspace, "~slots.price_range")


@pytest.mark.long
def test_bfloat16_is_near_float32(workspace, ran):
    big = [
        "train", "conf=deepfm", "data.train=0:60000", "data.validation=null",
        "train.batch_size=256", "data.test=5200000:5230000", "recipe.hidden=[32,16]",
        "optimizer.dense.learning_rate=0.002",
    ]  # fmt: skip
    reports = []
    for precision in ("float32", "bfloat16"):
        ran(*big, f"train.precision={precision}", f"output={precision}", cwd=workspace)
        reports.append(report_of(workspace / precision))
    assert reports[0]["auc"] > 0.75
    assert abs(reports[0]["auc"] - reports[1]["auc"]) < 0.002
    assert reports[0]["auc"] != reports[1]["auc"]


@pytest.mark.long
def test_deterministic_gives_the_same_report_twice(trained, workspace, copied_process):
    """In processes of their own: TensorFlow's switch has no way back."""
    reports = []
    for _ in range(2):
        command = (*TRAIN, "train.deterministic=true", "overwrite=true")
        done = copied_process(*command, cwd=workspace)
        assert done.code == 0, done.err
        reports.append(report_of(workspace / "run"))
    assert reports[0] == reports[1]
    assert reports[0]["auc"] == pytest.approx(report_of(trained / "run")["auc"], abs=1e-3)


SLOTS = [
    f"~slots.{name}"
    for name in ("user_id", "item_id", "device", "region", "interests", "price_range")
]
NUMERIC = ["~numeric.price", "~numeric.quality"]


def test_a_recipe_without_the_inputs_it_needs(workspace, cli):
    for overrides in (SLOTS, ["embedding.width=0"]):
        done = train(cli, workspace, *overrides, expected=2)
        assert "recipe deepfm needs embeddings" in done.last
