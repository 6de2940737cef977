"""Times: the C library beside Python's datetime, columns of all formats, bad and missing values."""

import json
import re
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tnctl import schema
from tnctl.data import numbers, times
from tnctl.data.arrow_tables import as_table, raw_rows
from tnctl.data.bad_rows import BadRowsError
from tnctl.data.features import Features
from tnctl.data.formats.jsonl_files import cutters
from tnctl.data.sources import Source
from tnctl.data.statistics import measure
from tnctl.data.statistics_document import Statistics
from tnctl.errors import Failure, UserError
from tnctl.tables import columns as c_columns

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LEAST, AFTER = -62_135_596_800, 253_402_300_800  # seconds of year 1 and of year 10000

# ---- The C library, beside datetime


def read(texts, format="iso", ahead=0):
    """Times of texts in microseconds; None where they are none."""
    data = [text if isinstance(text, bytes) else text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, data)]).astype(np.int64)
    values, wrong = c_columns.times_of_texts(b"".join(data), ends, format, ahead)
    return [None if bad else int(value) for value, bad in zip(values, wrong, strict=True)]


def microseconds(moment):
    return (moment - EPOCH) // timedelta(microseconds=1)


ISO = re.compile(
    r"(\d{4})(-?)(\d\d)\2(\d\d)"
    r"([T ](\d\d)((:?)(\d\d)(\8(\d\d)([.,](\d{1,9}))?)?)?"
    r"( ?(Z|[uU][tT][cC]|([+-])(\d\d)(:?(\d\d))?))?)?",
    re.ASCII,
)


def slow_iso(text, ahead=0):
    match = ISO.fullmatch(text)
    if not match:
        return None
    year, month, day, hour, minute, second = (
        int(match[place] or 0) for place in (1, 3, 4, 6, 9, 11)
    )
    zone = timedelta(seconds=ahead)
    if match[16]:
        if int(match[17]) > 23 or int(match[19] or 0) > 59:
            return None
        zone = timedelta(hours=int(match[17]), minutes=int(match[19] or 0))
        zone = -zone if match[16] == "-" else zone
    elif match[15]:
        zone = timedelta(0)
    fraction = int(((match[13] or "") + "000000")[:6])
    try:
        moment = datetime(year, month, day, hour, minute, second, fraction, UTC)
    except ValueError:
        return None
    return microseconds(moment) - zone // timedelta(microseconds=1)


def random_moment(rng):
    if rng.random() < 0.2:  # days at which calendars and clocks turn
        year = int(rng.choice([1, 4, 99, 100, 400, 1600, 1900, 1969, 1970, 2000, 2024, 2100, 9999]))
        month, day = [(1, 1), (2, 28), (3, 1), (12, 31)][rng.integers(4)]
        return datetime(year, month, day, tzinfo=UTC) + timedelta(
            seconds=int(rng.choice([0, 1, 3599, 3600, 86399])),
            days=int(month == 2) * (year % 4 == 0),
        )
    moment = EPOCH + timedelta(seconds=int(rng.integers(LEAST + 86400, AFTER - 86400)))
    return moment + timedelta(microseconds=int(rng.choice([0, 1, 999_999, rng.integers(10**6)])))


def random_iso(rng):
    moment = random_moment(rng)
    text = moment.isoformat(sep=" T"[rng.integers(2)]).removesuffix("+00:00")
    kind = rng.integers(6)
    if kind == 0:
        return text[:10]
    if kind == 1:
        return text[:16]
    if kind == 2:
        text = text.replace("-", "").replace(":", "")
    zones = ["", "Z", " UTC", "+00:00", "-0330", "+14", "+23:59", " -08:00"]
    return text + zones[rng.integers(len(zones))]


HOSTILE = "0123456789-+:.,TZ utcUTC%/\0\xff\n٣"


