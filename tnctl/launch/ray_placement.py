"""Where Ray places workers and servers: their actors, the nodes of these, the CPUs of each."""

import math
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

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


class Placement:
    """An actor for each worker and dedicated server, by its rank.

    They are a placement group, of which Ray places all or none: two runs with a part of theirs
    would wait for each other for ever. Ray places what the group has lost as a whole, too.
    """

    def __init__(
        self, membership: Membership, cpus: int | None, patience: float, *, is_own: bool
    ) -> None:
        """A Ray of the command itself counts one CPU for each actor, has room for all, and is slow.

        Without `cpus` of each worker the workers of a node share its CPUs.
        """
        self._membership, self._cpus, self._is_own = membership, cpus, is_own
        self._patience = math.inf if is_own else patience
        self.actors: list[Any] = []
        self._group: Any = None
        self._answers: list[Any] = []

    def request(self, *arguments: float) -> None:
        """Ask Ray, to which this process is connected, for the actors: WorkerActor(*arguments)."""
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        cpus = [self.reserved(rank) for rank in range(self._membership.size)]
        self._group = placement_group([{"CPU": reserved} for reserved in cpus], strategy="SPREAD")
        for index, reserved in enumerate(cpus):
            strategy = PlacementGroupSchedulingStrategy(
                placement_group=self._group, placement_group_bundle_index=index
            )
            actor = ray.remote(WorkerActor).options(
                num_cpus=reserved, max_restarts=-1, scheduling_strategy=strategy
            )
            self.actors.append(actor.remote(*arguments))

    def reserved(self, rank: int) -> int:
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
        while missing := self._missing(max(min(next_note, limit) - time.monotonic(), 0.0)):
            now = time.monotonic()
            if now >= limit:
                raise NoRoom(self._no_room(missing))
            if now >= next_note:
                shown_by = "" if self._is_own else f": {SHOWN_BY}"
                say(f"waiting for Ray, which {self._not_placed(missing)}{shown_by}")
                next_note = now + NEXT_NOTE_SECONDS
        return self._found()

    def _missing(self, seconds: float) -> list[int]:
        """The ranks that are not placed, once all are or after some seconds."""
        import ray

        if not self._answers:
            calls = [actor.place.options(max_task_retries=-1) for actor in self.actors]
            self._answers = [call.remote() for call in calls]
        there, _ = ray.wait(self._answers, num_returns=len(self._answers), timeout=seconds)
        return [rank for rank, answer in enumerate(self._answers) if answer not in there]

    def _found(self) -> list[Place]:
        """Where the actors are, when none is missing."""
        import ray

        answers, self._answers = self._answers, []
        places: list[Place] = ray.get(answers)
        return places

    def _room(self) -> int:
        """For how many workers there is room beside servers; all actors are given back before.

        What is requested instead ends with this connection.
        """
        from ray.util.placement_group import (
            placement_group,
            placement_group_table,
            remove_placement_group,
        )

        remove_placement_group(self._group)  # which ends its actors
        workers, servers = self._membership.workers, self._membership.servers
        requested = [[{"CPU": CPUS_OF_SERVER}] * servers] if servers else []
        requested += [[{"CPU": self.reserved(0)}]] * workers
        groups = list(map(placement_group, requested))
        time.sleep(TO_PLACE)
        placed = [placement_group_table(group)["state"] == "CREATED" for group in groups]
        return sum(placed[-workers:]) if all(placed[:-workers]) else 0

    def _no_room(self, missing: Sequence[int]) -> str:
        """The line about actors that were not placed in time."""
        room, workers = self._room(), self._membership.workers
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
        cpus = {rank: place.cpus for rank, place in enumerate(places)}
        ranks_of_node: dict[str, list[int]] = defaultdict(list)
        for rank, place in enumerate(places[: self._membership.workers]):
            ranks_of_node[place.node].append(rank)
        for ranks in ranks_of_node.values():
            on_node = cpus_on_node(cpus[ranks[0]], len(ranks), self._cpus)
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
    parts = random.sample(range(len(cpus) // of_each), workers)
    return [tuple(cpus[part * of_each : (part + 1) * of_each]) for part in sorted(parts)]
