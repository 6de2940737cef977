"""Documents of serving that are not what they should be: one line that names the wrong field.

Their checksums are made to fit, so that only the types and checks of tnctl stand in the way.
"""

import copy
import hashlib
import itertools
import json
import shutil
from pathlib import Path

import pytest
from mutated_documents import at, mutations, sealed

from tnctl import manifest
from tnctl.checkpoint import golden_lines
from tnctl.documents import DocumentError
from tnctl.errors import Failure
from tnctl.ownership import FORMATS
from tnctl.serving.graph.graph_document import GraphManifest
from tnctl.serving.rows.export_document import ExportManifest
from tnctl.serving.rows.redis_embeddings import RedisManifest
from tnctl.tables.columns import group_salt

GOLDEN = Path(__file__).parent / "golden"
EXPORTS = GOLDEN / "exports"
SEALED = {
    "embeddings": (GOLDEN / "embeddings/manifest.json", ExportManifest),
    "text-2": (EXPORTS / "text-2/manifest.json", ExportManifest),
    "dictionary-2": (EXPORTS / "dictionary-2/manifest.json", ExportManifest),
    "parquet-2": (EXPORTS / "parquet-2/manifest.json", ExportManifest),
    "graph": (GOLDEN / "graph/serving.json", GraphManifest),
}


def parsed(name, text):
    """The document in a text, or the error's line."""
    path, kind = SEALED[name]
    try:
        return manifest.unsealed(text, "folder", str(path), kind)
    except Failure as error:
        assert str(error).isprintable() and str(path) in str(error) and len(str(error)) < 600
        return None


@pytest.mark.short
def test_thousands_of_wrong_documents_are_parsed_or_refused_in_one_line():
    taken, refused = counted(400, 11)
    assert refused > taken > 100


@pytest.mark.long
def test_many_thousands_of_wrong_documents_are_parsed_or_refused_in_one_line():
    for seed in range(100, 103):
        counted(1000, seed)


def counted(rounds, seed):
    """Damage every kind of manifest so often; how many were taken, and refused."""
    taken = refused = 0
    for name, (path, kind) in SEALED.items():
        damaged = mutations(json.loads(path.read_text()), seed=seed)
        for words, content in itertools.islice(damaged, rounds):
            document = parsed(name, sealed(content))
            taken, refused = taken + (document is not None), refused + (document is None)
            if document is not None:  # what was taken can be written, and read again
                text = manifest.sealed(document.body())
                assert manifest.unsealed(text, "folder", "again", kind).body() == document.body()
                assert all(map(FORMATS[kind.FORMAT].is_file, document.files)), words
    return taken, refused


def changed(content, path, value):
    """A copy with another value at a path of keys; DELETED removes it."""
    content = copy.deepcopy(content)
    *above, key = path
    if value is DELETED:
        del at(content, above)[key]
    else:
        at(content, above)[key] = value
    return content


