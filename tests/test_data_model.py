"""The data layer against slow and obvious models: ids, numbers, labels, missing values."""

import csv
import gzip
import io
import uuid

import numpy as np
import pyarrow as pa
import pytest
from test_slots import cells_of, conf_of, encoded, ids, tables_of, value_id, where

from tnctl import files
from tnctl.data.arrow_tables import as_table, raw_rows
from tnctl.data.features import Features
from tnctl.data.formats.jsonl_files import cutters
from tnctl.data.sources import Source
from tnctl.data.statistics import measure
from tnctl.data.statistics_document import Statistics
from tnctl.data.windows import windows
from tnctl.errors import Failure, UserError
from tnctl.schema import Label, Numeric, Slot


def read(conf):
    features = Features(conf, tables_of(conf), measure(conf))
    return list(windows(Source(conf, "train"), features))


def same(first, second):
    assert [w.rows for w in first] == [w.rows for w in second]
    for a, b in zip(first, second, strict=True):
        for x, y in zip([*a.ids, *a.offsets], [*b.ids, *b.offsets], strict=True):
            np.testing.assert_array_equal(x, y)
        np.testing.assert_array_equal(a.numeric, b.numeric)
        np.testing.assert_array_equal(a.labels, b.labels)


TEXTS = ["", "x", "12345678", "123456789", "häß", "a" * 31, "x\0y", None, "?"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.string_view()])
@pytest.mark.parametrize("missing", ["none", "value"])
def test_hash_of_text_in_any_layout(kind, missing):
    plain = pa.array(TEXTS, pa.string())
    array = plain.cast(pa.binary()) if kind == pa.binary() else plain.cast(kind)
    gone = [] if missing == "none" else [value_id("", 7)]
    expected = [gone if t in ("", "?", None) else [value_id(t, 7)] for t in TEXTS]
    slot = Slot(seed=7, missing=missing)
    data = {"missing": ["", "?"]}
    assert ids(slot, array, **data) == expected
    assert ids(slot, array.slice(2, 5), **data) == expected[2:7]
    chunks = pa.chunked_array([array.slice(1, 3), array.slice(4)])
    assert ids(slot, chunks, **data) == expected[1:]


def test_dictionaries_hash_as_their_texts():
    array = pa.array(TEXTS * 3, pa.string())
    slot = Slot(missing="value")
    expected = ids(slot, array)
    assert ids(slot, array.dictionary_encode()) == expected
    assert ids(slot, array.dictionary_encode().slice(4, 9)) == expected[4:13]
    with_null = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array(["x", None]))
    assert ids(Slot(), with_null) == [[value_id("x")], [], []]
    assert ids(Slot(), pa.array([None, None], pa.dictionary(pa.int8(), pa.string()))) == [[], []]


@pytest.mark.parametrize("kind", ["int8", "int32", "int64", "uint8", "uint64"])
def test_integers_hash_as_their_text(kind):
    values = [0, 7, 100, None] + ([] if kind.startswith("u") else [-5])
    values += [2**64 - 1] if kind == "uint64" else []
    array = pa.array(values, kind)
    expected = [[] if v is None else [value_id(str(v))] for v in values]
    assert ids(Slot(), array) == expected
    assert ids(Slot(), array.dictionary_encode()) == expected
    missing = ids(Slot(), array, missing=["7"])
    assert missing == [[] if v == 7 else e for v, e in zip(values, expected, strict=True)]


def test_strip_reaches_the_parts():
    assert ids(Slot(separator=","), ["a, b", " ,a"], strip=True) == [
        [value_id("a"), value_id("b")],
        [value_id("a")],
    ]


def test_integer_ids():
    texts = ["5", "-1", str(2**64 - 1), None, "", str(-(2**63))]
    expected = [[5], [2**64 - 1], [2**64 - 1], [], [], [2**63]]
    assert ids(Slot(ids="integer"), texts) == expected
    assert ids(Slot(ids="integer"), texts[:2]) == expected[:2]
    assert ids(Slot(ids="integer"), pa.array([5, -1, None])) == [[5], [2**64 - 1], []]
    for bad in ("x", "0x10", "1.5", str(2**64), " 1"):
        with pytest.raises(Failure, match=r"file\.csv, row 2, column 'a': .* not an integer"):
            ids(Slot(ids="integer"), ["1", bad])
    with pytest.raises(UserError, match="missing=value needs ids of texts or buckets"):
        ids(Slot(ids="integer", missing="value"), ["1"])


