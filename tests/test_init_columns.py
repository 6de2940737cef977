"""`tnctl init`: what each column is, and which give the label away."""

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from test_init import conf_of, recognised

from benchmarks import planted_tables
from tnctl.starting.column_figures import figures, held_out_auc, rows_of_one_label, separator_of

MOMENTS = [datetime(2026, 11, 1) + timedelta(hours=5 * hour) for hour in range(60)]


@pytest.mark.parametrize(
    ("name", "written", "format"),
    [
        ("t", "%Y-%m-%dT%H:%M:%SZ", "iso"),
        ("t", "%Y-%m-%d %H:%M", "iso"),
        ("t", "%d/%m/%Y %H:%M", "%d/%m/%Y %H:%M"),
        ("t", "%m/%d/%Y %I:%M:%S %p", "%m/%d/%Y %I:%M:%S %p"),
        ("t", "%d/%b/%Y:%H:%M:%S +0000", "%d/%b/%Y:%H:%M:%S %z"),
        ("t", "%b %d %Y %I:%M%p", "%b %d %Y %I:%M%p"),
        ("t", "%b %e %Y %l:%M%p", "%b %d %Y %I:%M%p"),  # SQL Server
        ("t", "%a, %d %b %Y %H:%M:%S GMT", "%a, %d %b %Y %H:%M:%S GMT"),  # HTTP
        ("t", "%a %b %e %H:%M:%S %Y", "%a %b %d %H:%M:%S %Y"),  # ctime
        ("t", "%d-%b-%y %I.%M.%S.%f %p", "%d-%b-%y %I.%M.%S.%f %p"),  # Oracle
        ("t", "%H:%M:%S %d-%m-%Y", "%H:%M:%S %d-%m-%Y"),
        ("t", "%m/%d/%y %I:%M %p", "%m/%d/%y %I:%M %p"),
        ("t", "%d.%m.%y %H:%M", "%d.%m.%y %H:%M"),
        ("t", "%Y%m%d%H", "%Y%m%d%H"),
        ("hour", "%y%m%d%H", "%y%m%d%H"),
        ("created_at", "epoch_s", "epoch_s"),
        ("created_at", "epoch_ms", "epoch_ms"),
    ],
)
def test_a_time_says_how_its_hour_is_read(tmp_path, name, written, format):
    factor = {"epoch_s": 1, "epoch_ms": 1000}.get(written)
    texts = [
        str(int(moment.replace(tzinfo=UTC).timestamp()) * factor)
        if factor
        else moment.strftime(written)
        for moment in MOMENTS
    ]
    rows = [f'"{text}",u{k % 7},{k % 2}\n' for k, text in enumerate(texts)]
    (tmp_path / "a.csv").write_text(f"{name},user,label\n{''.join(rows)},u1,1\n")
    result, conf, kinds = recognised(tmp_path / "a.csv")
    assert kinds[name] == "time" and list(conf["slots"]) == ["user"]
    [said] = [line for line in result.text.splitlines() if line.startswith(f"#   {name} ")]
    slot, _, times = said.partition("Its hour: ")[2].partition(", data.times: ")
    conf["slots"] |= yaml.safe_load(slot)
    conf["data"]["times"] = yaml.safe_load(times) or {}
    conf["slots"][f"{name}_hour"]["missing"] = "value"
    checked = conf_of(yaml.safe_dump(conf))
    assert checked.data.time_of(name).format == format
    assert (checked.slots[f"{name}_hour"].column, checked.slots[f"{name}_hour"].ids) == (
        name, "hour",
    )  # fmt: skip


def test_times_that_are_not_all_in_one_format(tmp_path):
    days = [f"{datetime(2026, 1, 1) + timedelta(days=k):%Y-%m-%d}" for k in range(59)] + ["soon"]
    rows = [f"{day},u{k % 5},{k % 2}" for k, day in enumerate(days)]
    path = planted_tables.write_lines(tmp_path / "a.csv", ["day,user,label", *rows])
    result, conf, kinds = recognised(path)
    assert kinds["day"] == "time" and list(conf["slots"]) == ["user"]
    assert "times, but not all are in one format" in result.text


