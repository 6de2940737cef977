"""What was measured on the training data, as checkpoints and prepared data keep it."""

from dataclasses import dataclass, field

import numpy as np

from tnctl.data.slot_encoder import Lists
from tnctl.documents import Finite, Name
from tnctl.schema import Slot

Scale = tuple[Finite, Finite] | tuple[list[Finite], list[Finite]]


@dataclass
class Statistics:
    """The key `statistics` of a manifest: docs/formats/checkpoint.md."""

    standardize: dict[Name, Scale] = field(default_factory=dict)
    """the mean and deviation of a numeric input, or of a vector one list of each"""
    boundaries: dict[Name, list[Finite]] = field(default_factory=dict)
    """ascending, of a slot with ids=quantiles or row_quantiles"""
    vocabularies: dict[Name, list[str]] = field(default_factory=dict)
    """the lines of a slot's vocabulary_file"""

    def lists_of(self, name: str, slot: Slot) -> Lists:
        """The list that a slot's encoder needs: boundaries, a vocabulary or none, as its ids say.

        Those in the conf take precedence over what was measured or read from a file.
        """
        boundaries = self.boundaries.get(name) if slot.boundaries is None else slot.boundaries
        vocabulary = self.vocabularies.get(name) if slot.vocabulary is None else slot.vocabulary
        if slot.kind.served == "vocabulary":
            return Lists(vocabulary=vocabulary)
        if slot.kind.served == "boundaries" and boundaries is not None:
            return Lists(np.array(boundaries, np.float64))
        return Lists()
