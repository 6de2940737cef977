"""`tnctl split-graph`: the dense inference graph of a checkpoint, servable without tnctl.

All of it, or one head or tower, its weights as constants if wanted. A part is cut out of the
SavedModel alone, so the recipe's code is not needed. All functions of the graph are inlined and its
weights become constants (`convert_variables_to_constants_v2`). Nodes that the wanted outputs do not
need are removed. The weights that are left become variables again, unless frozen.
"""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from tnctl import files, outputs
from tnctl.checkpoint.chain import Checkpoint
from tnctl.errors import Failure, UserError, did_you_mean, refuse_if
from tnctl.limits import size
from tnctl.manifest import Inventory
from tnctl.model.graph import (
    BY_SLOT,
    LENGTHS,
    PACKED,
    TOWERS,
    Input,
    ModelOutput,
    linear_inputs,
    save_module,
    signatures_of,
)
from tnctl.model.layout import LINEAR, LINEARS, Layout, plan
from tnctl.ownership import GRAPH
from tnctl.progress import say
from tnctl.schema import Conf
from tnctl.serving.golden_checks import check_graph, golden_of_checkpoint
from tnctl.serving.graph import aot, loaded_graph
from tnctl.serving.graph.graph_document import LENGTH, NAME, GraphManifest
from tnctl.serving.graph.inlined_graph import columns_read, needed, variables
from tnctl.serving.graph.inside_rows import add_rows
from tnctl.serving.graph.loaded_graph import (
    inputs_of,
    load_graph,
    run,
    tensorflow_errors,
)
from tnctl.serving.graph.ranking import add_rank, users_of
from tnctl.serving.graph.serving_json import GraphPart, describe, whole
from tnctl.serving.rows.precision import Arrays, Precision

EXAMPLES = 16  # random ones, with which a part is compared to the whole
TOLERANCE = 2e-5
WARMUP_REQUESTS = "assets.extra/tf_serving_warmup_requests"
SIGNATURE = "serving_default"
GOLDEN_ROWS = 200
WARM_ROWS = 8
Linear = Literal["sum", "inputs"]  # of linear weights: their sum, or an input of each slot


def cut(
    folder: str,
    to: str,
    everything: GraphPart,
    part: str | None,
    frozen: bool,
    linears: Sequence[Input] = (),
    unserved: str | None = None,
) -> GraphPart:
    """Write a head or tower (None: all heads) of the SavedModel in `folder` as one into `to`.

    `everything` is what the SavedModel takes and returns. Inputs of `packed` keep their shape,
    but unread ones are left out; so are inputs of `by_slot` of which no column is read. All heads
    keep them, but for the slot `unserved`, which nothing may read. `linears` take the place of
    `linear` in `by_slot`, unless the part does not read it.
    Raises UserError when there is no such part.
    """
    loaded = load_graph(folder)  # variables live only as long as it does
    with tensorflow_errors("the graph cannot be cut"):
        function, outputs = chosen(loaded.signatures, everything.outputs, part)
        constant = convert_variables_to_constants_v2(function, lower_control_flow=False)
        tensors = dict(zip(sorted(function.structured_outputs), constant.outputs, strict=True))
        wanted = [tensors[name].name for name in outputs]
        graph, fetched = needed(constant.graph.as_graph_def(), wanted)
        read = {whole.name: columns_read(graph, whole, fetched) for whole in everything.packed}
        packed = everything.packed
        by_slot = [given for given in everything.by_slot if given.name != unserved]
        if part is not None:
            packed = [whole for whole in packed if read[whole.name] is not None]
            by_slot = [given for given in by_slot if (read[given.source] or set()) & places(given)]
        if linears and any(given.name == LINEAR for given in by_slot):
            by_slot = [given for given in by_slot if given.name != LINEAR] + [*linears]
        module = tf.Module()
        weights = {} if frozen else variables(function, graph)
        module.weights = list(weights.values())
        taken = [whole for whole in packed if read[whole.name] is not None]
        scores = function_of(graph, fetched, packed, taken, weights)
        names = [output.name for output in outputs.values()]
        signatures = signatures_of(
            lambda given: {n: tf.identity(t) for n, t in zip(names, scores(*given), strict=True)},
            packed,
            by_slot,
        )
        save_module(module, to, signatures)
        made = GraphPart(packed, by_slot, list(outputs.values()))
        compare(function, everything, dict(zip(names, outputs, strict=True)), made, to)
        return made


def places(part: Input) -> set[int]:
    """The columns of its source that an input is."""
    return set(range(part.at, part.at + part.columns))


def function_of(
    graph: Any, fetched: list[str], packed: list[Input], taken: list[Input], weights: dict[str, Any]
) -> Any:
    """What a graph computes from inputs of `packed`, of which it takes some, and its weights."""

    # With specs it is traced once, and constants are there once.
    @tf.function(
        autograph=False,
        input_signature=[tf.TensorSpec([None, *whole.shape], whole.dtype) for whole in packed],
    )
    def scores(*tensors: Any) -> list[Any]:
        given = {
            f"{whole.name}:0": tensor
            for whole, tensor in zip(packed, tensors, strict=True)
            if whole in taken
        }
        given |= {f"{name}:0": weight.read_value() for name, weight in weights.items()}
        results = tf.import_graph_def(graph, given, return_elements=fetched, name="")
        return [given.get(name, result) for name, result in zip(fetched, results, strict=True)]

    return scores


