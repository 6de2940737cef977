"""The dense table: all trainable dense weights in one flat buffer, with their optimizer."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl._tables import ffi, lib
from tnctl.tables.memory import Pool, array_over, check, items, pointer
from tnctl.tables.plans import RowOptimizer
from tnctl.tables.sums import NORM_CHUNK, ExactSum

FLOATS_PER_LINE = 16  # TensorFlow wants every variable on a 64-byte boundary


class DenseTable:
    """Weights of the given sizes, each on a 64-byte boundary of one buffer.

    `weights[i]` and `states[k][i]` are views of the memory itself, float32 [sizes[i]]: whoever
    holds one must hold the table too. `gradients` of the methods are one buffer of float32 per
    variable, of any shape with as many elements.

    `flat_weights` and `flat_states[k]` are the whole buffers, float32 [padded size], in which
    variable i begins at offsets[i]; the floats between variables are 0 and never change. A slice of
    them can be trained alone: by `apply_slice`.
    """

    def __init__(self, sizes: Sequence[int], optimizer: RowOptimizer, pool: Pool) -> None:
        padded = [-(-size // FLOATS_PER_LINE) * FLOATS_PER_LINE for size in sizes]
        *self.offsets, total = itertools.accumulate(padded, initial=0)
        self.sizes, self.optimizer, self._pool = list(sizes), optimizer, pool
        self._pieces: dict[tuple[int, int], tuple[list[int], Any, Any]] = {}
        rule, out = ffi.new("tn_optimizer *"), ffi.new("tn_dense **")
        optimizer.fill(rule)
        check(lib.tn_dense_new(rule, max(total, 1), pool.handle, out))
        self.handle = ffi.gc(out[0], lib.tn_dense_free)
        self.flat_weights = array_over(lib.tn_dense_weights(self.handle), total, np.float32)
        self.state_names = optimizer.dense_state_names()
        self.flat_states = [
            array_over(lib.tn_dense_state(self.handle, k), total, np.float32)
            for k in range(len(self.state_names))
        ]
        self.weights = self._views(self.flat_weights)
        self.states = [self._views(state) for state in self.flat_states]
        self._c_offsets = ffi.new("uint64_t[]", self.offsets or [0])
        self._c_sizes = ffi.new("uint64_t[]", self.sizes or [0])

    def _views(self, flat: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        return [
            flat[offset : offset + size]
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

    def check_slice(self, gradients: Any, first: int) -> None:
        """Raise NotFiniteError unless all gradients of a slice, as in `apply_slice`, are finite."""
        self._with_slice(gradients, first, lib.tn_dense_check)

    def exact_squares_of_slice(self, gradients: Any, first: int) -> ExactSum:
        """The sum of squares of the gradients that `apply_slice` would use, clipped and with l2.

        Slices that begin at `chunk_starts` add up to the squares of the whole gradients.
        """
        squares = ExactSum()
        self._with_slice(gradients, first, lib.tn_dense_norm_words, squares.pointer())
        return squares

    @property
    def chunk_starts(self) -> NDArray[np.int64]:
        """The places in `flat_weights` where slices may begin, in ascending order; the end too."""
        starts = [
            np.arange(offset, offset + max(size, 1), NORM_CHUNK)
            for offset, size in zip(self.offsets, self.sizes, strict=True)
        ]
        return np.unique(np.concatenate([*starts, [0, len(self.flat_weights)]]).astype(np.int64))

    def apply_slice(self, gradients: Any, first: int, scale: float = 1.0) -> None:
        """One step of the optimizer with a part of the gradients, of flat_weights[first : first+n].

        `gradients` is a buffer of float32 [n] that starts at a multiple of 4 bytes. What it has
        between variables is ignored. Each call is a step: tables that each apply another slice of
        the same gradients together hold what one table holds after `apply`. Raises ValueError for
        a slice that leaves the buffer.
        """
        self._with_slice(gradients, first, lib.tn_dense_apply, scale)

    def _with_slice(self, gradients: Any, first: int, function: Any, *more: Any) -> None:
        count = memoryview(gradients).nbytes // 4
        start = items(gradients, np.float32, count)
        if first < 0 or first + count > len(self.flat_weights):
            raise ValueError(
                f"expected a slice of {len(self.flat_weights)} floats. "
                f"Received: {count} from {first}"
            )
        places, offsets, lengths = self._pieces_of(first, count)
        arrays = ffi.new("const float *[]", [start + place for place in places])
        check(function(self.handle, arrays, offsets, lengths, len(places), *more))

    def _pieces_of(self, first: int, count: int) -> tuple[list[int], Any, Any]:
        """The parts of variables in a slice: places in it, offsets in the buffer, and lengths."""
        if (first, count) not in self._pieces:
            bounds = [
                (max(offset, first), min(offset + size, first + count))
                for offset, size in zip(self.offsets, self.sizes, strict=True)
            ]
            bounds = [(start, end) for start, end in bounds if start < end]
            self._pieces[first, count] = (
                [start - first for start, _ in bounds],
                ffi.new("uint64_t[]", [start for start, _ in bounds]),
                ffi.new("uint64_t[]", [end - start for start, end in bounds]),
            )
        return self._pieces[first, count]
