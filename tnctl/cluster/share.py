"""What every worker does of the training, rank 0 too: its batches, its steps, its owned rows."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.checkpoint.load import fill, open_checkpoint
from tnctl.cluster.node import Node
from tnctl.cluster.owned import OwnedPart
from tnctl.cluster.owner import Owner
from tnctl.cluster.remote import RemoteParameters
from tnctl.cluster.shapes import check_dense, first_floats, shapes
from tnctl.cluster.work import COMPUTING, READING
from tnctl.data.bad_rows import Skipped
from tnctl.data.batches import Batch
from tnctl.data.read_ahead import ReadAhead
from tnctl.data.statistics import Statistics
from tnctl.data.unit_batches import training_batches
from tnctl.data.unit_records import Progress, Remainder, Unit
from tnctl.errors import Failure, refuse_if
from tnctl.evaluation.inference import Inference
from tnctl.evaluation.metrics import Scored
from tnctl.evaluation.split_scoring import Counts, features_of, labelled_heads, score_units
from tnctl.model.building import Model, build
from tnctl.model.layout import table_life
from tnctl.model.parameters import moving_statistics
from tnctl.schema import Conf
from tnctl.tables.shards import shards_of
from tnctl.training.step import TrainingStep
from tnctl.training.warm import start_from

BATCHES_AHEAD = 4
NextOf = Callable[[ReadAhead[Any]], Any]  # the next item, None after the last


def built(conf: Conf, statistics: Statistics, rank: int, workers: int) -> Model:
    """A model with initial weights, whose tables own the shards of a worker.

    Raises Failure when its dense weights are too many for so many workers.
    """
    model, shards = build(conf, statistics), shards_of(rank, workers)
    check_dense(model, workers)
    for layout, table in zip(model.layout.tables, model.tables, strict=True):
        table.set_shards(shards.first, shards.count)
        for number, life in zip(layout.groups.values(), layout.lives, strict=True):
            rules = table_life(life, table.stride)
            if rules.most_rows:
                # Keys are spread evenly, so each worker keeps its share of the bound.
                most_rows = rules.most_rows // workers
                refuse_if(
                    most_rows == 0,
                    f"the bound of a share group (life.eviction) is {rules.most_rows} rows, and "
                    f"{workers} workers own at least one each. Raise it, or take fewer workers",
                )
                table.set_life(number, replace(rules, most_rows=most_rows))
    return model


def loaded(conf: Conf, folder: str, rank: int, workers: int) -> Model:
    """The model of a checkpoint with the rows of a worker's shards. Raises DamagedError."""
    checkpoint = open_checkpoint(folder)
    model = built(conf, checkpoint.statistics, rank, workers)
    fill(checkpoint, model, shards_of(rank, workers))
    return model


def warmed(conf: Conf, model: Model, folder: str, sha256: str) -> dict[str, int]:
    """Give a model what a warm start begins with, as rank 0 does; how many rows by share group.

    Raises Failure when the manifest of the checkpoint in the folder has another digest, and when
    one of its files is damaged.
    """
    checkpoint = open_checkpoint(folder)
    if checkpoint.manifest.sha256 != sha256:
        raise Failure(
            f"{folder} has been written again since the warm start began. Run the same command "
            "again"
        )
    return start_from(conf, checkpoint).transfer(model)


def dense_digest(model: Model) -> str:
    """The SHA-256 of the dense weights, their optimizer's state and the moving statistics."""
    digest = hashlib.sha256(str(model.dense.step).encode())
    for array in (model.dense.flat_weights, *model.dense.flat_states, *model.moving):
        digest.update(array.tobytes())
    return digest.hexdigest()


