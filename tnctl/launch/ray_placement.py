"""Where Ray places workers and servers: their actors, the nodes of these, the CPUs of each."""

import asyncio
import itertools
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, Protocol

from tnctl.cluster.joining.assignment import LOOPBACK
from tnctl.cluster.joining.membership import Membership
from tnctl.cpu_shares import shares
from tnctl.launch import ray_messages as messages
from tnctl.launch.ray_actor import Place, WorkerActor

NOTE_SECONDS = 20.0  # after which a line says that workers are not placed yet
NEXT_NOTE_SECONDS = 60.0
RETURN_SECONDS = 0.5  # for the answers of workers that were left out, and may be placed by now
CPUS_OF_SERVER = 1  # that Ray reserves: it works while the workers wait
TO_PLACE_OTHERS = 10.0  # seconds, at most `patience`, from when those that there must be are there
LONGEST_WAIT = 1.0  # seconds between looks at the time


class Groups(Protocol):
    """Actors that Ray is asked for."""

    def request(self, cpus: Sequence[int]) -> list[Any]:
        """Ask for an actor for each of these numbers of CPUs: all of them are placed, or none."""

    def withdraw(self) -> None:
        """Give back all actors, placed or not."""


class ActorGroups:
    """The actors of a connection to Ray, in placement groups."""

    def __init__(self, lease: float, silence: float) -> None:
        """`lease` and `silence` are those of a WorkerActor."""
        self._arguments = lease, silence
        self._groups: list[Any] = []

    def request(self, cpus: Sequence[int]) -> list[Any]:
        """Ask for an actor for each of these numbers of CPUs: all of them are placed, or none."""
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group = placement_group([{"CPU": reserved} for reserved in cpus], strategy="SPREAD")
        self._groups.append(group)
        actor_class = ray.remote(WorkerActor)
        actors = []
        for index, reserved in enumerate(cpus):
            options = {
                "num_cpus": reserved,
                "max_restarts": -1,
                "max_task_retries": -1,
                "scheduling_strategy": PlacementGroupSchedulingStrategy(
                    placement_group=group, placement_group_bundle_index=index
                ),
            }
            actors.append(actor_class.options(**options).remote(*self._arguments))
        return actors

    def withdraw(self) -> None:
        """Give back all actors, placed or not."""
        from ray.util.placement_group import remove_placement_group

        for group in self._groups:  # which ends its actors
            remove_placement_group(group)
        self._groups = []


