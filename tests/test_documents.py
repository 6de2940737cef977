"""Every document is refused in one line when a field is wrong, and nothing else happens."""

import copy
import io
import itertools
import json
import re
import shutil
import time
import zipfile
from pathlib import Path

import dict_checkpoints
import numpy as np
import pytest
from mutated_documents import json_text, mutations, places, sealed

from tnctl import documents, manifest
from tnctl.checkpoint.document import CheckpointManifest
from tnctl.data.day_records import DayRecord, is_day
from tnctl.data.formats.prepared_files import PreparedManifest
from tnctl.errors import Failure
from tnctl.ownership import FORMATS
from tnctl.training.report.report_document import LogLine, Report
from tnctl.training.state import PassSums

GOLDEN = Path(__file__).parent / "golden"
LONGEST_LINE = 600

DAY = {
    "day": "2024-01-02", "number": 738_887, "first_step": 5, "last_step": 8, "rows": 400,
    "before": {"auc": 0.7, "heads": {"long": {"auc": 0.6}}}, "new_ids": {"user": 0.25},
    "accepted": ["its label is other"], "files": [{"file": "a.csv", "bytes": 7, "modified": 12}],
    "statistics": {
        "examples": 400, "labels": {"label": 0.2},
        "inputs": {
            "user": {"coverage": 1.0, "occurrences": 400, "length": 1.0, "distinct": 30.0,
                     "known": 0.5, "histogram": [200, 200], "edges": None,
                     "coverage_effect": 2.0, "length_effect": 1.5, "design_effect": 3.0},
            "price": {"coverage": 0.5, "occurrences": 400, "length": 1.0, "distinct": None,
                      "known": None, "histogram": [1, 2, 3], "edges": [0.5, 1.5],
                      "coverage_effect": 1.0, "length_effect": 1.0, "design_effect": 1.0},
        },
        "label_effects": {"label": 1.25},
    },
    "evicted": {"user": 3},
}  # fmt: skip
WARM = {
    "from": "run/checkpoints/step-0000000012", "step": 12, "optimizer": "match",
    "inputs": [{"input": "user", "outcome": "matched", "from": "user_id", "rows": 9}],
    "dense": {"matched": ["deep/kernel"], "partly": [], "new": [], "dropped": []}, "notes": ["n"],
}  # fmt: skip
EPOCH = {
    "epoch": 1, "step": 8, "examples": 400, "loss": 0.5, "running_auc": 0.6, "skipped_rows": 1,
    "day": "2024-01-02", "validation": {"auc": 0.7},
}  # fmt: skip
EVALUATION = {"step": 8, "epoch": 1, "validation": {"auc": 0.7, "heads": {"long": {"auc": 0.6}}}}
REPORT = {
    "examples": 400, "auc": 0.7, "calibration": [{"prediction": 0.1, "label": 0.2, "count": 40}],
    "split": "test", "steps": 8, "warm": WARM, "epochs": [EPOCH], "evaluations": [EVALUATION],
    "days": [DAY], "best": {"monitor": "auc", "value": 0.7, "step": 8, "kept": True},
    "tables": {"embedding3": {"rows": 9, "bytes": 900}},
    "life": {"user": {"rows": 9, "admitted": 9, "waiting": 1, "evicted": 0}}, "dense_weights": 8,
    "importance": {"user": 0.1}, "importance_of": "auc on data.test",
    "validation": {"auc": 0.7},
    "checkpoint": "checkpoints/step-0000000008", "timing": {"seconds": 1.5, "saved_bytes": 9},
}  # fmt: skip
LINE = {"event": "step", "step": 8, "loss": 0.5, "running_auc": 0.6, "rate_factor": 1.0, "rows": 9}


