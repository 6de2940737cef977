"""Rank 0's view of all workers in hybrid training."""

from typing import cast

from tnctl.cluster.messages import commands
from tnctl.cluster.rank_0.cluster_workers import ClusterWorkers
from tnctl.cluster.workers.hybrid_share import HybridShare
from tnctl.training.pass_sums import PassSums


class HybridClusterWorkers(ClusterWorkers):
    """All workers, in step with each other: a call of `train` is a step of all.

    `pause` trains one more step, of batches whose rows were requested.
    """

    _is_training = False

    def train(self, rate_factor: float, sums: PassSums) -> bool:
        """A step of all workers; whether some worker has a batch for another one."""
        share = cast(HybridShare, self.share)
        self._last_metrics = None
        share.owned.sums = sums
        with self._node.named():
            if not self._is_training:
                self._resume(share, rate_factor)
            share.train(rate_factor)
        self._add_work()
        return share.parameters.any_next

    def _add_work(self) -> None:
        super()._add_work()
        self._add_batches(cast(HybridShare, self.share).hybrid_owner.rows.batches)

    def _resume(self, share: HybridShare, rate_factor: float) -> None:
        share.parameters.laps.restart()
        self._is_training = True
        share.parameters.resume(rate_factor)
        # Only now: owners take requests of rows after the first message of rank 0.
        self._training = self._node.command_others(commands.Train())

    def pause(self) -> None:
        """Let all workers train what they have requested, and wait for commands."""
        if not self._is_training:
            return
        share = cast(HybridShare, self.share)
        with self._node.named():
            share.stop()
        trained, self._training = self._training, []
        replies = commands.replies_of(commands.Trained, trained)
        share.parameters.pause()
        self._is_training = False
        self._add_work()
        self._take(replies)
