"""The split graph: what it takes and gives in TensorFlow's own hands; what it says of itself."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from clicks import clicks
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tensorflow.python.saved_model import loader_impl

from tnctl import manifest, schema
from tnctl.checkpoint import load as loading
from tnctl.errors import UserError
from tnctl.model.graph import Input
from tnctl.serving import golden_checks, verification
from tnctl.serving.golden_checks import golden_of_graph
from tnctl.serving.graph import inlined_graph, loaded_graph, splitting
from tnctl.serving.graph.graph_document import GraphManifest
from tnctl.serving.graph.loaded_graph import inputs_of, open_graph
from tnctl.serving.graph_inputs import RawInputs

# Every kind of input; two heads that share little; two towers.
RECIPE = """\
from keras import ops

from tnctl.model import layers


def build(inputs):
    of_user = layers.concatenated(inputs.slot("user"), inputs.number("weekday"))
    user = inputs.tower("user", layers.Mlp([6, 4], "tanh", name="user")(of_user))
    history, length = inputs.sequence("history")
    some = ops.cast(length, "float32")[:, None]
    item = inputs.tower("item", inputs.slot("item"))
    shows = inputs.counts("tags")
    ctr = layers.Logit()(user * item) + inputs.linear
    buy = layers.concatenated(ops.mean(history, axis=1), some, inputs.slot("tags"), shows,
                              inputs.number("vector"), inputs.number("price"))
    return {"ctr": ctr, "buy": layers.Logit()(layers.Mlp([5], name="buy")(buy))}
"""
CONF = """\
defaults: [schema, _self_]
recipe: {name: mine.py}
embedding: {width: 4}
life: {shows: {cvm: true}, groups: {user: {shows: {}}, item: {shows: {}}}}
slots:
  user: {missing: value, seed: 9007199254740991}
  tags: {separator: "|", weights: scores, pooling: mean, max_length: 3, keep: last}
  item: {group: item, ids: modulo, size: 9007199254740993, missing: value}
  history: {group: item, ids: modulo, size: 9007199254740993, pooling: none, max_length: 4,
            missing: value}
  number: {ids: integer, padding: 18446744073709551615}
  age: {ids: quantiles, buckets: 4, missing: value}
  income: {ids: boundaries, boundaries: [0.1, 10, 100], column: price, width: 0}
  land: {ids: vocabulary, vocabulary: [de, it], oov: 2, missing: value}
  weekday: {ids: integer, size: 7, indicator: true}
  user_x_city: {cross: [user, city, kind], ids: modulo, size: 1000, width: 0}
  kind: {ids: vocabulary, vocabulary: [a, b], width: 0, linear: false}
numeric:
  price: {transform: log1p, clip: [null, 50], default: 2}
  vector: {width: 3, separator: json, transform: standardize}
  both: {columns: [price, number], transform: standardize, mean: 1, deviation: 2}
data:
  format: jsonl
  train: rows.jsonl
  validation: rows.jsonl
  missing: ["", "?"]
  labels: {ctr: {column: clicked}, buy: {column: bought}}
train: {batch_size: 64}
"""
ROWS = 200


def train_every_input(ran, folder, conf=CONF):
    """Train a model of every kind of input in a folder, its run."""
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in clicks(ROWS)))
    (folder / "mine.py").write_text(RECIPE)
    (folder / "conf.yaml").write_text(conf)
    ran("train", "conf=conf.yaml", "output=run", cwd=folder)


@pytest.fixture(scope="module")
def everything(ran, tmp_path_factory):
    """A folder with the run of a model of every kind of input."""
    folder = tmp_path_factory.mktemp("everything")
    train_every_input(ran, folder)
    return folder


@pytest.fixture(scope="module")
def split(ran, everything, tmp_path_factory):
    """Splits the model of every kind of input into a new folder, which it returns."""

    def splitting(*arguments):
        to = tmp_path_factory.mktemp("split") / "graph"
        ran("split-graph", "output=run", f"to={to}", *arguments, cwd=everything)
        return to

    return splitting


@pytest.fixture(scope="module")
def whole(split):
    """The whole graph of that model; nobody writes to it."""
    return split()


def described(folder):
    """What serving.json says, as any reader of JSON sees it."""
    return json.loads((Path(folder) / "serving.json").read_text())


def document(folder):
    return manifest.read(str(folder), GraphManifest, "serving.json")


def golden_of(folder):
    return golden_of_graph(str(folder), document(folder))


def outputs(folder, signature, inputs):
    """What a signature gives from the inputs of `packed` of the whole graph."""
    return open_graph(str(folder)).outputs(signature, inputs)


def near(array, expected):
    np.testing.assert_allclose(array, expected, rtol=2e-5, atol=2e-5)


STRANGER = """
import json, sys
for name in ("keras", "tf_keras", "tnctl", "cffi", "hydra"):
    sys.modules[name] = None  # importing it is an ImportError
