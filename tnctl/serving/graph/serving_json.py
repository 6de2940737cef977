"""serving.json of a checkpoint: how a scorer makes the inputs of a split graph from raw values.

docs/formats/graph.md has every key. Numbers that may exceed 2^53 are decimal texts, for readers of
JSON whose numbers are doubles.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar, cast

from tnctl.checkpoint.chain import Checkpoint
from tnctl.data.column_names import numeric_columns, slot_columns
from tnctl.data.slot_encoder import Encoder
from tnctl.data.statistics_document import Scale, Statistics
from tnctl.masking import masked
from tnctl.model.graph import (
    LENGTHS,
    Input,
    ModelOutput,
    linear_slots,
    outputs_of,
    packed_inputs,
    slot_inputs,
)
from tnctl.model.layout import LINEAR, LINEARS, Layout, plan
from tnctl.schema import Conf, Data, Label, Numeric, time_columns
from tnctl.serving.artefact_document import CheckpointReference
from tnctl.serving.graph.graph_document import (
    LENGTH,
    GraphManifest,
    GraphOutput,
    LabelSource,
    LinearSum,
    NumericInput,
    RawData,
    SignatureInput,
    Signatures,
    SlotInput,
    TimeColumn,
    has_times,
)
from tnctl.tables.records import CVM_COLUMNS

Described = TypeVar("Described")


@dataclass(frozen=True)
class GraphPart:
    """What a graph takes and returns."""

    packed: list[Input]
    by_slot: list[Input]
    outputs: list[ModelOutput]


def whole(layout: Layout, heads: tuple[str, ...]) -> GraphPart:
    """The inputs and outputs of a graph from which nothing is removed."""
    return GraphPart(packed_inputs(layout), slot_inputs(layout), outputs_of(heads))


def describe(
    checkpoint: Checkpoint, conf: Conf, part: GraphPart | None = None, head: str | None = None
) -> GraphManifest:
    """serving.json, except its entries for golden rows, compiled code and files.

    `part` is what a graph of one `head`, or tower, takes and returns; None: all.
    """
    statistics = checkpoint.statistics
    layout = plan(conf, statistics)
    part = part or whole(layout, checkpoint.manifest.heads)
    taken = {
        columns.name.removesuffix(LENGTH) if columns.source == LENGTHS else columns.name
        for columns in part.by_slot
        if columns.source not in (LINEAR, LINEARS)
    }
    sources = {columns.source for columns in part.by_slot}
    adds = tuple(linear_slots(layout)) if sources & {LINEAR, LINEARS} else ()
    taken |= set(adds)
    # And the slots that crosses among them combine.
    taken |= {slot for name in taken & conf.slots.keys() for slot in conf.slots[name].cross or ()}
    slots = {name: slot for name, slot in conf.slots.items() if name in taken}
    numeric = {name: number for name, number in conf.numeric.items() if name in taken}
    columns = [column for name in slots for column in slot_columns(name, slots[name], conf.slots)]
    columns += [column for name in numeric for column in numeric_columns(name, numeric[name])]
    heads = list(dict.fromkeys(output.of for output in part.outputs if output.kind == "logits"))
    described_slots = {name: described_slot(conf, layout, statistics, name) for name in slots}
    described_numbers = {
        name: described_numeric(name, number, statistics.standardize.get(name))
        for name, number in numeric.items()
    }
    recalibration = checkpoint.manifest.recalibration or {}
    is_plain = not has_times(described_slots, described_numbers) and LINEARS not in sources
    return GraphManifest(
        format=GraphManifest.FORMAT,
        version=GraphManifest.PLAIN if is_plain else GraphManifest.WITHOUT_ROWS,
        checkpoint=CheckpointReference.of(checkpoint),
        recipe=masked(checkpoint.manifest.recipe),
        head=head,
        heads=tuple(heads),
        frozen=False,
        predictions="logit" if conf.train.loss.name == "mse" else "sigmoid",
        logit_correction=checkpoint.manifest.logit_correction,
        recalibration={head: fitted for head, fitted in recalibration.items() if head in heads}
        or None,
        labels=described_labels(conf.data, checkpoint.manifest.heads, heads),
        signatures=Signatures(
            by_slot=tuple(like(SignatureInput, columns) for columns in part.by_slot),
            packed=tuple(like(SignatureInput, columns) for columns in part.packed),
        ),
        outputs=tuple(like(GraphOutput, output, head=output.of) for output in part.outputs),
        data=described_data(conf.data, time_columns(slots, numeric)),
        columns=tuple(dict.fromkeys(columns)),
        slots=described_slots,
        numeric=described_numbers,
        linear=LinearSum(adds=adds),
        golden=None,
    )


def like(kind: type[Described], source: object, **others: Any) -> Described:
    """A document whose fields are the attributes of `source` with their names, but for `others`."""
    values = {
        field.name: getattr(source, field.name)
        for field in fields(cast(Any, kind))
        if field.name not in others
    }
    texts = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return kind(**values | texts | others)


def described_labels(
    data: Data, of_recipe: Sequence[str], heads: list[str]
) -> dict[str, LabelSource]:
    """What each of `heads` was trained on. A recipe's only head takes the only label."""
    labels: dict[str, Label] = data.all_labels
    if len(of_recipe) == 1:
        labels = dict(zip(of_recipe, labels.values(), strict=True))
    return {head: like(LabelSource, labels[head]) for head in heads if head in labels}


def described_data(data: Data, of_times: Collection[str]) -> RawData:
    """How raw rows were read; `of_times` are the columns that have times."""
    times = {
        column: like(TimeColumn, time) for column, time in data.times.items() if column in of_times
    }
    return like(RawData, data, times=times or None)


def described_slot(conf: Conf, layout: Layout, statistics: Statistics, name: str) -> SlotInput:
    """How the values of a slot become ids, and their rows its input.

    Every slot has every key; a key that does not apply to it is null.
    """
    slot = conf.slots[name]
    boundaries, vocabulary = lists = statistics.lists_of(name, slot)
    has_rows, width, cvm = name in layout.slots, conf.width_of(slot), name in layout.with_cvm
    missing_id = Encoder(name, slot, conf.data, lists).missing_id
    return like(
        SlotInput,
        slot,
        column=None if slot.cross else slot.column or name,
        ids=slot.kind.served_as or slot.ids,
        size=as_text(slot.size),
        vocabulary=None if vocabulary is None else tuple(vocabulary),
        boundaries=None if boundaries is None else tuple(boundaries.tolist()),
        missing_id=as_text(int(missing_id)) if slot.missing == "value" else None,
        padding=as_text(slot.padding),
        group=slot.group or name if has_rows else None,
        linear=conf.has_linear(slot),
        width=width,
        cvm=cvm,
        columns=layout.numeric[name] if slot.indicator else width + CVM_COLUMNS * cvm,
        default=0.0 if has_rows else None,
    )


def as_text(number: int | None) -> str | None:
    """A whole number as decimal text."""
    return None if number is None else str(number)


def described_numeric(name: str, numeric: Numeric, scale: Scale | None) -> NumericInput:
    """How the values of a numeric input are transformed before the graph takes them."""
    moments = (tuple(part) if isinstance(part, list) else part for part in scale or (None, None))
    mean, deviation = moments
    return like(
        NumericInput,
        numeric,
        column=None if numeric.columns else numeric.column or name,
        width=numeric.numbers,
        mean=mean,
        deviation=deviation,
        unit=numeric.unit if numeric.is_age else None,
    )
