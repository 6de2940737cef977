"""The place of every input of the conf: tables, groups, columns of x, sequences."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tnctl.data.features import indicator_width
from tnctl.data.statistics_document import Statistics
from tnctl.schema import (
    Conf,
    Eviction,
    GroupOptimizers,
    Initial,
    Optimizer,
    Optimizers,
    RowLife,
    Slot,
)
from tnctl.tables import InitialWeights as TableInitial
from tnctl.tables import RowOptimizer as TableOptimizer
from tnctl.tables import RowRules, Segment, SlotPlan
from tnctl.tables.records import CVM_COLUMNS as CVM_COLUMNS

LINEAR = "linear"
LINEARS = "linears"  # of each slot, what linear is the sum of
EMBEDDING = "embedding"


@dataclass(frozen=True)
class RowKind:
    """The parts of rows and their optimizers: slots of one kind share a table."""

    width: int  # floats per embedding; 0: none
    linear: bool
    frozen: bool
    linear_optimizer: Optimizer | None
    embedding_optimizer: Optimizer | None
    shows: bool = False  # rows keep show and click
    cvm: bool = False  # and these follow the embedding where it is read
    evict_every: int | None = None  # steps
    vectors: bool = False  # a matrix makes the embedding as wide as others, where it is read

    @property
    def columns(self) -> int:
        """Floats that an embedding is read as: with cvm, two more than its width."""
        return self.width + (CVM_COLUMNS if self.cvm else 0)


@dataclass(frozen=True)
class TableLayout:
    """The slots of a table.

    `groups` maps a share group's name to its number in this table. A slot is `spreads` cells of
    an example: one, or for a sequence one for each place. `columns` say where its embedding
    starts in x, or for a sequence in `sequences`. `lives` has the life of each group's rows.
    """

    name: str
    kind: RowKind
    slots: tuple[str, ...]
    spreads: tuple[int, ...]
    groups: dict[str, int]
    group_of: tuple[int, ...]
    columns: tuple[int, ...]
    lives: tuple[RowLife, ...] = ()

    @property
    def width(self) -> int:
        """Trained floats per embedding."""
        return self.kind.width

    @property
    def waits(self) -> bool:
        """Whether ids of any group are counted before they get a row."""
        return any(life.waits for life in self.lives)

    @property
    def removes(self) -> bool:
        """Whether any group has a rule that removes rows, beside a bound."""
        return any(life.eviction.removes for life in self.lives)

    @property
    def bounds(self) -> bool:
        """Whether any group has a bound."""
        return any(life.eviction.bounds for life in self.lives)

    @property
    def linear(self) -> bool:
        """Whether rows have a linear weight."""
        return self.kind.linear

    @property
    def cells(self) -> int:
        """Cells of one example."""
        return sum(self.spreads)


@dataclass(frozen=True)
class Sequence:
    """A slot that keeps its values apart: [L, width] at `column` of an example's sequences.

    With cvm the last two of `width` are the counts.
    """

    column: int
    length: int
    width: int
    number: int  # its column in lengths
    cvm: bool = False


@dataclass(frozen=True)
class Layout:
    """The inputs of the dense model.

    x [B, width]: the pooled embeddings of each table's slots, with cvm each followed by its two
    counts, then the numbers. `numeric` maps numeric inputs, then one-hot slots, to how many columns
    they have. `sequences` [B, sequences_width] holds the slots that are not pooled.
    """

    tables: tuple[TableLayout, ...]
    numeric: dict[str, int]
    indicators: tuple[str, ...]
    width: int
    numeric_at: int
    sequences: dict[str, Sequence]
    unserved: str | None = None  # the slot of the first columns of x, which only training reads
    projected: "Layout | None" = None  # what recipes see, if matrices make vectors less wide

    @property
    def has_linear(self) -> bool:
        """Whether any slot has a linear weight."""
        return any(table.linear for table in self.tables)

    @property
    def sequences_width(self) -> int:
        """Floats of an example's sequences."""
        return sum(sequence.length * sequence.width for sequence in self.sequences.values())

    @property
    def slots(self) -> tuple[str, ...]:
        """The slots that have rows, in the order of the tables, in which `linear` is summed."""
        return tuple(slot for table in self.tables for slot in table.slots)

    @property
    def pooled(self) -> dict[str, tuple[int, int]]:
        """The slots whose pooled embedding is in x, in its order: (first column, columns)."""
        return {
            slot: (column, table.kind.columns)
            for table in self.tables
            if table.width
            for slot, column in zip(table.slots, table.columns, strict=True)
            if slot not in self.sequences
        }

    @property
    def with_cvm(self) -> set[str]:
        """The slots whose counts are inputs: the last two of their columns."""
        return {slot for table in self.tables if table.kind.cvm for slot in table.slots}

    @property
    def numeric_columns(self) -> dict[str, tuple[int, int]]:
        """The numeric inputs and one-hot slots in x: (first column, width)."""
        starts = itertools.accumulate(self.numeric.values(), initial=self.numeric_at)
        columns = zip(self.numeric.items(), starts, strict=False)  # the last start is x's width
        return {name: (start, width) for (name, width), start in columns}

    @property
    def cells(self) -> list[tuple[tuple[str, ...], tuple[int, ...]]]:
        """For each table its slots and how many cells each is, as `Features` takes them."""
        return [(table.slots, table.spreads) for table in self.tables]