def rich_checkpoint():
    """A manifest that has every key of the format."""
    folder = GOLDEN / "chain/checkpoints/step-0000000004"
    content = json.loads((folder / "manifest.json").read_text())
    content["statistics"]["vocabularies"] = {"campaign": ["7", "8"]}
    content["metrics"] = {
        "steps": 8, "epochs": [EPOCH], "evaluations": [EVALUATION],
        "watch": {"best": 0.7, "best_step": 8, "without": 0, "flat": 0, "plateau": 1.0},
        "warm": WARM, "log_lines": 3,
    }  # fmt: skip
    content["days"], content["data"] = [DAY], DAY["files"]
    return copy.deepcopy(content)


DOCUMENTS = {
    "checkpoint": (CheckpointManifest, rich_checkpoint()),
    "prepared": (PreparedManifest, json.loads((GOLDEN / "prepared/manifest.json").read_text())),
    "report": (Report, REPORT),
    "day": (DayRecord, DAY),
    "line": (LogLine, LINE),
}


def read(kind, document):
    """What reading a document gives, manifests with a checksum that fits."""
    if issubclass(kind, manifest.Manifest):
        return manifest.unsealed(sealed(document), "folder", "folder/manifest.json", kind)
    if kind is Report:
        return Report.parse(json_text(document))
    return documents.parse(kind, json_text(document))


def checked(kind, document, change):
    """Read a damaged document: whether it was refused, and that in one line."""
    try:
        document_read = read(kind, document)
    except (Failure, documents.DocumentError) as error:
        line = str(error)
        assert line.isprintable() and len(line) < LONGEST_LINE, change
        return True
    except Exception as error:
        raise AssertionError(f"{change}: {type(error).__name__}: {error}") from error
    for path in getattr(document_read, "files", None) or ():
        if issubclass(kind, manifest.Manifest):
            assert FORMATS[kind.FORMAT].is_file(path) and documents.is_relative_path(path), change
    # What was read is written, and read again: NaN, which reports may have, is never itself.
    written = documents.plain(document_read)
    again = documents.plain(read(kind, written))
    assert json_text(again | {"sha256": ""}) == json_text(written | {"sha256": ""}), change
    return False


def parsed(rounds, seed):
    """Damage every kind of document so often; how many were refused."""
    refused = 0
    for name, (kind, document) in DOCUMENTS.items():
        for change, damaged in itertools.islice(mutations(document, seed), rounds):
            refused += checked(kind, damaged, f"{name}, seed {seed}: {change}")
    return refused


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_whole_document_is_read_and_written_as_it_was(name):
    kind, document = DOCUMENTS[name]
    written = documents.plain(read(kind, document))
    expected = document
    if issubclass(kind, manifest.Manifest):
        written = {key: value for key, value in written.items() if key != "sha256"}
        expected = {key: value for key, value in document.items() if key != "sha256"}
        assert json.dumps(read(kind, document).body()) == json.dumps(expected)
    for path in places(expected):
        value, received = expected, written
        for key in path:
            value, received = value[key], received[key]
        if not isinstance(value, dict | list):
            assert received == value, path


def test_damaged_documents_are_refused_in_one_line():
    refused = parsed(250, 1)
    assert refused > 500


@pytest.mark.long
def test_many_damaged_documents_are_refused_in_one_line():
    for seed in range(3):
        assert parsed(1000, 100 + seed) > 1000


