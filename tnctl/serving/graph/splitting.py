"""`tnctl split-graph`: the dense inference graph of a checkpoint, servable without tnctl."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tnctl import files, outputs
from tnctl.checkpoint.load import Checkpoint
from tnctl.errors import Failure, refuse_if
from tnctl.manifest import Inventory
from tnctl.model.graph import Input, linear_inputs
from tnctl.model.layout import LINEARS, Layout, plan
from tnctl.ownership import GRAPH
from tnctl.schema import Conf
from tnctl.serving.graph import aot, cutting, loaded_graph
from tnctl.serving.graph.graph_document import NAME, GraphManifest
from tnctl.serving.graph.serving_json import describe
from tnctl.serving.verify.golden_checks import check_graph, golden_of_checkpoint

WARMUP_REQUESTS = "assets.extra/tf_serving_warmup_requests"
SIGNATURE = "serving_default"

GOLDEN_ROWS = 200
WARM_ROWS = 8
Linear = Literal["sum", "inputs"]  # of linear weights: their sum, or an input of each slot


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
) -> GraphManifest:
    """Write the SavedModel of a checkpoint and, last, serving.json to the folder or URL `to`.

    All of it, or one head or tower; with its weights as constants when `frozen`; with an input of
    each slot for its linear weights, and not their sum, when `linear` is "inputs"; compiled for
    batches of `sizes`. It is made in a temporary folder, and copied to `to` with the first
    `golden` golden rows of the checkpoint if it gives their logits. Returns the content of
    serving.json. Raises Failure when the logits differ, UserError when there is no such head.
    """
    reads = [link.folder for link in checkpoint.chain()]
    with (
        outputs.output_folder(to, GRAPH, reads) as output,
        files.TemporaryFolder("graph") as temporary,
    ):
        local = str(Path(temporary, "graph"))
        try:
            part = write_part(checkpoint, conf, local, head, frozen, linear)
            description = replace(describe(checkpoint, conf, part, head), frozen=frozen)
            write_warmup_requests(local, requests_of(checkpoint, description, golden))
        except loaded_graph.FULL_DISK as error:
            reason = getattr(error, "strerror", None) or "no space is left there"
            raise Failure(
                f"the temporary folder {temporary} could not be written ({reason}). Free some "
                "space, or name another folder with the environment variable TMPDIR"
            ) from error
        beside = Inventory(local)
        golden_entry = check_graph(checkpoint, description, local, beside, golden)
        with cutting.tensorflow_errors("the graph cannot be compiled"):
            compiled = aot.compile_sizes(local, sizes, beside, target_cpu) if sizes else None
        inventory = output.inventory()
        root = Path(local)
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            name = path.relative_to(root).as_posix()
            with path.open("rb") as source, inventory.writing(name) as target:
                shutil.copyfileobj(source, target, 1 << 20)
        return inventory.complete(replace(description, golden=golden_entry, aot=compiled), NAME)


def write_part(
    checkpoint: Checkpoint,
    conf: Conf,
    local: str,
    head: str | None,
    frozen: bool,
    linear: Linear = "sum",
) -> cutting.Part:
    """The SavedModel of a checkpoint in a local folder, unchanged or cut, its files verified."""
    layout = plan(conf, checkpoint.statistics)
    everything = cutting.whole(layout, checkpoint.manifest.heads)
    linears = linears_of(layout, everything) if linear == "inputs" else []
    if head is None and not frozen and not linears:
        loaded_graph.write_graph(checkpoint, local)
        return everything
    with files.TemporaryFolder("graph") as temporary:
        loaded_graph.write_graph(checkpoint, temporary)
        return cutting.cut(temporary, local, everything, head, frozen, linears)


def linears_of(layout: Layout, everything: cutting.Part) -> list[Input]:
    """The inputs that take the place of `linear`. Raises UserError when there can be none."""
    linears = linear_inputs(layout)
    refuse_if(not linears, "linear=inputs: no slot of this model has linear weights. Leave it out")
    names = {columns.name for columns in everything.by_slot}
    for columns in linears:
        refuse_if(
            columns.name in names,
            f"linear=inputs: the linear weights of a slot would be the input {columns.name}, which "
            "the model has. Leave it out, or rename that slot or number",
        )
    return linears


def requests_of(
    checkpoint: Checkpoint, description: GraphManifest, golden: int
) -> list[dict[str, NDArray[Any]]]:
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


def write_warmup_requests(folder: str, requests: Iterable[Mapping[str, NDArray[Any]]]) -> None:
    """Write requests with which TensorFlow Serving runs a graph before it takes traffic.

    Each is the inputs [B, *shape] of a signature by name, float32 or int32.
    """
    path = Path(folder, WARMUP_REQUESTS)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for inputs in requests:
            writer.write(prediction_log(inputs))


def prediction_log(inputs: Mapping[str, NDArray[Any]]) -> bytes:
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
