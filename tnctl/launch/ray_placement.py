"""Where Ray places workers and servers: their actors, the nodes of these, the CPUs of each."""

import math
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from tnctl.cluster.joining.assignment import LOOPBACK
from tnctl.cluster.joining.membership import Membership
from tnctl.launch.ray_actor import Place, WorkerActor
from tnctl.progress import say
from tnctl.system import shares

NOTE_SECONDS = 20.0  # after which a line says that workers are not placed yet
NEXT_NOTE_SECONDS = 60.0
TO_PLACE = 5.0  # seconds that Ray has to place what it has room for
SHOWN_BY = "`ray status` shows what it has"
CPUS_OF_SERVER = 1  # that Ray reserves: it works while the workers wait


class NoRoom(Exception):
    """Ray has not placed all workers in time: a line says for how many it has room."""


class Actors(Protocol):
    """The actors that Ray is asked for, by their ranks."""

    def request(self, cpus: Sequence[int]) -> None:
        """Ask for an actor for each of these numbers of CPUs: all of them are placed, or none."""

    def missing(self, seconds: float) -> list[int]:
        """Those that are not placed, once all are or after some seconds."""

    def places(self) -> list[Place]:
        """Where they are, when none is missing."""

    def room(self, servers: int, workers: int, cpus: int) -> int:
        """For how many workers, at most so many, of so many CPUs there is room beside servers.

        All actors are given back before.
        """


class ActorGroup:
    """The actors of a connection to Ray, in a placement group."""

    def __init__(self, lease: float, silence: float) -> None:
        """`lease` and `silence` are those of a WorkerActor."""
        self.actors: list[Any] = []
        self._arguments = lease, silence
        self._group: Any = None
        self._asked: list[Any] = []

    def request(self, cpus: Sequence[int]) -> None:
        """Ask for an actor for each of these numbers of CPUs: all of them are placed, or none."""
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self._group = placement_group([{"CPU": reserved} for reserved in cpus], strategy="SPREAD")
        actor_class = ray.remote(WorkerActor)
        for index, reserved in enumerate(cpus):
            strategy = PlacementGroupSchedulingStrategy(
                placement_group=self._group, placement_group_bundle_index=index
            )
            options = actor_class.options(
                num_cpus=reserved, max_restarts=-1, scheduling_strategy=strategy
            )
            self.actors.append(options.remote(*self._arguments))

    def missing(self, seconds: float) -> list[int]:
        """Those that are not placed, once all are or after some seconds."""
        import ray

        if not self._asked:
            asking = [actor.place.options(max_task_retries=-1) for actor in self.actors]
            self._asked = [call.remote() for call in asking]
        there, _ = ray.wait(self._asked, num_returns=len(self._asked), timeout=seconds)
        return [rank for rank, answer in enumerate(self._asked) if answer not in there]

    def places(self) -> list[Place]:
        """Where they are, when none is missing."""
        import ray

        asked, self._asked = self._asked, []
        places: list[Place] = ray.get(asked)
        return places

    def room(self, servers: int, workers: int, cpus: int) -> int:
        """For how many workers, at most so many, of so many CPUs there is room beside servers.

        All actors are given back before. What is requested instead ends with this connection.
        """
        from ray.util.placement_group import (
            placement_group,
            placement_group_table,
            remove_placement_group,
        )

        remove_placement_group(self._group)  # which ends its actors
        requested = [[{"CPU": CPUS_OF_SERVER}] * servers] if servers else []
        groups = list(map(placement_group, [*requested, *[[{"CPU": cpus}]] * workers]))
        time.sleep(TO_PLACE)
        placed = [placement_group_table(group)["state"] == "CREATED" for group in groups]
        return sum(placed[len(requested) :]) if all(placed[: len(requested)]) else 0


