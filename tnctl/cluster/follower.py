"""A worker of another rank than 0: it does what rank 0 commands, and trains in between."""

from collections.abc import Sequence
from dataclasses import astuple, replace
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np

from tnctl.checkpoint.owners import PartWriter, group_parts, tables_of
from tnctl.cluster import commands, key_lookup, scores, shared_output
from tnctl.cluster.node import Node, Respond
from tnctl.cluster.remote import Paused
from tnctl.cluster.share import Share, built, dense_digest, loaded, warmed
from tnctl.cluster.worker_errors import is_unexpected, show_traceback
from tnctl.data.bad_rows import Skipped
from tnctl.data.days import conf_of_day
from tnctl.data.statistics import Statistics
from tnctl.data.unit_records import Remainder
from tnctl.errors import Failure
from tnctl.evaluation.input_figures import norm_sums
from tnctl.evaluation.metrics import Scored
from tnctl.evaluation.split_scoring import Counts
from tnctl.manifest import DamagedError
from tnctl.model.building import Model, enable_determinism
from tnctl.out_of_memory import RESUME_WITH_MORE, OutOfMemory, is_out_of_memory
from tnctl.schema import Conf
from tnctl.tables.shards import shards_of
from tnctl.training import eviction
from tnctl.training.memory_watch import MemoryWatch, table_words

DONE = commands.Done()


class Follower:
    """Runs the commands of rank 0, one after the other, until the run ends."""

    def __init__(self, conf: Conf, node: Node) -> None:
        if conf.train.deterministic:
            enable_determinism()
        self._conf, self._node = conf, node
        self._model: Model | None = None
        self._share: Share | None = None
        self._memory: MemoryWatch | None = None
        self._skipped = Skipped("train", conf.data.bad_rows)
        self._vocabularies: dict[str, list[str]] = {}
        self._remainders: list[Remainder] = []
        self._scored: Scored | None = None
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
                if is_unexpected(error):
                    # First: this process may be ended as soon as rank 0 knows.
                    show_traceback(error)
                known = self._out_of_memory(error) if is_out_of_memory(error) else error
                raise self._node.fail(known) from error
            if isinstance(command, commands.End):
                return
        assert self._node.error is not None
        raise self._node.error

    def _out_of_memory(self, error: BaseException) -> OutOfMemory:
        held = "" if self._model is None else table_words(self._model)
        return OutOfMemory(error, RESUME_WITH_MORE, held=held)

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

    def _do(self, command: commands.Command) -> Any:
        """Run a command, and return the document or bytes of its reply."""
        place = self._node.rank, self._node.workers
        match command:
            case commands.SeeOutput(name=name, content=content):
                return commands.Seen(seen=shared_output.sees(self._conf.output, name, content))
            case commands.Vocabulary(slot=slot, values=values):
                self._vocabularies.setdefault(slot, []).extend(values)
            case commands.Build(statistics=statistics):
                measured = Statistics.from_measured(
                    replace(statistics, vocabularies=self._vocabularies)
                )
                self._vocabularies = {}
                return self._made(built(self._conf, measured, *place))
            case commands.StartWarm(folder=folder, sha256=sha256):
                model = self._built
                rows = warmed(self._conf, model, folder, sha256)
                return commands.Warmed(dense=dense_digest(model), rows=rows)
            case commands.Load(folder=folder):
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
            case commands.FindKeys():
                return key_lookup.found(self._trained.model.tables, command)
            case commands.SumNorms():
                sums = norm_sums(self._trained.model)
                return commands.Norms(slots={name: astuple(of) for name, of in sums.items()})
            case commands.SetDays(days=days):
                set_days(self._trained.model, days)
            case commands.EndPeriod():
                model = self._trained.model
                shares = eviction.miscounted_by_table(model)
                return commands.Evicted(rows=eviction.remove_rows(model), miscounted=shares)
            case commands.CountRows():
                return commands.TableCounts(tables=tuple(table_counts(self._trained.model)))
            case commands.DenseStates(place=state):
                return self._trained.dense_states()[state].tobytes()
            case commands.MeasurePart(is_delta=is_delta):
                return self._writer.measure(tables_of(self._trained.model), is_delta=is_delta)
            case commands.StagePart(request=request):
                return self._writer.stage(tables_of(self._trained.model), request)
        return DONE

    def _made(self, model: Model) -> commands.Built:
        self._model = model
        rows = tuple(table.rows for table in model.tables)
        return commands.Built(dense=dense_digest(model), rows=rows)

    def _start(self, steps: int) -> None:
        self._share = Share(self._conf, self._built, self._node, steps, lambda a: next(a, None))
        self._memory = MemoryWatch(self._built, self._node.workers)

    def _start_pass(self, command: commands.StartPass) -> commands.PassStarted:
        conf = self._conf if command.day is None else conf_of_day(self._conf, command.day)
        self._skipped = Skipped("train", conf.data.bad_rows)
        share = self._trained
        share.start_pass(conf, command.passes, self._taken_units(), self._skipped)
        return commands.PassStarted(has_batch=share.has_batches(1))

    def _train(self) -> commands.Trained:
        share = self._trained
        share.parameters.laps.restart()
        try:
            while True:
                share.train(1.0)  # owners take rank 0's factor
                self._report_shortage(share)
        except Paused:
            return commands.Trained(
                progress=share.take_progress(),
                skipped=self._skipped.rows,
                reason=self._skipped.first or "",
            )

    def _report_shortage(self, share: Share) -> None:
        """Report once that memory runs short; rank 0 saves, and ends all."""
        if self._memory is not None and (reason := self._memory.shortage(share.model)) is not None:
            self._memory = None
            self._node.command(0, commands.Shortage(rank=self._node.rank, reason=reason))

    def _taken_units(self) -> list[Remainder]:
        taken, self._remainders = self._remainders, []
        return taken

    def _evaluate(self, command: commands.Evaluate) -> commands.UnitsScored:
        share = self._trained
        share.parameters.read_dense()
        for moving, values in zip(share.moving, command.moving, strict=True):
            moving[:] = np.array(values, np.float32)
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

    def _send_scores(self, first: int, rows: int) -> bytes:
        if self._scored is None:
            raise Failure("scores were requested before an evaluation")
        block = scores.block_of(self._scored, first, rows)
        if first + rows == len(self._scored.labels):
            self._scored = None
        return block

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
                if is_unexpected(error):
                    show_traceback(error)
                self._node.fail(error)
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
