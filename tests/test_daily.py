"""Daily training: the days that there are, and `train` day by day, from outside."""

import json
import re
import shutil
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pytest
from conftest import CONF

from tnctl import schema
from tnctl.checkpoint.load import digest, newest
from tnctl.cli import arguments
from tnctl.composing import compose
from tnctl.data import days as of_data
from tnctl.data import generated
from tnctl.data.days import Days, conf_of_day, day_number, days_of, in_order
from tnctl.data.sources import Source
from tnctl.errors import Failure, UserError

DAILY_PAGE = Path(__file__).parent.parent / "docs/daily.md"
ROWS = 900
DAILY = CONF.replace("train: train.csv", 'train: "day={day}/part-*.csv"').replace(
    "  validation: validation.csv\n  test: test.csv\n", ""
)
TRAIN = ("train", "conf=daily.yaml", "output=run", "golden=20")


def conf_of(train, days=None, root="data", **data):
    return schema.from_values(
        {
            "recipe": {"name": "lr"},
            "output": "run",
            "slots": {"user": {}},
            "data": {"train": train, "days": days, "root": root, **data},
        }
    )


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A folder `data` with days in several layouts."""
    monkeypatch.chdir(tmp_path)
    for day in ("2024-01-01", "2024-01-02", "2024-01-04"):
        for name in (f"day={day}/a.csv", f"day={day}/b.csv", f"c-{day}-1.csv", f"{day}{day}",
                     f"deep/x/y/{day}.csv", f"e{day.replace('-', '')}7.csv"):  # fmt: skip
            path = tmp_path / "data" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("a\n")
    for number in range(12):
        (tmp_path / f"data/day_{number}.gz").write_text("")
    (tmp_path / "data/day=latest").mkdir()
    (tmp_path / "data/day=latest/a.csv").write_text("")
    return tmp_path / "data"


FOUND = {
    "a glob of files": ("day={day}/*.csv", None, ("01", "02", "04"), ("03",), ()),
    "a plain name": ("day={day}/a.csv", None, ("01", "02", "04"), ("03",), ()),
    "a range": ("day={day}/a.csv", "2024-01-02..2024-01-06", ("02", "04"), ("03",), ("05", "06")),
    "an open end": ("day={day}/a.csv", "2024-01-02..", ("02", "04"), ("03",), ()),
    "an open beginning": ("day={day}/a.csv", "..20240102", ("01", "02"), (), ()),
    "one day": ("day={day}/a.csv", "2024-01-02", ("02",), (), ()),
    "a list": (
        "day={day}/a.csv",
        ["2024-01-05", "2024-01-01", "2024-01-03", "2024-01-04"],
        ("01", "04"), ("03",), ("05",),
    ),
    "within a name": ("c-{day}-*.csv", None, ("01", "02", "04"), ("03",), ()),
    "beside a glob": ("e{day}*.csv", None, ("01", "02", "04"), ("03",), ()),
    "twice": ("{day}{day}", None, ("01", "02", "04"), ("03",), ()),
    "deeper": ("**/{day}.csv", None, ("01", "02", "04"), ("03",), ()),
    "a class of characters": ("day={day}/[!b].csv", None, ("01", "02", "04"), ("03",), ()),
    "a list of names": (["day={day}/a.csv", "c-{day}-?.csv"], None, ("01", "02", "04"),
                        ("03",), ()),
    "a mapping": ({"files": "day={day}/a.csv", "skip_rows": 1}, None, ("01", "02", "04"),
                  ("03",), ()),
}  # fmt: skip


@pytest.mark.parametrize("case", FOUND)
@pytest.mark.usefixtures("tree")
def test_the_days_that_are_found(case):
    train, chosen, *expected = FOUND[case]
    conf = conf_of(train, chosen)
    assert of_data.daily(conf)
    days_found = days_of(conf)
    form = "202401{}" if case == "beside a glob" else "2024-01-{}"
    assert days_found == Days(*([form.format(day) for day in days] for days in expected))
    day = days_found.there[-1]
    names = Source(conf_of_day(conf, day), "train").files
    assert names and all(Path(name).is_file() and day in name for name in names)


def test_days_by_url(tree):
    root = f"file://{tree}"
    assert days_of(conf_of("day={day}/*.csv", root=root)).there[0] == "2024-01-01"
    import fsspec

    memory = fsspec.filesystem("memory")
    for day in ("20240101", "20240103"):
        memory.pipe(f"/clicks/{day}/a#1.csv", b"")
    conf = conf_of("memory://clicks/{day}/a#?.csv", root=None)
    assert days_of(conf) == Days(["20240101", "20240103"], ["20240102"], [])
    source = Source(conf_of_day(conf, "20240103"), "train")
    assert source.files == ["memory:///clicks/20240103/a#1.csv"]
    for train in ("memory://clicks/{day}/", "memory://clicks/{day}/**/*.csv"):
        assert days_of(conf_of(train, root=None)).there == ["20240101", "20240103"]


@pytest.mark.parametrize("root", ["day=x/y", "{}/day=x/y", "file://{}/day=x/y", "."])
@pytest.mark.parametrize("name", ["{day}/", "{day}/**/*.csv", "day={day}/", "in/{day}/"])
def test_the_folders_above_are_no_days(tmp_path, monkeypatch, root, name):
    monkeypatch.chdir(tmp_path)
    for day in ("2024-01-01", "2024-01-02"):
        path = Path(root.format(tmp_path).removeprefix("file://"), name.split("}/")[0], "sub/a.csv")
        path = Path(str(path).replace("{day", day))
        path.parent.mkdir(parents=True)
        path.write_text("")
    conf = conf_of(name, root=root.format(tmp_path))
    assert days_of(conf).there == ["2024-01-01", "2024-01-02"]


@pytest.mark.parametrize("name", ["{day}/", "{day}.csv", "[x]/{day}/a.csv", "**/{day}/*.csv"])
@pytest.mark.parametrize(
    ("root", "folder"), [(None, "run[1]/"), ("{}", "in/run[1]/sub/"), ("file://{}", "run[1]/")]
)
def test_a_bracket_in_a_folder_before_the_day(tmp_path, monkeypatch, root, folder, name):
    monkeypatch.chdir(tmp_path)
    for day in ("d1", "d10"):
        path = Path((folder + name).replace("**/", "").replace("{day}", day))
        path = path if path.suffix else path / "a.csv"
        path = Path(str(path).replace("*", "a"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        other = Path(str(path).replace("[1]", "1").replace(day, "d3"))
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_text("")
    if root:
        monkeypatch.chdir("..")
    conf = conf_of(folder + name, root=root and root.format(tmp_path))
    assert days_of(conf).there == ["d1", "d10"]
    for day in ("d1", "d10"):
        [url] = Source(conf_of_day(conf, day), "train").files
        assert "run[1]" in url and day in url


@pytest.mark.usefixtures("tree")
def test_days_that_are_no_dates():
    names = [str(number) for number in range(12)]
    assert days_of(conf_of("day_{day}.gz")).there == names
    assert days_of(conf_of("day_{day}.gz", "3..10")).there == names[3:11]
    assert days_of(conf_of("{day}.gz")).there == [f"day_{name}" for name in names]
    assert days_of(conf_of("day_{day}.gz", [3, 2, 77])) == Days(["2", "3"], [], ["77"])


def test_order_and_numbers():
    assert in_order(["20240201", "2024-01-31", "19991231"]) == [
        "19991231",
        "2024-01-31",
        "20240201",
    ]
    assert in_order(["day_10", "day_9", "a", "day_1"]) == ["a", "day_1", "day_9", "day_10"]
    new_year = date(2024, 1, 1).toordinal()
    assert day_number("2024-01-01", 0) == day_number("20240101", 0) == new_year
    assert day_number("2023-12-31", new_year) == new_year  # never back
    assert [day_number("monday", 0), day_number("2024-13-01", 1)] == [1, 2]


REFUSED = {
    "not in all names": (["{day}", "b"], None, {}, "b would be trained with every day"),
    "a way out": ("{day}", ["../../x"], {}, "cannot be the name of a day"),
    "a wildcard": ("{day}", "2024-*", {}, "cannot be the name of a day"),
    "no end": ("{day}", "..", {}, "neither a first nor a last day"),
    "a range backwards": ("{day}", "10..9", {}, "10 comes after 9"),
    "a day twice": ("{day}", ["1", "1"], {}, "has 1 twice"),
    "a day in two forms": ("{day}", ["2024-01-01", "20240101"], {}, "are the same day"),
    "dates and others": ("{day}", ["2024-01-01", "x"], {}, "which have no order"),
    "no days": ("{day}", {"a": 1}, {}, "data.days is a list of days"),
    "in validation": ("{day}", None, {"validation": "{day}"}, "is for data.train alone"),
    "generated": ("{day}", None, {"format": "generated"}, "data.format=generated has no days"),
    "prepared": ("{day}", None, {"prepared": "folder"}, "Leave data.prepared out"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_go_together(case):
    train, days, data, words = REFUSED[case]
    with pytest.raises(UserError, match="(?s)" + words.replace("{", r"\{")) as error:
        of_data.daily(conf_of(train, days, **data))
    assert error.value.exit_code == 2


def test_two_names_of_one_day(tree):
    for day in ("2024-02-01", "20240201"):
        (tree / f"f{day}.csv").write_text("")
    with pytest.raises(UserError, match="2024-02-01 and 20240201 are the same day"):
        days_of(conf_of("f{day}.csv"))


@pytest.mark.usefixtures("tree")
def test_one_day_is_named_where_only_one_will_do():
    with pytest.raises(UserError, match="such as data"):
        list(Source(conf_of("day={day}/a.csv"), "train").files)


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("data.days=2024-01-01..2024-01-31", "2024-01-01..2024-01-31"),
        ("data.days=[2024-01-01,2024-01-02]", ["2024-01-01", "2024-01-02"]),
        ("data.train=day={day}/part-[0-9].csv?a=b#c", "day={day}/part-[0-9].csv?a=b#c"),
        ("data.train=s3://b/day={day}/", "s3://b/day={day}/"),
        ("data.train=[a/{day}.csv]", None),
        ("data.train=['a/{day}.csv','b/{day}.csv']", ["a/{day}.csv", "b/{day}.csv"]),
        ("data.train={files: 'a/{day}.csv'}", {"files": "a/{day}.csv"}),
    ],
)
def test_hydra_takes_them_as_they_are(tmp_path, argument, expected):
    (tmp_path / "daily.yaml").write_text(DAILY)
    _, overrides = arguments.part("train", [argument, "output=run"])
    if expected is None and "[" in argument:
        with pytest.raises(UserError, match="cannot read the argument"):
            compose.compose(tmp_path / "daily.yaml", overrides)
        return
    conf = compose.compose(tmp_path / "daily.yaml", overrides)
    assert getattr(conf.data, argument.split("=")[0].split(".")[1]) == expected


# From here on days are trained.


def write_day(folder, day, first, rows=ROWS, change=None):
    """A file of clicks."""
    table = generated.rows(first, first + rows)
    interests = pc.binary_join(table.column("interests"), "|")
    names = ["user_id", "item_id", "device", "region", "price", "quality", "label", "planted"]
    table = table.select(names).append_column("interests", interests)
    if change is not None:
        name, values = change
        table = table.set_column(table.column_names.index(name), name, values(table))
    path = folder / f"clicks/day={day}/part-0.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    pa.csv.write_csv(table, path, pa.csv.WriteOptions(quoting_style="none"))
    return path


def write_days(folder, days):
    for day in days:
        write_day(folder, f"2024-01-{day:02}", day * ROWS)


@pytest.fixture(scope="module")
def _three(tmp_path_factory, ran):
    folder = tmp_path_factory.mktemp("daily")
    (folder / "daily.yaml").write_text(DAILY)
    write_days(folder, (1, 2, 3))
    ran(*TRAIN, cwd=folder)
    return folder


@pytest.fixture
def three(_three, tmp_path):
    """A folder of one's own with three days, and a run that has trained them."""
    folder = tmp_path / "three"
    shutil.copytree(_three, folder, copy_function=shutil.copy2)
    return folder


