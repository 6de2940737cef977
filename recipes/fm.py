"""Factorization machine: linear weights, and a product of vectors for every pair of inputs.

    logit = w_0 + <w, x> + sum over i < j of <v_i, v_j> x_i x_j            (equation 1)

Rendle, Factorization Machines, ICDM 2010. An input is a slot, whose vector is its pooled embedding,
or a number x_k, which has a vector v_k.
"""

from typing import Any

from tnctl.model import Inputs, layers

INPUTS = "linear weights, embeddings of one width, numbers"


def build(inputs: Inputs, *, l2: float = 0.0) -> Any:
    """The logit [B, 1]; `l2` is of the numbers' weights and vectors."""
    first_order = layers.linear_model(inputs.linear, inputs.numeric, l2)

    second_order = layers.FactorizationMachine(name="fm")(layers.fields(inputs, l2))

    return layers.Bias(name="bias")(layers.total(first_order, second_order))
