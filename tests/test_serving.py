"""What goes online: split graph, exported embeddings, and the proof that both are right."""

import json
import os
import subprocess
import sys

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tnctl import manifest, schema
from tnctl.checkpoint import load as loading
from tnctl.checkpoint import rows

STEP = "run/checkpoints/step-0000000012"
GROUPS = {"user_id", "item_id", "shared", "interests", "price_range"}


@pytest.fixture
def served(run_copy, here):
    """A folder whose run/ has graph/ and embeddings/."""
    for command in ("split-graph", "export-embeddings"):
        done = here(command, "output=run", cwd=run_copy)
        assert done.code == 0, done.err
    return run_copy


def verify(here, folder, *arguments):
    return here("verify-serving", "output=run", *arguments, cwd=folder)


STRANGER = """
import json, sys
for name in ("keras", "tf_keras", "tnctl", "cffi", "hydra"):
    sys.modules[name] = None  # importing it is an ImportError
import numpy as np, tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework import op_def_registry
folder, inputs, outputs = sys.argv[1:]
saved = saved_model_pb2.SavedModel()
saved.ParseFromString(open(folder + "/saved_model.pb", "rb").read())
[meta] = saved.meta_graphs
ops = {node.op for node in meta.graph_def.node}
ops |= {node.op for function in meta.graph_def.library.function for node in function.node_def}
known = {function.signature.name for function in meta.graph_def.library.function}
foreign = sorted(op for op in ops - known if op_def_registry.get(op) is None)
model = tf.saved_model.load(folder)
given = np.load(inputs)
result = {}
for name, function in model.signatures.items():
    wanted = {spec.name for spec in function.structured_input_signature[1].values()}
    got = function(**{key: tf.constant(given[key]) for key in wanted})
    result[name + "/logits"] = got["logits"].numpy()
    result[name + "/predictions"] = got["predictions"].numpy()
np.savez(outputs, **result)
print(json.dumps({"foreign": foreign, "ops": sorted(ops), "signatures": sorted(model.signatures)}))
"""


