"""Generated clicks of ids that keep arriving: the stream, its truth, its days; `conf=demo`."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_generated import calibrated, sigmoid

from tnctl.data import arrivals, days, generated, sources
from tnctl.data.generated import row_range as range_of_generated
from tnctl.data.sources import Source
from tnctl.errors import Failure, UserError
from tnctl.evaluation.metrics import auc
from tnctl.schema import from_values

ROOT = Path(__file__).resolve().parent.parent
ROWS = 200_000
SMALL = ("data.train={day}/3000", "data.days=..2026-01-03", "recipe.hidden=[8,4]")


def conf_of(train="0:3000", **data):
    return from_values({
        "recipe": {"name": "lr"},
        "slots": {name: {} for name in (*arrivals.SHARE, *arrivals.SHOWN)},
        "data": {"format": "arrivals", "train": train, "reference": "reachable", **data},
    })  # fmt: skip


@pytest.fixture(scope="module")
def table():
    """The first rows of the stream, without `reachable`."""
    return arrivals.rows(0, ROWS, ["label"])


def column(table, name):
    return table[name].to_numpy(zero_copy_only=False)


def places(table, name):
    """The ids of a slot as numbers."""
    return np.array([int(text[1:]) for text in table[name].to_pylist()])


def bits(stream, number):
    """The documented draw, in Python's integers."""
    x = ((number * arrivals.STREAMS + stream) * 0x9E3779B97F4A7C15 + arrivals.DATA_SEED) % 2**64
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        x = (x ^ x >> 33) * factor % 2**64
    return x ^ x >> 33


@pytest.mark.parametrize("name", arrivals.SHARE)
def test_a_row_brings_a_new_id_or_repeats_that_of_an_earlier_row(table, name):
    """Simon's process, one row after the other, from a list of all that went before."""
    ids = list(range(arrivals.FOUNDERS[name]))
    for place in range(len(ids), len(ids) + 4000):
        draw = bits(arrivals.ARRIVAL[name], place)
        is_new = draw % 65_536 < arrivals.SHARE[name] * 65_536
        ids.append(place if is_new else ids[(draw >> 16) % place])
    assert places(table.slice(0, 4000), name).tolist() == ids[arrivals.FOUNDERS[name] :]


def test_rows_are_a_function_of_their_number(table, monkeypatch):
    assert arrivals.rows(70_000, 70_900, ["label"]).equals(table.slice(70_000, 900))
    # With the ids of the same rows known, `reachable` is the same too.
    table = arrivals.rows(0, 2000)
    assert table.column_names == arrivals.COLUMNS
    assert arrivals.rows(500, 600, seen=0).equals(table.slice(500, 100))
    monkeypatch.setattr(generated, "PIECE_ROWS", 77)
    pieces = list(arrivals.pieces(1000, 1500, ["user_id", "reachable"], 0))
    assert [piece.table.num_rows for piece in pieces] == [77] * 6 + [38]
    assert [piece.where(3) for piece in pieces[:2]] == [("arrivals", 1003), ("arrivals", 1080)]
    whole = table.select(["user_id", "reachable"]).slice(1000, 500)
    assert [row for piece in pieces for row in piece.table.to_pylist()] == whole.to_pylist()


@pytest.mark.parametrize("first", [0, 3_000_000, 10**9])
def test_values_are_missing_and_lists_are_long_in_all_rows(first):
    table = arrivals.rows(first, first + 20_000)
    for name, share in (("city", 1 / 16), ("age_band", 1 / 4), ("rating", 1 / 8)):
        # Users and items have many rows: their shares vary more than those of rows.
        assert table[name].null_count / 20_000 == pytest.approx(share, abs=0.02 + share / 2)
    lengths = np.diff(table["tags"].combine_chunks().offsets.to_numpy())
    assert set(lengths.tolist()) == set(range(arrivals.LISTED + 1))
    for name in set(arrivals.COLUMNS) - {"city", "age_band", "rating"}:
        assert table[name].null_count == 0
    assert 0.15 < column(table, "label").mean() < 0.35


def test_labels_follow_the_planted_truth(table):
    labels = column(table, "label")
    calibrated(column(table, "planted"), labels)
    tastes, kinds = arrivals.classes(
        *(places(table, name).astype(np.uint64) for name in arrivals.SHARE)
    )
    for hidden in (tastes, kinds):
        counts = np.bincount(hidden.astype(int), minlength=arrivals.KINDS)
        assert len(counts) == arrivals.KINDS and counts.min() > 0
    effects = arrivals.hidden()
    assert effects.shape == (arrivals.KINDS, arrivals.KINDS)
    both = effects - effects.mean(0) - effects.mean(1, keepdims=True) + effects.mean()
    assert both.std() == pytest.approx(arrivals.HIDDEN["both"], rel=0.05)
    assert effects.mean(0).std() == pytest.approx(arrivals.HIDDEN["item_id"], rel=0.05)
    assert effects.mean(1).std() == pytest.approx(arrivals.HIDDEN["user_id"], rel=0.05)


