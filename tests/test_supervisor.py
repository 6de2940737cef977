"""Workers are started, watched, started again and ended; here they are small programs."""

import dataclasses
import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from cluster_commands import lives, until

from tnctl.cluster.joining.assignment import LOST
from tnctl.cluster.joining.membership import Membership
from tnctl.errors import Failure, Stopped
from tnctl.launch import environment
from tnctl.launch import supervisor as supervisor_module
from tnctl.launch.spawn import LocalProcesses, begin_log, last_lines, reserved_port
from tnctl.launch.supervisor import Supervisor
from tnctl.system import shares

pytestmark = pytest.mark.alone

# Does what the task says of its generation and rank, and leaves a file that says who it is.
PROGRAM = """
import json, os, pathlib, signal, sys, time
from tnctl.cluster.joining.assignment import take_assignment
given = take_assignment()
folder = pathlib.Path(given.task["folder"])
saved = lambda *_: (print("saved", file=sys.stderr, flush=True), os._exit(143))
plan = given.task["plan"]
part = folder / f"part-{given.generation}-{given.rank}"
part.write_text(json.dumps({"pid": os.getpid(), "cpus": sorted(os.sched_getaffinity(0)),
    "session": os.getsid(0), "terminal": os.isatty(2), "ranks": given.ranks, "port": given.port,
    "rank_0": given.rank_0, "input": os.readlink("/proc/self/fd/0")}))
part.rename(folder / f"{given.generation}-{given.rank}")
for action in plan[min(given.generation, len(plan)) - 1][given.rank].split(";"):
    word, _, value = action.strip().partition(" ")
    if word == "say": print(value, file=sys.stderr, flush=True)
    if word == "print": print(value, flush=True)
    if word == "touch": (folder / value).touch()
    if word == "sleep": time.sleep(float(value))
    if word == "kill": os.kill(os.getpid(), int(value))
    if word == "save": signal.signal(signal.SIGTERM, saved)
    if word == "ignore": signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if word == "exit": os._exit(int(value))
    if word == "wait":
        while not (folder / value).exists(): time.sleep(0.01)
"""
SLEEP = "sleep 60"


class Run:
    """A supervisor of such programs, and what they left behind."""

    def __init__(self, folder, plan, newest=lambda: None, silence=60, program=PROGRAM, place=None):
        self.folder, self.plan = folder, plan
        (folder / "workers").mkdir()
        self.logs = [folder / "workers" / f"rank-{rank}.log" for rank in range(len(plan[0]))]
        task = {"folder": str(folder), "plan": plan}
        self.processes = LocalProcesses(
            "train", Membership(len(plan[0])), folder / "workers", silence, place,
            (sys.executable, "-c", program),
        )  # fmt: skip
        self.supervisor = Supervisor(lambda: task, newest, self.processes)

    def __call__(self):
        return self.supervisor.run()

    def who(self, generation, rank):
        path = self.folder / f"{generation}-{rank}"
        until(path.exists)
        return json.loads(path.read_text())

    def generations(self):
        return len({path.name.partition("-")[0] for path in self.folder.glob("[0-9]*-*")})

    def all_ended(self):
        pids = [json.loads(path.read_text())["pid"] for path in self.folder.glob("[0-9]*-*")]
        return not any(map(lives, pids))


