"""golden.jsonl, and the checks of graphs and exported rows against it.

The trainer computes the golden rows of a checkpoint. Graphs and rows are compared with them before
their manifests are written.

docs/formats/golden.md. What passes the check gets a golden.jsonl, too.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from tnctl import files, manifest
from tnctl.checkpoint.chain import GOLDEN, Checkpoint, offering
from tnctl.checkpoint.golden_lines import parse_lines
from tnctl.documents import DocumentError
from tnctl.errors import Failure
from tnctl.evaluation.metrics import sigmoid
from tnctl.evaluation.predictions import by_row
from tnctl.manifest import DamagedError
from tnctl.model.graph import BY_SLOT, PACKED, TOWERS
from tnctl.model.layout import LINEAR, LINEARS
from tnctl.progress import say
from tnctl.schema import Conf
from tnctl.serving.artefact_document import GoldenDeviation, GoldenEntry
from tnctl.serving.graph import loaded_graph
from tnctl.serving.graph.graph_document import BY_ID, RANK, GraphManifest
from tnctl.serving.graph.loaded_graph import LoadedGraph, SideInput, outputs_of, rank_inputs_of
from tnctl.serving.graph.serving_json import describe
from tnctl.serving.graph_inputs import (
    Encoded,
    RawInputs,
    id_arrays,
    pooled_inputs,
    rows_left_out,
)
from tnctl.serving.rows.embeddings import Embeddings
from tnctl.serving.rows.precision import Arrays, Floats

WAY = "Take the golden rows of this graph"
TOLERANCE = 2e-5  # of a logit, times 1 + |logit|


class GoldenFile:
    """The golden rows of `folder`. Raises DamagedError for what golden.jsonl cannot hold."""

    def __init__(self, url: str, data: bytes, folder: str = "") -> None:
        self.url = url
        self.lines = data.splitlines(keepends=True)
        try:
            self.examples = parse_lines(self.lines)
        except DocumentError as error:
            way = "Take a checkpoint of this tnctl"
            raise DamagedError(folder, f"{url}, {error}", way) from error

    def inputs(self, description: GraphManifest) -> Arrays:
        """The inputs of signature `packed`, [n, columns]. Raises Failure if a line has others.

        Lines have the sum `linear`: where by_slot takes its parts, the first one is all of it.
        """
        arrays = {}
        for packed in description.signatures.packed:
            values = [example.inputs.get(packed.name, ()) for example in self.examples]
            for line, numbers in enumerate(values, 1):
                if len(numbers) != packed.columns:
                    raise Failure(
                        f"{self.url}, line {line}: {packed.name} has {len(numbers)} numbers, and "
                        f"the graph takes {packed.columns}. {WAY}"
                    )
            shape = (len(values), packed.columns)
            arrays[packed.name] = np.array(values, packed.dtype).reshape(shape)
        if linears := description.signatures.linears:
            columns = sum(part.columns for part in linears)
            arrays[LINEARS] = np.zeros((len(self.examples), columns), np.float32)
            arrays[LINEARS][:, :1] = arrays[LINEAR]
        return arrays

    def outputs(self, kind: str, name: str) -> Floats:
        """The `logits` or `predictions` of a head, float32 [n], or a tower's `embedding`, [n, d].

        Raises Failure when a line does not have them.
        """
        field, noun = ("towers", "tower") if kind == "embedding" else (kind, "head")
        values = [(getattr(example, field) or {}).get(name) for example in self.examples]
        if None in values:
            raise Failure(f"{self.url} has no {noun} {name}. {WAY}")
        return np.array(values, np.float32)


def golden_of_checkpoint(checkpoint: Checkpoint) -> GoldenFile:
    """The golden rows that the trainer wrote."""
    with offering(checkpoint):
        data = manifest.read_file(checkpoint.folder, checkpoint.manifest, GOLDEN)
        return GoldenFile(files.join(checkpoint.folder, GOLDEN), data, checkpoint.folder)


def golden_of_graph(url: str, description: GraphManifest) -> GoldenFile | None:
    """The golden rows of a split graph; None when it has none."""
    if description.golden is None:
        return None
    return GoldenFile(files.join(url, GOLDEN), manifest.read_file(url, description, GOLDEN), url)


def golden_of_embeddings(embeddings: Embeddings) -> GoldenFile | None:
    """The golden rows of exported embeddings; None when they have none."""
    data = embeddings.golden()
    return None if data is None else GoldenFile(f"{GOLDEN} of the embeddings", data)


class Writes(Protocol):
    """Where golden.jsonl is written to: an Inventory, or what is like it."""

    def write(self, name: str, data: bytes) -> None:
        """Write a whole file."""


def check_embeddings(
    checkpoint: Checkpoint,
    conf: Conf,
    embeddings: Embeddings,
    inventory: Writes,
    count: int,
    exact: bool,
) -> GoldenEntry | None:
    """Check exported rows against the checkpoint's golden rows, and write the first `count`.

    When `exact`, the rows must give the trainer's inputs, and the lines are the checkpoint's. Else
    the lines say what the rows give, and how far that is from the checkpoint's is measured.
    Returns the manifest's `golden`: None without lines. Raises Failure when the check fails.
    """
    golden = golden_of_checkpoint(checkpoint)
    if not golden.lines:
        return None
    description = describe(checkpoint, conf)
    encoded = encoded_rows(golden, description)
    expected = golden.inputs(description)
    lookup = embeddings.lookup if exact else rows_left_out(description, embeddings)
    inputs = pooled_inputs(description, encoded, lookup)
    lines, deviation = golden.lines, GoldenDeviation(x=0.0, logit=0.0)
    if exact:
        for name, array in inputs.items():
            if wrong := first_difference(name, array, expected[name]):
                raise Failure(
                    f"the exported rows do not give the trainer's inputs: {golden.url}, {wrong}. "
                    "Nothing was exported: export again, or from another checkpoint"
                )
    else:
        with files.TemporaryFolder("graph") as temporary:
            loaded_graph.write_graph(checkpoint, temporary)
            graph = LoadedGraph(temporary, description, checkpoint.folder)
        lines, deviation = recomputed(golden, graph, inputs, expected)
        say(
            f"with these rows inputs differ from the trainer's by at most {deviation.x:.2g}, "
            f"logits by {deviation.logit:.2g} × (1 + |logit|), on {len(lines)} golden rows"
        )
    return write_golden(inventory, lines[:count], exact, deviation)


def check_graph(
    checkpoint: Checkpoint,
    description: GraphManifest,
    folder: str,
    inventory: Writes,
    count: int,
    of_rows: GoldenFile | None = None,
) -> GoldenEntry | None:
    """Check the SavedModel in a local folder against golden rows, and write the first `count`.

    All signatures must give the trainer's logits, predictions and outputs of towers from the
    trainer's inputs; with rows inside what `of_rows` says, their golden rows, which
    `description.golden` compares to the trainer's. Returns serving.json's `golden`: None without
    lines. Raises Failure when the check fails.
    """
    golden, made = of_rows or golden_of_checkpoint(checkpoint), description.golden
    if not golden.lines:
        return None
    deviations = deviations_of(golden, LoadedGraph(folder, description))
    for signature, deviation in deviations.items():
        if not deviation <= TOLERANCE:
            raise Failure(
                f"signature {signature} of the graph does not give the trainer's "
                f"{outputs_noun(description, signature)}: they differ by {deviation:.2g} × (1 + "
                f"|value|) from {golden.url}, and {TOLERANCE:g} are allowed. Nothing was split "
                "off: split again, or from another checkpoint"
            )
    worst = max(*deviations.values(), made.deviation.logit if made else 0.0)
    exact = made is None or made.exact
    return write_golden(inventory, golden.lines[:count], exact, GoldenDeviation(logit=worst))


def write_golden(
    inventory: Writes, lines: list[bytes], exact: bool, deviation: GoldenDeviation
) -> GoldenEntry | None:
    """Write golden.jsonl; the manifest's entry, None without lines."""
    if not lines:
        return None
    inventory.write(GOLDEN, b"".join(lines))
    return GoldenEntry(rows=len(lines), exact=exact, deviation=deviation)


