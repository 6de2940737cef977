"""Fully connected layers: single ones, towers of them, activations, and what ends in a logit."""

from collections.abc import Hashable, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from tnctl.errors import UserError, did_you_mean
from tnctl.model.layers.gradients import add_bias, columns_of, times_column
from tnctl.model.layers.normalization import BatchNorm, Dropout, Float32Layer
from tnctl.model.recipes import Tower

# What a number is: the model's inputs that it belongs to (none: it is a unit of a layer), and which
# number of theirs. Weights at equal places of two networks correspond.
Place = tuple[tuple[str, ...], Hashable]
Axis = list[Place | None]  # None: not known
WeightAxes = dict[int, Axis]

PLAIN = (
    "elu", "gelu", "leaky_relu", "linear", "relu", "selu", "sigmoid", "silu", "softplus", "tanh",
)  # fmt: skip


def l2_regularizer(l2: float) -> Any:
    """L2 of λ adds λ w to the gradient of a kernel: λ/2 of the squared norm (None when λ is 0)."""
    if l2 < 0:
        raise UserError(f"l2 must be at least 0. Received: {l2}")
    # Keras' own L2 of λ is λ times the squared norm.
    return keras.regularizers.L2(l2 / 2) if l2 else None


class RegularizedLayer(keras.layers.Layer):
    """The base of layers that make their kernels themselves; `l2` as in l2_regularizer."""

    def __init__(self, l2: float = 0.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.regularizer = l2_regularizer(l2)

    def add_kernel(self, name: str, shape: tuple[int, ...]) -> Any:
        return self.add_weight(
            shape=shape, initializer="glorot_uniform", regularizer=self.regularizer, name=name
        )


class Columns(keras.layers.Layer):
    """Neighboring columns of x, from `first` on, in the precision that x has.

    Input shape: [B, W]. Output shape: [B, count].
    """

    def __init__(self, first: int, count: int, **settings: Any) -> None:
        super().__init__(autocast=False, **settings)
        self.first = first
        self.count = count

    def call(self, x: Any) -> Any:
        if self.count == x.shape[1]:
            return x
        return columns_of(x, self.first, self.count)


def concatenated(*tensors: Any) -> Any:
    """The tensors that are not None, concatenated along axis 1."""
    present = [tensor for tensor in tensors if tensor is not None]
    return present[0] if len(present) == 1 else ops.concatenate(present, axis=1)


def flat(vectors: Any) -> Any:
    """Vectors [B, F, d] side by side, [B, F * d]."""
    return ops.reshape(vectors, (-1, vectors.shape[1] * vectors.shape[2]))


def total(*terms: Any) -> Any:
    """The sum of the terms that are not None, of equal shape."""
    present = [term for term in terms if term is not None]
    return sum(present[1:], present[0])


class Dense(keras.layers.Layer):
    """One fully connected layer: y = activation(norm(x W + b)), norm being none or BatchNorm.

    The kernel starts as in He et al., 2015, the scale that keeps the variance through rectifiers.
    `l2` as in l2_regularizer, `where` (bool [B]) as in BatchNorm.

    Input shape: [B, n]. Output shape: [B, width].
    """

    def __init__(
        self,
        width: int,
        activation: str | None = None,
        *,
        batch_norm: bool = False,
        use_bias: bool = True,
        l2: float = 0.0,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        if width < 1:
            raise UserError(f"a layer must be at least 1 wide. Received: {width}")
        self.width = width
        self.use_bias = use_bias
        self.regularizer = l2_regularizer(l2)
        # PyTorch's constants, which public benchmarks use. With 0.99, moving statistics would still
        # depend on their initial values after short epochs.
        self.norm = BatchNorm(0.9, 1e-5, name="batch_norm") if batch_norm else None
        self.activation = activation_of(activation)

    def build(self, shape: Sequence[int]) -> None:
        self.kernel = self.add_weight(
            shape=(shape[-1], self.width),
            initializer="he_normal",
            regularizer=self.regularizer,
            name="kernel",
        )
        if self.use_bias:
            self.bias = self.add_weight(shape=(self.width,), initializer="zeros", name="bias")
        for layer in (self.norm, self.activation):
            if isinstance(layer, keras.layers.Layer):
                layer.build((shape[0], self.width))

    def call(self, x: Any, where: Any = None, training: bool | None = None) -> Any:
        y = ops.matmul(x, self.kernel)
        if self.use_bias:
            y = add_bias(y, ops.convert_to_tensor(self.bias))
        if self.norm is not None:
            y = self.norm(y, where=where, training=training)
        if isinstance(self.activation, Dice):
            return self.activation(y, where=where, training=training)
        return self.activation(y)

    def weight_axes(self, columns: Axis) -> dict[str, WeightAxes]:
        return {self.kernel.path: {0: columns}}


class VectorProjection(Float32Layer):
    """Vectors v of `length` numbers times one matrix: y = v W, of `width` numbers.

    `kept` numbers after each vector stay as they are. W starts as Glorot and Bengio, 2010, which
    keeps the variance between both widths. Always float32.

    Input shape: [B, F * (length + kept)]. Output shape: [B, F * (width + kept)].
    """

    by_field = True

    def __init__(self, length: int, width: int, kept: int = 0, **settings: Any) -> None:
        super().__init__(**settings)
        self.length, self.width, self.each = length, width, length + kept

    def build(self, _: Sequence[int]) -> None:
        self.kernel = self.add_weight(
            shape=(self.length, self.width), initializer="glorot_uniform", name="kernel"
        )

    def call(self, x: Any) -> Any:
        vectors, kept = ops.reshape(x, (-1, self.each)), None
        if self.length < self.each:
            vectors, kept = vectors[:, : self.length], vectors[:, self.length :]
        y = concatenated(ops.matmul(vectors, self.kernel), kept)
        return ops.reshape(y, (-1, x.shape[1] // self.each * y.shape[1]))

    def weight_axes(self, columns: Axis) -> dict[str, WeightAxes]:
        return {
            self.kernel.path: {0: columns[: self.length], 1: [((), k) for k in range(self.width)]}
        }

    def output_places(self, columns: Axis) -> Axis:
        places: Axis = []
        for start in range(0, len(columns), self.each):
            first = columns[start]
            places += [first and (first[0], k) for k in range(self.width)]
            places += columns[start + self.length : start + self.each]
        return places


class Mlp(keras.layers.Layer):
    """Fully connected layers: h_k = dropout(activation(norm(h_{k-1} W_k + b_k))).

    With `residual`, h_{k-1} is added where it is as wide as h_k (He et al., Deep Residual
    Learning, CVPR 2016, equation 1). `batch_norm`, `l2` and `where` as in Dense.

    Input shape: [B, n]. Output shape: [B, hidden[-1]]; without hidden layers [B, n], x itself.
    """

    def __init__(
        self,
        hidden: Sequence[int],
        activation: str = Tower.activation,
        *,
        batch_norm: bool = Tower.batch_norm,
        dropout: float = Tower.dropout,
        residual: bool = Tower.residual,
        l2: float = Tower.l2,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.hidden = [Dense(width, activation, batch_norm=batch_norm, l2=l2) for width in hidden]
        self.dropouts = [Dropout(dropout, name=f"dropout_{k}") for k in range(len(self.hidden))]
        self.residual = residual
        self.keeps_columns = not self.hidden

    def build(self, shape: Sequence[int]) -> None:
        for layer, dropout in zip(self.hidden, self.dropouts, strict=True):
            layer.build(shape)
            shape = (shape[0], layer.width)
            dropout.build(shape)

    def call(self, x: Any, where: Any = None, training: bool | None = None) -> Any:
        for layer, dropout in zip(self.hidden, self.dropouts, strict=True):
            h = dropout(layer(x, where=where, training=training), training=training)
            if self.residual and h.shape[-1] == x.shape[-1]:
                h = h + ops.cast(x, h.dtype)
            x = h
        return x

    def weight_axes(self, columns: Axis) -> dict[str, WeightAxes]:
        return self.hidden[0].weight_axes(columns) if self.hidden else {}


class Logit(Float32Layer):
    """One linear unit, y = x w + b, in float32 whatever the precision of the rest.

    `l2` as in l2_regularizer.

    Input shape: [B, n]. Output shape: [B, 1].
    """

    def __init__(self, use_bias: bool = True, l2: float = 0.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.use_bias = use_bias
        self.regularizer = l2_regularizer(l2)

    def build(self, shape: Sequence[int]) -> None:
        self.kernel = self.add_weight(
            shape=(shape[-1], 1),
            initializer="glorot_uniform",
            regularizer=self.regularizer,
            name="kernel",
        )
        if self.use_bias:
            self.bias = self.add_weight(shape=(1,), initializer="zeros", name="bias")

    def call(self, x: Any) -> Any:
        y = times_column(x, ops.convert_to_tensor(self.kernel))
        return y + self.bias if self.use_bias else y

    def weight_axes(self, columns: Axis) -> dict[str, WeightAxes]:
        return {self.kernel.path: {0: columns}}


def linear_model(linear: Any, numeric: Any, l2: float = 0.0) -> Any:
    """The linear part of a model, a tensor [B, 1]: `linear` + <w, numeric>.

    `linear` [B, 1] is the sum of the linear weights of the rows; `numeric` [B, N] are the numbers,
    and w [N] is made here, with `l2` as in l2_regularizer. One that is None is left out of the sum;
    when both are, the result is None.
    """
    product = None if numeric is None else Logit(use_bias=False, l2=l2, name="numeric")(numeric)
    return None if linear is None and product is None else total(linear, product)


def tower_logit(x: Any, tower: Tower, name: str) -> Any:
    """The logit [B, 1] of a tower over x [B, n]: layers called NAME and NAME_logit."""
    return Logit(l2=tower.l2, name=f"{name}_logit")(Mlp(**vars(tower), name=name)(x))


def cross_and_tower(x: Any, cross: Any, tower: Tower, structure: str) -> Any:
    """The logit [B, 1] of a cross network, whose output over x [B, n] is `cross`, and a tower.

    stacked:  w^T tower(cross); else parallel:  w^T [cross, tower(x)]
    """
    if structure == "stacked":
        return Logit(l2=tower.l2, name="logit")(Mlp(**vars(tower), name="deep")(cross))
    # The logit of two vectors side by side is the sum of their logits.
    cross_logit = Logit(use_bias=False, l2=tower.l2, name="cross_logit")(cross)
    return cross_logit + tower_logit(x, tower, "deep")


class Bias(Float32Layer):
    """y = x + b, one b for all.

    Input shape: [B, 1]. Output shape: [B, 1].
    """

    keeps_columns = True

    def build(self, shape: Sequence[int | None]) -> None:  # noqa: ARG002 (Keras' signature)
        self.bias = self.add_weight(shape=(1,), initializer="zeros", name="bias")

    def call(self, x: Any) -> Any:
        return x + self.bias

    def weight_axes(self, columns: Axis) -> dict[str, WeightAxes]:  # noqa: ARG002 (it has none)
        return {}


class LogitOfBoth(Float32Layer):
    """The logit of p(a) p(b), of two logits a and b: both things happen.

    logit(sigmoid(a) sigmoid(b)) = -ln(e^-a + e^-b + e^(-a-b))

    So a product of probabilities (Ma et al., ESMM, SIGIR 2018, equation 1) is trained and served as
    a logit, and no probability is ever rounded to 0 or 1. Always float32.

    Input shape: two of [B, 1]. Output shape: [B, 1].
    """

    def call(self, a: Any, b: Any) -> Any:
        return -ops.logsumexp(ops.concatenate([-a, -b, -a - b], axis=1), axis=1, keepdims=True)


class Shown(Float32Layer):
    """In training the logit of a click where an example was shown; else the logit x as it is.

    add:       x + <v, w>, v being the embedding of the position, in 1 - dropout of the examples
    multiply:  the logit of sigmoid(x) sigmoid(<v, w> + b): it is seen and, if seen, clicked

    Zhao et al., Recommending What Video to Watch Next, RecSys 2019, section 4.3, where at serving
    the position is missing; Guo et al., PAL: A Position-bias Aware Learning Framework for CTR
    Prediction in Live Recommender Systems, RecSys 2019, equation 2. Always float32.

    Input shapes: x [B, 1], v [B, d]. Output shape: [B, 1].
    """

    keeps_columns = True

    def __init__(self, combine: str, dropout: float, **settings: Any) -> None:
        super().__init__(**settings)
        self.adds = combine == "add"
        self.logit = Logit(use_bias=not self.adds, name="logit")
        self.both = LogitOfBoth(name="both")
        self.dropout = Dropout(dropout, name="dropout")

    def build(self, x_shape: Sequence[int], embedding_shape: Sequence[int]) -> None:
        self.logit.build(embedding_shape)
        self.dropout.build(x_shape)

    def call(self, x: Any, embedding: Any, training: bool | None = None) -> Any:
        if not training:
            return x
        position = self.logit(embedding)
        if not self.adds:
            return self.both(x, position)
        # Dropout keeps the mean, but the logit of a position is as large as it is.
        return x + self.dropout(position, training=True) * (1 - self.dropout.rate)

    def weight_axes(self, x: Axis, embedding: Axis) -> dict[str, WeightAxes]:  # noqa: ARG002
        return self.logit.weight_axes(embedding)


def activation_of(name: str | None) -> Any:
    """The activation of a name (None: linear): a function, or a new layer where it has weights."""
    name = name or "linear"
    with_weights = {"prelu": PRelu, "dice": Dice}
    if name in with_weights:
        return with_weights[name](name=name)
    if name not in PLAIN:
        raise UserError(f"no activation '{name}'. {did_you_mean(name, [*PLAIN, *with_weights])}")
    return keras.activations.get(name)


class PRelu(keras.layers.Layer):
    """f(s) = s where s > 0, else alpha * s, with an alpha per column that starts at 0.25.

    He et al., Delving Deep into Rectifiers, ICCV 2015, equation 1.

    Input shape: [B, n]. Output shape: [B, n].
    """

    keeps_columns = True

    def build(self, shape: Sequence[int]) -> None:
        start = keras.initializers.Constant(0.25)
        self.alpha = self.add_weight(shape=(shape[-1],), initializer=start, name="alpha")

    def call(self, s: Any) -> Any:
        return tf.nn.relu(s) - self.alpha * tf.nn.relu(-s)


class Dice(Float32Layer):
    """f(s) = p(s) * s + (1 - p(s)) * alpha * s,  p(s) = sigmoid((s - E[s]) / sqrt(Var[s] + eps)).

    Zhou et al., Deep Interest Network, KDD 2018, equation 9: a PReLU (equation 8) whose bend
    follows the data. E and Var are batch normalization's (`where` as there); eps is 1e-8; an alpha
    per column starts at 0. Always float32.

    Input shape: [B, n]. Output shape: [B, n].
    """

    keeps_columns = True

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.standardized = BatchNorm(0.9, epsilon=1e-8, affine=False, name="standardized")

    def build(self, shape: Sequence[int]) -> None:
        self.standardized.build(shape)
        self.alpha = self.add_weight(shape=(shape[-1],), initializer="zeros", name="alpha")

    def call(self, s: Any, where: Any = None, training: bool | None = None) -> Any:
        p = ops.sigmoid(self.standardized(s, where=where, training=training))
        return s * (self.alpha + p * (1.0 - self.alpha))
