"""CSV and TSV against a reader that goes byte by byte, against Arrow, and against noise."""

import gzip
import random
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pytest

from tnctl.data.formats.csv_files import CsvReader
from tnctl.data.read_ahead import in_order
from tnctl.errors import Failure, UserError
from tnctl.schema import Conf, Data, Label, Numeric, Slot
from tnctl.tables import text

COLUMNS = ["z", "a", "n", "y"]
NEEDED = ["n", "a", "y"]  # in another order than in the file, and one is not needed
ANY = 10**9


def conf_of(root, **data):
    return Conf(
        recipe={"name": "lr"},
        slots={"a": Slot()},
        numeric={"n": Numeric()},
        data=Data(root=str(root), header=False, columns=COLUMNS, label=Label(column="y"), **data),
    )


def read(conf, url):
    """The rows and the numbers of their lines, how many were skipped, and the reasons given."""
    rows, lines, skipped, reasons = [], [], 0, []
    for piece in CsvReader(conf).pieces(str(url), NEEDED):
        assert piece.table.column_names == NEEDED
        piece.table.validate(full=True)
        rows += zip(*(piece.table.column(name).to_pylist() for name in NEEDED), strict=True)
        for row in range(piece.table.num_rows):
            where = piece.where(row)
            assert where[0] == str(url)
            lines.append(where[1])
        skipped += piece.bad.rows
        reasons += [piece.bad.first] * (piece.bad.rows > 0)
    return rows, lines, skipped, reasons


class BadError(Exception):
    """A line of the slow reader that is no row."""


def fields_of(line, delimiter, quoting):
    fields, at = [], 0
    while True:
        value = b""
        if quoting and line[at : at + 1] == b'"':
            at += 1
            while True:
                if at == len(line):
                    raise BadError("quote")
                if line[at : at + 2] == b'""':
                    value, at = value + b'"', at + 2
                elif line[at : at + 1] == b'"':
                    at += 1
                    break
                else:
                    value, at = value + line[at : at + 1], at + 1
        while at < len(line) and line[at : at + 1] != delimiter:
            if line[at : at + 1] == b"\r":
                raise BadError("carriage return")
            value, at = value + line[at : at + 1], at + 1
        fields.append(value)
        if at == len(line):
            return fields
        at += 1


def number_of(value, missing):
    if value in missing:
        return None
    try:
        return pc.cast(pa.scalar(value.decode().strip(" \t")), pa.float64()).as_py()
    except (pa.ArrowInvalid, UnicodeDecodeError):
        raise BadError("column '") from None


def slowly(data, conf):
    """What `read` gives, byte by byte; a bad line is its number and what is said of it."""
    delimiter = conf.data.delimiter.encode()
    missing = [text.encode() for text in conf.data.missing]
    if conf.data.strip:
        missing = [text.strip() for text in missing]
    rows, lines, bad = [], [], []
    for number, line in enumerate(data.split(b"\n"), 1):
        line = line.rstrip(b"\r")
        if not line:
            continue
        try:
            fields = fields_of(line, delimiter, delimiter != b"\t")
            if len(fields) != len(COLUMNS):
                raise BadError(f"received {len(fields)}")
            if conf.data.strip:
                fields = [field.strip() for field in fields]
            _, a, n, y = fields
            if conf.data.check_utf8:
                try:
                    a = a.decode()
                except UnicodeDecodeError:
                    raise BadError("column '") from None
            rows.append((number_of(n, missing), a, number_of(y, missing)))
            lines.append(number)
        except BadError as error:
            bad.append((number, str(error)))
    return rows, lines, bad


def same(first, second):
    """Equal rows, to the bit of each number."""
    return repr(first) == repr(second)


VALUES = [
    b"", b"", b"1", b"0", b"12", b"-1", b"99999999", b"123456789", b"1.5", b".5", b"5.", b"1e5",
    b"-0", b"0.1234567890123456789", b"9007199254740993", b"1e400", b"inf", b"-NaN", b" 7",
    b"7 \t", b"+1", b"0x10", b"one", b"NA", b"-", b".", b"1.2.3", b"abcdefgh", b"abcdefghijklmnopq",
    b"\xc3\xa9", b"\xf0\x9f\x98\x80", b" x ", b"\xff", b"\xed\xa0\x80", b"\xc0\xaf",
    b'"', b'a"b', b"\0",
]  # fmt: skip
QUOTED = [b'"a,b"', b'"1"', b'"1"5', b'"x""y"', b'""', b'"NA"', b'""""', b'"1""', b'"\r"', b'" 3 "']
ENDS = [b"\n", b"\n", b"\n", b"\r\n", b"\r\r\n", b"\n\n", b"\n\r\n", b"\r"]


