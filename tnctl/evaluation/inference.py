"""Logits of batches by a model that is only read."""

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tnctl.data.batches import Batch
from tnctl.model.building import Model
from tnctl.model.parameters import Buffers, Parameters


class Inference:
    """Logits of batches, read-only: unknown ids read zeros and nothing is inserted."""

    def __init__(self, model: Model, batch_size: int, parameters: Parameters | None = None) -> None:
        """`parameters` are by default of the model's tables."""
        self.model = model
        self.buffers = Buffers(model, batch_size)
        self._parameters = Parameters(model) if parameters is None else parameters
        specs = [
            tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)
            for tensor in model.network.inputs
        ]

        @tf.function(autograph=False)
        def logits(*inputs: tf.Tensor) -> tf.Tensor:
            outputs = model.inference_network(list(inputs), training=False)
            stacked = tf.concat([outputs[head] for head in model.heads], axis=1)
            return stacked + model.logit_correction if model.logit_correction else stacked

        @tf.function(autograph=False, input_signature=specs)
        def towers(*inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            outputs = model.inference_network(list(inputs), training=False)
            return {name: outputs[name] for name in model.towers}

        self._logits = logits.get_concrete_function(*specs)
        self._towers = towers  # traced at the first call

    def __call__(self, batch: Batch) -> NDArray[np.float32]:
        """The logits float32 [B, heads] of a batch of at most `batch_size` rows, as a new array.

        They are corrected for data.negatives and recalibrated, as in the split graph.
        """
        self._parameters.read(batch, self.buffers)
        return self.of_inputs(batch.rows)

    def of_inputs(self, rows: int) -> NDArray[np.float32]:
        """The logits of the first `rows` inputs in the buffers."""
        # Always a whole batch, of which the other rows are what was there before: for few rows
        # libraries choose other routines, which round otherwise, and then logits would depend on
        # how a split is cut into batches, and so on the number of workers.
        inputs = self.buffers.inputs(self.buffers.batch_size)
        result: NDArray[np.float32] = self._logits(*inputs).numpy()
        return self._recalibrated(result[:rows])

    def _recalibrated(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Logits [rows, heads] as the model recalibrates them now."""
        if not self.model.recalibration:
            return logits
        logits = logits.copy()
        for column, head in enumerate(self.model.heads):
            if (recalibration := self.model.recalibration.get(head)) is not None:
                logits[:, column] = recalibration.of(logits[:, column])
        return logits

    def towers(self, rows: int) -> dict[str, NDArray[np.float32]]:
        """The output of each tower for the first `rows` inputs, float32 [rows, d] by name."""
        if not self.model.towers:
            return {}
        outputs = self._towers(*self.buffers.inputs(rows))
        return {name: tensor.numpy() for name, tensor in outputs.items()}
