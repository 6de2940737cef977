"""One process that trains the batches of N workers in each step, and adds them in rank order.

This is what synchronous training by N workers has to be equal to, bit for bit. It has one ordinary
table for all rows, and uses nothing of tnctl/cluster: rows are found and read by the ordinary
pull of all batches together, gradients of duplicate ids are added in numpy, and the ordinary
optimizers are applied once, to the sums.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tnctl.data import statistics
from tnctl.data.bad_rows import Skipped
from tnctl.data.batches import joined
from tnctl.data.sources import Source
from tnctl.data.unit_records import WHOLE, Remainder
from tnctl.data.windows import training_batches
from tnctl.evaluation.split_scoring import features_of
from tnctl.model.building import Model, build
from tnctl.model.graph import LENGTHS, packed_inputs
from tnctl.model.layout import slot_plans
from tnctl.model.parameter_tables import TableUpdates, move_statistics
from tnctl.model.parameters import Buffers, Parameters, moving_statistics
from tnctl.tables import SlotPlan, Workspace
from tnctl.training import row_life
from tnctl.training.schedule import factor
from tnctl.training.step import gradient_function

FIRST_STEP_OF_RANK = 1 << 40  # of the numbers that dropout draws with


@dataclasses.dataclass
class Occurrence:
    """An id of a batch that has a row: its example in the batches together, and its gradient."""

    key: tuple[int, int]  # group and id
    example: int
    linear: Any
    embedding: Any


class TableOfAll:
    """A table with all rows: the sums of its gradients, and the optimizer's step."""

    def __init__(self, conf, layout, table):
        self.layout, self.table = layout, table
        self.cells = slot_plans(conf.slots, layout)
        self.groups = sorted(layout.groups.values())
        by_number = dict(zip(layout.groups.values(), layout.lives, strict=True))
        self.after = {number: life.admission.after for number, life in by_number.items()}
        self.counted = Counter()  # occurrences of a key in the first pass until it got its row
        self.counting = True
        # A cell for each group: what is pushed has one id in each example.
        self.push = Workspace(table, [SlotPlan(number, "sum", 0) for number in self.groups])

    def occurrences(self, ids, offsets, examples, first_example):
        """(key, cell's number, example, ids of the cell) of the ids that do not wait for a row."""
        width = len(self.cells)
        for example in range(examples):
            for number, plan in enumerate(self.cells):
                cell = example * width + number
                in_cell = ids[offsets[cell] : offsets[cell + 1]].tolist()
                for each in in_cell:
                    key = plan.group, each
                    if self.counting and self.counted[key] < self.after[plan.group]:
                        self.counted[key] += 1
                    if self.counted[key] == self.after[plan.group]:
                        yield key, plan, example, first_example + example, len(in_cell)

    def gradients(self, batch, number, first_example, of_inputs):
        """The occurrences in a batch, with the gradient of each."""
        width = self.layout.width
        for key, plan, example, place, count in self.occurrences(
            batch.ids[number], batch.offsets[number], batch.rows, first_example
        ):
            divisor = np.float32({"sum": 1, "mean": count}.get(plan.pooling, count**0.5))
            matrix = of_inputs.get("sequences" if plan.apart else "x")
            linear, embedding = np.empty(0, np.float32), np.empty(0, np.float32)
            if self.layout.linear:
                linear = of_inputs["linear"][example] / divisor
            if width:
                embedding = matrix[example, plan.column : plan.column + width] / divisor
            yield Occurrence(key, place, linear, embedding)

    def reduce(self, of_ranks, shares, clicks):
        """The gradient of each row, reduced; `of_ranks` are the occurrences of each rank."""
        totals = {}
        for occurrences, share in zip(of_ranks, shares, strict=True):
            sums = {}
            for entry in occurrences:
                if entry.key not in sums:
                    sums[entry.key] = np.zeros_like(entry.linear), np.zeros_like(entry.embedding)
                linear, embedding = sums[entry.key]
                linear += entry.linear
                embedding += entry.embedding
            for key, parts in sums.items():
                weighted = [np.float32(share) * part for part in parts]
                earlier = totals.get(key, [np.zeros_like(part) for part in parts])
                totals[key] = [a + b for a, b in zip(earlier, weighted, strict=True)]
        self._accumulate([entry for entries in of_ranks for entry in entries], totals, clicks)

    def _accumulate(self, occurrences, totals, clicks):
        """An example for each occurrence; the first of a key has the key's whole gradient."""
        count, kind = len(occurrences), self.layout.kind
        filled = np.zeros((count, len(self.groups)), np.uint32)
        gradients = {
            "sum": np.zeros((count, 1), np.float32),
            "concat": np.zeros((count, kind.columns), np.float32),
        }
        for place, entry in enumerate(occurrences):
            filled[place, self.groups.index(entry.key[0])] = 1
            if (total := totals.pop(entry.key, None)) is not None:
                if self.layout.linear:
                    gradients["sum"][place] = total[0]
                gradients["concat"][place, : kind.width] = total[1]
        ids = np.array([entry.key[1] for entry in occurrences], np.uint64)
        offsets = np.append(0, np.cumsum(filled)).astype(np.uint32)
        self.push.find(ids, offsets, count, insert=True)
        self.push.accumulate([gradients[segment.output] for segment in self.table.segments])
        if kind.shows:
            self.push.count(np.array([clicks[e.example] for e in occurrences], np.float32))


