"""A finished run that is given more passes becomes what it would have been with them at once."""

import json
import time

import pytest
from conftest import copy_workspace

from tnctl.training.run_folder import Log

TRAIN = [
    "train", "conf=small.yaml", "recipe=lr", "train.batch_size=512", "evaluation.ablate=false",
    "data.test=null", "golden=5",
]  # fmt: skip
# Validation gets worse in the second pass at once: the best model is not the last.
BEST = ["evaluation.keep=best", "evaluation.every_steps=2", "optimizer.linear.learning_rate=3"]


def result(folder):
    """The report, the lines of the log and the weights, without what depends on the clock."""
    values = json.loads((folder / "report.json").read_text())
    newest = folder / values["checkpoint"]
    rows = [path.read_bytes() for path in sorted(newest.glob("tables/*/*.rows"))]
    assert rows
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    log = [{key: line[key] for key in line if key != "timing"} for line in lines]
    kept = {key: values[key] for key in values if key not in ("timing", "checkpoint")}
    return kept, log, (newest / "dense.bin").read_bytes(), rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory, _workspace):
    folder = tmp_path_factory.mktemp("passes")
    copy_workspace(_workspace, folder)
    return folder


def train(cli, folder, output, epochs, *more, code=0):
    done = cli(*TRAIN, f"output={output}", f"train.epochs={epochs}", *more, cwd=folder)
    assert done.code == code, done.err
    return done


@pytest.fixture(scope="module")
def whole(cli, folder):
    train(cli, folder, "whole", 3)
    return result(folder / "whole")


def seconds_of(run):
    """Those of the report, and those of each line of the log."""
    report = json.loads((run / "report.json").read_text())
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return report["timing"]["seconds"], [line["timing"]["seconds"] for line in lines]


def test_a_finished_run_goes_on(cli, folder, whole):
    train(cli, folder, "grown", 1)
    first, _ = seconds_of(folder / "grown")
    started = time.perf_counter()
    done = train(cli, folder, "grown", 3)
    elapsed = time.perf_counter() - started
    seconds, logged = seconds_of(folder / "grown")
    assert logged == sorted(logged) and logged[-1] < seconds < first + elapsed
    assert seconds > max(first, logged[0])
    assert "resuming from grown/checkpoints" in done.err
    assert result(folder / "grown") == whole
    assert "nothing to do" in train(cli, folder, "grown", 3).err
    done = train(cli, folder, "grown", 2, code=2)
    assert "these keys differ: train.epochs" in done.last
    assert result(folder / "grown") == whole


def test_it_goes_on_where_it_was_interrupted(cli, folder, whole, monkeypatch):
    from tnctl.training.observers import Recorder

    class KilledError(BaseException):
        pass

    train(cli, folder, "twice", 2)
    real, left = Recorder.see, [9]

    def see(self, event):
        left[0] -= 1
        if not left[0]:
            raise KilledError
        real(self, event)

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "see", see)
        with pytest.raises(KilledError):
            cli(*TRAIN, "output=twice", "train.epochs=3", cwd=folder)
    assert not (folder / "twice/report.json").exists()
    train(cli, folder, "twice", 3)
    assert result(folder / "twice") == whole


@pytest.mark.long
def test_a_run_that_kept_its_best_model_goes_on_from_the_checkpoint_before_its_end(cli, folder):
    train(cli, folder, "best", 2, *BEST)
    report = json.loads((folder / "best/report.json").read_text())
    assert report["best"]["step"] < report["steps"]  # else this test is of something else
    train(cli, folder, "best", 3, *BEST)
    train(cli, folder, "at_once", 3, *BEST)
    assert result(folder / "best") == result(folder / "at_once")
    assert not (folder / "best/damaged").exists()


def test_a_run_that_stopped_early_stays(cli, folder):
    more = [*BEST, "evaluation.patience=1"]
    train(cli, folder, "early", 2, *more)
    earlier = result(folder / "early")
    done = train(cli, folder, "early", 3, *more)
    assert "stopped early, by evaluation.patience=1: nothing to do" in done.err
    assert result(folder / "early") == earlier


