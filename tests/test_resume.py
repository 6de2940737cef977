"""A run that was stopped anywhere ends as if it never was: the same bytes, report and log."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

from tnctl import documents, manifest
from tnctl.checkpoint.document import CheckpointManifest

GOLDEN_ROWS = 20
TRAIN = (
    "train", "conf=small.yaml", "output=run", f"golden={GOLDEN_ROWS}", "evaluation.ablate=false",
)  # fmt: skip


class Killed(BaseException):
    """The process is gone: nothing that training could still do is done."""


@pytest.fixture
def at_step(monkeypatch):
    """Calls something instead of a step, in this process: `at_step(7, kill)`."""
    return lambda number, what: stop_at(monkeypatch, number, what)


def stop_at(patch, number, what):
    from tnctl.training import step, workers

    class Step(step.TrainingStep):
        def __call__(self, batch):
            if self.steps + 1 == number:
                what()
            return super().__call__(batch)

    patch.setattr(workers, "TrainingStep", Step)


def kill():
    raise Killed


def nothing():
    pass


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def train(cli, folder, *overrides, expected=0, killed=False):
    if killed:
        with pytest.raises(Killed):
            cli(*TRAIN, *overrides, cwd=folder)
        return None
    done = cli(*TRAIN, *overrides, cwd=folder)
    assert done.code == expected, done.err
    return done


def names(run):
    return sorted(path.parent.name for path in run.glob("checkpoints/*/manifest.json"))


def content_of(run, name=None):
    folder = str(run / "checkpoints" / (name or names(run)[-1]))
    return documents.plain(manifest.read(folder, CheckpointManifest))


def outcome(run):
    """All that two runs that are alike have alike."""
    from tnctl.checkpoint.load import digest, newest

    report = json.loads((run / "report.json").read_text())
    del report["timing"]
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    for line in log:
        del line["timing"]
    checkpoint = newest(str(run))
    same = ("clock", "position", "finished", "metrics", "golden")
    return {
        "report": report,
        "log": log,
        "digest": digest(checkpoint),
        **{key: getattr(checkpoint.manifest, key) for key in same},
        "golden rows": checkpoint.manifest.files["golden.jsonl"],
    }


USUAL = ("train.epochs=2", "evaluation.every_steps=5")


@pytest.fixture(scope="module")
def usual(trained, cli, tmp_path_factory):
    """What a run of two passes comes to that nothing happens to."""
    folder = tmp_path_factory.mktemp("usual")
    (folder / "clicks").symlink_to(trained / "clicks")
    (folder / "small.yaml").symlink_to(trained / "small.yaml")
    train(cli, folder, *USUAL, "save.every_minutes=null")
    assert names(folder / "run") == ["step-0000000012", "step-0000000024"]
    return outcome(folder / "run")


WAYS = {
    "all that counts steps": [
        "recipe.dropout=0.3", "recipe.batch_norm=true", "optimizer.embedding={name: adam}",
        "+optimizer.schedule={name: cosine, warmup_steps: 5, decay_steps: 20}",
        "optimizer.dense={name: adam}", "evaluation.every_steps=3", "evaluation.patience=8",
        "evaluation.min_delta=0.5",
    ],
    "the best, and deltas": [
        "evaluation.every_steps=4", "evaluation.keep=best", "optimizer.embedding.learning_rate=0.5",
        "+optimizer.schedule={name: plateau, patience: 1, reduce: 0.5}",
        "evaluation.min_delta=0.01", "save.full_every=3", "save.keep=1", "save.compression=zstd",
    ],
    "some rows, in their order": [
        "data.negatives=0.7", "data.bad_rows=50", "data.shuffle=false", "data.window=1000",
    ],
    "a row's life": [
        "life.admission.after=2", "life.shows={keep: true, cvm: true}", "save.full_every=2",
        "life.eviction={unseen_steps: 6, every_steps: 5, rows: 150}", "optimizer.clip_norm=0.5",
    ],
    "all rows": [
        "optimizer.updates=all", "optimizer.embedding={name: ftrl}", "+train.loss={name: mse}",
        "evaluation.monitor=mse",
    ],
}  # fmt: skip


LONG_WAYS = ("some rows, in their order", "a row's life", "all rows")


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.long] * (way in LONG_WAYS)) for way in WAYS]
)
def test_a_run_that_was_killed_ends_as_one_that_was_not(way, workspace, cli, at_step, tmp_path):
    """Twice: in the middle of the first pass, and of the second."""
    overrides = [*WAYS[way], "train.epochs=2", "train.batch_size=200"]
    if "data.bad_rows=50" in overrides:
        break_rows(workspace / "clicks/train.csv")
    train(cli, workspace, *overrides)
    whole = outcome(workspace / "run")
    os.rename(workspace / "run", tmp_path / "whole")
    saving = [*overrides, "save.every_steps=4"]
    at_step(9, kill)
    train(cli, workspace, *saving, killed=True)
    assert names(workspace / "run")[-1] == "step-0000000008"
    assert content_of(workspace / "run")["position"]["offset"] > 0
    if whole["report"]["steps"] > 20:
        at_step(21, kill)
        train(cli, workspace, *saving, "train.threads=1", killed=True)
    at_step(0, nothing)
    done = train(cli, workspace, *saving, "train.threads=3")
    assert "resuming from run/checkpoints/step-" in done.err
    assert outcome(workspace / "run") == whole


def break_rows(path):
    lines = path.read_text().splitlines(keepends=True)
    price = lines[0].strip().replace('"', "").split(",").index("price")
    for at in (5, 300, 301, 2000, 2900):
        cells = lines[at].split(",")
        cells[price] = "cheap"
        lines[at] = ",".join(cells)
    path.write_text("".join(lines))


@pytest.mark.long
def test_days_go_on_too(workspace, cli, at_step, tmp_path):
    """Stopped by signals and without: at days' ends rows go, and counts decay."""
    header, *lines = (workspace / "clicks/train.csv").read_text().splitlines(keepends=True)
    for day in range(3):
        part = [header, *lines[day * 1000 : (day + 1) * 1000]]
        (workspace / f"clicks/2024-01-0{day + 1}.csv").write_text("".join(part))
    overrides = [
        "data.train={day}.csv", "train.epochs=2", "train.batch_size=100", "data.window=300",
        "life.admission.after=2", "life.shows={keep: true, cvm: true, decay: 0.9}",
        "life.eviction={unseen_days: 1, show: 1.5}", "data.test=null",
        "+optimizer.schedule={name: day, end: 0.1}",
    ]  # fmt: skip
    train(cli, workspace, *overrides)
    whole = outcome(workspace / "run")
    assert sum(of_group["evicted"] for of_group in whole["report"]["life"].values()) > 50
    os.rename(workspace / "run", tmp_path / "whole")
    saving = [*overrides, "save.every_steps=3", "save.full_every=3", "save.keep=1"]
    for step, what, code in ((17, terminate, 143), (33, kill, 0), (40, interrupt, 130)):
        at_step(step, what)
        train(cli, workspace, *saving, expected=code, killed=what is kill)
    at_step(0, nothing)
    train(cli, workspace, *saving)
    assert outcome(workspace / "run") == whole


