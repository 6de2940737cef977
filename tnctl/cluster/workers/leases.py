"""The units of a pass in asynchronous training: each is read by the worker that asks for it next.

So a fast worker reads more of them than a slow one. Nothing of this is recorded: a checkpoint has
the units that are done and how far others are, and the rest is leased again.
"""

import threading
from collections.abc import Iterable, Iterator

from tnctl.cluster.messages import commands
from tnctl.cluster.node import Node
from tnctl.data.unit_records import Remainder


class Leases:
    """What is left of a pass, on rank 0. As an iterator: its own units, each when it needs one."""

    def __init__(self, node: Node) -> None:
        self._lock = threading.Lock()
        self.renew([])
        node.route(Leases.lease_unit, commands.answering(self))

    def renew(self, remainders: Iterable[Remainder]) -> None:
        """Lease these from now on."""
        self._left = iter(list(remainders))

    @commands.command
    def lease_unit(self) -> Remainder | None:
        """The next unit, or what is left of it; None when all are leased."""
        with self._lock:
            return next(self._left, None)

    def __iter__(self) -> Iterator[Remainder]:
        return iter(self.lease_unit, None)


def leased_from(node: Node) -> Iterator[Remainder]:
    """On another rank: units from rank 0, each requested when the one before it is read.

    The thread that reads ahead waits for the answer, while there are batches to be trained.
    """

    def lease() -> Remainder | None:
        return commands.result(Leases.lease_unit, node.command(0, Leases.lease_unit).result())

    return iter(lease, None)
