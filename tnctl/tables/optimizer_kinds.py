"""Optimizers of rows and dense weights, as csrc/tn_optimizer.c, the one table of them, has them."""

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
class Optimizer(_Settings):
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
