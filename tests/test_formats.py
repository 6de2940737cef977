"""Golden files (tests/golden, made by its make.py): a stranger reads them, and so does tnctl.

The readers in the first half are written from docs/formats alone; they import nothing of tnctl.
"""

import hashlib
import importlib.util
import json
import math
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests/golden"
FORMATS = ROOT / "docs/formats"
MASK = 2**64 - 1

# ---- A stranger's readers ---------------------------------------------------


def mix64(x: int) -> int:
    x = (x ^ x >> 33) * 0xFF51AFD7ED558CCD & MASK
    x = (x ^ x >> 33) * 0xC4CEB9FE1A85EC53 & MASK
    return x ^ x >> 33


def value_id(value: str, seed: int = 0) -> int:
    data, h = value.encode(), seed
    for at in range(0, len(data), 8):
        h = mix64(h ^ int.from_bytes(data[at : at + 8], "little"))
    return mix64(h ^ len(data))


def key_hash(group: str, id_: int) -> int:
    return mix64(id_ ^ value_id(group))


def read_manifest(folder: Path, name: str = "manifest.json", version: int = 1) -> dict[str, Any]:
    """The manifest, after its own checksum and those of all files have been checked."""
    text = (folder / name).read_bytes()
    start, mark, end = text.rpartition(b'  "sha256": "')
    assert mark and end == hashlib.sha256(start).hexdigest().encode() + b'"\n}\n'
    manifest = json.loads(text)
    assert manifest["version"] == version
    for file, entry in manifest["files"].items():
        data = (folder / file).read_bytes()
        assert len(data) == entry["bytes"], file
        assert hashlib.sha256(data).hexdigest() == entry["sha256"], file
    return manifest


def read_rows(folder: Path, table: dict[str, Any], entry: dict[str, Any]) -> np.ndarray:
    """The records of one file of a table."""
    fields = [(f["name"], f["type"], (f["count"],)) for f in table["record"]]
    data = read_stored(folder, entry["file"])
    magic, version, size, first, last = struct.unpack_from("<8sIIQQ", data)
    assert (magic, version) == (b"tnctlrow", 1)
    assert (first, last) == (int(entry["first"], 16), int(entry["last"], 16))
    assert size == np.dtype(fields).itemsize and len(data) == 32 + size * entry["rows"]
    return np.frombuffer(data, fields, offset=32)


def read_stored(folder: Path, name: str) -> bytes:
    """A file of a checkpoint, decompressed by its suffix."""
    data = (folder / name).read_bytes()
    return pa.input_stream(pa.py_buffer(data), "zstd").read() if name.endswith(".zst") else data


def read_chain(folder: Path) -> tuple[dict[tuple[int, int], Any], dict[tuple[int, int], int]]:
    """The rows, and the removed keys with their steps, of the only table: by (group, id)."""
    manifest = read_manifest(folder)
    rows: dict[tuple[int, int], Any] = {}
    removed: dict[tuple[int, int], int] = {}
    if manifest["parent"] is not None:
        above = folder.parent / manifest["parent"]["folder"]
        assert read_manifest(above)["sha256"] == manifest["parent"]["sha256"]
        rows, removed = read_chain(above)
    [table] = manifest["tables"]
    if table["tombstones"] is not None:
        data = read_stored(folder, table["tombstones"]["file"])
        assert struct.unpack_from("<8sII", data) == (b"tnctltmb", 1, 14)
        for id_, group, step in struct.iter_unpack("<QHI", data[16:]):
            rows.pop((group, id_), None)
            removed[group, id_] = step
    for entry in table["files"]:
        for record in read_rows(folder, table, entry):
            key = int(record["group"][0]), int(record["id"][0])
            rows[key] = record
            removed.pop(key, None)
    assert len(rows) == table["rows"]
    return rows, removed