import numpy as np, tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework import op_def_registry
folder, inputs, outputs = sys.argv[1:]
saved = saved_model_pb2.SavedModel()
saved.ParseFromString(open(folder + "/saved_model.pb", "rb").read())
[meta] = saved.meta_graphs
ops = {node.op for node in meta.graph_def.node}
ops |= {node.op for function in meta.graph_def.library.function for node in function.node_def}
known = {function.signature.name for function in meta.graph_def.library.function}
foreign = sorted(op for op in ops - known if op_def_registry.get(op) is None)
model = tf.saved_model.load(folder)
given = np.load(inputs)
result = {}
for name, function in model.signatures.items():
    wanted = {spec.name for spec in function.structured_input_signature[1].values()}
    places = {key: f"{name}/{key}" if f"{name}/{key}" in given else key for key in wanted}
    tensors = {key: tf.constant(given[place]) for key, place in places.items()}
    for key, tensor in function(**tensors).items():
        result[f"{name}/{key}"] = tensor.numpy()
np.savez(outputs, **result)
print(json.dumps({"foreign": foreign, "ops": sorted(ops)}))
"""


def test_the_graph_serves_strangers(whole, tmp_path):
    """Without tnctl and Keras, by names alone, with the trainer's logits; no custom op."""
    content, golden = document(whole), golden_of(whole)
    packed = golden.inputs(content)
    np.savez(tmp_path / "in.npz", **packed, **{
        name: array for name, array in inputs_of(content.signatures.by_slot, packed).items()
        if name not in packed
    })  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, whole, "in.npz", "out.npz"],
        cwd=tmp_path, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["foreign"] == []
    assert "MatMul" in report["ops"]
    got = np.load(tmp_path / "out.npz")
    names = {f"{kind}{head}" for kind in ("logits", "predictions") for head in ("", "_ctr", "_buy")}
    of_heads = {f"{form}/{name}" for form in ("by_slot", "packed", "serving_default")
                for name in names}  # fmt: skip
    assert set(got) == of_heads | {"towers/user", "towers/item"}
    for signature in ("by_slot", "packed", "serving_default"):
        near(got[f"{signature}/logits"], golden.outputs("logits", "ctr"))
        for head in ("ctr", "buy"):
            near(got[f"{signature}/logits_{head}"], golden.outputs("logits", head))
            near(got[f"{signature}/predictions_{head}"], golden.outputs("predictions", head))
    of_item = content.inputs["item"]
    np.testing.assert_array_equal(got["towers/item"], packed["x"][:, of_item.at : of_item.at + 4])


