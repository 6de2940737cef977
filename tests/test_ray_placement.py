"""How long Ray has to place all workers, and what is said then; without Ray."""

import asyncio
import time

import pytest

from tnctl.errors import UserError
from tnctl.launch import ray_placement
from tnctl.launch.ray_actor import Place
from tnctl.launch.ray_messages import Began, Connect, Refused, Written
from tnctl.launch.ray_placement import NoRoom, Placement, seconds_until_ended
from tnctl.launch.ray_processes import RayProcesses
from tnctl.schema import Cluster
from tnctl.training.run import record_workers
from tnctl.training.run_folder import Log


class Remote:
    """The method `place` of an actor, which Ray may not have placed."""

    node = None

    async def remote(self):
        while self.node is None:
            await asyncio.sleep(0.005)
        return Place(actor="", node=self.node, address="", cpus=(0,))


class Actor:
    def __init__(self):
        self.place = Remote()


class Nodes:
    """Instead of Ray: nodes with room for an actor each, all of which are placed, or none."""

    def __init__(self, nodes):
        self.free, self.actors, self.requests = list(nodes), [], []

    def request(self, cpus):
        self.requests.append(list(cpus))
        self.actors = [Actor() for _ in cpus]
        self.place()
        return self.actors

    async def room(self, servers, workers, _):
        nodes = len(self.free) + sum(actor.place.node is not None for actor in self.actors)
        return min(max(nodes - servers, 0), workers)

    def place(self):
        waiting = [actor for actor in self.actors if actor.place.node is None]
        if len(waiting) <= len(self.free):
            for actor in waiting:
                actor.place.node = self.free.pop(0)

    def add(self, node):
        self.free.append(node)
        self.place()

    def lose(self, node):
        for actor in self.actors:
            if actor.place.node == node:
                actor.place.node = None


def placement(nodes, workers, patience=9.0, servers=0, cpus=1, address="auto"):
    """A placement on these nodes, as a string of their names, Ray, and the lines that it says."""
    lines, ray = [], Nodes(nodes)
    connect = Connect(
        address=address, temporary="", workers=workers, servers=servers, patience=patience,
        cpus=cpus, silence=4,
    )  # fmt: skip
    placed = Placement(connect, lines.append)
    placed.request(cpus, ray)
    return placed, ray, lines


def places(placed, *changes):
    """The nodes of all ranks, when these are done to Ray one after the other meanwhile."""

    async def wait():
        waiting = asyncio.ensure_future(placed.places())
        for change in changes:
            await asyncio.sleep(0.12)
            assert not waiting.done()
            change()
        return await asyncio.wait_for(waiting, 10)

    return "".join(place.node for place in asyncio.run(wait()))


def test_a_run_begins_when_all_are_placed_and_continues_when_they_are_again(monkeypatch):
    monkeypatch.setattr(ray_placement, "NOTE_SECONDS", 0.05)
    placed, ray, lines = placement("ab", 3)
    assert places(placed, lambda: ray.add("c")) == "abc"
    ray.lose("b")
    assert places(placed, lambda: ray.add("d")) == "adc"
    waiting = "waiting for Ray, which has not placed "
    shown_by = " workers (CPUs of each: 1): `ray status` shows what it has"
    assert lines == [f"{waiting}3 of 3{shown_by}", f"{waiting}1 of 3{shown_by}"]


@pytest.mark.parametrize(("nodes", "workers", "servers", "line"), [
    ("ab", 3, 0, "3 of 3 workers (CPUs of each: 4) within 0.1 s (cluster.patience), and has room "
                 "for 2 of 3. Give cluster.workers=2"),
    ("", 3, 0, "3 of 3 workers (CPUs of each: 4) within 0.1 s (cluster.patience), and has room "
               "for none. `ray status` shows what it has"),
    ("abc", 2, 2, "2 of 2 workers and 2 of 2 servers (CPUs of each worker: 4, of each server: 1) "
                  "within 0.1 s (cluster.patience), and has room for 1 of 2. Give "
                  "cluster.workers=1"),
])  # fmt: skip
def test_after_patience_a_line_says_how_many_fit(nodes, workers, servers, line):
    placed, _, lines = placement(nodes, workers, 0.1, servers, cpus=4)
    begin = time.monotonic()
    with pytest.raises(NoRoom) as refused:
        places(placed)
    assert str(refused.value) == f"Ray has not placed {line}" and not lines
    assert time.monotonic() - begin >= 0.1


def test_a_ray_of_the_command_itself_has_room_and_is_waited_for():
    placed, ray, _ = placement("", 2, patience=0.01, address=None)
    assert places(placed, lambda: None, lambda: [ray.add(name) for name in "ab"]) == "ab"


def test_servers_are_placed_together_with_the_workers():
    assert placement("abcde", 3, servers=2, cpus=4)[1].requests == [[4, 4, 4, 1, 1]]
    local = placement("abc", 2, servers=1, cpus=None, address=None)[1]
    assert local.requests == [[1, 1, 1]]


def test_servers_may_use_all_cpus_of_their_node():
    def place(node):
        return Place(actor="", node=node, address="", cpus=tuple(range(8)))

    placed, _, _ = placement("", 2, servers=2, cpus=4)
    everything = tuple(range(8))
    shares = placed.shares([place("a"), place("a"), place("a"), place("b")])
    assert shares == {0: (0, 1, 2, 3), 1: (4, 5, 6, 7), 2: everything, 3: everything}


def test_what_the_command_takes_of_its_process_in_ray(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    logs = [tmp_path / f"{name}.log" for name in ("w0", "w1", "s0")]
    processes = RayProcesses(logs, tmp_path / "ray.log", Cluster(start="ray", workers=2, servers=1))
    assert processes.membership.name(2) == "server 0" and not processes.has_begun
    processes._take(Began())
    processes._take(Written(2, b"of server 0\n"))
    assert processes.has_begun and logs[2].read_text().endswith("of server 0\n")
    for code in (1, 75):
        with pytest.raises(UserError, match="no room") as refused:
            processes._take(Refused("no room", code))
        assert refused.value.exit_code == code


def test_workers_of_lost_nodes_are_given_time_to_end():
    def place(actor, node):
        return Place(actor=actor, node=node, address="", cpus=(0,))

    former = [place("x", "a"), place("y", "b")]
    heard = dict.fromkeys("xy", time.monotonic())
    assert seconds_until_ended([], former, heard, 13) == 0
    assert seconds_until_ended(former, [place("v", "a"), place("w", "b")], heard, 13) == 0
    others = [place("v", "a"), place("w", "d")]
    assert 12 < seconds_until_ended(former, others, heard, 13) <= 13
    assert seconds_until_ended(former, others, heard | {"y": 0.0}, 13) == 0


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
