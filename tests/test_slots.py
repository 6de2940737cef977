"""Every kind of slot and of numeric input, against Keras' preprocessing and slow models."""

import dataclasses
import itertools
import json
import re
from itertools import pairwise
from pathlib import Path

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
import yaml
from test_columns import hash_bytes

from tnctl import documents
from tnctl.data.features import Features, indicator_width
from tnctl.data.slot_encoder import Encoder, Lists
from tnctl.data.statistics import measure, vocabularies
from tnctl.data.statistics_document import Statistics
from tnctl.errors import Failure, UserError
from tnctl.schema import (
    Conf,
    Data,
    Embedding,
    Label,
    Loss,
    Numeric,
    Slot,
    Train,
    from_values,
)


def value_id(text, seed=0):
    return hash_bytes(text if isinstance(text, bytes) else text.encode(), seed)


def conf_of(slots=None, numeric=None, loss="cross_entropy", embedding=None, batch_size=4, **data):
    data.setdefault("label", Label(column="y"))
    data.setdefault("window", 8)
    return Conf(
        recipe={"name": "lr"},
        slots={"a": Slot()} if slots is None else slots,
        numeric=numeric or {},
        embedding=embedding or Embedding(),
        data=Data(**data),
        train=Train(batch_size=batch_size, loss=Loss(name=loss)),
    )


def tables_of(conf):
    """One table of all slots that have rows."""
    names = [name for name, slot in conf.slots.items() if not slot.indicator]
    spread = [s.max_length if s.pooling == "none" else 1 for s in (conf.slots[n] for n in names)]
    return [(names, spread)] if names else []


def where(row):
    return ("file.csv", row + 1)


def encoded(conf, columns, statistics=None, **options):
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    if "y" not in table.column_names:
        table = table.append_column("y", pa.array(np.zeros(table.num_rows)))
    features = Features(conf, tables_of(conf), statistics or Statistics(), **options)
    return features.encode(table, where)


def cells_of(window):
    offsets = window.offsets[0].tolist()
    return [window.ids[0][a:b].tolist() for a, b in pairwise(offsets)]


def weights_of(window):
    offsets = window.offsets[0].tolist()
    return [window.weights[0][a:b].tolist() for a, b in pairwise(offsets)]


def ids(slot, values, more=None, statistics=None, **data):
    """The ids of each row of one slot `a`."""
    array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
    window = encoded(conf_of({"a": slot}, **data), {"a": array, **(more or {})}, statistics)
    return cells_of(window)


# ---- A slow model of a slot ------------------------------------------------------------------


def model_id(slot, part, missing, several):
    """The id of one value, None where it is missing."""
    if part is None or part in missing or (several and part == ""):
        return None
    if slot.ids in ("boundaries", "quantiles"):
        return sum(bound <= float(part) for bound in slot.boundaries)
    if slot.ids == "integer":
        id_ = int(part) % 2**64
        return None if slot.size is not None and id_ >= slot.size else id_
    hashed = value_id(part, slot.seed)
    if slot.ids == "modulo":
        return hashed % slot.size
    if slot.ids == "vocabulary":
        if part in slot.vocabulary:
            return slot.vocabulary.index(part)
        return len(slot.vocabulary) + hashed % slot.oov if slot.oov else None
    return hashed


def model_missing_id(slot):
    empty = value_id("", slot.seed)
    return {
        "hash": empty,
        "modulo": empty % (slot.size or 1),
        "vocabulary": len(slot.vocabulary or ()) + slot.oov,
        "boundaries": len(slot.boundaries or ()) + 1,
    }[slot.ids]


def model_cell(slot, parts, weights, missing, several):
    """(id, weight) of each value of one row that is left."""
    if slot.pooling == "none" and not several and (parts[0] is None or parts[0] in missing):
        return []  # missing as a whole
    cell = [(model_id(slot, p, missing, several), w) for p, w in zip(parts, weights, strict=True)]
    stands = slot.missing == "value"
    if stands and slot.pooling == "none":
        cell = [(model_missing_id(slot) if i is None else i, w) for i, w in cell]
    cell = [(i, w) for i, w in cell if i is not None and i != slot.padding]
    if slot.max_length is not None:
        cell = cell[: slot.max_length] if slot.keep == "first" else cell[-slot.max_length :]
    if stands and slot.pooling != "none" and not cell:
        cell = [(model_missing_id(slot), 1.0)]
    return cell