def saved_model_cli(*arguments, cwd):
    done = subprocess.run(
        [sys.executable, "-m", "tensorflow.python.tools.saved_model_cli", *map(str, arguments)],
        cwd=cwd, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_tensorflows_own_tool_shows_and_runs_it(whole, tmp_path):
    content, golden = document(whole), golden_of(whole)
    shown = saved_model_cli("show", "--dir", whole, "--all", cwd=tmp_path)
    for signature in ("by_slot", "packed", "serving_default", "towers"):
        assert f"signature_def['{signature}']" in shown
    assert (
        "inputs['history'] tensor_info:\n        dtype: DT_FLOAT\n        shape: (-1, 4, 4)"
        in shown
    )
    assert (
        "inputs['history_length'] tensor_info:\n        dtype: DT_INT32\n        shape: (-1)"
        in shown
    )
    inputs = inputs_of(content.signatures.by_slot, golden.inputs(content))
    np.savez(tmp_path / "in.npz", **inputs)
    saved_model_cli(
        "run", "--dir", whole, "--tag_set", "serve", "--signature_def", "serving_default",
        "--inputs", ";".join(f"{name}=in.npz[{name}]" for name in inputs), "--outdir", ".",
        cwd=tmp_path,
    )  # fmt: skip
    near(np.load(tmp_path / "logits_buy.npy"), golden.outputs("logits", "buy"))
    near(np.load(tmp_path / "predictions.npy"), golden.outputs("predictions", "ctr"))


def prediction_log_class():
    """The class of PredictionLog, as tensorflow_serving/apis/*.proto have it, as far as needed."""
    file = descriptor_pb2.FileDescriptorProto(name="warmup.proto", package="w", syntax="proto3")
    file.dependency.append("tensorflow/core/framework/tensor.proto")
    kinds = descriptor_pb2.FieldDescriptorProto

    def message(parent, name, /, **fields):
        made = parent.add(name=name)
        for field, (number, of) in fields.items():
            repeated = field == "inputs"
            made.field.add(
                name=field, number=number, type_name=of if of else None,
                type=kinds.TYPE_MESSAGE if of else kinds.TYPE_STRING,
                label=kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL,
            )  # fmt: skip
        return made

    top = file.message_type
    message(top, "ModelSpec", name=(1, ""), signature_name=(3, ""), version_label=(4, ""))
    request = message(top, "PredictRequest", model_spec=(1, ".w.ModelSpec"),
                      inputs=(2, ".w.PredictRequest.InputsEntry"))  # fmt: skip
    entry = message(request.nested_type, "InputsEntry", key=(1, ""),
                    value=(2, ".tensorflow.TensorProto"))  # fmt: skip
    entry.options.map_entry = True
    message(top, "PredictLog", request=(1, ".w.PredictRequest"))
    message(top, "PredictionLog", predict_log=(6, ".w.PredictLog"))
    pool = descriptor_pool.Default()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("w.PredictionLog"))


@pytest.fixture(scope="module")
def prediction_log():
    return prediction_log_class()


def requests_of(folder, prediction_log):
    """The inputs of each warm-up request of a graph."""
    for record in tf.data.TFRecordDataset(
        str(folder / splitting.WARMUP_REQUESTS)
    ).as_numpy_iterator():
        log = prediction_log.FromString(record)
        assert log.SerializeToString(deterministic=True)
        assert log.predict_log.request.model_spec.signature_name == "serving_default"
        assert not log.predict_log.request.model_spec.name
        # Nothing is there that the messages do not have.
        assert len(log.SerializeToString()) == len(record)
        inputs = log.predict_log.request.inputs
        yield {name: tf.make_ndarray(tensor) for name, tensor in inputs.items()}


def test_requests_that_warm_a_server_up(whole, prediction_log):
    content, golden = document(whole), golden_of(whole)
    inputs = inputs_of(content.signatures.by_slot, golden.inputs(content))
    requests = list(requests_of(whole, prediction_log))
    assert [len(request["user"]) for request in requests] == [1, 8]
    for request in requests:
        assert request.keys() == inputs.keys()
        for name, array in request.items():
            assert array.dtype == inputs[name].dtype
            np.testing.assert_array_equal(array, inputs[name][: len(array)])
    assert splitting.WARMUP_REQUESTS in content.files
    long = {"user": np.zeros((40, 40), np.float32)}  # lengths of more than one byte
    parsed = prediction_log.FromString(splitting.prediction_log(long))
    assert tf.make_ndarray(parsed.predict_log.request.inputs["user"]).shape == (40, 40)


def test_without_golden_rows_nothing_of_the_data_goes_along(split, whole, prediction_log):
    folder = split("golden=0")
    content = described(folder)
    assert content["golden"] is None
    assert content["files"].keys() == described(whole)["files"].keys() - {"golden.jsonl"}
    for request in requests_of(folder, prediction_log):
        assert not any(array.any() for array in request.values())
    graph = split("golden=5")
    assert described(graph)["golden"]["rows"] == len(golden_of(graph).lines) == 5


def weights_in(folder):
    """How many floats the variables of a SavedModel hold, and how many its graph does."""
    variables = tf.train.load_checkpoint(str(folder / "variables/variables"))
    shapes = {
        name: shape
        for name, shape in variables.get_variable_to_shape_map().items()
        if name.endswith("VARIABLE_VALUE")
    }
    saved = loader_impl.parse_saved_model(str(folder))
    graph = saved.meta_graphs[0].graph_def
    nodes = [
        *graph.node,
        *(node for function in graph.library.function for node in function.node_def),
    ]
    floats = sum(
        int(np.prod([size.size for size in node.attr["value"].tensor.tensor_shape.dim]))
        for node in nodes
        if node.op == "Const" and node.attr["dtype"].type == tf.float32.as_datatype_enum
    )
    return sum(int(np.prod(shape)) for shape in shapes.values()), floats


