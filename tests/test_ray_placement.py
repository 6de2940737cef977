"""How long Ray has to place all workers and what is said then, and its actors; without Ray."""

import asyncio
import json
import signal
import sys
import time

import pytest

from tnctl.cluster.joining.membership import Membership
from tnctl.errors import Failure, Stopped, UserError
from tnctl.launch import ray_actor, ray_placement
from tnctl.launch.ray_actor import Place, WorkerActor
from tnctl.launch.ray_driver import RayDriver, seconds_until_ended
from tnctl.launch.ray_placement import NoRoom, Placement
from tnctl.launch.spawn import Ended, LocalProcesses
from tnctl.schema import Cluster
from tnctl.training.run import record_workers
from tnctl.training.run_folder import Log


class Nodes(Placement):
    """Instead of Ray's: nodes with room for an actor each, all of which are placed, or none.

    `changes` are done one after the other while actors are missing.
    """

    def __init__(self, nodes, workers, *changes, servers=0, cpus=1, patience=9.0, is_own=False):
        super().__init__(Membership(workers, servers), cpus, patience, is_own=is_own)
        self.free, self.nodes, self.changes = list(nodes), [None] * (workers + servers), [*changes]
        self.place()

    def _missing(self, seconds):
        there = [rank for rank, node in enumerate(self.nodes) if node is None]
        if there:
            time.sleep(seconds)
            for change in self.changes[:1]:
                self.changes.remove(change)
                change(self)
        return there

    def _found(self):
        return [Place(actor="", node=node, address="", port=0, cpus=(0,)) for node in self.nodes]

    def _room(self):
        nodes = len(self.free) + sum(node is not None for node in self.nodes)
        return min(max(nodes - self._membership.servers, 0), self._membership.workers)

    def place(self):
        waiting = [rank for rank, node in enumerate(self.nodes) if node is None]
        if len(waiting) <= len(self.free):
            for rank in waiting:
                self.nodes[rank] = self.free.pop(0)

    def add(self, node):
        self.free.append(node)
        self.place()


def places(placed):
    return "".join(place.node for place in placed.places())


def test_a_run_begins_when_all_are_placed_and_continues_when_they_are_again(monkeypatch, capfd):
    monkeypatch.setattr(ray_placement, "NOTE_SECONDS", 0.05)
    placed = Nodes("ab", 3, lambda placed: placed.add("c"), lambda placed: placed.add("d"))
    assert places(placed) == "abc"
    placed.nodes[1] = None
    assert places(placed) == "adc"
    waiting = "waiting for Ray, which has not placed "
    shown_by = " workers (CPUs of each: 1): `ray status` shows what it has"
    lines = [f"{waiting}3 of 3{shown_by}", f"{waiting}1 of 3{shown_by}"]
    assert capfd.readouterr().err.splitlines() == lines


@pytest.mark.parametrize(("nodes", "workers", "servers", "line"), [
    ("ab", 3, 0, "3 of 3 workers (CPUs of each: 4) within 0.1 s (cluster.patience), and has room "
                 "for 2 of 3. Give cluster.workers=2"),
    ("", 3, 0, "3 of 3 workers (CPUs of each: 4) within 0.1 s (cluster.patience), and has room "
               "for none. `ray status` shows what it has"),
    ("abc", 2, 2, "2 of 2 workers and 2 of 2 servers (CPUs of each worker: 4, of each server: 1) "
                  "within 0.1 s (cluster.patience), and has room for 1 of 2. Give "
                  "cluster.workers=1"),
])  # fmt: skip
def test_after_patience_a_line_says_how_many_fit(nodes, workers, servers, line, capfd):
    placed = Nodes(nodes, workers, patience=0.1, servers=servers, cpus=4)
    begin = time.monotonic()
    with pytest.raises(NoRoom) as refused:
        placed.places()
    assert str(refused.value) == f"Ray has not placed {line}" and not capfd.readouterr().err
    assert time.monotonic() - begin >= 0.1


def test_a_ray_of_the_command_itself_has_room_and_is_waited_for(monkeypatch):
    monkeypatch.setattr(ray_placement, "NOTE_SECONDS", 0.05)
    monkeypatch.setattr(ray_placement, "NEXT_NOTE_SECONDS", 0.05)
    changes = [lambda _: None, lambda placed: [placed.add(name) for name in "ab"]]
    assert places(Nodes("", 2, *changes, patience=0.01, is_own=True)) == "ab"


def test_the_cpus_that_are_reserved_for_each():
    placed = Nodes("", 3, servers=2, cpus=4)
    assert [placed.reserved(rank) for rank in range(5)] == [4, 4, 4, 1, 1]
    placed = Nodes("", 2, servers=1, cpus=2, is_own=True)
    assert [placed.reserved(rank) for rank in range(3)] == [1, 1, 1]


