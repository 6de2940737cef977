"""`tnctl verify-serving`: what was trained is what is served.

With a checkpoint, examples of the validation data are pooled twice, by its C tables and by numpy
from the exported rows; that must be the same float32. The logits of the graph must be within
2e-5 * (1 + |logit|) of the logits of the recipe's network with the checkpoint's weights. Rows of
lower precision must be within the error that their export states. And the graph and the embeddings
must give what their golden rows say, which is checked without a checkpoint too.
"""

import http.client
import json
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field, TypeAdapter

from tnctl import manifest
from tnctl.checkpoint.chain import Checkpoint
from tnctl.data.batches import Batch, joined
from tnctl.data.days import conf_of_day
from tnctl.data.slot_encoder import Cells
from tnctl.data.sources import Source
from tnctl.data.windows import windows
from tnctl.errors import Failure, quoted, refuse_if
from tnctl.evaluation.model_readers import LocalReader, Readers
from tnctl.evaluation.split_scoring import features_of
from tnctl.files import AbsentError
from tnctl.model.building import Model
from tnctl.model.graph import BY_SLOT, PACKED, packed_inputs
from tnctl.model.layout import LINEAR, LINEARS
from tnctl.schema import Conf
from tnctl.serving.golden_checks import (
    TOLERANCE,
    GoldenFile,
    deviation_of,
    deviations_of,
    encoded_rows,
    golden_of_checkpoint,
    golden_of_embeddings,
    golden_of_graph,
    largest_deviation,
    outputs_noun,
)
from tnctl.serving.graph.graph_document import NAME, GraphManifest
from tnctl.serving.graph.loaded_graph import LoadedGraph, inputs_of, open_graph, outputs_of
from tnctl.serving.graph_inputs import Encoded, pooled_inputs, served_lookup
from tnctl.serving.rows.embeddings import Embeddings, open_embeddings
from tnctl.serving.rows.export_document import RowsManifest
from tnctl.serving.rows.precision import Arrays, Floats, LookedUp, Uint64s

EXAMPLES = 1000
SECONDS = 30.0
ROWS = 32  # of a request
COLUMNAR, ROW = "columns", "rows"
# The keys of examples, and of the outputs in an answer.
FORMS = {COLUMNAR: ("inputs", "outputs"), ROW: ("instances", "predictions")}
MOST_BYTES = 64 << 20  # of an answer
# NaN and infinite numbers pass here, and are named for what they are.
Number = Annotated[float, Field(strict=True)]
NUMBERS: TypeAdapter[Any] = TypeAdapter(list[Number] | list[list[Number]])


@dataclass(frozen=True)
class CheckedFigure:
    """One comparison: what, whether it held, and the figure."""

    what: str
    held: bool
    figure: str


def verify(
    checkpoint: Checkpoint,
    conf: Conf,
    graph: str,
    embeddings: str | None,
    prefix: str = "tnctl",
    readers: Readers = LocalReader,
) -> list[CheckedFigure]:
    """Compare serving with training on up to 1000 examples, and on golden rows.

    Without embeddings the graph has the rows inside, and is compared with its golden rows alone.
    `readers` loads the model of a checkpoint. `prefix` starts the names of the keys when the
    embeddings are in a Redis. Raises Failure for a graph or embeddings of another checkpoint, or
    that are not complete.
    """
    loaded = open_graph(graph)
    require_origin(checkpoint, graph, loaded.description)
    if embeddings is None:
        return of_golden_rows(graph, loaded, None, prefix)
    with closing(open_embeddings(embeddings, prefix)) as opened:
        require_origin(checkpoint, embeddings, opened.manifest)
        findings = Examples(checkpoint, conf, readers(checkpoint, conf)).compare(loaded, opened)
        golden = golden_of_embeddings(opened)
        return findings + of_graph(graph, loaded) + of_embeddings(loaded, opened, golden)


def require_origin(checkpoint: Checkpoint, url: str, content: GraphManifest | RowsManifest) -> None:
    """Raise Failure unless a graph or embeddings were made from a checkpoint."""
    if content.checkpoint.sha256 != checkpoint.manifest.sha256:
        raise Failure(
            f"{url} was made from another checkpoint ({content.checkpoint.folder}) "
            f"than {checkpoint.folder}. Split and export that one again"
        )


