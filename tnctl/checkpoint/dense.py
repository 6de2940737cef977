"""The dense file: weights and optimizer state of every variable. docs/formats/checkpoint.md."""

import struct
from typing import Any

import numpy as np

from tnctl import files
from tnctl.checkpoint.manifest import Inventory, read_file
from tnctl.errors import Failure
from tnctl.tables import DenseTable

HEADER = struct.Struct("<8sII")  # magic, version, number of variables
MAGIC = b"tnctlden"
NAME = "dense.bin"


def write(
    inventory: Inventory, dense: DenseTable, names: list[str], shapes: list[list[int]]
) -> dict[str, Any]:
    """Write weights, then each state, variable after variable; returns the manifest's part."""
    with inventory.writing(NAME) as stream:
        stream.write(HEADER.pack(MAGIC, 1, len(names)))
        for part in [dense.weights, *dense.states]:
            for array in part:
                stream.write(array.astype("<f4", copy=False))
    variables = [{"name": n, "shape": s} for n, s in zip(names, shapes, strict=True)]
    return {
        "file": NAME,
        "optimizer": dense.optimizer.described(),
        "step": dense.step,
        "states": dense.state_names,
        "variables": variables,
    }


def read(
    folder: str,
    manifest: dict[str, Any],
    dense: DenseTable,
    names: list[str],
    shapes: list[list[int]],
) -> None:
    """Fill a dense table. Raises Failure when the file or the variables are not the same."""
    part = manifest["dense"]
    saved = [f"{variable['name']} {variable['shape']}" for variable in part["variables"]]
    now = [f"{name} {shape}" for name, shape in zip(names, shapes, strict=True)]
    if saved != now or part["states"] != dense.state_names:
        raise Failure(
            f"{folder} has dense weights {saved} with state {part['states']}; the recipe "
            f"now makes {now} with {dense.state_names}. Use the recipe that saved it"
        )
    data = read_file(folder, manifest, NAME)
    if data[: HEADER.size] != HEADER.pack(MAGIC, 1, len(shapes)):
        raise Failure(f"{files.join(folder, NAME)} is not a dense file. Take another checkpoint")
    floats = np.frombuffer(data, "<f4", offset=HEADER.size)
    at = 0
    for state in [dense.weights, *dense.states]:
        for array in state:
            array[:] = floats[at : at + len(array)]
            at += len(array)
    dense.step = part["step"]
