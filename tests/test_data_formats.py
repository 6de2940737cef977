"""Every format of files: against slow readers, bad rows, fuzzed bytes, storages by URL."""

import contextlib
import functools
import gzip
import http.server
import importlib.util
import json
import threading
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from tnctl import files
from tnctl.data import file_pieces
from tnctl.data.formats import text_lines, tfrecord_files
from tnctl.data.sources import Source
from tnctl.errors import Failure, UserError
from tnctl.schema import Conf, Data, Slot
from tnctl.tables.text import crc32c

ROOT = Path(__file__).parents[1]


def conf_of(root, format, train="a", **data):
    return Conf(
        recipe={"name": "lr"},
        slots={"a": Slot()},
        data=Data(root=str(root), train=train, format=format, **data),
    )


def read(conf, needed):
    """All rows as dicts, where each stands, and how many were passed over."""
    rows, places, skipped = [], [], 0
    for piece in Source(conf, "train").pieces(needed):
        skipped += piece.bad.rows
        assert bool(piece.bad.first) == bool(piece.bad.rows)
        rows += piece.table.to_pylist()
        places += [piece.where(row)[1] for row in range(piece.table.num_rows)]
    return rows, places, skipped


def read_bytes(folder, data, format, needed, **options):
    (folder / "a").write_bytes(data)
    return read(conf_of(folder, format, **options), needed)


@pytest.fixture(params=[64, 4 << 20], ids=["small blocks", "whole"])
def block(request, monkeypatch):
    """Files are cut into blocks; where they are cut must not show."""
    monkeypatch.setattr(text_lines, "BLOCK_BYTES", request.param)
    monkeypatch.setattr(tfrecord_files, "READ_BYTES", request.param)
    monkeypatch.setattr(file_pieces, "say", lambda _: None)


# ---- libsvm, libfm, libffm


def slow_libsvm(text):
    """Column -> value for every row, read word by word."""
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split()
        if not words:
            continue
        features = [word.split(":")[-2] if ":" in word else word for word in words[1:]]
        values = [float(word.rsplit(":", 1)[1]) if ":" in word else 1.0 for word in words[1:]]
        row = {"label": words[0].removeprefix("+"), "features": features, "values": values}
        if any(word.count(":") == 2 for word in words[1:]):
            fields = [word.split(":")[0] for word in words[1:]]
            for name in ("0", "1", "2"):
                row[name] = [f for f, field in zip(features, fields, strict=True) if field == name]
                row[f"{name}.values"] = [
                    v for v, field in zip(values, fields, strict=True) if field == name
                ]
        else:
            for k in (1, 2):
                row[str(k)] = features[k - 1] if len(features) >= k else None
                row[f"{k}.values"] = values[k - 1] if len(features) >= k else None
        row["7:"] = next((v for f, v in zip(features, values, strict=True) if f == "7"), None)
        rows.append((number, row))
    return rows


def random_libsvm(rng, fields, rows=60):
    out = []
    for _ in range(rows):
        words = [rng.choice(["0", "1", "+1", "-1", "0.5"])]
        for _ in range(rng.integers(1 if fields else 0, 5)):
            feature = rng.choice(["7", "12", "a=b", "ü", "99999999999999999999"])
            value = rng.choice(["1", "0.5", "-2e-3", "+3"])
            if fields:
                words.append(f"{rng.integers(0, 3)}:{feature}:{value}")
            else:
                words.append(str(feature) if rng.random() < 0.1 else f"{feature}:{value}")
        out.append(rng.choice([" ", "  ", "\t"]).join(words) + rng.choice(["", " ", "\r"]))
        out += [""] * int(rng.random() < 0.1)
    return "\n".join(out) + rng.choice(["", "\n"])


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("fields", [False, True])
def test_libsvm(tmp_path, fields):
    rng = np.random.default_rng(1)
    names = ["label", "features", "values", "1", "1.values", "2", "2.values", "7:"]
    names += ["0", "0.values"] if fields else []
    for _ in range(10):
        text = random_libsvm(rng, fields)
        rows, places, _ = read_bytes(tmp_path, text.encode(), "libsvm", names)
        expected = slow_libsvm(text)
        assert places == [number for number, _ in expected]
        assert rows == [{name: row[name] for name in names} for _, row in expected]


