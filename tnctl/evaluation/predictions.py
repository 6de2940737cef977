"""What a model says of rows: predictions of a split or a table, and golden rows for services.

Predictions are in file order and never all in memory. Golden rows are raw rows with the model's
inputs and outputs (docs/formats/golden.md), with which a service compares its results. They use no
code of serving: ids come from the trainer's columns, inputs from the C tables, logits from the
recipe's network.
"""

import json
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tnctl import outputs
from tnctl.checkpoint.golden_lines import GoldenLine
from tnctl.data import arrow_tables, numbers
from tnctl.data.arrow_tables import as_table, raw_rows
from tnctl.data.bad_rows import BadRowsError, Skipped, refuse_large_window
from tnctl.data.batches import Batch, batches
from tnctl.data.features import Features
from tnctl.data.file_pieces import Where, shifted
from tnctl.data.formats.jsonl_files import cutters
from tnctl.data.read_ahead import ReadAhead, in_order
from tnctl.data.slot_encoder import Cells
from tnctl.data.sources import Source, files_read, window_rows
from tnctl.data.unit_records import WHOLE, Unit
from tnctl.data.windows import count_hint, windows
from tnctl.errors import Failure, UserError
from tnctl.evaluation.metrics import sigmoid
from tnctl.evaluation.split_scoring import features_of
from tnctl.progress import Display
from tnctl.schema import Conf, Train

if TYPE_CHECKING:
    from tnctl.evaluation.inference import Inference
    from tnctl.model.building import Model

WINDOWS_AHEAD = 1
ONLY_LISTS = ("tfrecord", "paddle")  # the formats whose every column is a list


def predict(
    model: "Model",
    tables: Iterator[pa.Table],
    conf: Conf,
    split: str,
    to: str,
    kind: str,
    reads: Iterable[str] = (),
    replace: bool = False,
) -> int:
    """Write the predictions of a split to one file; returns how many rows it has.

    `tables` are those that `predicted_windows` makes for the model.
    `reads` are further files and folders that are read, which `to` must not overlap. An existing
    file is replaced with `replace`.

    Columns: the columns of data.carry (of formats that know only lists, columns of one value per
    row as values), then for each head `prediction_<head>` and `logit_<head>`, or `prediction` and
    `logit` when there is one head. The prediction is the sigmoid of the logit, with train.loss=mse
    the logit itself. `kind` is parquet, csv or jsonl. Labels are not read. Raises Failure when the
    data cannot be read or the file not written.
    """
    check_carried(conf.data.carry, model.heads)
    with_lists: set[str] = set()
    rows = 0
    with (
        Display("predict", count_hint(Source(conf, split))) as display,
        outputs.output_file(to, [*files_read(conf, [split]), *reads], replace) as stream,
        writing(stream, to, kind) as write,
    ):
        for table in tables:
            write(_unpacked(table, with_lists) if conf.data.format in ONLY_LISTS else table)
            rows += table.num_rows
            display.update(rows, f"{rows:,} rows to {to}")
        display.finish()
    return rows


def predicted_windows(
    inference: "Inference",
    conf: Conf,
    split: str,
    unit: Unit = WHOLE,
    skipped: Skipped | None = None,
) -> Generator[pa.Table]:
    """The windows of a split, or of a unit of it, in file order, each as `scored` makes it.

    `skipped` counts the rows that cannot be read.
    """
    model = inference.model
    names, carry = columns_written(model.heads), conf.data.carry
    features = features_of(conf, model, labelled=False, carry=carry)
    source = windows(Source(conf, split), features, unit=unit, skipped=skipped)
    with ReadAhead(source, WINDOWS_AHEAD) as ahead:
        for window in ahead:
            yield scored(inference, window, conf.train, names)


def check_carried(carry: Iterable[str], heads: tuple[str, ...]) -> None:
    """Raise UserError for a carried column with the name of one that is written."""
    if both := [name for name in carry if name in columns_written(heads)]:
        raise UserError(f"data.carry has {both[0]}, which is a column that predict writes")


def columns_written(heads: tuple[str, ...]) -> list[str]:
    """The columns of predictions and logits, head after head."""
    if len(heads) == 1:
        return ["prediction", "logit"]
    return [f"{what}_{head}" for head in heads for what in ("prediction", "logit")]


def scored(inference: "Inference", window: Batch, train: Train, names: list[str]) -> pa.Table:
    """The carried columns of a window, then predictions (float64) and logits (float32)."""
    order = np.arange(window.rows, dtype=np.uint32)
    logits = np.concatenate(
        [inference(batch) for batch in batches(window, order, train.batch_rows)]
    )
    table = window.carried if window.carried is not None else pa.table({})
    columns = dict(zip(table.column_names, table.columns, strict=True))
    pairs = zip(names[::2], names[1::2], np.ascontiguousarray(logits.T), strict=True)
    for prediction, logit, of_head in pairs:
        squared = train.loss.name == "mse"
        columns[prediction] = pa.array(of_head.astype(np.float64) if squared else sigmoid(of_head))
        columns[logit] = pa.array(of_head)
    return pa.table(columns)


