"""The rows of TensorNet's sparse tables: their optimizers, their columns, what they can hold.

docs/tensornet.md has the lines and records. The facts are those of TensorNet's source
(core/ps/optimizer/*_kernel.cc, optimizer_kernel.h).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.errors import Failure

LONGEST_AGE = 100_000  # days that a row was not shown
WIDEST = 65_536  # floats of a row


@dataclass(frozen=True)
class Rule:
    """An optimizer of TensorNet: its name in files, and the state of its rows.

    `optimizers` are those of tnctl that have the same state, `states` the names of it there, in
    TensorNet's order. Without `per_weight` a row has one float of state.
    """

    name: str
    optimizers: tuple[str, ...]
    states: tuple[str, ...]
    per_weight: bool
    signed: tuple[str, ...] = ()
    """the states that can be negative"""


ADAGRAD = Rule("AdaGrad", ("tensornet_adagrad", "adagrad"), ("accumulator",), per_weight=False)
ADAM = Rule("Adam", ("tensornet_adam",), ("m", "v"), per_weight=True, signed=("m",))
FTRL = Rule("Ftrl", ("tensornet_ftrl", "ftrl"), ("z", "n"), per_weight=True, signed=("z",))
RULES = (ADAGRAD, ADAM, FTRL)


@dataclass(frozen=True)
class RowForm:
    """The rows of one table: `dim` weights, trained by a rule."""

    rule: Rule
    dim: int

    @property
    def state_width(self) -> int:
        """The floats of each state."""
        return self.dim if self.rule.per_weight else 1

    @property
    def dtype(self) -> np.dtype[Any]:
        """A row as it is in memory: its sign, days without a show, counts, states, weights."""
        states = [(name, "<f4", (self.state_width,)) for name in self.rule.states]
        counts = [("age", "<u4"), ("show", "<f4"), ("click", "<f4")]
        return np.dtype([("id", "<u8"), *counts, *states, ("weights", "<f4", (self.dim,))])

    def text_columns(self, line: bytes) -> list[str]:
        """The columns of a file by its first row; `end` is what follows a last tab.

        TensorNet before no_show_days wrote AdaGrad without that column, and writes click only with
        use_cvm. Raises ValueError for another number of columns.
        """
        fields = line.split(b"\t")
        end = ["end"] if not fields[-1].strip() else []
        count, dim = len(fields) - len(end), self.dim
        weights = [f"w{at}" for at in range(dim)]
        if self.rule.per_weight:
            kinds = ("w", *self.rule.states)
            columns = ["id", *(f"{kind}{at}" for at in range(dim) for kind in kinds), "show"]
            if count != len(columns):
                expected = len(columns)
                raise ValueError(f"its first row has {count} columns, and should have {expected}")
            return columns + end
        optional = {4: [], 5: ["age"], 6: ["age", "click"]}.get(count - dim)
        if optional is None:
            raise ValueError(
                f"its first row has {count} columns, and should have {dim + 4} to {dim + 6}"
            )
        return ["id", "dim", *weights, f"{self.rule.states[0]}0", "show", *optional, *end]

    def records(self) -> list[np.dtype[Any]]:
        """The records that binary files can have, each with fields of `dtype` in another order.

        AdaGrad's have click only with use_cvm; those of TensorNet's own resizing tool have `dim`.
        """
        weights, show = ("weights", "<f4", (self.dim,)), ("show", "<f4")
        states = [(name, "<f4", (self.state_width,)) for name in self.rule.states]
        if self.rule.per_weight:
            return [np.dtype([("id", "<u8"), weights, *states, show])]
        row: list[Any] = [weights, *states, show, ("age", "<i4")]
        return [
            np.dtype([("id", "<u8"), *row]),
            np.dtype([("id", "<u8"), *row, ("click", "<f4")]),
            np.dtype([("id", "<u8"), ("dim", "<i4"), *row]),
        ]

    def is_possible(self, rows: NDArray[Any]) -> NDArray[np.bool_]:
        """Which rows [n], of `dtype` or of a record, TensorNet can have written."""
        names = rows.dtype.names or ()
        possible = np.isfinite(rows["weights"]).all(axis=1) & np.isfinite(rows["show"])
        possible &= rows["show"] >= 0
        for name in self.rule.states:
            possible &= np.isfinite(rows[name]).all(axis=1)
            if name not in self.rule.signed:
                possible &= (rows[name] >= 0).all(axis=1)
        if "click" in names:
            possible &= np.isfinite(rows["click"]) & (rows["click"] >= 0)
        if "age" in names:
            possible &= (rows["age"] >= 0) & (rows["age"] <= LONGEST_AGE)
        if "dim" in names:
            possible &= rows["dim"] == self.dim
        return np.asarray(possible)

    def check(self, rows: NDArray[Any], url: str) -> None:
        """Raise Failure for the first row, of `dtype`, that TensorNet cannot have written."""
        if not (possible := self.is_possible(rows)).all():
            sign = int(rows["id"][np.argmin(possible)])
            raise Failure(
                f"{url}: the row of sign {sign} has a number that is not finite, a negative "
                f"{self._not_negative}, or no_show_days beyond {LONGEST_AGE:,}. Take a table that "
                "is whole, of training that did not diverge"
            )

    @property
    def _not_negative(self) -> str:
        return "g2sum or show" if self.rule is ADAGRAD else f"{self.rule.states[1]} or show"
