"""What worker 0 shows when it fails: one line that names it, and a traceback below the output."""

import dataclasses
import re
import threading

import pytest
from test_cluster import conf_of
from test_cluster_faults import Assigned

from tnctl.cli.main import leave_with
from tnctl.cluster import process, share, worker_errors
from tnctl.cluster.owner import Owner
from tnctl.errors import UserError

TRACEBACK = "rank-0-traceback.log"


class Alone(Assigned):
    """What a supervisor gives to the worker of a cluster of one, which nobody connects to."""

    def __init__(self, task):
        super().__init__(0)
        self.assignment = dataclasses.replace(self.assignment, ranks=1, task=task)

    def report_port(self, port):
        pass


@pytest.fixture
def conf(workspace, monkeypatch):
    monkeypatch.setattr(worker_errors, "_output", None)
    return conf_of(workspace, monkeypatch)


def ended(conf, monkeypatch, capfd, patched, method, error):
    """The exit code and the standard error of worker 0 of a cluster of one, which fails."""
    members = []

    class Kept(process.Member):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            members.append(self)

    def failing(*_):
        raise error

    monkeypatch.setattr(process, "Member", Kept)
    monkeypatch.setattr(process, "FLUSHED", 0.0)
    monkeypatch.setattr(patched, method, failing)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    task = {"conf": dataclasses.asdict(conf), "overwrite": False, "golden": 0, "accept": False}
    try:
        with pytest.raises(SystemExit) as left:
            leave_with("tnctl train", lambda: process.work(Alone(task)))
    finally:
        for member in members:
            member._is_leaving = True
            member._endpoint.close()
    return left.value.code, capfd.readouterr().err


@pytest.mark.parametrize(("patched", "method"), [(share.Share, "train"), (Owner, "exchange")])
def test_a_bug_is_one_line_and_a_traceback_in_a_file(conf, monkeypatch, capfd, patched, method):
    code, said = ended(conf, monkeypatch, capfd, patched, method, ValueError("s3://a:hidden@b/c"))
    line = f"tnctl train: worker 0: ValueError: .*Its traceback is in workers/{TRACEBACK}"
    assert code == 1 and re.fullmatch(line, said.splitlines()[-1])
    assert "Traceback" not in said and "hidden" not in said
    with open(f"run/workers/{TRACEBACK}") as file:
        text = file.read()
    assert text.count("Traceback") == 1 and ", in failing" in text and "hidden" not in text
    worker_errors.show_traceback(ValueError("the next run's"))  # in its place
    with open(f"run/workers/{TRACEBACK}") as file:
        assert file.read() == "ValueError: the next run's\n"


@pytest.mark.parametrize(("error", "line", "expected"), [
    (MemoryError("9 GB"), r"worker 0: out of memory after step 0 \(9 GB\): the tables hold .* Run "
     "the same command again with more memory", 1),
    (RuntimeError("can't start new thread"), "worker 0: out of memory after step 0 .can't", 1),
    (UserError("a mistake"), "worker 0: a mistake", 2),
])  # fmt: skip
def test_an_error_in_a_step_names_worker_0(conf, monkeypatch, capfd, error, line, expected):
    code, said = ended(conf, monkeypatch, capfd, share.Share, "train", error)
    assert code == expected and re.match(f"tnctl train: {line}", said.splitlines()[-1])
    assert "Traceback" not in said


def test_memory_that_runs_out_before_training_names_worker_0(conf, monkeypatch, capfd):
    code, said = ended(conf, monkeypatch, capfd, share, "build", MemoryError())
    expected = "tnctl train: worker 0: out of memory. Run the same command again"
    assert code == 1 and said.splitlines()[-1].startswith(expected) and "Traceback" not in said


def test_what_is_refused_before_training_is_the_line_of_one_process(conf, monkeypatch, capfd):
    code, said = ended(conf, monkeypatch, capfd, share, "build", UserError("a mistake"))
    assert (code, said.splitlines()[-1]) == (2, "tnctl train: a mistake")


def test_a_traceback_that_cannot_be_kept_is_shown(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(worker_errors, "_output", str(tmp_path))
    foreign = tmp_path / "workers" / TRACEBACK
    foreign.parent.mkdir()
    foreign.write_text("mine")
    worker_errors.show_traceback(ValueError("a bug"))
    assert foreign.read_text() == "mine" and capfd.readouterr().err == "ValueError: a bug\n"


@pytest.mark.parametrize(("error", "lines"), [
    (ValueError("a bug"), f"ValueError: a bug. Its traceback is in workers/{TRACEBACK}"),
    (UserError("a mistake"), "a mistake"),
])  # fmt: skip
def test_a_thread_that_ends_by_an_error_ends_worker_0(tmp_path, monkeypatch, capfd, error, lines):
    codes = []
    monkeypatch.setattr(worker_errors, "_output", str(tmp_path))
    monkeypatch.setattr(process.os, "_exit", codes.append)
    monkeypatch.setattr(process.Member, "__init__", lambda self: setattr(self, "rank", 0))
    monkeypatch.setattr(process.Member, "fail", lambda *_: None)
    process.Member().end_with_thread(threading.ExceptHookArgs((type(error), error, None, None)))
    assert codes == [1] and capfd.readouterr().err == f"tnctl train: worker 0: {lines}\n"
    assert (tmp_path / "workers" / TRACEBACK).exists() == isinstance(error, ValueError)
