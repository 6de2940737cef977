"""Layers that multiply inputs with each other: the factorization machine and cross networks."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from tnctl.errors import UserError
from tnctl.model.layers.fully_connected import (
    Axis,
    Place,
    RegularizedLayer,
    WeightAxes,
    concatenated,
    l2_regularizer,
)
from tnctl.model.layers.gradients import add_bias, inner_products, pairwise_products
from tnctl.model.layers.normalization import Float32Layer


class FactorizationMachine(Float32Layer):
    """Second-order interactions of all pairs of slots.

    y = sum over i < j of <v_i, v_j> = 1/2 * sum over f of ((sum_i v_if)^2 - sum_i v_if^2)

    Rendle, Factorization Machines, ICDM 2010, lemma 3.1. Always float32: it is a sum of squares.

    Input shape: [B, S, d], the embeddings of S slots. Output shape: [B, 1].
    """

    def call(self, embeddings: Any) -> Any:
        return pairwise_products(embeddings)

    def weight_axes(self, columns: Axis) -> dict[str, WeightAxes]:  # noqa: ARG002 (it has none)
        return {}


class NumericFactors(Float32Layer):
    """The vectors v_k x_k of numbers x_k, which take part in a factorization machine.

    Rendle, Factorization Machines, ICDM 2010, equation 1, where an input may be any real number.

    Input shape: [B, N]. Output shape: [B, N, width].
    """

    def __init__(self, width: int, l2: float = 0.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.width = width
        self.regularizer = l2_regularizer(l2)

    def build(self, shape: Sequence[int]) -> None:
        self.factors = self.add_weight(
            shape=(shape[-1], self.width),
            initializer=keras.initializers.RandomNormal(stddev=0.01),
            regularizer=self.regularizer,
            name="factors",
        )

    def call(self, numbers: Any) -> Any:
        return numbers[:, :, None] * self.factors

    def weight_axes(self, columns: Axis) -> dict[str, WeightAxes]:
        return {self.factors.path: {0: columns, 1: coordinates(self.width)}}

    def output_places(self, columns: Axis) -> Axis:
        return vector_places(columns, self.width)


def fields(inputs: Any, l2: float = 0.0) -> Any:
    """The vectors of all fields, [B, F, d]: pooled embeddings, and v_k x_k for each number x_k.

    Raises UserError when the embeddings differ in width. `l2` is of the vectors of numbers.
    """
    vectors, numeric = inputs.embeddings, inputs.numeric
    if numeric is None:
        return vectors
    return concatenated(vectors, NumericFactors(vectors.shape[-1], l2=l2, name="factors")(numeric))


def coordinates(width: int) -> Axis:
    """The places of an axis over the coordinates of a vector, whichever field it is of."""
    return [((), coordinate) for coordinate in range(width)]


def vector_places(places: Axis, width: int) -> Axis:
    """The places of the numbers of vectors of `width`, where `places` are those of the vectors."""
    return [place and (place[0], (place[1], k)) for place in places for k in range(width)]


def field_places(columns: Axis, width: int) -> Axis:
    """The place of each field, of the places of its `width` coordinates, field by field."""

    def whole(place: Place | None) -> Place | None:
        # Numbers of one input are fields apart, and so are vectors that several layers made.
        return place and (
            place[0],
            ("field", str(place[1][0]) if isinstance(place[1], tuple) else ""),
        )

    return [whole(place) for place in columns[::width]]


class InnerProducts(Float32Layer):
    """The inner products of all pairs of fields, <v_1, v_2>, <v_1, v_3>, …, <v_2, v_3>, ….

    Always float32.

    Input shape: [B, F, d]. Output shape: [B, F * (F - 1) / 2].
    """

    by_field = True

    def build(self, shape: Sequence[int]) -> None:
        self.width = shape[-1]

    def call(self, vectors: Any) -> Any:
        return inner_products(vectors)

    def weight_axes(self, columns: Axis) -> dict[str, WeightAxes]:  # noqa: ARG002 (it has none)
        return {}

    def output_places(self, columns: Axis) -> Axis:
        return [
            None
            if a is None or b is None
            # The same product, whichever of the two is first.
            else (tuple(sorted({*a[0], *b[0]})), ("product", tuple(sorted([a, b]))))
            for a, b in combinations(field_places(columns, self.width), 2)
        ]


class CrossNetwork(RegularizedLayer):
    """The base of cross networks: a number of layers, each with kernels and a bias."""

    keeps_columns = True

    def __init__(self, layers: int, l2: float, **settings: Any) -> None:
        super().__init__(l2, **settings)
        if layers < 1:
            raise UserError(f"a cross network has at least 1 layer. Received: layers={layers}")
        self.layers_ = layers

    def add_layers(self, width: int, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Make for each layer the `kernels` of these names and shapes, and a bias in `biases`."""
        self.kernels = [
            [self.add_kernel(f"{name}_{layer}", shape) for name, shape in shapes.items()]
            for layer in range(self.layers_)
        ]
        self.biases = [
            self.add_weight(shape=(width,), initializer="zeros", name=f"bias_{layer}")
            for layer in range(self.layers_)
        ]


