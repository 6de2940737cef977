"""The inference graph: a SavedModel that needs neither tnctl nor Keras."""

import dataclasses
from typing import Any

import tensorflow as tf

from tnctl.model.building import Model
from tnctl.model.layout import LINEAR, Layout
from tnctl.schema import Conf

BY_SLOT = "by_slot"
PACKED = "packed"


def conf_to_json(conf: Conf) -> dict[str, Any]:
    """A conf as plain values."""
    return dataclasses.asdict(conf)


def packed_inputs(layout: Layout) -> dict[str, int]:
    """The inputs of signature `packed`: name -> columns."""
    inputs = {"x": layout.width} if layout.width else {}
    return inputs | ({LINEAR: 1} if layout.tables else {})


def slot_inputs(layout: Layout) -> dict[str, int]:
    """The inputs of signature `by_slot`: name -> columns, in the order they stand in x."""
    inputs = {slot: table.width for table in layout.tables for slot in table.slots if table.width}
    inputs |= dict.fromkeys(layout.numeric, 1)
    return inputs | ({LINEAR: 1} if layout.tables else {})


def save(model: Model, folder: str) -> None:
    """Write the float32 inference graph as a SavedModel into a local folder.

    Signature `by_slot` (also the default) takes each slot's pooled embedding [B, d] and each
    numeric input [B, 1] by name, and `linear` [B, 1]; `packed` takes x [B, W] and `linear`. Both
    return `logits` [B] and `predictions` [B], the sigmoid of the logits.
    """
    network = model.inference_network
    layout = model.layout

    def scores(tensors: list[Any]) -> dict[str, Any]:
        logits = network(tensors, training=False)[:, 0]
        return {"logits": logits, "predictions": tf.sigmoid(logits)}

    def packed(**inputs: Any) -> dict[str, Any]:
        return scores([inputs[name] for name in packed_inputs(layout)])

    def by_slot(**inputs: Any) -> dict[str, Any]:
        columns = [inputs[name] for name in slot_inputs(layout) if name != LINEAR]
        x = [tf.concat(columns, axis=1)] if columns else []
        return scores(x + ([inputs[LINEAR]] if layout.tables else []))

    # A bare module: Keras' own exporters store every variable twice.
    module = tf.Module()
    module.weights = [variable.value for variable in network.trainable_variables]
    signatures = {
        PACKED: concrete(packed, packed_inputs(layout)),
        BY_SLOT: concrete(by_slot, slot_inputs(layout)),
    }
    signatures["serving_default"] = signatures[BY_SLOT]
    tf.saved_model.save(module, folder, signatures=signatures)


def concrete(function: Any, inputs: dict[str, int]) -> Any:
    """A concrete function of named float32 inputs [B, columns]."""
    specs = {
        name: tf.TensorSpec([None, columns], tf.float32, name) for name, columns in inputs.items()
    }
    return tf.function(function, autograph=False).get_concrete_function(**specs)
