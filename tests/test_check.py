"""`tnctl check`: growth against truths, what it tells of data, what it refuses and warns of."""

import gzip
import json
import math
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from tnctl.cli.check import short, span
from tnctl.data.statistics import growth
from tnctl.evaluation.importance import INDEX_BYTES
from tnctl.limits import size
from tnctl.tables import (
    InitialWeights,
    Pool,
    RowOptimizer,
    Segment,
    SlotPlan,
    SparseTable,
    Workspace,
)
from tnctl.training import loop
from tnctl.training.check import forecast
from tnctl.training.check.sample import first_rows

SAMPLE = 100_000
TRUTHS = {
    "few": lambda draw, n: draw.integers(0, 200, n),
    "uniform 1e4": lambda draw, n: draw.integers(0, 10_000, n),
    "uniform 1e5": lambda draw, n: draw.integers(0, 100_000, n),
    "uniform 1e6": lambda draw, n: draw.integers(0, 1_000_000, n),
    "zipf 1.2": lambda draw, n: draw.zipf(1.2, n),
    "zipf 1.5": lambda draw, n: draw.zipf(1.5, n),
    "1/rank of 1e4": lambda draw, n: np.exp(draw.random(n) * np.log(1e4)).astype(int),
    "1/rank of 1e6": lambda draw, n: np.exp(draw.random(n) * np.log(1e6)).astype(int),
    "log-normal": lambda draw, n: np.exp(draw.normal(8, 3, n)).astype(np.int64),
    "always new": lambda _, n: np.arange(n),
    "half of them new": lambda draw, n: np.where(
        draw.random(n) < 0.5, np.arange(n) + 10**6, draw.integers(0, 1000, n)
    ),
}  # fmt: skip


@pytest.mark.parametrize("times", [2, 20])
@pytest.mark.parametrize("truth", TRUTHS)
def test_growth_is_within_its_bounds(truth, times):
    draw = np.random.default_rng(list(TRUTHS).index(truth))
    ids = TRUTHS[truth](draw, SAMPLE * times)
    _, first, counts = np.unique(ids[:SAMPLE], return_index=True, return_counts=True)
    estimate = growth(first, counts, SAMPLE, SAMPLE * times)
    true = len(np.unique(ids))
    assert estimate.now == len(first)
    assert estimate.now <= estimate.low <= estimate.end <= estimate.high
    assert estimate.low * 0.99 <= true <= estimate.high * 1.01
    if times == 2:
        assert estimate.end == pytest.approx(true, rel=0.15)


def test_growth_at_its_edges():
    none = np.empty(0, np.int64)
    assert growth(none, none, 100, 1000).end == 0
    first, counts = np.array([0, 3, 5]), np.array([4, 1, 1])
    whole = growth(first, counts, 6, 6)
    assert (whole.end, whole.low, whole.high) == (3, 3, 3)
    few = growth(first, counts, 6, 60)
    assert few.low <= few.end <= few.high <= 30
    most = growth(np.arange(1000), np.ones(1000, int), 1000, 1e6, most=5000)
    assert most.high == most.end == 5000


def test_first_met_is_what_a_loop_finds():
    draw = np.random.default_rng(5)
    ids = draw.integers(0, 50, 300).astype(np.uint64)
    owners = np.sort(draw.integers(0, 100, 300))
    shuffled = draw.permutation(300)
    firsts, times = first_rows(ids[shuffled], owners[shuffled])
    for number, id_ in enumerate(np.unique(ids)):
        assert firsts[number] == owners[ids == id_].min()
        assert times[number] == (ids == id_).sum()
    assert [len(array) for array in first_rows(ids[:0], owners[:0])] == [0, 0]


@pytest.mark.parametrize("width", [1, 8, 17])
def test_the_bytes_of_a_row_are_those_of_a_table(width):
    optimizer = RowOptimizer("adagrad", 0.1)
    segments = [Segment("linear", 1, "sum", optimizer), Segment("e", width, "concat", optimizer)]
    table = SparseTable(segments, 1, Pool(1))
    table.add_group(0, "g", [InitialWeights("zeros", 0.0), InitialWeights("zeros", 0.0)])
    batch = Workspace(table, [SlotPlan(0, "sum", 0)])
    rows = 200_000
    offsets = np.arange(rows + 1, dtype=np.uint32)
    batch.find(np.arange(rows, dtype=np.uint64), offsets, rows, insert=True)
    # A table takes memory in blocks, one at least for each of its shards.
    assert rows * table.stride == pytest.approx(table.row_bytes, rel=0.1, abs=8 << 20)
    assert rows * INDEX_BYTES == pytest.approx(table.index_bytes, rel=0.2)


