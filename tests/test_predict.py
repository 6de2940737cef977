"""`tnctl predict`: scores in file order, beside columns of the data, in every format."""

import csv
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from tnctl.errors import Failure
from tnctl.evaluation import metrics, predictions
from tnctl.evaluation.predictions import columns_written, writing
from tnctl.schema import Loss, Train

CARRY = "data.carry=[user_id,label]"


def predicted(cli, folder, *arguments):
    done = cli("predict", "output=run", *arguments, cwd=folder)
    assert done.code == 0, done.err
    return done


def test_the_scores_are_those_of_evaluate(run_copy, cli):
    done = predicted(cli, run_copy, CARRY)
    assert (
        "700 predictions of data.test by the model of step 12 written to run/predictions.parquet"
        in done.err
    )
    assert done.out == ""
    table = pq.read_table(run_copy / "run/predictions.parquet")
    assert table.column_names == ["user_id", "label", "prediction", "logit"]
    text = pyarrow.csv.read_csv(run_copy / "clicks/test.csv")
    assert table["user_id"].cast(pa.string()) == text["user_id"].cast(pa.string())
    labels = np.array(table["label"].to_pylist()).astype(np.float32)
    logits = table["logit"].to_numpy()
    assert logits.dtype == np.float32
    report = json.loads((run_copy / "run/report.json").read_text())
    assert metrics.auc(logits, labels) == report["auc"]
    assert metrics.logloss(logits, labels) == report["logloss"]
    np.testing.assert_array_equal(table["prediction"].to_numpy(), metrics.sigmoid(logits))


def test_labels_are_not_needed(run_copy, cli):
    predicted(cli, run_copy, "to=with.parquet")
    path = run_copy / "clicks/test.csv"
    table = pyarrow.csv.read_csv(
        path, convert_options=pyarrow.csv.ConvertOptions(column_types={"user_id": pa.string()})
    ).drop_columns(["label", "planted"])
    pyarrow.csv.write_csv(table, path, pyarrow.csv.WriteOptions(quoting_style="none"))
    predicted(cli, run_copy, "to=without.parquet")
    assert pq.read_table(run_copy / "with.parquet") == pq.read_table(run_copy / "without.parquet")


