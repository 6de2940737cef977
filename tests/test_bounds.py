"""The limits of tnctl/limits.py: at each, just beyond it, and the memory that they leave a file.

A line, a row or a ratio beyond its limit is one line of error with the file and the row.
"""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tnctl import files, limits
from tnctl.cli import conf_files
from tnctl.data import parquet_files, prepared, sources, vocabulary
from tnctl.data.features import Features
from tnctl.data.lines import BLOCK_BYTES
from tnctl.data.statistics import Statistics, measure
from tnctl.data.tfrecord_files import READ_BYTES
from tnctl.data.windows import raw_rows, windows
from tnctl.errors import Failure, UserError, did_you_mean
from tnctl.schema import Conf, Data, Label, Numeric, Slot, Train
from tnctl.tables import checksums

LINE, VALUES = limits.LINE_BYTES, limits.ROW_VALUES
# Of each format of lines: a header, a row of a value, the columns of value and label.
TEXT = {
    "csv": (b"a,y\n", b"%s,0\n", "a", "y"),
    "jsonl": (b"", b'{"a": "%s", "y": 0}\n', "a", "y"),
    "libsvm": (b"", b"0 %s\n", "features", "label"),
    "paddle": (b"", b"y:0 a:%s\n", "a", "y"),
}
# What separates the values of a row, what stands around them.
LISTS = {
    "csv": (b"|", b"%s"),
    "jsonl": (b",", b"[%s]"),
    "libsvm": (b" ", b"%s"),
    "paddle": (b" a:", b"%s"),
}


def conf_of(url, format, slots=None, numeric=None, window=1 << 16, **data):
    column, label = TEXT.get(format, ("", "", "a", "y"))[2:]
    separator = "|" if format == "csv" else None
    return Conf(
        recipe={"name": "lr"},
        slots={"a": Slot(column=column, separator=separator)} if slots is None else slots,
        numeric=numeric or {},
        data=Data(train=str(url), format=format, window=window, label=Label(column=label), **data),
        train=Train(batch_size=8),
    )


def read(conf):
    """All windows of data.train."""
    return list(each(conf))


def each(conf):
    """The windows of data.train, one after the other."""
    features = Features(conf, [(list(conf.slots), [1] * len(conf.slots))], Statistics())
    return windows(conf, features, "train")


def refused(conf, *words, kind=Failure):
    with pytest.raises(UserError) as caught:
        read(conf)
    text = str(caught.value)
    assert type(caught.value) is kind or isinstance(caught.value, kind)
    assert "\n" not in text and len(text) < 500
    for word in words:
        assert word in text, text


def row_of(format, value):
    return TEXT[format][1].replace(b"%s", value)


def list_of(format, count):
    between, around = LISTS[format]
    row = TEXT[format][1]
    if format == "jsonl":
        row = b'{"a": %s, "y": 0}\n'
    return row.replace(b"%s", around.replace(b"%s", between.join([b"7"] * count)))


@pytest.fixture
def opened(monkeypatch):
    """The streams that are opened for reading."""
    streams, plain = [], files.open_input

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
    before = row_of(format, b"x" * 100) * 30_000
    overhead = len(row_of(format, b"")) - 1
    conf = conf_of(path, format)
    after = row_of(format, b"z")
    path.write_bytes(head + before + row_of(format, b"x" * (LINE - overhead)) + after)
    assert sum(window.rows for window in read(conf)) == 30_002
    opened.clear()
    path.write_bytes(head + before + row_of(format, b"x" * (LINE - overhead + 1)) + after)
    with path.open("r+b") as file:
        file.truncate(1 << 30)
    number = 30_001 + bool(head)
    refused(conf, f"a, line {number}: longer than 16 MiB", "Split the row", "data.format")
    assert opened[0].bytes_read <= len(before) + LINE + 2 * BLOCK_BYTES