def test_frozen_weights_are_constants_and_there_once(split, whole):
    frozen = split("frozen=true")
    content = described(frozen)
    assert (content["frozen"], described(whole)["frozen"]) == (True, False)
    for key in ("signatures", "outputs", "heads", "slots", "columns"):
        assert content[key] == described(whole)[key]
    variables, _ = weights_in(whole)
    assert variables > 150
    in_variables, in_graph = weights_in(frozen)
    assert in_variables == 0
    assert variables <= in_graph < 1.5 * variables
    golden = golden_of(frozen)
    for signature in ("packed", "by_slot", "serving_default"):
        stated = document(frozen)
        given = golden.inputs(stated)
        name = "by_slot" if signature == "serving_default" else signature
        inputs = {
            k: tf.constant(v) for k, v in inputs_of(stated.signatures.of(name), given).items()
        }
        scores = tf.saved_model.load(str(frozen)).signatures[signature](**inputs)
        near(scores["logits_buy"], golden.outputs("logits", "buy"))


def names_of(content, signature):
    return [entry["name"] for entry in content["signatures"][signature]]


@pytest.mark.parametrize("frozen", ["true", pytest.param("false", marks=pytest.mark.long)])
def test_a_head_has_only_what_it_needs(split, whole, frozen):
    everything, golden = document(whole), golden_of(whole)
    inputs = golden.inputs(everything)
    taken = {
        "ctr": (["user", "item", "weekday", "linear"], ["x", "linear"]),
        "buy": (
            ["tags", "price", "vector", "history", "history_length"],
            ["x", "sequences", "lengths"],
        ),
    }
    of_whole = weights_in(whole)[0]
    for head, (by_slot, packed) in taken.items():
        folder = split(f"head={head}", f"frozen={frozen}")
        content = described(folder)
        assert (content["head"], content["heads"]) == (head, [head])
        assert names_of(content, "by_slot") == by_slot
        assert names_of(content, "packed") == packed
        assert [output["name"] for output in content["outputs"]] == ["logits", "predictions"]
        assert content["labels"].keys() == {head}
        for signature in ("packed", "by_slot"):
            scores = outputs(folder, signature, inputs)
            near(scores["logits"], golden.outputs("logits", head))
            near(scores["predictions"], golden.outputs("predictions", head))
        stored = sum(weights_in(folder)) if frozen == "true" else weights_in(folder)[0]
        assert 20 < stored < of_whole
    # Columns of x that are not read may hold anything.
    inputs["x"][:, 0:4] = np.nan
    near(outputs(folder, "packed", inputs)["logits"], golden.outputs("logits", "buy"))
    assert list(content["slots"]) == ["tags", "history"]
    assert list(content["numeric"]) == ["price", "vector"]
    assert content["columns"] == ["tags", "scores", "history", "price", "vector"]
    assert content["linear"]["adds"] == []


@pytest.mark.long
def test_towers_without_the_recipes_code(ran, everything, whole, tmp_path):
    inputs = golden_of(whole).inputs(document(whole))
    loaded = tf.saved_model.load(str(whole))
    expected = loaded.signatures["towers"](**{k: tf.constant(v) for k, v in inputs.items()})
    checkpoint = next((everything / "run/checkpoints").iterdir())
    for tower, names in {"user": ["user", "weekday"], "item": ["item"]}.items():
        to = tmp_path / tower
        ran("split-graph", f"checkpoint={checkpoint}", f"to={to}", f"head={tower}", cwd=tmp_path)
        content = described(to)
        assert names_of(content, "by_slot") == list(content["slots"]) == names
        assert (content["heads"], content["head"]) == ([], tower)
        assert (to / "golden.jsonl").read_bytes() == (whole / "golden.jsonl").read_bytes()
        assert content["golden"]["rows"] == len(golden_of(whole).lines)
        near(golden_of(whole).outputs("embedding", tower), expected[tower])
        assert content["outputs"] == [
            {"name": "embedding", "kind": "embedding", "head": tower, "shape": [4]}
        ]
        for signature in ("packed", "by_slot"):
            vectors = outputs(to, signature, inputs)
            assert list(vectors) == ["embedding"]
            near(vectors["embedding"], expected[tower])


