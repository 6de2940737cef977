"""The limits of tnctl/limits.py: at each, just beyond it, and the memory that they leave a file.

A line or a row beyond its limit is one line of error with the file and the row.
"""

import functools
import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bounded import TEXT, conf_of, list_of, memory_of, read, refused, row_of

from tnctl import files, limits
from tnctl.data import statistics
from tnctl.data.arrow_tables import raw_rows
from tnctl.data.features import Features, prepared_encoder
from tnctl.data.formats import arrow_files
from tnctl.data.formats.text_lines import BLOCK_BYTES
from tnctl.data.formats.tfrecord_files import READ_BYTES
from tnctl.data.sources import Source
from tnctl.data.statistics_document import Statistics
from tnctl.errors import Failure, UserError, did_you_mean
from tnctl.schema import Slot
from tnctl.tables.text import RECORD_BYTES, crc32c

LINE, VALUES = limits.LINE_BYTES, limits.ROW_VALUES


@pytest.fixture
def opened(monkeypatch):
    """The streams that are opened for reading, which count what is read of them."""
    streams, plain = [], files.open_input

    def counted(name, count):
        real = getattr(files.InputFile, name)

        def reading(stream, *arguments):
            result = real(stream, *arguments)
            stream.bytes_read += count(result)
            return result

        monkeypatch.setattr(files.InputFile, name, reading)

    monkeypatch.setattr(files.InputFile, "bytes_read", 0, raising=False)
    counted("read", len)
    counted("readinto", int)

    def open_input(*arguments, **options):
        streams.append(plain(*arguments, **options))
        return streams[-1]

    monkeypatch.setattr(files, "open_input", open_input)
    return streams


# ---- Lines and records


@pytest.mark.parametrize("format", TEXT)
def test_a_line_at_the_limit_and_one_beyond(tmp_path, opened, format):
    """Rows before it, so that the line starts anywhere in a block; after it a gigabyte of hole."""
    path, head = tmp_path / "a", TEXT[format][0]
    short_rows = row_of(format, b"x" * 100) * 3_000
    overhead = len(row_of(format, b"")) - 1
    conf = conf_of(path, format)
    after = row_of(format, b"z")
    path.write_bytes(head + short_rows + row_of(format, b"x" * (LINE - overhead)) + after)
    assert sum(window.rows for window in read(conf)) == 3_002
    opened.clear()
    path.write_bytes(head + short_rows + row_of(format, b"x" * (LINE - overhead + 1)) + after)
    with path.open("r+b") as file:
        file.truncate(1 << 30)
    number = 3_001 + bool(head)
    refused(conf, f"a, line {number}: longer than 16 MiB", "Split the row", "data.format")
    assert sum(stream.bytes_read for stream in opened) <= len(short_rows) + LINE + 2 * BLOCK_BYTES


def test_records_have_the_limit_of_lines():
    assert RECORD_BYTES == limits.LINE_BYTES