def later(job):
    thread = threading.Thread(target=job, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("cpus", [[0], [3, 1], range(8), range(5)])
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_shares_are_contiguous_and_use_every_cpu(cpus, workers):
    parts = shares(cpus, workers)
    assert len(parts) == workers and all(parts)
    assert sorted({cpu for part in parts for cpu in part}) == sorted(cpus)
    if workers <= len(cpus):
        assert [cpu for part in parts for cpu in part] == sorted(cpus)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    else:
        assert all(len(part) == 1 for part in parts)


def test_a_run_to_its_end(tmp_path, capfd):
    plan = [["say first line;print a result;exit 0", "say only in its file;exit 0"]]
    run = Run(tmp_path, plan)
    assert run() == 0
    assert capfd.readouterr() == ("a result\n", "first line\n")
    assert run.logs[1].read_text() == "== workers started, generation 1\nonly in its file\n"
    assert not run.logs[0].exists()
    parts = [run.who(1, rank) for rank in range(2)]
    assert [part["cpus"] for part in parts] == list(map(list, shares(os.sched_getaffinity(0), 2)))
    assert len({os.getsid(0), *(part["session"] for part in parts)}) == 3
    assert len({part["port"] for part in parts}) == 2
    assert {part["rank_0"] for part in parts} == {f"127.0.0.1:{parts[0]['port']}"}
    assert {part["input"] for part in parts} == {"/dev/null"}
    assert run.all_ended()


def test_nobody_is_given_the_port_of_a_worker_before_it_listens():
    with reserved_port() as port, socket.socket() as asking:
        assert asking.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED
        for _ in range(1000):
            with socket.socket() as other:
                other.bind(("127.0.0.1", 0))
                assert other.getsockname()[1] != port
        # What another user may do: the system looks at the user for SO_REUSEPORT alone.
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", port))
        with socket.socket() as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listening.bind(("127.0.0.1", port))
            listening.listen()
            with socket.create_connection(("127.0.0.1", port)):
                pass


def test_another_rank_alone_is_shown_and_in_its_log(tmp_path, capfd):
    """With cluster=env, where each command has one."""
    place = environment.place(
        {"TNCTL_RANK": "1", "TNCTL_WORKERS": "2", "TNCTL_ADDRESS": "node1:29400"}
    )
    place = dataclasses.replace(place, token="of all")
    run = Run(tmp_path, [["", "say its line;exit 75"], ["", "exit 0"]], place=place)
    assert run() == 0
    shown, again = capfd.readouterr().err.splitlines()
    assert shown == "its line" and again.startswith("worker 1 has lost another one: all workers")
    assert run.logs[1].read_text().splitlines() == [
        "== workers started, generation 1", "its line", "== workers started, generation 2",
    ]  # fmt: skip
    who = run.who(1, 1)
    assert (who["port"], who["rank_0"]) == (0, "node1:29400")
    assert run.processes._token == "of all"


def test_the_last_lines_are_those_of_the_generation_that_was_started_last(tmp_path):
    log = tmp_path / "rank-1.log"
    assert last_lines(log, 5) == []
    begin_log(log, 1)
    log.write_text(log.read_text() + "of the first\n")
    assert last_lines(log, 5) == ["of the first"]
    begin_log(log, 2)
    assert last_lines(log, 5) == []
    log.write_text(log.read_text() + "a\n\nb\nc\n")
    assert last_lines(log, 2) == ["b", "c"]


def test_the_token_is_in_no_list_of_processes(tmp_path):
    run = Run(tmp_path, [["wait go; exit 0", "wait go; exit 0"]])
    seen = []

    def look():
        for rank in range(2):
            process = Path(f"/proc/{run.who(1, rank)['pid']}")
            seen.append((process / "cmdline").read_bytes() + (process / "environ").read_bytes())
        (tmp_path / "go").touch()

    looking = later(look)
    assert run() == 0
    looking.join()
    token = run.processes._token
    assert len(seen) == 2 and len(token) > 40
    assert not any(token.encode() in content for content in seen)
    assert token not in "".join(log.read_text() for log in run.logs[1:])


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ([[SLEEP, "kill 9"], ["exit 0", "exit 0"]], "worker 1 was killed by SIGKILL"),
        ([["kill 9", SLEEP], ["exit 0", "exit 0"]], "worker 0 was killed by SIGKILL"),
        ([["exit 75", "kill 19"], ["exit 0", "exit 0"]], "worker 0 has lost another one"),
        ([[SLEEP, "say why;exit 75"], ["exit 0", "exit 0"]], "worker 1: why"),
    ],
)
def test_lost_workers_are_started_again(tmp_path, capfd, plan, words):
    run = Run(tmp_path, plan)
    assert run() == 0
    assert run.generations() == 2 and run.all_ended()
    err = capfd.readouterr().err
    assert words in err and "start again from the last checkpoint" in err
    assert "generation 2" in run.logs[1].read_text()


def test_exit_codes_are_seen_where_ended_children_are_ignored(tmp_path):
    """As daemons that never wait for their children leave it to what they start."""
    previous = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        run = Run(tmp_path, [[SLEEP, "kill 9"], ["exit 1", SLEEP]])
        assert run() == 1
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGCHLD, previous)
    assert run.generations() == 2


def test_three_losses_without_a_checkpoint_end_the_run(tmp_path):
    run = Run(tmp_path, [["sleep 60", "kill 11"]])
    with pytest.raises(Failure, match=r"lost 3 times .* worker 1 was killed by SIGSEGV"):
        run()
    assert run.generations() == 3 and run.all_ended()


def test_a_new_checkpoint_begins_the_count_again(tmp_path):
    plan = [["exit 75"]] * 2 + [["wait 3-0;exit 75"]] + [["exit 75"]] * 2 + [["exit 0"]]
    run = Run(tmp_path, plan, newest=lambda: (tmp_path / "3-0").exists())
    # The third loss has a new checkpoint, and is the first of the next count.
    with pytest.raises(Failure, match="lost 3 times"):
        run()
    assert run.generations() == 5


