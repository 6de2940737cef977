"""A dedicated server: it owns rows and dense weights, and does what rank 0 commands.

Its process never imports TensorFlow. It makes the tables of the conf itself, and reads its rows of
a checkpoint; the dense weights that it owns, which a network made by TensorFlow begins with, and
their optimizer's states it receives from rank 0.
"""

import time
from threading import Thread

import numpy as np
from numpy.typing import NDArray

from tnctl.checkpoint.chain import open_checkpoint
from tnctl.checkpoint.rows import fill_tables
from tnctl.cluster.messages.commands import command
from tnctl.cluster.messages.shapes import slice_of
from tnctl.cluster.owners.owned import new_owner, take_shards
from tnctl.cluster.workers.row_service import Built, RowService
from tnctl.data.statistics_document import Statistics
from tnctl.documents import Count, Sha256, Text, Uint32
from tnctl.errors import Failure, refuse_if
from tnctl.model.layout import plan
from tnctl.model.parameter_tables import ParameterTables, dense_table, empty_tables, pool_of
from tnctl.training.row_life import SECONDS_BETWEEN_CHECKS, MemoryWatch
from tnctl.training.warm.warm_start import start_again


class RowServer(RowService):
    """A process that owns rows and dense weights, and trains nothing."""

    def _new_model(self, statistics: Statistics, _: int) -> ParameterTables:
        """Tables without rows, and no dense weights."""
        layout, pool = plan(self.conf, statistics), pool_of(self.conf.train)
        tables = empty_tables(self.conf, layout, pool)
        dense = dense_table(self.conf, [], pool)
        model = ParameterTables(self.conf, layout, statistics, pool, tables, dense)
        take_shards(model, self.node.membership, self.node.rank)
        return model

    def _loaded(self, folder: str, batch_size: int, _: bool) -> ParameterTables:
        checkpoint = open_checkpoint(folder)
        model = self._new_model(checkpoint.statistics, batch_size)
        fill_tables(checkpoint, model, self.node.membership.shards(self.node.rank))
        return model

    def start_warm(self, folder: Text, sha256: Sha256) -> Built:
        start = start_again(self.conf, folder, sha256)
        return Built(dense=self._digest(), rows=start.transfer_rows(self.model))

    @command
    def make_dense(self, sizes: tuple[Count, ...], step: Count) -> None:
        """Make dense variables of so many floats; the optimizer has done `step` steps."""
        model = self.model
        model.dense = dense_table(self.conf, sizes, model.pool)
        model.dense.step = step

    @command
    def set_dense(self, place: Count, first: Count, floats: NDArray[np.float32]) -> None:
        """Set dense weights (`place` 0), or a state of them, of its slice, from `first` on.

        All weights are one array, as in `DenseTable`.
        """
        arrays = [self.model.dense.flat_weights, *self.model.dense.flat_states]
        start, stop = slice_of(self.model, self.node.membership, self.node.rank)
        end = first + len(floats)
        refuse_if(
            place >= len(arrays) or not start <= first <= end <= stop,
            "worker 0 sent dense weights of another server",
            Failure,
        )
        arrays[place][first:end] = floats

    def start(self, steps: Uint32) -> None:
        self.node.serve_owner(new_owner(self.conf, self.model, self.node, steps, [])[1])
        is_first = self._memory is None
        self._memory = MemoryWatch(self.model, self.node.on_machine)
        if is_first:
            Thread(target=self._watch_memory, name="tnctl-memory", daemon=True).start()

    def _watch_memory(self) -> None:
        """Until memory runs short: other than a worker, a server has no steps to look at it in."""
        while self._memory is not None and not self.has_ended and self.node.error is None:
            self.report_shortage()
            time.sleep(SECONDS_BETWEEN_CHECKS)
