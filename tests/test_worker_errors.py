"""What worker 0 shows when it fails: one line that names it, and a traceback below the output."""

import dataclasses
import re
import threading

import pytest
import tensorflow as tf
from test_cluster import conf_of
from test_cluster_faults import assigned

from tnctl.cluster import cluster_member, process, worker_errors
from tnctl.cluster.joining.membership import Membership
from tnctl.cluster.owners.owner import Owner
from tnctl.cluster.workers import share, worker
from tnctl.errors import Failure, UserError
from tnctl.system import leave_with

TRACEBACK = "rank-0-traceback.log"


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
    monkeypatch.setattr(cluster_member, "FLUSHED", 0.0)
    monkeypatch.setattr(patched, method, failing)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    task = {
        "command": "train", "conf": dataclasses.asdict(conf), "overwrite": False, "golden": 0,
        "accept": False,
    }  # fmt: skip
    try:
        with pytest.raises(SystemExit) as left:
            alone = assigned(0, ranks=1, task=task)
            leave_with("tnctl train", lambda: process.work(alone, process.train))
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


def test_what_is_refused_before_training_is_the_line_of_one_process(conf, monkeypatch, capfd):
    code, said = ended(conf, monkeypatch, capfd, worker, "build", UserError("a mistake"))
    assert (code, said.splitlines()[-1]) == (2, "tnctl train: a mistake")


@pytest.mark.parametrize(("workers", "error", "line"), [
    (2, Failure("train.csv, line 3: the label is 'x'"), "worker 0: train.csv, line 3: the label"),
    (2, Failure("stopped after step 4: worker 1: no memory"), "stopped after step 4: worker 1: no"),
    (2, UserError("a mistake in the conf"), "a mistake in the conf"),
    (1, Failure("train.csv, line 3: the label is 'x'"), "train.csv, line 3: the label is 'x'"),
])  # fmt: skip
def test_a_failure_of_worker_0_names_it_where_there_are_others(workers, error, line):
    ending = worker_errors.ending_of(0, Membership(workers), error)
    assert str(ending).startswith(line) and ending.exit_code == error.exit_code


def raised(function):
    """The error that a recipe's function raises in a graph."""
    with pytest.raises(Exception) as caught:
        tf.function(function)()
    return caught.value


def broken():
    raise RuntimeError("the recipe broke at s3://a:hidden@b/c")


def unknown():
    """As Keras's stack frames make TensorFlow write it."""
    frames = "".join(f'  File "<frozen runpy>", line {n}, in _run_code\n\n' for n in range(50))
    cause = "RuntimeError: the recipe broke"
    raise tf.errors.UnknownError(None, None, (
        "Graph execution error:\n\nDetected at node PyFunc defined at (most recent call last):\n"
        f"{frames}{cause}\nTraceback (most recent call last):\n\n  File \"recipe.py\", line 3, in f"
        f"\n    raise it()\n          ^^^^\n\n{cause}\n\n\n\t [[{{{{node PyFunc}}}}]] [Op:__inf_1]"
    ))  # fmt: skip


@pytest.mark.parametrize(("function", "cause"), [
    (lambda: tf.py_function(broken, [], tf.float32), r"\w+: RuntimeError: the recipe broke at s3://"),
    (lambda: tf.reshape(tf.range(tf.random.uniform([], 5, 6, tf.int32)), [2, 2]),
     "InvalidArgumentError: Input to reshape is a tensor with 5 values, but the requested"),
    (unknown, "UnknownError: RuntimeError: the recipe broke[.] "),
    (broken, "RuntimeError: .*the recipe broke at s3://"),
])  # fmt: skip
def test_the_line_of_an_error_in_a_graph_has_its_cause(function, cause):
    line = str(worker_errors.of_worker(1, raised(function)))
    expected = f"worker 1: {cause}[^\n]*Its traceback is in workers/rank-1.log"
    assert re.fullmatch(expected, line), line
    assert len(line) < 450
    assert not re.search("hidden|File|Detected|Graph exec|user code|Traceback|{{node", line), line


def test_a_long_message_is_cut():
    line = str(worker_errors.of_worker(0, ValueError("x" * 1000)))
    assert line.startswith(f"worker 0: ValueError: {'x' * 300}…. Its traceback is in ")
    assert str(worker_errors.of_worker(1, KeyError())).startswith("worker 1: KeyError. Its")


@pytest.mark.parametrize("raised", [ValueError, MemoryError])
@pytest.mark.parametrize("first", range(180, 310, 13))
def test_a_secret_that_would_be_cut_is_masked(raised, first):
    text = f"{'x' * first} s3://user:hidden-from-all@bucket/file"
    assert "hid" not in str(worker_errors.of_worker(0, raised(text)))


def test_a_traceback_that_cannot_be_kept_is_shown(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(worker_errors, "_output", str(tmp_path))
    foreign = tmp_path / "workers"
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
    monkeypatch.setattr(cluster_member.os, "_exit", codes.append)
    monkeypatch.setattr(process.Member, "__init__", lambda _: None)
    monkeypatch.setattr(process.Member, "rank", 0, raising=False)
    monkeypatch.setattr(process.Member, "membership", Membership(2), raising=False)
    monkeypatch.setattr(process.Member, "_command", "train", raising=False)
    monkeypatch.setattr(process.Member, "fail", lambda *_: None)
    process.Member().end_with_thread(threading.ExceptHookArgs((type(error), error, None, None)))
    assert codes == [1] and capfd.readouterr().err == f"tnctl train: worker 0: {lines}\n"
    assert (tmp_path / "workers" / TRACEBACK).exists() == isinstance(error, ValueError)
