"""Rank 0's calls of commands: of methods of all members of the cluster, and of its own."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.cluster.messages import commands
from tnctl.cluster.messages.commands import Given, Method, Result
from tnctl.cluster.workers.worker import Worker


class Cluster:
    """All processes of a cluster: `worker` is the one of this process.

    `members` are the ranks of all, `workers` of those that train, `others` of these without rank 0,
    and `writers` of those that own rows.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker, self.node = worker, worker.node
        membership = self.node.membership
        self.members, self.writers = range(membership.size), membership.writers
        self.workers = range(membership.workers)
        self.others = self.workers[1:]

    def send(
        self, method: Method[Any, Result], given: Mapping[int, Iterable[Any]]
    ) -> list[Callable[[], Result]]:
        """Request a command of some ranks, each with arguments of its own; what waits for each.

        What is given to rank 0 is done when its result is waited for. Errors of others are those
        that end the run.
        """
        return [self._sent(rank, method, arguments) for rank, arguments in given.items()]

    def _sent(
        self, rank: int, method: Method[Any, Result], arguments: Iterable[Any]
    ) -> Callable[[], Result]:
        if rank == self.node.rank:
            return partial(getattr(self.worker, method.__name__), *arguments)
        reply = self.node.command(rank, method, *arguments)
        return lambda: commands.result(method, reply.result())

    def each(
        self,
        ranks: Iterable[int],
        method: Method[Given, Result],
        *args: Given.args,
        **kwargs: Given.kwargs,
    ) -> list[Result]:
        """Call a method of each of some ranks, at the same time; the results in their order."""
        given = commands.COMMANDS[method.__name__].positional(*args, **kwargs)
        return [wait() for wait in self.send(method, dict.fromkeys(ranks, given))]

    def each_key(
        self, method: Method[Any, Result], owners: NDArray[np.int64], most: int, *given: Any
    ) -> Iterator[tuple[NDArray[np.int64], Result]]:
        """Call a method of the owners of n keys; the places of some keys of one, and its result.

        `owners` [n] has the ranks. Each is given what is in `given`, of arrays [n] its part.
        `most` keys of all are looked up at a time.
        """
        for first in range(0, len(owners), most):
            part = owners[first : first + most]
            places = {
                rank: first + np.flatnonzero(part == rank) for rank in np.unique(part).tolist()
            }
            of_ranks = {
                rank: [each[at] if isinstance(each, np.ndarray) else each for each in given]
                for rank, at in places.items()
            }
            for at, wait in zip(places.values(), self.send(method, of_ranks), strict=True):
                yield at, wait()

    def rows(
        self, method: Method[Any, Any], owners: NDArray[np.int64], most: int, columns: int,
        *given: Any,
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:  # fmt: skip
        """As `each_key`, of a method that returns rows and which are known: all of them.

        float32 [n, columns], and bool [n].
        """
        rows, known = np.zeros((len(owners), columns), np.float32), np.zeros(len(owners), np.bool_)
        for places, (floats, are_known) in self.each_key(method, owners, most, *given):
            rows[places] = floats.reshape(len(places), columns)
            known[places] = are_known.reshape(len(places))
        return rows, known

    def call(
        self, rank: int, method: Method[Given, Result], *args: Given.args, **kwargs: Given.kwargs
    ) -> Result:
        """Call a method of one member."""
        [result] = self.each([rank], method, *args, **kwargs)
        return result
