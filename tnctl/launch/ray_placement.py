"""Where Ray places the workers of a run: their actors, the nodes of these, and the CPUs of each."""

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tnctl.cluster.joining.assignment import LOOPBACK
from tnctl.cpu_shares import shares
from tnctl.launch import ray_messages as messages
from tnctl.launch.ray_actor import Place, WorkerActor

NOTE_SECONDS = 20.0  # after which a line says that workers are not placed yet
NEXT_NOTE_SECONDS = 60.0
RETURN_SECONDS = 0.5  # for the answers of workers that were left out, and may be placed by now
LONGEST_WAIT = 1.0  # seconds between looks at the time


class Placement:
    """An actor for each worker, of which those that Ray has placed take part in a generation.

    With `min_workers` a generation begins with fewer workers when Ray has not placed all of them
    within `patience`. An actor that was left out is not waited for again; it takes part from the
    first generation on at whose start Ray has placed it.
    """

    def __init__(self, connect: messages.Connect, say: Callable[[str], None]) -> None:
        self._is_own = connect.address is None
        self._workers, self._min = connect.workers, connect.min_workers
        self._patience, self._say = connect.patience, say
        self._cpus: int | None = None
        self._actors: list[Any] = []
        self._members: set[int] = set(range(connect.workers))

    def request(self, cpus: int | None, lease: float, silence: float) -> None:
        """Ask Ray for the actors, each with so many CPUs; the caller is connected.

        A Ray of the command itself counts one CPU for each actor. Without `cpus` the workers of a
        node share its CPUs.
        """
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self._cpus = cpus
        reserved = 1 if self._is_own or cpus is None else cpus
        bundle = {"CPU": reserved}
        # All workers that there must be are placed, or none: two runs with a part of theirs would
        # wait for each other for ever.
        groups = [placement_group([bundle] * self._min, strategy="SPREAD")]
        groups += [
            placement_group([bundle], strategy="SPREAD") for _ in range(self._min, self._workers)
        ]
        bundles = [(groups[0], index) for index in range(self._min)]
        bundles += [(group, 0) for group in groups[1:]]
        actor_class = ray.remote(WorkerActor)
        for group, index in bundles:
            options = {
                "num_cpus": reserved,
                "max_restarts": -1,
                "max_task_retries": -1,
                "scheduling_strategy": PlacementGroupSchedulingStrategy(
                    placement_group=group, placement_group_bundle_index=index
                ),
            }
            self._actors.append(actor_class.options(**options).remote(lease, silence))

    def actor(self, index: int) -> Any:
        return self._actors[index]

    async def places(self) -> dict[int, Place]:
        """Where the actors of a generation run, by the index of the actor, in ascending order.

        Says when that takes long, and when there are more or fewer of them than before.
        """
        answers = [asyncio.ensure_future(actor.place.remote()) for actor in self._actors]
        await self._wait([answers[index] for index in sorted(self._members)])
        left_out = [answer for answer in answers if not answer.done()]
        if left_out:
            await asyncio.wait(left_out, timeout=RETURN_SECONDS)
        for answer in answers:
            if not answer.done():
                answer.cancel()
        places = {
            index: answer.result()
            for index, answer in enumerate(answers)
            if answer.done() and not answer.cancelled()
        }
        if len(places) != len(self._members):
            self._say(
                f"Ray has placed {len(places)} of {self._workers} workers: all start with "
                f"{len(places)} (cluster.min_workers={self._min})"
            )
        self._members = set(places)
        return places

    async def _wait(self, answers: Sequence[asyncio.Future[Place]]) -> None:
        """Wait for all of them; after `patience` for at least `min_workers`."""
        begin = time.monotonic()
        next_note = NOTE_SECONDS
        while missing := sum(not answer.done() for answer in answers):
            seconds = time.monotonic() - begin
            if seconds >= self._patience and len(answers) - missing >= self._min:
                return
            if seconds >= next_note:
                self._say(self._waiting(missing, len(answers)))
                next_note = seconds + NEXT_NOTE_SECONDS
            waits = [next_note, self._patience] if self._patience > seconds else [next_note]
            timeout = min(LONGEST_WAIT, *(limit - seconds for limit in waits))
            await asyncio.wait(answers, timeout=timeout)

    def _waiting(self, missing: int, workers: int) -> str:
        line = f"waiting for Ray, which has not placed {missing} of {workers} workers"
        if not self._is_own:
            line += f" (CPUs of each: {self._cpus}): `ray status` shows what it has"
        return line

    def shares(self, places: Sequence[Place]) -> dict[int, tuple[int, ...]]:
        """The CPUs of each rank, with the places in the order of the ranks."""
        ranks_of_node: dict[str, list[int]] = defaultdict(list)
        for rank, place in enumerate(places):
            ranks_of_node[place.node].append(rank)
        cpus: dict[int, tuple[int, ...]] = {}
        for ranks in ranks_of_node.values():
            on_node = cpus_on_node(places[ranks[0]].cpus, len(ranks), self._cpus)
            cpus.update(zip(ranks, on_node, strict=True))
        return cpus


def cpus_of_each(nodes: Iterable[int], workers: int) -> int:
    """How many CPUs each worker can have on nodes with so many: at least 1."""
    counts = list(nodes)
    for cpus in range(max(counts, default=1), 1, -1):
        if sum(count // cpus for count in counts) >= workers:
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
