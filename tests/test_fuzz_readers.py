"""Damage of every kind to every kind of file that tnctl reads of its own.

A reader may refuse (in one line) or give what it gave before the damage. It may not crash, hang,
or give something else. Where the checksums are made to fit the damage, it may give anything, and
still not crash or hang.
"""

import contextlib
import io
import json
import signal
from pathlib import Path
from types import SimpleNamespace

import dict_checkpoints
import numpy as np
import pytest

from tnctl import documents, manifest, schema
from tnctl.checkpoint import dense_file, inspection, rows
from tnctl.checkpoint.chain import open_checkpoint
from tnctl.errors import UserError

SECONDS = 20
LEAST, MOST = 30, 120  # rounds of the short and the long form


def flip(chance, data, _):
    data[chance.integers(len(data))] ^= 1 << chance.integers(8)


def flip_many(chance, data, _):
    for _ in range(chance.integers(2, 20)):
        data[chance.integers(len(data))] = chance.integers(256)


def cut(chance, data, _):
    del data[chance.integers(len(data)) :]


def cut_inside(chance, data, _):
    first = int(chance.integers(len(data)))
    del data[first : first + int(chance.integers(1, 64))]


def insert(chance, data, _):
    at = int(chance.integers(len(data) + 1))
    data[at:at] = chance.bytes(int(chance.integers(1, 64)))


def repeat(chance, data, _):
    first = int(chance.integers(len(data)))
    data[first:first] = data[first : first + int(chance.integers(1, 200))]


def zeros(chance, data, _):
    first, count = int(chance.integers(len(data))), int(chance.integers(1, 200))
    data[first : first + count] = bytes(len(data[first : first + count]))


def swap(chance, data, _):
    count = int(chance.integers(1, 65))
    first, second = sorted(int(at) for at in chance.integers(len(data), size=2))
    count = min(count, second - first, len(data) - second)
    data[first : first + count], data[second : second + count] = (
        data[second : second + count],
        data[first : first + count],
    )


def another(chance, data, others):
    data[:] = others[chance.integers(len(others))]


DAMAGES = (flip, flip_many, cut, cut_inside, insert, repeat, zeros, swap, another)


@contextlib.contextmanager
def in_time():
    """Fail where the block takes too long."""

    def late(*_):
        raise AssertionError(f"still reading after {SECONDS} seconds")

    handler = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)