def length_of_a_record(size):
    length = size.to_bytes(8, "little")
    crc = crc32c(length)
    return length + (((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32).to_bytes(4, "little")


def test_a_record_at_the_limit_and_one_beyond(tmp_path, opened):
    path = tmp_path / "a"
    for size, words in ((LINE, "the file ends within it"), (LINE + 1, "longer than 16 MiB")):
        for beyond in (0, 2**40):
            path.write_bytes(length_of_a_record(size + (beyond if size > LINE else 0)))
            refused(conf_of(path, "tfrecord"), f"a, record 1: {words}")
    with path.open("r+b") as file:
        file.truncate(1 << 30)
    opened.clear()
    refused(conf_of(path, "tfrecord", bad_rows=10**6), "a, record 1: longer than 16 MiB")
    assert sum(stream.bytes_read for stream in opened) <= READ_BYTES


# ---- What compressed files give

ZEROS = bytes(10_000_000)


@functools.cache
def packed(suffix, data):
    return gzip.compress(data) if suffix == ".gz" else pa.compress(data, "zstd", asbytes=True)


def compressed(path, data, times=1):
    """Write data so many times, each as a part of a compressed file; its bytes."""
    return path.write_bytes(packed(path.suffix, data) * times)


@pytest.mark.parametrize("suffix", ["gz", "zst"])
@pytest.mark.parametrize("format", TEXT)
def test_a_bomb_of_zeros(tmp_path, opened, format, suffix):
    """A gigabyte of zeros in one line."""
    path = tmp_path / f"a.{suffix}"
    assert compressed(path, ZEROS, 100) < 1_200_000
    refused(conf_of(path, format), f"a.{suffix}, line 1: longer than 16 MiB")
    assert sum(stream.bytes_read for stream in opened) <= LINE + 2 * BLOCK_BYTES


# ---- Values of a row


@pytest.mark.parametrize("format", TEXT)
def test_a_row_at_the_limit_of_values_and_one_beyond(tmp_path, format):
    path, head = tmp_path / "a", TEXT[format][0]
    good = list_of(format, 3)
    # The limit of a line of JSON is by its commas, of which another key takes one.
    most = VALUES - (format == "jsonl")
    path.write_bytes(head + good + list_of(format, most) + good)
    assert [len(window.ids[0]) for window in read(conf_of(path, format))] == [most + 6]
    for count in (VALUES + 1, 1_000_000):
        path.write_bytes(head + good + list_of(format, count) + good)
        counted = "words" if format in ("libsvm", "paddle") else "values"
        words = f"a, line {2 + bool(head)}", f" {counted}, ", "at most 262,144"
        refused(conf_of(path, format), *words)
    [window] = read(conf_of(path, format, bad_rows=1))
    assert len(window.ids[0]) == 6


def test_values_in_other_cells(tmp_path):
    """JSON lists in CSV, lists of Parquet, several slots together, crosses, prepared ids."""
    path = tmp_path / "a"
    text = json.dumps([7] * (VALUES + 1)).replace(" ", "")
    path.write_text(f"a|y\n{text}|0\n")
    conf = conf_of(path, "csv", {"a": Slot(separator="json")}, delimiter="|")
    refused(conf, "a, line 2, column 'a': 262,145 values", "at most 262,144")
    path.write_text(f"a,y\n{'|' * (12 << 20)},0\n")
    refused(conf_of(path, "csv"), "a, line 2, column 'a': 12,582,913 values")

    half = VALUES // 2
    for count, slots in ((VALUES, {"a": Slot()}), (half, {"a": Slot(), "b": Slot(column="a")})):
        pq.write_table(pa.table({"a": [[1], [5] * count], "y": [0, 0]}), path)
        assert sum(len(part.ids[0]) for part in read(conf_of(path, "parquet", slots)))
        pq.write_table(pa.table({"a": [[1], [5] * (count + 1)], "y": [0, 0]}), path)
        refused(conf_of(path, "parquet", slots), "a, row 2", "at most 262,144")
        [window] = read(conf_of(path, "parquet", slots, bad_rows=1))
        assert window.rows == 1

    crossed = {"a": Slot(), "b": Slot(column="a"), "c": Slot(cross=["a", "b"])}
    pq.write_table(pa.table({"a": [[1], list(range(500))], "y": [0, 0]}), path)
    [window] = read(conf_of(path, "parquet", crossed))
    assert len(window.ids[0]) == 3 + 500 + 500 + 500**2
    pq.write_table(pa.table({"a": [[1], list(range(200_000))], "y": [0, 0]}), path)
    refused(conf_of(path, "parquet", crossed), "row 2: slots.c crosses 40,000,000,000 ids")

    conf = conf_of(path, "parquet")
    ids = pa.array([[1], [5] * (VALUES + 1)], pa.list_(pa.uint64()))
    table = pa.table({"ids_a": ids, "label_label": pa.array([0, 0], pa.float32())})
    encode = prepared_encoder(Features(conf, [(["a"], [1])], Statistics()))
    assert encode(table.slice(0, 1), lambda row: ("a", row + 1)).rows == 1
    with pytest.raises(Failure, match="a, row 2: the slots have 262,145 ids"):
        encode(table, lambda row: ("a", row + 1))


def test_the_columns_of_a_header(tmp_path):
    path = tmp_path / "a"
    for count in (VALUES - 2, VALUES - 1):
        path.write_bytes(b"a,y," + b",".join(b"%d" % k for k in range(count)) + b"\n1,0,\n")
        words = "over 262,144 columns" if count > VALUES - 2 else "expected 262144 columns"
        refused(conf_of(path, "csv"), words)
    path.write_bytes(b",".join(b"c%d" % k for k in range(VALUES)) + b"\n1,0,\n")
    with pytest.raises(Failure) as caught:
        read(conf_of(path, "csv"))
    assert "has no column 'a'" in str(caught.value)
    assert len(did_you_mean("a", [f"column {k}" for k in range(10**5)])) < 5000


def test_the_ids_of_a_window(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "WINDOW_IDS", 48)
    path = tmp_path / "a"
    path.write_bytes(b"a,y\n" + b"1|2|3|4|5|6,0\n" * 16)
    conf = conf_of(path, "csv", window=8)
    assert [len(window.ids[0]) for window in read(conf)] == [48, 48]
    path.write_bytes(b"a,y\n" + b"1|2|3|4|5|6,0\n" * 7 + b"1|2|3|4|5|6|7,0\n")
    refused(conf, "over 48 ids", "smaller data.window", kind=UserError)


def test_rows_that_are_kept_as_they_were_read(tmp_path):
    """A model keeps some raw rows, as Python's objects: few of those that are long."""
    path = tmp_path / "a"
    pq.write_table(pa.table({"a": ["x" * (LINE // 20)] * 40, "y": [0] * 40}), path)
    assert 8 < len(raw_rows(Source(conf_of(path, "parquet"), "train"), 30)) < 20
    pq.write_table(pa.table({"a": [list(range(20))] * 40, "y": [0] * 40}), path)
    assert len(raw_rows(Source(conf_of(path, "parquet"), "train"), 30)) == 30
    pq.write_table(pa.table({"a": ["x" * (2 * LINE)] * 2, "y": [0] * 2}), path)
    assert len(raw_rows(Source(conf_of(path, "parquet"), "train"), 30)) == 1


# ---- Vocabularies


def test_a_vocabulary_at_the_limit_and_one_beyond(tmp_path, opened):
    path = tmp_path / "values"
    path.write_bytes(b"x" * limits.VOCABULARY_BYTES)
    assert len(statistics.read_vocabulary(str(path))[0]) == limits.VOCABULARY_BYTES
    opened.clear()
    with path.open("r+b") as file:
        file.truncate(1 << 30)
    with pytest.raises(Failure, match=r"values is longer than 64 MiB.*ids=hash"):
        statistics.read_vocabulary(str(path))
    assert sum(stream.bytes_read for stream in opened) == limits.VOCABULARY_BYTES + 1


# ---- Memory

READER_MIB = 1024  # docs/data.md: what a reader needs at most


def hostile(folder):
    """A file of each kind that takes most memory for its bytes."""
    line = b"x" * (LINE - 8)
    text = {
        "csv": [
            b"a,y\n" + (line[:-8] + b",0\n") * 4,
            b"a,y\n" + b"|" * (LINE - 8) + b",0\n",
            b'a,y\n"' + b'""' * (LINE // 2 - 8) + b'",0\n',
            b"a,y\n" + b"a,0\n" * (6 << 20),
            b"ab," * (LINE // 3),
        ],
        "jsonl": [
            b'{"y":0,"a":[' + b"[]," * (LINE // 3 - 8) + b"[]]}\n",
            b'{"y":0,"a":[' + b"1," * (VALUES - 2) + b"1]}\n",
            b'{"y":0.1}\n' * (1 << 20),
        ],
        "libsvm": [
            b"1 " * (LINE // 2),
            (b"0" + b" 1" * VALUES + b"\n") * 16,
            b"0 1\n" * (6 << 20),
            b"0 1:2:3 1:2:3\n" * (1 << 20),
        ],
        "paddle": [b"a:1 " * (LINE // 4), b"y:0 a:1 a:2\n" * (1 << 20)],
    }
    for kind, contents in text.items():
        for number, content in enumerate(contents):
            path = folder / f"{kind}{number}"
            path.write_bytes(content)
            yield path, kind


def test_memory_of_lines(tmp_path):
    """The two that take most, in a process of its own."""
    (tmp_path / "a").write_bytes(b"a,y\n" + (b"|" * (LINE - 8) + b",0\n") * 2)
    (tmp_path / "b").write_bytes(b"1 " * (LINE // 2))
    total, outcomes = memory_of([(tmp_path / "a", "csv"), (tmp_path / "b", "libsvm")])
    assert all("at most 262,144" in outcome for outcome in outcomes), outcomes
    assert total < READER_MIB


@pytest.mark.long
def test_memory_of_every_format(tmp_path):
    for path, kind in hostile(tmp_path):
        total, outcomes = memory_of([(path, kind)])
        print(path.name, total, outcomes)
        assert total < READER_MIB, (path.name, total, outcomes)
        path.unlink()


def test_documents_have_the_limits():
    text = (Path(__file__).parent.parent / "docs/data.md").read_text()
    for size in ("LINE_BYTES", "VOCABULARY_BYTES", "CONF_BYTES"):
        assert limits.mebibytes(getattr(limits, size)) in text, size
    for count in ("ROW_VALUES", "WINDOW_IDS", "GROUP_VALUES"):
        assert f"{getattr(limits, count):,}" in text, count
    assert f"{READER_MIB >> 10} GiB" in text


# ---- Parquet: the rows that are read at a time


def lists(values, rows):
    offsets = np.arange(rows + 1, dtype=np.int32) * values
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.zeros(values * rows, np.int64)))


def test_the_rows_of_a_batch_follow_their_values(tmp_path):
    """2^23 values in a row group come in parts of 2^22, and not of 65,536 rows."""
    pq.write_table(pa.table({"a": lists(512, 1 << 14), "y": np.zeros(1 << 14)}), tmp_path / "a")
    pieces = list(Source(conf_of(tmp_path / "a", "parquet"), "train").pieces(["a", "y"]))
    assert [piece.table.num_rows for piece in pieces] == [1 << 13] * 2
    assert pieces[1].where(0) == (str(tmp_path / "a"), (1 << 13) + 1)
    plain = list(Source(conf_of(tmp_path / "a", "parquet"), "train").pieces(["y"]))
    assert [piece.table.num_rows for piece in plain] == [1 << 14]


def test_a_row_group_of_too_many_values(tmp_path, monkeypatch):
    url = str(tmp_path / "a")
    monkeypatch.setattr(limits, "GROUP_VALUES", 1000)
    for values, names in ((100, ["a"]), (50, ["a", "b.c"])):
        for rows in (10, 11):
            table = pa.table({name: lists(values, rows) for name in names} | {"y": [0.0] * rows})
            pq.write_table(table, url)
            slots = {f"s{k}": Slot(column=name) for k, name in enumerate(names)}
            if rows == 10:
                assert len(read(conf_of(url, "parquet", slots))) == 1
            else:
                words = "a, row group 1: 1,100 values", "smaller row groups"
                refused(conf_of(url, "parquet", slots), *words)


def test_a_long_column_is_read_in_parts(tmp_path, monkeypatch):
    ids = np.random.default_rng(0).integers(0, 2**60, 200_000)
    table = pa.table({"a": ids, "y": np.zeros(len(ids))})
    pq.write_table(table, tmp_path / "a", use_dictionary=False, data_page_size=1 << 14)
    conf, largest = conf_of(tmp_path / "a", "parquet"), []
    plain = files.InputFile.read

    def counted(self, size=-1, /):
        largest.append(size)
        return plain(self, size)

    monkeypatch.setattr(files.InputFile, "read", counted)
    whole = [piece.table for piece in Source(conf, "train").pieces(["a"])]
    assert max(largest) > 1_000_000
    monkeypatch.setattr(arrow_files, "CHUNK_BYTES", 1 << 19)
    monkeypatch.setattr(arrow_files, "PART_BYTES", 1 << 16)
    largest.clear()
    parts = [piece.table for piece in Source(conf, "train").pieces(["a"])]
    # Beside the parts that was asked for, pages are read whole.
    assert max(largest) <= 1 << 18
    assert pa.concat_tables(parts) == pa.concat_tables(whole)


@pytest.mark.long
def test_memory_of_a_long_file_of_parquet(tmp_path):
    """Arrow kept the bytes of all row groups until the end of the file."""
    chance = np.random.default_rng(0)
    schema = pa.schema([("a", pa.int64()), ("y", pa.float64())])
    with pq.ParquetWriter(tmp_path / "a", schema) as writer:
        for _ in range(40):
            ids = chance.integers(0, 2**60, 500_000)
            writer.write_table(pa.table({"a": ids, "y": np.zeros(len(ids))}, schema=schema))
    size = (tmp_path / "a").stat().st_size
    total, outcomes = memory_of([(tmp_path / "a", "parquet")])
    assert outcomes == ["parquet 20000000"]
    assert total < 150 < size / 2**20
