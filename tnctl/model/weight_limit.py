"""A limit to the weights that a recipe makes, checked before they are allocated."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras

_left: ContextVar[int | None] = ContextVar("weights left", default=None)


class TooManyWeightsError(Exception):
    """A layer would make more weights than there may be."""


@contextmanager
def weights_limited(most: int) -> Iterator[None]:
    """Raise TooManyWeightsError before the layers that are built have more than `most` weights.

    Other threads build without the limit.
    """
    token = _left.set(most)
    try:
        yield
    finally:
        _left.reset(token)


def _counting(add_weight: Any) -> Any:
    def counted(layer: Any, shape: Sequence[int] = (), *arguments: Any, **keywords: Any) -> Any:
        left = _left.get()
        if left is not None:
            if math.prod(shape) > left:
                raise TooManyWeightsError(f"a weight of shape {tuple(shape)}")
            _left.set(left - math.prod(shape))
        return add_weight(layer, shape, *arguments, **keywords)

    return counted


# Keras has no hook for what makes weights, which all its layers call.
keras.layers.Layer.add_weight = _counting(keras.layers.Layer.add_weight)
