"""`tnctl init`: which files and rows train, validate and test, and days."""

import json

import numpy as np
import pytest
import yaml
from test_init import conf_of, recognised

from benchmarks import planted_tables


def write_parts(folder, names):
    """Files with two rows each."""
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"user,item,click\nu{number % 7},i{number % 3},0\nu1,i{number % 5},1\n")


def test_folders_that_name_columns(tmp_path):
    lines = planted_tables.log_with_semicolons(tmp_path / "whole").read_text().splitlines(True)
    for number, place in enumerate(
        f"dt=2026-11-{day}/country={country}" for day in (18, 19, 20) for country in ("DE", "FR")
    ):
        (tmp_path / "log" / place).mkdir(parents=True)
        text = lines[0] + "".join(lines[1 + number :: 6])
        (tmp_path / "log" / place / "part-0.csv").write_text(text)
    (tmp_path / "log/_SUCCESS").write_text("")
    result, conf, kinds = recognised(tmp_path / "log")
    assert kinds["country"] == "id" and kinds["dt"] == "time"
    assert conf["slots"]["country"] == {}
    assert conf["data"]["validation"] == [
        f"dt=2026-11-20/country={country}/part-0.csv" for country in ("DE", "FR")
    ]
    assert "dt" not in conf["slots"]
    conf_of(result.text)


def test_further_spellings_of_the_label_in_other_splits(tmp_path):
    train = planted_tables.text_labels(tmp_path / "people.data")
    lines = train.read_text().splitlines()
    text = "\n".join(["|a remark", *(f"{line}." for line in lines[:500])])
    (tmp_path / "people.test").write_text(text + "\n")
    _, conf, _ = recognised(tmp_path)
    assert conf["data"]["test"] == {"files": "people.test", "skip_rows": 1}
    assert conf["data"]["label"]["positive"] == [">50K", ">50K."]


def test_a_test_file_without_a_label_is_left_out(tmp_path):
    (tmp_path / "train.csv").write_text(
        "user,click\n" + "".join(f"u{k % 9},{k % 2}\n" for k in range(99))
    )
    (tmp_path / "test.csv").write_text("user\n" + "".join(f"u{k % 9}\n" for k in range(99)))
    result, conf, _ = recognised(tmp_path)
    assert "test" not in conf["data"]
    assert any("tnctl predict" in text or "left out" in text for text in result.doubts)


def test_links_are_the_files_that_they_lead_to(tmp_path):
    planted_tables.log_with_semicolons(tmp_path / "kept.csv", rows=800, seed=1)
    (tmp_path / "links").mkdir()
    for day in (1, 2, 3):
        (tmp_path / f"links/clicks-2026-11-0{day}.csv").symlink_to(tmp_path / "kept.csv")
    (tmp_path / "links/clicks-2026-11-04.csv").symlink_to(tmp_path / "gone.csv")
    _, conf, _ = recognised(tmp_path / "links")
    assert conf["data"]["train"] == [f"clicks-2026-11-0{day}.csv" for day in (1, 2)]
    assert conf["data"]["validation"] == "clicks-2026-11-03.csv"
    _, conf, _ = recognised(f"{tmp_path}/links/clicks-{{day}}.csv")
    assert conf["data"]["train"] == "clicks-{day}.csv"


def test_gzip_and_a_file_per_day(tmp_path):
    folder = tmp_path / "days"
    folder.mkdir()
    for day in range(4):
        planted_tables.log_with_semicolons(
            folder / f"clicks-2026-11-0{day + 1}.csv.gz", rows=800, seed=day, first_day=day
        )
    (folder / "_SUCCESS").touch()
    (folder / "clicks-2026-11-09.csv.gz").touch()
    result, conf, kinds = recognised(folder)
    assert conf["data"]["train"] == [f"clicks-2026-11-0{day}.csv.gz" for day in (1, 2, 3)]
    assert conf["data"]["validation"] == "clicks-2026-11-04.csv.gz"
    assert conf["train"]["epochs"] == "auto" and conf["evaluation"]["patience"] == 3
    assert kinds["tags"] == "several"
    assert any("clicks-2026-11-09" in text for text in result.doubts)
    assert "to train day by day, name the files with {day} for 2026-11-04" in result.text
    conf_of(result.text)


