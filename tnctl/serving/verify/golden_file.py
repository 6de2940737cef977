"""golden.jsonl of a checkpoint, a split graph or exported embeddings (docs/formats/golden.md).

The trainer computes the golden rows of a checkpoint; graphs and embeddings are compared with them.
"""

import numpy as np
from numpy.typing import NDArray

from tnctl import files, manifest
from tnctl.checkpoint.chain import GOLDEN, Checkpoint, offering
from tnctl.checkpoint.golden_lines import parse_lines
from tnctl.documents import DocumentError
from tnctl.errors import Failure
from tnctl.manifest import DamagedError
from tnctl.model.layout import LINEAR, LINEARS
from tnctl.serving.graph.graph_document import GraphManifest
from tnctl.serving.graph.loaded_graph import Arrays
from tnctl.serving.rows.embeddings import Embeddings

WAY = "Take the golden rows of this graph"


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
            values = [example.inputs.get(packed.name) for example in self.examples]
            for number, numbers in enumerate(values, 1):
                if numbers is None or len(numbers) != packed.columns:
                    raise Failure(
                        f"{self.url}, line {number}: {packed.name} has {len(numbers or ())} "
                        f"numbers, and the graph takes {packed.columns}. {WAY}"
                    )
            shape = (len(values), packed.columns)
            arrays[packed.name] = np.array(values, packed.dtype).reshape(shape)
        if linears := description.signatures.linears:
            columns = sum(part.columns for part in linears)
            arrays[LINEARS] = np.zeros((len(self.examples), columns), np.float32)
            arrays[LINEARS][:, :1] = arrays[LINEAR]
        return arrays

    def outputs(self, kind: str, name: str) -> NDArray[np.float32]:
        """The `logits` or `predictions` of a head, float32 [n], or a tower's `embedding`, [n, d].

        Raises Failure when a line does not have them, or they are of several lengths.
        """
        field, noun = ("towers", "tower") if kind == "embedding" else (kind, "head")
        values = [(getattr(example, field) or {}).get(name) for example in self.examples]
        if None in values:
            raise Failure(f"{self.url} has no {noun} {name}. {WAY}")
        try:
            return np.array(values, np.float32)
        except ValueError as error:
            what = f"{self.url}: outputs of tower {name} are of several lengths"
            raise Failure(f"{what}. {WAY}") from error


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
