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

    def of(self, logits: Any) -> Any:
        """The recalibrated logits, computed in float32: an array or tensor of the same shape."""
        return logits * np.float32(self.slope) + np.float32(self.intercept)