def chosen(
    signatures: Any, outputs: list[ModelOutput], part: str | None
) -> tuple[Any, dict[str, ModelOutput]]:
    """The function that computes a part, and its outputs by their names there."""
    if part is None:
        return signatures[PACKED], {output.name: output for output in outputs}
    # The main head's are there twice: as `logits` and as `logits_HEAD`. The second is taken.
    of_head = {output.kind: output.name for output in outputs if output.of == part}
    if of_head:
        return signatures[PACKED], {
            name: ModelOutput(kind, kind, part) for kind, name in of_head.items()
        }
    known = signatures[TOWERS].structured_outputs if TOWERS in signatures else {}
    if part not in known:
        names = sorted({output.of for output in outputs} | known.keys())
        raise UserError(f"the graph has no head or tower '{part}'. {did_you_mean(part, names)}")
    shape = tuple(known[part].shape[1:])
    return signatures[TOWERS], {part: ModelOutput("embedding", "embedding", part, shape)}


def compare(
    function: Any, everything: GraphPart, names: dict[str, str], part: GraphPart, folder: str
) -> None:
    """Raise Failure unless the SavedModel of a part gives what the whole gives.

    `names` has for each output its name in the whole. Inputs that the part does not take are
    random too, so that a part that reads them after all is noticed.
    """
    random = np.random.default_rng(1)
    given = {
        whole.name: random.normal(size=(EXAMPLES, whole.columns)).astype(whole.dtype)
        for whole in everything.packed
    }
    shapes = {slot.name: slot.shape for slot in everything.by_slot}
    for length in (columns for columns in everything.by_slot if columns.source == LENGTHS):
        most = shapes[length.name.removesuffix(LENGTH)][0]
        given[LENGTHS][:, length.at] = random.integers(0, most + 1, EXAMPLES)
    ends = [linear.at + linear.columns for linear in part.by_slot if linear.source == LINEARS]
    if ends:
        given[LINEARS] = random.normal(size=(EXAMPLES, max(ends))).astype(np.float32)
        given[LINEAR] = given[LINEARS].sum(axis=1, keepdims=True)
    expected = run(function, {whole.name: given[whole.name] for whole in everything.packed})
    loaded = load_graph(folder)
    for signature, inputs in ((PACKED, part.packed), (BY_SLOT, part.by_slot)):
        outputs = run(loaded.signatures[signature], inputs_of(inputs, given))
        for output, name in names.items():
            if not np.allclose(
                outputs[output], expected[name], rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True
            ):
                raise Failure(
                    f"{output} of signature {signature} is not what the whole graph gives. Split "
                    "without head and frozen, and report it"
                )


def split(
    checkpoint: Checkpoint,
    conf: Conf,
    to: str,
    *,
    head: str | None = None,
    frozen: bool = False,
    linear: Linear = "sum",
    golden: int = GOLDEN_ROWS,
    sizes: Sequence[int] = (),
    target_cpu: str = aot.TARGET_CPU,
    inside: Precision | None = None,
) -> GraphManifest:
    """Write the SavedModel of a checkpoint and, last, serving.json to the folder or URL `to`.

    All of it, or one head or tower; with its weights as constants when `frozen`; with an input of
    each slot for its linear weights, and not their sum, when `linear` is "inputs"; compiled for
    batches of `sizes`; with all rows in the precision `inside`, if that is given. It is made in a
    temporary folder, and copied to `to` with the first `golden` golden rows of the checkpoint if it
    gives their logits. Returns the content of serving.json. Raises Failure when the logits differ,
    UserError when there is no such head.
    """
    reads = [link.folder for link in checkpoint.chain()]
    with (
        outputs.output_folder(to, GRAPH, reads) as output,
        files.TemporaryFolder("graph") as temporary,
    ):
        local, golden_of_inside = str(Path(temporary, "graph")), None
        try:
            part = write_part(checkpoint, conf, local, head, frozen, linear)
            description = replace(describe(checkpoint, conf, part, head), frozen=frozen)
            if users := description.heads and users_of(conf, part.by_slot):
                dense, local = local, str(Path(temporary, "ranking"))
                description = add_rank(dense, local, part.packed, part.by_slot, users, description)
            if inside is not None:
                dense, local = local, str(Path(temporary, "with_rows"))
                description, golden_of_inside = add_rows(
                    checkpoint, conf, description, dense, local, inside
                )
            write_warmup_requests(local, requests_of(checkpoint, description, golden))
        except loaded_graph.FULL_DISK as error:
            reason = getattr(error, "strerror", None) or "no space is left there"
            raise Failure(
                f"the temporary folder {temporary} could not be written ({reason}). Free some "
                "space, or name another folder with the environment variable TMPDIR"
            ) from error
        beside = Inventory(local)
        golden_entry = check_graph(checkpoint, description, local, beside, golden, golden_of_inside)
        with tensorflow_errors("the graph cannot be compiled"):
            compiled = aot.compile_sizes(local, sizes, beside, target_cpu) if sizes else None
        inventory = output.inventory()
        root = Path(local)
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            name = path.relative_to(root).as_posix()
            with path.open("rb") as source, inventory.writing(name) as target:
                shutil.copyfileobj(source, target, 1 << 20)
        return inventory.complete(replace(description, golden=golden_entry, aot=compiled), NAME)


