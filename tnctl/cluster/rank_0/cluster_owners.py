"""The parts of a checkpoint that all owners of rows write, as rank 0 asks for them."""

import contextlib
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from tnctl.checkpoint.owners import PartRequest, PartSize, PartWriter, StagedPart, WrittenPart
from tnctl.cluster.messages import commands
from tnctl.cluster.messages.shapes import first_floats
from tnctl.cluster.node import Node
from tnctl.cluster.transport.frames import Body
from tnctl.errors import Failure, UserError
from tnctl.model.building import Model
from tnctl.schema import Conf

_Part = TypeVar("_Part", PartSize, StagedPart, WrittenPart)


class ClusterOwners:
    """All that own rows, each of which writes those of its shards."""

    def __init__(self, conf: Conf, node: Node) -> None:
        self._node = node
        self._writes = node.rank in node.membership.writers
        self._writer = PartWriter(conf, node.membership.shards(node.rank))

    def measure(self, model: Model, *, is_delta: bool) -> list[PartSize]:
        replies = self._node.command_writers(commands.MeasurePart(is_delta=is_delta))
        sizes = self._parts(
            PartSize, replies, lambda: self._writer.measure(model, is_delta=is_delta)
        )
        membership = self._node.membership
        names = map(membership.name, membership.writers)
        return [replace(part, owner=name) for part, name in zip(sizes, names, strict=True)]

    def stage(self, model: Model, requests: Sequence[PartRequest]) -> list[StagedPart]:
        self._take_states(model)
        replies = [
            self._node.command(rank, commands.StagePart(request=request))
            for rank, request in zip(self._node.membership.writers, requests, strict=True)
            if rank != self._node.rank
        ]
        return self._parts(StagedPart, replies, lambda: self._writer.stage(model, requests[0]))

    def finish(self) -> list[WrittenPart]:
        replies = self._node.command_writers(commands.FinishPart())
        return self._parts(WrittenPart, replies, self._writer.finish)

    def committed(self) -> None:
        replies = self._node.command_writers(commands.CommitPart())
        if self._writes:
            self._writer.committed()
        for reply in replies:
            reply.result()

    def abandon(self) -> None:
        replies = self._node.command_writers(commands.AbandonPart())
        if self._writes:
            self._writer.abandon()
        for reply in replies:
            with contextlib.suppress(UserError):  # the caller raises what went wrong first
                reply.result()

    def _parts(
        self, kind: type[_Part], replies: "list[Future[Body]]", own_part: Callable[[], _Part]
    ) -> list[_Part]:
        """The parts of all owners of rows, in their order; this process's if it has rows."""
        parts: list[Any] = []
        if self._writes:
            with self._node.named():
                parts.append(own_part())
        return [*parts, *commands.replies_of(kind, replies)]

    def _take_states(self, model: Model) -> None:
        """The optimizer's states of the dense weights, one after the other from all owners."""
        node = self._node
        slices = list(itertools.pairwise(first_floats(model, node.workers, node.servers)))
        for place, state in enumerate(model.dense.flat_states):
            replies = node.command_writers(commands.DenseStates(place=place))
            for (first, last), reply in zip(slices[1:], replies, strict=True):
                received = np.frombuffer(reply.result(), np.float32)
                if len(received) != last - first:
                    raise Failure("a worker sent another number of states of dense weights")
                state[first:last] = received