KINDS = {
    "hash": {"ids": "hash", "seed": 9},
    "modulo": {"ids": "modulo", "size": 5, "seed": 2},
    "integer": {"ids": "integer"},
    "integer with size": {"ids": "integer", "size": 7},
    "vocabulary": {"ids": "vocabulary", "vocabulary": ["3", "-5", "8", "1"]},
    "vocabulary with oov": {"ids": "vocabulary", "vocabulary": ["8", "11"], "oov": 3, "seed": 4},
    "boundaries": {"ids": "boundaries", "boundaries": [-4.0, 0.0, 3.0, 7.5]},
}
# Numbers in text are values of every kind.
VALUES = [*map(str, range(-6, 13)), None, "", "?"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["one", "list", "text", "json"])
@pytest.mark.parametrize("seed", range(6))
def test_any_slot_is_its_model(kind, form, seed):
    rng = np.random.default_rng([seed, *map(ord, kind + form)])
    several = form != "one"
    keys = dict(KINDS[kind])
    keys["missing"] = str(rng.choice(["none", "value"])) if "integer" not in kind else "none"
    if rng.random() < 0.5:
        keys |= {"max_length": int(rng.integers(1, 4)), "keep": str(rng.choice(["first", "last"]))}
    if "max_length" in keys and rng.random() < 0.4:
        keys["pooling"] = "none"
    weighted = "pooling" not in keys and rng.random() < 0.5
    if weighted:
        keys["weights"] = "w"
    if rng.random() < 0.5:
        keys["padding"] = int(rng.integers(0, 4)) if kind != "hash" else value_id("8", 9)
    keys["separator"] = {"text": "|", "json": "json"}.get(form)
    slot = Slot(**keys)
    if slot.missing == "value" and slot.padding == model_missing_id(slot):
        return  # refused
    rows = []
    for _ in range(40):
        count = int(rng.integers(0, 6)) if several else 1
        rows.append([VALUES[k] for k in rng.integers(0, len(VALUES), count)])
    missing = ["", "?"]
    if form == "text":
        # A text cannot tell a null from an empty part, nor an empty list from an empty text.
        rows = [[part or "" for part in row] for row in rows]
        rows = [[] if row == [""] or row == ["?"] else row for row in rows]
    weights = [[float(rng.integers(-8, 9)) / 4 for _ in row] for row in rows]
    columns = {
        "one": lambda: pa.array([row[0] for row in rows], pa.string()),
        "list": lambda: pa.array([row or (None if k % 2 else []) for k, row in enumerate(rows)]),
        "text": lambda: pa.array(["|".join(row) if row else None for row in rows], pa.string()),
        "json": lambda: pa.array([json.dumps(row) for row in rows]),
    }[form]()
    more = {}
    if weighted:
        more["w"] = {
            "one": lambda: pa.array([row[0] for row in weights]),
            "list": lambda: pa.array(weights, pa.list_(pa.float32())),
            "text": lambda: pa.array(["|".join(map(repr, row)) for row in weights]),
            "json": lambda: pa.array([json.dumps(row) for row in weights]),
        }[form]()
    window = encoded(conf_of({"a": slot}, missing=missing), {"a": columns, **more})
    expected = [
        model_cell(slot, row, given, missing, several)
        for row, given in zip(rows, weights, strict=True)
    ]
    if slot.pooling == "none":
        expected = [
            cell[place : place + 1] for cell in expected for place in range(slot.max_length)
        ]
    assert cells_of(window) == [[i for i, _ in cell] for cell in expected]
    if weighted:
        assert weights_of(window) == [[w for _, w in cell] for cell in expected]
    else:
        assert window.weights == [None]


UNICODE = ["é", "e\u0301", "日本語", "🙂🙃", "a b", " a", "A", "ß", "a\0b", "x" * 100, "\u200b"]


