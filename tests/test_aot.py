"""Graphs that were compiled ahead of time, and the C++ program that scores with them."""

import ctypes
import json
import re
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tnctl import manifest
from tnctl.errors import Failure, UserError
from tnctl.manifest import Inventory
from tnctl.serving.graph import aot
from tnctl.serving.graph.graph_document import GraphManifest
from tnctl.serving.graph.loaded_graph import open_graph
from tnctl.serving.graph_inputs import RawInputs, pooled_inputs, served_lookup
from tnctl.serving.rows.embeddings import open_embeddings

ROOT = Path(__file__).resolve().parent.parent
SIZES = [1, 4]
TOLERANCE = 2e-5


@pytest.mark.parametrize(
    ("given", "sizes"),
    [("[1,32,256]", [1, 32, 256]), ("8", [8]), ("[32, 1,32]", [1, 32]), ("65536", [65536])],
)
def test_sizes(given, sizes):
    assert aot.sizes_of(given) == sizes


@pytest.mark.parametrize("given", ["[]", "", "0", "[1,0]", "-1", "1.5", "big", "[1;2]", "65537"])
def test_no_sizes(given):
    with pytest.raises(UserError, match=f"Received: aot={given.replace('[', '.')}"):
        aot.sizes_of(given)


@pytest.fixture(scope="module")
def served(_trained, ran, tmp_path_factory):
    """A run with graph/, compiled for SIZES, and embeddings/ as dictionaries."""
    folder = tmp_path_factory.mktemp("aot")
    shutil.copytree(_trained / "run", folder / "run")
    for command in (
        ("split-graph", "aot=[4,1]"),
        ("export-embeddings", "format=dictionary"),
    ):
        ran(*command, "output=run", cwd=folder)
    return folder


def make(graph, build, *arguments, program="score_aot"):
    """`make PROGRAM`, unoptimised for speed of the test; its file."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    done = subprocess.run(
        ["make", "-j2", "-C", ROOT / "examples/serving", program, f"GRAPH={graph}",
         f"BUILD={build}", f"PYTHON={sys.executable}", "CFLAGS=-O1", "CXXFLAGS=-O0", *arguments],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return build / program


@pytest.fixture(scope="module")
def program(served):
    """score_aot; beside it the library and the program that loads one."""
    return make(served / "run/graph", served / "build", "graph_library", "score_library")


def score(program, graph, embeddings, *arguments, rows=""):
    return subprocess.run(
        [program, graph, embeddings, *arguments],
        input=rows, capture_output=True, text=True, timeout=100,
    )  # fmt: skip


def last(done):
    """The last line of what a program said of an error; TensorFlow's library speaks before it."""
    return done.stderr.splitlines()[-1]


def golden_rows(folder):
    return [json.loads(line) for line in (folder / "golden.jsonl").read_text().splitlines()]


def test_what_was_compiled_is_described(served):
    """Files with their checksums; the names of inputs and outputs; no CPU but the one asked for."""
    folder = served / "run/graph"
    content = json.loads((folder / "serving.json").read_text())
    document = manifest.read(str(folder), GraphManifest, "serving.json")
    described = content["aot"]
    assert [size["rows"] for size in described["sizes"]] == SIZES
    assert described["target_cpu"] == "x86-64-v3"
    assert described["target_triple"].startswith("x86_64")
    for size in described["sizes"]:
        for path in (size["header"], *size["objects"]):
            manifest.check_stored(str(folder), document, path)
        assert size["feeds"] == {"x": "feed_x", "linear": "feed_linear"}
        assert size["fetches"] == {"logits": "fetch_logits", "predictions": "fetch_predictions"}
        header = (folder / size["header"]).read_text()
        for name in (*size["feeds"].values(), *size["fetches"].values()):
            assert f'"{name}"' in header
        assert f"class {size['class']} final" in header
        assert str(served) not in header  # nothing of the machine that compiled
    for name in ("aot/compiled.h", "aot/compiled.mk"):
        manifest.check_stored(str(folder), document, name)


