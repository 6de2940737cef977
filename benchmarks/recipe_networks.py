"""The networks of the recipes, written by hand from their papers in plain Keras layers.

A network is a function of `Given`, the tensors of a batch, and the recipe's settings. It returns a
logit [B, 1] for each label. Weights start as tnctl's do. Papers: recipes/NAME.py.
"""

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from benchmarks.recipe_sets import CANDIDATE


@dataclass(frozen=True)
class Given:
    """The symbolic inputs of a network. B is the batch."""

    vectors: Any  # [B, F, d]: embeddings of slots f0, f1, …
    labels: list[str]
    linear: Any = None  # [B, 1]: the sum of the linear weights of ids
    numbers: Any = None  # [B, N]
    history: Any = None  # [B, L, d], zeros past its end
    lengths: Any = None  # int32 [B]

    @property
    def deep(self) -> Any:
        x = layers.Flatten()(self.vectors)
        return x if self.numbers is None else ops.concatenate([x, self.numbers], axis=1)

    def slot(self, name: str) -> Any:
        return self.vectors[:, int(name[1:])]

    def fields(self) -> Any:
        """The embeddings, and v_k x_k for each number."""
        if self.numbers is None:
            return self.vectors
        of_numbers = layers.EinsumDense(
            "bn,nd->bnd", (self.numbers.shape[1], self.vectors.shape[2]),
            kernel_initializer=keras.initializers.RandomNormal(stddev=0.01),
        )  # fmt: skip
        return ops.concatenate([self.vectors, of_numbers(self.numbers)], axis=1)


class Affine(layers.Layer):
    """x * gamma + beta, or x + beta alone, along the last axis."""

    def __init__(self, scale: bool = True) -> None:
        super().__init__()
        self.scale = scale

    def build(self, shape: Any) -> None:
        self.beta = self.add_weight(shape=shape[-1:], initializer="zeros")
        if self.scale:
            self.gamma = self.add_weight(shape=shape[-1:], initializer="ones")

    def call(self, x: Any) -> Any:
        return (x * self.gamma if self.scale else x) + self.beta


class Dice(layers.Layer):
    """Of the values [B, L, n] that are present, or of [B, n]."""

    def build(self, shape: Any) -> None:
        self.norm = layers.BatchNormalization(momentum=0.9, epsilon=1e-8, center=False, scale=False)
        self.norm.build(shape)
        self.alpha = self.add_weight(shape=shape[-1:], initializer="zeros")

    def call(self, s: Any, present: Any = None, training: bool | None = None) -> Any:
        p = ops.sigmoid(self.norm(s, training=training, mask=present))
        return p * s + (1 - p) * self.alpha * s


def glorot(*shape: int) -> Any:
    """As for a kernel of this shape, whatever the shape in which it is kept."""
    limit = np.sqrt(6 / (np.prod(shape[:-2]) * (shape[-2] + shape[-1])))
    return keras.initializers.RandomUniform(-limit, limit)


def tower(x: Any, hidden: Any, activation: str = "relu") -> Any:
    for width in hidden:
        layer = layers.Dense(width, kernel_initializer="he_normal")
        x = Dice()(layer(x)) if activation == "dice" else layers.Activation(activation)(layer(x))
    return x


def logit(x: Any, use_bias: bool = True) -> Any:
    return layers.Dense(1, use_bias=use_bias)(x)


def linear_part(given: Given) -> Any:
    if given.numbers is None:
        return given.linear
    return given.linear + logit(given.numbers, False)


def inner_products(vectors: Any) -> Any:
    count = vectors.shape[1]
    places = [i * count + j for i, j in combinations(range(count), 2)]
    products = ops.matmul(vectors, ops.transpose(vectors, (0, 2, 1)))
    return ops.take(ops.reshape(products, (-1, count * count)), places, axis=1)


def deepfm(given: Given, hidden: Any) -> Any:
    v = given.vectors
    second = ops.sum(ops.square(ops.sum(v, 1)) - ops.sum(ops.square(v), 1), 1, keepdims=True) / 2
    return linear_part(given) + second + logit(tower(given.deep, hidden))


def dlrm(given: Given, bottom: Any, hidden: Any) -> Any:
    v = given.vectors
    if given.numbers is None:
        return logit(tower(inner_products(v), hidden))
    z = tower(given.numbers, [*bottom, v.shape[2]])
    products = inner_products(ops.concatenate([z[:, None], v], axis=1))
    return logit(tower(ops.concatenate([z, products], axis=1), hidden))


def fwfm(given: Given) -> Any:
    v = given.fields()
    return logit(layers.Flatten()(v)) + logit(inner_products(v), False)