def read_dense(folder: Path, part: dict[str, Any]) -> dict[str, dict[str, np.ndarray]]:
    """Of each variable its weights and every state, by names."""
    data = (folder / part["file"]).read_bytes()
    assert struct.unpack_from("<8sII", data) == (b"tnctlden", 1, len(part["variables"]))
    floats, at = np.frombuffer(data, "<f4", offset=16), 0
    variables: dict[str, dict[str, np.ndarray]] = {v["name"]: {} for v in part["variables"]}
    for kind in ["weights", *part["states"]]:
        for variable in part["variables"]:
            end = at + math.prod(variable["shape"])
            variables[variable["name"]][kind] = floats[at:end].reshape(variable["shape"])
            at = end
    assert at == len(floats)
    return variables


def read_embeddings(folder: Path) -> dict[str, dict[int, np.ndarray]]:
    """Of each group: id -> linear weight and embedding, float32 [1 + width]."""
    groups = {}
    for group in read_manifest(folder)["groups"]:
        table = pq.read_table(folder / group["file"])
        assert table.column_names == ["id", "linear", "embedding"]
        assert table.num_rows == group["rows"]
        ids, linear, embedding = (column.to_pylist() for column in table.columns)
        groups[group["group"]] = {
            id_: np.array([w, *v], np.float32)
            for id_, w, v in zip(ids, linear, embedding, strict=True)
        }
    return groups


def ids_of(slot: dict[str, Any], value: Any, missing: list[str]) -> list[int]:
    """A raw value to the ids of one slot."""
    if slot["ids"] == "quantiles":
        if value is not None:
            return [sum(boundary <= value for boundary in slot["boundaries"])]
        return [len(slot["boundaries"]) + 1] if slot["missing"] == "value" else []
    parts = [] if value is None else [value]
    if slot["separator"]:
        parts = [part for whole in parts for part in whole.split(slot["separator"]) if part]
    parts = [part for part in parts if part not in missing]
    if slot["ids"] == "integer":
        return [int(part) & MASK for part in parts]
    if not parts and slot["missing"] == "value":
        parts = [""]
    return [value_id(part, slot["seed"]) for part in parts]


def number_of(numeric: dict[str, Any], value: float | None) -> float:
    """A raw number to the numeric input."""
    value = numeric["default"] if value is None else value
    if value is None:
        return 0.0
    if numeric["transform"] == "log1p":
        return math.copysign(math.log1p(abs(value)), value)
    if numeric["transform"] == "standardize":
        return (value - numeric["mean"]) / numeric["deviation"]
    return value


def pooled(rows: list[np.ndarray], width: int, pooling: str) -> np.ndarray:
    total = np.zeros(width, np.float32)
    for row in rows:
        total = total + row
    if len(rows) > 1 and pooling != "sum":
        n = np.float32(len(rows))
        total = total / (n if pooling == "mean" else np.sqrt(n))
    return total


def inputs_of(
    serving: dict[str, Any], embeddings: dict[str, dict[int, np.ndarray]], row: dict[str, Any]
) -> dict[str, list[float]]:
    """A raw row to the inputs of signature by_slot."""
    inputs, linear = {}, np.zeros(1, np.float32)
    for name in serving["linear"]["adds"]:
        slot = serving["slots"][name]
        ids = ids_of(slot, row[slot["column"]], serving["data"]["missing"])
        zeros = np.zeros(1 + slot["width"], np.float32)
        weights = [embeddings[slot["group"]].get(id_, zeros) for id_ in ids]
        cell = pooled(weights, 1 + slot["width"], slot["pooling"])
        linear = linear + cell[:1]
        inputs[name] = cell[1:].tolist()
    for name, numeric in serving["numeric"].items():
        inputs[name] = [number_of(numeric, row[numeric["column"]])]
    return inputs | {"linear": linear.tolist()}


SCORER = """
import json, sys
sys.modules.update(tnctl=None, keras=None)  # importing either fails
import tensorflow as tf
graph = tf.saved_model.load(sys.argv[1])
columns = json.load(sys.stdin)
inputs = {name: tf.constant(values, tf.float32) for name, values in columns.items()}
outputs = graph.signatures[sys.argv[2]](**inputs)
print(json.dumps([outputs[name].numpy().tolist() for name in ("logits", "predictions")]))
"""


