"""A split graph, loaded as a server would: by its signatures alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tnctl import files, manifest
from tnctl.model.graph import TOWERS
from tnctl.serving import allowed_ops
from tnctl.serving.description import FORMAT, NAME

Arrays = dict[str, NDArray[Any]]


class ServedGraph:
    """The SavedModel in a local folder, which serving.json's content describes.

    `url` is where it is from, for messages. Raises Failure for one with an op that does more than
    compute.
    """

    def __init__(self, folder: str, description: Mapping[str, Any], url: str | None = None) -> None:
        self.description = description
        self._loaded = allowed_ops.load(folder, url)

    def outputs(self, signature: str, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """What a signature computes from the inputs of `packed`, cut into its own."""
        given = {
            name: tf.constant(array)
            for name, array in inputs_of(self.description, signature, inputs).items()
        }
        outputs = self._loaded.signatures[signature](**given)
        return {name: tensor.numpy() for name, tensor in outputs.items()}

    def towers(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """What signature `towers` computes from them: [B, d] by tower; none where it is not."""
        if TOWERS not in self._loaded.signatures:
            return {}
        given = {name: tf.constant(array) for name, array in inputs.items()}
        outputs = self._loaded.signatures[TOWERS](**given)
        return {name: tensor.numpy() for name, tensor in outputs.items()}


def inputs_of(
    description: Mapping[str, Any], signature: str, inputs: Mapping[str, NDArray[Any]]
) -> Arrays:
    """The inputs of a signature, cut from those of `packed`."""
    found = {}
    for one in description["signatures"][signature]:
        part = inputs[one["source"]][:, one["at"] : one["at"] + one["columns"]]
        found[one["name"]] = np.ascontiguousarray(part).reshape(-1, *one["shape"])
    return found


def outputs_of(description: Mapping[str, Any], kind: str) -> dict[str, str]:
    """The outputs that hold `logits` or `predictions` of a head each: head -> name.

    Or the `embedding` of a tower: tower -> name.
    """
    heads = [one for one in description["outputs"] if one["kind"] == kind]
    # The main head's stand there twice when there are several.
    return {one["head"]: one["name"] for one in heads}


def open_graph(url: str) -> ServedGraph:
    """The split graph in a folder or URL, every file verified. Raises Failure."""
    description = manifest.read(url, FORMAT, NAME)
    for name in description["files"]:
        with manifest.present(url, description, name):
            manifest.check_stored(url, description, name, "Split the graph again")
    local = files.local_path(url)
    if local is not None:
        return ServedGraph(str(local), description)
    with files.TemporaryFolder("graph") as temporary:
        files.download_folder(url, temporary)
        return ServedGraph(str(Path(temporary)), description, url)
