"""The dense file: weights, optimizer state and moving statistics. docs/formats/checkpoint.md."""

import math
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tnctl import files
from tnctl.errors import Failure
from tnctl.manifest import Opening, read_file

if TYPE_CHECKING:
    from tnctl.model.building import Model

HEADER = struct.Struct("<8sII")  # magic, version, number of variables
MAGIC = b"tnctlden"
NAME = "dense.bin"


def write(opening: Opening, model: "Model") -> dict[str, Any]:
    """Write weights, each state, then moving statistics; returns the manifest's part."""
    dense, network = model.dense, model.network
    described = described_variables(network.trainable_variables)
    with opening(NAME) as stream:
        stream.write(HEADER.pack(MAGIC, 1, len(described)))
        for part in [dense.weights, *dense.states, model.moving]:
            for array in part:
                stream.write(array.astype("<f4", copy=False).data)
    return {
        "file": NAME,
        "optimizer": dense.optimizer.described(),
        "step": dense.step,
        "states": dense.state_names,
        "variables": described,
        "moving": described_variables(network.non_trainable_variables),
    }


def described_variables(variables: Sequence[Any]) -> list[dict[str, Any]]:
    """Name and shape of each variable."""
    return [{"name": one.path, "shape": list(one.value.shape)} for one in variables]


def read(folder: str, manifest: dict[str, Any], model: "Model") -> None:
    """Fill a model's dense weights. Raises Failure when the file or the variables differ."""
    part, dense, network = manifest["dense"], model.dense, model.network
    now: dict[str, list[Any]] = {
        "states": dense.state_names,
        "variables": described_variables(network.trainable_variables),
        "moving": described_variables(network.non_trainable_variables),
    }
    for key, value in now.items():
        if part[key] != value:
            raise Failure(
                f"{folder} has dense {key} {shown(part[key])}; the recipe now makes "
                f"{shown(value)}. Use the recipe that saved it"
            )
    stored = floats(folder, manifest)
    at = 0
    for state in [dense.weights, *dense.states, model.moving]:
        for array in state:
            array[:] = stored[at : at + len(array)]
            at += len(array)
    dense.step = part["step"]


def floats(folder: str, manifest: dict[str, Any]) -> NDArray[np.float32]:
    """All floats of the dense file, float32 [n]. Raises Failure when it is not what it should be.

    Weights of all variables, each state of all variables, moving statistics.
    """
    part, url = manifest["dense"], files.join(folder, NAME)
    data = read_file(folder, manifest, NAME)
    if data[: HEADER.size] != HEADER.pack(MAGIC, 1, len(part["variables"])):
        raise Failure(f"{url} is not a dense file. Take another checkpoint")
    expected = (1 + len(part["states"])) * sizes(part["variables"]) + sizes(part["moving"])
    if len(data) != HEADER.size + 4 * expected:
        raise Failure(
            f"{url} has {len(data):,} bytes, {HEADER.size + 4 * expected:,} are those of the "
            "variables that the manifest names. Take another checkpoint"
        )
    return np.frombuffer(data, "<f4", offset=HEADER.size)


def sizes(described: list[dict[str, Any]]) -> int:
    """The weights of described variables."""
    return sum(math.prod(variable["shape"]) for variable in described)


def shown(described: list[Any]) -> str:
    """Variables as an error names them."""
    names = [f"{v['name']} {v['shape']}" if isinstance(v, dict) else str(v) for v in described]
    return ", ".join(names) or "none"
