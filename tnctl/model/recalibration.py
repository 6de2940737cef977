"""A recalibrated head: a slope and an intercept that are applied to its logit."""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field

LARGEST = 3.4028234663852886e38  # of float32


@dataclass(frozen=True, kw_only=True)
class Recalibration:
    """slope * z + intercept takes the place of the logit z of a head; both are float32.

    As the slope is above 0, the order of the logits stays.
    """

    slope: Annotated[float, Field(gt=0, le=LARGEST)]
    intercept: Annotated[float, Field(ge=-LARGEST, le=LARGEST)]

    def after(self, first: "Recalibration", share: float = 1.0) -> "Recalibration":
        """The one that does `first`, and then a share of this one, from none of it to all."""
        slope = 1 + share * (self.slope - 1)
        return Recalibration(
            slope=float(np.float32(slope * first.slope)),
            intercept=float(np.float32(slope * first.intercept + share * self.intercept)),
        )

    def of(self, logits: Any) -> Any:
        """The recalibrated logits, computed in float32: an array or tensor of the same shape."""
        return logits * np.float32(self.slope) + np.float32(self.intercept)