def plan(conf: Conf, statistics: Statistics) -> Layout:
    """The layout of a conf, whose one-hot widths may have been measured."""
    kinds = row_kinds(conf)
    layout = _placed(conf, statistics, kinds)
    if not any(kind.vectors for kind, _ in kinds):
        return layout
    width = conf.embedding.width
    seen = [(replace(kind, width=width) if kind.vectors else kind, names) for kind, names in kinds]
    return replace(layout, projected=_placed(conf, statistics, seen))


def _placed(conf: Conf, statistics: Statistics, kinds: list[tuple[RowKind, list[str]]]) -> Layout:
    tables: list[TableLayout] = []
    sequences: dict[str, Sequence] = {}
    column = apart = 0
    for kind, names in kinds:
        groups: dict[str, int] = {}
        spreads, columns = [], []
        for name in names:
            slot = conf.slots[name]
            groups.setdefault(slot.group or name, len(groups))
            if slot.pooling == "none" and slot.max_length is not None:
                sequences[name] = Sequence(
                    apart, slot.max_length, kind.columns, len(sequences), kind.cvm
                )
                columns.append(apart)
                spreads.append(slot.max_length)
                apart += slot.max_length * kind.columns
            else:
                columns.append(column)
                spreads.append(1)
                column += kind.columns
        table_name = _table_name(kind, [table.name for table in tables])
        group_of = tuple(groups[conf.slots[name].group or name] for name in names)
        tables.append(
            TableLayout(
                table_name,
                kind,
                tuple(names),
                tuple(spreads),
                groups,
                group_of,
                tuple(columns),
                tuple(map(conf.life_of, groups)),
            )
        )
    numeric = {name: number.numbers for name, number in conf.numeric.items()}
    indicators = tuple(name for name, slot in conf.slots.items() if slot.indicator)
    numeric |= {name: indicator_width(name, conf.slots[name], statistics) for name in indicators}
    width = column + sum(numeric.values())
    return Layout(tuple(tables), numeric, indicators, width, column, sequences, conf.position.slot)


def row_kinds(conf: Conf) -> list[tuple[RowKind, list[str]]]:
    """The slots that have rows, by what the rows are, in the order of the conf.

    That of the position is the first, so that all other columns of x are a slice.
    """
    kinds: list[tuple[RowKind, list[str]]] = []
    for name, slot in sorted(conf.slots.items(), key=lambda named: named[0] != conf.position.slot):
        width, linear = conf.width_of(slot), conf.has_linear(slot)
        if not width and not linear:
            continue  # one-hot, or a part of a cross only
        of_linear, of_embedding = optimizers_of(conf.optimizer, name, slot)
        life = conf.life_of(slot.group or name)
        kind = RowKind(
            width,
            linear,
            slot.frozen,
            of_linear if linear else None,
            of_embedding if width else None,
            shows=life.counts,
            cvm=conf.cvm_of(name),
            evict_every=life.eviction.every_steps,
            vectors=slot.vectors is not None,
        )
        names = next((names for known, names in kinds if known == kind), None)
        if names is None:
            kinds.append((kind, [name]))
        else:
            names.append(name)
    return kinds


