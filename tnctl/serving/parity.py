"""`tnctl verify-serving`: what was trained is what is served.

The inputs are pooled twice, by the C tables of the checkpoint and by numpy from the exported
files; they must be the same bits. The logits come from the recipe's network with the checkpoint's
weights and from the split graph's signatures; they must agree within 2e-5 * (1 + |logit|).
"""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tnctl import files, manifest
from tnctl.checkpoint.load import Checkpoint, load
from tnctl.data.features import Window
from tnctl.data.windows import joined, windows
from tnctl.errors import Failure
from tnctl.model.building import Model
from tnctl.model.graph import BY_SLOT, LENGTHS, PACKED, SEQUENCES, head_outputs, packed_inputs
from tnctl.model.layout import LINEAR, TableLayout
from tnctl.schema import Conf
from tnctl.serving import split
from tnctl.serving.dictionary import Dictionary, Row, pooled
from tnctl.training.evaluation import features_of
from tnctl.training.step import Inference

EXAMPLES = 1000
TOLERANCE = 2e-5


@dataclass(frozen=True)
class Finding:
    """One comparison: what, whether it held, and the figure."""

    what: str
    held: bool
    figure: str


def verify(checkpoint: Checkpoint, conf: Conf, graph: str, embeddings: str) -> list[Finding]:
    """Compare serving with training on up to 1000 examples of the validation data."""
    model = load(checkpoint, conf)
    dictionary = Dictionary(embeddings)
    served = ServedGraph(graph)
    identity = manifest.identity(checkpoint.manifest)
    for url, described in ((graph, served.description), (embeddings, dictionary.manifest)):
        if described["checkpoint"]["sha256"] != identity:
            raise Failure(
                f"{url} was made from another checkpoint ({described['checkpoint']['folder']}) "
                f"than {checkpoint.folder}. Split and export that one again"
            )
    # One batch: the export is read once, however small the batches of training are.
    features, split_name = features_of(conf, model), compared_split(conf)
    batch = joined(list(windows(conf, features, split_name, limit=EXAMPLES)))
    inference = Inference(model, batch.rows)
    trained = inference(batch)
    inputs, known = from_dictionary(model, batch, dictionary)
    findings = []
    for name, array in inputs.items():
        count = differing(getattr(inference.buffers, name), array)
        figure = f"{count} of {batch.rows} rows differ"
        findings.append(Finding(f"{name} from the files, bit by bit", not count, figure))
    for signature in (PACKED, BY_SLOT):
        outputs = served.outputs(signature, inputs)
        worst = max(
            deviation(trained[:, model.heads.index(head)], outputs[name])
            for name, head in head_outputs(model.heads).items()
        )
        figure = f"{worst * TOLERANCE:.1e} of {TOLERANCE}"
        findings.append(Finding(f"logits of signature {signature}", worst <= 1, figure))
    cells = sum(len(ids) for ids in batch.ids)
    findings.append(
        Finding("ids that the files know", known > 0 or not cells, f"{known:,} of {cells:,}")
    )
    return findings


def compared_split(conf: Conf) -> str:
    """Validation data, or the nearest thing to it that the conf has."""
    for name in ("validation", "test"):
        if getattr(conf.data, name) is not None:
            return name
    return "train"


def differing(one: NDArray[np.float32], other: NDArray[np.float32]) -> int:
    """How many rows are not the same bits."""
    return int((one.view(np.uint32) != other.view(np.uint32)).any(axis=1).sum())


def deviation(trained: NDArray[np.float32], served: NDArray[np.float32]) -> float:
    """The largest deviation of logits, as a multiple of what is allowed."""
    allowed = TOLERANCE * (1 + np.abs(trained.astype(np.float64)))
    worst = np.max(np.abs(served.astype(np.float64) - trained) / allowed)
    return float(worst) if np.isfinite(worst) else float("inf")