def test_figures_for_people():
    numbers = {0: "0", 940: "940", 12_345: "12.3 k", 1.239e6: "1.24 M", 4e9: "4 G"}
    assert {number: short(number) for number in numbers} == numbers
    sizes = {12: "12 B", 2048: "2 KiB", 3 << 20: "3.0 MiB", 5 << 30: "5.0 GiB"}
    assert {number: size(number) for number in sizes} == sizes
    assert span(5, 5, 5) == "5"
    assert span(2e6, 1e6, 3e6) == "2 M (1 M to 3 M)"


def check(cli, cwd, *arguments):
    done = cli("check", *arguments, "format=json", cwd=cwd)
    assert done.code == 0, done.err
    return json.loads(done.out)


@pytest.fixture(scope="module")
def checked(cli, _workspace):
    return check(cli, _workspace, "conf=small.yaml", "rows=2000", "train.batch_size=16")


def test_slots_of_the_sample(checked):
    assert checked["sample_rows"] == 2000
    slots = checked["slots"]
    assert slots["user_id"]["coverage"] == 1
    # Its missing values have an id of their own, which covers nothing.
    assert slots["item_id"] | {"distinct": 0} == {
        "coverage": 0.98, "mean_ids": 1.0, "most_ids": 1, "distinct": 0, "group": "item_id",
    }  # fmt: skip
    assert 0.7 < slots["interests"]["coverage"] < 0.9
    assert 1.8 < slots["interests"]["mean_ids"] < 2.2
    assert slots["interests"]["most_ids"] == 4
    assert slots["device"]["group"] == slots["region"]["group"] == "shared"
    assert slots["price_range"]["distinct"] == 8


def test_growth_of_the_data(checked):
    assert checked["rows"]["low"] <= 3000 <= checked["rows"]["high"]
    groups = checked["groups"]
    assert set(groups) == {"user_id", "item_id", "shared", "interests", "price_range"}
    assert groups["price_range"]["at_end"] == {"estimate": 8, "low": 8, "high": 8}
    assert groups["user_id"]["distinct"] <= groups["user_id"]["at_end"]["low"]
    assert 5 + 40 <= groups["shared"]["distinct"] <= 5 + 50


def test_tables_and_dense_part(checked):
    [(name, table)] = checked["tables"].items()
    assert name == "embedding4"
    at_end = sum(group["at_end"]["estimate"] for group in checked["groups"].values())
    assert table["rows"]["estimate"] == pytest.approx(at_end, abs=5)
    assert table["row_bytes"] == pytest.approx(20 + 4 * (1 + 1 + 1 + 4) + INDEX_BYTES, abs=7)
    assert table["bytes"]["estimate"] == 4 << 20  # a table takes no less
    # x is 6 slots of 4 and 2 numbers: 16 + 8 + 1 units with their biases, at least.
    assert checked["dense_weights"] >= 26 * 16 + 16 + 16 * 8 + 8 + 8 + 1


def test_the_order_of_the_inputs(checked):
    assert [entry["column"] for entry in checked["x"]] == [0, 4, 8, 12, 16, 20, 24, 25]
    slots = ["user_id", "item_id", "device", "region", "interests", "price_range"]
    assert checked["linear"] == slots
    assert [entry["input"] for entry in checked["x"]] == [*slots, "price", "quality"]
    assert checked["heads"] == ["label"]


def test_labels_and_columns(checked):
    assert 0.15 < checked["labels"]["label"] < 0.35
    assert checked["unused"] == []
    assert checked["warnings"] == []


def test_what_it_says_of_rows_holds(_trained, checked):
    """The run that was trained has as many rows as the check said beforehand."""
    report = json.loads((_trained / "run/report.json").read_text())
    [table] = checked["tables"].values()
    assert table["rows"]["low"] <= report["tables"]["embedding4"]["rows"] <= table["rows"]["high"]
    assert checked["dense_weights"] == report["dense_weights"]


def test_as_text(ran, workspace):
    done = ran("check", "conf=small.yaml", cwd=workspace)
    assert done.err == "looking at the first 100,000 rows of data.train\n"
    assert "read 3,000 rows of 3,000 in data.train" in done.out
    assert "3,000 rows are only 12 steps of train.batch_size=256" in done.out
    for word in ("user_id", "coverage", "embedding4", "dense weights", "x [B, 26]: user_id 0-3"):
        assert word in done.out
    assert "\n  -> " in done.out
    assert {path.name for path in workspace.iterdir()} == {"small.yaml", "clicks"}


