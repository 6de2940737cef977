"""Graphs that were compiled ahead of time, and the C++ program that scores with them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tnctl import manifest
from tnctl.errors import Failure, UserError
from tnctl.manifest import Inventory
from tnctl.serving.graph import aot
from tnctl.serving.graph.graph_document import GraphManifest

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
def served(_trained, cli, tmp_path_factory):
    """A run with graph/, compiled for SIZES, and embeddings/ as dictionaries."""
    folder = tmp_path_factory.mktemp("aot")
    shutil.copytree(_trained / "run", folder / "run")
    for command in (
        ("split-graph", "aot=[4,1]"),
        ("export-embeddings", "format=dictionary"),
    ):
        done = cli(*command, "output=run", cwd=folder)
        assert done.code == 0, done.err
    return folder


def make(graph, build, *arguments):
    """`make score_aot`, unoptimised for speed of the test; the program."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    done = subprocess.run(
        ["make", "-j2", "-C", ROOT / "examples/serving", "score_aot", f"GRAPH={graph}",
         f"BUILD={build}", f"PYTHON={sys.executable}", "CFLAGS=-O1", "CXXFLAGS=-O0", *arguments],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return build / "score_aot"


@pytest.fixture(scope="module")
def program(served):
    return make(served / "run/graph", served / "build")


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


def swapped(text, first, second):
    return text.replace(first, "\0").replace(second, first).replace("\0", second)


def built_from_swapped(served, program, folder, *names):
    """A graph in which two names, not the positions, are exchanged, and its program."""
    build = shutil.copytree(program.parent, folder / "build")
    graph = shutil.copytree(served / "run/graph", folder / "graph")
    for header in graph.glob("aot/*/graph.h"):
        text = header.read_text()
        assert all(text.count(name) == 1 for name in names)
        header.write_text(swapped(text, *names))
    return graph, make(graph, build)


def test_names_of_inputs_are_what_counts(served, program, tmp_path):
    """Positions stay as they are: a program that went by them would notice nothing."""
    graph, wrong = built_from_swapped(served, program, tmp_path, '"feed_x"', '"feed_linear"')
    done = score(wrong, graph, served / "run/embeddings")
    assert done.returncode == 1
    assert last(done) == f"{wrong}: input x of the graph has another width than serving.json says"


@pytest.mark.long
def test_names_of_outputs_are_what_counts(served, program, tmp_path):
    names = ('"fetch_logits"', '"fetch_predictions"')
    graph, wrong = built_from_swapped(served, program, tmp_path, *names)
    done = score(wrong, graph, served / "run/embeddings", "--check", graph / "golden.jsonl")
    assert done.returncode == 1
    assert "logit differs" in done.stderr


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
        assert last(done).startswith(f"{program}: this program was not built from {graph}:")
    done = score(program, served / "run/graph", embeddings, "--threads", "2")
    assert done.returncode == 1
    assert "one thread" in last(done)


def test_what_make_refuses(served, tmp_path):
    """A folder without compiled graphs; one that another version of TensorFlow compiled."""
    graph = shutil.copytree(served / "run/graph", tmp_path / "graph")
    settings = graph / "aot/compiled.mk"
    settings.write_text(settings.read_text().replace("AOT_TENSORFLOW := ", "AOT_TENSORFLOW := 9"))
    with pytest.raises(AssertionError, match="was compiled by TensorFlow 9"):
        make(graph, tmp_path, "AOT_RUNTIME=", "COMMON_OBJECTS=")
    with pytest.raises(AssertionError, match=f"Received: GRAPH={tmp_path}"):
        make(tmp_path, tmp_path, "COMMON_OBJECTS=")


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
@pytest.mark.parametrize("recipe", ["din", "esmm"])
def test_sequences_and_several_heads(recipe, cli, build, tmp_path):
    """Inputs that are integers, matrix products of Eigen, an output per head; sizes far apart."""
    rows = ("data.train=0:6000", "data.validation=10000:10200", "data.test=20000:20200")
    for command in (
        ("train", f"conf={recipe}", *rows),
        ("split-graph", "aot=[1,32,100]"),
        ("export-embeddings", "format=dictionary"),
    ):
        done = cli(*command, "output=run", cwd=tmp_path)
        assert done.code == 0, done.err
    graph, embeddings = tmp_path / "run/graph", tmp_path / "run/embeddings"
    described = json.loads((graph / "serving.json").read_text())
    assert any(path.endswith("dot_lib_f32.cc") for path in described["aot"]["runtime"])
    for size in described["aot"]["sizes"]:
        assert set(size["feeds"]) == {given["name"] for given in described["signatures"]["packed"]}
        assert set(size["fetches"]) == {given["name"] for given in described["outputs"]}
    program = make(graph, build)
    for batch in ("1", "45", "200"):  # 45: one of 32 and thirteen of 1
        golden = graph / "golden.jsonl"
        done = score(program, graph, embeddings, "--batch", batch, "--check", golden)
        assert done.returncode == 0, done.stderr
