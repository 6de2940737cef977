"""Rank 0's view of all workers: what the training loop, checkpoints and the report use."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.checkpoint.document import Position
from tnctl.checkpoint.load import Checkpoint
from tnctl.cluster import commands, key_lookup, scores, shared_output
from tnctl.cluster.building_together import build_together, fill_together, load_together
from tnctl.cluster.cluster_owners import ClusterOwners
from tnctl.cluster.follower import set_days, table_counts
from tnctl.cluster.frames import Body
from tnctl.cluster.node import Node, Respond
from tnctl.cluster.replies import Owned
from tnctl.cluster.share import Share
from tnctl.cluster.work import WorkSums
from tnctl.data import units
from tnctl.data.bad_rows import Skipped
from tnctl.data.statistics import Statistics
from tnctl.data.unit_records import Progress, Remainder
from tnctl.data.windows import none_left
from tnctl.errors import Failure
from tnctl.evaluation.inference import Inference
from tnctl.evaluation.input_figures import NormSum, norm_sums
from tnctl.evaluation.metrics import Scored
from tnctl.evaluation.split_scoring import BatchCounter, Counts
from tnctl.model.building import Model
from tnctl.model.table_figures import TableFigures
from tnctl.progress import say, waiting
from tnctl.schema import Conf
from tnctl.tables import Figures
from tnctl.training import eviction
from tnctl.training.memory_watch import MemoryWatch
from tnctl.training.pass_position import PassPosition
from tnctl.training.pass_sums import PassSums
from tnctl.training.signals import Signals
from tnctl.training.state import RunState
from tnctl.training.warm import WarmStart
from tnctl.training.worker_figures import WorkerFigures
from tnctl.training.workers import SplitMetrics, look_at_training_data

SECONDS_OF_A_SIGNAL = 2.0


class ClusterProcesses:
    """The workers of a cluster, while the model of a run is made. Rank 0 has it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._output_is_seen = node.workers == 1
        self.signals: Signals | None = None
        """those of the training, once it has begun"""

    def build(self, conf: Conf, statistics: Statistics) -> Model:
        """A model with initial weights and this worker's part of every table."""
        self._check_output(conf.output)
        return build_together(self._node, conf, statistics)

    def fill(self, start: WarmStart, model: Model) -> None:
        """The rows of the checkpoint go to their owners, the dense weights to all workers."""
        fill_together(self._node, start, model)

    def load(self, checkpoint: Checkpoint, conf: Conf) -> Model:
        """The model of a checkpoint with this worker's rows. Raises DamagedError."""
        self._check_output(conf.output)
        return load_together(self._node, conf, checkpoint.folder)

    def workers(self, conf: Conf, model: Model, steps: int, signals: Signals) -> "ClusterWorkers":
        # The system may send a signal to the supervisor, which passes it on, and to each worker.
        signals.seconds_apart = SECONDS_OF_A_SIGNAL
        self.signals = signals
        return ClusterWorkers(conf, model, steps, signals, self._node)

    def _check_output(self, output: str) -> None:
        if not self._output_is_seen:
            shared_output.check(self._node, output)
            self._output_is_seen = True


class ClusterBatches:
    """A pass over the training data by all workers."""

    def __init__(
        self,
        workers: "ClusterWorkers",
        conf: Conf,
        of_pass: PassPosition,
        skipped: Skipped,
        others: int,
        has_batch: bool,
    ) -> None:
        """`skipped` counts the rows of all; `others` are the workers beside this one."""
        self._workers, self._conf = workers, conf
        self._of_pass, self._skipped = of_pass, skipped
        self._reported = [0] * others  # rows not read that each other worker has reported
        self._has_batch = has_batch  # whether some worker has one
        self._waited_at_start = workers.share.seconds_waited
        self.position = of_pass.position
        """at the last pause"""

    @property
    def seconds_waited(self) -> float:
        return self._workers.share.seconds_waited - self._waited_at_start

    def wait(self) -> bool:
        self._workers.signals.check()
        if not self._has_batch:
            self._workers.pause()
            if self._of_pass.is_at_start:
                raise none_left(self._conf, "train", self._skipped)
            self._of_pass.report_skipped()
        return self._has_batch

    def add(self, first: Progress | None, others: Sequence[commands.Trained]) -> None:
        """Take in what this worker and the others have trained since the last pause."""
        for number, trained in enumerate(others):
            self._skipped.add(trained.skipped - self._reported[number], trained.reason)
            self._reported[number] = trained.skipped
        for progress in (*(trained.progress for trained in others), first):
            if progress is not None:
                self._of_pass.add(progress)
        self.position = self._of_pass.position

    def train(self, rate_factor: float, sums: PassSums) -> None:
        self._has_batch = self._workers.train(rate_factor, sums)