@pytest.mark.parametrize("kind", ["float64", "bool", "timestamp[s]"])
def test_other_types_are_refused(kind):
    with pytest.raises(UserError, match=r"file\.csv: column 'a' is .*(text or integers|quantiles)"):
        ids(Slot(), pa.array([None, 1], pa.int64()).cast(kind))


def test_no_tables_one_slot_and_shared_columns():
    conf = conf_of(
        {"a": Slot(), "again": Slot(column="a", seed=3)}, {"number": Numeric(column="a")}
    )
    table = pa.table({"a": ["1", "22"], "y": [0, 1]})
    tables = [(["again"], [1]), (["a", "again"], [1, 1])]
    window = Features(conf, tables, Statistics()).encode(table, where)
    seeded = [value_id("1", 3), value_id("22", 3)]
    assert window.ids[0].tolist() == seeded
    assert window.ids[1].tolist() == [value_id("1"), seeded[0], value_id("22"), seeded[1]]
    np.testing.assert_array_equal(window.numeric, [[1], [22]])
    window = Features(conf, [], Statistics()).encode(table, where)
    assert window.ids == []
    assert window.rows == 2


def test_labels():
    conf = conf_of()
    table = pa.table({"a": ["x"] * 3, "y": ["0", " 1", "0.25"]})
    assert encoded(conf, table).labels.tolist() == [[0], [1], [0.25]]
    for bad in ("2", "-0.1", None, "nan", "yes"):
        with pytest.raises(Failure, match=r"file\.csv, row 2.*'y'"):
            encoded(conf, pa.table({"a": ["x"] * 2, "y": ["1", bad]}))
    conf = conf_of(label=Label(column="y", positive=["yes"]))
    table = pa.table({"a": ["x"] * 3, "y": ["yes ", "no", "YES"]})
    assert encoded(conf, table).labels.tolist() == [[1], [0], [0]]
    with pytest.raises(Failure, match=r"file\.csv, row 1.*missing"):
        encoded(conf, pa.table({"a": ["x"], "y": [""]}))


def test_reference_is_kept():
    conf = conf_of(reference="r")
    table = pa.table({"a": ["x"] * 2, "y": [0, 1], "r": [0.125, None]})
    np.testing.assert_array_equal(encoded(conf, table).reference, [0.125, np.nan])


ROWS = [
    {"a": f"v{i * i % 7}" if i % 5 else "", "b": str(i - 9), "n": "" if i % 4 == 0 else str(i / 4),
     "y": str(i % 2), "unused": 'a, "quoted"'}
    for i in range(21)
]  # fmt: skip
SLOTS = {"a": Slot(missing="value"), "b": Slot(), "q": Slot(column="n", ids="quantiles", buckets=3)}
NUMERIC = {"n": Numeric(transform="standardize"), "m": Numeric(column="n", transform="log1p")}


def write_csv(url, rows=ROWS, header=True, delimiter=",", end="\n"):
    lines = [list(rows[0])] if header else []
    lines += [list(row.values()) for row in rows]
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter, lineterminator=end).writerows(lines)
    files.write_bytes(url, text.getvalue().encode())
    return text.getvalue().encode()


def conf_of_rows(**data):
    return conf_of(dict(SLOTS), dict(NUMERIC), **data)


