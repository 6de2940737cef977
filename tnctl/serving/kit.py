"""The conformance kit: golden.jsonl, and what is checked with it (docs/formats/golden.md).

A checkpoint's kit is of the trainer's own making. What goes online is checked against it before it
counts, and takes it along.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tnctl import files, manifest
from tnctl.checkpoint.chain import GOLDEN, Checkpoint, offering
from tnctl.checkpoint.golden import RawRow, parse_lines
from tnctl.documents import DocumentError
from tnctl.errors import Failure, quoted
from tnctl.evaluation.metrics import sigmoid
from tnctl.manifest import DamagedError
from tnctl.model.graph import BY_SLOT, PACKED, TOWERS
from tnctl.ownership import SAVED_MODEL
from tnctl.progress import say
from tnctl.schema import Conf
from tnctl.serving import allowed_ops
from tnctl.serving.description import describe
from tnctl.serving.graph_document import GraphManifest
from tnctl.serving.inputs import Encoded, RawInputs, pooled_inputs, rows_left_out
from tnctl.serving.references import GraphDeviation, GraphKit, RowsDeviation, RowsKit
from tnctl.serving.rows.embeddings import Embeddings
from tnctl.serving.served import Arrays, ServedGraph, outputs_of

TOLERANCE = 2e-5  # of a logit, times 1 + |logit|


class Writes(Protocol):
    """Where golden.jsonl is written to: an Inventory, or what is like it."""

    def write(self, name: str, data: bytes) -> None:
        """Write a whole file."""


class Kit:
    """The lines of a golden.jsonl in `folder`. Raises DamagedError for what it cannot hold."""

    def __init__(self, url: str, data: bytes, folder: str = "") -> None:
        self.url = url
        self.lines = data.splitlines(keepends=True)
        try:
            self.examples = parse_lines(self.lines)
        except DocumentError as error:
            way = "Take a checkpoint of this tnctl"
            raise DamagedError(folder, f"{url}, {error}", way) from error

    @property
    def rows(self) -> list[RawRow]:
        """The raw rows."""
        return [example.row for example in self.examples]

    def inputs(self, description: GraphManifest) -> Arrays:
        """The inputs of signature `packed` that the lines have. Raises Failure for others."""
        found = {}
        for one in description.signatures.packed:
            values = [example.inputs.get(one.name) for example in self.examples]
            for number, numbers in enumerate(values, 1):
                if numbers is None or len(numbers) != one.columns:
                    raise Failure(
                        f"{self.url}, line {number}: {one.name} has {len(numbers or ())} numbers, "
                        f"and the graph takes {one.columns}. Take the kit of this graph"
                    )
            found[one.name] = np.array(values, one.dtype).reshape(len(values), one.columns)
        return found

    def logits(self, head: str) -> NDArray[np.float32]:
        """The logits of a head, float32 [n]."""
        return self._of("head", head, [example.logits.get(head) for example in self.examples])

    def predictions(self, head: str) -> NDArray[np.float32]:
        """The predictions of a head, float32 [n]."""
        return self._of("head", head, [example.predictions.get(head) for example in self.examples])

    def embeddings(self, tower: str) -> NDArray[np.float32]:
        """The outputs of a tower, float32 [n, d]."""
        values = [(example.towers or {}).get(tower) for example in self.examples]
        if len({len(numbers) for numbers in values if numbers is not None}) > 1:
            raise Failure(
                f"{self.url}: outputs of tower {tower} are of several lengths. Take the kit of "
                "this graph"
            )
        return self._of("tower", tower, values)

    def _of(self, kind: str, name: str, values: Sequence[Any]) -> NDArray[np.float32]:
        """The outputs of a head or tower, which every line must have."""
        if any(value is None for value in values):
            raise Failure(f"{self.url} has no {kind} {name}. Take the kit of this graph")
        return np.array(values, np.float32)


def kit_of_checkpoint(checkpoint: Checkpoint) -> Kit:
    """What the trainer kept."""
    with offering(checkpoint):
        data = manifest.read_file(checkpoint.folder, checkpoint.manifest, GOLDEN)
        return Kit(files.join(checkpoint.folder, GOLDEN), data, checkpoint.folder)


def kit_of_graph(url: str, description: GraphManifest) -> Kit | None:
    """The kit of a split graph; None when it has none."""
    if description.golden is None:
        return None
    return Kit(files.join(url, GOLDEN), manifest.read_file(url, description, GOLDEN), url)


def kit_of_embeddings(embeddings: Embeddings) -> Kit | None:
    """The kit of exported embeddings; None when they have none."""
    data = embeddings.golden()
    return None if data is None else Kit(f"{GOLDEN} of the embeddings", data)


def complete(
    checkpoint: Checkpoint,
    conf: Conf,
    embeddings: Embeddings,
    inventory: Writes,
    golden: int,
    exact: bool,
) -> RowsKit | None:
    """Check exported rows against the checkpoint's kit, and write the first `golden` lines of one.

    When `exact`, the rows must give the trainer's inputs, and the lines are the checkpoint's. Else
    the lines say what the rows give, and how far that is from the checkpoint's is measured.
    Returns the manifest's `golden`: None without lines. Raises Failure when the check fails.
    """
    kit = kit_of_checkpoint(checkpoint)
    if not kit.lines:
        return None
    description = describe(checkpoint, conf)
    encoded = encoded_rows(kit, description)
    expected = kit.inputs(description)
    lookup = embeddings.lookup if exact else rows_left_out(description, embeddings)
    inputs = pooled_inputs(description, encoded, lookup)
    lines, deviation = kit.lines, RowsDeviation(x=0.0, logit=0.0)
    if exact:
        for name, array in inputs.items():
            if wrong := first_difference(description, name, array, expected[name]):
                raise Failure(
                    f"the exported rows do not give the trainer's inputs: {kit.url}, {wrong}. "
                    "Nothing was exported: export again, or from another checkpoint"
                )
    else:
        with files.TemporaryFolder("graph") as temporary:
            write_graph(checkpoint, temporary)
            graph = ServedGraph(temporary, description, checkpoint.folder)
        lines, deviation = recomputed(kit, graph, inputs, expected)
        say(
            f"with these rows inputs differ from the trainer's by at most {deviation.x:.2g}, "
            f"logits by {deviation.logit:.2g} × (1 + |logit|), on {len(lines)} golden rows"
        )
    if not (lines := lines[:golden]):
        return None
    inventory.write(GOLDEN, b"".join(lines))
    return RowsKit(rows=len(lines), exact=exact, deviation=deviation)


def check_graph(
    checkpoint: Checkpoint,
    description: GraphManifest,
    folder: str,
    inventory: Writes,
    golden: int,
) -> GraphKit | None:
    """Check the SavedModel in a local folder against the checkpoint's kit, and write it.

    All signatures must give the trainer's logits, predictions and outputs of towers from the
    trainer's inputs.
    Returns serving.json's `golden`: None without lines. Raises Failure when the check fails.
    """
    kit = kit_of_checkpoint(checkpoint)
    if not kit.lines:
        return None
    deviations = deviations_of(kit, ServedGraph(folder, description))
    for signature, deviation in deviations.items():
        if not deviation <= TOLERANCE:
            raise Failure(
                f"signature {signature} of the graph does not give the trainer's "
                f"{what(description, signature)}: they differ by {deviation:.2g} × (1 + |value|) "
                f"from {kit.url}, and {TOLERANCE:g} are allowed. Nothing was split off: split "
                "again, or from another checkpoint"
            )
    if not (lines := kit.lines[:golden]):
        return None
    inventory.write(GOLDEN, b"".join(lines))
    worst = GraphDeviation(logit=max(deviations.values()))
    return GraphKit(rows=len(lines), exact=True, deviation=worst)


def deviations_of(kit: Kit, graph: ServedGraph) -> dict[str, float]:
    """By signature how far what it makes of the kit's inputs is from the kit's outputs."""
    inputs = kit.inputs(graph.description)
    found = {
        signature: farthest(kit, graph.description, graph.outputs(signature, inputs))
        for signature in (PACKED, BY_SLOT)
    }
    if towers := graph.towers(inputs):
        found[TOWERS] = max(apart(array, kit.embeddings(name)) for name, array in towers.items())
    return found


def what(description: GraphManifest, signature: str) -> str:
    """What a signature gives."""
    return "logits" if description.heads and signature != TOWERS else "embeddings"


def encoded_rows(kit: Kit, description: GraphManifest) -> Encoded:
    """The kit's raw rows as ids and numbers. Raises Failure unless the ids are the kit's."""
    try:
        encoded = RawInputs(description).encode(kit.rows, lambda row: (kit.url, row + 1))
    except pa.ArrowException as error:
        raise Failure(
            f"{kit.url}: the values of a column are of kinds that do not go together ({error}). "
            "Take another checkpoint"
        ) from error
    for name, cells in encoded.cells.items():
        ends = np.cumsum(cells.lengths())
        for number, (example, end, n) in enumerate(
            zip(kit.examples, ends, cells.lengths(), strict=True), 1
        ):
            ids = [str(one) for one in cells.ids[end - n : end].tolist()]
            expected = example.ids.get(name)
            if expected != ids:
                raise Failure(
                    f"{kit.url}, line {number}: slot {name} has ids "
                    f"{', '.join(expected or []) or 'none'}, and its raw value gives "
                    f"{', '.join(ids) or 'none'}. Take another checkpoint"
                )
    return encoded


def differing(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    """Which numbers are not the same. The two zeros are: which one a sum gives says nothing."""
    return np.asarray(one != other)


def first_difference(
    description: GraphManifest, name: str, found: NDArray[Any], expected: NDArray[Any]
) -> str | None:
    """Where an input of `packed` is first another than expected, or None."""
    wrong = np.argwhere(differing(found, expected))
    if not len(wrong):
        return None
    row, column = wrong[0].tolist()
    part = next(
        (
            one.name
            for one in description.signatures.by_slot
            if one.source == name and one.at <= column < one.end
        ),
        name,
    )
    return (
        f"line {row + 1}: {part} (column {column} of {name}) is {expected[row, column].item()!r} "
        f"there and {found[row, column].item()!r} of these rows"
    )


def apart(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """The largest deviation of logits as a multiple of 1 + |logit|; infinite for NaN.

    Infinite too for outputs of another shape.
    """
    if found.shape != expected.shape:
        return float("inf")
    of = expected.astype(np.float64)
    worst = np.max(np.abs(found.astype(np.float64) - of) / (1 + np.abs(of)), initial=0.0)
    return float(worst) if np.isfinite(worst) else float("inf")


def farthest(kit: Kit, description: GraphManifest, outputs: Mapping[str, Any]) -> float:
    """The largest deviation from the kit's, of all heads' outputs or of a tower's."""
    expected = {
        "logits": kit.logits, "predictions": kit.predictions, "embedding": kit.embeddings
    }  # fmt: skip
    return max(
        apart(outputs[name], of_kit(head))
        for kind, of_kit in expected.items()
        for head, name in outputs_of(description, kind).items()
    )


