"""A part of an inference graph on its own: one head or tower, its weights as constants if wanted.

It works on the SavedModel alone, so the recipe's code is not needed. All functions of the graph are
inlined and its weights become constants (`convert_variables_to_constants_v2`). What the wanted
outputs do not need falls away. The weights that are left become variables again, unless frozen.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from tnctl.errors import SHOWN, Failure, UserError, did_you_mean, printable
from tnctl.model.graph import (
    BY_SLOT,
    LENGTHS,
    PACKED,
    TOWERS,
    Input,
    Output,
    outputs_of,
    packed_inputs,
    signatures_of,
    slot_inputs,
)
from tnctl.model.layout import Layout
from tnctl.serving import allowed_ops
from tnctl.serving.graph_document import SignatureInput

EXAMPLES = 16  # random ones, with which a part is compared to the whole
TOLERANCE = 2e-5
# Ops that pass on what they get. A custom gradient leaves an IdentityN of all its inputs.
PASSING = ("Identity", "IdentityN", "StopGradient")


@dataclass(frozen=True)
class Part:
    """What a graph takes and returns."""

    packed: list[Input]
    by_slot: list[Input]
    outputs: list[Output]


def whole(layout: Layout, heads: tuple[str, ...]) -> Part:
    """A graph that nothing is cut from."""
    return Part(packed_inputs(layout), slot_inputs(layout), outputs_of(heads))


def cut(folder: str, to: str, everything: Part, part: str | None, frozen: bool) -> Part:
    """Write a head or tower (None: all heads) of the SavedModel in `folder` as one into `to`.

    `everything` is what the SavedModel takes and returns. Inputs of `packed` keep their shape and
    those that nothing reads are left out; so are those of `by_slot` of which no column is read.
    Raises UserError when there is no such part.
    """
    loaded = load_graph(folder)
    with tensorflow_errors("the graph cannot be cut"):
        check_inputs(loaded.signatures.get(PACKED), everything.packed, PACKED)
        function, outputs = chosen(loaded.signatures, everything.outputs, part)
        if absent := sorted(outputs.keys() - function.structured_outputs.keys()):
            raise Failure(f"the graph has no output {absent[0]}. Take another checkpoint")
        return cut_function(function, outputs, to, everything, part, frozen)


def cut_function(
    function: Any,
    outputs: dict[str, Output],
    to: str,
    everything: Part,
    part: str | None,
    frozen: bool,
) -> Part:
    """Write `outputs`, by their names in a function, as a SavedModel into `to`."""
    constant = convert_variables_to_constants_v2(function, lower_control_flow=False)
    tensors = dict(zip(sorted(function.structured_outputs), constant.outputs, strict=True))
    graph, fetched = needed(constant.graph.as_graph_def(), [tensors[name].name for name in outputs])
    read = {one.name: columns_read(graph, one, fetched) for one in everything.packed}
    packed, by_slot = everything.packed, everything.by_slot
    if part is not None:
        packed = [one for one in packed if read[one.name] is not None]
        by_slot = [one for one in by_slot if any_read(one, read[one.source])]
    weights = {} if frozen else variables(function, graph)

    # With specs it is traced once, and constants are there once.
    @tf.function(
        autograph=False,
        input_signature=[tf.TensorSpec([None, *one.shape], one.dtype) for one in packed],
    )
    def scores(*tensors: Any) -> list[Any]:
        given = {
            f"{one.name}:0": tensor
            for one, tensor in zip(packed, tensors, strict=True)
            if read[one.name] is not None
        }
        given |= {f"{name}:0": weight.read_value() for name, weight in weights.items()}
        found = tf.import_graph_def(graph, given, return_elements=fetched, name="")
        return [given.get(name, one) for name, one in zip(fetched, found, strict=True)]

    names = [one.name for one in outputs.values()]
    module = tf.Module()
    module.weights = list(weights.values())
    signatures = signatures_of(
        lambda tensors: {n: tf.identity(t) for n, t in zip(names, scores(*tensors), strict=True)},
        packed,
        by_slot,
    )
    tf.saved_model.save(module, to, signatures=signatures)
    made = Part(packed, by_slot, list(outputs.values()))
    compare(function, everything, {one.name: name for name, one in outputs.items()}, made, to)
    return made


def check_inputs(function: Any, inputs: Iterable[SignatureInput | Input], signature: str) -> None:
    """Raise Failure unless a function takes these inputs."""
    specs = {} if function is None else function.structured_input_signature[1]
    taken = {name: (spec.dtype.name, tuple(spec.shape)[1:]) for name, spec in specs.items()}
    if taken != {one.name: (one.dtype, tuple(one.shape)) for one in inputs}:
        raise Failure(
            f"signature {signature} of the graph does not take the inputs that it should. Take "
            "another checkpoint, or split again"
        )


def load_graph(folder: str, url: str | None = None) -> Any:
    """The SavedModel in a local folder, which `url` is the name of in messages.

    Raises Failure when an op of it does more than compute, or TensorFlow does not take it.
    """
    try:
        return allowed_ops.load(folder, url)
    except Failure:
        raise
    except Exception as error:  # its parsers and readers raise whatever they raise
        raise Failure(
            f"the graph is no SavedModel that TensorFlow loads ({reason(error)}). Take another "
            "checkpoint, or split again"
        ) from error


@contextmanager
def tensorflow_errors(what: str) -> Iterator[None]:
    """Say in one line what TensorFlow makes of a graph that is not what it should be.

    Errors of a disk pass: they are not the graph's.
    """
    try:
        yield
    except (UserError, OSError, tf.errors.ResourceExhaustedError):
        raise
    except Exception as error:
        raise Failure(
            f"{what} ({reason(error)}). Take another checkpoint, or split again"
        ) from error


def reason(error: Exception) -> str:
    """The first line of an error's text."""
    return printable(str(error).strip().split("\n")[0])[:SHOWN] or type(error).__name__