@pytest.mark.parametrize("kind", ["hash", "modulo", "vocabulary"])
def test_unicode_values(kind):
    keys = {
        "hash": {},
        "modulo": {"size": 1009},
        "vocabulary": {"vocabulary": UNICODE[::2], "oov": 1000},
    }[kind]
    slot = Slot(ids=kind, **keys)
    expected = [[model_id(slot, text, [""], False)] for text in UNICODE]
    assert ids(slot, UNICODE) == expected
    assert ids(slot, pa.array(UNICODE).dictionary_encode()) == expected
    assert ids(slot, pa.array(UNICODE, pa.large_binary())) == expected
    assert ids(slot, pa.array(UNICODE, pa.string_view())) == expected
    assert ids(slot, pa.array([json.dumps(UNICODE)])) == ids(slot, [json.dumps(UNICODE)])
    slot.separator = "json"
    assert (
        ids(slot, [json.dumps(UNICODE), json.dumps(UNICODE, ensure_ascii=False)])
        == [[id_ for [id_] in expected]] * 2
    )


# ---- Keras' preprocessing where the meanings coincide ----------------------------------------

WORDS = ["ant", "bee", "cat", "dög"]


def test_standardize_is_keras_normalization(tmp_path):
    rng = np.random.default_rng(2)
    values = rng.normal([3, -2, 100], [1, 5, 0.1], (500, 3)).astype(np.float32)
    layer = keras.layers.Normalization(axis=-1)
    layer.adapt(values)
    table = pa.table({"v": pa.array(values.tolist()), "y": np.zeros(500)})
    pq.write_table(table, tmp_path / "a.parquet")
    conf = conf_of(
        {},
        {"v": Numeric(width=3, transform="standardize")},
        root=str(tmp_path),
        train="a.parquet",
        format="parquet",
    )
    numeric = encoded(conf, table, measure(conf)).numeric
    np.testing.assert_allclose(numeric, np.asarray(layer(values)), rtol=1e-4, atol=2e-4)
    given = Numeric(width=3, transform="standardize", mean=2.0, deviation=0.5)
    layer = keras.layers.Normalization(mean=2.0, variance=0.25)
    conf = conf_of({}, {"v": given})
    numeric = encoded(conf, table, measure(conf)).numeric
    np.testing.assert_allclose(numeric, np.asarray(layer(values)), rtol=1e-6)
    layer = keras.layers.Rescaling(scale=2.0, offset=-4.0)
    np.testing.assert_allclose(numeric, np.asarray(layer(values)), rtol=1e-5)


# ---- TensorFlow's feature columns ------------------------------------------------------------


def input_layer(columns, features):
    """What TensorFlow's input layer makes of feature columns; lists of several values are padded.

    Columns stand in the alphabetical order of their names.
    """

    def tensor(rows):
        if not isinstance(rows[0], list):
            return tf.constant([[row] for row in rows])
        places = [[row, k] for row, values in enumerate(rows) for k in range(len(values))]
        flat = [value for values in rows for value in values]
        return tf.SparseTensor(places, flat, [len(rows), max(map(len, rows))])

    with tf.Graph().as_default():
        given = {name: tensor(rows) for name, rows in features.items()}
        layer = tf.compat.v1.feature_column.input_layer(given, columns)
        with tf.compat.v1.Session() as session:
            start = [tf.compat.v1.global_variables_initializer(), tf.compat.v1.tables_initializer()]
            session.run(start)
            return session.run(layer)


FC = tf.feature_column


@pytest.mark.parametrize(
    ("column", "slot", "values"),
    [
        (
            lambda: FC.bucketized_column(FC.numeric_column("a"), [0.0, 1.5]),
            {"ids": "boundaries", "boundaries": [0.0, 1.5]},
            [-1.0, 0.0, 1.0, 1.5, 9.0],
        ),
        (
            lambda: FC.categorical_column_with_identity("a", 4),
            {"ids": "integer", "size": 4},
            [[0, 3, 3], [1], [2, 0]],
        ),
        (
            lambda: FC.categorical_column_with_vocabulary_list("a", WORDS),
            {"ids": "vocabulary", "vocabulary": WORDS},
            [["cat", "ant", "cat"], ["eel"], ["dög", "eel", "bee"]],
        ),
        (
            lambda: FC.categorical_column_with_vocabulary_list("a", WORDS, num_oov_buckets=1),
            {"ids": "vocabulary", "vocabulary": WORDS, "oov": 1},
            [["cat", "ant", "cat"], ["eel"], ["dög", "eel", "bee"]],
        ),
    ],
)
def test_one_hot_slots_are_indicator_columns(column, slot, values):
    expected = input_layer([FC.indicator_column(column())], {"a": values})
    conf = conf_of({"a": Slot(**slot, indicator=True)})
    np.testing.assert_array_equal(encoded(conf, {"a": values}).numeric, expected)


