"""Boosted trees on the data of a run, beside its recipe in the report: `baseline=true`."""

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tnctl import system
from tnctl.data.batches import OF_ROWS, Batch, joined, taken
from tnctl.data.days import daily
from tnctl.data.features import Features
from tnctl.data.sources import Source
from tnctl.data.windows import windows
from tnctl.errors import Failure, UserError, refuse_if, shortened
from tnctl.evaluation import platt_scaling
from tnctl.evaluation.metrics import Scored, scalars
from tnctl.evaluation.platt_scaling import NoFitError
from tnctl.evaluation.split_scoring import labelled_heads, reported_splits
from tnctl.model.parameter_tables import Recalibration
from tnctl.progress import Display, say, waiting
from tnctl.schema import Conf, Slot
from tnctl.tables import columns as c_columns
from tnctl.training import schedule
from tnctl.training.report.report_document import BaselineFigures

if TYPE_CHECKING:  # it imports TensorFlow
    from tnctl.model.building import Model

SHARE_OF_MEMORY = 0.5  # of what is free
SHARE_OF_VALIDATION = 0.25  # of that
SALT = 0x626173656C696E65  # "baseline", so that no other draw of the seed is like it
TREES = 2000  # at most, with data.validation
TREES_WITHOUT_VALIDATION = 200
LONGEST_REASON = 200  # characters of what LightGBM says
CATEGORIES = 1024  # the most frequent ids of a slot that are told apart
BINS = 255  # of numbers, that a tree tells apart
VALUES = 32  # the most frequent values of a slot with several that have a column each
# For sorting ids, and LightGBM's scores, gradients and row numbers.
BYTES_BESIDE_COLUMNS = 64
# A column is float32 for us and at most as much in LightGBM's bins.
BYTES_OF_A_COLUMN = 8

Floats = NDArray[np.float32]


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


def library() -> Any:
    """The lightgbm package. Raises UserError when it is not installed, Failure if it is broken."""
    # Its threads would wait for each other in loops, and beside other work take the CPUs from those
    # that they wait for: 40 trees took 37 to 73 s, not 1 s. OpenMP reads this when it is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        import lightgbm
    except ImportError as error:
        raise UserError(
            "baseline needs a package that is not installed: pip install 'tnctl[baseline]'"
        ) from error
    except OSError as error:
        raise Failure(
            f"LightGBM cannot be loaded ({shortened(str(error), LONGEST_REASON)}). Install what "
            "it needs (libgomp1 on Debian), or leave baseline out"
        ) from error
    return lightgbm