def served(graph: Path, signature: str, columns: dict[str, list[Any]]) -> list[list[float]]:
    """Logits and predictions from a process that has neither tnctl nor Keras."""
    run = subprocess.run(
        [sys.executable, "-c", SCORER, str(graph), signature],
        input=json.dumps(columns),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def golden_lines(folder: Path = GOLDEN / "checkpoint") -> list[dict[str, Any]]:
    text = (folder / "golden.jsonl").read_text("ascii")
    return [json.loads(line) for line in text.splitlines()]


def golden_rows() -> list[dict[str, Any]]:
    return [line["row"] for line in golden_lines()]


def golden_records() -> tuple[dict[str, Any], np.ndarray]:
    manifest = read_manifest(GOLDEN / "checkpoint")
    [table] = manifest["tables"]
    [entry] = table["files"]
    return table, read_rows(GOLDEN / "checkpoint", table, entry)


# ---- What a stranger finds --------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "name", "kind"),
    [
        ("checkpoint", "manifest.json", "tnctl checkpoint"),
        ("embeddings", "manifest.json", "tnctl embeddings"),
        ("prepared", "manifest.json", "tnctl prepared"),
        ("graph", "serving.json", "tnctl graph"),
    ],
)
def test_manifests_agree_with_their_folders(folder: str, name: str, kind: str) -> None:
    manifest = read_manifest(GOLDEN / folder, name)
    assert manifest["format"] == kind
    present = {
        path.relative_to(GOLDEN / folder).as_posix()
        for path in (GOLDEN / folder).rglob("*")
        if path.is_file()
    }
    assert present == {*manifest["files"], name}
    if folder in ("embeddings", "graph"):
        checkpoint = read_manifest(GOLDEN / "checkpoint")
        assert manifest["checkpoint"]["sha256"] == checkpoint["sha256"]
        assert manifest["checkpoint"]["step"] == checkpoint["clock"]["step"]


def test_golden_hashes() -> None:
    golden = json.loads((GOLDEN / "ids.json").read_text("utf-8"))
    assert len(golden["ids"]) == 16
    for case in golden["ids"]:
        assert value_id(case["text"], case["seed"]) == int(case["id"], 16), case
    for name, salt in golden["salts"].items():
        assert value_id(name) == int(salt, 16), name


def test_the_worked_values_of_the_document() -> None:
    text = (FORMATS / "ids.md").read_text("utf-8")
    hashes = re.findall(r"^\| `(.*?)` \| (\d+) \| `([0-9a-f]{16})` \| (\d+) \|$", text, re.M)
    assert len(hashes) >= 8
    for value, seed, hexadecimal, decimal in hashes:
        value = "" if value == '""' else value
        assert value_id(value, int(seed)) == int(hexadecimal, 16) == int(decimal), value
    keys = re.findall(
        r"^\| `(\w+)` \| `([0-9a-f]{16})` \| `([0-9a-f]{16})` \| `([0-9a-f]{16})` \|$", text, re.M
    )
    assert len(keys) >= 2
    for group, salt, id_, hash_ in keys:
        assert value_id(group) == int(salt, 16)
        assert key_hash(group, int(id_, 16)) == int(hash_, 16)


def test_golden_rows_file() -> None:
    table, records = golden_records()
    assert records.dtype.itemsize == 64 and len(records) == table["rows"] == 22
    names = {group["number"]: group["name"] for group in table["groups"]}
    groups = records["group"][:, 0]
    for group in table["groups"]:
        assert (groups == group["number"]).sum() == group["rows"]
    keys = [
        (key_hash(names[int(group)], int(id_)), int(group))
        for group, id_ in zip(groups, records["id"][:, 0], strict=True)
    ]
    assert keys == sorted(keys) and len(set(keys)) == len(keys)
    assert (records["flags"] == 0).all()


def test_golden_rows_hold_the_ids_of_the_golden_rows() -> None:
    serving = read_manifest(GOLDEN / "graph", "serving.json")
    expected = {
        (slot["group"], id_)
        for row in golden_rows()
        for slot in serving["slots"].values()
        for id_ in ids_of(slot, row[slot["column"]], serving["data"]["missing"])
    }
    table, records = golden_records()
    names = {group["number"]: group["name"] for group in table["groups"]}
    ids = {
        (names[int(group)], int(id_))
        for group, id_ in zip(records["group"][:, 0], records["id"][:, 0], strict=True)
    }
    assert ids == expected
    # -1 and 2^64 - 1 are one id.
    assert ("campaign", MASK) in ids


