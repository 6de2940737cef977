"""`tnctl score`: raw rows in, scores out, from exported artefacts alone."""

import csv
import importlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from redis_servers import needs_redis_server

from benchmarks import planted_tables
from tnctl import schema
from tnctl.checkpoint import load as loading
from tnctl.data.formats import jsonl_files
from tnctl.data.times import times_of
from tnctl.serving.graph.splitting import split
from tnctl.serving.rows.export import export
from tnctl.serving.rows.export_document import Filter

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples" / "serving"
ARTEFACTS = ("graph=graph", "embeddings=embeddings")


@pytest.fixture(scope="module")
def artefacts(trained, tmp_path_factory):
    """A folder with graph/, embeddings/ (a dictionary) and rows, and no conf nor checkpoint."""
    folder = tmp_path_factory.mktemp("score")
    checkpoint = loading.newest_or_fail(str(trained / "run"))
    conf = schema.from_values(checkpoint.conf())
    split(checkpoint, conf, str(folder / "graph"))
    export(checkpoint, conf, str(folder / "embeddings"), encoding="dictionary")
    shutil.copy(trained / "clicks/test.csv", folder / "rows.csv")
    with (folder / "rows.csv").open() as file, (folder / "rows.jsonl").open("w") as lines:
        for row in csv.DictReader(file):
            row["price"] = float(row["price"])
            row["interests"] = row["interests"].split("|") if row["interests"] else []
            lines.write(json.dumps(row) + "\n")
    return folder


@pytest.fixture(scope="module")
def expected(trained, ran, tmp_path_factory):
    """Prediction and logit of each row of the test data, as the trained model has them."""
    to = tmp_path_factory.mktemp("predicted") / "p.jsonl"
    ran("predict", "output=run", f"to={to}", cwd=trained)
    lines = [json.loads(line) for line in to.read_text().splitlines()]
    return np.array([(line["prediction"], line["logit"]) for line in lines])


@pytest.fixture
def score(artefacts, cli):
    """Scores the rows of a file into another one, which may be there already."""

    def scoring(source, to, *more):
        given = (f"input={source}", f"to={to}", "overwrite=true", *more)
        return cli("score", *ARTEFACTS, *given, cwd=artefacts)

    return scoring


def close(scores, expected):
    np.testing.assert_allclose(np.array(scores, float), expected, rtol=2e-5, atol=2e-5)


def test_a_file_of_csv_or_json_lines(score, expected, tmp_path):
    """By their names; the columns are those of `tnctl predict`, in the order of the rows."""
    for source, to in (("rows.csv", "a.jsonl"), ("rows.jsonl", "b.csv"), ("rows.jsonl", "c.txt")):
        done = score(source, tmp_path / to)
        assert done.code == 0, done.err
        assert done.last == f"700 scores written to {tmp_path / to}"
        text = (tmp_path / to).read_text()
        if to == "b.csv":
            header, *lines = csv.reader(text.splitlines())
            assert header == ["prediction", "logit"]
            close(lines, expected)
        else:
            lines = [json.loads(line) for line in text.splitlines()]
            assert list(lines[0]) == ["prediction", "logit"]
            close([list(line.values()) for line in lines], expected)


def test_standard_input_and_output_without_a_word_more(artefacts, expected):
    """In a process: no conf, no checkpoint, and only scores on standard output."""
    command = [sys.executable, "-m", "tnctl", "score", *ARTEFACTS]
    rows = (artefacts / "rows.jsonl").read_bytes()
    done = subprocess.run(command, cwd=artefacts, input=rows, capture_output=True, timeout=100)
    assert done.returncode == 0 and done.stderr == b""
    close([list(json.loads(line).values()) for line in done.stdout.splitlines()], expected)


def test_no_rows_have_no_scores(artefacts, cli, tmp_path):
    (tmp_path / "none.jsonl").write_text("")
    done = cli("score", *ARTEFACTS, f"input={tmp_path / 'none.jsonl'}", f"to={tmp_path / 'o.csv'}",
                cwd=artefacts)  # fmt: skip
    assert done.code == 0 and "0 scores" in done.last
    assert (tmp_path / "o.csv").read_bytes() == b'"prediction","logit"\n'


