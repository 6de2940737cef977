"""The dense file: weights, optimizer state and moving statistics. docs/formats/checkpoint.md."""

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tnctl import files
from tnctl.checkpoint.document import CheckpointManifest, Dense, Variable
from tnctl.checkpoint.table_document import Optimizer
from tnctl.errors import Failure
from tnctl.manifest import DamagedError, Opening, read_file

if TYPE_CHECKING:
    from tnctl.model.building import Model

HEADER = struct.Struct("<8sII")  # magic, version, number of variables
MAGIC = b"tnctlden"
NAME = "dense.bin"


def write(opening: Opening, model: "Model") -> Dense:
    """Write weights, each state, then moving statistics; returns the manifest's part."""
    dense, network = model.dense, model.network
    described = described_variables(network.trainable_variables)
    with opening(NAME) as stream:
        stream.write(HEADER.pack(MAGIC, 1, len(described)))
        for part in [dense.weights, *dense.states, model.moving]:
            for array in part:
                stream.write(array.astype("<f4", copy=False).data)
    return Dense(
        optimizer=Optimizer.of(dense.optimizer),
        step=dense.step,
        states=tuple(dense.state_names),
        variables=described,
        moving=described_variables(network.non_trainable_variables),
    )


def described_variables(variables: Sequence[Any]) -> tuple[Variable, ...]:
    """Name and shape of each variable."""
    return tuple(Variable(name=one.path, shape=tuple(one.value.shape)) for one in variables)


def read(folder: str, manifest: CheckpointManifest, model: "Model") -> None:
    """Fill a model's dense weights. Raises Failure when the file or the variables differ."""
    saved, dense, network = manifest.dense, model.dense, model.network
    for key, was, now in (
        ("states", saved.states, tuple(dense.state_names)),
        ("variables", saved.variables, described_variables(network.trainable_variables)),
        ("moving", saved.moving, described_variables(network.non_trainable_variables)),
    ):
        if was != now:
            raise Failure(
                f"{folder} has dense {key} {shown(was)}; the recipe now makes {shown(now)}. Use "
                "the recipe that saved it"
            )
    stored = floats(folder, manifest)
    at = 0
    for state in [dense.weights, *dense.states, model.moving]:
        for array in state:
            array[:] = stored[at : at + len(array)]
            at += len(array)
    dense.step = saved.step


def floats(folder: str, manifest: CheckpointManifest) -> NDArray[np.float32]:
    """All floats of the dense file, float32 [n]. Raises Failure when it is not what it should be.

    Weights of all variables, each state of all variables, moving statistics.
    """
    described, url = manifest.dense, files.join(folder, NAME)
    data = read_file(folder, manifest, NAME)
    if data[: HEADER.size] != HEADER.pack(MAGIC, 1, len(described.variables)):
        raise DamagedError(folder, f"{url} is not a dense file", "Take another checkpoint")
    return np.frombuffer(data, "<f4", offset=HEADER.size)


def shown(described: Sequence[Variable | str]) -> str:
    """Variables as an error names them."""
    names = [
        f"{entry.name} {list(entry.shape)}" if isinstance(entry, Variable) else entry
        for entry in described
    ]
    return ", ".join(names) or "none"
