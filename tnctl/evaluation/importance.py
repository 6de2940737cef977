"""What each input is worth: the metric when its values are shuffled, beside what its rows cost.

Permutation importance: Breiman, Random Forests, Machine Learning 45, 2001, section 10; Fisher,
Rudin and Dominici, All Models are Wrong, but Many are Useful, JMLR 20, 2019 (model reliance).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tnctl.data.batches import Batch, batches, joined
from tnctl.data.column_names import slot_column, value_columns
from tnctl.data.read_ahead import ReadAhead
from tnctl.data.sources import Source
from tnctl.data.windows import windows
from tnctl.evaluation.metrics import METRICS, HeadExamples, Metric
from tnctl.evaluation.split_scoring import features_of, labelled_heads, score
from tnctl.model.layout import EMBEDDING, Layout
from tnctl.model.parameter_tables import ParameterTables, TableFigures, table_figures
from tnctl.schema import Conf
from tnctl.tables import SparseTable
from tnctl.tables import columns as c_columns

if TYPE_CHECKING:
    from tnctl.evaluation.inference import Inference

# Logits that are kept at a time: for more inputs, the data is read again.
FLOATS_KEPT = 1 << 28
WINDOWS_AHEAD = 1
MEASURED_SPLITS = ("validation", "test")  # the first that is given
SHUFFLES = 0x73687566666C6573  # "shuffles", so that training draws no order like these


@dataclass(frozen=True)
class InputImportance:
    """The metric with an input shuffled, what is lost by it, and the rows and bytes that it has.

    Rows and bytes are None of an input without rows.
    """

    name: str
    kind: str
    metric: float
    loss: float
    rows: int | None
    bytes: int | None


@dataclass(frozen=True)
class Importance:
    """Every input's importance by `metric`, the greatest first; `whole` is with none shuffled."""

    split: str
    examples: int
    metric: str
    whole: float
    inputs: list[InputImportance]


