"""Every bad input is one line that names the file, the row and the way out."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tnctl.data.features import Features
from tnctl.data.sources import Source
from tnctl.data.statistics import measure
from tnctl.data.statistics_document import Statistics
from tnctl.data.windows import windows
from tnctl.errors import Failure, UserError
from tnctl.schema import Conf, Data, Label, Numeric, Slot, Train


def conf_of(root, train="a.csv", slots=None, numeric=None, **data):
    data.setdefault("label", Label(column="y"))
    return Conf(
        recipe={"name": "lr"},
        slots={"a": Slot()} if slots is None else slots,
        numeric={"n": Numeric()} if numeric is None else numeric,
        data=Data(root=str(root), train=train, window=8, **data),
        train=Train(batch_size=4),
    )


def features_of(conf):
    return Features(conf, [(list(conf.slots), [1] * len(conf.slots))], Statistics())


def refused(conf, *words, kind=Failure):
    with pytest.raises(UserError) as caught:
        list(windows(Source(conf, "train"), features_of(conf)))
    text = str(caught.value)
    assert isinstance(caught.value, kind)
    assert caught.value.exit_code == (1 if kind is Failure else 2)
    assert "\n" not in text
    for word in words:
        assert word in text, text


GOOD = b"x,1,0\n"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"x,1\n", ["columns", "expected 3", "received 2"]),
        (b"x,1,0,4\n", ["columns", "expected 3", "received 4"]),
        (b"x,1,-0.5\n", ["label", "'y'", "0 to 1"]),
        (b"\xff\xfe,1,0\n", ["column 'a'", "not UTF-8", "check_utf8=false"]),
        (b"x,one,0\n", ["column 'n'", "'one' is not a number", "data.missing"]),
        (b'"x,1,0\n', ["quote"]),
        (b"x\r,1,0\n", ["carriage return"]),
        (b"x,1,2\n", ["label", "'y'", "0 to 1", "Received: 2", "data.label.positive"]),
        (b"x,1,\n", ["label", "'y'", "0 to 1"]),
        (b"x,inf,0\n", ["column 'n'", "infinite"]),
        (b"x,1,yes\n", ["column 'y'", "'yes' is not a number"]),
    ],
)
@pytest.mark.parametrize(("good_rows", "strip"), [(3, True), (30, False)])
def test_a_bad_row_is_named(tmp_path, monkeypatch, line, words, good_rows, strip):
    monkeypatch.setattr("tnctl.data.formats.text_lines.BLOCK_BYTES", 64)
    text = b"remark\n\na,n,y\n\n" + GOOD * good_rows + b"\n" + line + GOOD * 5
    (tmp_path / "a.csv").write_bytes(text)
    conf = conf_of(tmp_path, skip_rows=1, strip=strip)
    refused(conf, "a.csv", *words)
    number = text.split(b"\n").index(line.rstrip()) + 1
    with pytest.raises(Failure, match=rf"(line|row) {number}\b"):
        list(windows(Source(conf, "train"), Features(conf, [], Statistics())))


def test_missing_columns_get_a_suggestion(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"aa,n,y\n" + GOOD)
    refused(conf_of(tmp_path), "a.csv", "no column 'a'", "Did you mean 'aa'?")
    conf = conf_of(tmp_path, header=False, columns=["aa", "n", "y"])
    refused(conf, "data.columns", "Did you mean 'aa'?", kind=UserError)
    (tmp_path / "a.csv").write_bytes(b"a,a,n,y\n" + b"x," + GOOD)
    refused(conf_of(tmp_path), "a.csv", "two columns 'a'")


def test_empty_files_and_splits(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"a,n,y\n" + GOOD)
    (tmp_path / "empty.csv").write_bytes(b"")
    (tmp_path / "header.csv").write_bytes(b"a,n,y\n")
    refused(conf_of(tmp_path, "empty.csv"), "empty.csv", "is empty")
    refused(conf_of(tmp_path, ["a.csv", "empty.csv"]), "empty.csv", "is empty")
    refused(conf_of(tmp_path, "header.csv"), "data.train", "no rows", "header.csv")
    refused(conf_of(tmp_path, "a.csv", skip_rows=9), "data.train", "no rows")
    (tmp_path / "bad.csv").write_bytes(b"a,n,y\nx,1\n")
    words = ("no row of data.train is left: 1 cannot be read. The first: ", "bad.csv, line 2: ")
    refused(conf_of(tmp_path, "bad.csv", bad_rows=5), *words)
    conf = conf_of(tmp_path, ["header.csv", "a.csv"])
    read = list(windows(Source(conf, "train"), Features(conf, [(["a"], [1])], Statistics())))
    assert [window.rows for window in read] == [1]


def test_files_that_cannot_be_read(tmp_path):
    refused(conf_of(tmp_path, "no.csv"), "no.csv", "not found")
    refused(conf_of(tmp_path, "no*.csv"), "no*.csv", "matches no file")
    rng = np.random.default_rng(0)
    rows = b"a,n,y\n" + b"".join(b"%d,1,0\n" % k for k in rng.integers(0, 10**9, 9999))
    whole = gzip.compress(rows)
    (tmp_path / "a.csv.gz").write_bytes(whole[: len(whole) // 2])
    refused(conf_of(tmp_path, "a.csv.gz"), "a.csv.gz", "cut short")
    (tmp_path / "a.csv").write_bytes(rows)
    refused(conf_of(tmp_path, format="parquet"), "a.csv", "not a whole Parquet file", "data.format")
    table = pa.table({"a": [str(k) for k in range(9999)], "n": [1] * 9999, "y": [0] * 9999})
    pq.write_table(table, tmp_path / "a.parquet")
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(whole[: len(whole) // 2])
    refused(conf_of(tmp_path, "a.parquet", format="parquet"), "a.parquet", "whole Parquet file")
    middle = len(whole) // 2
    (tmp_path / "a.parquet").write_bytes(whole[: middle - 900] + bytes(900) + whole[middle:])
    refused(conf_of(tmp_path, "a.parquet", format="parquet"), "a.parquet")


def test_parquet_rows_and_types_are_named(tmp_path):
    def write(**columns):
        base = {"a": ["x"] * 9, "n": [1.0] * 9, "y": [0] * 9}
        pq.write_table(pa.table(base | columns), tmp_path / "a.parquet", row_group_size=4)

    conf = conf_of(tmp_path, "a.parquet", format="parquet")
    write(y=[0] * 6 + [3] + [0] * 2)
    refused(conf, "a.parquet, row 7", "label")
    write(n=["1"] * 7 + ["one", "1"])
    refused(conf, "a.parquet, row 8", "column 'n'", "'one' is not a number")
    write(a=[0.5] * 9)
    refused(conf, "a.parquet", "column 'a'", "double", "quantiles", kind=UserError)
    write(n=[[1]] * 8 + [[1, 2]])
    refused(conf, "a.parquet, row 9", "column 'n'", "numeric.n.width=1", "Received: 2")
    write(n=[{"of": 1}] * 9)
    refused(conf, "a.parquet", "column 'n'", "struct", "not a number")
    bad = pa.array([b"\xff"] * 9).view(pa.string())
    write(a=bad)
    refused(conf, "a.parquet", "column 'a'", "UTF", "check_utf8=false")


def test_values_are_shown_in_part_and_printable(tmp_path):
    conf = conf_of(tmp_path, "a.jsonl", format="jsonl", slots={"a": Slot(ids="integer")})
    for value, shown in (("x" * 10**6, "x" * 80 + "…"), ("\x1b[31m\u0000é", r"\x1b[31m\x00é")):
        for name in ("a", "n"):
            row = {"a": "1", "n": "1", "y": 0, name: value}
            (tmp_path / "a.jsonl").write_text(json.dumps(row))
            refused(conf, f"a.jsonl, line 1, column '{name}': '{shown}' is not a")
    pq.write_table(pa.table({"a": [b"\xff\x07" * 99], "n": [1], "y": [0]}), tmp_path / "a.parquet")
    conf = conf_of(tmp_path, "a.parquet", format="parquet", slots=conf.slots)
    refused(conf, "row 1, column 'a': '" + r"\xff\x07" * 10)
    with pytest.raises(Failure) as caught:
        list(windows(Source(conf, "train"), features_of(conf)))
    assert len(str(caught.value)) < 500


def test_the_way_out_of_infinite_numbers(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"a,n,y\nx,inf,0\n")
    conf = conf_of(tmp_path, numeric={"n": Numeric(transform="log1p")})
    with pytest.raises(Failure, match=r"column 'n': inf is infinite. Mend the row$"):
        list(windows(Source(conf, "train"), features_of(conf)))
    (tmp_path / "a.csv").write_bytes(b"a,n,y\nx,1e300,0\n")
    refused(conf_of(tmp_path), "column 'n': 1e+300 is too large", "transform=log1p")
    list(windows(Source(conf, "train"), features_of(conf)))


def test_keys_asked_wrongly(tmp_path):
    refused(conf_of(tmp_path, None), "data.train", kind=UserError)
    refused(conf_of(tmp_path, {"file": "a.csv"}), "no key 'file'", "'files'", kind=UserError)
    refused(conf_of(tmp_path, {"files": "a.csv", "skip_rows": -1}), "skip_rows", kind=UserError)
    refused(conf_of(tmp_path, 7), "data.train", "7", kind=UserError)
    for spec in ("5:5", "7", "x:y", None):
        conf = conf_of(tmp_path, spec, format="generated")
        refused(conf, "data.train", "0:2000000", kind=UserError)
    conf = conf_of(tmp_path, "0:5", format="generated", slots={"user_ix": Slot()}, numeric={})
    refused(conf, "user_ix", "Did you mean 'user_id'?")


def test_quantiles_of_nothing(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"a,n,y\n,1,0\n")
    conf = conf_of(tmp_path, slots={"a": Slot(ids="quantiles")})
    with pytest.raises(Failure, match=r"no number in data\.train"):
        measure(conf)
    (tmp_path / "a.csv").write_bytes(b"a,n,y\ninf,1,0\n")
    with pytest.raises(Failure, match=r"a\.csv, line 2, column 'a'.*infinite"):
        measure(conf)


def test_a_stray_quote_joins_no_rows(tmp_path):
    """Arrow would read two lines as one row, whose column a ends on the second line."""
    text = b"a,n,y\n" + GOOD * 3 + b'"x,1,0\n0",1,0\n' + GOOD * 3
    (tmp_path / "a.csv").write_bytes(text)
    refused(conf_of(tmp_path), "a.csv, line 5", "a quoted value does not end on its line")


def test_the_last_bad_row_of_a_long_block_is_found_at_once(tmp_path):
    """A million lines read one by one would take minutes: the suite's own patience is the limit."""
    (tmp_path / "a.csv").write_bytes(b"a,n,y\n" + GOOD * 1_000_000 + b"x,one,0\n")
    conf = conf_of(tmp_path)
    conf.data.window = 2_000_000
    refused(conf, "line 1000002", "'one' is not a number")