def deviations_of(golden: GoldenFile, graph: LoadedGraph) -> dict[str, float]:
    """By signature, how far its outputs for golden inputs are from the golden outputs.

    Signature `rank` is compared with `packed`, for the user of the first row.
    """
    inputs = golden.inputs(graph.description)
    deviations = {
        signature: largest_deviation(golden, graph.description, graph.outputs(signature, inputs))
        for signature in (PACKED, BY_SLOT)
    }
    if towers := graph.towers(inputs):
        deviations[TOWERS] = max(
            deviation_of(array, golden.outputs("embedding", name)) for name, array in towers.items()
        )
    for signature in graph.description.signatures.with_rows:
        outputs = graph.run(signature, row_inputs(signature, golden, graph.description))
        deviations[signature] = largest_deviation(golden, graph.description, outputs)
    if sides := rank_inputs_of(graph.description):
        deviations[RANK] = rank_deviation(graph.run, inputs, sides)
    return deviations


def row_inputs(signature: str, golden: GoldenFile, description: GraphManifest) -> Arrays:
    """The inputs of `by_id` or `by_value` for golden rows, by name."""
    if signature == BY_ID:
        return id_arrays(description, encoded_rows(golden, description))
    rows = [example.row for example in golden.examples]
    return RawInputs(description).values(description, rows, lambda row: (golden.url, row + 1))


