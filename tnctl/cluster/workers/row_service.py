"""What every process with rows does on command of rank 0, which is one too.

Imports no TensorFlow, for dedicated servers.
"""

import contextlib
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, replace
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl import documents, files
from tnctl.checkpoint.owners import (
    GroupPart,
    PartRequest,
    PartSize,
    PartWriter,
    StagedPart,
    WrittenPart,
    group_parts,
)
from tnctl.cluster.joining.members import NO_DIGEST
from tnctl.cluster.messages import commands
from tnctl.cluster.messages.commands import command
from tnctl.cluster.messages.shapes import slice_of
from tnctl.cluster.node import Node
from tnctl.cluster.worker_errors import is_unexpected, show_traceback
from tnctl.data.statistics_document import Statistics
from tnctl.documents import Count, Name, Share, Text, Uint32
from tnctl.errors import Failure, UserError
from tnctl.evaluation.importance import NormSum, norm_sums
from tnctl.manifest import DamagedError
from tnctl.model.parameter_tables import ParameterTables
from tnctl.schema import Conf
from tnctl.system import RESUME_WITH_MORE, OutOfMemory, is_out_of_memory
from tnctl.tables import PullWorkspace, RankKeys
from tnctl.training import row_life, row_vectors
from tnctl.training.row_life import MemoryWatch, table_words

MOST_SEEN_BYTES = 1 << 10  # of a file that all processes should see

Groups = NDArray[np.uint16]
Ids = NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True)
class Built:
    """The digest of all that is dense, which must be that of rank 0, and rows by their names.

    Rows are those of a process, of each table, or of each share group after a warm start.
    """

    dense: documents.Sha256
    rows: dict[str, Count]


@dataclass(frozen=True, kw_only=True)
class TableCount:
    """Rows and bytes of a process's part of a table, and the counts of its share groups."""

    rows: Count
    bytes: Count
    groups: tuple[GroupPart, ...]


