"""The baseline of a run: boosted trees trained on its rows, and measured on the same data."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tnctl import memory_limits
from tnctl.data.batches import Batch, taken
from tnctl.data.days import daily
from tnctl.data.features import Features
from tnctl.data.sources import Source
from tnctl.data.windows import windows
from tnctl.errors import Failure, refuse_if
from tnctl.evaluation import platt_scaling
from tnctl.evaluation.metrics import Scored, scalars
from tnctl.evaluation.platt_scaling import NoFitError
from tnctl.evaluation.split_scoring import labelled_heads, reported_splits
from tnctl.model.recalibration import Recalibration
from tnctl.progress import Display, say, waiting
from tnctl.schema import Conf
from tnctl.tables import columns as c_columns
from tnctl.training import recalibrating
from tnctl.training.baseline.boosted_trees import BoostedTrees, Examples, library, version
from tnctl.training.baseline.tree_columns import TreeColumns, cost
from tnctl.training.report.report_document import Baseline

if TYPE_CHECKING:  # it imports TensorFlow
    from tnctl.model.building import Model

SHARE_OF_MEMORY = 0.5  # of what is free
SHARE_OF_VALIDATION = 0.25  # of that
SALT = 0x626173656C696E65  # "baseline", so that no other draw of the seed is like it
EVERY_HASH = 2**64 - 1


class RowSample:
    """All rows of a split or, if these are too many, those with the lowest hashes.

    The hash is a function of the seed and of a row's number in the split, so how many fit decides
    which rows these are. `parts` are in file order.
    """

    def __init__(
        self, seed: int, budget: float, most: int | None, cost: Callable[[Batch], float]
    ) -> None:
        """`budget` bounds the sum of `cost`, in bytes; `most` the rows."""
        self.parts: list[Batch] = []
        self.rows_seen = 0
        self._start = c_columns.mix64(np.array([seed ^ SALT], np.uint64))
        self._hashes: list[NDArray[np.uint64]] = []
        self._costs: list[float] = []
        self._highest = np.uint64(EVERY_HASH)
        self._budget, self._most, self._cost = budget, most, cost

    @property
    def rows(self) -> int:
        """The rows that are held."""
        return sum(part.rows for part in self.parts)

    def add(self, window: Batch) -> None:
        """The next rows of the split."""
        numbers = np.arange(self.rows_seen, self.rows_seen + window.rows, dtype=np.uint64)
        self.rows_seen += window.rows
        self.parts.append(window)
        self._hashes.append(c_columns.mix64(self._start ^ numbers))
        self._costs.append(self._cost(window))
        self._drop(len(self.parts) - 1)
        # Half at a time, so that rows are copied seldom.
        while self.rows and sum(self._costs) > self._budget:
            self._keep(self.rows // 2)
        if self._most is not None and self.rows > 2 * self._most:
            self._keep(self._most)

    def finish(self) -> None:
        """Hold at most `most` rows, now that there are no more."""
        if self._most is not None and self.rows > self._most:
            self._keep(self._most)

    def _keep(self, rows: int) -> None:
        """Leave out all but the `rows` with the lowest hashes, now and later."""
        hashes = np.sort(np.concatenate(self._hashes))
        # No two numbers have one hash. None is kept below the lowest.
        self._highest = hashes[rows - 1] if rows else hashes[0] - np.uint64(1)
        for place in range(len(self.parts)):
            self._drop(place)

    def _drop(self, place: int) -> None:
        """Leave out the rows of a part whose hash is too high."""
        kept = np.flatnonzero(self._hashes[place] <= self._highest)
        if len(kept) < len(self._hashes[place]):
            self.parts[place] = taken(self.parts[place], kept.astype(np.uint32))
            self._hashes[place] = self._hashes[place][kept]
            self._costs[place] = self._cost(self.parts[place])


def check(conf: Conf) -> None:
    """Refuse a baseline that cannot be trained, before the run is. Raises UserError, Failure."""
    if not conf.baseline.enabled:
        return
    refuse_if(
        daily(conf),
        "baseline is for one set of data, and with {day} in data.train every day is another. Leave "
        "it out",
    )
    library()


def baseline_of(conf: Conf, model: "Model") -> tuple[Baseline, float]:
    """The baseline of a run whose model is `model`, and the seconds that it took.

    It is of the main head. Raises Failure.
    """
    started = time.perf_counter()
    rows = BaselineRows(conf, model)
    has_validation = conf.data.source("validation") is not None
    budget = SHARE_OF_MEMORY * free_bytes()
    of_validation = SHARE_OF_VALIDATION * budget if has_validation else 0.0
    with waiting("reading data.train for the baseline"):
        sample = rows.sample("train", budget - of_validation, conf.baseline.rows)
        columns = TreeColumns(rows.slots, sample.parts)
    count, seen = sample.rows, sample.rows_seen
    validation = None
    if has_validation:
        with waiting("reading data.validation for the baseline"):
            held = rows.sample("validation", of_validation, None)
            validation = rows.examples(columns, held.parts)
    say(f"training the baseline ({version()}) on {count:,} of {seen:,} rows")
    with Display("baseline", None) as display:
        trees = BoostedTrees(
            conf,
            rows.examples(columns, sample.parts),
            validation,
            columns.categorical,
            lambda tree, metrics: display.update(tree, {"trees": f"{tree:,}", **metrics}),
        )
    del validation
    figures, recalibration = _measured(conf, lambda split: rows.scored(split, columns, trees))
    baseline = Baseline(
        library=version(),
        head=rows.head if len(model.heads) > 1 else None,
        rows=count,
        rows_seen=seen,
        columns=columns.width,
        categorical=len(columns.categorical),
        trees=trees.count,
        recalibration=recalibration,
        **figures,
    )
    return baseline, time.perf_counter() - started


def _measured(
    conf: Conf, scored: Callable[[str], Scored]
) -> tuple[dict[str, dict[str, Any]], Recalibration | None]:
    """The metrics of each split, recalibrated on data.validation as the recipe is."""
    figures, recalibration = {}, None
    for split in reversed(reported_splits(conf.evaluation)):
        if conf.data.source(split) is None:
            continue
        with waiting(f"evaluating the baseline on data.{split}"):
            examples = scored(split)
            if recalibrating.is_wanted(conf) and split == "validation":
                try:
                    recalibration = platt_scaling.fit(examples.of_head(0))
                except NoFitError as error:
                    say(f"the baseline is not recalibrated on data.validation: {error}")
            if recalibration is not None:
                examples = replace(examples, logits=recalibration.of(examples.logits))
            figures[split] = scalars(examples.metrics())
    return figures, recalibration


def free_bytes() -> float:
    """The memory that this process may still take; infinite where the system names no limit."""
    limit = memory_limits.tightest()
    return math.inf if limit is None else max(limit.free, 0)


class BaselineRows:
    """The rows of a run's splits, with a table for each slot, in file order."""

    def __init__(self, conf: Conf, model: "Model") -> None:
        [(self.head, _, self._label), *_] = labelled_heads(model)
        self._conf, self._correction = conf, model.logit_correction
        names = model.layout.slots
        self.slots = [conf.slots[name] for name in names]
        # Trees tell a missing number from 0. Prepared data has 0 for both.
        self._features = Features(
            conf,
            [((name,), (1,)) for name in names],
            model.statistics,
            missing_number=math.nan,
        )

    def sample(self, split: str, budget: float, most: int | None) -> RowSample:
        """The rows of a split that fit into so many bytes. Raises Failure for none."""
        sample = RowSample(self._conf.seed, budget, most, cost)
        for window in self._windows(split):
            sample.add(window)
        sample.finish()
        if not sample.rows:
            raise Failure(
                f"no row of data.{split} fits into the memory that the baseline may take. Give it "
                "more memory, or leave baseline out"
            )
        return sample

    def examples(self, columns: TreeColumns, parts: list[Batch]) -> Examples:
        """The rows of batches to train on; their inputs are dropped from memory."""
        labels = np.concatenate([part.labels[:, self._label] for part in parts])
        weights = [part.weight for part in parts if part.weight is not None]
        weight = np.concatenate(weights) if weights else None
        return Examples(columns.whole_matrix(parts), labels, weight)

    def scored(self, split: str, columns: TreeColumns, trees: BoostedTrees) -> Scored:
        """All rows of a split with the logits of the trees, corrected for data.negatives."""
        logits, labels, weights, groups = [], [], [], []
        for window in self._windows(split):
            logits.append(trees.logits(columns.matrix(window)) + np.float32(self._correction))
            labels.append(window.labels[:, self._label])
            weights += [] if window.weight is None else [window.weight]
            groups += [] if window.group is None else [window.group]
        return Scored(
            [self.head],
            np.concatenate(logits)[:, None],
            np.concatenate(labels)[:, None],
            np.concatenate(weights) if weights else None,
            group=np.concatenate(groups) if groups else None,
            squared=self._conf.train.loss.name == "mse",
        )

    def _windows(self, split: str) -> Iterator[Batch]:
        return windows(Source(self._conf, split), self._features)
