"""What a sparse table and its workspaces are made of: segments, initial weights, slots, rules."""

from dataclasses import dataclass, fields
from typing import Any

from tnctl.tables.optimizer_kinds import Optimizer


@dataclass(frozen=True)
class Segment:
    """A part of every row, `width` floats: `output` concat or sum.

    A `concat` segment is pooled into columns of each slot, a `sum` segment over all slots.
    """

    name: str
    width: int
    output: str
    optimizer: Optimizer


@dataclass(frozen=True)
class Initial:
    """How the weights of a new row start: `zeros`, `uniform` in ±scale, or `normal`."""

    kind: str
    scale: float


@dataclass(frozen=True)
class SlotPlan:
    """A slot of a batch: its group's number, its pooling, its first column in a concat output.

    A slot set `apart` has its columns in the matrix apart; a sequence is such slots, one a place.
    """

    group: int
    pooling: str
    column: int
    apart: bool = False


@dataclass(frozen=True)
class Life:
    """The rules by which rows of a group come and go; all off by default. See csrc/tnctl.h.

    A row is made at the occurrence number `admit_after` of its id, or at each occurrence with the
    probability `admit_probability`. `evict` removes rows not updated for more than `unseen_steps`
    or `unseen_days`, rows whose decayed show is below `show` (with `both`: only if they are unseen
    for too long as well), and rows whose (show - clicks) * nonclick + clicks * click is below
    `score`. `bound` removes the least valuable rows beyond `most_rows`. 0 turns a rule off.
    """

    admit_after: int = 1
    admit_probability: float = 1.0
    show_decay: float = 1.0
    unseen_steps: int = 0
    unseen_days: int = 0
    show: float = 0.0
    both: bool = False
    score: float = 0.0
    nonclick: float = 0.1
    click: float = 1.0
    most_rows: int = 0

    def fill(self, target: Any) -> None:
        """Write these rules into a tn_life."""
        for field in fields(self):
            setattr(target, field.name, getattr(self, field.name))


@dataclass(frozen=True)
class Figures:
    """A group's rows; rows ever made and removed; an estimate of the ids that wait for a row."""

    rows: int = 0
    admitted: int = 0
    waiting: int = 0
    evicted: int = 0
