"""A dedicated server: it owns rows and dense weights, and does what rank 0 commands.

Its process never imports TensorFlow. It makes the tables of the conf itself, and reads its rows of
a checkpoint; the dense weights that it owns, which a network made by TensorFlow begins with, and
their optimizer's states it receives from rank 0.
"""

import base64
import time
from dataclasses import replace
from threading import Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.checkpoint.chain import open_checkpoint
from tnctl.checkpoint.rows import fill_tables
from tnctl.cluster import shared_output
from tnctl.cluster.joining.digests import NO_DIGEST
from tnctl.cluster.messages import commands, server_commands
from tnctl.cluster.messages.shapes import first_floats
from tnctl.cluster.node import Node
from tnctl.cluster.owners.owning import new_owner, take_shards
from tnctl.cluster.workers.command_loop import DONE, CommandLoop
from tnctl.data.statistics_document import Statistics
from tnctl.errors import Failure
from tnctl.manifest import DamagedError
from tnctl.model.layout import plan
from tnctl.model.parameter_tables import ParameterTables, dense_table, empty_tables, pool_of
from tnctl.schema import Conf
from tnctl.training.row_life import SECONDS_BETWEEN_CHECKS, MemoryWatch
from tnctl.training.warm.warm_start import start_again

MOST_DENSE_FLOATS = 1 << 34  # more than 64 owners can exchange


class RowServer(CommandLoop):
    """The commands of rank 0 to a server."""

    def __init__(self, conf: Conf, node: Node) -> None:
        super().__init__(conf, node)
        self._model: ParameterTables | None = None
        self._slice = 0, 0

    def run(self) -> None:
        try:
            super().run()
        finally:
            self._memory = None  # ends its thread

    @property
    def tables(self) -> ParameterTables | None:
        return self._model

    @property
    def _made(self) -> ParameterTables:
        if self._model is None:
            raise Failure("a command came before a model was made")
        return self._model

    def do(self, command: commands.Command) -> Any:
        match command:
            case commands.SeeOutput(name=name, content=content):
                return commands.Seen(seen=shared_output.sees(self._conf.output, name, content))
            case commands.Vocabulary(slot=slot, values=values):
                self._vocabularies.setdefault(slot, []).extend(values)
            case commands.Build(statistics=statistics):
                measured = replace(statistics, vocabularies=self._vocabularies)
                self._vocabularies = {}
                self._model = self._empty(measured)
                return self._built(self._model)
            case commands.StartWarm(folder=folder, sha256=sha256):
                start = start_again(self._conf, folder, sha256)
                return commands.Warmed(dense=NO_DIGEST, rows=start.transfer_rows(self._made))
            case commands.Load(folder=folder):
                return self._load(folder)
            case server_commands.MakeDense(sizes=sizes, step=step):
                self._make_dense(sizes, step)
            case server_commands.SetDense():
                self._set_dense(command)
            case commands.Start(steps=steps):
                self._start(steps)
            case commands.End():
                return DONE  # `run` returns
            case _:
                return self.do_with_rows(self._made, command)
        return DONE

    def dense_states(self) -> list[NDArray[np.float32]]:
        first, last = self._slice
        return [state[first:last] for state in self._made.dense.flat_states]

    def _empty(self, statistics: Statistics) -> ParameterTables:
        """Tables without rows, and no dense weights."""
        conf = self._conf
        layout, pool = plan(conf, statistics), pool_of(conf.train)
        tables = empty_tables(conf, layout, pool)
        dense = dense_table(conf, [], pool)
        model = ParameterTables(conf, layout, statistics, pool, tables, dense)
        take_shards(model, self._node.membership, self._node.rank)
        return model

    def _built(self, model: ParameterTables) -> commands.Built:
        return commands.Built(dense=NO_DIGEST, rows=tuple(table.rows for table in model.tables))

    def _load(self, folder: str) -> commands.Loaded:
        self._node.serve_owner(None)
        self._model = None  # its memory is needed
        try:
            checkpoint = open_checkpoint(folder)
            model = self._empty(checkpoint.statistics)
            fill_tables(checkpoint, model, self._node.membership.shards(self._node.rank))
        except DamagedError as error:
            return commands.Loaded(damage=error.what)
        self._model = model
        return commands.Loaded(built=self._built(model))

    def _make_dense(self, sizes: tuple[int, ...], step: int) -> None:
        model = self._made
        if sum(sizes) > MOST_DENSE_FLOATS:
            raise Failure(f"worker 0 has {sum(sizes):,} dense weights")
        model.dense = dense_table(self._conf, sizes, model.pool)
        model.dense.step = step
        number = self._node.membership.owners.index(self._node.rank)
        starts = first_floats(model, self._node.workers, self._node.servers)
        self._slice = starts[number], starts[number + 1]

    def _set_dense(self, command: server_commands.SetDense) -> None:
        dense, (first, last) = self._made.dense, self._slice
        try:
            floats = np.frombuffer(base64.b64decode(command.floats, validate=True), "<f4")
            array = [dense.flat_weights, *dense.flat_states][command.place]
        except (ValueError, IndexError) as error:
            raise Failure(f"a message of another worker is wrong: {error}") from error
        if not first <= command.first <= command.first + len(floats) <= last:
            raise Failure("worker 0 sent dense weights of another server")
        array[command.first : command.first + len(floats)] = floats

    def _start(self, steps: int) -> None:
        model, node = self._made, self._node
        node.serve_owner(new_owner(self._conf, model, node, steps, [])[1])
        is_first = self._memory is None
        self._memory = MemoryWatch(model, node.on_machine)
        if is_first:
            Thread(target=self._watch_memory, name="tnctl-memory", daemon=True).start()

    def _watch_memory(self) -> None:
        """Until memory runs short: other than a worker, a server has no steps to look at it in."""
        while self._memory is not None:
            if (model := self._model) is not None:
                self.report_shortage(model)
            time.sleep(SECONDS_BETWEEN_CHECKS)
