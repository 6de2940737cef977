"""`tnctl init`: which time of a row is its event's, ages of those before, and those after."""

import json

import numpy as np
import pytest
from test_init import conf_of, recognised

from benchmarks import planted_tables
from tnctl.starting import sample

ROWS = 1200


def texts(times, unit="s"):
    return [str(time).replace("T", " ") for time in times.astype(f"datetime64[{unit}]")]


def clicks_of(ages, random):
    """New accounts click: 0 or 1 for each of the ages in days."""
    return (random.random(len(ages)) < 1 / (1 + np.exp((ages - 150) / 60))).astype(int)


def write_table(path, columns):
    lines = [
        ",".join(columns),
        *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True)),
    ]
    return planted_tables.write_lines(path, lines)


@pytest.fixture
def log():
    """Columns of a log: a time, a sign-up up to 400 days before, a user and a click."""
    random = np.random.default_rng(3)
    time = np.datetime64("2026-03-01T00:00:00") + np.sort(random.integers(0, 20 * 86_400, ROWS))
    ages = random.random(ROWS) * 400
    return {
        "time": time,
        "signup": time - (ages * 86_400).astype("timedelta64[s]"),
        "user": np.array([f"u{number}" for number in random.integers(0, 90, ROWS)]),
        "click": clicks_of(ages, random),
    }


def written(log, **further):
    columns = log | further
    return {
        name: texts(values) if values.dtype.kind == "M" else values
        for name, values in columns.items()
    }


def test_the_age_of_a_sign_up_is_an_input(cli, tmp_path, log):
    path = write_table(tmp_path / "a.csv", written(log))
    result, conf, _ = recognised(path)
    assert conf["numeric"]["signup_age"] == {
        "column": "time", "since_column": "signup", "unit": "day", "transform": "standardize",
    }  # fmt: skip
    assert "signup is before time in 100.0% of the rows that have both, by" in result.text
    assert not result.warnings and not any("event" in doubt for doubt in result.doubts)
    (tmp_path / "a.yaml").write_text(result.text)
    done = cli("check", "conf=a.yaml", cwd=tmp_path)
    assert done.code == 0 and "signup_age" in done.out, done.out + done.err


@pytest.mark.long
def test_an_age_tells_of_clicks(cli, tmp_path, log):
    result, _, _ = recognised(write_table(tmp_path / "a.csv", written(log)))
    (tmp_path / "a.yaml").write_text(result.text)
    done = cli("train", "conf=a.yaml", "output=run", "evaluation.ablate=false", cwd=tmp_path)
    assert done.code == 0, done.err
    with_age = json.loads((tmp_path / "run/report.json").read_text())["auc"]
    assert with_age > 0.8


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_time_after_the_event_is_left_out(tmp_path, log, shuffled):
    order = np.random.default_rng(1).permutation(ROWS) if shuffled else np.arange(ROWS)
    returned = log["time"] + np.random.default_rng(2).integers(60, 9 * 86_400, ROWS)
    columns = {name: values[order] for name, values in (log | {"seen": returned}).items()}
    result, conf, kinds = recognised(write_table(tmp_path / "a.csv", written(columns)))
    assert kinds["seen"] == "later time"
    assert not any("seen" in name for name in [*conf["slots"], *conf["numeric"]])
    [warning] = result.warnings
    assert "seen is left out: it is after time in 100.0%" in warning
    assert "signup_age" in conf["numeric"]


def test_an_outcome_of_few_rows_is_left_out_though_it_has_gaps(tmp_path, log):
    bought = texts(log["time"] + 3600)
    bought = [text if k % 5 == 0 else "" for k, text in enumerate(bought)]
    columns = {"signup": texts(log["signup"]), "bought_at": bought, "time": texts(log["time"])}
    path = write_table(tmp_path / "a.csv", columns | {"click": log["click"]})
    _, conf, kinds = recognised(path)
    assert kinds["bought_at"] == "later time"
    assert list(conf["numeric"]) == ["signup_age"]


def test_rows_in_no_order_show_the_event_by_its_range(tmp_path, log):
    order = np.random.default_rng(1).permutation(ROWS)
    columns = {"b": log["signup"][order], "a": log["time"][order], "click": log["click"][order]}
    result, conf, _ = recognised(write_table(tmp_path / "a.csv", written(columns)))
    assert conf["numeric"]["b_age"]["since_column"] == "b"
    assert conf["numeric"]["b_age"]["column"] == "a"
    # Two times of one range: either could be the event's.
    columns["b"] = columns["a"] - np.random.default_rng(2).integers(0, 9000, ROWS)
    result, conf, _ = recognised(write_table(tmp_path / "a.csv", written(columns)))
    assert not conf["numeric"]
    assert any("which of the times b, a is the event's" in doubt for doubt in result.doubts)


