"""Each way in which a SavedModel could have its saver, or other code, run while it scores."""

import copy
from functools import cache
from types import SimpleNamespace

import hostile_graphs as hostile
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import config_pb2

from tnctl.errors import Failure
from tnctl.serving.graph import allowed_ops, loaded_graph
from tnctl.serving.graph.graph_document import GraphOutput, SignatureInput, Signatures

ROWS = {name: np.ones([3, size], np.float32) for name, size in hostile.PACKED.items()}


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """The folder of a small SavedModel, and its proto."""
    folder = hostile.small(tmp_path_factory.mktemp("hostile") / "graph")
    return folder, hostile.model_of(folder)


@cache
def description():
    """What serving.json would say of it."""
    inputs = tuple(
        SignatureInput(name=name, dtype="float32", shape=(size,), columns=size, source=name, at=0)
        for name, size in hostile.PACKED.items()
    )
    outputs = tuple(
        GraphOutput(name=name, kind=name, head="label", shape=())
        for name in ("logits", "predictions")
    )
    return SimpleNamespace(signatures=Signatures(by_slot=inputs, packed=inputs), outputs=outputs)


def scored(folder):
    """What a command does with a graph, but for reading rows."""
    loaded = loaded_graph.LoadedGraph(str(folder), description())
    return loaded.outputs("packed", ROWS)["logits"]


def by_tensorflow_alone(folder):
    function = tf.saved_model.load(str(folder)).signatures["packed"]
    return function(**{name: tf.constant(array) for name, array in ROWS.items()})


def exchanged(model):
    """TensorFlow's optimizer takes another function with the same `api_implements`."""
    functions = hostile.functions_of(model)
    for name, device in ((hostile.scoring(model).signature.name, "GPU"), (hostile.SAVER, "CPU")):
        functions[name].attr["api_implements"].s = b"scores"
        functions[name].attr["api_preferred_device"].s = device.encode()


def called(model):
    """The wrapper of a signature calls the saver."""
    hostile.call_of(model).attr["f"].func.name = hostile.SAVER


def as_signature(model):
    """A signature is the saver's function."""
    [graph] = model.meta_graphs
    objects = graph.object_graph_def
    for node in objects.nodes:
        if node.WhichOneof("kind") == "bare_concrete_function":
            name = node.bare_concrete_function.concrete_function_name
            node.bare_concrete_function.concrete_function_name = hostile.SAVER
            objects.concrete_functions[hostile.SAVER].CopyFrom(objects.concrete_functions[name])


@pytest.mark.parametrize("way", [exchanged, called, as_signature])
def test_the_saver_is_not_run(graph, tmp_path, way, monkeypatch):
    """TensorFlow alone runs it; tnctl refuses, and would not have it to run either."""
    folder, model = graph
    changed = hostile.with_writing_saver(model, tmp_path / "target")
    assert len(scored_copy(folder, changed)) == 3  # a saver may write: it is not run
    way(changed)
    hostile.written(folder, changed)
    with pytest.raises(Failure, match="is not loaded: ") as failed:
        scored(folder)
    assert "\n" not in str(failed.value)
    with monkeypatch.context() as unchecked:
        unchecked.setattr(allowed_ops, "_wrong", lambda _: iter(()))
        try:
            scored(folder)
        except Failure as error:  # it calls what is not there
            assert way is not exchanged, error
    assert not list(tmp_path.iterdir())
    # Last: the process keeps its functions.
    by_tensorflow_alone(folder)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"target.index", "target.data-00000-of-00001"}


def scored_copy(folder, model):
    hostile.written(folder, model)
    return scored(folder)


def attribute_of_node(name, **value):
    def change(model):
        field, content = next(iter(value.items()))
        setattr(hostile.call_of(model).attr[name], field, content)

    return change


def attribute_of_function(name):
    def change(model):
        hostile.scoring(model).attr[name].b = True

    return change


def attribute_of_argument(model):
    hostile.scoring(model).arg_attr[0].attr["_implements"].s = b"saver"


def branches(model):
    """A list of functions, as that of Case."""
    call = hostile.call_of(model)
    call.op = "Case"
    for name in call.attr.keys() - {"Tin", "Tout"}:
        del call.attr[name]
    call.attr["branches"].list.func.add(name=hostile.SAVER)


def with_attributes(model):
    call = hostile.call_of(model)
    call.attr["f"].func.attr["body"].func.name = hostile.SAVER


def placeholder(model):
    hostile.call_of(model).attr["f"].placeholder = "body"


def polymorphic(model):
    hostile.scoring(model).signature.attr.add(name="body", type="func")


def shared_argument(model):
    hostile.scoring(model).resource_arg_unique_id[0] = 1


def configuration(model):
    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.custom_optimizers.add(name="any")
    hostile.call_of(model).attr["config_proto"].s = config.SerializeToString()


def other_executor(model):
    config = config_pb2.ConfigProto()
    config.experimental.executor_type = "any"
    hostile.call_of(model).attr["config_proto"].s = config.SerializeToString()


