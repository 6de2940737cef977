"""What every worker does of hybrid training: a step with all others, rows requested ahead."""

from collections import deque
from collections.abc import Iterator

from tnctl.cluster.messages.work import COMPUTING, READING
from tnctl.cluster.owners.hot_keys import HotKeys
from tnctl.cluster.owners.owning import hybrid_owner
from tnctl.cluster.workers.hybrid_remote import HybridParameters
from tnctl.cluster.workers.remote import Paused
from tnctl.cluster.workers.share import Share
from tnctl.data.batches import Batch
from tnctl.data.unit_records import Progress
from tnctl.model.parameters import moving_statistics


class HybridShare(Share):
    """The part that one worker has in the hybrid training of a model."""

    parameters: HybridParameters

    def _join(self, steps: int) -> None:
        model, node = self.model, self.node
        self.parameters = HybridParameters(model, node, self.main_label)
        self.parameters.steps = steps
        self._requested: deque[tuple[Batch, Progress]] = deque()
        if self.answers:
            moving = moving_statistics(model)
            self.owned, self._rows, owner = hybrid_owner(
                self.conf.cluster, model, node, steps, moving
            )
            self.hybrid_owner, self.owner = owner, owner.dense
            node.serve_owner(owner)

    @property
    def hot_keys(self) -> HotKeys:
        return self._rows.hot_keys

    def _train(self, rate_factor: float, *, drain: bool = False) -> bool:
        """Take part in a step. The batch after its own is the last one that is requested.

        With `drain` no worker requests that one, and nothing is read.
        """
        parameters = self.parameters
        parameters.laps.lap(COMPUTING)
        # Not when rank 0 has drained the training: it pauses next.
        may_request = parameters.any_next and not drain
        has_next = may_request and self.has_batches(2 - len(self._requested))
        parameters.laps.lap(READING)
        has_batch = bool(self._requested or (may_request and self._waiting))
        batch = [*self._requested, *self._waiting][0][0] if has_batch else None
        parameters.exchange_dense(batch, rate_factor, has_next=has_next, drain=drain)
        if batch is not None and not self._requested:
            self._request()
        if has_next and parameters.any_next:
            self._request()
        else:
            parameters.end_requests()
        if batch is None:
            return False
        batch, progress = self._requested.popleft()
        self.step.rate_factor = rate_factor
        result = self.step(batch)
        parameters.add_result(result.loss, result.logits[:, self.main_label])
        self._completed.extend(progress.completed)
        self._progress = progress
        return True

    def _request(self) -> None:
        """Request the rows of the next batch that was read; push those that are kept."""
        batch, progress = self._waiting.pop(0)
        self.parameters.request(batch)
        self._requested.append((batch, progress))

    def stop(self) -> None:
        """Rank 0: let all train the batches whose rows are requested, and push what is kept."""
        rate_factor = self.parameters.step_rate
        if self.parameters.any_next:
            self._train(rate_factor, drain=True)
        self.parameters.exchange_dense(None, rate_factor, pause=True)
        self.parameters.finish()

    def train_until_pause(self) -> Iterator[None]:
        self.parameters.laps.restart()
        self.parameters.start()
        try:
            while True:
                self.train(1.0)  # owners take rank 0's factor
                yield
        except Paused:
            self.parameters.finish()
