"""What every worker does of the training, rank 0 too: its batches, its steps, its owned rows.

In `sync` rank 0 deals the units of a pass, and all train in steps. In `async` each worker trains
its batches as they come, requests rows one batch ahead, and leases a unit when it needs one.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.cluster.messages import commands
from tnctl.cluster.messages.work import COMPUTING, READING
from tnctl.cluster.node import Node
from tnctl.cluster.owners.arrivals import MOST_OPEN, Arrivals
from tnctl.cluster.owners.owned import new_owner
from tnctl.cluster.workers.remote import LeftOut, Paused, RemoteParameters
from tnctl.data.bad_rows import Skipped
from tnctl.data.batches import Batch
from tnctl.data.read_ahead import ReadAhead
from tnctl.data.unit_records import Progress, Remainder
from tnctl.data.windows import training_batches
from tnctl.documents import Count
from tnctl.evaluation.inference import Inference
from tnctl.evaluation.split_scoring import features_of, labelled_heads
from tnctl.model.building import Model
from tnctl.model.parameters import moving_statistics
from tnctl.schema import Conf
from tnctl.training.step import TrainingStep

BATCHES_AHEAD = 4  # that are read
SECONDS_BETWEEN_LOOKS = 0.1  # whether training drains, while there is no batch
NextOf = Callable[[ReadAhead[Any]], Any]  # the next item, None after the last


class Share:
    """The part that one worker has in the training of a model.

    With dedicated servers it owns nothing; worker 0 then is an owner of the figures only.
    """

    def __init__(self, conf: Conf, model: Model, node: Node, steps: int, next_of: NextOf) -> None:
        """`steps` were trained before. `next_of` waits for the next batch."""
        self.conf, self.model, self.node = conf, model, node
        is_async = conf.cluster.mode == "async"
        self.parameters = RemoteParameters(model, node, steps, MOST_OPEN - 1 if is_async else 0)
        self.inference = Inference(model, conf.train.batch_rows, self.parameters)
        self._features = features_of(conf, model)
        self._next_of = next_of
        self._pass = ExitStack()
        self._ahead: ReadAhead[tuple[Batch, Progress]] | None = None
        self._waiting: deque[tuple[Batch, Progress]] = deque()  # read, and not trained
        self._has_ended = False  # whether all batches of the pass are read
        self._pushed: tuple[Batch, Progress] | None = None  # not known yet to be applied
        self._progress: Progress | None = None
        self._completed: list[tuple[int, int]] = []  # units, and their rows that were not read
        self.trainings = self._drained = 0
        """how often training began or went on"""
        self._owns = node.rank in node.membership.owners
        if self._owns:
            self.owned, self.owner = new_owner(conf, model, node, steps, moving_statistics(model))
            node.serve_owner(self.owner, beside=is_async)
        else:
            node.route(Share.drain, commands.answering(self))

    @cached_property
    def step(self) -> TrainingStep:
        """The step, which is traced when training begins: a model may only be read."""
        steps, batch_size = self.parameters.steps, self.conf.train.batch_rows
        return TrainingStep(self.model, batch_size, steps, self.parameters, self.node.rank)

    # ---- A pass ----------------------------------------------------------------

    def start_pass(
        self,
        conf: Conf,
        passes: int,
        labels: Sequence[str],
        remainders: Iterable[Remainder],
        skipped: Skipped,
    ) -> None:
        """Begin to read what this worker trains of a pass, on these labels."""
        self.step.train_on(labels)
        [(_, _, self.parameters.label), *_] = labelled_heads(self.model, labels)
        source = training_batches(conf, self._features, passes, remainders, skipped)
        self._ahead = self._pass.enter_context(ReadAhead(source, BATCHES_AHEAD))
        self._waiting, self._has_ended = deque(), False
        self._pushed, self._progress, self._completed = None, None, []

    def end_pass(self) -> None:
        """Read no further."""
        self._pass.close()
        self._ahead, self._waiting = None, deque()

    @property
    def seconds_waited(self) -> float:
        """How long this worker has waited for data in the pass."""
        return 0.0 if self._ahead is None else self._ahead.seconds_waited

    def has_batches(self, count: int) -> bool:
        """Whether so many batches are left that were not trained; waits until that is known."""
        assert self._ahead is not None
        while len(self._waiting) < count and not self._has_ended:
            if (following := self._next_of(self._ahead)) is not None:
                self._waiting.append(following)
            self._has_ended = following is None
        return len(self._waiting) >= count

    # ---- Training --------------------------------------------------------------

    def start(self) -> None:
        """Training begins, or goes on after a pause."""
        self.trainings += 1
        self.parameters.start()

    def train(self, rate_factor: float) -> bool:
        """Train the next batch, or take part without one; whether there was one.

        In `async` there is none when none was read within 0.1 s, or training drains. A batch whose
        push was dropped, since the step began without this worker, is trained again. Raises Paused,
        with nothing done, when rank 0 has paused.
        """
        while True:
            try:
                return self._train(rate_factor)
            except LeftOut:
                if self._pushed is not None:
                    self._waiting.appendleft(self._pushed)
                    self._pushed = None

    def _train(self, rate_factor: float) -> bool:
        parameters = self.parameters
        parameters.laps.lap(COMPUTING)
        has_batch = self._request() if parameters.ahead else self._read()
        parameters.laps.lap(READING)
        if not has_batch:
            parameters.take_part(rate_factor)
            self._count_pushed()
            return False
        batch, progress = self._waiting[0]
        self.step.rate_factor = rate_factor
        result = self.step(batch)
        self._count_pushed()
        parameters.add_result(result.loss, result.logits[:, parameters.label])
        del self._waiting[0]
        self._pushed = batch, progress
        return True

    def _read(self) -> bool:
        """Wait for the next batch; the next exchange says whether there is one after it."""
        self.parameters.has_next = self.has_batches(2)
        return bool(self._waiting)

    def _request(self) -> bool:
        """Request the rows of the next batches, as far as these are read; wait only for the first.

        What was computed last is sent in any case: others may wait for it.
        """
        parameters = self.parameters
        while len(parameters.requested) <= parameters.ahead and not self._is_draining:
            if not self._is_read(0.0):
                if parameters.requested or self._has_ended:
                    break
                parameters.send_push()
                if not self._is_read(SECONDS_BETWEEN_LOOKS):
                    break
            parameters.request(self._waiting[len(parameters.requested)][0])
        has_batch = bool(parameters.requested)
        parameters.has_next = has_batch or not (self._has_ended or self._is_draining)
        if has_batch:
            parameters.send_push()
        return has_batch

    def _is_read(self, seconds: float) -> bool:
        """Whether a batch that was not requested is read within so many seconds."""
        assert self._ahead is not None
        count = len(self.parameters.requested) + 1
        is_known = len(self._waiting) >= count or self._has_ended or self._ahead.ready(seconds)
        return is_known and self.has_batches(count)

    @property
    def _is_draining(self) -> bool:
        """Whether no more batches are to be requested before the next pause."""
        if self._owns:
            return isinstance(self.owner, Arrivals) and self.owner.is_draining
        return self._drained >= self.trainings

    @commands.command
    def drain(self, training: Count) -> None:
        """To a worker that owns nothing: request no more batches of its n-th training."""
        self._drained = training

    def finish(self) -> None:
        """On rank 0: let all workers end what is under way, as this one does."""
        self.parameters.drain()
        while not self.parameters.is_over:
            self.train(self.parameters.rate_factor)

    def train_until_pause(self) -> Iterator[None]:
        """On another rank than 0: train batch after batch until rank 0 pauses or drains."""
        self.start()
        with suppress(Paused):
            while not self.parameters.is_over:
                self.train(1.0)  # owners take rank 0's factor
                yield

    def _count_pushed(self) -> None:
        """The batch before the last exchange is applied: count it as trained."""
        if self._pushed is not None:
            (_, progress), self._pushed = self._pushed, None
            self._completed.extend(progress.completed)
            self._progress = progress

    def take_progress(self) -> Progress | None:
        """While training pauses: how far this worker is.

        It has the units that the worker completed since the last call.
        """
        self._count_pushed()
        progress, self._progress = self._progress, None
        completed, self._completed = tuple(self._completed), []
        return None if progress is None else replace(progress, completed=completed)

    # ---- While training pauses ---------------------------------------------------

    @property
    def moving(self) -> list[NDArray[np.float32]]:
        """The memory of the moving statistics of batch norms."""
        return [moving for moving, _ in moving_statistics(self.model)]


class Leases:
    """What is left of a pass in `async`, on rank 0. Iterated over, it is read by rank 0 itself.

    Each unit is read by the worker that asks for it next, so a fast worker reads more of them than
    a slow one. Nothing of this is recorded: a checkpoint has the units that are done and how far
    others are, and the rest is leased again.
    """

    def __init__(self, node: Node) -> None:
        self._lock = threading.Lock()
        self.renew([])
        node.route(Leases.lease_unit, commands.answering(self))

    def renew(self, remainders: list[Remainder]) -> None:
        """Lease these from now on."""
        self._left = iter(remainders)

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
