"""`import tnctl`: compose, train, open, and what a run answers, against the commands."""

import ast
import contextlib
import dataclasses
import json
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import yaml

import tnctl
from tnctl import files, schema
from tnctl.data import arrow_tables
from tnctl.errors import UserError
from tnctl.tables.columns import hash_bytes

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "examples/first_run.ipynb"
PAGE = ROOT / "docs/python.md"
HEAVY = {"tensorflow", "keras", "hydra", "omegaconf", "pyarrow", "numpy", "fsspec", "rich"}


def refused(function, *arguments, **named):
    """The message of a UserError or Failure, which is one line."""
    with pytest.raises(tnctl.UserError) as caught:
        function(*arguments, **named)
    message = str(caught.value)
    assert message and "\n" not in message
    return message


# ---- import tnctl ------------------------------------------------------------


def test_import_is_light():
    code = "import sys, tnctl; tnctl.__version__; dir(tnctl); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & HEAVY
    assert [name for name in done.stdout.split() if name.startswith("tnctl")] == ["tnctl"]


def test_names_and_their_types():
    tree = ast.parse((ROOT / "tnctl/__init__.pyi").read_text())
    typed = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom)
             for alias in node.names}  # fmt: skip
    assert typed == set(tnctl._MODULES) <= set(dir(tnctl))
    for name in typed:
        assert getattr(tnctl, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'predict'"):
        _ = tnctl.predict
    assert (ROOT / "tnctl/py.typed").exists()


@pytest.mark.parametrize(("path", "name"), [
    ("train", "batchsize"), ("", "foo"), ("slots.user_id", "widht"),
])  # fmt: skip
def test_attributes_that_are_no_keys_are_refused(trained, monkeypatch, path, name):
    monkeypatch.chdir(trained)
    conf = tnctl.compose("small.yaml", ["output=runs/odd"])
    section = conf
    for part in filter(None, path.split(".")):
        section = section[part] if isinstance(section, dict) else getattr(section, part)
    object.__setattr__(section, name, 3)
    with pytest.raises(UserError, match=f"no key '[a-z_.]*{name}'"):
        tnctl.train(conf)
    assert not Path("runs/odd").exists()


# ---- compose -----------------------------------------------------------------


def test_a_conf_is_the_one_of_the_command(ran, trained, monkeypatch):
    monkeypatch.chdir(trained)
    for name, overrides in (
        ("deepfm", ["output=runs/x", "train.epochs=2", "data.train=0:1000"]),
        ("small.yaml", ["output=a b/c", "recipe=lr", "slots.user_id.width=3", "~numeric.quality"]),
    ):
        shown = ran("train", f"conf={name}", *overrides, "--cfg", "job", cwd=trained)
        composed = tnctl.compose(Path(name), overrides)
        assert composed == schema.from_values(yaml.safe_load(shown.out))
    assert composed.output == "a b/c"
    assert "quality" not in composed.numeric


@pytest.mark.parametrize(
    ("conf", "overrides", "words"),
    [
        ("deepfmm", [], "Did you mean 'deepfm'?"),
        (3, [], "conf is a path or URL. Received: '3'"),
        ("deepfm", ["train.epoch=2"], "Did you mean 'train.epochs'?"),
        ("deepfm", "train.epochs=2", "overrides is a list of texts"),
        ("deepfm", [("train.epochs", 2)], "an override is a text"),
        ("deepfm", ["-m"], "an override is a text"),
        ("deepfm", ["overwrite=true"], "no key 'overwrite'"),
        ("deepfm", ["seed=1,2"], "has several values"),
        ("deepfm", ["cluster.workers=2"], "is for workers, which nothing starts"),
    ],
)
def test_what_is_no_conf(conf, overrides, words):
    assert words in refused(tnctl.compose, conf, overrides)


def test_a_program_of_hydra_keeps_its_conf():
    from hydra.core.hydra_config import HydraConfig

    before = HydraConfig.instance().cfg
    after = HydraConfig.instance().cfg = object()
    try:
        tnctl.compose("lr", ["data.root=."])
        assert HydraConfig.instance().cfg is after
    finally:
        HydraConfig.instance().cfg = before


# ---- predict -----------------------------------------------------------------


class Stream:
    """A table of a library that only knows the PyCapsule interface, in batches of `rows`."""

    def __init__(self, table, rows):
        self.batches = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(rows))

    def __arrow_c_stream__(self, requested_schema=None):
        return self.batches.__arrow_c_stream__(requested_schema)


