"""Commands of rank 0 (commands.py) that there are only with dedicated servers."""

from dataclasses import dataclass
from typing import Literal

from tnctl.documents import Count


@dataclass(frozen=True, kw_only=True)
class MakeDense:
    """To a server: dense variable i has `sizes[i]` floats; the optimizer has done `step` steps."""

    command: Literal["make_dense"] = "make_dense"
    sizes: tuple[Count, ...]
    step: Count


@dataclass(frozen=True, kw_only=True)
class SetDense:
    """To a server: dense weights (`place` 0), or a state of them, of its slice, from `first` on.

    `floats` are base64 of little-endian float32; all weights are one array, as in `DenseTable`.
    """

    command: Literal["set_dense"] = "set_dense"
    place: Count
    first: Count
    floats: str


@dataclass(frozen=True, kw_only=True)
class Drain:
    """To a worker that owns nothing: pull no more batches of its n-th `Train` (arrivals.py)."""

    command: Literal["drain"] = "drain"
    training: Count
