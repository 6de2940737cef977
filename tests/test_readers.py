"""What all formats of files have in common: the same rows are the same batches in each of them."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from test_data_formats import example, framed

from tnctl.data import file_pieces, preparing
from tnctl.data.features import Features
from tnctl.data.formats import READERS, reader_of, text_lines, tfrecord_files
from tnctl.data.sources import Source
from tnctl.data.statistics_document import Statistics
from tnctl.data.windows import windows
from tnctl.errors import Failure, UserError
from tnctl.schema import Conf, Data, Label, Numeric, Slot, Train

ROWS = [
    {"a": f"u{k % 7}", "b": [f"w{k % 5}", f"ü{k % 3}"][: k % 3], "n": k / 4, "y": k % 2}
    for k in range(60)
]
BAD = (6, 7, 41)
LIBSVM = {"a": "0", "b": "1", "n": "2.values", "y": "label"}  # its names of the columns
FILES = [name for name in READERS if name != "prepared"]  # of the user's, which may have bad rows
WORDS = {"tfrecord": "record", "parquet": "row", "orc": "row", "prepared": "row"}


def text(form, head=""):
    return lambda path, rows: path.write_text(head + "".join(f"{form(**row)}\n" for row in rows))


def table(rows):
    rows = [row | {"y": str(row["y"])} for row in rows] if rows != ROWS else rows
    return pa.Table.from_pylist(rows)


def records(path, rows):
    def feature(value):
        values = value if isinstance(value, list) else [value]
        return [v.encode() if isinstance(v, str) else float(v) for v in values]

    examples = (
        {name: feature(value) for name, value in row.items() if value != []} for row in rows
    )
    path.write_bytes(framed(*(example(**features) for features in examples)))


def prepared(path, rows):
    WRITERS["csv"](path.with_suffix(".csv"), rows)
    preparing.prepare(conf_of(path.with_suffix(".csv"), "csv"), str(path))


WRITERS = {
    "csv": text(lambda a, b, n, y: f"{a},{'|'.join(b)},{n},{y}", "a,b,n,y\n"),
    "jsonl": text(lambda **row: json.dumps(row)),
    "libsvm": text(
        lambda a, b, n, y: " ".join([f"{y} 0:{a}:1", *(f"1:{word}:1" for word in b), f"2:n:{n}"])
    ),
    "paddle": text(
        lambda a, b, n, y: " ".join([f"y:{y} a:{a} n:{n}", *(f"b:{word}" for word in b)])
    ),
    "parquet": lambda path, rows: pq.write_table(table(rows), path, row_group_size=7),
    "orc": lambda path, rows: pa.orc.write_table(table(rows), str(path), stripe_size=1),
    "tfrecord": records,
    "prepared": prepared,
}


def columns_of(format):
    return LIBSVM if format == "libsvm" else {name: name for name in "abny"}


def conf_of(path, format, **data):
    names = columns_of(format)
    if format == "prepared":
        data |= {"prepared": str(path), "format": "csv"}
        path = path.with_suffix(".csv")
    return Conf(
        recipe={"name": "lr"},
        slots={"a": Slot(column=names["a"]), "b": Slot(column=names["b"], separator="|")},
        numeric={"n": Numeric(column=names["n"])},
        data=Data(
            train=str(path),
            label=Label(column=names["y"]),
            **{"format": format, "window": 16, **data},
        ),
        train=Train(batch_size=8),
    )


@pytest.fixture(params=READERS)
def format(request, monkeypatch):
    """Files are cut into blocks; where they are cut must not show."""
    monkeypatch.setattr(text_lines, "BLOCK_BYTES", 64)
    monkeypatch.setattr(tfrecord_files, "READ_BYTES", 64)
    monkeypatch.setattr(file_pieces, "say", lambda _: None)
    return request.param


def batches(conf, **arguments):
    """The arrays of each window of data.train."""
    features = Features(conf, [(["a"], [1]), (["b"], [1])], Statistics())
    return [
        [array.tolist() for array in (*w.ids, *w.offsets, w.numeric, w.labels)]
        for w in windows(Source(conf, "train"), features, **arguments)
    ]


def test_the_same_rows_are_the_same_batches(tmp_path, format):
    WRITERS["csv"](tmp_path / "expected", ROWS)
    WRITERS[format](tmp_path / "file", ROWS)
    expected = batches(conf_of(tmp_path / "expected", "csv"))
    numbers = [number for *_, numbers, _ in expected for [number] in numbers]
    assert numbers == [row["n"] for row in ROWS]
    conf = conf_of(tmp_path / "file", format)
    assert batches(conf) == expected
    for start in range(5):
        assert batches(conf, start=start, limit=40) == batches(conf, limit=40)[start:]
    for workers in (2, 3):
        units = Source(conf, "train").units(workers)
        rows = [number for unit in units for *_, n, _ in batches(conf, unit=unit) for [number] in n]
        assert rows == numbers


def test_columns_are_chosen_and_rows_have_places(tmp_path, format):
    path, names = tmp_path / "dt=2026-11-20" / "file", columns_of(format)
    path.parent.mkdir()
    WRITERS[format](path, ROWS)
    conf, needed = conf_of(path, format), [names["n"], names["a"]]
    source, at = Source(conf, "train"), 0
    first = 2 if format == "csv" else 1
    for piece in source.pieces(needed):
        assert piece.bad.rows == 0
        for index in range(piece.table.num_rows):
            url, number = piece.where(index)
            assert (url in source.files, number) == (True, first + at)
            at += 1
        if format != "prepared":
            assert piece.table.column_names == needed
    assert at == len(ROWS)
    counts = reader_of(conf).counts(source.files[0])
    assert sum(counts) - reader_of(conf).lines_before == len(ROWS)
    if format == "prepared":
        return
    source.require(needed)
    if (columns := source.columns()) is not None and format != "libsvm":
        assert sorted(columns) == ["a", "b", "dt", "n", "y"]
        folders = [piece.table.select(["dt", "a"]) for piece in source.pieces(["dt", "a"])]
        assert pa.concat_tables(folders).column("dt").to_pylist() == ["2026-11-20"] * len(ROWS)
    if format in ("csv", "parquet", "orc"):
        for read in (source.require, lambda needed: list(source.pieces(needed))):
            with pytest.raises(Failure, match=r"file has no column 'aa'\. Did you mean 'a'\?"):
                read(["aa"])


@pytest.mark.parametrize("format", FILES, indirect=True)
def test_bad_rows_are_named_or_skipped(tmp_path, format):
    bad = [row | {"y": "x"} if k in BAD else row for k, row in enumerate(ROWS)]
    WRITERS[format](tmp_path / "file", bad)
    place = f"file, {WORDS.get(format, 'line')} {BAD[0] + (2 if format == 'csv' else 1)}"
    conf = conf_of(tmp_path / "file", format)
    for allowed, words in ((0, place), (2, f"over 2 rows .*The first: .*{place}")):
        with pytest.raises(Failure, match=rf"{words}\b.*'({columns_of(format)['y']}|y)'") as caught:
            batches(replace(conf, data=replace(conf.data, bad_rows=allowed)))
        assert "\n" not in str(caught.value)
    good = [row["n"] for k, row in enumerate(ROWS) if k not in BAD]
    read = batches(replace(conf, data=replace(conf.data, bad_rows=3)))
    assert [number for *_, numbers, _ in read for [number] in numbers] == good
    assert [len(labels) for *_, labels in read] == [16, 16, 16, 9]


@pytest.mark.parametrize("format", FILES, indirect=True)
def test_files_without_a_byte(tmp_path, format):
    (tmp_path / "empty").write_bytes(b"")
    WRITERS[format](tmp_path / "file", ROWS)
    conf = conf_of(tmp_path / "empty", format)
    for read in (batches, lambda conf: Source(conf, "train").require(["a"])):
        if read is batches or format in ("csv", "parquet", "orc"):
            with pytest.raises(Failure, match=r"empty is empty.*data\.skip_empty=true"):
                read(conf)
    data = {"train": [str(tmp_path / "empty"), str(tmp_path / "file")], "skip_empty": True}
    assert len(batches(replace(conf, data=replace(conf.data, **data)))) == 4


def test_a_file_that_is_not_there(tmp_path, format):
    conf = conf_of(tmp_path / "none", format)
    with pytest.raises((Failure, UserError), match="none"):
        batches(conf)


def test_formats_are_written_here():
    assert WRITERS.keys() == READERS.keys()
    assert np.diff(BAD).min() == 1  # two bad rows follow each other