def test_columns_of_nulls_and_columns_that_are_not_there(artefacts, score, tmp_path, monkeypatch):
    """The first are told as such; a name that is near another may be wrong."""
    from tnctl.data import file_pieces

    rows = [json.loads(line) for line in (artefacts / "rows.jsonl").read_text().splitlines()[:5]]
    path = tmp_path / "rows.jsonl"
    for wrong, said in (
        ({"region": None}, "no value of column 'region' yet. All were null"),
        ({"region": None, "regin": 1}, "All were null"),
    ):
        monkeypatch.setattr(file_pieces, "_met", set())
        path.write_text("".join(json.dumps(row | wrong) + "\n" for row in rows))
        done = score(path, tmp_path / "o")
        assert done.code == 0 and said in done.err and "Did you mean" not in done.err
    monkeypatch.setattr(file_pieces, "_met", set())
    path.write_text("".join(json.dumps({"regin": 1, **row}) + "\n" for row in rows).replace(
        '"region"', '"x"'))  # fmt: skip
    done = score(path, tmp_path / "o")
    assert done.code == 0 and "Did you mean 'regin'?" in done.err


def test_csv_and_json_lines_agree_at_the_edges(artefacts, tmp_path):
    """What either takes, the other scores alike; what one refuses, the other refuses."""
    from tnctl.errors import Failure
    from tnctl.serving import scoring
    from tnctl.serving.graph.loaded_graph import open_graph
    from tnctl.serving.rows.embeddings import open_embeddings

    embeddings = open_embeddings(str(artefacts / "embeddings"))
    scorer = scoring.Scorer(open_graph(str(artefacts / "graph")), embeddings)
    with (artefacts / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))[:3]
    taken = 0
    for column, text, value in (
        ("price", "nan", float("nan")),
        ("price", "", None),
        ("price", str(2**70), 2**70),
        ("price", "-9" + "0" * 30, -9 * 10**30),
        ("price", "1e400", float("inf")),
        ("price", "1" + "0" * 400, 10**400),
        ("price", "x", "x"),
        ("user_id", "", ""),
        ("user_id", "-7", -7),
        ("user_id", str(2**63), 2**63),
        ("item_id", "é漢", "é漢"),
        ("interests", "a||b", ["a", "", "b"]),
    ):
        logits = []
        with (tmp_path / "rows.csv").open("w") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows([rows[0], {**rows[1], column: text}, rows[2]])
        several = [{**row, "interests": row["interests"].split("|")} for row in rows]
        several[1][column] = value
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in several))
        for kind in ("csv", "jsonl"):
            try:
                conf = scoring.conf_of_rows(scorer, kind, {})
                [piece] = scoring.pieces(scorer, str(tmp_path / f"rows.{kind}"), conf)
                logits.append(scorer(piece.table, piece.where)["logit"].tolist())
                taken += 1
            except Failure as error:
                assert f"column '{column}'" in str(error)
                logits.append(None)
        assert logits[0] == logits[1], (column, text)
    embeddings.close()
    assert taken == 2 * 9


def test_a_row_is_the_same_in_any_company(artefacts, score, tmp_path):
    """A text is cut at the separator beside rows with lists too; lists in lists are refused."""
    rows = [json.loads(line) for line in (artefacts / "rows.jsonl").read_text().splitlines()[:6]]

    def scores(rows):
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        to = tmp_path / "scores.jsonl"
        assert score(f"{tmp_path}/rows.jsonl", to).code == 0
        return to.read_text().splitlines()

    assert max(len(row["interests"]) for row in rows) > 1
    texts = [{**row, "interests": "|".join(row["interests"])} for row in rows]
    expected = scores(rows)
    assert scores(texts) == expected
    for number in range(6):
        assert scores([*texts[:number], rows[number], *texts[number + 1 :]]) == expected
    for nested in ([["i1"]], [["i1"], []]):
        wrong = [{**row, "interests": nested} for row in rows]
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in wrong))
        done = score(f"{tmp_path}/rows.jsonl", "o")
        assert done.code == 1 and "line 1, column 'interests': a list in a list" in done.last


