"""SavedModels that would do more than compute: they are refused, or what would do it is not run."""

import copy
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from mutated_documents import reseal
from tensorflow.core.protobuf import saved_model_pb2

from tnctl import schema
from tnctl.checkpoint import load as loading
from tnctl.errors import Failure
from tnctl.serving.graph import loaded_graph
from tnctl.serving.graph.splitting import split
from tnctl.serving.rows.export import export

PACKED = {"x": 21, "linear": 1}
ROWS = {name: np.ones([3, size], np.float32) for name, size in PACKED.items()}
SAVER = "hostile_save"


def saved(folder, effect=lambda: None, module=None):
    """A SavedModel with the signatures of a graph whose loop's body calls `effect`."""
    module = module or tf.Module()
    module.weights = [tf.Variable(2.0, name="weight")]

    @tf.function
    def inner(number):
        effect()
        return number + 1

    @tf.custom_gradient
    def doubled(number):
        return 2 * number, lambda gradient: 2 * gradient

    def scores(x, linear):
        count = tf.while_loop(lambda n: n < 2, lambda n: (inner(n),), (tf.constant(0),))[0]
        total = tf.reduce_sum(x, 1) + tf.cast(count, tf.float32)
        total = tf.cond(tf.size(total) > 2, lambda: doubled(total), lambda: total)
        logits = total + module.weights[0] * linear[:, 0]
        return {"logits": logits, "predictions": tf.sigmoid(logits)}

    specs = {name: tf.TensorSpec([None, size], tf.float32, name) for name, size in PACKED.items()}
    function = tf.function(scores).get_concrete_function(**specs)
    tf.saved_model.save(module, str(folder), signatures={"packed": function, "by_slot": function})
    return folder


def model_of(folder):
    return saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())


def written(folder, model):
    (folder / "saved_model.pb").write_bytes(model.SerializeToString())


def functions_of(model):
    functions = model.meta_graphs[0].graph_def.library.function
    return {function.signature.name: function for function in functions}


def scored(folder):
    """The logits of signature packed, float32 [3]."""
    loaded = loaded_graph.load_graph(str(folder))  # variables live only as long as it does
    return loaded_graph.run(loaded.signatures["packed"], ROWS)["logits"]


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """The folder of a SavedModel that only computes; nobody writes to it."""
    return saved(tmp_path_factory.mktemp("clean") / "graph")


@pytest.fixture
def graph(clean, tmp_path):
    """A folder of one's own with that SavedModel, and its proto."""
    folder = shutil.copytree(clean, tmp_path / "graph")
    return folder, model_of(folder)


# ---- Ops -----------------------------------------------------------------------------


def py_function(path):
    def touch():
        Path(path).write_text("written by Python")
        return 1

    return lambda: tf.py_function(touch, [], tf.int32)


EFFECTS = {
    "WriteFile": lambda path: lambda: tf.io.write_file(str(path), "written by a graph"),
    "ReadFile": lambda path: lambda: tf.print(tf.io.read_file(str(path))),
    "EagerPyFunc": py_function,
    "StringFormat": lambda _: lambda: tf.print("seen"),
    "MatchingFiles": lambda path: lambda: tf.io.matching_files(f"{path}*"),
    # Of two data sets and functions of their own; any of their ops may come first.
    "Dataset": lambda path: (
        lambda: tf.data.TextLineDataset([str(path)]).reduce(0, lambda count, _: count + 1)
    ),
}


@pytest.mark.parametrize("op", EFFECTS)
def test_an_op_in_a_function_of_a_loop_is_found(tmp_path, op):
    folder = saved(tmp_path / "graph", EFFECTS[op](tmp_path / "target"))
    with pytest.raises(Failure) as failed:
        loaded_graph.load_graph(str(folder), "s3://bucket/graph")
    message = str(failed.value)
    assert message.startswith("s3://bucket/graph is not loaded: op '")
    assert op in message and "in function" in message and "\n" not in message
    assert not (tmp_path / "target").exists()


