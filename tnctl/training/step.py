"""One step of training: find, gather, TensorFlow forward and backward, push, apply."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tnctl.data.features import Window
from tnctl.errors import Failure
from tnctl.model import layers, losses
from tnctl.model.aliases import tensor_over
from tnctl.model.building import Model, batch_norms
from tnctl.tables import NotFiniteError, aligned
from tnctl.training import life
from tnctl.training.buffers import Buffers


@dataclass(frozen=True)
class StepResult:
    """What a step computed: the mean loss, and logits float32 [B, labels], before the update.

    The logits are valid until the next step.
    """

    loss: float
    logits: NDArray[np.float32]


class TrainingStep:
    """Trains a model on one batch at a time.

    TensorFlow computes in the memory of the C tables and returns only gradients. All of them are
    checked finite before any weight changes. `rate_factor` multiplies every learning rate.
    """

    def __init__(self, model: Model, batch_size: int) -> None:
        self.model = model
        self.steps = 0
        self._rate_factor = 1.0
        self._buffers = Buffers(model, batch_size)
        self._number = aligned(1, np.int64)
        self._number_tensor = tensor_over(self._number)
        self._moving = moving_statistics(model)
        compiled = model.conf.train.xla and model.conf.train.precision == "float32"
        self._whole = gradient_function(model, batch_size, compiled)
        self._partial: Callable[..., Any] | None = None

    @property
    def rate_factor(self) -> float:
        """What every learning rate is multiplied by."""
        return self._rate_factor

    @rate_factor.setter
    def rate_factor(self, factor: float) -> None:
        if factor == self._rate_factor:
            return
        self._rate_factor = factor
        for table in self.model.tables:
            for number, segment in enumerate(table.segments):
                table.set_learning_rate(number, segment.optimizer.learning_rate * factor)
        dense = self.model.dense
        dense.set_learning_rate(dense.optimizer.learning_rate * factor)

    def __call__(self, batch: Window) -> StepResult:
        """Train on a batch of at most `batch_size` rows."""
        self._number[0] = self.steps + 1
        for table in self.model.tables:
            table.set_step(self.steps + 1)
        self._buffers.fill(batch, insert=True)
        tensors = self._buffers.tensors(batch.rows)
        outputs = self._function(batch.rows)(*tensors, self._number_tensor)
        loss, logits, inputs, dense, statistics = outputs
        with self.model.pool.awake():
            self._push(batch, inputs, dense, loss)
        self.steps += 1
        life.after_step(self.model, self.steps)
        for (moving, momentum), measured in zip(self._moving, statistics, strict=True):
            # A plain mean at first: what the statistics start with is of no batch. They and the
            # dense weights begin together, in a warm start later than the clock.
            rate = np.float32(max(1 - momentum, 1 / self.model.dense.step))
            moving += rate * (np.asarray(memoryview(measured)) - moving)
        return StepResult(float(loss), np.asarray(memoryview(logits)))

    def _push(self, batch: Window, inputs: list[Any], dense: list[Any], loss: Any) -> None:
        """Apply all gradients, or none when one of them is not finite."""
        try:
            if inputs:
                self._buffers.accumulate(inputs)
            self.model.dense.check(dense)
        except NotFiniteError as error:
            raise Failure(
                f"step {self.steps + 1}: a gradient is NaN, infinite or beyond 2^58 (loss "
                f"{float(loss):g}); no weight was changed. Take a smaller learning_rate, or look "
                "for extreme numbers in the data (transform: standardize or log1p)"
            ) from error
        scale = self._scale(dense)
        self._buffers.count(batch)
        self._buffers.apply(scale)
        self.model.dense.apply(dense, scale)

    def _scale(self, dense: list[Any]) -> float:
        """What brings the norm of all gradients together down to optimizer.clip_norm."""
        limit = self.model.conf.optimizer.clip_norm
        if not limit:
            return 1.0
        norm = (self._buffers.squares() + self.model.dense.squares(dense)) ** 0.5
        return float(limit / norm) if norm > limit else 1.0

    def _function(self, rows: int) -> Callable[..., Any]:
        if rows == self._buffers.batch_size:
            return self._whole
        if self._partial is None:
            self._partial = gradient_function(self.model, None, compiled=False)
        return self._partial


def moving_statistics(model: Model) -> list[tuple[NDArray[np.float32], float]]:
    """The memory of each moving statistic in the order of `batch_statistics`, and its momentum."""
    places = {id(one): number for number, one in enumerate(model.network.non_trainable_variables)}
    return [
        (model.moving[places[id(variable)]], layer.momentum)
        for layer in batch_norms(model.network)
        for variable in (layer.moving_mean, layer.moving_variance)
    ]


def gradient_function(model: Model, rows: int | None, compiled: bool) -> Callable[..., Any]:
    """A concrete function: inputs, labels[, weights], step -> what a step needs.

    It returns the loss, the logits [B, labels], the gradients of the inputs that are floats and of
    the dense weights, and the batch statistics of batch norms. The loss is that of the conf, plus
    the recipe's regularisers.
    """
    conf, variables, norms = model.conf, model.variables, batch_norms(model.network)
    heads = model.trained_heads
    label_weights = [label.weight for label in conf.data.all_labels.values()]
    count = len(model.network.inputs)

    @tf.function(autograph=False, jit_compile=compiled)
    def gradients(*tensors: tf.Tensor) -> Any:
        inputs, targets, step = list(tensors[:count]), tensors[count:-1], tensors[-1][0]
        watched = [tensor for tensor in inputs if tensor.dtype == tf.float32]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(watched)
            tape.watch(variables)
            with layers.at_step(step, conf.seed):
                outputs = model.network(inputs, training=True)
            logits = [outputs[head] for head in heads]
            stacked = logits[0] if len(logits) == 1 else tf.concat(logits, axis=1)
            examples = targets[1] if len(targets) > 1 else None
            loss = losses.total(conf.train.loss, label_weights, targets[0], stacked, examples)
            loss = tf.add_n([loss, *model.network.losses])
        of_inputs, of_variables = tape.gradient(
            loss, (watched, variables), unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        statistics = [one for layer in norms for one in layer.batch_statistics]
        return loss, stacked, of_inputs, of_variables, statistics

    specs = [tf.TensorSpec([rows, *one.shape[1:]], one.dtype) for one in model.network.inputs]
    specs.append(tf.TensorSpec([rows, len(label_weights)], tf.float32))
    if conf.data.weight:
        specs.append(tf.TensorSpec([rows], tf.float32))
    return gradients.get_concrete_function(*specs, tf.TensorSpec([1], tf.int64))


class Inference:
    """Logits of batches, read-only: unknown ids read zeros and nothing is inserted."""

    def __init__(self, model: Model, batch_size: int) -> None:
        self.model = model
        self.buffers = Buffers(model, batch_size)
        specs = [tf.TensorSpec([None, *one.shape[1:]], one.dtype) for one in model.network.inputs]

        @tf.function(autograph=False)
        def logits(*inputs: tf.Tensor) -> tf.Tensor:
            outputs = model.inference_network(list(inputs), training=False)
            found = tf.concat([outputs[head] for head in model.heads], axis=1)
            return found + model.logit_correction if model.logit_correction else found

        @tf.function(autograph=False, input_signature=specs)
        def towers(*inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            outputs = model.inference_network(list(inputs), training=False)
            return {name: outputs[name] for name in model.towers}

        self._logits = logits.get_concrete_function(*specs)
        self._towers = towers  # traced when they are asked for

    def __call__(self, batch: Window) -> NDArray[np.float32]:
        """The logits float32 [B, heads] of a batch of at most `batch_size` rows; to be kept.

        Corrected for data.negatives, as the split graph's are.
        """
        self.buffers.fill(batch, insert=False)
        return self.of_inputs(batch.rows)

    def of_inputs(self, rows: int) -> NDArray[np.float32]:
        """The logits of the first `rows` inputs that stand in the buffers."""
        result: NDArray[np.float32] = self._logits(*self.buffers.inputs(rows)).numpy()
        return result

    def towers(self, rows: int) -> dict[str, NDArray[np.float32]]:
        """What each tower makes of those inputs, [rows, d] by its name."""
        if not self.model.towers:
            return {}
        outputs = self._towers(*self.buffers.inputs(rows))
        return {name: tensor.numpy() for name, tensor in outputs.items()}