def chosen(
    signatures: Any, outputs: list[Output], part: str | None
) -> tuple[Any, dict[str, Output]]:
    """The function that computes a part, and its outputs by their names there."""
    if part is None:
        return signatures[PACKED], {one.name: one for one in outputs}
    # The main head's stand there twice: as `logits` and as `logits_HEAD`.
    of_head = {one.kind: one.name for one in outputs if one.of == part}
    if of_head:
        return signatures[PACKED], {
            name: Output(kind, kind, part) for kind, name in of_head.items()
        }
    towers = signatures.get(TOWERS)
    known = {} if towers is None else towers.structured_outputs
    if part not in known:
        names = sorted({one.of for one in outputs} | known.keys())
        raise UserError(f"the graph has no head or tower '{part}'. {did_you_mean(part, names)}")
    shape = tuple(known[part].shape[1:])
    return towers, {part: Output("embedding", "embedding", part, shape)}


def needed(graph: Any, outputs: list[str]) -> tuple[Any, list[str]]:
    """What outputs (NAME:NUMBER) need of a graph without state, and where they are in it."""
    nodes = {node.name: node for node in graph.node}

    def source(reference: str) -> str:
        name, _, number = reference.partition(":")
        while nodes[name].op in PASSING:
            name, _, number = nodes[name].input[int(number or 0)].partition(":")
        return f"{name}:{number or 0}"

    def data(node: Any) -> list[str]:
        # Control inputs order reads of variables, which are constants here.
        return [source(one) for one in node.input if not one.startswith("^")]

    fetched = [source(one) for one in outputs]
    kept: set[str] = set()
    waiting = list(fetched)
    while waiting:
        name = waiting.pop().partition(":")[0]
        if name not in kept:
            kept.add(name)
            waiting += data(nodes[name])
    found = type(graph)(versions=graph.versions, library=graph.library)
    for node in graph.node:
        if node.name in kept:
            copy = found.node.add()
            copy.CopyFrom(node)
            del copy.input[:]
            copy.input.extend(data(node))
    return found, fetched


def any_read(one: Input, columns: set[int] | None) -> bool:
    """Whether an input is among the columns of its source that are read."""
    return not (columns or set()).isdisjoint(range(one.at, one.at + one.columns))