@pytest.fixture(scope="module")
def run(trained):
    return tnctl.open(trained / "run")


@pytest.fixture(scope="module")
def rows(trained):
    """The rows of data.test, as Arrow reads them."""
    return pyarrow.csv.read_csv(trained / "clicks/test.csv")


@pytest.fixture(scope="module")
def expected(ran, trained, tmp_path_factory):
    """What the command predicts of them."""
    to = tmp_path_factory.mktemp("predictions") / "all.parquet"
    ran("predict", "output=run", f"to={to}", cwd=trained)
    return pq.read_table(to)


def test_predictions_are_those_of_the_command(run, rows, expected):
    scores = run.predict(rows)
    assert scores.schema == pa.schema([("prediction", pa.float64()), ("logit", pa.float32())])
    assert scores.equals(expected)
    texts = rows.set_column(0, "user_id", rows["user_id"].cast(pa.string()))
    names = rows.column_names[::-1]
    for table in (
        Stream(rows, 100),  # windows of several batches
        rows.to_reader(7),
        rows.combine_chunks().to_batches()[0],
        texts.set_column(0, "user_id", texts["user_id"].dictionary_encode()),
        texts.set_column(0, "user_id", texts["user_id"].cast(pa.string_view())),
        rows.select([name for name in names if name not in ("label", "planted")]),
    ):
        assert run.predict(table).equals(expected)


def test_many_windows(run, rows, expected):
    table = pa.concat_tables([rows] * 5)  # of 700 rows each; a window has 1024
    assert run.predict(Stream(table, 333)).equals(pa.concat_tables([expected] * 5))
    assert run.predict(rows.slice(3, 1)).equals(expected.slice(3, 1))
    prices = pa.array(["1"] * 3000 + ["x"] + ["1"] * 499)
    message = refused(run.predict, with_column(table, "price", prices))
    assert "the table, row 3001, column 'price'" in message


def test_tables_of_pandas(run, trained, rows, expected):
    pandas = pytest.importorskip("pandas")
    assert run.predict(rows.to_pandas()).equals(expected)
    frame = pandas.read_csv(trained / "clicks/test.csv", dtype={"device": "category"})
    frame["price"] = rows["price"].to_pandas()  # whose last bit pandas may round
    frame["quality"] = rows["quality"].to_pandas()
    frame.index = frame.index * 2 + 1
    frame["extra"] = [object()] * len(frame)  # no column that is read
    assert run.predict(frame).equals(expected)
    assert run.predict(frame).to_pandas().index.equals(frame.index)
    prices = frame["price"].rename("logit")  # as a column of the scores
    for index in (frame["user_id"], [frame["user_id"], frame.index], prices):
        scores = run.predict(frame.set_index(index))
        assert scores.select(expected.column_names).equals(expected)
        assert scores.to_pandas().index.equals(frame.set_index(index).index)
    mixed = frame.set_axis([1, "a"] * 350)
    assert "reset_index" in refused(run.predict, mixed)
    frame["device"] = None
    assert run.predict(frame).num_rows == 700
    assert "two columns" in refused(run.predict, pandas.concat([frame, frame], axis=1))
    frame["user_id"] = np.arange(700) / 7
    assert "astype('Int64')" in refused(run.predict, frame)


def test_tables_of_polars(run, trained, expected):
    polars = pytest.importorskip("polars")
    frame = polars.read_csv(trained / "clicks/test.csv")
    assert run.predict(frame).equals(expected)
    assert run.predict(frame.cast({"device": polars.Utf8})).equals(expected)
    assert "__arrow_c_stream__" in refused(run.predict, frame.lazy())


def test_no_rows(run, rows, expected):
    for table in (rows.slice(0, 0), rows.schema.empty_table(), Stream(rows.slice(0, 0), 1)):
        assert run.predict(table).equals(expected.slice(0, 0))


