"""Signature `rank` of a split graph: one user and N items.

The operations of signature `packed` are made again. Each of its inputs, such as `x`, becomes two:
`x_user` [1, columns] has the columns of the user's inputs of `by_slot`, and `x` [N, columns] those
of the items' inputs. An input without columns is left out. A tensor that depends on the user's
inputs alone has one row, and is repeated N times only for an operation that also reads items. A
matrix product over columns of the user and the items is split into two products that are added, and
the user's product is computed once. Sums over columns or fields are split in the same way, for
example in a factorization machine. Everything else is computed for every item.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from tnctl.model.graph import LENGTHS, PACKED, Input, concrete, save_module
from tnctl.progress import say
from tnctl.schema import Conf
from tnctl.serving.golden_checks import TOLERANCE, rank_deviation
from tnctl.serving.graph.graph_document import (
    LENGTH,
    RANK,
    GraphManifest,
)
from tnctl.serving.graph.inlined_graph import constants, needed, sliced, weights_of
from tnctl.serving.graph.loaded_graph import (
    SideInput,
    load_graph,
    rank_inputs,
    run,
    tensorflow_errors,
)

EXAMPLES = 16  # random ones, with which the signature is compared to packed
READ = ("MatMul", "ConcatV2", "StridedSlice", "Sum")  # of inputs of these constants are known
COUNTING = ("Shape", "Size")
MASKS = ("begin", "end", "new_axis", "ellipsis")  # of a StridedSlice


@dataclass(frozen=True)
class Part:
    """Columns [rows, ..., columns] or fields [rows, fields, ...]: the user's, or of every item."""

    of_user: bool
    tensor: Any

    @property
    def columns(self) -> int:
        """How many there are."""
        return int(self.tensor.shape[-1])