def test_nothing_of_the_users_is_lost(artefacts, score, trained, cli, tmp_path):
    """Neither the rows that are scored, nor a file that stands where a folder is to be."""
    rows = tmp_path / "rows.csv"
    rows.write_text((artefacts / "rows.csv").read_text())
    (tmp_path / "link.csv").symlink_to(rows)
    for to in (rows, tmp_path / "x/../rows.csv", tmp_path / "link.csv"):
        done = score(rows, to)
        assert done.code == 2 and "which this command reads" in done.line
    done = cli("predict", "output=run", f"data.test={rows}", f"to={rows}", cwd=trained)
    assert done.code == 2 and "which this command reads" in done.last
    for command in (
        ["split-graph", f"output={trained / 'run'}"],
        ["export-embeddings", f"output={trained / 'run'}"],
        ["fold", "embeddings=embeddings"],
    ):
        done = cli(*command, f"to={rows}", cwd=artefacts)
        assert done.code == 2 and "is a file, which tnctl will not remove" in done.last
        os.mkfifo(pipe := tmp_path / f"{command[0]}.pipe")
        done = cli(*command, f"to={pipe}", cwd=artefacts)
        assert done.code == 2 and "is a file, which tnctl will not remove" in done.last
        assert pipe.is_fifo()
    for to in ("graph/serving.json", "embeddings/manifest.json", "embeddings/../graph/new"):
        done = score(rows, to)
        assert done.code == 2 and "which this command reads" in done.last
        assert not (artefacts / "graph/new").exists()
    assert rows.read_text() == (artefacts / "rows.csv").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["split-graph", "output="], "output= is empty"),
        (["split-graph", "output=run", f"golden={'9' * 5000}"], "golden must be a whole number"),
        (["split-graph", "output=run", "slots.user_id.width=9"], "slots.user_id.width is what"),
        (["evaluate", "output=run", "recipe=lr"], "this model has its own"),
    ],
)
def test_a_trained_model_is_what_it_is(trained, cli, arguments, said):
    done = cli(*arguments, cwd=trained)
    assert done.code == 2
    assert said in done.line and len(done.line) < 300


def test_artefacts_of_two_checkpoints_are_refused(artefacts, cli, tmp_path):
    shutil.copytree(artefacts / "graph", tmp_path / "graph")
    path = tmp_path / "graph/serving.json"
    from tnctl import manifest

    content = json.loads(path.read_text())
    del content["sha256"]
    content["checkpoint"] |= {"sha256": "0" * 64, "step": 99}
    path.write_bytes(manifest.sealed(content))
    done = cli("score", f"graph={tmp_path / 'graph'}", "embeddings=embeddings", "input=rows.csv",
                cwd=artefacts)  # fmt: skip
    assert done.code == 1
    assert "step 99" in done.last and "Take both from one checkpoint" in done.last


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["graph=graph"], "score needs embeddings=URL"),
        (["embeddings=embeddings"], "score needs graph=URL"),
        ([*ARTEFACTS, "format=parquet"], "no format 'parquet'"),
        ([*ARTEFACTS, "output=run"], "takes no output="),
        ([*ARTEFACTS, "data.skip_rows=-1"], "data.skip_rows must be at least 0"),
        ([*ARTEFACTS, "data.skip_rows=1", "data.skip_rows=2"], "is given twice"),
        ([*ARTEFACTS, "data.bad_rows=1,2"], "data.bad_rows takes one value"),
        ([*ARTEFACTS, "data.delimiter='ab'"], "delimiter must be one character"),
        ([*ARTEFACTS, "data.labels=x"], "takes no data.labels="),
    ],
)
def test_what_cannot_be_asked(artefacts, cli, arguments, said):
    done = cli("score", *arguments, cwd=artefacts)
    assert done.code == 2
    assert said in done.last


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_lines_before_the_rows(artefacts, score, tmp_path, kind):
    """They are passed over, and counted where a row is named."""
    text = (artefacts / f"rows.{kind}").read_text()
    path, to = tmp_path / f"rows.{kind}", tmp_path / "scores.jsonl"
    path.write_text(f"|1x3 Cross validator\n\n{text}")
    assert score(path, to, "data.skip_rows=2").code == 0
    plain = tmp_path / "plain.jsonl"
    done = score(f"rows.{kind}", plain)
    assert done.code == 0 and to.read_text() == plain.read_text()
    path.write_text(f"|1x3 Cross validator\n\n{text}" + ("1,2\n" if kind == "csv" else "{\n"))
    done = score(path, to, "data.skip_rows=2")
    lines = text.count("\n") + 3
    assert done.code == 1 and f"line {lines}" in done.last