def xdeepfm(given: Given, cin: Any, hidden: Any) -> Any:
    start = x = layers.Permute((2, 1))(given.fields())  # [B, d, F]
    sums = []
    for width in cin:
        h, m = x.shape[2], start.shape[2]
        pairs = layers.Reshape((x.shape[1], h * m))(x[..., :, None] * start[..., None, :])
        x = layers.Dense(width, use_bias=False, kernel_initializer=glorot(h, m, width))(pairs)
        sums.append(ops.sum(x, axis=1))
    explicit = logit(layers.Concatenate()(sums), False)
    return linear_part(given) + explicit + logit(tower(given.deep, hidden))


def autoint(given: Given, attention: Any, heads: int, hidden: Any) -> Any:
    x = given.fields()
    for width in attention:
        query, key, value, residual = (layers.Dense(width, use_bias=False)(x) for _ in range(4))
        query, key, value = (
            layers.Permute((2, 1, 3))(layers.Reshape((-1, heads, width // heads))(part))
            for part in (query, key, value)
        )  # [B, heads, F, width / heads]
        weights = ops.softmax(ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))))
        mixed = layers.Permute((2, 1, 3))(ops.matmul(weights, value))
        x = ops.relu(layers.Reshape((-1, width))(mixed) + residual)
    explicit = logit(layers.Flatten()(x))
    return explicit + logit(tower(given.deep, hidden)) if hidden else explicit


def masknet(
    given: Given, structure: str, blocks: int, block_width: int, reduction: float, hidden: Any
) -> Any:
    v = given.fields()
    normed = layers.LayerNormalization(center=False, scale=False, epsilon=1e-5)(v)
    v, normed = layers.Flatten()(v), Affine()(layers.Flatten()(normed))

    def block(h: Any, width: int) -> Any:
        mask = layers.Dense(h.shape[1], kernel_initializer="he_normal")(
            tower(v, [int(h.shape[1] * reduction)])
        )
        dense = layers.Dense(width, use_bias=False, kernel_initializer="he_normal")
        return ops.relu(layers.LayerNormalization(epsilon=1e-5)(dense(mask * h)))

    if structure == "serial":
        for width in hidden:
            normed = block(normed, width)
        return logit(normed)
    side_by_side = [block(normed, block_width) for _ in range(blocks)]
    return logit(tower(ops.concatenate(side_by_side, axis=1), hidden))


def finalmlp(
    given: Given, hidden: Any, second: Any, gate: Any, heads: int, first_context: Any,
    second_context: Any,
) -> Any:  # fmt: skip
    def stream(hidden: Any, context: Any) -> Any:
        x = given.deep
        seen = tower(ops.concatenate([given.slot(name) for name in context], axis=1), gate)
        gates = layers.Dense(x.shape[1], "sigmoid", kernel_initializer="he_normal")(seen)
        return tower(2 * gates * x, hidden)

    a, b = stream(hidden, first_context), stream(second, second_context)
    p, q = a.shape[1] // heads, b.shape[1] // heads
    products = layers.EinsumDense(
        "bhp,hpq->bhq", (heads, q), kernel_initializer=glorot(heads, p, q)
    )
    fused = ops.sum(products(layers.Reshape((heads, p))(a)) * layers.Reshape((heads, q))(b), (1, 2))
    return logit(a) + logit(b, False) + fused[:, None]


def gdcn(given: Given, structure: str, layers: int, hidden: Any) -> Any:
    x = start = given.deep
    for _ in range(layers):
        gate = keras.layers.Dense(x.shape[1], "sigmoid", use_bias=False)(x)
        x = start * keras.layers.Dense(x.shape[1])(x) * gate + x
    if structure == "stacked":
        return logit(tower(x, hidden))
    return logit(ops.concatenate([x, tower(start, hidden)], axis=1))


