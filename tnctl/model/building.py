"""From a conf to a model: sparse tables, the dense network of the recipe, the dense table."""

import os
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tnctl.data.statistics import Statistics
from tnctl.errors import UserError
from tnctl.model import aliases, recipes
from tnctl.model.inputs import Inputs
from tnctl.model.layout import Layout, initials, plan, segments, table_optimizer
from tnctl.schema import Conf
from tnctl.tables import DenseTable, Pool, SparseTable

MOST_THREADS = 8  # beyond this the tables wait for memory


@dataclass
class Model:
    """Everything that is trained, and how it fits together.

    `tables[i]` has the rows of `layout.tables[i]`; the trainable variables of `network` live in
    `dense`, variable i in `dense.weights[i]`. `inference_network` computes in float32 with the
    same memory; it is `network` itself unless that computes in bfloat16.
    """

    conf: Conf
    layout: Layout
    statistics: Statistics
    pool: Pool
    tables: list[SparseTable]
    network: Any
    inference_network: Any
    dense: DenseTable

    @property
    def variables(self) -> list[tf.Variable]:
        return [variable.value for variable in self.network.trainable_variables]

    @property
    def variable_names(self) -> list[str]:
        return [variable.path for variable in self.network.trainable_variables]

    def check_aliases(self) -> None:
        """Raise unless the network still computes with the dense table's memory."""
        for network in (self.network, self.inference_network):
            variables = [variable.value for variable in network.trainable_variables]
            aliases.check_variables(variables, self.dense.weights)


def enable_determinism() -> None:
    """Only ops of TensorFlow that give the same bits every time; for the rest of the process."""
    tf.config.experimental.enable_op_determinism()


def threads(conf: Conf) -> int:
    """How many threads the tables use."""
    return conf.train.threads or min(len(os.sched_getaffinity(0)), MOST_THREADS)


def build(conf: Conf, statistics: Statistics) -> Model:
    """A model with initial weights and empty tables."""
    layout = plan(conf)
    pool = Pool(threads(conf))
    tables = []
    for table_layout in layout.tables:
        table = SparseTable(segments(conf, table_layout), conf.seed, pool)
        for group, number in table_layout.groups.items():
            table.add_group(number, group, initials(conf, table_layout, group))
        tables.append(table)
    network = build_network(conf, layout, conf.train.precision)
    inference = network
    if conf.train.precision != "float32":
        inference = build_network(conf, layout, "float32")
    sizes = [variable.value.shape.num_elements() for variable in network.trainable_variables]
    dense = DenseTable(sizes, table_optimizer(conf.optimizer.dense), pool)
    for one in (inference, network):
        variables = [variable.value for variable in one.trainable_variables]
        aliases.move_variables(variables, dense.weights)
    return Model(conf, layout, statistics, pool, tables, network, inference, dense)


def build_network(conf: Conf, layout: Layout, precision: str) -> Any:
    """The Keras model of the recipe: [x, linear] (those that exist) -> logits [B, 1]."""
    recipe = recipes.load(conf.recipe["name"])
    settings = recipes.settings_of(conf.recipe, recipe)
    keras.backend.clear_session()
    keras.utils.set_random_seed(conf.seed % 2**32)
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16" if precision == "bfloat16" else "float32")
    try:
        inputs = Inputs(layout)
        logits = recipe(inputs, **settings)
    except (TypeError, AttributeError, ValueError) as error:
        name, reason = conf.recipe["name"], str(error).strip().split("\n")[0]
        if layout.numeric_at == 0:
            raise UserError(
                f"recipe {name} needs embeddings; the conf has no slots, or "
                f"embedding.width={conf.embedding.width}"
            ) from error
        if isinstance(error, ValueError):  # Keras, of a setting
            raise UserError(f"recipe {name} refused {settings}: {reason}") from error
        raise
    finally:
        keras.config.set_dtype_policy(policy)
    network = keras.Model(inputs.tensors, logits)
    if network.non_trainable_variables:
        names = ", ".join(variable.path for variable in network.non_trainable_variables)
        raise UserError(f"recipe {conf.recipe['name']} has weights that are not trained: {names}")
    return network
