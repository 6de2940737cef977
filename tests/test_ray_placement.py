"""Which actors take part in a generation, when Ray has not placed all of them; without Ray."""

import asyncio
import math
import time

import pytest
from conftest import CONF

from tnctl.launch import ray_placement
from tnctl.launch.ray_actor import Place
from tnctl.launch.ray_messages import Began, Connect, Written
from tnctl.launch.ray_placement import Placement, seconds_until_ended
from tnctl.launch.ray_processes import RayProcesses
from tnctl.schema import Cluster
from tnctl.training.run_log import Log
from tnctl.training.training_run import record_workers


class Remote:
    """The method `place` of an actor, which Ray may not have placed."""

    to_start = 0.0  # seconds

    def __init__(self):
        self.node = None

    async def remote(self):
        while self.node is None:
            await asyncio.sleep(0.005)
        await asyncio.sleep(self.to_start)
        return Place(actor="", node=self.node, address="", cpus=(0,))


class Actor:
    def __init__(self):
        self.place = Remote()


class Nodes:
    """Instead of Ray: nodes with room for an actor each. The group requested last is placed first.

    Of a group those that are not placed are placed together, or none.
    """

    def __init__(self, nodes):
        self.free, self.groups, self.requests = list(nodes), [], []

    def request(self, cpus):
        self.requests.append(list(cpus))
        self.groups.append([Actor() for _ in cpus])
        self.place()
        return self.groups[-1]

    def withdraw(self):
        self.free += [node for node in self.used() if node]
        self.groups = []

    def used(self):
        return [actor.place.node for group in self.groups for actor in group]

    def place(self):
        for group in reversed(self.groups):
            waiting = [actor for actor in group if actor.place.node is None]
            if len(waiting) <= len(self.free):
                for actor in waiting:
                    actor.place.node = self.free.pop(0)

    def add(self, node):
        self.free.append(node)
        self.place()

    def lose(self, *nodes):
        for group in self.groups:
            for actor in group:
                if actor.place.node in nodes:
                    actor.place.node = None


def placement(nodes, workers, min_workers, patience, servers=0, cpus=1):
    """A placement on these nodes, as a string of their names, Ray, and the lines that it says."""
    lines, ray = [], Nodes(nodes)
    connect = Connect(
        address="auto", temporary="", workers=workers, servers=servers, min_workers=min_workers,
        patience=patience, cpus=cpus, silence=4,
    )  # fmt: skip
    placed = Placement(connect, lines.append)
    placed.request(cpus, ray)
    return placed, ray, lines


def places(placed, *changes):
    """Which actors take part, when these are done to Ray one after the other meanwhile."""

    async def wait():
        waiting = asyncio.ensure_future(placed.places())
        for change in changes:
            await asyncio.sleep(0.12)
            assert not waiting.done()
            change()
        return await asyncio.wait_for(waiting, 10)

    return list(asyncio.run(wait()))


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(ray_placement, "RETURN_SECONDS", 0.05)


def test_all_that_are_placed_take_part():
    placed, _, lines = placement("abc", 3, 1, patience=math.inf)
    assert places(placed) == [0, 1, 2] and not lines


def test_without_a_worker_that_is_not_placed_within_patience_and_with_it_later():
    placed, ray, lines = placement("ab", 3, 1, patience=0.1)
    begin = time.monotonic()
    assert len(places(placed)) == 2
    assert time.monotonic() - begin >= 0.1
    assert lines == ["Ray has placed 2 of 3 workers: all start with 2 (cluster.min_workers=1)"]
    placed._patience = math.inf  # for it nobody waits any more
    assert len(places(placed)) == 2 and len(lines) == 1
    ray.add("c")
    assert places(placed) == [0, 1, 2]
    assert lines[1].startswith("Ray has placed 3 of 3 workers: all start with 3")


def test_fewer_than_allowed_are_waited_for(monkeypatch):
    monkeypatch.setattr(ray_placement, "NOTE_SECONDS", 0.05)
    placed, ray, lines = placement("a", 3, 2, patience=0.01)
    assert places(placed, lambda: ray.add("b")) == [0, 1]
    waiting = "waiting for Ray, which has not placed 3 of 3 workers (CPUs of each: 1)"
    assert lines[0].startswith(waiting) and len(lines) == 2


@pytest.mark.parametrize("min_workers", [1, 2, 4, 5])
def test_a_ray_that_grows_node_by_node_has_room_for_those_that_must_be(min_workers):
    placed, ray, _ = placement("", 5, min_workers, patience=0.1)
    grow = [lambda name=name: ray.add(name) for name in "abcde"[:min_workers]]
    assert places(placed, *grow) == list(range(min_workers))
    for name in "abcde"[min_workers:]:
        ray.add(name)
    assert places(placed) == [0, 1, 2, 3, 4]


def test_all_are_requested_when_those_that_must_be_come_late(monkeypatch):
    monkeypatch.setattr(Remote, "to_start", 0.1)
    placed, ray, _ = placement("", 3, 2, patience=0.2)
    assert places(placed, *[lambda: None] * 2, lambda: [ray.add(name) for name in "abc"]) == [
        0, 1, 2,
    ]  # fmt: skip


def test_after_a_loss_a_run_begins_with_any_workers_that_are_enough():
    placed, ray, _ = placement("ab", 3, 2, patience=0.1)
    assert places(placed) == [0, 1]
    ray.add("c")
    ray.lose("b")
    assert places(placed) == [0, 2]