def report_of(folder, run="run"):
    return json.loads((folder / run / "report.json").read_text())


def days_in(folder, run="run"):
    return [day["day"] for day in report_of(folder, run)["days"]]


def test_every_day_is_evaluated_before_it_is_trained(_three, cli, ran, tmp_path):
    report = report_of(_three)
    assert [day["day"] for day in report["days"]] == ["2024-01-01", "2024-01-02", "2024-01-03"]
    first = date(2024, 1, 1).toordinal()
    assert [day["number"] for day in report["days"]] == [first, first + 1, first + 2]
    assert [(day["first_step"], day["last_step"]) for day in report["days"]] == [
        (1, 4), (5, 8), (9, 12)
    ]  # fmt: skip
    assert [day["rows"] for day in report["days"]] == [ROWS] * 3
    assert report["days"][0]["before"] is None
    clock = newest(str(_three / "run")).clock
    assert clock.step == 12 and clock.days == ((first, 1), (first + 1, 5), (first + 2, 9))
    events = [json.loads(line) for line in (_three / "run/log.jsonl").read_text().splitlines()]
    assert [event["day"] for event in events if event["event"] == "day"] == days_in(_three)
    page = (_three / "run/report.html").read_text()
    assert "<h2>Days</h2>" in page and "2024-01-03" in page
    # Two days, and a day alone: the same as three, and its metrics are those of `evaluate`.
    folder = tmp_path / "one by one"
    folder.mkdir()
    shutil.copy(_three / "daily.yaml", folder)
    shutil.copytree(_three / "clicks", folder / "clicks")
    assert cli(*TRAIN, "data.days=..2024-01-02", cwd=folder).code == 0
    assert days_in(folder) == ["2024-01-01", "2024-01-02"]
    done = ran("evaluate", "output=run", "data.test=day=2024-01-03/part-0.csv", cwd=folder)
    metrics = json.loads(done.out)
    untrained = report["days"][2]["before"]
    assert {key: metrics[key] for key in untrained} == untrained
    assert cli(*TRAIN, cwd=folder).code == 0
    assert report_of(folder)["days"] == report["days"]
    assert digest(newest(str(folder / "run"))) == digest(newest(str(_three / "run")))


