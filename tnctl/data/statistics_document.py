"""What was measured on the training data, as checkpoints and prepared data keep it."""

from dataclasses import dataclass, field
from itertools import pairwise

from tnctl.documents import Finite, Name


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The key `statistics` of a manifest: docs/formats/checkpoint.md.

    `standardize` has (mean, deviation) of a numeric input, or of a vector one list of each;
    `boundaries` the ascending boundaries of a quantile slot; `vocabularies` the texts of a slot's
    file.
    """

    standardize: dict[Name, tuple[Finite, Finite] | tuple[list[Finite], list[Finite]]] = field(
        default_factory=dict
    )
    boundaries: dict[Name, list[Finite]] = field(default_factory=dict)
    vocabularies: dict[Name, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, (mean, deviation) in self.standardize.items():
            means = mean if isinstance(mean, list) else [mean]
            deviations = deviation if isinstance(deviation, list) else [deviation]
            if len(means) != len(deviations):
                raise ValueError(
                    f"standardize.{name} has {len(means)} means and {len(deviations)} deviations"
                )
            if any(value <= 0 for value in deviations):
                raise ValueError(f"standardize.{name} has a deviation that is not above 0")
        for name, boundaries in self.boundaries.items():
            if any(later < earlier for earlier, later in pairwise(boundaries)):
                raise ValueError(f"boundaries.{name} do not ascend")