class RowService(ABC):
    """A process that has rows: `Worker` and `RowServer`.

    Rank 0 calls the commands of its own directly (cluster.py); `run` answers them elsewhere.
    """

    def __init__(self, conf: Conf, node: Node) -> None:
        self.conf, self.node = conf, node
        self.shortages: deque[str] = deque()
        """on rank 0: the processes whose memory runs short, and why"""
        self.has_ended = False
        self._model: ParameterTables | None = None
        self._memory: MemoryWatch | None = None
        self._vocabularies: dict[str, list[str]] = {}
        self._writer = PartWriter(conf, node.membership.shards(node.rank))

    @property
    def model(self) -> ParameterTables:
        """The model that was made last."""
        if self._model is None:
            raise Failure("a command came before a model was made")
        return self._model

    @command
    def see_output(self, name: documents.RelativePath, content: Text) -> bool:
        """Whether a file that rank 0 wrote into the output is there and has the content."""
        url = files.join(self.conf.output, name)
        try:
            return files.read_bytes(url, most=MOST_SEEN_BYTES) == content.encode()
        except files.AbsentError:
            return False

    @command
    def end(self) -> None:
        """The run is finished: the process ends."""
        self.has_ended = True

    # ---- The model -----------------------------------------------------------------

    @command
    def add_vocabulary(self, slot: Name, values: list[str]) -> None:
        """Take further texts of a slot's vocabulary, for the next `build`."""
        self._vocabularies.setdefault(slot, []).extend(values)

    @command
    def build(self, statistics: Statistics, batch_size: Count) -> Built:
        """Make a model with initial weights.

        `statistics` are without vocabularies, which were added before. `batch_size` is rank 0's.
        """
        measured = replace(statistics, vocabularies=self._vocabularies)
        self._vocabularies = {}
        return self._made(self._new_model(measured, batch_size))

    @command
    @abstractmethod
    def start_warm(self, folder: Text, sha256: documents.Sha256) -> Built:
        """Give the model that was built what a warm start begins with.

        `sha256` is the digest of the manifest of the checkpoint in `folder`.
        """

    @command
    def insert_vectors(self) -> None:
        """Give the model that was built the rows of this process that start from vectors."""
        row_vectors.insert(self.model)

    @command
    def load(self, folder: Text, batch_size: Count, working_folder: bool) -> Built | Text:
        """Load this process's shards of a checkpoint; a worker all dense weights too.

        `working_folder`: rank 0's paths start from there. A text says what is damaged, for rank 0
        to take another checkpoint; there it is raised as DamagedError.
        """
        self.node.serve_owner(None)
        self._drop_model()  # its memory is needed
        try:
            return self._made(self._loaded(folder, batch_size, working_folder))
        except DamagedError as error:
            if self.node.rank == 0:
                raise
            return error.what

    @command
    @abstractmethod
    def start(self, steps: Uint32) -> None:
        """Take part from now on in the training of the model; `steps` were trained before."""

    @abstractmethod
    def _new_model(self, statistics: Statistics, batch_size: int) -> ParameterTables:
        """A model without rows."""

    @abstractmethod
    def _loaded(self, folder: str, batch_size: int, working_folder: bool) -> ParameterTables:
        """The model of `load`. Raises DamagedError."""

    def _digest(self) -> str:
        return NO_DIGEST

    def _drop_model(self) -> None:
        self._model = None

    def _made(self, model: ParameterTables) -> Built:
        self._model = model
        tables = zip(model.layout.tables, model.tables, strict=True)
        rows = {layout.name: table.rows for layout, table in tables}
        return Built(dense=self._digest(), rows=rows)

    # ---- Rows ----------------------------------------------------------------------

    @command
    def set_days(self, days: tuple[tuple[Uint32, Uint32], ...]) -> None:
        """Set the days of the tables' clock: (day, first step)."""
        for table in self.model.tables:
            table.set_days(days)

    @command
    def set_counting(self, counting: bool, inserting: bool) -> None:
        """Say whether occurrences count in the tables from now on, and new ids get rows."""
        for table in self.model.tables:
            table.set_counting(counting)
            table.set_inserting(inserting)

    @command
    def end_period(self) -> tuple[dict[str, Count], dict[str, Share]]:
        """Evict as a day or an epoch ends: rows by share group, `miscounted_by_table`."""
        shares = row_life.miscounted_by_table(self.model)
        return row_life.remove_rows(self.model), shares

    @command
    def count_rows(self) -> tuple[TableCount, ...]:
        """Count the rows of each table."""
        return tuple(
            TableCount(
                rows=table.rows,
                bytes=table.index_bytes + table.row_bytes,
                groups=group_parts(table, layout.groups),
            )
            for layout, table in zip(self.model.layout.tables, self.model.tables, strict=True)
        )

    @command
    def find_keys(self, table: Count, groups: Groups, ids: Ids) -> NDArray[np.bool_]:
        """Which of n keys of a table, by its number, have a row: bool [n]."""
        return self.model.tables[table].contains(groups, ids)

    @command
    def read_rows(
        self, table: Count, groups: Groups, ids: Ids
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """What is read of n keys of a table that this process owns, and which of them have a row.

        float32 [n, floats read], zeros where there is none, and bool [n].
        """
        stored = self.model.tables[table]
        rows = np.zeros((len(ids), stored.read_floats), np.float32)
        if len(ids):
            workspace = PullWorkspace(stored)
            workspace.find([RankKeys(ids, groups)], insert=False)
            workspace.read(0, rows)
        return rows, stored.contains(groups, ids)

    @command
    def sum_norms(self) -> dict[str, NormSum]:
        """Add up the norms of embeddings by slot, for the report."""
        return norm_sums(self.model)

    # ---- Checkpoints ---------------------------------------------------------------

    @command
    def read_states(self, place: Count) -> NDArray[np.float32]:
        """One of the optimizer's states of the dense slice of this process, by its place."""
        first, last = slice_of(self.model, self.node.membership, self.node.rank)
        return self.model.dense.flat_states[place][first:last]

    @command
    def measure_part(self, is_delta: bool) -> PartSize:
        """How large the part of this process of a checkpoint will be."""
        return self._writer.measure(self.model, is_delta=is_delta)

    @command
    def stage_part(self, request: PartRequest) -> StagedPart:
        """Write the part; rows may change afterwards."""
        return self._writer.stage(self.model, request)

    @command
    def finish_part(self) -> WrittenPart:
        """Bring the files of the part to their place."""
        return self._writer.finish()

    @command
    def commit_part(self) -> None:
        """Take note that the manifest is there."""
        self._writer.committed()

    @command
    def abandon_part(self) -> None:
        """Drop the part, for there will be no manifest."""
        self._writer.abandon()

    # ---- Memory --------------------------------------------------------------------

    @command
    def take_shortage(self, line: Text) -> None:
        """To rank 0: the tables of a process, which the line names, may not have room to grow."""
        self.shortages.append(line)

    def shortage(self) -> str | None:
        """What `take_shortage` says of this process, once; else None."""
        model, memory = self._model, self._memory  # other threads may drop them
        if model is None or memory is None or (reason := memory.shortage(model)) is None:
            return None
        self._memory = None
        membership = self.node.membership
        return reason if membership.size == 1 else f"{membership.name(self.node.rank)}: {reason}"

    def report_shortage(self) -> None:
        """Report once to rank 0 that memory runs short: it saves, and ends all."""
        if (line := self.shortage()) is not None:
            self.node.command(0, RowService.take_shortage, line)

    # ---- On another rank than 0 ------------------------------------------------------

    def run(self) -> None:
        """Run the commands of rank 0, one after the other, until the run ends.

        Raises what has ended it otherwise.
        """
        # What completes checkpoints is run while the main thread trains.
        completing: SimpleQueue[Any] = SimpleQueue()
        for method in (RowService.finish_part, RowService.commit_part, RowService.abandon_part):
            self.node.route(method, lambda *received: completing.put(received))
        Thread(target=self._complete, args=[completing], name="tnctl-parts", daemon=True).start()
        self._obey(self.node.commands)
        if not self.has_ended:
            assert self.node.error is not None
            raise self.node.error

    def _complete(self, queue: "SimpleQueue[Any]") -> None:
        with contextlib.suppress(UserError):  # rank 0 knows it
            self._obey(queue)

    def _obey(self, queue: "SimpleQueue[Any]") -> None:
        """Run the commands of a queue until the run ends. Raises what it has reported."""
        while not self.has_ended and (received := queue.get()) is not None:
            body, respond = received
            try:
                respond(commands.run(self, body))
            except Exception as error:
                if is_unexpected(error):
                    # First: this process may be ended as soon as rank 0 knows.
                    show_traceback(error)
                raise self.node.fail(self._in_words(error)) from error

    def _in_words(self, error: Exception) -> Exception:
        if not is_out_of_memory(error):
            return error
        held = "" if self._model is None else table_words(self._model)
        return OutOfMemory(error, RESUME_WITH_MORE, held=held)