@pytest.mark.parametrize("format", TEXT)
def test_a_file_that_is_one_line(tmp_path, opened, format):
    """As reported: 50 MB took 0.1 s, 200 MB 2.5 s, 1 GB minutes. A gigabyte is read for 20 MiB."""
    with (tmp_path / "a").open("wb") as file:
        file.write(TEXT[format][0])
        file.truncate(1 << 30)
    line = 1 + bool(TEXT[format][0])
    refused(conf_of(tmp_path / "a", format), f"a, line {line}: longer than 16 MiB")
    assert opened[0].bytes_read <= LINE + 2 * BLOCK_BYTES
    # No row may be bad so: what follows such a line is no data either.
    refused(conf_of(tmp_path / "a", format, bad_rows=10**6), "longer than 16 MiB")
    if TEXT[format][0]:
        with (tmp_path / "a").open("wb") as file:
            file.truncate(1 << 30)
        refused(conf_of(tmp_path / "a", format), "a, line 1: longer than 16 MiB")


def test_records_have_the_limit_of_lines():
    assert checksums.RECORD_BYTES == limits.LINE_BYTES


def length_of_a_record(size):
    length = size.to_bytes(8, "little")
    crc = checksums.crc32c(length)
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
    assert opened[0].bytes_read <= READ_BYTES


# ---- What compressed files give


def compressed(path, data, times=1):
    part = gzip.compress(data) if path.suffix == ".gz" else pa.compress(data, "zstd", asbytes=True)
    path.write_bytes(part * times)
    return len(part) * times