def _unpacked(table: pa.Table, with_lists: set[str]) -> pa.Table:
    """The table, with lists of at most one value in every row as these values.

    `with_lists` are the columns in which an earlier table has longer lists; the same columns of
    this one are added.
    """
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        columns[name] = array = numbers.flat(column)
        if name not in with_lists:
            try:
                columns[name] = numbers.single(array, name, lambda row: ("", row))
            except BadRowsError:
                with_lists.add(name)
    return pa.table(columns)


@contextmanager
def writing(stream: IO[bytes], to: str, kind: str) -> Iterator[Callable[[pa.Table], None]]:
    """A function that appends an Arrow table to the file of `to`; the first decides the schema."""
    make = pq.ParquetWriter if kind == "parquet" else pyarrow.csv.CSVWriter
    writer = schema = None
    with ExitStack() as stack:

        def write(table: pa.Table) -> None:
            nonlocal writer, schema
            if kind == "jsonl":
                lines = (_as_json(row) for row in table.to_pylist())
                stream.write("".join(f"{line}\n" for line in lines).encode())
                return
            table = _with_nested_as_text(table) if kind == "csv" else table
            if writer is None:
                schema = table.schema
                writer = stack.enter_context(make(stream, schema))
            try:
                table = table.cast(schema)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
                raise Failure(
                    f"{to}: a column of data.carry changes its type between rows ({error}). Leave "
                    "it out, or write format=jsonl"
                ) from error
            try:
                writer.write_table(table)
            except pa.ArrowInvalid as error:
                raise Failure(
                    f"{to}: {kind} cannot hold what data.carry has ({error}). Take format=parquet"
                ) from error

        yield write


def _with_nested_as_text(table: pa.Table) -> pa.Table:
    """The table with lists and records as JSON text, which CSV can hold."""
    columns = dict(zip(table.column_names, table.columns, strict=True))
    for name, column in columns.items():
        if pa.types.is_nested(column.type):
            texts = [None if value is None else _as_json(value) for value in column.to_pylist()]
            columns[name] = pa.array(texts, pa.string())
    return pa.table(columns)


def _as_json(value: Any) -> str:
    return json.dumps(_plain(value), ensure_ascii=True, allow_nan=False)


def _plain(value: Any) -> Any:
    """A value as JSON holds it: bytes by UTF-8 or surrogates, NaN and infinity as null."""
    match value:
        case dict():
            return {name: _plain(part) for name, part in value.items()}
        case list():
            return [_plain(part) for part in value]
        case bytes():
            return value.decode("utf-8", "surrogateescape")
        case float():
            return value if math.isfinite(value) else None
        case None | str() | int():
            return value
    return str(value)


def predict_table(inference: "Inference", conf: Conf, table: Any) -> pa.Table:
    """The scores of the rows of a table of any library, in their order.

    Columns are those of `predictions.scored`, and the index of a DataFrame of pandas. Raises as
    `windows_of`, and BadRowsError for the first value that cannot be read: data.bad_rows is of
    files.
    """
    features = features_of(conf, inference.model, labelled=False)
    size = window_rows(conf.data.window, conf.train.batch_rows)
    names = columns_written(inference.model.heads)
    kinds = [pa.float64() if index % 2 == 0 else pa.float32() for index in range(len(names))]
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


# ---- Golden rows -------------------------------------------------------------------------


class GoldenRows:
    """The first rows of a split with their ids, which are computed once.

    Of data.validation, or where there is none of data.train; at most `most`, and only those that
    can be read: the pass over the data reports what is wrong with the others.
    """

    def __init__(self, conf: Conf, model: "Model", most: int) -> None:
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
        cells = {name: columns.cells[name] for name in conf.slots if name in model.layout.slots}
        ids = {name: by_row(of_slot, of_slot.ids) for name, of_slot in cells.items()}
        weights = {
            name: by_row(of_slot, of_slot.weights)
            for name, of_slot in cells.items()
            if of_slot.weights is not None
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

    def lines(self, inference: "Inference") -> list[GoldenLine]:
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
    rows: Sequence[GoldenLine], inference: "Inference", batch: Batch
) -> Iterator[GoldenLine]:
    """The lines of a batch with inputs and outputs; without those that are not finite."""
    from tnctl.model.graph import packed_inputs  # imports TensorFlow

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
