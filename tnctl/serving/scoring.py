"""`tnctl score`: raw rows to scores, by a split graph and exported embeddings alone."""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from tnctl import documents, files, outputs, schema
from tnctl.checkpoint.golden_lines import RawRow
from tnctl.data.bad_rows import Skipped, chosen
from tnctl.data.file_pieces import EmptyFileError, Piece, row_numbers, shifted
from tnctl.data.formats import reader_of
from tnctl.data.read_ahead import ReadAhead
from tnctl.errors import Failure
from tnctl.evaluation.predictions import columns_written, writing
from tnctl.model.graph import PACKED
from tnctl.progress import Display
from tnctl.serving.graph.graph_document import BY_ID, RANK
from tnctl.serving.graph.loaded_graph import LoadedGraph, open_graph, outputs_of, rank_inputs_of
from tnctl.serving.graph_inputs import RawInputs, id_arrays, pooled_inputs, served_lookup
from tnctl.serving.rows.embeddings import Embeddings, FileEmbeddings, open_embeddings
from tnctl.serving.rows.precision import Arrays, Floats

FORMATS = ("csv", "jsonl")
STANDARD = "-"  # standard input, or output
BATCH_ROWS = 4096
BATCH_FLOATS = 1 << 26  # of all inputs: 256 MiB
PIECES_AHEAD = 1
FEWEST_ITEMS = 16  # rows of a user, on average, from which ranking them takes less time
# Keys of data by which CSV files are read, as those that were trained on; JSON lines do not need
# them.
CSV_KEYS = ("delimiter", "header", "columns", "check_utf8")
# Keys of data that may be given for the rows that are scored.
KEYS = (*CSV_KEYS, "skip_rows", "bad_rows")
LINE = "line"  # the column with the number of a row's line, where rows may be left out