def verify_artefacts(
    graph: str, embeddings: str | None, prefix: str = "tnctl"
) -> list[CheckedFigure]:
    """Compare a graph, and with it embeddings, with their golden rows alone: no checkpoint is read.

    Embeddings without golden rows are compared with the graph's, if their rows are float32. Raises
    Failure when there are no golden rows to compare with, and for what cannot be read. `prefix` as
    in `verify`.
    """
    return of_golden_rows(graph, open_graph(graph), embeddings, prefix)


def of_golden_rows(
    graph: str, loaded: LoadedGraph, embeddings: str | None, prefix: str
) -> list[CheckedFigure]:
    """What `verify_artefacts` finds, of a graph that is loaded."""
    findings = of_graph(graph, loaded)
    if embeddings is not None:
        with closing(open_embeddings(embeddings, prefix)) as opened:
            golden = golden_of_embeddings(opened)
            if golden is None and not opened.manifest.exact:
                raise Failure(
                    f"{embeddings} has no golden rows (golden=0), and its rows are not the "
                    "trainer's own. Name the checkpoint as well: checkpoint=URL"
                )
            golden = golden or golden_of_graph(graph, loaded.description)
            findings += of_embeddings(loaded, opened, golden)
    if not findings:
        inside = loaded.description.rows is not None
        way = "Split with golden=200" if inside else "Name the checkpoint as well: checkpoint=URL"
        raise Failure(f"{graph} has no golden rows (golden=0). {way}")
    return findings


def verify_endpoint(
    url: str,
    graph: str,
    embeddings: str | None,
    prefix: str = "tnctl",
    checkpoint: Checkpoint | None = None,
) -> list[CheckedFigure]:
    """Send golden rows to a running service, with the inputs and outputs of the graph.

    The golden rows are from the embeddings, else of the graph, else of the checkpoint. Raises
    Failure when none of them has any, and for a service that does not answer as it must.
    """
    description = manifest.read(graph, GraphManifest, NAME)
    golden = None
    if embeddings is not None:
        with closing(open_embeddings(embeddings, prefix)) as opened:
            served_lookup(description, opened)  # refuses embeddings of another checkpoint
            golden = golden_of_embeddings(opened)
    golden = golden or golden_of_graph(graph, description)
    if golden is None and checkpoint is not None:
        golden = golden_of_checkpoint(checkpoint)
    if golden is None or not golden.lines:
        raise Failure(f"{graph} has no golden rows (golden=0) to send. Split with golden=200")
    inputs = inputs_of(description.signatures.by_slot, golden.inputs(description))
    noun = outputs_noun(description, BY_SLOT)
    findings = []
    for way, outputs in PredictEndpoint(url, description).ways(inputs).items():
        what = f"{noun} of the endpoint, by {way}"
        if outputs is None:
            findings.append(CheckedFigure(what, True, "not supported there"))
        else:
            findings.append(within(what, largest_deviation(golden, description, outputs)))
    return findings