def test_reachable_is_what_the_ids_met_before_allow():
    """Against brute force: a set of the ids that occurred, and loops over tastes and kinds."""
    seen, end = 600, 1400
    table = arrivals.rows(0, end, seen=seen)
    planted, reachable = column(table, "planted"), column(table, "reachable")
    effects = arrivals.hidden().tolist()
    ids = [places(table, name).tolist() for name in arrivals.SHARE]
    tastes, kinds = (
        hidden.tolist() for hidden in arrivals.classes(*(np.array(of, np.uint64) for of in ids))
    )
    met = [
        set(range(arrivals.FOUNDERS[name])) | set(of[:seen])
        for name, of in zip(arrivals.SHARE, ids, strict=True)
    ]
    kinds_of_rows = set()
    for row in range(end):
        known = [of[row] in ids_met for of, ids_met in zip(ids, met, strict=True)]
        shown = planted[row] - effects[tastes[row]][kinds[row]]
        chances = [
            sigmoid(shown + effects[t][k])
            for t in ([tastes[row]] if known[0] else range(arrivals.KINDS))
            for k in ([kinds[row]] if known[1] else range(arrivals.KINDS))
        ]
        mean = sum(chances) / len(chances)
        assert reachable[row] == pytest.approx(np.log(mean / (1 - mean)), abs=1e-9)
        kinds_of_rows.add((row < seen, *known))
    assert len(kinds_of_rows) == 5  # before `seen` all are known


def values(pieces, name):
    return [value for piece in pieces for value in piece.table[name].to_pylist()]


@pytest.mark.parametrize(("train", "split", "spec", "seen"), [
    ("0:3000", "test", "5000:5400", 3000),  # all rows that were trained on, and no more
    ("1000:3000", "validation", "2000:2400", 3000),
    ("1000:3000", "train", "1000:3000", 3000),
    ("{day}/500", "test", "5000:5400", 5000),
    ("2026-01-04/500", "train", "2026-01-04/500", 1500),  # a day before it is trained
    (None, "test", "700:800", 700),
])  # fmt: skip
def test_a_split_knows_the_rows_that_were_trained_on(train, split, spec, seen):
    conf = conf_of(train)
    setattr(conf.data, split, spec)
    first, end = sources.row_range(conf.data, split)
    needed = ["user_id", "reachable"]
    read = list(Source(conf, split).pieces(needed))
    expected = arrivals.rows(first, end, needed, seen)
    assert values(read, "reachable") == expected["reachable"].to_pylist()
    assert Source(conf, split).known_rows() == end - first
    # Workers that share the split read the same rows.
    of_units = [
        piece for unit in Source(conf, split).units(2)
        for piece in Source(conf, split).pieces(needed, unit)
    ]  # fmt: skip
    assert values(of_units, "reachable") == expected["reachable"].to_pylist()
    assert values(of_units, "user_id") == expected["user_id"].to_pylist()


def test_a_day_is_as_many_rows_as_it_is_said_to_have():
    assert arrivals.row_range("train", "2026-01-01/500") == (0, 500)
    assert arrivals.row_range("train", "2026-03-01/500") == (59 * 500, 60 * 500)
    assert arrivals.row_range("train", "7:9") == range_of_generated("train", "7:9") == (7, 9)
    for spec in (
        "2025-12-31/5",
        "2026-02-30/5",
        "2026-01-01/0",
        "2026-01-01",
        "20260101/5",
        "5:5",
        "{day}/5",
        "a:b",
        "",
        None,
        ["0:5"],
        f"0:{2**41}",
        f"2026-01-02/{2**40}",
    ):
        with pytest.raises(UserError, match=r"data\.test of data\.format=arrivals is a range"):
            arrivals.row_range("test", spec)


def test_columns_and_unknown_names():
    assert Source(conf_of(), "train").columns() == arrivals.COLUMNS
    with pytest.raises(Failure, match="arrivals has no column 'user'"):
        next(arrivals.pieces(0, 10, ["user"], 0))