@pytest.mark.parametrize(
    "timing", ["7", '{"seconds": "7"}', '{"seconds": -7}', '{"seconds": null}']
)
def test_of_a_log_only_a_time_is_believed(tmp_path, timing):
    lines = [
        '{"event": "step", "timing": {"seconds": 1.5}}',
        f'{{"event": "a", "timing": {timing}}}',
    ]
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    # Also of lines that are cut off: a process has trained for so long.
    assert Log(str(tmp_path), 0).earlier_seconds == 1.5
    assert Log(str(tmp_path), 2).earlier_seconds == 0
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    assert Log(str(tmp_path)).earlier_seconds == 0


AUTO = ["evaluation.patience=1", "evaluation.keep=best"]


def epochs_of(run):
    return [line["epoch"] for line in json.loads((run / "report.json").read_text())["epochs"]]


def test_auto_trains_until_validation_is_not_better(cli, folder):
    done = train(cli, folder, "auto", "auto", *AUTO, "optimizer.linear.learning_rate=0.3")
    report = json.loads((folder / "auto/report.json").read_text())
    evaluations = [entry["validation"]["auc"] for entry in report["evaluations"]]
    assert 2 <= len(evaluations) < 100
    # Each was better than all before it, but for the last.
    best = [max(evaluations[:count]) for count in range(1, len(evaluations) + 1)]
    assert best[:-1] == evaluations[:-1] and evaluations[-1] <= best[-2]
    assert report["best"]["kept"] and "stopped early" in done.err
    # As a number of passes that is large enough does.
    more = [*AUTO, "optimizer.linear.learning_rate=0.3"]
    train(cli, folder, "number", 100, *more)
    assert epochs_of(folder / "number") == epochs_of(folder / "auto")
    done = train(cli, folder, "auto", "auto", *AUTO, "optimizer.linear.learning_rate=0.3")
    assert "nothing to do" in done.err


def test_from_a_number_to_auto_and_back(cli, folder):
    slow = ["evaluation.patience=1", "optimizer.linear.learning_rate=0.001"]
    train(cli, folder, "there", 2, *slow)
    train(cli, folder, "there", "auto", *slow)
    passes = len(epochs_of(folder / "there"))
    assert passes > 2
    train(cli, folder, "at_once_auto", "auto", *slow)
    assert result(folder / "there") == result(folder / "at_once_auto")
    done = train(cli, folder, "there", passes + 5, *slow)
    assert "stopped early, by evaluation.patience=1: nothing to do" in done.err
    done = train(cli, folder, "there", passes - 1, *slow, code=2)
    assert "these keys differ: train.epochs" in done.last


def test_the_last_pass_as_the_best_says_how_to_go_on(cli, folder):
    done = train(cli, folder, "short", 1)
    assert "the same command with train.epochs=6 goes on" in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train.epochs=auto"], "Give evaluation.patience=2"),
        (["train.epochs=auto", "evaluation.patience=2", "data.validation=null"], "data.validation"),
        (["train.epochs=oto"], "train.epochs takes no text but auto. Received: epochs=oto"),
        (["train.epochs=0"], "train.epochs must be between 1"),
        (["evaluation.recalibrate=oto"], "evaluation.recalibrate takes no text but auto"),
    ],
)
def test_what_auto_needs(cli, folder, words, message):
    done = cli(*TRAIN, "output=refused", *words, cwd=folder)
    assert done.code == 2 and message in done.last


def test_of_many_rows_the_second_pass_is_left_when_it_gets_worse(cli, folder, monkeypatch):
    from tnctl.training import schedule

    monkeypatch.setattr(schedule, "MANY_ROWS", 100)
    # So fast that the first pass is the best.
    fast = ["evaluation.patience=3", "optimizer.linear.learning_rate=30"]
    train(cli, folder, "tried", "auto", *fast)
    report = json.loads((folder / "tried/report.json").read_text())
    first, second = report["epochs"]
    assert second["examples"] < 0.5 * first["examples"]
    assert report["best"]["step"] == first["step"]
    monkeypatch.setattr(schedule, "MOST_ROWS_AGAIN", 100)
    train(cli, folder, "one_pass", "auto", *fast)
    assert epochs_of(folder / "one_pass") == [1]