@pytest.mark.parametrize("code", [1, 2])
def test_an_error_of_rank_0_ends_all(tmp_path, capfd, code):
    run = Run(tmp_path, [[f"say tnctl train: it is wrong;exit {code}", "ignore;" + SLEEP]])
    assert run() == code
    assert capfd.readouterr().err == "tnctl train: it is wrong\n"
    assert run.generations() == 1 and run.all_ended()


def test_an_error_of_another_worker_is_shown_once(tmp_path, capfd, monkeypatch):
    run = Run(tmp_path, [["wait told;say worker 1: a bad row;exit 1", "say a bad row;exit 1"]])
    monkeypatch.setattr(supervisor_module, "TO_REPORT", 20.0)
    later(lambda: (run.who(1, 1), time.sleep(0.3), (tmp_path / "told").touch()))
    assert run() == 1
    assert capfd.readouterr().err == "worker 1: a bad row\n"


def test_rank_0_need_not_report_it(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(supervisor_module, "TO_REPORT", 0.5)
    run = Run(tmp_path, [[SLEEP, "say before;say a bad row;exit 2"]])
    assert run() == 2
    assert capfd.readouterr().err == "tnctl train: worker 1: a bad row\n" and run.all_ended()


@pytest.mark.parametrize(("said", "shown"), [
    ("say tnctl train: worker 2: a bad row;", "worker 2: a bad row"),
    ("say Traceback (most recent call last):;say ValueError: x;",
     "worker 1: ValueError: x. Its traceback is in {log}"),
    ("", "worker 1: ended with exit code 1 and said nothing"),
])  # fmt: skip
def test_what_a_worker_has_said_last_is_one_line(tmp_path, capfd, monkeypatch, said, shown):
    monkeypatch.setattr(supervisor_module, "TO_REPORT", 0.1)
    run = Run(tmp_path, [[SLEEP, said + "exit 1"]])
    assert run() == 1
    expected = f"tnctl train: {shown.format(log=run.logs[1])}\n"
    assert capfd.readouterr().err == expected and run.generations() == 1


def test_a_worker_that_is_asked_to_stop_too_early_is_not_started_again(tmp_path):
    run = Run(tmp_path, [[SLEEP, f"kill {int(signal.SIGTERM)}"]])
    with pytest.raises(Stopped, match=r"stopped by SIGTERM .* checkpoint, if there") as caught:
        run()
    assert caught.value.exit_code == 143 and run.generations() == 1 and run.all_ended()


def test_a_full_disk_below_the_logs_hides_no_message(tmp_path, capfd):
    run = Run(tmp_path, [["wait 1-1;say no space is left;exit 1", SLEEP]])
    run.logs[1].symlink_to("/dev/full")
    assert run() == 1
    assert capfd.readouterr().err == "no space is left\n" and run.all_ended()


def test_workers_that_do_not_follow_are_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor_module, "TO_FOLLOW", 0.3)
    run = Run(tmp_path, [["wait 1-1;exit 0", "ignore;kill 19"]])
    assert run() == 0 and run.all_ended()


def test_sigterm_lets_rank_0_save(tmp_path, capfd):
    run = Run(tmp_path, [["save;touch ready;" + SLEEP, SLEEP]])

    def stop():
        until((tmp_path / "ready").exists)
        os.kill(os.getpid(), signal.SIGTERM)

    later(stop)
    assert run() == 143
    assert capfd.readouterr().err == "saved\n" and run.all_ended()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_second_signal_ends_all(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor_module, "TO_END", 0.3)
    run = Run(tmp_path, [["ignore;touch ready;" + SLEEP, SLEEP]])

    def stop():
        until((tmp_path / "ready").exists)
        os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: run.supervisor._signals)
        os.kill(os.getpid(), signal.SIGTERM)

    later(stop)
    with pytest.raises(Stopped, match="stopped by SIGTERM before") as caught:
        run()
    assert caught.value.exit_code == 143 and run.all_ended()


# ---- Stopped workers -------------------------------------------------------------

# Stops itself the first time, before it reads what it is given.
STOPS_AT_ITS_START = """
import os, pathlib, signal, sys
marker = pathlib.Path({marker!r})
if not marker.exists():
    marker.touch()
    os.kill(os.getpid(), signal.SIGSTOP)
""" + PROGRAM.replace("{", "{{").replace("}", "}}")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_is_stopped_too_long_is_lost(tmp_path, capfd, workers):
    plan = [[SLEEP] * workers, ["exit 0"] * workers]
    run = Run(tmp_path, plan, silence=0.7)
    times = []

    def stop():
        pid = run.who(1, workers - 1)["pid"]
        times.append(time.monotonic())
        os.kill(pid, signal.SIGSTOP)
        until(lambda: not lives(pid))
        times.append(time.monotonic())

    stopping = later(stop)
    assert run() == 0
    stopping.join()
    assert run.generations() == 2 and run.all_ended()
    assert 0.7 <= times[1] - times[0] < 30
    line = rf"worker {workers - 1} was stopped for (0\.[7-9]|[1-9]\d*\.\d) s: all workers start "
    assert re.match(line + "again from", capfd.readouterr().err)