def test_the_program_gives_the_scores_of_golden_rows(served, program):
    """All golden rows, from raw values, in batches of every kind: cut, padded, single."""
    graph, embeddings = served / "run/graph", served / "run/embeddings"
    for golden in (graph / "golden.jsonl", embeddings / "golden.jsonl"):
        done = score(program, graph, embeddings, "--check", golden)
        assert done.returncode == 0, done.stderr
    rows = golden_rows(embeddings)
    text = "".join(json.dumps(row["row"]) + "\n" for row in rows)
    expected = np.array([row["logits"]["label"] for row in rows])
    for batch in (1, 3, 4, 7, 200):
        done = score(program, graph, embeddings, "--batch", str(batch), rows=text)
        assert done.returncode == 0, done.stderr
        scores = [json.loads(line) for line in done.stdout.splitlines()]
        logits = np.array([score["logit"] for score in scores])
        assert np.all(np.abs(logits - expected) <= TOLERANCE * (1 + np.abs(expected))), batch
        predictions = np.array([score["prediction"] for score in scores])
        np.testing.assert_allclose(predictions, 1 / (1 + np.exp(-logits)), rtol=1e-5)


def test_the_program_knows_its_graph(served, program, tmp_path):
    """The network is in the program: a graph that was compiled again, or never, is another."""
    embeddings = served / "run/embeddings"
    graph = shutil.copytree(served / "run/graph", tmp_path / "graph")
    text = (graph / "serving.json").read_text()
    identity = json.loads(text)["aot"]["identity"]
    for other in (text.replace(identity, identity[::-1]), text.replace('"aot"', '"none"')):
        (graph / "serving.json").write_text(other)
        done = score(program, graph, embeddings)
        assert done.returncode == 1
        assert last(done).startswith(f"{program}: the compiled graph was not made from {graph}:")
    done = score(program, served / "run/graph", embeddings, "--threads", "2")
    assert done.returncode == 1
    assert "one thread" in last(done)


def test_what_make_refuses(served, tmp_path):
    """A folder without compiled graphs; one that another version of TensorFlow compiled."""
    graph = shutil.copytree(served / "run/graph", tmp_path / "graph")
    settings = graph / "aot/compiled.mk"
    settings.write_text(settings.read_text().replace("AOT_TENSORFLOW := ", "AOT_TENSORFLOW := 9"))
    with pytest.raises(AssertionError, match="was compiled by TensorFlow 9"):
        make(graph, tmp_path, "AOT_RUNTIME=", "AOT_PROGRAM=")
    with pytest.raises(AssertionError, match=f"Received: GRAPH={tmp_path}"):
        make(tmp_path, tmp_path, "AOT_PROGRAM=")


