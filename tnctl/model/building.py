"""From a conf to a model: sparse tables, the dense network of the recipe, the dense table."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tnctl.data.statistics_document import Statistics
from tnctl.errors import Failure, UserError, did_you_mean
from tnctl.model import layers, recipes
from tnctl.model.inputs import Inputs
from tnctl.model.layout import Layout, plan
from tnctl.model.parameter_tables import (
    ParameterTables,
    Recalibration,
    dense_table,
    empty_tables,
    pool_of,
)
from tnctl.schema import SINGLE_LABEL, SLOT_NAME, Conf, Label, Position, Train
from tnctl.tables import DenseTable, aligned

# What the kernel calls instructions that multiply bfloat16.
INSTRUCTIONS = ("amx_bf16", "avx512_bf16")
CPU_INFO = Path("/proc/cpuinfo")
# With fewer a step is no faster: products of small matrices take less time than rounding them.
FEWEST_WEIGHTS = 80_000

_left: ContextVar[int | None] = ContextVar("weights left", default=None)


@dataclass
class Model(ParameterTables):
    """All parts of a model: tables, dense network and dense table.

    The trainable variables of `network` live in `dense`, variable i in `dense.weights[i]`, and the
    moving statistics of batch norm in `moving`. `inference_network` computes in float32 with the
    same memory; it is `network` itself unless that computes in bfloat16. Both return a logit [B, 1]
    for each of `heads`, by name, and [B, d] for each of `towers`.
    """

    network: Any
    inference_network: Any
    moving: list[NDArray[np.float32]]
    heads: tuple[str, ...]
    recalibration: dict[str, Recalibration] = field(default_factory=dict)
    """by head, applied in inference to the corrected logits; empty while training"""

    @property
    def towers(self) -> list[str]:
        """The outputs of the networks that the recipe named with `Inputs.tower`."""
        return [name for name in self.network.output if name not in self.heads]

    @property
    def variables(self) -> list[tf.Variable]:
        return [variable.value for variable in self.network.trainable_variables]

    @property
    def variable_names(self) -> list[str]:
        return [variable.path for variable in self.network.trainable_variables]

    @property
    def trained_heads(self) -> list[str]:
        """The head of each label. A recipe's only head takes the only label, whatever its name."""
        return [self.heads[0]] if len(self.heads) == 1 else list(self.conf.data.all_labels)

    @property
    def logit_correction(self) -> float:
        """Added to logits in inference: with a share r of the negatives trained on, ln r.

        Of the odds trained on, the true ones are r times as large (He et al., Practical Lessons
        from Predicting Clicks on Ads at Facebook, 2014, section 6.3).
        """
        return math.log(self.conf.data.negatives)

    def check_aliases(self) -> None:
        """Raise unless the network still computes with the dense table's memory."""
        for network in (self.network, self.inference_network):
            place_variables(network, self.dense, self.moving, check_variables)


def enable_determinism() -> None:
    """Let TensorFlow use deterministic ops only, for the rest of the process."""
    tf.config.experimental.enable_op_determinism()


def build(conf: Conf, statistics: Statistics) -> Model:
    """A model with initial weights and empty tables."""
    layout = plan(conf, statistics)
    pool = pool_of(conf.train)
    tables = empty_tables(conf, layout, pool)
    network, heads = build_network(conf, layout, conf.train.precision)
    inference = network
    if conf.train.precision != "float32":
        inference, _ = build_network(conf, layout, "float32")
    sizes = [variable.value.shape.num_elements() for variable in network.trainable_variables]
    dense = dense_table(conf, sizes, pool)
    moving = [
        aligned(variable.value.shape.num_elements()) for variable in network.non_trainable_variables
    ]
    for computing in (inference, network):
        place_variables(computing, dense, moving, move_variables)
    return Model(conf, layout, statistics, pool, tables, dense, network, inference, moving, heads)