@pytest.mark.parametrize("suffix", ["gz", "zst"])
@pytest.mark.parametrize("format", TEXT)
def test_a_bomb_of_zeros(tmp_path, opened, format, suffix):
    """A gigabyte of zeros in one line."""
    path = tmp_path / f"a.{suffix}"
    assert compressed(path, bytes(100_000_000), 10) < 1_200_000
    refused(conf_of(path, format), f"a.{suffix}, line 1: longer than 16 MiB")
    assert opened[0].bytes_read <= LINE + 2 * BLOCK_BYTES


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_bomb_of_rows(tmp_path, opened, suffix):
    """A gigabyte of empty lines: nothing but the ratio is wrong."""
    path = tmp_path / f"a.{suffix}"
    compressed(path, b"\n" * 50_000_000, 20)
    for format in {"gz": ("csv", "paddle"), "zst": ("jsonl",)}[suffix]:
        opened.clear()
        words = (f"a.{suffix} gives", "over 256 times as many", "decompress it")
        refused(conf_of(path, format, bad_rows=10**6), *words)
        assert opened[0].bytes_read <= limits.INFLATION_FREE + BLOCK_BYTES
    with pytest.raises(Failure, match="over 256 times as many"):
        vocabulary.read(str(path))


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_what_is_no_bomb(tmp_path, monkeypatch, suffix):
    """Small files at any ratio, and large ones below the limit, to the byte."""
    path = tmp_path / f"a.{suffix}"
    compressed(path, b"x,0\n" * (limits.INFLATION_FREE // 4))
    with files.open_input(str(path)) as stream:
        assert len(stream.read()) == limits.INFLATION_FREE
    lines = [f"x{i},0\n" for i in np.random.default_rng(0).integers(0, 2**60, 100_000)]
    stored = compressed(path, "".join(lines).encode())
    size = len("".join(lines))
    monkeypatch.setattr(limits, "INFLATION_FREE", 0)
    monkeypatch.setattr(limits, "INFLATION", size // stored + 1)
    with files.open_input(str(path)) as stream:
        assert len(stream.read()) == size
    monkeypatch.setattr(limits, "INFLATION", size // stored)
    with files.open_input(str(path)) as stream, pytest.raises(Failure, match="too much for data"):
        stream.read()


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
        refused(conf_of(path, format), f"a, line {2 + bool(head)}", "at most 262,144")
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
        assert sum(len(one.ids[0]) for one in read(conf_of(path, "parquet", slots)))
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
    encode = prepared.encoder(Features(conf, [(["a"], [1])], Statistics()))
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
    pq.write_table(pa.table({"a": [list(range(VALUES))] * 40, "y": [0] * 40}), path)
    rows = raw_rows(conf_of(path, "parquet"), "train", 30)
    assert 1 <= len(rows) <= LINE // (8 * VALUES)
    assert all(len(row["a"]) == VALUES for row in rows)
    pq.write_table(pa.table({"a": [list(range(20))] * 40, "y": [0] * 40}), path)
    assert len(raw_rows(conf_of(path, "parquet"), "train", 30)) == 30
    pq.write_table(pa.table({"a": ["x" * (2 * LINE)] * 2, "y": [0] * 2}), path)
    assert len(raw_rows(conf_of(path, "parquet"), "train", 30)) == 1


# ---- Parquet


def lists(values, rows):
    offsets = np.arange(rows + 1, dtype=np.int32) * values
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.zeros(values * rows, np.int64)))


def test_the_rows_of_a_batch_follow_their_values(tmp_path):
    """2^23 values in a row group come in parts of 2^22, and not of 65,536 rows."""
    pq.write_table(pa.table({"a": lists(512, 1 << 14), "y": np.zeros(1 << 14)}), tmp_path / "a")
    found = list(sources.pieces(conf_of(tmp_path / "a", "parquet"), "train", ["a", "y"]))
    assert [piece.table.num_rows for piece in found] == [1 << 13] * 2
    assert found[1].where(0) == (str(tmp_path / "a"), (1 << 13) + 1)
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
    with pytest.raises(Failure, match="smaller row groups"):
        parquet_files.row_groups(url, pq.read_metadata(url))


def test_a_long_column_is_read_in_parts(tmp_path, monkeypatch):
    ids = np.random.default_rng(0).integers(0, 2**60, 200_000)
    table = pa.table({"a": ids, "y": np.zeros(len(ids))})
    pq.write_table(table, tmp_path / "a", use_dictionary=False, data_page_size=1 << 14)
    conf, largest = conf_of(tmp_path / "a", "parquet"), []
    plain = files._Input.read

    def counted(self, size=-1, /):
        largest.append(size)
        return plain(self, size)

    monkeypatch.setattr(files._Input, "read", counted)
    whole = [piece.table for piece in sources.pieces(conf, "train", ["a"])]
    assert max(largest) > 1_000_000
    monkeypatch.setattr(parquet_files, "CHUNK_BYTES", 1 << 19)
    monkeypatch.setattr(parquet_files, "PART_BYTES", 1 << 16)
    largest.clear()
    parts = [piece.table for piece in sources.pieces(conf, "train", ["a"])]
    # Beside the parts that was asked for, pages are read whole.
    assert max(largest) <= 1 << 18
    assert pa.concat_tables(parts) == pa.concat_tables(whole)


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


# ---- Numbers


@pytest.mark.parametrize("value", ["1e308", "-1e308", "3.5e38"])
def test_numbers_too_large_to_standardize(tmp_path, value):
    """As reported: 1e308 ended in OverflowError, without file and row."""
    rows = [f"{k},{k % 2}\n" for k in range(9)]
    (tmp_path / "a").write_text("n,y\n" + "".join(rows[:4]) + f"{value},0\n" + "".join(rows[4:]))
    inputs = {"n": Numeric(transform="standardize")}
    conf = conf_of(tmp_path / "a", "csv", {}, inputs)
    with pytest.raises(Failure, match=r"a, line 6, column 'n': .* is too large for float32"):
        measure(conf)
    found = measure(conf_of(tmp_path / "a", "csv", {}, inputs, bad_rows=1))
    assert found.standardize["n"] == (4.0, pytest.approx(np.std(np.arange(9))))
    clipped = {"n": Numeric(transform="standardize", clip=[0.0, 8.0])}
    assert np.isfinite(measure(conf_of(tmp_path / "a", "csv", {}, clipped)).standardize["n"]).all()
    # Training refuses the same row, whoever measured.
    features = Features(conf, [([], [])], found)
    with pytest.raises(Failure, match="a, line 6, column 'n'"):
        list(windows(conf, features, "train"))


def test_numbers_at_the_limit_of_float32(tmp_path):
    most = float(np.finfo(np.float32).max)
    (tmp_path / "a").write_text("n,y\n" + f"{most!r},0\n{-most!r},1\n" * 1000)
    conf = conf_of(tmp_path / "a", "csv", {}, {"n": Numeric(transform="standardize")})
    found = measure(conf)
    assert found.standardize["n"] == (0.0, pytest.approx(most))
    numbers = [one.numeric for one in windows(conf, Features(conf, [([], [])], found), "train")]
    assert np.concatenate(numbers).tolist() == [[1.0], [-1.0]] * 1000


@pytest.mark.filterwarnings("error")
def test_quantiles_and_logarithms_of_any_number(tmp_path):
    """The difference of 1e308 and -1e308 is infinite: boundaries were, and no JSON holds them."""
    values = [-1.7e308, -1e300, -1.0, 0.0, 2.0, 1e300, 1.7e308]
    (tmp_path / "a").write_text("n,y\n" + "".join(f"{value!r},0\n" for value in values))
    slots = {"n": Slot(ids="quantiles", buckets=4)}
    conf = conf_of(tmp_path / "a", "csv", slots, {"l": Numeric(column="n", transform="log1p")})
    found = measure(conf)
    boundaries = found.boundaries["n"]
    assert np.isfinite(boundaries).all() and (np.diff(boundaries) > 0).all()
    assert boundaries.tolist() == [-5e299, 0.0, 5e299]
    assert Statistics.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False)))
    [window] = windows(conf, Features(conf, [(["n"], [1])], found), "train")
    assert window.ids[0].tolist() == [0, 0, 1, 2, 2, 3, 3]
    expected = np.sign(values) * np.log1p(np.abs(values))
    assert window.numeric[:, 0].tolist() == expected.astype(np.float32).tolist()


