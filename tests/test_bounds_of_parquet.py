"""Parquet: the rows that are read at a time, what is refused, the memory that a file takes."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bounded import conf_of, memory_of, read, refused

from tnctl import files, limits
from tnctl.data import sources
from tnctl.data.formats import parquet_files
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
    whole = [piece.table for piece in sources.pieces(conf, "train", ["a"])]
    assert max(largest) > 1_000_000
    monkeypatch.setattr(parquet_files, "CHUNK_BYTES", 1 << 19)
    monkeypatch.setattr(parquet_files, "PART_BYTES", 1 << 16)
    largest.clear()
    parts = [piece.table for piece in sources.pieces(conf, "train", ["a"])]
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
