"""Processes that begin as copies of this one, seen by themselves and by what has started them."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from tnctl.launch.forked_process import ForkedProcess, Program
from tnctl.launch.worker_processes import WorkerProcess

# Writes what a worker finds, with threads of nobody else.
PROGRAM = """
import contextlib, io, json, os, pathlib, signal, sys
from tnctl.launch.forked_process import ForkedProcess, name_process

def is_open(descriptor):
    return os.path.exists(f"/proc/self/fd/{descriptor}")

def run():
    name_process("tnctl worker 12345")
    print("printed")
    sys.stdout.flush()
    print("said", file=sys.stderr)
    seen = {
        "input": os.read(0, 100).decode(),
        "descriptors": [n for n in sorted(map(int, os.listdir("/proc/self/fd"))) if is_open(n)],
        "session": os.getsid(0) == os.getpid(),
        "parent": os.getppid() == parent,
        "handlers": [
            signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
            signal.getsignal(signal.SIGINT) == signal.SIG_DFL,
        ],
        "name": pathlib.Path("/proc/self/comm").read_text(),
    }
    os.write(passed, json.dumps(seen).encode())
    os._exit(7)

parent = os.getpid()
signal.signal(signal.SIGTERM, lambda *_: None)
signal.signal(signal.SIGINT, lambda *_: None)
print("buffered")  # at the fork, and written by one process
stdin, begin = os.pipe()
end, output = os.pipe()
other, passed = os.pipe()
os.dup2(output, low)
with contextlib.redirect_stderr(io.StringIO()):
    process = ForkedProcess(run, stdin=stdin, stdout=low, stderr=low, pass_fds=[passed])
os.write(begin, b"a line")
assert process.wait() == 7 and process.poll() == 7
print(json.dumps([json.loads(os.read(other, 10_000)), passed, os.read(end, 100).decode()]))
"""


@pytest.mark.parametrize("low", [0, 20])
def test_it_has_what_a_new_program_would_have(low):
    done = subprocess.run(
        [sys.executable, "-c", f"low = {low}\n{PROGRAM}"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    buffered, line = done.stdout.splitlines()
    state, passed, written = json.loads(line)
    assert buffered == "buffered" and written == "printed\nsaid\n"
    assert state == {
        "input": "a line",
        "descriptors": [0, 1, 2, passed],
        "session": True,
        "parent": True,
        "handlers": [True, True],
        "name": "tnctl worker 12\n",
    }


def forked(run):
    with open(os.devnull, "r+b") as null:
        number = null.fileno()
        return ForkedProcess(run, stdin=number, stdout=number, stderr=number, pass_fds=[])


@pytest.mark.parametrize(
    ("run", "code"),
    [
        (lambda: os._exit(0), 0),
        (lambda: os._exit(75), 75),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), -signal.SIGKILL),
        (lambda: 1 / 0, 1),
        (lambda: None, 1),  # it never goes on as its parent
    ],
)
def test_its_exit_code(run, code):
    process = forked(run)
    assert process.wait() == code and process.poll() == code and process.returncode == code


def test_a_handler_may_have_waited_for_it():
    process = forked(lambda: os._exit(3))
    previous = signal.signal(signal.SIGCHLD, lambda *_: process.poll())
    try:
        assert process.wait() == 3
    finally:
        signal.signal(signal.SIGCHLD, previous)


def test_a_signal_meanwhile_is_not_handled_as_its_parent_does(monkeypatch):
    handled = []
    previous = signal.signal(signal.SIGTERM, lambda *_: handled.append(os.getpid()))
    setsid = os.setsid

    def signalled():
        os.kill(os.getpid(), signal.SIGTERM)
        setsid()

    monkeypatch.setattr(os, "setsid", signalled)
    try:
        assert forked(lambda: os._exit(len(handled))).wait() == -signal.SIGTERM
        os.kill(os.getpid(), signal.SIGTERM)
        assert handled == [os.getpid()]
    finally:
        signal.signal(signal.SIGTERM, previous)


def test_it_can_be_killed_before_it_has_a_session(monkeypatch):
    monkeypatch.setattr(os, "setsid", lambda: time.sleep(60))
    output = os.open(os.devnull, os.O_WRONLY)
    worker = WorkerProcess(lambda: os._exit(0), 0, output, [])
    assert worker.process.poll() is None
    worker.kill()
    assert worker.close() == -signal.SIGKILL
    os.close(output)


def test_a_process_with_other_threads_is_not_copied():
    loaded = []
    program = Program(loaded.append, lambda _: os._exit(0))
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert not program.may_be_forked("train") and loaded == []
    finally:
        done.set()
        thread.join()


LOADS = """
import sys
{statement}
from tnctl.launch import worker
print(worker.PROGRAM.may_be_forked("train"), "tnctl.cluster.process" in sys.modules)
"""


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        pytest.param("", "True True", marks=pytest.mark.long),
        ("import tensorflow", "True True"),
        ("import tensorflow as tf; tf.constant(1.0)", "False False"),
    ],
)
def test_a_process_in_which_tensorflow_has_computed_is_not_copied(statement, expected):
    program = LOADS.format(statement=statement)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == expected, done.stderr