@pytest.mark.filterwarnings("error")
def test_scales_of_the_conf_may_be_too_small(tmp_path):
    (tmp_path / "a").write_text("n,y\n1,0\n1e30,0\n")
    inputs = {"n": Numeric(transform="standardize", mean=0.0, deviation=1e-300)}
    conf = conf_of(tmp_path / "a", "csv", {}, inputs)
    features = Features(conf, [([], [])], measure(conf))
    with pytest.raises(Failure, match="a, line 2, column 'n'"):
        list(windows(conf, features, "train"))


# ---- Vocabularies and confs


def test_a_vocabulary_at_the_limit_and_one_beyond(tmp_path, opened):
    path = tmp_path / "values"
    path.write_bytes(b"x" * limits.VOCABULARY_BYTES)
    assert len(vocabulary.read(str(path))[0]) == limits.VOCABULARY_BYTES
    opened.clear()
    with path.open("r+b") as file:
        file.truncate(1 << 30)
    with pytest.raises(Failure, match=r"values is longer than 64 MiB.*ids=hash"):
        vocabulary.read(str(path))
    assert opened[0].bytes_read == limits.VOCABULARY_BYTES + 1


HEAD = "defaults: [schema, {recipe: lr}, _self_]\nslots: {a: {}}\n"
LAUGHS = "".join(f"x{k}: &x{k} [{', '.join([f'*x{k - 1}'] * 9)}]\n" for k in range(1, 12))
MERGES = "".join(f"x{k}: &x{k} {{<<: [{', '.join([f'*x{k - 1}'] * 9)}]}}\n" for k in range(1, 12))
BOMBS = {
    "aliases": HEAD + "x0: &x0 [ha]\n" + LAUGHS,
    "merges": HEAD + "x0: &x0 {a: b}\n" + MERGES,
    "in the list of defaults": "x0: &x0 [ha]\n" + LAUGHS + "defaults: *x11\n",
}