def test_a_glob_of_parts(tmp_path):
    for part in range(12):
        planted_tables.log_with_semicolons(tmp_path / f"part-{part:02}.csv", rows=300, seed=part)
    result, conf, _ = recognised(tmp_path / "part-*.csv")
    assert conf["data"]["validation"] == "part-11.csv"
    assert result.sample.rows == 3300  # all: four files have fewer than ENOUGH_ROWS
    assert conf["slots"]["age_bucket"]["buckets"] == result.sample.estimate // 200 == 16
    assert conf["data"]["train"] == [f"part-{part:02}.csv" for part in range(11)]


def test_more_files_than_a_conf_lists(tmp_path, monkeypatch):
    """Their glob cannot leave files out for validation, so rows of all are kept."""
    monkeypatch.chdir(tmp_path)
    write_parts(tmp_path, [f"parts/part-{part:04}.csv" for part in range(1000)])
    days = [f"dt=2026-11-0{day}/part-{part:03}.csv" for day in range(1, 5) for part in range(200)]
    write_parts(tmp_path / "table", days)
    for word, glob, count in (
        ("parts/part-*.csv", "part-0*.csv", "1,000"),
        ("parts", "part-0*.csv", "1,000"),
        ("table", "dt=2026-11-0*/part-*.csv", "800"),
    ):
        result, conf, _ = recognised(word)
        assert conf["data"]["train"] == glob and "validation" not in conf["data"]
        assert conf["data"]["split"]["validation"] == 0.2
        assert f"all {count} files" in result.text


def test_files_without_any_byte_are_passed_over(cli, ran, tmp_path):
    names = [f"train/part-{part}.csv" for part in range(7)] + ["valid/part-0.csv"]
    write_parts(tmp_path / "logs", names)
    for part in (0, 3):
        (tmp_path / f"logs/train/part-{part}.csv").write_text("")
    write_parts(
        tmp_path, [f"days/2026-11-0{day}/part-{part}.csv" for day in (1, 2) for part in (0, 1)]
    )
    (tmp_path / "days/2026-11-02/part-0.csv").write_text("")
    for number, word in enumerate(("logs", "logs/train/part-*.csv", "days/{day}/part-*.csv")):
        name = f"conf-{number}.yaml"
        done = ran("init", word, f"to={name}", cwd=tmp_path)
        assert "without any byte: " in done.err and "; passed over" in done.err
        data = yaml.safe_load((tmp_path / name).read_text())["data"]
        assert data["skip_empty"] is True
        command = ["check", f"conf={name}"]
        if "{day}" in word:
            command = ["train", f"conf={name}", "recipe=lr", "output=run", "gate.enabled=false"]
        done = ran(*command, cwd=tmp_path)
    done = cli("init", "logs/train/part-*.csv", "data.skip_empty=true", cwd=tmp_path)
    assert done.code == 2 and "init takes no data.skip_empty" in done.line


def test_names_say_the_splits(tmp_path):
    for name, rows in (("train", 900), ("valid", 200), ("test", 200)):
        (tmp_path / name).mkdir()
        for part in range(6 if name == "train" else 1):
            planted_tables.log_with_semicolons(
                tmp_path / name / f"part-{part}.csv", rows=rows, seed=part
            )
    _, conf, _ = recognised(tmp_path)
    assert conf["data"]["train"] == "train/part-*.csv"
    assert conf["data"]["validation"] == "valid/part-0.csv"
    assert conf["data"]["test"] == "test/part-0.csv"


def test_a_relative_glob_stays_relative(tmp_path, monkeypatch):
    (tmp_path / "logs").mkdir()
    for part in range(2):
        planted_tables.log_with_semicolons(tmp_path / f"logs/part-{part}.csv", seed=part)
    monkeypatch.chdir(tmp_path)
    for words in (["logs/part-*.csv"], ["logs/part-0.csv", "logs/part-1.csv"]):
        _, conf, _ = recognised(*words)
        data = conf["data"]
        names = [data["train"], data["validation"]]
        if "root" in data:
            names = [f"{data['root']}/{name}" for name in names]
        assert names == ["logs/part-0.csv", "logs/part-1.csv"]


def split_of(folder, times):
    """The key data.split for rows with these times, and its evidence."""
    lines = [f"{time},u{k % 40},{k % 3 // 2}" for k, time in enumerate(times)]
    path = planted_tables.write_lines(folder / "clicks.csv", ["time,user,click", *lines])
    result, conf, kinds = recognised(path)
    assert kinds["time"] == "time"
    assert conf_of(result.text).data.split.by == conf["data"]["split"].get("by", "rows")
    [text] = [line for line in result.text.splitlines() if line.startswith("  split:")]
    return conf["data"]["split"], text.partition("#")[2]


