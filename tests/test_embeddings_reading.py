"""Readers of exports against a dict: every encoding and precision, at the edges, near and far."""

import json
import shutil
import tempfile
from contextlib import ExitStack, closing

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tnctl import documents, files, manifest
from tnctl.checkpoint.document import Clock
from tnctl.errors import Failure
from tnctl.manifest import Inventory
from tnctl.serving.artefact_document import CheckpointReference
from tnctl.serving.rows import file_formats, format_of, row_formats
from tnctl.serving.rows.embeddings import FileEmbeddings, open_embeddings
from tnctl.serving.rows.export_document import Base, ExportManifest, FileGroup, Filter
from tnctl.serving.rows.precision import RowShape, decode, encode
from tnctl.serving.rows.selection import SelectedGroup
from tnctl.tables.columns import group_salt

SHAPES = {
    "all": RowShape(True, 5, True),
    "an embedding": RowShape(False, 3, False),
    "a linear weight": RowShape(True, 0, False),
    "float16": RowShape(True, 5, True, "float16"),
    "int8": RowShape(False, 7, True, "int8"),
    "int8 of a linear weight": RowShape(True, 0, False, "int8"),
}
EDGES = np.array([0, 1, 2**32, 2**63, 2**64 - 1], np.uint64)


def made(folder, encoding, groups, base=None, number=0):
    """An export of groups: name -> (shape, {id: row, or None when it was removed})."""
    inventory, entries = Inventory(str(folder)), []
    for name, (shape, rows) in groups.items():
        ids = np.array(list(rows), np.uint64)
        hashes = row_formats.hashes_of(name, ids)
        order = np.argsort(hashes)
        removed = np.array([rows[int(id_)] is None for id_ in ids], bool)
        floats = np.array(
            [np.zeros(shape.columns) if row is None else row for row in rows.values()], np.float32
        ).reshape(len(ids), shape.columns)
        salt = int(group_salt(name))
        group = SelectedGroup(
            name, "table", 0, shape, salt, int((~removed).sum()), int(removed.sum())
        )
        with ExitStack() as stack:
            format = format_of(encoding)
            writer = format.open_writer(stack, inventory, group, base is not None)
            payload = encode(floats[order], shape)
            writer.add(ids[order], hashes[order], payload, removed[order] if base else None)
            writer.finish()
            entries.append(
                FileGroup(
                    group=name, table="table", rows=group.rows, removed=group.removed,
                    linear=shape.linear, width=shape.width, cvm=shape.cvm,
                    precision=shape.precision, salt=str(salt), **format.names(name, group.removed),
                )
            )  # fmt: skip
    content = ExportManifest(
        format=ExportManifest.FORMAT, version=1,
        checkpoint=CheckpointReference(folder="checkpoint", sha256="0" * 64, step=1),
        kind="delta" if base else "full", base=base, number=number, encoding=encoding,
        precision=shape.precision, filter=Filter(), clock=Clock(1), sessions=(),
        groups=tuple(entries), slots=(), golden=None, files=inventory.files,
    )  # fmt: skip
    return content, inventory


def export(folder, encoding, groups, base=None, number=0):
    content, inventory = made(folder, encoding, groups, base, number)
    return inventory.complete(content)


