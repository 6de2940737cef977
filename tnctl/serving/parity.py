"""`tnctl verify-serving`: what was trained is what is served.

With a checkpoint, examples of the validation data are pooled twice, by its C tables and by numpy
from the exported rows; that must be the same float32. The logits of the graph must be within
2e-5 * (1 + |logit|) of those of the recipe's network with the checkpoint's weights. Rows of lower
precision must be within the error that their export states. And each artefact must give what its
conformance kit says, which is checked without a checkpoint too.
"""

from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tnctl import manifest
from tnctl.checkpoint.load import Checkpoint, load
from tnctl.data.cells import Cells
from tnctl.data.days import conf_of_day
from tnctl.data.features import Window
from tnctl.data.windows import joined, windows
from tnctl.errors import Failure
from tnctl.evaluation.evaluate import features_of
from tnctl.evaluation.inference import Inference
from tnctl.files import AbsentError
from tnctl.model.building import Model
from tnctl.model.graph import BY_SLOT, PACKED, packed_inputs
from tnctl.schema import Conf
from tnctl.serving import kit as kits
from tnctl.serving.description import NAME
from tnctl.serving.endpoint import Endpoint
from tnctl.serving.graph_document import GraphManifest
from tnctl.serving.inputs import Encoded, Lookup, pooled_inputs, served_lookup
from tnctl.serving.kit import TOLERANCE
from tnctl.serving.rows.embeddings import Embeddings, open_embeddings
from tnctl.serving.served import Arrays, ServedGraph, inputs_of, open_graph, outputs_of

EXAMPLES = 1000


@dataclass(frozen=True)
class Finding:
    """One comparison: what, whether it held, and the figure."""

    what: str
    held: bool
    figure: str


def verify(
    checkpoint: Checkpoint, conf: Conf, graph: str, embeddings: str, prefix: str = "tnctl"
) -> list[Finding]:
    """Compare serving with training on up to 1000 examples, and with the kits.

    Raises Failure for artefacts of another checkpoint, and for those that are not whole.
    """
    with closing(open_embeddings(embeddings, prefix)) as opened:
        served = open_graph(graph)
        identity = checkpoint.manifest.sha256
        for url, described in ((graph, served.description), (embeddings, opened.manifest)):
            if described.checkpoint.sha256 != identity:
                raise Failure(
                    f"{url} was made from another checkpoint ({described.checkpoint.folder}) "
                    f"than {checkpoint.folder}. Split and export that one again"
                )
        findings = Examples(checkpoint, conf).compare(served, opened)
        return findings + of_graph(graph, served) + of_embeddings(served, opened)


def verify_artefacts(graph: str, embeddings: str | None, prefix: str = "tnctl") -> list[Finding]:
    """Compare a graph, and with it embeddings, with their kits alone. Raises Failure."""
    served = open_graph(graph)
    findings = of_graph(graph, served)
    if embeddings is not None:
        with closing(open_embeddings(embeddings, prefix)) as opened:
            found = of_embeddings(served, opened)
            if not found and not opened.manifest.exact:
                raise Failure(
                    f"{embeddings} has no conformance kit (golden=0), and its rows are not the "
                    "trainer's own. Name the checkpoint as well: checkpoint=URL"
                )
            findings += found or of_embeddings(
                served, opened, kits.kit_of_graph(graph, served.description)
            )
    if not findings:
        raise Failure(
            f"{graph} has no conformance kit (golden=0). Name the checkpoint as well: "
            "checkpoint=URL"
        )
    return findings


def verify_endpoint(
    url: str,
    graph: str,
    embeddings: str | None,
    prefix: str = "tnctl",
    checkpoint: Checkpoint | None = None,
) -> list[Finding]:
    """Replay a kit against a running service, with the inputs and outputs of the graph.

    The kit is that of the embeddings, else of the graph, else of the checkpoint. Raises Failure
    when none of them has one, and for a service that does not answer as it must.
    """
    description = manifest.read(graph, GraphManifest, NAME)
    kit = None
    if embeddings is not None:
        with closing(open_embeddings(embeddings, prefix)) as opened:
            served_lookup(description, opened)
            kit = kits.kit_of_embeddings(opened)
    kit = kit or kits.kit_of_graph(graph, description)
    if kit is None and checkpoint is not None:
        kit = kits.kit_of_checkpoint(checkpoint)
    if kit is None or not kit.lines:
        raise Failure(f"{graph} has no conformance kit (golden=0) to replay. Split with golden=200")
    inputs = inputs_of(description, BY_SLOT, kit.inputs(description))
    findings = []
    for way, outputs in Endpoint(url, description).ways(inputs):
        what = f"{kits.what(description, BY_SLOT)} of the endpoint, by {way}"
        if outputs is None:
            findings.append(Finding(what, True, "not spoken there"))
        else:
            findings.append(within(what, kits.farthest(kit, description, outputs)))
    return findings