DELETED = object()
NAN = float("nan")
WRONG = [
    ("embeddings", ("version",), 4, "version 4"),
    ("embeddings", ("values",), [{"slot": "user"}], "key 'values.0.file'"),
    ("embeddings", ("kind",), DELETED, "key 'kind' is missing"),
    ("embeddings", ("number",), 9, "key 'number' should be less than or equal to 8"),
    ("embeddings", ("encoding",), "clay", "key 'encoding'"),
    ("embeddings", ("checkpoint", "sha256"), "0", "key 'checkpoint.sha256'"),
    ("embeddings", ("checkpoint", "step"), -1, "key 'checkpoint.step'"),
    ("embeddings", ("filter", "top"), "3", "key 'filter.top'"),
    ("embeddings", ("groups", 0, "group"), "../x", "key 'groups.0.group' should be a name"),
    ("embeddings", ("groups", 0, "salt"), "18446744073709551616", "key 'groups.0.salt'"),
    ("embeddings", ("groups", 0, "width"), 2**60, "key 'groups.0.width'"),
    ("embeddings", ("groups", 0, "file"), "../pwn", "file '../pwn' is not among"),
    ("embeddings", ("groups", 0, "rows"), -1, "key 'groups.0.rows'"),
    ("embeddings", ("slots", 0, "pooling"), "max", "key 'slots.0.pooling'"),
    ("embeddings", ("golden", "file"), "../pwn", "key 'golden.file'"),
    ("embeddings", ("golden", "deviation", "x"), NAN, "key 'golden.deviation.x'"),
    ("embeddings", ("files", "user.parquet"), DELETED, "file 'user.parquet' is not among"),
    ("embeddings", ("files", "../x"), {"bytes": 1, "sha256": "0" * 64}, "relative path"),
    ("embeddings", ("files", "x.tex"), {"bytes": 1, "sha256": "0" * 64}, "'x.tex' is among"),
    ("embeddings", ("files", "user.parquet", "bytes"), 1.5, "key 'files.user.parquet.bytes'"),
    ("dictionary-2", ("groups", 0, "error", "max"), 1e999, "key 'groups.0.error.max'"),
    ("dictionary-2", ("base", "folder"), "..", "folder is no name"),
    ("dictionary-2", ("base", "folder"), "reference://x", "folder is no name"),
    ("text-2", ("groups", 0, "threshold"), {"show": 1, "hash": "2" * 20}, "threshold.hash'"),
    ("graph", ("slots", "user", "group"), "a b", "key 'slots.user.group'"),
    ("graph", ("slots", "user", "ids"), "magic", "key 'slots.user.ids'"),
    ("graph", ("slots", "user", "seed"), 2**53, "key 'slots.user.seed'"),
    ("graph", ("slots", "user", "padding"), "1" * 20 + "1", "key 'slots.user.padding'"),
    ("graph", ("slots", "item", "separator"), "", "key 'slots.item.separator'"),
    ("graph", ("data", "delimiter"), ";;", "key 'data.delimiter'"),
    ("graph", ("data", "format"), "xml", "key 'data.format'"),
    ("graph", ("numeric", "price", "transform"), "exec", "key 'numeric.price.transform'"),
    ("graph", ("numeric", "price", "width"), 0, "key 'numeric.price.width'"),
    ("graph", ("signatures", "packed", 0, "columns"), 2**60, "'signatures.packed.0.columns'"),
    ("graph", ("signatures", "by_slot", 0, "dtype"), "float64", "dtype"),
    ("graph", ("signatures", "by_slot", 0, "source"), "weights", "source"),
    ("graph", ("outputs", 0, "kind"), "secrets", "key 'outputs.0.kind'"),
    ("graph", ("golden", "file"), "x", "key 'golden.file'"),
    ("graph", ("files", "run.py"), {"bytes": 1, "sha256": "0" * 64}, "'run.py' is among"),
    ("graph", ("files", "saved_model.pb"), DELETED, "file 'saved_model.pb' is not among"),
]


@pytest.mark.parametrize(("name", "path", "value", "words"), WRONG)
def test_a_wrong_field_is_named_with_its_file(name, path, value, words):
    file, kind = SEALED[name]
    content = json.loads(file.read_text())
    with pytest.raises(Failure) as caught:
        manifest.unsealed(sealed(changed(content, path, value)), "folder", str(file), kind)
    assert str(file) in str(caught.value) and words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", SEALED)
def test_documents_are_written_as_they_were_read(name):
    path, kind = SEALED[name]
    text = path.read_bytes()
    assert manifest.sealed(manifest.unsealed(text, "folder", str(path), kind).body()) == text


AOT = {
    "identity": "0" * 64, "tensorflow": "2.20.0", "target_triple": "x86_64-pc-linux",
    "target_cpu": "x86-64-v3", "runtime": ["xla/executable_run_options.cc"],
    "sizes": [{
        "rows": 1, "class": "Graph1", "header": "aot/1/graph.h",
        "objects": ["aot/1/graph.o", "aot/1/graph_constants.o"],
        "feeds": {"x": "feed_x"}, "fetches": {"logits": "fetch_logits"},
    }],
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("target_cpu",), "x86; rm -rf .", "key 'aot.target_cpu'"),
        (("tensorflow",), "$(shell touch pwn)", "key 'aot.tensorflow'"),
        (("runtime", 0), "../../x.cc", "key 'aot.runtime.0'"),
        (("sizes", 0, "class"), "Graph1>()}); system(", "key 'aot.sizes.0.class'"),
        (("sizes", 0, "header"), "aot/../../x.h", "key 'aot.sizes.0.header'"),
        (("sizes", 0, "rows"), 10**9, "key 'aot.sizes.0.rows'"),
        (("sizes", 0, "feeds"), {"x": 'x"; int main() {'}, "key 'aot.sizes.0.feeds.x'"),
        (("sizes",), [], "key 'aot.sizes'"),
        (("identity",), "x", "key 'aot.identity'"),
    ],
)
def test_names_of_compiled_graphs_are_harmless(path, value, words):
    file, kind = SEALED["graph"]
    entry = {"bytes": 1, "sha256": "0" * 64}
    names = ["aot/compiled.h", "aot/compiled.mk", "aot/1/graph.h", "aot/1/graph.o"]
    content = json.loads(file.read_text())
    content["files"] |= dict.fromkeys([*names, "aot/1/graph_constants.o"], entry)
    content["aot"] = AOT
    assert manifest.unsealed(sealed(content), "folder", str(file), kind).aot.sizes[0].rows == 1
    with pytest.raises(Failure) as caught:
        wrong = changed(content, ("aot", *path), value)
        manifest.unsealed(sealed(wrong), "folder", str(file), kind)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("encoding", "text", "key 'encoding'"),
        ("sequence", -1, "key 'sequence'"),
        ("buckets", 2**60, "key 'groups.0.buckets'"),
    ],
)
def test_manifests_in_redis_are_believed_as_little(key, value, words):
    content = json.loads((EXPORTS / "parquet/manifest.json").read_text())
    for group in content["groups"]:
        del group["file"], group["removed_file"]
        group |= {"buckets": 1, "fields_per_row": 1}
    content |= {"encoding": "redis", "sequence": 0, "files": {}}
    assert manifest.unsealed(sealed(content), "redis", "key", RedisManifest).sequence == 0
    parent = content["groups"][0] if key == "buckets" else content
    parent[key] = value
    with pytest.raises(Failure, match="key is no manifest of a tnctl embeddings: ") as caught:
        manifest.unsealed(sealed(content), "redis", "key", RedisManifest)
    assert words in str(caught.value)


