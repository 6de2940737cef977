"""The rows that `tnctl init` looks at: the first ones of some files, and of other splits' files."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from tnctl import schema
from tnctl.data.file_pieces import partitions_of
from tnctl.data.formats import reader_of
from tnctl.data.read_ahead import in_order
from tnctl.data.sources import Source
from tnctl.errors import Failure, refuse_if
from tnctl.masking import masked
from tnctl.progress import say
from tnctl.schema import Conf
from tnctl.starting.column_figures import figures
from tnctl.starting.column_kinds import ChosenLabel, spellings
from tnctl.starting.file_form import FileForm, Settings, form_of
from tnctl.starting.named_files import NamedFiles

ROWS, ROWS_OF_SPELLINGS = 100_000, 20_000
CELLS = 20_000_000  # of wide tables fewer rows are read
BYTES = 512 << 20  # in Arrow's buffers
FILES = 4
ENOUGH_ROWS = 10_000  # with fewer in those files, more files are read
MOST_FILES = 200  # each may be far away
MANY_COLUMNS = 1000  # that take long
MOST_BAD = 0.05  # the share of rows that cannot be read, beyond which no conf is written


@dataclass
class Sample:
    """Rows of the files of a split, with all columns."""

    table: pa.Table
    estimate: int  # about how many rows there are in all training files
    skipped: int  # rows that cannot be read, and why the first cannot
    reason: str
    is_whole: bool  # all rows of all files

    @property
    def rows(self) -> int:
        """How many rows were read."""
        return int(self.table.num_rows)


def read_rows(
    form: FileForm, named: NamedFiles, split: str, columns: Sequence[str], rows: int = ROWS
) -> Sample:
    """The first rows of some files of a split: of the first, the last and others between.

    Raises `Failure` when there are none, or many that cannot be read.
    """
    if len(columns) >= MANY_COLUMNS:
        say(f"{len(columns):,} columns are read and looked at: some ms for each")
    conf = _reading_conf(form, named, columns)
    reader, urls = reader_of(conf, conf.data.skip_rows), named.urls(split)
    rows = max(1, min(rows, CELLS // len(columns)))
    of_file = -(-rows // min(len(urls), FILES))
    read: dict[int, list[pa.Table]] = {}
    sample = Sample(pa.table({}), 0, 0, "", True)
    for index in [*_spread(len(urls), FILES), *_spread(len(urls), MOST_FILES)]:
        count = sum(table.num_rows for tables in read.values() for table in tables)
        if index in read or (len(read) >= FILES and count >= min(rows, ENOUGH_ROWS)):
            continue
        tables = read[index] = []
        room = of_file
        pieces = reader.pieces(urls[index], list(columns))
        for piece in pieces:
            sample.skipped += piece.bad.rows
            sample.reason = sample.reason or piece.bad.first
            if piece.table.num_rows:
                tables.append(piece.table.slice(0, room))
            room -= piece.table.num_rows
            if room <= 0 or sum(table.nbytes for table in tables) > BYTES:
                sample.is_whole &= room >= 0 and next(pieces, None) is None
                break
    sample.is_whole &= len(read) == len(urls)
    sample.table = _joined([table for index in sorted(read) for table in read[index]], sample)
    sample.estimate = sample.rows
    if split == "train" and not sample.is_whole and (total := Source(conf, "train").count()):
        sample.estimate = max(sample.rows, round(total.estimate))
    return sample


def _reading_conf(form: FileForm, named: NamedFiles, columns: Sequence[str]) -> Conf:
    """A conf that reads the columns as they are: text as text, and JSON in its own types."""
    section = "numeric" if form.format == "jsonl" else "slots"
    data = {"root": named.root, "train": named.names["train"], "format": form.format, **form.keys}
    if form.format in ("tfrecord", "parquet", "orc"):  # where a column of other bytes is left out
        data["check_utf8"] = False
    return schema.from_values(
        {
            "recipe": {"name": "lr"},
            "output": "none",
            section: {f"input_{k}": {"column": name} for k, name in enumerate(columns)},
            "data": {**data, "bad_rows": 2**53, "label": {"column": columns[0]}},
        }
    )


def _spread(count: int, most: int) -> list[int]:
    """The first and the last of some indices and, of more, others between, evenly."""
    return [int(index) for index in np.linspace(0, count - 1, min(most, count)).round()]


def _joined(tables: Sequence[pa.Table], sample: Sample) -> pa.Table:
    """The rows of tables; `sample` says how many rows beside them cannot be read, and why."""
    wrong = f"no row can be read. {sample.reason}" if sample.reason else "the files have no rows"
    refuse_if(not tables, wrong, Failure)
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:  # of JSON
        raise Failure(f"a column has values of several types: {error}. Write one type") from error
    rows = table.num_rows + sample.skipped
    refuse_if(
        sample.skipped > MOST_BAD * rows,
        f"{sample.skipped:,} of the first {rows:,} rows cannot be read. The first: {sample.reason}",
        Failure,
    )
    return table


# ---- Validation and test ---------------------------------------------------------------------


def other_splits(
    named: NamedFiles, form: FileForm, label: ChosenLabel, doubts: list[str]
) -> Settings:
    """data.validation and data.test; the label gets spellings that only these files have.

    Files that cannot be read as training files are leave their split, and `doubts` get the reason.
    """
    settings: Settings = {}
    for split in ("validation", "test"):
        if split not in named.names:
            continue
        urls = named.urls(split)
        compared = in_order(partial(_as_trained, form, label.column), iter(urls[:MOST_FILES]))
        forms = dict(zip(urls, compared, strict=False))
        left_out = {url: why for url, why in forms.items() if isinstance(why, str)}
        skipped = [other.settings.get("skip_rows", (0, "")) for other in forms.values()
                   if isinstance(other, FileForm)]  # fmt: skip
        names = zip(named.names[split], urls, strict=True)
        named.names[split] = [name for name, url in names if url not in left_out]
        try:
            if skipped:
                as_split = replace(form, settings=form.settings | {"skip_rows": skipped[0]})
                _add_spellings(split, named, as_split, label)
        except Failure as error:
            skipped, left_out = [], dict.fromkeys(urls, str(error))
        if left_out:
            first, reason = next(iter(left_out.items()))
            more = f" and {len(left_out) - 1:,} more" if len(left_out) > 1 else ""
            doubts.append(f"{split}: {first} is left out{more}: {reason}")
        if not skipped:
            continue
        spec: Any = masked(named.spec(split))
        lines, evidence = skipped[0]
        if lines == form.keys.get("skip_rows", 0):
            settings[split] = (spec, named.evidence.get(split, ""))
        else:
            settings[split] = ({"files": spec, "skip_rows": lines}, evidence)
    return settings


def _as_trained(form: FileForm, label: str, url: str) -> FileForm | str:
    """The form of a file; or why it cannot be read as the training files are."""
    try:
        other = form_of(url)
    except Failure as error:
        return str(error)
    if other.format != form.format:
        return f"it is {other.format}, and the training files are {form.format}"
    for key in ("delimiter", "header"):
        if other.keys.get(key) != form.keys.get(key):
            return f"it has another {key}"
    if form.format == "libsvm":
        return other
    if "columns" in form.keys:
        count, trained = len(other.keys.get("columns", ())), len(form.keys["columns"])
        return other if count == trained else f"it has {count} columns, not {trained}"
    columns = {*other.columns, *partitions_of(url)}
    if label not in columns:
        return f"it has no label ({label}); tnctl predict scores it"
    absent = [name for name in form.columns if name not in columns]
    if absent and form.format in ("csv", "parquet", "orc"):
        return f"it has no column '{absent[0]}'"
    return other


def _add_spellings(split: str, named: NamedFiles, form: FileForm, label: ChosenLabel) -> None:
    """Add the texts by which other files say label 1, such as `>50K.` for `>50K`."""
    positive = label.keys.get("positive")
    if not isinstance(positive, list):
        return
    sample = read_rows(form, named, split, [label.column], ROWS_OF_SPELLINGS)
    column = figures(label.column, sample.table.column(0), bool(form.keys.get("strip")))
    if texts := spellings(positive, column.texts()):
        positive += texts
        label.evidence += f"; {', '.join(texts)} in the {split} files"
