"""golden.jsonl, made: raw rows with the model's inputs and outputs (docs/formats/golden.md).

A service compares its own results with them. Nothing here uses the code of serving: ids come from
the trainer's columns, inputs from the C tables, logits from the recipe's network.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.checkpoint.golden_lines import GoldenLine
from tnctl.data.arrow_tables import as_table, raw_rows
from tnctl.data.bad_rows import Skipped
from tnctl.data.batches import Batch, batches
from tnctl.data.formats.jsonl_files import cutters
from tnctl.data.slot_encoder import Cells
from tnctl.data.sources import Source
from tnctl.evaluation.inference import Inference
from tnctl.evaluation.metrics import sigmoid
from tnctl.evaluation.split_scoring import features_of
from tnctl.model.building import Model
from tnctl.model.graph import packed_inputs
from tnctl.schema import Conf


class GoldenRows:
    """The first rows of a split with their ids, which are computed once.

    Of data.validation, or where there is none of data.train; at most `most`, and only those that
    can be read: the pass over the data reports what is wrong with the others.
    """

    def __init__(self, conf: Conf, model: Model, most: int) -> None:
        self._rows: list[GoldenLine] = []  # without inputs and outputs
        self._window: Batch | None = None
        if most == 0:
            return
        split = "validation" if conf.data.source("validation") is not None else "train"
        rows = raw_rows(Source(conf, split), most)
        features = features_of(conf, model, labelled=False)
        columns, kept = Skipped(split, most).good(
            as_table(rows, cutters(conf), features.columns),
            lambda row: (f"data.{split}", row + 1),
            features.read,
        )
        if len(kept) == 0:
            return
        slots = {name: columns.cells[name] for name in conf.slots if name in model.layout.slots}
        ids = {name: by_row(cells, cells.ids) for name, cells in slots.items()}
        weights = {
            name: by_row(cells, cells.weights)
            for name, cells in slots.items()
            if cells.weights is not None
        }
        self._rows = [
            GoldenLine(
                row=rows[row],
                ids={name: list(map(str, of_rows[index])) for name, of_rows in ids.items()},
                weights={name: of_rows[index] for name, of_rows in weights.items()} or None,
                logits={},
                predictions={},
            )
            for index, row in enumerate(kept)
        ]
        self._window = features.batch(columns)

    def lines(self, inference: Inference) -> list[GoldenLine]:
        """The lines of golden.jsonl for the model of `inference`, which is only read.

        A row of which a number is infinite or NaN is left out: JSON has no such numbers.
        """
        lines: list[GoldenLine] = []
        if self._window is not None:
            order = np.arange(self._window.rows, dtype=np.uint32)
            first = 0
            for batch in batches(self._window, order, inference.buffers.batch_size):
                lines += _completed(self._rows[first : first + batch.rows], inference, batch)
                first += batch.rows
        return lines


def by_row(cells: Cells, values: NDArray[Any]) -> list[list[Any]]:
    """The values of cells (one per id), row by row, as plain numbers."""
    ends = np.cumsum(cells.lengths()).tolist()
    plain = values.tolist()
    return [plain[first:end] for first, end in zip([0, *ends], ends, strict=False)]


def _completed(
    rows: Sequence[GoldenLine], inference: Inference, batch: Batch
) -> Iterator[GoldenLine]:
    """The lines of a batch with inputs and outputs; without those that are not finite."""
    model = inference.model
    logits = inference(batch)
    predictions = logits if model.conf.train.loss.name == "mse" else sigmoid(logits)
    arrays = {
        packed.name: getattr(inference.buffers, packed.name)[: batch.rows]
        for packed in packed_inputs(model.layout)
    }
    towers = inference.towers(batch.rows)
    numbers = np.concatenate([logits, *arrays.values(), *towers.values()], axis=1)
    for row in np.flatnonzero(np.isfinite(numbers).all(axis=1)).tolist():
        yield rows[row].with_values(
            {name: array[row] for name, array in arrays.items()},
            dict(zip(model.heads, logits[row].tolist(), strict=True)),
            dict(zip(model.heads, predictions[row].tolist(), strict=True)),
            {name: array[row].tolist() for name, array in towers.items()},
        )
