"""The parameters that a worker owns in hybrid training: dense weights in step, rows on arrival."""

from collections.abc import Sequence

from tnctl.cluster.messages.exchange import Keys, Push
from tnctl.cluster.messages.replies import Owned, Reply
from tnctl.cluster.owners.async_owned import RowsOnArrival
from tnctl.cluster.owners.owned import OwnedPart
from tnctl.model.parameter_tables import MovingStatistics, ParameterTables


class DensePart(OwnedPart):
    """The slice of the dense weights that one worker owns.

    It is changed only while this worker waits for it, so it is that of the model itself. A step
    sets the learning rates of the rows, too, whose pushes of the same step follow.
    """

    def __init__(
        self,
        model: ParameterTables,
        rank: int,
        workers: int,
        steps: int,
        moving: MovingStatistics,
        servers: int = 0,
    ) -> None:
        """`steps` were trained before. `moving` are all moving statistics."""
        super().__init__(model, rank, workers, steps, moving, servers)
        self._pulls, self._trained = [], []  # what steps have of tables

    def end_step(self) -> None:
        self.steps += 1

    def pull(self, _: Sequence[Sequence[Keys]], replies: Sequence[Reply]) -> None:
        """Fill the replies with the dense weights."""
        for reply in replies:
            self._read_dense(reply.dense)

    def owned(self) -> list[Owned]:
        return []


class RowPart(RowsOnArrival):
    """The shards of every table that one worker owns, which change while the worker computes.

    Reads return the dense weights too.
    """

    def push_one(self, keys: Sequence[Keys], push: Push, _: float) -> None:
        """Apply the push of one worker. Raises NotFiniteError before anything is changed."""
        with self._model.pool.awake():
            self._add_sums(keys, push)
            self._apply_sums(push)

    def pause(self) -> None:
        """All steps are whole, and the tables are those of the model: nothing is to be done."""
