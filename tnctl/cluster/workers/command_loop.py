"""Runs what rank 0 commands, in a worker or a dedicated server. Imports no TensorFlow."""

import base64
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import astuple
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np

from tnctl.checkpoint.owners import PartWriter, group_parts
from tnctl.cluster.messages import commands
from tnctl.cluster.node import Node, Respond
from tnctl.cluster.worker_errors import is_unexpected, show_traceback
from tnctl.errors import Failure
from tnctl.evaluation.importance import norm_sums
from tnctl.model.parameter_tables import ParameterTables
from tnctl.schema import Conf
from tnctl.system import RESUME_WITH_MORE, OutOfMemory, is_out_of_memory
from tnctl.tables import SparseTable
from tnctl.training import row_life
from tnctl.training.row_life import MemoryWatch, table_words

DONE = commands.Done()


class CommandLoop(ABC):
    """Runs the commands of rank 0, one after the other, until the run ends."""

    def __init__(self, conf: Conf, node: Node) -> None:
        self._conf, self._node = conf, node
        self._memory: MemoryWatch | None = None
        self._vocabularies: dict[str, list[str]] = {}
        self._writer = PartWriter(conf, node.membership.shards(node.rank))
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
                reply = self.do(command)
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

    @property
    @abstractmethod
    def tables(self) -> ParameterTables | None:
        """The tables of this process, once they were made."""

    @abstractmethod
    def do(self, command: commands.Command) -> Any:
        """Run a command, and return the document or bytes of its reply."""

    @abstractmethod
    def dense_states(self) -> list[Any]:
        """The optimizer's states of the dense slice of this process, float32."""

    def _out_of_memory(self, error: BaseException) -> OutOfMemory:
        held = "" if self.tables is None else table_words(self.tables)
        return OutOfMemory(error, RESUME_WITH_MORE, held=held)

    def do_with_rows(self, model: ParameterTables, command: commands.Command) -> Any:
        """The same as `do`, of a command for which the rows of this process are read or removed."""
        match command:
            case commands.FindKeys():
                return with_rows(model.tables, command)
            case commands.SumNorms():
                sums = norm_sums(model)
                return commands.Norms(slots={name: astuple(of) for name, of in sums.items()})
            case commands.SetDays(days=days):
                set_days(model, days)
            case commands.SetCounting(counting=counting):
                set_counting(model, counting)
            case commands.EndPeriod():
                shares = row_life.miscounted_by_table(model)
                return commands.Evicted(rows=row_life.remove_rows(model), miscounted=shares)
            case commands.CountRows():
                return commands.TableCounts(tables=tuple(table_counts(model)))
            case commands.DenseStates(place=state):
                return self.dense_states()[state].tobytes()
            case commands.MeasurePart(is_delta=is_delta):
                return self._writer.measure(model, is_delta=is_delta)
            case commands.StagePart(request=request):
                return self._writer.stage(model, request)
        return DONE

    def report_shortage(self, model: ParameterTables) -> None:
        """Report once that memory runs short; rank 0 saves, and ends all."""
        if self._memory is not None and (reason := self._memory.shortage(model)) is not None:
            self._memory = None
            self._node.command(0, commands.Shortage(rank=self._node.rank, reason=reason))

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


def set_days(model: ParameterTables, days: Sequence[tuple[int, int]]) -> None:
    """Set the days of a model's tables."""
    for table in model.tables:
        table.set_days(days)


def set_counting(model: ParameterTables, counting: bool) -> None:
    """Say whether occurrences count in a model's tables."""
    for table in model.tables:
        table.set_counting(counting)


def table_counts(model: ParameterTables) -> list[commands.TableCount]:
    """The counts of this process's part of each table."""
    return [
        commands.TableCount(
            rows=table.rows,
            bytes=table.index_bytes + table.row_bytes,
            groups=group_parts(table, layout.groups),
        )
        for layout, table in zip(model.layout.tables, model.tables, strict=True)
    ]


def with_rows(tables: Sequence[SparseTable], command: commands.FindKeys) -> bytes:
    """The reply to a command. Raises Failure for one that does not fit."""
    try:
        groups = np.frombuffer(base64.b64decode(command.groups, validate=True), "<u2")
        ids = np.frombuffer(base64.b64decode(command.ids, validate=True), "<u8")
        return tables[command.table].contains(groups, ids).tobytes()
    except (ValueError, IndexError) as error:
        raise Failure(f"a message of another worker is wrong: {error}") from error