def fuzz(folder, read, rounds, seed, names=None, reseal=False):
    """Damage one file of a folder at a time, read, and put it back."""
    chance = np.random.default_rng(seed)
    paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    if names is not None:
        paths = [path for path in paths if names(path)]
    assert paths
    whole = {path: path.read_bytes() for path in paths}
    contents = list(whole.values())
    right = read()
    refused = 0
    for number in range(rounds):
        # Every kind of damage to every file, before any of them comes again.
        path = paths[number % len(paths)]
        damage = DAMAGES[(number // len(paths)) % len(DAMAGES)]
        data = bytearray(whole[path])
        if not data:
            continue
        damage(chance, data, contents)
        if data == whole[path]:
            continue
        path.write_bytes(data)
        sealed = resealed(path) if reseal else {}
        case = f"{path.relative_to(folder)}: {damage.__name__}, round {number}, seed {seed}"
        try:
            with in_time():
                result = read()
        except UserError as error:
            refused += 1
            assert "\n" not in str(error), case
        except BaseException as error:
            raise AssertionError(f"{case} ({type(error).__name__}: {error})") from error
        else:
            assert reseal or result == right, case
        finally:
            path.write_bytes(whole[path])
            for changed, content in sealed.items():
                changed.write_bytes(content)
    assert refused
    return refused


def resealed(path):
    """Give the manifest of a file its size and checksum as they are; what was there before."""
    folder = next(parent for parent in path.parents if (parent / manifest.NAME).exists())
    inventory = manifest.Inventory(str(folder))
    inventory.write(path.relative_to(folder).as_posix(), path.read_bytes())
    stored = folder / manifest.NAME
    old_bytes = stored.read_bytes()
    content = json.loads(old_bytes)
    del content["sha256"]
    content["files"] |= documents.plain(inventory.files)
    stored.write_bytes(manifest.sealed(content))
    # What is built on it would be refused for that alone.
    changed, digest = {stored: old_bytes}, json.loads(stored.read_bytes())["sha256"]
    for child in sorted(folder.parent.glob(f"*/{manifest.NAME}")):
        content = json.loads(child.read_bytes())
        if (content.get("parent") or {}).get("folder") == folder.name:
            changed[child] = child.read_bytes()
            del content["sha256"]
            content["parent"]["sha256"] = digest
            child.write_bytes(manifest.sealed(content))
            digest, folder = json.loads(child.read_bytes())["sha256"], child.parent
    return changed


def many(long):
    return MOST if long else LEAST


BOTH = pytest.mark.parametrize("long", [False, pytest.param(True, marks=pytest.mark.long)])


@pytest.fixture(params=["", ".zst"], ids=["plain", "zstd"])
def run(request, tmp_path):
    """The output of a run: a full checkpoint and two deltas."""
    output = tmp_path / "run"
    dict_checkpoints.history(
        str(output), steps=(10, 20, 30), count=60, suffix=request.param, files=2
    )
    return output


def newest(run):
    return str(run / "checkpoints/step-0000000030")


def everything(folder):
    """All that reading a checkpoint gives, as plain values."""
    checkpoint = open_checkpoint(folder)
    [part] = checkpoint.manifest.tables
    table = SimpleNamespace(sketch=np.zeros(256, np.uint8))
    rows.read_sketch(checkpoint, part, table)
    return (
        checkpoint.manifest,
        b"".join(records.tobytes() for records in rows.stream(checkpoint, part.name)),
        b"".join(block.tobytes() for block in rows.tombstones(checkpoint, part.name)),
        dense_file.floats(folder, checkpoint.manifest).tobytes(),
        checkpoint.conf(),
        checkpoint.golden(),
        checkpoint.extra("running"),
        table.sketch.tobytes(),
    )


def is_read(path):
    """The graph is TensorFlow's to read."""
    return "graph" not in path.parts


@BOTH
def test_checkpoints(run, long):
    # Of the parents only the rows are read.
    fuzz(run, lambda: everything(newest(run)), 3 * many(long), 1, is_read)


@BOTH
def test_checkpoints_whose_checksums_fit(run, long):
    names = lambda path: is_read(path) and path.name != manifest.NAME  # noqa: E731
    fuzz(run, lambda: everything(newest(run)), 3 * many(long), 2, names, reseal=True)


@BOTH
def test_verify(run, long):
    """It finds all damage, and is never at a loss."""

    def read():
        compared = inspection.verify(newest(run))
        if compared.findings:
            raise UserError(compared.findings[0])

    chance = many(long)
    assert fuzz(run, read, chance, 9) > 0.9 * chance
    names = lambda path: path.name != manifest.NAME  # noqa: E731
    fuzz(run, read, chance, 10, names, reseal=True)


@BOTH
def test_models(run_copy, long):
    """The checkpoint of a real run, into the C tables and the network."""
    from tnctl.checkpoint.load import load

    [*_, folder] = sorted((run_copy / "run/checkpoints").iterdir())

    def read():
        checkpoint = open_checkpoint(str(folder))
        with contextlib.redirect_stderr(io.StringIO()):
            model = load(checkpoint, schema.from_values(checkpoint.conf()))
        return (
            [b"".join(records.tobytes() for records in table.records()) for table in model.tables],
            [memory.tobytes() for part in model.dense.states for memory in part],
            [memory.tobytes() for memory in model.dense.weights],
        )

    fuzz(folder, read, many(long) // 3, 11, is_read)
    names = lambda path: path.suffix in (".rows", ".bin")  # noqa: E731
    fuzz(folder, read, many(long) // 5, 12, names, reseal=True)


@BOTH
def test_exports(run_copy, ran, long):
    from tnctl.serving.rows.embeddings import open_embeddings

    ran("export-embeddings", "output=run", "to=out", cwd=run_copy)
    content = json.loads((run_copy / "out/manifest.json").read_text())
    wanted = np.arange(1000, dtype=np.uint64)

    def read():
        with contextlib.closing(open_embeddings(str(run_copy / "out"))) as compared:
            of_groups = [compared.lookup(group["group"], wanted) for group in content["groups"]]
            return [(rows.tobytes(), known.tobytes()) for rows, known in of_groups]

    fuzz(run_copy / "out", read, many(long), 13)


@BOTH
def test_graphs(run_copy, cli, long):
    """Nothing of a damaged graph reaches TensorFlow."""
    from tnctl.serving.graph.loaded_graph import open_graph

    assert cli("split-graph", "output=run", "to=out", cwd=run_copy).code == 0
    fuzz(run_copy / "out", lambda: open_graph(str(run_copy / "out")).description, many(long), 14)


@BOTH
def test_prepared_data(workspace, cli, ran, long):
    from tnctl.data import statistics
    from tnctl.data.features import Features
    from tnctl.data.sources import Source
    from tnctl.data.windows import windows

    ran("prepare", "conf=small.yaml", "to=out", cwd=workspace)
    saved = json.loads((workspace / "out/manifest.json").read_text())
    assert saved["format"] == "tnctl prepared"
    composed = cli("train", "conf=small.yaml", "data.prepared=out", "--cfg", "job", cwd=workspace)
    import yaml

    values = yaml.safe_load(composed.out)
    values["data"]["prepared"] = str(workspace / "out")
    conf = schema.from_values(values)
    tables = [([name], [1]) for name in conf.slots]

    def read():
        features = Features(conf, tables, statistics.measure(conf))
        return [
            [
                array.tobytes()
                for array in (*window.ids, *window.offsets, window.numeric, window.labels)
            ]
            for window in windows(Source(conf, "train"), features)
        ]

    fuzz(workspace / "out", read, many(long), 15)
