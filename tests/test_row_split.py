"""data.split: each row is in one split, the same one for every format, worker and pass."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_columns import hash_bytes, mix64
from units import (
    BAD,
    ROWS,
    arrays_of,
    conf_of,
    features_of,
    values,
    write_csv,
    write_parquet,
)

from tnctl import schema
from tnctl.data import preparing, row_split
from tnctl.data.file_pieces import Line, row_numbers, rows_up_to
from tnctl.data.sources import Source
from tnctl.data.unit_records import WHOLE
from tnctl.data.windows import windows
from tnctl.errors import Failure, UserError
from tnctl.schema import Split

SPLITS = ("train", "validation", "test")
SHARES = {"validation": 0.1, "test": 0.25}
WRITERS = {
    "csv": lambda folder, parts: write_csv(folder, parts),
    "csv.gz": lambda folder, parts: write_csv(folder, parts, ".csv.gz"),
    "parquet": lambda folder, parts: write_parquet(folder, parts),
}


def cut_conf(folder, writer, parts, by, **split):
    train = WRITERS[writer](folder, parts)
    cut = Split(**{**SHARES, "by": by, **split})
    return conf_of(folder, writer.partition(".")[0], train, split=cut)


def with_split(conf, **keys):
    return replace(conf, data=replace(conf.data, split=replace(conf.data.split, **keys)))


def numbers_of(conf, split, unit=WHOLE):
    """The column n, the number of each row, of a split in its order."""
    numbers = []
    for piece in Source(conf, split).pieces(["n"], unit):
        assert piece.table.column_names == ["n"]
        numbers += piece.table.column("n").to_pylist()
    return list(map(int, numbers))


# ---- Against a slow model ---------------------------------------------------------


def split_by(decisive, shares=SHARES):
    """The split of a number that decides of a row."""
    if decisive < shares["test"] * 2**64:
        return "test"
    return "validation" if decisive < (shares["validation"] + shares["test"]) * 2**64 else "train"


def slow_splits(by, seed=0):
    """The rows of each split of one file, part-0."""
    salt = mix64(seed ^ int.from_bytes(b"split of", "big"))
    rows_of_splits = {split: [] for split in SPLITS}
    for row in range(ROWS):
        if by == "last":
            test, validation = ROWS * 25 // 100, ROWS * 10 // 100
            left = ROWS - row
            split = "test" if left <= test else "validation"
            split = "train" if left > test + validation else split
        elif by == "rows":
            split = split_by(mix64(mix64(hash_bytes(b"part-0") ^ salt) ^ (row + 1)))
        else:
            split = split_by(mix64(hash_bytes(values(row)[0].encode()) ^ salt))
        rows_of_splits[split].append(row)
    return rows_of_splits


@pytest.mark.parametrize("by", ["rows", "last", "a"])
@pytest.mark.parametrize("writer", WRITERS)
def test_one_file_of_any_format_against_a_slow_model(tmp_path, writer, by):
    conf = cut_conf(tmp_path, writer, 1, by)
    assert {split: numbers_of(conf, split) for split in SPLITS} == slow_splits(by)


@pytest.mark.parametrize("by", ["rows", "a"])
def test_another_seed_chooses_other_rows(tmp_path, by):
    conf = cut_conf(tmp_path, "csv", 1, by, seed=2**63 - 1)
    rows_of_splits = {split: numbers_of(conf, split) for split in SPLITS}
    assert rows_of_splits == slow_splits(by, 2**63 - 1)
    assert rows_of_splits != slow_splits(by)


# ---- Several files, workers, passes ---------------------------------------------------


@pytest.mark.parametrize("by", ["rows", "last", "a"])
@pytest.mark.parametrize("writer", ["csv", "parquet", "generated"])
def test_units_of_workers_have_the_rows_of_the_split(tmp_path, writer, by):
    if writer == "generated":
        by = "user_id" if by == "a" else by
        conf = conf_of(tmp_path, "generated", "1000:1200", split=Split(**SHARES, by=by))
    else:
        conf = cut_conf(tmp_path, writer, 3, by)
    rows = {}
    for split in SPLITS:
        read = windows(Source(conf, split), features_of(conf))
        whole = [row for window in read for row in keys(window)]
        parts = [
            row
            for unit in Source(conf, split).units(3)
            for window in windows(Source(conf, split), features_of(conf), unit=unit)
            for row in keys(window)
        ]
        assert parts == whole
        rows[split] = whole
    together = sorted(row for of_split in rows.values() for row in of_split)
    uncut = with_split(conf, validation=0.0, test=0.0)
    assert together == sorted(
        row for window in windows(Source(uncut, "train"), features_of(conf)) for row in keys(window)
    )
    if by == "last":
        shares = (0.65, 0.1, 0.25)
        assert [len(rows[split]) for split in SPLITS] == [round(len(together) * s) for s in shares]


@pytest.mark.parametrize("by", ["rows", "last", "a"])
def test_rows_of_test_stay_when_those_of_validation_are_trained(tmp_path, by):
    conf = cut_conf(tmp_path, "csv", 3, by)
    joined = with_split(conf, validation=0.0)
    assert numbers_of(joined, "test") == numbers_of(conf, "test")
    both = numbers_of(conf, "train") + numbers_of(conf, "validation")
    assert sorted(numbers_of(joined, "train")) == sorted(both)


def keys(window):
    return window.reference.tolist()


def test_the_order_of_files_does_not_matter_by_hash(tmp_path):
    conf = cut_conf(tmp_path, "csv", 3, "rows")
    names = [f"part-{number}.csv" for number in (2, 0, 1)]
    turned = replace(conf, data=replace(conf.data, train=names))
    for split in SPLITS:
        assert sorted(numbers_of(turned, split)) == numbers_of(conf, split)


def test_other_slots_and_labels_do_not_move_rows(tmp_path):
    conf = cut_conf(tmp_path, "csv", 2, "a")
    for needed in (["n"], ["n", "a"], ["n", "y", "b"]):
        for split in SPLITS:
            pieces = list(Source(conf, split).pieces(needed))
            assert all(piece.table.column_names == needed for piece in pieces)
            read = [int(n) for piece in pieces for n in piece.table.column("n").to_pylist()]
            assert read == numbers_of(conf, split)


def test_rows_are_named_by_their_lines(tmp_path):
    conf = cut_conf(tmp_path, "csv", 1, "rows")
    for split in SPLITS:
        [piece] = Source(conf, split).pieces(["n"])
        lines = [piece.where(row)[1] for row in range(piece.table.num_rows)]
        # The header is line 1.
        assert lines == [int(n) + 2 for n in piece.table.column("n").to_pylist()]


# ---- Gaps: empty lines, bad rows, missing values --------------------------------------


@pytest.mark.parametrize("by", ["rows", "last", "a"])
def test_rows_that_cannot_be_read_move_no_other_row(tmp_path, by):
    whole = cut_conf(tmp_path, "csv", 1, by)
    expected = {split: numbers_of(whole, split) for split in SPLITS}
    write_csv(tmp_path, 1, bad=BAD)
    conf = replace(whole, data=replace(whole.data, bad_rows=10))
    for split in SPLITS:
        read = [
            int(n)
            for window in windows(Source(conf, split), features_of(conf))
            for n in window.reference.tolist()
        ]
        assert read == [row for row in expected[split] if row not in BAD]


def test_empty_lines(tmp_path):
    lines = "".join("\n" * (row % 3 == 0) + f"{row % 2},u{row},{row}\n" for row in range(300))
    (tmp_path / "gaps.csv").write_text("\ny,a,n\n" + lines)
    for by in ("rows", "last", "a"):
        data = {"split": Split(**SHARES, by=by)}
        conf = replace(conf_of(tmp_path, "csv", "gaps.csv", **data), slots={"a": schema.Slot()})
        rows_of_splits = [row for split in SPLITS for row in numbers_of(conf, split)]
        assert sorted(rows_of_splits) == list(range(300))


@pytest.mark.parametrize("gaps", [0, 1, 5, 400])
def test_numbers_of_rows_against_a_slow_model(gaps):
    random = np.random.default_rng(gaps)
    lines = np.delete(np.arange(3, 803), random.choice(800, gaps, replace=False))

    def where(row):
        return Line("x", int(lines[row]))

    assert row_numbers(where, len(lines)).tolist() == lines.tolist()
    assert row_numbers(where, 0).tolist() == []
    for number in (0, 2, 3, 400, 802, 803):
        assert rows_up_to(where, len(lines), number) == int((lines <= number).sum())


def test_rows_without_a_user_are_split_one_by_one(tmp_path):
    users = ["" if row % 2 else "u1" for row in range(2000)]
    text = "".join(f"{row % 2},{user},{row}\n" for row, user in enumerate(users))
    (tmp_path / "part-0.csv").write_text("y,a,n\n" + text)
    conf = conf_of(tmp_path, "csv", "part-0.csv", split=Split(**SHARES, by="a"))
    conf = replace(conf, slots={"a": schema.Slot()})
    rows_of_splits = {split: numbers_of(conf, split) for split in SPLITS}
    of_user = [split for split in SPLITS if any(users[row] for row in rows_of_splits[split])]
    assert len(of_user) == 1
    without = {split: sum(not users[row] for row in rows) for split, rows in rows_of_splits.items()}
    assert abs(without["validation"] - 100) < 40
    assert abs(without["test"] - 250) < 60


def test_values_that_are_no_ids(tmp_path):
    rows = [{"y": 0, "a": 1.5 if k == 7 else k % 40, "b": "", "n": k} for k in range(100)]
    (tmp_path / "part-0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    conf = conf_of(tmp_path, "jsonl", "part-0.jsonl", split=Split(**SHARES, by="a"))
    with pytest.raises(Failure, match=r"line 8, column 'a'"):
        numbers_of(conf, "train")
    lenient = replace(conf, data=replace(conf.data, bad_rows=1))
    rows_of_splits = [row for split in SPLITS for row in numbers_of(lenient, split)]
    assert sorted(rows_of_splits) == [k for k in range(100) if k != 7]
    table = pa.table({"y": [0.0], "a": ["u"], "b": [""], "n": [1.0]})
    pq.write_table(table, tmp_path / "one.parquet")
    with pytest.raises(UserError, match=r"data.split.by=n is a column of double"):
        numbers_of(
            conf_of(tmp_path, "parquet", "one.parquet", split=Split(**SHARES, by="n")), "train"
        )


def test_two_values_in_a_row(tmp_path):
    rows = [{"y": 0, "a": ["u", "v"] if k == 3 else ["u"], "b": "", "n": k} for k in range(20)]
    (tmp_path / "part-0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    conf = conf_of(tmp_path, "jsonl", "part-0.jsonl", split=Split(validation=0.5, by="a"))
    conf = replace(conf, slots={})
    with pytest.raises(Failure, match=r"line 4: column 'a' must have one value"):
        numbers_of(conf, "train")
    lenient = replace(conf, data=replace(conf.data, bad_rows=1))
    rows_of_splits = []
    for split in ("train", "validation"):
        try:
            rows_of_splits += numbers_of(lenient, split)
        except Failure as error:
            assert "no row" in str(error)
    assert rows_of_splits == [k for k in range(20) if k != 3]


# ---- Prepared data, counts ------------------------------------------------------------


@pytest.mark.parametrize("by", ["rows", "last", "a"])
def test_prepared_data_has_the_same_rows(tmp_path, by):
    conf = cut_conf(tmp_path, "csv", 3, by)
    preparing.prepare(conf, str(tmp_path / "to"))
    prepared = replace(conf, data=replace(conf.data, prepared=str(tmp_path / "to")))
    for split in SPLITS:
        for window, expected in zip(
            windows(Source(prepared, split), features_of(conf)),
            windows(Source(conf, split), features_of(conf)),
            strict=True,
        ):
            for a, b in zip(arrays_of(window), arrays_of(expected), strict=True):
                assert a.tobytes() == b.tobytes()
    with pytest.raises(UserError, match=r"these keys differ: data.split.seed"):
        next(windows(Source(with_split(prepared, seed=5), "train"), features_of(conf)))
    uncut = replace(prepared, data=replace(prepared.data, split=Split()))
    with pytest.raises(UserError, match=r"these keys differ: data.split"):
        next(windows(Source(uncut, "train"), features_of(conf)))


def test_counts_of_rows(tmp_path):
    last = cut_conf(tmp_path, "parquet", 2, "last")
    assert [Source(last, split).known_rows() for split in SPLITS] == [455, 70, 175]
    by_rows = with_split(last, by="rows")
    for split in SPLITS:
        count = Source(by_rows, split).count()
        assert count is not None
        assert Source(by_rows, split).known_rows() is None
        assert count.low < count.estimate < count.high
        assert count.estimate == pytest.approx(ROWS * by_rows.data.share(split))
    source = Source(by_rows, "train")
    for url in source.files:
        Path(url).unlink()
    assert source.known_rows() is None  # without a look into any file


def test_a_file_that_grows_moves_no_row_back_into_training(tmp_path):
    """Rows after the last one that was trained on stay there: training rows are the first ones."""
    conf = cut_conf(tmp_path, "csv", 1, "last")
    trained = set(numbers_of(conf, "train"))
    with (tmp_path / "part-0.csv").open("a") as file:
        file.writelines(f"a1,,0,{row}\n" for row in range(ROWS, ROWS + 100))
    assert not trained & {*numbers_of(conf, "validation"), *numbers_of(conf, "test")}
    assert len(numbers_of(conf, "test")) == 200


# ---- What is refused ---------------------------------------------------------------------


def test_what_does_not_fit_is_refused(tmp_path):
    conf = cut_conf(tmp_path, "csv", 1, "rows")
    row_split.check(conf.data)
    for keys_, words in {
        (("validation", "v.csv"),): "data.split.validation=0.1 takes rows of data.train",
        (("test", "t.csv"),): "data.split.test=0.25 takes rows of data.train",
        (("train", "day={day}.csv"),): "data.split is not for daily training",
    }.items():
        with pytest.raises(UserError, match=words):
            row_split.check(replace(conf.data, **dict(keys_)))
    with pytest.raises(UserError, match=r"leaves no row for data.train"):
        Split(validation=0.5, test=0.5)
    with pytest.raises(UserError, match=r"split.by is empty"):
        Split(validation=0.5, by="")
    with pytest.raises(Failure, match=r"part-0.csv has no column 'usr'"):
        numbers_of(with_split(conf, by="usr"), "train")
    with pytest.raises(Failure, match=r"data.split leaves data.validation no row of data.train"):
        numbers_of(with_split(conf, by="last", validation=1e-9), "validation")


def test_files_win_over_a_share_when_a_model_is_only_read(tmp_path):
    conf = cut_conf(tmp_path, "csv", 1, "rows")
    named = replace(conf, data=replace(conf.data, test="part-0.csv"))
    assert numbers_of(named, "test") == list(range(ROWS))
    assert numbers_of(named, "train") == numbers_of(conf, "train")


# ---- The commands --------------------------------------------------------------------------

CONF = """\
defaults: [schema, {recipe: lr}, _self_]
slots: {user_id: {}, item_id: {missing: value}}
data:
  {root: clicks, train: train.csv, window: 512, split: {validation: 0.2, test: 0.1, by: user_id}}
