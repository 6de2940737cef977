"""The area under the ROC curve while training: counts per bin of the logit, in C."""

import math

import numpy as np
from numpy.typing import NDArray

from tnctl._tables import lib
from tnctl.tables.memory import pointer

BINS = 1 << 16


class StreamingAuc:
    """An AUC that takes a few microseconds per batch and is exact to about 1e-4."""

    def __init__(self) -> None:
        self._clicks = np.zeros(BINS, np.uint64)
        self._others = np.zeros(BINS, np.uint64)

    def update(self, logits: NDArray[np.float32], labels: NDArray[np.float32]) -> None:
        """Count examples: float32 [n] each; a label of at least 0.5 is a click."""
        if len(logits) != len(labels):
            raise ValueError(f"{len(logits)} logits for {len(labels)} labels")
        lib.tn_auc_update(
            pointer(logits, np.float32),
            pointer(labels, np.float32),
            len(logits),
            pointer(self._clicks, np.uint64, True),
            pointer(self._others, np.uint64, True),
            BINS,
        )

    @property
    def counts(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Clicks and others per bin, uint64 [65536] each: the whole state, to save or to fill."""
        return self._clicks, self._others

    def result(self) -> float | None:
        """The area; None before both classes were seen."""
        clicks, others = pointer(self._clicks, np.uint64), pointer(self._others, np.uint64)
        area = float(lib.tn_auc_result(clicks, others, BINS))
        return None if math.isnan(area) else area