@pytest.mark.parametrize(
    ("name", "first", "unit", "step", "kind"),
    [
        ("c", 880_000_000, 1, 3000, "time"),
        ("c", 990_000_000, 1, 30_000, "time"),  # from 9 to 10 digits
        ("c", 880_000_000, 1000, 3000, "time"),
        ("timestamp", 400_000_000, 1, 3000, "time"),
        ("session_start", 1_760_000_000, 1, 3000, "time"),
        ("order_id", 880_000_000, 1, 3000, "row identifier"),
        ("created_by_id", 880_000_000, 1, 3000, "row identifier"),
        ("c", 880_000_000, 1, 1, "row identifier"),
        ("c", 200_000_000, 1, 3000, "row identifier"),
    ],
)
def test_seconds_before_september_2001(tmp_path, name, first, unit, step, kind):
    steps = np.random.default_rng(3).integers(1, 2 * step, 900)
    times = (first + np.cumsum(steps)) * unit
    lines = [f"{time},u{k % 9},{k // 7 % 2}" for k, time in enumerate(times)]
    path = planted_tables.write_lines(tmp_path / "a.csv", [f"{name},user,click", *lines])
    _, conf, kinds = recognised(path)
    assert kinds[name] == kind
    assert (conf["data"]["split"].get("by") == "last") is (kind == "time")


@pytest.mark.parametrize("sign", ["epoch", "digits"])
def test_twelve_digits_are_a_date_and_a_clock_before_milliseconds(tmp_path, sign):
    days = np.datetime64("2026-03-01T00:00") + 97 * np.arange(900)
    texts = [f"{day.astype(object):%Y%m%d%H%M}" for day in days]
    if sign == "epoch":
        texts = [str(number) for number in (days.astype(int) - 20 * 525_600) * 60_000]
    lines = [f"{text},u{k % 9},{k // 7 % 2}" for k, text in enumerate(texts)]
    path = planted_tables.write_lines(tmp_path / "a.csv", ["time,user,click", *lines])
    result, _, _ = recognised(path)
    assert result.columns["time"].times.format == ("epoch_ms" if sign == "epoch" else "%Y%m%d%H%M")


@pytest.mark.parametrize("delimiter", ["\t", ";"])
def test_numbers_with_a_decimal_comma_are_no_input(tmp_path, delimiter):
    cents = np.random.default_rng(1).integers(0, 40_000, 600)
    lines = [
        delimiter.join([f"u{k % 9}", f'"{cent // 100},{cent % 100:02}"', f"{k % 2}"])
        for k, cent in enumerate(cents)
    ]
    lines = [delimiter.join(["user", "price", "label"]), *lines]
    result, conf, kinds = recognised(planted_tables.write_lines(tmp_path / "a.csv", lines))
    assert kinds["price"] == "decimal commas" and "price" not in conf["slots"]
    assert any("price is left out: numbers with a comma" in text for text in result.warnings)


def test_ids_as_floats_have_a_bucket_each(tmp_path):
    """As pandas makes integers of a column with gaps; buckets cannot have each id of more rows."""
    random = np.random.default_rng(3)
    rates = random.random(400)
    ids = random.integers(0, 400, 20_000).astype(float)
    columns = {"shop": ids, "click": (random.random(20_000) < rates[ids.astype(int)]).astype(int)}
    ids[::50] = np.nan
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    result, conf, _ = recognised(tmp_path / "a.parquet")
    assert conf["slots"] == {"shop": {"ids": "quantiles", "buckets": 802, "missing": "value"}}
    assert "integers, by their effect ids. Floats: write integers where there are" in result.text


