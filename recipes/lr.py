"""Logistic regression: one weight per feature id, one per number.

    logit = bias + sum over slots of w[id] + <w_numeric, numeric>

McMahan et al., Ad Click Prediction: a View from the Trenches, KDD 2013, section 3.
"""

from typing import Any

from tnctl.model import Inputs, layers

INPUTS = "linear weights, numbers"


def build(inputs: Inputs, *, l2: float = 0.0) -> Any:
    """The logit [B, 1]; `l2` is of the numbers' weights."""
    linear = layers.linear_model(inputs.linear, inputs.numeric, l2)
    return layers.Bias(name="bias")(linear)
