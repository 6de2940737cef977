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

from tnctl import files
from tnctl.checkpoint import manifest
from tnctl.checkpoint.load import Checkpoint, load
from tnctl.data.features import Window
from tnctl.data.windows import joined, windows
from tnctl.errors import Failure
from tnctl.model.building import Model
from tnctl.model.graph import BY_SLOT, PACKED
from tnctl.model.layout import LINEAR
from tnctl.schema import Conf
from tnctl.serving import split
from tnctl.serving.dictionary import Dictionary, pooled
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
    x, linear, known = from_dictionary(model, batch, dictionary)
    same = {
        "x": differing(inference.buffers.x, x),
        LINEAR: differing(inference.buffers.linear, linear),
    }
    worst = {
        signature: deviation(trained, served.logits(signature, x, linear))
        for signature in (PACKED, BY_SLOT)
    }
    examples, cells = batch.rows, sum(len(ids) for ids in batch.ids)
    findings = [
        Finding(
            f"{name} from the files, bit by bit", not count, f"{count} of {examples} rows differ"
        )
        for name, count in same.items()
    ]
    return (
        findings
        + [
            Finding(
                f"logits of signature {name}",
                figure <= 1,
                f"{figure * TOLERANCE:.1e} of {TOLERANCE}",
            )
            for name, figure in worst.items()
        ]
        + [Finding("ids that the files know", known > 0 or not cells, f"{known:,} of {cells:,}")]
    )


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
) -> tuple[NDArray[np.float32], NDArray[np.float32], int]:
    """`x` [B, W] and `linear` [B, 1] from exported files alone, and how many ids were known.

    An id that the files lack reads zeros.
    """
    layout = model.layout
    x = np.zeros((batch.rows, layout.width), np.float32)
    linear = np.zeros((batch.rows, 1), np.float32)
    x[:, layout.numeric_at :] = batch.numeric
    known = 0
    for table, ids, offsets in zip(layout.tables, batch.ids, batch.offsets, strict=True):
        names = list(table.groups)
        slots = len(table.slots)
        counts = (offsets[1:] - offsets[:-1]).astype(np.int64)
        slot_of = np.repeat(np.arange(len(counts)), counts) % slots
        group_of = np.asarray(table.group_of)[slot_of]
        rows = {
            number: dictionary.rows(name, ids[group_of == number])
            for number, name in enumerate(names)
        }
        known += sum(int(ids[k]) in rows[int(group_of[k])] for k in range(len(ids)))
        missing = (np.float32(0), np.zeros(table.width, np.float32))
        for example in range(batch.rows):
            for slot in range(slots):
                cell = example * slots + slot
                of_group = rows[table.group_of[slot]]
                found = [
                    of_group.get(int(id_), missing)
                    for id_ in ids[offsets[cell] : offsets[cell + 1]]
                ]
                pooling = model.conf.slots[table.slots[slot]].pooling
                weights = [np.array([row[0]], np.float32) for row in found]
                linear[example] += pooled(weights, 1, pooling)
                if table.width:
                    start = table.columns[slot]
                    embeddings = [row[1] for row in found]
                    x[example, start : start + table.width] = pooled(
                        embeddings, table.width, pooling
                    )
    return x, linear, known


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

    def logits(
        self, signature: str, x: NDArray[np.float32], linear: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """The logits [B] that a signature computes from x, cut into its inputs, and linear."""
        inputs: dict[str, Any] = {}
        for described in self.description["signatures"][signature]:
            name, at = described["name"], described.get("at", 0)
            if name == LINEAR:
                inputs[name] = tf.constant(linear)
            else:
                inputs[name] = tf.constant(x[:, at : at + described["columns"]])
        result: NDArray[np.float32] = self._loaded.signatures[signature](**inputs)["logits"].numpy()
        return result
