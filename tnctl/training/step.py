"""One step of training: find, gather, TensorFlow forward and backward, push, apply."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tnctl.data.features import Window
from tnctl.errors import Failure
from tnctl.model.building import Model
from tnctl.tables import NotFiniteError
from tnctl.training.buffers import Buffers


@dataclass(frozen=True)
class StepResult:
    """What a step computed: the mean loss and the logits float32 [B], valid until the next step."""

    loss: float
    logits: NDArray[np.float32]


class TrainingStep:
    """Trains a model on one batch at a time.

    TensorFlow computes in the memory of the C tables and returns only gradients. All of them are
    checked finite before any weight changes.
    """

    def __init__(self, model: Model, batch_size: int) -> None:
        self.model = model
        self.steps = 0
        self._buffers = Buffers(model, batch_size)
        compiled = model.conf.train.xla and model.conf.train.precision == "float32"
        self._whole = gradient_function(model, batch_size, compiled)
        self._partial: Callable[..., Any] | None = None

    def __call__(self, batch: Window) -> StepResult:
        """Train on a batch of at most `batch_size` rows."""
        for table in self.model.tables:
            table.set_step(self.steps + 1)
        self._buffers.fill(batch, insert=True)
        outputs = self._function(batch.rows)(*self._buffers.tensors(batch.rows))
        loss, logits, inputs, dense = outputs
        with self.model.pool.awake():
            self._push(inputs, dense, loss)
        self.steps += 1
        return StepResult(float(loss), np.asarray(memoryview(logits)))

    def _push(self, inputs: list[Any], dense: list[Any], loss: Any) -> None:
        """Apply all gradients, or none when one of them is not finite."""
        try:
            if self.model.tables:
                self._buffers.accumulate(inputs)
            self.model.dense.check(dense)
        except NotFiniteError as error:
            raise Failure(
                f"step {self.steps + 1}: a gradient is NaN, infinite or beyond 2^58 (loss "
                f"{float(loss):g}); no weight was changed. Take a smaller learning_rate, or look "
                "for extreme numbers in the data (transform: standardize or log1p)"
            ) from error
        self._buffers.apply()
        self.model.dense.apply(dense)

    def _function(self, rows: int) -> Callable[..., Any]:
        if rows == self._buffers.batch_size:
            return self._whole
        if self._partial is None:
            self._partial = gradient_function(self.model, None, compiled=False)
        return self._partial


def gradient_function(model: Model, rows: int | None, compiled: bool) -> Callable[..., Any]:
    """A concrete function: inputs, labels -> loss, logits [B], input gradients, dense gradients.

    The loss is the mean binary cross-entropy of the logits, plus the recipe's regularisers.
    """
    variables = model.variables

    @tf.function(autograph=False, jit_compile=compiled)
    def gradients(*tensors: tf.Tensor) -> Any:
        inputs, labels = list(tensors[:-1]), tensors[-1]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(inputs)
            tape.watch(variables)
            logits = model.network(inputs, training=True)[:, 0]
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
            loss = tf.add_n([tf.reduce_mean(losses), *model.network.losses])
        of_inputs, of_variables = tape.gradient(
            loss, (inputs, variables), unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        return loss, logits, of_inputs, of_variables

    specs = [
        tf.TensorSpec([rows, *tensor.shape[1:]], tf.float32) for tensor in model.network.inputs
    ]
    return gradients.get_concrete_function(*specs, tf.TensorSpec([rows], tf.float32))


class Inference:
    """Logits of batches, read-only: unknown ids read zeros and nothing is inserted."""

    def __init__(self, model: Model, batch_size: int) -> None:
        self.model = model
        self.buffers = Buffers(model, batch_size)
        specs = [tf.TensorSpec([None, *i.shape[1:]], tf.float32) for i in model.network.inputs]

        @tf.function(autograph=False)
        def logits(*inputs: tf.Tensor) -> tf.Tensor:
            return model.inference_network(list(inputs), training=False)[:, 0]

        self._logits = logits.get_concrete_function(*specs)

    def __call__(self, batch: Window) -> NDArray[np.float32]:
        """The logits float32 [B] of a batch of at most `batch_size` rows; they may be kept."""
        self.buffers.fill(batch, insert=False)
        tensors = self.buffers.tensors(batch.rows)[:-1]
        result: NDArray[np.float32] = self._logits(*tensors).numpy()
        return result
