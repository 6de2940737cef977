"""Scores of a table in memory, as predictions.py has them of files."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from tnctl.data import arrow_tables
from tnctl.data.bad_rows import refuse_large_window
from tnctl.data.batches import Batch
from tnctl.data.features import Features
from tnctl.data.file_pieces import Where, shifted
from tnctl.data.read_ahead import in_order
from tnctl.data.sources import window_rows
from tnctl.evaluation.inference import Inference
from tnctl.evaluation.predictions import columns_written, scored
from tnctl.evaluation.split_scoring import features_of
from tnctl.schema import Conf


def predict_table(inference: Inference, conf: Conf, table: Any) -> pa.Table:
    """The scores of the rows of a table of any library, in their order.

    Columns are those of `predictions.scored`, and the index of a DataFrame of pandas. Raises as
    `windows_of`, and BadRowsError for the first value that cannot be read: data.bad_rows is of
    files.
    """
    features = features_of(conf, inference.model, labelled=False)
    size = window_rows(conf.data.window, conf.train.batch_rows)
    names = columns_written(inference.model.heads)
    kinds = [pa.float64() if number % 2 == 0 else pa.float32() for number in range(len(names))]
    schema = pa.schema(list(zip(names, kinds, strict=True)))
    tables = arrow_tables.windows_of(table, conf, features.columns, size)
    windows = in_order(partial(_encoded, features), _placed(tables))
    scores = [scored(inference, window, conf.train, names) for window in windows]
    return arrow_tables.with_index(pa.concat_tables([schema.empty_table(), *scores]), table)


def _placed(tables: Iterator[pa.Table]) -> Iterator[tuple[pa.Table, Where]]:
    first = 0
    for table in tables:
        yield table, shifted(arrow_tables.where, first)
        first += table.num_rows


def _encoded(features: Features, part: tuple[pa.Table, Where]) -> Batch:
    window = features.encode(*part)
    refuse_large_window(float(np.sum([len(ids) for ids in window.ids])))
    return window