def test_more_rows_than_are_read(tmp_path):
    columns = {"user": np.arange(120_000) % 997, "click": np.arange(120_000) // 7 % 2}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    result, _, _ = recognised(tmp_path / "a.parquet")
    assert not result.sample.is_whole
    assert "the first 100,000 of about 120,000 rows" in result.text


def test_texts_among_numbers_mean_a_missing_value(tmp_path):
    """A few different ones, of which no list of words is needed."""
    prices = [("-", "k. A.")[k % 2] if k % 20 == 0 else k * 37 % 100 for k in range(400)]
    rows = [f"{price},{'-' if k % 3 else 'yes'},{k // 7 % 2}" for k, price in enumerate(prices)]
    path = planted_tables.write_lines(tmp_path / "a.csv", ["price,promoted,click", *rows])
    _, conf, kinds = recognised(path)
    assert conf["data"]["missing"] == ["", "-"]
    assert "number" in kinds["price"] and conf["slots"]["promoted"] == {"missing": "value"}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("id", 117_876 + np.unique(np.arange(120) ** 2 % 2003)),  # codes of roles
        ("id", np.append([4292, 311_178], 117_876 + np.arange(120) * 7 // 2)),
        ("number", np.arange(18, 140)),
        ("number", np.arange(18, 140) * 50),  # amounts in steps
        ("number", np.append(np.arange(1, 100), np.arange(100, 9000, 300))),
    ],
)
def test_integers_that_come_again_with_gaps_between_are_ids(tmp_path, kind, values):
    drawn = np.random.default_rng(8).choice(values, 2500)
    lines = [f"{value},u{k % 9},{k // 7 % 2}" for k, value in enumerate(drawn)]
    path = planted_tables.write_lines(tmp_path / "a.csv", ["role,user,click", *lines])
    result, conf, kinds = recognised(path)
    assert kinds["role"] == kind or kinds["role"] == f"id or {kind}"
    assert conf["slots"]["role"] == {} or kind == "number"
    assert ("with gaps between" in result.text) is (kind == "id")


def test_infinite_numbers_are_no_input(tmp_path):
    lines = [f"u{k % 9},{('inf', k, '')[k % 3]},{k % 2}" for k in range(120)]
    planted_tables.write_lines(tmp_path / "a.csv", ["user,limit,click", *lines])
    result, conf, kinds = recognised(tmp_path / "a.csv")
    assert kinds["limit"] == "unsupported" and set(conf["slots"]) == {"user"}
    assert "infinite numbers: inf" in result.text


def test_lists_are_recognised_in_the_texts_of_rows():
    """The 5,000 most frequent texts are lists of one item."""
    random = np.random.default_rng(6)
    items = [f"i{number}" for number in range(5200)]
    rows = [*items, *items]
    rows += [",".join(items[k] for k in few) for few in random.integers(0, 5200, (41_600, 4))]
    rows = pa.chunked_array([np.array(rows)[random.permutation(len(rows))]])
    column = figures("history", rows, False)
    assert column.counts[np.argsort(-column.counts)[4999]] == 2
    assert separator_of(column) == ","


def test_lists_of_codes_that_rarely_come_again(tmp_path):
    """In quotes, as the delimiter of the file separates them too."""
    random = np.random.default_rng(6)
    lists = [",".join(map(str, random.integers(0, 10**6, k % 5))) for k in range(600)]
    lines = [f'"{text}",u{k % 9},{k // 7 % 2}' for k, text in enumerate(lists)]
    path = planted_tables.write_lines(tmp_path / "a.csv", ["seen,user,click", *lines])
    _, conf, kinds = recognised(path)
    assert kinds["seen"] == "several" and conf["slots"]["seen"]["separator"] == ","


@pytest.mark.parametrize("separator", ["", "|"])
def test_a_list_gives_the_label_away_by_one_of_its_values(tmp_path, separator):
    draw = np.random.default_rng(1)
    rows = []
    for k in range(600):
        events = [f"e{number}" for number in draw.integers(0, 40, draw.integers(1, 5))]
        clicked = int(k % 3 == 0)
        rows.append(({"event": events + ["done"] * clicked, "seen": events}, clicked))
    if separator:
        lines = ["event,seen,user,click"] + [
            f"{separator.join(lists['event'])},{separator.join(lists['seen'])},u{k % 7},{clicked}"
            for k, (lists, clicked) in enumerate(rows)
        ]
    else:
        lines = [
            json.dumps({**lists, "user": f"u{k % 7}", "click": clicked})
            for k, (lists, clicked) in enumerate(rows)
        ]
    path = planted_tables.write_lines(tmp_path / ("a.csv" if separator else "a.jsonl"), lines)
    result, conf, kinds = recognised(path)
    assert kinds["event"] == "giveaway" and set(conf["slots"]) == {"seen", "user"}
    assert any("event: it gives the label away" in text for text in result.warnings)


def with_second_column(path, name, values):
    """A table with user, item, click, and a column of this name."""
    t = planted_tables.planted()
    rows = zip(t["user"], t["item"], t["clicks"], values(t["clicks"]), strict=True)
    lines = [f"user\titem\tclick\t{name}", *("\t".join(map(str, row)) for row in rows)]
    return planted_tables.write_lines(path, lines)


def some_of(clicks):
    """1 in a third of the rows with a click."""
    return clicks * (np.arange(len(clicks)) % 3 == 0)


def test_another_outcome_gives_the_label_away(tmp_path):
    path = with_second_column(tmp_path / "a.tsv", "purchase", some_of)
    for label, other in (("click", "purchase"), ("purchase", "click")):
        result, conf, kinds = recognised(path, label=label)
        assert conf["data"]["label"]["column"] == label and kinds[other] == "giveaway"
        assert [other] == [text.split(":")[0] for text in result.warnings]


def test_a_value_that_implies_the_label_gives_it_away_whatever_the_name(tmp_path):
    """The last column, purchases, is the label; no row without a click (0) has one."""
    random = np.random.default_rng(4)
    clicks = random.random(3000) < 0.28
    bought = clicks & (random.random(3000) < 0.3)
    device = random.integers(0, 3, 3000)
    rows = zip(random.integers(0, 90, 3000), device, clicks, bought, strict=True)
    lines = [f"i{movie}\td{kind}\t{click:d}\t{buy:d}" for movie, kind, click, buy in rows]
    result, conf, _ = recognised(planted_tables.write_lines(tmp_path / "a.tsv", lines))
    assert conf["data"]["label"]["column"] == "c4" and set(conf["slots"]) == {"c1", "c2"}
    [warning] = result.warnings
    rows = (~clicks).sum()
    assert warning == f"c3: it gives the label away: all {rows:,} rows with '0' have label 0"
    assert f"all {rows:,} rows with '0' have label 0" in result.text.split("# Columns that are")[1]


def test_an_order_that_implies_no_click_is_an_input(tmp_path):
    path = with_second_column(
        tmp_path / "a.tsv", "order", lambda clicks: np.arange(len(clicks)) // 2 % 2
    )
    result, _, kinds = recognised(path)
    assert kinds["order"] == "id"
    assert not result.warnings


@pytest.mark.parametrize(
    ("value", "empty", "words"),
    [
        ("long".format, "0", "with 'long' have label 1"),
        ("long".format, "", "with 'long' have label 1"),
        (lambda k: f"refund-{k}", "", "with a value have label 1"),
        (lambda k: f"2026-11-{1 + k % 28:02}", "", "with a value have label 1"),
        (lambda k: 1 + k * 7919 % 3000, 0, "without '0' have label 1"),
        (lambda k: f"a|b{k % 5}|c{k % 3}", "", "with values have label 1"),
    ],
)
def test_what_only_rows_with_clicks_have_gives_the_label_away(tmp_path, value, empty, words):
    rows = []

    def column(clicks):
        filled = some_of(clicks)
        rows.append(filled.sum())
        return [value(k) if is_filled else empty for k, is_filled in enumerate(filled)]

    result, conf, kinds = recognised(with_second_column(tmp_path / "a.tsv", "dwell", column))
    assert kinds["dwell"] == "giveaway" and set(conf["slots"]) == {"user", "item"}
    [warning] = result.warnings
    assert f"dwell: it gives the label away: all {rows[0]:,} rows {words}" in warning


def test_values_that_differ_in_their_odds_do_not_give_the_label_away():
    """Against a rule of chance alone: users who always click, and a rare device that never does."""
    random = np.random.default_rng(5)
    users = random.integers(0, 500, 30_000)
    labels = (random.random(30_000) < random.beta(0.1, 0.1, 500)[users]).astype(float)
    assert any(len(set(labels[users == user])) == 1 for user in range(500))
    assert rows_of_one_label(users, labels) is None
    labels = (random.random(30_000) < 0.03).astype(float)
    devices = (np.arange(30_000) % 50 == 0).astype(np.int64)
    labels[devices == 1] = 0
    assert rows_of_one_label(devices, labels) is None
    gaps = np.where(labels == 1, -1, users)
    assert rows_of_one_label(gaps, labels) == (-1, False, 0, int((labels == 0).sum()))
    assert rows_of_one_label(gaps, np.full(30_000, np.nan)) is None


def test_the_value_of_a_column_against_a_slow_model():
    random = np.random.default_rng(4)
    codes = random.integers(-1, 6, 500)
    labels = (random.random(500) < 0.2 + 0.1 * (codes % 3)).astype(float)
    labels[::50] = np.nan
    rows = [(c, y) for c, y in zip(codes, labels, strict=True) if y == y]
    areas = []
    for parity in (0, 1):
        fitted = [row for k, row in enumerate(rows) if k % 2 == parity]
        others = [row for k, row in enumerate(rows) if k % 2 != parity]
        prior = sum(y for _, y in fitted) / len(fitted)
        of = {
            code: (sum(y for c, y in fitted if c == code) + 10 * prior)
            / (sum(c == code for c, _ in fitted) + 10)
            for code, _ in rows
        }
        pairs = [(of[a], of[b]) for a, y in others if y for b, z in others if not z]
        areas.append(sum((a > b) + (a == b) / 2 for a, b in pairs) / len(pairs))
    assert held_out_auc(codes, labels) == pytest.approx(sum(areas) / 2)
