"""ORC: against Parquet with the same rows, by stripes, damaged files, what is refused."""

import datetime

import numpy as np
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from bounded import conf_of, read, refused

from tnctl import limits
from tnctl.data import sources
from tnctl.data.formats import orc_tail
from tnctl.data.formats.orc_files import OrcReader
from tnctl.data.unit_records import Unit
from tnctl.errors import Failure, UserError
from tnctl.schema import Numeric, Slot

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
    pieces = sources.pieces(conf, "train", needed, *([unit] if unit else []))
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
    assert sources.columns_of(stored, "train") == list(COLUMNS)
    assert sources.count_hint(stored, "train") == ROWS


def test_windows_are_those_of_parquet(tmp_path):
    write_orc(tmp_path / "a")
    pq.write_table(pa.table(COLUMNS), tmp_path / "b")
    slots = {
        "text": Slot(missing="value"), "lists": Slot(pooling="mean"), "texts": Slot(),
        "integer": Slot(ids="integer"), "number": Slot(ids="boundaries", boundaries=[9, 80]),
    }  # fmt: skip
    numeric = {"n": Numeric(column="number", default=0)}
    [window], [expected] = (
        read(conf_of(tmp_path / name, kind, slots, numeric))
        for name, kind in (("a", "orc"), ("b", "parquet"))
    )
    np.testing.assert_array_equal(window.ids[0], expected.ids[0])
    np.testing.assert_array_equal(window.offsets[0], expected.offsets[0])
    np.testing.assert_array_equal(window.numeric, expected.numeric)
    np.testing.assert_array_equal(window.labels, expected.labels)


def test_stripes(tmp_path):
    """Their rows are known by the tail, and any of them is read without the others."""
    file = write_orc(tmp_path / "a")
    rows = OrcReader(check_utf8=True, bad_rows=0).group_rows(str(tmp_path / "a"))
    assert len(rows) == file.nstripes > 3
    assert rows == [file.read_stripe(k, columns=["y"]).num_rows for k in range(file.nstripes)]
    conf, whole = conf_of(tmp_path / "a", "orc"), rows_of(conf_of(tmp_path / "a", "orc"), ["text"])
    part = rows_of(conf, ["text"], Unit(0, str(tmp_path / "a"), 1, 3))
    assert part == whole[rows[0] : sum(rows[:3])]
    with pytest.raises(Failure, match=f"has {len(rows)} stripes, and 3 to 99 are to be read"):
        rows_of(conf, ["text"], Unit(0, str(tmp_path / "a"), 2, 99))


def test_long_stripes_are_cut(tmp_path):
    pa.orc.write_table(pa.table({"a": range(150_000), "y": [0.0] * 150_000}), str(tmp_path / "a"))
    pieces = list(sources.pieces(conf_of(tmp_path / "a", "orc"), "train", ["a"]))
    assert max(piece.table.num_rows for piece in pieces) <= 65_536
    assert [piece.where(0)[1] for piece in pieces[:2]] == [1, 1 + pieces[0].table.num_rows]
    assert pa.concat_tables(piece.table for piece in pieces).column("a").to_pylist() == list(
        range(150_000)
    )


def test_bad_rows(tmp_path):
    columns = {"a": [b"x", b"\xff\xfe", b"z"] * 9, "y": [0.0] * 27}
    schema = pa.schema([("a", pa.string()), ("y", pa.float64())])
    arrays = [pa.array(columns["a"]).view(pa.string()), pa.array(columns["y"])]
    pa.orc.write_table(pa.Table.from_arrays(arrays, schema=schema), str(tmp_path / "a"))
    refused(conf_of(tmp_path / "a", "orc"), "a, row 2, column 'a': not UTF-8")
    [window] = read(conf_of(tmp_path / "a", "orc", bad_rows=9))
    assert window.rows == 18
    [window] = read(conf_of(tmp_path / "a", "orc", check_utf8=False))
    assert window.rows == 27
    write_orc(tmp_path / "a")
    refused(conf_of(tmp_path / "a", "orc", {"txt": Slot()}), "no column 'txt'", "'text'")
    conf = conf_of(tmp_path / "a", "orc", {"number": Slot()})
    refused(conf, "'number' is double", "quantiles", kind=UserError)


def test_a_stripe_of_too_many_values(tmp_path, monkeypatch):
    write_orc(tmp_path / "a", {"a": range(ROWS), "y": [0.0] * ROWS})
    rows = OrcReader(check_utf8=True, bad_rows=0).group_rows(str(tmp_path / "a"))
    monkeypatch.setattr(limits, "GROUP_VALUES", 2 * rows[0])
    assert len(read(conf_of(tmp_path / "a", "orc"))) == 1
    monkeypatch.setattr(limits, "GROUP_VALUES", 2 * rows[0] - 1)
    refused(conf_of(tmp_path / "a", "orc"), f"stripe 1: {2 * rows[0]:,} values in 2 columns")


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
        sources.columns_of(conf, "train")
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


def test_tails_that_are_no_tails():
    """Any bytes: the rows of stripes, or ValueError."""
    footer = b"\x1a\x02\x28\x07\x1a\x03\x28\x80\x01\x30\x87\x01"  # stripes of 7 and 128 rows
    assert orc_tail.stripe_rows(b"\x12" + bytes([len(footer)]) + footer, 0) == [7, 128]
    placed = b"\x12\x0c\x1a\x08\x08\x03\x10\x04\x18\x05\x20\x06\x30\x00"  # 3 + 4 + 5 + 6 bytes
    assert orc_tail.stripe_rows(placed, 18) == [0]
    with pytest.raises(ValueError, match="it has 17 bytes, and a stripe ends at 18"):
        orc_tail.stripe_rows(placed, 17)
    for tail in (b"", b"\x12", b"\x12\x05\x1a", b"\xff" * 99, b"\x0b\x0c", b"\x12\x02\x30\x01"):
        with pytest.raises(ValueError, match="its "):
            orc_tail.stripe_rows(tail, 0)
    chance = np.random.default_rng(7)
    for _ in range(3000):
        try:
            rows = orc_tail.stripe_rows(chance.integers(0, 256, 20, dtype=np.uint8).tobytes(), 9)
        except ValueError:
            continue
        assert all(row >= 0 for row in rows)
