"""`tnctl score`: raw rows to scores, by a split graph and exported embeddings alone."""

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from tnctl import documents, files, outputs
from tnctl.checkpoint.golden import RawRow
from tnctl.data import csv_files, jsonl_files
from tnctl.data.ahead import ReadAhead
from tnctl.data.reading import EmptyFileError, Piece, in_lines, shifted
from tnctl.errors import Failure
from tnctl.evaluation.predictions import columns_written
from tnctl.model.graph import PACKED
from tnctl.progress import Display
from tnctl.schema import Conf
from tnctl.serving.inputs import RawInputs, pooled_inputs, served_lookup
from tnctl.serving.rows.embeddings import (
    Embeddings,
    FileEmbeddings,
    open_embeddings,
)
from tnctl.serving.served import ServedGraph, open_graph, outputs_of

READERS = {"csv": csv_files.pieces, "jsonl": jsonl_files.pieces}
FORMATS = tuple(READERS)
STANDARD = "-"  # standard input, or output
BATCH_ROWS = 4096
BATCH_FLOATS = 1 << 26  # of all inputs: 256 MiB
PIECES_AHEAD = 1
# How files of text are read; what is not of CSV means nothing to JSON lines.
OF_FILES = ("delimiter", "header", "columns", "check_utf8")


class Scorer:
    """A split graph and embeddings of the same checkpoint. Raises Failure for others."""

    def __init__(self, graph: ServedGraph, embeddings: Embeddings) -> None:
        self.description = graph.description
        self.raw = RawInputs(self.description)
        self._graph, self._lookup = graph, served_lookup(self.description, embeddings)
        self.heads = list(outputs_of(self.description, "logits"))
        columns = sum(one.columns for one in self.description.signatures.packed)
        self.batch_rows = max(1, min(BATCH_ROWS, BATCH_FLOATS // columns))
        if not self.heads:
            raise Failure(
                f"the graph is the tower {self.description.head}, which has no scores. Take "
                "one that was split without head=, or with that of a head"
            )

    def __call__(
        self, rows: list[RawRow] | pa.Table, *where: Any
    ) -> dict[str, NDArray[np.float32]]:
        """Predictions and logits of raw rows, float32 [rows], by the columns of `tnctl predict`.

        Raises BadRowsError for a value that is not what its column must hold.
        """
        inputs = pooled_inputs(self.description, self.raw.encode(rows, *where), self._lookup)
        outputs = self._graph.outputs(PACKED, inputs)
        kinds = [outputs_of(self.description, kind) for kind in ("predictions", "logits")]
        names = [of_heads[head] for head in self.heads for of_heads in kinds]
        columns = columns_written(tuple(self.heads))
        return {column: outputs[name] for column, name in zip(columns, names, strict=True)}


def score(
    graph: str,
    embeddings: str,
    prefix: str,
    source: str,
    kind: str,
    to: str,
    to_kind: str,
    skip_rows: int = 0,
    replace: bool = False,
) -> int:
    """Write the scores of raw rows, in their order; returns how many. Never all in memory.

    `source` and `to` are URLs, or - for standard input and output; `kind` is csv or jsonl;
    `skip_rows` lines of the source are passed over; `replace` says that `to` may be there already.
    Raises Failure for a row that cannot be read, by its line, and for what cannot be written;
    UserError when `to` is there, or is or lies in what is read.
    """
    served = open_graph(graph)
    rows = 0
    with closing(open_embeddings(embeddings, prefix)) as opened:
        reads = [graph, *(opened.folders if isinstance(opened, FileEmbeddings) else ())]
        reads.append("/dev/stdin" if source == STANDARD else source)
        scorer = Scorer(served, opened)
        url = files.STANDARD_INPUT if source == STANDARD else source
        batches = pieces(scorer, url, kind, skip_rows)
        with (
            showing(to) as show,
            ReadAhead(batches, PIECES_AHEAD) as ahead,
            writing(to, to_kind, reads, replace) as write,
        ):
            for piece in ahead:
                for start in range(0, piece.table.num_rows, scorer.batch_rows):
                    table = piece.table.slice(start, scorer.batch_rows)
                    write(scorer(table, shifted(piece.where, start)))
                rows += piece.table.num_rows
                show(rows)
    return rows


def pieces(scorer: Scorer, url: str, kind: str, skip_rows: int = 0) -> Iterator[Piece]:
    """The rows of a file in order, with the columns that the graph needs."""
    conf = conf_of_file(scorer, kind)
    try:
        for piece in READERS[kind](conf, url, scorer.raw.columns, skip_rows):
            yield replace(piece, where=in_lines(piece.where))
    except EmptyFileError:
        return  # no rows have no scores


def conf_of_file(scorer: Scorer, kind: str) -> Conf:
    """How a file of raw rows is read: CSV as training read it, where that was CSV."""
    data, conf = documents.plain(scorer.description.data), scorer.raw.conf
    own = {key: data[key] for key in OF_FILES} if data["format"] == kind else {}
    return replace(conf, data=replace(conf.data, format=kind, **own))


@contextmanager
def showing(to: str) -> Iterator[Callable[[int], None]]:
    """How many rows are scored, shown; not beside scores that go to the same terminal."""
    if to == STANDARD:
        yield lambda _: None
        return
    with Display("score", None) as display:
        yield lambda rows: display.update(rows, f"{rows:,} rows")
        display.finish()


@contextmanager
def writing(
    to: str, kind: str, reads: list[str], replace: bool
) -> Iterator[Callable[[dict[str, NDArray[np.float32]]], None]]:
    """A file, or standard output, that columns of scores are written to, part after part."""
    write = write_csv if kind == "csv" else write_lines
    if to != STANDARD:
        with outputs.output_file(to, reads, replace) as stream:
            yield write(stream)
        return
    yield write(sys.stdout.buffer)
    sys.stdout.buffer.flush()


def write_lines(stream: IO[bytes]) -> Callable[[dict[str, NDArray[np.float32]]], None]:
    """JSON lines; what is no number is null."""

    def write(columns: dict[str, NDArray[np.float32]]) -> None:
        values = zip(*(column.tolist() for column in columns.values()), strict=True)
        lines = [
            json.dumps(
                {
                    name: one if math.isfinite(one) else None
                    for name, one in zip(columns, row, strict=True)
                }
            )
            for row in values
        ]
        stream.write("".join(f"{line}\n" for line in lines).encode())

    return write


def write_csv(stream: IO[bytes]) -> Callable[[dict[str, NDArray[np.float32]]], None]:
    """CSV with a header."""
    begun = False

    def write(columns: dict[str, NDArray[np.float32]]) -> None:
        nonlocal begun
        options = pyarrow.csv.WriteOptions(include_header=not begun)
        part = pa.BufferOutputStream()
        pyarrow.csv.write_csv(pa.table(columns), part, options)
        stream.write(part.getvalue())
        begun = True

    return write