def test_the_names_that_a_format_produces():
    def produced(kind, *names):
        return [name for name in names if FORMATS[kind.FORMAT].is_file(name)]

    foreign = [
        "thesis.tex", "photos", "../x.parquet", "/x.txt", "a/x.txt", "x.parquet\n", ".txt", "",
        "x.parquet.part", "a b.txt", "saved_model.pbtxt", "variables", "aot/0/graph.h",
        "aot/1/graph.so", "aot/1/../graph.o", "assets.extra/run.sh", "manifest.json",
    ]  # fmt: skip
    rows = ["x.parquet", "x.removed.parquet", "x.txt", "x.removed.txt", "x.dictionary", "x.index"]
    graph = [
        "saved_model.pb", "fingerprint.pb", "variables/variables.index", "aot/compiled.h",
        "variables/variables.data-00000-of-00001", "aot/32/graph_constants.o", "aot/compiled.mk",
        "assets.extra/tf_serving_warmup_requests", "aot/1/graph.h", "aot/65536/graph.o",
    ]  # fmt: skip
    assert produced(ExportManifest, *foreign, *rows, *graph, "golden.jsonl") == [
        *rows, "golden.jsonl"
    ]  # fmt: skip
    assert produced(GraphManifest, *foreign, *rows, *graph, "golden.jsonl") == [
        *graph, "golden.jsonl"
    ]  # fmt: skip


# ---- Golden lines --------------------------------------------------------------

LINE = {
    "row": {"a": "\udc80", "b": [1, None]}, "ids": {"a": ["7", "8"]}, "weights": {"a": [0.5, 1]},
    "x": [1, 0.5], "linear": 0.25, "logits": {"label": 1}, "predictions": {"label": 0.5},
}  # fmt: skip


def test_bytes_that_are_no_utf8_come_through_a_line():
    text = json.dumps(LINE).encode() + b"\n"
    line = golden_lines.parse(text)
    assert line.row["a"] == "\udc80" and line.inputs == {"x": [1, 0.5], "linear": [0.25]}
    assert golden_lines.parse(line.to_json()) == line


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("row",), [], "key 'row' should be"),
        (("ids",), DELETED, "key 'ids' is missing"),
        (("ids", "a"), [7, 8], "key 'ids.a.0'"),
        (("ids", "a", 0), "18446744073709551616", "should be an integer of at most 64 bits"),
        (("weights", "a", 0), NAN, "NaN is no number of JSON"),
        (("x", 0), 1e39, "key 'x.0'"),
        (("x", 0), "1", "key 'x.0' should be a valid number"),
        (("x",), {}, "key 'x'"),
        (("linear",), True, "key 'linear'"),
        (("lengths",), [-1], "key 'lengths.0'"),
        (("logits",), {"../x": 1}, "key 'logits.../x' should be a name"),
    ],
)
def test_a_wrong_golden_line_is_named(path, value, words):
    good, wrong = (json.dumps(line).encode() for line in (LINE, changed(LINE, path, value)))
    with pytest.raises(DocumentError) as caught:
        golden_lines.parse_lines([good, wrong])
    assert "line 2: no line of golden rows" in str(caught.value)
    assert words in str(caught.value)