def test_missing_values_are_no_error(run, rows):
    nothing = pa.table({name: pa.nulls(3) for name in rows.column_names})
    scores = run.predict(nothing)["logit"].to_pylist()
    assert len(set(scores)) == 1
    assert np.isfinite(scores[0])
    fractions = pa.table({name: pa.nulls(3, pa.float64()) for name in rows.column_names})
    assert run.predict(fractions)["logit"].to_pylist() == scores


def test_ids_of_64_bits(run, rows):
    for value, kind in (
        (2**64 - 1, pa.uint64()),
        (-(2**63), pa.int64()),
        ("x" * 9999, pa.string()),
    ):
        table = rows.set_column(0, "user_id", pa.array([value] * 700, kind))
        assert run.predict(table).num_rows == 700


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: rows.drop_columns(["price"]), "the table has no column 'price'"),
        (lambda rows: rows.rename_columns(["price" if name == "label" else name
                                           for name in rows.column_names]), "two columns"),
        (lambda _: {"user_id": [1]}, "Received: '<class 'dict'>'"),
        (lambda rows: rows["price"], "the table cannot be read"),
        (lambda rows: with_column(rows, "user_id", pa.array([0.5] * 700)), "ids are made of text"),
        (lambda rows: with_column(rows, "user_id", pa.array([{"a": 1}] * 700)), "made of text"),
        (lambda rows: with_column(rows, "price", pa.array(["1"] * 699 + ["x"])),
         "the table, row 700, column 'price': 'x' is not a number"),
        (lambda rows: with_column(rows, "price", pa.array([1.0] * 9 + [float("inf")] * 691)),
         "row 10"),
        (lambda rows: with_column(rows, "price", pa.array([1] * 700, pa.date32())), "not a number"),
        (lambda rows: with_column(rows, "user_id", not_utf8(700)), "the table, column 'user_id'"),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_read(run, rows, change, words):
    assert words in refused(run.predict, change(rows))


def with_column(rows, name, column):
    return rows.set_column(rows.column_names.index(name), name, column)


def not_utf8(rows):
    return pa.array([b"\xff"] * rows).view(pa.string())


def test_a_stream_that_fails_or_was_read(run, rows):
    def batches():
        yield rows.to_batches()[0]
        raise OSError("the disk\nis gone")

    failing = pa.RecordBatchReader.from_batches(rows.schema, batches())
    assert "the table cannot be read" in refused(run.predict, failing)
    stream = Stream(rows, 100)
    run.predict(stream)
    with contextlib.suppress(tnctl.UserError):
        assert run.predict(stream).num_rows == 0


