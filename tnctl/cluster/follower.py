"""A worker of another rank than 0: it does what rank 0 commands, and trains in between."""

from collections.abc import Sequence
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np

from tnctl.checkpoint.owners import PartWriter, group_parts, tables_of
from tnctl.cluster import commands, scores
from tnctl.cluster.node import Node, Respond
from tnctl.cluster.remote import Paused
from tnctl.cluster.share import Share, built, dense_digest, loaded
from tnctl.cluster.worker_errors import is_unexpected, show_traceback
from tnctl.data.bad_rows import Skipped
from tnctl.data.days import conf_of_day
from tnctl.data.statistics import Statistics
from tnctl.errors import Failure
from tnctl.evaluation.split_scoring import Counts
from tnctl.model.building import Model
from tnctl.schema import Conf
from tnctl.tables.shards import shards_of
from tnctl.training import eviction

DONE = commands.Done()


class Follower:
    """Runs the commands of rank 0, one after the other, until the run ends."""

    def __init__(self, conf: Conf, node: Node) -> None:
        self._conf, self._node = conf, node
        self._model: Model | None = None
        self._share: Share | None = None
        self._skipped = Skipped("train", conf.data.bad_rows)
        self._writer = PartWriter(conf, shards_of(node.rank, node.workers))
        # What completes checkpoints, while the main thread trains.
        self._of_checkpoints: SimpleQueue[tuple[bytes, Respond]] = SimpleQueue()
        node.route(commands.OF_CHECKPOINTS, self._of_checkpoints)
        Thread(target=self._complete_parts, name="tnctl-parts", daemon=True).start()

    def run(self) -> None:
        """Return when the run has ended. Raises what has ended it otherwise."""
        while (received := self._node.commands.get()) is not None:
            body, respond = received
            try:
                command = commands.command_of(body)
                reply = self._do(command)
                respond(reply if isinstance(reply, bytes) else commands.encode(reply))
            except Exception as error:
                failure = self._node.fail(error)
                if failure is error or is_unexpected(error):
                    raise
                raise failure from error
            if isinstance(command, commands.End):
                return
        assert self._node.error is not None
        raise self._node.error

    @property
    def _trained(self) -> Share:
        if self._share is None:
            raise Failure("a command came before the start of training")
        return self._share

    def _do(self, command: commands.Command) -> Any:
        """Run a command, and return the document or bytes of its reply."""
        rank, workers = self._node.rank, self._node.workers
        match command:
            case commands.Build(statistics=statistics):
                measured = Statistics.from_measured(statistics)
                return self._made(built(self._conf, measured, rank, workers))
            case commands.Load(folder=folder):
                self._node.serve_owner(None)
                self._share = self._model = None  # their memory is needed
                return self._made(loaded(self._conf, folder, rank, workers))
            case commands.Start(steps=steps):
                self._start(steps)
            case commands.StartPass():
                return self._start_pass(command)
            case commands.Train():
                return self._train()
            case commands.EndPass():
                self._trained.end_pass()
            case commands.Evaluate():
                return self._evaluate(command)
            case commands.SetDays(days=days):
                set_days(self._trained.model, days)
            case commands.EndPeriod():
                return commands.Counted(rows=eviction.end_of_period(self._trained.model))
            case commands.CountRows():
                return commands.TableCounts(tables=tuple(table_counts(self._trained.model)))
            case commands.DenseStates():
                return b"".join(state.tobytes() for state in self._trained.dense_states())
            case commands.MeasurePart(is_delta=is_delta):
                return self._writer.measure(tables_of(self._trained.model), is_delta=is_delta)
            case commands.StagePart(request=request):
                return self._writer.stage(tables_of(self._trained.model), request)
        return DONE

    def _made(self, model: Model) -> commands.Built:
        self._model = model
        return commands.Built(dense=dense_digest(model))

    def _start(self, steps: int) -> None:
        if self._model is None:
            raise Failure("a command came before a model was made")
        self._share = Share(self._conf, self._model, self._node, steps, lambda a: next(a, None))

    def _start_pass(self, command: commands.StartPass) -> commands.PassStarted:
        conf = self._conf if command.day is None else conf_of_day(self._conf, command.day)
        self._skipped = Skipped("train", conf.data.bad_rows)
        share = self._trained
        share.start_pass(conf, command.passes, command.remainders, self._skipped)
        return commands.PassStarted(has_batch=share.has_batches(1))

    def _train(self) -> commands.Trained:
        share = self._trained
        try:
            while True:
                share.train(1.0)  # owners take rank 0's factor
        except Paused:
            return commands.Trained(
                progress=share.take_progress(),
                skipped=self._skipped.rows,
                reason=self._skipped.first or "",
                seconds_waited=share.seconds_waited,
            )

    def _evaluate(self, command: commands.Evaluate) -> bytes:
        share = self._trained
        share.parameters.read_dense()
        for moving, values in zip(share.moving, command.moving, strict=True):
            moving[:] = np.array(values, np.float32)
        skipped = Skipped(command.split, self._conf.data.bad_rows)
        counts = Counts(share.model.layout)
        units = share.scored(command.split, command.units, skipped, counts)
        return scores.to_bytes(units, counts, skipped.rows)

    def _complete_parts(self) -> None:
        while True:
            body, respond = self._of_checkpoints.get()
            try:
                reply: Any = DONE
                match commands.command_of(body):
                    case commands.FinishPart():
                        reply = self._writer.finish()
                    case commands.CommitPart():
                        self._writer.committed()
                    case commands.AbandonPart():
                        self._writer.abandon()
                respond(commands.encode(reply))
            except Exception as error:
                self._node.fail(error)
                if is_unexpected(error):
                    show_traceback(error)
                return


def set_days(model: Model, days: Sequence[tuple[int, int]]) -> None:
    """Set the days of a model's tables."""
    for table in model.tables:
        table.set_days(days)


def table_counts(model: Model) -> list[commands.TableCount]:
    """The counts of a worker's part of each table."""
    return [
        commands.TableCount(
            rows=table.rows,
            bytes=table.index_bytes + table.row_bytes,
            groups=group_parts(table, layout.groups),
        )
        for layout, table in zip(model.layout.tables, model.tables, strict=True)
    ]
