"""Checkpoints: exact, sealed, and refused in one line when anything of them is damaged."""

import hashlib
import json
import os
import shutil

import numpy as np
import pytest

from tnctl import manifest, schema
from tnctl.checkpoint import load as loading
from tnctl.checkpoint import rows
from tnctl.checkpoint.document import CheckpointManifest
from tnctl.checkpoint.staging import save

STEP = "run/checkpoints/step-0000000012"


def opened(folder):
    checkpoint = loading.open_checkpoint(str(folder))
    return checkpoint, schema.from_values(checkpoint.conf())


def saved_again(checkpoint, model, folder):
    content = checkpoint.manifest
    save(
        model,
        str(folder),
        clock=checkpoint.clock,
        position=checkpoint.position,
        finished=content.finished,
        golden=checkpoint.golden(),
        metrics=content.metrics,
        data=checkpoint.data,
        days=checkpoint.days,
        calendar=checkpoint.calendar,
        sessions=checkpoint.sessions,
        extras={
            name.removeprefix("extra/"): checkpoint.extra(name.removeprefix("extra/"))
            for name in content.files
            if name.startswith("extra/")
        },
    )


def test_the_last_line_of_a_manifest_is_its_checksum(trained):
    text = (trained / STEP / "manifest.json").read_bytes()
    *body, line, brace = text.splitlines(keepends=True)
    assert brace == b"}\n"
    digest = hashlib.sha256(b"".join(body)).hexdigest()
    assert line == f'  "sha256": "{digest}"\n'.encode()
    content = json.loads(text)
    assert content["sha256"] == digest
    for name, entry in content["files"].items():
        data = (trained / STEP / name).read_bytes()
        assert entry == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def test_save_load_save_gives_the_same_bytes(trained, tmp_path):
    checkpoint, conf = opened(trained / STEP)
    saved_again(checkpoint, loading.load(checkpoint, conf), tmp_path / "again")
    again = manifest.read(str(tmp_path / "again"), CheckpointManifest)
    assert list(again.files) == list(checkpoint.manifest.files)
    for name, entry in checkpoint.manifest.files.items():
        if name.startswith("graph/"):
            continue  # TensorFlow writes a new identity and names into each
        assert again.files[name] == entry, name
    data = "graph/variables/variables.data-00000-of-00001"
    floats = [(f / data).read_bytes() for f in (trained / STEP, tmp_path / "again")]
    assert len(floats[0]) == len(floats[1])
    for key, value in vars(checkpoint.manifest).items():
        if key not in ("files", "sha256", "saved"):
            assert getattr(again, key) == value, key


def test_rows_are_in_hash_order_and_as_the_manifest_says(trained):
    checkpoint, conf = opened(trained / STEP)
    model = loading.load(checkpoint, conf)
    [part] = checkpoint.manifest.tables
    records = np.concatenate(list(rows.stream(checkpoint, part.name)))
    assert len(records) == part.rows == sum(group.rows for group in part.groups)
    from tnctl.tables.columns import group_salt, mix64

    names = {group.number: group.name for group in part.groups}
    assert set(names.values()) == {"user_id", "item_id", "shared", "interests", "price_range"}
    salts = np.array([group_salt(names[number]) for number in records["group"]], np.uint64)
    hashes = mix64(records["id"] ^ salts)
    order = np.lexsort((records["group"], hashes))
    np.testing.assert_array_equal(order, np.arange(len(records)))
    for record in records[::37]:
        weights = model.tables[0].lookup(int(record["group"]), int(record["id"]))
        np.testing.assert_array_equal(weights[:1], record["linear"])
        np.testing.assert_array_equal(weights[1:], record["embedding"])


def test_floats_are_exact(trained, tmp_path):
    """Also those that text would lose: the least, the largest, and minus zero."""
    checkpoint, conf = opened(trained / STEP)
    model = loading.load(checkpoint, conf)
    odd = np.array([-0.0, 1e-45, -1e-40, 3.4028235e38, 1 / 3, np.float32(0.1)], np.float32)
    for memory in model.dense.weights:
        memory[: len(odd)] = odd[: len(memory)]
    saved_again(checkpoint, model, tmp_path / "odd")
    checkpoint, conf = opened(tmp_path / "odd")
    back = loading.load(checkpoint, conf)
    for array, other in zip(model.dense.weights, back.dense.weights, strict=True):
        assert array.tobytes() == other.tobytes()
    for state, other in zip(model.dense.states, back.dense.states, strict=True):
        assert [a.tobytes() for a in state] == [b.tobytes() for b in other]
    assert back.dense.step == model.dense.step
    records = b"".join(part.tobytes() for part in model.tables[0].records())
    assert b"".join(part.tobytes() for part in back.tables[0].records()) == records


