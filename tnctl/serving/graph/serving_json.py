"""serving.json of a checkpoint: how a scorer makes the inputs of a split graph from raw values.

docs/formats/graph.md has every key. Numbers that may exceed 2^53 are decimal texts, for readers of
JSON whose numbers are doubles.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from tnctl.checkpoint.load import Checkpoint
from tnctl.data.column_names import numeric_columns, slot_columns
from tnctl.data.slot_encoder import Encoder
from tnctl.data.statistics_document import Scale, Statistics
from tnctl.masking import masked
from tnctl.model.graph import LENGTHS, Input, linear_slots
from tnctl.model.layout import CVM_COLUMNS, LINEAR, LINEARS, Layout, plan
from tnctl.model.recalibration import Recalibration
from tnctl.schema import Conf, Data, Label, Numeric, time_columns
from tnctl.serving.artefact_document import CheckpointReference
from tnctl.serving.graph.cutting import Part, whole
from tnctl.serving.graph.graph_document import (
    LENGTH,
    GraphManifest,
    GraphOutput,
    LinearSum,
    SignatureInput,
    Signatures,
    has_times,
)
from tnctl.serving.graph.raw_values_document import (
    LabelSource,
    NumericInput,
    RawData,
    SlotInput,
    TimeColumn,
)


def describe(
    checkpoint: Checkpoint, conf: Conf, part: Part | None = None, head: str | None = None
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
    is_plain = not has_times(described_slots, described_numbers) and LINEARS not in sources
    return GraphManifest(
        format=GraphManifest.FORMAT,
        version=GraphManifest.PLAIN if is_plain else GraphManifest.VERSION,
        checkpoint=CheckpointReference.of(checkpoint),
        recipe=masked(checkpoint.manifest.recipe),
        head=head,
        heads=tuple(heads),
        frozen=False,
        predictions="logit" if conf.train.loss.name == "mse" else "sigmoid",
        logit_correction=checkpoint.manifest.logit_correction,
        recalibration=of_heads(checkpoint.manifest.recalibration or {}, heads) or None,
        labels=described_labels(conf.data, checkpoint.manifest.heads, heads),
        signatures=Signatures(
            by_slot=described_inputs(part.by_slot), packed=described_inputs(part.packed)
        ),
        outputs=tuple(
            GraphOutput(
                name=output.name, kind=cast(Any, output.kind), head=output.of, shape=output.shape
            )
            for output in part.outputs
        ),
        data=described_data(conf.data, time_columns(slots, numeric)),
        columns=tuple(dict.fromkeys(columns)),
        slots=described_slots,
        numeric=described_numbers,
        linear=LinearSum(adds=adds),
        golden=None,
    )


def of_heads(
    recalibration: Mapping[str, Recalibration], heads: Collection[str]
) -> dict[str, Recalibration]:
    """The recalibration of some heads."""
    return {head: fitted for head, fitted in recalibration.items() if head in heads}


def described_inputs(inputs: list[Input]) -> tuple[SignatureInput, ...]:
    """Inputs in their order, with their places in their sources."""
    return tuple(
        SignatureInput(
            name=columns.name,
            dtype=cast(Any, columns.dtype),
            shape=columns.shape,
            columns=columns.columns,
            source=cast(Any, columns.source),
            at=columns.at,
        )
        for columns in inputs
    )


def described_labels(
    data: Data, of_recipe: Sequence[str], heads: list[str]
) -> dict[str, LabelSource]:
    """What each of `heads` was trained on. A recipe's only head takes the only label."""
    labels: dict[str, Label] = data.all_labels
    if len(of_recipe) == 1:
        labels = dict(zip(of_recipe, labels.values(), strict=True))
    return {
        head: LabelSource(
            column=labels[head].column,
            positive=sequence(labels[head].positive),
            above=labels[head].above,
        )
        for head in heads
        if head in labels
    }


def described_data(data: Data, of_times: Collection[str]) -> RawData:
    """How raw rows were read; `of_times` are the columns that have times."""
    times = {
        column: TimeColumn(format=time.format, offset=time.offset)
        for column, time in data.times.items()
        if column in of_times
    }
    return RawData(
        format=cast(Any, data.format),
        delimiter=data.delimiter,
        header=data.header,
        columns=sequence(data.columns),
        pairs=cast(Any, data.pairs),
        skip_rows=data.skip_rows,
        strip=data.strip,
        missing=tuple(data.missing),
        check_utf8=data.check_utf8,
        times=times or None,
    )


def described_slot(conf: Conf, layout: Layout, statistics: Statistics, name: str) -> SlotInput:
    """How the values of a slot become ids, and their rows its input.

    Every slot has every key; a key that does not apply to it is null.
    """
    slot = conf.slots[name]
    boundaries, vocabulary = lists = statistics.lists_of(name, slot)
    has_rows = name in layout.slots
    width = conf.width_of(slot)
    cvm = name in layout.with_cvm
    encoder = Encoder(name, slot, conf.data, lists)
    of_rows = width + (CVM_COLUMNS if cvm else 0)
    return SlotInput(
        column=None if slot.cross else slot.column or name,
        cross=sequence(slot.cross),
        separator=slot.separator,
        weights=slot.weights,
        ids=slot.kind.served_as or slot.ids,
        seed=slot.seed,
        size=as_text(slot.size),
        vocabulary=sequence(vocabulary),
        oov=slot.oov,
        boundaries=None if boundaries is None else tuple(boundaries.tolist()),
        missing=cast(Any, slot.missing),
        missing_id=as_text(int(encoder.missing_id)) if slot.missing == "value" else None,
        padding=as_text(slot.padding),
        max_length=slot.max_length,
        keep=cast(Any, slot.keep),
        pooling=cast(Any, slot.pooling),
        indicator=slot.indicator,
        group=slot.group or name if has_rows else None,
        linear=conf.has_linear(slot),
        width=width,
        cvm=cvm,
        columns=layout.numeric[name] if slot.indicator else of_rows,
        default=0.0 if has_rows else None,
    )


def sequence(values: Iterable[str] | None) -> tuple[str, ...] | None:
    """Texts as a tuple, or None."""
    return None if values is None else tuple(values)


def as_text(number: int | None) -> str | None:
    """A whole number as decimal text."""
    return None if number is None else str(number)


def described_numeric(name: str, numeric: Numeric, scale: Scale | None) -> NumericInput:
    """How the values of a numeric input are transformed before the graph takes them."""
    mean, deviation = scale or (None, None)
    return NumericInput(
        column=None if numeric.columns else numeric.column or name,
        columns=sequence(numeric.columns),
        separator=numeric.separator,
        width=numeric.numbers,
        default=numeric.default,
        clip=None if numeric.clip is None else tuple(numeric.clip),
        transform=cast(Any, numeric.transform),
        mean=tuple(mean) if isinstance(mean, list) else mean,
        deviation=tuple(deviation) if isinstance(deviation, list) else deviation,
        since=numeric.since,
        since_column=numeric.since_column,
        unit=cast(Any, numeric.unit) if numeric.is_age else None,
    )