def rank_deviation(
    run: Callable[[str, Arrays], Arrays], inputs: Arrays, sides: Iterable[SideInput]
) -> float:
    """How far signature `rank` is from `packed`, of the first row's user and all rows' items.

    `run` computes a signature, `inputs` [n, columns] are the inputs of packed, by name; `sides`
    describe the inputs of rank.
    """
    of_rank = {side.name: side.of(inputs) for side in sides}
    repeated = {name: array.copy() for name, array in inputs.items()}
    for side in sides:
        if side.of_user:
            repeated[side.source][:, side.places] = of_rank[side.name]
    expected, outputs = run(PACKED, repeated), run(RANK, of_rank)
    return max(deviation_of(outputs[name], array) for name, array in expected.items())


def outputs_noun(description: GraphManifest, signature: str) -> str:
    """The word for what a signature returns."""
    return "logits" if description.heads and signature != TOWERS else "embeddings"


def encoded_rows(golden: GoldenFile, description: GraphManifest) -> Encoded:
    """The raw rows as ids and numbers. Raises Failure unless the ids are the lines'."""
    rows = [example.row for example in golden.examples]
    encoded = RawInputs(description).encode(rows, lambda row: (golden.url, row + 1))
    for name, cells in encoded.cells.items():
        ids_of_rows = by_row(cells, cells.ids)
        for number, (example, ids) in enumerate(zip(golden.examples, ids_of_rows, strict=True), 1):
            expected, received = example.ids.get(name), [str(id_) for id_ in ids]
            if expected != received:
                raise Failure(
                    f"{golden.url}, line {number}: slot {name} has ids "
                    f"{', '.join(expected or []) or 'none'}, and its raw value gives "
                    f"{', '.join(received) or 'none'}. Take another checkpoint"
                )
    return encoded


def first_difference(name: str, received: Floats, expected: Floats) -> str | None:
    """Where an input [B, columns] of `packed` first differs from the expected one, or None.

    0.0 and -0.0 do not differ: the sign of a sum of zeros has no meaning.
    """
    wrong = np.argwhere(received != expected)
    if not len(wrong):
        return None
    row, column = wrong[0].tolist()
    return (
        f"line {row + 1}: column {column} of {name} is {expected[row, column].item()!r} there and "
        f"{received[row, column].item()!r} of these rows"
    )


def deviation_of(received: Floats, expected: Floats) -> float:
    """The largest deviation of outputs [B, ...] from `expected`, as a multiple of 1 + |expected|.

    Infinite for NaN, and for outputs of another shape.
    """
    if received.shape != expected.shape:
        return float("inf")
    exact = expected.astype(np.float64)
    worst = np.max(np.abs(received.astype(np.float64) - exact) / (1 + np.abs(exact)), initial=0.0)
    return float(worst) if np.isfinite(worst) else float("inf")


def largest_deviation(
    golden: GoldenFile, description: GraphManifest, outputs: Mapping[str, Any]
) -> float:
    """The largest deviation from golden rows, of all heads' outputs or of a tower's."""
    return max(
        deviation_of(outputs[name], golden.outputs(kind, head))
        for kind in ("logits", "predictions", "embedding")
        for head, name in outputs_of(description, kind).items()
    )


def recomputed(
    golden: GoldenFile, graph: LoadedGraph, inputs: Arrays, expected: Arrays
) -> tuple[list[bytes], GoldenDeviation]:
    """Golden rows with other inputs and the graph's outputs for them; how far they deviate."""
    outputs, towers = graph.outputs(PACKED, inputs), graph.towers(inputs)
    heads = outputs_of(graph.description, "logits")
    logits = {head: outputs[name] for head, name in heads.items()}
    squared = graph.description.predictions == "logit"
    predictions = logits if squared else {head: sigmoid(of) for head, of in logits.items()}
    lines = [
        example.with_values(
            {name: array[number] for name, array in inputs.items()},
            {head: array[number].item() for head, array in logits.items()},
            {head: array[number].item() for head, array in predictions.items()},
            {name: array[number].tolist() for name, array in towers.items()},
        ).to_json()
        for number, example in enumerate(golden.examples)
    ]
    worst = max(
        float(np.max(np.abs(array.astype(np.float64) - expected[name]), initial=0.0))
        for name, array in inputs.items()
    )
    logit = max(deviation_of(logits[head], golden.outputs("logits", head)) for head in heads)
    return lines, GoldenDeviation(x=worst, logit=logit)
