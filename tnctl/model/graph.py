"""The inference graph: a SavedModel that needs neither tnctl nor Keras."""

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Iterable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import def_function

from tnctl.model.building import Model
from tnctl.model.layout import LINEAR, LINEARS, Layout

BY_SLOT = "by_slot"
PACKED = "packed"
TOWERS = "towers"
SEQUENCES = "sequences"
LENGTHS = "lengths"


@dataclasses.dataclass(frozen=True)
class Input:
    """An input of a signature: float32 [B, *shape], lengths int32.

    `source` is where its columns come from, from column `at`: x, linear, sequences or lengths, or
    linears, which are added up to linear.
    """

    name: str
    shape: tuple[int, ...]
    source: str
    at: int = 0

    @property
    def columns(self) -> int:
        """How many columns of its source it is."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> str:
        """The dtype of its values."""
        return "int32" if self.source == LENGTHS else "float32"


def packed_inputs(layout: Layout) -> list[Input]:
    """The inputs of signature `packed`, in the order the network takes them."""
    columns = {
        "x": layout.width,
        LINEAR: int(layout.has_linear),
        SEQUENCES: layout.sequences_width,
        LENGTHS: len(layout.sequences),
    }
    return [Input(name, (count,), name) for name, count in columns.items() if count]


def slot_inputs(layout: Layout) -> list[Input]:
    """The inputs of signature `by_slot`, in the order of their columns in their sources.

    A pooled slot [B, d], a numeric input or one-hot slot [B, n], `linear` [B, 1]; a sequence
    [B, L, d] with its number of values, `NAME_length` [B].
    """
    places = layout.pooled | layout.numeric_columns
    inputs = [Input(name, (width,), "x", at) for name, (at, width) in places.items()]
    if layout.has_linear:
        inputs.append(Input(LINEAR, (1,), LINEAR))
    for name, place in layout.sequences.items():
        inputs += [
            Input(name, (place.length, place.width), SEQUENCES, place.column),
            Input(f"{name}_length", (), LENGTHS, place.number),
        ]
    return inputs


def linear_slots(layout: Layout) -> list[str]:
    """The slots in the order in which `linear` is added up."""
    return [name for table in layout.tables if table.linear for name in table.slots]


def linear_inputs(layout: Layout) -> list[Input]:
    """What takes the place of `linear` in `by_slot`: NAME_linear of each slot that it adds.

    [B, 1]; of a sequence [B, L], because its linear weights are added one by one.
    """
    inputs: list[Input] = []
    for name in linear_slots(layout):
        place = layout.sequences.get(name)
        end = inputs[-1].at + inputs[-1].columns if inputs else 0
        inputs.append(Input(f"{name}_linear", (place.length if place else 1,), LINEARS, end))
    return inputs


@dataclasses.dataclass(frozen=True)
class ModelOutput:
    """An output of a signature, float32 [B, *shape]: of a head, or the embedding of a tower."""

    name: str
    kind: str  # logits, predictions or embedding
    of: str
    shape: tuple[int, ...] = ()


def outputs_of(heads: tuple[str, ...]) -> list[ModelOutput]:
    """The outputs of a graph with these heads."""
    return [
        ModelOutput(name.replace("logits", kind, 1), kind, head)
        for name, head in head_outputs(heads).items()
        for kind in ("logits", "predictions")
    ]


def head_outputs(heads: tuple[str, ...]) -> dict[str, str]:
    """The outputs that hold logits: name -> head. The first head is the main one."""
    named = {f"logits_{head}": head for head in heads}
    return {"logits": heads[0]} | (named if len(heads) > 1 else {})


def save(model: Model, folder: str) -> None:
    """Write the float32 inference graph as a SavedModel into a local folder.

    Signature `by_slot` (also the default) takes each input by name, `packed` takes x [B, W],
    `linear` [B, 1] and the sequences. Both return `logits` [B] and `predictions` [B], the sigmoid
    of the logits (of a squared loss: the logits), of the main head; with several heads also for
    each head, as `logits_HEAD` and `predictions_HEAD`. Of a recipe with towers, signature `towers`
    takes the inputs of `packed` and returns the output of each, [B, d], by its name.
    """
    network = model.inference_network
    packed = packed_inputs(model.layout)
    regression = model.conf.train.loss.name == "mse"

    def scores(tensors: list[Any]) -> dict[str, Any]:
        outputs = network(tensors, training=False)
        by_name = {}
        for name, head in head_outputs(model.heads).items():
            logits = outputs[head][:, 0]
            if model.logit_correction:
                logits += model.logit_correction
            if (recalibration := model.recalibration.get(head)) is not None:
                logits = recalibration.of(logits)
            predicted = name.replace("logits", "predictions", 1)
            by_name[name] = logits
            by_name[predicted] = tf.identity(logits) if regression else tf.sigmoid(logits)
        return by_name

    def towers(**inputs: Any) -> dict[str, Any]:
        outputs = network([inputs[entry.name] for entry in packed], training=False)
        return {name: tf.identity(outputs[name]) for name in model.towers}

    # A bare module: Keras' own exporters store every variable twice.
    module = tf.Module()
    module.weights = [variable.value for variable in network.variables]
    signatures = signatures_of(scores, packed, slot_inputs(model.layout))
    if model.towers:
        signatures[TOWERS] = concrete(towers, packed)
    save_module(module, folder, signatures)


def save_module(module: Any, folder: str, signatures: Any, options: Any = None) -> None:
    """Write a SavedModel as `tf.saved_model.save` does, which has no argument for autograph.

    Autograph would convert what TensorFlow wraps signatures in, to the same graph, by Python files
    in TMPDIR that stay after a kill.
    """
    function = def_function.function
    def_function.function = functools.partial(function, autograph=False)
    try:
        tf.saved_model.save(module, folder, signatures=signatures, options=options)
    finally:
        def_function.function = function


def signatures_of(
    scores: Callable[[list[Any]], dict[str, Any]], packed: list[Input], by_slot: list[Input]
) -> dict[str, Any]:
    """The signatures of a function of the inputs of `packed`, in their order."""
    linears = [part for part in by_slot if part.source == LINEARS]

    def of_packed(**inputs: Any) -> dict[str, Any]:
        return scores([inputs[entry.name] for entry in packed])

    def of_slots(**inputs: Any) -> dict[str, Any]:
        return scores([
            added(linears, inputs) if linears and whole.name == LINEAR else
            concatenated(whole, [part for part in by_slot if part.source == whole.name], inputs)
            for whole in packed
        ])  # fmt: skip

    signatures = {PACKED: concrete(of_packed, packed), BY_SLOT: concrete(of_slots, by_slot)}
    return signatures | {"serving_default": signatures[BY_SLOT]}


def added(parts: list[Input], inputs: dict[str, Any]) -> Any:
    """`linear` [B, 1]: the columns of its parts, added one after the other."""
    columns = [inputs[part.name][:, at : at + 1] for part in parts for at in range(part.columns)]
    total = columns[0]
    for column in columns[1:]:
        total += column
    return total


def concatenated(whole: Input, parts: list[Input], inputs: dict[str, Any]) -> Any:
    """An input of `packed` [B, columns], made of its parts; zeros in columns of no part."""
    columns, end = [], 0
    for part in [*parts, dataclasses.replace(whole, at=whole.columns)]:
        if part.at > end:
            rows = tf.shape(next(iter(inputs.values())))[0]
            columns.append(tf.zeros([rows, part.at - end], part.dtype))
        if part.at < whole.columns:
            given = inputs[part.name]
            # A length is [B], and a sequence is flat in its source.
            is_flat = given.shape.rank == 2
            columns.append(given if is_flat else tf.reshape(given, [-1, part.columns]))
            end = part.at + part.columns
    return columns[0] if len(columns) == 1 else tf.concat(columns, axis=1)


def refill(model: Model, folder: str) -> None:
    """Replace the weights in a SavedModel that `save` made of the same network by today's."""
    prefix = f"{folder}/variables/variables"
    stored = tf.train.load_checkpoint(prefix)
    tensors = {name: stored.get_tensor(name) for name in sorted(stored.get_variable_to_shape_map())}
    for position, variable in enumerate(model.inference_network.variables):
        tensors[f"weights/{position}/.ATTRIBUTES/VARIABLE_VALUE"] = variable.value
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=list(tensors.values()),
    )


def concrete(function: Any, inputs: Iterable[Any], of_one_row: Collection[str] = ()) -> Any:
    """A concrete function of named inputs [B, *shape], where B of some is 1."""
    specs = {
        entry.name: tf.TensorSpec(
            [1 if entry.name in of_one_row else None, *entry.shape], entry.dtype, entry.name
        )
        for entry in inputs
    }
    return tf.function(function, autograph=False).get_concrete_function(**specs)