def _table_name(kind: RowKind, taken: list[str]) -> str:
    name = f"{EMBEDDING}{kind.width}" if kind.width else LINEAR
    name += "_frozen" if kind.frozen else ""
    same = sum(table == name or table.startswith(f"{name}_part") for table in taken)
    return f"{name}_part{same + 1}" if same else name


def optimizers_of(optimizers: Optimizers, name: str, slot: Slot) -> tuple[Optimizer, Optimizer]:
    """The optimizers of a slot's linear weight and embedding: of its group, else of all."""
    of_group = optimizers.groups.get(slot.group or name, GroupOptimizers())
    embedding = of_group.embedding or optimizers.embedding
    if slot.max_norm is not None:
        embedding = replace(embedding, max_norm=slot.max_norm)
    return of_group.linear or optimizers.linear, embedding


def segments(conf: Conf, table: TableLayout) -> list[Segment]:
    """The segments of a table's rows: the linear weight and the embedding, where it has them."""
    kind = table.kind
    return [
        Segment(name, width, output, table_optimizer(optimizer, conf))
        for name, width, output, optimizer in (
            (LINEAR, 1, "sum", kind.linear_optimizer),
            (EMBEDDING, kind.width, "concat", kind.embedding_optimizer),
        )
        if optimizer is not None
    ]


def initials(conf: Conf, table: TableLayout, group: str) -> list[TableInitial]:
    """The initial weights of a group's new rows, by segment. Its slots have the same."""
    slot = next(slot for name, slot in conf.slots.items() if (slot.group or name) == group)
    of_all = conf.embedding.initial
    kind = of_all.kind if slot.initial is None else slot.initial
    scale = of_all.scale if slot.initial_scale is None else slot.initial_scale
    linear = conf.embedding.linear_initial
    if conf.compat == "tensornet":
        # N(0, 1/sqrt(dim)) * scale, of linear weights too (optimizer_kernel.h).
        linear, scale = Initial(kind, scale), scale / max(table.width, 1) ** 0.5
    of_linear = [TableInitial(linear.kind, linear.scale)] if table.linear else []
    return of_linear + ([TableInitial(kind, scale)] if table.width else [])


def slot_plans(slots: Mapping[str, Slot], table: TableLayout) -> list[SlotPlan]:
    """The cells of a table as its batches need them; a sequence is a cell for each place."""
    plans = []
    for name, group, column, spread in zip(
        table.slots, table.group_of, table.columns, table.spreads, strict=True
    ):
        pooling = slots[name].pooling
        if pooling == "none":
            plans += [
                SlotPlan(group, "sum", column + place * table.kind.columns, apart=True)
                for place in range(spread)
            ]
        else:
            plans.append(SlotPlan(group, pooling, column))
    return plans


def table_life(life: RowLife, stride: int) -> RowRules:
    """The rules of a group as the C tables take them, of rows of `stride` bytes."""
    eviction = life.eviction
    return RowRules(
        admit_after=life.admission.after,
        admit_probability=life.admission.probability,
        show_decay=life.shows.decay,
        unseen_steps=eviction.unseen_steps or 0,
        unseen_days=eviction.unseen_days or 0,
        show=eviction.show or 0.0,
        both=eviction.logic == "and",
        score=eviction.score or 0.0,
        nonclick=eviction.nonclick,
        click=eviction.click_weight,
        most_rows=most_rows(eviction, stride),
    )


def most_rows(eviction: Eviction, stride: int) -> int:
    """The bound of a group in rows of `stride` bytes; 0 when it has none."""
    return eviction.rows or 0 if eviction.bytes is None else max(eviction.bytes // stride, 1)


def table_optimizer(optimizer: Optimizer, conf: Conf) -> TableOptimizer:
    """The conf's optimizer as the C tables take it."""
    name, settings = optimizer.in_c(conf.compat, conf.rows_of_step)
    return TableOptimizer(name, optimizer.learning_rate, **settings)
