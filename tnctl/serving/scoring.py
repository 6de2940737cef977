"""`tnctl score`: raw rows to scores, by a split graph and exported embeddings alone."""

import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tnctl import documents, files, outputs
from tnctl.checkpoint.golden_lines import RawRow
from tnctl.data import partitions
from tnctl.data.file_pieces import EmptyFileError, Piece, shifted
from tnctl.data.formats.readers import reader_of
from tnctl.data.read_ahead import ReadAhead
from tnctl.errors import Failure
from tnctl.evaluation.predictions import columns_written, writing
from tnctl.model.graph import PACKED
from tnctl.progress import Display
from tnctl.serving.graph.loaded_graph import LoadedGraph, open_graph, outputs_of
from tnctl.serving.graph_inputs import RawInputs, pooled_inputs, served_lookup
from tnctl.serving.rows.embeddings import Embeddings, FileEmbeddings, open_embeddings

FORMATS = ("csv", "jsonl")
STANDARD = "-"  # standard input, or output
BATCH_ROWS = 4096
BATCH_FLOATS = 1 << 26  # of all inputs: 256 MiB
PIECES_AHEAD = 1
# Keys of data by which CSV files are read; JSON lines do not need them.
CSV_KEYS = ("delimiter", "header", "columns", "check_utf8")


class Scorer:
    """A split graph and embeddings of the same checkpoint. Raises Failure for others."""

    def __init__(self, graph: LoadedGraph, embeddings: Embeddings) -> None:
        self.description = graph.description
        self.raw = RawInputs(self.description)
        self._graph, self._lookup = graph, served_lookup(self.description, embeddings)
        self.heads = list(outputs_of(self.description, "logits"))
        columns = sum(packed.columns for packed in self.description.signatures.packed)
        self.batch_rows = max(1, min(BATCH_ROWS, BATCH_FLOATS // columns))
        if not self.heads:
            raise Failure(
                f"the graph is the tower {self.description.head}, which has no scores. Take one "
                "that was split without head=, or with the name of a head"
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
        names = [names[head] for head in self.heads for names in kinds]
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

    `source` and `to` are URLs, or - for standard input and output; `kind` is csv or jsonl; the
    first `skip_rows` lines of the source are not read; `replace` allows that `to` exists.
    Raises Failure for a row that cannot be read, by its line, and for what cannot be written;
    UserError when `to` exists, or is or lies in what is read.
    """
    loaded = open_graph(graph)
    rows = 0
    with closing(open_embeddings(embeddings, prefix)) as opened:
        folders = opened.folders if isinstance(opened, FileEmbeddings) else ()
        reads = [graph, *folders, "/dev/stdin" if source == STANDARD else source]
        scorer = Scorer(loaded, opened)
        url = files.STANDARD_INPUT if source == STANDARD else source
        with (
            showing(to) as show,
            ReadAhead(pieces(scorer, url, kind, skip_rows), PIECES_AHEAD) as ahead,
            nullcontext(sys.stdout.buffer)
            if to == STANDARD
            else outputs.output_file(to, reads, replace) as stream,
            writing(stream, to, to_kind) as write,
        ):
            for piece in ahead:
                for start in range(0, piece.table.num_rows, scorer.batch_rows):
                    table = piece.table.slice(start, scorer.batch_rows)
                    write(pa.table(scorer(table, shifted(piece.where, start))))
                rows += piece.table.num_rows
                show(rows)
        if to == STANDARD:
            stream.flush()
    return rows


def pieces(scorer: Scorer, url: str, kind: str, skip_rows: int = 0) -> Iterator[Piece]:
    """The rows of a file in order, with the columns that the graph needs.

    CSV is read as training read it, if that was CSV.
    """
    data, conf = documents.plain(scorer.description.data), scorer.raw.conf
    keys = {key: data[key] for key in CSV_KEYS} if data["format"] == kind else {}
    conf = replace(conf, data=replace(conf.data, format=kind, **keys))
    try:
        yield from partitions.pieces(reader_of(conf, skip_rows), url, scorer.raw.columns)
    except EmptyFileError:
        return  # no rows have no scores


@contextmanager
def showing(to: str) -> Iterator[Callable[[int], None]]:
    """Displays how many rows are scored, unless scores are written to the same terminal."""
    if to == STANDARD:
        yield lambda _: None
        return
    with Display("score", None) as display:
        yield lambda rows: display.update(rows, f"{rows:,} rows")
        display.finish()
