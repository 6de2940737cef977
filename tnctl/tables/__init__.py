"""The C tables, with numpy in and out. Nothing above this package knows cffi."""

from tnctl.tables.dense_table import DenseTable
from tnctl.tables.dictionary import Dictionary, DictionaryStack, DictionaryWriter
from tnctl.tables.memory import NotFiniteError, NotOwnedError, Pool, aligned
from tnctl.tables.plans import (
    ALL_SHARDS,
    Figures,
    InitialWeights,
    RowOptimizer,
    RowRules,
    Segment,
    Shards,
    SlotPlan,
    shards_of,
)
from tnctl.tables.records import (
    CVM_COLUMNS,
    KEY_FIELDS,
    REMOVED_DTYPE,
    cvm_columns,
    days_of_steps,
    decay_factors,
    key_hashes,
    record_dtype,
    weight_factors,
)
from tnctl.tables.row_exchange import (
    KeyWorkspace,
    PullWorkspace,
    RankKeys,
    from_bfloat16,
    to_bfloat16,
    weighted_sum,
)
from tnctl.tables.sparse_table import SparseTable, Workspace
from tnctl.tables.sums import ExactSum, StreamingAuc, clipping_factor

__all__ = [
    "ALL_SHARDS",
    "CVM_COLUMNS",
    "KEY_FIELDS",
    "REMOVED_DTYPE",
    "DenseTable",
    "Dictionary",
    "DictionaryStack",
    "DictionaryWriter",
    "ExactSum",
    "Figures",
    "InitialWeights",
    "KeyWorkspace",
    "NotFiniteError",
    "NotOwnedError",
    "Pool",
    "PullWorkspace",
    "RankKeys",
    "RowOptimizer",
    "RowRules",
    "Segment",
    "Shards",
    "SlotPlan",
    "SparseTable",
    "StreamingAuc",
    "Workspace",
    "aligned",
    "clipping_factor",
    "cvm_columns",
    "days_of_steps",
    "decay_factors",
    "from_bfloat16",
    "key_hashes",
    "record_dtype",
    "shards_of",
    "to_bfloat16",
    "weight_factors",
    "weighted_sum",
]
