"""`tnctl rollback`: a run is as it was at an earlier checkpoint, and trains on as it did."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import fsspec
import pytest
from test_daily import DAILY, TRAIN, report_of, write_days

from tnctl import files
from tnctl.checkpoint.load import digest, newest
from tnctl.training import run_folder

SAVING = ("save.keep=0", "save.full_every=2", "train.tensorboard=true", "gate.days=3")
STEPS = {1: "step-0000000004", 2: "step-0000000008", 3: "step-0000000012", 4: "step-0000000016"}
SECOND = ("output=run", "day=2024-01-02")


@pytest.fixture(scope="module")
def _four(tmp_path_factory, ran):
    folder = tmp_path_factory.mktemp("rollback")
    (folder / "daily.yaml").write_text(DAILY)
    write_days(folder, (1, 2, 3, 4))
    ran(*TRAIN, *SAVING, cwd=folder)
    return folder


@pytest.fixture
def four(_four, tmp_path):
    """A folder of one's own with four days, and a run that has trained them."""
    folder = tmp_path / "four"
    shutil.copytree(_four, folder, copy_function=shutil.copy2)
    return folder


def checkpoints(folder, above="checkpoints"):
    return sorted(path.name for path in (folder / "run" / above).iterdir())


def log_of(folder):
    """The events of the log without what depends on the clock."""
    lines = map(json.loads, (folder / "run/log.jsonl").read_text().splitlines())
    return [{key: value for key, value in line.items() if key != "timing"} for line in lines]


def files_in(folder):
    """The bytes of all files of a run, but TensorBoard's and the list of files, by name."""
    paths = [path for path in (folder / "run").rglob("*") if path.is_file()]
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in paths
        if path.parent.name != "tensorboard" and not path.name.startswith(".tnctl-")
    }


def test_days_are_trained_again_as_they_were(four, cli, ran):
    run, whole, events = four / "run", newest(str(four / "run")), log_of(four)
    report, there = report_of(four), files_in(four)
    # What the gate compares a day to, no longer.
    assert [day.statistics is None for day in whole.days] == [True, False, False, False]
    (run / "workers").mkdir()
    (run / "workers/rank-0.log").write_text("")
    done = ran("rollback", *SECOND, cwd=four)
    assert done.err.splitlines() == [
        f"moved to run/rolled_back/{STEPS[4]}",
        f"moved to run/rolled_back/{STEPS[3]}",
        f"run is as it was at run/checkpoints/{STEPS[2]}: `tnctl train` trains on from there",
    ]
    assert checkpoints(four) == [STEPS[1], STEPS[2]]
    assert checkpoints(four, "rolled_back") == [STEPS[3], STEPS[4]]
    moved = {name: data for name, data in files_in(four).items() if "rolled_back" in name}
    assert moved == {
        name.replace("checkpoints", "rolled_back"): data
        for name, data in there.items()
        if f"checkpoints/{STEPS[3]}/" in name or f"checkpoints/{STEPS[4]}/" in name
    }
    assert log_of(four) == events[: newest(str(run)).manifest.metrics.log_lines]
    assert log_of(four)[-1]["day"] == "2024-01-02"
    assert not (run / "report.json").exists() and not (run / "report.html").exists()
    assert (run / "workers/rank-0.log").exists()
    [summary] = json.loads(cli("runs", "run", "--json", cwd=four).out)["runs"]
    assert (summary["state"], summary["step"]) == ("unfinished", 8)
    assert summary["validation"]["auc"] == report["days"][1]["before"]["auc"]
    # The next train: days 3 and 4 have the records that they had, and so has the gate.
    ran(*TRAIN, *SAVING, cwd=four)
    again = newest(str(run))
    assert digest(again) == digest(whole)
    assert [replace(day, files=None) for day in again.days] == [
        replace(day, files=None) for day in whole.days
    ]  # whose files were in another folder
    assert log_of(four) == events
    assert {**report_of(four), "timing": None} == {**report, "timing": None}
    assert checkpoints(four) == list(STEPS.values())
    # Once more: the names of checkpoints that were set aside stay theirs.
    assert cli("rollback", "output=run", "step=12", cwd=four).code == 0
    assert checkpoints(four, "rolled_back") == [STEPS[3], STEPS[4], f"{STEPS[4]}.2"]
    run_folder.remove(str(run))  # as overwrite=true does
    assert not run.exists()


def test_nothing_is_later_than_the_newest(four, ran):
    content = files_in(four)
    ran("rollback", "output=run/", "day=20240104", cwd=four)
    assert files_in(four) == content


