"""Which axes of a layer's weights are over its input: what a warm start must know of a layer.

A layer with weights declares it with a method `weight_axes(columns)`. It is given what the numbers
are along the last axis of the tensor that the layer is called with, and returns a WeightAxes. A
layer of several tensors has a parameter for each.
"""

from collections.abc import Hashable
from dataclasses import dataclass

# What a place along an axis holds: the inputs of the model that it is of (none: it is a unit of a
# layer), and which number of them. Equal places of two networks hold the same weight.
Place = tuple[tuple[str, ...], Hashable]
Axis = list[Place | None]  # None: not known


@dataclass(frozen=True)
class WeightAxes:
    """The axes of a layer's weights, by the path of the variable, and its output's last axis.

    `scope` are inputs that all of the layer is multiplied by: without them no weight of it means
    anything.
    """

    weights: dict[str, tuple[Axis, ...]]
    output: Axis
    scope: tuple[str, ...] = ()


def units(path: str, count: int) -> Axis:
    """An axis of `count` units of the layer that has this weight."""
    return [((), (path, unit)) for unit in range(count)]


def coordinates(count: int) -> Axis:
    """An axis over the coordinates of embeddings, whatever the slot."""
    return [((), coordinate) for coordinate in range(count)]


def common_inputs(columns: Axis) -> tuple[str, ...]:
    """The inputs that every one of some columns is of."""
    sets = [set(column[0]) for column in columns if column is not None]
    return tuple(sorted(set.intersection(*sets))) if sets else ()


def products(columns: Axis, others: Axis) -> Axis:
    """The places of the products of two tensors, number by number."""
    return [
        column and other and (tuple(sorted({*column[0], *other[0]})), (column[1], other[1]))
        for column, other in zip(columns, others, strict=True)
    ]