def test_golden_lines_have_limits(monkeypatch):
    monkeypatch.setattr(golden_lines, "MOST_BYTES", 300)
    monkeypatch.setattr(golden_lines, "MOST_LINES", 2)
    text = json.dumps(LINE).encode()
    with pytest.raises(DocumentError, match=r"line 1: .*it has over 300 bytes"):
        golden_lines.parse_lines([json.dumps(LINE | {"row": {"a": "x" * 300}}).encode()])
    with pytest.raises(DocumentError, match="it has over 2 lines"):
        golden_lines.parse_lines([text] * 3)
    monkeypatch.undo()
    for text in (b"[" * 100_000, b"1" * 5000, b"\xff", b""):
        with pytest.raises(DocumentError, match="no valid JSON"):
            golden_lines.parse(text)


# ---- Through commands -----------------------------------------------------------


def snapshot(folder):
    """Every file below a folder, with its bytes."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def artefacts(tmp_path):
    """A folder with the golden files, inside of one that nobody may write to."""
    folder = tmp_path / "outside/work"
    for name in ("embeddings", "graph", "exports", "checkpoint", "chain"):
        shutil.copytree(GOLDEN / name, folder / name)
    lines = (folder / "checkpoint/golden.jsonl").read_text().splitlines()
    rows = [json.dumps(json.loads(line)["row"]) + "\n" for line in lines]
    (folder / "rows.jsonl").write_text("".join(rows))
    return folder


def refused_or_done(cli, folder, *arguments):
    """Run a command: no traceback, and nothing changes but its own output, which is removed."""
    kept = snapshot(folder.parent)
    done = cli(*arguments, cwd=folder)
    assert done.code in (0, 1, 2), (arguments, done.err)
    assert "Traceback" not in done.err, done.err
    for name in ("out", "out.jsonl"):
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    assert snapshot(folder.parent) == kept, arguments
    return done


FOLD = ("fold", "to=out")
SCORE = ("score", "graph=graph", "embeddings=embeddings", "input=rows.jsonl", "to=out.jsonl")
VERIFY = ("verify-serving", "graph=graph", "embeddings=embeddings")
SINCE = (
    "export-embeddings", "checkpoint=chain/checkpoints/step-0000000004", "to=out", "format=text",
    "since=exports/text", "golden=0",
)  # fmt: skip
COMMANDS = [
    ("exports/dictionary-2/manifest.json", (*FOLD, "embeddings=exports/dictionary-2"), 14),
    ("exports/text/manifest.json", SINCE, 12),
    ("graph/serving.json", SCORE, 16),
    ("embeddings/manifest.json", VERIFY, 8),
]


@pytest.mark.parametrize(("name", "command", "rounds"), COMMANDS)
def test_commands_and_wrong_manifests(artefacts, cli, name, command, rounds):
    content = json.loads((artefacts / name).read_text())
    assert refused_or_done(cli, artefacts, *command).code == 0
    codes = set()
    for _, wrong in itertools.islice(mutations(content, seed=rounds), rounds):
        (artefacts / name).write_bytes(sealed(wrong))
        codes.add(refused_or_done(cli, artefacts, *command).code)
    assert 1 in codes


@pytest.mark.parametrize(
    "name", ["graph//ABSOLUTE/pwn", "graph/../../pwn", "graph/assets/run.sh", "graph/x/../y"]
)
def test_split_graph_writes_what_a_saved_model_has(artefacts, cli, name):
    """As no checkpoint can have such a file: one line, and nothing is written."""
    path = artefacts / "checkpoint/manifest.json"
    content = json.loads(path.read_text())
    name = name.replace("/ABSOLUTE", str(artefacts.parent))
    content["files"][name] = {"bytes": 3, "sha256": hashlib.sha256(b"pwn").hexdigest()}
    path.write_bytes(sealed(content))
    if ".." not in name and "//" not in name:
        (artefacts / "checkpoint" / name).parent.mkdir(parents=True)
        (artefacts / "checkpoint" / name).write_bytes(b"pwn")
    done = refused_or_done(cli, artefacts, "split-graph", "checkpoint=checkpoint", "to=out")
    assert done.code == 1 and not (artefacts / "out").exists()
    assert "checkpoint" in done.line


def test_rows_of_another_group_under_its_name_are_refused(artefacts, cli):
    """All names fit, and the rows are in the order of another group's hashes."""
    folder = artefacts / "embeddings"
    (folder / "user.parquet").rename(folder / "item2.parquet")
    content = json.loads((folder / "manifest.json").read_text())
    content["groups"][0] |= {
        "group": "item2", "salt": str(group_salt("item2")), "file": "item2.parquet"
    }  # fmt: skip
    content["slots"][0]["group"] = "item2"
    content["files"]["item2.parquet"] = content["files"].pop("user.parquet")
    (folder / "manifest.json").write_bytes(sealed(content))
    done = refused_or_done(cli, artefacts, *FOLD, "embeddings=embeddings")
    assert done.code == 1 and "item2.parquet is damaged" in done.line
    assert "not in the order of their hashes" in done.line