def test_a_worker_that_is_stopped_before_it_reads_holds_up_nobody(tmp_path, capfd):
    """The supervisor does not wait until it reads, however much it is given."""
    program = STOPS_AT_ITS_START.format(marker=str(tmp_path / "marker"))
    run = Run(tmp_path, [["exit 0"]], silence=0.5, program=program)
    run.supervisor._task = lambda: {
        "folder": str(tmp_path), "plan": run.plan, "large": "x" * 300_000,
    }  # fmt: skip
    assert run() == 0
    assert capfd.readouterr().err.count("worker 0 was stopped for ") == 1


def test_short_stops_and_a_slow_start_cost_time_only(tmp_path, capfd):
    run = Run(tmp_path, [["sleep 1.5;exit 0", "wait go;exit 0"]], silence=1.6)

    def stop():
        pid = run.who(1, 1)["pid"]
        for _ in range(6):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.4)
            os.kill(pid, signal.SIGCONT)  # and at once again, which no look at it sees
        (tmp_path / "go").touch()

    stopping = later(stop)
    assert run() == 0
    stopping.join()
    assert run.generations() == 1 and capfd.readouterr().err == ""


def test_the_time_in_which_the_supervisor_was_stopped_does_not_count(tmp_path):
    """Ctrl-Z and fg; and all processes may be stopped and continued, in any order."""
    plan = [["wait go;exit 0"] * 2, ["exit 1"] * 2]
    with drive(tmp_path, plan, silence=4) as driver:
        part = tmp_path / "1-1"
        until(part.exists)
        pid = json.loads(part.read_text())["pid"]
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.4)
        driver.send_signal(signal.SIGSTOP)
        time.sleep(5)
        driver.send_signal(signal.SIGCONT)
        time.sleep(0.1)
        os.kill(pid, signal.SIGCONT)
        (tmp_path / "go").touch()
        assert driver.wait(30) == 0


DRIVER = """
import json, sys
from pathlib import Path
from tnctl.cluster.joining.membership import Membership
from tnctl.launch.spawn import LocalProcesses
from tnctl.launch.supervisor import Supervisor
folder, program, plan = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
task = {"folder": str(folder), "plan": plan}
processes = LocalProcesses("train", Membership(len(plan[0])), folder, float(sys.argv[4]),
    command=(sys.executable, "-c", program))
sys.exit(Supervisor(lambda: task, lambda: None, processes).run())
"""


def drive(folder, plan, silence=60, **options):
    command = [sys.executable, "-c", DRIVER, str(folder), PROGRAM, json.dumps(plan), str(silence)]
    return subprocess.Popen(command, **options)


@pytest.mark.parametrize("end", ["exit 0", "kill 11"])
def test_in_a_terminal_rank_0_has_it(tmp_path, end):
    main, terminal = os.openpty()
    plan = [[f"say \x1b[?25l\x1b[1mbold\x1b[0m;{end}", SLEEP], ["exit 0", "exit 0"]]
    with drive(tmp_path, plan, stderr=terminal, stdout=terminal, stdin=terminal) as driver:
        os.close(terminal)
        assert driver.wait(30) == 0
    shown = os.read(main, 1000).replace(b"\r", b"")
    os.close(main)
    begin, cut = b"\x1b[?25l\x1b[1mbold\x1b[0m\n", b"\x1b[?25h\nworker 0 was killed by SIGSEGV: "
    assert shown.startswith(begin + cut) if end == "kill 11" else shown == begin
    # Of a first attempt that is killed worker 1 may be ended before it has begun.
    attempt = 2 if end == "kill 11" else 1
    who = [json.loads((tmp_path / f"{attempt}-{rank}").read_text()) for rank in range(2)]
    assert [part["terminal"] for part in who] == [True, False]


def test_a_worker_by_itself_says_how_it_is_started():
    program = "from tnctl.cluster.joining.assignment import take_assignment; take_assignment()"
    done = subprocess.run([sys.executable, "-c", program], input=b"{}\n", capture_output=True)
    assert b"started by a command with cluster=local" in done.stderr
    assert done.returncode == 1 and LOST == 75
