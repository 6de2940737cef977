"""The parameters of a cluster in asynchronous training, as a worker sees them.

The rows of the next batch are requested before this one is computed: a message has the gradients of
batch k - 1 and the keys of batch k + 1. So the numbering of two batches is needed at a time: that
of k, whose sums are still to be computed, and that of k + 1. Two sets of workspaces take turns.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import dataclass

from tnctl.cluster.messages.replies import Reply
from tnctl.cluster.messages.work import COMPUTING, IDLE, WAITING
from tnctl.cluster.owners.arrivals import MOST_OPEN
from tnctl.cluster.workers.remote import Peers, RemoteParameters, SentExchange
from tnctl.data.batches import Batch
from tnctl.errors import Failure
from tnctl.model.building import Model
from tnctl.model.parameters import Buffers, Gradients
from tnctl.tables import KeyWorkspace

SECONDS_BETWEEN_LOOKS = 0.2  # whether there was a request to stop, while a pull is held


@dataclass
class _Requested:
    """A batch whose rows were requested."""

    workspaces: list[KeyWorkspace]
    counts: list[list[int]]  # of its keys, by table and owner
    sent: SentExchange


class AsyncParameters(RemoteParameters):
    """Requests the rows of up to two batches ahead; pulls them and pushes in the same order.

    `steps` counts the batches of this worker, `clock` the steps of all, as owner 0 said last.
    `rate_factor` goes with each message; owners take rank 0's.
    """

    def __init__(self, model: Model, peers: Peers, main_label: int) -> None:
        super().__init__(model, peers, main_label)
        self.clock = 0
        self.rate_factor = 1.0
        self._sets = [self._keys, *(self._new_workspaces() for _ in range(MOST_OPEN - 1))]
        self.is_interrupted: Callable[[], bool] | None = None
        """on rank 0: whether there was a request to stop"""
        self._requests = 0  # of rows, since training was resumed
        self._requested: deque[_Requested] = deque()
        self._unanswered: deque[SentExchange] = deque()  # exchanges without keys

    # ---- As a step uses them ---------------------------------------------------

    def request(self, batch: Batch) -> None:
        """Send the push that is kept, and request the rows of a batch."""
        self._use(self._sets[self._requests % MOST_OPEN])
        self._requests += 1
        counts = self._counts = self._number(batch)
        self._rate_factor = self.rate_factor
        sent = self._send(batch, self._requests)
        self._requested.append(_Requested(self._keys, counts, sent))
        self.laps.lap(COMPUTING)

    def pull(self, batch: Batch, buffers: Buffers) -> None:
        """Read the rows of the batch that was requested first into the buffers."""
        requested = self._requested.popleft()
        self.laps.lap(COMPUTING)
        if self.is_interrupted is not None:
            self._wait(requested.sent, self.is_interrupted)
            self.laps.lap(WAITING)
        replies = self._replies(requested.sent, WAITING)
        self._use(requested.workspaces)
        self._counts = requested.counts
        self._take(replies)
        self._fill(batch, buffers, replies)

    def push(self, batch: Batch, gradients: Gradients, rate_factor: float) -> None:
        """Keep the gradients of the batch that was pulled last for the next message."""
        super().push(batch, gradients, rate_factor)
        self.is_settled = False

    # ---- Without a batch -------------------------------------------------------

    def send_push(self) -> None:
        """Send the push that is kept, if there is one, without keys."""
        if self._pushed is not None:
            self._send_empty()

    def resume(self, rate_factor: float) -> None:
        """Rank 0, after a pause: let owners answer from now on, at this rate."""
        self.rate_factor, self._requests = rate_factor, 0
        self.has_next = True
        self._send_empty()
        self._answered()

    def start(self) -> None:
        """Another worker, when it begins to train after a pause."""
        self._requests, self.has_next = 0, True

    def refresh(self) -> None:
        """Ask owners for the clock; rank 0 tells them the rate."""
        self._send_empty()
        self._answered()

    def drain(self) -> None:
        """Rank 0: let all workers request no further batch."""
        self._send_empty(drain=True)
        self._answered()

    def finish(self) -> None:
        """Report that no further batch is requested, and wait until all that was sent is applied.

        Rows must not be requested that are not pulled.
        """
        assert not self._requested
        self.has_next = False
        self._send_empty()
        self._answered()

    def pause(self) -> None:
        """Rank 0, when all workers have finished: the model is that of the clock from now on."""
        self._send_empty(pause=True)
        replies = self._answered()
        steps = {reply.steps for reply in replies}
        if len(steps) != 1:
            raise Failure(f"owners have applied different numbers of steps: {sorted(steps)}")
        self.is_settled = True

    # ---- The parts -------------------------------------------------------------

    def _wait(self, sent: SentExchange, is_interrupted: Callable[[], bool]) -> None:
        """Wait for replies, which may be held for a worker that reads nothing any more.

        After a request to stop owners are asked to hold no pull.
        """
        while not sent.is_answered:
            wait(sent.futures, SECONDS_BETWEEN_LOOKS)
            if not sent.is_answered and is_interrupted():
                self._send_empty(drain=True)
                return

    def _send_empty(self, *, pause: bool = False, drain: bool = False) -> None:
        self._rate_factor = self.rate_factor
        while self._unanswered and self._unanswered[0].is_answered:
            self._take(self._replies(self._unanswered.popleft(), IDLE))
        self._unanswered.append(self._send(None, self._requests, pause=pause, drain=drain))

    def _answered(self) -> list[Reply]:
        """Wait for the replies to all messages without keys; those to the last one."""
        replies: list[Reply] = []
        while self._unanswered:
            replies = self._replies(self._unanswered.popleft(), IDLE)
        self._take(replies)
        return replies

    def _take(self, replies: list[Reply]) -> None:
        self.last = replies
        self.clock = max(self.clock, replies[0].steps)