def test_every_format_and_window_says_the_same(run_copy, cli):
    predicted(cli, run_copy, CARRY, "to=whole.parquet")
    whole = pq.read_table(run_copy / "whole.parquet").to_pylist()
    predicted(cli, run_copy, CARRY, "to=rows.csv", "data.window=256")
    predicted(cli, run_copy, CARRY, "to=rows.jsonl", "data.window=256")
    predicted(cli, run_copy, CARRY, "to=named", "format=jsonl", "train.batch_size=100")
    with (run_copy / "rows.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    lines = [json.loads(line) for line in (run_copy / "rows.jsonl").read_text().splitlines()]
    assert lines == whole
    assert [json.loads(line)["user_id"] for line in (run_copy / "named").read_text().splitlines()
            ] == [row["user_id"] for row in whole]  # fmt: skip
    for row, expected in zip(rows, whole, strict=True):
        assert row["user_id"] == str(expected["user_id"])
        assert np.float32(row["logit"]) == np.float32(expected["logit"])
        assert float(row["prediction"]) == expected["prediction"]


def test_validation_data_and_other_storages(run_copy, cli):
    done = predicted(cli, run_copy, "data.test=null", "to=memory://scores/a.parquet")
    assert "900 predictions of data.validation by the model of step 12" in done.err
    import fsspec

    with fsspec.open("memory://scores/a.parquet") as stream:
        assert pq.read_table(stream).num_rows == 900


def test_what_is_asked_wrongly_is_one_line(trained, cli):
    for arguments, words in {
        ("format=xml",): "no format 'xml'",
        ("data.test=null", "data.validation=null"): "data.test=FILES or data.validation=FILES",
        ("data.carry=[logit]", "to=x.csv"): "a column that predict writes",
        ("data.carry=[user_ip]",): "no column 'user_ip'",
        ("data.test=nothing.csv",): "was not found",
    }.items():
        done = cli("predict", "output=run", *arguments, cwd=trained)
        assert done.code in (1, 2), arguments
        assert words in done.last, arguments
    assert not (trained / "run/predictions.parquet").exists()


def test_several_heads_and_squared_error():
    class Model:
        heads = ("ctr", "cvr")

    class Batch:
        rows = 2
        carried = pa.table({"id": ["a", "b"]})

    train = Train(loss=Loss("mse"))

    logits = np.array([[1.5, -2], [0.5, 3]], np.float32)
    original = predictions.batches
    try:
        predictions.batches = lambda *_: [None]
        names = columns_written(Model.heads)
        table = predictions.scored(lambda _: logits, Batch, train, names)
        train.loss.name = "cross_entropy"
        sigmoids = predictions.scored(lambda _: logits, Batch, train, names)
    finally:
        predictions.batches = original
    assert table.column_names == ["id", *names]
    assert table["prediction_cvr"].to_pylist() == [-2, 3]
    assert sigmoids["prediction_ctr"].to_pylist() == metrics.sigmoid(logits[:, 0]).tolist()
    assert sigmoids["logit_ctr"] == table["logit_ctr"]


ODD = pa.table(
    {
        "text": pa.array(['a,"b"\n', None, "ü"]),
        "list": pa.array([[1, 2], None, []]),
        "number": pa.array([1.5, float("nan"), None]),
        "bytes": pa.array([b"\xff", b"x", None]),
    }
)


def test_odd_values_in_text(tmp_path):
    for kind in ("csv", "jsonl", "parquet"):
        table = ODD.drop_columns("bytes") if kind == "csv" else ODD
        to = str(tmp_path / kind)
        with open(to, "wb") as stream, writing(stream, to, kind) as write:
            write(table.slice(1, 1))
            write(table.slice(0, 1))
            write(table.slice(2))
    lines = [json.loads(line) for line in (tmp_path / "jsonl").read_text().splitlines()]
    assert lines[0] == {"text": None, "list": None, "number": None, "bytes": "x"}
    assert lines[1] == {"text": 'a,"b"\n', "list": [1, 2], "number": 1.5, "bytes": "\udcff"}
    with (tmp_path / "csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert rows[1] == {"text": 'a,"b"\n', "list": "[1, 2]", "number": "1.5"}
    assert (rows[0]["list"], rows[2]["list"]) == ("", "[]")
    assert pq.read_table(tmp_path / "parquet").slice(1, 1) == ODD.slice(0, 1)
    with (
        pytest.raises(Failure, match="format=parquet"),
        writing(io.BytesIO(), "memory://x", "csv") as write,
    ):
        write(ODD)


def test_lists_of_one_value_are_carried_as_values():
    several: set[str] = set()
    table = pa.table({"id": [["u0"], [], None], "tags": [["a"], ["b", "c"], []], "n": [[1]] * 3})
    unpacked = predictions._unpacked(table, several)
    assert unpacked.to_pydict() == {
        "id": ["u0", None, None], "tags": [["a"], ["b", "c"], []], "n": [1, 1, 1],
    }  # fmt: skip
    # The next table is written into the same columns.
    assert predictions._unpacked(table.slice(0, 1), several).schema == unpacked.schema


def test_a_column_that_changes_its_type(tmp_path):
    to = tmp_path / "out.parquet"
    with to.open("wb") as stream, writing(stream, str(to), "parquet") as write:
        write(pa.table({"id": pa.array([1, 2])}))
        write(pa.table({"id": pa.array([3], pa.int32())}))
    assert pq.read_table(to)["id"].to_pylist() == [1, 2, 3]
    with (
        pytest.raises(Failure, match="format=jsonl"),
        to.open("wb") as stream,
        writing(stream, str(to), "parquet") as write,
    ):
        write(pa.table({"id": pa.array([1, 2])}))
        write(pa.table({"id": pa.array(["x"])}))