def test_checkpoints_are_listed_with_the_evaluation_of_their_day(_three, cli, ran):
    """Of the last day trained, before it was trained: the first day has none."""
    done = ran("checkpoint", "list", "run", "--json", cwd=_three)
    values = {entry["day"]: entry["value"] for entry in json.loads(done.out)}
    days = report_of(_three)["days"]
    assert values == {day["day"]: day["before"] and day["before"]["auc"] for day in days}
    assert f"{values['2024-01-03']:.5f}" in cli("checkpoint", "list", "run", cwd=_three).out


def test_auto_is_one_pass_of_each_day(_three, tmp_path, ran):
    shutil.copy(_three / "daily.yaml", tmp_path)
    shutil.copytree(_three / "clicks", tmp_path / "clicks")
    ran(*TRAIN, "train.epochs=auto", cwd=tmp_path)
    assert [epoch["epoch"] for epoch in report_of(tmp_path)["epochs"]] == [1, 1, 1]
    assert digest(newest(str(tmp_path / "run"))) == digest(newest(str(_three / "run")))


def test_each_day_recalibrates_for_the_next(_three, tmp_path, cli, ran):
    """By predictions before training, a part of the way; one day at a time as three at once."""
    for name in ("at once", "one by one"):
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(_three / "daily.yaml", folder)
        shutil.copytree(_three / "clicks", folder / "clicks")
    words = (*TRAIN, "evaluation.recalibrate=true")
    done = ran(*words, cwd=tmp_path / "at once")
    report = report_of(tmp_path / "at once")
    plain = report_of(_three)["days"]
    assert "2024-01-02  recalibrated for the next day: slope" in done.err
    # The second day is judged before any correction, the third one after the second's.
    assert report["days"][1]["before"] == plain[1]["before"]
    assert report["days"][2]["before"]["auc"] == pytest.approx(plain[2]["before"]["auc"], abs=1e-6)
    assert report["days"][2]["before"]["logloss"] != plain[2]["before"]["logloss"]
    kept = newest(str(tmp_path / "at once/run")).manifest.recalibration["label"]
    assert kept.slope != 1 and report["recalibration"]["label"]["slope"] == kept.slope
    for days in ("..2024-01-01", "..2024-01-02", "..2024-01-03"):
        assert cli(*words, f"data.days={days}", cwd=tmp_path / "one by one").code == 0
    assert report_of(tmp_path / "one by one")["days"] == report["days"]
    assert digest(newest(str(tmp_path / "one by one/run"))) == digest(
        newest(str(tmp_path / "at once/run"))
    )
    assert newest(str(tmp_path / "one by one/run")).manifest.recalibration["label"] == kept
    # What is exported answers as the model is judged.
    metrics = json.loads(ran("evaluate", "output=run", "data.test=day=2024-01-03/part-0.csv",
                             cwd=tmp_path / "at once").out)  # fmt: skip
    assert metrics["examples"] == ROWS
    assert cli("checkpoint", "verify", "run", cwd=tmp_path / "at once").code == 0