def test_a_table_that_reads_a_file_is_found(tmp_path):
    (tmp_path / "words").write_text("a 1\nb 2\n")
    module = tf.Module()
    source = tf.lookup.TextFileInitializer(
        str(tmp_path / "words"), tf.string, 0, tf.int64, 1, delimiter=" "
    )
    module.table = tf.lookup.StaticHashTable(source, -1)
    folder = saved(tmp_path / "graph", lambda: module.table.lookup(tf.constant(["a"])), module)
    with pytest.raises(Failure, match=r"op '\w*Table\w*' in function"):
        loaded_graph.load_graph(str(folder))


def test_ops_of_the_graph_itself_and_functions_in_the_place_of_ops(graph):
    folder, model = graph
    name = scoring(model).signature.name
    for op, place in (("WriteFile", "the graph"), (name, f"function {name}")):
        changed = copy.deepcopy(model)
        of_graph, of_function = changed.meta_graphs[0].graph_def.node, scoring(changed).node_def
        nodes = of_graph if place == "the graph" else of_function
        nodes.add(name="added", op=op)
        written(folder, changed)
        with pytest.raises(Failure, match=f"op '{op}' in {place}"):
            loaded_graph.load_graph(str(folder))


def test_what_is_no_graph_is_refused(graph):
    folder, model = graph
    model.meta_graphs.add()
    written(folder, model)
    with pytest.raises(Failure, match="it has 2 graphs, and one is expected"):
        loaded_graph.load_graph(str(folder))
    (folder / "saved_model.pb").write_bytes(b"\xff\xff")
    with pytest.raises(Failure, match=r"has no saved_model\.pb that can be read"):
        loaded_graph.load_graph(str(folder))
    (folder / "saved_model.pb").unlink()
    (folder / "saved_model.pbtxt").write_text(text_format.MessageToString(model))
    with pytest.raises(Failure, match=r"has no saved_model\.pb that can be read"):
        loaded_graph.load_graph(str(folder))


# ---- The saver -----------------------------------------------------------------------


def scoring(model):
    """The function that both signatures call."""
    return next(f for name, f in functions_of(model).items() if "_scores_" in name)


def with_writing_saver(model, target):
    """Have a function `SAVER`, which scores and writes a file, save the model.

    Nothing calls it but the node of the saver.
    """
    [graph] = model.meta_graphs
    hostile = copy.deepcopy(scoring(model))
    hostile.signature.name = SAVER
    strings = {"prefix": str(target), "names": ["a"], "slices": [""], "data": ["by a graph"]}
    for name, value in strings.items():
        with tf.Graph().as_default() as constants:
            tf.constant(value, tf.string, name=name)
        hostile.node_def.append(constants.as_graph_def().node[0])
    save = hostile.node_def.add(name="save", op="SaveV2")
    save.input.extend(f"{name}:output:0" for name in strings)
    save.attr["dtypes"].list.type.append(tf.string.as_datatype_enum)
    for node in hostile.node_def:
        if node.op == "Identity":
            node.input.append("^save")
    hostile.control_ret["save"] = "save"
    hostile.signature.control_output.append("save")
    graph.graph_def.library.function.append(hostile)
    saving = graph.saver_def.save_tensor_name.partition(":")[0]
    for node in graph.graph_def.node:
        if node.name == saving:
            node.attr["f"].func.name = SAVER
    [old] = [f for name, f in functions_of(model).items() if "traced_save" in name]
    graph.graph_def.library.function.remove(old)


def exchanged(model):
    """TensorFlow's optimizer takes another function with the same `api_implements`."""
    functions = functions_of(model)
    for name, device in ((scoring(model).signature.name, "GPU"), (SAVER, "CPU")):
        functions[name].attr["api_implements"].s = b"scores"
        functions[name].attr["api_preferred_device"].s = device.encode()


