"""The dense table: all trainable dense weights in one flat buffer, with their optimizer."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl._tables import ffi, lib
from tnctl.tables.memory import Pool, array_over, check, pointer
from tnctl.tables.optimizer_kinds import Optimizer

FLOATS_PER_LINE = 16  # TensorFlow wants every variable on a 64-byte boundary


class DenseTable:
    """Weights of the given sizes, each on a 64-byte boundary of one buffer.

    `weights[i]` and `states[k][i]` are views of the memory itself, float32 [sizes[i]]: whoever
    holds one must hold the table too. `gradients` of the methods are one buffer of float32 per
    variable, of any shape with as many elements.
    """

    def __init__(self, sizes: Sequence[int], optimizer: Optimizer, pool: Pool) -> None:
        padded = [-(-size // FLOATS_PER_LINE) * FLOATS_PER_LINE for size in sizes]
        *self.offsets, total = itertools.accumulate(padded, initial=0)
        self.sizes, self.optimizer, self._pool = list(sizes), optimizer, pool
        rule, out = ffi.new("tn_optimizer *"), ffi.new("tn_dense **")
        optimizer.fill(rule)
        check(lib.tn_dense_new(rule, max(total, 1), pool.handle, out))
        self.handle = ffi.gc(out[0], lib.tn_dense_free)
        self.weights = self._views(lib.tn_dense_weights(self.handle))
        self.state_names = optimizer.dense_state_names()
        self.states = [
            self._views(lib.tn_dense_state(self.handle, k)) for k in range(len(self.state_names))
        ]
        self._c_offsets = ffi.new("uint64_t[]", self.offsets or [0])
        self._c_sizes = ffi.new("uint64_t[]", self.sizes or [0])

    def _views(self, start: Any) -> list[NDArray[np.float32]]:
        return [
            array_over(start + offset, size, np.float32)
            for offset, size in zip(self.offsets, self.sizes, strict=True)
        ]

    @property
    def step(self) -> int:
        return int(lib.tn_dense_step(self.handle))

    @step.setter
    def step(self, value: int) -> None:
        check(lib.tn_dense_set_step(self.handle, value))

    def set_learning_rate(self, learning_rate: float) -> None:
        check(lib.tn_dense_set_learning_rate(self.handle, learning_rate))

    def _with(self, gradients: Sequence[Any], function: Any, *more: Any) -> None:
        pointers = []
        for gradient, size in zip(gradients, self.sizes, strict=True):
            array = np.asarray(memoryview(gradient)).reshape(-1)
            if array.size != size:
                raise ValueError(f"expected a gradient of {size} floats. Received: {array.size}")
            pointers.append(pointer(array, np.float32))
        arrays = ffi.new("const float *[]", pointers)
        check(function(self.handle, arrays, self._c_offsets, self._c_sizes, len(self.sizes), *more))

    def check(self, gradients: Sequence[Any]) -> None:
        """Raise NotFiniteError unless every gradient is finite."""
        self._with(gradients, lib.tn_dense_check)

    def squares(self, gradients: Sequence[Any]) -> float:
        """The sum of squares of the gradients that `apply` would use, clipped and with l2."""
        squares = ffi.new("double *")
        self._with(gradients, lib.tn_dense_norm, squares)
        return float(squares[0])

    def apply(self, gradients: Sequence[Any], scale: float = 1.0) -> None:
        """One step of the optimizer with the gradients, times `scale`."""
        self._with(gradients, lib.tn_dense_apply, scale)
