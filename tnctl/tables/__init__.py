"""The C tables, with numpy in and out. Nothing above this package knows cffi."""

from tnctl.tables.auc import StreamingAuc
from tnctl.tables.dense import DenseTable
from tnctl.tables.dictionary import Dictionary, DictionaryStack, DictionaryWriter
from tnctl.tables.memory import NotFiniteError, Pool, aligned
from tnctl.tables.sparse import (
    REMOVED_DTYPE,
    Batch,
    Figures,
    Initial,
    Life,
    Optimizer,
    Segment,
    SlotPlan,
    SparseTable,
    cvm_columns,
    decay_factors,
    key_hashes,
)

__all__ = [
    "REMOVED_DTYPE",
    "Batch",
    "DenseTable",
    "Dictionary",
    "DictionaryStack",
    "DictionaryWriter",
    "Figures",
    "Initial",
    "Life",
    "NotFiniteError",
    "Optimizer",
    "Pool",
    "Segment",
    "SlotPlan",
    "SparseTable",
    "StreamingAuc",
    "aligned",
    "cvm_columns",
    "decay_factors",
    "key_hashes",
]