def test_csv_is_what_the_csv_module_reads(tmp_path):
    write_csv(str(tmp_path / "a.csv"))
    read_windows = read(conf_of_rows(root=str(tmp_path), train="a.csv"))
    assert [w.rows for w in read_windows] == [8, 8, 5]
    with (tmp_path / "a.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    hashed = [cell for w in read_windows for cell in cells_of(w)]
    assert hashed[0::3] == [[value_id(row["a"])] for row in rows]
    assert hashed[1::3] == [[value_id(row["b"])] for row in rows]
    present = np.array([float(row["n"]) for row in rows if row["n"]])
    expected = [(float(r["n"]) - present.mean()) / present.std() if r["n"] else 0 for r in rows]
    numeric = np.concatenate([w.numeric for w in read_windows])
    np.testing.assert_allclose(numeric[:, 0], expected, rtol=1e-6)
    bounds = np.quantile(np.unique(present), [1 / 3, 2 / 3])
    for cell, row in zip(hashed[2::3], rows, strict=True):
        assert cell == ([int((bounds <= float(row["n"])).sum())] if row["n"] else [])
    labels = np.concatenate([w.labels for w in read_windows])[:, 0]
    assert labels.tolist() == [float(r["y"]) for r in rows]


def test_every_form_of_the_same_rows_reads_the_same(tmp_path):
    root = str(tmp_path)
    data = write_csv(root + "/a.csv")
    expected = read(conf_of_rows(root=root, train="a.csv"))
    write_csv(root + "/crlf.csv", end="\r\n")
    write_csv(root + "/bare.csv", header=False)
    plain = [{**row, "unused": "none"} for row in ROWS]
    write_csv(root + "/a.tsv", plain, delimiter="\t")
    files.write_bytes(root + "/a.csv.gz", gzip.compress(data))
    files.write_bytes(root + "/a.csv.zst", pa.compress(data, "zstd", asbytes=True))
    files.write_bytes(root + "/bom.csv", b"\xef\xbb\xbf" + data)
    files.write_bytes(root + "/blank.csv", b"\n\n" + data.replace(b"\n", b"\n\n"))
    files.write_bytes(root + "/noend.csv", data.rstrip())
    files.write_bytes(root + "/skip.csv", b"remark \xff\nother\n" + data)
    memory = f"memory://{uuid.uuid4().hex}"
    files.write_bytes(memory + "/a.csv", data)
    write_csv(root + "/part-0.csv", ROWS[:4])
    write_csv(root + "/part-1.csv", ROWS[4:5])
    write_csv(root + "/part-2.csv", ROWS[5:])
    columns = list(ROWS[0])
    for form in (
        {"train": "crlf.csv"},
        {"train": "bare.csv", "header": False, "columns": columns},
        {"train": "a.tsv", "delimiter": "\t"},
        {"train": "a.csv.gz"},
        {"train": "a.csv.zst"},
        {"train": "bom.csv"},
        {"train": "blank.csv"},
        {"train": "noend.csv"},
        {"train": "skip.csv", "skip_rows": 2},
        {"train": {"files": "skip.csv", "skip_rows": 2}},
        {"train": memory + "/a.csv"},
        {"train": "part-*.csv"},
        {"train": ["part-0.csv", "part-1.csv", "part-2.csv"]},
        {"train": "a.csv", "strip": True},
        {"train": "a.csv", "check_utf8": False},
    ):
        same(read(conf_of_rows(root=root, **form)), expected)


def test_bytes_that_are_not_utf8_hash_as_bytes(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"a,y\n\xff\xfe,1\n ok ,0\n")
    conf = conf_of(root=str(tmp_path), train="a.csv", check_utf8=False, strip=True)
    assert cells_of(read(conf)[0]) == [[value_id(b"\xff\xfe")], [value_id("ok")]]
    rows = raw_rows(Source(conf, "train"), 5)
    assert rows[0]["a"].encode("utf-8", "surrogateescape") == b"\xff\xfe"


def test_raw_rows_encode_to_the_same_window(tmp_path):
    write_csv(str(tmp_path / "a.csv"))
    conf = conf_of_rows(root=str(tmp_path), train="a.csv")
    rows = raw_rows(Source(conf, "train"), 8)
    assert rows[0] == {"a": "", "b": "-9", "n": None, "y": 0.0}
    features = Features(conf, tables_of(conf), measure(conf))
    again = features.encode(as_table(rows, cutters(conf)), lambda row: ("rows", row))
    same([again], read(conf)[:1])
