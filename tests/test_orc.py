"""ORC: against Parquet with the same rows, as units, damaged files, what is refused."""

import datetime

import numpy as np
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from bounded import conf_of, read, refused

from tnctl import limits
from tnctl.data.formats.arrow_files import OrcReader
from tnctl.data.sources import Source
from tnctl.data.unit_records import Unit, record_of
from tnctl.errors import Failure, UserError
from tnctl.schema import Slot

ROWS = 700
COLUMNS = {
    "text": [None if row % 9 == 0 else f"t{row % 5}" for row in range(ROWS)],
    "number": [None if row % 7 == 0 else row / 4 for row in range(ROWS)],
    "integer": [row - 300 for row in range(ROWS)],
    "flag": [row % 3 == 0 for row in range(ROWS)],
    "lists": [None if row % 8 == 0 else list(range(row % 4)) for row in range(ROWS)],
    "texts": [[f"w{row % 6}"] * (row % 3) for row in range(ROWS)],
    "day": [datetime.date(2026, 11, 1 + row % 20) for row in range(ROWS)],
    "dotted.name": [row % 11 for row in range(ROWS)],
    "y": [float(row % 2) for row in range(ROWS)],
}

SLOTS = {"text": Slot()}


def write_orc(path, columns=COLUMNS, **options):
    """A file of several stripes."""
    table = pa.table(columns)
    pa.orc.write_table(table, str(path), stripe_size=1, batch_size=64, **options)
    return pa.orc.ORCFile(str(path))


def rows_of(conf, needed, unit=None):
    """All rows as dicts, each with where it stands."""
    pieces = Source(conf, "train").pieces(needed, *([unit] if unit else []))
    return [
        (piece.where(place), row)
        for piece in pieces
        for place, row in enumerate(piece.table.select(needed).to_pylist())
    ]


def test_rows_are_those_of_parquet(tmp_path):
    write_orc(tmp_path / "a")
    pq.write_table(pa.table(COLUMNS), tmp_path / "b")
    needed = ["texts", "dotted.name", "y", "text", "number", "integer", "flag", "lists", "day"]
    stored, expected = conf_of(tmp_path / "a", "orc"), conf_of(tmp_path / "b", "parquet")
    rows = rows_of(stored, needed)
    assert [row for _, row in rows] == [row for _, row in rows_of(expected, needed)]
    assert [place for place, _ in rows] == [(str(tmp_path / "a"), k + 1) for k in range(ROWS)]
    assert Source(stored, "train").columns() == list(COLUMNS)
    assert Source(stored, "train").known_rows() == ROWS


def test_a_file_is_a_unit(tmp_path):
    """Its rows are known by the footer, and no part of it is read without the others."""
    assert write_orc(tmp_path / "a").nstripes > 3
    pa.orc.write_table(pa.table(COLUMNS), str(tmp_path / "b"))
    assert OrcReader(conf_of(tmp_path / "a", "orc")).counts(str(tmp_path / "a")) == [ROWS]
    conf = conf_of(tmp_path / "a", "orc")
    conf.data.train = [f"{tmp_path}/{name}" for name in "ab"]
    units = Source(conf, "train").units(2)
    assert units == [Unit(0, f"{tmp_path}/a"), Unit(1, f"{tmp_path}/b")]
    parts = [[row for _, row in rows_of(conf, ["text"], unit)] for unit in units]
    assert parts[0] == parts[1] == [{"text": text} for text in COLUMNS["text"]]
    with pytest.raises(Failure, match="has no row groups, and some of them are to be read"):
        rows_of(conf, ["text"], Unit(0, f"{tmp_path}/a", 1, 3))


def test_a_pass_that_was_cut_between_stripes_is_refused(tmp_path):
    write_orc(tmp_path / "a")
    conf = conf_of(tmp_path / "a", "orc")
    by_stripes = record_of([Unit(0, f"{tmp_path}/a", 0, 3), Unit(1, f"{tmp_path}/a", 3, 7)], 2)
    with pytest.raises(Failure, match="an earlier tnctl cut files of ORC between stripes"):
        Source(conf, "train").units_again(by_stripes, "train from scratch")
    whole = record_of(Source(conf, "train").units(2), 2)
    assert Source(conf, "train").units_again(whole, "") == [Unit(0, f"{tmp_path}/a")]


def test_long_stripes_are_cut(tmp_path):
    pa.orc.write_table(pa.table({"a": range(150_000), "y": [0.0] * 150_000}), str(tmp_path / "a"))
    pieces = list(Source(conf_of(tmp_path / "a", "orc"), "train").pieces(["a"]))
    assert max(piece.table.num_rows for piece in pieces) <= 65_536
    assert [piece.where(0)[1] for piece in pieces[:2]] == [1, 1 + pieces[0].table.num_rows]
    assert pa.concat_tables(piece.table for piece in pieces).column("a").to_pylist() == list(
        range(150_000)
    )


def test_stripes_of_too_many_values(tmp_path, monkeypatch):
    stripes = write_orc(tmp_path / "a", {"a": range(ROWS), "y": [0.0] * ROWS}).nstripes
    values = 2 * ROWS // stripes
    monkeypatch.setattr(limits, "GROUP_VALUES", values)
    assert len(read(conf_of(tmp_path / "a", "orc"))) == 1
    monkeypatch.setattr(limits, "GROUP_VALUES", values - 1)
    refused(conf_of(tmp_path / "a", "orc"), f"a: {values:,} values in a stripe (2 columns)")


def test_files_that_are_no_orc(tmp_path):
    write_orc(tmp_path / "a")
    whole, conf = (tmp_path / "a").read_bytes(), conf_of(tmp_path / "a", "orc", SLOTS)
    for data, words in (
        (b"", "is empty"),
        (whole[: len(whole) // 2], "not a whole ORC file"),
        (whole[:-1], "not a whole ORC file"),
        (whole[len(whole) // 2 :], "not a whole ORC file"),
        (b"ORC", "not a whole ORC file"),
        (b"a,y\nx,0\n" * 99, "not a whole ORC file"),
        (bytes(3000), "not a whole ORC file"),
        (b"\xff" * 3000, "not a whole ORC file"),
    ):
        (tmp_path / "a").write_bytes(data)
        refused(conf, "a ", words)
    with pytest.raises(UserError, match="not a whole ORC file"):
        Source(conf, "train").columns()
    (tmp_path / "a").write_bytes(whole)
    refused(conf_of(tmp_path / "a", "parquet", SLOTS), "not a whole Parquet file", "data.format")
    pq.write_table(pa.table(COLUMNS), tmp_path / "a")
    refused(conf, "not a whole ORC file", "data.format")


def test_tails_that_lie(tmp_path):
    """Any byte of a tail changed: rows or one line, never a crash or a traceback."""
    columns = {"a": [[1, 2], [3]] * 50, "y": [0.0, 1.0] * 50}
    write_orc(tmp_path / "a", columns, compression="zlib")
    data, chance = (tmp_path / "a").read_bytes(), np.random.default_rng(5)
    for _ in range(200):
        changed = bytearray(data)
        for place in chance.integers(len(data) - 300, len(data), chance.integers(1, 4)):
            changed[place] = chance.integers(256)
        (tmp_path / "a").write_bytes(changed)
        try:
            read(conf_of(tmp_path / "a", "orc"))
        except UserError as error:
            assert "\n" not in str(error)