def test_saves_change_nothing(usual, workspace, cli):
    """Neither how often, nor how: only what is kept differs."""
    train(cli, workspace, *USUAL, "save.every_steps=1", "save.keep=0", "save.full_every=4")
    assert outcome(workspace / "run") == usual
    assert names(workspace / "run") == [f"step-{step:010d}" for step in range(1, 25)]
    for number, name in enumerate(names(workspace / "run")):
        content = content_of(workspace / "run", name)
        assert (content["kind"] == "full") == (number % 4 == 0)
        assert content["clock"]["step"] == number + 1
    timing = json.loads((workspace / "run/report.json").read_text())["timing"]
    assert timing["saved_bytes"] > 24 * 10_000
    assert 0 < timing["save_stalled_seconds"] <= timing["save_seconds"]


def test_a_checkpoint_every_so_many_minutes(workspace, cli, monkeypatch):
    from tnctl.training import saving

    now = iter(range(0, 1_000_000, 25))
    monkeypatch.setattr(saving.time, "monotonic", lambda: next(now))
    train(cli, workspace, "save.every_minutes=1", "save.keep=0")
    assert 3 < len(names(workspace / "run")) < 12


@pytest.mark.parametrize(("ask", "code"), [
    pytest.param(interrupt, 130, marks=pytest.mark.long), (terminate, 143),
])  # fmt: skip
def test_a_signal_saves_the_step_that_is_done(ask, code, usual, workspace, cli, at_step):
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    for step in (7, 8):
        at_step(step, ask)
        done = train(cli, workspace, *USUAL, expected=code)
        assert done.last == (
            f"tnctl train: stopped after step {step}: run/checkpoints/step-{step:010d} is saved. "
            "Run the same command again to resume"
        )
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    assert names(workspace / "run") == ["step-0000000007", "step-0000000008"]
    at_step(0, nothing)
    train(cli, workspace, *USUAL)
    assert outcome(workspace / "run") == usual