# ---- Paddle


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("pairs", ["slot:value", "value:slot"])
def test_paddle_words_that_name_their_slot(tmp_path, pairs):
    rng = np.random.default_rng(2)
    out, expected = [], []
    for _ in range(60):
        row = {"label": [str(rng.integers(0, 2))]}
        row |= {s: [str(v) for v in rng.integers(0, 2**63, rng.integers(0, 4))] for s in "uv1"}
        words = [(slot, value) for slot, values in row.items() for value in values]
        rng.shuffle(words)
        row = {slot: [v for s, v in words if s == slot] for slot in ["label", "u", "v", "1"]}
        words = [f"{s}:{v}" if pairs == "slot:value" else f"{v}:{s}" for s, v in words]
        out.append(" ".join([*words, "x:1:2"]))
        expected.append(row)
    data = "\n".join(out).encode()
    rows, places, _ = read_bytes(tmp_path, data, "paddle", ["label", "u", "v", "1"], pairs=pairs)
    assert rows == expected
    assert places == list(range(1, 61))
    name, value = ("x", "1:2") if pairs == "slot:value" else ("2", "x:1")
    rows, _, _ = read_bytes(tmp_path, data, "paddle", [name], pairs=pairs)
    assert all(value in row[name] for row in rows)


@pytest.mark.usefixtures("block")
def test_paddle_lines_without_names(tmp_path):
    rng = np.random.default_rng(3)
    names = ["label", "s", "d", "t"]
    out, expected = [], []
    for _ in range(60):
        row = {name: [str(v) for v in rng.integers(0, 99, rng.integers(0, 4))] for name in names}
        out.append(" ".join(f"{len(v)} {' '.join(v)}".strip() for v in row.values()))
        expected.append({name: row[name] for name in ("t", "label", "s")})
    data = "\n".join(out).encode()
    rows, _, _ = read_bytes(tmp_path, data, "paddle", ["t", "label", "s"], columns=names)
    assert rows == expected
    with pytest.raises(UserError, match=r"data\.columns has no 'tt'. Did you mean 't'\?"):
        read_bytes(tmp_path, data, "paddle", ["tt"], columns=names)


# ---- JSON lines


@pytest.mark.usefixtures("block")
def test_jsonl(tmp_path):
    rng = np.random.default_rng(4)
    expected = []
    for _ in range(80):
        row = {
            "i": int(rng.integers(-(2**63), 2**63)),
            "f": float(rng.normal()),
            "t": rng.choice(["x", "ü😀", "2024-01-01", "", 'a"b\\', "007"]),
            "list": [int(v) for v in rng.integers(0, 9, rng.integers(0, 3))],
            "texts": [None, "a"] if rng.random() < 0.5 else None,
            "yes": bool(rng.random() < 0.5),
        }
        expected.append({key: v for key, v in row.items() if rng.random() < 0.9})
    text = "\n\n".join(json.dumps({**row, "other": {"a": [1, {}]}}) for row in expected)
    names = ["i", "f", "t", "list", "texts", "yes"]
    rows, places, _ = read_bytes(tmp_path, text.encode(), "jsonl", names)
    assert rows == [{name: row.get(name) for name in names} for row in expected]
    assert places == list(range(1, 2 * len(rows), 2))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, "x"], ["1", "x"]),
        ([1, 2**64 - 1, -1], ["1", str(2**64 - 1), "-1"]),
        ([1, [2, 3], None, []], [[1], [2, 3], None, []]),
        ([1, ["a", 2]], [["1"], ["a", "2"]]),
        ([None, 5], [None, 5]),
        ([1, 0.5], [1.0, 0.5]),
        ([[], [7]], [[], [7]]),
    ],
)
def test_json_values_of_several_types(tmp_path, values, expected):
    text = "\n".join(json.dumps({"a": value}) for value in values)
    text = text.replace('"a": ', '"n": ')  # which is no slot's: ids have no fractions
    rows, _, _ = read_bytes(tmp_path, text.encode(), "jsonl", ["n"])
    assert [row["n"] for row in rows] == expected


# ---- TFRecord