TABLE = "tables/embedding4/00000.rows"


@pytest.mark.parametrize(
    ("name", "command", "damage"),
    [
        (TABLE, "export-embeddings", "flip"),
        ("dense.bin", "evaluate", "gone"),
        ("graph/saved_model.pb", "split-graph", "flip"),
        ("graph/variables/variables.data-00000-of-00001", "split-graph", "cut"),
        ("manifest.json", "evaluate", "empty"),
    ],
)
def test_a_damaged_file_is_refused_by_name(run_copy, cli, name, command, damage):
    path = run_copy / STEP / name
    damaged(path, damage)
    done = cli(command, "output=run", cwd=run_copy)
    assert done.code == 1, done.err
    assert name in done.last
    assert done.out == ""
    assert not list(run_copy.glob("run/embeddings/manifest.json"))
    assert not list(run_copy.glob("run/graph/serving.json"))


def damaged(path, damage):
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[len(data) * 2 // 3] ^= 0x10
    path.write_bytes({"cut": data[:-7], "flip": data}.get(damage, b""))
    if damage == "gone":
        path.unlink()


def test_golden_rows_are_the_first_of_the_validation_data(trained):
    checkpoint, _ = opened(trained / STEP)
    golden = checkpoint.golden()
    assert len(golden) == 200
    header, *lines = (trained / "clicks/validation.csv").read_text().replace('"', "").splitlines()
    for example, line in zip(golden, lines, strict=False):
        row, cells = example.row, dict(zip(header.split(","), line.split(","), strict=True))
        assert row["user_id"] == cells["user_id"]
        assert row["item_id"] == cells["item_id"]
        assert float(row["price"]) == float(cells["price"])


def test_without_its_manifest_a_checkpoint_does_not_count(run_copy, cli, ran):
    """As after a crash in the middle of saving: the one before is the model."""
    newer = run_copy / "run/checkpoints/step-0000000024"
    shutil.copytree(run_copy / STEP, newer)
    (newer / "manifest.json").unlink()
    (newer / "dense.bin").write_bytes(b"half")
    done = ran("evaluate", "output=run", cwd=run_copy)
    assert json.loads(done.out)["checkpoint"] == STEP
    os.remove(run_copy / STEP / "manifest.json")
    done = cli("evaluate", "output=run", cwd=run_copy)
    assert done.code == 1
    assert "no complete checkpoint" in done.line
    done = cli("evaluate", f"checkpoint={STEP}", cwd=run_copy)
    assert done.code == 1
    assert "no manifest.json" in done.line


def test_the_conf_comes_with_the_checkpoint(run_copy, cli, ran):
    moved = run_copy / "elsewhere"
    os.rename(run_copy / STEP, moved)
    done = ran("evaluate", "checkpoint=elsewhere", "data.test=null", cwd=run_copy)
    assert json.loads(done.out)["split"] == "validation"
    done = cli("evaluate", "checkpoint=elsewhere", "data.tset=x", cwd=run_copy)
    assert done.code == 2
    assert "'data.test'" in done.line
    done = cli("evaluate", "conf=deepfm", "checkpoint=elsewhere", cwd=run_copy)
    assert done.code == 2
    assert "trained with another conf" in done.line
    assert "slots" in done.line


def test_a_manifest_cut_short_leaves_the_one_before(run_copy, ran):
    """What a storage may leave of a manifest when it crashes: the folder does not count."""
    last = run_copy / "run/checkpoints/step-0000000099"
    shutil.copytree(run_copy / STEP, last)
    whole = (last / "manifest.json").read_bytes()
    for size in (0, 1, len(whole) // 2, len(whole) - 1):
        (last / "manifest.json").write_bytes(whole[:size])
        assert loading.newest(str(run_copy / "run")).folder == str(run_copy / STEP)
    done = ran("evaluate", "output=run", cwd=run_copy)
    assert json.loads(done.out)["checkpoint"] == STEP
    assert "step-0000000099" in done.err and "; using" in done.err