def noise(source, delimiter, tame):
    """The bytes of a file; the tamer, the fewer lines are bad."""
    values = VALUES[:13] if tame else VALUES + QUOTED
    lines = []
    for _ in range(source.randrange(40)):
        count = len(COLUMNS) if tame or source.random() < 0.9 else source.randrange(7)
        text = [
            VALUES[source.choice((2, 3, 4))],
            *(source.choice(values) for _ in range(count - 1)),
        ]
        lines.append(delimiter.join(text) + (b"\n" if tame else source.choice(ENDS)))
    data = bytearray(b"".join(lines))
    for _ in range(0 if tame else source.randrange(4)):
        if data:
            data[source.randrange(len(data))] = source.choice(b'\n\r"\0\xff1a,\t ')
    return bytes(data) or b"\n"


def fuzz(path, monkeypatch, cases, seed):
    source = random.Random(seed)
    for case in range(cases):
        delimiter = source.choice((",", "\t", ";", " "))
        data = noise(source, delimiter.encode(), case % 4 == 0)
        path.write_bytes(data)
        monkeypatch.setattr(
            "tnctl.data.formats.text_lines.BLOCK_BYTES", source.choice((8, 70, 300, 4096))
        )
        conf = conf_of(
            path.parent,
            delimiter=delimiter,
            strip=source.random() < 0.5,
            check_utf8=source.random() < 0.5,
            missing=source.choice(([""], [], ["NA", ""], ["-1", '"'], [" ", "1"])),
            bad_rows=ANY,
        )
        rows, lines, bad = slowly(data, conf)
        result = read(conf, path)
        assert same(result[0], rows), (data, conf.data)
        assert result[1] == lines, data
        assert result[2] == len(bad), (data, bad, result[3])
        if bad:
            assert f"line {bad[0][0]}" in result[3][0]
        conf.data.bad_rows = 0
        if not bad:
            assert same(read(conf, path)[0], rows)
            continue
        number, reason = bad[0]
        with pytest.raises(Failure, match=rf"line {number}\b") as caught:
            read(conf, path)
        assert "\n" not in str(caught.value)
        assert reason in str(caught.value), (reason, str(caught.value))


@pytest.mark.short
def test_noise_is_read_as_a_slow_reader_reads_it(tmp_path, monkeypatch):
    fuzz(tmp_path / "a.csv", monkeypatch, 300, 1)


@pytest.mark.long
def test_much_noise_is_read_as_a_slow_reader_reads_it(tmp_path, monkeypatch):
    fuzz(tmp_path / "a.csv", monkeypatch, 2_000, 2)


def test_valid_files_are_what_arrow_reads(tmp_path):
    source = random.Random(3)
    good = [value for value in VALUES if value.isascii() and value not in (b'"', b"\0")]
    numbers = [*VALUES[: VALUES.index(b"+1")], *QUOTED[1:3], b'""']
    lines = [
        b",".join([source.choice(good), source.choice(good + QUOTED[:5]),
                   source.choice(numbers), source.choice(numbers)])
        for _ in range(5000)
    ]  # fmt: skip
    (tmp_path / "a.csv").write_bytes(b"\n".join(lines) + b"\n")
    table = pyarrow.csv.read_csv(
        tmp_path / "a.csv",
        pyarrow.csv.ReadOptions(column_names=COLUMNS),
        pyarrow.csv.ParseOptions(),
        pyarrow.csv.ConvertOptions(
            column_types={"z": pa.string(), "a": pa.string(), "n": pa.float64(), "y": pa.float64()},
            include_columns=NEEDED,
            null_values=[""],
        ),
    )
    expected = list(zip(*(table.column(name).to_pylist() for name in NEEDED), strict=True))
    rows, lines, skipped, _ = read(conf_of(tmp_path), tmp_path / "a.csv")
    assert same(rows, expected)
    assert lines == list(range(1, len(expected) + 1))
    assert skipped == 0


def test_numbers_are_rounded_as_arrow_rounds_them(tmp_path):
    source = random.Random(4)
    texts = ["0", "-0", "00012", "1e22", "1e23", "1e-22", "1e-23", "4.9e-324", "1e308", "1e-400"]
    texts += [
        "9007199254740993",
        "9223372036854775807",
        "18446744073709551615",
        "1" * 30,
        "0." + "3" * 40,
    ]
    texts += [
        "100000000000000016777215",
        "100000000000000016777216",
        "-1e0",
        "7E+05",
        "7e-5",
        "1.e1",
    ]
    texts += [repr(source.uniform(-1000, 1000)) for _ in range(3000)]
    texts += [repr(source.random() * 10.0 ** source.randrange(-300, 300)) for _ in range(3000)]
    texts += [f"{source.randrange(10 ** source.randrange(1, 22))}" for _ in range(3000)]
    texts += [f"{source.randrange(2**64)}e{source.randrange(-40, 40)}" for _ in range(3000)]
    texts += [f"{source.uniform(-99, 99):.{source.randrange(20)}f}" for _ in range(3000)]
    (tmp_path / "a.csv").write_text("".join(f"z,a,{text},0\n" for text in texts))
    pieces = CsvReader(conf_of(tmp_path)).pieces(str(tmp_path / "a.csv"), NEEDED)
    numbers = np.concatenate([piece.table.column("n").to_numpy() for piece in pieces])
    expected = pc.cast(pa.array(texts), pa.float64()).to_numpy()
    np.testing.assert_array_equal(numbers.view(np.uint64), expected.view(np.uint64))