@pytest.mark.long
def test_a_signal_in_an_evaluation_ends_it(usual, workspace, cli, monkeypatch):
    """The evaluation on the way, and that at the end of a pass; both are made up for."""
    from tnctl.training import workers

    seen = []

    class Inference(workers.Inference):
        def __call__(self, batch):
            if batch.rows == GOLDEN_ROWS:
                return super().__call__(batch)
            seen.append(batch)
            if len(seen) in batches:
                terminate()
            return super().__call__(batch)

    # The first batch of the first evaluation; and, of the second time, that of the third.
    for batches, step in (({1}, 5), ({10}, 12)):
        seen.clear()
        with monkeypatch.context() as patch:
            patch.setattr(workers, "Inference", Inference)
            done = cli(*TRAIN, *USUAL, cwd=workspace)
        assert done.code == 143
        assert len(seen) in batches
        assert content_of(workspace / "run")["clock"]["step"] == step
        assert f"stopped after step {step}: " in done.last
    assert content_of(workspace / "run")["position"]["epoch"] == 0
    train(cli, workspace, *USUAL)
    assert names(workspace / "run")[-3:] == [
        "step-0000000012", "step-0000000012-02", "step-0000000024",
    ]  # fmt: skip
    assert outcome(workspace / "run") == usual


def test_a_second_signal_leaves_at_once(workspace, cli, at_step, monkeypatch):
    from tnctl.training import saving

    class Saver(saving.Saver):
        def save(self, *arguments, **named):
            terminate()
            return super().save(*arguments, **named)

    monkeypatch.setattr(saving, "Saver", Saver)
    at_step(7, terminate)
    done = train(cli, workspace, expected=143)
    assert "stopped after step 7: nothing is saved yet" in done.last
    announced = done.err.index("stopping after step 7: a checkpoint is saved first. A second")
    assert announced < done.err.index("saving a checkpoint")
    assert names(workspace / "run") == []


@pytest.mark.long
def test_nothing_is_left_to_be_finished_once_the_model_is_saved(workspace, cli, monkeypatch):
    """A signal while the report is made leaves at once; the report is made up for."""
    from tnctl.training.report import final_report

    def ablate(*_):
        terminate()
        time.sleep(60)

    with monkeypatch.context() as patch:
        patch.setattr(final_report, "permutation_importance", ablate)
        done = cli(*TRAIN, "evaluation.ablate=true", cwd=workspace)
    assert done.code == 143
    assert "stopped after step 12: run/checkpoints/step-0000000012 is saved" in done.last
    assert not (workspace / "run/report.json").exists()
    train(cli, workspace, "evaluation.ablate=true")
    assert (workspace / "run/report.json").exists()
    assert names(workspace / "run") == ["step-0000000012"]


@pytest.mark.parametrize("when", ["before it is begun", "while it is written"])
def test_a_full_disk_stops_training_and_the_same_command_goes_on(
    when, usual, workspace, cli, at_step, monkeypatch
):
    from tnctl import files

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        if when == "before it is begun":
            at_step(7, lambda: patch.setattr(files, "free_bytes", lambda _: 5_000))
        else:
            at_step(7, lambda: patch.setattr(files.streams.os, "fsync", full))
        done = train(cli, workspace, *USUAL, "save.every_steps=3", expected=1)
        assert "Traceback" not in done.err
        assert "free" in done.last.lower()
    assert names(workspace / "run")[-1] in ("step-0000000003", "step-0000000006")
    at_step(0, nothing)
    train(cli, workspace, *USUAL, "save.every_steps=3")
    assert outcome(workspace / "run") == usual


