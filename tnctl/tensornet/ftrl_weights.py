"""Whether FTRL's weights follow from its state by the settings of the conf.

At every update weights are computed from z and n (McMahan et al. 2013, algorithm 1), so with other
settings all that TensorNet learned would change at the first one.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.errors import UserError
from tnctl.tensornet.conf_tables import Weights
from tnctl.tensornet.row_forms import FTRL

TOLERANCE = 2e-5  # of a text's six digits, over the sums


class FtrlWeights:
    """Counts the weights of a table that its state does not give; nothing of other optimizers."""

    def __init__(self, weights: Weights) -> None:
        self._weights, self._updated, self._others = weights, 0, 0

    def add(self, rows: NDArray[Any]) -> None:
        """Take in rows [n] of the form's dtype."""
        if self._weights.form.rule is not FTRL:
            return
        rule = self._weights.segment.optimizer
        rate = float(rule.learning_rate) or 1.0
        slope = rate if rule.name == "tensornet_ftrl" else 1 / rate
        z, n = rows["z"].astype(np.float64), rows["n"].astype(np.float64)
        divisor = (rule.beta + np.sqrt(n)) * slope + rule.l2
        updated = (n > 0) & (divisor > 0)  # a new row has initial weights
        divisor = np.where(updated, divisor, 1.0)
        expected = (np.clip(z, -rule.l1, rule.l1) - z) / divisor
        allowed = TOLERANCE * ((np.abs(z) + rule.l1) / divisor + np.abs(expected))
        # Zeros are zeros by many settings.
        updated &= (expected != 0) | (rows["weights"] != 0)
        others = updated & (np.abs(rows["weights"] - expected) > allowed)
        self._updated += int(updated.sum())
        self._others += int(others.sum())

    def check(self, table: str) -> None:
        """Raise UserError when most weights are others than by the conf."""
        if 2 * self._others > self._updated:
            rule = self._weights.segment.optimizer
            raise UserError(
                f"{self._others:,} of {self._updated:,} trained weights of table {table} do not "
                f"follow from its z and n with learning_rate {rule.learning_rate:g}, beta "
                f"{rule.beta:g}, l1 {rule.l1:g} and l2 {rule.l2:g} of {self._weights.name}. Take "
                "the learning_rate, beta, lambda1 and lambda2 of TensorNet"
            )