def remote(model):
    hostile.call_of(model).device = "/job:worker/task:1/device:CPU:0"


def op_by_name(model):
    hostile.call_of(model).op = hostile.SAVER


def named_as_an_op(model):
    scoring = hostile.scoring(model)
    function = model.meta_graphs[0].graph_def.library.function.add()
    function.CopyFrom(scoring)
    function.signature.name = "AddV2"


def gradient(model):
    [name] = [name for name in hostile.functions_of(model) if "_scores_" in name]
    library = model.meta_graphs[0].graph_def.library
    library.gradient.add(function_name=name, gradient_func=hostile.SAVER)


def registered_gradient(model):
    library = model.meta_graphs[0].graph_def.library
    library.registered_gradients[0].gradient_func = hostile.SAVER


def init_op(model):
    [graph] = model.meta_graphs
    saving = graph.saver_def.save_tensor_name.partition(":")[0]
    graph.collection_def["saved_model_main_op"].node_list.value[:] = [saving]


def legacy_init_op(model):
    model.meta_graphs[0].collection_def["legacy_init_op"].node_list.value[:] = ["NoOp"]


def after_the_saver(model):
    [graph] = model.meta_graphs
    saving = graph.saver_def.save_tensor_name.partition(":")[0]
    next(node for node in graph.graph_def.node if node.op == "NoOp").input.append(f"^{saving}")


def objects_of(model):
    return model.meta_graphs[0].object_graph_def


def attribute_of_object(name):
    def change(model):
        objects_of(model).nodes[0].children.add(local_name=name, node_id=0)

    return change


def of_objects(change):
    return lambda model: change(objects_of(model).nodes[0])


def tensor_of_saver(model):
    node = objects_of(model).nodes.add()
    node.captured_tensor.name = "save"
    node.captured_tensor.concrete_function = hostile.SAVER


def constant(model):
    objects_of(model).nodes.add().constant.operation = "any"


def resource(model):
    objects_of(model).nodes.add().resource.device = ""


def asset(model):
    objects_of(model).nodes.add().asset.asset_file_def_index = 0


def python_class(model):
    structure = bare_of(model).function_spec.input_signature
    structure.type_spec_value.type_spec_class_name = "any.Class"


def deep(model):
    structure = bare_of(model).function_spec.input_signature
    for _ in range(20):
        structure = structure.tuple_value.values.add()
    structure.none_value.SetInParent()


def bare_of(model):
    nodes = objects_of(model).nodes
    return next(
        node for node in nodes if node.WhichOneof("kind") == "bare_concrete_function"
    ).bare_concrete_function


def unknown_function(model):
    bare_of(model).concrete_function_name = hostile.scoring(model).signature.name


def no_names(model):
    name = bare_of(model).concrete_function_name
    objects_of(model).concrete_functions[name].ClearField("canonicalized_input_signature")


def no_outputs(model):
    name = bare_of(model).concrete_function_name
    objects_of(model).concrete_functions[name].ClearField("output_signature")


def concrete_saver(model):
    objects_of(model).concrete_functions[hostile.SAVER].SetInParent()


def bound(model):
    name = bare_of(model).concrete_function_name
    objects_of(model).concrete_functions[name].bound_inputs.append(999)


def constant_of_another_type(model):
    functions = model.meta_graphs[0].graph_def.library.function
    constants = (node for of in functions for node in of.node_def if node.op == "Const")
    node = next(node for node in constants if node.attr["dtype"].type == types_pb2.DT_FLOAT)
    node.attr["dtype"].type = types_pb2.DT_DOUBLE


def branch_without_output(model):
    branch = next(
        function
        for name, function in hostile.functions_of(model).items()
        if name.startswith("cond_true")
    )
    del branch.signature.output_arg[:]


def no_signatures(model):
    del objects_of(model).nodes[0].children[:]


