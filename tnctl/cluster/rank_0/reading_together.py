"""Rank 0's view of all workers while they read the model of a checkpoint, each its part."""

from collections.abc import Generator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tnctl.checkpoint.chain import Checkpoint
from tnctl.cluster.messages import commands
from tnctl.cluster.node import Node
from tnctl.cluster.rank_0 import key_lookup
from tnctl.cluster.rank_0.building_together import load_together, start_together
from tnctl.cluster.rank_0.scoring_together import predict_together, score_together
from tnctl.cluster.workers.share import Share
from tnctl.evaluation.inference import Inference
from tnctl.evaluation.model_readers import LocalReader
from tnctl.progress import waiting
from tnctl.schema import Conf


class ClusterReaders(LocalReader):
    """All workers: each has the rows of its shards, and scores with all."""

    def __init__(self, node: Node, conf: Conf, checkpoint: Checkpoint) -> None:
        """Load the model of a checkpoint. Raises DamagedError."""
        self._node, self._conf = node, conf
        with waiting(f"loading {checkpoint.folder}"):
            self.model = model = load_together(node, conf, checkpoint.folder)
        replies = start_together(node, model, checkpoint.step)
        self._share = Share(conf, model, node, checkpoint.step, lambda ahead: next(ahead, None))
        commands.replies_of(commands.Done, replies)

    def metrics(self, split: str) -> dict[str, Any]:
        scored, _ = score_together(self._node, self._conf, self._share, split, lambda: None)
        return scored.metrics()

    def predictions(self, split: str) -> Generator[pa.Table]:
        return predict_together(self._node, self._conf, self._share, split)

    def inference(self, batch_size: int) -> Inference:
        return Inference(self.model, batch_size, self._share.parameters)

    def rows(
        self, table: int, groups: NDArray[np.uint16], ids: NDArray[np.uint64]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        return (
            key_lookup.rows(self._node, self.model, table, groups, ids),
            key_lookup.contains(self._node, self.model.tables[table], table, groups, ids),
        )