def record_of(group: str, id_: int) -> np.void:
    table, records = golden_records()
    [number] = [g["number"] for g in table["groups"] if g["name"] == group]
    [record] = records[(records["group"][:, 0] == number) & (records["id"][:, 0] == id_)]
    return record


def initial_embedding(group: str, id_: int) -> np.ndarray:
    """Uniform in [-0.5, 0.5), seed 7, segment 1, as docs/design.md has it."""
    seed = mix64(mix64(mix64(7 ^ value_id(group)) + 1 & MASK) ^ key_hash(group, id_))
    draws = [mix64(seed + j * 0x9E3779B97F4A7C15 & MASK) >> 40 for j in range(3)]
    return np.float32(0.5) * (np.array(draws, np.float32) * np.float32(2**-23) - np.float32(1))


def test_a_row_inserted_and_not_trained() -> None:
    record = record_of("user", value_id("u3", 3))
    assert record["changed"] == 2
    assert record["linear.accumulator"] == 12
    assert record["linear"] == 0
    assert record["embedding.steps"] == 0
    assert not record["embedding.m"].any() and not record["embedding.v"].any()
    assert record["embedding"].tobytes() == initial_embedding("user", value_id("u3", 3)).tobytes()


def test_a_row_trained_once() -> None:
    id_ = value_id("i6")
    record = record_of("item", id_)
    assert record["changed"] == 1
    assert record["linear.accumulator"] == 16
    assert record["linear"] == -1
    assert record["embedding.steps"] == 1
    assert (record["embedding.m"] == 1).all() and (record["embedding.v"] == 1).all()
    assert (record["embedding"] == initial_embedding("item", id_) - np.float32(0.25)).all()


def test_gradients_of_one_row_are_summed() -> None:
    # i2 is one of two in row 1 and alone in row 2: 2 / 2 + 2 = 3.
    record = record_of("item", value_id("i2"))
    assert record["linear.accumulator"] == 12 + 3**2
    assert (record["embedding.m"] == 1.5).all()


def test_golden_dense_file() -> None:
    part = read_manifest(GOLDEN / "checkpoint")["dense"]
    dense = read_dense(GOLDEN / "checkpoint", part)
    assert part["step"] == 1 and part["states"] == ["m", "v"]
    assert dense["deep/dense/kernel"]["weights"].shape == (17, 2)
    for arrays in dense.values():
        n = arrays["weights"].size
        expected = (np.arange(n) % 8 - 4) / 8 - 0.25
        assert (arrays["weights"].ravel() == expected).all()
        assert (arrays["m"] == 1).all() and (arrays["v"] == 1).all()


def test_golden_embeddings_are_the_rows() -> None:
    table, records = golden_records()
    names = {group["number"]: group["name"] for group in table["groups"]}
    embeddings = read_embeddings(GOLDEN / "embeddings")
    order: dict[str, list[int]] = {name: [] for name in embeddings}
    for record in records:
        group, id_ = names[int(record["group"][0])], int(record["id"][0])
        order[group].append(id_)
        expected = np.concatenate([record["linear"], record["embedding"]])
        assert embeddings[group][id_].tobytes() == expected.tobytes()
    assert {group: list(rows) for group, rows in embeddings.items()} == order


