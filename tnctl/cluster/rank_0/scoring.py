"""What all workers read of a model on command of rank 0: scores, predictions, rows of keys."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tnctl.checkpoint.chain import Checkpoint
from tnctl.cluster.messages import commands, prediction_blocks
from tnctl.cluster.messages.commands import BLOCK_BYTES
from tnctl.cluster.rank_0 import building
from tnctl.cluster.rank_0.cluster import Cluster
from tnctl.cluster.workers.row_service import Groups, Ids, RowService
from tnctl.cluster.workers.worker import UnitsScored, Worker
from tnctl.data.bad_rows import Skipped
from tnctl.data.sources import Source, window_rows
from tnctl.data.unit_records import Remainder
from tnctl.data.windows import none_left
from tnctl.errors import Failure
from tnctl.evaluation.inference import Inference
from tnctl.evaluation.metrics import Scored
from tnctl.evaluation.model_readers import LocalReader
from tnctl.evaluation.split_scoring import Counts, labelled_heads
from tnctl.progress import waiting
from tnctl.schema import Conf
from tnctl.tables.plans import HASHES_PER_SHARD

KEYS_AT_A_TIME = 1 << 20  # a command has at most 64 MiB
ROWS_AT_A_TIME = 1 << 12  # a message has at most 1 GiB, and a row up to 65,536 floats


class ClusterReaders(LocalReader):
    """All workers: each has the rows of its shards, and scores with all."""

    def __init__(self, cluster: Cluster, conf: Conf, checkpoint: Checkpoint) -> None:
        """Load the model of a checkpoint. Raises DamagedError."""
        self._cluster, self._conf = cluster, conf
        with waiting(f"loading {checkpoint.folder}"):
            self.model = building.load(cluster, conf, checkpoint.folder)
        building.start(cluster, checkpoint.step)

    def metrics(self, split: str) -> dict[str, Any]:
        scored, _ = score(self._cluster, self._conf, split, lambda: None)
        return scored.metrics()

    def predictions(self, split: str) -> Generator[pa.Table]:
        return predictions(self._cluster, self._conf, split)

    def inference(self, batch_size: int) -> Inference:
        return Inference(self.model, batch_size, self._cluster.worker.share.parameters)

    def rows(
        self, table: int, groups: Groups, ids: Ids
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        owners = _owners(self._cluster, table, groups, ids)
        columns = self.model.tables[table].read_floats
        return self._cluster.rows(
            RowService.read_rows, owners, ROWS_AT_A_TIME, columns, table, groups, ids
        )


# ---- Units of a split ------------------------------------------------------------


def send_units(cluster: Cluster, dealt: Mapping[int, Sequence[Remainder]]) -> None:
    """Give units to workers, by rank, in so many commands as it takes."""
    for first in range(0, max(map(len, dealt.values()), default=0), commands.PER_COMMAND):
        end = first + commands.PER_COMMAND
        given = {rank: [tuple(units[first:end])] for rank, units in dealt.items() if units[first:]}
        for wait in cluster.send(Worker.take_units, given):
            wait()


def _deal_units(cluster: Cluster, conf: Conf, split: str) -> None:
    """Give each worker its units of a split."""
    units = [Remainder(unit) for unit in Source(conf, split).units(len(cluster.workers))]
    send_units(cluster, {rank: units[rank :: len(cluster.workers)] for rank in cluster.workers})


def score(
    cluster: Cluster, conf: Conf, split: str, between: Callable[[], None]
) -> tuple[Scored, Counts]:
    """The examples of a split in the order of its units, each scored by one worker.

    `between` is called after every batch, and may raise to end this.
    """
    worker, model = cluster.worker, cluster.worker.model
    _deal_units(cluster, conf, split)
    worker.between = between
    moving = np.concatenate([np.empty(0, np.float32), *worker.share.moving])
    with cluster.node.named():
        parts = cluster.each(cluster.workers, Worker.evaluate, split, moving, model.recalibration)
    counts, skipped = Counts(model.layout), Skipped(split, conf.data.bad_rows)
    for part in parts:
        counts.merge(part.examples, part.present, part.ids)
        skipped.take(part.skipped)
    if not counts.examples:
        raise none_left(Source(conf, split), skipped)
    skipped.report()
    heads = [name for name, _, _ in labelled_heads(model)]
    arrays = _gathered(cluster, parts, BLOCK_BYTES // (8 * len(heads)), between)
    squared, ndcg_at = conf.train.loss.name == "mse", conf.evaluation.ndcg_at
    return Scored(heads, **arrays, squared=squared, ndcg_at=ndcg_at), counts


def _gathered(
    cluster: Cluster, parts: Sequence[UnitsScored], most: int, between: Callable[[], None]
) -> dict[str, NDArray[Any]]:
    """The arrays of a split in the order of its units; unit i is of worker i modulo theirs.

    `most` rows of each worker are on their way at a time. Raises Failure when the examples of
    workers do not fit together.
    """
    names = {part.arrays for part in parts if any(part.rows)}
    if len(names) != 1:
        columns = " / ".join(sorted(map(", ".join, names)))
        raise Failure(f"workers have scored different columns: {columns}")
    rows = np.zeros(sum(len(part.rows) for part in parts), np.int64)
    for rank, part in enumerate(parts):
        rows[rank :: len(parts)] = part.rows
    units = np.split(np.arange(rows.sum()), np.cumsum(rows)[:-1])
    # Of each worker the places of its examples among all.
    places = [np.concatenate([rows[:0], *units[rank :: len(parts)]]) for rank in range(len(parts))]
    arrays: dict[str, NDArray[Any]] = {}
    for name in names.pop():
        for first in range(0, max(map(len, places)), most):
            blocks = {r: at[first : first + most] for r, at in enumerate(places) if len(at) > first}
            given = {rank: (name, first, len(at)) for rank, at in blocks.items()}
            waits = cluster.send(Worker.read_scores, given)
            between()
            for at, wait in zip(blocks.values(), waits, strict=True):
                block = wait()
                if name not in arrays:
                    arrays[name] = np.empty((int(rows.sum()), *block.shape[1:]), block.dtype)
                arrays[name][at] = block.reshape(len(at), *arrays[name].shape[1:])
    return arrays


def predictions(cluster: Cluster, conf: Conf, split: str) -> Generator[pa.Table]:
    """The predictions of a split in the order of the data, in the windows of one process.

    First all workers predict, each into a file of its machine. Then they are read block by block.
    """
    _deal_units(cluster, conf, split)
    with waiting(f"predicting on {len(cluster.workers)} workers"), cluster.node.named():
        parts = cluster.each(cluster.workers, Worker.predict, split)
    skipped = Skipped(split, conf.data.bad_rows)
    for _, skipped_rows in parts:
        skipped.take(skipped_rows)
    if not any(any(blocks) for blocks, _ in parts):
        raise none_left(Source(conf, split), skipped)
    size = window_rows(conf.data.window, conf.train.batch_rows)
    tables = _in_order(cluster, [blocks for blocks, _ in parts])
    yield from prediction_blocks.in_windows(tables, size)
    skipped.report()


def _in_order(cluster: Cluster, counts: Sequence[Sequence[int]]) -> Iterator[pa.Table]:
    """The blocks of all workers in the order of the units; unit i is of worker i modulo theirs.

    `counts` are the blocks of each unit, by worker. One block of another worker is on its way while
    the one before it is used.
    """
    numbers = [0] * len(counts)
    ahead: Callable[[], NDArray[np.uint8]] | None = None
    for place in range(max(map(len, counts))):
        for rank, of_worker in enumerate(counts):
            for _ in range(of_worker[place] if place < len(of_worker) else 0):
                block = ahead
                [ahead] = cluster.send(Worker.read_predictions, {rank: [numbers[rank]]})
                numbers[rank] += 1
                if block is not None:
                    yield _table(cluster, block)
    if ahead is not None:
        yield _table(cluster, ahead)


def _table(cluster: Cluster, block: Callable[[], NDArray[np.uint8]]) -> pa.Table:
    with cluster.node.named():
        return prediction_blocks.parsed(block())


# ---- Keys ------------------------------------------------------------------------


def contains(cluster: Cluster, table: int, groups: Groups, ids: Ids) -> NDArray[np.bool_]:
    """Which of n keys of a table, by its number, have a row: bool [n]. Owners are asked."""
    has_row = np.zeros(len(ids), np.bool_)
    owners = _owners(cluster, table, groups, ids)
    for places, known in cluster.each_key(
        RowService.find_keys, owners, KEYS_AT_A_TIME, table, groups, ids
    ):
        has_row[places] = known.reshape(len(places))
    return has_row


def _owners(cluster: Cluster, table: int, groups: Groups, ids: Ids) -> NDArray[np.int64]:
    """The rank that owns each of some keys."""
    membership = cluster.node.membership
    starts = np.array(membership.first_shards[:-1], np.uint64) * np.uint64(HASHES_PER_SHARD)
    hashes = cluster.worker.model.tables[table].hashes(groups, ids)
    # Of two that begin at the same place the first owns nothing.
    return np.array(membership.owners)[np.searchsorted(starts, hashes, side="right") - 1]