def test_weighted_one_hot_slots_are_weighted_categorical_columns():
    values, weights = [["ant", "cat", "ant"], ["dög"]], [[0.5, 2.0, 0.25], [-1.0]]
    column = FC.weighted_categorical_column(
        FC.categorical_column_with_vocabulary_list("a", WORDS), "w"
    )
    expected = input_layer([FC.indicator_column(column)], {"a": values, "w": weights})
    slot = Slot(ids="vocabulary", vocabulary=WORDS, weights="w", indicator=True)
    numeric = encoded(conf_of({"a": slot}), {"a": values, "w": weights}).numeric
    np.testing.assert_array_equal(numeric, expected)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_pooling_is_that_of_embedding_columns(combiner):
    """The formulas of docs/slots.md."""
    values, weights = [[0, 2, 2], [1], [3, 0]], [[0.5, 2.0, 0.25], [3.0], [1.0, 0.125]]
    rows = np.random.default_rng(1).normal(size=(4, 2)).astype(np.float32)
    column = FC.embedding_column(
        FC.weighted_categorical_column(FC.categorical_column_with_identity("a", 4), "w"),
        2,
        combiner,
        initializer=tf.compat.v1.constant_initializer(rows),
    )
    expected = input_layer([column], {"a": values, "w": weights})
    slot = Slot(ids="integer", size=4, weights="w", pooling=combiner)
    window = encoded(conf_of({"a": slot}), {"a": values, "w": weights})
    for row, (cell, given) in enumerate(zip(cells_of(window), weights_of(window), strict=True)):
        w = np.array(given)
        divisor = {"sum": 1, "mean": w.sum(), "sqrtn": np.sqrt((w**2).sum())}[combiner]
        np.testing.assert_allclose(w @ rows[cell] / divisor, expected[row], rtol=1e-5)


# ---- One thing at a time ---------------------------------------------------------------------


def test_a_vocabulary_file(tmp_path):
    (tmp_path / "words.txt").write_bytes("\ufeffbee\r\ncat\ndög".encode())
    slot = Slot(ids="vocabulary", vocabulary_file="words.txt", oov=2, missing="value")
    conf = conf_of({"a": slot, "b": Slot(**vars(slot) | {"column": "a"})}, root=str(tmp_path))
    statistics = measure(conf)
    assert statistics.vocabularies == {"a": ["bee", "cat", "dög"], "b": ["bee", "cat", "dög"]}
    text = json.dumps(documents.plain(statistics))
    again = documents.parse(Statistics, text.encode())
    (tmp_path / "words.txt").unlink()
    cells = cells_of(encoded(conf, {"a": ["dög", "eel", None, "bee"]}, again))
    assert cells[::2] == [[2], [3 + value_id("eel") % 2], [5], [0]]
    for text, words in (
        (b"a\n\nb\n", "line 2 is empty"),
        (b"a\nb\na\n", "line 3: 'a' is in line 1 already"),
        (b"a\n\xff\n", "line 2: .* not UTF-8"),
        (b"", "has no line"),
    ):
        (tmp_path / "words.txt").write_bytes(text)
        with pytest.raises(Failure, match=f"words.txt.*{words}"):
            vocabularies(conf)
    (tmp_path / "words.txt").unlink()
    with pytest.raises(Failure, match=r"words\.txt was not found"):
        vocabularies(conf)