def test_all_days_up_to_the_last_are_there():
    def of(wanted):
        conf = conf_of("{day}/500", days=wanted)
        assert days.daily(conf)
        return days.days_of(conf)

    assert of("..2026-01-03").there == ["2026-01-01", "2026-01-02", "2026-01-03"]
    assert of("2026-01-31..2026-02-01") == days.Days(["2026-01-31", "2026-02-01"], [], [])
    assert of(["2026-02-01", "2026-01-31"]).there == ["2026-01-31", "2026-02-01"]
    assert of("2026-01-05").there == ["2026-01-05"]
    for wanted, words in {
        None: "days without end", "2026-01-05..": "days without end",
        "..2025-12-31": "dates from 2026-01-01 on", "1..7": "dates from 2026-01-01 on",
        "20260105": "dates from 2026-01-01 on", "..9999-12-31": "over 100,000 days",
    }.items():  # fmt: skip
        with pytest.raises(UserError, match=re.escape(words)):
            of(wanted)
    for train in ("{day}", "{day}:5", "{day}/x", ["{day}/5"]):
        with pytest.raises(UserError, match="is a range of rows such as"):
            days.daily(conf_of(train, days="..2026-01-03"))


@pytest.fixture(scope="module")
def demo(ran, tmp_path_factory):
    """A folder with a run of conf=demo on few rows, and what the command printed."""
    folder = tmp_path_factory.mktemp("demo")
    done = ran("train", "conf=demo", "output=runs/demo", *SMALL, cwd=folder)
    return folder, done


def test_the_demo_trains_day_after_day(demo):
    folder, done = demo
    report = json.loads((folder / "runs/demo/report.json").read_text())
    assert [day["day"] for day in report["days"]] == ["2026-01-01", "2026-01-02", "2026-01-03"]
    life = report["life"].values()
    assert all(sum(group[key] for group in life) > 0 for key in ("admitted", "waiting"))
    assert report["days"][0]["before"] is None
    for number, day in enumerate(report["days"][1:], 1):
        assert day["rows"] == 3000
        table = arrivals.rows(number * 3000, (number + 1) * 3000)  # knows the rows of days before
        expected = auc(column(table, "reachable"), column(table, "label"))
        assert day["before"]["reference_auc"] == pytest.approx(expected, abs=1e-12)
        assert day["new_ids"]["user_id"] > 0.2
    # The table of days, and what became of the ids.
    lines = [line.split() for line in done.err.splitlines()]
    assert any(line[:4] == ["2026-01-01", "3,000", "–", "–"] for line in lines)
    shown = f"{report['days'][2]['before']['auc']:.4f}"
    assert any(line[:3] == ["2026-01-03", "3,000", shown] for line in lines)
    assert any(line[:2] == ["ids", "admitted"] for line in lines)


def test_the_next_days_are_trained_by_the_same_command(demo, ran):
    """More days go on where the run ended; rows unseen for more than two days are removed."""
    folder, _ = demo
    later = ("data.days=..2026-01-05",)
    done = ran("train", "conf=demo", "output=runs/demo", *SMALL[:1], *later, SMALL[2], cwd=folder)
    report = json.loads((folder / "runs/demo/report.json").read_text())
    assert [day["day"][-2:] for day in report["days"]] == ["01", "02", "03", "04", "05"]
    assert sum(report["days"][-1]["evicted"].values()) > 0
    assert any("rows were evicted" in line for line in done.err.splitlines())


def test_the_rest_of_make_demo(demo, ran, process):
    """Its commands after training, in their order; the row is one of the stream."""
    folder, _ = demo
    made = subprocess.run(
        ["make", "-n", "-B", "PYTHON=python3", "demo"], cwd=ROOT, capture_output=True, text=True,
        check=True,
    ).stdout  # fmt: skip
    commands = [shlex.split(line) for line in made.splitlines() if "runs/demo" in line]
    train, *exports, scoring, summary, _ = commands
    assert train[1:3] == ["train", "conf=demo"]
    for command in exports:
        done = ran(*command[1:], cwd=folder)
    assert [command[1].partition("-")[0] for command in exports] == ["split", "export", "verify"]

    row = json.loads(scoring[2])
    number = int(re.search(r"row ([\d,]+) of the stream", (ROOT / "Makefile").read_text())[1]
                 .replace(",", ""))  # fmt: skip
    of_stream = arrivals.rows(number, number + 1, ["label"]).to_pylist()[0]
    assert set(row) == set(of_stream) - {"label", "planted"}
    for name, value in row.items():
        in_stream = of_stream[name]
        assert value == (round(in_stream, 2) if name in arrivals.NUMERIC else in_stream)
    (folder / "row.jsonl").write_text(scoring[2])
    done = process(*scoring[5:], "input=row.jsonl", cwd=folder)
    assert done.code == 0, done.err
    assert 0 < json.loads(done.out)["prediction"] < 1

    done = subprocess.run(
        [sys.executable, *summary[1:]], cwd=folder, capture_output=True, text=True, check=True
    )
    assert re.search(r"AUC 0\.\d{4} on 2026-01-0\d before it was trained", done.stdout)
    assert re.search(r"[\d,]+ got a row, .* rows were evicted, [\d,]+ are in", done.stdout)