def from_dictionary(
    model: Model, batch: Window, dictionary: Dictionary
) -> tuple[dict[str, NDArray[Any]], int]:
    """The inputs of signature `packed` from exported files alone, and how many ids were known.

    An id that the files lack reads zeros.
    """
    layout = model.layout
    x = np.zeros((batch.rows, layout.width), np.float32)
    linear = np.zeros((batch.rows, 1), np.float32)
    sequences = np.zeros((batch.rows, layout.sequences_width), np.float32)
    lengths = np.zeros((batch.rows, len(layout.sequences)), np.int32)
    x[:, layout.numeric_at :] = batch.numeric
    known = 0
    for number, table in enumerate(layout.tables):
        ids, offsets, weights = batch.ids[number], batch.offsets[number], batch.weights[number]
        rows, of_table = rows_of(table, ids, offsets, dictionary)
        known += of_table
        for example in range(batch.rows):
            cell = example * table.cells
            for slot, group, column, spread in zip(
                table.slots, table.group_of, table.columns, table.spreads, strict=True
            ):
                first, last = int(offsets[cell]), int(offsets[cell + spread])
                cell += spread
                found = [rows[group].get(int(id_), nothing(table)) for id_ in ids[first:last]]
                of_ids = None if weights is None else weights[first:last]
                if slot in layout.sequences:
                    lengths[example, layout.sequences[slot].number] = len(found)
                    for place, row in enumerate(found):
                        at = column + place * table.kind.columns
                        sequences[example, at : at + table.kind.columns] = row[1]
                        if table.linear:
                            linear[example] += row[0]
                    continue
                pooling = model.conf.slots[slot].pooling
                if table.linear:
                    linear[example] += pooled([row[0] for row in found], 1, pooling, of_ids)
                if table.width:
                    x[example, column : column + table.kind.columns] = pooled(
                        [row[1] for row in found], table.kind.columns, pooling, of_ids
                    )
    inputs = {"x": x, LINEAR: linear, SEQUENCES: sequences, LENGTHS: lengths}
    return {one.name: inputs[one.name] for one in packed_inputs(layout)}, known


def nothing(table: TableLayout) -> Row:
    """What an unknown id reads."""
    return np.zeros(int(table.linear), np.float32), np.zeros(table.kind.columns, np.float32)


def rows_of(
    table: TableLayout, ids: NDArray[Any], offsets: NDArray[Any], dictionary: Dictionary
) -> tuple[list[dict[int, Row]], int]:
    """For each group of a table the rows of a batch's ids, and how many ids have one."""
    counts = (offsets[1:] - offsets[:-1]).astype(np.int64)
    group_of_cell = np.repeat(table.group_of, table.spreads)
    group_of = np.repeat(group_of_cell[np.arange(len(counts)) % table.cells], counts)
    rows = [
        dictionary.rows(name, ids[group_of == number]) for number, name in enumerate(table.groups)
    ]
    return rows, sum(int(id_) in rows[g] for id_, g in zip(ids, group_of, strict=True))


class ServedGraph:
    """A split graph, loaded as a server would."""

    def __init__(self, url: str) -> None:
        self.description = manifest.read(url, split.FORMAT, split.NAME)
        for name in self.description["files"]:
            manifest.read_file(url, self.description, name)
        with TemporaryDirectory(prefix="tnctl-graph-") as temporary:
            local = files.local_path(url)
            if local is None:
                files.download_folder(url, temporary)
                local = Path(temporary)
            self._loaded = tf.saved_model.load(str(local))

    def outputs(
        self, signature: str, inputs: dict[str, NDArray[Any]]
    ) -> dict[str, NDArray[np.float32]]:
        """What a signature computes from the inputs of `packed`, cut into its own."""
        given: dict[str, Any] = {}
        for described in self.description["signatures"][signature]:
            source = inputs[described.get("source", described["name"])]
            at = described.get("at", 0)
            part = source[:, at : at + described["columns"]]
            given[described["name"]] = tf.constant(part.reshape(-1, *described["shape"]))
        outputs = self._loaded.signatures[signature](**given)
        return {name: tensor.numpy() for name, tensor in outputs.items()}