def test_golden_graph_scores_in_a_strangers_hands() -> None:
    serving = read_manifest(GOLDEN / "graph", "serving.json")
    embeddings = read_embeddings(GOLDEN / "embeddings")
    examples = [inputs_of(serving, embeddings, row) for row in golden_rows()]
    by_slot = {name: [example[name] for example in examples] for name in examples[0]}
    inputs = serving["signatures"]["by_slot"]
    assert set(by_slot) == {entry["name"] for entry in inputs}
    packed_x = next(entry for entry in serving["signatures"]["packed"] if entry["name"] == "x")
    x = np.zeros((len(examples), packed_x["columns"]), np.float32)
    for entry in inputs:
        if entry["source"] == "x":
            x[:, entry["at"] : entry["at"] + entry["columns"]] = by_slot[entry["name"]]
    packed = {"x": x.tolist(), "linear": by_slot["linear"]}
    expected = deep_fm(x, np.array(by_slot["linear"]))
    for signature, columns in (
        ("by_slot", by_slot),
        ("packed", packed),
        ("serving_default", by_slot),
    ):
        logits, predictions = served(GOLDEN / "graph", signature, columns)
        np.testing.assert_allclose(logits, expected, rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(predictions, 1 / (1 + np.exp(-expected)), rtol=2e-5)


def test_golden_lines_are_what_a_stranger_finds() -> None:
    serving = read_manifest(GOLDEN / "graph", "serving.json")
    embeddings = read_embeddings(GOLDEN / "embeddings")
    places = {entry["name"]: entry for entry in serving["signatures"]["by_slot"]}
    for line in golden_lines():
        for name, slot in serving["slots"].items():
            ids = ids_of(slot, line["row"][slot["column"]], serving["data"]["missing"])
            assert [str(id_) for id_ in ids] == line["ids"][name]
        x = np.array(line["x"], np.float32)
        assert x.tolist() == line["x"]
        inputs = inputs_of(serving, embeddings, line["row"])
        for name, values in inputs.items():
            if name == "linear":
                assert values == [line["linear"]]
            else:
                at = places[name]["at"]
                assert (x[at : at + len(values)] == np.array(values, np.float32)).all(), name
        [expected] = deep_fm(x[np.newaxis], np.array([[line["linear"]]]))
        assert math.isclose(line["logits"]["label"], expected, rel_tol=2e-5, abs_tol=2e-5)
        prediction = 1 / (1 + math.exp(-line["logits"]["label"]))
        assert math.isclose(line["predictions"]["label"], prediction, rel_tol=1e-6)
    for part in ("embeddings", "graph"):
        same = (GOLDEN / part / "golden.jsonl").read_bytes()
        assert same == (GOLDEN / "checkpoint/golden.jsonl").read_bytes()


def deep_fm(x: np.ndarray, linear: np.ndarray) -> np.ndarray:
    """DeepFM in float64 from the dense file: 5 slots of 3, then 2 numbers."""
    part = read_manifest(GOLDEN / "checkpoint")["dense"]
    w = {
        name: arrays["weights"].astype(np.float64)
        for name, arrays in read_dense(GOLDEN / "checkpoint", part).items()
    }
    x = x.astype(np.float64)
    stack = x[:, :15].reshape(-1, 5, 3)
    pairs = 0.5 * (stack.sum(axis=1) ** 2 - (stack**2).sum(axis=1)).sum(axis=1, keepdims=True)
    hidden = np.maximum(x @ w["deep/dense/kernel"] + w["deep/dense/bias"], 0)
    deep = hidden @ w["deep_logit/kernel"] + w["deep_logit/bias"]
    return (linear + x[:, 15:] @ w["numeric/kernel"] + pairs + deep)[:, 0]


# ---- What tnctl makes of them -----------------------------------------------


def make() -> Any:
    """tests/golden/make.py as a module."""
    spec = importlib.util.spec_from_file_location("make_golden", GOLDEN / "make.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def with_root(values: dict[str, Any], threads: int = 2) -> dict[str, Any]:
    return {
        **values,
        "data": {**values["data"], "root": str(GOLDEN)},
        "train": {**values["train"], "threads": threads},
    }


def same_file(folder: Path, name: str) -> None:
    assert (folder / name).read_bytes() == (GOLDEN / "checkpoint" / name).read_bytes(), name


def test_tnctl_hashes_as_ever() -> None:
    assert make().hashes() == json.loads((GOLDEN / "ids.json").read_text("utf-8"))


def test_tnctl_loads_the_golden_checkpoint(tmp_path: Path) -> None:
    from tnctl import schema
    from tnctl.checkpoint import load
    from tnctl.serving import verification
    from tnctl.serving.rows import export

    checkpoint = load.open_checkpoint(str(GOLDEN / "checkpoint"))
    conf = schema.from_values(with_root(checkpoint.conf()))
    model = load.load(checkpoint, conf)
    make().save(model, str(tmp_path / "again"))
    for name in ("tables/embedding3/00000.rows", "dense.bin"):
        same_file(tmp_path / "again", name)
    findings = verification.verify(
        checkpoint, conf, str(GOLDEN / "graph"), str(GOLDEN / "embeddings")
    )
    assert all(finding.held for finding in findings), findings
    export.export(checkpoint, conf, str(tmp_path / "embeddings"))
    now, then = read_embeddings(tmp_path / "embeddings"), read_embeddings(GOLDEN / "embeddings")
    assert {g: [(i, w.tobytes()) for i, w in rows.items()] for g, rows in now.items()} == {
        g: [(i, w.tobytes()) for i, w in rows.items()] for g, rows in then.items()
    }


@pytest.mark.parametrize("threads", [1, 3])
def test_tnctl_still_writes_the_same_bytes(tmp_path: Path, threads: int) -> None:
    maker = make()
    maker.save(maker.trained(with_root(maker.CONF, threads)), str(tmp_path / "new"))
    for name in ("tables/embedding3/00000.rows", "dense.bin"):
        same_file(tmp_path / "new", name)
    for line, golden in zip(golden_lines(tmp_path / "new"), golden_lines(), strict=True):
        logit = golden.pop("logits")["label"]
        # TensorFlow's sums differ from machine to machine.
        assert math.isclose(line.pop("logits")["label"], logit, rel_tol=2e-5, abs_tol=2e-5)
        assert line.pop("predictions").keys() == golden.pop("predictions").keys()
        assert line == golden
    now, then = read_manifest(tmp_path / "new"), read_manifest(GOLDEN / "checkpoint")
    for key in ("format", "version", "clock", "position", "statistics", "tables"):
        assert now[key] == then[key], key
    # Names of variables are Keras' own.
    for manifest in (now, then):
        shapes = [variable["shape"] for variable in manifest["dense"].pop("variables")]
        assert shapes == [[2, 1], [17, 2], [2], [2, 1], [1]]
    assert now["dense"] == then["dense"]


CHAIN = GOLDEN / "chain/checkpoints"


def test_golden_chain() -> None:
    full, delta = sorted(CHAIN.iterdir())
    base, none = read_chain(full)
    assert not none and read_manifest(full)["kind"] == "full"
    rows, removed = read_chain(delta)
    [table] = read_manifest(delta)["tables"]
    assert read_manifest(delta)["kind"] == "delta" and table["files"][0]["file"].endswith(".zst")
    # Rows of the first two steps alone were unseen for 2 steps, which is more than 1.
    assert removed and set(removed) == set(base) - set(rows) and set(removed.values()) == {4}
    assert sum(group["evicted"] for group in table["groups"]) == len(removed)
    names = {group["number"]: group["name"] for group in table["groups"]}
    # u2 is in example 1 alone, which the last two steps did not train on.
    assert {names[group] for group, _ in removed} >= {"user"}
    for record in rows.values():
        assert record["changed"][0] in (3, 4) and record["show"][0] > 0
        assert 0 <= record["click"][0] <= record["show"][0]
    sketch = read_stored(delta, table["sketch"]["file"])
    assert struct.unpack_from("<8sII", sketch) == (b"tnctlskt", 1, 0)
    assert len(sketch) == 16 + table["sketch"]["bytes"] and table["sketch"]["bytes"] % 256 == 0
    # Each counted id is in one counter of each of the 4 lines of its range, unless two share one.
    counters = np.frombuffer(sketch, np.uint8, offset=16).reshape(64, 4, -1)
    assert counters.any(axis=2).any(axis=1).sum() > 1
    assert (counters.any(axis=2).all(axis=1) == counters.any(axis=2).any(axis=1)).all()


def test_golden_checkpoint_of_three_owners(tmp_path: Path) -> None:
    """The model of the chain, its rows, removed keys and counters in three ranges."""
    from tnctl import schema
    from tnctl.checkpoint import load
    from tnctl.serving.rows import export

    folder, delta = GOLDEN / "owners", sorted(CHAIN.iterdir())[1]
    [table] = read_manifest(folder, version=2)["tables"]
    [whole] = read_manifest(delta)["tables"]
    assert table["groups"] == whole["groups"] and table["record"] == whole["record"]
    rows, removed = read_chain(delta)
    bounds = [64 * rank // 3 << 58 for rank in range(3)]
    for key in ("files", "tombstone_files", "sketch_files"):
        assert [int(entry["first"], 16) for entry in table[key]] == bounds, key
        assert int(table[key][-1]["last"], 16) == MASK
    read = [record for entry in table["files"] for record in read_rows(folder, table, entry)]
    assert {(int(r["group"][0]), int(r["id"][0])): r.tobytes() for r in read} == {
        key: record.tobytes() for key, record in rows.items()
    }
    names = {group["number"]: group["name"] for group in table["groups"]}
    gone = {}
    for entry in table["tombstone_files"]:
        data = read_stored(folder, entry["file"])
        assert struct.unpack_from("<8sII", data) == (b"tnctltmb", 1, 14)
        for id_, group, step in struct.iter_unpack("<QHI", data[16:]):
            hash_ = key_hash(names[group], id_)
            assert int(entry["first"], 16) <= hash_ <= int(entry["last"], 16)
            gone[group, id_] = step
    assert gone == removed
    parts = [read_stored(folder, entry["file"]) for entry in table["sketch_files"]]
    assert all(struct.unpack_from("<8sII", part) == (b"tnctlskt", 1, 0) for part in parts)
    assert b"".join(part[16:] for part in parts) == read_stored(delta, whole["sketch"]["file"])[16:]
    checkpoints = [load.open_checkpoint(str(path)) for path in (folder, delta)]
    assert load.digest(checkpoints[0]) == load.digest(checkpoints[1])
    conf, exported = schema.from_values(with_root(make().CHAIN)), []
    for number, checkpoint in enumerate(checkpoints):
        export.export(checkpoint, conf, str(tmp_path / str(number)), golden=0)
        exported.append(read_embeddings(tmp_path / str(number)))
    for group, embeddings in exported[0].items():
        assert embeddings.keys() == exported[1][group].keys()
        assert all((exported[1][group][id_] == row).all() for id_, row in embeddings.items())


def test_tnctl_reads_and_writes_the_golden_chain(tmp_path: Path) -> None:
    from tnctl import schema
    from tnctl.checkpoint import load, rows

    maker = make()
    conf = with_root(maker.CHAIN, 3) | {"output": str(tmp_path)}
    for name in maker.chain(conf):
        then, now = (load.open_checkpoint(str(top / name)) for top in (GOLDEN / "chain", tmp_path))
        assert load.digest(now) == load.digest(then)
        table = then.manifest.tables[0].name
        assert now.table(table) == then.table(table)
        mine, removed = read_chain(Path(then.folder))
        records = np.concatenate(list(rows.stream(then, table)))
        keys = [(int(row["group"]), int(row["id"])) for row in records]
        assert set(keys) == set(mine)
        for key, record in zip(keys, records, strict=True):
            assert record.tobytes() == mine[key].tobytes()
        kept = [key for block in rows.tombstones(then, table) for key in block.tolist()]
        assert {(group, id_): step for id_, group, step in kept} == removed
        load.load(then, schema.from_values(conf))


# ---- The documents ----------------------------------------------------------


def links(page: Path) -> list[str]:
    """The targets of a page's Markdown links, without code blocks."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
    return re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", text)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the usual viewers make them."""
    headings = re.findall(r"^#+ +(.+?)\s*$", page.read_text("utf-8"), re.M)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


def test_design_links_every_format() -> None:
    named = {name for name in links(ROOT / "docs/design.md") if name.startswith("formats/")}
    assert named >= {f"formats/{path.name}" for path in FORMATS.iterdir()}


@pytest.mark.parametrize(
    "page",
    sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"]),
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_relative_links_resolve(page: Path) -> None:
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