@pytest.mark.parametrize("batch_rows", [4096, 3])
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_bad_rows_are_left_out_and_lines_named(
    artefacts, score, expected, tmp_path, kind, batch_rows, monkeypatch
):
    """With as many as are allowed, each score has the line of its row; one fewer ends it."""
    from tnctl.serving import scoring

    monkeypatch.setattr(scoring, "BATCH_ROWS", batch_rows)
    lines = (artefacts / f"rows.{kind}").read_text().splitlines()[:11]
    path, to = tmp_path / f"rows.{kind}", tmp_path / "scores.jsonl"
    if kind == "csv":
        wrong = ["1,2", re.sub(r"[0-9.]+", "x", lines[1]).replace("x", "much")]
        assert "much" in wrong[1]
        header, wrong = [lines.pop(0)], [wrong[0], *[wrong[1]] * 4, "", wrong[0]]
    else:
        wrong = ["[1]", *[json.dumps({**json.loads(lines[0]), "price": "much"})] * 4, "", "{"]
        header = []
        del lines[10:]
    path.write_text("\n".join([*header, *lines[:4], *wrong, *lines[4:], *wrong, ""]))

    done = score(path, to, "data.bad_rows=11")
    assert done.code == 1 and not to.exists()
    assert "input has over 11 rows that cannot be read" in done.last and "line" in done.last
    done = score(path, to, "data.bad_rows=12")
    assert done.code == 0, done.err
    assert done.last == f"10 scores written to {to}"
    assert "input: 12 rows cannot be read and were left out. The first:" in done.err
    scores = [json.loads(line) for line in to.read_text().splitlines()]
    close([[score["prediction"], score["logit"]] for score in scores], expected[:10])
    first = len(header) + 1
    places = [*range(first, first + 4), *range(first + 11, first + 17)]
    assert [score["line"] for score in scores] == places


def spoiled(row, fault):
    """A row of text cells, by column, that cannot be scored, as a line of each format."""
    if fault == "form":
        return {"csv": "1,2", "jsonl": "[1]"}
    row = {**row, fault: "much"}
    return {"csv": ",".join(row.values()), "jsonl": json.dumps(row)}


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_the_first_bad_row_is_that_of_the_lowest_line(artefacts, score, tmp_path, kind):
    """Lines are cut before values are read, and one column after the other."""
    with (artefacts / "rows.csv").open() as file:
        row = next(csv.DictReader(file))
    header = [",".join(row)] if kind == "csv" else []
    path, to = tmp_path / f"rows.{kind}", tmp_path / "scores.jsonl"
    line = len(header) + 1
    good = {"csv": ",".join(row.values()), "jsonl": json.dumps(row)}
    for faults in (["form", "quality", "price"], ["quality", "price", "form"],
                   ["price", "form", "quality"]):  # fmt: skip
        lines = [lines[kind] for fault in faults for lines in (spoiled(row, fault), good)]
        path.write_text("\n".join([*header, *lines, ""]))
        first = f"The first: {path}, line {line}"
        first += ": " if faults[0] == "form" else f", column '{faults[0]}': "
        for allowed, code in ((3, 0), (2, 1)) if faults[0] == "price" else ((3, 0),):
            done = score(path, to, f"data.bad_rows={allowed}")
            assert done.code == code, done.err
            assert first in done.err, faults


@pytest.mark.parametrize(
    ("faults", "to"),
    [([], "scores.csv"), (["form"], "scores.csv"), (["price"], "scores.csv"), ([], "scores.jsonl")],
)
def test_without_a_good_row_a_file_has_its_header(artefacts, ran, tmp_path, faults, to):
    with (artefacts / "rows.csv").open() as file:
        row = next(csv.DictReader(file))
    path, to = tmp_path / "rows.csv", tmp_path / to
    path.write_text(
        "\n".join([",".join(row), *(spoiled(row, fault)["csv"] for fault in faults), ""])
    )
    given = ["score", *ARTEFACTS, f"input={path}", f"to={to}"]
    ran(*given, f"data.bad_rows={len(faults)}", cwd=artefacts)
    header = '"line","prediction","logit"\n' if faults else '"prediction","logit"\n'
    assert to.read_text() == (header if to.suffix == ".csv" else "")


