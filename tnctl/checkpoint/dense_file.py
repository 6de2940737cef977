"""The dense file: weights, optimizer state and moving statistics. docs/formats/checkpoint.md."""

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tnctl import files
from tnctl.checkpoint.document import CheckpointManifest, DenseEntry, OptimizerEntry, Variable
from tnctl.errors import Failure
from tnctl.manifest import DamagedError, Opening, read_file

if TYPE_CHECKING:
    from tnctl.model.building import Model

HEADER = struct.Struct("<8sII")  # magic, version, number of variables
MAGIC = b"tnctlden"
NAME = "dense.bin"


def write(opening: Opening, model: "Model") -> DenseEntry:
    """Write weights, each state, then moving statistics; returns the manifest's part."""
    variables = described(model.network.trainable_variables)
    with opening(NAME) as stream:
        stream.write(HEADER.pack(MAGIC, 1, len(variables)))
        for array in arrays_of(model):
            stream.write(array.astype("<f4", copy=False).data)
    return DenseEntry(
        optimizer=OptimizerEntry.of(model.dense.optimizer),
        step=model.dense.step,
        states=tuple(model.dense.state_names),
        variables=variables,
        moving=described(model.network.non_trainable_variables),
    )


def arrays_of(model: "Model") -> list[NDArray[np.float32]]:
    """The memory of all that the file has, in its order: float32 [n] for each variable or state."""
    parts = [model.dense.weights, *model.dense.states, model.moving]
    return [array for part in parts for array in part]


def described(variables: Sequence[Any]) -> tuple[Variable, ...]:
    """Name and shape of each of Keras's variables."""
    return tuple(Variable(name=v.path, shape=tuple(v.value.shape)) for v in variables)


def read(folder: str, manifest: CheckpointManifest, model: "Model") -> None:
    """Fill a model's dense weights. Raises Failure when the file or the variables differ."""
    for key, needed in (
        ("states", tuple(model.dense.state_names)),
        ("variables", described(model.network.trainable_variables)),
        ("moving", described(model.network.non_trainable_variables)),
    ):
        saved = getattr(manifest.dense, key)
        if saved != needed:
            raise Failure(
                f"{folder} has dense {key} {shown(saved)}; the recipe now makes {shown(needed)}. "
                "Use the recipe that saved it"
            )
    stored, start = floats(folder, manifest), 0
    for array in arrays_of(model):
        array[:] = stored[start : start + len(array)]
        start += len(array)
    model.dense.step = manifest.dense.step


def floats(folder: str, manifest: CheckpointManifest) -> NDArray[np.float32]:
    """All floats of the dense file, float32 [n]: weights, each state of them, moving statistics.

    Raises DamagedError when it is not the file that the manifest describes.
    """
    data = read_file(folder, manifest, NAME)
    if data[: HEADER.size] != HEADER.pack(MAGIC, 1, len(manifest.dense.variables)):
        what = f"{files.join(folder, NAME)} is not a dense file"
        raise DamagedError(folder, what, "Take another checkpoint")
    return np.frombuffer(data, "<f4", offset=HEADER.size)


def variables(folder: str, manifest: CheckpointManifest) -> list[dict[str, NDArray[np.float32]]]:
    """The arrays of the dense file by the variables' names, float32, of the variables' shapes.

    One dict for the weights, then one for each state, then one for the moving statistics.
    """
    parts = [manifest.dense.variables] * (1 + len(manifest.dense.states)) + [manifest.dense.moving]
    ends = np.cumsum([variable.size for part in parts for variable in part], dtype=np.int64)
    arrays = iter(np.split(floats(folder, manifest), ends))
    return [{entry.name: next(arrays).reshape(entry.shape) for entry in part} for part in parts]


def shown(entries: Sequence[Variable | str]) -> str:
    """Variables as an error names them."""
    names = [
        f"{entry.name} {list(entry.shape)}" if isinstance(entry, Variable) else entry
        for entry in entries
    ]
    return ", ".join(names) or "none"