def test_threads_take_turns(run, rows, expected):
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(run.predict(rows).equals(expected)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 4


def test_blanks_that_data_strip_removes():
    conf = tnctl.compose("lr", ["data.root=.", "data=adult"])
    table = pa.table(
        {"workclass": [" Private", "?\t", None, "x y "], "age": [" 39", "4 ", " ?", ""]}
    )
    conf.data.missing = ["", " ?"]
    parts = list(arrow_tables.windows_of(table, conf, ["workclass", "age"], 3))
    assert [part.num_rows for part in parts] == [3, 1]
    assert pa.concat_tables(parts).to_pydict() == {
        "workclass": ["Private", None, None, "x y"], "age": ["39", "4", None, None],
    }  # fmt: skip


# ---- embeddings --------------------------------------------------------------


@pytest.fixture(scope="module")
def exported(ran, trained, tmp_path_factory):
    to = tmp_path_factory.mktemp("exports") / "embeddings"
    ran("export-embeddings", "output=run", f"to={to}", cwd=trained)
    return to


@pytest.mark.parametrize("slot", ["user_id", "item_id", "device", "interests"])
def test_rows_of_values_are_those_of_the_export(run, rows, exported, slot):
    group = run.conf.slots[slot].group or slot
    stored = {row["id"]: row for row in pq.read_table(exported / f"{group}.parquet").to_pylist()}
    texts = rows[slot].cast(pa.string()).to_pylist()
    values = sorted({part for text in texts if text for part in text.split("|")})
    table = run.embeddings(slot, values)
    assert table["value"].to_pylist() == values
    assert table["id"].to_pylist() == [hash_bytes(value.encode(), 0) for value in values]
    assert sum(table["known"].to_pylist()) > len(values) / 2
    for row in table.to_pylist():
        zeros = {"linear": 0.0, "embedding": [0.0] * 4}
        assert row["known"] == (row["id"] in stored)
        for name in zeros:
            assert row[name] == stored.get(row["id"], zeros)[name]


def test_values_of_every_kind_of_list(run):
    texts = ["1", "2", "99999999999", "1"]
    table = run.embeddings("user_id", texts).drop_columns("value")
    numbers = [int(text) for text in texts]
    for values in (numbers, np.array(numbers), pa.array(numbers), np.array(texts), iter(texts),
                   pa.chunked_array([texts[:1], texts[1:]]), pa.array(texts).dictionary_encode(),
                   [text.encode() for text in texts]):  # fmt: skip
        assert run.embeddings("user_id", values).drop_columns("value").equals(table)
    for name in ("pandas", "polars"):
        if name in sys.modules:
            series = sys.modules[name].Series(texts)
            assert run.embeddings("user_id", series).drop_columns("value").equals(table)
    assert run.embeddings("user_id", []).num_rows == 0
    assert run.embeddings("user_id", [2**64 - 1, 5])["id"].null_count == 0


def test_values_without_a_row(run):
    table = run.embeddings("user_id", [None, "nobody"])
    assert table["id"].to_pylist() == [None, hash_bytes(b"nobody", 0)]
    assert table["known"].to_pylist() == [False, False]
    assert table["embedding"].to_pylist() == [[0.0] * 4] * 2
    missing = run.embeddings("item_id", [None, ""])  # missing=value
    assert missing["id"].to_pylist() == [0, 0]
    assert missing["known"].to_pylist() == [True, True]
    buckets = run.embeddings("price_range", [-1e9, 1e9, None])
    assert buckets["id"].to_pylist() == [0, 7, None]


@pytest.mark.parametrize(
    ("slot", "values", "words"),
    [
        ("user", ["1"], "Did you mean 'user_id'?"),
        ("price", [1], "no slot 'price' with rows"),
        ("user_id", "1", "values is a list"),
        ("user_id", [1, "a"], "values cannot be one column"),
        ("user_id", [[1]], "values has lists"),
        ("user_id", [0.5], "ids are made of text"),
        ("user_id", np.zeros((2, 2)), "values cannot be one column"),
        ("price_range", ["cheap"], "values, row 1, column 'price': 'cheap' is not a number"),
    ],
)
def test_values_that_are_none(run, slot, values, words):
    assert words in refused(run.embeddings, slot, values)


# ---- the run -----------------------------------------------------------------


def test_the_network_is_a_copy(run, rows, expected):
    network = run.network
    lines = run._checkpoint.golden()[:8]
    inputs = [
        np.array([getattr(line, tensor.name) for line in lines], np.float32).reshape(8, -1)
        for tensor in network.inputs
    ]
    outputs = network.predict(inputs, verbose=0)
    [(head, logits)] = outputs.items()
    logged = [line.logits[head] for line in lines]
    np.testing.assert_allclose(np.asarray(logits)[:, 0], logged, rtol=2e-5, atol=2e-5)
    network.set_weights([np.zeros_like(weight) for weight in network.get_weights()])
    assert run.predict(rows).equals(expected)
    assert run.network is network


def test_the_report(run, trained, run_copy):
    content = json.loads((trained / "run/report.json").read_text())
    assert run.report.metrics["auc"] == content["auc"]
    assert run.report.steps == run.step == content["steps"]
    alone = tnctl.open(checkpoint=run.checkpoint)
    assert "Open the run: output=URL" in refused(lambda: alone.report)
    opened = tnctl.open(run_copy / "run")
    report = run_copy / "run/report.json"
    report.write_bytes(b"{}")
    assert "is damaged" in refused(lambda: opened.report)
    report.unlink()
    assert "written when training ends" in refused(lambda: opened.report)


@pytest.mark.parametrize(
    ("arguments", "named", "words"),
    [
        ((), {}, "which model?"),
        (("nothing",), {}, "nothing has no complete checkpoint"),
        ((7,), {}, "output is a path or URL"),
        (("run",), {"overrides": ["output=run"]}, "Give it as the first argument"),
        (("run",), {"overrides": ["conf=lr"]}, "no key 'conf'"),
        (("run",), {"overrides": ["slots.user_id.seed=5"]}, "trained with"),
        (("run",), {"overrides": ["cluster=local"]}, "one process"),
    ],
)
def test_what_is_no_run(trained, monkeypatch, arguments, named, words):
    monkeypatch.chdir(trained)
    assert words in refused(tnctl.open, *arguments, **named)


def test_what_commands_ask_of_a_run(ran, trained, run, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(trained)
    printed = json.loads(ran("evaluate", "output=run", cwd=trained).out)
    assert run.evaluate() == printed | {"checkpoint": run.checkpoint}
    assert run.predict_files(tmp_path / "scores.csv", "csv") == expected.num_rows
    assert pyarrow.csv.read_csv(tmp_path / "scores.csv").num_rows == expected.num_rows
    assert "is there already" in refused(run.predict_files, tmp_path / "scores.csv", "csv")
    assert {entry.name for entry in run.importance().inputs} >= {"user_id", "price"}
    graph, embeddings = tmp_path / "graph", tmp_path / "embeddings"
    run.split_graph(graph, golden=5)
    run.export_embeddings(embeddings, precision="float16")
    assert all(figure.held for figure in run.verify_serving(graph, embeddings))
    alone = tnctl.open(checkpoint=run.checkpoint)
    assert "give to=URL too" in refused(alone.predict_files)


def test_functions_of_the_other_commands(run_copy, monkeypatch, cli):
    """Each with its command, whose answer is the same."""
    monkeypatch.chdir(run_copy)
    run = tnctl.open("run")
    run.split_graph()
    run.export_embeddings()
    graph, embeddings = "run/graph", "run/embeddings"
    assert all(figure.held for figure in tnctl.verify_artefacts(graph, embeddings))
    assert all(figure.held for figure in run.verify_serving())
    rows = tnctl.score(graph, embeddings, "clicks/test.csv", "scores.csv")
    assert rows == Path("scores.csv").read_text().count("\n") - 1 > 0
    named = [f"graph={graph}", f"embeddings={embeddings}", "input=clicks/test.csv", "to=same.csv"]
    assert cli("score", *named, cwd=run_copy).code == 0
    assert Path("scores.csv").read_text() == Path("same.csv").read_text()
    assert "takes no seed=" in refused(tnctl.score, graph, embeddings, overrides=["seed=3"])
    assert "no format 'orc'" in refused(tnctl.score, graph, embeddings, kind="orc")
    assert "nothing to fold" in refused(tnctl.fold, "redis://host", "folded")
    conf = tnctl.compose("small.yaml", ["output=new"])
    assert tnctl.check(conf, rows=100).sample_rows == 100
    assert "rows must be at least 1" in refused(tnctl.check, conf, rows=0)
    assert "a conf that compose made" in refused(tnctl.check, "small.yaml")
    tnctl.prepare(conf, "ids")
    assert Path("ids/manifest.json").exists()
    assert "run" in [entry.name for entry in tnctl.runs(".").runs]
    assert "no metric 'nope'" in refused(tnctl.runs, ".", "nope")
    assert "either step=N or day=DAY" in refused(tnctl.rollback, "run")
    checkpoint, moved = tnctl.rollback("run", step=run.step)
    assert (checkpoint, moved) == (run.checkpoint, [])


def test_sweeps_and_searches(workspace, monkeypatch):
    monkeypatch.chdir(workspace)
    assert tnctl.sweep("small.yaml", ["seed=1,2", "output=two"]) == 0
    assert sorted(path.name for path in Path("two").iterdir()) == ["seed=1", "seed=2"]
    assert "trains once for each" in refused(tnctl.sweep, "small.yaml", ["seed=1"])
    assert "between 1 and" in refused(tnctl.search, "small.yaml", ["seed=1,2"], trials=0)


def test_damaged_runs(run_copy, rows):
    opened = tnctl.open(run_copy / "run")
    folder = Path(opened.checkpoint)
    largest = max((folder / "tables").rglob("*"), key=lambda path: path.stat().st_size)
    content = largest.read_bytes()
    largest.write_bytes(content[:-1])
    assert str(folder) in refused(opened.predict, rows)
    largest.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert str(folder) in refused(opened.embeddings, "user_id", ["1"])
    (folder / "manifest.json").write_text("{")
    assert str(folder) in refused(tnctl.open, run_copy / "run")
    shutil.rmtree(folder)
    assert str(folder) in refused(opened.predict, rows)


def test_a_run_under_way(run_copy, rows, expected):
    (run_copy / "run/report.json").unlink()
    with files.locked(str(run_copy / "run")):
        opened = tnctl.open(run_copy / "run")
        assert opened.predict(rows).equals(expected)
        assert "written when training ends" in refused(lambda: opened.report)
        conf = tnctl.compose(run_copy / "small.yaml", [f"output={run_copy}/run"])
        assert "is working in" in refused(tnctl.train, conf)


# ---- train -------------------------------------------------------------------


def test_training_is_that_of_the_command(workspace, monkeypatch, rows, expected, run):
    monkeypatch.chdir(workspace)
    conf = tnctl.compose("small.yaml", ["output=run"])
    trained = tnctl.train(conf)
    assert trained.predict(rows).equals(expected)
    assert run.predict(rows).equals(expected)  # two models at once
    assert trained.report.metrics == run.report.metrics
    assert tnctl.train(conf).step == trained.step  # finished: nothing is done
    other = dataclasses.replace(conf, seed=2)
    assert "seed" in refused(tnctl.train, other)


def test_what_cannot_be_trained(workspace, monkeypatch):
    monkeypatch.chdir(workspace)
    conf = tnctl.compose("small.yaml")
    assert "a conf that compose made" in refused(tnctl.train, "small.yaml")
    assert "golden must be" in refused(tnctl.train, conf, golden=-1)
    conf.train.epochs = -1
    assert "train.epochs" in refused(tnctl.train, conf)
    conf.train.epochs, conf.data.train = 1, "nothing.csv"
    assert "nothing.csv" in refused(tnctl.train, conf)


# ---- documents ---------------------------------------------------------------


def code_of(notebook):
    """The sources of the code cells of a notebook, in order."""
    cells = json.loads(notebook.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_the_notebook_and_the_page_run(ran, tmp_path, monkeypatch, capsys):
    """The cells have no magics, so a plain interpreter runs them as a notebook does.

    It needs no kernel, which would import TensorFlow once more in a process of its own.
    """
    monkeypatch.chdir(tmp_path)
    values = {"__name__": "__main__"}
    for source in code_of(NOTEBOOK):
        assert not re.search(r"^\s*[%!]", source, re.M)
        exec(compile(source, str(NOTEBOOK), "exec"), values)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert len(blocks) >= 4
    # The page goes on with the files that the notebook wrote.
    values = {"__name__": "__main__"}
    ran("export-embeddings", "output=runs/first", cwd=tmp_path)
    for source in blocks:
        exec(compile(source, str(PAGE), "exec"), values)
    assert capsys.readouterr().out
    # The export has of users what the run has.
    known = values["embeddings"].filter(values["embeddings"]["known"])
    users = values["users"].filter(values["users"]["embedding"].is_valid())
    assert users["user"].to_pylist() == known["value"].to_pylist() == ["u1", "u2"]
    assert users["embedding"].to_pylist() == known["embedding"].to_pylist()


@pytest.mark.long
def test_types_are_strict(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import tnctl\n"
        'run: tnctl.Run = tnctl.train(tnctl.compose("deepfm", ["train.epochs=2"]))\n'
        'reveal_type(tnctl.open("runs/first").report.steps)\n'
        "reveal_type(run.predict({}).num_rows)\n"
        "tnctl.compose(3)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file",
         str(ROOT / "pyproject.toml"), str(program)],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 1, done.stdout
    assert 'Argument 1 to "compose"' in errors[0]
    assert 'Revealed type is "int"' in done.stdout.replace("builtins.", "")