def test_a_tab_may_be_spelled():
    for spelled in ("\t", "\\t", "tab"):
        assert Data(delimiter=spelled).delimiter == "\t"


def test_labels_of_texts_get_the_key_that_takes_them(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"a,n,y\n" + GOOD + b"x,1,yes\n")
    conf = conf_of(tmp_path, labels={"buy": Label(column="y")})
    key = "data.labels.buy.positive=[yes]"
    refused(conf, "a.csv, line 3, column 'y': 'yes' is not a number", key)
    refused(conf_of(tmp_path), "data.label.positive=[yes]")
    rows = [{"a": "x", "n": 1, "y": "yes"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    refused(conf_of(tmp_path, "a.jsonl", format="jsonl"), "data.label.positive=[yes]")
    conf = conf_of(tmp_path, label=Label(column="y", positive=["yes"]))
    [window] = windows(Source(conf, "train"), features_of(conf))
    assert window.labels.tolist() == [[0], [1]]


def test_a_header_where_a_row_should_be(tmp_path):
    (tmp_path / "a.csv").write_bytes(2 * (b'a,"n",y\n' + GOOD))
    refused(conf_of(tmp_path), "a.csv, line 3: the header again", "data.bad_rows")
    conf = conf_of(tmp_path, bad_rows=1)
    assert [window.rows for window in windows(Source(conf, "train"), features_of(conf))] == [2]
    conf = conf_of(tmp_path, header=False, columns=["a", "n", "y"])
    refused(conf, "a.csv, line 1: the names of the columns", "data.header=true", "skip_rows=1")
    # Only one of its values is a name: a value, and no header.
    (tmp_path / "a.csv").write_bytes(b"a,n,y\na,n,0\n")
    refused(conf_of(tmp_path), "a.csv, line 2, column 'n': 'n' is not a number")


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_another_delimiter_is_named(tmp_path, delimiter):
    (tmp_path / "a.csv").write_bytes((b"a,n,y\n" + GOOD).replace(b",", delimiter.encode()))
    shown = delimiter.replace("\t", "\\t")
    refused(
        conf_of(tmp_path), "a.csv has no column 'a'", f"Give \"data.delimiter='{shown}'\""
    )  # fmt: skip
    conf = conf_of(tmp_path, delimiter=shown)
    assert [window.rows for window in windows(Source(conf, "train"), features_of(conf))] == [1]
    # A name that is in no case there gets a near one, as before.
    (tmp_path / "a.csv").write_bytes(b"aa,n,y;z\n" + GOOD)
    refused(conf_of(tmp_path), "no column 'a'", "Did you mean 'aa'?")


def test_files_of_other_formats_are_known_by_their_beginning(tmp_path):
    table = pa.table({"a": ["x"], "n": [1], "y": [0]})
    pq.write_table(table, tmp_path / "a.parquet")
    pq.write_table(table.slice(0, 0), tmp_path / "none.parquet")
    for name in ("a.parquet", "none.parquet"):
        for options in ({}, {"header": False, "columns": ["a", "n", "y"]}, {"format": "jsonl"}):
            conf = conf_of(tmp_path, name, **options)
            refused(conf, f"{name} is a Parquet file. Set data.format=parquet")
    text = b"a,n,y\n" + GOOD
    (tmp_path / "a.csv").write_bytes(gzip.compress(text))
    refused(conf_of(tmp_path), "a.csv is compressed with gzip", ".gz")
    (tmp_path / "a.csv").write_bytes(pa.compress(text, "zstd", asbytes=True))
    refused(conf_of(tmp_path), "a.csv is compressed with zstd", ".zst")
    for end, codec in ((".gz", "gzip"), (".zst", "zstd")):
        (tmp_path / f"a.csv{end}").write_bytes(text)
        refused(conf_of(tmp_path, f"a.csv{end}"), f"a.csv{end} is", f"not {codec} as", "rename it")
    # Text that only begins alike is read.
    (tmp_path / "a.csv").write_bytes(b"PAR1," + text[2:])
    conf = conf_of(tmp_path, slots={"PAR1": Slot()})
    assert [window.rows for window in windows(Source(conf, "train"), features_of(conf))] == [1]


def test_empty_parts_are_passed_over_where_a_key_says_so(tmp_path, capsys):
    """Files without any byte, in which a file without any row is none."""
    text = b"a,n,y\n" + GOOD * 2
    for number, part in enumerate((b"", text, b"", b"a,n,y\n")):
        (tmp_path / f"part-{number}.csv.gz").write_bytes(gzip.compress(part))
    conf = conf_of(tmp_path, "part-*.csv.gz")
    refused(conf, "part-0.csv.gz is empty", "data.skip_empty=true")
    conf.data.skip_empty = True
    capsys.readouterr()
    assert [window.rows for window in windows(Source(conf, "train"), features_of(conf))] == [2]
    assert Source(conf, "train").columns() == ["a", "n", "y"]
    [line] = capsys.readouterr().err.splitlines()  # of the first one
    assert "part-0.csv.gz is empty. Such files are passed over" in line
    read = [
        window.rows
        for unit in Source(conf, "train").units(2)
        for window in windows(Source(conf, "train"), features_of(conf), unit=unit)
    ]
    assert read == [2]
    conf.data.train = "part-0.csv.gz"
    refused(conf, "data.train has no rows")
    assert Source(conf, "train").columns() is None
