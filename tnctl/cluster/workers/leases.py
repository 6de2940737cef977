"""The units of a pass in asynchronous training: each is read by the worker that asks for it next.

So a fast worker reads more of them than a slow one. Nothing of this is recorded: a checkpoint has
the units that are done and how far others are, and the rest is leased again.
"""

import threading
from collections import deque
from collections.abc import Iterable, Iterator

from tnctl.cluster.messages import commands
from tnctl.cluster.node import Node
from tnctl.data.unit_records import Remainder


class Leases:
    """What is left of a pass, on rank 0."""

    def __init__(self, node: Node) -> None:
        self._lock = threading.Lock()
        self._left: deque[Remainder] = deque()
        node.route(Leases.lease_unit, commands.answering(self))

    def renew(self, remainders: Iterable[Remainder]) -> None:
        """Lease these from now on."""
        with self._lock:
            self._left = deque(remainders)

    def next(self) -> Remainder | None:
        """The next unit, or what is left of it; None when all are leased."""
        with self._lock:
            return self._left.popleft() if self._left else None

    @commands.command
    def lease_unit(self) -> Remainder | None:
        """The same for another worker."""
        return self.next()

    def __iter__(self) -> Iterator[Remainder]:
        """Rank 0's own units, each taken when the one before it is read."""
        return iter(self.next, None)


def leased_from(node: Node) -> Iterator[Remainder]:
    """On another rank: units from rank 0, each requested when the one before it is read.

    The thread that reads ahead waits for the answer, while there are batches to be trained.
    """
    while True:
        reply = node.command(0, Leases.lease_unit).result()
        remainder = commands.result(Leases.lease_unit, reply)
        if remainder is None:
            return
        yield remainder
