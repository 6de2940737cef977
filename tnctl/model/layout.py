"""Where every input of the conf has its place: tables, groups, columns of x."""

from dataclasses import dataclass

from tnctl.schema import Conf, Optimizer
from tnctl.tables import Initial, Segment, SlotPlan
from tnctl.tables import Optimizer as TableOptimizer

LINEAR = "linear"
EMBEDDING = "embedding"


@dataclass(frozen=True)
class TableLayout:
    """Slots whose rows have the same segments, in the order their values stand in x.

    `groups` maps a share group's name to its number in this table.
    """

    name: str
    width: int
    slots: tuple[str, ...]
    groups: dict[str, int]
    group_of: tuple[int, ...]
    columns: tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """x[B, width]: the embeddings of each table's slots, then the numeric inputs."""

    tables: tuple[TableLayout, ...]
    numeric: tuple[str, ...]
    width: int
    numeric_at: int

    @property
    def slots(self) -> tuple[str, ...]:
        """All slots in canonical order: that of x, and of the sum that is `linear`."""
        return tuple(slot for table in self.tables for slot in table.slots)

    def columns_of(self, slot: str) -> tuple[int, int]:
        """The first column of a slot's embedding in x, and its width."""
        for table in self.tables:
            if slot in table.slots:
                return table.columns[table.slots.index(slot)], table.width
        raise KeyError(slot)


def plan(conf: Conf) -> Layout:
    """The layout of a conf. Slots of equal width share a table; in one width, one table."""
    tables = []
    column = 0
    if conf.slots:
        width = conf.embedding.width
        groups: dict[str, int] = {}
        columns, group_of = [], []
        for name, slot in conf.slots.items():
            group_of.append(groups.setdefault(slot.group or name, len(groups)))
            columns.append(column)
            column += width
        name = f"{EMBEDDING}{width}" if width else LINEAR
        tables.append(
            TableLayout(name, width, tuple(conf.slots), groups, tuple(group_of), tuple(columns))
        )
    return Layout(tuple(tables), tuple(conf.numeric), column + len(conf.numeric), column)


def segments(conf: Conf, table: TableLayout) -> list[Segment]:
    """The segments of a table's rows: the linear weight, and the embedding if it has a width."""
    linear = Segment(LINEAR, 1, "sum", table_optimizer(conf.optimizer.linear))
    if table.width == 0:
        return [linear]
    embedding = table_optimizer(conf.optimizer.embedding)
    return [linear, Segment(EMBEDDING, table.width, "concat", embedding)]


def initials(conf: Conf, table: TableLayout, group: str) -> list[Initial]:
    """How new rows of a group start: linear weights at zero, embeddings as the conf says."""
    # Slots of one group have one scale.
    scales = [
        slot.initial_scale for name, slot in conf.slots.items() if (slot.group or name) == group
    ]
    scale = conf.embedding.initial.scale if scales[0] is None else scales[0]
    embedding = Initial(conf.embedding.initial.kind, scale)
    return [Initial("zeros", 0.0), embedding][: 1 if table.width == 0 else 2]


def slot_plans(conf: Conf, table: TableLayout) -> list[SlotPlan]:
    """The slots of a table as its batches need them."""
    return [
        SlotPlan(group, conf.slots[name].pooling, column)
        for name, group, column in zip(table.slots, table.group_of, table.columns, strict=True)
    ]


def table_optimizer(optimizer: Optimizer) -> TableOptimizer:
    """The conf's optimizer as the C tables take it."""
    return TableOptimizer(optimizer.name, optimizer.learning_rate, **optimizer.settings())