class Examples:
    """Examples of the validation data as the trainer sees them: inputs and logits."""

    def __init__(self, checkpoint: Checkpoint, conf: Conf, reader: LocalReader) -> None:
        self.model, self._reader = reader.model, reader
        features = features_of(conf, self.model)
        # Validation data, or the most similar data that the conf has; of days, the last trained.
        splits = (name for name in ("validation", "test") if conf.data.source(name) is not None)
        split = next(splits, "train")
        conf = conf_of_day(conf, checkpoint.days[-1].day) if checkpoint.days else conf
        try:
            # One batch: an export is read once, however small the batches of training are.
            batch = joined(list(windows(Source(conf, split), features, limit=EXAMPLES)))
        except AbsentError as error:
            raise Failure(
                f"{error}. Or compare with the golden rows alone: graph=URL embeddings=URL "
                "without the run"
            ) from error
        self._inference = reader.inference(batch.rows)
        self.logits = self._inference(batch)
        self.towers = self._inference.towers(batch.rows)
        names = [packed.name for packed in packed_inputs(self.model.layout)]
        self._buffers = {name: getattr(self._inference.buffers, name) for name in names}
        self.inputs = {name: array.copy() for name, array in self._buffers.items()}
        self.encoded = Encoded(cells_of(self.model, batch), batch.numeric)

    def compare(self, graph: LoadedGraph, embeddings: Embeddings) -> list[CheckedFigure]:
        """Findings about the inputs and the outputs that serving gives for these examples."""
        description = graph.description
        lookup = served_lookup(description, embeddings)
        counts = np.zeros(2, np.int64)  # ids that were looked up, ids that are known

        def counting(group: str, ids: Uint64s) -> LookedUp:
            rows, known = lookup(group, ids)
            counts[:] += len(ids), known.sum()
            return rows, known

        encoded = Encoded(self.encoded.cells, self._numbers_of(description))
        inputs = pooled_inputs(description, encoded, counting)
        logits, towers = self.logits, self.towers
        if embeddings.manifest.exact:
            findings = same_inputs("", description, inputs, self.inputs)
        else:
            findings = self._rows_within(embeddings)
            # The outputs of the recipe's network for the inputs from these rows.
            for name, buffer in self._buffers.items():
                if name in inputs:
                    buffer[:] = inputs[name]
            logits = self._inference.of_inputs(encoded.rows)
            towers = self._inference.towers(encoded.rows)
            figure = f"{deviation_of(logits, self.logits):.1e} × (1 + |logit|)"
            findings.append(CheckedFigure("deviation of such rows in logits", True, figure))
        expected = dict(zip(self.model.heads, logits.T, strict=True)) | towers
        names = outputs_of(description, "logits") | outputs_of(description, "embedding")
        for signature in (PACKED, BY_SLOT):
            outputs = graph.outputs(signature, inputs)
            worst = max(deviation_of(outputs[name], expected[of]) for of, name in names.items())
            what = f"{outputs_noun(description, signature)} of signature {signature}"
            findings.append(within(what, worst))
        ids, known = counts.tolist()
        figure = f"{known:,} of {ids:,}"
        return [*findings, CheckedFigure("ids that the files know", known > 0 or not ids, figure)]

    def _numbers_of(self, description: GraphManifest) -> Floats:
        """The numeric inputs and one-hot slots that a graph, maybe of one head, takes."""
        slots, layout = description.slots, self.model.layout
        taken = [*description.numeric, *(name for name in slots if slots[name].indicator)]
        ranges = (layout.numeric_columns[name] for name in taken)
        columns = [at - layout.numeric_at + k for at, width in ranges for k in range(width)]
        return self.encoded.numeric[:, columns]

    def _rows_within(self, embeddings: Embeddings) -> list[CheckedFigure]:
        """Whether exported rows of the examples' ids are as near as their manifest says."""
        content = embeddings.manifest
        errors = {entry.group: entry.error for entry in content.groups}
        worst = bound = 0.0
        far = differing = left_out = 0
        for table, layout in enumerate(self.model.layout.tables):
            names = {number: name for name, number in layout.groups.items()}
            of_weights = np.s_[int(layout.linear) : int(layout.linear) + layout.width]
            for slot, number in zip(layout.slots, layout.group_of, strict=True):
                ids = np.unique(self.encoded.cells[slot].ids)
                groups = np.full(len(ids), number, np.uint16)
                trained, there = self._reader.rows(table, groups, ids)
                rows, known = trained, np.zeros(len(ids), bool)
                if (group := names[number]) in errors:
                    rows, known = embeddings.lookup(group, ids)
                left_out += int((there & ~known).sum())
                far += int((known & ~there).sum())
                apart = np.abs(rows - trained.astype(np.float64))[there & known]
                differing += int(np.delete(apart, of_weights, axis=1).any(axis=1).sum())
                error = errors.get(group)
                stated = 0.0 if error is None or not len(apart) else error.bound
                far += int((apart[:, of_weights] > stated).any(axis=1).sum())
                worst = max(worst, float(apart[:, of_weights].max(initial=0)))
                bound = max(bound, stated)
        figure = f"{worst:.1e} off, {bound:.1e} stated"
        filtered = content.filter.given or not left_out
        return [
            CheckedFigure("weights of exported embeddings", not far, figure),
            CheckedFigure("linear weights and counts", not differing, f"{differing} rows differ"),
            CheckedFigure("rows that the filter left out", filtered, f"{left_out:,}"),
        ]