WRONG = {
    "a table's name": (("tables", 0, "name"), "../../x", "tables.0.name"),
    "a rows file": (("tables", 0, "files", 0, "file"), "../../x", "tables.0.files.0.file"),
    "another table's file": (
        ("tables", 0, "files", 0, "file"),
        "dense.bin",
        "which no table names",
    ),
    "rows": (("tables", 0, "files", 0, "rows"), 2**60, "cannot have"),
    "a field's count": (("tables", 0, "record", 5, "count"), 2**60, "tables.0.record.5.count"),
    "an optimizer": (("tables", 0, "segments", 0, "optimizer", "name"), "adamw", "'adamw'"),
    "a group's number": (("tables", 0, "groups", 0, "number"), 65_536, "less than 65536"),
    "a sketch": (("tables", 0, "sketch", "bytes"), 2**40, "sketch.bin"),
    "a shape": (("dense", "variables", 0, "shape"), [2**50], "too large"),
    "a state": (("dense", "states"), ["m"], "its variables need"),
    "the parent": (("parent", "folder"), "../run", "parent.folder"),
    "a day": (("days", 0, "day"), "../../x", "days.0.day"),
    "the day under way": (("position", "day"), "/etc/passwd", "position.day"),
    "a position": (("position", "window"), -1, "position.window"),
    "a head": (("heads",), ["a b"], "heads.0"),
    "a NaN": (("logit_correction",), float("nan"), "logit_correction"),
    "the version": (("version",), 4, "version 4"),
    "the format": (("format",), "tnctl graph", "'tnctl graph'"),
    "graph": (("graph",), "../graph", "graph"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_field_is_named_with_its_file(case):
    path, value, said = WRONG[case]
    document = rich_checkpoint()
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    with pytest.raises(Failure) as caught:
        read(CheckpointManifest, document)
    line = str(caught.value)
    assert line.startswith("folder/manifest.json") and said in line and line.isprintable()


@pytest.mark.parametrize(
    "path",
    ["graph//etc/passwd", "graph/../../x", "tables/x/../y", "x.tex", "graph/notes.txt",
     "tables/embedding3/00001.rows", "extra/../x", "conf.json/x", "dense.bin\n"],
)  # fmt: skip
def test_files_that_no_checkpoint_has(path):
    document = rich_checkpoint()
    document["files"][path] = document["files"]["dense.bin"]
    with pytest.raises(Failure, match="key 'files"):
        read(CheckpointManifest, document)


def test_names_of_days():
    for name in ("2024-01-01", "20240101", "day_10", "montag", "2024/01/01", "12:00", "x..y"):
        assert is_day(name), name
    for name in ("", "..", "../x", "a/../b", "/x", "a/", "a//b", ".x", "a/.x", "*", "a?", "[a]",
                 "{day}", "s3://x", "x\n", "\x1b[2J", "a\\b", "x" * 300, "\0"):  # fmt: skip
        assert not is_day(name), name


def test_a_large_manifest_is_read_fast():
    """10,000 rows files: training waits for this when it saves and resumes."""
    document = rich_checkpoint()
    table, files = document["tables"][0], document["files"]
    entry = files.pop(table["files"][0]["file"])
    count, width = 10_000, 2**64 // 10_000
    table["files"] = []
    for number in range(count):
        first = number * width
        last = 2**64 - 1 if number == count - 1 else first + width - 1
        name = f"tables/{table['name']}/{number:05d}.rows.zst"
        files[name] = entry
        rows = 18 if number == 0 else 0
        table["files"].append(
            {"file": name, "first": f"{first:016x}", "last": f"{last:016x}", "rows": rows}
        )
    text = sealed(document)
    started = time.process_time()
    content = manifest.unsealed(text, "folder", "folder/manifest.json", CheckpointManifest)
    assert len(content.tables[0].files) == count
    assert time.process_time() - started < 2  # some 0.15 s; the bound is for a busy machine


# ---- Commands


def tree(folder):
    """Every file below a folder, with its bytes."""
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def commands(cli, tmp_path, rounds, seed):
    """Damage a manifest, run a command over it, and put it back; counts of exit codes."""
    home = tmp_path / "a" / "b" / "c"
    dict_checkpoints.history(str(home / "run"), steps=(10, 20, 30), full_every=2, count=30)
    last, first = (home / f"run/checkpoints/step-{step:010d}" for step in (20, 10))
    codes = dict.fromkeys((0, 1, 2), 0)
    next_commands = itertools.cycle(
        [
            ("list", "run"), ("inspect", str(last)), ("verify", str(last)),
            ("diff", str(first), str(last)), ("compact", str(last), "to=folded"),
            ("prune", "run", "keep=1"), ("list", "run", "--json"), ("inspect", "run"),
        ]
    )  # fmt: skip
    generators = [
        mutations(json.loads((folder / "manifest.json").read_text()), seed + number)
        for number, folder in enumerate((last, first))
    ]
    for number in range(rounds):
        folder = (last, first)[number % 3 == 0]
        change, damaged = next(generators[number % 3 == 0])
        path = folder / "manifest.json"
        whole = path.read_bytes()
        path.write_bytes(sealed(damaged))
        files_before = tree(tmp_path)
        command = next(next_commands)
        done = cli("checkpoint", *command, cwd=home)
        where = f"round {number}, seed {seed}, {command}: {change}"
        assert done.code in codes and "Traceback" not in done.err, f"{where}\n{done.err}"
        codes[done.code] += 1
        shutil.rmtree(home / "folded", ignore_errors=True)
        assert tree(tmp_path) == files_before, where
        path.write_bytes(whole)
    return codes


def test_commands_over_damaged_manifests(cli, tmp_path):
    codes = commands(cli, tmp_path, 160, 7)
    assert codes[0] and codes[1]


@pytest.mark.long
def test_many_commands_over_damaged_manifests(cli, tmp_path):
    commands(cli, tmp_path, 500, 70)


def test_a_bad_checkpoint_is_listed_as_bad(cli, tmp_path):
    """The others are listed as usual, and pruning keeps it."""
    dict_checkpoints.history(str(tmp_path / "run"), steps=(10, 20, 30), full_every=1, count=30)
    path = tmp_path / "run/checkpoints/step-0000000020/manifest.json"
    content = json.loads(path.read_text())
    del content["clock"]["step"]
    path.write_bytes(sealed(content))
    done = cli("checkpoint", "list", "run", "--json", cwd=tmp_path)
    entries = json.loads(done.out)
    assert done.code == 0 and [entry["step"] for entry in entries] == [10, 20, 30]
    problems = [entry["problem"] for entry in entries]
    assert problems[0] is problems[2] is None
    assert re.search(r"step-0000000020/manifest\.json .*key 'clock\.step' is missing", problems[1])
    assert cli("checkpoint", "prune", "run", "keep=1", "yes=true", cwd=tmp_path).code == 0
    left = sorted(folder.name for folder in (tmp_path / "run/checkpoints").iterdir())
    assert left == ["step-0000000020", "step-0000000030"]


# ---- Running figures: a .npz


def npz(**changes):
    """The figures as `Running.to_bytes` writes them, with other arrays."""
    arrays = {
        "clicks": np.zeros(65_536, np.uint64), "others": np.ones(65_536, np.uint64),
        "examples": np.array([3, 1], np.int64), "losses": np.array([0.5, 0.1]),
    }  # fmt: skip
    stream = io.BytesIO()
    np.savez_compressed(stream, **{**arrays, **changes})
    return stream.getvalue()


def with_header(shape):
    """A .npz whose array `examples` says that it has another shape than its bytes."""
    member, stream = io.BytesIO(), io.BytesIO(npz())
    header = {"descr": "<i8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(member, header)
    with zipfile.ZipFile(stream) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    content["examples.npy"] = member.getvalue() + bytes(16)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return out.getvalue()


def test_running_figures_come_back():
    running = PassSums(True)
    running.fill(npz())
    again = PassSums(True)
    again.fill(running.to_bytes())
    assert again.to_bytes() == running.to_bytes()
    assert [again.examples, again.loss, *(again.loss_since() for _ in "12")] == [3, 0.5 / 3, 0.1, 0]


@pytest.mark.parametrize(
    "data",
    [
        b"", b"PK", npz()[:-30], npz(clicks=np.zeros(1, np.uint64)), npz(clicks=np.zeros(65_536)),
        npz(examples=np.array([[3, 1]])), npz(examples=np.array([-3, 1])),
        npz(losses=np.array([np.nan, 0.0])), npz(clicks=np.array([{}], object)),
        npz(others=np.zeros(1 << 22, np.uint64)), with_header((2**60,)), with_header((-1,)),
    ],
)  # fmt: skip
def test_running_figures_of_another_form(data):
    running = PassSums(True)
    with pytest.raises(ValueError, match="no running figures"):
        running.fill(data)
    assert running.examples == 0 and not running.auc.counts[0].any()