def test_every_character_is_utf8_and_nothing_else_is(tmp_path):
    points = [*range(0x80, 0x3000, 7), 0xD7FF, 0xE000, 0xFFFD, 0xFFFF, 0x10000, 0x10FFFF]
    tails = (b"\x80", b"\xbf", b"\x7f", b"\xc0")
    values = ["x" * (p % 13) + chr(p) + "y" * (p % 5) for p in points]
    tries = [value.encode() for value in values]
    ends = (b"", b"\x80", b"\x8f\x80", b"\x9f\x80\x80", b"\x90\x80\x80")
    tries += [bytes([first, *end]) for first in range(0x80, 0x100) for end in ends]
    tries += [text[:-1] + tail for text in tries[:40] for tail in tails]
    path = tmp_path / "a.csv"
    path.write_bytes(b"".join(b"z," + text + b",1,0\n" for text in tries))
    conf = conf_of(tmp_path, bad_rows=ANY)
    rows, lines, bad = slowly(path.read_bytes(), conf)
    result = read(conf, path)
    assert same(result[0], rows)
    assert result[1:3] == (lines, len(bad))
    assert "not UTF-8" in result[3][0]


def test_a_damaged_file_is_no_bad_row(tmp_path):
    whole = gzip.compress(b"".join(b"%d,x,1,0\n" % (k * 7919 % 10007) for k in range(9999)))
    (tmp_path / "a.csv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(Failure, match="cut short"):
        read(conf_of(tmp_path, bad_rows=ANY), tmp_path / "a.csv.gz")


def test_a_delimiter_is_ascii(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"z,x,1,0\n")
    with pytest.raises(UserError, match=r"data\.delimiter must be an ASCII character"):
        read(conf_of(tmp_path, delimiter="§"), tmp_path / "a.csv")


def test_lines_of_a_block():
    block = memoryview(b"a,1\n\nbb,\r\nc\n")
    lines = text.Lines(block, text.LineFormat(2, b",", b'"', missing=[b""]))
    assert (lines.rows, lines.bad, lines.first_bad, lines.first_fields) == (2, 1, 10, 1)
    assert lines.first_fault == text.OTHER_FIELDS
    assert lines.starts().tolist() == [0, 5]
    [texts], [numbers], not_utf8, hard = lines.read([0], [1])
    assert texts.offsets.tolist() == [0, 1, 3]
    assert texts.data[:3].tobytes() == b"abb"
    assert numbers.values[0] == 1
    assert (numbers.valid.tolist(), numbers.missing) == ([1], 1)
    assert not not_utf8.any()
    assert not hard.any()
    [texts], _, _, hard = lines.read([1], [], np.array([1, 0], np.uint32))
    assert texts.offsets.tolist() == [0, 0, 1]
    with pytest.raises(ValueError, match="2 rows"):
        lines.read([0], [], np.array([2], np.uint32))
    with pytest.raises(IndexError):
        lines.read([2], [])
    none = text.Lines(memoryview(b""), text.LineFormat(1, b","))
    assert none.rows == none.bad == 0
    assert none.read([0], [])[0][0].offsets.tolist() == [0]


def test_results_come_in_order_and_errors_after_them():
    def slow(number):
        time.sleep(0.001 * (number % 3))
        if number == 7:
            raise ValueError("seven")
        return number * number

    assert list(in_order(slow, iter(range(7)))) == [k * k for k in range(7)]
    results = in_order(slow, iter(range(100)))
    assert [next(results) for _ in range(7)] == [k * k for k in range(7)]
    with pytest.raises(ValueError, match="seven"):
        next(results)

    def broken():
        yield from range(5)
        raise KeyError("source")

    results = in_order(slow, broken())
    assert [next(results) for _ in range(5)] == [k * k for k in range(5)]
    with pytest.raises(KeyError, match="source"):
        next(results)
    assert list(in_order(slow, iter(()))) == []


def test_a_reader_that_is_left_ends_its_threads():
    results = in_order(lambda _: threading.current_thread(), iter(range(1000)))
    thread = next(results)
    assert thread.is_alive()
    results.close()
    assert not thread.is_alive()
