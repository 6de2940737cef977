"""Which CPUs each of several processes of this machine computes on."""

import itertools
from collections.abc import Iterable


def shares(cpus: Iterable[int], workers: int) -> list[tuple[int, ...]]:
    """The CPUs of each worker: contiguous parts of the sorted CPUs, none of them empty.

    When there are more workers than CPUs, neighbours have the same one.
    """
    ordered = sorted(cpus)
    bounds = [rank * len(ordered) // workers for rank in range(workers + 1)]
    return [
        tuple(ordered[start : max(end, start + 1)]) for start, end in itertools.pairwise(bounds)
    ]