def place_variables(
    network: Any, dense: DenseTable, moving: list[NDArray[np.float32]], action: Any
) -> None:
    """Call `move_variables` or `check_variables` with each variable and its memory."""
    action([variable.value for variable in network.trainable_variables], dense.weights)
    action([variable.value for variable in network.non_trainable_variables], moving)


# ---- aliases ----
# Memory of the C tables that TensorFlow uses in place, through DLPack. Only this part makes aliases
# and assigns trainable variables: any other assignment would give a variable other memory, and the
# C optimizer would update memory that nothing reads.


def tensor_over(array: NDArray[Any]) -> tf.Tensor:
    """A TensorFlow tensor over the memory of an array, which must start on a 64-byte boundary."""
    if array.ctypes.data % 64:
        raise ValueError("TensorFlow aborts on memory that does not start on 64 bytes")
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def address(tensor: Any) -> int:
    """The address of the memory of an eager tensor."""
    return int(np.frombuffer(memoryview(tensor), np.uint8).ctypes.data)


def move_variables(variables: Sequence[Any], memory: Sequence[NDArray[np.float32]]) -> None:
    """Copy each variable's value into its memory, and make the variable an alias of the memory."""
    for variable, flat in zip(variables, memory, strict=True):
        view = flat.reshape(tuple(variable.shape))
        view[...] = variable.numpy()
        variable.assign(tensor_over(view))
    check_variables(variables, memory)


def check_variables(variables: Sequence[Any], memory: Sequence[NDArray[np.float32]]) -> None:
    """Raise RuntimeError unless every variable is still an alias of its memory."""
    for variable, flat in zip(variables, memory, strict=True):
        if address(variable.read_value()) != flat.ctypes.data:
            raise RuntimeError(
                f"variable {variable.name} left the memory of the dense table: something assigned "
                "it, and training would no longer reach it"
            )


def build_network(conf: Conf, layout: Layout, precision: str) -> tuple[Any, tuple[str, ...]]:
    """The Keras model of the recipe, and its heads.

    [x, linear, sequences, lengths] (those that exist) -> a logit [B, 1] for each head, by name,
    and the tensors that the recipe named as towers.
    """
    name = conf.recipe_name
    recipe = recipes.load(name)
    settings, given = recipes.settings_of(conf.recipe, recipe), settings_in_words(conf.recipe)
    keras.backend.clear_session()
    keras.utils.set_random_seed(conf.seed % 2**32)
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16" if precision == "bfloat16" else "float32")
    try:
        inputs = Inputs(layout, conf.data.all_labels)
        logits = recipe(inputs, **settings)
    except tf.errors.ResourceExhaustedError as error:
        raise Failure(
            f"recipe {name} with {given} needs more memory than this machine "
            "has. Give it smaller layers"
        ) from error
    except (TypeError, AttributeError, ValueError) as error:
        # Keras puts its own first line, and bold letters, around what a layer raises.
        plain = re.sub("\x1b\\[[0-9]+m", "", str(error)).strip()
        reason = re.sub("^Exception encountered when calling [^\n]*\n+", "", plain).split("\n")[0]
        if layout.numeric_at == 0:
            raise UserError(
                f"recipe {name} needs embeddings; the conf has no slots, or "
                f"embedding.width={conf.embedding.width}"
            ) from error
        if isinstance(error, ValueError):  # Keras, of a setting
            raise UserError(f"recipe {name} refused {given}: {reason}") from error
        raise
    finally:
        keras.config.set_dtype_policy(policy)
    named = logits if isinstance(logits, dict) else {SINGLE_LABEL: logits}
    check_logits(name, named)
    check_heads(name, tuple(named), conf.data.labels)
    if layout.unserved:
        trained = named if len(named) == 1 else conf.data.labels
        named = {
            head: shown(conf.position, logit, inputs.position, head) if head in trained else logit
            for head, logit in named.items()
        }
    network = keras.Model(inputs.tensors, named)
    if inputs.towers:
        network = with_towers(name, network, named, inputs)
    moving = {id(v) for layer in batch_norms(network) for v in layer.non_trainable_variables}
    if lost := [v.path for v in network.non_trainable_variables if id(v) not in moving]:
        raise UserError(
            f"recipe {name} has weights that nothing trains: {lost[0]}. Use "
            "tnctl.model.layers.BatchNorm and Dropout instead of Keras' BatchNormalization and "
            "Dropout; layers that draw random numbers themselves (LSTM and GRU too) cannot be used"
        )
    return network, tuple(named)