def test_the_rows_that_are_kept_for_validation(tmp_path):
    days = [np.datetime64("2026-01-01") + k // 300 for k in range(6000)]
    keys, evidence = split_of(tmp_path, days)
    assert keys == {"validation": 0.1, "by": "last"}
    assert evidence.endswith("10% of the rows: the last, as they are in the order of time")
    # A log of several machines is nearly in order.
    near = np.arange(6000) * 10 + np.random.default_rng(1).integers(0, 5, 6000)
    near[::100] -= 50
    keys, _ = split_of(tmp_path, np.datetime64("2026-01-01T00:00:00") + near)
    assert keys == {"validation": 0.1, "by": "last"}
    shuffled = np.random.default_rng(1).permutation(days)
    keys, evidence = split_of(tmp_path, shuffled[:4000])
    assert keys == {"validation": 0.2}
    assert evidence.endswith("20% of the rows, at random: not in the order of time; sort by it?")
    # Rows are compared by their times, not by the texts of these.
    keys, _ = split_of(tmp_path, [f"{day.astype(object):%d/%m/%Y}" for day in days])
    assert keys == {"validation": 0.1, "by": "last"}
    # Where day and month could be exchanged, two orders are possible.
    keys, _ = split_of(tmp_path, [f"{day.astype(object):%d/%m/%Y}" for day in days[:3000]])
    assert keys == {"validation": 0.2}
    # Nearly all rows of one day tell no order.
    mostly = np.where(np.random.default_rng(2).random(6000) < 0.01, days[-1], days[0])
    keys, _ = split_of(tmp_path, mostly)
    assert keys == {"validation": 0.1}


def test_of_many_rows_some_are_kept_for_a_test_too(ran, tmp_path):
    lines = [f"u{k * 7919 % 401},i{k * 31 % 97},{k // 3 % 2}" for k in range(20_000)]
    path = planted_tables.write_lines(tmp_path / "clicks.csv", ["user,item,click", *lines])
    result, conf, _ = recognised(path)
    assert conf["data"]["split"] == {"validation": 0.1, "test": 0.1}
    assert "10% of the rows, and as many for the test, at random" in result.text
    assert conf["train"]["batch_size"] * 150 == pytest.approx(16_000, rel=0.3)
    (tmp_path / "a.yaml").write_text(result.text)
    ran("check", "conf=a.yaml", cwd=tmp_path)
    # A file for the test is enough.
    write_parts(tmp_path, ["clicks-test.csv"])
    _, conf, _ = recognised(path, tmp_path / "clicks-test.csv")
    assert conf["data"]["split"] == {"validation": 0.1}
    assert conf["data"]["test"] == str(tmp_path / "clicks-test.csv")


def test_folders_of_columns_without_days_keep_rows_of_each(tmp_path):
    names = [f"country={name}/part-0.csv" for name in ("DE", "FR", "IT", "US")]
    write_parts(tmp_path / "log", names)
    result, conf, _ = recognised(tmp_path / "log", label="click")
    assert conf["data"]["train"] == names and "validation" not in conf["data"]
    assert conf["data"]["split"]["validation"] == 0.2
    assert "4 files in folders that name columns" in result.text


def test_a_validation_file_that_is_left_out_is_replaced_by_rows(tmp_path):
    planted_tables.log_with_semicolons(tmp_path / "train.csv")
    (tmp_path / "valid.csv").write_text("user_id;item\nu1;i1\n")
    result, conf, _ = recognised(tmp_path)
    assert "validation" not in conf["data"]
    assert conf["data"]["split"]["validation"] == 0.2
    assert any("left out" in text for text in result.doubts)


@pytest.mark.parametrize("name", ["a-test.csv", "z-test.csv"])
def test_a_file_that_cannot_be_read_leaves_its_split_the_others(tmp_path, name):
    rows = [f"u{k % 7},{k % 2}" for k in range(300)]
    for other in ("log.csv", "m-test.csv"):
        planted_tables.write_lines(tmp_path / other, ["user,click", *rows])
    (tmp_path / name).write_bytes(b"\x89PNG\0")
    result, conf, _ = recognised(*(tmp_path / n for n in ("log.csv", "m-test.csv", name)))
    assert conf["data"]["test"] == str(tmp_path / "m-test.csv")
    assert [text for text in result.doubts if f"{name} is left out" in text]


def test_many_small_files(tmp_path):
    """One of a hundred rows has label 1: in four files there may be none."""
    for part in range(120):
        rows = [f"u{part},h{part % 24:02},{(8 * part + k) % 100 == 63:d}\n" for k in range(8)]
        (tmp_path / f"part-{part:03}.csv").write_text(f"user,hour,label\n{''.join(rows)}")
    result, _, kinds = recognised(tmp_path)
    assert "read all 864 rows of 108 files" in result.text and "108 values" in result.text
    assert kinds == {"user": "id", "hour": "id"}
    conf_of(result.text)


def days_of_clicks(folder):
    """Six days of clicks below a folder of days, each with two files."""
    for day in range(6):
        for part in range(2):
            path = folder / f"logs/dt=2026-11-{day + 1:02}/part-{part}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            planted_tables.log_with_semicolons(path, rows=400, seed=2 * day + part)


@pytest.mark.long
def test_init_then_train_day_by_day(ran, tmp_path):
    days_of_clicks(tmp_path)
    (tmp_path / "logs/dt=later").mkdir()
    ran("init", "logs/dt={day}/part-*.csv", "to=clicks.yaml", cwd=tmp_path)
    text = (tmp_path / "clicks.yaml").read_text()
    conf = yaml.safe_load(text)
    assert (conf["data"]["root"], conf["data"]["train"]) == ("logs", "dt={day}/part-*.csv")
    assert "6 days, of which 2026-11-03, 2026-11-04, 2026-11-05, 2026-11-06 were read" in text
    assert not {"validation", "test", "split", "days"} & set(conf["data"])
    assert "evaluation" not in conf and "dt" not in conf["slots"]
    # Of 800 rows in a day.
    assert conf["train"] == {"batch_size": 32, "epochs": 1}
    arguments = ["conf=clicks.yaml", "output=run"]
    ran("train", *arguments, "data.days=..2026-11-02", cwd=tmp_path)
    ran("train", *arguments, "data.days=..2026-11-04", cwd=tmp_path)
    days = json.loads((tmp_path / "run/report.json").read_text())["days"]
    assert [day["day"] for day in days] == [f"2026-11-0{day}" for day in range(1, 5)]
    assert [day["before"] is None for day in days] == [True, False, False, False]
    arguments = ["conf=clicks.yaml", "output=wrong", "data.days=..2026-11-01"]
    done = ran("train", *arguments, "data.label.above=5", cwd=tmp_path)
    assert " data.label.above=5 the label is 0 in all 800 rows of 2026-11-01" in done.err


def test_days_in_the_names_of_files(ran, tmp_path):
    (tmp_path / "logs").mkdir()
    for day in range(1, 4):
        path = tmp_path / f"logs/clicks-2026-11-{day:02}.csv"
        planted_tables.log_with_semicolons(path, rows=300, seed=day)
    ran("init", "./logs/clicks-{day}.csv", cwd=tmp_path)
    data = yaml.safe_load((tmp_path / "clicks.yaml").read_text())["data"]
    assert (data["root"], data["train"]) == ("logs", "clicks-{day}.csv")
    ran("check", "conf=clicks.yaml", cwd=tmp_path)
    # The newest day is not filled yet.
    (tmp_path / "logs/clicks-2026-11-04.csv").write_text("")
    done = ran("init", "logs/clicks-{day}.csv", "to=later.yaml", cwd=tmp_path)
    assert "without any byte: logs/clicks-2026-11-04.csv; passed over" in done.err
    assert yaml.safe_load((tmp_path / "later.yaml").read_text())["data"]["skip_empty"] is True


def test_names_with_days_that_are_refused(cli, tmp_path):
    (tmp_path / "clicks-2026-11-01.csv").write_text("")
    for words, code, message in (
        (["logs/{day}.csv"], 1, "no day of data.train={day}.csv is there"),
        (["dt={day}/a.csv"], 1, "no day"),
        (["a-{day}.csv", "b-{day}.csv"], 2, "give one name"),
        (["clicks-{day}.csv"], 1, "on 2026-11-01 has only empty files"),
    ):
        done = cli("init", *words, cwd=tmp_path)
        assert (done.code, message in done.line) == (code, True), done.err
    assert not list(tmp_path.glob("*.yaml"))
