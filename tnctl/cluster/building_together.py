"""The model of a run, made by all workers on command of rank 0: each with its rows, all alike."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tnctl.checkpoint.load import open_checkpoint
from tnctl.checkpoint.rows import check_count
from tnctl.cluster import commands
from tnctl.cluster.node import Node
from tnctl.cluster.share import built, dense_digest, loaded
from tnctl.data.statistics import Statistics
from tnctl.errors import Failure
from tnctl.manifest import DamagedError
from tnctl.model.building import Model
from tnctl.schema import Conf
from tnctl.training.warm import Rows, WarmStart


def build_together(node: Node, conf: Conf, statistics: Statistics) -> Model:
    """A model with initial weights and this worker's part of every table."""
    measured = statistics.measured()
    for slot, values in measured.vocabularies.items():
        for first in range(0, max(len(values), 1), commands.PER_COMMAND):
            part = values[first : first + commands.PER_COMMAND]
            sent = node.command_others(commands.Vocabulary(slot=slot, values=part))
            commands.replies_of(commands.Done, sent)
    measured = replace(measured, vocabularies={})
    replies = node.command_others(commands.Build(statistics=measured))
    model = built(conf, statistics, node.rank, node.workers)
    _check_dense(model, commands.replies_of(commands.Built, replies))
    return model


def fill_together(node: Node, start: WarmStart, model: Model) -> None:
    """Give a new model what a warm start begins with: its rows to their owners, the rest to all."""
    checkpoint = start.checkpoint
    command = commands.StartWarm(folder=checkpoint.folder, sha256=checkpoint.manifest.sha256)

    def insert(rows: Rows) -> dict[str, int]:
        # What cannot be is known by now, so the others do not find it at the same time.
        replies = node.command_others(command)
        row_counts = Counter(rows.insert())
        warmed = commands.replies_of(commands.Warmed, replies)
        _check_dense(model, warmed)
        for reply in warmed:
            row_counts.update(reply.rows)
        return dict(row_counts)

    start.fill(model, insert)


def load_together(node: Node, conf: Conf, folder: str) -> Model:
    """The model of the checkpoint in a folder, with this worker's rows.

    Raises DamagedError, also when the workers together have other rows than the manifest says.
    """
    futures = node.command_others(commands.Load(folder=folder))
    model = loaded(conf, folder, node.rank, node.workers)
    parts = []
    for rank, reply in enumerate(commands.replies_of(commands.Loaded, futures), 1):
        if reply.built is None:
            what = f"worker {rank}: {reply.damage}"
            raise DamagedError(folder, what, "Take another checkpoint")
        parts.append(reply.built)
    _check_dense(model, parts)
    checkpoint = open_checkpoint(folder)
    tables = zip(model.layout.tables, model.tables, strict=True)
    for number, (layout, table) in enumerate(tables):
        total = table.rows + sum(part.rows[number] for part in parts)
        check_count(checkpoint, layout.name, total)
    return model


def _check_dense(model: Model, replies: Sequence[commands.Built | commands.Warmed]) -> None:
    digest = dense_digest(model)
    for rank, reply in enumerate(replies, 1):
        if reply.dense != digest:
            raise Failure(
                f"worker {rank} begins with other dense weights than worker 0. Use the same "
                "recipe, TensorFlow and kind of CPU on all machines"
            )
