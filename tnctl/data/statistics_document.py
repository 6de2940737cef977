"""What was measured on the training data, as checkpoints and prepared data keep it."""

from dataclasses import dataclass, field

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
