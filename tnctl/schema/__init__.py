"""Every key of a conf, declared once: type, default, range, choices, unit and sentence.

The dataclasses are Hydra's schema too. A file here has a section of the conf, with the rules
between its keys; `conf` has those between sections, `keys` finds keys by their paths, `values`
makes a Conf.
"""

from tnctl.schema.cluster_section import Cluster, Tls
from tnctl.schema.conf import Conf, can_name_input
from tnctl.schema.data_section import FORMATS, SINGLE_LABEL, Data, Gate, Label, Split
from tnctl.schema.declarations import Declaration
from tnctl.schema.id_kinds import ID_KINDS, IdKind
from tnctl.schema.input_sections import (
    OF_SERVING,
    SERVING_KEYS,
    SLOT_NAME,
    UNITS,
    Embedding,
    Initial,
    Numeric,
    Position,
    Slot,
    time_columns,
)
from tnctl.schema.keys import (
    NAME,
    SYNONYMS,
    Key,
    all_keys,
    branches,
    dataclass_of,
    hint_of,
    keys_like,
    meant_key,
    no_key,
)
from tnctl.schema.life_section import Admission, Eviction, GroupLife, Life, RowLife, Shows
from tnctl.schema.optimizer_section import RULES, GroupOptimizers, Optimizer, Optimizers, Schedule
from tnctl.schema.paths_section import READ, Paths, is_whole
from tnctl.schema.time_section import ISO, Time
from tnctl.schema.training_sections import (
    AUTO,
    MOST_BATCH,
    Baseline,
    Evaluation,
    Loss,
    Monitor,
    Save,
    Train,
    Warm,
)
from tnctl.schema.values import (
    check_saved,
    check_types,
    completed,
    differences,
    from_values,
    section_of,
)

__all__ = [
    "AUTO", "FORMATS", "ID_KINDS", "ISO", "MOST_BATCH", "NAME", "OF_SERVING", "READ", "RULES",
    "SERVING_KEYS", "SINGLE_LABEL", "SLOT_NAME", "SYNONYMS", "UNITS", "Admission", "Baseline",
    "Cluster", "Conf", "Data", "Declaration", "Embedding", "Evaluation", "Eviction", "Gate",
    "GroupLife", "GroupOptimizers", "IdKind", "Initial", "Key", "Label", "Life", "Loss", "Monitor",
    "Numeric", "Optimizer", "Optimizers", "Paths", "Position", "RowLife", "Save", "Schedule",
    "Shows", "Slot", "Split", "Time", "Tls", "Train", "Warm", "all_keys", "branches",
    "can_name_input", "check_saved", "check_types", "completed", "dataclass_of", "differences",
    "from_values", "hint_of", "is_whole", "keys_like", "meant_key", "no_key", "section_of",
    "time_columns",
]  # fmt: skip
