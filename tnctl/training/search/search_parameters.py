"""What a search varies: the keys of a conf, and the values that each can take."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tnctl.errors import refuse_if

# What Optuna records of a value: the text of a choice, or a number.
Value = str | int | float


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A key of the conf, or a group, and its values.

    Those of a choice are `choices`, texts of Hydra's grammar; those of int and float are the
    numbers from `low` to `high`, both included, in distances of `step` where there is one.
    """

    key: str
    kind: Literal["choice", "int", "float"]
    choices: tuple[str, ...] = ()
    low: float = 0
    high: float = 0
    step: float | None = None
    log: bool = False

    def refuse_odd(self, argument: str) -> None:
        """Raise UserError for bounds that a search cannot draw from."""
        if self.kind == "choice":
            return
        refuse_if(
            not (math.isfinite(self.low) and math.isfinite(self.high)) or self.low > self.high,
            f"{argument} has no values: its bounds must be finite, the lower one first",
        )
        refuse_if(
            self.log and self.low <= 0,
            f"{argument} has a logarithmic scale, which begins above 0",
        )
        refuse_if(
            self.log and self.step not in (None, 1),
            f"{argument} has a logarithmic scale, on which there are no steps. Give interval(…)",
        )

    def suggested(self, trial: Any) -> Value:
        """The value in a trial of Optuna: the recorded one, else one that is drawn."""
        value: Value
        if self.kind == "choice":
            value = trial.suggest_categorical(self.key, self.choices)
        elif self.kind == "int":
            step = self.step or 1
            value = trial.suggest_int(self.key, self.low, self.high, step=step, log=self.log)
        else:
            value = trial.suggest_float(self.key, self.low, self.high, step=self.step, log=self.log)
        return value

    def text_of(self, value: Value) -> str:
        """A value in Hydra's grammar."""
        return value if isinstance(value, str) else repr(value)

    def tested(self) -> list[str]:
        """Texts that, when the conf takes all of them, it takes every value."""
        if self.kind == "choice":
            return list(self.choices)
        return list(dict.fromkeys(map(self.text_of, (self.low, self.high))))


def words(values: Mapping[str, str]) -> str:
    """Values by their keys as one writes them in a command."""
    return " ".join(f"{key}={value}" for key, value in values.items())