def test_rows_of_another_form_than_those_of_training(artefacts, expected, cli, ran, tmp_path):
    """What a message names can be given."""
    with (artefacts / "rows.csv").open() as file:
        header, *rows = list(csv.reader(file))
    path, to = tmp_path / "rows.csv", tmp_path / "scores.csv"
    path.write_text("".join(";".join(row) + "\n" for row in rows))
    keys = ["data.delimiter=';'", "data.header=false", f"data.columns=[{','.join(header)}]"]
    files = [f"input={path}", f"to={to}"]
    ran("score", *ARTEFACTS, *files, *keys, cwd=artefacts)
    close(list(csv.reader(to.read_text().splitlines()))[1:], expected)
    done = cli("score", *ARTEFACTS, *files, "overwrite=true", *keys[:2], cwd=artefacts)
    assert done.code == 2 and "header=false needs data.columns" in done.last


@pytest.mark.parametrize("kind", ["int8", "filter"])
def test_rows_of_lower_precision_and_left_out_ones(artefacts, trained, expected, tmp_path, kind):
    """Near the trained model's; slots that were left out read zeros, and the graph is asked."""
    from tnctl.serving.graph.loaded_graph import open_graph
    from tnctl.serving.rows.embeddings import open_embeddings
    from tnctl.serving.scoring import Scorer

    checkpoint = loading.newest_or_fail(str(trained / "run"))
    conf = schema.from_values(checkpoint.conf())
    options = {"precision": "int8"} if kind == "int8" else {"filter": Filter(slots=("user_id",))}
    content = export(checkpoint, conf, str(tmp_path / "e"), encoding="dictionary", **options)
    embeddings = open_embeddings(str(tmp_path / "e"))
    scorer = Scorer(open_graph(str(artefacts / "graph")), embeddings)
    rows = [json.loads(line) for line in (artefacts / "rows.jsonl").read_text().splitlines()]
    apart = np.abs(scorer(rows)["logit"] - expected[:, 1]) / (1 + np.abs(expected[:, 1]))
    embeddings.close()
    stated = content.golden.deviation.logit
    assert 0 < apart.max() < 3 * stated
    assert stated < 0.01 if kind == "int8" else stated > 0.1


def test_several_heads_are_named(tmp_path):
    """As `tnctl predict` names them."""
    from tnctl.evaluation.predictions import writing

    columns = {"prediction_ctr": np.float32([0.5, 0.25]), "logit_ctr": np.float32([0, np.nan])}
    with (tmp_path / "a").open("wb") as stream:
        with writing(stream, "a", "jsonl") as write:
            write(pa.table(columns))
        with writing(stream, "a", "csv") as write:
            write(pa.table(columns))
            write(pa.table(columns))
    assert (tmp_path / "a").read_text().splitlines() == [
        '{"prediction_ctr": 0.5, "logit_ctr": 0.0}',
        '{"prediction_ctr": 0.25, "logit_ctr": null}',
        '"prediction_ctr","logit_ctr"', "0.5,0", "0.25,nan", "0.5,0", "0.25,nan",
    ]  # fmt: skip


# ---- examples/serving, in Python ----------------------------------------------


QUICK = ["train.epochs=1", "evaluation.ablate=false"]
# What init does not write, but the scorer knows.
MORE = [
    "+slots.kind={column: user.id, ids: modulo, size: 50, missing: value, pooling: sqrtn}",
    "+slots.system={column: device.os, ids: vocabulary, vocabulary: [ios, web], oov: 2, width: 0}",
    "+slots.hour={column: time, ids: hour}",
    "+slots.weekday={column: time, ids: weekday}",
    "+slots.month={column: time, ids: day_of_month, linear: false}",
    "+data.times.time={format: '%d/%m/%Y %I:%M:%S %p'}",
    "+numeric.signup_age={column: time, since_column: signup, transform: standardize}",
    "+slots.basket_id.weights=basket.count",
    "+numeric.year={column: time, since: '2026-01-01', unit: hour, transform: log1p}",
    "+numeric.both={columns: [price, age], clip: [20, null], default: 27}",
]