def columns_read(graph: Any, one: Input, fetched: Iterable[str]) -> set[int] | None:
    """The columns of an input of `packed` that a graph reads; None: it does not take it at all.

    Slices with known bounds read a part, other ops all of it.
    """
    of_input = f"{one.name}:0"
    every = set(range(one.columns))
    takers = [node for node in graph.node if of_input in node.input]
    if of_input in fetched:
        return every
    if not takers:
        return None
    slices = [node for node in takers if node.op == "StridedSlice" and node.input[0] == of_input]
    bounds = constants(graph, [name for node in slices for name in node.input[1:]])
    read: set[int] = set()
    for node in takers:
        if node in slices and all(name in bounds for name in node.input[1:]):
            begin, end, step = (bounds[name] for name in node.input[1:])
            read |= sliced(node.attr, begin, end, step, one.columns)
        elif node.op != "Shape":
            read |= every
    return read


def sliced(
    attributes: Any, begin: NDArray[Any], end: NDArray[Any], step: NDArray[Any], columns: int
) -> set[int]:
    """The columns that a StridedSlice of [B, columns] reads."""
    masks = {
        name: attributes[f"{name}_mask"].i
        for name in ("begin", "end", "shrink_axis", "ellipsis", "new_axis")
    }
    if len(begin) < 2 or masks["ellipsis"] or masks["new_axis"]:
        return set(range(columns))
    if masks["shrink_axis"] & 2:
        return {int(begin[1]) % columns}
    first = None if masks["begin"] & 2 else int(begin[1])
    last = None if masks["end"] & 2 else int(end[1])
    return set(range(columns)[first : last : int(step[1])])


def constants(graph: Any, references: list[str]) -> dict[str, NDArray[Any]]:
    """The values of those tensors of a graph that no input changes."""
    nodes = {node.name: node for node in graph.node}

    @cache
    def fixed(reference: str) -> bool:
        node = nodes[reference.partition(":")[0]]
        return node.op != "Placeholder" and all(map(fixed, node.input))

    wanted = [one for one in dict.fromkeys(references) if fixed(one)]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        found = tf.import_graph_def(graph, return_elements=wanted, name="")
        return dict(zip(wanted, session.run(found), strict=True))


def variables(function: Any, graph: Any) -> dict[str, Any]:
    """Variables of the weights that are constants in a graph, which become its placeholders.

    `function` is what the graph was made from: its captures have the names of the constants.
    """
    names = {id(variable.handle): variable.name for variable in function.variables}
    weights = {
        placeholder.op.name: names[id(handle)]
        for handle, placeholder in function.graph.captures
        if id(handle) in names
    }
    found = {}
    for node in graph.node:
        if node.name in weights:
            value = tf.make_ndarray(node.attr["value"].tensor)
            found[node.name] = tf.Variable(value, name=weights[node.name].partition(":")[0])
            node.op = "Placeholder"
            del node.attr["value"]
    return found


def compare(
    function: Any, everything: Part, names: dict[str, str], part: Part, folder: str
) -> None:
    """Raise Failure unless the SavedModel of a part gives what the whole gives.

    `names` has for each output its name in the whole. Inputs that the part does not take are
    random too, so that it is seen when they are read after all.
    """
    random = np.random.default_rng(1)
    given = {
        one.name: random.normal(size=(EXAMPLES, one.columns)).astype(one.dtype)
        for one in everything.packed
        if one.source != LENGTHS
    }
    lengths = [one for one in everything.by_slot if one.source == LENGTHS]
    if lengths:
        shapes = {one.name: one.shape for one in everything.by_slot}
        most = [shapes[one.name.removesuffix("_length")][0] for one in lengths]
        given[LENGTHS] = random.integers(0, most, (EXAMPLES, len(most)), "i4", endpoint=True)
    expected = function(**{name: tf.constant(array) for name, array in given.items()})
    loaded = allowed_ops.load(folder)
    for signature, inputs in ((PACKED, part.packed), (BY_SLOT, part.by_slot)):
        cut_inputs = {
            one.name: tf.constant(
                given[one.source][:, one.at : one.at + one.columns].reshape(-1, *one.shape)
            )
            for one in inputs
        }
        found = loaded.signatures[signature](**cut_inputs)
        for output, name in names.items():
            if not np.allclose(
                found[output], expected[name], rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True
            ):
                raise Failure(
                    f"{output} of signature {signature} is not what the whole graph gives. Split "
                    "without head and frozen, and report it"
                )
