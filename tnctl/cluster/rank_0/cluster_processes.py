"""The workers of a cluster while the model of a run is made, as rank 0 sees them."""

from typing import TYPE_CHECKING

from tnctl.checkpoint.chain import Checkpoint
from tnctl.cluster import shared_output
from tnctl.cluster.node import Node
from tnctl.cluster.rank_0.async_workers import AsyncClusterWorkers
from tnctl.cluster.rank_0.building_together import build_together, fill_together, load_together
from tnctl.cluster.rank_0.cluster_workers import ClusterWorkers
from tnctl.cluster.rank_0.reading_together import ClusterReaders
from tnctl.data.statistics_document import Statistics
from tnctl.model.building import Model
from tnctl.schema import Conf
from tnctl.training.warm.warm_start import WarmStart
from tnctl.training.workers import OneProcess, Signals

if TYPE_CHECKING:
    from tnctl.cluster.rank_0.exporting_together import ClusterWriters

SECONDS_OF_A_SIGNAL = 2.0


class ClusterProcesses(OneProcess):
    """The workers of a cluster, while the model of a run is made. Rank 0 has it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._output_is_seen = node.membership.size == 1
        self.signals: Signals | None = None
        """those of the training, once it has begun"""

    def build(self, conf: Conf, statistics: Statistics) -> Model:
        """A model with initial weights and this worker's part of every table."""
        self._check_output(conf.output)
        return build_together(self._node, conf, statistics)

    def fill(self, start: WarmStart, model: Model) -> None:
        """The rows of the checkpoint go to their owners, the dense weights to all workers."""
        fill_together(self._node, start, model)

    def load(self, checkpoint: Checkpoint, conf: Conf) -> Model:
        """The model of a checkpoint with this worker's rows. Raises DamagedError."""
        self._check_output(conf.output)
        return load_together(self._node, conf, checkpoint.folder)

    def readers(self, checkpoint: Checkpoint, conf: Conf) -> ClusterReaders:
        """All workers with the model of a checkpoint, to read it only. Raises DamagedError."""
        return ClusterReaders(self._node, conf, checkpoint)

    def writers(self) -> "ClusterWriters":
        """All workers, to write an export."""
        from tnctl.cluster.rank_0.exporting_together import ClusterWriters

        return ClusterWriters(self._node)

    def workers(self, conf: Conf, model: Model, steps: int, signals: Signals) -> ClusterWorkers:
        # The system may send a signal to the supervisor, which passes it on, and to each worker.
        signals.seconds_apart = SECONDS_OF_A_SIGNAL
        self.signals = signals
        kind = AsyncClusterWorkers if conf.cluster.mode == "async" else ClusterWorkers
        return kind(conf, model, steps, signals, self._node)

    def _check_output(self, output: str) -> None:
        if not self._output_is_seen:
            shared_output.check(self._node, output)
            self._output_is_seen = True
