"""Parquet: the rows that are read at a time, what is refused, the memory that a file takes."""

import contextlib
import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bounded import conf_of, memory_of, read, refused

from tnctl import files, limits
from tnctl.data import sources
from tnctl.data.formats import parquet_files, parquet_footer
from tnctl.errors import Failure, UserError
from tnctl.schema import Slot


def lists(values, rows):
    offsets = np.arange(rows + 1, dtype=np.int32) * values
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.zeros(values * rows, np.int64)))


def test_the_rows_of_a_batch_follow_their_values(tmp_path):
    """2^23 values in a row group come in parts of 2^22, and not of 65,536 rows."""
    pq.write_table(pa.table({"a": lists(512, 1 << 14), "y": np.zeros(1 << 14)}), tmp_path / "a")
    pieces = list(sources.pieces(conf_of(tmp_path / "a", "parquet"), "train", ["a", "y"]))
    assert [piece.table.num_rows for piece in pieces] == [1 << 13] * 2
    assert pieces[1].where(0) == (str(tmp_path / "a"), (1 << 13) + 1)
    plain = list(sources.pieces(conf_of(tmp_path / "a", "parquet"), "train", ["y"]))
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
                refused(conf_of(url, "parquet", slots), "a, row group 1: 1,100 values")
    with pytest.raises(Failure, match="smaller row groups"), open(url, "rb") as stream:
        parquet_files.row_groups(url, pq.ParquetFile(stream).schema, stream)


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
    whole = [piece.table for piece in sources.pieces(conf, "train", ["a"])]
    assert max(largest) > 1_000_000
    monkeypatch.setattr(parquet_files, "CHUNK_BYTES", 1 << 19)
    monkeypatch.setattr(parquet_files, "PART_BYTES", 1 << 16)
    largest.clear()
    parts = [piece.table for piece in sources.pieces(conf, "train", ["a"])]
    # Beside the parts that was asked for, pages are read whole.
    assert max(largest) <= 1 << 18
    assert pa.concat_tables(parts) == pa.concat_tables(whole)


def test_a_footer_is_read_as_arrow_reads_it(tmp_path):
    path, rows = tmp_path / "a", 50
    table = pa.table(
        {
            "lists": [[1, 2], [3], None, []] * rows,
            "numbers": [0.0, 1.0, None, 2.0] * rows,
            "texts": ["x", "y" * 300, None, ""] * rows,
            "structs": [{"a": 1, "b": [True]}, None, {"a": None, "b": []}, None] * rows,
            **{f"column{number}": range(4 * rows) for number in range(20)},
        }
    )
    pq.write_table(table, path, row_group_size=30, write_page_index=True)
    metadata = pq.read_metadata(path)
    with path.open("rb") as stream:
        groups = parquet_footer.groups(stream)
    assert len(groups) == metadata.num_row_groups == 7
    for number, group in enumerate(groups):
        expected = metadata.row_group(number)
        assert group.rows == expected.num_rows
        assert len(group.columns) == expected.num_columns
        for leaf, column in enumerate(group.columns):
            chunk = expected.column(leaf)
            assert column == (
                chunk.num_values, chunk.total_uncompressed_size, chunk.total_compressed_size
            )  # fmt: skip


def test_a_footer_that_is_no_footer(tmp_path):
    """Any bytes: row groups, or ValueError."""
    chance = np.random.default_rng(7)
    pq.write_table(pa.table({"a": [[1, 2], [3]] * 50}), tmp_path / "a", row_group_size=30)
    data = (tmp_path / "a").read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    footer = np.frombuffer(data[-8 - length : -8], np.uint8)
    for number in range(3000):
        changed = footer.copy() if number % 2 else chance.integers(0, 256, 200, dtype=np.uint8)
        changed[chance.integers(0, len(changed), 3)] = chance.integers(0, 256, 3)
        stream = io.BytesIO(changed.tobytes() + len(changed).to_bytes(4, "little") + b"PAR1")
        with contextlib.suppress(ValueError):
            parquet_footer.groups(stream)


def test_footers_that_lie(tmp_path):
    """Any byte of a footer changed: rows or one line, never a crash or a traceback."""
    path, chance = tmp_path / "a", np.random.default_rng(5)
    table = pa.table({"a": [[1, 2], [3]] * 50, "y": [0.0, 1.0] * 50})
    pq.write_table(table, path, row_group_size=30)
    data = path.read_bytes()
    footer = int.from_bytes(data[-8:-4], "little") + 8
    for _ in range(200):
        changed = bytearray(data)
        for place in chance.integers(len(data) - footer, len(data) - 4, chance.integers(1, 4)):
            changed[place] = chance.integers(256)
        path.write_bytes(changed)
        try:
            read(conf_of(path, "parquet"))
        except UserError as error:
            assert "\n" not in str(error)


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