def all_kinds(rows):
    """Rows with a column of each kind that init recognises."""
    t = planted_tables.planted(rows)
    times = (t["seconds"] + np.arange(rows) % 30 * 86_400).astype("datetime64[s]")
    for k in range(rows):
        moment = times[k].item()
        yield {
            "clicked": int(t["clicks"][k]),
            "user": {"id": t["user"][k], "visits": int(k * 7919 % 1000)},
            "device": {"os": ("ios", "android", "web")[k % 3]} if k % 7 else None,
            "basket": [{"id": i, "count": len(i) / 4} for i in t["history"][k]],
            "item": "?" if k % 40 == 3 else t["item"][k],
            "tags": "|".join(t["genres"][k]),
            "viewed": json.dumps(t["history"][k]),
            "recent": [int(i[1:]) + 1 for i in t["history"][k]][:8]
            + [0] * (8 - len(t["history"][k])),
            "vector": [float(x) for x in np.sin([k, 2 * k, 3 * k])],
            "mobile": k % 4 == 0,
            "shop_id": None if k % 9 == 0 else float(k % 60),
            "age": int(t["age"][k]),
            "price": None if k % 20 == 0 else float(t["price"][k]),
            "spent": 0.0 if k % 10 < 7 else round(float(t["price"][k]) * (k % 17), 2),
            "time": moment.strftime("%d/%m/%Y %I:%M:%S %p"),
            "signup": (moment - timedelta(days=k % 97 + 1, hours=k % 5)).isoformat(" ") + " +01:00",
        }


@pytest.fixture(scope="module")
def simple(cli, ran, tmp_path_factory):
    """A model of a conf that init wrote from rows with columns of all kinds."""
    folder = tmp_path_factory.mktemp("page")
    planted_tables.write_lines(folder / "rows.jsonl", map(json.dumps, all_kinds(1000)))
    ran("init", "rows.jsonl", cwd=folder)
    ran("train", "conf=rows.yaml", "output=run", *QUICK, *MORE, cwd=folder)
    assert cli("split-graph", "output=run", cwd=folder).code == 0
    return folder


def run_scorer(folder, embeddings):
    """The exit code, standard output and error of examples/serving/scorer.py, without tnctl."""
    run_without = """
import runpy, sys
sys.modules.update(tnctl=None, keras=None, pyarrow=None)
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    done = subprocess.run(
        [sys.executable, "-c", run_without, EXAMPLES / "scorer.py", "run/graph", embeddings],
        cwd=folder, capture_output=True, text=True, timeout=100,
        input=(folder / "rows.jsonl").read_text(), env=os.environ | {"PYTHONPATH": str(EXAMPLES)},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def scorer():
    """The module examples/serving/scorer.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        yield importlib.import_module("scorer")


def test_the_python_scorer(simple, ran):
    ran("export-embeddings", "output=run", "format=dictionary", cwd=simple)
    code, out, said = run_scorer(simple, "run/embeddings")
    assert code == 0, said
    artefacts = ["graph=run/graph", "embeddings=run/embeddings", "input=rows.jsonl"]
    ran("score", *artefacts, "to=scores.jsonl", cwd=simple)
    lines = (simple / "scores.jsonl").read_text().splitlines()
    expected = [json.loads(line)["logit"] for line in lines]
    np.testing.assert_allclose(list(map(float, out.split())), expected, rtol=2e-5, atol=2e-5)
    slots = json.loads((simple / "run/graph/serving.json").read_text())["slots"]
    assert {slot["ids"] for slot in slots.values()} == {
        "hash", "modulo", "vocabulary", "integer", "boundaries", "quantiles", "hour", "weekday",
        "day_of_month",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("section", "name", "change", "refused"),
    [
        ("slots", "item", {"cross": ["a", "b"]}, "item: cross=['a', 'b']"),
        ("slots", "item", {"ids": "letter"}, "item: ids=letter"),
        ("slots", "tags", {"pooling": "none"}, "tags: pooling=none"),
        ("numeric", "vector", {"transform": "rank"}, "vector: transform=rank"),
    ],
)
def test_the_python_scorer_refuses_by_name(simple, scorer, section, name, change, refused):
    serving = json.loads((simple / "run/graph/serving.json").read_text())
    serving[section][name] |= change
    with pytest.raises(SystemExit) as stopped:
        scorer.Values(serving, row_of=None)
    assert stopped.value.code == f"serving.json, {refused} is not known to this scorer"


def test_the_python_scorer_follows_paths(scorer):
    rows = [{"a": {"b": {"c": 1}}, "b": 2}, {"a.b.c": None, "a": {"b": {"c": 1}}}, {}, {"a": None},
            {"a": {}}, {"a": {"b": [3]}}, {"a.b": 4, "a": {"b": 5}}, {"a": [{"b": 1}, {"b": [2]}]},
            {"a": [{"b": 1}, {}, None]}, {"a": []}, {"a": 7, "b": [1]}]  # fmt: skip
    for path in ["a.b", "a.x", "b"]:
        for row in rows:
            assert scorer.value_of(row, path) == jsonl_files.lookup(path)(row), (path, row)
    assert scorer.value_of(rows[0], "a.b.c") == 1 and scorer.value_of(rows[1], "a.b.c") is None


