"""DeepFM: a factorization machine and a deep tower over the same embeddings.

    logit = y_FM + y_DNN                                                  (equation 1)
    y_FM  = <w, x> + sum over i < j of <v_i, v_j> x_i x_j                 (equation 2)
    y_DNN = W^(|H|+1) a^(|H|) + b^(|H|+1)                                 (equation 4)

Guo et al., DeepFM: A Factorization-Machine based Neural Network for CTR Prediction, IJCAI 2017,
figure 1 (https://arxiv.org/abs/1703.04247). Numeric inputs enter the linear part and the tower.
"""

from typing import Any

from tnctl.model import Inputs, Tower, layers

INPUTS = "linear weights, embeddings of one width, numbers"


def build(inputs: Inputs, *, tower: Tower = Tower()) -> Any:
    """The logit [B, 1]."""
    first_order = layers.linear_model(inputs.linear, inputs.numeric, tower.l2)

    second_order = layers.FactorizationMachine(name="fm")(inputs.embeddings)

    deep = layers.tower_logit(inputs.deep, tower, "deep")

    return layers.total(first_order, second_order, deep)
