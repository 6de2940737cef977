"""A batch of examples in a sparse table: find, gather, accumulate, apply."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl._tables import ffi, lib
from tnctl.tables.memory import check, pointer
from tnctl.tables.plans import SlotPlan
from tnctl.tables.sparse_table import SparseTable

POOLINGS = {"sum": lib.TN_POOL_SUM, "mean": lib.TN_POOL_MEAN, "sqrtn": lib.TN_POOL_SQRTN}


class Workspace:
    """Memory for batches of the given slots, one after the other; one batch at a time per table."""

    def __init__(self, table: SparseTable, slots: Sequence[SlotPlan]) -> None:
        self.table = table
        self._slots = len(slots)
        self._examples = 0
        self._apart = any(slot.apart for slot in slots)
        plans = [(slot.group, POOLINGS[slot.pooling], slot.apart, slot.column) for slot in slots]
        out = ffi.new("tn_batch **")
        check(lib.tn_batch_new(table.handle, ffi.new("tn_slot[]", plans), len(slots), out))
        self.handle = ffi.gc(out[0], lib.tn_batch_free)

    def find(
        self,
        ids: NDArray[np.uint64],
        offsets: NDArray[np.uint32],
        examples: int,
        insert: bool,
        weights: NDArray[np.float32] | None = None,
    ) -> None:
        """Look up `examples` x slots cells: cell c has ids[offsets[c]:offsets[c + 1]].

        ids are uint64 [n], offsets uint32 [cells + 1]. With `insert`, missing ids get rows;
        without, they read zeros and nothing is written. `weights` (float32 [n], copied) weigh the
        pooling: `sum` is the sum of weight x row, `mean` divides it by the sum of the weights,
        `sqrtn` by the root of the sum of their squares. Where this divisor is not above 0 the cell
        is zeros and gets no gradient. Raises ValueError for weights that are NaN, infinite or
        beyond 2^58.
        """
        cells = self._cells(ids, offsets, examples, weights)
        check(lib.tn_find(self.handle, *cells, examples, insert))
        self._examples = examples

    def _cells(
        self,
        ids: NDArray[np.uint64],
        offsets: NDArray[np.uint32],
        examples: int,
        weights: NDArray[np.float32] | None,
    ) -> tuple[Any, Any, Any]:
        """Pointers to the ids, offsets and weights of a batch, whose lengths agree."""
        if len(offsets) != examples * self._slots + 1 or offsets[-1] != len(ids):
            raise ValueError(
                f"expected {examples * self._slots + 1} offsets that end at {len(ids)}. "
                f"Received: {len(offsets)} that end at {offsets[-1] if len(offsets) else None}"
            )
        if weights is not None and len(weights) != len(ids):
            raise ValueError(f"expected {len(ids)} weights. Received: {len(weights)}")
        return (
            pointer(ids, np.uint64),
            pointer(offsets, np.uint32),
            ffi.NULL if weights is None else pointer(weights, np.float32),
        )

    @property
    def rows(self) -> int:
        """Distinct rows that the last inserting `find` met."""
        return int(lib.tn_batch_rows(self.handle))

    def leave_out(self, clicks: NDArray[np.float32]) -> None:
        """Leave an example's own clicks, float32 [examples], out of what `gather` reads of it.

        After a `find` with `insert`, in a table with cvm. It matters where the table does not count
        (`SparseTable.set_counting`), for then the examples were counted before: what they added
        themselves is missing in the columns of cvm that they read. Raises as `count` does.
        """
        if len(clicks) != self._examples:
            raise ValueError(f"expected {self._examples} clicks. Received: {len(clicks)}")
        check(lib.tn_leave_out(self.handle, pointer(clicks, np.float32)))

    def gather(
        self,
        outputs: Sequence[NDArray[np.float32]],
        apart: NDArray[np.float32] | None = None,
        add: bool = False,
    ) -> None:
        """Pool the found rows into outputs[segment], float32 [examples or more, columns].

        The `concat` values of slots set apart go to `apart`, float32 [examples or more, columns],
        which all segments share; without such slots nothing is done to it. A `sum` segment is
        added to what its output holds when `add` is true.
        """
        given = self._matrices(outputs, apart, write=True)
        check(lib.tn_gather(self.handle, *given, add))

    def accumulate(
        self,
        gradients: Sequence[NDArray[np.float32]],
        apart: NDArray[np.float32] | None = None,
    ) -> None:
        """Sum gradients, shaped as gather's outputs, per row. Raises NotFiniteError."""
        check(lib.tn_accumulate(self.handle, *self._matrices(gradients, apart, write=False)))

    def count(self, clicks: NDArray[np.float32]) -> None:
        """Count the batch, found with `insert`: `apply` adds to each row's show and click.

        It adds the row's occurrences to show, and to click the sum of their examples' clicks,
        float32 [examples], at least 0. Raises ValueError for others, and in a table without shows.
        """
        if len(clicks) != self._examples:
            raise ValueError(f"expected {self._examples} clicks. Received: {len(clicks)}")
        check(lib.tn_count(self.handle, pointer(clicks, np.float32)))

    def squares(self) -> float:
        """The sum of squares of the gradients that `apply` would use, clipped and with l2."""
        squares = ffi.new("double *")
        check(lib.tn_norm(self.handle, squares))
        return float(squares[0])

    def apply(self, scale: float = 1.0) -> None:
        """Update every row of the batch, or of the table, once with its summed gradient * scale."""
        check(lib.tn_apply(self.handle, scale))

    def _matrices(
        self,
        arrays: Sequence[NDArray[np.float32]],
        apart: NDArray[np.float32] | None,
        write: bool,
    ) -> tuple[Any, Any, Any, Any]:
        """Pointers and strides of the segments' arrays, then of those set apart."""
        segments = len(self.table.segments)
        if len(arrays) != segments:
            raise ValueError(f"expected {segments} arrays. Received: {len(arrays)}")
        matrices = list(arrays)
        if self._apart:
            if apart is None:
                raise ValueError("expected a matrix for the slots set apart. Received: none")
            matrices += [apart] * segments
        for array in matrices:
            if array.ndim != 2 or len(array) < self._examples:
                raise ValueError(f"expected [{self._examples}, columns]. Received: {array.shape}")
        self._kept = [pointer(array, np.float32, write) for array in matrices]
        kind = "float *[]" if write else "const float *[]"
        pointers = ffi.new(kind, self._kept)
        strides = ffi.new("uint32_t[]", [array.shape[1] for array in matrices])
        if not self._apart:
            return pointers, strides, ffi.NULL, ffi.NULL
        # Beside views into an array, keep the array itself: C reads both halves of it.
        self._kept += [pointers, strides]
        return pointers, strides, pointers + segments, strides + segments