def baseline_of(conf: Conf, model: "Model") -> tuple[BaselineFigures, float]:
    """The baseline of a run whose model is `model`, and the seconds that it took.

    It is of the main head. Raises Failure.
    """
    started = time.perf_counter()
    name = f"LightGBM {library().__version__}"
    rows = BaselineRows(conf, model)
    limit = system.tightest()
    budget = SHARE_OF_MEMORY * (math.inf if limit is None else max(limit.free, 0))
    has_validation = conf.data.source("validation") is not None
    of_validation = SHARE_OF_VALIDATION * budget if has_validation else 0.0
    sample = rows.sample("train", budget - of_validation, conf.baseline.rows)
    columns = TreeColumns(rows.slots, sample.parts)
    count, seen = sample.rows, sample.rows_seen
    validation = rows.sample("validation", of_validation, None).parts if has_validation else None
    say(f"training the baseline ({name}) on {count:,} of {seen:,} rows")
    trees = trained(conf, rows, columns, sample.parts, validation)
    del sample, validation
    figures, recalibration = _measured(conf, lambda split: rows.scored(split, columns, trees))
    baseline = BaselineFigures(
        library=name,
        head=rows.head if len(model.heads) > 1 else None,
        rows=count,
        rows_seen=seen,
        columns=columns.width,
        categorical=len(columns.categorical),
        trees=trees.best_iteration or trees.current_iteration(),
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
            if schedule.recalibrates(conf) and split == "validation":
                try:
                    recalibration = platt_scaling.fit(examples.of_head(0))
                except NoFitError as error:
                    say(f"the baseline is not recalibrated on data.validation: {error}")
            if recalibration is not None:
                examples = replace(examples, logits=recalibration.of(examples.logits))
            figures[split] = scalars(examples.metrics())
    return figures, recalibration


# ---- Rows --------------------------------------------------------------------------------


class BaselineRows:
    """The rows of a run's splits, with a table for each slot, in file order."""

    def __init__(self, conf: Conf, model: "Model") -> None:
        [(self.head, _, self._label), *_] = labelled_heads(model)
        self._conf, self._correction = conf, model.logit_correction
        names = model.layout.slots
        self.slots = [conf.slots[name] for name in names]
        # Trees tell a missing number from 0. Prepared data has 0 for both.
        tables = [((name,), (1,)) for name in names]
        self.features = Features(conf, tables, model.statistics, missing_number=math.nan)

    def windows(self, split: str) -> Iterator[Batch]:
        """All rows of a split."""
        return windows(Source(self._conf, split), self.features)

    def sample(self, split: str, budget: float, most: int | None) -> "RowSample":
        """At most `most` rows of a split, in at most `budget` bytes. Raises Failure for none."""
        sample = RowSample(self._conf.seed, budget, most)
        with waiting(f"reading data.{split} for the baseline"):
            for window in self.windows(split):
                sample.add(window)
        sample.finish()
        if not sample.rows:
            raise Failure(
                f"no row of data.{split} fits into the memory that the baseline may take. Give it "
                "more memory, or leave baseline out"
            )
        return sample

    def labels_of(self, rows: Batch) -> Floats:
        """The labels of the main head, float32 [rows]."""
        return np.ascontiguousarray(rows.labels[:, self._label])

    def scored(self, split: str, columns: "TreeColumns", trees: Any) -> Scored:
        """All rows of a split with the logits of the trees, corrected for data.negatives."""
        logits, parts = [], []
        for window in self.windows(split):
            # Of a squared loss they are predictions.
            sums = trees.predict(columns.matrix(window), raw_score=True)
            logits.append(np.asarray(sums, np.float32) + np.float32(self._correction))
            parts.append(_without_inputs(window))
        rows = joined(parts)
        return Scored(
            [self.head],
            np.concatenate(logits)[:, None],
            self.labels_of(rows)[:, None],
            rows.weight,
            group=rows.group,
            squared=self._conf.train.loss.name == "mse",
            ndcg_at=self._conf.evaluation.ndcg_at,
        )


def _without_inputs(batch: Batch) -> Batch:
    return replace(batch, ids=[], offsets=[], weights=[], numeric=batch.numeric[:, :0].copy())


class RowSample:
    """All rows of a split or, if these are too many, those with the lowest hashes.

    The hash is a function of the seed and of a row's number in the split, so how many fit decides
    which rows these are. `parts` are in file order.
    """

    def __init__(self, seed: int, budget: float, most: int | None) -> None:
        """`budget` bounds the bytes of rows by the mean of all that were seen; `most` the rows."""
        self.parts: list[Batch] = []
        self.rows_seen = 0
        self._start = c_columns.mix64(np.array([seed ^ SALT], np.uint64))
        self._hashes: list[NDArray[np.uint64]] = []
        self._highest = np.uint64(2**64 - 1)
        self._bytes_seen = 0.0
        self._budget, self._most = budget, math.inf if most is None else most

    @property
    def rows(self) -> int:
        """The rows that are held."""
        return sum(part.rows for part in self.parts)

    def add(self, window: Batch) -> None:
        """The next rows of the split."""
        numbers = np.arange(self.rows_seen, self.rows_seen + window.rows, dtype=np.uint64)
        self.rows_seen += window.rows
        self._bytes_seen += cost(window)
        self.parts.append(window)
        self._hashes.append(c_columns.mix64(self._start ^ numbers))
        self._drop(len(self.parts) - 1)
        # Half at a time, so that rows are copied seldom.
        while self.rows * self._bytes_seen > self._budget * self.rows_seen:
            self._keep(self.rows // 2)
        if self.rows > 2 * self._most:
            self.finish()

    def finish(self) -> None:
        """Hold at most `most` rows, now that there are no more."""
        if self.rows > self._most:
            self._keep(int(self._most))

    def _keep(self, rows: int) -> None:
        """Leave out all but the `rows` with the lowest hashes, now and later."""
        hashes = np.sort(np.concatenate(self._hashes))
        # No two numbers have one hash. None is kept below the lowest.
        self._highest = hashes[rows - 1] if rows else hashes[0] - np.uint64(1)
        for index in range(len(self.parts)):
            self._drop(index)

    def _drop(self, index: int) -> None:
        """Leave out the rows of a part whose hash is too high."""
        kept = np.flatnonzero(self._hashes[index] <= self._highest)
        if len(kept) < len(self._hashes[index]):
            self.parts[index] = taken(self.parts[index], kept.astype(np.uint32))
            self._hashes[index] = self._hashes[index][kept]


def cost(batch: Batch) -> float:
    """The bytes that a batch takes, and that work on it will take, about."""
    of_rows = [getattr(batch, name) for name in OF_ROWS]
    arrays = [*batch.ids, *batch.offsets, *batch.weights, *of_rows]
    columns = batch.numeric.shape[1]
    columns += sum(1 + VALUES if _has_several(ends) else 3 for ends in batch.offsets)
    held = sum(array.nbytes for array in arrays if array is not None)
    return float(held + batch.rows * (BYTES_OF_A_COLUMN * columns + BYTES_BESIDE_COLUMNS))


def _has_several(offsets: NDArray[np.uint32]) -> bool:
    """Whether a row has several ids."""
    return bool((np.diff(offsets) > 1).any())


# ---- Columns -----------------------------------------------------------------------------


class SlotColumns:
    """The columns of a slot, by its ids in a sample.

    Of a slot with several values in a row: how many they are, and how often the row has each of the
    most frequent ones, or the sum of its weights. Of others up to three: the number of the id by
    falling frequency, as a category (NaN where there is none); how often the id is in the sample,
    where ids share a number; the bucket of a number, in order. The last two are -1 where there is
    none.
    """

    def __init__(self, slot: Slot, index: int, parts: Sequence[Batch]) -> None:
        """`index` is the index of its table in `parts`."""
        self._index = index
        self._has_lists = any(_has_several(part.offsets[index]) for part in parts)
        ids = np.concatenate([part.ids[index] for part in parts])
        self._ids, counts = np.unique(ids, return_counts=True)
        by_frequency = np.argsort(-counts, kind="stable")
        self.is_categorical = self._is_ordered = self._has_counts = False
        if self._has_lists:
            self._ids = np.sort(self._ids[by_frequency[:VALUES]])
            self.width = 1 + len(self._ids)
            return
        self._is_ordered = slot.kind.of_numbers
        # Numbers that are more than a tree's bins may be ids.
        self.is_categorical = not self._is_ordered or len(counts) > BINS
        self._has_counts = self.is_categorical and len(counts) > CATEGORIES
        self.width = self.is_categorical + self._has_counts + self._is_ordered
        codes = np.empty(len(counts), np.int64)
        codes[by_frequency] = np.arange(len(counts))
        # The last one is of unknown ids.
        self._codes = np.minimum(np.append(codes, len(counts)), CATEGORIES)
        self._counts = np.append(counts, 0)

    def of(self, batch: Batch) -> Floats:
        """The columns of a batch, float32 [rows, width]."""
        ids, offsets = batch.ids[self._index], batch.offsets[self._index]
        lengths = np.diff(offsets)
        columns = np.full((batch.rows, self.width), -1, np.float32)
        if self._has_lists:
            positions, count = self._positions(ids), len(self._ids)
            is_known = positions >= 0
            cells = np.repeat(np.arange(batch.rows) * count, lengths)[is_known]
            weights = batch.weights[self._index]
            weights = None if weights is None else weights[is_known]
            sums = np.bincount(cells + positions[is_known], weights, batch.rows * count)
            columns[:, 0], columns[:, 1:] = lengths, sums.reshape(batch.rows, count)
            return columns
        has_id = lengths > 0
        first = ids[offsets[:-1][has_id]]
        if self.is_categorical:
            positions = self._positions(first)
            columns[:, 0] = np.nan
            columns[has_id, 0] = self._codes[positions]
            if self._has_counts:
                columns[has_id, 1] = self._counts[positions]
        if self._is_ordered:
            columns[has_id, -1] = first
        return columns

    def _positions(self, ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The position of each of ids [n] among those known, -1 of an unknown one."""
        positions = np.searchsorted(self._ids, ids)
        positions[np.append(self._ids, np.uint64(0))[positions] != ids] = -1
        return positions


class TreeColumns:
    """The columns of all inputs: of the slots in their order, then the numbers as they are.

    They are chosen by a sample whose batches have a table for each slot.
    """

    def __init__(self, slots: Sequence[Slot], parts: Sequence[Batch]) -> None:
        self._slots = [SlotColumns(slot, index, parts) for index, slot in enumerate(slots)]
        starts = np.cumsum([0, *(columns.width for columns in self._slots)]).tolist()
        self.width: int = starts[-1] + parts[0].numeric.shape[1]
        """The number of columns."""
        of_slots = zip(starts, self._slots, strict=False)
        self.categorical: list[int] = [start for start, of in of_slots if of.is_categorical]
        """The indices of the columns that have categories."""

    def matrix(self, batch: Batch) -> Floats:
        """The columns of a batch, float32 [rows, width]."""
        return np.concatenate([*(of.of(batch) for of in self._slots), batch.numeric], axis=1)

    def whole_matrix(self, parts: list[Batch]) -> Floats:
        """The columns of batches, one after the other; their inputs are dropped from memory."""
        matrix = np.empty((sum(part.rows for part in parts), self.width), np.float32)
        end = 0
        for index, part in enumerate(parts):
            start, end = end, end + part.rows
            matrix[start:end] = self.matrix(part)
            parts[index] = _without_inputs(part)
        return matrix


# ---- Trees -------------------------------------------------------------------------------


def trained(
    conf: Conf,
    rows: BaselineRows,
    columns: TreeColumns,
    parts: list[Batch],
    validation: list[Batch] | None,
) -> Any:
    """LightGBM's gradient-boosted trees (Ke et al., NIPS 2017) of rows whose inputs are dropped.

    They are trained until the metric of `validation` gets no better, and kept up to its best.
    Raises Failure for what LightGBM refuses.
    """
    lightgbm, settings = library(), conf.baseline
    count = settings.trees or (TREES_WITHOUT_VALIDATION if validation is None else TREES)

    def dataset(parts: list[Batch], reference: Any = None) -> Any:
        matrix = columns.whole_matrix(parts)
        of_rows = joined(parts)
        return lightgbm.Dataset(
            matrix,
            rows.labels_of(of_rows),
            weight=of_rows.weight,
            categorical_feature=columns.categorical,
            reference=reference,  # in whose bins they are
        )

    data = dataset(parts)
    checked = [] if validation is None else [dataset(validation, data)]
    with Display("baseline", None) as display:

        def tree_is_done(state: Any) -> None:
            metrics = {name: f"{value:.4f}" for _, name, value, *_ in state.evaluation_result_list}
            display.update(state.iteration + 1, {"trees": f"{state.iteration + 1:,}", **metrics})

        callbacks = [tree_is_done]
        if checked:
            callbacks.append(lightgbm.early_stopping(settings.patience, verbose=False))
        labels = [of.get_label() for of in (data, *checked)]
        try:
            return lightgbm.train(
                _parameters(conf, *labels), data, count, valid_sets=checked, callbacks=callbacks
            )
        except lightgbm.basic.LightGBMError as error:
            reason = shortened(str(error), LONGEST_REASON)
            raise Failure(
                f"LightGBM cannot train the baseline ({reason}). Leave baseline out"
            ) from error


def _parameters(conf: Conf, labels: Floats, validation: Floats | None = None) -> dict[str, Any]:
    """LightGBM's parameters; all others have its own defaults."""
    objective = "regression"
    if conf.train.loss.name != "mse":  # `binary` takes classes only
        objective = "binary" if np.isin(labels, (0, 1)).all() else "cross_entropy"
    metric = {"regression": "l2", "binary": "binary_logloss"}.get(objective, objective)
    if objective == "binary" and conf.evaluation.monitor in ("auc", "gauc", "ndcg"):
        has_both = validation is not None and len(np.unique(validation)) > 1
        metric = "auc" if has_both else metric
    return {
        "objective": objective,
        "metric": metric,
        "num_leaves": conf.baseline.leaves,
        "learning_rate": conf.baseline.learning_rate,
        "num_threads": conf.train.threads or 0,  # 0: as many as there are CPUs
        "seed": conf.seed % 2**31,
        "deterministic": True,
        "force_col_wise": True,
        "verbosity": -1,
    }
