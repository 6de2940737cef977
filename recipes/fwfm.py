"""Field-weighted factorization machine: a weight for each pair of fields.

    logit = w_0 + sum over i of <v_i, w_F(i)> x_i + sum over i < j of <v_i, v_j> x_i x_j r_F(i)F(j)

Pan et al., Field-weighted Factorization Machines for Click-Through Rate Prediction in Display
Advertising, WWW 2018, section 4 (https://arxiv.org/abs/1806.03514). The linear term is FiLV of its
section on linear terms: a vector w for each field in the place of a weight for each id. A field is
a slot, whose vector is its pooled embedding, or a number x_k, which has a vector v_k.
"""

from typing import Any

from tnctl.model import Inputs, layers

INPUTS = "embeddings of one width, numbers"


def build(inputs: Inputs, *, l2: float = 0.0) -> Any:
    """The logit [B, 1]; `l2` is of the weights of fields and pairs, and the numbers' vectors."""
    vectors = layers.fields(inputs, l2)

    linear = layers.Logit(l2=l2, name="fields")(layers.flat(vectors))
    products = layers.InnerProducts(name="products")(vectors)

    return linear + layers.Logit(use_bias=False, l2=l2, name="pairs")(products)