@pytest.fixture(scope="module")
def stopped(trained, cli, tmp_path_factory):
    """A run that was killed in the middle of its first pass, with a full checkpoint and a delta."""
    folder = tmp_path_factory.mktemp("stopped")
    shutil.copytree(trained / "clicks", folder / "clicks")
    shutil.copy(trained / "small.yaml", folder)
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, 9, kill)
        saving = ("save.every_steps=3", "save.keep=0", "save.full_every=2")
        train(cli, folder, *USUAL, *saving, killed=True)
    assert names(folder / "run") == ["step-0000000003", "step-0000000006"]
    return folder


@pytest.fixture
def stopped_copy(stopped, tmp_path):
    """The same in a folder of one's own; files have their times."""
    folder = tmp_path / "stopped"
    shutil.copytree(stopped, folder)
    return folder


def test_a_changed_file_is_refused(stopped_copy, cli):
    clicks, run = stopped_copy / "clicks/train.csv", stopped_copy / "run"
    text, times = clicks.read_text(), (clicks.stat().st_atime_ns, clicks.stat().st_mtime_ns)
    modified = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    clicks.write_text(text + text.splitlines()[-1] + "\n")
    done = train(cli, stopped_copy, *USUAL, expected=1)
    for words in ("clicks/train.csv", f"{len(text.encode()):,} bytes", "overwrite=true"):
        assert words in done.last
    # Of the same size, too.
    clicks.write_text(text)
    assert "modified" in train(cli, stopped_copy, *USUAL, expected=1).last
    assert modified == {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    os.utime(clicks, ns=times)
    train(cli, stopped_copy, *USUAL)
    # What was passed over whole is not read again.
    clicks.write_text(text)
    assert "finished" in train(cli, stopped_copy, *USUAL).err


def test_other_files_are_refused(workspace, cli, at_step):
    clicks = workspace / "clicks"
    shutil.copy(clicks / "train.csv", clicks / "train-2.csv")
    overrides = ["data.train=train*.csv", "save.every_steps=4"]
    at_step(9, kill)
    train(cli, workspace, *overrides, killed=True)
    at_step(0, nothing)
    shutil.copy(clicks / "train.csv", clicks / "train-3.csv")
    done = train(cli, workspace, *overrides, expected=1)
    words = "train-3.csv differs from when training stopped in the middle of the data: it was not"
    assert words in done.last
    (clicks / "train-3.csv").unlink()
    (clicks / "train-2.csv").rename(clicks / "train-4.csv")
    done = train(cli, workspace, *overrides, expected=1)
    assert "and is not among the files of data.train" in done.last


@pytest.mark.long
def test_of_other_data_the_way_back_is_the_pass_before(usual, workspace, cli, at_step):
    from tnctl.training.run import WAY_ON

    saving = (*USUAL, "save.every_steps=4", "save.keep=0")
    at_step(22, kill)
    train(cli, workspace, *saving, killed=True)
    at_step(0, nothing)
    clicks, run = workspace / "clicks/train.csv", workspace / "run"
    text = clicks.read_text()
    clicks.rename(workspace / "away.csv")
    done = train(cli, workspace, *saving, expected=1)
    assert "train.csv is missing, and training stopped in the middle of it. Put it" in done.last
    assert done.last.endswith(WAY_ON)
    clicks.write_text(text)  # of another time
    assert train(cli, workspace, *saving, expected=1).last.endswith(
        f"Put the old one back, or {WAY_ON}"
    )
    assert cli("rollback", "output=run", "step=12", cwd=workspace).code == 0
    done = train(cli, workspace, *saving)
    assert "resuming from run/checkpoints/step-0000000012" in done.err
    assert outcome(run) == usual


def test_keys_that_change_no_figure_may_change(usual, stopped_copy, cli):
    done = train(cli, stopped_copy, *USUAL, "seed=3", expected=2)
    assert "these keys differ: seed." in done.last
    train(cli, stopped_copy, *USUAL, "save.every_steps=5", "save.keep=2", "train.threads=1",
          "save.compression=zstd", "train.tensorboard=true", "save.full_every=9")  # fmt: skip
    assert outcome(stopped_copy / "run") == usual


def test_of_a_damaged_checkpoint_the_one_before_is_taken(usual, stopped, tmp_path, cli):
    [*_, previous, damaged] = names(stopped / "run")
    for kind in ("00000.rows", "dense.bin", "conf.json", "running", "manifest.json"):
        folder = tmp_path / kind
        shutil.copytree(stopped, folder)
        [path] = (folder / "run/checkpoints" / damaged).rglob(f"*{kind}")
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        done = train(cli, folder, *USUAL)
        assert str(path.relative_to(folder)) in done.err
        assert f"resuming from run/checkpoints/{previous}" in done.err
        aside = folder / "run/damaged" / damaged
        assert (aside / "manifest.json").exists()
        assert outcome(folder / "run") == usual, kind
    train(cli, folder, "overwrite=true")
    assert not (folder / "run/damaged").exists()


OVERFITS = ("train.epochs=5", "optimizer.embedding.learning_rate=0.5", "train.batch_size=512",
            "evaluation.every_steps=2", "evaluation.keep=best", "data.test=null")  # fmt: skip


def best_of(run):
    return json.loads((run / "report.json").read_text())["best"]


@pytest.fixture(scope="module")
def overfitted(trained, cli, tmp_path_factory):
    """A run that was killed when its best checkpoint was not its newest; and that step."""
    folder = tmp_path_factory.mktemp("overfitted")
    shutil.copytree(trained / "clicks", folder / "clicks")
    shutil.copy(trained / "small.yaml", folder)
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, 23, kill)
        train(cli, folder, *OVERFITS, "save.every_steps=7", "save.keep=1", killed=True)
    best = content_of(folder / "run")["metrics"]["watch"]["best_step"]
    assert names(folder / "run") == [f"step-{best:010d}", "step-0000000021"]
    return folder, best