def verified(cli, everything, graph, folder, said):
    """Embeddings of two precisions, each verified with and without the checkpoint."""
    for precision in ("float32", "int8"):
        embeddings = f"{folder}/{precision}"
        done = cli(
            "export-embeddings", "output=run", f"to={embeddings}", f"precision={precision}",
            cwd=everything,
        )  # fmt: skip
        assert done.code == 0, done.err
        both = f"graph={graph}", f"embeddings={embeddings}"
        for named in ((), ("output=run", "recipe.name=mine.py")):
            done = cli("verify-serving", *both, *named, cwd=everything)
            assert done.code == 0, done.err
            assert said in done.err
        yield embeddings


@pytest.mark.long
def test_towers_are_verified_by_their_golden_rows(cli, everything, split, tmp_path):
    """Without the checkpoint, beside rows of any precision; another tower's outputs are noticed."""
    graph = split("head=user")
    for embeddings in verified(cli, everything, graph, tmp_path, "embeddings of"):
        text = Path(embeddings, "golden.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        served = open_graph(str(graph))
        vectors = served.outputs(
            "packed", {"x": np.array([line["x"] for line in lines], np.float32)}
        )
        near(vectors["embedding"], [line["towers"]["user"] for line in lines])
    # Both are [B, 4].
    other = golden_of(graph)
    for example in other.examples:
        example.towers["user"] = example.towers["item"]
    assert golden_checks.deviations_of(other, served)["packed"] > 100 * golden_checks.TOLERANCE


@pytest.mark.parametrize(
    ("reading", "columns"),
    [
        (lambda x: x[:, 1:3], {1, 2}),
        (lambda x: x[:, 4], {4}),
        (lambda x: x[:, -2], {4}),
        (lambda x: x[:, -2:], {4, 5}),
        (lambda x: x[:, ::2], {0, 2, 4}),
        (lambda x: x[:, 5:1:-3], {5, 2}),
        (lambda x: tf.identity(x)[:, :1] + x[:, 3:4], {0, 3}),
        (lambda x: x[:, tf.shape(x)[0] :], {0, 1, 2, 3, 4, 5}),
        (lambda x: x[..., 1:2], {0, 1, 2, 3, 4, 5}),
        (lambda x: x[2:], {0, 1, 2, 3, 4, 5}),
        (lambda x: x[:, 0:1] + tf.reduce_sum(x), {0, 1, 2, 3, 4, 5}),
        (lambda x: x, {0, 1, 2, 3, 4, 5}),
        (lambda x: tf.zeros([tf.shape(x)[0]]), set()),
        (lambda x: x[:, 3:3], set()),
    ],
)
def test_the_columns_that_a_graph_reads(reading, columns):
    specs = [tf.TensorSpec([None, 6], tf.float32, "x")]
    function = tf.function(reading, specs, autograph=False).get_concrete_function()
    name = function.outputs[0].name
    graph, fetched = inlined_graph.needed(function.graph.as_graph_def(), [name])
    assert inlined_graph.columns_read(graph, Input("x", (6,), "x"), fetched) == columns


def test_a_head_that_is_not_there(cli, everything):
    done = cli("split-graph", "output=run", "head=clicks", "to=none", cwd=everything)
    assert done.code == 2
    assert "no head or tower 'clicks'. The names are buy, ctr, item, user" in done.last.replace(
        "Choose from:", "The names are"
    )
    done = cli("split-graph", "output=run", "head=itme", "to=none", cwd=everything)
    assert "Did you mean 'item'?" in done.last
    assert not (everything / "none").exists()


def test_the_description_has_what_a_scorer_needs(whole, everything):
    content = described(whole)
    checkpoint = loading.open_checkpoint(str(next((everything / "run/checkpoints").iterdir())))
    assert content["checkpoint"]["sha256"] == checkpoint.manifest.sha256
    assert content["data"]["missing"] == ["", "?"]
    assert content["data"]["format"] == "jsonl"
    assert content["labels"]["buy"] == {"column": "bought", "positive": None, "above": None}
    assert content["predictions"] == "sigmoid"
    slots = content["slots"]
    keys = set(slots["user"])
    assert all(set(slot) == keys for slot in slots.values())
    assert slots["tags"] | {"column": "tags", "weights": "scores", "separator": "|",
                            "pooling": "mean", "max_length": 3, "keep": "last", "cvm": True,
                            "width": 4, "columns": 6, "group": "tags"} == slots["tags"]  # fmt: skip
    assert slots["user"]["missing_id"] == str(value_id_of_nothing(2**53 - 1))
    assert slots["item"]["size"] == "9007199254740993"
    assert slots["number"]["padding"] == "18446744073709551615"
    assert len(slots["age"]["boundaries"]) == 3
    assert slots["age"]["missing_id"] == "4"
    assert slots["income"]["boundaries"] == [0.1, 10, 100]
    assert (slots["income"]["width"], slots["income"]["group"]) == (0, "income")
    assert (slots["land"]["vocabulary"], slots["land"]["missing_id"]) == (["de", "it"], "4")
    assert (slots["weekday"]["group"], slots["weekday"]["columns"]) == (None, 7)
    assert slots["user_x_city"]["cross"] == ["user", "city", "kind"]
    assert slots["user_x_city"]["column"] is None
    assert slots["kind"]["group"] is None
    numeric = content["numeric"]
    assert numeric["price"]["clip"] == [None, 50]
    assert len(numeric["vector"]["mean"]) == len(numeric["vector"]["deviation"]) == 3
    assert (numeric["both"]["columns"], numeric["both"]["width"]) == (["price", "number"], 2)
    packed = {entry["name"]: entry["columns"] for entry in content["signatures"]["packed"]}
    for entry in content["signatures"]["by_slot"]:
        assert entry["at"] + entry["columns"] <= packed[entry["source"]]
        assert np.prod([1, *entry["shape"]]) == entry["columns"]
    # Every column of x is of one input.
    of_x = [entry for entry in content["signatures"]["by_slot"] if entry["source"] == "x"]
    assert [entry["at"] for entry in of_x] == list(
        np.cumsum([0] + [o["columns"] for o in of_x])[:-1]
    )
    assert sum(entry["columns"] for entry in of_x) == packed["x"]


def value_id_of_nothing(seed):
    from tnctl.tables.columns import hash_bytes

    return hash_bytes(b"", seed)


def test_every_key_is_documented(whole):
    content = described(whole)
    page = (Path(__file__).parent.parent / "docs/formats/graph.md").read_text()
    keys = {*content, *content["data"], *content["slots"]["user"], *content["numeric"]["price"]}
    keys |= {*content["signatures"]["packed"][0], *content["outputs"][0], *content["labels"]["buy"]}
    keys -= {"format", "version", "files", "sha256"}  # of every manifest
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []


def test_readers_that_count_in_doubles_read_it_right(whole):
    def numbers(value):
        if isinstance(value, dict | list):
            for element in value.values() if isinstance(value, dict) else value:
                yield from numbers(element)
        elif isinstance(value, int):
            yield value

    assert max(map(abs, numbers(described(whole)))) < 2**53


def test_ids_can_be_made_from_the_description_alone(whole):
    golden = golden_of(whole)
    encoded = RawInputs(document(whole)).encode([line.row for line in golden.examples])
    assert encoded.cells.keys() == golden.examples[0].ids.keys()
    for name, cells in encoded.cells.items():
        expected = [id_ for line in golden.examples for id_ in line.ids[name]]
        assert [str(id_) for id_ in cells.ids.tolist()] == expected


def test_a_graph_that_does_not_give_the_trainers_logits_is_not_shipped(
    cli, everything, tmp_path, monkeypatch
):
    to = tmp_path / "graph"
    arguments = ("split-graph", "output=run", f"to={to}")
    assert cli(*arguments, cwd=everything).code == 0
    description = (to / "serving.json").read_bytes()
    right = loaded_graph.write_graph

    def one_wrong_weight(checkpoint, folder):
        right(checkpoint, folder)
        prefix = f"{folder}/variables/variables"
        stored = tf.train.load_checkpoint(prefix)
        names = list(stored.get_variable_to_shape_map())
        tensors = {name: stored.get_tensor(name) for name in names}
        tensors[next(name for name in names if name.startswith("weights/0/"))][0] += 0.01
        slices = [""] * len(names)
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=names,
            shape_and_slices=slices,
            tensors=list(tensors.values()),
        )

    monkeypatch.setattr(loaded_graph, "write_graph", one_wrong_weight)
    done = cli(*arguments, cwd=everything)
    assert done.code == 1
    assert "does not give the trainer's logits" in done.last
    assert (to / "serving.json").read_bytes() == description
    open_graph(str(to))


