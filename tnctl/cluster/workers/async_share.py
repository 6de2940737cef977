"""What every worker does of asynchronous training: batches as they come, units as it needs them."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from tnctl.cluster.messages import commands
from tnctl.cluster.messages.work import COMPUTING, READING
from tnctl.cluster.node import Node
from tnctl.cluster.owners.arrivals import MOST_OPEN, Arrivals
from tnctl.cluster.owners.owned import ArrivingPart
from tnctl.cluster.workers.async_remote import AsyncParameters
from tnctl.cluster.workers.leases import leased_from
from tnctl.cluster.workers.share import NextOf, Share
from tnctl.data.batches import Batch
from tnctl.data.unit_records import Progress, Remainder
from tnctl.documents import Count
from tnctl.model.building import Model
from tnctl.schema import Conf

SECONDS_BETWEEN_LOOKS = 0.1  # whether training drains, while there is no batch


class AsyncShare(Share):
    """The part that one worker has in the asynchronous training of a model."""

    parameters: AsyncParameters
    owned: ArrivingPart
    owner: Arrivals[Any]

    def _join(self, steps: int) -> None:
        model, node = self.model, self.node
        self.parameters = AsyncParameters(model, node, self.main_label)
        self.parameters.steps = self.parameters.clock = steps
        self._trainings = self._drained = 0
        self._requested: deque[tuple[Batch, Progress]] = deque()
        self._has_ended = False  # whether there is no batch to be requested any more
        if self.answers:
            self._own(steps)
        else:
            node.route(AsyncShare.drain, commands.answering(self))

    @property
    def is_draining(self) -> bool:
        """Whether no more batches are to be pulled before the next pause."""
        if self.answers:
            return self.owner.is_draining
        return self._drained >= self._trainings

    @commands.command
    def drain(self, training: Count) -> None:
        """To a worker that owns nothing: pull no more batches of its n-th training."""
        self._drained = training

    @property
    def steps(self) -> int:
        """The steps of all workers, as far as this one knows."""
        return self.parameters.clock

    def remainders(self, _: list[Remainder]) -> Iterable[Remainder]:
        """What another rank than 0 reads of a pass: units that it takes when it needs them."""
        return leased_from(self.node)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to be trained before the next pause."""
        return not self._requested and (self._has_ended or self.is_draining)

    def train(self, rate_factor: float) -> bool:
        """Train the next batch; False when there was none within 0.1 s."""
        self.parameters.laps.lap(COMPUTING)
        self._request()
        self.parameters.laps.lap(READING)
        if not self._requested:
            return False
        batch, progress = self._requested.popleft()
        self.parameters.rate_factor = self.step.rate_factor = rate_factor
        result = self.step(batch)
        self.parameters.add_result(result.loss, result.logits[:, self.main_label])
        self._completed.extend(progress.completed)
        self._progress = progress
        return True

    def _request(self) -> None:
        """Request the rows of the next batches, as far as these are read; wait only for the first.

        What was computed last is sent in any case: others may wait for it.
        """
        while len(self._requested) < MOST_OPEN and not self.is_draining:
            if not self._has_next(0.0):
                self.parameters.send_push()
                if self._requested or not self._has_next(SECONDS_BETWEEN_LOOKS):
                    return
            batch, progress = self._waiting.pop(0)
            self.parameters.request(batch)
            self._requested.append((batch, progress))
        self.parameters.send_push()

    def _has_next(self, seconds: float) -> bool:
        """Whether there is a batch, read within so many seconds, that was not requested."""
        assert self._ahead is not None
        if not self._waiting and not self._has_ended and self._ahead.ready(seconds):
            self._has_ended = not self.has_batches(1)
        return bool(self._waiting)

    def start_pass(self, *arguments: object) -> None:
        super().start_pass(*arguments)  # type: ignore[arg-type]
        self._has_ended = False

    def finish(self) -> None:
        """Report that this worker trains nothing more before the next pause."""
        self.parameters.finish()

    def train_until_pause(self) -> Iterator[None]:
        self._trainings += 1
        self.parameters.laps.restart()
        self.parameters.start()
        while not self.is_over:
            if self.train(1.0):  # owners take rank 0's factor
                yield
        self.finish()


def new_share(conf: Conf, model: Model, node: Node, steps: int, next_of: NextOf) -> Share:
    """What a worker does of the training, in the mode of the conf: the arguments of `Share`."""
    kind = AsyncShare if conf.cluster.mode == "async" else Share
    return kind(conf, model, node, steps, next_of)