def cells_of(model: Model, batch: Batch) -> dict[str, Cells]:
    """The cells of each slot that has rows, from the cells of a batch's tables."""
    cells = {}
    for layout, ids, offsets, weights in zip(
        model.layout.tables, batch.ids, batch.offsets, batch.weights, strict=True
    ):
        starts = offsets[:-1].reshape(batch.rows, layout.cells).astype(np.int64)
        ends = offsets[1:].reshape(batch.rows, layout.cells).astype(np.int64)
        column = 0
        for slot, spread in zip(layout.slots, layout.spreads, strict=True):
            first = starts[:, column]
            column += spread
            lengths = ends[:, column - 1] - first
            until = np.cumsum(lengths)
            indices = np.arange(until[-1]) + np.repeat(first - until + lengths, lengths)
            cells[slot] = Cells(
                ids[indices],
                np.concatenate(([0], until)).astype(np.int32),
                None if weights is None else weights[indices],
            )
    return cells


def same_inputs(
    what: str, description: GraphManifest, received: Arrays, expected: Arrays
) -> list[CheckedFigure]:
    """Whether inputs of `packed` are the same float32, in the columns that the graph reads.

    0.0 and -0.0 are the same: the sign of a sum of zeros has no meaning.
    """
    findings = []
    for name, array in received.items():
        noun = f"{name} from the files"
        if name == LINEARS:  # added in turn they are `linear`
            noun = "sums of the slots' linear"
            differing = np.cumsum(array, axis=1)[:, -1:] != received[LINEAR]
        else:
            read = np.full(array.shape[1], name == LINEAR and LINEARS in received)
            for part in description.signatures.by_slot:
                read[part.at : part.end] |= part.source == name
            differing = (array != expected[name]) & read
        wrong = int(differing.any(axis=1).sum())
        figure = f"{wrong} of {len(array)} rows differ"
        findings.append(CheckedFigure(f"{what}{noun}, bit by bit", not wrong, figure))
    return findings


def within(what: str, deviation: float) -> CheckedFigure:
    """Whether outputs are near enough to those expected."""
    return CheckedFigure(what, deviation <= TOLERANCE, f"{deviation:.1e} of {TOLERANCE}")


def of_graph(url: str, graph: LoadedGraph) -> list[CheckedFigure]:
    """Whether a graph gives the outputs of its golden rows; nothing where it has none."""
    golden = golden_of_graph(url, graph.description)
    if golden is None:
        return []
    encoded_rows(golden, graph.description)
    return [
        within(f"golden rows: {outputs_noun(graph.description, signature)} of {signature}", worst)
        for signature, worst in deviations_of(golden, graph).items()
    ]


def of_embeddings(
    graph: LoadedGraph, embeddings: Embeddings, golden: GoldenFile | None
) -> list[CheckedFigure]:
    """Whether embeddings, and the graph after them, give what golden rows say."""
    description = graph.description
    lookup = served_lookup(description, embeddings)
    if golden is None:
        return []
    inputs = pooled_inputs(description, encoded_rows(golden, description), lookup)
    findings = same_inputs("golden rows: ", description, inputs, golden.inputs(description))
    worst = largest_deviation(golden, description, graph.outputs(PACKED, inputs))
    outputs = outputs_noun(description, PACKED)
    return [*findings, within(f"golden rows: {outputs} from the files", worst)]


# ---- A running service: a client of TensorFlow Serving's REST predict API ----


class RefusedError(Failure):
    """The service answered that it does not take the request."""


