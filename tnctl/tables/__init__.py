"""The C tables, with numpy in and out. Nothing above this package knows cffi."""

from tnctl.tables.auc import StreamingAuc
from tnctl.tables.bfloat16 import from_bfloat16, to_bfloat16
from tnctl.tables.dense_table import DenseTable
from tnctl.tables.dictionary import Dictionary, DictionaryStack, DictionaryWriter
from tnctl.tables.exact_sum import ExactSum, clipping_factor
from tnctl.tables.memory import NotFiniteError, NotOwnedError, Pool, aligned
from tnctl.tables.optimizer_kinds import Optimizer
from tnctl.tables.plans import Figures, Initial, Life, Segment, SlotPlan
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
from tnctl.tables.row_exchange import KeyWorkspace, PullWorkspace, RankKeys, weighted_sum
from tnctl.tables.shards import ALL_SHARDS, Shards, shards_of
from tnctl.tables.sparse_table import SparseTable
from tnctl.tables.workspace import Workspace

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
    "Initial",
    "KeyWorkspace",
    "Life",
    "NotFiniteError",
    "NotOwnedError",
    "Optimizer",
    "Pool",
    "PullWorkspace",
    "RankKeys",
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