REFUSED = [
    (attribute_of_node("_XlaCompile", b=True), "has the attribute '_XlaCompile'"),
    (attribute_of_node("_forward_func_name", s=b"any"), "the attribute '_forward_func_name'"),
    (attribute_of_node("_kernel", s=b"any"), "has the attribute '_kernel'"),
    (attribute_of_node("executor_type", s=b"any"), "has the executor 'any'"),
    (attribute_of_node("config", s=b"any"), "has a configuration that sets more than devices"),
    *(
        (attribute_of_function(name), f"function .* has the attribute '{name}'")
        for name in ("_XlaMustCompile", "_implements", "_noinline", "forward_function_name",
                     "backward_function_name", "_disable_call_shape_inference", "_tf_data_function")
    ),
    (attribute_of_argument, "has the attribute '_implements'"),
    (branches, f"calls '{hostile.SAVER}'"),
    (with_attributes, "with attributes"),
    (placeholder, "has a placeholder for the attribute 'f'"),
    (polymorphic, "has 'attr'"),
    (shared_argument, "has 'resource_arg_unique_id'"),
    (configuration, "has a configuration that sets more than devices"),
    (other_executor, "has a configuration that sets more than devices"),
    (remote, "runs on the device '/job:worker"),
    (op_by_name, f"op '{hostile.SAVER}' in function"),
    (named_as_an_op, "a function with the name of the op 'AddV2'"),
    (gradient, "it has a gradient of the function"),
    (registered_gradient, f"its gradient '{hostile.SAVER}' is no function of it"),
    (init_op, "is an output of a signature"),
    (legacy_init_op, "it has a collection 'legacy_init_op'"),
    (after_the_saver, "is an input of another node"),
    *(
        (attribute_of_object(name), f"has an attribute '{name}'")
        for name in ("__class__", "__call__", "_restore_from_tensors", "_serialize_to_tensors",
                     "_gather_saveables_for_checkpoint", "_initialize", "_create_resource")
    ),
    (of_objects(lambda node: node.saveable_objects["a"].SetInParent()), "by custom code"),
    (of_objects(lambda node: setattr(node, "registered_saver", "a")), "by custom code"),
    (of_objects(lambda node: node.slot_variables.add()), "by custom code"),
    (of_objects(lambda node: node.children.add(local_name="a", node_id=999)), "that is not there"),
    (of_objects(lambda node: node.dependencies.add(local_name="a", node_id=-1)), "is not there"),
    (tensor_of_saver, f"'{hostile.SAVER}' is not one of its functions"),
    (concrete_saver, f"'{hostile.SAVER}' is not one of its functions"),
    (constant, "object of the kind 'constant'"),
    (resource, "object of the kind 'resource'"),
    (asset, "object of the kind 'asset'"),
    (python_class, "takes or returns a 'type_spec_value'"),
    (deep, "more than 8 levels"),
    (unknown_function, "is not one of its functions with inputs and outputs"),
    (no_names, "than tensors by name"),
    (no_outputs, "than tensors by name"),
    (bound, "takes an object that is not there"),
    (no_signatures, "it has no signatures"),
    (constant_of_another_type, "a constant in .* has another type than its values"),
    (branch_without_output, "If' calls 'cond_true_.*' with other inputs or outputs than it has"),
]  # fmt: skip


def test_other_ways_are_refused(graph, tmp_path):
    folder, model = graph
    whole = hostile.with_writing_saver(model, tmp_path / "target")
    for change, reason in REFUSED:
        changed = copy.deepcopy(whole)
        change(changed)
        assert changed != whole, reason
        hostile.written(folder, changed)
        with pytest.raises(Failure, match=reason) as failed:
            scored(folder)
        assert "\n" not in str(failed.value)
    assert not list(tmp_path.iterdir())


def test_traces_of_other_machines_score(graph):
    """GPUs, and how much of their memory TensorFlow took, are noted in each call."""
    folder, model = graph
    changed = copy.deepcopy(model)
    call = hostile.call_of(changed)
    config = config_pb2.ConfigProto.FromString(call.attr["config_proto"].s)
    config.device_count["GPU"] = 2
    config.gpu_options.allow_growth = True
    call.attr["config_proto"].s = config.SerializeToString()
    call.device = "/job:localhost/replica:0/task:0/device:CPU:0"
    np.testing.assert_array_equal(scored_copy(folder, changed), scored_copy(folder, model))


def test_what_tensorflow_reads_is_what_was_checked(graph):
    """Files beside the model are not read: a fingerprint, debug information."""
    folder, model = graph
    expected = scored_copy(folder, model)
    (folder / "fingerprint.pb").write_bytes(b"\xff" * 100)
    (folder / "debug").mkdir(exist_ok=True)
    (folder / "debug/saved_model_debug_info.pb").write_bytes(b"\xff" * 100)
    np.testing.assert_array_equal(scored(folder), expected)


def fuzzed(graph, tmp_path, seeds):
    """How many damaged models score; the others are refused in one line, and none writes."""
    folder, model = graph
    whole = hostile.with_writing_saver(model, tmp_path / "target")
    expected = scored_copy(folder, whole)
    words = hostile.words_of(whole)
    scores = 0
    for seed in seeds:
        # If TensorFlow crashes, the seed and the damaged model stay behind in pytest's folder.
        (folder.parent / "seed").write_text(str(seed))
        random = np.random.default_rng(seed)
        hostile.written(folder, hostile.damaged(whole, random, random.integers(1, 7), words))
        try:
            outputs = scored(folder)
            scores += 1
            assert np.shape(outputs) == np.shape(expected)
        except Failure as error:
            assert "\n" not in str(error), seed
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        assert not list(tmp_path.iterdir()), seed
    return scores


@pytest.mark.short
def test_damaged_models_score_or_are_refused(graph, tmp_path):
    assert 50 < fuzzed(graph, tmp_path, range(500)) < 450


@pytest.mark.long
def test_many_damaged_models_score_or_are_refused(graph, tmp_path):
    assert 200 < fuzzed(graph, tmp_path, range(1000, 3000)) < 1800