class PredictEndpoint:
    """The model at `url`, http://HOST:PORT/v1/models/NAME, whose graph is described."""

    def __init__(self, url: str, description: GraphManifest, seconds: float = SECONDS) -> None:
        refuse_if(
            not re.fullmatch(r"https?://(?!/)(\[[^/\]]+\])?[^/\s\[\]]*/\S+", url),
            f"endpoint is http://HOST:PORT/v1/models/NAME. Received: endpoint={quoted(url)}",
        )
        self.url = url if url.endswith(":predict") else f"{url.rstrip('/')}:predict"
        self._outputs = description.outputs
        self._seconds = seconds

    def ways(self, inputs: Arrays) -> dict[str, Arrays | None]:
        """The outputs for inputs of signature `by_slot`, by each form of the API.

        The forms are `columns` ("inputs": a list for each input) and `rows` ("instances": an object
        for each example); None for a form that is refused while the other is accepted. Raises
        Failure in one line for every other error.
        """
        outputs: dict[str, Arrays | None] = {}
        refused = None
        for way in FORMS:
            try:
                parts = [
                    self._predicted(way, {n: array[at : at + ROWS] for n, array in inputs.items()})
                    for at in range(0, len(next(iter(inputs.values()))), ROWS)
                ]
                outputs[way] = {
                    name: np.concatenate([part[name] for part in parts]) for name in parts[0]
                }
            except RefusedError as error:
                if refused is not None:
                    raise refused from None
                outputs[way], refused = None, error
        return outputs

    def _predicted(self, way: str, inputs: Arrays) -> Arrays:
        """The outputs for some examples, by name."""
        key, answer_key = FORMS[way]
        given: Any = {name: array.tolist() for name, array in inputs.items()}
        rows = len(next(iter(given.values())))
        if way == ROW:
            columns = given.values()
            given = [dict(zip(given, row, strict=True)) for row in zip(*columns, strict=True)]
        text = self._answer({"signature_name": BY_SLOT, key: given})
        names = [output.name for output in self._outputs]
        try:
            values = json.loads(text)[answer_key]
            if way == ROW and isinstance(values[0], dict):
                values = {name: [prediction[name] for prediction in values] for name in names}
            elif len(names) == 1 and not isinstance(values, dict):
                values = {names[0]: values}  # the only output of a model has no name
            return {
                output.name: array_of(values[output.name], rows, output.shape)
                for output in self._outputs
            }
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else str(error).split("\n")[0]
            raise Failure(
                f"{self.url} gives an answer that is not of the predict API ({reason}): "
                f"{quoted(text)}. Answer as TensorFlow Serving does"
            ) from None

    def _answer(self, body: Mapping[str, Any]) -> bytes:
        """The answer to a request."""
        request = urllib.request.Request(
            self.url, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=self._seconds) as response:
                text: bytes = response.read(MOST_BYTES)
                return text
        except urllib.error.HTTPError as error:
            with error:
                message = f"{self.url} answers {error.code}: {quoted(error.read(MOST_BYTES))}"
            if 400 <= error.code < 500:
                way = "It must take the inputs of signature by_slot"
                raise RefusedError(f"{message}. {way}") from None
            raise Failure(f"{message}. Look into its log") from None
        except (http.client.HTTPException, OSError) as error:  # URLError and TimeoutError, too
            reason = getattr(error, "reason", error)
            what = f"cannot be reached ({reason}). Start the service, or correct endpoint=URL"
            if isinstance(reason, TimeoutError):
                what = f"does not answer within {self._seconds:g} s. Look into its log"
            raise Failure(f"{self.url} {what}") from None


def array_of(values: Any, rows: int, shape: tuple[int, ...]) -> Floats:
    """The values of an output as float32 [rows, *shape]; [rows, 1] are taken for [rows].

    Raises ValueError for what are no such finite numbers.
    """
    array = np.array(NUMBERS.validate_python(values), np.float32)
    if array.shape not in ((rows, *shape), (rows, *(shape or (1,)))):
        raise ValueError(f"an output is {list(array.shape)}, not {[rows, *shape]}")
    if not np.isfinite(array).all():
        raise ValueError("an output is NaN or infinite")
    return array.reshape(rows, *shape)