class RankedGraph:
    """The tensors of a graph without state, of one user and N items."""

    def __init__(
        self,
        graph: Any,
        shapes: Callable[[str], Any],
        inputs: Mapping[str, list[Part]],
        weights: Mapping[str, Any],
    ) -> None:
        """`inputs` are the parts of each input, by name.

        `shapes` returns the shape of a tensor, by its name, where the user's have N rows too.
        """
        self._graph, self._shapes = graph, shapes
        self._nodes = {node.name: node for node in graph.node}
        fixed = [reference for node in graph.node for reference in node.input if node.op in READ]
        self._constants = constants(graph, fixed)
        self._of_user: dict[str, bool | None] = {}  # by node; None: it depends on no input
        self._of_counts: set[str] = set()  # nodes that depend on how many rows there are alone
        self._tensors: dict[str, Any] = {}  # of what is the user's alone: of one row
        self._repeated: dict[str, Any] = {}
        items = [part for parts in inputs.values() for part in parts if not part.of_user]
        self._rows = tf.shape(items[0].tensor)[0]
        self._inputs = {f"{name}:0": parts for name, parts in inputs.items()}
        given: dict[str, tuple[bool | None, Any]] = {
            name: (None, tensor) for name, tensor in weights.items()
        }
        for name, parts in inputs.items():
            side = all(part.of_user for part in parts)
            tensors = [p.tensor if p.of_user is side else self._repeat(p.tensor) for p in parts]
            given[name] = (side, tf.concat(tensors, axis=1))
        for node in graph.node:  # each after those that it reads
            read = [name for name in node.input if self._side(name) is not None]
            if node.op in COUNTING or (
                read and all(self._node(n).name in self._of_counts for n in read)
            ):
                self._of_counts.add(node.name)
            sides = {self._side(reference) for reference in read}
            of_user, tensor = given.get(node.name, (all(sides) if sides else None, None))
            self._of_user[node.name] = of_user
            if tensor is not None:
                outputs = [tensor]
            elif of_user is False:
                known = self._columns(node) or self._product(node) or self._sum(node)
                outputs = known or self._made(node, self.each)
            else:
                outputs = self._made(node, self._tensors.__getitem__)
            self._tensors |= {f"{node.name}:{k}": tensor for k, tensor in enumerate(outputs)}

    def each(self, reference: str) -> Any:
        """A tensor, by its name, of N items."""
        if not self._side(reference):
            return self._tensors[reference]
        if reference not in self._repeated:
            node, shape = self._node(reference), self._shapes(reference)
            has_rows = shape.rank and shape[0] is None and shape[1:].is_fully_defined()
            if has_rows and node.name not in self._of_counts:
                self._repeated[reference] = self._repeat(self._tensors[reference])
            else:
                outputs = enumerate(self._made(node, self.each))
                self._repeated |= {f"{node.name}:{k}": tensor for k, tensor in outputs}
        return self._repeated[reference]

    def _node(self, reference: str) -> Any:
        return self._nodes[reference.partition(":")[0]]

    def _side(self, reference: str) -> bool | None:
        return self._of_user[reference.partition(":")[0]]

    def _repeat(self, tensor: Any) -> Any:
        return tf.tile(tensor, [self._rows, *[1] * (tensor.shape.rank - 1)])

    def _made(self, node: Any, tensor_of: Callable[[str], Any]) -> list[Any]:
        """The outputs of a node for inputs that `tensor_of` returns by name."""
        graph = self._graph
        alone = type(graph)(versions=graph.versions, library=graph.library, node=[node])
        inputs = {reference: tensor_of(reference) for reference in node.input}
        [operation] = tf.import_graph_def(alone, inputs, return_elements=[node.name])
        return list(operation.outputs)

    def _columns(self, node: Any) -> list[Any] | None:
        """Columns of the user alone, or of items alone, of an input of both; None: it is none."""
        if node.op != "StridedSlice" or (places := self._columns_read(node)) is None:
            return None
        parts = cut(self._parts(node.input[0]), places)
        if len({part.of_user for part in parts}) > 1:
            return None
        self._of_user[node.name] = parts[0].of_user
        columns = tf.concat([part.tensor for part in parts], axis=1)
        return [columns[:, 0] if self._shapes(f"{node.name}:0").rank == 1 else columns]

    def _product(self, node: Any) -> list[Any] | None:
        """The product of a matrix with columns of the user and of the items; None: it is none."""
        if node.op != "MatMul" or node.attr["transpose_a"].b or node.attr["transpose_b"].b:
            return None
        parts, kernel = self._parts(node.input[0]), self._constant(node.input[1])
        if kernel is None or len({part.of_user for part in parts}) == 1:
            return None
        ends = np.cumsum([part.columns for part in parts])
        products = []
        for of_user in (True, False):
            pairs = [pair for pair in zip(parts, ends, strict=True) if pair[0].of_user is of_user]
            rows = [np.arange(end - part.columns, end) for part, end in pairs]
            columns = tf.concat([part.tensor for part, _ in pairs], axis=1)
            products.append(tf.matmul(columns, kernel[np.concatenate(rows)]))
        return [self._added(*products)]

    def _sum(self, node: Any) -> list[Any] | None:
        """The sum over columns or fields of the user and of the items; None: it is none."""
        if node.op != "Sum" or (axes := self._constant(node.input[1])) is None:
            return None
        axes = np.atleast_1d(axes) % self._shapes(node.input[0]).rank
        parts = self._fields(node.input[0]) if 1 in axes and 0 not in axes else []
        if len({part.of_user for part in parts}) < 2:
            return None
        sums = []
        for of_user in (True, False):
            fields = tf.concat([part.tensor for part in parts if part.of_user is of_user], axis=1)
            sums.append(tf.reduce_sum(fields, axes, keepdims=node.attr["keep_dims"].b))
        return [self._added(*sums)]

    def _added(self, of_user: Any, of_items: Any) -> Any:
        return (of_user if of_user.shape[0] == 1 else self._repeat(of_user)) + of_items

    def _fields(self, reference: str) -> list[Part]:
        """The fields [rows, fields, ...] of a tensor, one after the other; of a matrix, columns."""
        node, shape = self._node(reference), self._shapes(reference)
        if self._side(reference) is False and node.op == "Square":
            return [
                Part(part.of_user, tf.square(part.tensor)) for part in self._fields(node.input[0])
            ]
        if shape.rank == 2:
            return self._parts(reference)
        if self._side(reference) is False and node.op == "Reshape" and shape[1:].is_fully_defined():
            width, parts = shape[-1], self._parts(node.input[0])
            of_fields = shape.rank == 3 and self._shapes(node.input[0])[1:] == [shape[1] * width]
            if of_fields and all(part.columns % width == 0 for part in parts):
                return [
                    Part(part.of_user, tf.reshape(part.tensor, [-1, part.columns // width, width]))
                    for part in parts
                ]
        return [self._part(reference)]

    def _part(self, reference: str) -> Part:
        return Part(bool(self._side(reference)), self._tensors[reference])

    def _parts(self, reference: str) -> list[Part]:
        """The columns of a tensor, side by side."""
        node, shape = self._node(reference), self._shapes(reference)
        if reference in self._inputs:
            return self._inputs[reference]
        if self._side(reference) is False and shape.rank:
            inputs = [*node.input]
            if node.op == "ConcatV2" and self._constant(inputs[-1]) in (-1, shape.rank - 1):
                return joined([part for of in inputs[:-1] for part in self._parts(of)])
            places = self._columns_read(node) if node.op == "StridedSlice" else None
            if shape.rank == 2 and places is not None:
                return cut(self._parts(inputs[0]), places)
            if node.op == "Reshape" and shape.rank == 2 and shape[1] == self._shapes(inputs[0])[-1]:
                return [
                    Part(part.of_user, tf.reshape(part.tensor, [-1, part.columns]))
                    for part in self._parts(inputs[0])
                ]
        return [self._part(reference)]

    def _columns_read(self, node: Any) -> range | None:
        """The columns of [rows, columns] that a StridedSlice returns; None: it does more."""
        shape, bounds = self._shapes(node.input[0]), [*map(self._constant, node.input[1:])]
        masks = {name: node.attr[f"{name}_mask"].i for name in MASKS}
        plain = masks["begin"] & masks["end"] & 1 and not masks["new_axis"] | masks["ellipsis"]
        if shape.rank != 2 or not plain or any(bound is None for bound in bounds):
            return None
        if (bounds[-1] != 1).any():  # steps
            return None
        begin, end, step = bounds
        read = sliced(node.attr, begin, end, step, shape[1])
        places = range(min(read), max(read) + 1)
        return places if len(places) == len(read) else None

    def _constant(self, reference: str) -> Any:
        """The value of a tensor that depends on no input; None for another."""
        return self._constants.get(reference)


def joined(parts: list[Part]) -> list[Part]:
    """The parts, of which neighbors of one side are one."""
    groups = [(of_user, [*group]) for of_user, group in groupby(parts, lambda part: part.of_user)]
    return [
        group[0] if len(group) == 1 else Part(of_user, tf.concat([p.tensor for p in group], -1))
        for of_user, group in groups
    ]


def cut(parts: list[Part], places: range) -> list[Part]:
    """The parts of neighboring columns."""
    chosen: list[Part] = []
    first = 0
    for part in parts:
        begin, end = max(places.start - first, 0), min(places.stop - first, part.columns)
        if begin < end:
            is_whole = end - begin == part.columns
            chosen.append(part if is_whole else Part(part.of_user, part.tensor[:, begin:end]))
        first += part.columns
    return chosen


def users_of(conf: Conf, by_slot: Collection[Input]) -> list[str]:
    """The inputs of by_slot that are the user's, crosses of such too; none where all are."""
    users: list[str] = []
    items: list[str] = []
    for given in by_slot:
        name = given.name.removesuffix(LENGTH if given.source == LENGTHS else "")
        of = conf.slots.get(name) or conf.numeric.get(name)
        if of is not None:  # neither the sum `linear` nor a part of it
            crossed = getattr(of, "cross", None) or ()
            parts = [conf.slots.get(part) for part in crossed] if crossed else [of]
            is_user = all(part is not None and part.side == "user" for part in parts)
            (users if is_user else items).append(given.name)
    return users if items else []


def parts_of(
    packed: Iterable[Input], sides: Iterable[SideInput], tensors: Mapping[str, Any]
) -> dict[str, list[Part]]:
    """The parts of each input of `packed`, made of the inputs of `rank`."""
    inputs: dict[str, list[Part]] = {}
    for whole in packed:
        owners = {at: side for side in sides if side.source == whole.name for at in side.places}
        ends: Counter[str] = Counter()
        inputs[whole.name] = parts = []
        for side, places in groupby(range(whole.columns), owners.get):
            count = len([*places])
            if side is None:  # columns that nothing reads
                parts.append(Part(True, tf.zeros([1, count], whole.dtype)))
                continue
            begin, ends[side.name] = ends[side.name], ends[side.name] + count
            part = Part(side.of_user, tensors[side.name])
            parts += cut([part], range(begin, begin + count))
    return inputs


def add_rank(
    folder: str,
    to: str,
    packed: Collection[Input],
    by_slot: Collection[Input],
    users: Collection[str],
    description: GraphManifest,
) -> GraphManifest:
    """Write the SavedModel in `folder` with signature `rank` into `to`; its new description.

    `users` are the inputs of `by_slot` that have one row. The signature is left out where it does
    not give what packed gives, as of a recipe that mixes the rows of a batch.
    """
    module = tf.Module()
    module.whole = load_graph(folder)
    function = module.whole.signatures[PACKED]
    sides = rank_inputs(packed, by_slot, users)
    with tensorflow_errors("signature rank cannot be made"):
        constant = convert_variables_to_constants_v2(function, lower_control_flow=False)
        names, outputs = sorted(function.structured_outputs), constant.outputs
        graph, fetched = needed(constant.graph.as_graph_def(), [output.name for output in outputs])
        variables = weights_of(function)
        arguments = zip(
            sorted(function.structured_input_signature[1]), constant.inputs, strict=True
        )
        places = {name: tensor.op.name for name, tensor in arguments}

        def rank(**inputs: Any) -> dict[str, Any]:
            parts = parts_of(packed, sides, inputs)
            ranked = RankedGraph(
                graph,
                lambda name: constant.graph.get_tensor_by_name(name).shape,
                {places[name]: of_input for name, of_input in parts.items()},
                {name: variable.read_value() for name, variable in variables.items()},
            )
            tensors = zip(names, fetched, strict=True)
            return {name: tf.identity(ranked.each(reference)) for name, reference in tensors}

        traced = concrete(rank, sides, of_one_row={side.name for side in sides if side.of_user})
        random = np.random.default_rng(1)
        inputs = {
            whole.name: random.integers(0, 2, (EXAMPLES, whole.columns)).astype(np.int32)
            if whole.source == LENGTHS
            else random.normal(size=(EXAMPLES, whole.columns)).astype(np.float32)
            for whole in packed
        }
        functions = {PACKED: function, RANK: traced}
        deviation = rank_deviation(lambda name, given: run(functions[name], given), inputs, sides)
    signatures = {**module.whole.signatures, RANK: traced}
    if not deviation <= TOLERANCE:
        say("no signature rank: the recipe mixes the rows of a batch")
        del signatures[RANK]
    save_module(module, to, signatures)
    if RANK not in signatures:
        return description
    known = replace(description.signatures, rank=tuple(users))
    return replace(description, version=GraphManifest.VERSION, signatures=known)
