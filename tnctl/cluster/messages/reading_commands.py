"""Commands of rank 0 (commands.py) to workers that only read the model of a checkpoint."""

from dataclasses import dataclass
from typing import Literal

from tnctl.documents import Count, Text


@dataclass(frozen=True, kw_only=True)
class Predict:
    """Predict the units of a split that were sent before; the reply is a `UnitsPredicted`."""

    command: Literal["predict"] = "predict"
    split: Text


@dataclass(frozen=True, kw_only=True)
class SendPredictions:
    """The reply is a block of the units predicted last (prediction_blocks.py), by its number."""

    command: Literal["send_predictions"] = "send_predictions"
    block: Count


@dataclass(frozen=True, kw_only=True)
class UnitsPredicted:
    """The blocks of each unit that a worker predicted.

    `skipped` rows could not be read, the first of them for `reason`.
    """

    blocks: tuple[Count, ...]
    skipped: Count
    reason: Text = ""