def called(model):
    """The wrappers of the signatures call the saver."""
    name = scoring(model).signature.name
    for function in model.meta_graphs[0].graph_def.library.function:
        for node in function.node_def:
            if node.op == "StatefulPartitionedCall" and node.attr["f"].func.name == name:
                node.attr["f"].func.name = SAVER


def as_signature(model):
    """The signatures are the saver's function."""
    objects = model.meta_graphs[0].object_graph_def
    for node in objects.nodes:
        if node.WhichOneof("kind") == "bare_concrete_function":
            name = node.bare_concrete_function.concrete_function_name
            node.bare_concrete_function.concrete_function_name = SAVER
            objects.concrete_functions[SAVER].CopyFrom(objects.concrete_functions[name])


@pytest.mark.parametrize("way", [exchanged, called, as_signature])
def test_the_saver_is_not_run(graph, tmp_path, way):
    """TensorFlow alone runs it; tnctl does not have it loaded, by whatever it is called."""
    folder, model = graph
    expected = scored(folder)
    with_writing_saver(model, tmp_path / "target")
    written(folder, model)
    np.testing.assert_array_equal(scored(folder), expected)  # a saver may write: it is not run
    way(model)
    written(folder, model)
    if way is exchanged:
        np.testing.assert_array_equal(scored(folder), expected)
    else:
        with pytest.raises(Failure, match="is no SavedModel that TensorFlow loads") as failed:
            scored(folder)
        assert "\n" not in str(failed.value)
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]
    # Last: the process keeps its functions.
    alone = tf.saved_model.load(str(folder))
    loaded_graph.run(alone.signatures["packed"], ROWS)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"graph", "target.index", "target.data-00000-of-00001"}


def test_what_tensorflow_reads_is_what_was_checked(graph):
    """Files beside the model are not read: other forms of it, a fingerprint."""
    folder, _ = graph
    expected = scored(folder)
    for name in ("saved_model.cpb", "saved_model.pbtxt", "fingerprint.pb"):
        (folder / name).write_bytes(b"\xff" * 100)
    np.testing.assert_array_equal(scored(folder), expected)


# ---- Commands ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def artefacts(trained, tmp_path_factory):
    """A folder with graph/ and embeddings/ of the small run."""
    folder = tmp_path_factory.mktemp("artefacts")
    checkpoint = loading.newest_or_fail(str(trained / "run"))
    conf = schema.from_values(checkpoint.conf())
    split(checkpoint, conf, str(folder / "graph"))
    export(checkpoint, conf, str(folder / "embeddings"))
    return folder


def test_commands_load_none(cli, artefacts, trained, tmp_path):
    """Checksums made to fit: score, verify-serving and split-graph say which op, and write none."""
    evil = saved(tmp_path / "evil", EFFECTS["WriteFile"](tmp_path / "target"))
    shutil.copytree(artefacts / "graph", tmp_path / "graph")
    shutil.rmtree(tmp_path / "graph/variables")
    shutil.copytree(evil, tmp_path / "graph", dirs_exist_ok=True)
    reseal(tmp_path / "graph", "serving.json")
    parts = ("graph=graph", f"embeddings={artefacts}/embeddings")
    shutil.copytree(trained / "run", tmp_path / "run")
    [*_, checkpoint] = sorted((tmp_path / "run/checkpoints").iterdir())
    shutil.rmtree(checkpoint / "graph/variables")
    shutil.copytree(evil, checkpoint / "graph", dirs_exist_ok=True)
    reseal(checkpoint, "manifest.json")
    for command in (
        ("score", *parts, f"input={trained}/clicks/test.csv", "to=scores.csv"),
        ("verify-serving", *parts),
        ("split-graph", "output=run", "to=split"),
    ):
        done = cli(*command, cwd=tmp_path)
        assert done.code == 1, (command, done.err)
        assert "is not loaded: op 'WriteFile' in function" in done.last, command
    for path in ("target", "split", "scores.csv"):
        assert not (tmp_path / path).exists()