@pytest.mark.long
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_without_the_best_training_goes_on(damage, overfitted, cli, tmp_path):
    source, best = overfitted
    folder = tmp_path / "copy"
    shutil.copytree(source, folder)
    run = folder / "run"
    checkpoint = run / f"checkpoints/step-{best:010d}"
    if damage == "gone":
        shutil.rmtree(checkpoint)
    else:
        path = checkpoint / "dense.bin"
        path.write_bytes(path.read_bytes()[:-1])
    done = train(cli, folder, *OVERFITS)
    assert f"the best model, of step {best}, is lost; " in done.err
    assert (run / "damaged" / checkpoint.name).exists() == (damage == "cut")
    assert ("dense.bin is damaged" in done.err) == (damage == "cut")
    # Of what is evaluated from there on, for nothing else is left.
    report = json.loads((run / "report.json").read_text())
    later = {
        evaluation["step"]: evaluation["validation"]["auc"] for evaluation in report["evaluations"]
    }
    later = {step: auc for step, auc in later.items() if step > 21}
    assert report["best"]["kept"] is True
    assert report["best"]["step"] == max(later, key=later.get)
    assert report["auc"] == max(later.values())


@pytest.mark.long
def test_the_best_that_is_lost_at_the_end_leaves_the_last(workspace, cli, at_step):
    """The last one is whole, though those before were deltas of the best."""
    run = workspace / "run"
    damaged = []

    def flip():
        [best] = {content_of(run)["metrics"]["watch"]["best_step"]}
        [path] = run.glob(f"checkpoints/step-{best:010d}/tables/*/00000.rows")
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        damaged.append((best, str(path.relative_to(workspace))))

    at_step(29, flip)
    saving = (*OVERFITS, "save.every_steps=7", "save.full_every=100")
    done = train(cli, workspace, *saving)
    at_step(0, nothing)
    [(best, path)] = damaged
    assert f"{path} is damaged" in done.err
    assert f"the best model, of step {best}, is lost; the last one is kept instead" in done.err
    report = json.loads((run / "report.json").read_text())
    assert (report["best"]["step"], report["best"]["kept"]) == (best, False)
    assert report["auc"] == report["evaluations"][-1]["validation"]["auc"]
    assert content_of(run)["finished"] and content_of(run)["clock"]["step"] == 30
    assert json.loads(cli("evaluate", "output=run", cwd=workspace).out)["auc"] == report["auc"]
    # It stays so when the report is made again.
    (run / "report.json").unlink()
    train(cli, workspace, *saving)
    assert best_of(run) == report["best"]