def test_a_vocabulary_must_not_hold_missing_texts():
    with pytest.raises(UserError, match=r"slots\.a: '\?' means a missing value"):
        ids(Slot(ids="vocabulary", vocabulary=["x", "?"]), ["x"], missing=["", "?"])


def test_a_large_vocabulary():
    words = [f"w{k * 7919 % 100_003}" for k in range(50_000)]
    rng = np.random.default_rng(0)
    chosen = rng.integers(0, 50_000, 20_000)
    encoder = Encoder("a", Slot(ids="vocabulary", vocabulary=words), Data(), Lists(None, words))
    column = encoder.encode(pa.array(words).take(pa.array(chosen)), where)
    np.testing.assert_array_equal(column.ids, chosen)
    assert column.offsets is None


def test_max_length_and_padding():
    rows = [[1, 2, 3, 4], [0, 0, 5], [0], [6, 0, 7, 0, 8, 0]]
    array = pa.array(rows)
    slot = {"ids": "integer", "padding": 0, "max_length": 2}
    assert ids(Slot(**slot), array) == [[1, 2], [5], [], [6, 7]]
    assert ids(Slot(**slot, keep="last"), array) == [[3, 4], [5], [], [7, 8]]
    with pytest.raises(UserError, match=r"slots\.a: padding=0 is the id of missing values"):
        ids(Slot(padding=0, missing="value"), ["x"])


def test_weights_follow_their_values():
    slot = Slot(ids="integer", separator=",", weights="w", padding=0, max_length=2, keep="last")
    window = encoded(
        conf_of({"a": slot, "b": Slot(ids="integer")}),
        {"a": ["1,0,2,3", "", "0", "4"], "w": ["9,8,7,.5", "", "1", "-2"], "b": [5, 6, 7, None]},
    )
    assert cells_of(window) == [[2, 3], [5], [], [6], [], [7], [4], []]
    # A slot without weights in a table that has some: all are 1.
    assert weights_of(window) == [[7, 0.5], [1], [], [1], [], [1], [-2], []]
    assert window.weights[0].dtype == np.float32


@pytest.mark.parametrize(
    ("values", "weights", "words"),
    [
        (["1", "1,2"], ["1", "1"], r"row 2: column 'a' has 2 values and column 'w' 1 weights"),
        (["1", ""], ["1", "3"], r"row 2: column 'a' has 0 values and column 'w' 1 weights"),
        (["1", "1,2"], ["1", "1,x"], r"row 2, column 'w': 'x' is not a number"),
        (["1", "1,2"], ["1", "1,"], r"row 2, column 'w': the weight .* Received: none"),
        (["1", "1"], ["1", "inf"], r"row 2, column 'w': the weight .* Received: inf"),
    ],
)
def test_weights_that_do_not_fit(values, weights, words):
    slot = Slot(ids="integer", separator=",", weights="w")
    with pytest.raises(Failure, match=words):
        ids(slot, values, {"w": weights})


def test_a_missing_value_needs_no_weight():
    slot = Slot(weights="w")
    window = encoded(conf_of({"a": slot}), {"a": ["x", None], "w": [0.5, None]})
    assert weights_of(window) == [[0.5], []]
    window = encoded(
        conf_of({"a": Slot(weights="w", missing="value")}), {"a": ["x", None], "w": [0.5, None]}
    )
    assert weights_of(window) == [[0.5], [1]]


def model_cross(lists, seed):
    return [
        value_id(b"".join(id_.to_bytes(8, "little") for id_ in combination), seed)
        for combination in itertools.product(*lists)
    ]