def test_the_same_command_again_does_nothing(three, ran):
    times = {path: path.stat().st_mtime_ns for path in three.rglob("*") if path.is_file()}
    done = ran(*TRAIN, cwd=three)
    assert "run is trained on every day that is there: nothing to do" in done.err
    assert {path: path.stat().st_mtime_ns for path in three.rglob("*") if path.is_file()} == times


def test_a_gap_a_day_to_come_and_a_late_day(three, cli, ran):
    write_days(three, (5,))
    done = ran(*TRAIN, "data.days=..2024-01-07", cwd=three)
    assert "data.train: 2024-01-04 left out: there is no file" in done.err
    assert "data.train: 2024-01-06, 2024-01-07 not there yet" in done.err
    assert days_in(three)[-1] == "2024-01-05"
    write_days(three, (4,))
    late = cli(*TRAIN, cwd=three)
    assert late.code == 1
    assert late.line == (
        "tnctl train: data.train: 2024-01-04 came late, 2024-01-05 is trained already. With "
        "accept=true it is trained now, as the newest; or leave it out in data.days"
    )
    assert cli(*TRAIN, "data.days=2024-01-05..", cwd=three).code == 0
    assert days_in(three)[-1] == "2024-01-05"
    assert cli(*TRAIN, "accept=true", cwd=three).code == 0
    assert days_in(three)[-2:] == ["2024-01-05", "2024-01-04"]
    numbers = [day["number"] for day in report_of(three)["days"]]
    assert numbers[-1] == numbers[-2] == date(2024, 1, 5).toordinal()
    done = cli(*TRAIN, cwd=three)
    assert done.code == 0 and "nothing to do" in done.err


