"""What tables are made of: optimizers, segments, initial weights, slots, rules of life, shards.

csrc/tn_optimizer.c has the one table of optimizers. Shards are 64 equal ranges of the hash, which
processes can divide.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, make_dataclass
from typing import Any

import numpy as np

from tnctl._tables import ffi, lib
from tnctl.optimizer_table import EXTRAS, KINDS, TYPES

NAMES = tuple(KINDS)
UPDATES = ("touched", "all")
_DTYPES = {lib.TN_PER_WEIGHT: "<f4", lib.TN_PER_ROW: "<f4", lib.TN_STEPS: "<u4"}


def settings(name: str) -> Mapping[str, float | bool]:
    """The settings of an optimizer beside the learning rate and the extras, with their defaults.

    Raises KeyError for a name that is not in NAMES.
    """
    return KINDS[name].settings


_Settings: Any = make_dataclass(
    "_Settings", [("name", str), ("learning_rate", float), *TYPES.items()], init=False, frozen=True
)


@dataclass(frozen=True, init=False)
class RowOptimizer(_Settings):
    """An update rule, of rows (one state per row or per weight) or of dense weights.

    `sgd` (with `momentum`, `nesterov`); `adagrad`, one accumulator per row, per weight when dense
    (Duchi et al. 2011); `adagrad_coordinate`, one per weight; `adam` (Kingma & Ba 2015, algorithm
    1, steps counted per row); `ftrl` (FTRL-proximal, McMahan et al. 2013, algorithm 1);
    `tensornet_adagrad`, `tensornet_adam` and `tensornet_ftrl` with TensorNet's formulas (its
    mom_decay_rate is `beta1`, its grad_decay_rate `beta2`; its FTRL is not for dense weights).

    Its fields are the settings of all optimizers in that table (tnctl.optimizer_table.TYPES). A
    setting that is not given has the default of `settings(name)`; one that the optimizer does not
    have is 0, and ignored.

    The extras, off at 0: `l2` adds l2*w to the gradient of what is updated (FTRL has its own),
    `clip` bounds each summed gradient, `bound` each weight, `max_norm` the L2 norm of a row's
    segment (not dense). `decay` takes learning_rate*decay of every weight at every step: of rows
    by the learning rate that the table was made with, of dense weights (AdamW) by the current one.
    `lazy_l2` is L2 of all rows at every step (adagrad, not dense, not beside `decay`).
    csrc/tnctl.h has the formulas, and the order of all this.
    """

    name: str
    learning_rate: float

    def __init__(self, name: str, learning_rate: float, **given: float | bool) -> None:
        if unknown := sorted(given.keys() - TYPES):
            raise TypeError(f"an optimizer has no setting {unknown[0]}")
        absent = {setting: type_() for setting, type_ in TYPES.items()}
        values = {"name": name, "learning_rate": learning_rate, **absent, **settings(name)}
        for key, value in (values | given).items():
            object.__setattr__(self, key, value)

    def fill(self, target: Any) -> None:
        """Write this optimizer into a tn_optimizer."""
        target.kind = KINDS[self.name].number
        for field in fields(self)[1:]:
            setattr(target, field.name, getattr(self, field.name))

    def described(self) -> dict[str, Any]:
        """The name and the settings that this rule has; extras only where they are on."""
        keys = ["learning_rate", *settings(self.name)]
        keys += [key for key in EXTRAS if getattr(self, key) and key not in keys]
        return {"name": self.name, **{key: getattr(self, key) for key in keys}}

    def state_names(self, width: int) -> list[tuple[str, str, int]]:
        """The states of a row's segment of a width: (name, numpy dtype, count), in order."""
        return [
            (name, _DTYPES[extent], width if extent == lib.TN_PER_WEIGHT else 1)
            for name, extent in self._states(dense=False)
        ]

    def dense_state_names(self) -> list[str]:
        """The states of dense weights, each one float per weight, in order."""
        return [name for name, _ in self._states(dense=True)]

    def _states(self, dense: bool) -> list[tuple[str, int]]:
        rule, states = ffi.new("tn_optimizer *"), ffi.new("tn_state[]", lib.TN_MAX_STATES)
        self.fill(rule)
        n = lib.tn_optimizer_states(rule, dense, states)
        return [(ffi.string(state.name).decode(), state.extent) for state in states[0:n]]

    @property
    def decays(self) -> bool:
        """Whether rows read otherwise the longer they are not updated."""
        return bool(self.decay or self.lazy_l2)

    @property
    def decay_factor(self) -> float:
        """The factor by which `decay` reduces a row's weight in a step: f of `decay_factors`."""
        return 1 - float(np.float32(self.learning_rate)) * float(np.float32(self.decay))


@dataclass(frozen=True)
class Segment:
    """A part of every row, `width` floats: `output` concat or sum.

    A `concat` segment is pooled into columns of each slot, a `sum` segment over all slots.
    """

    name: str
    width: int
    output: str
    optimizer: RowOptimizer


@dataclass(frozen=True)
class InitialWeights:
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
class RowRules:
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


SHARDS = 64
HASHES_PER_SHARD = 2**64 // SHARDS


@dataclass(frozen=True)
class Shards:
    """Consecutive shards of a table: `count` of them, the first one has the number `first`."""

    first: int
    count: int

    @property
    def end(self) -> int:
        """The number after the last shard."""
        return self.first + self.count

    @property
    def hashes(self) -> tuple[int, int]:
        """The first and the last hash, both inclusive."""
        return self.first * HASHES_PER_SHARD, self.end * HASHES_PER_SHARD - 1


ALL_SHARDS = Shards(0, SHARDS)


def shards_of(rank: int, owners: int) -> Shards:
    """The shards of one of N owners. Raises ValueError unless 0 <= rank < N <= 64."""
    if not 0 <= rank < owners <= SHARDS:
        raise ValueError(f"expected a rank below 1 to {SHARDS} owners. Received: {rank}, {owners}")
    first, end = (SHARDS * number // owners for number in (rank, rank + 1))
    return Shards(first, end - first)
