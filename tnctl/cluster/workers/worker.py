"""A worker, rank 0 too: it does what rank 0 commands, and trains in between."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tnctl.checkpoint.chain import open_checkpoint
from tnctl.checkpoint.load import fill, refusing_larger_networks
from tnctl.cluster.joining.membership import Membership
from tnctl.cluster.messages.commands import command
from tnctl.cluster.messages.prediction_blocks import PredictionBlocks
from tnctl.cluster.messages.shapes import check_dense
from tnctl.cluster.node import Node
from tnctl.cluster.owners.owned import take_shards
from tnctl.cluster.workers.export_worker import ExportWorker
from tnctl.cluster.workers.row_service import Built
from tnctl.cluster.workers.share import NextOf, Share, leased_from
from tnctl.data.bad_rows import Skipped
from tnctl.data.batch_sizes import sized
from tnctl.data.days import conf_of_day
from tnctl.data.file_pieces import BadRows
from tnctl.data.statistics_document import Statistics
from tnctl.data.unit_records import Progress, Remainder, Unit
from tnctl.documents import Count, Name, Sha256, Text, Uint32
from tnctl.errors import Failure
from tnctl.evaluation.split_scoring import Counts, score_units
from tnctl.model.building import Model, build, enable_determinism
from tnctl.model.parameter_tables import Recalibration
from tnctl.schema import Conf, Paths
from tnctl.training.row_life import MemoryWatch
from tnctl.training.warm.warm_start import start_again


@dataclass(frozen=True, kw_only=True)
class Trained:
    """How far a worker is in the pass, None before its first batch.

    `skipped` counts the rows so far that cannot be read, the first for the reason `reason`.
    """

    progress: Progress | None
    skipped: Count
    reason: Text


@dataclass(frozen=True, kw_only=True)
class UnitsScored:
    """What a worker has of the units that it scored.

    `rows` are the examples of each unit, `arrays` the names of their arrays; the others are counts
    over all examples, by input of the model.
    """

    rows: tuple[Count, ...]
    arrays: tuple[Name, ...]
    skipped: BadRows
    examples: Count
    present: dict[str, Count]
    ids: dict[str, Count]


def built(conf: Conf, statistics: Statistics, rank: int, membership: Membership) -> Model:
    """A model with initial weights, whose tables own the shards of a worker.

    Raises Failure when its dense weights are too many for so many workers or servers.
    """
    model = build(conf, statistics)
    check_dense(model, membership.workers, membership.servers)
    take_shards(model, membership, rank)
    return model


def dense_digest(model: Model) -> str:
    """The SHA-256 of the dense weights, their optimizer's state and the moving statistics."""
    digest = hashlib.sha256(str(model.dense.step).encode())
    for array in (model.dense.flat_weights, *model.dense.flat_states, *model.moving):
        digest.update(array.tobytes())
    return digest.hexdigest()