class VectorCross(CrossNetwork):
    """The cross network of DCN: `layers` times x_{l+1} = x_0 (x_l^T w_l) + b_l + x_l.

    Wang et al., Deep & Cross Network for Ad Click Predictions, ADKDD 2017, equation 3.

    Every x_l is a_l x_0 + c_l, with a number a_l per example and c_l = b_0 + … + b_{l-1}. So all
    products with x_0 are one matrix product, and the recursion is over numbers:

        a_{l+1} = a_l + a_l <x_0, w_l> + <c_l, w_l>,   a_0 = 1

    Always float32: it is a polynomial of degree layers + 1. `l2` as in l2_regularizer.

    Input shape: [B, n]. Output shape: [B, n].
    """

    def __init__(self, layers: int, l2: float = 0.0, **settings: Any) -> None:
        super().__init__(layers, l2, dtype="float32", **settings)

    def build(self, shape: Sequence[int]) -> None:
        self.kernel = self.add_kernel("kernel", (shape[-1], self.layers_))
        self.bias = self.add_weight(
            shape=(self.layers_, shape[-1]), initializer="zeros", name="bias"
        )

    def call(self, x: Any) -> Any:
        kernel, bias = ops.convert_to_tensor(self.kernel), ops.convert_to_tensor(self.bias)
        products = tf.unstack(tf.matmul(x, kernel), axis=1)
        offsets = tf.cumsum(bias, exclusive=True)  # c_l
        constants = tf.unstack(tf.reduce_sum(offsets * tf.transpose(kernel), axis=1))
        factor = tf.ones_like(x[:, 0])
        for product, constant in zip(products, constants, strict=True):
            factor += factor * product + constant
        return factor[:, None] * x + tf.reduce_sum(bias, axis=0)

    def weight_axes(self, columns: Axis) -> dict[str, WeightAxes]:
        return {self.kernel.path: {0: columns}, self.bias.path: {1: columns}}


class MatrixCross(CrossNetwork):
    """The cross network of DCN-V2: `layers` times x_{l+1} = x_0 * (W_l x_l + b_l) + x_l.

    Wang et al., DCN V2, WWW 2021, equation 1 (* is per element). With `low_rank` r, W_l is
    U_l V_l^T of [n, r] and [r, n], equation 2. `l2` as in l2_regularizer.

    Input shape: [B, n]. Output shape: [B, n].
    """

    multiplies_input = True

    def __init__(self, layers: int, low_rank: int = 0, l2: float = 0.0, **settings: Any) -> None:
        super().__init__(layers, l2, **settings)
        self.low_rank = low_rank

    def build(self, shape: Sequence[int]) -> None:
        width = shape[-1]
        shapes = {"kernel": (width, width)}
        if self.low_rank:
            shapes = {"v": (width, self.low_rank), "u": (self.low_rank, width)}
        self.add_layers(width, shapes)

    def call(self, x: Any) -> Any:
        start = x
        for kernels, bias in zip(self.kernels, self.biases, strict=True):
            y = x
            for kernel in kernels:
                y = ops.matmul(y, kernel)
            x = start * add_bias(y, ops.convert_to_tensor(bias)) + x
        return x

    def weight_axes(self, columns: Axis) -> dict[str, WeightAxes]:
        axes = {bias.path: {0: columns} for bias in self.biases}
        for kernel, *u in self.kernels:
            axes[kernel.path] = {0: columns} if u else {0: columns, 1: columns}
            axes |= {kernel.path: {1: columns} for kernel in u}
        return axes


class MixtureCross(CrossNetwork):
    """The cross network of DCN-Mix: `layers` times a gated sum over low-rank experts.

    x_{l+1} = sum over i of G_i(x_l) E_i(x_l) + x_l                          (equation 3)
    E_i(x)  = x_0 * (U_i tanh(C_i tanh(V_i^T x)) + b_l)                      (equation 4)
    G(x)    = softmax over the experts of x_l gates

    Wang et al., DCN V2, WWW 2021. U_i and V_i are [n, low_rank], C_i [low_rank, low_rank]. As the
    gates sum to 1, they can weigh the experts' small vectors instead of the wide ones; then the U_i
    of all experts are one matrix, as are the V_i. `l2` as in l2_regularizer, on all but the biases.

    Input shape: [B, n]. Output shape: [B, n].
    """

    multiplies_input = True

    def __init__(
        self, layers: int, low_rank: int, experts: int, l2: float = 0.0, **settings: Any
    ) -> None:
        super().__init__(layers, l2, **settings)
        if low_rank < 1 or experts < 1:
            raise UserError(
                "a mixture of low-rank experts needs low_rank and experts of at least 1. "
                f"Received: low_rank={low_rank} and experts={experts}"
            )
        self.low_rank = low_rank
        self.experts = experts

    def build(self, shape: Sequence[int]) -> None:
        width, rank, experts = shape[-1], self.low_rank, self.experts
        shapes = {
            "v": (width, experts * rank),
            "c": (experts, rank, rank),
            "u": (experts * rank, width),
            "gates": (width, experts),
        }
        self.add_layers(width, shapes)

    def call(self, x: Any) -> Any:
        start = x
        for (v, c, u, gates), bias in zip(self.kernels, self.biases, strict=True):
            h = ops.tanh(ops.matmul(x, v))
            h = ops.reshape(h, (-1, self.experts, self.low_rank))
            # For one product per expert: [B, E, r] to [E, B, r], and back.
            h = ops.transpose(ops.matmul(ops.transpose(h, (1, 0, 2)), c), (1, 0, 2))
            h = ops.tanh(h) * ops.softmax(ops.matmul(x, gates))[:, :, None]
            h = ops.reshape(h, (-1, self.experts * self.low_rank))
            x = start * add_bias(ops.matmul(h, u), ops.convert_to_tensor(bias)) + x
        return x

    def weight_axes(self, columns: Axis) -> dict[str, WeightAxes]:
        axes = {bias.path: {0: columns} for bias in self.biases}
        for v, _, u, gates in self.kernels:
            axes |= {v.path: {0: columns}, u.path: {1: columns}, gates.path: {0: columns}}
        return axes
