"""A split, scored by all workers on command of rank 0: each reads its units, with rows of all."""

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future

import pyarrow as pa

from tnctl.cluster.messages import commands, prediction_blocks, reading_commands, scores
from tnctl.cluster.messages.prediction_blocks import PredictionBlocks
from tnctl.cluster.node import Node
from tnctl.cluster.transport.frames import Body
from tnctl.cluster.workers.share import Share
from tnctl.data.bad_rows import Skipped
from tnctl.data.sources import Source, window_rows
from tnctl.data.unit_records import Remainder, Unit
from tnctl.data.windows import none_left
from tnctl.errors import Failure
from tnctl.evaluation.metrics import Scored
from tnctl.evaluation.split_scoring import Counts
from tnctl.progress import waiting
from tnctl.schema import Conf


def score_together(
    node: Node, conf: Conf, share: Share, split: str, between: Callable[[], None]
) -> tuple[Scored, Counts]:
    """The examples of a split in the order of its units, each scored by one worker.

    `between` is called after every batch, and may raise to end this.
    """
    first, *others = _dealt_units(node, conf, split)
    moving = tuple(tuple(map(float, array)) for array in share.moving)
    command = commands.Evaluate(split=split, moving=moving, recalibration=share.model.recalibration)
    replies = node.command_others(command)
    skipped, counts = Skipped(split, conf.data.bad_rows), Counts(share.model.layout)
    with node.named():
        scored, scored_rows = share.scored(split, first, skipped, counts, between)
    received = commands.replies_of(commands.UnitsScored, replies)
    for of_worker, reply in zip(others, received, strict=True):
        if len(reply.rows) != len(of_worker) or not (
            reply.present.keys() == reply.ids.keys() == counts.present.keys()
        ):
            raise Failure("a worker has scored other units, or a model with other inputs")
        counts.merge(reply.examples, reply.present, reply.ids)
        skipped.add(reply.skipped, reply.reason)
    if not counts.examples:
        raise none_left(Source(conf, split), skipped)
    skipped.report()

    def request(rank: int, first: int, rows: int) -> "Future[Body]":
        return node.command(rank, commands.SendScores(first=first, rows=rows))

    rows = [scored_rows, *(reply.rows for reply in received)]
    arrays = [scores.arrays_of(scored), *(reply.arrays for reply in received)]
    return scores.gathered(scored, rows, arrays, request, between), counts


def predict_together(node: Node, conf: Conf, share: Share, split: str) -> Generator[pa.Table]:
    """The predictions of a split in the order of the data, in the windows of one process.

    First all workers predict, each into a file of its machine. Then they are read block by block.
    """
    first, *others = _dealt_units(node, conf, split)
    replies = node.command_others(reading_commands.Predict(split=split))
    skipped = Skipped(split, conf.data.bad_rows)
    blocks = PredictionBlocks()
    with waiting(f"predicting on {node.workers} workers"), node.named():
        counts = [blocks.predict(share.inference, conf, split, first, skipped)]
        received = commands.replies_of(reading_commands.UnitsPredicted, replies)
    for of_worker, reply in zip(others, received, strict=True):
        if len(reply.blocks) != len(of_worker):
            raise Failure("a worker has predicted other units")
        counts.append(list(reply.blocks))
        skipped.add(reply.skipped, reply.reason)
    if not any(map(sum, counts)):
        raise none_left(Source(conf, split), skipped)
    size = window_rows(conf.data.window, conf.train.batch_rows)
    yield from prediction_blocks.in_windows(_in_order(node, blocks, counts), size)
    skipped.report()


def _in_order(
    node: Node, first: PredictionBlocks, counts: Sequence[Sequence[int]]
) -> Iterator[pa.Table]:
    """The blocks of all workers in the order of the units; unit i is of worker i modulo theirs.

    `counts` are the blocks of each unit, by worker. One block of another worker is on its way while
    the one before it is used.
    """
    numbers = [0] * node.workers

    def ordered() -> Iterator[tuple[int, int]]:
        for place in range(max(map(len, counts))):
            for rank, of_worker in enumerate(counts):
                for _ in range(of_worker[place] if place < len(of_worker) else 0):
                    yield rank, numbers[rank]
                    numbers[rank] += 1

    def request(rank: int, number: int) -> "Future[Body]":
        if rank:
            return node.command(rank, reading_commands.SendPredictions(block=number))
        read: Future[Body] = Future()
        with node.named():
            read.set_result(first.read(number))
        return read

    ahead: Future[Body] | None = None
    for rank, number in ordered():
        reply, ahead = ahead, request(rank, number)
        if reply is not None:
            yield prediction_blocks.parsed(reply.result())
    if ahead is not None:
        yield prediction_blocks.parsed(ahead.result())


def send_units(node: Node, others: Sequence[Sequence[Remainder]]) -> None:
    """Send units to the other workers, in so many commands as it takes."""
    for first in range(0, max(map(len, others), default=0), commands.PER_COMMAND):
        parts = [tuple(of_worker[first : first + commands.PER_COMMAND]) for of_worker in others]
        sent = [
            node.command(rank, commands.TakeUnits(remainders=part))
            for rank, part in enumerate(parts, 1)
            if part
        ]
        commands.replies_of(commands.Done, sent)


def _dealt_units(node: Node, conf: Conf, split: str) -> list[list[Unit]]:
    """The units of a split by worker; each of the others has been sent its own."""
    all_units = Source(conf, split).units(node.workers)
    dealt = [all_units[rank :: node.workers] for rank in range(node.workers)]
    send_units(node, [list(map(Remainder, of_worker)) for of_worker in dealt[1:]])
    return dealt