@pytest.mark.parametrize("kind", ["hash", "modulo"])
def test_crosses_combine_ids(kind):
    size = 97 if kind == "modulo" else None
    slots = {
        "a": Slot(seed=4),
        "q": Slot(ids="boundaries", boundaries=[1.0, 2.0], width=0, linear=False),
        "axq": Slot(cross=["a", "q"], ids=kind, size=size, seed=11),
        "all": Slot(cross=["a", "tags", "q"], ids=kind, size=size, missing="value"),
    }
    columns = {
        "a": ["x", "y", None, "x"],
        "q": [0.5, 1.0, 7.0, None],
        "tags": pa.array([["s", "t"], [], ["t"], ["u"]]),
    }
    conf = conf_of(slots)
    features = Features(conf, [(["a", "axq", "all"], [1, 1, 1])], Statistics())
    assert features.columns == ["a", "q", "tags", "y"]
    window = features.encode(pa.table({**columns, "y": np.zeros(4)}), where)
    a = [[value_id("x", 4)], [value_id("y", 4)], [], [value_id("x", 4)]]
    q = [[0], [1], [2], []]
    tags = [[value_id("s"), value_id("t")], [], [value_id("t")], [value_id("u")]]
    shown = cells_of(window)
    two = [model_cross(lists, 11) for lists in zip(a, q, strict=True)]
    three = [model_cross(lists, 0) for lists in zip(a, tags, q, strict=True)]
    if size:
        two, three = ([[id_ % size for id_ in row] for row in rows] for rows in (two, three))
    assert shown[1::3] == two
    assert shown[2::3] == [row or [value_id("") % (size or 2**64)] for row in three]


def test_a_cross_of_single_ids_is_single():
    conf = conf_of({"a": Slot(), "b": Slot(), "c": Slot(cross=["a", "b"])})
    texts = [str(k) for k in range(100)]
    window = encoded(conf, {"a": texts, "b": texts[::-1]})
    expected = [
        model_cross([[value_id(x)], [value_id(y)]], 0)
        for x, y in zip(texts, texts[::-1], strict=True)
    ]
    assert cells_of(window)[2::3] == expected


@pytest.mark.parametrize(
    ("slot", "width"),
    [
        (Slot(ids="modulo", size=7, indicator=True), 7),
        (Slot(ids="modulo", size=7, indicator=True, missing="value"), 7),
        (Slot(ids="integer", size=3, indicator=True), 3),
        (Slot(ids="vocabulary", vocabulary=["x", "y"], indicator=True), 2),
        (Slot(ids="vocabulary", vocabulary=["x", "y"], oov=4, indicator=True), 6),
        (Slot(ids="vocabulary", vocabulary=["x"], oov=4, missing="value", indicator=True), 6),
        (Slot(ids="boundaries", boundaries=[0.0, 1.0], indicator=True), 3),
        (Slot(ids="boundaries", boundaries=[0.0, 1.0], missing="value", indicator=True), 4),
        (Slot(ids="quantiles", missing="value", indicator=True), 5),
        (Slot(ids="vocabulary", vocabulary_file="words", indicator=True), 3),
    ],
)
def test_indicators_are_counts_after_the_numbers(slot, width):
    boundaries, vocabularies = {"a": [0.0, 1.0, 2.0]}, {"a": ["x", "y", "z"]}
    statistics = Statistics(boundaries=boundaries, vocabularies=vocabularies)
    assert indicator_width("a", slot, statistics) == width
    conf = conf_of({"a": slot, "b": Slot()}, {"n": Numeric()})
    texts = ["0", "2", "", None, "1"]
    bare = Slot(**vars(slot) | {"indicator": False})
    window = encoded(conf, {"a": texts, "b": ["z"] * 5, "n": [1.0, 2, 3, 4, 5]}, statistics)
    assert window.numeric.shape == (5, 1 + width)
    assert window.numeric[:, 0].tolist() == [1, 2, 3, 4, 5]
    expected = np.zeros((5, width))
    for row, cell in enumerate(ids(bare, texts, statistics=statistics)):
        for id_ in cell:
            expected[row, id_] += 1
    np.testing.assert_array_equal(window.numeric[:, 1:], expected)
    assert len(window.ids[0]) == 5


def test_an_indicator_of_too_many_ids():
    with pytest.raises(UserError, match=r"slots\.a\.indicator would be 5,000 numbers"):
        indicator_width("a", Slot(ids="modulo", size=5000, indicator=True), Statistics())


@pytest.mark.parametrize(
    "text", ["[1, 2", "5", "{}", "[1.5]", "[[1]]", "[NaN]", '["\\ud800"]', "[" * 9000]
)
def test_json_that_is_no_list_of_values(text):
    with pytest.raises(
        Failure, match=r"file\.csv, row 2, column 'a': .* is not a JSON list of texts"
    ) as caught:
        ids(Slot(separator="json"), ['["x"]', text])
    assert "\n" not in str(caught.value)


