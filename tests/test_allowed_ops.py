"""Graphs that would do more than compute: files, Python, tables. None of them is loaded."""

import shutil
from pathlib import Path

import hostile_graphs
import pytest
import tensorflow as tf
from google.protobuf import text_format
from hostile_graphs import model_of, written
from resealed_manifests import reseal
from tensorflow.core.protobuf import saved_model_pb2

from tnctl import schema
from tnctl.checkpoint import load as loading
from tnctl.errors import Failure
from tnctl.serving.graph import allowed_ops
from tnctl.serving.graph.splitting import split
from tnctl.serving.rows.export import export


@pytest.fixture(scope="module")
def artefacts(trained, tmp_path_factory):
    """A folder with graph/ and embeddings/ of the small run."""
    folder = tmp_path_factory.mktemp("artefacts")
    checkpoint = loading.newest_or_fail(str(trained / "run"))
    conf = schema.from_values(checkpoint.conf())
    split(checkpoint, conf, str(folder / "graph"))
    export(checkpoint, conf, str(folder / "embeddings"))
    return folder


def saved(folder, effect, module=None):
    """A SavedModel with the signatures of a graph whose loop's body calls `effect`."""
    module = module or tf.Module()

    @tf.function
    def inner(number):
        effect()
        return number + 1

    def scores(x, linear):
        count = tf.while_loop(lambda n: n < 2, lambda n: (inner(n),), (tf.constant(0),))[0]
        logits = tf.reduce_sum(x, 1) + linear[:, 0] + tf.cast(count, tf.float32)
        return {"logits": logits, "predictions": tf.sigmoid(logits)}

    return hostile_graphs.saved(folder, module, scores)


def write_file(path):
    return lambda: tf.io.write_file(str(path), "written by a graph")


def read_file(path):
    return lambda: tf.print(tf.io.read_file(str(path)))


def py_function(path):
    def touch():
        Path(path).write_text("written by Python")
        return 1

    return lambda: tf.py_function(touch, [], tf.int32)


EFFECTS = {
    "WriteFile": write_file,
    "ReadFile": read_file,
    "EagerPyFunc": py_function,
    "StringFormat": lambda _: lambda: tf.print("seen"),
    "MatchingFiles": lambda path: lambda: tf.io.matching_files(f"{path}*"),
    "TextLineDataset": lambda path: (
        lambda: tf.data.TextLineDataset([str(path)]).reduce(0, lambda count, _: count + 1)
    ),
}


@pytest.mark.parametrize("op", EFFECTS)
def test_an_op_in_a_function_of_a_loop_is_found(tmp_path, op):
    folder = saved(tmp_path / "graph", EFFECTS[op](tmp_path / "target"))
    with pytest.raises(Failure) as failed:
        allowed_ops.load(str(folder), "s3://bucket/graph")
    message = str(failed.value)
    assert message.startswith("s3://bucket/graph is not loaded: ")
    # What reads lines has two data sets and functions of its own, and any of these may come first.
    if op != "TextLineDataset":
        assert message.startswith("s3://bucket/graph is not loaded: op '")
        assert op in message and "in function" in message
    assert not (tmp_path / "target").exists()


def test_a_table_that_reads_a_file_is_found(tmp_path):
    (tmp_path / "words").write_text("a 1\nb 2\n")
    module = tf.Module()
    source = tf.lookup.TextFileInitializer(
        str(tmp_path / "words"), tf.string, 0, tf.int64, 1, delimiter=" "
    )
    module.table = tf.lookup.StaticHashTable(source, -1)
    folder = saved(tmp_path / "graph", lambda: module.table.lookup(tf.constant(["a"])), module)
    with pytest.raises(Failure, match="is not loaded: it reads the file 'words'"):
        allowed_ops.load(str(folder))
    model = model_of(folder)
    del model.meta_graphs[0].asset_file_def[:]
    written(folder, model)
    with pytest.raises(Failure, match=r"it has an object of the kind '(asset|resource)'"):
        allowed_ops.load(str(folder))


