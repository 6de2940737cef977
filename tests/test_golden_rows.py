"""Golden rows of the trainer, and a scorer's inputs by serving.json alone."""

import itertools
import json
import random
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tnctl import schema
from tnctl.checkpoint import load as loading
from tnctl.checkpoint.golden_lines import parse
from tnctl.data import preparing
from tnctl.data.arrow_tables import as_table, raw_rows
from tnctl.data.features import Features
from tnctl.data.formats.jsonl_files import cutters
from tnctl.data.slot_encoder import Cells
from tnctl.data.sources import Source
from tnctl.data.statistics import measure
from tnctl.data.windows import windows
from tnctl.errors import Failure
from tnctl.evaluation.inference import Inference
from tnctl.evaluation.predictions import GoldenRows
from tnctl.evaluation.split_scoring import features_of
from tnctl.serving import golden_checks, graph_inputs, verification
from tnctl.serving.artefact_document import GoldenDeviation, GoldenEntry
from tnctl.serving.golden_checks import GoldenFile, golden_of_checkpoint
from tnctl.serving.graph import splitting
from tnctl.serving.graph.loaded_graph import open_graph
from tnctl.serving.graph.serving_json import describe
from tnctl.serving.rows import export
from tnctl.serving.rows.embeddings import open_embeddings
from tnctl.serving.scoring import Scorer
from tnctl.tables.records import CVM_COLUMNS
from tnctl.training.run import train

SLOTS = {
    "a": {"missing": "value"},
    "b": {"separator": "|", "pooling": "sqrtn"},
    "c": {"separator": "|", "weights": "w", "pooling": "mean"},
    "c2": {"column": "c", "separator": "|", "weights": "w", "pooling": "sqrtn", "group": "c"},
    "d": {"ids": "quantiles", "buckets": 5},
    "d2": {"column": "d", "ids": "boundaries", "boundaries": [0, 5, 9.5], "missing": "value"},
    "e": {"ids": "vocabulary", "vocabulary": ["x", "y"], "oov": 1},
    "e_hot": {"column": "e", "ids": "vocabulary", "vocabulary": ["x", "y"], "indicator": True},
    "h": {"separator": "|", "pooling": "none", "max_length": 3, "keep": "last"},
    "k": {"ids": "integer", "size": 7, "padding": 3},
    "m": {"column": "a", "ids": "modulo", "size": 11, "frozen": True},
    "ae": {"cross": ["a", "e"]},
    "only": {"column": "e", "width": 0},
    "wide": {"column": "b", "separator": "|", "linear": False, "width": 5},
}
NUMERIC = {
    "n": {"transform": "standardize"},
    "n_log": {"column": "n", "transform": "log1p", "default": 2.0},
}


def write_rows(path, rows, seed=0):
    """Clicks with everything that a slot can meet."""
    chance = random.Random(seed)
    values = [f"v{number}" for number in range(40)]

    def several(most):
        return chance.choices(values, k=chance.randrange(most))

    lines = ["a,b,c,w,d,e,n,y,h,k"]
    for number in range(rows):
        weighted = several(6)
        weights = [f"{chance.gauss(0.5, 1):.3f}" for _ in weighted]
        row = [
            chance.choice([*values, ""]), "|".join(several(4)), "|".join(weighted),
            "|".join(weights), chance.randrange(-5, 30) if number % 9 else "",
            chance.choice("xyz") if number % 5 else "", f"{chance.gauss(0, 3):.4f}"
            if number % 7 else "", chance.randrange(2), "|".join(several(6)), chance.randrange(9),
        ]  # fmt: skip
        lines.append(",".join(map(str, row)))
    Path(path).write_text("\n".join(lines) + "\n")


