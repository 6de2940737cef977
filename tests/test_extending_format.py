"""A file format from outside: a module and a line in the registry, as docs/extending.md says."""

import dataclasses
import json
import re
import sys
import types
from contextlib import closing

import numpy as np
import pytest
from dataless_runs import IDS, Run, conf_of

from tnctl import manifest, ownership
from tnctl.checkpoint.chain import open_checkpoint
from tnctl.errors import Failure, UserError
from tnctl.serving import rows
from tnctl.serving.rows import Registered, file_formats
from tnctl.serving.rows import export as exporting
from tnctl.serving.rows.embeddings import open_embeddings
from tnctl.serving.rows.export_document import ExportManifest
from tnctl.serving.rows.folding import fold
from tnctl.serving.rows.precision import decode, encode
from tnctl.serving.rows.row_formats import BlockFormat

ALL = np.arange(IDS + 5, dtype=np.uint64)  # the last ones have no rows


class JsonLinesFormat(BlockFormat):
    """A line for each row, a list of its id and its floats."""

    name, suffix, removed_suffix = "jsonlines", ".jsonl", ".removed.jsonl"
    precisions = ("float32",)

    def open_blocks(self, stack, file, shape):  # noqa: ARG002
        def write(ids, payload):
            floats = [()] * len(ids) if shape is None else decode(payload, shape).tolist()
            for id_, row in zip(ids.tolist(), floats, strict=True):
                file.write(json.dumps([id_, *row]).encode() + b"\n")

        return write

    def read_blocks(self, file, shape, size):
        while lines := file.readlines(size):
            rows = [json.loads(line) for line in lines]
            ids = np.array([id_ for id_, *_ in rows], np.uint64)
            floats = np.array([row for _, *row in rows], np.float32)
            yield ids, None if shape is None else encode(floats, shape)


@pytest.fixture
def registered(monkeypatch):
    """The three product files: the module, the line of the registry, the names of owned files."""
    module = types.ModuleType("tnctl.serving.rows.jsonlines_format")
    module.JsonLinesFormat = JsonLinesFormat
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(
        rows.FORMATS, "jsonlines", Registered("jsonlines_format", "JsonLinesFormat")
    )
    names = re.compile(rf"{ownership.EMBEDDINGS.pattern.pattern}|\w+\.(removed\.)?jsonl")
    owned = dataclasses.replace(ownership.EMBEDDINGS, pattern=names)
    monkeypatch.setitem(ownership.FORMATS, owned.text, owned)
    monkeypatch.setattr(exporting, "EMBEDDINGS", owned)
    monkeypatch.setattr("tnctl.serving.rows.folding.EMBEDDINGS", owned)


def lookups(url):
    with closing(open_embeddings(str(url))) as embeddings:
        return {
            group: [array.tobytes() for array in embeddings.lookup(group, ALL)]
            for group in embeddings.groups
        }


@pytest.mark.usefixtures("registered")
def test_a_format_from_outside(tmp_path):
    """It is exported, looked up, continued by a delta, folded and replaced like a shipped one."""
    run = Run(conf_of(tmp_path / "run", life={"eviction": {"unseen_steps": 2}}))
    checkpoints = [open_checkpoint(run.train(3).save(golden=[]))]
    run.train(3, ids=6).evict()
    checkpoints.append(open_checkpoint(run.save(golden=[])))
    assert file_formats() == ("parquet", "text", "dictionary", "jsonlines")
    for encoding in ("parquet", "jsonlines"):
        for number, checkpoint in enumerate(checkpoints):
            exporting.export(
                checkpoint,
                run.conf,
                str(tmp_path / encoding / str(number)),
                encoding=encoding,
                since=str(tmp_path / encoding / "0") if number else None,
                golden=0,
            )
    for number in range(2):
        expected = lookups(tmp_path / "parquet" / str(number))
        assert lookups(tmp_path / "jsonlines" / str(number)) == expected
    content = manifest.read(str(tmp_path / "jsonlines/1"), ExportManifest)
    assert (content.kind, content.encoding) == ("delta", "jsonlines")
    assert any(entry.removed_file == f"{entry.group}.removed.jsonl" for entry in content.groups)

    fold(str(tmp_path / "jsonlines/1"), str(tmp_path / "folded"))
    assert lookups(tmp_path / "folded") == expected
    exporting.export(
        checkpoints[1], run.conf, str(tmp_path / "folded"), encoding="jsonlines", golden=0
    )
    assert lookups(tmp_path / "folded") == expected
    with pytest.raises(UserError, match=r"precision=int8 of it\. Take format=parquet or"):
        exporting.export(
            checkpoints[1], run.conf, str(tmp_path / "a"), encoding="jsonlines", precision="int8"
        )


@pytest.mark.usefixtures("registered")
def test_a_damaged_file_of_it(tmp_path):
    """The checks of order and number are those of every format."""
    run = Run(conf_of(tmp_path / "run"))
    checkpoint = open_checkpoint(run.train(3).save(golden=[]))
    exporting.export(checkpoint, run.conf, str(tmp_path / "a"), encoding="jsonlines", golden=0)
    embeddings = open_embeddings(str(tmp_path / "a"))
    path = tmp_path / "a/item.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for wrong, words in (
        (lines[::-1], "not in the order of their hashes"),
        (lines[:-1], "not as many rows"),
        ([*lines[:-1], b"[1, 2"], "is damaged"),
    ):
        path.write_bytes(b"".join(wrong))
        with pytest.raises(Failure, match=words):
            embeddings.lookup("item", ALL)
    embeddings.close()


def test_names_of_files_are_owned():
    """What a format writes may be replaced by a later export: docs/trust.md."""
    for name in file_formats():
        format = rows.format_of(name)
        assert format.name == name
        for file in filter(None, format.names("item", 1).values()):
            assert ownership.EMBEDDINGS.is_file(file)
