"""Dictionaries, lists and structs of Parquet and ORC: equal to plain lists of the same values."""

import numpy as np
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from bounded import conf_of, read, refused

from tnctl import limits
from tnctl.data import arrow_tables, column_names, numbers
from tnctl.data.column_names import require_paths, selected, stored_columns
from tnctl.data.sources import Source
from tnctl.errors import Failure, UserError
from tnctl.schema import Numeric, Slot

WORDS = [["u", "v"], [], None, ["w"], ["u", "u", "x"], ["v", None]]
NUMBERS = [[1, 2], [], None, [3], [1, 1, 4], [2, None]]
SINGLE = ["u", None, "v", "w", "u", "x"]


def ids_of(folder, column, kind=None, **slot):
    """The ids and lengths of one column, read from Parquet in groups of two rows."""
    array = column if isinstance(column, pa.Array) else pa.array(column, kind)
    table = pa.table({"a": array, "y": [0.0] * len(array)})
    pq.write_table(table, folder / "a", row_group_size=2)
    [window] = read(conf_of(folder / "a", "parquet", {"a": Slot(**slot)}))
    return window.ids[0].tolist(), np.diff(window.offsets[0]).tolist()


def dictionary(values, kind):
    return pa.array(values, kind).dictionary_encode()


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.int32()])
def test_dictionaries(tmp_path, kind):
    plain = [None if text is None else ord(text) for text in SINGLE]
    values = plain if kind == pa.int32() else SINGLE
    values = [v.encode() if kind == pa.binary() and v else v for v in values]
    expected = ids_of(tmp_path, values, kind, missing="value")
    assert ids_of(tmp_path, dictionary(values, kind), missing="value") == expected
    if kind != pa.int32():
        assert expected == ids_of(tmp_path, SINGLE, missing="value")


@pytest.mark.parametrize("make", [pa.list_, pa.large_list])
@pytest.mark.parametrize("slot", [{}, {"missing": "value"}, {"max_length": 1, "keep": "last"}])
def test_lists(tmp_path, make, slot):
    """Of texts, integers and dictionaries."""
    expected = ids_of(tmp_path, WORDS, pa.list_(pa.string()), **slot)
    assert ids_of(tmp_path, WORDS, make(pa.large_string()), **slot) == expected
    offsets = pa.array([0, 2, 2, 2, 3, 6, 8], pa.int32())
    values = dictionary(["u", "v", "w", "u", "u", "x", "v", None], pa.string())
    of_dictionary = pa.ListArray.from_arrays(offsets, values)
    assert ids_of(tmp_path, of_dictionary, **slot) == expected
    if "missing" not in slot:
        ids, lengths = ids_of(tmp_path, NUMBERS, make(pa.int16()), ids="integer", **slot)
        assert lengths == expected[1]
        assert set(ids) <= {1, 2, 3, 4} and len(ids) == len(expected[0])


def test_lists_of_fixed_size(tmp_path):
    rows = [["u", "v"], None, ["w", "u"], [None, "x"]]
    for inner in (pa.string(), pa.large_string()):
        fixed = ids_of(tmp_path, rows, pa.list_(inner, 2))
        assert fixed == ids_of(tmp_path, rows, pa.list_(pa.string()))
    numbered = [[1, 2], None, [3, 1], [None, 4]]
    fixed = ids_of(tmp_path, numbered, pa.list_(pa.int64(), 2), ids="integer")
    assert fixed == ([1, 2, 3, 1, 4], [2, 0, 2, 1])


def slow_join(rows):
    """Lists in lists as one list for each row."""
    if rows is None:
        return []
    return [v for row in rows for v in (slow_join(row) if isinstance(row, list | None) else [row])]


def listed_of(array):
    """The values of a column of a batch, and how many each row has."""
    batch = pa.RecordBatch.from_arrays([array], ["a"])
    return numbers.listed(column_names.selected(batch, ["a"]).column("a").combine_chunks())


@pytest.mark.parametrize("kind", [
    pa.list_(pa.list_(pa.int64())), pa.large_list(pa.list_(pa.int64())),
    pa.list_(pa.list_(pa.int64(), 2)),
])  # fmt: skip
def test_lists_in_lists_are_joined(tmp_path, kind):
    rows = [[[1, 2], [3, 4]], [], None, [None, [5, 6]], [[7, 8]], [[9, 1], None, [2, 3]]]
    joined = [slow_join(row) for row in rows]
    assert joined[5] == [9, 1, 2, 3]
    expected = [value for row in joined for value in row], list(map(len, joined))
    assert ids_of(tmp_path, rows, kind, ids="integer") == expected
    values, lengths = listed_of(pa.array(rows, kind).slice(1, 4))
    assert (values.to_pylist(), lengths.tolist()) == ([5, 6, 7, 8], [0, 0, 2, 2])
    deep = pa.array([[[[1], []], [[2, 3]]], [[]], [[[4]]]])
    values, lengths = listed_of(deep)
    assert (values.to_pylist(), lengths.tolist()) == ([1, 2, 3, 4], [3, 0, 1])


def test_the_limit_counts_joined_values(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "ROW_VALUES", 3)
    pq.write_table(pa.table({"a": [[[1], [2]], [[1, 2], [3, 4]]], "y": [0.0, 1.0]}), tmp_path / "a")
    refused(conf_of(tmp_path / "a", "parquet"), "a, row 2, column 'a': 4 values")