def report_graph(content: GraphManifest) -> None:
    """Report how many inputs each signature of a graph has, and the rows inside."""
    for name in (BY_SLOT, PACKED, *content.signatures.with_rows):
        say(f"signature {name}: {len(content.signatures.of(name))} inputs")
    if (users := content.signatures.rank) is not None:
        say(f"signature rank: {len(users)} of the inputs of by_slot are the user's, who is one row")
    if (rows := content.rows) is not None:
        say(
            f"{sum(rows.groups.values()):,} rows inside take {size(rows.bytes)} of memory; as "
            f"dictionaries {size(rows.dictionary_bytes)}. Deltas do not apply to them: split again "
            "after training"
        )


def write_part(
    checkpoint: Checkpoint,
    conf: Conf,
    local: str,
    head: str | None,
    frozen: bool,
    linear: Linear = "sum",
) -> GraphPart:
    """The SavedModel of a checkpoint in a local folder, unchanged or cut, its files verified."""
    layout = plan(conf, checkpoint.statistics)
    everything = whole(layout, checkpoint.manifest.heads)
    linears = linears_of(layout, everything) if linear == "inputs" else []
    if head is None and not frozen and not linears and not layout.unserved:
        loaded_graph.write_graph(checkpoint, local)
        return everything
    with files.TemporaryFolder("graph") as temporary:
        loaded_graph.write_graph(checkpoint, temporary)
        return cut(temporary, local, everything, head, frozen, linears, layout.unserved)


def linears_of(layout: Layout, everything: GraphPart) -> list[Input]:
    """The inputs that take the place of `linear`. Raises UserError when there can be none."""
    linears = linear_inputs(layout)
    refuse_if(not linears, "linear=inputs: no slot of this model has linear weights. Leave it out")
    names = {columns.name for columns in linears} & {columns.name for columns in everything.by_slot}
    refuse_if(
        names,
        f"linear=inputs: the linear weights of a slot would be the input {', '.join(names)}, which "
        "the model has. Leave it out, or rename that slot or number",
    )
    return linears


def requests_of(checkpoint: Checkpoint, description: GraphManifest, golden: int) -> list[Arrays]:
    """A request of one example and one of at most WARM_ROWS: golden rows, or zeros without any.

    Each has the inputs [B, *shape] of signature by_slot by name, float32 or int32.
    """
    rows = golden_of_checkpoint(checkpoint).inputs(description)
    signatures = description.signatures
    if not golden or not all(map(len, rows.values())):
        rows = {
            packed.name: np.zeros((WARM_ROWS, packed.columns), packed.dtype)
            for packed in signatures.packed
        }
        if signatures.linears:
            columns = sum(part.columns for part in signatures.linears)
            rows[LINEARS] = np.zeros((WARM_ROWS, columns), np.float32)
    inputs = loaded_graph.inputs_of(signatures.by_slot, rows)
    return [{name: array[:count] for name, array in inputs.items()} for count in (1, WARM_ROWS)]


def write_warmup_requests(folder: str, requests: Iterable[Arrays]) -> None:
    """Write requests with which TensorFlow Serving runs a graph before it takes traffic.

    Each is the inputs [B, *shape] of a signature by name, float32 or int32.
    """
    path = Path(folder, WARMUP_REQUESTS)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for inputs in requests:
            writer.write(prediction_log(inputs))


def prediction_log(inputs: Arrays) -> bytes:
    """The PredictionLog of one request, its inputs [B, *shape] by name.

    The file is a TFRecord of such messages (tensorflow_serving/apis/prediction_log.proto), of which
    TensorFlow's wheel has no classes; these few fields are written by hand:

        PredictionLog    predict_log 6: PredictLog
        PredictLog       request 1: PredictRequest
        PredictRequest   model_spec 1: ModelSpec, inputs 2: map<string, TensorProto>
        ModelSpec        signature_name 3: string

    The name of the model is left to the server.
    """
    request = field(1, field(3, SIGNATURE.encode()))
    for name, array in inputs.items():
        tensor = tf.make_tensor_proto(array).SerializeToString()
        request += field(2, field(1, name.encode()) + field(2, tensor))
    return field(6, field(1, request))


def field(number: int, payload: bytes) -> bytes:
    """A field of wire type 2: its tag, its length and its bytes."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def varint(number: int) -> bytes:
    """A whole number in groups of 7 bits, the lowest first."""
    groups = [number >> shift & 127 for shift in range(0, max(number.bit_length(), 1), 7)]
    return bytes([*(group | 128 for group in groups[:-1]), groups[-1]])
