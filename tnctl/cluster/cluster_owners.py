"""The parts of a checkpoint that all workers write, as rank 0 asks for them."""

import contextlib
import itertools
from collections.abc import Sequence

import numpy as np

from tnctl.checkpoint.owners import PartWriter, tables_of
from tnctl.checkpoint.parts import PartRequest, PartSize, StagedPart, WrittenPart
from tnctl.cluster import commands
from tnctl.cluster.node import Node
from tnctl.cluster.shapes import first_floats
from tnctl.errors import Failure, UserError
from tnctl.model.building import Model
from tnctl.schema import Conf
from tnctl.tables.shards import shards_of


class ClusterOwners:
    """All workers, each of which writes the rows of its shards."""

    def __init__(self, conf: Conf, node: Node) -> None:
        self._node = node
        self._writer = PartWriter(conf, shards_of(node.rank, node.workers))

    def measure(self, model: Model, *, is_delta: bool) -> list[PartSize]:
        replies = self._node.command_others(commands.MeasurePart(is_delta=is_delta))
        own_part = self._writer.measure(tables_of(model), is_delta=is_delta)
        return [own_part, *(commands.reply_of(PartSize, reply.result()) for reply in replies)]

    def stage(self, model: Model, requests: Sequence[PartRequest]) -> list[StagedPart]:
        self._take_states(model)
        own_request, *others = requests
        replies = [
            self._node.command(rank, commands.StagePart(request=request))
            for rank, request in enumerate(others, 1)
        ]
        with self._node.named():
            own_part = self._writer.stage(tables_of(model), own_request)
        return [own_part, *(commands.reply_of(StagedPart, reply.result()) for reply in replies)]

    def finish(self) -> list[WrittenPart]:
        replies = self._node.command_others(commands.FinishPart())
        with self._node.named():
            own_part = self._writer.finish()
        return [own_part, *(commands.reply_of(WrittenPart, reply.result()) for reply in replies)]

    def committed(self) -> None:
        replies = self._node.command_others(commands.CommitPart())
        self._writer.committed()
        for reply in replies:
            reply.result()

    def abandon(self) -> None:
        replies = self._node.command_others(commands.AbandonPart())
        self._writer.abandon()
        for reply in replies:
            with contextlib.suppress(UserError):  # the caller raises what went wrong first
                reply.result()

    def _take_states(self, model: Model) -> None:
        """The optimizer's states of the dense weights, one after the other from all owners."""
        slices = list(itertools.pairwise(first_floats(model, self._node.workers)))
        for place, state in enumerate(model.dense.flat_states):
            replies = self._node.command_others(commands.DenseStates(place=place))
            for (first, last), reply in zip(slices[1:], replies, strict=True):
                received = np.frombuffer(reply.result(), np.float32)
                if len(received) != last - first:
                    raise Failure("a worker sent another number of states of dense weights")
                state[first:last] = received