def compared_split(conf: Conf) -> str:
    """Validation data, or the nearest thing to it that the conf has."""
    for name in ("validation", "test"):
        if getattr(conf.data, name) is not None:
            return name
    return "train"


def of_last_day(checkpoint: Checkpoint, conf: Conf) -> Conf:
    """The conf with the data of the last day that was trained, where data.train is of days."""
    return conf_of_day(conf, checkpoint.days[-1].day) if checkpoint.days else conf


class Examples:
    """Examples of the validation data as the trainer sees them: inputs and logits."""

    def __init__(self, checkpoint: Checkpoint, conf: Conf) -> None:
        self.model = load(checkpoint, conf)
        # One batch: an export is read once, however small the batches of training are.
        features = features_of(conf, self.model)
        split, conf = compared_split(conf), of_last_day(checkpoint, conf)
        try:
            batch = joined(list(windows(conf, features, split, limit=EXAMPLES)))
        except AbsentError as error:
            raise Failure(
                f"{error}. Or compare with the conformance kits alone: graph=URL embeddings=URL "
                "without the run"
            ) from error
        self._inference = Inference(self.model, batch.rows)
        self.logits = self._inference(batch)
        self.towers = self._inference.towers(batch.rows)
        self._buffers = {
            one.name: getattr(self._inference.buffers, one.name)
            for one in packed_inputs(self.model.layout)
        }
        self.inputs = {name: array.copy() for name, array in self._buffers.items()}
        self.encoded = Encoded(cells_of(self.model, batch), batch.numeric)

    def compare(self, graph: ServedGraph, embeddings: Embeddings) -> list[Finding]:
        """Findings about the inputs and the outputs that serving gives for these examples."""
        description = graph.description
        lookup = Counting(served_lookup(description, embeddings))
        encoded = Encoded(self.encoded.cells, self._numbers_of(description))
        inputs = pooled_inputs(description, encoded, lookup)
        if embeddings.manifest.exact:
            findings = same_inputs("", description, inputs, self.inputs)
            logits, towers = self.logits, self.towers
        else:
            findings = self._rows_within(embeddings)
            logits, towers = self._outputs_of(inputs)
            figure = f"{kits.apart(logits, self.logits):.1e} × (1 + |logit|)"
            findings.append(Finding("deviation of such rows in logits", True, figure))
        expected = {head: logits[:, place] for place, head in enumerate(self.model.heads)} | towers
        names = outputs_of(description, "logits") | outputs_of(description, "embedding")
        for signature in (PACKED, BY_SLOT):
            outputs = graph.outputs(signature, inputs)
            worst = max(kits.apart(outputs[name], expected[of]) for of, name in names.items())
            what = f"{kits.what(description, signature)} of signature {signature}"
            findings.append(within(what, worst))
        held = lookup.known > 0 or not lookup.ids
        figure = f"{lookup.known:,} of {lookup.ids:,}"
        return [*findings, Finding("ids that the files know", held, figure)]

    def _numbers_of(self, description: GraphManifest) -> NDArray[np.float32]:
        """The numeric inputs and one-hot slots that a graph, maybe of one head, takes."""
        slots, layout = description.slots, self.model.layout
        taken = [*description.numeric, *(name for name in slots if slots[name].indicator)]
        places = (layout.numeric_columns[name] for name in taken)
        columns = [at - layout.numeric_at + k for at, width in places for k in range(width)]
        return self.encoded.numeric[:, columns]

    def _outputs_of(self, inputs: Arrays) -> tuple[NDArray[np.float32], Arrays]:
        """The logits and the towers of the recipe's network for other inputs."""
        for name, array in inputs.items():
            self._buffers[name][:] = array
        rows = self.encoded.rows
        return self._inference.of_inputs(rows), self._inference.towers(rows)

    def _rows_within(self, embeddings: Embeddings) -> list[Finding]:
        """Whether the exported rows of the examples' ids are as near as their manifest says."""
        content = embeddings.manifest
        errors = {entry.group: entry.error for entry in content.groups}
        worst = bound = 0.0
        far = others = left_out = 0
        for table, layout in zip(self.model.tables, self.model.layout.tables, strict=True):
            names = {number: name for name, number in layout.groups.items()}
            of_weights = np.s_[int(layout.linear) : int(layout.linear) + layout.width]
            for slot, number in zip(layout.slots, layout.group_of, strict=True):
                ids = np.unique(self.encoded.cells[slot].ids)
                trained = [table.lookup(number, id_) for id_ in ids.tolist()]
                there = np.array([one is not None for one in trained], bool)
                if (group := names[number]) not in errors:
                    left_out += int(there.sum())
                    continue
                rows, known = embeddings.lookup(group, ids)
                left_out += int((there & ~known).sum())
                far += int((known & ~there).sum())
                if not (both := np.flatnonzero(there & known)).size:
                    continue
                expected = np.array([trained[one] for one in both], np.float64)
                apart = np.abs(rows[both] - expected)
                weights = apart[:, of_weights]
                others += int(np.delete(apart, of_weights, axis=1).any(axis=1).sum())
                error = errors[group]
                stated = 0.0 if error is None else error.bound
                far += int((weights > stated).any(axis=1).sum())
                worst, bound = max(worst, float(weights.max(initial=0))), max(bound, stated)
        figure = f"{worst:.1e} off, {bound:.1e} stated"
        return [
            Finding("weights of exported embeddings", not far, figure),
            Finding("linear weights and counts", not others, f"{others} rows differ"),
            Finding(
                "rows that the filter left out",
                content.filter.given or not left_out,
                f"{left_out:,}",
            ),
        ]


