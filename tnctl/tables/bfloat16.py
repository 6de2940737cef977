"""Floats of half the size: sign, exponent and the first 7 bits of the mantissa of a float32."""

import numpy as np
from numpy.typing import NDArray

from tnctl._tables import lib
from tnctl.tables.memory import pointer


def to_bfloat16(values: NDArray[np.float32], out: NDArray[np.uint16]) -> None:
    """Round float32 to the nearest bfloat16, of two as near to the even one; their bits to `out`.

    Both are contiguous and have as many elements. Beyond the largest bfloat16 it is infinity; NaN
    remains NaN.
    """
    if values.size != out.size:
        raise ValueError(f"expected {values.size} elements. Received: {out.size}")
    lib.tn_to_bfloat16(pointer(values, np.float32), values.size, pointer(out, np.uint16, True))


def from_bfloat16(halves: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The float32 of the bits of bfloat16, exactly, in an array of the same shape."""
    values = np.empty(halves.shape, np.float32)
    lib.tn_from_bfloat16(pointer(halves, np.uint16), halves.size, pointer(values, np.float32, True))
    return values
