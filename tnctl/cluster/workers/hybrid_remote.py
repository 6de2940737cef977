"""The parameters of a cluster in hybrid training, as a worker sees them (hybrid_owner.py)."""

from tnctl.cluster.messages.exchange import Sizes, new_exchange
from tnctl.cluster.messages.work import IDLE, WAITING
from tnctl.cluster.owners.hybrid_owner import dense_shape, row_shape
from tnctl.cluster.transport.frames import Kind
from tnctl.cluster.workers.async_remote import AsyncParameters
from tnctl.cluster.workers.owner_traffic import Arrivals, SentExchange
from tnctl.cluster.workers.remote import Paused, Peers
from tnctl.data.batches import Batch
from tnctl.errors import Failure
from tnctl.model.building import Model


class HybridParameters(AsyncParameters):
    """Exchanges dense weights in step with all workers, and requests rows ahead.

    `steps` counts the steps of all. `any_next` says whether some worker had a batch after that of
    the last step; False, too, when rank 0 has drained the training.
    """

    def __init__(self, model: Model, peers: Peers, main_label: int) -> None:
        super().__init__(model, peers, main_label)
        self.any_next = True
        self._dense_shapes = [dense_shape(shape) for shape in self._shapes]
        self._exchange_shapes = [row_shape(shape) for shape in self._shapes]
        self.step_rate = 1.0
        """the rate factor of the step whose gradients are sent next"""

    def exchange_dense(
        self,
        batch: Batch | None,
        rate_factor: float,
        *,
        has_next: bool = False,
        pause: bool = False,
        drain: bool = False,
    ) -> None:
        """Push the dense gradients that are kept, and take part in a step with a batch or without.

        Receives the dense weights. `rate_factor` is that of this step, `has_next` says whether this
        worker has a batch after it. Rank 0 may `pause`, or `drain`: no further batch is requested
        by any worker. Raises Paused for other ranks.
        """
        sent = self._send_dense(batch, has_next=has_next, pause=pause, drain=drain)
        replies = self._replies(sent, IDLE if batch is None and not pause else WAITING)
        first = replies[0]
        if len({(reply.step, reply.rows, reply.paused) for reply in replies}) != 1:
            raise Failure("owners have answered an exchange as parts of different steps")
        self.any_next = first.any_next
        if first.paused and not pause:
            raise Paused
        self._take_dense(replies)
        if first.rows:
            self.step_rate, self.is_settled = rate_factor, False
            if batch is None:
                self.steps += 1

    def resume(self, rate_factor: float) -> None:
        self.any_next = True
        super().resume(rate_factor)

    def start(self) -> None:
        self.any_next = True
        super().start()

    def end_requests(self) -> None:
        """Push the rows that are kept, without a request: none follows before the next pause."""
        if self._pushed is not None or self.has_next:
            self.has_next = False
            self._send_empty()

    def _send_dense(
        self, batch: Batch | None, *, has_next: bool, pause: bool, drain: bool
    ) -> SentExchange:
        # What is kept is sent twice: its rows follow with the next request.
        pushed = self._pushed
        of_push = Sizes(0 if pushed is None else pushed.sizes[0].rows, ())
        of_batch = Sizes(0 if batch is None else batch.rows, ())
        futures = []
        for owner, shape in enumerate(self._dense_shapes):
            body, exchange = new_exchange(
                shape,
                self.steps + 1,
                of_push,
                of_batch,
                rate_factor=self.step_rate,
                loss=0.0 if pushed is None else pushed.loss,
                pause=pause,
                has_next=has_next,
                drain=drain,
            )
            if len(exchange.work):
                exchange.work[:] = self._take_work()
            if pushed is not None:
                self._write_dense(owner, pushed, exchange.push)
            futures.append(self._peers.request(self._owners[owner], Kind.DENSE, body))
            self._traffic.sent(owner, 0, len(body))
        sizes = [of_batch] * len(futures)
        return SentExchange(self._dense_shapes, sizes, futures, Arrivals(futures))