def recomputed(
    kit: Kit, graph: ServedGraph, inputs: Arrays, expected: Arrays
) -> tuple[list[bytes], RowsDeviation]:
    """The lines of a kit with other inputs and what the graph makes of them; how far they are."""
    outputs, towers = graph.outputs(PACKED, inputs), graph.towers(inputs)
    heads = outputs_of(graph.description, "logits")
    squared = graph.description.predictions == "logit"
    logits = {head: outputs[name] for head, name in heads.items()}
    predictions = logits if squared else {head: sigmoid(one) for head, one in logits.items()}
    lines = []
    for number, example in enumerate(kit.examples):
        line = example.with_values(
            {name: array[number] for name, array in inputs.items()},
            {head: array[number].item() for head, array in logits.items()},
            {head: array[number].item() for head, array in predictions.items()},
            {name: array[number].tolist() for name, array in towers.items()},
        )
        lines.append(line.text())
    worst = max(
        float(np.max(np.abs(array.astype(np.float64) - expected[name]), initial=0.0))
        for name, array in inputs.items()
    )
    logit = max(apart(logits[head], kit.logits(head)) for head in heads)
    return lines, RowsDeviation(x=worst, logit=logit)


def write_graph(checkpoint: Checkpoint, folder: str) -> None:
    """Write the graph that a checkpoint carries into a local folder, its files verified.

    Raises DamagedError when it has other files than a SavedModel, wherever they would be written,
    and Failure when it has an op that does more than compute.
    """
    prefix = checkpoint.manifest.graph + "/"
    with offering(checkpoint):
        for name in checkpoint.manifest.files:
            if not name.startswith(prefix):
                continue
            inner = name.removeprefix(prefix)
            if not SAVED_MODEL.fullmatch(inner):
                raise DamagedError(
                    checkpoint.folder,
                    f"{checkpoint.folder} has a file {quoted(name)}, which no SavedModel of tnctl "
                    "has",
                    "Take another checkpoint",
                )
            data = manifest.read_file(checkpoint.folder, checkpoint.manifest, name)
            target = Path(folder, inner)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    allowed_ops.check(folder, checkpoint.folder)