def test_columns_that_nothing_uses(cli, workspace):
    checked = check(cli, workspace, "conf=small.yaml", "~slots.device", "~numeric.quality")
    assert checked["unused"] == ["device", "quality"]
    checked = check(cli, workspace, "conf=small.yaml", "~slots.device", "data.carry=[device]")
    assert checked["unused"] == []


def test_warnings(cli, workspace):
    clicks = workspace / "clicks"
    lines = (clicks / "train.csv").read_text().splitlines()
    head = lines[0].replace('"', "").split(",")
    place, price, label = head.index("device"), head.index("price"), head.index("label")
    rows = [line.split(",") for line in lines[1:]]
    for row in rows:
        row[place], row[price], row[label] = "", "7", "0"
    (clicks / "odd.csv").write_text("\n".join([lines[0], *map(",".join, rows)]) + "\n")
    checked = check(
        cli, workspace, "conf=small.yaml", "data.train=odd.csv", "data.test=odd.csv",
        "~slots.price_range", "train.batch_size=16",
    )  # fmt: skip
    said = "\n".join(checked["warnings"])
    assert "slots.device has no id in the sample" in said
    assert "numeric.price is the same number" in said
    assert "the label in column 'label' is 0 in every row" in said
    assert f"data.test reads {clicks}/odd.csv, which is trained on" in said
    assert len(checked["warnings"]) == 4


def test_memory_that_the_machine_does_not_have(cli, workspace, monkeypatch):

    monkeypatch.setattr(forecast, "memory_of_machine", lambda: 1000)
    checked = check(cli, workspace, "conf=small.yaml")
    assert any("will need more than" in warning for warning in checked["warnings"])
    assert "workers" not in checked
    many = check(cli, workspace, "conf=small.yaml", "cluster=local", "cluster.workers=4")
    assert any("the 4 workers will need more than" in warning for warning in many["warnings"])
    assert any("Workers without data: 3. Write it as 4 files" in line for line in many["warnings"])
    each = many["workers"]
    assert each["workers"] == 4 and each["dense_bytes"] == checked["dense_bytes"]
    assert each["tables"]["high"] == checked["tables"]["embedding4"]["bytes"]["high"] // 4
    parts = each["tables"]["high"], each["dense_bytes"], each["process_bytes"]
    assert each["bytes"]["high"] == sum(parts)
    said = cli("check", "conf=small.yaml", "cluster=local", "cluster.workers=4", cwd=workspace).out
    assert "each of 4 workers" in said and "its part of the tables" in said


def test_several_tables_sequences_and_numbers(cli, workspace):
    checked = check(
        cli, workspace, "conf=small.yaml", "recipe=wide_deep", "slots.user_id.width=2",
        "slots.interests.pooling=none", "slots.interests.max_length=3",
        "slots.price_range.indicator=true", "~numeric.quality",
    )  # fmt: skip
    assert checked["sequences"] == [{"input": "interests", "length": 3, "width": 4}]
    assert checked["slots"]["interests"]["most_ids"] == 3
    assert set(checked["tables"]) == {"embedding2", "embedding4"}
    widths = {entry["input"]: entry["width"] for entry in checked["x"]}
    assert widths == {
        "user_id": 2, "item_id": 4, "device": 4, "region": 4, "price": 1, "price_range": 8,
    }  # fmt: skip


REFUSED = [
    (["data.train=none.csv"], 1, "none.csv was not found"),
    (["data.test=none.csv"], 1, "none.csv was not found"),
    (["slots.user_id.column=userid"], 1, "no column 'userid'"),
    (["data.label.column=price"], 1, "label"),
    (["numeric.price.column=user_id"], 1, "user_id"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), REFUSED, ids=lambda v: str(v)[:40])
def test_what_cannot_work_is_refused(cli, workspace, arguments, code, words):
    done = cli("check", "conf=small.yaml", *arguments, cwd=workspace)
    assert done.code == code
    assert words in done.last
    assert done.last.startswith("tnctl check: ")