def conf_of(folder, **changed):
    values = {
        "output": str(folder / "run"),
        "recipe": {"name": "wide_deep", "hidden": [8]},
        "slots": SLOTS,
        "numeric": NUMERIC,
        "embedding": {"width": 3},
        # Rows decay, and are read decayed.
        "optimizer": {"embedding": {"name": "adam", "learning_rate": 0.05, "weight_decay": 0.1}},
        "life": {"shows": {"keep": True, "cvm": True, "decay": 0.5}},
        "data": {
            "root": str(folder), "train": "train.csv", "validation": "validation.csv",
            "label": {"column": "y"}, "window": 256,
        },
        "train": {"batch_size": 64},
        "evaluation": {"ablate": False},
    }  # fmt: skip
    for key, value in changed.items():
        values[key] = {**values.get(key, {}), **value} if isinstance(value, dict) else value
    return schema.from_values(values)


class Model:
    """A trained model of a conf, and what is served of it."""

    def __init__(self, conf, golden=200):
        train(conf, golden=golden)
        self.checkpoint = loading.newest_or_fail(conf.output)
        self.conf = schema.from_values(self.checkpoint.conf())
        self.model = loading.load(self.checkpoint, self.conf)
        self.description = describe(self.checkpoint, self.conf)
        self.golden = golden_of_checkpoint(self.checkpoint)


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """A model with every kind of slot and number."""
    folder = tmp_path_factory.mktemp("golden")
    write_rows(folder / "train.csv", 700)
    write_rows(folder / "validation.csv", 260, seed=1)
    return Model(conf_of(folder))


class Tables:
    """The rows of a model's tables, as exported embeddings give them; `change` them if wanted."""

    def __init__(self, model, change=None, without=()):
        self._model, self._change = model, change
        self.groups = {
            group: (table, number, int(layout.linear) + layout.kind.columns)
            for table, layout in zip(model.tables, model.layout.tables, strict=True)
            for group, number in layout.groups.items()
            if group not in without
        }

    def lookup(self, group, ids):
        table, number, columns = self.groups[group]
        rows_or_none = [table.lookup(number, id_) for id_ in ids.tolist()]
        known = np.array([row is not None for row in rows_or_none], bool)
        rows = np.zeros((len(ids), columns), np.float32)
        for place in np.flatnonzero(known):
            rows[place] = rows_or_none[place]
        return rows if self._change is None else self._change(group, rows), known


class Kept(dict):
    write = dict.__setitem__


# ---- Pooling, slowly ---------------------------------------------------------


def slowly_pooled(rows, pooling, weights=None):
    """One cell: float32 [columns], summed id after id."""
    total = np.zeros(rows.shape[1], np.float32)
    for number, row in enumerate(rows):
        total = total + (row if weights is None else row * weights[number])
    if weights is None:
        n = np.float32(max(len(rows), 1))
        divisor = {"sum": np.float32(1), "mean": n, "sqrtn": np.sqrt(n)}[pooling]
    else:
        divisor = np.float32(0)
        for weight in weights:
            divisor = divisor + (weight * weight if pooling == "sqrtn" else weight)
        divisor = np.sqrt(divisor) if pooling == "sqrtn" else divisor
        divisor = np.float32(1) if pooling == "sum" else divisor
    return total / divisor if divisor > 0 else np.zeros_like(total)


