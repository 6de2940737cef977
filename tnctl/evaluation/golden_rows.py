"""golden.jsonl: raw rows, and what the model makes of them (docs/formats/golden.md).

Whoever serves the model tests itself with them. Nothing here is of serving: ids come from the
trainer's own columns, inputs from the C tables, logits from the recipe's network.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.checkpoint.golden import GoldenLine
from tnctl.data.bad_rows import Skipped
from tnctl.data.batches import Batch, batches
from tnctl.data.raw_rows import as_table, raw_rows
from tnctl.data.slot_encoder import Cells
from tnctl.evaluation.evaluate import features_of
from tnctl.evaluation.inference import Inference
from tnctl.evaluation.metrics import sigmoid
from tnctl.model.building import Model
from tnctl.model.graph import packed_inputs
from tnctl.schema import Conf


class GoldenRows:
    """The first rows of a split with their ids, which are made once.

    Of data.validation, or where there is none of data.train; at most `most`, and only those that
    can be read: what is wrong with another is for the pass over the data to say.
    """

    def __init__(self, conf: Conf, model: Model, most: int) -> None:
        self._rows: list[GoldenLine] = []  # without inputs and outputs
        self._window: Batch | None = None
        if most == 0:
            return
        split = "validation" if conf.data.validation is not None else "train"
        rows = raw_rows(conf, split, most)
        features = features_of(conf, model, labelled=False)
        columns, kept = Skipped(split, most).good(
            as_table(conf, rows, features.columns),
            lambda row: (f"data.{split}", row + 1),
            features.read,
        )
        if len(kept) == 0:
            return
        names = [name for name in conf.slots if name in model.layout.slots]
        ids = {name: _split(columns.cells[name], columns.cells[name].ids) for name in names}
        weights = {
            name: _split(cells, cells.weights)
            for name, cells in ((name, columns.cells[name]) for name in names)
            if cells.weights is not None
        }
        for number, row in enumerate(kept):
            self._rows.append(
                GoldenLine(
                    row=rows[row],
                    ids={name: list(map(str, of[number])) for name, of in ids.items()},
                    weights={name: of[number] for name, of in weights.items()} or None,
                    logits={},
                    predictions={},
                )
            )
        self._window = features.batch(columns)

    def lines(self, inference: Inference) -> list[GoldenLine]:
        """What golden.jsonl says of the model of `inference`, which is only read.

        A row of which a number is infinite or NaN is left out: JSON has no such numbers.
        """
        if self._window is None:
            return []
        order = np.arange(self._window.rows, dtype=np.uint32)
        lines: list[GoldenLine] = []
        done = 0
        for batch in batches(self._window, order, inference.buffers.batch_size):
            lines += _completed(self._rows[done : done + batch.rows], inference, batch)
            done += batch.rows
        return lines


def _split(cells: Cells, values: NDArray[Any]) -> list[list[Any]]:
    """The values of cells, row by row, as plain numbers."""
    ends = np.cumsum(cells.lengths()).tolist()
    plain = values.tolist()
    return [plain[first:end] for first, end in zip([0, *ends], ends, strict=False)]


def _completed(
    rows: Sequence[GoldenLine], inference: Inference, batch: Batch
) -> Iterator[GoldenLine]:
    """The lines of a batch with inputs and outputs; without those that are not finite."""
    model = inference.model
    logits = inference(batch)
    squared = model.conf.train.loss.name == "mse"
    predictions = logits if squared else sigmoid(logits)
    arrays = {
        tensor.name: getattr(inference.buffers, tensor.name)[: batch.rows]
        for tensor in packed_inputs(model.layout)
    }
    towers = inference.towers(batch.rows)
    finite = np.all(
        [
            np.isfinite(tensor).all(axis=1)
            for tensor in (logits, *arrays.values(), *towers.values())
        ],
        axis=0,
    )
    for row in np.flatnonzero(finite).tolist():
        yield rows[row].with_values(
            {name: array[row] for name, array in arrays.items()},
            dict(zip(model.heads, logits[row].tolist(), strict=True)),
            dict(zip(model.heads, predictions[row].tolist(), strict=True)),
            {name: array[row].tolist() for name, array in towers.items()},
        )