def test_the_graph_serves_strangers(served, tmp_path):
    """Without tnctl and Keras, by names alone, with the trainer's logits; no custom op."""
    from tnctl.training.step import Inference

    described = manifest.read(str(served / "run/graph"), "tnctl graph", "serving.json")
    checkpoint = loading.open_checkpoint(str(served / STEP))
    model = loading.load(checkpoint, schema.from_values(checkpoint.conf()))
    random = np.random.default_rng(0)
    x = random.normal(size=(9, model.layout.width)).astype(np.float32)
    inputs = {"x": x, "linear": random.normal(size=(9, 1)).astype(np.float32)}
    for given in described["signatures"]["by_slot"]:
        if "at" in given:
            inputs[given["name"]] = x[:, given["at"] : given["at"] + given["columns"]]
    np.savez(tmp_path / "in.npz", **inputs)
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, served / "run/graph", "in.npz", "out.npz"],
        cwd=tmp_path, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["foreign"] == []
    assert "MatMul" in found["ops"]
    assert found["signatures"] == ["by_slot", "packed", "serving_default"]
    got = np.load(tmp_path / "out.npz")
    inference = Inference(model, 9)
    inference.buffers.x[:], inference.buffers.linear[:] = x, inputs["linear"]
    expected = np.asarray(inference._logits(*inference.buffers.inputs(9)))[:, 0]
    for signature in found["signatures"]:
        np.testing.assert_allclose(got[f"{signature}/logits"], expected, rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(
            got[f"{signature}/predictions"], 1 / (1 + np.exp(-expected)), rtol=1e-5, atol=1e-6
        )


def test_the_description_has_what_a_scorer_needs(served):
    described = manifest.read(str(served / "run/graph"), "tnctl graph", "serving.json")
    checkpoint = loading.open_checkpoint(str(served / STEP))
    assert described["checkpoint"]["sha256"] == manifest.identity(checkpoint.manifest)
    slots = described["slots"]
    assert {slot["group"] for slot in slots.values()} == GROUPS
    assert slots["interests"]["separator"] == "|"
    assert slots["interests"]["pooling"] == "mean"
    assert len(slots["price_range"]["boundaries"]) == 7
    assert described["numeric"]["quality"]["mean"] == pytest.approx(50, abs=1)
    assert {s["name"] for s in described["signatures"]["packed"]} == {"x", "linear"}
    names = [s["name"] for s in described["signatures"]["by_slot"]]
    assert names == [*slots, "price", "quality", "linear"]


def read_parquet(file):
    table = pq.read_table(file)
    width = table.schema.field("embedding").type.list_size
    floats = table.column("embedding").combine_chunks().flatten().to_numpy().reshape(-1, width)
    return table.column("id").to_numpy(), table.column("linear").to_numpy(), floats


def same_as_the_checkpoint(folder, read):
    """Every group's file has the checkpoint's rows, in the checkpoint's order, bit by bit."""
    checkpoint = loading.open_checkpoint(str(folder / STEP))
    [part] = checkpoint.manifest["tables"]
    records = np.concatenate(list(rows.stream(checkpoint, part["name"])))
    for group in part["groups"]:
        of_group = records[records["group"] == group["number"]]
        ids, linear, floats = read(f"{group['name']}.parquet")
        np.testing.assert_array_equal(ids, of_group["id"])
        np.testing.assert_array_equal(linear.view("u4"), of_group["linear"][:, 0].view("u4"))
        embedding = np.ascontiguousarray(of_group["embedding"])
        np.testing.assert_array_equal(floats.view("u4"), embedding.view("u4"))
    return {f"{group['name']}.parquet" for group in part["groups"]} | {"manifest.json"}


def test_an_export_is_the_checkpoints_rows(served):
    folder = served / "run/embeddings"
    files = same_as_the_checkpoint(served, lambda name: read_parquet(folder / name))
    assert {path.name for path in folder.iterdir()} == files
    assert files == {f"{group}.parquet" for group in GROUPS} | {"manifest.json"}
    content = manifest.read(str(folder), "tnctl embeddings")
    assert set(content["files"]) == files - {"manifest.json"}
    assert content["checkpoint"]["step"] == 12
    schema_ = pq.read_schema(folder / "user_id.parquet")
    assert schema_.field("id").type == pa.uint64()
    assert schema_.field("embedding").type == pa.list_(pa.float32(), 4)


def in_parts(stream, size):
    """The same records, so many at a time."""

    def parts(*arguments):
        for records in stream(*arguments):
            for start in range(0, len(records), size):
                yield records[start : start + size]

    return parts


def test_an_export_in_small_parts_is_the_same(run_copy, here, monkeypatch):
    from tnctl.serving import export

    monkeypatch.setattr(export, "ROWS_PER_GROUP", 10)
    monkeypatch.setattr(rows, "stream", in_parts(rows.stream, 7))
    assert here("export-embeddings", "output=run", cwd=run_copy).code == 0
    folder = run_copy / "run/embeddings"
    same_as_the_checkpoint(run_copy, lambda name: read_parquet(folder / name))
    assert pq.ParquetFile(folder / "user_id.parquet").num_row_groups > 1


def test_graph_and_export_on_another_storage(run_copy, here):
    to = ["graph=memory://served/graph", "embeddings=memory://served/embeddings"]
    for command, url in zip(("split-graph", "export-embeddings"), to, strict=True):
        done = here(command, "output=run", f"to={url.split('=')[1]}", cwd=run_copy)
        assert done.code == 0, done.err
    storage = fsspec.filesystem("memory")

    def read(name):
        with storage.open(f"/served/embeddings/{name}") as file:
            return read_parquet(pa.BufferReader(file.read()))

    same_as_the_checkpoint(run_copy, read)
    assert verify(here, run_copy, *to).code == 0
    assert not (run_copy / "run/graph").exists()
    done = here("export-embeddings", "output=run", "to=nosuch://a/b", cwd=run_copy)
    assert done.code == 1
    assert "nosuch" in done.last


def test_serving_equals_training(served, process):
    done = process("verify-serving", "output=run", cwd=served)
    assert done.code == 0, done.err
    assert done.err.count(" ok") == 5
    assert "0 of 900 rows differ" in done.err
    assert "serving equals training" in done.err


def reseal(folder, name="manifest.json"):
    """Make a manifest true again after a file beside it was changed."""
    import hashlib

    content = json.loads((folder / name).read_text())
    del content["sha256"]
    for file in content["files"]:
        data = (folder / file).read_bytes()
        entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        content["files"][file] = entry
    (folder / name).write_bytes(manifest.sealed(content))


@pytest.mark.parametrize("column", ["linear", "embedding"])
def test_one_wrong_float_of_an_export_is_found(served, here, column):
    path = served / "run/embeddings/user_id.parquet"
    table = pq.read_table(path)
    from tnctl.tables.columns import hash_bytes

    place = table.column("id").to_pylist().index(hash_bytes(b"u0"))  # the most frequent user
    values = table.column(column).to_pylist()
    if column == "linear":
        values[place] = float(np.nextafter(np.float32(values[place]), np.float32(1)))
    else:
        values[place][2] = float(np.nextafter(np.float32(values[place][2]), np.float32(1)))
    field = table.schema.field(column)
    table = table.set_column(
        table.schema.get_field_index(column), field, pa.array(values, field.type)
    )
    pq.write_table(table, path)
    reseal(served / "run/embeddings")
    done = verify(here, served)
    assert done.code == 1
    assert "FAILED" in done.err
    assert "serving differs from training" in done.last


def test_a_lost_row_of_an_export_is_found(served, here):
    path = served / "run/embeddings/device.parquet"
    assert not path.exists()
    path = served / "run/embeddings/shared.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)
    reseal(served / "run/embeddings")
    assert verify(here, served).code == 1


def test_one_wrong_weight_of_the_graph_is_found(served, here):
    from tnctl.model import graph

    checkpoint = loading.open_checkpoint(str(served / STEP))
    model = loading.load(checkpoint, schema.from_values(checkpoint.conf()))
    model.dense.weights[-1][0] += np.float32(0.001)
    graph.save(model, str(served / "run/graph"))
    reseal(served / "run/graph", "serving.json")
    done = verify(here, served)
    assert done.code == 1
    assert "FAILED" in done.err


@pytest.mark.parametrize("name", ["saved_model.pb", "variables/variables.index", "serving.json"])
def test_a_damaged_graph_is_refused(served, here, name):
    path = served / "run/graph" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    done = verify(here, served)
    assert done.code == 1
    assert name in done.last


@pytest.mark.parametrize("damage", ["cut", "empty", "gone", "flip"])
def test_a_damaged_export_is_refused(served, here, damage):
    path = served / "run/embeddings/user_id.parquet"
    data = bytearray(path.read_bytes())
    data[200] ^= 1  # a value, of which Parquet itself has no checksum
    path.write_bytes({"cut": data[:-9], "flip": data}.get(damage, b""))
    if damage == "gone":
        path.unlink()
    done = verify(here, served)
    assert done.code == 1
    assert "user_id.parquet" in done.last


def test_files_of_another_checkpoint_are_refused(served, here):
    os.rename(served / "run", served / "first")
    done = here("train", "conf=small.yaml", "output=run", "seed=2", cwd=served)
    assert done.code == 0, done.err
    done = here("export-embeddings", "output=run", cwd=served)
    done = verify(here, served, "graph=first/graph")
    assert done.code == 1
    assert "first/graph was made from another checkpoint" in done.last
    assert here("split-graph", "output=run", cwd=served).code == 0
    done = verify(here, served, "embeddings=first/embeddings")
    assert done.code == 1
    assert "first/embeddings was made from another checkpoint" in done.last
    assert verify(here, served).code == 0


def test_without_files_there_is_nothing_to_verify(run_copy, here):
    done = verify(here, run_copy)
    assert done.code == 1
    assert "run/embeddings has no manifest.json" in done.last
    here("export-embeddings", "output=run", cwd=run_copy)
    done = verify(here, run_copy)
    assert done.code == 1
    assert "run/graph has no serving.json" in done.last


def test_an_interrupted_export_does_not_count(served, here, monkeypatch):
    """Nor does what an earlier export left there."""
    from tnctl.serving import export

    add = export.GroupWriter.add

    def failing(self, records):
        if self.rows > 20:
            raise KeyboardInterrupt
        add(self, records[:30])

    monkeypatch.setattr(rows, "stream", in_parts(rows.stream, 30))
    monkeypatch.setattr(export.GroupWriter, "add", failing)
    assert here("export-embeddings", "output=run", cwd=served).code == 130
    assert not list((served / "run/embeddings").glob("*"))
    assert verify(here, served).code == 1
    monkeypatch.undo()
    assert here("export-embeddings", "output=run", cwd=served).code == 0
    assert verify(here, served).code == 0


def test_an_interrupted_split_does_not_count(served, here, monkeypatch):
    from tnctl.manifest import Inventory

    def failing(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Inventory, "commit", failing)
    assert here("split-graph", "output=run", cwd=served).code == 130
    monkeypatch.undo()
    assert not (served / "run/graph/serving.json").exists()
    done = verify(here, served)
    assert done.code == 1
    assert "run/graph has no serving.json" in done.last


@pytest.mark.parametrize("command", ["split-graph", "export-embeddings"])
def test_a_folder_of_the_users_is_never_emptied(served, here, command):
    before = sorted(path.name for path in (served / "clicks").iterdir())
    done = here(command, "output=run", "to=clicks", cwd=served)
    assert done.code == 2
    assert "clicks holds test.csv" in done.last
    assert sorted(path.name for path in (served / "clicks").iterdir()) == before
    folder = served / "run" / {"split-graph": "graph", "export-embeddings": "embeddings"}[command]
    (folder / "notes.txt").write_text("mine")
    assert here(command, "output=run", cwd=served).code == 2
    (folder / "notes.txt").unlink()
    assert here(command, "output=run", cwd=served).code == 0
    for path in folder.glob("*.json"):  # what a crash leaves: files without their manifest
        path.unlink()
    assert here(command, "output=run", cwd=served).code == 0
    assert verify(here, served).code == 0