class Worker(ExportWorker):
    """A process that trains, scores, predicts and exports.

    On rank 0 the training loop begins passes and steps of `share` itself.
    """

    def __init__(self, conf: Conf, node: Node) -> None:
        super().__init__(conf, node)
        if node.rank and conf.train.deterministic:  # rank 0 does so as one process would
            enable_determinism()
        self.next_of: NextOf = lambda ahead: next(ahead, None)
        """how the next batch is waited for"""
        self.between: Callable[[], None] = lambda: None
        """called after each batch that is scored; may raise"""
        self._share: Share | None = None
        self._skipped = Skipped("train", conf.data.bad_rows)
        self._remainders: list[Remainder] = []
        self._scores: dict[str, NDArray[Any]] = {}
        self._predictions: PredictionBlocks | None = None

    @property
    def model(self) -> Model:
        """The model that was made last."""
        return cast(Model, super().model)

    @property
    def share(self) -> Share:
        """Its part in the training of the model."""
        if self._share is None:
            raise Failure("a command came before the start of training")
        return self._share

    # ---- The model -----------------------------------------------------------------

    def _new_model(self, statistics: Statistics, batch_size: int) -> Model:
        self.conf = sized(self.conf, batch_size)
        return built(self.conf, statistics, self.node.rank, self.node.membership)

    def _loaded(self, folder: str, batch_size: int, working_folder: bool) -> Model:
        self.conf = sized(self.conf, batch_size)
        if working_folder:
            self.conf = replace(self.conf, paths=Paths())
        checkpoint, node = open_checkpoint(folder), self.node
        with refusing_larger_networks(checkpoint, self.conf):
            model = built(self.conf, checkpoint.statistics, node.rank, node.membership)
        fill(checkpoint, model, node.membership.shards(node.rank))
        return model

    def _digest(self) -> str:
        return dense_digest(self.model)

    def _drop_model(self) -> None:
        self._share = self._model = None

    def start_warm(self, folder: Text, sha256: Sha256) -> Built:
        start = start_again(self.conf, folder, sha256)
        start.transfer_dense(self.model)
        owns_rows = self.node.rank in self.node.membership.writers
        rows = start.transfer_rows(self.model) if owns_rows else {}
        return Built(dense=self._digest(), rows=rows)

    def start(self, steps: Uint32) -> None:
        self._share = Share(self.conf, self.model, self.node, steps, self.next_of)
        self._memory = MemoryWatch(self.model, self.node.on_machine)

    # ---- A pass --------------------------------------------------------------------

    @command
    def take_units(self, remainders: tuple[Remainder, ...]) -> None:
        """Take further units, or what is left of them, to be trained, scored or predicted next."""
        self._remainders.extend(remainders)

    @command
    def start_pass(self, day: Text | None, passes: Count, labels: tuple[Name, ...]) -> bool:
        """Begin to read what this worker trains of a pass; whether there is a batch."""
        conf = self.conf if day is None else conf_of_day(self.conf, day)
        self._skipped = Skipped("train", conf.data.bad_rows)
        remainders = leased_from(self.node) if self.share.parameters.ahead else self._taken()
        self.share.start_pass(conf, passes, labels, remainders, self._skipped)
        return self.share.has_batches(1)

    @command
    def train(self) -> Trained:
        """Train steps until rank 0 pauses."""
        for _ in self.share.train_until_pause():
            self.report_shortage()
        return Trained(
            progress=self.share.take_progress(),
            skipped=self._skipped.rows,
            reason=self._skipped.first,
        )

    @command
    def end_pass(self) -> None:
        """Read no further."""
        self.share.end_pass()

    def _taken(self) -> list[Remainder]:
        taken, self._remainders = self._remainders, []
        return taken

    def _taken_units(self) -> list[Unit]:
        return [remainder.unit for remainder in self._taken()]

    # ---- While training pauses -------------------------------------------------------

    @command
    def evaluate(
        self,
        split: Text,
        moving: NDArray[np.float32],
        recalibration: dict[Name, Recalibration],
    ) -> UnitsScored:
        """Score units of a split, by the weights that owners have.

        `moving` has all moving statistics of batch norms, which rank 0 keeps; `recalibration` is
        that of the model, by head.
        """
        share = self.share
        share.parameters.read_dense()
        for statistics in share.moving:
            statistics[:], moving = moving[: len(statistics)], moving[len(statistics) :]
        share.model.recalibration = recalibration
        skipped = Skipped(split, self.conf.data.bad_rows)
        counts = Counts(share.model.layout)
        scored, rows = score_units(
            share.inference, self.conf, split, self._taken_units(), skipped,
            counter=counts, between=self.between,
        )  # fmt: skip
        self._scores = {k: of for k, of in vars(scored).items() if isinstance(of, np.ndarray)}
        return UnitsScored(
            rows=tuple(rows),
            arrays=tuple(self._scores),
            skipped=skipped,
            examples=counts.examples,
            present=counts.present,
            ids=counts.ids,
        )

    @command
    def read_scores(self, name: Name, first: Count, rows: Count) -> NDArray[Any]:
        """Some rows of an array of the examples scored last; the last ones drop it."""
        array = self._scores[name]
        if first + rows >= len(array):
            del self._scores[name]
        return array[first : first + rows]

    @command
    def predict(self, split: Text) -> tuple[tuple[Count, ...], BadRows]:
        """Predict units of a split, into a file of this machine: how many blocks each unit has."""
        units, skipped = self._taken_units(), Skipped(split, self.conf.data.bad_rows)
        self._predictions = PredictionBlocks()
        return self._predictions.predict(
            self.share.inference, self.conf, split, units, skipped
        ), skipped

    @command
    def read_predictions(self, block: Count) -> NDArray[np.uint8]:
        """A block of the units predicted last (prediction_blocks.py), by its number."""
        assert self._predictions is not None
        return self._predictions.read(block)