def mutated(rng, text):
    for _ in range(rng.integers(1, 4)):
        at, sign = int(rng.integers(len(text) + 1)), HOSTILE[rng.integers(len(HOSTILE))]
        before, after = text[:at], text[at + 1 :]
        ways = [before + sign + text[at:], before + sign + after, before + after, before]
        text = ways[rng.integers(4)]
    return text


def check_iso(seed, rows):
    rng = np.random.default_rng(seed)
    texts = [random_iso(rng) for _ in range(rows)]
    texts += [mutated(rng, text) for text in texts]
    texts += [f"{rng.integers(0, 3000):04d}{rng.integers(0, 14):02d}{rng.integers(0, 33):02d}"
              for _ in range(rows // 10)]  # fmt: skip
    ahead = int(rng.choice([0, 3600, -12600]))
    received, expected = read(texts, "iso", ahead), [slow_iso(text, ahead) for text in texts]
    wrong = [row for row in range(len(texts)) if received[row] != expected[row]]
    assert not wrong, [(texts[row], received[row], expected[row]) for row in wrong[:5]]
    valid = sum(value is not None for value in expected)
    assert len(texts) / 4 < valid < len(texts)


def test_iso_texts_are_those_of_datetime():
    check_iso(1, 4000)


@pytest.mark.long
def test_millions_of_iso_texts_are_those_of_datetime():
    for seed in range(2, 8):
        check_iso(seed, 50_000)


PATTERNS = (
    "%Y-%m-%d %H:%M:%S", "%Y%m%d", "%y%m%d%H", "%d/%m/%Y %H:%M", "%m/%d/%Y %I:%M:%S %p",
    "%d/%b/%Y:%H:%M:%S %z", "%a %b %d %H:%M:%S %z %Y", "%Y.%m.%d-%H.%M.%S.%f", "%d%%%m%%%Y",
    "%Y-%m-%dT%H:%M:%S.000Z", "%d.%m.%y", "%Y%m%d%H%M%S",
)  # fmt: skip
WORDS = {
    "b": "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec", "a": "mon|tue|wed|thu|fri|sat|sun",
    "p": "am|pm", "f": r"\d{1,9}", "z": r"Z|utc|[+-]\d\d(?::?\d\d)?",
}  # fmt: skip


def slow_pattern(pattern, text):
    """A time by the rules of docs/formats/ids.md, with a regular expression and datetime."""
    parts = re.findall(r"%.|[^%]", pattern, re.DOTALL)
    fixed = {"Y": 4} | dict.fromkeys("ymdHIMS", 2)
    digits = [part.isdigit() or part[1:] == "f" or part[1:] in fixed for part in parts]
    if all(part[1:] in fixed for part in parts) and text:
        text = text.rjust(sum(fixed[part[1]] for part in parts), "0")
    expression = ""
    for place, part in enumerate(parts):
        letter = part[1:] if part != "%%" else ""
        if not letter:
            expression += re.escape(part[-1])
        elif letter in fixed:
            beside = digits[place + 1 : place + 2] + digits[max(place - 1, 0) : place]
            alone = letter not in "Yy" and not any(beside)
            width = f"{{1,{fixed[letter]}}}" if alone else f"{{{fixed[letter]}}}"
            padded = r" \d|" if alone and parts[place - 1 : place] == [" "] else ""
            expression += rf"(?P<{letter}>{padded}\d{width})"
        else:
            expression += f"(?i:(?P<{letter}>{WORDS[letter]}))"
    match = re.fullmatch(expression, text, re.ASCII)
    if not match:
        return None
    has = match.groupdict()
    if has.get("z") == "z":
        return None  # unlike utc, which may have any case
    year = int(has["Y"]) if "Y" in has else int(has["y"]) + (1900 if int(has["y"]) > 68 else 2000)
    month = WORDS["b"].split("|").index(has["b"].lower()) + 1 if "b" in has else int(has["m"])
    hour = int(has.get("H") or 0)
    if "I" in has:
        if not 1 <= int(has["I"]) <= 12:
            return None
        hour = int(has["I"]) % 12 + 12 * (has["p"].lower() == "pm")
    zone = has.get("z") or "Z"
    ahead = timedelta(0)
    if zone[0] in "+-":
        hours, minutes = int(zone[1:3]), int(zone[3:].lstrip(":") or 0)
        if hours > 23 or minutes > 59:
            return None
        ahead = timedelta(hours=hours, minutes=minutes) * (-1 if zone[0] == "-" else 1)
    fraction = int(((has.get("f") or "") + "000000")[:6])
    try:
        moment = datetime(year, month, int(has["d"]), hour, int(has.get("M") or 0),
                          int(has.get("S") or 0), fraction, UTC)  # fmt: skip
    except ValueError:
        return None
    return microseconds(moment) - ahead // timedelta(microseconds=1)


def check_pattern(pattern, seed, rows):
    rng = np.random.default_rng(seed)
    zone = timezone(timedelta(minutes=-210))
    texts, known = [], []
    for _ in range(rows):
        moment = random_moment(rng)
        if "%y" in pattern:
            moment = moment.replace(year=1969 + int(rng.integers(100)), day=min(moment.day, 28))
        if moment.year < 1000:  # which strftime does not fill up
            moment = moment.replace(year=moment.year + 2000)
        text = (
            moment.astimezone(zone).strftime(pattern)
            if "%z" in pattern
            else moment.strftime(pattern)
        )
        texts.append(text)
        parsed = datetime.strptime(text, pattern)
        known.append(microseconds(parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)))
    assert read(texts, pattern) == known
    hostile = [mutated(rng, text) for text in texts] + [text.lstrip("0") for text in texts]
    received, expected = read(hostile, pattern), [slow_pattern(pattern, text) for text in hostile]
    wrong = [row for row in range(len(hostile)) if received[row] != expected[row]]
    assert not wrong, [(hostile[row], received[row], expected[row]) for row in wrong[:5]]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_are_those_of_strptime(pattern):
    check_pattern(pattern, 1, 200)


@pytest.mark.long
@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_are_those_of_strptime_for_long(pattern):
    for seed in range(2, 5):
        check_pattern(pattern, seed, 10_000)


def check_parts(seed, rows):
    rng = np.random.default_rng(seed)
    moments = [random_moment(rng) for _ in range(rows)]
    values = np.array([microseconds(moment) for moment in moments], np.int64)
    for ahead in (0, 19_800, -28_800):
        local = [
            moment.astimezone(timezone(timedelta(seconds=ahead)))
            if 1 < moment.year < 9999 else None
            for moment in moments
        ]  # fmt: skip
        kept = [row for row, moment in enumerate(local) if moment is not None]
        expected = {
            "hour": [local[row].hour for row in kept],
            "weekday": [local[row].weekday() for row in kept],
            "day_of_month": [local[row].day for row in kept],
            "day": [(local[row].date() - EPOCH.date()).days % 2**64 for row in kept],
        }
        for part, ids in expected.items():
            assert c_columns.time_parts(values[kept], part, ahead).tolist() == ids, part


def test_parts_are_those_of_datetime():
    check_parts(1, 3000)


@pytest.mark.long
def test_parts_of_a_million_times_are_those_of_datetime():
    check_parts(2, 1_000_000)


def test_numbers_since_1970():
    seconds = 1_795_182_309.25
    for format, factor in (("epoch_s", 1), ("epoch_ms", 1e3), ("epoch_us", 1e6), ("epoch_ns", 1e9)):
        values, wrong = c_columns.times_of_numbers(
            np.array([seconds * factor, -0.5 * factor]), format
        )
        assert values.tolist() == [1_795_182_309_250_000, -500_000]
        assert not wrong.any()
    odd = np.array([np.nan, np.inf, -np.inf, LEAST, LEAST - 1, AFTER - 1, AFTER, 1e300])
    values, wrong = c_columns.times_of_numbers(odd, "epoch_s")
    assert wrong.tolist() == [True, True, True, False, True, False, True, True]
    assert (values[wrong] == 0).all()


# ---- Columns

CONF = {
    "recipe": {"name": "lr"},
    "slots": {
        "hour": {"column": "t", "ids": "hour", "missing": "value"},
        "weekday": {"column": "t", "ids": "weekday", "indicator": True},
        "day_of_month": {"column": "t", "ids": "day_of_month"},
        "day": {"column": "t", "ids": "day", "missing": "value"},
        "user_hour": {"cross": ["hour", "user"]},
        "user": {},
    },
    "numeric": {
        "age": {"column": "t", "since_column": "born", "unit": "hour"},
        "recent": {"column": "t", "since": "2026-01-01", "transform": "log1p"},
    },
}
MOMENTS = (
    "2026-11-20T13:45:09Z", "2026-11-22T23:59:59Z", "1969-12-31T23:00:00Z", "2024-02-29T00:00:00Z",
)  # fmt: skip
BORN = "2026-11-20"


def conf_of(**data):
    given = {"missing": ["", "?"], **data}
    return schema.from_values(json.loads(json.dumps(CONF)) | {"data": given})


def features_of(conf):
    names = ["hour", "day_of_month", "day", "user_hour", "user"]
    return Features(conf, [([name], [1]) for name in names], Statistics(), labelled=False)


def where(row):
    return "rows", row + 1


def inputs_of(conf, table):
    """Ids and numbers of a table, as lists that can be compared."""
    rows = features_of(conf).read(table, where)
    cells = {
        name: (cells.ids.tolist(), cells.lengths().tolist()) for name, cells in rows.cells.items()
    }
    return cells, rows.batch.numeric.tolist()


def expected_inputs(moments):
    seconds = [datetime.fromisoformat(text).timestamp() for text in moments]
    born = datetime.fromisoformat(BORN + "T00:00:00Z").timestamp()
    since = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    days = [int(second // 86400) for second in seconds]
    one_hot = [[float((day + 3) % 7 == n) for n in range(7)] for day in days]
    numbers = np.array(
        [
            [
                (second - born) / 3600,
                np.sign(second - since) * np.log1p(abs(second - since) / 86400),
            ]
            for second in seconds
        ],
        np.float32,
    )
    return (
        {
            "hour": [int(second // 3600 % 24) for second in seconds],
            "day": [day % 2**64 for day in days],
            "day_of_month": [datetime.fromisoformat(text).day for text in moments],
        },
        [row + hot for row, hot in zip(numbers.tolist(), one_hot, strict=True)],
    )


def columns_as(form):
    """The same times in another form: the columns, and data.times for them."""
    moments = [datetime.fromisoformat(text) for text in MOMENTS]
    born = datetime.fromisoformat(BORN + "T00:00:00Z")
    naive = [moment.replace(tzinfo=None) for moment in moments]
    seconds = [int(moment.timestamp()) for moment in moments]
    if form in ("s", "ms", "us", "ns"):
        return pa.array(naive, pa.timestamp(form)), pa.array([born.date()] * 4, pa.date32()), {}
    if form == "zoned":
        zoned = pa.array(moments, pa.timestamp("us", "UTC")).cast(
            pa.timestamp("us", "Europe/Berlin")
        )
        return zoned, pa.array([born.date()] * 4, pa.date64()), {}
    if form == "dictionary":
        return pa.array(MOMENTS).dictionary_encode(), pa.array([BORN] * 4).dictionary_encode(), {}
    if form == "text with a zone":
        shifted = [
            m.astimezone(timezone(timedelta(hours=5, minutes=30))).isoformat() for m in moments
        ]
        return pa.array(shifted, pa.string_view()), pa.array([BORN] * 4, pa.large_binary()), {}
    if form == "integers":
        compact = [int(moment.strftime("%Y%m%d%H%M%S")) for moment in moments]
        return pa.array(compact), pa.array([20261120] * 4), {"t": {"format": "%Y%m%d%H%M%S"}}
    unit = {"epoch_s": 1, "epoch_ms": 1000, "epoch_us": 10**6, "epoch_ns": 10**9}[form.split()[0]]
    values = [second * unit for second in seconds]
    kind = {"int": pa.int64(), "float": pa.float64(), "text": pa.string()}[form.split()[1]]
    times_of_columns = {"t": {"format": form.split()[0]}, "born": {"format": "%d %b %Y"}}
    values = [str(value) for value in values] if kind == pa.string() else values
    return pa.array(values, kind), pa.array(["20 Nov 2026"] * 4), times_of_columns


FORMS = (
    "s", "ms", "us", "ns", "zoned", "dictionary", "text with a zone", "integers", "epoch_s int",
    "epoch_s float", "epoch_s text", "epoch_ms int", "epoch_us float", "epoch_ns int",
)  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_the_same_times_are_the_same_inputs(form):
    t, born, of_columns = columns_as(form)
    users = pa.array(["u1"] * 4)
    cells, numeric = inputs_of(
        conf_of(times=of_columns), pa.table({"t": t, "born": born, "user": users})
    )
    ids, expected = expected_inputs(MOMENTS)
    for name, values in ids.items():
        assert cells[name] == (values, [1] * 4), name
    assert numeric == expected
    known = pa.table({"t": pa.array(MOMENTS), "born": pa.array([BORN] * 4), "user": users})
    assert inputs_of(conf_of(), known) == (cells, numeric)


def test_an_offset_is_the_zone_of_hours_and_of_times_without_one():
    ahead = {"t": {"offset": "+05:30"}, "born": {"offset": "+05:30"}}
    moments = ["2026-11-20T23:00:00Z", "2026-11-21 04:30:00"]
    table = pa.table({"t": moments, "born": ["2026-11-21"] * 2, "user": ["u"] * 2})
    cells, numeric = inputs_of(conf_of(times=ahead), table)
    assert cells["hour"][0] == [4, 4]
    assert cells["day_of_month"][0] == [21, 21]
    assert [row[0] for row in numeric] == [4.5, 4.5]
    stamps = pa.array([datetime(2026, 11, 21, 4, 30)] * 2, pa.timestamp("ms"))
    assert inputs_of(conf_of(times=ahead), table.set_column(0, "t", stamps)) == (cells, numeric)


def test_missing_times():
    table = pa.table({
        "t": ["?", None, "", "2026-11-20"], "born": [BORN, BORN, BORN, None], "user": ["u"] * 4
    })  # fmt: skip
    cells, numeric = inputs_of(conf_of(), table)
    assert cells["hour"][0] == [24, 24, 24, 0]
    assert cells["day"][0] == [2**63] * 3 + [20777]
    assert cells["day_of_month"] == ([20], [0, 0, 0, 1])
    assert [row[0] for row in numeric] == [0] * 4
    assert [row[2:] for row in numeric] == [[0] * 7] * 3 + [[0, 0, 0, 0, 1, 0, 0]]
    stamps = pa.array([None, None, None, datetime(2026, 11, 20)], pa.timestamp("us"))
    assert inputs_of(conf_of(), table.set_column(0, "t", stamps)) == (cells, numeric)
    epochs = pa.array([None, np.nan, None, 1_795_132_800.0])
    conf = conf_of(times={"t": {"format": "epoch_s"}})
    assert inputs_of(conf, table.set_column(0, "t", epochs)) == (cells, numeric)
    nothing = table.set_column(0, "t", pa.nulls(4))
    assert inputs_of(conf_of(), nothing)[0]["hour"][0] == [24] * 4


@pytest.mark.parametrize(
    ("values", "format", "words"),
    [
        (["2026-11-20", "2026-13-01"], "iso", ["rows, row 2", "'t'", "'2026-13-01'", "format iso"]),
        (["2026-11-20", "x"], "%d/%m/%Y", ["row 1", "%d/%m/%Y", "data.times.t.format"]),
        ([1, 1e12], "epoch_s", ["row 2", "1000000000000", "epoch_s", "year 1 to 9999"]),
        (["1", "x"], "epoch_s", ["row 2", "'x' is not a number"]),
        ([1, np.inf], "epoch_s", ["row 2", "inf"]),
    ],
)
def test_a_bad_time_is_named(values, format, words):
    table = pa.table({"t": values, "born": [BORN] * 2, "user": ["u"] * 2})
    with pytest.raises(BadRowsError) as error:
        inputs_of(conf_of(times={"t": {"format": format}}), table)
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("array", "format", "words"),
    [
        (pa.array([1.5]), "iso", "is double, and times in the format iso are text"),
        (pa.array([datetime(2026, 1, 1)]), "epoch_s", "needs no format. Leave data.times.t.format"),
        (pa.array([[1]]), "iso", "is list"),
    ],
)
def test_a_column_without_times_is_refused(array, format, words):
    conf = conf_of(times={"t": {"format": format}})
    with pytest.raises(Failure, match=words):
        times.times_of(array, "t", conf.data, where)


def test_timestamps_out_of_range_are_bad_rows():
    conf = conf_of()
    for kind, ticks in (("s", AFTER), ("s", LEAST - 1), ("ms", 2**62), ("s", -(2**63))):
        with pytest.raises(BadRowsError, match="before year 1 or after year 9999"):
            times.times_of(pa.array([0, ticks], pa.timestamp(kind)), "t", conf.data, where)
    edges = pa.array([-(2**63) + 1, 2**63 - 2, -1], pa.timestamp("ns"))
    of_edges = times.times_of(edges, "t", conf.data, where)
    assert of_edges.values.tolist() == [-9_223_372_036_854_776, 9_223_372_036_854_775, -1]


def test_several_times_in_a_row():
    of_both = {"column": "t", "separator": "|", "missing": "value"}
    slots = {
        "hours": {**of_both, "ids": "hour", "pooling": "mean"},
        "days": {**of_both, "ids": "day", "pooling": "none", "max_length": 2},
    }
    values = {"recipe": {"name": "lr"}, "slots": slots}
    conf = schema.from_values(values)
    features = Features(conf, [(["hours"], [1]), (["days"], [2])], Statistics(), labelled=False)
    texts = ["2026-11-20T05:00||1970-01-02", "", None]
    rows = features.read(pa.table({"t": texts}), where)
    assert rows.cells["hours"].ids.tolist() == [5, 0, 24, 24]
    assert rows.cells["hours"].lengths().tolist() == [2, 1, 1]
    assert rows.cells["days"].ids.tolist() == [20777, 2**63]
    lists = pa.array([[datetime(2026, 11, 20, 5), None, datetime(1970, 1, 2)], [], None],
                     pa.list_(pa.timestamp("us")))  # fmt: skip
    of_lists = features.read(pa.table({"t": lists}), where)
    for name in rows.cells:
        assert of_lists.cells[name].ids.tolist() == rows.cells[name].ids.tolist()


# ---- Files


def written(folder, format):
    """A file of a format with the times of MOMENTS and a missing one."""
    path = folder / format
    rows = [{"t": t, "born": BORN, "user": "u1", "label": "1"} for t in (*MOMENTS, None)]
    if format == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        moments = [row["t"] and datetime.fromisoformat(row["t"]) for row in rows]
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        columns["t"] = pa.array(moments, pa.timestamp("ns", "UTC"))
        columns["born"] = [datetime.fromisoformat(BORN).date()] * len(rows)
        table = pa.table(columns)
        pq.write_table(table, path)
    return path


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_texts_and_timestamps_of_files_give_the_same_inputs(tmp_path, format):
    conf = conf_of(format=format, train=str(written(tmp_path, format)))
    features = features_of(conf)
    [piece] = Source(conf, "train").pieces(features.columns)
    cells, numeric = inputs_of(conf, piece.table)
    ids, expected = expected_inputs(MOMENTS)
    assert cells["hour"][0] == [*ids["hour"], 24]
    assert cells["day"][0] == [*ids["day"], 2**63]
    assert cells["day_of_month"] == (ids["day_of_month"], [1, 1, 1, 1, 0])
    assert numeric == [*expected, [0.0] * 9]
    # As golden rows have them, in JSON.
    rows = json.loads(json.dumps(raw_rows(Source(conf, "train"), 10)))
    table = as_table(rows, cutters(conf), features.columns)
    assert inputs_of(conf, table) == (cells, numeric)


def test_ages_are_measured(tmp_path):
    (tmp_path / "a").write_text("t\n2026-11-20\n2026-11-22\n\nx\n")
    values = {
        "recipe": {"name": "lr"},
        "numeric": {"age": {"column": "t", "since": "2026-11-18", "transform": "standardize"}},
        "data": {"root": str(tmp_path), "train": "a", "bad_rows": 1},
    }
    conf = schema.from_values(values)
    assert measure(conf).standardize == {"age": (3.0, 1.0)}


def test_a_date_in_a_slot_of_texts_names_the_way():
    conf = schema.from_values({"recipe": {"name": "lr"}, "slots": {"t": {}}})
    features = Features(conf, [(["t"], [1])], Statistics(), labelled=False)
    with pytest.raises(UserError, match="take ids=hour, weekday, day_of_month or day"):
        features.read(pa.table({"t": [datetime(2026, 1, 1)]}), where)


# ---- The conf


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"times": {"x": {}}}, "data.times.x: no slot and no numeric input reads times"),
        ({"times": {"t": {"format": "seconds"}}}, "format must be iso, epoch_s"),
        ({"times": {"t": {"format": "%Y-%m"}}}, "lacks the day"),
        ({"times": {"t": {"format": "%Y-%m-%d %Q"}}}, "no directive %Q"),
        ({"times": {"t": {"format": "%Y-%m-%d %d"}}}, "the day twice"),
        ({"times": {"t": {"format": "%Y-%m-%d %I"}}}, "%I and %p together"),
        ({"times": {"t": {"format": "%Y-%m-%d %f%H"}}}, "digit after %f"),
        ({"times": {"t": {"format": "%Y-%m-%d" + "-" * 60}}}, "at most 64 bytes"),
        ({"times": {"t": {"offset": "1:00"}}}, "offset must be"),
    ],
)
def test_formats_and_offsets_are_checked(changes, words):
    with pytest.raises(UserError) as error:
        conf_of(**changes)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("numeric", "words"),
    [
        ({"since": "2026-02-30"}, "since must be a time such as"),
        ({"since": "2026-01-01", "since_column": "b"}, "exclude each other"),
        ({"since": "2026-01-01", "width": 2}, "leave separator and width out"),
        ({"unit": "hour"}, "unit is for since"),
        ({"since": "2026-01-01", "unit": "week"}, "no choice 'week'"),
    ],
)
def test_ages_are_checked(numeric, words):
    with pytest.raises(UserError) as error:
        schema.Numeric(**numeric)
    assert words in str(error.value)


def test_what_the_schema_takes_is_what_c_takes():
    rng = np.random.default_rng(5)
    texts = [random_iso(rng) for _ in range(500)]
    texts += [mutated(rng, text) for text in texts]
    for text, value in zip(texts, read(texts), strict=True):
        if "utc" in text.lower() and "UTC" not in text:
            continue
        try:
            schema.Numeric(since=text)
        except UserError:
            assert value is None, text
        else:
            assert value is not None, text
    for pattern in PATTERNS:
        assert schema.Time(format=pattern).format == pattern


def test_texts_without_blanks_and_bytes():
    conf = conf_of(check_utf8=False)
    array = pa.array([b" 2026-11-20\t", b"2026-11-20"], pa.binary())
    assert (
        times.times_of(array, "t", conf.data, where).values.tolist() == [20777 * 86400 * 10**6] * 2
    )
    with pytest.raises(BadRowsError, match="is not a time"):
        times.times_of(pa.array([b"\xff\xfe"], pa.binary()), "t", conf.data, where)
    assert numbers.is_text(array.type)
