"""Paths into the objects of JSON lines: what nested columns of the same values have."""

import json
import random

import pyarrow as pa
import pytest

from tnctl.data import column_names
from tnctl.data.formats import jsonl_files
from tnctl.data.formats.jsonl_files import JsonReader
from tnctl.schema import Conf, Data, Slot

DEVICE = pa.struct([("os", pa.string()), ("screen", pa.struct([("width", pa.int64())]))])
SCHEMA = pa.schema([
    ("label", pa.int64()),
    ("device", DEVICE),
    ("items", pa.list_(pa.struct([("id", pa.int64()), ("tags", pa.list_(pa.string()))]))),
    ("device.os.name", pa.string()),
])  # fmt: skip
STRUCTS = ["device.os", "device.screen.width"]
LISTS = ["items.id", "items.tags"]


def rows_of(chance, count):
    """Objects some of whose keys are missing or null."""

    def object_of(**makers):
        return {name: make() for name, make in makers.items() if chance.random() < 0.8}

    def maybe(make):
        return lambda: make() if chance.random() < 0.8 else None

    screen = maybe(lambda: object_of(width=maybe(lambda: chance.randrange(2000))))
    device = maybe(
        lambda: object_of(os=maybe(lambda: chance.choice(["ios", "käfer"])), screen=screen)
    )

    def purchase():
        return {"id": chance.randrange(9), "tags": chance.choices("abc", k=chance.randrange(3))}

    items = maybe(lambda: [purchase() for _ in range(chance.randrange(4))])
    return [
        {"label": k, **object_of(device=device, items=items)} | {"device.os.name": f"n{k}"}
        for k in range(count)
    ]


def reader(of_ids=(), bad_rows=0):
    slots = {f"slot_{k}": Slot(column=name) for k, name in enumerate(of_ids or ["user"])}
    data = Data(train="rows.jsonl", format="jsonl", bad_rows=bad_rows)
    return JsonReader(Conf(recipe={"name": "lr"}, slots=slots, data=data))


def read(folder, rows, needed, of_ids=(), bad_rows=0):
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return list(reader(of_ids, bad_rows).pieces(str(path), needed))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("needed", [STRUCTS, LISTS, [*STRUCTS, *LISTS, "device.os.name", "label"]])
def test_they_are_what_nested_columns_have(tmp_path, seed, needed):
    chance = random.Random(seed)
    rows = [rows_of(chance, 1)[0] for _ in range(chance.choice([3, 200]))]
    for label, row in enumerate(rows):
        row["label"] = label
    [batch] = pa.Table.from_pylist(rows, SCHEMA).to_batches()
    expected = column_names.selected(batch, needed).to_pylist()
    [piece] = read(tmp_path, rows, needed)
    assert piece.bad.rows == 0 and piece.table.to_pylist() == expected


def test_a_key_with_dots_comes_before_a_path(tmp_path):
    rows = [{"a": {"b": 1}}, {"a.b": 2, "a": {"b": 3}}, {"a.b": {"c": 4}}, {"a": {"b": {"c": 5}}}]
    assert [jsonl_files.lookup("a.b.c")(row) for row in rows[2:]] == [4, 5]
    [piece] = read(tmp_path, rows[:2], ["a.b"])
    assert piece.table.to_pylist() == [{"a.b": 1}, {"a.b": 2}]


@pytest.mark.parametrize("many", [1, 300])
def test_a_path_into_another_value_is_null(tmp_path, many):
    rows = [{"label": 1, "device": {"os": "ios"}}] * many + [{"label": 0, "device": "ios"}]
    [piece] = read(tmp_path, rows, ["device.os", "label"])
    assert piece.table.column("device.os").to_pylist() == ["ios"] * many + [None]


def test_flat_keys_with_dots(tmp_path):
    rows = [{"user": "u1", "user.country": "DE", "größe.cm": 5}, {"user": "u2"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    [piece] = reader().pieces(str(tmp_path / "rows.jsonl"), ["user", "user.country", "größe.cm"])
    assert piece.table.column("user.country").to_pylist() == ["DE", None]
    assert piece.table.column("größe.cm").to_pylist() == [5, None]


def test_a_list_in_a_list_is_a_bad_row(tmp_path):
    deep = "[" * 900 + "]" * 900
    (tmp_path / "rows.jsonl").write_text('{"a": {"b": 1}}\n' + f'{{"a": [{deep}]}}\n')
    [piece] = reader(bad_rows=2).pieces(str(tmp_path / "rows.jsonl"), ["a.b"])
    assert piece.table.to_pylist() == [{"a.b": 1}] and piece.bad.rows == 1


def test_an_object_of_very_many_keys_is_none_of_columns():
    rows = [{"counts": {f"item{k}-{j}": 1 for j in range(20)}, "x": {"y": 1}} for k in range(50)]
    assert jsonl_files.paths_of(rows) == ["counts", "x.y"]


def test_an_object_that_is_read_whole_names_the_way(tmp_path):
    [piece] = read(tmp_path, [{"device": {"os": "ios"}}, {"device": "x"}], ["device"], bad_rows=2)
    assert piece.table.to_pylist() == [{"device": "x"}] and "by its path" in piece.bad.first


def test_the_paths_of_objects():
    rows = [
        {"a": None, "list": [], "deep": {"x": {"y": 1}}},
        {"a": {"b": 1}, "list": [{"c": 1}, {"d": None}], "mixed": {"e": 1}},
        {"a": {"f": [1, 2]}, "mixed": 3, "plain": [1]},
    ]
    paths = ["a.b", "a.f", "list.c", "list.d", "deep.x.y", "mixed", "mixed.e", "plain"]
    assert sorted(jsonl_files.paths_of(rows)) == sorted(paths)
    nested = {"k": 0}
    for _ in range(1000):
        nested = {"k": nested}
    [path] = jsonl_files.paths_of([nested])
    assert path.count(".") == column_names.DEEPEST