@pytest.mark.long
def test_every_way_of_scoring_gives_the_same_logits(served, server, ran, tmp_path):
    """Golden rows with one user, by each signature, TensorFlow and C, files and Redis."""
    embeddings = served / "run/embeddings"
    checkpoint = f"checkpoint={max((served / 'run/checkpoints').iterdir())}"
    user = {"slots.user_id.side": "user", "slots.device.side": "user", "numeric.price.side": "user"}
    sides = [f"{key}={side}" for key, side in user.items()]
    ran("split-graph", checkpoint, f"to={tmp_path / 'graph'}", "aot=[16]", *sides, cwd=served)
    ran("split-graph", checkpoint, f"to={tmp_path / 'inside'}", "rows=inside", cwd=served)
    ran("export-embeddings", checkpoint, f"to={server.url}", cwd=served)
    first, *others = [row["row"] for row in golden_rows(embeddings)][:60]
    of_user = {name: first[name] for name in ("user_id", "device", "price")}
    rows = [first, *(row | of_user for row in others)]
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    (tmp_path / "rows.jsonl").write_text(text)
    logits = {}

    def scored(name, graph, *artefacts, count=60):
        scores = []
        for start in range(0, len(rows), count):
            (tmp_path / "part.jsonl").write_text(
                "".join(text.splitlines(True)[start : start + count])
            )
            ran("score", f"graph={tmp_path / graph}", *artefacts, "input=part.jsonl",
                "to=scores.jsonl", "overwrite=true", cwd=tmp_path)  # fmt: skip
            lines = (tmp_path / "scores.jsonl").read_text().splitlines()
            scores += [json.loads(line)["logit"] for line in lines]
        logits[name] = np.array(scores)

    scored("packed", "graph", f"embeddings={embeddings}", count=15)
    scored("rank", "graph", f"embeddings={embeddings}")
    scored("rank of Redis", "graph", f"embeddings={server.url}")
    scored("by_id", "inside")
    graph = open_graph(str(tmp_path / "graph"))
    inside = open_graph(str(tmp_path / "inside"))
    raw = RawInputs(inside.description)
    by_value = raw.values(inside.description, rows, lambda row: ("rows", row + 1))
    logits["by_value"] = inside.run("by_value", by_value)["logits"]
    with closing(open_embeddings(str(embeddings), "tnctl")) as opened:
        encoded = RawInputs(graph.description).encode(rows, lambda row: ("rows", row + 1))
        packed = pooled_inputs(graph.description, encoded, served_lookup(graph.description, opened))
    logits["by_slot"] = graph.outputs("by_slot", packed)["logits"]
    tensorflow = f"TF={Path(tf.__file__).parent}"
    for name, program, batch in (("C, packed", "score", 15), ("C, rank", "score", 60),
                                 ("C, compiled", "score_aot", 16)):  # fmt: skip
        built = make(tmp_path / "graph", tmp_path / program, tensorflow, program=program)
        done = score(built, tmp_path / "graph", embeddings, "--batch", str(batch), rows=text)
        assert done.returncode == 0, done.stderr
        logits[name] = np.array([json.loads(line)["logit"] for line in done.stdout.splitlines()])
    for name, array in logits.items():
        distance = np.abs(array - logits["packed"]) / (1 + np.abs(logits["packed"]))
        assert distance.max() <= 1e-6, name
    assert len(logits) == 9 and np.ptp(logits["packed"]) > 0.1


# ---- The shared library ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def library(program):
    return program.parent / "libtnctl_graph.so"


@pytest.fixture(scope="module")
def loading_program(program):
    return program.parent / "score_library"


