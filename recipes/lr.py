"""Logistic regression: one weight per feature id, one per number.

    logit = bias + sum over slots of w[id] + <w_numeric, numeric>

McMahan et al., Ad Click Prediction: a View from the Trenches, KDD 2013, section 3.
"""

from typing import Any

from tnctl.model import Inputs, layers


def build(inputs: Inputs) -> Any:
    """The logit [B, 1]."""
    terms = []
    if inputs.linear is not None:
        terms.append(inputs.linear)
    if inputs.numeric is not None:
        terms.append(layers.Logit(use_bias=False, name="numeric")(inputs.numeric))
    return layers.Bias(name="bias")(sum(terms[1:], terms[0]))