def test_two_cannot_train_into_one_output(workspace, cli):
    from tnctl import files

    (workspace / "run").mkdir()
    (workspace / "run/.tnctl-lock").write_text("12345678901234567890")  # of one that was killed
    with files.locked(str(workspace / "run")):
        done = train(cli, workspace, expected=1)
    assert done.last == (
        f"tnctl train: another tnctl command (process {os.getpid()}) is working in run. Wait for "
        "it, or choose another output"
    )
    assert not list((workspace / "run").iterdir())


def test_who_was_killed_locks_nothing(workspace, cli):
    code = "import os\nfrom tnctl import files\nwith files.locked('run'): os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", code], cwd=workspace)
    assert done.returncode == -signal.SIGKILL
    assert [path.name for path in (workspace / "run").iterdir()] == [".tnctl-lock"]
    train(cli, workspace)
    assert not (workspace / "run/.tnctl-lock").exists()


def test_a_spool_that_cannot_be_is_told_before_training(workspace, cli, at_step):
    spool = "small.yaml/below"
    at_step(1, lambda: pytest.fail("it trains"))
    done = cli(*TRAIN, "output=memory://spool", f"save.spool={spool}", cwd=workspace)
    assert done.code == 1 and "Traceback" not in done.err
    assert f"save.spool: {spool} could not be written" in done.last


@pytest.mark.parametrize("text", ['{"steps": 1', "{}"])
def test_a_report_that_was_cut_is_made_again(text, run_copy, ran):
    path = run_copy / "run/report.json"
    whole = json.loads(path.read_text())
    path.write_text(text)
    done = ran("train", "conf=small.yaml", "output=run", cwd=run_copy)
    assert "run/report.json is damaged and is written again" in done.err
    made = json.loads(path.read_text())
    assert {**made, "timing": 0} == {**whole, "timing": 0}


def test_a_signal_while_waiting_for_data_saves(usual, workspace, cli, monkeypatch):
    """The storage hangs; training does not."""
    from tnctl.training import workers

    whole = workers.training_batches
    gone, checkpoints = threading.Event(), []

    def look():
        until = time.monotonic() + 30
        while not names(workspace / "run") and time.monotonic() < until:
            time.sleep(0.05)
        checkpoints.extend(names(workspace / "run"))
        gone.set()

    def hangs(*arguments, **named):
        for number, batch in enumerate(whole(*arguments, **named)):
            if number == 4:
                threading.Thread(target=look).start()
                gone.wait(60)
            yield batch

    with monkeypatch.context() as patch:
        patch.setattr(workers, "training_batches", hangs)
        stop_at(patch, 4, lambda: threading.Timer(0.5, terminate).start())
        done = train(cli, workspace, *USUAL, expected=143)
    assert "stopped after step 4: run/checkpoints/step-0000000004 is saved" in done.last
    # To leave is to wait for what is being read; to save is not.
    assert checkpoints == ["step-0000000004"]
    train(cli, workspace, *USUAL)
    assert outcome(workspace / "run") == usual


def test_without_a_whole_checkpoint(stopped_copy, cli):
    """The delta needs the full one."""
    checkpoints = names(stopped_copy / "run")
    path = stopped_copy / "run/checkpoints" / checkpoints[0] / "tables/embedding4/00000.rows"
    path.write_bytes(path.read_bytes()[:-1])
    done = train(cli, stopped_copy, *USUAL, expected=1)
    for words in ("no checkpoint that is whole", "00000.rows", "overwrite=true"):
        assert words in done.last
    assert names(stopped_copy / "run") == checkpoints


def test_signals_in_another_thread_are_not_ours():
    """Whoever trains in a thread of their own program keeps their handlers."""
    from tnctl.training.workers import Signals

    handler, handlers = signal.getsignal(signal.SIGTERM), []

    def use():
        with Signals() as signals:
            handlers.append(signal.getsignal(signal.SIGTERM))
            signals.check()

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert handlers == [handler]
