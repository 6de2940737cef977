"""SavedModels of dense graphs: loaded, checked against serving.json, and run.

A split graph is loaded as a server would: by its signatures alone.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tnctl import files, manifest
from tnctl.checkpoint.chain import Checkpoint, offering
from tnctl.errors import SHOWN, Failure, UserError, printable, quoted
from tnctl.manifest import DamagedError
from tnctl.model.graph import BY_SLOT, PACKED, TOWERS, Input
from tnctl.ownership import SAVED_MODEL
from tnctl.serving.graph import allowed_ops
from tnctl.serving.graph.graph_document import NAME, GraphManifest, GraphOutput, SignatureInput
from tnctl.serving.local_copy import local_copy

Arrays = dict[str, NDArray[Any]]
FULL_DISK = (OSError, tf.errors.ResourceExhaustedError)


class LoadedGraph:
    """The SavedModel in a local folder, which serving.json's content describes.

    `url` is where it is from, for messages. Raises Failure for a graph with an op that does more
    than compute, and for signatures that differ from the description.
    """

    def __init__(self, folder: str, description: GraphManifest, url: str | None = None) -> None:
        self.description = description
        self._loaded = load_graph(folder, url)  # variables live only as long as it does
        with tensorflow_errors("the graph has no signatures that TensorFlow takes"):
            for name in (PACKED, BY_SLOT):
                inputs = description.signatures.of(name)
                check_signature(self._loaded.signatures, name, inputs, description.outputs)
            if TOWERS in self._loaded.signatures:
                check_signature(self._loaded.signatures, TOWERS, description.signatures.packed)

    def outputs(self, signature: str, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """What a signature computes from the inputs [B, columns] of `packed`, by output.

        The inputs are cut as the signature takes them. Each array is float32 [B, *shape] with the
        shape that serving.json gives.
        """
        return self._run(signature, inputs_of(self.description.signatures.of(signature), inputs))

    def towers(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """What signature `towers` computes from the inputs of `packed`, [B, d] by tower.

        Empty for a graph without this signature.
        """
        return self._run(TOWERS, inputs) if TOWERS in self._loaded.signatures else {}

    def _run(self, signature: str, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        with tensorflow_errors("the graph does not run"):
            return run(self._loaded.signatures[signature], inputs)


def run(function: Any, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
    """The outputs of a signature's function for inputs, by name.

    Shapes and dtypes are the signature's.
    """
    outputs = function(**{name: tf.constant(array) for name, array in inputs.items()})
    return {name: tensor.numpy() for name, tensor in outputs.items()}


def inputs_of(
    signature: Iterable[SignatureInput | Input], packed: Mapping[str, NDArray[Any]]
) -> Arrays:
    """The inputs of a signature, [B, *shape] by name, cut from the inputs of `packed`."""
    return {
        part.name: np.ascontiguousarray(
            packed[part.source][:, part.at : part.at + part.columns]
        ).reshape(-1, *part.shape)
        for part in signature
    }


def outputs_of(description: GraphManifest, kind: str) -> dict[str, str]:
    """The outputs that hold `logits` or `predictions` of a head each: head -> name.

    Or the `embedding` of a tower: tower -> name.
    """
    # Of several heads the main one has two outputs of a kind, the second with its name.
    return {output.head: output.name for output in description.outputs if output.kind == kind}


def check_signature(
    signatures: Any,
    name: str,
    inputs: Iterable[SignatureInput | Input],
    outputs: Iterable[GraphOutput] = (),
) -> None:
    """Raise Failure unless a signature takes these inputs, and returns at least these outputs."""
    function = signatures.get(name)
    if function is None:
        raise Failure(f"the graph has no signature {name}. Take another checkpoint, or split again")
    taken = {
        key: (spec.dtype.name, tuple(spec.shape)[1:])
        for key, spec in function.structured_input_signature[1].items()
    }
    if taken != {part.name: (part.dtype, tuple(part.shape)) for part in inputs}:
        raise Failure(
            f"signature {name} of the graph does not take the inputs that it should. Take another "
            "checkpoint, or split again"
        )
    returned = {key: tuple(spec.shape)[1:] for key, spec in function.structured_outputs.items()}
    for output in outputs:
        if returned.get(output.name) != output.shape:
            raise Failure(
                f"signature {name} of the graph has no output {output.name} as serving.json says. "
                "Split the graph again"
            )


def load_graph(folder: str, url: str | None = None) -> Any:
    """The SavedModel in a local folder; messages call it `url`.

    Raises Failure when an op of it does more than compute, or TensorFlow does not load it.
    """
    # TensorFlow's parsers and readers raise whatever they raise.
    with tensorflow_errors("the graph is no SavedModel that TensorFlow loads", (UserError,)):
        return allowed_ops.load(folder, url)


@contextmanager
def tensorflow_errors(
    what: str, passing: tuple[type[Exception], ...] = (UserError, *FULL_DISK)
) -> Iterator[None]:
    """Turn what TensorFlow raises for a graph that is not as it should be into a Failure.

    Errors of the kinds `passing`, by default our errors and a full disk, pass.
    """
    try:
        yield
    except passing:
        raise
    except Exception as error:
        reason = printable(str(error).strip().split("\n")[0])[:SHOWN] or type(error).__name__
        raise Failure(f"{what} ({reason}). Take another checkpoint, or split again") from error


def write_graph(checkpoint: Checkpoint, folder: str) -> None:
    """Write the graph that a checkpoint contains into a local folder, its files verified.

    Raises DamagedError when the checkpoint names other files than a SavedModel has, wherever they
    would be written, and Failure when the graph has an op that does more than compute.
    """
    prefix = checkpoint.manifest.graph + "/"
    with offering(checkpoint):
        for name in (name for name in checkpoint.manifest.files if name.startswith(prefix)):
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


def open_graph(url: str) -> LoadedGraph:
    """The split graph in a folder or URL, every file verified. Raises Failure."""
    description = manifest.read(url, GraphManifest, NAME)
    local = files.local_path(url)
    if local is not None:
        for name in description.files:
            with manifest.present(url, description, name):
                manifest.check_stored(url, description, name, "Split the graph again")
        return LoadedGraph(str(local), description)
    with files.TemporaryFolder("graph") as temporary:
        for name in description.files:
            if not name.startswith("aot/"):
                local_copy(url, description, name, Path(temporary))
        return LoadedGraph(temporary, description, url)