def fcn(given: Given, exponential: int, linear: int, heads: int) -> Any:
    v = given.fields()
    flat = [
        ops.concatenate([layers.Flatten()(half) for half in ops.split(part, 2, 2)], axis=1)
        for part in ops.split(v, heads, 2)
    ]
    start = ops.stack(flat, axis=1)  # [B, heads, F * d / heads]

    def network(count: int, doubles: bool) -> Any:
        x = start
        for _ in range(count):
            h = layers.Dense(x.shape[2] // 2, use_bias=False)(x)
            kept = ops.relu(layers.LayerNormalization(epsilon=1e-5)(h))
            crossed = ops.concatenate([h, h * kept], axis=2)
            x = (x if doubles else start) * Affine(scale=False)(crossed) + x
        return ops.mean(logit(x), axis=1)

    return (network(exponential, True) + network(linear, False)) / 2


def wukong(
    given: Given, depth: int, products: int, compressed: int, rank: int, fm_hidden: Any, hidden: Any
) -> Any:
    x = given.fields()
    for number in range(depth):
        width, columns = x.shape[2], layers.Permute((2, 1))(x)

        def combined(count: int, columns: Any = columns) -> Any:  # [B, d, count]
            return layers.Dense(count, use_bias=False)(columns)

        fm = layers.Flatten()(ops.matmul(x, combined(rank)))
        fm = tower(layers.LayerNormalization(epsilon=1e-5)(fm), [*fm_hidden, products * width])
        fm = layers.Reshape((products, width))(fm)
        both = ops.concatenate([fm, layers.Permute((2, 1))(combined(compressed))], axis=1)
        added = x if number else layers.Permute((2, 1))(combined(products + compressed))
        x = layers.LayerNormalization(epsilon=1e-5)(both + added)
    return logit(tower(layers.Flatten()(x), hidden))


def shared_bottom(given: Given, bottom: Any, hidden: Any) -> list[Any]:
    shared = tower(given.deep, bottom)
    return [logit(tower(shared, hidden)) for _ in given.labels]


def gated(x: Any, experts: list[Any]) -> Any:
    gate = layers.Dense(len(experts), "softmax", kernel_initializer="he_normal")(x)
    return ops.einsum("be,beh->bh", gate, ops.stack(experts, axis=1))


def mmoe(given: Given, experts: int, expert_hidden: Any, hidden: Any) -> list[Any]:
    mixed = [tower(given.deep, expert_hidden) for _ in range(experts)]
    return [logit(tower(gated(given.deep, mixed), hidden)) for _ in given.labels]


def ple(
    given: Given, layers: int, shared_experts: int, experts: int, expert_hidden: Any, hidden: Any
) -> list[Any]:
    common, of_labels = given.deep, [given.deep] * len(given.labels)
    for layer in range(layers):
        shared = [tower(common, expert_hidden) for _ in range(shared_experts)]
        own_experts = [[tower(x, expert_hidden) for _ in range(experts)] for x in of_labels]
        if layer + 1 < layers:
            common = gated(common, sum(own_experts, shared))
        pairs = zip(of_labels, own_experts, strict=True)
        of_labels = [gated(x, of_label + shared) for x, of_label in pairs]
    return [logit(tower(x, hidden)) for x in of_labels]


def presence(given: Given) -> Any:
    return ops.less(ops.arange(given.history.shape[1])[None], given.lengths[:, None])


def din(given: Given, attention: Any, hidden: Any) -> Any:
    e, present = given.history, presence(given)
    target = ops.repeat(given.slot(CANDIDATE)[:, None], e.shape[1], axis=1)
    x = ops.concatenate([e, e * target, target], axis=2)
    for width in attention:
        x = Dice()(layers.Dense(width, kernel_initializer="he_normal")(x), present)
    weights = logit(x) * ops.cast(present, "float32")[..., None]
    interest = ops.sum(weights * e, axis=1)
    return logit(tower(ops.concatenate([interest, given.deep], axis=1), hidden, "dice"))


def bst(given: Given, heads: int, blocks: int, place_width: int, hidden: Any) -> Any:
    length, lengths = given.history.shape[1], given.lengths[:, None]
    places = ops.clip(lengths - ops.arange(length)[None], 0, length)  # 1 is the last behavior
    places = ops.concatenate([places, ops.zeros_like(places[:, :1])], axis=1)
    start = keras.initializers.RandomNormal(stddev=0.01)
    places = layers.Embedding(length + 1, place_width, embeddings_initializer=start)(places)
    x = ops.concatenate([given.history, given.slot(CANDIDATE)[:, None]], axis=1)
    x = ops.concatenate([x, places], axis=2)
    present = ops.concatenate([presence(given), ops.ones_like(lengths, "bool")], axis=1)
    width = x.shape[2]
    for block in range(blocks):
        query = x[:, -1:] if block + 1 == blocks else x
        mixed = layers.MultiHeadAttention(
            heads, width // heads, use_bias=False, kernel_initializer=glorot(width, width)
        )(query, x, attention_mask=present[:, None])
        s = layers.LayerNormalization(epsilon=1e-5)(query + mixed)
        fed = layers.LeakyReLU(0.01)(layers.Dense(width)(s))
        x = layers.LayerNormalization(epsilon=1e-5)(s + layers.Dense(width)(fed))
    deep = ops.concatenate([x[:, -1], given.deep], axis=1)
    return logit(tower(deep, hidden, "leaky_relu"))


def pepnet(given: Given, domain: Any, prior: Any, gate_hidden: int, hidden: Any) -> list[Any]:
    def scaled(x: Any, names: Any, seen: Any) -> Any:
        context = [*(given.slot(name) for name in names), ops.stop_gradient(seen)]
        h = tower(ops.concatenate(context, axis=1), [gate_hidden])
        gate = layers.Dense(x.shape[1], "sigmoid", kernel_initializer="he_normal")(h)
        return 2 * gate * x

    embedded = scaled(given.deep, domain, given.deep)

    def of_label() -> Any:
        h = embedded
        for width in hidden:
            h = scaled(tower(h, [width]), prior, embedded)
        return logit(h)

    return [of_label() for _ in given.labels]
