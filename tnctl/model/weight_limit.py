"""A limit to the weights that a recipe makes, checked before they are allocated."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras


class TooManyWeightsError(Exception):
    """A layer would make more weights than there may be."""


@contextmanager
def weights_limited(most: int) -> Iterator[None]:
    """Raise TooManyWeightsError before the layers that are built have more than `most` weights.

    Keras has no hook for this, so its only function that makes weights is replaced meanwhile.
    """
    add_weight, made = keras.layers.Layer.add_weight, 0

    def counted(layer: Any, shape: Sequence[int] = (), *arguments: Any, **keywords: Any) -> Any:
        nonlocal made
        made += math.prod(shape)
        if made > most:
            raise TooManyWeightsError(f"{made:,} weights, and there are {most:,}")
        return add_weight(layer, shape, *arguments, **keywords)

    keras.layers.Layer.add_weight = counted
    try:
        yield
    finally:
        keras.layers.Layer.add_weight = add_weight
