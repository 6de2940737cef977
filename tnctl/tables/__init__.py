"""The C tables, with numpy in and out. Nothing above this package knows cffi."""

from tnctl.tables.auc import StreamingAuc
from tnctl.tables.dense import DenseTable
from tnctl.tables.memory import NotFiniteError, Pool, aligned
from tnctl.tables.sparse import (
    Batch,
    Initial,
    Optimizer,
    Segment,
    SlotPlan,
    SparseTable,
    decay_factors,
)

__all__ = [
    "Batch",
    "DenseTable",
    "Initial",
    "NotFiniteError",
    "Optimizer",
    "Pool",
    "Segment",
    "SlotPlan",
    "SparseTable",
    "StreamingAuc",
    "aligned",
    "decay_factors",
]