TOWER = (
    "from tnctl.model import layers\ndef build(inputs):\n    logit = layers.Logit()(inputs.deep)\n"
)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ('inputs.tower("a", inputs.slot("user")); inputs.tower("a", inputs.slot("user"))',
         "a tower is a tensor [B, d] and a name of its own"),
        ('inputs.tower("a b", inputs.slot("user"))', "Received: a b [None, 4]"),
        ('inputs.tower("label", inputs.slot("user"))', "a head and a tower named label"),
        ('inputs.tower("a", layers.Mlp([3])(inputs.deep))', "a tower with weights that no head"),
        ('inputs.tower("a", 3)', "Received: a []"),
    ],
)  # fmt: skip
def test_a_tower_that_cannot_be(tmp_path, monkeypatch, lines, reason):
    from tnctl.data.statistics_document import Statistics
    from tnctl.model.building import build_network
    from tnctl.model.layout import plan

    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(f"{TOWER}    {lines}\n    return logit\n")
    conf = schema.from_values(
        {
            "recipe": {"name": "mine.py"},
            "slots": {"user": {"width": 4}},
            "data": {"train": "none"},
        }
    )
    with pytest.raises(UserError) as caught:
        build_network(conf, plan(conf, Statistics()), "float32")
    assert reason in str(caught.value)