def test_dates_of_other_formats_and_gaps(tmp_path, log):
    """A date of birth as the data writes it, in an entry of its own of data.times."""
    born = [f"{day.astype(object):%d.%m.%Y}" for day in log["signup"].astype("datetime64[D]")]
    born[::7] = [""] * len(born[::7])
    seconds = log["time"].astype("datetime64[s]").astype(int)
    path = write_table(tmp_path / "a.csv", {"at": seconds, "born": born, "click": log["click"]})
    result, conf, _ = recognised(path)
    assert conf["data"]["times"] == {"at": {"format": "epoch_s"}, "born": {"format": "%d.%m.%Y"}}
    assert conf["numeric"]["born_age"]["unit"] == "day"
    conf_of(result.text)


def test_the_day_of_the_event_is_no_age(tmp_path, log):
    columns = written(log) | {"dt": texts(log["time"], "D")}
    del columns["signup"]
    result, conf, kinds = recognised(write_table(tmp_path / "a.csv", columns))
    assert kinds["dt"] == "time" and not conf["numeric"]
    assert not result.warnings


def test_few_rows_after_the_event_are_clipped(tmp_path, log):
    log["signup"][::100] = log["time"][::100] + 86_400 * 40
    result, conf, _ = recognised(write_table(tmp_path / "a.csv", written(log)))
    assert conf["numeric"]["signup_age"]["clip"] == [0, None]
    conf_of(result.text)


def test_an_age_that_gives_the_label_away(tmp_path, log):
    """As of a time that is set to long ago where nothing was clicked."""
    log["signup"] = np.where(log["click"] == 1, log["signup"], np.datetime64("2011-01-01T00:00:00"))
    log["signup"] = log["signup"] - np.random.default_rng(2).integers(0, 864_000, ROWS)
    result, conf, kinds = recognised(write_table(tmp_path / "a.csv", written(log)))
    assert kinds["signup"] == "later time" and not conf["numeric"]
    assert any("signup is left out: its age at time gives the label away" in text
               for text in result.warnings)  # fmt: skip


@pytest.mark.parametrize(("days", "parts"), [(1, []), (2, ["hour"]), (20, ["hour", "weekday"])])
def test_hours_and_weekdays_that_do_not_come_again(tmp_path, days, parts):
    """What is kept for validation, the last rows, has them for the first time."""
    seconds = np.sort(np.random.default_rng(1).integers(0, days * 86_400, ROWS))
    log = {
        "time": np.datetime64("2026-03-02T00:00:00") + seconds,
        "user": np.arange(ROWS) % 90,
        "click": np.arange(ROWS) // 5 % 2,
    }
    result, conf, _ = recognised(write_table(tmp_path / "a.csv", written(log)))
    assert sorted(conf["slots"]) == sorted(["user", *(f"time_{part}" for part in parts)])
    assert ("each hour of the day is on one day alone" in result.text) is (days == 1)


@pytest.mark.parametrize(
    ("named", "days"), [("dt={}/part.csv", 12), ("part-{}.csv", 30), ("part-{:%j}.csv", 12)]
)
def test_files_of_all_weekdays_are_read(tmp_path, named, days, monkeypatch):
    """Where names have days; else the comment says how many weekdays were read."""
    monkeypatch.setattr(sample, "ENOUGH_ROWS", 0)  # as with large files
    first = np.datetime64("2026-11-02")
    for day in range(days):
        times = first + day + np.arange(60) * np.timedelta64(24, "m")
        name = named.format((first + day).astype(object))
        (tmp_path / "logs" / name).parent.mkdir(parents=True, exist_ok=True)
        table = {"time": texts(times), "user": np.arange(60) % 9, "click": np.arange(60) // 9 % 2}
        write_table(tmp_path / "logs" / name, table)
    result, conf, _ = recognised(tmp_path / "logs")
    assert "time_hour" in conf["slots"]
    assert ("time_weekday" in conf["slots"]) is ("%j" not in named)
    assert (" of 7 weekdays read, so no weekday" in result.text) is ("%j" in named)
    files_read = result.sample.rows // 60
    assert (files_read == 4) if "%j" in named else (7 <= files_read <= 10)
