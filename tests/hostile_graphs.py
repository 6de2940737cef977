"""Small SavedModels whose saver writes a file, and random damage of their fields."""

import numpy as np
import tensorflow as tf
from google.protobuf.message import Message
from tensorflow.core.protobuf import saved_model_pb2

PACKED = {"x": 21, "linear": 1}
SAVER = "hostile_save"


def small(folder):
    """A SavedModel with the signatures of a graph, a weight, a branch and a gradient."""
    module = tf.Module()
    module.weights = [tf.Variable(2.0, name="weight")]

    @tf.custom_gradient
    def doubled(number):
        return 2 * number, lambda gradient: 2 * gradient

    def scores(x, linear):
        total = tf.reduce_sum(x, 1)
        total = tf.cond(tf.size(total) > 2, lambda: doubled(total), lambda: total)
        logits = total + module.weights[0] * linear[:, 0]
        return {"logits": logits, "predictions": tf.sigmoid(logits)}

    return saved(folder, module, scores)


def saved(folder, module, scores):
    """The folder of a SavedModel whose signatures are a function of the inputs `PACKED`."""
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


def nodes_of(model):
    """The nodes of the graph and of all its functions."""
    yield from model.meta_graphs[0].graph_def.node
    for function in model.meta_graphs[0].graph_def.library.function:
        yield from function.node_def


def scoring(model):
    """The function that both signatures call."""
    return next(f for name, f in functions_of(model).items() if "_scores_" in name)


def call_of(model):
    """The call of it by the wrapper of signature `packed`."""
    name = scoring(model).signature.name
    [graph] = model.meta_graphs
    # Functions come in any order: the signature's own output leads to its wrapper.
    output = next(iter(graph.signature_def["packed"].outputs.values())).name.partition(":")[0]
    [call] = [node for node in graph.graph_def.node if node.name == output]
    return next(
        node
        for node in functions_of(model)[call.attr["f"].func.name].node_def
        if node.op == "StatefulPartitionedCall" and node.attr["f"].func.name == name
    )


def with_writing_saver(model, target):
    """The model with a function `SAVER` that scores and writes a file, by which it is saved.

    Nothing calls it but the node of the saver.
    """
    changed = saved_model_pb2.SavedModel()
    changed.CopyFrom(model)
    [graph] = changed.meta_graphs
    hostile = type(scoring(changed))()
    hostile.CopyFrom(scoring(changed))
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
    [old] = [f for name, f in functions_of(changed).items() if "traced_save" in name]
    graph.graph_def.library.function.remove(old)
    return changed


def damaged(model, random, changes, words):
    """A copy of a proto of which some fields have other values, mostly in functions and objects."""
    copy = type(model)()
    copy.CopyFrom(model)
    [graph] = copy.meta_graphs
    for _ in range(changes):
        parts = (graph.graph_def.library, graph.object_graph_def, copy)
        damage(parts[random.choice(3, p=(0.5, 0.4, 0.1))], random, words)
    return copy


def words_of(model):
    """Values for strings of a model: names that it has, and others."""
    return sorted(
        {*functions_of(model), *(node.name for node in nodes_of(model)), "Identity", "SaveV2", "x",
         "", "\n", "__class__", "signatures", "api_implements", "é" * 300, "/etc/hosts"}
    )  # fmt: skip


def damage(message, random, words):
    """Change one field, at a random depth."""
    while fields := [field for field, _ in message.ListFields()]:
        field = fields[random.integers(len(fields))]
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            inner = of_map(getattr(message, field.name), random, words)
        elif field.is_repeated:
            inner = of_list(getattr(message, field.name), random, words)
        elif kind is not None:
            inner = getattr(message, field.name)
            if random.random() < 0.05:
                message.ClearField(field.name)
                inner = None
        else:
            setattr(message, field.name, other(getattr(message, field.name), random, words))
            inner = None
        if inner is None:
            return
        message = inner


def of_map(values, random, words):
    """Change a map, or the message of one of its keys, which is returned."""
    keys = sorted(values)
    key = keys[random.integers(len(keys))]
    is_messages = isinstance(values[key], Message)
    action = random.random()
    if action < 0.1:
        del values[key]
    elif action < 0.2 and isinstance(key, str) and is_messages:
        values[words[random.integers(len(words))]].CopyFrom(values[key])
    elif is_messages:
        return values[key]
    else:
        values[key] = other(values[key], random, words)
    return None


def of_list(values, random, words):
    """Change a list, or the message at a place, which is returned."""
    place = int(random.integers(len(values)))
    action = random.random()
    if action < 0.05:
        del values[place]
    elif action < 0.1:
        values.extend([values[place]])
    elif isinstance(values[place], Message):
        return values[place]
    else:
        values[place] = other(values[place], random, words)
    return None


def other(value, random, words):
    """Another value of the type of a scalar."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        near = (value - 1, value + 1, 0, 1, 3, 1000)
        return max(0, near[random.integers(len(near))])
    if isinstance(value, float):
        return float(np.float32(random.normal()))
    if isinstance(value, bytes):
        return random.bytes(8)
    return words[random.integers(len(words))]