class ClusterWorkers:
    """All workers, of which this one, rank 0, commands the others.

    While they train, they exchange with each other and read no commands; `pause` ends that, with
    all gradients applied, and is called by every method that needs it.
    """

    def __init__(self, conf: Conf, model: Model, steps: int, signals: Signals, node: Node) -> None:
        self._conf, self.signals, self._node = conf, signals, node
        self._training: list[Future[Body]] = []  # replies to `Train`, while workers train
        self._batches: ClusterBatches | None = None
        self._last_metrics: tuple[int, SplitMetrics] | None = None
        self._warning = ""  # the last one about workers without data
        self._owners = ClusterOwners(conf, node)
        self._work = WorkSums(node.workers)
        self._memory = MemoryWatch(model, node.workers)
        self._shortages: SimpleQueue[tuple[bytes, Respond]] = SimpleQueue()
        node.route({"shortage"}, self._shortages)
        self._begin(model, steps)

    def _begin(self, model: Model, steps: int) -> None:
        replies = self._node.command_others(commands.Start(steps=steps))
        self.share = Share(self._conf, model, self._node, steps, self.signals.next_of)
        commands.replies_of(commands.Done, replies)
        self._groups = self._counted()

    @property
    def steps(self) -> int:
        return self.share.parameters.steps

    @property
    def model(self) -> Model:
        return self.share.model

    @property
    def inference(self) -> Inference:
        self.pause()
        return self.share.inference

    @property
    def owners(self) -> ClusterOwners:
        return self._owners

    def figures(self) -> list[TableFigures]:
        """Rows and bytes are those of the last exchange, counts of groups of the last pause."""
        last = self.share.parameters.last
        if not last:
            return self._groups
        return [
            replace(table, rows=sum(o.rows for o in owned), bytes=sum(o.bytes for o in owned))
            for table, owned in zip(
                self._groups, zip(*(reply.owned for reply in last), strict=True), strict=True
            )
        ]

    def worker_figures(self) -> list[WorkerFigures]:
        if self._node.workers == 1:
            return []
        last: Sequence[Sequence[Owned | commands.TableCount]]
        last = [reply.owned for reply in self.share.parameters.last] or self._parts
        return self._work.figures(
            [(sum(table.rows for table in of), sum(table.bytes for table in of)) for of in last]
        )

    def shortage(self) -> str | None:
        if not self._shortages.empty():
            body, respond = self._shortages.get()
            respond(commands.encode(commands.Done()))
            received = commands.reply_of(commands.Shortage, body)
            return f"worker {received.rank}: {received.reason}"
        reason = self._memory.shortage(self.model)
        return reason if reason is None or self._node.workers == 1 else f"worker 0: {reason}"

    # ---- A pass ------------------------------------------------------------------

    @contextlib.contextmanager
    def batches(self, conf: Conf, position: Position, skipped: Skipped) -> Iterator[ClusterBatches]:
        of_pass = PassPosition(conf, position, self._node.workers, skipped)
        warning = units.too_few(conf, "train", of_pass.remainders, self._node.workers)
        if warning is not None and warning != self._warning:
            say(f"warning: {warning}")
            self._warning = warning
        first, *others = of_pass.dealt()
        self._send_units(others)
        replies = self._node.command_others(
            commands.StartPass(day=position.day, passes=position.passes)
        )
        try:
            with self._node.named():
                self.share.start_pass(conf, position.passes, first, skipped)
                has_batch = self.share.has_batches(1)
            started = commands.replies_of(commands.PassStarted, replies)
            has_batch = has_batch or any(reply.has_batch for reply in started)
            self._batches = ClusterBatches(self, conf, of_pass, skipped, len(others), has_batch)
            yield self._batches
            self.pause()
            commands.replies_of(commands.Done, self._node.command_others(commands.EndPass()))
        finally:
            self._batches = None
            self.share.end_pass()

    def train(self, rate_factor: float, sums: PassSums) -> bool:
        """A step of all workers; whether some worker has a batch for another one."""
        if not self._training:
            self._training = self._node.command_others(commands.Train())
            self.share.parameters.laps.restart()
        self._last_metrics = None
        self.share.owned.sums = sums
        with self._node.named():
            self.share.train(rate_factor)
        self._work.add(self.share.owner.work)
        return self.share.parameters.last[0].any_next

    def pause(self) -> None:
        """Let all workers apply what is under way, and wait for commands."""
        if not self._training and self.share.parameters.is_settled:
            return
        self.share.parameters.pause()
        self._work.add(self.share.owner.work)
        trained, self._training = self._training, []
        replies = commands.replies_of(commands.Trained, trained)
        if self._batches is not None:
            self._batches.add(self.share.take_progress(), replies)
        self.share.parameters.read_dense()
        self._groups = self._counted()

    def settle(self, state: RunState) -> None:
        self.pause()
        if self._batches is not None:
            state.position = self._batches.position

    # ---- While training pauses -----------------------------------------------------

    def evaluate(self, split: str) -> SplitMetrics:
        self.pause()
        if self._last_metrics is not None:
            step, known = self._last_metrics
            if (step, known.split) == (self.steps, split):
                return replace(known, seconds=0.0)
        started = time.perf_counter()
        with waiting(f"evaluating on data.{split}"):
            scored, counts = self._score(split)
            metrics = scored.metrics()
        measured = SplitMetrics(split, metrics, counts, time.perf_counter() - started)
        self._last_metrics = self.steps, measured
        return measured

    def _score(self, split: str) -> tuple[Scored, Counts]:
        """The examples of a split in the order of its units, each scored by one worker."""
        workers, conf = self._node.workers, self._conf
        all_units = units.units_of(conf, split, workers)
        first, *others = (all_units[rank::workers] for rank in range(workers))
        moving = tuple(tuple(map(float, array)) for array in self.share.moving)
        self._send_units([list(map(Remainder, of_worker)) for of_worker in others])
        replies = self._node.command_others(commands.Evaluate(split=split, moving=moving))
        skipped, counts = Skipped(split, conf.data.bad_rows), Counts(self.model.layout)
        with self._node.named():
            scored, scored_rows = self.share.scored(
                split, first, skipped, counts, self.signals.check
            )
        received = commands.replies_of(commands.UnitsScored, replies)
        for of_worker, reply in zip(others, received, strict=True):
            if len(reply.rows) != len(of_worker) or not (
                reply.present.keys() == reply.ids.keys() == counts.present.keys()
            ):
                raise Failure("a worker has scored other units, or a model with other inputs")
            counts.merge(reply.examples, reply.present, reply.ids)
            skipped.add(reply.skipped, reply.reason)
        if not counts.examples:
            raise none_left(conf, split, skipped)
        skipped.report()

        def request(rank: int, first: int, rows: int) -> "Future[Body]":
            return self._node.command(rank, commands.SendScores(first=first, rows=rows))

        rows = [scored_rows, *(reply.rows for reply in received)]
        arrays = [scores.arrays_of(scored), *(reply.arrays for reply in received)]
        return scores.gathered(scored, rows, arrays, request, self.signals.check), counts

    def _send_units(self, others: Sequence[Sequence[Remainder]]) -> None:
        """Send units to the other workers, in so many commands as it takes."""
        for first in range(0, max(map(len, others), default=0), commands.PER_COMMAND):
            parts = [tuple(of_worker[first : first + commands.PER_COMMAND]) for of_worker in others]
            sent = [
                self._node.command(rank, commands.TakeUnits(remainders=part))
                for rank, part in enumerate(parts, 1)
                if part
            ]
            commands.replies_of(commands.Done, sent)

    def look(self, conf: Conf, counter: BatchCounter, *, scored: bool) -> dict[str, Any] | None:
        """Rank 0 reads the day alone: what the counters keep depends on the order of rows."""
        self.pause()
        return look_at_training_data(
            conf, self.share.inference, counter, scored=scored, between=self.signals.check
        )

    def contains(
        self, table: int, groups: NDArray[np.uint16], ids: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        self.pause()
        return key_lookup.contains(self._node, self.model.tables[table], table, groups, ids)

    def embedding_norms(self) -> dict[str, NormSum]:
        self.pause()
        replies = self._node.command_others(commands.SumNorms())
        norms = norm_sums(self.model)
        for reply in commands.replies_of(commands.Norms, replies):
            for slot, counted in reply.slots.items():
                norms[slot] = norms.get(slot, NormSum()) + NormSum(*counted)
        return norms

    def set_days(self, days: Sequence[tuple[int, int]]) -> None:
        self.pause()
        replies = self._node.command_others(commands.SetDays(days=tuple(days)))
        set_days(self.model, days)
        commands.replies_of(commands.Done, replies)
        self._last_metrics = None

    def end_of_period(self) -> dict[str, int]:
        self.pause()
        replies = self._node.command_others(commands.EndPeriod())
        shares = eviction.miscounted_by_table(self.model)
        removed = Counter(eviction.remove_rows(self.model))
        for reply in commands.replies_of(commands.Evicted, replies):
            removed.update(reply.rows)
            for name, share in reply.miscounted.items():
                shares[name] = shares.get(name, 0.0) + share
        eviction.warn_of_sketches(shares)
        if any(removed.values()):
            self._last_metrics = None
            self.share.parameters.last = []
        self._groups = self._counted()
        return dict(removed)

    def load(self, folder: str) -> None:
        self.pause()
        steps = self.steps
        self._last_metrics = None
        self._node.serve_owner(None)
        del self.share
        model = load_together(self._node, self._conf, folder)
        self._begin(model, steps)

    def _counted(self) -> list[TableFigures]:
        """The counts of all workers together."""
        replies = self._node.command_others(commands.CountRows())
        self._parts = [table_counts(self.model)]
        self._parts += [
            list(reply.tables) for reply in commands.replies_of(commands.TableCounts, replies)
        ]
        return [_together(of_table) for of_table in zip(*self._parts, strict=True)]


def _together(parts: Sequence[commands.TableCount]) -> TableFigures:
    groups = {}
    for of_group in zip(*(part.groups for part in parts), strict=True):
        rows, evicted = sum(g.rows for g in of_group), sum(g.evicted for g in of_group)
        waiting_ = max(sum(g.waiting for g in of_group), 0)
        groups[of_group[0].name] = Figures(rows, rows + evicted, waiting_, evicted)
    return TableFigures(sum(p.rows for p in parts), sum(p.bytes for p in parts), groups)