def test_a_day_that_comes_twice(three, ran):
    path = write_day(three, "2024-01-02", 50_000)
    done = ran(*TRAIN, cwd=three)
    name = path.relative_to(three)
    assert f"2024-01-02 is trained already and is not again: {name}" in done.err
    assert "nothing to do" in done.err
    assert days_in(three) == ["2024-01-01", "2024-01-02", "2024-01-03"]
    # The rows of a day under the name of the next are said, and not refused.
    shutil.copytree(three / "clicks/day=2024-01-03", three / "clicks/day=2024-01-04")
    done = ran(*TRAIN, cwd=three)
    assert "2024-01-04 seems to have the very rows of 2024-01-03" in done.err


@pytest.mark.parametrize("chosen", [None, "1..9", ["1", "10"]])
@pytest.mark.usefixtures("tree")
def test_files_of_two_days_are_refused(chosen):
    """day_1*.gz has day_10.gz too."""
    with pytest.raises(UserError, match=r"day_1\d\.gz is of day \d+ and of day \d+,"):
        days_of(conf_of("day_{day}*.gz", chosen))
    assert days_of(conf_of("day_{day}.gz", ["1", "10"])).there == ["1", "10"]


@pytest.mark.parametrize("content", ["no line", "only the header"])
def test_an_empty_day(three, cli, ran, content):
    path = write_day(three, "2024-01-04", 50_000)
    header = path.read_bytes().splitlines(keepends=True)[0]
    path.write_bytes(header if content == "only the header" else b"")
    step = newest(str(three / "run")).step
    done = cli(*TRAIN, cwd=three)
    assert done.code == 1
    name = path.relative_to(three)
    assert f"2024-01-04 has no row ({name})" in done.last and "accept=true" in done.last
    assert newest(str(three / "run")).step == step
    ran(*TRAIN, "accept=true", cwd=three)
    assert report_of(three)["days"][-1]["rows"] == 0
    if content == "no line":
        return
    write_days(three, (5,))
    ran(*TRAIN, cwd=three)
    assert days_in(three)[-2:] == ["2024-01-04", "2024-01-05"]
    assert report_of(three)["steps"] == step + 4