class Placement:
    """An actor for each worker and dedicated server, by its rank when Ray has placed all of them.

    With `min_workers` a generation begins with fewer workers when Ray has not placed all of them
    within `patience`. An actor that was left out is not waited for again; it takes part from the
    first generation on at whose start Ray has placed it. Servers are never left out.

    The actors that there must be are a group: two runs with a part of theirs would wait for each
    other for ever. The others are requested when Ray has placed it, for on a Ray that grows node by
    node they would take its room. Ray places what a group has lost as a whole, too. So when it has
    fewer than there must be after a loss, all are requested anew.
    """

    def __init__(self, connect: messages.Connect, say: Callable[[str], None]) -> None:
        self._is_own = connect.address is None
        self._workers, self._min = connect.workers, connect.min_workers
        self._membership = Membership(connect.workers, connect.servers)
        self._patience, self._say = connect.patience, say
        self._cpus: int | None = None
        self._groups: Groups | None = None
        self._actors: dict[int, Any] = {}  # that Ray was asked for
        self._members: set[int] = set(range(self._membership.size))

    def request(self, cpus: int | None, groups: Groups) -> None:
        """Ask Ray for the actors, those of workers each with so many CPUs; the caller is connected.

        A Ray of the command itself counts one CPU for each actor. Without `cpus` the workers of a
        node share its CPUs.
        """
        self._cpus, self._groups = cpus, groups
        self._request(*range(self._min), *range(self._workers, self._membership.size))

    def _request(self, *indices: int) -> None:
        """Ask Ray for actors, as a group."""
        assert self._groups is not None
        actors = self._groups.request([self._reserved(index) for index in indices])
        self._actors |= zip(indices, actors, strict=True)

    def _reserved(self, index: int) -> int:
        """The CPUs that Ray reserves for an actor."""
        if self._membership.is_server(index):
            return CPUS_OF_SERVER
        return 1 if self._is_own or self._cpus is None else self._cpus

    def actor(self, index: int) -> Any:
        return self._actors[index]

    async def places(self) -> dict[int, Place]:
        """Where the actors of a generation run, by the index of the actor, in ascending order.

        Says when that takes long, and when there are more or fewer of them than before.
        """
        answers = self._answers(self._actors)
        await self._wait(answers)
        left_out = [answer for answer in answers.values() if not answer.done()]
        if left_out:
            await asyncio.wait(left_out, timeout=RETURN_SECONDS)
        places = {
            index: answer.result() for index, answer in sorted(answers.items()) if answer.done()
        }
        for answer in answers.values():
            answer.cancel()
        if len(places) != len(self._members):
            workers = len(places) - self._membership.servers
            self._say(
                f"Ray has placed {workers} of {self._workers} workers: all start with "
                f"{workers} (cluster.min_workers={self._min})"
            )
        self._members = set(places)
        return places

    def _answers(self, indices: Iterable[int]) -> dict[int, asyncio.Future[Place]]:
        """The places of actors, once they are there."""
        return {i: asyncio.ensure_future(self._actors[i].place.remote()) for i in indices}

    async def _wait(self, answers: dict[int, asyncio.Future[Place]]) -> None:
        """Wait for all members; after `patience` for all servers and `min_workers`.

        `answers` are afterwards those of all actors that Ray was asked for.
        """
        begin = time.monotonic()
        next_note, limit = begin + NOTE_SECONDS, begin + self._patience
        while True:
            now, placed = time.monotonic(), _done(answers)
            is_enough, are_all = self._is_enough(placed), len(answers) == self._membership.size
            if is_enough and not are_all:
                others = range(self._min, self._workers)
                for index in others:
                    self._request(index)
                answers |= self._answers(others)
                limit = max(limit, now + min(self._patience, TO_PLACE_OTHERS))
            missing = self._members - placed
            if not missing or (now >= limit and is_enough):
                return
            if now >= limit and are_all and self._min < self._workers:
                self._request_anew(answers)
                limit = now + self._patience
            if now >= next_note:
                self._say(self._waiting(missing))
                next_note = now + NEXT_NOTE_SECONDS
            waits = [next_note, limit] if limit > now else [next_note]
            left = [answer for answer in answers.values() if not answer.done()]
            timeout = min(LONGEST_WAIT, *(until - now for until in waits))
            await asyncio.wait(left, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)

    def _request_anew(self, answers: dict[int, asyncio.Future[Place]]) -> None:
        """Give back all actors, and ask for those that there must be."""
        assert self._groups is not None
        for answer in answers.values():
            answer.cancel()
        answers.clear()
        self._actors = {}
        self._groups.withdraw()
        self.request(self._cpus, self._groups)
        answers |= self._answers(self._actors)

    def _is_enough(self, placed: Set[int]) -> bool:
        """Whether a generation may begin with these actors."""
        servers = sum(map(self._membership.is_server, placed))
        return servers == self._membership.servers and len(placed) - servers >= self._min

    def _waiting(self, missing: Set[int]) -> str:
        """The line about members that are not placed."""
        words = []
        for kind, is_server in (("workers", False), ("servers", True)):
            counts = [
                sum(self._membership.is_server(index) == is_server for index in indices)
                for indices in (missing, self._members)
            ]
            if counts[0]:
                words.append(f"{counts[0]} of {counts[1]} {kind}")
        line = f"waiting for Ray, which has not placed {' and '.join(words)}"
        if not self._is_own:
            cpus = f"CPUs of each: {self._cpus}"
            if self._membership.servers:
                cpus = f"CPUs of each worker: {self._cpus}, of each server: {CPUS_OF_SERVER}"
            line += f" ({cpus}): `ray status` shows what it has"
        return line

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


def cpus_of_each(
    nodes: Iterable[int], workers: int, servers: int = 0, *, at_once: bool = True
) -> int:
    """How many CPUs each worker can have on nodes with so many, beside servers: at least 1.

    `at_once` says that Ray places all in one group; else servers may be placed before workers.
    """
    counts = list(nodes)
    for cpus in range(max(counts, default=1), 1, -1):
        if at_once:  # the largest first: servers take what is left
            left = sum(counts) - cpus * workers
            has_room = sum(count // cpus for count in counts) >= workers and left >= servers
        else:
            has_room = _least_room(counts, cpus, servers) >= workers
        if has_room:
            return cpus
    return 1


def _least_room(nodes: Sequence[int], cpus: int, servers: int) -> int:
    """For how many workers of so many CPUs nodes have room, wherever their servers are."""
    # The servers that it takes until a node has room for one worker less; each further, `cpus`.
    costs = sorted(count % cpus + 1 for count in nodes if count >= cpus)
    fewer = sum(total <= servers for total in itertools.accumulate(costs))
    left = servers - sum(costs[:fewer])
    return sum(count // cpus for count in nodes) - fewer - left // cpus


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


def _done(answers: Mapping[int, asyncio.Future[Place]]) -> set[int]:
    """The indices of actors that have answered."""
    return {index for index, answer in answers.items() if answer.done()}


def hosts_of(places: Sequence[Place]) -> list[str]:
    """The address that each worker listens on: of one machine only where all are on one."""
    if len({place.node for place in places}) == 1:
        return [LOOPBACK] * len(places)
    addresses = [place.address for place in places]
    return [f"[{address}]" if ":" in address else address for address in addresses]


def seconds_until_ended(
    former: Mapping[int, Place],
    places: Mapping[int, Place],
    heard: Mapping[str, float],
    lease: float,
) -> float:
    """How long to wait until workers have ended whose nodes Ray could not reach any more.

    `heard` says when each actor of `former` has answered last, by its name: its worker lives at
    most `lease` seconds longer.
    """
    ends = [
        heard[place.actor] + lease
        for index, place in former.items()
        if place.actor in heard and (index not in places or places[index].node != place.node)
    ]
    return max([0.0, *(end - time.monotonic() for end in ends)])
