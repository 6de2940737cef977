"""One step of training: pull, TensorFlow forward and backward, push."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tnctl.data.batches import Batch
from tnctl.errors import Failure
from tnctl.model import layers
from tnctl.model.building import Model, batch_norms, tensor_over
from tnctl.model.parameters import Buffers, Gradients, Parameters
from tnctl.schema import Loss
from tnctl.tables import NotFiniteError, aligned

RANK_BITS = 40  # of the number that dropout draws with: the step below, the rank above


@dataclass(frozen=True)
class StepResult:
    """What a step computed: the mean loss, and logits float32 [B, labels], before the update.

    The logits are valid until the next step.
    """

    loss: float
    logits: NDArray[np.float32]


@dataclass
class SeenLabels:
    """The labels of rows: how many rows, and the lowest and highest of each label, [labels]."""

    rows: int = 0
    lowest: Any = np.inf
    highest: Any = -np.inf

    def add(self, labels: NDArray[np.float32]) -> None:
        """Add the labels of rows, [rows, labels]."""
        self.rows += len(labels)
        self.lowest = np.minimum(self.lowest, labels.min(axis=0))
        self.highest = np.maximum(self.highest, labels.max(axis=0))

    def only(self, column: int) -> float | None:
        """The value of a label, by its column, in all rows; None where it has several."""
        if not self.rows or self.lowest[column] != self.highest[column]:
            return None
        return float(self.lowest[column])


class TrainingStep:
    """Trains a model on one batch at a time.

    TensorFlow computes in the memory of the C tables and returns only gradients. All of them are
    checked finite before any weight changes. `rate_factor` multiplies every learning rate.
    """

    def __init__(
        self,
        model: Model,
        batch_size: int,
        steps: int = 0,
        parameters: Parameters | None = None,
        rank: int = 0,
    ) -> None:
        """`steps` were trained before. Workers of other ranks draw other random numbers."""
        self.model = model
        self.parameters = Parameters(model) if parameters is None else parameters
        self.parameters.steps = steps
        self.rate_factor = 1.0
        self.labels = SeenLabels()
        """of the rows trained since a pass began or was resumed"""
        self._buffers = Buffers(model, batch_size)
        self._first_number = 1 + (rank << RANK_BITS)
        self._number = aligned(1, np.int64)
        self._number_tensor = tensor_over(self._number)
        self._compiled = model.conf.train.xla and model.conf.train.precision == "float32"
        self._function = cache(partial(gradient_function, model))
        self.train_on(model.conf.data.prompt_labels)

    @property
    def steps(self) -> int:
        """The steps trained so far."""
        return self.parameters.steps

    def train_on(self, labels: Sequence[str]) -> None:
        """Train on these labels from now on: the loss has no part of the others.

        At first on those that are known when their day is trained.
        """
        self.labels, self._trained = SeenLabels(), tuple(labels)
        # Traced before a batch is waited for.
        self._function(self._buffers.batch_size, self._compiled, self._trained)

    def __call__(self, batch: Batch) -> StepResult:
        """Train on a batch of at most `batch_size` rows."""
        self._number[0] = self._first_number + self.steps
        self.parameters.pull(batch, self._buffers)
        tensors = self._buffers.tensors(batch.rows)
        is_whole = batch.rows == self._buffers.batch_size
        rows, compiled = (batch.rows, self._compiled) if is_whole else (None, False)
        function = self._function(rows, compiled, self._trained)
        loss, logits, inputs, dense, statistics = function(*tensors, self._number_tensor)
        try:
            self.parameters.push(batch, Gradients(inputs, dense, statistics), self.rate_factor)
        except NotFiniteError as error:
            raise Failure(
                f"step {self.steps + 1}: a gradient is NaN, infinite or beyond 2^58 (loss "
                f"{float(loss):g}); no weight was changed. Take a smaller learning_rate, or look "
                "for extreme numbers in the data (transform: standardize or log1p)"
            ) from error
        self.labels.add(batch.labels)
        return StepResult(float(loss), np.asarray(memoryview(logits)))


def gradient_function(
    model: Model, rows: int | None, compiled: bool, trained: Collection[str] | None = None
) -> Callable[..., Any]:
    """A concrete function: inputs, labels[, weights], step -> what a step needs.

    It returns the loss, the logits [B, labels], the gradients of the inputs that are floats and of
    the dense weights, and the batch statistics of batch norms. The loss is the conf's, of the
    labels that are `trained` (None: of all), plus the recipe's regularisers.
    """
    conf, variables, norms = model.conf, model.variables, batch_norms(model.network)
    heads = model.trained_heads
    label_weights = [
        label.weight if trained is None or name in trained else None
        for name, label in conf.data.all_labels.items()
    ]
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
            loss = total_loss(conf.train.loss, label_weights, targets[0], stacked, examples)
            loss = tf.add_n([loss, *model.network.losses])
        of_inputs, of_variables = tape.gradient(
            loss, (watched, variables), unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        statistics = [moment for layer in norms for moment in layer.batch_statistics]
        return loss, stacked, of_inputs, of_variables, statistics

    specs = [
        tf.TensorSpec([rows, *tensor.shape[1:]], tensor.dtype) for tensor in model.network.inputs
    ]
    specs.append(tf.TensorSpec([rows, len(label_weights)], tf.float32))
    if conf.data.weight:
        specs.append(tf.TensorSpec([rows], tf.float32))
    return gradients.get_concrete_function(*specs, tf.TensorSpec([1], tf.int64))


def losses(loss: Loss, labels: Any, logits: Any) -> Any:
    """The loss of every example: float32 [B] from labels [B] and logits [B].

    - cross_entropy: -y ln p - (1 - y) ln(1 - p) with p = sigmoid(logit); with smoothing s the
      label is y (1 - s) + s / 2 (Szegedy et al. 2016, section 7)
    - focal: -(1 - p_t)^gamma ln p_t, times alpha for label 1 and 1 - alpha for 0 (Lin et al.,
      Focal Loss for Dense Object Detection, ICCV 2017, equations 4 and 5)
    - mse: (logit - y)^2
    """
    if loss.name == "mse":
        return tf.square(logits - labels)
    if loss.name == "cross_entropy":
        if loss.smoothing:
            labels = labels * (1 - loss.smoothing) + loss.smoothing / 2
        return tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
    crossed = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
    p = tf.sigmoid(logits)
    # 1 - p_t, which for labels between 0 and 1 is between the two.
    wrong = labels * (1 - p) + (1 - labels) * p
    focal = tf.pow(wrong, loss.gamma) * crossed if loss.gamma else crossed
    if loss.alpha is not None:
        focal *= labels * loss.alpha + (1 - labels) * (1 - loss.alpha)
    return focal


def total_loss(
    loss: Loss, weights: Sequence[float | None], labels: Any, logits: Any, examples: Any
) -> Any:
    """The scalar loss of a batch: labels and logits [B, n], one weight for each of the n labels.

    The mean over the batch of each example's loss times its weight (`examples` [B], or None),
    added over the labels. Labels of weight None are left out, whatever their values.
    """
    parts = []
    for column, weight in enumerate(weights):
        if weight is None:
            continue
        of_examples = losses(loss, labels[:, column], logits[:, column])
        if examples is not None:
            of_examples *= examples
        mean = tf.reduce_mean(of_examples)
        parts.append(mean if weight == 1 else mean * weight)
    return parts[0] if len(parts) == 1 else tf.add_n(parts)
