"""The processes that read the model of a checkpoint: they score by it, and look up rows."""

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tnctl.checkpoint.chain import Checkpoint
from tnctl.checkpoint.load import load
from tnctl.data.arrow_tables import ids_of_values
from tnctl.errors import UserError, did_you_mean, quoted
from tnctl.evaluation.inference import Inference
from tnctl.evaluation.predictions import predicted_windows
from tnctl.evaluation.split_scoring import score
from tnctl.model.layout import EMBEDDING, LINEAR
from tnctl.progress import waiting
from tnctl.schema import Conf


class LocalReader:
    """One process, which has the whole model in memory, and all that commands use of it.

    Every method raises Failure when the data cannot be read. `model` is the network, the layout of
    its rows, and the tables of this process. A subclass is several, of which each has a part of the
    rows.
    """

    def __init__(self, checkpoint: Checkpoint, conf: Conf) -> None:
        """Load the model of a checkpoint. Raises DamagedError."""
        self._conf = conf
        with waiting(f"loading {checkpoint.folder}"):
            self.model = load(checkpoint, conf)

    def metrics(self, split: str) -> dict[str, Any]:
        """Exact metrics of a split."""
        return score(self.inference(self._conf.train.batch_rows), self._conf, split).metrics()

    def predictions(self, split: str) -> Generator[pa.Table]:
        """The windows of a split in the order of the data, as `predictions.scored` makes them."""
        inference = self.inference(self._conf.train.batch_rows)
        return predicted_windows(inference, self._conf, split)

    def inference(self, batch_size: int) -> Inference:
        """Logits of batches of at most `batch_size` examples."""
        return Inference(self.model, batch_size)

    def rows(
        self, table: int, groups: NDArray[np.uint16], ids: NDArray[np.uint64]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """What is read of n keys of a table, by its index, and which of them have a row.

        float32 [n, floats read], zeros where there is none, and bool [n].
        """
        stored = self.model.tables[table]
        rows = np.zeros((len(ids), stored.read_floats), np.float32)
        known = stored.contains(groups, ids)
        for index in np.flatnonzero(known).tolist():
            rows[index] = stored.lookup(int(groups[index]), int(ids[index]))
        return rows, known


# Loads the model of a checkpoint.
Readers = Callable[[Checkpoint, Conf], LocalReader]


def value_rows(reader: LocalReader, slot: str, values: Any) -> pa.Table:
    """What the model has of values [n] of a slot; docs/python.md has the columns.

    Each value is one of the data's, after a separator has split them. Raises UserError for a slot
    without rows, and for values that are no column; BadRowsError for one that cannot be an id.
    """
    model = reader.model
    layout = model.layout
    if slot not in layout.slots:
        raise UserError(
            f"no slot {quoted(str(slot))} with rows. {did_you_mean(str(slot), layout.slots)}"
        )
    values, ids, has_id = ids_of_values(model.conf, model.statistics, slot, values)
    [index] = [n for n, table in enumerate(layout.tables) if slot in table.slots]
    table = layout.tables[index]
    group = table.group_of[table.slots.index(slot)]
    distinct, positions = np.unique(ids, return_inverse=True)
    floats, known = reader.rows(index, np.full(len(distinct), group, np.uint16), distinct)
    is_known = known[positions] & has_id
    rows = np.where(is_known[:, None], floats[positions], np.float32(0))
    columns = {
        "value": values,
        "id": pa.array(ids, mask=~has_id),
        "known": pa.array(is_known),
    }
    if table.kind.linear:
        columns[LINEAR] = pa.array(rows[:, 0])
    if table.kind.columns:
        embedding = np.ascontiguousarray(rows[:, int(table.kind.linear) :])
        columns[EMBEDDING] = pa.FixedSizeListArray.from_arrays(
            pa.array(embedding.reshape(-1)), table.kind.columns
        )
    return pa.table(columns)
