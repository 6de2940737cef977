"""Folders that name columns, as Hive and Spark write them, and folders as data."""

import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bounded import conf_of, read, refused

from tnctl import files
from tnctl.data.days import days_of
from tnctl.data.file_pieces import partitions_of
from tnctl.data.sources import Source
from tnctl.data.unit_records import Unit
from tnctl.errors import Failure
from tnctl.schema import Numeric, Slot, Split

PARTS = [  # the folder, its country, its hour
    ("country=DE/hour=7", "DE", "7"),
    ("country=DE/hour=08", "DE", "08"),
    ("country=a%2Fb%3Dc %C3%A9/hour=9", "a/b=c é", "9"),
    ("country=__HIVE_DEFAULT_PARTITION__/hour=9", None, "9"),
]
ROWS = 5


def write(path, kind, columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=2)
    elif kind == "csv":
        rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
        text = "".join(f"{','.join(map(str, row))}\n" for row in rows)
        path.write_text(",".join(table.column_names) + "\n" + text)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))


def write_parts(folder, kind, **more):
    for number, (name, _, _) in enumerate(PARTS):
        items = [f"i{number}-{row}" for row in range(ROWS)]
        write(
            folder / name / f"part-0.{kind}", kind, {"item": items, "y": [0, 1] * 2 + [0], **more}
        )
    (folder / "_SUCCESS").write_text("")
    (folder / PARTS[0][0] / f".part-0.{kind}.crc").write_bytes(b"\0crc")
    (folder / "_temporary").mkdir()
    (folder / "_temporary" / f"part-9.{kind}").write_text("no data")


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.parametrize("spec", ["", "country=*/hour=*/part-*"])
def test_folders_are_columns(tmp_path, kind, spec):
    write_parts(tmp_path / "log", kind)
    conf = conf_of(f"{tmp_path}/log/{spec}", kind, {"item": Slot(), "country": Slot()})
    rows = [
        row
        for piece in Source(conf, "train").pieces(["hour", "item", "country"])
        for row in piece.table.to_pylist()
    ]
    in_order = sorted(range(len(PARTS)), key=lambda number: PARTS[number][0])
    assert rows == [
        {"hour": PARTS[number][2], "item": f"i{number}-{row}", "country": PARTS[number][1]}
        for number in in_order
        for row in range(ROWS)
    ]
    # None of the file's own columns, and the columns that a conf may name.
    alone = [piece.table for piece in Source(conf, "train").pieces(["country"])]
    assert pa.concat_tables(alone).column("country").to_pylist() == [r["country"] for r in rows]
    assert Source(conf, "train").columns() == ["item", "y", "country", "hour"]


def test_a_window_is_that_of_a_whole_file(tmp_path):
    """Slots, numbers and missing values of folders are those of a file with the same columns."""
    write_parts(tmp_path / "log", "parquet")
    slots = {
        "item": Slot(), "country": Slot(missing="value"), "hour": Slot(ids="integer"),
        "both": Slot(cross=["country", "hour"]),
    }  # fmt: skip
    numeric = {"h": Numeric(column="hour")}
    [window] = read(conf_of(f"{tmp_path}/log/", "parquet", slots, numeric))
    tables = []
    for folder, country, hour in sorted(PARTS):
        part = pq.ParquetFile(tmp_path / "log" / folder / "part-0.parquet").read()
        part = part.append_column("country", pa.array([country] * ROWS, pa.string()))
        tables.append(part.append_column("hour", pa.array([hour] * ROWS)))
    pq.write_table(pa.concat_tables(tables), tmp_path / "whole")
    [expected] = read(conf_of(tmp_path / "whole", "parquet", slots, numeric))
    np.testing.assert_array_equal(window.ids[0], expected.ids[0])
    np.testing.assert_array_equal(window.offsets[0], expected.offsets[0])
    np.testing.assert_array_equal(window.numeric, expected.numeric)


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_column_of_the_file_is_the_files(tmp_path, kind):
    write_parts(tmp_path / "log", kind, country=["x"] * ROWS)
    conf = conf_of(f"{tmp_path}/log/", kind, {"item": Slot(), "country": Slot()})
    for piece in Source(conf, "train").pieces(["country", "hour"]):
        assert set(piece.table.column("country").to_pylist()) == {"x"}
    assert Source(conf, "train").columns() == ["item", "y", "country", "hour"]


