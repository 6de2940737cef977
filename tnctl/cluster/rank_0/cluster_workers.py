"""Rank 0's view of all workers: what the training loop, checkpoints and the report use."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tnctl.checkpoint.document import Position
from tnctl.cluster.messages import commands
from tnctl.cluster.messages.exchange import Owned
from tnctl.cluster.messages.work import WorkSums, figures_of_servers
from tnctl.cluster.owners.arrivals import Arrivals
from tnctl.cluster.owners.barrier import Barrier
from tnctl.cluster.owners.owned import ArrivingPart
from tnctl.cluster.rank_0 import building, scoring
from tnctl.cluster.rank_0.building import ClusterOwners
from tnctl.cluster.rank_0.cluster import Cluster
from tnctl.cluster.transport.kinds import Body
from tnctl.cluster.workers.row_service import RowService, TableCount
from tnctl.cluster.workers.share import Leases, Share
from tnctl.cluster.workers.worker import Trained, Worker
from tnctl.data.bad_rows import Skipped
from tnctl.data.sources import Source
from tnctl.data.unit_records import Progress, Remainder
from tnctl.data.windows import none_left
from tnctl.evaluation.importance import NormSum
from tnctl.evaluation.inference import Inference
from tnctl.evaluation.metrics import Scored
from tnctl.evaluation.split_scoring import Counts
from tnctl.model.building import Model
from tnctl.model.parameter_tables import TableFigures
from tnctl.progress import say
from tnctl.schema import Conf
from tnctl.tables import Figures
from tnctl.training import row_life
from tnctl.training.report.worker_figures import WorkerSums
from tnctl.training.state import PassPosition, PassSums, RunState
from tnctl.training.step import SeenLabels
from tnctl.training.workers import Batches, Signals, SplitMetrics, Workers

SECONDS_BETWEEN_LOOKS = 0.1  # at the clock, while this worker has no data and others train


class ClusterBatches(Batches):
    """A pass over the training data by all workers."""

    has_batch = False
    """whether some worker has one, as far as this one knows"""

    def __init__(
        self, workers: "ClusterWorkers", source: Source, of_pass: PassPosition, skipped: Skipped
    ) -> None:
        """`skipped` counts the rows of all."""
        self._workers, self._source = workers, source
        self._of_pass, self._skipped = of_pass, skipped
        self._reported: Counter[int] = Counter()  # rows not read, by other worker
        self._waited_at_start = workers.share.seconds_waited
        self.position = of_pass.position
        """at the last pause"""

    @property
    def seconds_waited(self) -> float:
        return self._workers.share.seconds_waited - self._waited_at_start

    def wait(self) -> bool:
        self._workers.signals.check()
        if not self.has_batch:
            self._workers.pause()
            if self._of_pass.is_at_start:
                raise none_left(self._source, self._skipped)
            self._of_pass.report_skipped()
        return self.has_batch

    def add(self, first: Progress | None, others: Sequence[Trained]) -> None:
        """Take in what this worker and the others have trained since the last pause."""
        for number, trained in enumerate(others):
            self._skipped.add(trained.skipped - self._reported[number], trained.reason)
            self._reported[number] = trained.skipped
        for progress in (*(trained.progress for trained in others), first):
            if progress is not None:
                self._of_pass.add(progress)
        self.position = self._of_pass.position

    def train(self, rate_factor: float, sums: PassSums) -> None:
        self.has_batch = self._workers.train(rate_factor, sums)


class ClusterWorkers(Workers):
    """All workers, of which this one, rank 0, commands the others.

    While they train, they exchange with each other and read no commands; `pause` ends that, with
    all gradients applied, and is called by every method that needs it. In `async` a call of `train`
    is a batch of rank 0, while others train more or fewer, and `steps` is the clock of all.
    """

    def __init__(self, conf: Conf, cluster: Cluster, steps: int, signals: Signals) -> None:
        self._conf, self.signals = conf, signals
        self._cluster, self._node = cluster, cluster.node
        self._is_training = False
        self._training: list[Future[Body]] = []  # replies to `Worker.train`, while workers train
        self._batches: ClusterBatches | None = None
        self._last_metrics: tuple[int, SplitMetrics] | None = None
        self._warning = ""  # the last one about workers without data
        self.owners = ClusterOwners(cluster)
        is_async = conf.cluster.mode == "async"
        self._leases = Leases(cluster.node) if is_async else None  # else units are dealt
        self._work = WorkSums(cluster.node.workers, reads_ahead=is_async)
        self._totals = [(0.0, 0.0, 0.0)] * cluster.node.servers
        cluster.worker.next_of = signals.next_of
        cluster.node.route(RowService.take_shortage, commands.answering(cluster.worker))
        self._begin(steps)

    def _begin(self, steps: int) -> None:
        building.start(self._cluster, steps)
        if self._leases is not None:
            self.share.parameters.is_interrupted = lambda: self.signals.received
        self._count()

    @property
    def share(self) -> Share:
        """What this worker does of the training."""
        return self._cluster.worker.share

    @property
    def steps(self) -> int:
        return self.share.parameters.clock

    @property
    def model(self) -> Model:
        return self.share.model

    @property
    def labels(self) -> SeenLabels:
        return self.share.step.labels

    @property
    def inference(self) -> Inference:
        self.pause()
        return self.share.inference

    def figures(self) -> list[TableFigures]:
        """Rows and bytes are those of the last exchange, counts of groups of the last pause."""
        if not (last := self.share.parameters.last):
            return self._groups
        return [
            replace(table, rows=sum(o.rows for o in owned), bytes=sum(o.bytes for o in owned))
            for table, *owned in zip(self._groups, *(reply.owned for reply in last), strict=True)
        ]

    def sums(self) -> WorkerSums | None:
        membership, replies = self._node.membership, self.share.parameters.last
        if membership.size == 1:
            return None
        held: list[Sequence[Owned | TableCount]] = list(self._parts)
        for rank, reply in zip(membership.owners, replies, strict=False):  # none at a pause
            held[rank] = reply.owned
        if membership.servers and replies:
            self._totals = [reply.totals for reply in replies[1:]]
        owned = [(sum(t.rows for t in tables), sum(t.bytes for t in tables)) for tables in held]
        workers = self._work.figures(owned[: membership.workers])
        servers = owned[membership.workers :]
        of_servers = figures_of_servers(servers, self._totals, workers[0].seconds)
        return WorkerSums(workers + of_servers, self._work.exchanged())

    def shortage(self) -> str | None:
        worker = self._cluster.worker
        return worker.shortages.popleft() if worker.shortages else worker.shortage()

    # ---- A pass ------------------------------------------------------------------

    @contextlib.contextmanager
    def batches(
        self, conf: Conf, position: Position, skipped: Skipped, labels: Sequence[str]
    ) -> Iterator[ClusterBatches]:
        of_pass = PassPosition(conf, position, self._node.workers, skipped)
        source = Source(conf, "train")
        warning = source.too_few(self._node.workers, of_pass.remainders)
        if warning is not None and warning != self._warning:
            say(f"warning: {warning}")
            self._warning = warning
        first = self._deal(of_pass)
        given = position.day, position.passes, tuple(labels)
        started = self._cluster.send(Worker.start_pass, dict.fromkeys(self._cluster.others, given))
        try:
            with self._node.named():
                self.share.start_pass(conf, position.passes, labels, first, skipped)
                has_batch = self.share.has_batches(1)
            self._batches = ClusterBatches(self, source, of_pass, skipped)
            self._batches.has_batch = any([has_batch, *(wait() for wait in started)])
            yield self._batches
            self.pause()
            self._cluster.each(self._cluster.others, Worker.end_pass)
        finally:
            self._batches = None
            self.share.end_pass()

    def _deal(self, of_pass: PassPosition) -> Iterable[Remainder]:
        """What this worker reads of a pass, after the others were sent what they are dealt."""
        if self._leases is not None:
            self._leases.renew(of_pass.remainders)
            return self._leases
        first, *others = of_pass.dealt()
        scoring.send_units(self._cluster, dict(enumerate(others, 1)))
        return first

    def train(self, rate_factor: float, sums: PassSums) -> bool:
        """A step of all workers, or a batch of this one; whether any worker has another one."""
        self._last_metrics = None
        with self._node.named():
            if not self._is_training:
                self._start(rate_factor)
            self.share.owned.sums = sums
            if not self.share.train(rate_factor) and self.share.parameters.is_over:
                left = [future for future in self._training if not future.done()]
                wait(left, SECONDS_BETWEEN_LOOKS, FIRST_COMPLETED)
        self._add_figures()
        if self._leases is None:
            return self.share.parameters.last[0].any_next
        is_over = self.share.parameters.is_over
        return not is_over or any(not future.done() for future in self._training)

    def _start(self, rate_factor: float) -> None:
        self._is_training = True
        self.share.start()
        if self._leases is not None:
            # First: owners take exchanges of the others after one of rank 0.
            self.share.parameters.take_part(rate_factor)
        self._training = [self._node.command(rank, Worker.train) for rank in self._cluster.others]

    def pause(self) -> None:
        """Let all workers apply what is under way, and wait for commands."""
        if not self._is_training:
            return
        with self._node.named():
            if self._leases is not None and self._node.servers:
                # Workers that own nothing do not see that training drains.
                for rank in self._cluster.others:
                    self._node.command(rank, Share.drain, self.share.trainings)
            self.share.finish()
        trained, self._training = self._training, []
        others = commands.results(Worker.train, trained)
        self.share.parameters.pause()
        self._is_training = False
        self._add_figures()
        if self._batches is not None:
            self._batches.add(self.share.take_progress(), others)
        self.share.parameters.read_dense()
        self._count()

    def _add_figures(self) -> None:
        """Take what owner 0 was told of workers, and in `async` of their batches."""
        owner, owned = self.share.owner, self.share.owned
        if isinstance(owner, Barrier):
            self._work.add(owner.work, owner.waited_for)
        if isinstance(owner, Arrivals) and isinstance(owned, ArrivingPart):
            for _ in range(owner.work.qsize()):
                self._work.add_one(*owner.work.get())
            for _ in range(owner.batches.qsize()):
                self._work.add_batch(*owner.batches.get())
            for _ in range(owned.figures.qsize()):
                assert owned.sums is not None
                owned.sums.add(*owned.figures.get())

    def settle(self, state: RunState) -> None:
        self.pause()
        state.steps = self.steps
        if self._batches is not None:
            state.position = self._batches.position

    # ---- While training pauses -----------------------------------------------------

    def score(self, split: str, between: Callable[[], None]) -> tuple[Scored, Counts]:
        self.pause()
        return scoring.score(self._cluster, self._conf, split, between)

    def contains(
        self, table: int, groups: NDArray[np.uint16], ids: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        self.pause()
        return scoring.contains(self._cluster, table, groups, ids)

    def embedding_norms(self) -> dict[str, NormSum]:
        self.pause()
        norms: dict[str, NormSum] = {}
        for of_member in self._cluster.each(self._cluster.members, RowService.sum_norms):
            for slot, norm in of_member.items():
                norms[slot] = norms.get(slot, NormSum()) + norm
        return norms

    def set_days(self, days: Sequence[tuple[int, int]]) -> None:
        self.pause()
        self._cluster.each(self._cluster.members, RowService.set_days, tuple(days))
        self._last_metrics = None

    def set_counting(self, counting: bool, inserting: bool) -> None:
        self.pause()
        self._cluster.each(self._cluster.members, RowService.set_counting, counting, inserting)

    def end_of_period(self) -> dict[str, int]:
        self.pause()
        removed: Counter[str] = Counter()
        shares: dict[str, float] = {}
        for rows, miscounted in self._cluster.each(self._cluster.members, RowService.end_period):
            removed.update(rows)
            for name, share in miscounted.items():
                shares[name] = shares.get(name, 0.0) + share
        row_life.warn_of_sketches(shares)
        if any(removed.values()):
            self._last_metrics = None
            self.share.parameters.last = []
        self._count()
        return dict(removed)

    def load(self, folder: str) -> None:
        self.pause()
        steps = self.steps
        self._last_metrics = None
        building.load(self._cluster, self._conf, folder)
        self._begin(steps)

    def _count(self) -> None:
        """Get the counts of all, and those of all together."""
        self._parts = self._cluster.each(self._cluster.members, RowService.count_rows)
        self._groups = [_total(of_table) for of_table in zip(*self._parts, strict=True)]


def _total(parts: Sequence[TableCount]) -> TableFigures:
    """The counts of a table, of those of its parts."""
    groups = {}
    for of_group in zip(*(part.groups for part in parts), strict=True):
        rows, evicted = sum(g.rows for g in of_group), sum(g.evicted for g in of_group)
        waiting = max(sum(g.waiting for g in of_group), 0)
        groups[of_group[0].name] = Figures(rows, rows + evicted, waiting, evicted)
    return TableFigures(sum(p.rows for p in parts), sum(p.bytes for p in parts), groups)