def test_an_empty_part_of_a_new_day_is_passed_over_on_request(three, cli, ran):
    """As the error says, and the run goes on: such keys do not make it another one."""
    path = write_day(three, "2024-01-04", 50_000)
    path.with_name("part-1.csv").write_text("")
    done = cli(*TRAIN, cwd=three)
    assert done.code == 1 and "data.skip_empty=true" in done.last
    ran(*TRAIN, "data.skip_empty=true", "data.bad_rows=1", cwd=three)
    assert days_in(three)[-1] == "2024-01-04" and report_of(three)["days"][-1]["rows"] == ROWS


def worst_and_way_out(refusal):
    """The first finding of a refusal and its last sentences, without figures and names of slots."""
    words = re.sub(
        r"[\d.-]*\d", "0", re.sub(r"slots\.\w+", "slots.NAME", " ".join(refusal.split()))
    )
    words = words.replace("0% to 0%", "0%")
    return words.partition("(gate.")[0], words.rpartition("). ")[2]


def test_a_broken_day_is_refused_before_it_is_trained(three, cli, ran):
    whole = write_day(three, "2024-01-04", 4 * ROWS).read_bytes()
    empty = ("item_id", lambda table: pa.nulls(len(table), pa.string()))
    path = write_day(three, "2024-01-04", 4 * ROWS, change=empty)
    write_days(three, (5,))
    last = newest(str(three / "run"))
    done = cli(*TRAIN, cwd=three)
    assert done.code == 1
    assert done.last.startswith(
        "tnctl train: 2024-01-04 looks broken: slots.item_id: 100.0% of its occurrences are of ids "
        "without a row, "
    )
    example = re.search(r"((?:    .*\n)+)\n\(on one line\)", DAILY_PAGE.read_text("utf-8"))[1]
    # The worst finding and the way out; a day may have more findings between them.
    assert worst_and_way_out(example) == worst_and_way_out(done.last)
    assert "days before (gate.new_ids=0.5)" in done.last and "accept=true" in done.last
    assert newest(str(three / "run")).manifest == last.manifest
    # Accepted, mended, or with the gate off: it is trained, and the next day after it.
    shutil.copytree(three / "run", three / "other")
    done = ran(*TRAIN, "accept=true", cwd=three)
    assert "2024-01-04 is trained all the same (accept=true): slots.item_id" in done.err
    accepted = report_of(three)["days"][3]
    assert "slots.item_id" in accepted["accepted"][0]
    assert accepted["changes"]["item_id"]["new_ids"] == 1
    assert days_in(three)[-1] == "2024-01-05"
    path.write_bytes(whole)
    ran(*TRAIN[:2], "output=other", cwd=three)
    assert report_of(three, "other")["days"][3]["accepted"] == []
    assert "changes" not in report_of(three, "other")["days"][3]


def test_labels_turned_round(three, cli):
    """Of labels that are as often 1 as 0, only the model can tell."""
    for day in (1, 2, 3):
        write_day(
            three,
            f"2024-01-0{day}",
            day * ROWS,
            change=("label", lambda table, turned=day == 3: by_quality(table, turned)),
        )
    done = cli(*TRAIN, "overwrite=true", "train.epochs=3", cwd=three)
    assert done.code == 1, done.err
    assert "2024-01-03 looks broken: label: the model of the days before has AUC 0." in done.last
    assert "labels look inverted" in done.last


def by_quality(table, turned):
    quality = pc.fill_null(table.column("quality"), 0.0)
    above = pc.greater(quality, pc.quantile(quality)[0])
    return pc.cast(pc.xor(above, turned), pa.int64())


def test_serving_is_verified_on_the_last_day(_three, cli, ran, tmp_path):
    """Where no validation data stays the same: no other day is read."""
    folder = tmp_path / "three"
    shutil.copytree(_three, folder, copy_function=shutil.copy2)
    for command in ("split-graph", "export-embeddings"):
        assert cli(command, "output=run", cwd=folder).code == 0
    shutil.rmtree(folder / "clicks/day=2024-01-02")
    done = ran("verify-serving", "output=run", "data.root=clicks", cwd=folder)
    assert "x from the files, bit by bit" in done.err and f"0 of {ROWS} rows differ" in done.err
    shutil.rmtree(folder / "clicks/day=2024-01-03")
    done = cli("verify-serving", "output=run", "data.root=clicks", cwd=folder)
    assert done.code == 1 and "with the golden rows alone: graph=URL" in done.last
    ran("verify-serving", "graph=run/graph", "embeddings=run/embeddings", cwd=folder)