def test_a_text_that_is_too_long_is_not_split(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "LINE_BYTES", 9)
    pq.write_table(pa.table({"a": ["1,2", "1,2,3,4,5,"], "y": [0.0, 1.0]}), tmp_path / "a")
    conf = conf_of(tmp_path / "a", "parquet", {"a": Slot(separator=",")})
    refused(conf, "a, row 2, column 'a': 10 bytes, and a row has at most 9")


def test_a_matrix_is_a_vector(tmp_path):
    rows = [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]]
    pq.write_table(pa.table({"a": ["x", "y"], "m": rows, "y": [0.0, 1.0]}), tmp_path / "a")
    numeric = {"n": Numeric(column="m", width=4)}
    [window] = read(conf_of(tmp_path / "a", "parquet", numeric=numeric))
    assert window.numeric.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]


BASKET = [
    [{"id": "p", "count": 2.0}, {"id": "q", "count": 0.5}],
    [],
    None,
    [{"id": None, "count": 1.0}],
]
NESTED = {
    "user": pa.array([{"country": "DE", "name": {"first": "a"}}, None,
                      {"country": None, "name": {"first": "b"}}, {"country": "FR", "name": None}]),
    "basket": pa.array(BASKET),
    "tags": pa.array([[("t", 1.5)], [], None, [("t", 1.0), ("s", 0.0)]],
                     pa.map_(pa.string(), pa.float64())),
    "user.age": [1, 2, 3, 4],
    "y": [0.0, 1.0, 0.0, 1.0],
}  # fmt: skip
PATHS = {
    "user.country": ["DE", None, None, "FR"],
    "user.name.first": ["a", None, "b", None],
    "basket.id": [["p", "q"], [], None, [None]],
    "basket.count": [[2.0, 0.5], [], None, [1.0]],
    "tags.key": [["t"], [], None, ["t", "s"]],
    "tags.value": [[1.5], [], None, [1.0, 0.0]],
    "user.age": [1, 2, 3, 4],
    "y": [0.0, 1.0, 0.0, 1.0],
}


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_fields_by_their_paths(tmp_path, kind):
    table = pa.table(NESTED)
    if kind == "orc":
        pa.orc.write_table(table, str(tmp_path / "a"))
    else:
        pq.write_table(table, tmp_path / "a", row_group_size=3)
    conf = conf_of(tmp_path / "a", kind)
    pieces = list(Source(conf, "train").pieces(list(PATHS)))
    rows = pa.concat_tables(piece.table for piece in pieces)
    assert rows.column_names == list(PATHS)
    assert rows.to_pydict() == PATHS
    for path, values in PATHS.items():
        pieces = Source(conf, "train").pieces([path])
        assert [v for piece in pieces for v in piece.table.column(path).to_pylist()] == values
    weighted = {
        "items": Slot(column="basket.id", weights="basket.count"),
        "tags": Slot(column="tags.key", weights="tags.value"),
    }
    [window] = read(conf_of(tmp_path / "a", kind, weighted))
    assert window.weights[0].tolist() == [2, 0.5, 1.5, 1, 0]
    assert np.diff(window.offsets[0]).tolist() == [2, 1, 0, 0, 0, 0, 0, 2]
    for column, words in (("tags", "map"), ("user", "struct"), ("basket", "struct")):
        slots = {"a": Slot(column=column)}
        conf = conf_of(tmp_path / "a", kind, slots)
        refused(conf, f"column '{column}' is", words, kind=UserError)


def test_structs_within_structs_have_paths_to_a_depth():
    kind = pa.int64()
    for _ in range(40):
        kind = pa.struct([("a", kind)])
    assert column_names.paths_of(pa.schema([("a", kind)])) == [".".join("a" * 33)]


def test_slices_of_tables():
    """As a program may give them: parts of larger arrays."""
    whole = pa.RecordBatch.from_pydict(NESTED)
    for start, count in ((0, 4), (1, 3), (3, 1), (2, 0)):
        part = selected(whole.slice(start, count), list(PATHS))
        part.validate(full=True)
        expected = {path: values[start : start + count] for path, values in PATHS.items()}
        assert part.to_pydict() == expected


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("users", "Did you mean 'user'"),
        ("user.land", "'user' is struct<"),
        ("user.country.x", "Name the column alone"),
        ("y.x", "'y' is double"),
        ("tags.val", "Did you mean 'value'"),
        ("basket.ids", "Did you mean 'id'"),
        (".", "no column '.'"),
        ("user.", "no column 'user.'"),
    ],
)
def test_paths_that_are_not_there(path, words):
    with pytest.raises(Failure) as caught:
        require_paths("f", [path], pa.table(NESTED).schema)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_paths_into_columns_that_are_null_are_null():
    """Of a DataFrame without rows pandas knows no types."""
    for kind in (pa.null(), pa.list_(pa.null()), pa.struct([("country", pa.null())])):
        for n in (0, 2):
            batch = pa.RecordBatch.from_arrays([pa.nulls(n, kind)], ["user"])
            for path in ("user.country", "user.country.name"):
                require_paths("f", [path], batch.schema)
                assert stored_columns([path], batch.schema)[0].startswith("user")
                assert selected(batch, [path]).to_pydict() == {path: [None] * n}


def test_an_empty_frame_has_paths():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"user": [{"country": "DE"}], "y": [1.0]})
    conf = conf_of("x", "parquet", {"a": Slot(column="user.country")})
    for part, values in ((frame, ["DE"]), (frame.head(0), [])):
        windows = list(arrow_tables.windows_of(part, conf, ["user.country", "y"], 10))
        read = [value for window in windows for value in window["user.country"].to_pylist()]
        assert read == values