class MicroBatches:
    """The model of N workers, each of which trains on one file of data.train."""

    def __init__(self, conf, workers):
        self.conf, self.workers = conf, workers
        self.model: Model = build(conf, statistics.measure(conf))
        self.steps, self.losses, self.examples, self.norms = 0, [], 0, []
        self._features = features_of(conf, self.model)
        self._buffers = Buffers(self.model, workers * conf.train.batch_size)
        self._parameters = Parameters(self.model)
        self._updates = TableUpdates(self.model)
        self._tables = [
            TableOfAll(conf, layout, table)
            for layout, table in zip(self.model.layout.tables, self.model.tables, strict=True)
        ]
        self._names = [entry.name for entry in packed_inputs(self.model.layout)]
        self._functions: dict[int | None, Any] = {}

    def train(self, after_step: Callable[[], None] = lambda: None):
        """All passes; `after_step` is called after each step, and again at the end of a pass."""
        for passes in range(self.conf.train.epochs):
            for table in self._tables:
                table.counting = passes == 0
                table.table.set_counting(table.counting)
            self.losses, self.examples = [], 0
            for batches in zip_longest(*(self._batches(rank, passes) for rank in self._ranks)):
                self._step([batch for batch in batches if batch is not None],
                           [rank for rank in self._ranks if batches[rank] is not None])  # fmt: skip
                after_step()
            row_life.end_of_period(self.model)
            after_step()
        return self

    @property
    def loss(self):
        """The mean loss of the last pass."""
        return sum(loss * rows for loss, rows in self.losses) / self.examples

    @property
    def _ranks(self):
        return range(self.workers)

    def _batches(self, rank, passes):
        [path] = Source(self.conf, "train").files[rank :: self.workers]
        data = dataclasses.replace(self.conf.data, train=Path(path).name)
        conf = dataclasses.replace(self.conf, data=data)
        skipped = Skipped("train", 0)
        for batch, _ in training_batches(conf, self._features, passes, [Remainder(WHOLE)], skipped):
            yield batch

    def _step(self, batches, ranks):
        shares = [batch.rows / sum(batch.rows for batch in batches) for batch in batches]
        together = joined(batches)
        rate = factor(self.conf.optimizer.schedule, self.steps)
        self._parameters.steps = self.steps
        self._parameters.pull(together, self._buffers)
        computed, first = [], 0
        for batch, rank in zip(batches, ranks, strict=True):
            computed.append(self._compute(rank, first, batch.rows))
            first += batch.rows
        self._updates.set_rate_factor(rate)
        clicks = together.labels[:, 0]
        trained = []
        for number, table in enumerate(self._tables):
            of_ranks, first = [], 0
            for batch, (_, of_inputs, _, _) in zip(batches, computed, strict=True):
                of_ranks.append(list(table.gradients(batch, number, first, of_inputs)))
                first += batch.rows
            if not table.layout.kind.frozen:
                table.reduce(of_ranks, shares, clicks)
                trained.append(table)
        totals = self._reduce_dense([of_dense for _, _, of_dense, _ in computed], shares)
        scale = self._scale(trained, totals)
        for table in trained:
            table.push.apply(scale)
        self.model.dense.apply(totals, scale)
        self.steps += 1
        self._updates.remove_rows(self.steps)
        moments = _of_all([moments for *_, moments in computed], shares)
        move_statistics(moving_statistics(self.model), moments, self.model.dense.step)
        for batch, (loss, *_) in zip(batches, computed, strict=True):
            self.losses.append((loss, batch.rows))
            self.examples += batch.rows

    def _compute(self, rank, first, rows):
        """Loss, gradients of inputs by name, dense gradients and statistics of a batch."""
        buffers = self._buffers
        arrays = [getattr(buffers, name) for name in self._names] + [buffers.labels]
        arrays += [buffers.weight] if self.conf.data.weight else []
        tensors = [tf.constant(array[first : first + rows]) for array in arrays]
        whole = rows if rows == self.conf.train.batch_size else None
        if whole not in self._functions:
            self._functions[whole] = gradient_function(self.model, whole, compiled=False)
        number = tf.constant([1 + rank * FIRST_STEP_OF_RANK + self.steps], tf.int64)
        loss, _, inputs, dense, moments = self._functions[whole](*tensors, number)
        floats = [name for name in self._names if name != LENGTHS]
        of_inputs = {n: tensor.numpy() for n, tensor in zip(floats, inputs, strict=True)}
        parts = [[tensor.numpy() for tensor in tensors_of] for tensors_of in (dense, moments)]
        return float(loss), of_inputs, *parts

    def _scale(self, trained, totals):
        """What the gradient of all is multiplied by for optimizer.clip_norm."""
        limit = self.conf.optimizer.clip_norm
        squares = sum(table.push.squares() for table in trained) + self.model.dense.squares(totals)
        self.norms.append(squares**0.5)
        return limit / self.norms[-1] if 0 < limit < self.norms[-1] else 1.0

    def _reduce_dense(self, of_ranks, shares):
        totals = [np.zeros_like(array) for array in of_ranks[0]]
        for gradients, share in zip(of_ranks, shares, strict=True):
            for total, gradient in zip(totals, gradients, strict=True):
                total += np.float32(share) * gradient
        return totals


def _of_all(of_ranks, shares):
    """Mean and variance of all rows, of those of each batch: docs/cluster.md."""
    if len(of_ranks) == 1:
        return of_ranks[0]
    joint = []
    for mean, variance in zip(*[iter(zip(*of_ranks, strict=True))] * 2, strict=True):
        means, variances = (np.array(part, np.float64) for part in (mean, variance))
        mean_of_all = sum(share * part for share, part in zip(shares, means, strict=True))
        squares = sum(s * (v + m**2) for s, m, v in zip(shares, means, variances, strict=True))
        joint += [mean_of_all, np.maximum(squares - mean_of_all**2, 0)]
    return [array.astype(np.float32) for array in joint]