def test_after_the_loss_of_several_nodes_each_that_comes_counts():
    placed, ray, lines = placement("abcd", 4, 3, patience=0.2)
    assert places(placed) == [0, 1, 2, 3]
    lost = [placed.actor(index).place.node for index in (0, 1)]
    ray.lose(*lost)
    # Of the group of three two are lost, which are placed together or not at all.
    ray.add("e")
    assert places(placed) == [0, 1, 2]
    assert lines[-1].startswith("Ray has placed 3 of 4 workers")
    ray.add("f")
    assert places(placed) == [0, 1, 2, 3]
    ray.lose("f", "e")
    assert len(ray.requests) == 4  # both for the group and the one other
    assert places(placed, *[lambda: None] * 3, lambda: ray.add("g")) == [0, 1, 2]


def requests(workers, servers, min_workers, address="auto", cpus=4):
    """The CPUs of the groups that Ray is asked for."""
    connect = Connect(
        address=address, temporary="", workers=workers, servers=servers, min_workers=min_workers,
        patience=9, cpus=cpus, silence=4,
    )  # fmt: skip
    ray = Nodes(range(workers + servers))
    placed = Placement(connect, print)
    placed.request(cpus, ray)
    assert places(placed) == list(range(workers + servers))
    return ray.requests


def test_servers_are_placed_together_with_the_workers_that_there_must_be():
    assert requests(3, 2, 3) == [[4, 4, 4, 1, 1]]
    assert requests(3, 2, 1) == [[4, 1, 1], [4], [4]]
    assert requests(3, 0, 2) == [[4, 4], [4]]
    assert requests(2, 1, 2, address=None, cpus=None) == [[1, 1, 1]]


def test_a_server_is_never_left_out(monkeypatch):
    monkeypatch.setattr(ray_placement, "NOTE_SECONDS", 0.05)
    placed, ray, lines = placement("ab", 3, 1, patience=0.2, servers=2, cpus=4)
    assert places(placed, lambda: ray.add("c")) == [0, 3, 4]
    assert placed.actor(4).place.node == "c"
    ray.lose("c")
    # A worker that need not be there takes its room, until all are requested anew.
    assert places(placed, lambda: ray.add("d")) == [0, 3, 4]
    waiting = "waiting for Ray, which has not placed "
    of_cpus = " (CPUs of each worker: 4, of each server: 1): `ray status` shows what it has"
    assert lines == [
        f"{waiting}3 of 3 workers and 2 of 2 servers{of_cpus}",
        "Ray has placed 1 of 3 workers: all start with 1 (cluster.min_workers=1)",
        f"{waiting}1 of 2 servers{of_cpus}",
    ]


def test_servers_may_use_all_cpus_of_their_node():
    def place(node):
        return Place(actor="", node=node, address="", cpus=tuple(range(8)))

    placed, _, _ = placement("", 3, 1, 9, servers=2, cpus=4)
    everything = tuple(range(8))
    # One of the workers was left out.
    shares = placed.shares([place("a"), place("a"), place("a"), place("b")])
    assert shares == {0: (0, 1, 2, 3), 1: (4, 5, 6, 7), 2: everything, 3: everything}


def test_logs_and_names_are_those_of_the_workers_that_are_placed(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    logs = [tmp_path / f"{name}.log" for name in ("w0", "w1", "w2", "s0", "s1")]
    cluster = Cluster(start="ray", workers=3, servers=2, min_workers=1)
    processes = RayProcesses(logs, tmp_path / "ray.log", cluster)
    assert processes.logs == logs and processes.membership.name(3) == "server 0"
    processes._take(Began(2))
    assert processes.logs == [*logs[:2], *logs[3:]]
    assert [processes.membership.name(rank) for rank in (1, 2, 3)] == [
        "worker 1", "server 0", "server 1",
    ]  # fmt: skip
    processes._take(Written(2, b"of server 0\n"))
    assert logs[3].read_text().endswith("of server 0\n") and not logs[2].exists()


def test_workers_of_lost_nodes_are_given_time_to_end():
    def place(actor, node):
        return Place(actor=actor, node=node, address="", cpus=(0,))

    former = {0: place("x", "a"), 1: place("y", "b"), 2: place("z", "c")}
    heard = dict.fromkeys("xyz", time.monotonic())
    same_nodes = {index: place("w", former[index].node) for index in former}
    assert seconds_until_ended(former, same_nodes, heard, 13) == 0
    assert 12 < seconds_until_ended(former, same_nodes | {1: place("v", "d")}, heard, 13) <= 13
    fewer = {index: same_nodes[index] for index in (0, 2)}
    assert 12 < seconds_until_ended(former, fewer, heard, 13) <= 13
    assert seconds_until_ended(former, fewer, heard | {"y": 0.0}, 13) == 0


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


@pytest.mark.parametrize(("overrides", "line"), [
    (["cluster=local"], "cluster.min_workers is for cluster=ray"),
    (["cluster=ray"], "train: cluster.min_workers=3 is more than cluster.workers=2"),
    (["cluster=ray", "cluster.workers=4", "cluster.backup=3"], "below cluster.min_workers=3"),
])  # fmt: skip
def test_refused(cli, tmp_path, overrides, line):
    (tmp_path / "own.yaml").write_text(CONF)
    given = ["cluster.workers=2", "cluster.min_workers=3", *overrides]
    if overrides == ["cluster=local"]:
        given[0] = "cluster.workers=3"
    done = cli("train", "conf=own.yaml", *given, cwd=tmp_path)
    assert done.code == 2 and line in done.line
