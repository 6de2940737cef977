"""The model of a run, which all members make on command of rank 0, and the parts that they save."""

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from tnctl.checkpoint.chain import open_checkpoint
from tnctl.checkpoint.owners import PartRequest, PartSize, StagedPart, WrittenPart
from tnctl.checkpoint.rows import check_count
from tnctl.cluster.messages.commands import BLOCK_BYTES, PER_COMMAND
from tnctl.cluster.messages.shapes import first_floats
from tnctl.cluster.rank_0.cluster import Cluster
from tnctl.cluster.workers.row_service import Built, RowService
from tnctl.cluster.workers.server import RowServer
from tnctl.cluster.workers.worker import dense_digest
from tnctl.data.statistics_document import Statistics
from tnctl.errors import Failure, UserError
from tnctl.manifest import DamagedError
from tnctl.model.building import Model
from tnctl.schema import Conf, Train
from tnctl.training.warm.warm_start import Rows, WarmStart


def build(cluster: Cluster, train: Train, statistics: Statistics) -> Model:
    """A model with initial weights and this worker's part of every table."""
    for slot, values in statistics.vocabularies.items():
        for first in range(0, max(len(values), 1), PER_COMMAND):
            part = values[first : first + PER_COMMAND]
            cluster.each(cluster.members, RowService.add_vocabulary, slot, part)
    measured = replace(statistics, vocabularies={})
    _check_dense(
        cluster, cluster.each(cluster.members, RowService.build, measured, train.batch_rows)
    )
    return cluster.worker.model


def fill(cluster: Cluster, start: WarmStart, model: Model) -> None:
    """Give the new model what a warm start begins with: rows to their owners, the rest to all."""
    checkpoint = start.checkpoint
    given = checkpoint.folder, checkpoint.manifest.sha256

    def insert(rows: Rows) -> dict[str, int]:
        # What cannot be is known by now, so the others do not find it at the same time.
        sent = cluster.send(RowService.start_warm, dict.fromkeys(cluster.members[1:], given))
        row_counts = Counter(rows.insert() if 0 in cluster.writers else {})
        parts = [Built(dense=dense_digest(model), rows={}), *(wait() for wait in sent)]
        _check_dense(cluster, parts)
        for part in parts:
            row_counts.update(part.rows)
        return dict(row_counts)

    start.fill(model, insert)


def load(cluster: Cluster, conf: Conf, folder: str) -> Model:
    """The model of the checkpoint in a folder, with this worker's rows.

    Raises DamagedError, also when the members together have other rows than the manifest says.
    """
    given = folder, conf.train.batch_rows, conf.paths.folder is None
    parts = []
    for rank, part in enumerate(cluster.each(cluster.members, RowService.load, *given)):
        if isinstance(part, str):
            what = f"{cluster.node.membership.name(rank)}: {part}"
            raise DamagedError(folder, what, "Take another checkpoint")
        parts.append(part)
    _check_dense(cluster, parts)
    checkpoint = open_checkpoint(folder)
    for name in parts[0].rows:
        check_count(checkpoint, name, sum(part.rows[name] for part in parts))
    return cluster.worker.model


def start(cluster: Cluster, steps: int) -> None:
    """Let all members take part in the training of the model.

    Servers first receive their dense weights, and the optimizer's states of these.
    """
    node, dense = cluster.node, cluster.worker.model.dense
    starts = first_floats(cluster.worker.model, node.workers, node.servers)
    for rank, (first, last) in zip(node.membership.owners, pairwise(starts), strict=True):
        if not node.membership.is_server(rank):
            continue
        cluster.call(rank, RowServer.make_dense, tuple(dense.sizes), dense.step)
        for place, array in enumerate([dense.flat_weights, *dense.flat_states]):
            floats = BLOCK_BYTES // array.itemsize
            for at in range(first, last, floats):
                part = array[at : min(at + floats, last)]
                cluster.call(rank, RowServer.set_dense, place, at, part)
    cluster.each(cluster.members, RowService.start, steps)


def _check_dense(cluster: Cluster, parts: Sequence[Built]) -> None:
    for rank in cluster.others:  # servers have none yet
        if parts[rank].dense != parts[0].dense:
            raise Failure(
                f"worker {rank} begins with other dense weights than worker 0. Use the same "
                "recipe, TensorFlow and kind of CPU on all machines"
            )


class ClusterOwners:
    """All that own rows, as those that write a checkpoint: each writes the rows of its shards."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._writers = cluster, cluster.writers

    def measure(self, _: Model, *, is_delta: bool) -> list[PartSize]:
        with self._cluster.node.named():
            sizes = self._cluster.each(self._writers, RowService.measure_part, is_delta)
        names = map(self._cluster.node.membership.name, self._writers)
        return [replace(part, owner=name) for part, name in zip(sizes, names, strict=True)]

    def stage(self, model: Model, requests: Sequence[PartRequest]) -> list[StagedPart]:
        self._take_states(model)
        given = {rank: [request] for rank, request in zip(self._writers, requests, strict=True)}
        with self._cluster.node.named():
            return [wait() for wait in self._cluster.send(RowService.stage_part, given)]

    def finish(self) -> list[WrittenPart]:
        with self._cluster.node.named():
            return self._cluster.each(self._writers, RowService.finish_part)

    def committed(self) -> None:
        self._cluster.each(self._writers, RowService.commit_part)

    def abandon(self) -> None:
        with contextlib.suppress(UserError):  # the caller raises what went wrong first
            self._cluster.each(self._writers, RowService.abandon_part)

    def _take_states(self, model: Model) -> None:
        """The optimizer's states of the dense weights, one after the other from all owners."""
        node = self._cluster.node
        slices = list(pairwise(first_floats(model, node.workers, node.servers)))
        for place, state in enumerate(model.dense.flat_states):
            parts = self._cluster.each(self._writers, RowService.read_states, place)
            # With servers the first owner is worker 0, which owns none.
            for (first, last), part in zip(slices[-len(parts) :], parts, strict=True):
                state[first:last] = part
