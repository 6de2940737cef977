"""An owner in hybrid training: dense weights in step (owner.py), rows as they arrive.

A worker sends two messages to each owner in a step. The first has the dense gradients of batch
k - 1, and is answered with the dense weights when those of all workers are there and applied. Then
it sends the gradients of the rows of batch k - 1 with the keys of batch k + 1, and computes batch k
meanwhile: the rows of k were requested a step earlier.

    worker r   dense k-1 | rows k-1, keys k+1 | compute k | dense k | rows k, keys k+2 | ...

So all are in the same step, and a push of rows is of the step whose dense gradients were applied
last: its worker takes part in the next one only after it, and requests arrive in their order. The
step of the rows is complete when each worker that had a batch in it has pushed; then rows are
evicted, and both clocks agree again. `staleness` of the rows bounds what it does in async_owner.py.

Rank 0 pauses with two messages: with `drain` nobody requests the rows of a further batch, and the
batches whose rows were requested are trained; `pause` ends the last step of the dense weights.
"""

from dataclasses import dataclass, field, replace
from typing import Generic, Protocol

from tnctl.cluster.messages.exchange import Exchange, Shape
from tnctl.cluster.messages.replies import Totals, answer_read, no_totals
from tnctl.cluster.owners.async_owner import AsyncOwner, AsyncParameters, Handle, Pull, WorkerPulls
from tnctl.cluster.owners.owner import OwnedParameters, Owner
from tnctl.cluster.transport.frames import Body, FrameError, Kind


def dense_shape(shape: Shape) -> Shape:
    """What travels in the exchanges of dense weights, of all that travels to an owner."""
    return replace(shape, tables=())


def row_shape(shape: Shape) -> Shape:
    """What travels in the exchanges of rows."""
    return replace(shape, dense=0, figures=False, statistics=0)


class RowParameters(AsyncParameters, Protocol):
    """The rows that an owner owns."""

    def end_step(self) -> None:
        """Count a step whose pushes are applied, and remove rows that are due."""


@dataclass
class RowOwner(AsyncOwner[Handle]):
    """The rows of an owner: its steps are those of the dense weights."""

    parameters: RowParameters
    due: set[int] = field(default_factory=set)
    """the workers whose rows of the dense step that was applied last have not arrived"""

    def _may_read(self, pull: Pull[Handle]) -> bool:
        """The same, but workers are in step: in the warm-up a batch reads what all have written."""
        staleness = 0 if self.parameters.steps < self.warmup_steps else self.staleness
        if self.is_draining or staleness is None:
            return True
        return pull.number <= self.slowest + 1 + staleness

    def _check(self, rank: int, worker: WorkerPulls[Handle], exchange: Exchange) -> None:
        super()._check(rank, worker, exchange)
        if exchange.push.rows and rank not in self.due:
            raise FrameError("an exchange pushes rows of a step whose dense gradients are missing")

    def _take_push(self, worker: WorkerPulls[Handle], exchange: Exchange) -> None:
        if not exchange.push.rows:
            return
        rank = worker.open[0].rank
        super()._take_push(worker, exchange)
        self.due.remove(rank)
        if not self.due:
            self.parameters.end_step()


class HybridOwner(Generic[Handle]):
    """The exchanges and reads of one owner. Errors are those of `Owner` and `AsyncOwner`."""

    def __init__(
        self,
        shape: Shape,
        workers: int,
        dense: OwnedParameters,
        rows: RowParameters,
        rank: int = 0,
        staleness: int | None = None,
        warmup_steps: int = 0,
        *,
        owners: int = 0,
        totals: Totals = no_totals,
    ) -> None:
        """`shape` is of all that travels. `rows` is read, the dense weights too."""
        self.dense = Owner(dense_shape(shape), workers, dense, rank, owners=owners, totals=totals)
        self.rows: RowOwner[Handle] = RowOwner(
            row_shape(shape),
            workers,
            rows,
            staleness,
            warmup_steps,
            totals=totals,
            counts_batches=shape.figures,
        )
        self._shape = shape
        self._handles: dict[int, Handle] = {}

    def exchange(
        self, rank: int, kind: Kind, body: Body, handle: Handle
    ) -> list[tuple[Handle, bytearray]]:
        """Take an exchange of a worker, DENSE or EXCHANGE.

        Returns the replies that can be given now, each with its handle.
        """
        if kind is not Kind.DENSE:
            return self.rows.exchange(rank, body, handle)
        pulled, steps = self.dense.pulled, self.dense.parameters.steps
        answers = self.dense.exchange(rank, body)
        self._handles[rank] = handle
        if self.dense.parameters.steps > steps:
            if self.rows.due:
                raise FrameError(
                    f"step {steps + 1} of the dense weights is complete, and the rows of step "
                    f"{steps} of workers {sorted(self.rows.due)} have not arrived"
                )
            self.rows.due = set(pulled)
        return [
            (self._handles.pop(of), answer)
            for of, answer in enumerate(answers)
            if answer is not None
        ]

    def read(self, rank: int, body: Body) -> bytearray:
        """Answer a read. Refused while workers train, since the rows would be of no one step."""
        if self.dense.is_open or not self.rows.is_paused:
            raise FrameError(f"worker {rank} reads during step {self.dense.parameters.steps + 1}")
        return answer_read(self._shape, rank, body, self.rows.parameters.read)