class Scorer:
    """A split graph and embeddings of the same checkpoint. Raises Failure for others.

    Without embeddings the graph has the rows inside.
    """

    def __init__(self, graph: LoadedGraph, embeddings: Embeddings | None) -> None:
        self.description = graph.description
        self.raw = RawInputs(self.description)
        self._graph, self._lookup = graph, None
        self._sides = rank_inputs_of(self.description)
        if embeddings is not None:
            self._lookup = served_lookup(self.description, embeddings)
        self.heads = list(outputs_of(self.description, "logits"))
        columns = sum(packed.columns for packed in self.description.signatures.packed)
        self.batch_rows = max(1, min(BATCH_ROWS, BATCH_FLOATS // columns))
        if not self.heads:
            raise Failure(
                f"the graph is the tower {self.description.head}, which has no scores. Take one "
                "that was split without head=, or with the name of a head"
            )

    def __call__(self, rows: list[RawRow] | pa.Table, *where: Any) -> dict[str, Floats]:
        """Predictions and logits of raw rows, float32 [rows], by the columns of `tnctl predict`.

        Raises BadRowsError for a value that is not what its column must hold.
        """
        encoded = self.raw.encode(rows, *where)
        if self._lookup is None:
            outputs = self._graph.run(BY_ID, id_arrays(self.description, encoded))
        else:
            outputs = self._outputs(pooled_inputs(self.description, encoded, self._lookup))
        kinds = [outputs_of(self.description, kind) for kind in ("predictions", "logits")]
        names = [names[head] for head in self.heads for names in kinds]
        columns = columns_written(tuple(self.heads))
        return {column: outputs[name] for column, name in zip(columns, names, strict=True)}

    def _outputs(self, inputs: Arrays) -> Arrays:
        """What the graph computes of inputs of `packed`; by `rank` where users have many rows.

        Rows of a user are those, one after the other, whose inputs of the user are the same.
        """
        rows = len(next(iter(inputs.values())))
        of_user = [inputs[s.source][:, s.places] for s in self._sides if s.of_user]
        if not of_user or not rows:
            return self._graph.outputs(PACKED, inputs)
        changes = [(array[1:] != array[:-1]).any(axis=1) for array in of_user]
        starts = [0, *(np.flatnonzero(np.any(changes, axis=0)) + 1).tolist(), rows]
        if rows < FEWEST_ITEMS * (len(starts) - 1):
            return self._graph.outputs(PACKED, inputs)
        parts = []
        for first, end in pairwise(starts):
            of_rows = {name: array[first:end] for name, array in inputs.items()}
            of_rank = {side.name: side.of(of_rows) for side in self._sides}
            parts.append(self._graph.run(RANK, of_rank))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def score(
    graph: str,
    embeddings: str | None,
    prefix: str,
    source: str,
    kind: str,
    to: str,
    to_kind: str,
    keys: Mapping[str, Any],
    replace: bool = False,
) -> int:
    """Write the scores of raw rows, in their order; returns how many. Never all in memory.

    `source` and `to` are URLs, or - for standard input and output; `kind` is csv or jsonl; `keys`
    are those of KEYS that are given; `replace` allows that `to` exists. With `bad_rows` above 0,
    up to this number of unreadable rows are left out, and column `line` has the line of each row in
    `source`, int64, from 1. Raises Failure for a row that cannot be read, by its line, and
    for what cannot be written; UserError when `to` exists, or is or lies in what is read.
    """
    loaded = open_graph(graph)
    rows = 0
    with (
        nullcontext() if embeddings is None else closing(open_embeddings(embeddings, prefix))
    ) as opened:
        folders = opened.folders if isinstance(opened, FileEmbeddings) else ()
        reads = [graph, *folders, "/dev/stdin" if source == STANDARD else source]
        scorer = Scorer(loaded, opened)
        conf = conf_of_rows(scorer, kind, keys)
        url = files.STANDARD_INPUT if source == STANDARD else source
        skipped = Skipped("input", conf.data.bad_rows)
        with (
            showing(to) as show,
            ReadAhead(pieces(scorer, url, conf), PIECES_AHEAD) as ahead,
            nullcontext(sys.stdout.buffer)
            if to == STANDARD
            else outputs.output_file(to, reads, replace) as stream,
            writing(stream, to, to_kind) as write,
        ):
            for piece in ahead:
                skipped.join(piece.bad)
                for start in range(0, piece.table.num_rows, scorer.batch_rows):
                    table = piece.table.slice(start, scorer.batch_rows)
                    where = shifted(piece.where, start)
                    scores, kept = skipped.good(table, where, scorer)
                    columns: Arrays = {}
                    if conf.data.bad_rows:
                        columns[LINE] = row_numbers(chosen(where, kept), len(kept))
                    write(pa.table(columns | scores))
                    rows += len(kept)
                skipped.check()
                show(rows)
            if not rows:
                write(without_rows(scorer, bool(conf.data.bad_rows)))
        if to == STANDARD:
            stream.flush()
        skipped.report()
    return rows


def without_rows(scorer: Scorer, with_lines: bool) -> pa.Table:
    """The columns of scores: a CSV file has them in its header also where no row is good."""
    columns: Arrays = {LINE: np.empty(0, np.int64)} if with_lines else {}
    nothing = np.empty(0, np.float32)
    return pa.table(columns | dict.fromkeys(columns_written(tuple(scorer.heads)), nothing))


def conf_of_rows(scorer: Scorer, kind: str, keys: Mapping[str, Any]) -> schema.Conf:
    """The conf by which rows are read: `keys` of data as given, else as training read them.

    Settings of the training data are taken where that was of the same format. Raises UserError for
    a key that has no such value.
    """
    trained, data = documents.plain(scorer.description.data), documents.plain(scorer.raw.conf.data)
    same = {key: trained[key] for key in CSV_KEYS} if trained["format"] == kind else {}
    data |= {"format": kind, **same, **keys}
    read = schema.section_of(schema.Data, data, "data")
    return dataclasses.replace(scorer.raw.conf, data=read)


def pieces(scorer: Scorer, url: str, conf: schema.Conf) -> Iterator[Piece]:
    """The rows of a file in order, with the columns that the graph needs."""
    try:
        reader = reader_of(conf, conf.data.skip_rows)
        yield from reader.pieces(url, scorer.raw.columns)
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
