"""Rank 0's view of all workers in asynchronous training."""

from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, wait
from typing import cast

from tnctl.cluster.messages import commands
from tnctl.cluster.rank_0.cluster import Cluster
from tnctl.cluster.rank_0.cluster_workers import ClusterWorkers
from tnctl.cluster.workers.async_share import AsyncShare
from tnctl.cluster.workers.leases import Leases
from tnctl.cluster.workers.worker import Worker
from tnctl.data.unit_records import Remainder
from tnctl.schema import Conf
from tnctl.training.state import PassPosition, PassSums
from tnctl.training.workers import Signals

SECONDS_BETWEEN_LOOKS = 0.1  # at the clock, while this worker has no data and others train


class AsyncClusterWorkers(ClusterWorkers):
    """All workers, each of which trains as fast as it can.

    A call of `train` is a batch of rank 0. Meanwhile others train more or fewer; `steps` is the
    clock of all. `pause` lets every worker push what it has pulled.
    """

    def __init__(self, conf: Conf, cluster: Cluster, steps: int, signals: Signals) -> None:
        self._leases = Leases(cluster.node)
        self._sums: PassSums | None = None
        self._is_training = False
        self._trainings = 0  # since the workers began, as they count them
        super().__init__(conf, cluster, steps, signals)

    def _begin(self, steps: int) -> None:
        super()._begin(steps)
        parameters = cast(AsyncShare, self.share).parameters
        parameters.is_interrupted = lambda: self.signals.received

    def _deal(self, of_pass: PassPosition) -> Iterable[Remainder]:
        self._leases.renew(of_pass.remainders)
        return self._leases

    def train(self, rate_factor: float, sums: PassSums) -> bool:
        """A batch of this worker, if it has one; whether any worker has another one."""
        share = cast(AsyncShare, self.share)
        self._last_metrics, self._sums = None, sums
        with self._node.named():
            if not self._is_training:
                self._resume(share, rate_factor)
            has_trained = share.train(rate_factor)
            if not has_trained:
                self._look(share, rate_factor)
        self._add_figures(share)
        return not share.is_over or self._others_train()

    def _resume(self, share: AsyncShare, rate_factor: float) -> None:
        share.parameters.laps.restart()
        self._is_training = True
        share.parameters.resume(rate_factor)
        # Only now: owners take exchanges of the others after the first one of rank 0.
        self._training = self._begin_training()
        self._trainings += 1

    def _look(self, share: AsyncShare, rate_factor: float) -> None:
        """While this worker has no batch: pass the rate on, and get the clock."""
        share.parameters.rate_factor = rate_factor
        if not share.is_over:
            share.parameters.refresh()
            return
        share.finish()
        left = [future for future in self._training if not future.done()]
        wait(left, SECONDS_BETWEEN_LOOKS, FIRST_COMPLETED)

    def _drain_others(self) -> None:
        """With servers: let workers, which see no messages of others, pull no more batches."""
        if self._node.servers:
            for rank in self._cluster.others:
                self._node.command(rank, AsyncShare.drain, self._trainings)

    def _others_train(self) -> bool:
        return any(not future.done() for future in self._training)

    def _add_figures(self, share: AsyncShare) -> None:
        """Add what owner 0 has received to the sums of the pass."""
        assert self._sums is not None
        for _ in range(share.owned.figures.qsize()):
            figures = share.owned.figures.get()
            self._sums.add(figures.loss, figures.logits, figures.labels)
        owner = share.owner
        for _ in range(owner.work.qsize()):
            self._work.add_one(owner.work.get())
        for _ in range(owner.batches.qsize()):
            self._work.add_batch(owner.batches.get())

    def pause(self) -> None:
        """Let all workers push what they have pulled, and wait for commands."""
        if not self._is_training:
            return
        share = cast(AsyncShare, self.share)
        with self._node.named():
            share.parameters.drain()
            self._drain_others()
            while not share.is_over:
                share.train(share.parameters.rate_factor)
            share.finish()
        trained, self._training = self._training, []
        replies = commands.results(Worker.train, trained)
        share.parameters.pause()
        self._is_training = False
        self._add_figures(share)
        self._take(replies)