def test_two_epochs_of_days_that_are_no_dates(three, ran):
    for number, day in enumerate(("2024-01-01", "2024-01-02", "2024-01-03")):
        (three / f"clicks/day={day}").rename(three / f"clicks/day={number + 9}")
    ran(*TRAIN, "output=other", "train.epochs=2", cwd=three)
    report = report_of(three, "other")
    assert days_in(three, "other") == ["9", "10", "11"]
    assert [day["number"] for day in report["days"]] == [1, 2, 3]
    assert [(epoch["day"], epoch["epoch"]) for epoch in report["epochs"]] == [
        (day, epoch) for day in ("9", "10", "11") for epoch in (1, 2)
    ]
    assert report["steps"] == 24


def test_choices_that_need_one_set(three, cli):
    for setting in (
        "evaluation.keep=best",
        "evaluation.patience=1",
        "optimizer.schedule.name=plateau",
    ):
        done = cli(*TRAIN, setting, "data.validation=day=2024-01-03/part-0.csv", cwd=three)
        assert done.code == 2 and "the newest day counts" in done.line
    by_rows = "+optimizer.schedule={name: day, end: 0.1}"
    done = cli(*TRAIN, by_rows, "data.negatives=0.5", cwd=three)
    assert done.code == 2 and "schedule.name=day needs the rows of a day" in done.line
    done = cli(*TRAIN, by_rows, "data.train=day=2024-01-03/part-0.csv", cwd=three)
    assert done.code == 2 and "schedule.name=day is for days" in done.line
    done = cli(*TRAIN, "output=all", "optimizer.updates=all", cwd=three)
    assert done.code == 2 and "Take updates=touched for daily training" in done.line


def test_validation_stays_the_same_from_day_to_day(three, cli):
    validation = "data.validation=day=2024-01-03/part-0.csv"
    days = "data.days=..2024-01-02"
    assert cli(*TRAIN, "output=other", validation, days, cwd=three).code == 0
    report = report_of(three, "other")
    assert [evaluation["step"] for evaluation in report["evaluations"]] == [4, 8]
    assert report["split"] == "validation" and report["examples"] == ROWS


def test_the_model_is_judged_on_all_negatives(three, cli):
    assert cli(*TRAIN, "output=other", "data.negatives=0.3", cwd=three).code == 0
    day = report_of(three, "other")["days"][2]
    assert day["rows"] == day["before"]["examples"] == ROWS
    assert report_of(three, "other")["epochs"][2]["examples"] < ROWS / 1.5


def test_check_tells_of_the_days(three, cli, ran):
    write_days(three, (5,))
    done = ran("check", "conf=daily.yaml", "data.days=..2024-01-06", cwd=three)
    said = done.out + done.err
    assert (
        "days in data.train: 4, 2024-01-01 to 2024-01-05; the rows read are of 2024-01-01" in said
    )
    assert "days between them and not there: 2024-01-04" in said
    assert "days not there yet: 2024-01-06" in said
    report = json.loads(cli("check", "conf=daily.yaml", "format=json", cwd=three).out)
    assert report["days"]["there"][-1] == "2024-01-05"
    assert report["rows"]["estimate"] == 4 * ROWS
    done = cli("check", "conf=daily.yaml", "data.train=no/{day}.csv", cwd=three)
    assert done.code == 1 and "no day of data.train=no/{day}.csv is there" in done.last


def test_no_day_at_all(three, cli):
    done = cli("train", "conf=daily.yaml", "output=x", "data.days=2030-01-01", cwd=three)
    assert done.code == 1 and "no day of data.train=day={day}/part-*.csv is there" in done.last
    assert not (three / "x/checkpoints").exists()
    with pytest.raises(Failure, match="no day"):
        raise of_data.none_there(conf_of("{day}"))


def test_accept_is_for_days(three, cli):
    done = cli(*TRAIN, "accept=true", "data.train=day=2024-01-01/part-0.csv", cwd=three)
    assert done.code == 2 and "data.train has no {day}" in done.line