@pytest.mark.parametrize("name", BOMBS)
def test_confs_of_too_many_values(tmp_path, here, name):
    (tmp_path / "own.yaml").write_text(BOMBS[name])
    done = here("train", "conf=own.yaml", cwd=tmp_path)
    assert done.code == 2
    assert "own.yaml has over 100,000 keys and values" in done.line


def test_a_conf_at_the_limit_of_values_and_one_beyond(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "CONF_VALUES", 1000)
    path = tmp_path / "own.yaml"
    # The mapping, its key, the list.
    path.write_text("x: [" + "1," * 997 + "]\n")
    assert len(conf_files.read(path)["x"]) == 997
    path.write_text("x: [" + "1," * 998 + "]\n")
    with pytest.raises(UserError, match="over 1,000 keys and values"):
        conf_files.read(path)


def test_a_conf_at_the_limit_of_bytes_and_one_beyond(tmp_path, here):
    path = tmp_path / "own.yaml"
    path.write_text(HEAD + "#" * (limits.CONF_BYTES - len(HEAD)))
    conf_files.refuse_long(path)
    with path.open("a") as file:
        file.write("#")
    done = here("train", "conf=own.yaml", cwd=tmp_path)
    assert "own.yaml has 1,048,577 bytes, and a conf at most 1,048,576" in done.line
    assert done.code == 2


def test_aliases_within_the_limit_and_bombs_in_groups(tmp_path, here):
    shared = "x: &x {ids: integer}\n"
    (tmp_path / "own.yaml").write_text(
        "defaults: [schema, {recipe: own}, _self_]\n"
        + "slots: {a: &a {ids: integer}, b: *a, c: {<<: *a, column: d}}\n"
    )
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe/own.yaml").write_text("name: lr\n")
    done = here("train", "conf=own.yaml", "--cfg", "job", cwd=tmp_path)
    assert (done.code, done.out.count("ids: integer")) == (0, 3), done.err
    (tmp_path / "recipe/own.yaml").write_text("name: lr\nx0: &x0 [ha]\n" + LAUGHS + shared)
    done = here("train", "conf=own.yaml", cwd=tmp_path)
    assert "own.yaml has over 100,000 keys and values" in done.line


# ---- Memory


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


MEMORY = """
import os, sys
from pathlib import Path
os.sched_getaffinity = lambda _: set(range(8))  # as many blocks at once as on a large machine
sys.path.insert(0, sys.argv[1])
from test_bounds import conf_of, each
from tnctl.errors import UserError
def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
for name, kind in (pair.split("=") for pair in sys.argv[2:]):
    before = peak()
    try:
        outcome = sum(window.rows for window in each(conf_of(name, kind)))
    except UserError as error:
        outcome = str(error)
    print(f"{peak() - before:.0f} {kind} {outcome}", flush=True)
"""


def memory_of(named):
    """The memory, in MiB, that reading files takes one after the other, and what came of each."""
    pairs = [f"{path}={kind}" for path, kind in named]
    command = [sys.executable, "-c", MEMORY, str(Path(__file__).parent), *pairs]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [line.partition(" ") for line in done.stdout.splitlines()]
    return sum(float(peak) for peak, _, _ in found), [outcome for _, _, outcome in found]


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
    for size in ("LINE_BYTES", "INFLATION_FREE", "VOCABULARY_BYTES", "CONF_BYTES"):
        assert limits.mebibytes(getattr(limits, size)) in text, size
    for count in ("ROW_VALUES", "WINDOW_IDS", "GROUP_VALUES", "INFLATION", "CONF_VALUES"):
        assert f"{getattr(limits, count):,}" in text, count
    assert f"{READER_MIB >> 10} GiB" in text