# What the page's scorer makes of times in each format that init tries: as tnctl.
TIMES = {
    "iso": ["2026-11-20", "20261120T134509+0100", "2026-11-20 13:45:09.1234567 +01:00",
            "2026-11-20 13:45 UTC", "2026-11-20T13:45:09.25Z"],
    "epoch_s": [1795182309, "1795182309.5"], "epoch_ms": [1795182309123],
    "epoch_us": [1795182309123456], "epoch_ns": [1795182309123456789],
    "%y%m%d%H": [1112013, "26112013"], "%Y%m%d": [20261120],
    "%d-%b-%y %I.%M.%S.%f %p": ["20-NOV-26 01.45.09.123456789 PM"],
    "%d/%b/%Y:%H:%M:%S %z": ["20/Nov/2026:13:45:09 +0530"],
    "%b %d, %Y %I:%M%p": ["Nov  5, 2026 1:45AM"],
    "%a, %d %b %Y %H:%M:%S GMT": ["Fri, 20 Nov 2026 13:45:09 GMT"],
}  # fmt: skip


@pytest.mark.parametrize("offset", ["+00:00", "-03:30"])
@pytest.mark.parametrize("form", TIMES)
def test_the_python_scorer_reads_times(scorer, form, offset):
    times = {"t": {"format": form, "offset": offset}}
    serving = {"slots": {}, "numeric": {}, "data": {"missing": [""], "times": times}}
    values = scorer.Values(serving, row_of=None)
    data = schema.Data(times={"t": schema.Time(format=form, offset=offset)})
    for value in TIMES[form]:
        expected = times_of(pa.array([value]), "t", data, lambda row: ("rows", row)).values[0]
        microseconds = (values.time_of(value, "t") - scorer.EPOCH) / timedelta(microseconds=1)
        assert microseconds == expected, value
    assert values.time_of(None, "t") is None and values.time_of(" ", "t") is None


@pytest.mark.long
def test_the_python_scorer_notices(simple, cli):
    assert cli("export-embeddings", "output=run", "format=dictionary", cwd=simple).code == 0
    path = simple / "run/embeddings/golden.jsonl"
    lines = path.read_text().splitlines()
    wrong = json.loads(lines[7])
    wrong["logits"]["label"] += 0.001
    path.write_text("\n".join([*lines[:7], json.dumps(wrong), *lines[8:]]))
    code, _, said = run_scorer(simple, "run/embeddings")
    assert code == 1 and said.endswith("golden.jsonl: 1 of 200 rows differ, first line 8\n")


@needs_redis_server
@pytest.mark.long
def test_the_python_scorer_with_redis(simple, ran, server):
    ran("export-embeddings", "output=run", f"to={server.url}", cwd=simple)
    code, _, said = run_scorer(simple, server.url)
    assert code == 0, said
    artefacts = ["graph=run/graph", f"embeddings={server.url}"]
    ran("verify-serving", *artefacts, cwd=simple)
    ran("score", *artefacts, "input=rows.jsonl", "to=s.csv", cwd=simple)
    assert len((simple / "s.csv").read_text().splitlines()) == 1001


PROGRAM = """
import sys
for line in sys.stdin:
    print(f"{line.strip()} {sys.argv[1:]}", flush=True)
"""


def test_the_server_example():
    """A program that answers line by line, behind HTTP; here not the C program but its like."""
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    program = [sys.executable, "-c", PROGRAM, "online/graph"]
    process = subprocess.Popen(
        [sys.executable, EXAMPLES / "server.py", str(port), *program], stderr=subprocess.DEVNULL
    )
    try:
        for body in (b"1\n\n2", b"3\n"):
            request = urllib.request.Request(f"http://127.0.0.1:{port}/", body)
            answer = requested(request).decode().splitlines()
            assert [line.split()[0] for line in answer] == body.decode().split()
            assert "['online/graph', '--keep-going']" in answer[0]
    finally:
        process.kill()
        process.wait()


def requested(request):
    """The answer of a server that may not have begun yet."""
    until = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.read()
        except urllib.error.URLError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
