"""Floats as C++ streams write them by default (%g), with as many digits as they need.

Six digits where these are read back as the same float32, as they are for all that TensorNet wrote;
else the fewest that are.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

DIGITS = 6  # of a stream
LEAST_NORMAL = float(np.finfo(np.float32).tiny)
# What Arrow writes of small numbers, and how %g does: an exponent has two digits, and numbers
# below 1e-4 have one.
REWRITES = (
    (r"e([+-])(\d)$", r"e\10\2"),
    (r"^(-?)0\.0000([1-9])$", r"\1\2e-05"),
    (r"^(-?)0\.0000([1-9])(\d+)$", r"\1\2.\3e-05"),
    (r"^(-?)0\.00000([1-9])$", r"\1\2e-06"),
    (r"^(-?)0\.00000([1-9])(\d+)$", r"\1\2.\3e-06"),
)


def float_texts(values: NDArray[np.float32]) -> Any:
    """Finite float32 [n] as texts: an Arrow array [n]."""
    values = np.ascontiguousarray(values)
    texts = pc.cast(pa.array(values), pa.string())
    sizes = np.abs(values)
    small = (sizes < 1e-4) & (sizes >= LEAST_NORMAL)
    if small.any():
        rewritten = texts.filter(pa.array(small))
        for pattern, replacement in REWRITES:
            rewritten = pc.replace_substring_regex(rewritten, pattern, replacement)
        texts = pc.replace_with_mask(texts, pa.array(small), rewritten)
    rare = ((sizes < LEAST_NORMAL) & (sizes > 0)) | (sizes >= 10**DIGITS)
    if rare.any():
        replaced = pa.array([float_text(value) for value in values[rare]], pa.string())
        texts = pc.replace_with_mask(texts, pa.array(rare), replaced)
    return texts


def float_text(value: np.float32) -> str:
    """A finite float32 as text."""
    texts = (f"{float(value):.{digits}g}" for digits in range(DIGITS, 9))
    return next((text for text in texts if np.float32(text) == value), f"{float(value):.9g}")


def rounded(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Numbers from 0 on, [n], rounded to six digits."""
    positive = np.where(values > 0, values, 1.0)
    scale = 10.0 ** (DIGITS - 1 - np.floor(np.log10(positive)))
    return np.where(values > 0, np.round(positive * scale) / scale, 0.0).astype(np.float32)