def test_json_lists():
    texts = ['["x", 7, null, "", "7"]', "[]", "null", "", None, " [ -1 ] "]
    x, seven, minus = value_id("x"), value_id("7"), value_id("-1")
    assert ids(Slot(separator="json"), texts) == [[x, seven, seven], [], [], [], [], [minus]]
    array = pa.array([["x", "7", None, "", "7"], [], None, None, None, ["-1"]])
    assert ids(Slot(separator="json"), array) == ids(Slot(separator="json"), texts)
    slot = Slot(separator="json", ids="boundaries", boundaries=[0.5, 1e3])
    assert ids(slot, ["[0.25, 0.5, 1e9, null]", '["7"]']) == [[0, 1, 2], [1]]


@pytest.mark.parametrize("kind", [pa.float64(), pa.bool_(), pa.list_(pa.string())])
def test_lists_of_other_types_are_refused(kind):
    for array in (pa.array([None, []], pa.list_(kind)), pa.array([[], [None]], pa.list_(kind))):
        with pytest.raises(UserError, match=r"file\.csv: column 'a' is .*, and ids are made of"):
            ids(Slot(), array)


def test_quantiles_of_several_values(tmp_path):
    rows = [[float(k % 7), float(k % 5)] for k in range(100)]
    table = pa.table({"a": rows, "y": np.zeros(100)})
    pq.write_table(table, tmp_path / "a.parquet")
    conf = conf_of(
        {"a": Slot(ids="quantiles", buckets=4)},
        root=str(tmp_path),
        train="a.parquet",
        format="parquet",
    )
    statistics = measure(conf)
    np.testing.assert_array_equal(statistics.boundaries["a"], [1.5, 3, 4.5])
    cells = cells_of(encoded(conf, table, statistics))
    assert cells == [[sum(b <= v for b in (1.5, 3, 4.5)) for v in row] for row in rows]


# ---- The document ----------------------------------------------------------------------------


def test_the_page_of_ids_computes_what_we_compute():
    """docs/formats/ids.md: its code, and the tables of it, against the encoder."""
    text = (Path(__file__).parents[1] / "docs" / "formats" / "ids.md").read_text()
    page = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, page)
    assert page["value_id"]("ü1".encode(), 5) == value_id("ü1", 5)
    rows = re.findall(r"^\| `(.*?)` \| (\d+) \| `([0-9a-f]{16})` \| \d+ \|$", text, re.MULTILINE)
    assert len(rows) == 10
    for value, seed, shown in rows:
        value = "" if value == '""' else value
        slot = Slot(seed=int(seed), missing="value")
        assert ids(slot, [value]) == [[int(shown, 16)]]
        assert page["value_id"](value.encode(), int(seed)) == int(shown, 16)
    assert ids(Slot(ids="modulo", size=1000), ["u1"]) == [[48]]
    assert ids(Slot(ids="modulo", size=1000, seed=3), ["u1"]) == [[275]]
    for first, second, seed in ((1, 2, 0), (2, 1, 0), (value_id("u1"), 3, 7)):
        slots = {"a": Slot(ids="integer"), "b": Slot(ids="integer")}
        slots["c"] = Slot(cross=["a", "b"], seed=seed)
        columns = {"a": pa.array([first], pa.uint64()), "b": [second]}
        [id_] = cells_of(encoded(conf_of(slots), columns))[2]
        assert f"| {seed} | `{id_:016x}` |" in text
        assert page["cross_id"]([first, second], seed) == id_


def test_the_page_of_slots_has_every_key_and_its_examples_are_confs():
    """docs/slots.md."""
    text = (Path(__file__).parents[1] / "docs" / "slots.md").read_text()
    for cls in (Slot, Numeric):
        for field in dataclasses.fields(cls):
            assert re.search(rf"`{field.name}[`:]", text), field.name
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 10
    for block in blocks:
        conf = from_values({"recipe": {"name": "lr"}, **yaml.safe_load(block)})
        kinds = ("quantiles", "row_quantiles")
        measured = {name: [] for name, slot in conf.slots.items() if slot.ids in kinds}
        read = {name: ["x"] for name, slot in conf.slots.items() if slot.vocabulary_file}
        Features(conf, [], Statistics(boundaries=measured, vocabularies=read))


