"""A split graph, loaded as a server would: by its signatures alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tnctl import files, manifest
from tnctl.errors import Failure, quoted
from tnctl.model.graph import BY_SLOT, PACKED, TOWERS
from tnctl.serving.cutting import check_inputs, load_graph, tensorflow_errors
from tnctl.serving.description import NAME
from tnctl.serving.graph_document import GraphManifest, GraphOutput
from tnctl.serving.local_copy import local_copy

Arrays = dict[str, NDArray[Any]]


class ServedGraph:
    """The SavedModel in a local folder, which serving.json's content describes.

    `url` is where it is from, for messages. Raises Failure for one with an op that does more than
    compute, and for inputs that are not those of the description.
    """

    def __init__(self, folder: str, description: GraphManifest, url: str | None = None) -> None:
        self.description = description
        self._loaded = load_graph(folder, url)
        with tensorflow_errors("the graph has no signatures that TensorFlow takes"):
            for signature in (PACKED, BY_SLOT):
                check_signature(self._loaded.signatures, description, signature)
            if TOWERS in self._loaded.signatures:
                check_inputs(self._loaded.signatures[TOWERS], description.signatures.packed, TOWERS)

    def outputs(self, signature: str, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """What a signature computes from the inputs of `packed`, cut into its own."""
        given = {
            name: tf.constant(array)
            for name, array in inputs_of(self.description, signature, inputs).items()
        }
        with tensorflow_errors("the graph does not run"):
            outputs = self._loaded.signatures[signature](**given)
            arrays = {name: tensor.numpy() for name, tensor in outputs.items()}
        rows = len(next(iter(inputs.values())))
        for one in self.description.outputs:
            self._check_output(one, arrays.get(one.name), rows)
        return arrays

    @staticmethod
    def _check_output(described: GraphOutput, array: Any, rows: int) -> None:
        """Raise Failure unless an output has a number for each row, as serving.json says."""
        expected = (rows, *described.shape)
        if not isinstance(array, np.ndarray) or array.shape != expected or array.dtype.kind != "f":
            returned = "nothing" if array is None else f"{array.dtype} {list(array.shape)}"
            raise Failure(
                f"the graph returns {returned} as {described.name}, and numbers {list(expected)} "
                "are expected. Split the graph again"
            )

    def towers(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """What signature `towers` computes from them: [B, d] by tower; none where it is not."""
        if TOWERS not in self._loaded.signatures:
            return {}
        given = {name: tf.constant(array) for name, array in inputs.items()}
        with tensorflow_errors("the graph does not run"):
            outputs = self._loaded.signatures[TOWERS](**given)
            arrays = {name: tensor.numpy() for name, tensor in outputs.items()}
        for name, array in arrays.items():
            if array.dtype.kind != "f":
                raise Failure(
                    f"the graph returns {array.dtype} as tower {quoted(name)}, and numbers are "
                    "expected. Split the graph again"
                )
        return arrays


def inputs_of(
    description: GraphManifest, signature: str, inputs: Mapping[str, NDArray[Any]]
) -> Arrays:
    """The inputs of a signature, cut from those of `packed`."""
    found = {}
    for one in description.signatures.of(signature):
        part = inputs[one.source][:, one.at : one.end]
        found[one.name] = np.ascontiguousarray(part).reshape(-1, *one.shape)
    return found


def outputs_of(description: GraphManifest, kind: str) -> dict[str, str]:
    """The outputs that hold `logits` or `predictions` of a head each: head -> name.

    Or the `embedding` of a tower: tower -> name.
    """
    # The main head's stand there twice when there are several.
    return {one.head: one.name for one in description.outputs if one.kind == kind}


def check_signature(signatures: Any, description: GraphManifest, signature: str) -> None:
    """Raise Failure unless a signature takes and returns what serving.json says."""
    if signature not in signatures:
        raise Failure(f"the graph has no signature {signature}. Split the graph again")
    function = signatures[signature]
    check_inputs(function, description.signatures.of(signature), signature)
    outputs = {name: tuple(spec.shape) for name, spec in function.structured_outputs.items()}
    for one in description.outputs:
        if outputs.get(one.name, ())[1:] != one.shape or one.name not in outputs:
            raise Failure(
                f"signature {signature} of the graph has no output {one.name} as serving.json "
                "says. Split the graph again"
            )


def open_graph(url: str) -> ServedGraph:
    """The split graph in a folder or URL, every file verified. Raises Failure."""
    description = manifest.read(url, GraphManifest, NAME)
    local = files.local_path(url)
    if local is not None:
        for name in description.files:
            with manifest.present(url, description, name):
                manifest.check_stored(url, description, name, "Split the graph again")
        return ServedGraph(str(local), description)
    with files.TemporaryFolder("graph") as temporary:
        for name in description.files:
            if not name.startswith("aot/"):
                local_copy(url, description, name, Path(temporary))
        return ServedGraph(temporary, description, url)
