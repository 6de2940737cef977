"""The model of a run, made by all workers on command of rank 0: each with its rows, all alike."""

import base64
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import pairwise

from tnctl.checkpoint.chain import open_checkpoint
from tnctl.checkpoint.rows import check_count
from tnctl.cluster.messages import commands, server_commands
from tnctl.cluster.messages.shapes import first_floats
from tnctl.cluster.node import Node
from tnctl.cluster.transport.frames import Body
from tnctl.cluster.workers.share import built, dense_digest, loaded
from tnctl.data.statistics_document import Statistics
from tnctl.errors import Failure
from tnctl.manifest import DamagedError
from tnctl.model.building import Model
from tnctl.schema import Conf
from tnctl.training.warm.warm_start import Rows, WarmStart

FLOATS_AT_A_TIME = 1 << 22  # a command has at most 64 MiB


def build_together(node: Node, conf: Conf, statistics: Statistics) -> Model:
    """A model with initial weights and this worker's part of every table."""
    for slot, values in statistics.vocabularies.items():
        for first in range(0, max(len(values), 1), commands.PER_COMMAND):
            part = values[first : first + commands.PER_COMMAND]
            sent = node.command_members(commands.Vocabulary(slot=slot, values=part))
            commands.replies_of(commands.Done, sent)
    measured = replace(statistics, vocabularies={})
    replies = node.command_members(
        commands.Build(statistics=measured, batch_size=conf.train.batch_rows)
    )
    model = built(conf, statistics, node.rank, node.membership)
    _check_dense(node, model, commands.replies_of(commands.Built, replies))
    return model


def fill_together(node: Node, start: WarmStart, model: Model) -> None:
    """Give a new model what a warm start begins with: its rows to their owners, the rest to all."""
    checkpoint = start.checkpoint
    command = commands.StartWarm(folder=checkpoint.folder, sha256=checkpoint.manifest.sha256)

    def insert(rows: Rows) -> dict[str, int]:
        # What cannot be is known by now, so the others do not find it at the same time.
        replies = node.command_members(command)
        row_counts = Counter(rows.insert() if 0 in node.membership.writers else {})
        warmed = commands.replies_of(commands.Warmed, replies)
        _check_dense(node, model, warmed)
        for reply in warmed:
            row_counts.update(reply.rows)
        return dict(row_counts)

    start.fill(model, insert)


def load_together(node: Node, conf: Conf, folder: str) -> Model:
    """The model of the checkpoint in a folder, with this worker's rows.

    Raises DamagedError, also when the workers together have other rows than the manifest says.
    """
    command = commands.Load(
        folder=folder,
        batch_size=conf.train.batch_rows,
        working_folder=conf.paths.folder is None,
    )
    futures = node.command_members(command)
    model = loaded(conf, folder, node.rank, node.membership)
    parts = []
    for rank, reply in enumerate(commands.replies_of(commands.Loaded, futures), 1):
        if reply.built is None:
            what = f"{node.membership.name(rank)}: {reply.damage}"
            raise DamagedError(folder, what, "Take another checkpoint")
        parts.append(reply.built)
    _check_dense(node, model, parts)
    checkpoint = open_checkpoint(folder)
    tables = zip(model.layout.tables, model.tables, strict=True)
    for number, (layout, table) in enumerate(tables):
        total = table.rows + sum(part.rows[number] for part in parts)
        check_count(checkpoint, layout.name, total)
    return model


def start_together(node: Node, model: Model, steps: int) -> "list[Future[Body]]":
    """Let all others take part in the training of the model; the replies to come.

    Servers first receive their dense weights, and the optimizer's states of these.
    """
    starts = first_floats(model, node.workers, node.servers) if node.servers else []
    made = server_commands.MakeDense(sizes=tuple(model.dense.sizes), step=model.dense.step)
    for rank, (first, last) in zip(node.membership.owners[1:], pairwise(starts[1:]), strict=False):
        replies = [node.command(rank, made)]
        for place, array in enumerate([model.dense.flat_weights, *model.dense.flat_states]):
            for at in range(first, last, FLOATS_AT_A_TIME):
                part = array[at : min(at + FLOATS_AT_A_TIME, last)].astype("<f4")
                floats = base64.b64encode(part.tobytes()).decode()
                command = server_commands.SetDense(place=place, first=at, floats=floats)
                replies.append(node.command(rank, command))
                commands.replies_of(commands.Done, [replies.pop(0)])
        commands.replies_of(commands.Done, replies)
    return node.command_members(commands.Start(steps=steps))


def _check_dense(
    node: Node, model: Model, replies: Sequence[commands.Built | commands.Warmed]
) -> None:
    digest = dense_digest(model)
    for rank, reply in enumerate(replies[: node.workers - 1], 1):  # servers have none yet
        if reply.dense != digest:
            raise Failure(
                f"worker {rank} begins with other dense weights than worker 0. Use the same "
                "recipe, TensorFlow and kind of CPU on all machines"
            )