class Counting:
    """A lookup that counts what it was asked for, and what was known."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self.ids = self.known = 0

    def __call__(
        self, group: str, ids: NDArray[np.uint64]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        rows, known = self._lookup(group, ids)
        self.ids += len(ids)
        self.known += int(known.sum())
        return rows, known


def cells_of(model: Model, batch: Window) -> dict[str, Cells]:
    """The cells of each slot that has rows, from those of a batch's tables."""
    found = {}
    for layout, ids, offsets, weights in zip(
        model.layout.tables, batch.ids, batch.offsets, batch.weights, strict=True
    ):
        starts = offsets[:-1].reshape(batch.rows, layout.cells).astype(np.int64)
        ends = offsets[1:].reshape(batch.rows, layout.cells).astype(np.int64)
        cell = 0
        for slot, spread in zip(layout.slots, layout.spreads, strict=True):
            first = starts[:, cell]
            lengths = ends[:, cell + spread - 1] - first
            until = np.cumsum(lengths)
            places = np.arange(until[-1]) + np.repeat(first - until + lengths, lengths)
            found[slot] = Cells(
                ids[places],
                np.concatenate(([0], until)).astype(np.int32),
                None if weights is None else weights[places],
            )
            cell += spread
    return found


def same_inputs(
    what: str, description: GraphManifest, found: Arrays, expected: Arrays
) -> list[Finding]:
    """Whether inputs of `packed` are the same float32, in the columns that the graph reads."""
    findings = []
    for name, array in found.items():
        read = np.zeros(array.shape[1], bool)
        for one in description.signatures.by_slot:
            if one.source == name:
                read[one.at : one.end] = True
        wrong = int((kits.differing(array, expected[name]) & read).any(axis=1).sum())
        figure = f"{wrong} of {len(array)} rows differ"
        findings.append(Finding(f"{what}{name} from the files, bit by bit", not wrong, figure))
    return findings


def within(what: str, apart: float) -> Finding:
    """Whether logits are near enough."""
    return Finding(what, apart <= TOLERANCE, f"{apart:.1e} of {TOLERANCE}")


def of_graph(url: str, served: ServedGraph) -> list[Finding]:
    """Whether a graph gives the logits of its kit; nothing where it has none."""
    kit = kits.kit_of_graph(url, served.description)
    if kit is None:
        return []
    kits.encoded_rows(kit, served.description)
    return [
        within(f"golden rows: {kits.what(served.description, signature)} of {signature}", apart)
        for signature, apart in kits.deviations_of(kit, served).items()
    ]


def of_embeddings(
    served: ServedGraph, embeddings: Embeddings, kit: kits.Kit | None = None
) -> list[Finding]:
    """Whether embeddings, and the graph after them, give what a kit, by default theirs, says."""
    lookup = served_lookup(served.description, embeddings)
    kit = kit or kits.kit_of_embeddings(embeddings)
    if kit is None:
        return []
    description = served.description
    inputs = pooled_inputs(description, kits.encoded_rows(kit, description), lookup)
    findings = same_inputs("golden rows: ", description, inputs, kit.inputs(description))
    apart = kits.farthest(kit, description, served.outputs(PACKED, inputs))
    outputs = kits.what(description, PACKED)
    return [*findings, within(f"golden rows: {outputs} from the files", apart)]
