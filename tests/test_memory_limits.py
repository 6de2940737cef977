"""Training and loading at a limit of memory: one line and a checkpoint, before the system kills."""

import importlib
import itertools
import resource

import pytest
from test_resume import outcome, stop_at, train

from tnctl import system
from tnctl.errors import Failure
from tnctl.system import Limit, tightest
from tnctl.training import row_life

MIB = 1 << 20
MEMINFO = "MemTotal: 4096000 kB\nMemFree: 1 kB\nMemAvailable: 2048000 kB\nSwapFree: 1024 kB\n"
STATUS = "Name: tnctl\nVmSize: 1024000 kB\nVmData: 512000 kB\n"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Writes files of a system's /proc and /sys; ulimits are none."""
    unlimited = {resource.RLIMIT_AS: (-1, -1), resource.RLIMIT_DATA: (-1, -1)}
    monkeypatch.setattr(resource, "getrlimit", unlimited.__getitem__)

    def write(**texts):
        for name, text in {"proc/meminfo": MEMINFO, "proc/self/status": STATUS, **texts}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def cgroup(version, folder, total, used, cached=0, mapped=0):
    if version == 2:
        place, names = f"sys/fs/cgroup{folder}", ("memory.max", "memory.current")
        stat = f"inactive_file {cached - 5}\nactive_file 5\nfile_mapped {mapped}\nanon 7\n"
    else:
        place = f"sys/fs/cgroup/memory{folder}"
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        stat = (
            f"inactive_file 1\ntotal_inactive_file {cached - 5}\ntotal_active_file 5\n"
            f"total_mapped_file {mapped}\n"
        )
    return {f"{place}/{names[0]}": f"{total}\n", f"{place}/{names[1]}": f"{used}\n",
            f"{place}/memory.stat": stat}  # fmt: skip


def test_the_machine_is_a_limit(machine):
    free = (2048000 + 1024) * 1024
    assert tightest(machine()) == Limit("the memory of this machine", 4096000 * 1024, free)


def test_no_system_names_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 30, -1))
    assert tightest(tmp_path) is None


@pytest.mark.parametrize(
    ("line", "version", "folder"),
    [
        ("0::/job", 2, "/job"),
        ("0::/job/part", 2, "/job"),  # of a folder around it
        ("0::/not/mounted", 2, ""),  # in a container
        ("9:cpu:/x\n4:memory:/job\n0::/", 1, "/job"),
        ("4:hugetlb,memory:/docker/0123", 1, ""),
        ("0::/../outside", 2, ""),
    ],
)
def test_a_cgroup_is_a_limit(machine, line, version, folder):
    files = cgroup(version, folder, 900 * MIB, 800 * MIB, cached=300 * MIB, mapped=100 * MIB)
    root = machine(**{"proc/self/cgroup": line, **files})
    # What is cached and not mapped can be taken back, and there is 1 MiB of swap.
    expected = Limit("the memory limit of the cgroup", 900 * MIB, (100 + 200 + 1) * MIB)
    assert tightest(root) == expected


@pytest.mark.parametrize("total", ["max", str(2**63 - 4096)])
def test_a_cgroup_without_a_limit(machine, total):
    root = machine(**{"proc/self/cgroup": "0::/", **cgroup(2, "", total, 800 * MIB)})
    assert tightest(root).name == "the memory of this machine"


@pytest.mark.parametrize(
    ("number", "name", "used"),
    [("RLIMIT_AS", "ulimit -v", 1000), ("RLIMIT_DATA", "ulimit -d", 500)],
)
def test_a_ulimit(machine, monkeypatch, number, name, used):
    limits = {getattr(resource, number): (1200 * MIB, -1)}
    monkeypatch.setattr(resource, "getrlimit", lambda of: limits.get(of, (-1, -1)))
    assert tightest(machine()) == Limit(name, 1200 * MIB, (1200 - used) * MIB)


def test_a_model_that_has_no_room(monkeypatch):
    monkeypatch.setattr(system, "tightest", lambda: Limit("ulimit -v", 900 * MIB, 300 * MIB))
    system.require(200 * MIB, 100 * MIB, "the model of it")
    system.require(63 * MIB, 900 * MIB, "a small one")
    with pytest.raises(Failure) as caught:
        system.require(200 * MIB, 101 * MIB, "the model of it")
    assert str(caught.value) == (
        "the model of it takes 200.0 MiB of memory and work on it 101.0 MiB more, but ulimit -v "
        "(900.0 MiB) leaves 300.0 MiB. Give it more memory"
    )


