"""The dense file: weights, optimizer state and moving statistics. docs/formats/checkpoint.md."""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from tnctl import files
from tnctl.errors import Failure
from tnctl.manifest import Inventory, read_file
from tnctl.model.building import Model

HEADER = struct.Struct("<8sII")  # magic, version, number of variables
MAGIC = b"tnctlden"
NAME = "dense.bin"


def write(inventory: Inventory, model: Model) -> dict[str, Any]:
    """Write weights, each state, then moving statistics; returns the manifest's part."""
    dense, network = model.dense, model.network
    described = described_variables(network.trainable_variables)
    with inventory.writing(NAME) as stream:
        stream.write(HEADER.pack(MAGIC, 1, len(described)))
        for part in [dense.weights, *dense.states, model.moving]:
            for array in part:
                stream.write(array.astype("<f4", copy=False))
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


def read(folder: str, manifest: dict[str, Any], model: Model) -> None:
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
    data = read_file(folder, manifest, NAME)
    if data[: HEADER.size] != HEADER.pack(MAGIC, 1, len(part["variables"])):
        raise Failure(f"{files.join(folder, NAME)} is not a dense file. Take another checkpoint")
    floats = np.frombuffer(data, "<f4", offset=HEADER.size)
    at = 0
    for state in [dense.weights, *dense.states, model.moving]:
        for array in state:
            array[:] = floats[at : at + len(array)]
            at += len(array)
    dense.step = part["step"]


def shown(described: list[Any]) -> str:
    """Variables as an error names them."""
    names = [f"{v['name']} {v['shape']}" if isinstance(v, dict) else str(v) for v in described]
    return ", ".join(names) or "none"