def test_generated_data(cli, tmp_path):
    checked = check(cli, tmp_path, "conf=deepfm", "rows=20000")
    assert checked["rows"] == {"estimate": 5_000_000, "low": 5_000_000, "high": 5_000_000}
    assert checked["groups"]["user_id"]["at_end"]["low"] <= 300
    assert checked["groups"]["user_id"]["at_end"]["high"] >= 300
    assert "planted_additive" in checked["unused"]
    assert not list(tmp_path.iterdir())


ROWS = 40_000


@pytest.mark.parametrize("form", ["csv", "csv.gz", "parquet", "jsonl", "tfrecord"])
def test_rows_of_formats(cli, tmp_path, form):
    draw = np.random.default_rng(3)
    users = [f"u{i}" for i in draw.zipf(1.3, ROWS)]
    table = pa.table(
        {"user": users, "price": draw.random(ROWS).round(4), "label": draw.integers(0, 2, ROWS)}
    )
    kind, path = form.split(".")[0], tmp_path / f"train.{form}"
    if form == "parquet":
        pq.write_table(table, path)
    elif form == "tfrecord":
        write_records(path, table.to_pylist())
    else:
        with gzip.open(path, "wb") if form == "csv.gz" else path.open("wb") as stream:
            if form == "jsonl":
                stream.writelines(json.dumps(row).encode() + b"\n" for row in table.to_pylist())
            else:
                pyarrow.csv.write_csv(table, stream)
    (tmp_path / "my.yaml").write_text(
        "defaults: [schema, {recipe: lr}, _self_]\nslots: {user: {}}\n"
        f"data: {{train: train.{form}, format: {kind}}}\n"
    )
    checked = check(cli, tmp_path, "conf=my.yaml", "rows=5000")
    rows = checked["rows"]
    assert rows["estimate"] == pytest.approx(ROWS, rel=0 if kind == "parquet" else 0.05)
    assert rows["low"] <= ROWS <= rows["high"]
    assert checked["unused"] == ["price"]
    grown = checked["groups"]["user"]["at_end"]
    assert grown["low"] <= len(set(users)) <= grown["high"]


def write_records(path, rows):
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path)) as out:
        for row in rows:
            lists = {
                "user": {"bytes_list": tf.train.BytesList(value=[row["user"].encode()])},
                "price": {"float_list": tf.train.FloatList(value=[row["price"]])},
                "label": {"int64_list": tf.train.Int64List(value=[row["label"]])},
            }
            named = {name: tf.train.Feature(**of_name) for name, of_name in lists.items()}
            example = tf.train.Example(features=tf.train.Features(feature=named))
            out.write(example.SerializeToString())


def test_files_of_several_sizes(cli, workspace):
    clicks = workspace / "clicks"
    for number in range(6):
        shutil.copy(clicks / "train.csv", clicks / f"part-{number}.csv")
    checked = check(cli, workspace, "conf=small.yaml", "data.train=part-*.csv", "rows=1000")
    assert checked["rows"]["estimate"] == pytest.approx(18_000, rel=0.02)
    assert math.isfinite(checked["rows"]["high"])