class Share:
    """The part that one worker has in the training of a model."""

    def __init__(self, conf: Conf, model: Model, node: Node, steps: int, next_of: NextOf) -> None:
        """`steps` were trained before. `next_of` waits for the next batch."""
        self.conf, self.model, self.node = conf, model, node
        [(_, _, self.main_label), *_] = labelled_heads(model)
        self.owned = OwnedPart(model, node.rank, node.workers, steps)
        self.parameters = RemoteParameters(model, node, self.main_label)
        self.step = TrainingStep(model, conf.train.batch_size, steps, self.parameters, node.rank)
        self.inference = Inference(model, conf.train.batch_size, self.parameters)
        self._slice = first_floats(model, node.workers)[node.rank : node.rank + 2]
        self._features = features_of(conf, model)
        self._next_of = next_of
        self._pass = ExitStack()
        self._ahead: ReadAhead[tuple[Batch, Progress]] | None = None
        self._waiting: list[tuple[Batch, Progress]] = []  # the next batch, and the one after it
        self._progress: Progress | None = None
        self._completed: list[tuple[int, int]] = []  # units, and their rows that were not read
        self.owner = Owner(shapes(model, node.workers)[node.rank], node.workers, self.owned)
        node.serve_owner(self.owner)

    # ---- A pass ----------------------------------------------------------------

    def start_pass(
        self, conf: Conf, passes: int, remainders: Iterable[Remainder], skipped: Skipped
    ) -> None:
        """Begin to read what this worker trains of a pass."""
        source = training_batches(conf, self._features, passes, remainders, skipped)
        self._ahead = self._pass.enter_context(ReadAhead(source, BATCHES_AHEAD))
        self._waiting, self._progress, self._completed = [], None, []

    def end_pass(self) -> None:
        """Read no further."""
        self._pass.close()
        self._ahead, self._waiting = None, []

    @property
    def seconds_waited(self) -> float:
        """How long this worker has waited for data in the pass."""
        return 0.0 if self._ahead is None else self._ahead.seconds_waited

    def has_batches(self, count: int) -> bool:
        """Whether so many batches, 1 or 2, are left; waits until that is known."""
        assert self._ahead is not None
        while len(self._waiting) < count:
            following = self._next_of(self._ahead)
            if following is None:
                return False
            self._waiting.append(following)
        return True

    def train(self, rate_factor: float) -> None:
        """Take part in a step, with the next batch if there is one.

        Raises Paused, with nothing done, when rank 0 has paused.
        """
        self.parameters.laps.lap(COMPUTING)
        self.parameters.has_next = self.has_batches(2)
        self.parameters.laps.lap(READING)
        if not self._waiting:
            self.parameters.take_part(rate_factor)
            return
        batch, progress = self._waiting[0]
        self.step.rate_factor = rate_factor
        result = self.step(batch)
        self.parameters.add_result(result.loss, result.logits[:, self.main_label])
        del self._waiting[0]
        self._completed.extend(progress.completed)
        self._progress = progress

    def take_progress(self) -> Progress | None:
        """How far this worker is, with the units that it completed since the last call."""
        progress, self._progress = self._progress, None
        completed, self._completed = tuple(self._completed), []
        return None if progress is None else replace(progress, completed=completed)

    # ---- While training pauses ---------------------------------------------------

    def scored(
        self,
        split: str,
        units: Sequence[Unit],
        skipped: Skipped,
        counts: Counts,
        between: Callable[[], None] | None = None,
    ) -> tuple[Scored, list[int]]:
        """The examples of units of a split, and how many each unit has.

        They are scored by the dense weights that this worker has.
        """
        return score_units(
            self.inference, self.conf, split, units, skipped, counter=counts, between=between
        )

    @property
    def moving(self) -> list[NDArray[np.float32]]:
        """The memory of the moving statistics of batch norms."""
        return [moving for moving, _ in moving_statistics(self.model)]

    def dense_states(self) -> list[NDArray[np.float32]]:
        """The optimizer's states of this worker's dense slice."""
        first, last = self._slice
        return [state[first:last] for state in self.model.dense.flat_states]