# ---- From outside ----------------------------------------------------------------------------

RECIPE = """\
import keras

from tnctl.model import layers


def build(inputs):
    values, _ = inputs.sequence("history")
    wide = layers.linear_model(inputs.linear, inputs.numeric)
    deep = keras.layers.Concatenate()([inputs.x, keras.layers.Flatten()(values)])
    return layers.total(wide, layers.Logit(name="deep")(deep))
"""
EVERY_SLOT = """\
defaults: [schema, _self_]
recipe: {name: every.py}
embedding: {width: 4}
slots:
  user: {missing: value}
  user_modulo: {column: user, ids: modulo, size: 5, width: 2, linear: false}
  city: {ids: vocabulary, vocabulary_file: cities.txt, oov: 2, frozen: true}
  age: {ids: boundaries, boundaries: [20, 40.5], width: 0, linear: false}
  age_measured: {column: age, ids: quantiles, buckets: 4, missing: value}
  user_x_age: {cross: [user, age], width: 0}
  tags: {separator: "|", weights: given, pooling: sqrtn}
  history: {column: tags, separator: "|", pooling: none, max_length: 2, keep: last, group: tags}
  hot: {column: city, ids: vocabulary, vocabulary: [rome, oslo], indicator: true, missing: value}
  hour: {column: seen, ids: hour, missing: value}
  weekday: {column: seen, ids: weekday, indicator: true}
  user_x_hour: {cross: [user, hour], width: 0}
numeric:
  days: {column: seen, since: "2026-01-01", unit: day, transform: standardize}
  n: {column: age, transform: log1p, default: 30, clip: [0, 50]}
  v: {width: 2, separator: "|", transform: standardize}
data:
  train: train.csv
  validation: train.csv
  label: {column: y, above: 2}
  weight: w
  window: 64
  bad_rows: 3
  times: {seen: {offset: "+01:00"}}
train: {batch_size: 32}
"""


def test_every_kind_of_slot_is_trained_and_served(tmp_path, ran):
    rng = np.random.default_rng(0)
    lines = ["user,city,age,tags,given,v,w,y,seen"]
    for _ in range(300):
        count = int(rng.integers(0, 4))
        values = [
            str(rng.choice(["", "a", "b", "ü"])),
            str(rng.choice(["rome", "oslo", "köln", "bern", ""])),
            str(rng.choice(["", "7", "25", "41.5", "80"])),
            "|".join(f"t{k}" for k in rng.integers(0, 9, count)),
            "|".join(f"{w:.2f}" for w in rng.random(count)),
            f"{rng.normal():.3f}|{rng.normal():.3f}",
            f"{rng.random():.2f}",
            str(rng.integers(0, 6)),
            f"2026-11-{rng.integers(1, 30):02}T{rng.integers(24):02}:30Z" * (rng.random() < 0.9),
        ]
        lines.append(",".join(values))
    lines[100] = "a,rome,25,t1|t2,0.5,1|2,1,0,"  # a weight too few
    lines[200] = "a,rome,25,t1,0.5,1|2|3,1,0,"  # a number too many
    (tmp_path / "train.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "cities.txt").write_text("rome\noslo\nköln\n")
    (tmp_path / "every.py").write_text(RECIPE)
    (tmp_path / "every.yaml").write_text(EVERY_SLOT)
    ran("train", "conf=every.yaml", "output=run", cwd=tmp_path)
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["epochs"][0]["examples"] == 298
    # From here on nothing of the user's is needed but the rows, and the code where it is run.
    (tmp_path / "cities.txt").unlink()
    for command in (
        ["split-graph"], ["export-embeddings"], ["verify-serving", "recipe.name=every.py"]
    ):  # fmt: skip
        ran(*command, "output=run", cwd=tmp_path)
    described = json.loads((tmp_path / "run" / "graph" / "serving.json").read_text())
    assert described["slots"]["city"]["vocabulary"] == ["rome", "oslo", "köln"]