def test_training_stops_before_memory_runs_out(workspace, trained, cli, monkeypatch):
    importlib.import_module("tnctl.training.run")  # with the real table_bytes
    held, calls = itertools.count(0, MIB), itertools.count(1)
    # Between two steps 1 MiB more is held, so as many more are asked to be there.
    needed = row_life.RESERVE + row_life.GROWTHS_AHEAD * MIB

    def limit(**_):
        return Limit("ulimit -v", 1 << 30, needed - (next(calls) == 5))

    with monkeypatch.context() as patch:
        patch.setattr(row_life, "SECONDS_BETWEEN_CHECKS", 0.0)
        patch.setattr(row_life, "table_bytes", lambda _: next(held))
        patch.setattr(system, "tightest", limit)
        done = cli("train", "conf=small.yaml", "output=run", cwd=workspace)
    assert done.code == 1
    begin = "tnctl train: stopped after step 4 before memory runs out: ulimit -v (1.0 GiB) leaves "
    assert done.last.startswith(begin)
    saved = "rows) and grow. run/checkpoints/step-0000000004 is saved. Run the same command again"
    assert saved in done.last
    assert cli("train", "conf=small.yaml", "output=run", cwd=workspace).code == 0
    assert outcome(workspace / "run") == outcome(trained / "run")


def test_an_allocation_that_fails(workspace, cli, monkeypatch):
    def fail():
        raise MemoryError("TN_NO_MEMORY: an allocation failed")

    stop_at(monkeypatch, 4, fail)
    done = train(cli, workspace, "save.every_steps=2", expected=1)
    message = "out of memory after step 3 (TN_NO_MEMORY: an allocation failed): the tables hold"
    assert message in done.last
    assert "step-0000000002 is saved. Run the same command again with more memory" in done.last


def test_processes_of_one_machine_share_its_memory(machine, monkeypatch):
    root = machine()
    whole = tightest(root)
    assert whole.free_for_each(4) == whole.free // 4
    # A limit of each process leaves less to this one, and more than a fourth of the machine.
    limits = {resource.RLIMIT_AS: (2000 * MIB, -1)}
    monkeypatch.setattr(resource, "getrlimit", lambda of: limits.get(of, (-1, -1)))
    assert tightest(root).name == "ulimit -v"
    assert tightest(root, processes=4) == whole
    assert tightest(root).free_for_each(4) == tightest(root).free


@pytest.mark.parametrize(("processes", "words"), [(1, ", and"), (3, " to 3 workers, and")])
def test_each_of_several_workers_needs_its_room(monkeypatch, processes, words):
    held, growth = itertools.count(0, MIB), row_life.GROWTHS_AHEAD * MIB
    room = processes * (row_life.RESERVE + growth)
    free = iter([room, room - 1])
    monkeypatch.setattr(row_life, "SECONDS_BETWEEN_CHECKS", 0.0)
    monkeypatch.setattr(row_life, "table_bytes", lambda _: next(held))
    monkeypatch.setattr(row_life, "table_words", lambda _: "the tables hold 9 GiB")
    monkeypatch.setattr(system, "tightest", lambda **_: Limit("the memory", 1 << 40, next(free)))
    watch = row_life.MemoryWatch(None, processes)
    assert watch.shortage(None) is None
    assert f"{words} the tables hold 9 GiB and grow" in watch.shortage(None)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("can't start new thread"),
        ImportError("x.so: failed to map segment"),
    ],
)
def test_a_system_that_gives_no_memory(monkeypatch, capsys, error):
    def run(*_):
        raise error

    module = importlib.import_module("tnctl.cli.main")
    monkeypatch.setattr(module, "run", run)
    with pytest.raises(SystemExit) as stop:
        module.main(["evaluate"])
    assert stop.value.code == 1
    reason = f" ({error})" if str(error) else ""
    expected = f"tnctl evaluate: out of memory{reason}. Give it more memory, or raise its limit\n"
    assert capsys.readouterr().err == expected


def test_other_errors_of_these_types_are_no_lack_of_memory():
    module = importlib.import_module("tnctl.system")
    for error in (RuntimeError("a fault"), ImportError("no module named x"), OSError("full")):
        assert not module.is_out_of_memory(error)