def test_row_groups_and_bad_rows_of_a_partition(tmp_path):
    write_parts(tmp_path / "log", "parquet")
    conf = conf_of(f"{tmp_path}/log/", "parquet", {"hour": Slot(), "item": Slot()})
    url = str(tmp_path / "log" / PARTS[1][0] / "part-0.parquet")
    pieces = list(Source(conf, "train").pieces(["item", "hour"], Unit(0, url, 1, 3)))
    assert [row for piece in pieces for row in piece.table.to_pylist()] == [
        {"item": f"i1-{row}", "hour": "08"} for row in (2, 3, 4)
    ]
    assert pieces[0].where(0) == (url, 3)
    write(tmp_path / "log/country=FR/hour=x/a.parquet", "parquet", {"item": ["i"], "y": [0]})
    integers = {"hour": Slot(ids="integer")}
    refused(
        conf_of(f"{tmp_path}/log/", "parquet", integers), "hour=x/a.parquet, row 1, column 'hour'"
    )
    [window] = read(conf_of(f"{tmp_path}/log/", "parquet", integers, bad_rows=1))
    assert window.rows == len(PARTS) * ROWS
    refused(conf_of(f"{tmp_path}/log/", "parquet", {"land": Slot()}), "has no column 'land'")


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_the_last_rows_of_folders(tmp_path, kind):
    """data.split by `last` reads no more than the row groups of a split, with their folders."""
    write_parts(tmp_path / "log", kind)
    conf = conf_of(f"{tmp_path}/log/", kind, {"item": Slot(), "hour": Slot()})
    whole = rows_of(conf, "train")
    conf.data.split = Split(validation=0.3, by="last")
    assert (rows_of(conf, "train"), rows_of(conf, "validation")) == (whole[:14], whole[14:])
    assert Source(conf, "validation").known_rows() == (None if kind == "jsonl" else 6)


def rows_of(conf, split):
    pieces = Source(conf, split).pieces(["item", "hour"])
    return [row for piece in pieces for row in piece.table.to_pylist()]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("/data/dt=1/a=b=c/x=9.csv", {"dt": "1", "a": "b=c"}),
        ("dt=1/dt=2/a", {"dt": "2"}),
        ("plain/a.csv", {}),
        ("a=1", {}),
        ("/x/=1/b=/a", {"b": ""}),
        ("s3://bucket=1/a=%41%2f/x", {"a": "A/"}),
        ("https://user:p=ss@host/a=1/x?b=2/3", {"a": "1"}),
        ("file:///a=1/x", {"a": "1"}),
        ("c%3Ad=1/x", {"c:d": "1"}),
        ("a=100%/x", {"a": "100%"}),
    ],
)
def test_values_of_folders(url, expected):
    assert partitions_of(url) == expected


@pytest.mark.parametrize("url", ["a=%ff/x", "a=\udcff/x"])
def test_folders_that_are_not_utf8(url):
    with pytest.raises(Failure, match="not UTF-8"):
        partitions_of(url)


def test_which_files_a_folder_has(tmp_path):
    for name in ("b/2", "b/10", "a/_x/1", "a/.y/1", "a/1", "_c/1", "3", ".4", "_5"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "b/link").symlink_to(tmp_path / "3")
    urls = [f"{tmp_path}/{name}" for name in ("3", "a/1", "b/10", "b/2", "b/link")]
    assert files.expand(f"{tmp_path}/") == urls
    assert list(map(os.path.normpath, files.expand("./", str(tmp_path)))) == urls
    assert files.expand("3/", str(tmp_path)) == urls[:1]
    assert files.expand(["b/", "3"], str(tmp_path)) == [*urls[2:], urls[0]]
    assert files.expand("?/", str(tmp_path)) == urls[1:]
    for spec in ("no/", "no*/", "a/_x/.z/"):
        with pytest.raises(Failure, match="names no folder with files"):
            files.expand(spec, str(tmp_path))
    with pytest.raises(Failure, match="or all files in it as"):
        files.expand("b", str(tmp_path))


def test_a_folder_of_a_storage(tmp_path):
    root = f"memory://{tmp_path.name}"
    for name in ("log/dt=1/a.csv", "log/dt=2/b.csv", "log/_SUCCESS"):
        files.write_bytes(f"{root}/{name}", b"a,y\nx,0\n")
    conf = conf_of(f"{root}/log/", "csv", {"dt": Slot(), "a": Slot()})
    assert [url.rpartition("log/")[2] for url in Source(conf, "train").files] == [
        "dt=1/a.csv", "dt=2/b.csv",
    ]  # fmt: skip
    tables = [piece.table for piece in Source(conf, "train").pieces(["dt"])]
    assert pa.concat_tables(tables).column("dt").to_pylist() == ["1", "2"]


def test_days_are_folders(tmp_path):
    for day in ("2026-11-19", "2026-11-20"):
        write(tmp_path / f"dt={day}/country=DE/a.csv", "csv", {"a": ["x"], "y": [0]})
    for train in ("dt={day}/", "dt={day}/country=*/", "dt={day}/*/*.csv"):
        conf = conf_of(train, "csv", root=str(tmp_path))
        assert days_of(conf).there == ["2026-11-19", "2026-11-20"]