@pytest.fixture(scope="module")
def by_weights(split):
    """The whole graph of that model with an input of each slot for its linear weights."""
    return split("linear=inputs")


def test_linear_weights_by_slot(whole, by_weights, split):
    """The graph adds them up in turn; all else is as in the graph that takes the sum."""
    content, plain = document(by_weights), document(whole)
    assert (content.version, plain.version) == (2, 1)
    linears = content.signatures.linears
    assert [part.name for part in linears] == [f"{name}_linear" for name in content.linear.adds]
    assert {part.name: part.shape for part in linears if part.shape != (1,)} == {
        "history_linear": (4,)
    }
    kept = [part for part in plain.signatures.by_slot if part.name != "linear"]
    assert [part for part in content.signatures.by_slot if part.source != "linears"] == kept
    assert content.signatures.packed == plain.signatures.packed

    inputs = golden_of(whole).inputs(plain)
    columns = linears[-1].end
    drawn = np.random.default_rng(2).normal(size=(len(inputs["x"]), columns)).astype(np.float32)
    total = np.zeros((len(drawn), 1), np.float32)
    for column in drawn.T:
        total[:, 0] += column
    expected = outputs(whole, "by_slot", inputs | {"linear": total})
    received = outputs(by_weights, "by_slot", inputs | {"linears": drawn})
    for name, array in expected.items():
        near(received[name], array)
    near(
        outputs(by_weights, "packed", inputs)["logits"], outputs(whole, "packed", inputs)["logits"]
    )
    drawn[:, linears[0].at] += 3
    moved = outputs(by_weights, "by_slot", inputs | {"linears": drawn})
    near(moved["logits_ctr"], expected["logits_ctr"] + 3)
    near(moved["logits_buy"], expected["logits_buy"])

    # A head takes those that it reads: all, or none.
    assert document(split("linear=inputs", "head=ctr")).signatures.linears == linears
    buy = document(split("linear=inputs", "head=buy", "frozen=true"))
    assert (buy.version, buy.signatures.linears, buy.linear.adds) == (1, (), ())


@pytest.mark.long
def test_linear_weights_by_slot_are_verified(cli, everything, by_weights, tmp_path):
    said = "sums of the slots' linear, bit by bit"
    assert len(list(verified(cli, everything, by_weights, tmp_path, said))) == 2
    # The sum of the parts is looked at, and the sum itself.
    linears = np.array([[1, 2], [3, 4]], np.float32)
    right = np.array([[3], [7]], np.float32)
    content = document(by_weights)
    for linear, held in ((right, True), (right + np.float32(1e-6), False)):
        received = {"linear": linear, "linears": linears}
        *_, sums = verification.same_inputs("", content, received, {"linear": right})
        assert sums.held is held


def test_linear_weights_that_cannot_be_inputs(cli, everything):
    done = cli("split-graph", "output=run", "linear=each", "to=none", cwd=everything)
    assert (done.code, "no linear 'each'. Choose from: inputs, sum" in done.last) == (2, True)