def test_tensorboard_drops_what_came_later(four, cli):
    from tensorboard.backend.event_processing import plugin_event_accumulator

    def steps():
        events = plugin_event_accumulator.EventAccumulator(str(four / "run/tensorboard"))
        return [event.step for event in events.Reload().Tensors("next_day/auc")]

    assert steps() == [4, 8, 12]
    assert cli("rollback", "output=run", "step=4", cwd=four).code == 0
    assert steps() == [4]  # of the second day, whose evaluation is at the end of the first


KEPT = (
    "It has step 4 (end of 2024-01-01), step 8 (end of 2024-01-02), "
    "step 12 (end of 2024-01-03), step 16 (end of 2024-01-04)"
)
REFUSED = {
    "no such step": (("output=run", "step=9"), f"run has no checkpoint of step 9. {KEPT}"),
    "no such day": (
        ("output=run", "day=2024-01-05"),
        f"run has no checkpoint of the end of day 2024-01-05. {KEPT}",
    ),
    "neither": (("output=run",), "give either step=N or day=DAY"),
    "both": ((*SECOND, "step=8"), "give either step=N or day=DAY"),
    "no run": (("step=8",), "give output=RUN and step=N or day=DAY"),
    "something else": ((*SECOND, "seed=2"), "give output=RUN and step=N or day=DAY"),
    "no number": (("output=run", "step=x"), "step must be a whole number"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(_four, cli, case):
    given, words = REFUSED[case]
    done = cli("rollback", *given, cwd=_four)
    assert done.code == 2 and done.line.startswith(f"tnctl rollback: {words}")


def test_what_cannot_be_moved_stays(four, cli):
    run = four / "run"
    done = cli("rollback", "output=none", "step=1", cwd=four)
    assert done.code == 1 and done.line.endswith("none has no checkpoint. Give the output of a run")
    assert not (four / "none").exists()
    with files.locked(str(run)):
        done = cli("rollback", *SECOND, cwd=four)
    assert done.code == 1 and "another tnctl command" in done.line
    content = files_in(four)
    (run / "checkpoints" / STEPS[4]).rename(four / "elsewhere")
    (run / "checkpoints" / STEPS[4]).symlink_to(four / "elsewhere")
    done = cli("rollback", *SECOND, cwd=four)
    assert done.code == 1 and f"{STEPS[4]} is a symbolic link" in done.line
    (run / "checkpoints" / STEPS[4]).unlink()
    (four / "elsewhere").rename(run / "checkpoints" / STEPS[4])
    assert files_in(four) == content
    (run / "log.jsonl").unlink()
    done = cli("rollback", *SECOND, cwd=four)
    assert done.code == 2 and "report.json, which tnctl did not write there" in done.line
    assert checkpoints(four) == list(STEPS.values())


def killed_at(call, folder):
    """The exit code of a rollback in another process that is killed at a call of this module."""
    child = os.fork()
    if child == 0:
        calls = []

        def counted(original):
            def replacement(*arguments, **options):
                calls.append(original)
                if len(calls) == call:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*arguments, **options)

            return replacement

        for name in ("move_file", "remove_file", "write_bytes", "remove_empty_folder"):
            setattr(files, name, counted(getattr(files, name)))
        os.chdir(folder)
        try:
            run_folder.roll_back("run", None, "2024-01-02")
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("every", [23, pytest.param(1, marks=pytest.mark.long)])
def test_killed_at_any_moment(_four, four, cli, tmp_path, every):
    assert cli("rollback", *SECOND, cwd=four).code == 0
    expected, call = files_in(four), min(every, 5)
    while True:
        folder = tmp_path / str(call)
        shutil.copytree(_four, folder, copy_function=os.link)
        code = killed_at(call, folder)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        assert cli("rollback", *SECOND, cwd=folder).code == 0
        assert files_in(folder) == expected, call
        assert checkpoints(folder) == [STEPS[1], STEPS[2]], call
        shutil.rmtree(folder)
        call += every
    assert call > 50


def test_a_url_and_no_tensorflow(four):
    """On another storage, by a process that imports no TensorFlow."""
    memory = fsspec.filesystem("memory")
    memory.put(str(four / "run"), "/models/run", recursive=True)
    code = (
        "import sys\n"
        "from tnctl.cli.main import run\n"
        f"assert run('rollback', {list(SECOND)}) == 0\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=four, check=True)
    content, moved = run_folder.roll_back("memory://models/run", 8, None)
    assert content.step == 8 and len(moved) == 2
    names = {
        re.sub(".*models/", "", name)
        for name in memory.find("/models/run")
        if "/tensorboard/" not in name and "/.tnctl-" not in name
    }
    assert names == set(files_in(four))
    memory.rm("/models", recursive=True)