def test_servers_may_use_all_cpus_of_their_node():
    def place(node):
        return Place(actor="", node=node, address="", port=0, cpus=tuple(range(8)))

    placed = Nodes("", 2, servers=2, cpus=4)
    everything = tuple(range(8))
    shares = placed.shares([place("a"), place("a"), place("a"), place("b")])
    assert shares == {0: (0, 1, 2, 3), 1: (4, 5, 6, 7), 2: everything, 3: everything}


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """The driver as the command sees it, which has ended with a code."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def ended(code, end=None):
        driver = RayDriver("train", Cluster(start="ray", workers=2), tmp_path)
        driver._temporary = str(tmp_path)
        monkeypatch.setattr(LocalProcesses, "wait", lambda *_: {0: Ended(code, "a cause")})
        if end is not None:
            (tmp_path / "end").write_text(json.dumps(end))
        return driver.wait(0)

    return ended


def test_what_the_end_of_the_driver_means(driver, monkeypatch):
    lost = "was lost with the Ray of this machine, which is started again"
    assert driver(1) == driver(-signal.SIGKILL) == {0: Ended(-signal.SIGKILL, lost)}
    assert driver(-signal.SIGTERM)[0].code == -signal.SIGTERM
    monkeypatch.setenv("RAY_ADDRESS", "node1:6379")
    with pytest.raises(Failure, match="the Ray of RAY_ADDRESS='node1:6379' cannot be reached any"):
        driver(1)
    assert driver(1, [0, None])[0].code == 0 and driver(1, [1, None])[0].code == 1
    for code in (1, 75):
        with pytest.raises(UserError, match="no room") as refused:
            driver(1, [code, "no room"])
        assert refused.value.exit_code == code
    with pytest.raises(Stopped, match="stopped"):
        driver(143, [143, "stopped by SIGTERM"])


def test_workers_of_lost_nodes_are_given_time_to_end():
    def place(actor, node):
        return Place(actor=actor, node=node, address="", port=0, cpus=(0,))

    former = [place("x", "a"), place("y", "b")]
    heard = dict.fromkeys("xy", time.monotonic())
    assert seconds_until_ended([], former, heard, 13) == 0
    assert seconds_until_ended(former, [place("v", "a"), place("w", "b")], heard, 13) == 0
    others = [place("v", "a"), place("w", "d")]
    left = seconds_until_ended(former, others, heard, 13)
    assert heard["y"] + 13 - time.monotonic() <= left <= 13
    assert seconds_until_ended(former, others, heard | {"y": 0.0}, 13) < 0


# Says what it is given, and waits for its end where it is told to.
WORKER = """
import sys, time
from tnctl.cluster.joining.assignment import take_assignment
given = take_assignment()
print(given.port, flush=True)
print("said", file=sys.stderr, flush=True)
time.sleep(given.task["seconds"])
sys.exit(3)
"""


def with_actor(monkeypatch, job, lease=60.0, seconds=0):
    """What a job returns of an actor here, without Ray, whose worker lives for some seconds."""
    place = Place(actor="this", node="a", address="10.0.0.1", port=9, cpus=(0,))
    monkeypatch.setattr(ray_actor, "end_with", lambda _: None)
    monkeypatch.setattr(ray_actor, "_place_of_this_process", lambda _: place)
    monkeypatch.setattr(ray_actor, "COMMAND", (sys.executable, "-c", WORKER))
    values = {
        "token": "", "rank": 0, "ranks": 1, "generation": 1, "cpus": (0,), "rank_0": "", "port": 9,
        "task": {"command": "train", "seconds": seconds},
    }  # fmt: skip

    async def run():
        actor = WorkerActor(lease, silence=60)
        return await asyncio.wait_for(job(actor, values), 60)

    return asyncio.run(run())


async def events_of(actor):
    """All events until the worker has ended."""
    events = []
    while not events or not isinstance(events[-1], Ended):
        events += await actor.events()
    return events


def test_an_actor_passes_on_what_its_worker_writes_and_how_it_ends(monkeypatch, tmp_path):
    async def job(actor, values):
        assert await actor.start("this", values, f"{tmp_path}/no") == (
            f"the node 10.0.0.1 has no folder {tmp_path}/no, in which the command was given. Give "
            "it in a folder that all nodes share"
        )
        assert await actor.events() is None
        assert await actor.start("this", values, str(tmp_path)) is None
        first = await events_of(actor)
        assert await actor.start("this", values, str(tmp_path)) is None
        return first, await events_of(actor)

    for *outputs, ended in with_actor(monkeypatch, job):
        for descriptor, text in ((1, b"9\n"), (2, b"said\n")):
            written = [output.content for output in outputs if output.descriptor == descriptor]
            assert b"".join(written) == text
        assert ended == Ended(3, "ended with exit code 3")


def test_a_worker_whose_actor_is_asked_no_more_is_killed(monkeypatch, tmp_path):
    async def job(actor, values):
        await actor.start("this", values, str(tmp_path))
        await asyncio.sleep(1.0)
        return (await events_of(actor))[-1]

    ended = with_actor(monkeypatch, job, lease=0.5, seconds=60)
    assert ended == Ended(-signal.SIGKILL, "was killed by SIGKILL")


def test_an_actor_that_was_started_again_has_no_worker(monkeypatch, tmp_path):
    async def job(actor, values):
        await actor.start("the one before", values, str(tmp_path))
        assert await actor.events() is None
        await actor.start("this", values, str(tmp_path))
        held = asyncio.ensure_future(actor.events())
        ended = await actor.end()
        await held
        return ended, await actor.events()

    ended, events = with_actor(monkeypatch, job, seconds=60)
    assert ended is None and events is None


def test_the_log_has_a_line_when_there_is_another_number_of_workers(tmp_path):
    log = Log(str(tmp_path))
    clusters = [Cluster(start="ray", workers=count) for count in (1, 3, 3, 2)]
    clusters = [Cluster(), *clusters, Cluster()]
    for step, cluster in enumerate(clusters):
        record_workers(log, cluster, step)
    assert log.events == [
        {"event": "workers", "step": step, "workers": workers}
        for step, workers in ((2, 3), (4, 2), (5, 1))
    ]