def model(shape, seed, count=3000, edges=True):
    """Rows of random ids."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, 2**64, count, dtype=np.uint64)
    ids = np.concatenate([ids, EDGES]) if edges else ids
    floats = random.normal(size=(len(ids), shape.columns)).astype(np.float32)
    floats[::10] = 0
    return dict(zip(ids.tolist(), floats, strict=True))


def expected(rows, shape, ids):
    """What a lookup must give."""
    known = np.array([rows.get(int(id_)) is not None for id_ in ids])
    floats = np.zeros((len(ids), shape.columns), np.float32)
    for place in np.flatnonzero(known):
        floats[place] = rows[int(ids[place])]
    return np.where(known[:, np.newaxis], decode(encode(floats, shape), shape), 0), known


def same(embeddings, group, rows, shape, ids):
    payload, known = embeddings.lookup(group, ids)
    want, is_known = expected(rows, shape, ids)
    assert payload.dtype == np.float32 and known.dtype == bool
    assert (known == is_known).all()
    assert payload.tobytes() == want.astype(np.float32).tobytes()


def ids_of(rows, seed=9):
    """Known and unknown ids, some of them twice, in an order of chance."""
    random = np.random.default_rng(seed)
    ids = np.array(list(rows), np.uint64)
    other = random.integers(0, 2**64, 500, dtype=np.uint64)
    return random.permutation(np.concatenate([ids, ids[:50], other, EDGES]))


CASES = [
    (encoding, name)
    for encoding in file_formats()
    for name in SHAPES
    if encoding != "text" or SHAPES[name].precision == "float32"
]


@pytest.mark.parametrize(("encoding", "name"), CASES)
@pytest.mark.parametrize("small", [True, False])
def test_lookups(tmp_path, monkeypatch, encoding, name, small):
    if small:
        monkeypatch.setattr(row_formats, "BYTES_PER_READ", 3000)
        monkeypatch.setattr(row_formats.BlockFormat, "rows_per_block", 700)
    shape = SHAPES[name]
    groups = {
        "user": (shape, model(shape, 1)),
        "item": (shape, model(shape, 2, edges=False)),
        "none": (shape, {}),
        "one": (shape, {7: np.full(shape.columns, -0.5, np.float32)}),
    }
    export(tmp_path / "a", encoding, groups)
    with closing(open_embeddings(str(tmp_path / "a"))) as embeddings:
        assert embeddings.groups == dict.fromkeys(groups, shape)
        for group, (_, rows) in groups.items():
            same(embeddings, group, rows, shape, ids_of(rows))
            same(embeddings, group, rows, shape, EDGES[:1])
            same(embeddings, group, rows, shape, EDGES[:0])
            same(embeddings, group, rows, shape, ids_of(rows)[::2])  # not contiguous
        with pytest.raises(Failure, match="a has no group shop"):
            embeddings.lookup("shop", EDGES)


@pytest.mark.parametrize("encoding", file_formats())
def test_stacks(tmp_path, encoding):
    """A full export and eight deltas, with ids that come and go; some deltas have nothing."""
    shape, random = SHAPES["all"], np.random.default_rng(4)
    rows, base, there = model(shape, 3, 400), None, {}
    for number in range(9):
        if number:
            ids = [*rows, *random.integers(0, 2**64, 50, dtype=np.uint64).tolist()]
            changes = {
                int(id_): None if random.random() < 0.3 else random.normal(size=shape.columns)
                for id_ in random.choice(np.array(ids, np.uint64), 0 if number == 3 else 60)
            }
        else:
            changes = rows
        groups = {"user": (shape, changes), "item": (shape, {})}
        content = export(tmp_path / str(number), encoding, groups, base, number)
        base = Base(folder=str(number), sha256=content.sha256)
        there |= {id_: row if row is None else np.float32(row) for id_, row in changes.items()}
        rows = {id_: row for id_, row in there.items() if row is not None}
        with closing(open_embeddings(str(tmp_path / str(number)))) as embeddings:
            assert len(embeddings.exports) == number + 1
            assert embeddings.manifest == content
            same(embeddings, "user", rows, shape, ids_of(there))
            same(embeddings, "item", {}, shape, ids_of(there)[:9])


@pytest.mark.parametrize("encoding", file_formats())
def test_what_is_written_is_read_before_it_counts(tmp_path, encoding):
    shape = SHAPES["all"]
    first = model(shape, 1, 50)
    content = export(tmp_path / "0", encoding, {"user": (shape, first)})
    changes = {0: None, 1: np.ones(shape.columns, np.float32)}
    base = Base(folder="0", sha256=content.sha256)
    with closing(open_embeddings(str(tmp_path / "0"))) as since:
        written, _ = made(tmp_path / "1", encoding, {"user": (shape, changes)}, base, 1)
        exports = [*since.exports, (str(tmp_path / "1"), written)]
        with closing(FileEmbeddings(exports)) as embeddings:
            same(embeddings, "user", first | changes, shape, ids_of(first))
        same(since, "user", first, shape, ids_of(first))
    assert not (tmp_path / "1" / manifest.NAME).exists()


def test_a_dictionary_elsewhere_is_fetched_and_removed(tmp_path, monkeypatch):
    shape = SHAPES["int8"]
    rows = model(shape, 1)
    export(tmp_path / "a", "dictionary", {"user": (shape, rows)})
    files.upload_folder(tmp_path / "a", "memory://reading/a")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    embeddings = open_embeddings("memory://reading/a/")
    assert [path.name for path in (tmp_path / "temporary").rglob("user.*")]
    same(embeddings, "user", rows, shape, ids_of(rows))
    embeddings.close()
    assert list((tmp_path / "temporary").iterdir()) == []
    # Nor does anything stay when it cannot be opened.
    files.write_bytes("memory://reading/a/user.index", b"short")
    with pytest.raises(Failure, match=r"user\.index is cut short"):
        open_embeddings("memory://reading/a")
    edit(tmp_path / "a", user_index=b"short")
    with pytest.raises(Failure, match=r"user\.index: the index is damaged"):
        open_embeddings(str(tmp_path / "a"))
    assert list((tmp_path / "temporary").iterdir()) == []


def edit(folder, **data):
    """Other bytes in files of an export, with a manifest that agrees."""
    content = json.loads((folder / manifest.NAME).read_text())
    inventory = Inventory(str(folder))
    for name, file_bytes in data.items():
        name = name.replace("_", ".", 1)
        (folder / name).unlink()
        inventory.write(name, file_bytes)
    content["files"] |= documents.plain(inventory.files)
    content.pop("sha256")
    (folder / manifest.NAME).write_bytes(manifest.sealed(content))


def parquet_bytes(table):
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


def test_files_that_agree_with_their_manifest_and_are_wrong(tmp_path):
    """One line each, not a wrong row."""
    shape = SHAPES["an embedding"]
    rows = model(shape, 1, 300)

    def refused(encoding, change, *words):
        folder = tmp_path / encoding
        shutil.rmtree(folder, ignore_errors=True)
        export(folder, encoding, {"user": (shape, rows)})
        suffix = {"text": "txt"}.get(encoding, encoding)
        edit(folder, **{f"user_{suffix}": change((folder / f"user.{suffix}").read_bytes())})
        with pytest.raises(Failure) as caught, closing(open_embeddings(str(folder))) as embeddings:
            embeddings.lookup("user", ids_of(rows))
        for word in words or (f"user.{suffix} is damaged", "Export again"):
            assert word in str(caught.value), caught.value

    def turned(data):
        lines = data.splitlines(keepends=True)
        return b"".join(lines[::-1])

    order = "not in the order of their hashes"
    refused("text", turned, order)
    refused("text", lambda data: data.replace(b"\t", b" ", 1))
    refused("text", lambda data: data + b"7\t3\t1\t2\tx\n")
    refused("text", lambda data: data + data.splitlines(keepends=True)[-1], order)
    table = pq.read_table
    refused("parquet", lambda data: parquet_bytes(table(pa.BufferReader(data))[::-1]), order)
    refused("parquet", lambda data: data[:-9])
    refused(
        "parquet", lambda data: parquet_bytes(table(pa.BufferReader(data)).drop_columns(["id"]))
    )
    refused(
        "parquet",
        lambda data: parquet_bytes(table(pa.BufferReader(data)).drop_columns(["embedding"])),
    )
    refused("dictionary", lambda data: data[:-9])
    refused("dictionary", lambda data: b"x" + data[1:])
    other = tmp_path / "other"
    export(other, "dictionary", {"user": (SHAPES["all"], model(SHAPES["all"], 1, 300))})
    foreign = (other / "user.dictionary").read_bytes()
    refused("dictionary", lambda _: foreign)
    refused("dictionary", lambda data: data[:16] + bytes(48) + data[64:])


def test_foreign_row_groups(tmp_path):
    """A reader does not rely on how many rows a row group has, nor on plain pages."""
    shape = SHAPES["all"]
    rows = model(shape, 1)
    export(tmp_path / "a", "parquet", {"user": (shape, rows)})
    table = pq.read_table(tmp_path / "a/user.parquet")
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=123, compression="zstd", data_page_size=500)
    edit(tmp_path / "a", user_parquet=sink.getvalue().to_pybytes())
    with closing(open_embeddings(str(tmp_path / "a"))) as embeddings:
        same(embeddings, "user", rows, shape, ids_of(rows))


def test_ids_from_hashes():
    ids = np.concatenate([EDGES, np.random.default_rng(0).integers(0, 2**64, 999, np.uint64)])
    for name in ("user", "item"):
        hashes = row_formats.hashes_of(name, ids)
        assert (row_formats.ids_of(hashes, int(group_salt(name))) == ids).all()
