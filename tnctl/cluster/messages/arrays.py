"""Floats in a body: float32, or bfloat16 as uint16."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.tables import from_bfloat16, to_bfloat16

Floats = NDArray[np.float32]
WireFloats = NDArray[Any]  # of a body: float32, or uint16, the bits of bfloat16


def write_floats(to: WireFloats, values: Floats) -> None:
    """Write float32 into an array of a body, rounded to bfloat16 if that is what it has."""
    if to.dtype == np.uint16:
        to_bfloat16(np.ascontiguousarray(values), to)
    else:
        to[:] = values


def floats_of(array: WireFloats) -> Floats:
    """The float32 of an array of a body: a view of it, or converted."""
    return from_bfloat16(array) if array.dtype == np.uint16 else array


def unchanged(array: WireFloats) -> WireFloats:
    """The floats of an array that is to be filled."""
    return array