def test_what_loads_otherwise_is_refused(tmp_path):
    folder = saved(tmp_path / "graph", lambda: None)
    allowed_ops.load(str(folder))
    model = model_of(folder)

    def refused(change, reason):
        changed = saved_model_pb2.SavedModel()
        changed.CopyFrom(model)
        change(changed)
        written(folder, changed)
        with pytest.raises(Failure, match=reason) as failed:
            allowed_ops.load(str(folder))
        assert "\n" not in str(failed.value)
        written(folder, model)

    refused(lambda m: m.meta_graphs[0].ClearField("object_graph_def"), "of TensorFlow 1")
    refused(lambda m: m.meta_graphs.add(), "it has 2 graphs")
    refused(lambda m: m.meta_graphs.pop(), "it has 0 graphs")
    library = model.meta_graphs[0].graph_def.library
    again = library.function[0]
    refused(lambda m: m.meta_graphs[0].graph_def.library.function.append(again), "of one name")
    refused(
        lambda m: m.meta_graphs[0].graph_def.node.add(name="w", op="WriteFile"),
        "op 'WriteFile' in the graph",
    )
    refused(
        lambda m: setattr(m.meta_graphs[0].object_graph_def.nodes[0], "registered_name", "x.Y"),
        "restored by custom code",
    )
    refused(
        lambda m: setattr(
            m.meta_graphs[0].object_graph_def.nodes[0].user_object, "identifier", "tf_op_layer"
        ),
        "object of the class 'tf_op_layer'",
    )
    (folder / "saved_model.pb").write_bytes(b"\xff\xff")
    with pytest.raises(Failure, match=r"has no saved_model\.pb that can be read"):
        allowed_ops.load(str(folder))
    (folder / "saved_model.pb").unlink()
    (folder / "saved_model.pbtxt").write_text(text_format.MessageToString(model))
    with pytest.raises(Failure, match=r"has a saved_model\.pbtxt beside or instead"):
        allowed_ops.load(str(folder))


def test_files_are_the_savers_alone(artefacts, tmp_path):
    """Its functions may read and write, so nothing else may call them."""
    shutil.copytree(artefacts / "graph", tmp_path / "graph")
    whole = model_of(tmp_path / "graph")
    [saving, restoring] = allowed_ops._saver_functions(whole.meta_graphs[0])
    functions = {
        function.signature.name: function
        for function in whole.meta_graphs[0].graph_def.library.function
    }
    assert {"SaveV2"} <= {node.op for node in functions[saving].node_def}
    assert {"RestoreV2"} <= {node.op for node in functions[restoring].node_def}

    def refused(change, reason):
        model = saved_model_pb2.SavedModel()
        model.CopyFrom(whole)
        [graph] = model.meta_graphs
        change(
            graph,
            {function.signature.name: function for function in graph.graph_def.library.function},
        )
        written(tmp_path / "graph", model)
        with pytest.raises(Failure, match=reason):
            allowed_ops.check(str(tmp_path / "graph"))

    def called(_, library):
        wrapper = next(
            function for name, function in library.items() if "signature_wrapper" in name
        )
        call = next(node for node in wrapper.node_def if node.op == "StatefulPartitionedCall")
        call.attr["f"].func.name = restoring

    def as_op(_, library):
        next(iter(library.values())).node_def.add(name="n", op=saving)

    def nested(_, library):
        wrapper = next(
            function for name, function in library.items() if "signature_wrapper" in name
        )
        call = next(node for node in wrapper.node_def if node.op == "StatefulPartitionedCall")
        call.attr["f"].func.attr["h"].list.func.add(name=restoring)

    def signed(graph, _):
        graph.signature_def["packed"].outputs[
            "logits"
        ].name = f"{graph.saver_def.restore_op_name}:0"

    def restored(graph, _):
        graph.object_graph_def.concrete_functions[restoring].SetInParent()

    refused(called, f"calls '{restoring}'")
    refused(as_op, f"op '{saving}' in function")
    refused(nested, "calls '.*' with attributes")
    refused(signed, "is an output of a signature")
    refused(restored, f"'{restoring}' is not one of its functions")
    refused(
        lambda _, library: library[saving].node_def.add(name="w", op="WriteFile"),
        f"op 'WriteFile' in function {saving}",
    )
    refused(
        lambda _, library: library[restoring].node_def.add(name="w", op="SaveV2"),
        f"op 'SaveV2' in function {restoring}",
    )


def test_commands_load_none(cli, artefacts, trained, tmp_path):
    """Checksums made to fit: score, verify-serving and split-graph say which op, and write none."""
    evil = saved(tmp_path / "evil", write_file(tmp_path / "target"))
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
        ("verify-serving", "output=run", *parts),
        ("split-graph", "output=run", "to=split"),
        ("split-graph", "output=run", "to=split", "golden=0", "aot=[1]"),
        ("split-graph", "output=run", "to=split", "frozen=true"),
    ):
        done = cli(*command, cwd=tmp_path)
        assert done.code == 1, (command, done.err)
        if "made from another checkpoint" not in done.last:
            assert "is not loaded: op 'WriteFile' in function" in done.last, command
    for path in ("target", "split", "scores.csv"):
        assert not (tmp_path / path).exists()
