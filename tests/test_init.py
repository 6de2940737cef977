"""`tnctl init`: the formats of data, and what is recognised of tables with a planted truth."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from omegaconf import OmegaConf

import tnctl
from benchmarks import planted_tables
from tnctl import limits, schema
from tnctl.data import numbers
from tnctl.errors import UserError
from tnctl.starting import column_figures
from tnctl.starting.file_form import delimited
from tnctl.starting.first_conf import first_conf, scalar


def recognised(*words, **options):
    """The result, the conf as plain values, and the kind of each column."""
    result = first_conf([str(word) for word in words], **options)
    kinds = {name: column.kind for name, column in result.columns.items()}
    return result, yaml.safe_load(result.text), kinds


def conf_of(text):
    """The checked conf of a text, without Hydra."""
    values = OmegaConf.to_container(OmegaConf.create(text), resolve=True)
    del values["defaults"]
    values["recipe"] = {"name": "deepfm", **values.get("recipe", {})}
    return schema.from_values({"output": "none", **values})


def test_a_log_with_semicolons(tmp_path):
    result, conf, kinds = recognised(planted_tables.log_with_semicolons(tmp_path / "log.csv"))
    assert conf["data"]["delimiter"] == ";"
    assert "header" not in conf["data"]
    assert conf["data"]["missing"] == ["", "?"]
    assert conf["data"]["label"] == {"column": "clicked"}
    assert kinds == {
        "event_id": "row identifier", "time": "time", "user_id": "id", "item": "id",
        "tags": "several", "price": "number", "age": "id or number", "site": "constant",
        "revenue": "giveaway",
    }  # fmt: skip
    assert conf["slots"]["tags"] == {"separator": "|", "pooling": "mean"}
    assert conf["slots"]["price"]["ids"] == "row_quantiles"
    assert conf["slots"]["price"]["missing"] == "value"
    assert (conf["slots"]["price"]["buckets"], conf["slots"]["age_bucket"]["buckets"]) == (8, 15)
    assert conf["slots"]["age"] == conf["slots"]["user_id"] == {"side": "user"}
    assert result.text.count("# id or number? 72 ") == 3
    assert any("revenue" in text for text in result.warnings)
    assert conf["data"]["split"] == {"validation": 0.2, "by": "last"}
    assert "the last, as they are in the order of time" in result.text
    left_out = result.text.split("# Columns that are no input:")[1]
    assert "revenue" in left_out
    assert "a time, 2025-10-09 to 2025-10-10. Its hour: time_hour: {column: time, ids: hour}" in (
        left_out
    )
    assert conf_of(result.text).data.label.column == "clicked"


# What a table is written by, its file, and what is expected: parts of sections of the conf, and the
# kinds of all columns, or of those that are named where it is in PARTLY.
TABLES = {
    "criteo": (
        planted_tables.criteo_lines, "train.txt",
        {"data": {"delimiter": "\t", "header": False, "label": {"column": "c1"}},
         "slots": {"c19": {"missing": "value"}}},
        {f"c{k}": "id" for k in range(15, 41)},
    ),
    "ratings": (
        planted_tables.ratings, "ratings.csv",
        {"data": {"label": {"column": "rating", "above": 3}},
         "text": "above which number rating counts as 1"},
        {"userId": "id", "movieId": "id or number", "title": "id", "genres": "several",
         "timestamp": "time"},
    ),
    "json": (
        planted_tables.json_lines, "clicks.jsonl",
        {"data": {"format": "jsonl", "label": {"column": "label"}},
         "text": f"by its name; 1 in {planted_tables.planted()['clicks'].mean():.1%} of 3,000 rows",
         "slots": {"device_os": {"column": "device.os"},
                   "mobile": {"ids": "boundaries", "boundaries": [0.5]}}},
        {"user": "id", "item": "id", "history": "several", "genres": "several", "mobile": "id",
         "price": "number", "ts": "time", "device.os": "id"},
    ),
    "parquet": (
        planted_tables.parquet_with_lists, "a.parquet",
        {"slots": {"recent": {"ids": "integer", "padding": 0, "pooling": "mean"},
                   "shop_id": {"ids": "quantiles", "missing": "value", "buckets": 122}},
         "numeric": {"vector": {"width": 4, "transform": "standardize"}},
         "text": "item_scores  lists of numbers: the weights of a slot of lists?"},
        {"user": "id", "item": "id", "clicked_items": "several", "item_scores": "numbers",
         "recent": "several", "vector": "vector", "shop_id": "id or number", "price": "number",
         "at": "time", "nothing": "empty"},
    ),
    "orc": (
        planted_tables.orc_table, "a.orc",
        {"data": {"format": "orc"},
         "slots": {"basket_id": {"column": "basket.id", "pooling": "mean", "missing": "value"}}},
        {"user": "id", "item": "id", "basket.id": "several", "basket.count": "numbers",
         "context.price": "number", "at": "time"},
    ),
    # Of 3,000 values nearly all are different.
    "libsvm": (
        planted_tables.libsvm_numbers, "a.svm",
        {"data": {"format": "libsvm", "label": {"column": "label", "above": 0}},
         "slots": {"c_1": {"column": "1:", "ids": "row_quantiles", "missing": "value",
                           "buckets": 8},
                   "c_2": {"column": "2:", "ids": "row_quantiles", "buckets": 8}}},
        {f"{k}:": "number" for k in range(1, 13)},
    ),
    "libfm": (planted_tables.libfm_fields, "a.libfm", {}, {"1": "id", "2": "id", "3": "id"}),
    "libffm": (
        planted_tables.libffm_fields, "a.ffm", {}, {"0": "id", "1": "id", "2.values": "number"},
    ),
    "bags": (
        planted_tables.bags, "a.txt",
        {"slots": {"features": {"column": "features", "weights": "values", "pooling": "sum"}}}, {},
    ),
    "paddle": (
        planted_tables.paddle_lines, "part-0",
        {"data": {"pairs": "slot:value", "label": {"column": "click"}}},
        {"D1": "number", "S3": "several"},
    ),
    "tf.Example": (
        planted_tables.records, "a.tfrecord", {"data": {"format": "tfrecord"}},
        {"slot_1": "id", "items": "several", "price": "number", "image": "unsupported"},
    ),
    "a label as text": (
        planted_tables.text_labels, "people.data",
        {"data": {"header": False, "strip": True,
                  "label": {"column": "c5", "positive": [">50K"]}}},
        {"c1": "id or number", "c2": "id", "c3": "id", "c4": "id"},
    ),
}  # fmt: skip
PARTLY = {"criteo", "paddle"}


@pytest.mark.parametrize("name", TABLES)
def test_tables_with_a_planted_truth(tmp_path, name):
    write, file, expected, expected_kinds = TABLES[name]
    result, conf, kinds = recognised(write(tmp_path / file))
    assert expected_kinds == {key: kinds[key] for key in expected_kinds}
    assert name in PARTLY or len(kinds) == len(expected_kinds)
    assert expected.get("text", "") in result.text
    for section in expected.keys() & {"data", "slots", "numeric"}:
        assert expected[section] == {key: conf[section][key] for key in expected[section]}
    # Of 13 columns of counts in Criteo's table some have few values.
    assert name != "criteo" or sum("number" in kinds[f"c{k}"] for k in range(2, 15)) >= 11
    assert not result.form.left_out
    conf_of(result.text)


def test_rows_of_orc_are_counted(ran, tmp_path):
    result, _, _ = recognised(planted_tables.orc_table(tmp_path / "a.orc"))
    assert result.sample.rows == result.sample.estimate == 3000
    (tmp_path / "a.yaml").write_text(result.text)
    assert "2,400 rows" in ran("check", "conf=a.yaml", cwd=tmp_path).out


@pytest.mark.parametrize(("most", "above"), [(0, 0), (3, 5)])
def test_a_label_of_counts(tmp_path, most, above):
    """Counts are mostly 0; of other numbers the middle decides."""
    lines = [f"u{k % 17},{k % 11 if k % 4 == 0 else most}" for k in range(400)]
    planted_tables.write_lines(tmp_path / "a.csv", ["user,clicks", *lines])
    result = first_conf([str(tmp_path / "a.csv")], "clicks")
    label = yaml.safe_load(result.text)["data"]["label"]
    assert label == {"column": "clicks", "above": above}
    assert any("above which number clicks counts as 1" in text for text in result.doubts)


def test_booleans_of_json_with_gaps(tmp_path):
    rows = [{"label": k % 2, "used": [True, False, None][k % 3]} for k in range(300)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    line = "  used: {missing: value, ids: boundaries, boundaries: [0.5]} "
    assert line in first_conf([str(tmp_path / "a.jsonl")]).text


def test_hostile_names_become_inputs(tmp_path):
    names = ["a b", "a_b", "class", "x", "${oc.env:HOME}", "9 lives", "", "a b", "é\x85\x1b[31m"]
    rows = [
        ",".join([*(f"v{(k * 7 + at) % 5}" for at in range(len(names))), str(k % 2)])
        for k in range(300)
    ]
    path = planted_tables.write_lines(tmp_path / "a.csv", [",".join([*names, "label"]), *rows])
    result, _, _ = recognised(path)
    composed = conf_of(result.text)
    assert len(composed.slots) == len(names)
    assert "column_5" in composed.slots and "${" not in result.text
    assert "\x1b" not in result.text


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_a_name_with_an_interpolation_can_be_trained(ran, tmp_path, kind):
    """A header is replaced; elsewhere the column is left out, with a warning."""
    rows = [{"user": f"u{k % 7}", "${oc.env:HOME}": f"h{k % 3}", "click": k % 2} for k in range(60)]
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif kind == "jsonl":
        planted_tables.write_lines(path, [json.dumps(row) for row in rows])
    else:
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        planted_tables.write_lines(path, lines)
    done = ran("init", path.name, cwd=tmp_path)
    conf = yaml.safe_load((tmp_path / "a.yaml").read_text())
    assert list(conf["slots"]) == ["user", "column_2"] if kind == "csv" else ["user"]
    is_warned = "warning: ${oc.env:HOME} is left out: no conf can have this name" in done.err
    assert is_warned is (kind != "csv")
    ran("check", "conf=a.yaml", cwd=tmp_path)


def test_from_python(tmp_path):
    path = planted_tables.log_with_semicolons(tmp_path / "log.csv")
    given = [path], "clicked", ["1"]
    first = tnctl.first_conf(*given, name="log.yaml")
    assert first.text == first_conf([str(path)], *given[1:], name="log.yaml").text
    assert tnctl.first_conf(path).columns.keys() == first.columns.keys()
    for wrong in ([], [3], ""):
        with pytest.raises(UserError, match="data"):
            tnctl.first_conf(wrong)


@pytest.mark.parametrize("columns", [200, pytest.param(2000, marks=pytest.mark.long)])
def test_many_columns(tmp_path, columns):
    cells = np.random.default_rng(0).integers(0, 3, (40, columns))
    lines = [",".join(["label", *(f"f{k}" for k in range(columns))])]
    lines += [f"{k % 2}," + ",".join(map(str, row)) for k, row in enumerate(cells)]
    path = planted_tables.write_lines(tmp_path / "a.csv", lines)
    result = first_conf([str(path)])
    assert sum(line.startswith("  f") for line in result.text.splitlines()) == columns + 1
    assert len(result.text.encode()) < limits.CONF_BYTES


def test_texts_that_are_plainly_no_times_and_no_numbers_are_not_tried(tmp_path, monkeypatch):
    """Of thousands of columns the tries in all formats took nearly all of the time."""

    def tried(*given):
        raise AssertionError(given)

    lines = ["user,site,click", *(f"u{k % 9},a-{k % 4}.com,{k % 2}" for k in range(90))]
    path = planted_tables.write_lines(tmp_path / "a.csv", lines)
    monkeypatch.setattr(column_figures, "_times_in", tried)
    monkeypatch.setattr(numbers, "bad_places", tried)
    _, conf, _ = recognised(path)
    assert list(conf["slots"]) == ["user", "site"]


def test_bad_rows_are_counted(tmp_path):
    """Those of files that were joined with their headers too."""
    lines = planted_tables.log_with_semicolons(tmp_path / "a.csv").read_text().splitlines()
    lines[1000:1000] = [lines[0], "cut off"]
    lines[20:20] = lines[:1]
    planted_tables.write_lines(tmp_path / "a.csv", lines)
    result, conf, kinds = recognised(tmp_path / "a.csv")
    assert conf["data"]["bad_rows"] == 106 and kinds["price"] == "number"
    assert any("3 of the rows read cannot be used" in text for text in result.warnings)
    conf_of(result.text)


@pytest.mark.parametrize(
    ("lines", "delimiter", "header"),
    [
        (["a;b;c", "1;2,5;x", "0;3,5;y"], ";", True),
        (["1,Toy Story,A|B", "0,Heat,C", "1,Jumanji,A|B|C"], ",", False),
        (["1::1193::5", "1::661::3"], ":", False),
        (['user,"x,y",n', 'u1,"a,b",3', 'u2,"c,d",4'], ",", True),
        (["red,big,yes", "blue,big,no", *["red,small,yes", "blue,big,no"] * 20], ",", False),
        (["color,size,label", *["red,small,yes", "blue,big,no"] * 20], ",", True),
        (["u\x01i\x01y", "u1\x01i1\x011", "u2\x01i2\x010"], "\x01", True),
    ],
)
def test_delimiters_and_headers(lines, delimiter, header):
    form = delimited("a.csv", lines)
    assert form.keys["delimiter"] == delimiter
    assert form.keys.get("header", True) is header


def test_texts_of_parquet_that_are_not_utf8(ran, tmp_path):
    array = pa.array([b"\xff\xfe%d" % (k % 9) for k in range(300)], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 300, array.buffers())
    columns = {"name": text, "user": [f"u{k % 7}" for k in range(300)], "label": [0, 1, 0] * 100}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    done = ran("init", "a.parquet", cwd=tmp_path)
    assert "name is left out: it has bytes that are not UTF-8. Save it as UTF-8" in done.err


@pytest.mark.parametrize(
    "value",
    ["", "a", "yes", "1e5", "?", "a: b", "#x", "${a}", "\\${a}", "é", "\x85", "\U0001f600", '"',
     "a\\", "*a", "null"],
)  # fmt: skip
def test_texts_survive_yaml_and_omegaconf(value):
    values = OmegaConf.create(f"x: {scalar(value)}\ny: {scalar([value])}")
    assert OmegaConf.to_container(values, resolve=True) == {"x": value, "y": [value]}
