"""What goes online: split graph, exported embeddings, and the proof that both are right."""

import json
import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mutated_documents import reseal

from tnctl import manifest, schema
from tnctl.checkpoint import load as loading
from tnctl.checkpoint import rows
from tnctl.serving.rows.export_document import ExportManifest

STEP = "run/checkpoints/step-0000000012"
GROUPS = {"user_id", "item_id", "shared", "interests", "price_range"}


@pytest.fixture(scope="module")
def _served(_trained, ran, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "copy"
    shutil.copytree(_trained, folder)
    for command in ("split-graph", "export-embeddings"):
        ran(command, "output=run", cwd=folder)
    return folder


@pytest.fixture
def served(_served, tmp_path):
    """A folder of one's own whose run/ has graph/ and embeddings/."""
    folder = tmp_path / "served"
    shutil.copytree(_served, folder)
    return folder


def verify(cli, folder, *arguments):
    return cli("verify-serving", "output=run", *arguments, cwd=folder)


def read_parquet(file):
    table = pq.read_table(file)
    width = table.schema.field("embedding").type.list_size
    floats = table.column("embedding").combine_chunks().flatten().to_numpy().reshape(-1, width)
    return table.column("id").to_numpy(), table.column("linear").to_numpy(), floats


def same_as_the_checkpoint(folder, read):
    """Every group's file has the checkpoint's rows, in the checkpoint's order, bit by bit."""
    checkpoint = loading.open_checkpoint(str(folder / STEP))
    [part] = checkpoint.manifest.tables
    records = np.concatenate(list(rows.stream(checkpoint, part.name)))
    for group in part.groups:
        of_group = records[records["group"] == group.number]
        ids, linear, floats = read(f"{group.name}.parquet")
        np.testing.assert_array_equal(ids, of_group["id"])
        np.testing.assert_array_equal(linear.view("u4"), of_group["linear"][:, 0].view("u4"))
        embedding = np.ascontiguousarray(of_group["embedding"])
        np.testing.assert_array_equal(floats.view("u4"), embedding.view("u4"))
    names = {f"{group.name}.parquet" for group in part.groups}
    return names | {"golden.jsonl", "manifest.json"}


def test_an_export_is_the_checkpoints_rows(served):
    folder = served / "run/embeddings"
    files = same_as_the_checkpoint(served, lambda name: read_parquet(folder / name))
    assert {path.name for path in folder.iterdir()} == files
    assert {f"{group}.parquet" for group in GROUPS} < files
    content = manifest.read(str(folder), ExportManifest)
    assert set(content.files) == files - {"manifest.json"}
    assert content.checkpoint.step == 12
    schema_ = pq.read_schema(folder / "user_id.parquet")
    assert schema_.field("id").type == pa.uint64()
    assert schema_.field("embedding").type == pa.list_(pa.float32(), 4)


def test_serving_equals_training(served, process):
    done = process("verify-serving", "output=run", cwd=served)
    assert done.code == 0, done.err
    assert done.err.count(" ok") == 10
    assert "0 of 900 rows differ" in done.err
    assert "serving equals training" in done.err


@pytest.mark.parametrize("column", ["linear", "embedding"])
def test_one_wrong_float_of_an_export_is_found(served, cli, column):
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
    done = verify(cli, served)
    assert done.code == 1
    assert "FAILED" in done.err
    assert "serving differs from training" in done.last


def test_a_lost_row_of_an_export_is_found(served, cli):
    path = served / "run/embeddings/device.parquet"
    assert not path.exists()
    path = served / "run/embeddings/shared.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)
    reseal(served / "run/embeddings")
    assert verify(cli, served).code == 1


def test_one_wrong_weight_of_the_graph_is_found(served, cli):
    from tnctl.model import graph

    checkpoint = loading.open_checkpoint(str(served / STEP))
    model = loading.load(checkpoint, schema.from_values(checkpoint.conf()))
    model.dense.weights[-1][0] += np.float32(0.001)
    graph.save(model, str(served / "run/graph"))
    reseal(served / "run/graph", "serving.json")
    done = verify(cli, served)
    assert done.code == 1
    assert "FAILED" in done.err


def test_a_damaged_graph_is_refused(served, cli):
    name = "variables/variables.index"
    path = served / "run/graph" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    done = verify(cli, served)
    assert done.code == 1
    assert name in done.last


@pytest.mark.parametrize("damage", ["gone", "flip"])
def test_a_damaged_export_is_refused(served, cli, damage):
    path = served / "run/embeddings/user_id.parquet"
    data = bytearray(path.read_bytes())
    data[200] ^= 1  # a value, of which Parquet itself has no checksum
    path.write_bytes(data)
    if damage == "gone":
        path.unlink()
    done = verify(cli, served)
    assert done.code == 1
    assert "user_id.parquet" in done.last


def test_files_of_another_checkpoint_are_refused(served, cli, ran):
    os.rename(served / "run", served / "first")
    ran("train", "conf=small.yaml", "output=run", "seed=2", cwd=served)
    done = cli("export-embeddings", "output=run", cwd=served)
    done = verify(cli, served, "graph=first/graph")
    assert done.code == 1
    assert "first/graph was made from another checkpoint" in done.last
    assert cli("split-graph", "output=run", cwd=served).code == 0
    done = verify(cli, served, "embeddings=first/embeddings")
    assert done.code == 1
    assert "first/embeddings was made from another checkpoint" in done.last
    assert verify(cli, served).code == 0


def test_without_files_there_is_nothing_to_verify(run_copy, cli):
    done = verify(cli, run_copy)
    assert done.code == 1
    assert "run/graph has no serving.json" in done.last
    assert cli("split-graph", "output=run", cwd=run_copy).code == 0
    done = verify(cli, run_copy)
    assert done.code == 1
    assert "run/embeddings has no manifest.json" in done.last


# ---- With golden rows -------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["format=dictionary"], ["x from the files, bit by bit"]),
        (["format=dictionary", "precision=int8"], ["weights of exported embeddings", "stated"]),
        (["only=user_id,interests"], ["rows that the filter left out", "weights of exported"]),
    ],
    ids=lambda options: "-".join(options) if isinstance(options, list) else "",
)
def test_every_kind_of_export_is_verified(served, cli, ran, arguments, said):
    """With the checkpoint, and against golden rows alone."""
    ran("export-embeddings", "output=run", *arguments, cwd=served)
    done = verify(cli, served)
    assert done.code == 0, done.err
    for text in [*said, "golden rows: x from the files, bit by bit"]:
        assert text in done.err
    (served / "run/checkpoints").rename(served / "gone")
    done = ran("verify-serving", "graph=run/graph", "embeddings=run/embeddings", cwd=served)
    assert done.err.count(" ok") == 5
    done = cli("verify-serving", "graph=run/graph", cwd=served)
    assert done.code == 0 and done.err.count(" ok") == 2


