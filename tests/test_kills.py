"""Runs that are killed again and again, by SIGKILL, at any moment: nothing can be told from it."""

import random
import shutil
import signal
import time

import preloaded_commands
import pytest
from test_resume import names, outcome

TRAIN = [
    "train", "conf=small.yaml", "output=run", "golden=0", "evaluation.ablate=false",
    "data.train=[train.csv,train.csv]", "train.batch_size=64", "train.epochs=3",
    "evaluation.every_steps=60", "data.test=null", "data.negatives=0.9",
]  # fmt: skip
SAVES = {
    "full": ["save.every_steps=7"],
    "deltas": ["save.every_steps=5", "save.full_every=3", "save.keep=1"],
    "compressed": ["save.every_steps=5", "save.full_every=4", "save.compression=zstd"],
}


@pytest.fixture(scope="module")
def whole(trained, ran, tmp_path_factory):
    """A folder with the data, and what a run comes to that nothing happens to."""
    folder = tmp_path_factory.mktemp("whole")
    shutil.copytree(trained / "clicks", folder / "clicks")
    shutil.copy(trained / "small.yaml", folder)
    ran(*TRAIN, cwd=folder)
    result = result_of(folder / "run")
    shutil.rmtree(folder / "run")
    return folder, result


def result_of(run):
    """The outcome of a run that may have been stopped after its last step.

    It saves this step again when it ends, under a name of its own.
    """
    result = outcome(run)
    report = result["report"]
    return result | {"report": report | {"checkpoint": report["checkpoint"].removesuffix("-02")}}


def started(folder, *overrides):
    return preloaded_commands.Command([*TRAIN, *overrides], folder, folder / "killed.log")


def incomplete(run):
    """Whether a checkpoint is being written right now."""
    for folder in run.glob("checkpoints/step-*"):
        if not (folder / "manifest.json").exists() and any(folder.rglob("*")):
            return True
    return False


def killed(folder, moment, *overrides):
    """Start training and kill it; False when it was done before that."""
    run = folder / "run"
    checkpoints, wait = set(names(run)), random.uniform(0, 1.5)
    running = started(folder, *overrides)
    due = None
    try:
        while running.poll() is None:
            if moment == "starting":
                due = due or time.monotonic() + 3 * wait
            elif due is None and set(names(run)) - checkpoints:
                due = time.monotonic() + (0 if moment == "saving" else wait)
            over = due is not None and time.monotonic() >= due
            if over and (moment != "saving" or incomplete(run)):
                break
            time.sleep(0.0005)
        if moment == "asked" and running.poll() is None:
            running.send_signal(signal.SIGTERM)
            running.wait(timeout=60)
    finally:
        running.kill()
        running.wait()
    return running.returncode == (143 if moment == "asked" else -signal.SIGKILL)


def survives(whole, moments, save, seed):
    folder, expected = whole
    random.seed(seed)
    shutil.rmtree(folder / "run", ignore_errors=True)
    for number, moment in enumerate(moments):
        while not killed(folder, moment, *save, f"train.threads={1 + number % 3}"):
            # It was done before: from the beginning.
            assert result_of(folder / "run") == expected, (seed, moments[: number + 1])
            shutil.rmtree(folder / "run")
    running = started(folder, *save)
    assert running.wait(timeout=300) == 0, (folder / "killed.log").read_text()
    assert result_of(folder / "run") == expected, (seed, moments)


@pytest.mark.long
@pytest.mark.parametrize("save", SAVES)
def test_a_run_that_is_killed_five_times(whole, save):
    seed = random.SystemRandom().randrange(1000)
    moments = ["starting", "training", "saving", "training", "asked"]
    survives(whole, moments, SAVES[save], seed)
