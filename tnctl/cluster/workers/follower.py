"""A worker of another rank than 0: it does what rank 0 commands, and trains in between."""

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tnctl.cluster import shared_output
from tnctl.cluster.messages import commands, reading_commands, scores
from tnctl.cluster.messages.export_commands import ExportCommand
from tnctl.cluster.messages.prediction_blocks import PredictionBlocks
from tnctl.cluster.node import Node
from tnctl.cluster.workers.async_share import new_share
from tnctl.cluster.workers.command_loop import DONE, CommandLoop
from tnctl.cluster.workers.share import Share, built, dense_digest, loaded, warmed
from tnctl.data.bad_rows import Skipped
from tnctl.data.batch_sizes import sized
from tnctl.data.days import conf_of_day
from tnctl.data.unit_records import Remainder
from tnctl.errors import Failure
from tnctl.evaluation.metrics import Scored
from tnctl.evaluation.split_scoring import Counts
from tnctl.manifest import DamagedError
from tnctl.model.building import Model, enable_determinism
from tnctl.model.parameter_tables import ParameterTables
from tnctl.schema import Conf, Paths
from tnctl.training.row_life import MemoryWatch

if TYPE_CHECKING:
    from tnctl.cluster.workers.export_parts import ExportFollower


class Follower(CommandLoop):
    """Runs the commands of rank 0, one after the other, until the run ends."""

    def __init__(self, conf: Conf, node: Node) -> None:
        super().__init__(conf, node)
        if conf.train.deterministic:
            enable_determinism()
        self._model: Model | None = None
        self._share: Share | None = None
        self._skipped = Skipped("train", conf.data.bad_rows)
        self._remainders: list[Remainder] = []
        self._scored: Scored | None = None
        self._predictions: PredictionBlocks | None = None

    @property
    def tables(self) -> ParameterTables | None:
        return self._model

    def dense_states(self) -> list[NDArray[np.float32]]:
        return self._trained.dense_states()

    @property
    def _trained(self) -> Share:
        if self._share is None:
            raise Failure("a command came before the start of training")
        return self._share

    @property
    def _built(self) -> Model:
        if self._model is None:
            raise Failure("a command came before a model was made")
        return self._model

    @cached_property
    def _export(self) -> "ExportFollower":
        from tnctl.cluster.workers.export_parts import ExportFollower

        return ExportFollower(self._conf, self._node)

    def do(self, command: commands.Command) -> Any:
        """Run a command, and return the document or bytes of its reply."""
        node, place = self._node, (self._node.rank, self._node.membership)
        if isinstance(command, ExportCommand):
            return self._export.do(command)
        match command:
            case commands.SeeOutput(name=name, content=content):
                return commands.Seen(seen=shared_output.sees(self._conf.output, name, content))
            case commands.Vocabulary(slot=slot, values=values):
                self._vocabularies.setdefault(slot, []).extend(values)
            case commands.Build(statistics=statistics, batch_size=batch_size):
                self._conf = sized(self._conf, batch_size)
                measured = replace(statistics, vocabularies=self._vocabularies)
                self._vocabularies = {}
                return self._made(built(self._conf, measured, *place))
            case commands.StartWarm(folder=folder, sha256=sha256):
                model = self._built
                owns_rows = node.rank in node.membership.writers
                rows = warmed(self._conf, model, folder, sha256, owns_rows=owns_rows)
                return commands.Warmed(dense=dense_digest(model), rows=rows)
            case commands.Load(folder=folder, batch_size=batch_size, working_folder=is_there):
                self._conf = sized(self._conf, batch_size)
                if is_there:
                    self._conf = replace(self._conf, paths=Paths())
                self._node.serve_owner(None)
                self._share = self._model = None  # their memory is needed
                try:
                    return commands.Loaded(built=self._made(loaded(self._conf, folder, *place)))
                except DamagedError as error:
                    return commands.Loaded(damage=error.what)
            case commands.Start(steps=steps):
                self._start(steps)
            case commands.TakeUnits(remainders=remainders):
                self._remainders.extend(remainders)
            case commands.StartPass():
                return self._start_pass(command)
            case commands.Train():
                return self._train()
            case commands.EndPass():
                self._trained.end_pass()
            case commands.Evaluate():
                return self._evaluate(command)
            case commands.SendScores(first=first, rows=rows):
                return self._send_scores(first, rows)
            case reading_commands.Predict(split=split):
                return self._predict(split)
            case reading_commands.SendPredictions(block=block):
                if self._predictions is None:
                    raise Failure("predictions were requested before there are any")
                return self._predictions.read(block)
            case commands.End():
                return DONE  # `run` returns
            case _:
                return self.do_with_rows(self._trained.model, command)
        return DONE

    def _made(self, model: Model) -> commands.Built:
        self._model = model
        rows = tuple(table.rows for table in model.tables)
        return commands.Built(dense=dense_digest(model), rows=rows)

    def _start(self, steps: int) -> None:
        self._share = new_share(
            self._conf, self._built, self._node, steps, lambda ahead: next(ahead, None)
        )
        self._memory = MemoryWatch(self._built, self._node.on_machine)

    def _start_pass(self, command: commands.StartPass) -> commands.PassStarted:
        conf = self._conf if command.day is None else conf_of_day(self._conf, command.day)
        self._skipped = Skipped("train", conf.data.bad_rows)
        share = self._trained
        remainders = share.remainders(self._taken_units())
        share.start_pass(conf, command.passes, remainders, self._skipped)
        return commands.PassStarted(has_batch=share.has_batches(1))

    def _train(self) -> commands.Trained:
        share = self._trained
        for _ in share.train_until_pause():
            self.report_shortage(share.model)
        return commands.Trained(
            progress=share.take_progress(),
            skipped=self._skipped.rows,
            reason=self._skipped.first or "",
        )

    def _taken_units(self) -> list[Remainder]:
        taken, self._remainders = self._remainders, []
        return taken

    def _evaluate(self, command: commands.Evaluate) -> commands.UnitsScored:
        share = self._trained
        share.parameters.read_dense()
        for moving, values in zip(share.moving, command.moving, strict=True):
            moving[:] = np.array(values, np.float32)
        share.model.recalibration = command.recalibration
        skipped = Skipped(command.split, self._conf.data.bad_rows)
        counts = Counts(share.model.layout)
        units = [remainder.unit for remainder in self._taken_units()]
        self._scored, rows = share.scored(command.split, units, skipped, counts)
        return commands.UnitsScored(
            rows=tuple(rows),
            arrays=scores.arrays_of(self._scored),
            skipped=skipped.rows,
            reason=skipped.first or "",
            examples=counts.examples,
            present=counts.present,
            ids=counts.ids,
        )

    def _predict(self, split: str) -> reading_commands.UnitsPredicted:
        share, skipped = self._trained, Skipped(split, self._conf.data.bad_rows)
        units = [remainder.unit for remainder in self._taken_units()]
        self._predictions = PredictionBlocks()
        blocks = self._predictions.predict(share.inference, share.conf, split, units, skipped)
        return reading_commands.UnitsPredicted(
            blocks=tuple(blocks), skipped=skipped.rows, reason=skipped.first or ""
        )

    def _send_scores(self, first: int, rows: int) -> bytes:
        if self._scored is None:
            raise Failure("scores were requested before an evaluation")
        block = scores.block_of(self._scored, first, rows)
        if first + rows == len(self._scored.labels):
            self._scored = None
        return block