def changed_manifest(folder, change):
    """Change a manifest and seal it again."""
    content = json.loads((folder / "manifest.json").read_text())
    del content["sha256"]
    change(content)
    (folder / "manifest.json").write_bytes(manifest.sealed(content))


def test_an_error_beyond_the_stated_one_is_found(served, cli, ran):
    ran("export-embeddings", "output=run", "precision=int8", cwd=served)

    def change(content):
        content["groups"][0]["error"]["bound"] /= 100

    changed_manifest(served / "run/embeddings", change)
    done = verify(cli, served)
    assert done.code == 1
    assert done.err.count("FAILED") == 1


@pytest.mark.parametrize("part", ["graph", "embeddings"])
def test_golden_rows_of_other_scores_are_found(served, cli, part):
    path = served / "run" / part / "golden.jsonl"
    lines = path.read_text().splitlines()
    example = json.loads(lines[20])
    example["logits"]["label"] += 0.01
    if part == "embeddings":
        example["x"][3] = float(np.nextafter(np.float32(example["x"][3]), np.float32(9)))
    lines[20] = json.dumps(example)
    path.write_text("\n".join(lines) + "\n")
    done = cli("verify-serving", "graph=run/graph", "embeddings=run/embeddings", cwd=served)
    assert done.code == 1 and "golden.jsonl is damaged" in done.last
    reseal(served / "run" / part, "serving.json" if part == "graph" else "manifest.json")
    done = cli("verify-serving", "graph=run/graph", "embeddings=run/embeddings", cwd=served)
    assert done.code == 1
    assert done.err.count("FAILED") == 2
    assert ("1 of 200 rows differ" in done.err) == (part == "embeddings")


def test_without_golden_rows_a_checkpoint_is_needed(run_copy, cli, ran):
    for command in ("split-graph", "export-embeddings"):
        done = ran(command, "output=run", "golden=0", cwd=run_copy)
        assert not list((run_copy / "run").glob("[ge]*/golden.jsonl"))
    done = cli("verify-serving", "graph=run/graph", "embeddings=run/embeddings", cwd=run_copy)
    assert done.code == 1 and "no golden rows" in done.last
    done = verify(cli, run_copy)
    assert done.code == 0 and done.err.count(" ok") == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "what is to be verified?"),
        (["embeddings=run/embeddings"], "graph=URL"),
        (["graph=run/graph", "data.root=x"], "belongs to a model"),
    ],
)
def test_what_cannot_be_verified(served, cli, arguments, said):
    done = cli("verify-serving", *arguments, cwd=served)
    assert done.code == 2
    assert said in done.last
