"""DLRM: the inner products of all pairs of vectors, where the numbers together make a vector.

    z     = bottom(numbers), as wide as an embedding
    logit = top([z, <v_i, v_j> for each pair of z and the embeddings])

Naumov et al., Deep Learning Recommendation Model for Personalization and Recommendation Systems,
2019, section 2.2 and figure 1 (https://arxiv.org/abs/1906.00091). The last layer of the bottom
tower has an activation, too, as in the authors' code. Defaults: FuxiCTR's DLRM_default.
"""

from collections.abc import Sequence
from typing import Any

from tnctl.model import Inputs, Tower, layers

INPUTS = "embeddings of one width, numbers"


def build(
    inputs: Inputs, *, bottom: Sequence[int] = (64, 64, 64), tower: Tower = Tower((64, 64, 64))
) -> Any:
    """The logit [B, 1]; `bottom` are widths of the bottom tower, which ends in an embedding's."""
    vectors, dense = inputs.embeddings, None
    if inputs.numeric is not None:
        settings = vars(tower) | {"hidden": [*bottom, vectors.shape[-1]]}
        dense = layers.Mlp(**settings, name="bottom")(inputs.numeric)
        vectors = layers.concatenated(dense[:, None, :], vectors)

    products = layers.InnerProducts(name="products")(vectors)

    return layers.tower_logit(layers.concatenated(dense, products), tower, "top")