@pytest.mark.parametrize("pooling", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weighted", [False, True])
def test_cells_are_pooled_in_the_order_of_their_ids(pooling, weighted):
    chance = np.random.default_rng(5)
    lengths = np.array([0, 1, 7, 0, 2, 1, 300, 3])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    rows = chance.normal(size=(offsets[-1], 4)) * 10.0 ** chance.integers(-3, 4, (offsets[-1], 1))
    rows = rows.astype(np.float32)
    weights = chance.normal(size=offsets[-1]).astype(np.float32) if weighted else None
    cells = Cells(np.arange(offsets[-1], dtype=np.uint64), offsets, weights)
    pooled = graph_inputs.pooled(rows, cells, pooling)
    for number, (first, end) in enumerate(itertools.pairwise(offsets)):
        of_cell = None if weights is None else weights[first:end]
        expected = slowly_pooled(rows[first:end], pooling, of_cell)
        np.testing.assert_array_equal(pooled[number], expected)


def test_no_cell_is_pooled_to_nothing():
    none = Cells(np.empty(0, np.uint64), np.zeros(1, np.int32), None)
    assert graph_inputs.pooled(np.empty((0, 3), np.float32), none, "mean").shape == (0, 3)


# ---- What the trainer writes -------------------------------------------------


def test_golden_rows_are_what_the_tables_and_the_network_say(everything):
    """Ids and weights of a line give its inputs, slowly; those give its logits."""
    model, description = everything.model, everything.description
    tables, layout = Tables(model), model.layout
    examples = everything.golden.examples
    assert len(examples) == 200
    places = description.inputs
    for example in examples:
        x = np.zeros(layout.width, np.float32)
        sequences = np.zeros(layout.sequences_width, np.float32)
        linear = np.float32(0)
        assert set(example.ids) == set(layout.slots)
        for name in layout.slots:  # the order of the sum
            slot = everything.conf.slots[name]
            ids = np.array([int(id_) for id_ in example.ids[name]], np.uint64)
            rows, _ = tables.lookup(slot.group or name, ids)
            has_linear = int(everything.conf.has_linear(slot))
            if name == "h":
                assert example.lengths == [len(ids)]
                sequences[: len(ids) * 5] = rows[:, 1:].reshape(-1)
                for row in rows:
                    linear = linear + row[0]
                continue
            weights = example.weights.get(name)
            weights = None if weights is None else np.array(weights, np.float32)
            cell = slowly_pooled(rows, slot.pooling, weights)
            if has_linear:
                linear = linear + cell[0]
            if name in places:
                place = places[name]
                x[place.at : place.end] = cell[has_linear:]
        numbers = places["n"].at
        np.testing.assert_array_equal(x[:numbers], np.float32(example.x[:numbers]))
        assert linear == np.float32(example.linear)
        np.testing.assert_array_equal(sequences, np.float32(example.sequences))
    given = everything.golden.inputs(description)
    inference = Inference(model, 200)
    for name, array in given.items():
        getattr(inference.buffers, name)[:] = array
    logits = inference.of_inputs(200)[:, 0]
    np.testing.assert_allclose(
        everything.golden.outputs("logits", "label"), logits, rtol=2e-5, atol=2e-5
    )
    expected = 1 / (1 + np.exp(-logits.astype(np.float64)))
    np.testing.assert_allclose(
        everything.golden.outputs("predictions", "label"), expected, rtol=2e-5
    )


def test_golden_rows_are_raw_rows_and_floats_are_exact(everything):
    header, *lines = Path(everything.conf.data.root, "validation.csv").read_text().splitlines()
    for example, line in zip(everything.golden.examples, lines, strict=False):
        cells = dict(zip(header.split(","), line.split(","), strict=True))
        row = example.row
        assert set(row) == set(cells)
        assert [row["a"] or "", row["b"] or "", row["y"]] == [
            cells["a"],
            cells["b"],
            int(cells["y"]),
        ]
        assert row["n"] == (float(cells["n"]) if cells["n"] else None)
        for number in example.x:
            assert float(np.float32(number)) == number


def test_lines_change_with_the_model_and_nothing_changes_with_them(everything):
    """As the trainer does: the same rows again, after a step; the model is only read."""
    model = loading.load(everything.checkpoint, everything.conf)
    golden, inference = GoldenRows(everything.conf, model, 9), Inference(model, 4)
    counts = [table.rows for table in model.tables]
    lines = golden.lines(inference)
    kept = everything.golden.examples[:9]
    for line, example in zip(lines, kept, strict=True):
        for key in ("row", "ids", "weights", "x", "linear", "sequences", "lengths"):
            assert getattr(line, key) == getattr(example, key)
        assert line.logits["label"] == pytest.approx(example.logits["label"], rel=2e-5)
    model.dense.weights[-1][:] += np.float32(1)
    moved = golden.lines(inference)
    assert moved[0].x == lines[0].x
    apart = moved[0].logits["label"] - lines[0].logits["label"]
    assert apart == pytest.approx(1, abs=1e-5)
    model.dense.weights[-1][:] = np.float32("nan")
    assert golden.lines(inference) == []
    assert counts == [table.rows for table in model.tables]


def test_prepared_data_keeps_the_raw_rows(everything, tmp_path):
    plain = everything.conf
    preparing.prepare(plain, str(tmp_path / "prepared"))
    data = {**vars(plain.data), "prepared": str(tmp_path / "prepared"), "label": {"column": "y"}}
    conf = conf_of(Path(plain.data.root), data={"prepared": str(tmp_path / "prepared")})
    assert data["prepared"] == conf.data.prepared
    model = everything.model
    lines = GoldenRows(conf, model, 50).lines(Inference(model, 64))
    for line, example in zip(lines, everything.golden.examples, strict=False):
        assert [line.row, line.ids, line.x] == [example.row, example.ids, example.x]
    assert len(lines) == 50


def test_rows_that_cannot_be_read_are_no_golden_rows(everything, tmp_path):
    lines = Path(everything.conf.data.root, "validation.csv").read_text().splitlines()
    fields = lines[2].split(",")
    fields[9] = "many"
    Path(tmp_path, "validation.csv").write_text("\n".join([*lines[:2], ",".join(fields), lines[3]]))
    conf = conf_of(tmp_path)
    golden_lines = GoldenRows(conf, everything.model, 10).lines(Inference(everything.model, 64))
    assert [line.x for line in golden_lines] == [everything.golden.examples[i].x for i in (0, 2)]


def test_bytes_that_are_not_utf8_come_through(everything, tmp_path):
    header = Path(everything.conf.data.root, "validation.csv").read_text().splitlines()[0]
    Path(tmp_path, "validation.csv").write_bytes(
        header.encode() + b"\n\xff\xfe,v1|\xfa,v1,1,3,x,1,0,,5\n"
    )
    conf = conf_of(tmp_path, data={"check_utf8": False})
    [line] = GoldenRows(conf, everything.model, 10).lines(Inference(everything.model, 64))
    from tnctl.tables.columns import hash_bytes

    assert line.row["a"] == "\udcff\udcfe"
    assert line.ids["a"] == [str(hash_bytes(b"\xff\xfe"))]
    assert line.ids["b"][1] == str(hash_bytes(b"\xfa"))
    again = graph_inputs.RawInputs(everything.description).encode([parse(line.to_json()).row])
    assert str(again.cells["a"].ids[0]) == line.ids["a"][0]


def test_raw_rows_of_every_type_come_to_the_same_ids_and_numbers(tmp_path):
    """Through JSON and back, whatever the columns of the files were."""
    n, chance = 40, np.random.default_rng(2)
    texts = pa.array([None if i % 7 == 0 else f"t{i % 5}" for i in range(n)])
    big = pa.array((chance.integers(0, 2**63, n, np.uint64) * 2).tolist(), pa.uint64())
    lists = [[f"l{j}" for j in range(i % 4)] if i % 9 else None for i in range(n)]
    columns = {
        "text": texts, "coded": texts.dictionary_encode(), "large": texts.cast(pa.large_string()),
        "bytes": pa.array([b"\xff" * (i % 4) for i in range(n)]), "big": big,
        "small": pa.array(range(-20, 20), pa.int8()), "lists": pa.array(lists),
        "numbers": pa.array([list(range(i % 3)) for i in range(n)], pa.list_(pa.int16())),
        "none": pa.nulls(n), "no lists": pa.array([[]] * n, pa.list_(pa.string())),
        "pair": pa.array([[i, i / 3] for i in range(n)], pa.list_(pa.float32(), 2)),
        "float": pa.array([float("nan") if i % 8 == 0 else i / 7 for i in range(n)], pa.float32()),
        "decimal": pa.array([Decimal(i) / 4 for i in range(n)], pa.decimal128(10, 3)),
        "truth": pa.array([i % 2 == 0 for i in range(n)]), "y": pa.array([0, 1] * (n // 2)),
    }  # fmt: skip
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    slots = ("text", "coded", "large", "bytes", "big", "small", "lists", "numbers", "none")
    conf = schema.from_values(
        {
            "recipe": {"name": "lr"},
            "slots": {
                **{name: {"missing": "value"} for name in slots},
                "no_lists": {"column": "no lists"},
                "as_they_are": {"column": "big", "ids": "integer"},
                "cut": {"column": "float", "ids": "boundaries", "boundaries": [1, 2.5]},
            },
            "numeric": {name: {} for name in ("float", "decimal", "truth", "small_too")}
            | {"small_too": {"column": "small"}, "pair": {"width": 2}},
            "data": {
                "root": str(tmp_path), "train": "a.parquet", "format": "parquet",
                "label": {"column": "y"}, "check_utf8": False,
            },
        }
    )  # fmt: skip
    names = list(conf.slots)
    features = Features(conf, [(names, [1] * len(names))], measure(conf), labelled=False)
    [window] = windows(Source(conf, "train"), features)
    rows = json.loads(json.dumps(raw_rows(Source(conf, "train"), n)))
    again = features.encode(
        as_table(rows, cutters(conf), features.columns), lambda row: ("rows", row)
    )
    for arrays, other in ((window.ids, again.ids), (window.offsets, again.offsets)):
        np.testing.assert_array_equal(arrays[0], other[0])
    np.testing.assert_array_equal(window.numeric, again.numeric)


# ---- What a scorer makes of them ---------------------------------------------


def test_a_scorer_has_the_trainers_inputs(everything):
    """From raw rows by serving.json, and rows by their ids: the same bits."""
    encoded = golden_checks.encoded_rows(everything.golden, everything.description)
    inputs = graph_inputs.pooled_inputs(
        everything.description, encoded, Tables(everything.model).lookup
    )
    expected = everything.golden.inputs(everything.description)
    assert set(inputs) == set(expected) == {"x", "linear", "sequences", "lengths"}
    for name, array in inputs.items():
        assert array.dtype == expected[name].dtype
        np.testing.assert_array_equal(array, expected[name])


def test_rows_of_mixed_types_and_missing_keys(everything):
    raw = graph_inputs.RawInputs(everything.description)
    rows = [{"a": 7, "k": "5", "n": "1.5"}, {"a": "7", "k": 5, "n": 1.5, "b": ["v1", "v2"]}, {}]
    encoded = raw.encode(rows)
    assert encoded.cells["a"].ids[0] == encoded.cells["a"].ids[1]
    np.testing.assert_array_equal(encoded.cells["k"].lengths(), [1, 1, 0])
    np.testing.assert_array_equal(encoded.cells["b"].lengths(), [0, 2, 0])
    assert encoded.numeric[0, 0] == encoded.numeric[1, 0] != 0 == encoded.numeric[2, 0]


def test_an_export_has_the_golden_rows_of_the_checkpoint(everything):
    tables = Tables(everything.model)
    arguments = everything.checkpoint, everything.conf, tables
    files = Kept()
    entry = golden_checks.check_embeddings(*arguments, files, 200, exact=True)
    assert entry == GoldenEntry(rows=200, exact=True, deviation=GoldenDeviation(x=0.0, logit=0.0))
    stored = Path(everything.checkpoint.folder, "golden.jsonl").read_bytes()
    assert files == {"golden.jsonl": stored}
    files = Kept()
    assert golden_checks.check_embeddings(*arguments, files, 7, exact=True).rows == 7
    assert files["golden.jsonl"] == b"".join(stored.splitlines(keepends=True)[:7])
    files = Kept()
    assert golden_checks.check_embeddings(*arguments, files, 0, exact=True) is None
    assert files == {}


@pytest.mark.parametrize("rows", [200, 0])
def test_an_export_with_a_wrong_float_fails(everything, rows):
    def change(group, payload):
        if group == "c":
            payload[:, 2] = np.nextafter(payload[:, 2], np.float32(9))
        return payload

    files = Kept()
    with pytest.raises(Failure, match=r"line \d+: column \d+ of x is"):
        golden_checks.check_embeddings(
            everything.checkpoint, everything.conf, Tables(everything.model, change), files, rows,
            exact=True,
        )  # fmt: skip
    assert files == {}


def test_golden_rows_of_rounded_rows_are_of_those_rows(everything, capsys):
    def change(group, payload):
        linear = int(everything.conf.has_linear(everything.conf.slots[group]))
        width = payload.shape[1] - linear - CVM_COLUMNS * (payload.shape[1] > 1)
        part = slice(linear, linear + width)
        payload[:, part] = payload[:, part].astype(np.float16)
        return payload

    files, tables = Kept(), Tables(everything.model, change)
    entry = golden_checks.check_embeddings(
        everything.checkpoint, everything.conf, tables, files, 200, exact=False
    )
    assert entry.exact is False
    golden = GoldenFile("new", files["golden.jsonl"])
    old, new = (rows.inputs(everything.description)["x"] for rows in (everything.golden, golden))
    assert entry.deviation.x == np.abs(old.astype(float) - new).max() > 0
    assert 0 < entry.deviation.logit < 0.01
    encoded = golden_checks.encoded_rows(golden, everything.description)
    pooled = graph_inputs.pooled_inputs(everything.description, encoded, tables.lookup)
    np.testing.assert_array_equal(pooled["x"], new)
    assert f"{entry.deviation.x:.2g}" in capsys.readouterr().err
    inference = Inference(everything.model, 200)
    for name, array in pooled.items():
        getattr(inference.buffers, name)[:] = array
    logits = inference.of_inputs(200)[:, 0]
    np.testing.assert_allclose(golden.outputs("logits", "label"), logits, rtol=2e-5, atol=2e-5)


def test_slots_that_a_filter_left_out_read_zeros(everything):
    files, tables = Kept(), Tables(everything.model, without=("b", "h"))
    golden_checks.check_embeddings(
        everything.checkpoint, everything.conf, tables, files, 50, exact=False
    )
    golden = GoldenFile("new", files["golden.jsonl"])
    place = everything.description.inputs["b"]
    x = golden.inputs(everything.description)["x"]
    assert not x[:, place.at : place.end].any()
    assert not any(any(example.sequences) for example in golden.examples)
    assert any(example.lengths != [0] for example in golden.examples)


def test_a_graph_is_checked_with_both_signatures(everything, tmp_path):
    from tnctl.model import graph

    graph.save(everything.model, str(tmp_path / "graph"))
    given = everything.checkpoint, everything.description
    files = Kept()
    entry = golden_checks.check_graph(*given, str(tmp_path / "graph"), files, 30)
    assert entry.rows == 30 and entry.exact and entry.deviation.logit <= 2e-5
    wrong = loading.load(everything.checkpoint, everything.conf)
    wrong.dense.weights[-1][0] += np.float32(0.001)
    graph.save(wrong, str(tmp_path / "wrong"))
    with pytest.raises(Failure, match="does not give the trainer's logits"):
        golden_checks.check_graph(*given, str(tmp_path / "wrong"), Kept(), 0)


def test_ids_that_are_not_those_of_the_row_are_refused(everything):
    example = json.loads(everything.golden.lines[0])
    example["ids"]["a"] = ["5"]
    golden = GoldenFile("golden.jsonl", json.dumps(example).encode())
    with pytest.raises(Failure, match=r"line 1: slot a has ids 5, and its raw value gives \d+"):
        golden_checks.encoded_rows(golden, everything.description)


def test_all_of_it_is_served_as_it_was_trained(everything, tmp_path):
    """Split, exported, verified on other examples, and scored from raw rows, slot by slot."""
    conf, given = everything.conf, (everything.checkpoint, everything.conf)
    graph, rows = str(tmp_path / "graph"), str(tmp_path / "embeddings")
    splitting.split(*given, graph)
    export.export(*given, rows, encoding="dictionary")
    findings = verification.verify(*given, graph, rows) + verification.verify_artefacts(graph, rows)
    assert [finding for finding in findings if not finding.held] == []
    names = ("x", "linear", "sequences", "lengths")
    assert [finding.what for finding in findings[:4]] == [
        f"{n} from the files, bit by bit" for n in names
    ]
    features = features_of(conf, everything.model, labelled=False)
    whole = replace(conf, data=replace(conf.data, window=1024))
    [window] = windows(Source(whole, "validation"), features)
    expected = Inference(everything.model, window.rows)(window)[:, 0]
    with closing(open_embeddings(rows)) as embeddings:
        scores = Scorer(open_graph(graph), embeddings)(raw_rows(Source(conf, "validation"), 1000))
    np.testing.assert_allclose(scores["logit"], expected, rtol=2e-5, atol=2e-5)


# ---- Of which model ----------------------------------------------------------


def is_of_its_checkpoint(checkpoint):
    """Whether golden inputs are those of the rows that the checkpoint has, when loaded."""
    conf = schema.from_values(checkpoint.conf())
    tables = Tables(loading.load(checkpoint, conf))
    return golden_checks.check_embeddings(checkpoint, conf, tables, Kept(), 200, exact=True).exact


def test_every_day_has_the_golden_rows_of_its_model(tmp_path):
    """Without data.validation the rows are those of the day."""
    for number in (1, 2):
        write_rows(tmp_path / f"2026-01-0{number}.csv", 150, seed=number)
    conf = conf_of(tmp_path, data={"train": "{day}.csv", "validation": None}, save={"keep": 0})
    train(conf, golden=5)
    folders = sorted((tmp_path / "run/checkpoints").iterdir())
    assert len(folders) == 2
    for number, folder in enumerate(folders, 1):
        checkpoint = loading.open_checkpoint(str(folder))
        assert is_of_its_checkpoint(checkpoint)
        header, *lines = (tmp_path / f"2026-01-0{number}.csv").read_text().splitlines()
        at = header.split(",").index("b")
        rows = [line.row for line in checkpoint.golden()]
        assert [row["b"] for row in rows] == [line.split(",")[at] for line in lines[:5]]


def test_the_best_model_has_its_own_golden_rows(tmp_path):
    write_rows(tmp_path / "train.csv", 300)
    write_rows(tmp_path / "validation.csv", 200, seed=1)
    conf = conf_of(
        tmp_path,
        train={"epochs": 4},
        evaluation={"keep": "best", "monitor": "logloss", "every_steps": 3, "ablate": False},
        save={"keep": 0},
        optimizer={"embedding": {"name": "adam", "learning_rate": 0.5}},
    )
    report = train(conf, golden=30)
    checkpoint = loading.newest_or_fail(conf.output)
    assert checkpoint.step == report.best.step < report.steps
    assert is_of_its_checkpoint(checkpoint)


def test_a_sequence_of_nulls_alone_is_empty_as_beside_a_list(everything):
    slots = {**everything.description.slots}
    slots["h"] = replace(slots["h"], separator=None, missing="value", missing_id="1")
    raw = graph_inputs.RawInputs(replace(everything.description, slots=slots))
    beside = raw.encode([{"h": None}, {"h": ["v1", None]}]).cells["h"]
    alone = raw.encode([{"h": None}]).cells["h"]
    assert beside.lengths().tolist() == [0, 2]
    assert alone.lengths().tolist() == [0]
    beside = raw.encode([{"h": None}, {"h": "v1"}, {"h": ""}]).cells["h"]
    assert beside.lengths().tolist() == [0, 1, 0]