def example(**features):
    """A serialized tf.Example; lists of int, float or bytes, None for a feature of no kind."""
    import tensorflow as tf

    kinds = {int: ("int64_list", tf.train.Int64List), float: ("float_list", tf.train.FloatList)}
    made = {}
    for name, values in features.items():
        if values is None:
            made[name] = tf.train.Feature()
            continue
        key, kind = kinds.get(type(values[0]), ("bytes_list", tf.train.BytesList))
        made[name] = tf.train.Feature(**{key: kind(value=values)})
    return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()


def framed(*payloads):
    def masked(data):
        crc = crc32c(data)
        return ((crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF).to_bytes(4, "little")

    out = b""
    for payload in payloads:
        length = len(payload).to_bytes(8, "little")
        out += length + masked(length) + payload + masked(payload)
    return out


def test_crc32c():
    """The check values of RFC 3720, appendix B.4, and any cut of the data."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    data = np.random.default_rng(0).bytes(100)
    for cut in range(100):
        assert crc32c(data[cut:], crc32c(data[:cut])) == crc32c(data)


@pytest.mark.usefixtures("block")
def test_tfrecord(tmp_path):
    import tensorflow as tf

    rng = np.random.default_rng(5)
    expected = []
    with tf.io.TFRecordWriter(str(tmp_path / "a")) as writer:
        for row in range(50):
            values = {
                "label": [int(rng.integers(0, 2))],
                "1": rng.integers(-(2**63), 2**63, rng.integers(0, 4)).tolist(),
                "f": [float(v) for v in rng.integers(0, 9, rng.integers(0, 3)) / 8],
                "uniq_id": [f"ü{row}".encode()],
            }
            writer.write(example(**{name: v for name, v in values.items() if v}))
            expected.append({**values, "uniq_id": [f"ü{row}"]})
    names = ["label", "1", "f", "uniq_id"]
    rows, places, _ = read(conf_of(tmp_path, "tfrecord"), names)
    assert rows == expected
    assert places == list(range(1, 51))
    rows, _, _ = read(conf_of(tmp_path, "tfrecord", check_utf8=False), ["uniq_id"])
    assert rows[7]["uniq_id"] == ["ü7".encode()]
    with gzip.open(tmp_path / "b.gz", "wb") as out:
        out.write((tmp_path / "a").read_bytes())
    assert read(conf_of(tmp_path, "tfrecord", "b.gz"), names)[0] == expected


def test_a_type_that_comes_late(tmp_path, monkeypatch):
    monkeypatch.setattr(tfrecord_files, "SAMPLE", 2)
    data = framed(*[example(label=[1], f=None)] * 5, example(label=[0], f=[0.5], t=[b"x"]))
    rows, _, _ = read_bytes(tmp_path, data, "tfrecord", ["label", "f", "t"])
    assert rows[5] == {"label": [0], "f": [0.5], "t": ["x"]}
    assert rows[0] == {"label": [1], "f": [], "t": []}


# ---- Bad rows

OBJECT = b'{"a": 1, "label": 0}'
BAD = [
    ("libsvm", b"1 3:1", b"3:1 4:1", {}, ["'3:1'", "label"]),
    ("libsvm", b"1 3:1", b"1 3:4:1", {}, ["'3:4:1'", "feature:value"]),
    ("libsvm", b"1 3:1", b"1 :1", {}, ["':1'", "feature:value"]),
    ("libsvm", b"1 3:1", b"1 3:x", {}, ["'3:x'", "no number"]),
    ("libsvm", b"1 3:1", b"1 \xff:1", {}, ["not UTF-8", "check_utf8=false"]),
    ("libsvm", b"1 0:3:1", b"1 3:1", {}, ["'3:1'", "field:feature:value"]),
    ("paddle", b"label:1 a:2", b"label:1 a", {}, ["'a'", "slot:value", "data.pairs"]),
    ("paddle", b"label:1 a:2", b":1", {}, ["':1'", "slot:value"]),
    ("paddle", b"label:1 a:2", b"a:\xff", {}, ["not UTF-8"]),
    ("paddle", b"1 0 2 7 8", b"1 0 3 7 8", {"columns": ["label", "a"]}, ["'3'", "slot 'a'"]),
    ("paddle", b"1 0 2 7 8", b"1 0", {"columns": ["label", "a"]}, ["end of the line", "'a'"]),
    ("paddle", b"1 0 1 7", b"1 0 1 7 8", {"columns": ["label", "a"]}, ["'8'", "after the last"]),
    ("jsonl", OBJECT, b"{", {}, ["no JSON object", "'{'"]),
    ("jsonl", OBJECT, b'{"a": "\xff"}', {}, ["no JSON object"]),
    ("jsonl", OBJECT, b'{"a": "\\ud800"}', {}, ["'a'", r"'\ud800'", "surrogate"]),
    ("jsonl", OBJECT, b'{"a": [[1]]}', {}, ["column 'a'", "a list in a list"]),
    ("jsonl", OBJECT, b'{"a": {"b": 1}}', {}, ["column 'a'", "an object"]),
    ("jsonl", OBJECT, b'{"a": ' + b"9" * 30 + b"}", {}, ["'" + "9" * 30, "64 bits"]),
    ("jsonl", OBJECT, b'{"a": 3.5}', {}, ["column 'a': 3.5 is no id", "ids=boundaries"]),
    ("jsonl", b'{"a": [1], "label": 0}', b'{"a": [1, 0.5]}', {}, ["column 'a': 0.5 is no id"]),
    ("jsonl", OBJECT, b"[" * 100_000, {}, ["no JSON object"]),
]


@pytest.mark.parametrize(("format", "good", "bad", "options", "words"), BAD)
def test_a_bad_line_is_named_or_passed_over(tmp_path, format, good, bad, options, words):
    needed = ["label", "values" if format == "libsvm" else "a"]
    data = b"\n".join([good, b"", good, bad, good, bad, good])
    with pytest.raises(Failure) as caught:
        read_bytes(tmp_path, data, format, needed, **options)
    text = str(caught.value)
    assert "\n" not in text
    for word in ["a, line 4", *words]:
        assert word in text, text
    rows, places, skipped = read_bytes(tmp_path, data, format, needed, bad_rows=2, **options)
    assert places == [1, 3, 5, 7]
    assert rows == [rows[0]] * 4
    assert skipped == 2
    with pytest.raises(Failure, match=r"over 1 rows .* data\.bad_rows .*line 4"):
        read_bytes(tmp_path, data, format, needed, bad_rows=1, **options)


def flipped(data, at):
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("damage", "words", "kept"),
    [
        (lambda parts: [parts[0], flipped(parts[1], 15), parts[2]], ["record 2", "checksum"], 2),
        (lambda parts: [parts[0], parts[1], parts[2][:-3]], ["record 3", "ends within"], 2),
        (lambda parts: [parts[0], parts[1], parts[2][:5]], ["record 3", "ends within"], 2),
        (lambda parts: [parts[0], framed(b"\x0a\xff\xff"), parts[2]], ["record 2", "Example"], 2),
        (
            lambda parts: [parts[0], framed(example(a=[0.5])), parts[2]],
            ["record 2", "'a' holds float32", "int64"],
            2,
        ),
        (
            lambda parts: [parts[0], framed(example(t=[b"\xff"])), parts[2]],
            ["record 2", "'t'", "UTF-8"],
            2,
        ),
        (lambda parts: [parts[0], flipped(parts[1], 3), parts[2]], ["record 2", "length"], None),
        (lambda _: [b"this is text, and no such file\n"], ["record 1", "data.format"], None),
        (lambda _: [b""], ["is empty"], None),
    ],
)
def test_a_bad_record_is_named_or_passed_over(tmp_path, damage, words, kept):
    parts = [framed(example(a=[k], label=[1], t=[b"x"])) for k in range(3)]
    data = b"".join(damage(parts))
    with pytest.raises(Failure) as caught:
        read_bytes(tmp_path, data, "tfrecord", ["a", "label", "t"])
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)
    if kept is None:
        with pytest.raises(Failure):
            read_bytes(tmp_path, data, "tfrecord", ["a", "label", "t"], bad_rows=9)
    else:
        rows, _, skipped = read_bytes(tmp_path, data, "tfrecord", ["a", "label", "t"], bad_rows=9)
        assert (len(rows), skipped) == (kept, 1)


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_rows_that_are_not_utf8(tmp_path, format):
    texts = pa.array([b"x", b"\xff", b"y"]).view(pa.string())
    table = pa.table({"a": texts, "l": pa.array([[1], [2], [3]])})
    write = {"parquet": pq.write_table, "orc": pa.orc.write_table}[format]
    write(table, str(tmp_path / "a"))
    with pytest.raises(Failure, match=r"a, row 2, column 'a': not UTF-8"):
        read(conf_of(tmp_path, format), ["a", "l"])
    rows, places, skipped = read(conf_of(tmp_path, format, bad_rows=1), ["a", "l"])
    assert (rows[1], places, skipped) == ({"a": "y", "l": [3]}, [1, 3], 1)
    unchecked = Source(conf_of(tmp_path, format, check_utf8=False), "train").pieces(["a"])
    assert sum(piece.table.num_rows for piece in unchecked) == 3


@pytest.mark.parametrize("format", ["libsvm", "paddle", "jsonl"])
def test_lines_to_skip_and_byte_order_marks(tmp_path, format):
    line = {"libsvm": b"1 2:1", "paddle": b"label:1", "jsonl": b'{"label": "1"}'}[format]
    data = b"\xef\xbb\xbf" + line + b"\n"
    assert len(read_bytes(tmp_path, data, format, ["label"])[0]) == 1
    rows, places, _ = read_bytes(tmp_path, b"a remark:\n:\n" + line, format, ["label"], skip_rows=2)
    assert (len(rows), places) == (1, [3])
    with pytest.raises(Failure, match="no rows"):
        read_bytes(tmp_path, b"\n  \n", format, ["label"])


def test_columns_that_cannot_be(tmp_path):
    with pytest.raises(UserError, match=r"no column 'lable'. Its columns are label, features"):
        read_bytes(tmp_path, b"1 2:1\n", "libsvm", ["lable"])
    with pytest.raises(UserError, match=r"column '0' .* is 1"):
        read_bytes(tmp_path, b"1 2:1\n", "libsvm", ["0"])


@pytest.mark.parametrize(
    ("format", "data"),
    [
        ("paddle", b"label:1 user:2"),
        ("jsonl", b'{"label": 1, "user": 2}'),
        ("tfrecord", None),
    ],
)
def test_a_column_without_values_is_told_once(tmp_path, monkeypatch, format, data):
    lines = []
    monkeypatch.setattr(file_pieces, "say", lines.append)
    monkeypatch.setattr(file_pieces, "_met", set())
    data = data or framed(example(label=[1], user=[2]))
    for _ in range(2):
        read_bytes(tmp_path, data, format, ["label", "user", "usr"])
    assert len(lines) == 1
    assert "'usr'" in lines[0]
    assert "Did you mean 'user'?" in lines[0]


@pytest.mark.parametrize("first", ["null", "nullx", "[1]"])
def test_a_line_that_is_no_object(tmp_path, first):
    """Of `null` at the start of a block Arrow dies; further down it would take it for a row."""
    good = [b'{"label": 1, "user": 2}'] * 2
    for lines_of, line in (([first.encode(), *good], 1), ([*good, first.encode()], 3)):
        with pytest.raises(Failure, match=rf"line {line}: no JSON object") as caught:
            read_bytes(tmp_path, b"\n".join(lines_of), "jsonl", ["label", "user"])
        assert ("data.format" in str(caught.value)) == (line == 1)


def test_a_column_of_nulls_is_not_like_itself(tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr(file_pieces, "say", lines.append)
    monkeypatch.setattr(file_pieces, "_met", set())
    read_bytes(tmp_path, b'{"label": 1, "user": null}\n{"label": 0}', "jsonl", ["label", "user"])
    assert [line.rpartition(": ")[2] for line in lines] == [
        "no value of column 'user' yet. All were null"
    ]


def test_numbers_beyond_64_bits_are_floats(tmp_path):
    """Wherever in the file they stand."""
    for lines_of in ([b"1", str(2**70).encode()], [b"1.5"] * 70 + [str(2**70).encode()]):
        data = b"\n".join(b'{"label": 1, "p": ' + number + b"}" for number in lines_of)
        rows, _, _ = read_bytes(tmp_path, data, "jsonl", ["p"])
        assert [float(row["p"]) for row in rows] == [float(number) for number in lines_of]


# ---- Fuzz


def mutated(rng, data):
    """Bytes of a good file with a few of them changed, doubled, dropped, or the end cut off."""
    out = bytearray(data)
    for _ in range(rng.integers(1, 6)):
        at = int(rng.integers(0, len(out) + 1))
        kind = rng.integers(0, 5)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << int(rng.integers(0, 8))
        elif kind == 1:
            out[at:at] = rng.bytes(int(rng.integers(1, 9)))
        elif kind == 2:
            del out[at : at + int(rng.integers(1, 20))]
        elif kind == 3:
            out[at:at] = rng.choice(
                [b":", b"\n", b" ", b'"', b"{", b"[", b"\x00", b"::", b"9" * 25]
            )
        elif len(out) > 20 and rng.random() < 0.2:
            del out[at:]
    return bytes(out)


def fuzz(tmp_path, seed, rounds):
    rng = np.random.default_rng(seed)
    object_ = b'{"label": 1, "a": "x", "b": [1, 2], "c": 0.5}\n'
    record = framed(*(example(label=[1], a=[1, 2], b=[0.5], c=[b"x"]) for _ in range(5)))
    parquet = pa.BufferOutputStream()
    columns = {"label": [1, 0], "a": ["x", "y"], "b": [[1], []], "c": [0.5, 1.5]}
    pq.write_table(pa.table(columns), parquet)
    names = ["label", "a", "b", "c"]
    cases = [
        ("libsvm", random_libsvm(rng, False).encode(), ["label", "features", "1", "7:"], {}),
        ("libsvm", random_libsvm(rng, True).encode(), ["label", "values", "1", "7:"], {}),
        ("paddle", b"label:1 a:1 a:2 b:3 c:0.5\n" * 9, names, {}),
        ("paddle", b"1 0 2 7 8 1 2 0\n" * 9, names, {"columns": names}),
        ("jsonl", object_ * 9, names, {}),
        ("tfrecord", record, names, {}),
        ("parquet", parquet.getvalue().to_pybytes(), names, {}),
    ]
    for _ in range(rounds):
        for format, good, needed, options in cases:
            data = mutated(rng, good) if rng.random() < 0.9 else rng.bytes(200)
            if format == "parquet":  # Arrow ends the process where a footer contradicts itself
                data += good[-8 - int.from_bytes(good[-8:-4], "little") :]
            (tmp_path / "a").write_bytes(data)
            for bad_rows in (0, 1000):
                conf = conf_of(
                    tmp_path, format, bad_rows=bad_rows, check_utf8=bool(seed % 2), **options
                )
                with contextlib.suppress(Failure):
                    rows, places, _ = read(conf, needed)
                    assert len(rows) == len(places)
                    assert places == sorted(places)


def test_fuzzed_files_are_read_or_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(text_lines, "BLOCK_BYTES", 200)
    monkeypatch.setattr(file_pieces, "say", lambda _: None)
    for seed in range(2):
        fuzz(tmp_path, seed, 20)


@pytest.mark.long
def test_fuzzed_files_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr(text_lines, "BLOCK_BYTES", 500)
    monkeypatch.setattr(file_pieces, "say", lambda _: None)
    for seed in range(5):
        fuzz(tmp_path, 100 + seed, 150)


# ---- URLs

TEXT = b"1 3:1 4:1\n0 5:1\n" * 500
EXPECTED = [{"label": "1", "1": "3"}, {"label": "0", "1": "5"}] * 500


def write_everywhere(folder):
    """A file of rows in each compression, and as Parquet."""
    files.write_bytes(files.join(folder, "a.txt"), TEXT)
    # Two members, as `cat a.gz b.gz` makes them.
    half = len(TEXT) // 2
    files.write_bytes(
        files.join(folder, "a.txt.gz"), gzip.compress(TEXT[:half]) + gzip.compress(TEXT[half:])
    )
    squeezed = pa.Codec("zstd")
    files.write_bytes(
        files.join(folder, "a.txt.zst"),
        b"".join(bytes(squeezed.compress(part)) for part in (TEXT[:half], TEXT[half:])),
    )
    out = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(EXPECTED), out)
    files.write_bytes(files.join(folder, "a.parquet"), out.getvalue().to_pybytes())


def read_everywhere(folder):
    for name in ("a.txt", "a.txt.gz", "a.txt.zst"):
        rows, _, _ = read(conf_of(folder, "libsvm", name), ["label", "1"])
        assert rows == EXPECTED, name
    assert read(conf_of(folder, "parquet", "a.parquet"), ["label", "1"])[0] == EXPECTED
    rows, _, _ = read(conf_of(folder, "libsvm", ["a.txt", "a.txt.gz"]), ["label", "1"])
    assert rows == EXPECTED * 2
    with pytest.raises(Failure, match="was not found"):
        read(conf_of(folder, "libsvm", "none.txt"), ["label"])


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_storages_of_this_process(tmp_path, kind):
    folder = str(tmp_path) if kind == "local" else f"memory://formats-{uuid.uuid4().hex}"
    write_everywhere(folder)
    read_everywhere(folder)


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextlib.contextmanager
def served(folder):
    handler = functools.partial(QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@pytest.mark.skipif(importlib.util.find_spec("aiohttp") is None, reason="aiohttp not installed")
def test_http(tmp_path):
    """A server without ranges: files are streamed, and Parquet, which is read from its end, too."""
    write_everywhere(str(tmp_path))
    with served(tmp_path) as url:
        read_everywhere(url)
    with pytest.raises(Failure, match=r"could not be read|not found"):
        read(conf_of(url, "libsvm", "a.txt"), ["label"])


@pytest.mark.skipif(importlib.util.find_spec("aiohttp") is None, reason="aiohttp not installed")
@pytest.mark.parametrize("format", ["parquet", "orc", "libsvm"])
def test_large_files_of_a_server_without_ranges(tmp_path, monkeypatch, format):
    """Larger than what is read at once, for which the client asks for ranges."""
    from fsspec.implementations.http import HTTPFileSystem

    start = HTTPFileSystem.__init__
    monkeypatch.setattr(
        HTTPFileSystem, "__init__", lambda self, **_: start(self, block_size=1 << 16)
    )
    HTTPFileSystem.clear_instance_cache()
    monkeypatch.setattr(text_lines, "BLOCK_BYTES", 1 << 16)
    ids = np.random.default_rng(0).integers(0, 2**60, 30_000)
    if format == "parquet":
        pq.write_table(pa.table({"1": ids}), tmp_path / "a", row_group_size=5_000)
    elif format == "orc":
        pa.orc.write_table(pa.table({"1": ids.view(np.int64)}), str(tmp_path / "a"))
    else:
        (tmp_path / "a").write_text("".join(f"1 {id_}:1\n" for id_ in ids))
    assert (tmp_path / "a").stat().st_size > 200_000
    with served(tmp_path) as url:
        rows, _, _ = read(conf_of(url, format), ["1"])
        if format in ("parquet", "orc"):
            source = Source(conf_of(url, format), "train")
            assert (source.columns(), source.known_rows()) == (["1"], len(ids))
    HTTPFileSystem.clear_instance_cache()
    assert [int(row["1"]) for row in rows] == ids.tolist()


def test_nested_values_in_a_column_that_nobody_reads(tmp_path):
    (tmp_path / "a").write_bytes(b'{"a": 1, "b": ' + b"[" * 10**5 + b"]" * 10**5 + b"}\n" + OBJECT)
    assert Source(conf_of(tmp_path, "jsonl"), "train").columns() == ["a", "label"]


@pytest.fixture(scope="module")
def s3():
    """The endpoint of an S3 server on this machine."""
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("s3fs") is None:
        pytest.skip("moto or s3fs not installed")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        environment.setenv("AWS_ACCESS_KEY_ID", "test")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "test")
        environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
        import s3fs

        s3fs.S3FileSystem(skip_instance_cache=True).mkdir("bucket")
        yield "s3://bucket"
    server.stop()


def test_s3(s3):
    write_everywhere(f"{s3}/formats")
    read_everywhere(f"{s3}/formats")
    urls = files.expand("*.txt*", f"{s3}/formats")
    assert [url.rsplit("/", 1)[1] for url in urls] == ["a.txt", "a.txt.gz", "a.txt.zst"]
    assert all(url.startswith("s3://") for url in urls)


# ---- The shipped confs

CRITEO = "\t".join(["1", *map(str, range(13)), *(f"c{k}" for k in range(26))])
AVAZU = (
    "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,"
    "app_category,device_id,device_ip,device_model,device_type,device_conn_type,"
    + ",".join(f"C{k}" for k in range(14, 22))
)
ADULT = "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, "
ADULT += "Male, 2174, 0, 40, United-States, "
SHIPPED = {
    # conf: (its files, overrides, slots, labels)
    "criteo": ({"train.txt": CRITEO + "\n" + "0" + CRITEO[1:]}, [], 26, [1, 0]),
    "avazu": (
        {"part.train.csv": f"{AVAZU}\n7,1,00{',x' * 21}\n8,0,23{',y' * 21}\n"},
        [],
        22,
        [1, 0],
    ),
    "adult": ({"adult.data": f"{ADULT}>50K\n{ADULT}<=50K\n\n"}, [], 14, [1, 0]),
    "movielens": (
        {"part.train.csv": "userId,movieId,rating,timestamp\n1,2,3.5,111\n1,3,3.0,112\n"},
        [],
        2,
        [1, 0],
    ),
    "movielens of ml-1m": (
        {"ratings.dat": "1::1193::5::978300760\n1::661::3::978302109\n"},
        ["data.train=ratings.dat", "data.delimiter=:", "data.header=false",
         "data.columns=[userId,a,movieId,b,rating,c,timestamp]"],
        2,
        [1, 0],
    ),
    "frappe": (
        {
            "frappe.train.libfm": "1 42:1 1572:1 5042:1 5047:1 5053:1 5055:1 5058:1 5060:1 5070:1 "
            "5150:1\n-1 204:1 4798:1 5041:1 5046:1 5053:1 5055:1 5058:1 5060:1 5073:1 5183:1\n"
        },
        [],
        10,
        [1, 0],
    ),
    "tensornet": (
        lambda: {
            "2020-05-10/tf-part.00001": framed(
                example(**{"label": [1], "uniq_id": [b"x"], "1": [3], "2": [-5], "3": [7],
                           "4": [1, 2, 3]}),
                example(**{"label": [0], "uniq_id": [b"y"], "1": [3], "2": [2**62], "3": [7]}),
            )
        },
        [],
        4,
        [1, 0],
    ),
    "generated": ({}, ["data.train=0:500"], 12, None),
}  # fmt: skip


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_confs_read_their_files(tmp_path, name):
    from tnctl.composing import compose
    from tnctl.data.features import Features
    from tnctl.data.statistics import measure
    from tnctl.data.windows import windows

    written, overrides, slots, labels = SHIPPED[name]
    for file, content in (written() if callable(written) else written).items():
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(data)
    root = [] if name == "generated" else [f"data.root={tmp_path}"]
    given = [f"data={name.split()[0]}", *root, *overrides]
    conf = compose.compose_run(compose.conf_file("lr"), given)
    assert len(conf.slots) == slots
    features = Features(conf, [(list(conf.slots), [1] * slots)], measure(conf))
    [window] = windows(Source(conf, "train"), features)
    if labels is not None:
        assert window.labels[:, 0].tolist() == labels
    cells = np.diff(window.offsets[0]).reshape(window.rows, slots)
    if name == "tensornet":
        assert cells.tolist() == [[1, 1, 1, 3], [1, 1, 1, 0]]
        assert window.ids[0].tolist() == [3, 2**64 - 5, 7, 1, 2, 3, 3, 2**62, 7]
    elif name != "generated":
        assert (cells == 1).all()
    if name == "frappe":
        assert window.ids[0][:10].tolist() == [
            42, 1572, 5042, 5047, 5053, 5055, 5058, 5060, 5070, 5150
        ]  # fmt: skip
    assert np.isfinite(window.numeric).all()


@pytest.mark.long
def test_training_from_s3_to_s3(s3, workspace, process):
    """Data, prepared data and output on a storage that is not this machine's."""
    files.upload_folder(workspace / "clicks", f"{s3}/clicks")
    common = ("conf=small.yaml", f"data.root={s3}/clicks")
    done = process("prepare", *common, f"to={s3}/prepared", cwd=workspace)
    assert done.code == 0, done.err
    done = process(
        "train", *common, f"data.prepared={s3}/prepared", f"output={s3}/run", cwd=workspace
    )
    assert done.code == 0, done.err
    assert {"checkpoints", "report.json"} <= set(files.list_folder(f"{s3}/run"))
    assert json.loads(files.read_bytes(f"{s3}/run/report.json"))["split"] == "test"