def lines_of(count=400):
    """Rows of user, item, price and click; the user decides nothing."""
    draw = np.random.default_rng(7)
    return [
        [str(draw.integers(20)), str(draw.integers(9)), f"{draw.random():.4f}", str(k % 3 // 2)]
        for k in range(count)
    ]


def write_lines(folder, rows, head=("user", "item", "price", "click")):
    (folder / "a.csv").write_text("".join(",".join(row) + "\n" for row in [head, *rows]))
    (folder / "my.yaml").write_text(
        "defaults: [schema, {recipe: lr}, _self_]\nslots: {user: {}, item: {}}\n"
        "numeric: {price: {}}\ntrain: {batch_size: 4}\n"
        "data: {train: a.csv, validation: a.csv, label: {column: click}}\n"
    )


def warned(cli, folder, *arguments):
    """All warnings but the one that validation reads what is trained on."""
    said = check(cli, folder, "conf=my.yaml", *arguments)["warnings"]
    return [line for line in said if "which is trained on" not in line]


def test_numbers_of_the_sample(cli, tmp_path):
    rows = lines_of()
    for k in range(0, len(rows), 4):
        rows[k][2] = ""
    rows[1][2], rows[2][2] = "-7.5", "5000"
    write_lines(tmp_path, rows)
    checked = check(cli, tmp_path, "conf=my.yaml")
    numbers = np.array([float(row[2]) for row in rows if row[2]])
    quantiles = np.quantile(numbers, (0.01, 0.5, 0.99)).tolist()
    assert checked["numbers"]["price"] == {
        "present": 0.75, "mean": pytest.approx(numbers.mean()), "lowest": -7.5, "low": quantiles[0],
        "median": quantiles[1], "high": quantiles[2], "highest": 5000.0,
    }  # fmt: skip
    assert warned(cli, tmp_path) == [
        "numeric.price reaches 5000 and is not scaled: take numeric.price.transform=standardize or "
        "log1p, or clip it"
    ]
    assert warned(cli, tmp_path, "numeric.price.transform=log1p") == []
    assert warned(cli, tmp_path, "+numeric.price.clip=[0,10]") == []
    shown = cli("check", "conf=my.yaml", cwd=tmp_path).out
    assert "present" in shown and "75.0%" in shown and "5000" in shown
    # A bad row that is left out counts in none of the figures, also when others are read again.
    (tmp_path / "a.csv").open("a").write("1,1,inf,0\n1,1,0.5,7\n")
    again = check(cli, tmp_path, "conf=my.yaml", "data.bad_rows=5")
    assert (again["numbers"], again["sample_rows"]) == (checked["numbers"], len(rows))
    write_lines(tmp_path, [[*row[:2], "", row[3]] for row in rows])
    said = warned(cli, tmp_path)
    assert "numeric.price has no number in the sample: check its column and data.missing" in said


def test_the_label_among_the_inputs(cli, tmp_path):
    rows = lines_of()
    write_lines(tmp_path, rows)
    assert warned(cli, tmp_path) == []
    [said] = warned(cli, tmp_path, "+slots.click.width=8")
    assert said.startswith("slots.click reads 'click', the column of a label") and "~slots" in said
    [said] = warned(cli, tmp_path, "+slots.both.cross=[user,click]")
    assert said.startswith("slots.both reads 'click'")
    # A column that always goes with it, whatever its name; one row otherwise, and it nearly does.
    copied = [[*row, "AB"[int(row[3])]] for row in rows]
    head = ("user", "item", "price", "click", "late")
    for change, expected in ((None, "gives"), ("A", "gives"), (None, None)):
        copied[2][4] = change or copied[2][4]
        if expected is None:
            for number, row in enumerate(copied):
                row[4] = "AB"[number % 15 == 0] if number % 5 == 0 else row[4]
        write_lines(tmp_path, copied, head)
        said = warned(cli, tmp_path, "+slots.late.width=8")
        assert len(said) == (expected is not None)
        assert all(f"slots.late {expected} the label in column 'click'" in line for line in said)


def test_what_gives_the_label_away(cli, tmp_path):
    """As `tnctl init` leaves it out: numbers, and values of lists, also of few rows otherwise."""
    draw = np.random.default_rng(3)
    rows = [
        [*row[:3], row[3], f"{draw.random() * (30 if row[3] == '1' else 0.001):.6f}",
         f"a|{'bc'[int(row[3])]}|{draw.integers(9)}", f"{draw.random() + int(row[3]) / 2:.4f}"]
        for row in lines_of()
    ]  # fmt: skip
    rows[2][5] = "a"
    head = ("user", "item", "price", "click", "dwell", "seen", "hint")
    write_lines(tmp_path, rows, head)
    assert warned(cli, tmp_path, "+numeric.hint={}") == []  # it tells much, and not all
    [said] = warned(cli, tmp_path, "+numeric.late={column: dwell, transform: log1p}")
    assert said.startswith("numeric.late gives the label in column 'click' away: alone it has an")
    assert float(said.split("AUC of ")[1][:5]) >= 0.99
    [said] = warned(cli, tmp_path, "+slots.late={column: seen, separator: '|'}")
    assert said.startswith("slots.late gives the label in column 'click' away")
    for row in rows:  # filled in some rows with label 1 alone
        row[5] = row[0] if row[3] == "1" and int(row[1]) > 2 else ""
    write_lines(tmp_path, rows, head)
    count = sum(bool(row[5]) for row in rows)
    [said] = warned(cli, tmp_path, "+slots.seen={}")
    assert said.startswith(
        "slots.seen gives the label in column 'click' away: all "
        f"{count} rows with a value have label 1 in the sample"
    )
    [said] = warned(cli, tmp_path, "+slots.seen={missing: value}")
    assert f"all {count} rows without a certain value have label 1" in said
    write_lines(tmp_path, rows[:150], head)  # too few to tell
    assert not any("gives" in line for line in warned(cli, tmp_path, "+numeric.dwell={}"))


def test_lists_without_a_separator(cli, tmp_path):
    rows = lines_of()
    for k, row in enumerate(rows):
        row[1] = "|".join([row[1], row[0], str(k % 7)][: k % 4])
    write_lines(tmp_path, rows)
    [said] = warned(cli, tmp_path)
    assert said.startswith("slots.item: its texts look like lists") and "separator='|'" in said
    assert warned(cli, tmp_path, "+slots.item.separator='|'", "+slots.item.pooling=mean") == []


def test_a_label_that_is_never_positive(cli, tmp_path, monkeypatch):
    """It is said early in the first pass, and refused at its end."""
    monkeypatch.setattr(loop, "MANY", 300)
    texts = [["u" + row[0], "i" + row[1], row[2], "ny"[int(row[3])]] for row in lines_of()]
    write_lines(tmp_path, texts)
    [warning] = warned(cli, tmp_path, "data.label.positive=[yess]")
    assert "is never 'yess' in the sample" in warning and "Its texts: 'n', 'y'" in warning
    done = cli("train", "conf=my.yaml", "data.label.positive=[yess]", "output=run", cwd=tmp_path)
    assert done.code == 1
    rule = "with data.label.column=click data.label.positive=['yess'] the label is 0 in "
    assert f"{rule}all 400 rows of data.train" in done.last
    assert done.err.count(f"{rule}the first ") == 1
    done = cli("train", "conf=my.yaml", "data.label.positive=[y]", "output=two", cwd=tmp_path)
    assert done.code == 0 and "the first" not in done.err, done.err


HEADS = [
    "recipe=esmm", "recipe.hidden=[4]", "+data.labels.ctr.column=click",
    "+data.labels.ctcvr.column=more", "train.epochs=2",
]  # fmt: skip
MSE = ["train.loss.name=mse", "data.label.above=0.5", "evaluation.monitor=mse"]
VARYING = {
    "always 0": ("0", "0", [], 1, "with data.label.column=click the label is 0 in all 400 rows of"),
    "always 1": ("1", "0", [], 1, "with data.label.column=click the label is 1 in all 400 rows of"),
    # Of a further head training continues, and a label that varies gets no line.
    "further head": (None, "0", HEADS, 0, "warning: with data.labels.ctcvr.column=more the label "
                     "is 0 in all 400 rows that"),
    "heads that vary": (None, "01", HEADS, 0, None),
    "small rates": (("0.2", "0.1", "0"), "0", [], 0, None),
    "a rule, by its squared error": (None, "0", MSE, 0, None),
}  # fmt: skip


@pytest.mark.parametrize("case", VARYING)
def test_a_label_that_never_varies_is_not_trained(cli, tmp_path, case):
    label, more, arguments, code, words = VARYING[case]
    rows = [
        [*row[:3], label[k % len(label)] if label else row[3], more[k % len(more)]]
        for k, row in enumerate(lines_of())
    ]
    write_lines(tmp_path, rows, ("user", "item", "price", "click", "more"))
    done = cli("train", "conf=my.yaml", *arguments, "output=run", cwd=tmp_path)
    assert done.code == code, done.err
    assert done.err.count("the label is") == (words is not None), done.err
    assert words is None or words in done.err


def test_few_steps_and_no_validation(cli, tmp_path):
    write_lines(tmp_path, lines_of())
    assert warned(cli, tmp_path, "train.batch_size=64", "train.epochs=14") == [
        "400 rows are only 98 steps of train.batch_size=64: take train.batch_size=32, or more "
        "train.epochs"
    ]
    assert warned(cli, tmp_path, "train.batch_size=64", "train.epochs=15") == []
    [said] = warned(cli, tmp_path, "data.validation=null")
    assert said.startswith("data.validation is not given")


@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_coverage_with_an_id_of_missing_values(cli, tmp_path, pooling):
    rows = [["" if k % 4 else row[0], *row[1:]] for k, row in enumerate(lines_of())]
    rows[0][0] = "|".join("12")
    write_lines(tmp_path, rows)
    for more in ([], ["slots.user.separator='|'"]):
        checked = check(
            cli, tmp_path, "conf=my.yaml", "+slots.user.missing=value",
            f"slots.user.pooling={pooling}", *more,
        )  # fmt: skip
        assert checked["slots"]["user"]["coverage"] == 0.25
        assert checked["slots"]["user"]["mean_ids"] == (1.0025 if more else 1.0)