train: {batch_size: 128}
evaluation: {ablate: false}
"""


def test_commands_have_the_same_rows(cli, ran, workspace):
    (workspace / "cut.yaml").write_text(CONF)
    conf = schema.from_values(
        {
            "recipe": {"name": "lr"},
            "output": "none",
            "slots": {"user_id": {}},
            "data": {
                "root": str(workspace / "clicks"),
                "train": "train.csv",
                "split": {"validation": 0.2, "test": 0.1, "by": "user_id"},
            },
        }
    )
    users = {
        split: [
            user
            for piece in Source(conf, split).pieces(["user_id"])
            for user in piece.table.column("user_id").to_pylist()
        ]
        for split in SPLITS
    }
    assert not set(users["train"]) & {*users["validation"], *users["test"]}
    ran("train", "conf=cut.yaml", "output=run", "train.epochs=2", cwd=workspace)
    report = json.loads((workspace / "run" / "report.json").read_text())
    assert (report["split"], report["examples"]) == ("test", len(users["test"]))
    assert report["epochs"][1]["examples"] == len(users["train"])
    done = ran("evaluate", "output=run", cwd=workspace)
    metrics = json.loads(done.out)
    assert (metrics["split"], metrics["examples"]) == ("test", len(users["test"]))
    assert metrics["auc"] == report["auc"]
    ran("predict", "output=run", "to=scores.parquet", "data.carry=[user_id]", cwd=workspace)
    scores = pq.read_table(workspace / "scores.parquet")
    assert scores.column("user_id").to_pylist() == users["test"]
    # Other data may be named beside it.
    done = cli("evaluate", "output=run", "data.test=test.csv", cwd=workspace)
    assert (done.code, json.loads(done.out)["examples"]) == (0, 700)
    # Another split would measure rows that were trained on.
    done = cli("evaluate", "output=run", "data.split.seed=7", cwd=workspace)
    assert (done.code, "data.split differs" in done.line) == (2, True)
    done = cli("train", "conf=cut.yaml", "output=run", "data.split.seed=7", cwd=workspace)
    assert (done.code, "data.split.seed" in done.line) == (2, True)
    done = cli("train", "conf=cut.yaml", "output=new", "data.test=test.csv", cwd=workspace)
    assert (done.code, "data.test=null or data.split.test=0" in done.line) == (2, True)
    done = ran("check", "conf=cut.yaml", cwd=workspace)
    assert "which is trained on" not in done.out + done.err
    assert "data.validation is not given" not in done.out + done.err
