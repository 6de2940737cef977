"""Graphs without functions and state: which of their nodes outputs need, and what those read.

`convert_variables_to_constants_v2` inlines the functions of a graph, and makes weights constants.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from tnctl.model.graph import Input
from tnctl.serving.rows.precision import Arrays

# Ops whose outputs are their inputs. A custom gradient leaves an IdentityN of all its inputs.
PASSING = ("Identity", "IdentityN", "StopGradient")


def needed(graph: Any, outputs: list[str]) -> tuple[Any, list[str]]:
    """The nodes of a graph without state that outputs (NAME:NUMBER) need, and their names there."""
    nodes = {node.name: node for node in graph.node}

    def source(reference: str) -> str:
        name, _, number = reference.partition(":")
        while nodes[name].op in PASSING:
            name, _, number = nodes[name].input[int(number or 0)].partition(":")
        return f"{name}:{number or 0}"

    def inputs(node: Any) -> list[str]:
        # Control inputs order reads of variables, which are constants here.
        return [source(name) for name in node.input if not name.startswith("^")]

    fetched = [source(output) for output in outputs]
    kept: dict[str, list[str]] = {}  # their inputs
    waiting = list(fetched)
    while waiting:
        name = waiting.pop().partition(":")[0]
        if name not in kept:
            kept[name] = inputs(nodes[name])
            waiting += kept[name]
    pruned = type(graph)(
        versions=graph.versions,
        library=graph.library,
        node=[node for node in graph.node if node.name in kept],
    )
    for node in pruned.node:
        node.input[:] = kept[node.name]
    return pruned, fetched


def columns_read(graph: Any, whole: Input, fetched: Iterable[str]) -> set[int] | None:
    """The columns of an input of `packed` that a graph reads; None: it does not take it at all.

    Slices with known bounds read a part, other ops all of it.
    """
    name = f"{whole.name}:0"
    every = set(range(whole.columns))
    if name in fetched:
        return every
    readers = [node for node in graph.node if name in node.input]
    if not readers:
        return None
    slices = [node for node in readers if node.op == "StridedSlice" and node.input[0] == name]
    bounds = constants(graph, [bound for node in slices for bound in node.input[1:]])
    read: set[int] = set()
    for node in readers:
        if node in slices and all(bound in bounds for bound in node.input[1:]):
            begin, end, step = (bounds[bound] for bound in node.input[1:])
            read |= sliced(node.attr, begin, end, step, whole.columns)
        elif node.op != "Shape":
            read |= every
    return read


def sliced(
    attributes: Any, begin: NDArray[Any], end: NDArray[Any], step: NDArray[Any], columns: int
) -> set[int]:
    """The columns that a StridedSlice of [B, columns] reads."""
    if len(begin) < 2 or attributes["ellipsis_mask"].i or attributes["new_axis_mask"].i:
        return set(range(columns))
    if attributes["shrink_axis_mask"].i & 2:
        return {int(begin[1]) % columns}
    first = None if attributes["begin_mask"].i & 2 else int(begin[1])
    last = None if attributes["end_mask"].i & 2 else int(end[1])
    return set(range(columns)[first : last : int(step[1])])


def constants(graph: Any, references: list[str]) -> Arrays:
    """The values of the tensors of a graph that do not depend on its inputs, by reference.

    `references` name tensors as inputs of nodes do; each array has its tensor's shape and dtype.
    """
    nodes = {node.name: node for node in graph.node}

    @cache
    def fixed(reference: str) -> bool:
        node = nodes[reference.partition(":")[0]]
        return node.op != "Placeholder" and all(map(fixed, node.input))

    wanted = list(filter(fixed, dict.fromkeys(references)))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tensors = tf.import_graph_def(graph, return_elements=wanted, name="")
        return dict(zip(wanted, session.run(tensors), strict=True))


def weights_of(function: Any) -> dict[str, Any]:
    """The variables of a function by the names of the constants that they become."""
    by_handle = {id(variable.handle): variable for variable in function.variables}
    return {
        placeholder.op.name: by_handle[id(handle)]
        for handle, placeholder in function.graph.captures
        if id(handle) in by_handle
    }


def variables(function: Any, graph: Any) -> dict[str, Any]:
    """Variables of the weights that are constants in a graph, which become its placeholders.

    `function` is what the graph was made from: its captures have the names of the constants.
    """
    weights, restored = weights_of(function), {}
    for node in graph.node:
        if node.name in weights:
            value = tf.make_ndarray(node.attr["value"].tensor)
            name = weights[node.name].name.partition(":")[0]
            restored[node.name] = tf.Variable(value, name=name)
            node.op = "Placeholder"
            del node.attr["value"]
    return restored
