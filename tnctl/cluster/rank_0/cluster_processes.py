"""The workers of a cluster while the model of a run is made, as rank 0 sees them."""

import secrets
from typing import TYPE_CHECKING

from tnctl import files
from tnctl.checkpoint.chain import Checkpoint
from tnctl.cluster.node import Node
from tnctl.cluster.rank_0 import building
from tnctl.cluster.rank_0.cluster import Cluster
from tnctl.cluster.rank_0.cluster_workers import ClusterWorkers
from tnctl.cluster.rank_0.scoring import ClusterReaders
from tnctl.cluster.workers.row_service import RowService
from tnctl.cluster.workers.worker import Worker
from tnctl.data.statistics_document import Statistics
from tnctl.errors import refuse_if
from tnctl.model.building import Model
from tnctl.ownership import WORKER_LOGS
from tnctl.schema import Conf
from tnctl.training.warm.warm_start import WarmStart
from tnctl.training.workers import OneProcess, Signals

if TYPE_CHECKING:
    from tnctl.cluster.rank_0.exporting import ClusterWriters

SECONDS_OF_A_SIGNAL = 2.0
SEEN_BY_ALL = f"{WORKER_LOGS}/seen-by-all"  # a file of the output


class ClusterProcesses(OneProcess):
    """The workers of a cluster, while the model of a run is made. Rank 0 has it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._output_is_seen = node.membership.size == 1
        self._cluster: Cluster | None = None
        self.signals: Signals | None = None
        """those of the training, once it has begun"""

    def _new_cluster(self, conf: Conf) -> Cluster:
        self._cluster = cluster = Cluster(Worker(conf, self._node))
        return cluster

    def build(self, conf: Conf, statistics: Statistics) -> Model:
        """A model with initial weights and this worker's part of every table."""
        cluster = self._new_cluster(conf)
        self._check_output(cluster)
        return building.build(cluster, conf.train, statistics)

    def fill(self, start: WarmStart, model: Model) -> None:
        """The rows of the checkpoint go to their owners, the dense weights to all workers."""
        assert self._cluster is not None
        building.fill(self._cluster, start, model)

    def insert_vectors(self, _: Model) -> None:
        """Each owner of rows reads the vectors of its own."""
        assert self._cluster is not None
        self._cluster.each(self._cluster.writers, RowService.insert_vectors)

    def load(self, checkpoint: Checkpoint, conf: Conf) -> Model:
        """The model of a checkpoint with this worker's rows. Raises DamagedError."""
        cluster = self._new_cluster(conf)
        self._check_output(cluster)
        return building.load(cluster, conf, checkpoint.folder)

    def readers(self, checkpoint: Checkpoint, conf: Conf) -> ClusterReaders:
        """All workers with the model of a checkpoint, to read it only. Raises DamagedError."""
        return ClusterReaders(self._new_cluster(conf), conf, checkpoint)

    def writers(self) -> "ClusterWriters":
        """All workers, to write an export."""
        from tnctl.cluster.rank_0.exporting import ClusterWriters

        return ClusterWriters(self._new_cluster)

    def workers(self, conf: Conf, _: Model, steps: int, signals: Signals) -> ClusterWorkers:
        assert self._cluster is not None
        # The system may send a signal to the supervisor, which passes it on, and to each worker.
        signals.seconds_apart = SECONDS_OF_A_SIGNAL
        self.signals = signals
        return ClusterWorkers(conf, self._cluster, steps, signals)

    def end(self) -> None:
        """Let the other processes end: the run is finished."""
        replies = [
            self._node.command(rank, RowService.end)
            for rank in range(1, self._node.membership.size)
        ]
        for reply in replies:
            reply.result()

    def _check_output(self, cluster: Cluster) -> None:
        """Refuse an output that is another folder for some process. Raises UserError."""
        if self._output_is_seen:
            return
        output, content = cluster.worker.conf.output, secrets.token_hex(16)
        url = files.join(output, SEEN_BY_ALL)
        files.write_bytes(url, content.encode(), durable=False)
        try:
            seen = cluster.each(cluster.members, RowService.see_output, SEEN_BY_ALL, content)
            for rank in cluster.members:
                refuse_if(
                    not seen[rank],
                    f"output={output}: {self._node.membership.name(rank)} does not see the file "
                    "that worker 0 wrote there. Choose a folder of a storage that all workers "
                    "share",
                )
        finally:
            files.remove_file(url)
        self._output_is_seen = True