class Placement:
    """An actor for each worker and dedicated server, by its rank.

    They are a group, of which Ray places all or none: two runs with a part of theirs would wait for
    each other for ever. Ray places what the group has lost as a whole, too.
    """

    def __init__(
        self,
        group: Actors,
        membership: Membership,
        cpus: int | None,
        patience: float,
        *,
        is_own: bool,
    ) -> None:
        """Ask Ray for the actors, those of workers each with so many CPUs; the caller is connected.

        A Ray of the command itself counts one CPU for each actor, has room for all, and is only
        slow. Without `cpus` the workers of a node share its CPUs.
        """
        self._group, self._membership, self._cpus = group, membership, cpus
        self._is_own, self._patience = is_own, math.inf if is_own else patience
        group.request([self._reserved(rank) for rank in range(membership.size)])

    def _reserved(self, rank: int) -> int:
        """The CPUs that Ray reserves for an actor."""
        if self._membership.is_server(rank):
            return CPUS_OF_SERVER
        return 1 if self._is_own or self._cpus is None else self._cpus

    def places(self) -> list[Place]:
        """Where the actors run, by rank, once Ray has placed all of them.

        Says when that takes long. Raises NoRoom when it takes longer than `patience`.
        """
        begin = time.monotonic()
        next_note, limit = begin + NOTE_SECONDS, begin + self._patience
        while missing := self._group.missing(max(min(next_note, limit) - time.monotonic(), 0.0)):
            now = time.monotonic()
            if now >= limit:
                raise NoRoom(self._no_room(missing))
            if now >= next_note:
                shown_by = "" if self._is_own else f": {SHOWN_BY}"
                say(f"waiting for Ray, which {self._not_placed(missing)}{shown_by}")
                next_note = now + NEXT_NOTE_SECONDS
        return self._group.places()

    def _no_room(self, missing: Sequence[int]) -> str:
        """The line about actors that were not placed in time."""
        workers, servers = self._membership.workers, self._membership.servers
        room = self._group.room(servers, workers, self._reserved(0))
        way = f"for {room} of {workers}. Give cluster.workers={room}"
        if room == 0:
            way = f"for none. {SHOWN_BY}"
        elif room == workers:
            way = "for all now. Run the same command again"
        within = f"within {self._patience:g} s (cluster.patience)"
        return f"Ray {self._not_placed(missing)} {within}, and has room {way}"

    def _not_placed(self, missing: Sequence[int]) -> str:
        """Which actors Ray has not placed, and the CPUs that it reserves for each."""
        of_all = {"workers": self._membership.workers, "servers": self._membership.servers}
        servers = sum(map(self._membership.is_server, missing))
        counts = {"workers": len(missing) - servers, "servers": servers}
        words = [f"{count} of {of_all[kind]} {kind}" for kind, count in counts.items() if count]
        line = f"has not placed {' and '.join(words)}"
        if self._is_own:
            return line
        cpus = f"CPUs of each: {self._cpus}"
        if self._membership.servers:
            cpus = f"CPUs of each worker: {self._cpus}, of each server: {CPUS_OF_SERVER}"
        return f"{line} ({cpus})"

    def shares(self, places: Sequence[Place]) -> dict[int, tuple[int, ...]]:
        """The CPUs of each rank, with the places in the order of the ranks.

        Workers of a node share its CPUs; servers may use all, for they work in turns.
        """
        workers = len(places) - self._membership.servers
        cpus = {rank: place.cpus for rank, place in enumerate(places) if rank >= workers}
        ranks_of_node: dict[str, list[int]] = defaultdict(list)
        for rank, place in enumerate(places[:workers]):
            ranks_of_node[place.node].append(rank)
        for ranks in ranks_of_node.values():
            on_node = cpus_on_node(places[ranks[0]].cpus, len(ranks), self._cpus)
            cpus.update(zip(ranks, on_node, strict=True))
        return cpus


def cpus_of_each(nodes: Iterable[int], workers: int, servers: int = 0) -> int:
    """How many CPUs each worker can have on nodes with so many, beside servers: at least 1."""
    counts = list(nodes)
    for cpus in range(max(counts, default=1), 1, -1):
        left = sum(counts) - cpus * workers  # for servers: Ray places the largest first
        if sum(count // cpus for count in counts) >= workers and left >= servers:
            return cpus
    return 1


def cpus_on_node(cpus: Sequence[int], workers: int, of_each: int | None) -> list[tuple[int, ...]]:
    """The CPUs of each of the workers of one node that may use `cpus`.

    Ray counts CPUs and assigns none. When the workers use fewer than the node has, which ones is
    chosen at random, for other runs on the node choose too.
    """
    if of_each is None or of_each * workers >= len(cpus):
        return shares(cpus, workers)
    parts = len(cpus) // of_each
    parts_used = sorted(random.sample(range(parts), workers))
    return [tuple(cpus[part * of_each : (part + 1) * of_each]) for part in parts_used]


def hosts_of(places: Sequence[Place]) -> list[str]:
    """The address that each worker listens on: of one machine only where all are on one."""
    if len({place.node for place in places}) == 1:
        return [LOOPBACK] * len(places)
    return [place.address for place in places]


def seconds_until_ended(
    former: Sequence[Place], places: Sequence[Place], heard: Mapping[str, float], lease: float
) -> float:
    """How long to wait until workers have ended whose nodes Ray could not reach any more.

    `former` are the places of the generation before, by rank as `places`, or empty. `heard` says
    when each actor of them has answered last, by its name: its worker lives at most `lease` seconds
    longer.
    """
    ends = [
        heard[earlier.actor] + lease
        for earlier, later in zip(former, places, strict=False)
        if earlier.actor in heard and later.node != earlier.node
    ]
    return max([0.0, *(end - time.monotonic() for end in ends)])