def test_the_example_of_the_page_loads_the_library(served, library, tmp_path):
    [example] = re.findall(
        r"```python\n(# library.py.*?)```", (ROOT / "docs/aot.md").read_text(), re.S
    )
    (tmp_path / "library.py").write_text(example)
    done = subprocess.run(
        [sys.executable, tmp_path / "library.py", library, served / "run/graph"],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = len(golden_rows(served / "run/graph"))
    assert done.stdout.startswith(f"{rows} rows, logits within ")


def test_the_library_gives_the_bits_of_the_program(served, program, library, loading_program):
    graph, embeddings = served / "run/graph", served / "run/embeddings"
    text = "".join(json.dumps(row["row"]) + "\n" for row in golden_rows(embeddings))
    for batch in ("1", "7", "200"):
        expected = score(program, graph, embeddings, "--batch", batch, rows=text)
        given = score(loading_program, library, graph, embeddings, "--batch", batch, rows=text)
        assert given.returncode == expected.returncode == 0, given.stderr
        assert given.stdout == expected.stdout != ""
    golden = embeddings / "golden.jsonl"
    done = score(loading_program, library, graph, embeddings, "--check", golden)
    assert done.returncode == 0, done.stderr


def functions_of(header):
    """The functions that a header declares."""
    return set(re.findall(r"\b(tnctl_graph_\w+)\(", re.sub(r"/\*.*?\*/", "", header, flags=re.S)))


def test_the_library_shows_what_its_header_declares(library):
    """Beside it, in C and C++ alike; and nothing that another model's library has too."""
    path = library.parent / "graph_library.h"
    flags = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"]
    for language in ("c", "c++"):
        subprocess.run(["g++", "-x", language, *flags, path], check=True)
    symbols = subprocess.run(
        ["nm", "--dynamic", "--defined-only", "--format=posix", library],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    shown = {line.split()[0] for line in symbols.splitlines()}
    assert shown == functions_of(path.read_text())
    assert len(shown) == 15


def pointers(*arrays):
    return (ctypes.c_void_p * len(arrays))(
        *[None if array is None else array.ctypes.data for array in arrays]
    )


def test_the_interface(served, library, tmp_path):
    """What is not there, what must not be NULL; two libraries in one process."""
    first = ctypes.CDLL(str(library))
    second = ctypes.CDLL(shutil.copy(library, tmp_path))
    for name in ("identity", "message", "input_name", "output_name"):
        getattr(first, f"tnctl_graph_{name}").restype = ctypes.c_char_p
    described = json.loads((served / "run/graph/serving.json").read_text())
    assert first.tnctl_graph_interface() == 1
    assert first.tnctl_graph_identity().decode() == described["aot"]["identity"]
    assert first.tnctl_graph_sizes() == len(SIZES)
    assert [first.tnctl_graph_size_rows(i) for i in range(3)] == [*SIZES, 0]
    names = [first.tnctl_graph_input_name(i) for i in range(3)]
    assert names == [b"linear", b"x", None]
    columns = {given["name"]: given["columns"] for given in described["signatures"]["packed"]}
    widths = [first.tnctl_graph_input_columns(i) for i in range(3)]
    assert widths == [columns["linear"], columns["x"], 0]
    assert [first.tnctl_graph_input_is_int32(i) for i in range(3)] == [0, 0, 0]
    assert [first.tnctl_graph_output_name(i) for i in range(3)] == [b"logits", b"predictions", None]
    assert [first.tnctl_graph_output_columns(i) for i in range(3)] == [1, 1, 0]
    texts = [first.tnctl_graph_message(code) for code in (-1, 0, 1, 2, 3, 4, 5)]
    assert len(set(texts)) == 6  # -1 and 5 are unknown
    assert first.tnctl_graph_create(None) == 1

    graphs = [ctypes.c_void_p(), ctypes.c_void_p()]
    rows = 6
    linear, x = (np.random.default_rng(1).random((rows, n), np.float32) for n in widths[:2])
    logits = np.full((2, rows), np.nan, np.float32)
    for loaded, graph, to in zip((first, second), graphs, logits, strict=True):
        assert loaded.tnctl_graph_create(ctypes.byref(graph)) == 0
        run = loaded.tnctl_graph_score
        inputs, outputs = pointers(linear, x), pointers(to, None)
        assert run(graph, ctypes.c_size_t(rows), inputs, outputs) == 0
        assert run(graph, ctypes.c_size_t(0), pointers(None, None), pointers(None, None)) == 0
        for arguments in (
            (None, inputs, outputs), (graph, None, outputs), (graph, inputs, None),
            (graph, pointers(linear, None), outputs),
        ):  # fmt: skip
            assert run(arguments[0], ctypes.c_size_t(rows), *arguments[1:]) == 1
    assert np.isfinite(logits).all()
    assert logits[0].tolist() == logits[1].tolist()
    assert len(set(logits[0].tolist())) == rows
    for loaded, graph in zip((first, second), graphs, strict=True):
        loaded.tnctl_graph_free(graph)
        loaded.tnctl_graph_free(None)


def test_what_is_no_library_of_this_graph(served, library, loading_program, tmp_path):
    graph, embeddings = (
        shutil.copytree(served / "run/graph", tmp_path / "graph"),
        served / "run/embeddings",
    )
    data = library.read_bytes()
    for end in (0, 10, 5000, len(data) // 2, len(data) - 1):
        (tmp_path / f"{end}.so").write_bytes(data[:end])
    (tmp_path / "text.so").write_text("no library" * 100)
    for path, said in (
        (tmp_path / "nowhere.so", "No such file"),
        (tmp_path / "0.so", "file too short"),
        (tmp_path / "10.so", "file too short"),
        (tmp_path / "5000.so", "5000.so: the file is cut short"),
        (tmp_path / f"{len(data) // 2}.so", "the file is cut short"),
        (tmp_path / f"{len(data) - 1}.so", "the file is cut short"),
        (tmp_path / "text.so", "invalid ELF header"),
        ("libm.so.6", "libm.so.6: it has no function tnctl_graph_interface"),
    ):
        done = score(loading_program, path, graph, embeddings)
        assert done.returncode == 1
        assert said in last(done)
    serving = graph / "serving.json"
    identity = json.loads(serving.read_text())["aot"]["identity"]
    serving.write_text(serving.read_text().replace(identity, identity[::-1]))
    done = score(loading_program, library, graph, embeddings)
    assert done.returncode == 1
    assert f"the compiled graph was not made from {graph}:" in last(done)
    done = score(loading_program, library, graph)
    assert done.returncode == 2
    assert "usage" in done.stderr


# ---- Compiling -------------------------------------------------------------------------------


def saved(folder, function):
    """A SavedModel whose signature `packed` is a function of x [B, 2]."""
    import tensorflow as tf

    spec = tf.TensorSpec([None, 2], tf.float32, "x")
    concrete = tf.function(function, autograph=False).get_concrete_function(x=spec)
    tf.saved_model.save(tf.Module(), str(folder), signatures={"packed": concrete})
    return str(folder)


def test_an_operation_that_cannot_be_compiled(tmp_path):
    import tensorflow as tf

    def nth(x):
        return {"logits": tf.raw_ops.NthElement(input=x, n=0)}

    inventory = Inventory(str(tmp_path / "graph"))
    with pytest.raises(Failure) as caught:
        aot.compile_sizes(saved(tmp_path / "saved", nth), [2], inventory)
    message = str(caught.value)
    assert message.startswith("the graph cannot be compiled for batches of 2: ValueError: ")
    assert "NthElement" in message
    assert message.endswith("Leave aot= out: the SavedModel serves any recipe")
    assert inventory.files == {}


def test_outputs_that_are_no_floats(tmp_path):
    import tensorflow as tf

    def doubled(x):
        return {"logits": tf.cast(x, tf.float64)}

    with pytest.raises(Failure, match=r"output 'logits' of float64 .*Leave aot= out"):
        aot.compile_sizes(saved(tmp_path / "saved", doubled), [2], Inventory(str(tmp_path)))


@pytest.mark.parametrize(
    "cpu", ["nonsense", "", "-v", pytest.param("native", marks=pytest.mark.long),
    pytest.param("i686", marks=pytest.mark.long)],
)  # fmt: skip
def test_an_unknown_cpu(cpu, tmp_path):
    def zeros(x):
        return {"logits": 0 * x[:, 0]}

    with pytest.raises(UserError, match="target_cpu is no CPU") as caught:
        folder = saved(tmp_path / "saved", zeros)
        aot.compile_sizes(folder, [1], Inventory(str(tmp_path / "graph")), cpu)
    assert f"Received: '{cpu}'" in str(caught.value)


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Where the runtime with Eigen's matrix products is compiled, once."""
    return tmp_path_factory.mktemp("build")


@pytest.mark.long
@pytest.mark.parametrize(
    "recipe",
    [
        "din",
        "esmm",
        "dlrm",
        "autoint",
        "fcn",
        "wukong",
        "bst",
        "ple",
        "deepfm position.slot=position",
    ],
)
def test_recipes_of_other_operations(recipe, ran, build, tmp_path):
    """Inputs that are integers, matrix products of Eigen, an output per head; sizes far apart."""
    rows = ("data.train=0:6000", "data.validation=10000:10200", "data.test=20000:20200")
    conf, *position = recipe.split()
    for command in (
        ("train", f"conf={conf}", *rows, *position),
        ("split-graph", "aot=[1,100]"),
        ("export-embeddings", "format=dictionary"),
    ):
        done = ran(*command, "output=run", cwd=tmp_path)
    graph, embeddings = tmp_path / "run/graph", tmp_path / "run/embeddings"
    described = json.loads((graph / "serving.json").read_text())
    # Of small matrices the products are compiled in place.
    has_small = conf in ("ple", "deepfm")
    assert has_small or "dot_lib_f32.cc" in str(described["aot"]["runtime"])
    for size in described["aot"]["sizes"]:
        assert set(size["feeds"]) == {given["name"] for given in described["signatures"]["packed"]}
        assert set(size["fetches"]) == {given["name"] for given in described["outputs"]}
    program = make(graph, build)
    for batch in ("1", "145", "200"):  # 145: one of 100 and forty-five of 1
        golden = graph / "golden.jsonl"
        done = score(program, graph, embeddings, "--batch", batch, "--check", golden)
        assert done.returncode == 0, done.stderr


TENSORNET = """\
defaults: [schema, {recipe: wide_deep}, _self_]
compat: tensornet
recipe: {hidden: [16]}
embedding: {width: 8, initial: {scale: 1}}
slots:
  slot_1: {column: "1", ids: integer, pooling: mean, group: signs}
  slot_2: {column: "2", ids: integer, pooling: mean, group: signs}
  slot_3: {column: "3", pooling: mean}
data: {format: jsonl, train: rows.jsonl, test: null, label: {column: label}}
train: {batch_size: 50}
"""


@pytest.mark.long
def test_tensornets_demo_switches(ran, build, tmp_path):
    """Lines, the exported rows and the library give what `tnctl score` and `predict` give."""
    random = np.random.default_rng(5)
    known = random.integers(-(2**63), 2**63, 60)
    rows = [
        {
            slot: random.choice(known, random.integers(1, 4)).tolist()
            for slot in "123"
            if random.random() < 0.9
        }
        for _ in range(300)
    ]  # fmt: skip
    labelled = [row | {"label": number % 3 % 2} for number, row in enumerate(rows)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in labelled))
    (tmp_path / "conf.yaml").write_text(TENSORNET)
    for command in (
        ("train", "conf=conf.yaml"),
        ("split-graph", "aot=[1,32]"),
        ("export-embeddings", "format=dictionary"),
        ("predict", "data.test=rows.jsonl", "format=jsonl", "to=predicted.jsonl"),
    ):
        done = ran(*command, "output=run", cwd=tmp_path)
    ran(
        "score", "graph=run/graph", "embeddings=run/embeddings", "input=rows.jsonl",
        "to=scored.jsonl", cwd=tmp_path,
    )  # fmt: skip
    lines = ""
    for row in rows:
        slots = [f"{slot}\x01" + "\x02".join(map(str, signs)) for slot, signs in row.items()]
        lines += "\t".join(["0", *slots]) + "\n"
    graph, embeddings = tmp_path / "run/graph", tmp_path / "run/embeddings"
    program = make(graph, build, "graph_library", program="score_library")
    done = score(program, build / "libtnctl_graph.so", graph, embeddings, "--tensornet", rows=lines)
    assert done.returncode == 0, done.stderr
    logits = np.array([json.loads(line)["logit"] for line in done.stdout.splitlines()])
    for name in ("predicted.jsonl", "scored.jsonl"):
        expected = [
            json.loads(line)["logit"] for line in (tmp_path / name).read_text().splitlines()
        ]
        assert np.all(np.abs(logits - expected) <= TOLERANCE * (1 + np.abs(expected))), name
    assert len(set(logits.tolist())) > 200