def shown(position: Position, logit: Any, embedding: Any, head: str) -> Any:
    """The logit [B, 1] of a head that is trained with where examples were shown."""
    layer = layers.Shown(position.combine, position.dropout, name=f"{head}_shown")
    return layer(logit, embedding)


def settings_in_words(recipe: Mapping[str, Any]) -> str:
    """The settings of a conf's recipe, as an error names them."""
    return str({key: value for key, value in recipe.items() if key != "name"})


def with_towers(recipe: str, network: Any, heads: dict[str, Any], inputs: Inputs) -> Any:
    """The network of the heads, with the towers as outputs beside them."""
    if same := sorted(heads.keys() & inputs.towers):
        raise UserError(f"recipe {recipe} has a head and a tower named {same[0]}")
    whole = keras.Model(inputs.tensors, heads | inputs.towers)
    trained = {id(variable) for variable in network.variables}
    if beside := [v.path for v in whole.variables if id(v) not in trained]:
        raise UserError(
            f"recipe {recipe} has a tower with weights that no head uses, so nothing "
            f"trains them: {beside[0]}"
        )
    return whole


def check_logits(recipe: str, logits: dict[str, Any]) -> None:
    """Raise UserError unless each head that a recipe returned is a logit, [B, 1]."""
    for head, tensor in logits.items() or {"": None}.items():
        shape = tuple(getattr(tensor, "shape", ()))
        if len(shape) != 2 or shape[1] != 1 or not SLOT_NAME.fullmatch(str(head)):
            received = f"{list(shape)}" if shape else f"{tensor!r}".split("\n")[0]
            raise UserError(
                f"recipe {recipe} must return a logit [B, 1], or a dict of them by "
                f"name. Received: {head + ' ' if head else ''}{received}. "
                "End with tnctl.model.layers.Logit()"
            )


def check_heads(recipe: str, heads: tuple[str, ...], labels: Mapping[str, Label]) -> None:
    """Raise UserError for labels that are no heads of the recipe, and for heads without labels."""
    if len(heads) == 1 and len(labels) <= 1:
        return
    if not labels:
        raise UserError(
            f"recipe {recipe} has heads {', '.join(heads)}; say which columns they are "
            f"trained on: +data.labels={{{heads[0]}: {{column: …}}, …}}, or data.labels in the conf"
        )
    if unknown := [label for label in labels if label not in heads]:
        raise UserError(
            f"data.labels.{unknown[0]}: recipe {recipe} has no such head. "
            f"{did_you_mean(unknown[0], heads)}"
        )


def batch_norms(network: Any) -> list[Any]:
    """The layers of a network, nested ones too, that keep moving statistics."""
    return [layer for layer in network._flatten_layers() if isinstance(layer, layers.BatchNorm)]


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


def bfloat16_advice(train: Train, dense_weights: int) -> str | None:
    """A line on train.precision=bfloat16 if it would pay on this CPU, else None."""
    if train.precision != "float32" or train.xla or dense_weights < FEWEST_WEIGHTS:
        return None
    try:
        words = set(CPU_INFO.read_text().split())
    except OSError:  # not Linux
        return None
    present = [name for name in INSTRUCTIONS if name in words]
    if not present:
        return None
    return (
        f"this CPU computes in bfloat16 ({', '.join(present)}): with train.precision=bfloat16 a "
        "step takes less time (figures: docs/train.md#bfloat16)"
    )