def permutation_importance(
    inference: "Inference", conf: Conf, split: str, limit: int | None = None
) -> Importance:
    """Score a split with each slot and numeric input shuffled in turn, in few passes over the data.

    `limit` takes only that many rows, the first. A shuffled input has in each row what it has in
    another row of the same window (data.window), and so have the inputs made of it
    (`shuffled_together`); all others keep what they have. The order is drawn from conf.seed, and is
    the same for every input and for any number of workers. The metric is the first of the main
    head's AUC, logloss and mean squared error that these examples define: of one class there is no
    AUC, and with train.loss=mse no logloss.
    """
    model, layout = inference.model, inference.model.layout
    examples = score(inference, conf, split, limit=limit).of_head(0)
    metric, whole = _defined(examples)
    together = shuffled_together(model.conf, [*layout.slots, *layout.numeric])
    groups = list(dict.fromkeys(together.values()))
    at_a_time = max(1, FLOATS_KEPT // max(len(examples.labels), 1))
    values: dict[frozenset[str], float] = {}
    for start in range(0, len(groups), at_a_time):
        chunk = groups[start : start + at_a_time]
        of_chunk = _logits_shuffled(inference, conf, split, chunk, limit)
        for group, logits in zip(chunk, of_chunk, strict=True):
            values[group] = metric.value(replace(examples, logits=logits))
    sign = 1 if metric.greater_is_better else -1
    costs = rows_and_bytes(model, table_figures(model))
    inputs = [
        InputImportance(
            name,
            kind_of(layout, name),
            values[group],
            sign * (whole - values[group]),
            *costs.get(name, (None, None)),
        )
        for name, group in together.items()
    ]
    inputs.sort(key=lambda of_input: (-of_input.loss, of_input.name))
    return Importance(split, len(examples.labels), metric.name, whole, inputs)


def _defined(examples: HeadExamples) -> tuple[Metric, float]:
    """The metric by which inputs are compared on these examples, and its value as they are."""
    for metric in map(METRICS.__getitem__, ("auc", "logloss", "mse")):
        if metric.exists(examples) and (value := metric.value(examples)) is not None:
            return metric, value
    raise AssertionError("there is always a mean squared error")


def _logits_shuffled(
    inference: "Inference",
    conf: Conf,
    split: str,
    groups: Sequence[AbstractSet[str]],
    limit: int | None,
) -> list[NDArray[np.float32]]:
    """The main head's logits of a split with some inputs shuffled: float32 [n] for each group."""
    [(_, main_head, _), *_] = labelled_heads(inference.model)
    layout = inference.model.layout
    parts: list[list[NDArray[np.float32]]] = [[] for _ in groups]
    read = windows(Source(conf, split), features_of(conf, inference.model), limit=limit)
    with ReadAhead(read, WINDOWS_AHEAD) as ahead:
        for batch, donor in _with_donors(ahead, conf):
            for names, logits_of_batches in zip(groups, parts, strict=True):
                logits = inference(exchanged(batch, donor, layout, names))[:, main_head]
                # A copy: a view would keep the logits of all heads in memory.
                logits_of_batches.append(logits.copy())
    return [np.concatenate(logits_of_batches) for logits_of_batches in parts]


def _with_donors(ahead: Iterable[Batch], conf: Conf) -> Iterator[tuple[Batch, Batch]]:
    """Every batch, and the rows of its window whose values its rows get, drawn without repeats."""
    for index, window in enumerate(ahead):
        in_file_order = np.arange(window.rows, dtype=np.uint32)
        drawn = c_columns.permutation(conf.seed, SHUFFLES, index, window.rows)
        yield from zip(
            batches(window, in_file_order, conf.train.batch_rows),
            batches(window, drawn, conf.train.batch_rows),
            strict=True,
        )


def exchanged(batch: Batch, donor: Batch, layout: Layout, names: AbstractSet[str]) -> Batch:
    """A batch whose rows have some inputs from the rows of `donor`, which has as many."""
    changed = replace(
        batch,
        ids=[*batch.ids],
        offsets=[*batch.offsets],
        weights=[*batch.weights],
        numeric=batch.numeric.copy(),
    )
    for name in names & layout.numeric.keys():
        column, width = layout.numeric_columns[name]
        of_input = slice(column - layout.numeric_at, column - layout.numeric_at + width)
        changed.numeric[:, of_input] = donor.numeric[:, of_input]
    both = joined([batch, donor])
    for index, table in enumerate(layout.tables):
        if names.isdisjoint(table.slots):
            continue
        is_moved = np.repeat([slot in names for slot in table.slots], table.spreads)
        cells = np.arange(batch.rows * table.cells, dtype=np.uint32)
        cells[np.tile(is_moved, batch.rows)] += np.uint32(len(cells))
        changed.ids[index], changed.offsets[index], changed.weights[index] = c_columns.take(
            both.ids[index], both.offsets[index], 1, cells, both.weights[index]
        )
    return changed


class ColumnPart(NamedTuple):
    """A column, or the part of a time column that one input alone reads, such as the hour."""

    column: str
    time_input: str | None = None


def shuffled_together(conf: Conf, names: Iterable[str]) -> dict[str, frozenset[str]]:
    """By input, the `names` that are shuffled with it: the inputs that read everything it reads.

    These are itself, a number and the buckets of the same column, and every cross of it. What is
    made of a part of it only keeps its values: the parts of a cross, when that is shuffled. Hour
    and weekday of one time are different things, which do not go together.
    """
    sources = {name: _sources(conf, name) for name in names}
    return {
        name: frozenset(other for other, of_other in sources.items() if of_name <= of_other)
        for name, of_name in sources.items()
    }


def _sources(conf: Conf, name: str) -> frozenset[ColumnPart]:
    """Everything that an input's values are read from; the weights of values are not among it."""
    if (numeric := conf.numeric.get(name)) is not None:
        if numeric.since is not None or numeric.since_column is not None:
            return frozenset({ColumnPart(numeric.column or name, name)})
        return frozenset(map(ColumnPart, value_columns(name, numeric)))
    slot = conf.slots[name]
    if slot.cross is None:
        return frozenset(
            {ColumnPart(slot_column(name, slot), name if slot.kind.of_times else None)}
        )
    of_parts = (
        _sources(conf, part) if part in conf.slots else {ColumnPart(part)} for part in slot.cross
    )
    return frozenset().union(*of_parts)


ROWS_SAMPLED = 1 << 20
# An entry of the index is 8 bytes, and an index that grows by half when it is three quarters full
# has between 4/3 and 2 entries for a row.
INDEX_BYTES = 8 * (2 - 4 / 3) / math.log(1.5)


@dataclass(frozen=True)
class NormSum:
    """How many embeddings were looked at, and the sum of their norms."""

    embeddings: int = 0
    total: float = 0.0

    def __add__(self, other: "NormSum") -> "NormSum":
        return NormSum(self.embeddings + other.embeddings, self.total + other.total)

    @property
    def mean(self) -> float:
        return self.total / self.embeddings


def kind_of(layout: Layout, name: str) -> str:
    """What an input is: slot, sequence, one-hot or number."""
    if name in layout.sequences:
        return "sequence"
    if name in layout.indicators:
        return "one-hot"
    return "slot" if name in layout.slots else "number"


def row_bytes(table: SparseTable) -> float:
    """The expected bytes of a row with its part of the index.

    The bytes that a table really holds depend on its history (rows removed, rows loaded), so they
    would differ between a run that was resumed and one that was not.
    """
    return table.stride + INDEX_BYTES


def rows_and_bytes(
    model: ParameterTables, tables: Sequence[TableFigures]
) -> dict[str, tuple[int, int]]:
    """Rows and bytes, with the index, of the share group of every slot that has rows."""
    sizes = {}
    for layout, table, figures in zip(model.layout.tables, model.tables, tables, strict=True):
        names = list(layout.groups)
        for slot, group in zip(layout.slots, layout.group_of, strict=True):
            rows = figures.groups[names[group]].rows
            sizes[slot] = rows, round(rows * row_bytes(table))
    return sizes


def sampled_norms(
    table: SparseTable, rows: int = ROWS_SAMPLED
) -> tuple[NDArray[np.uint16], NDArray[np.float64]]:
    """The groups' numbers and the norms of at most `rows` embeddings, a uniform sample."""
    # Records come in the order of the key's hash, so the first ones are a uniform sample.
    records: NDArray[Any] | None = next(table.records(at_a_time=rows), None)
    if records is None:
        return np.empty(0, np.uint16), np.empty(0)
    return records["group"], np.linalg.norm(records[EMBEDDING].astype(np.float64), axis=1)


def norm_sums(model: ParameterTables) -> dict[str, NormSum]:
    """The norms of the embeddings of every slot's group that has rows in the sample."""
    norms_of_slots = {}
    for layout, table in zip(model.layout.tables, model.tables, strict=True):
        if not layout.width:
            continue
        groups, norms = sampled_norms(table)
        counts, sums = np.bincount(groups), np.bincount(groups, norms)
        for slot, group in zip(layout.slots, layout.group_of, strict=True):
            if group < len(counts) and counts[group]:
                norms_of_slots[slot] = NormSum(int(counts[group]), float(sums[group]))
    return norms_of_slots
