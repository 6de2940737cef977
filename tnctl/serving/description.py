"""serving.json: all that a scorer needs to make the inputs of a split graph from raw values.

docs/formats/graph.md has every key. Numbers that may pass 2^53 are decimal texts, for readers of
JSON that count in doubles.
"""

from collections.abc import Iterable, Sequence
from typing import Any, cast

from tnctl.checkpoint.load import Checkpoint
from tnctl.data.column_names import numeric_columns, slot_columns
from tnctl.data.slot_encoder import Encoder
from tnctl.data.statistics import Statistics
from tnctl.masking import masked
from tnctl.model.graph import LENGTHS, Input, Output
from tnctl.model.layout import CVM_COLUMNS, LINEAR, Layout, plan
from tnctl.schema import Conf, Label
from tnctl.serving.cutting import Part, whole
from tnctl.serving.graph_document import (
    GraphManifest,
    GraphOutput,
    LabelSource,
    LinearSum,
    NumericInput,
    RawData,
    SignatureInput,
    Signatures,
    SlotInput,
)
from tnctl.serving.references import CheckpointReference

NAME = "serving.json"


def describe(
    checkpoint: Checkpoint, conf: Conf, part: Part | None = None, head: str | None = None
) -> GraphManifest:
    """serving.json, but for what is written beside the graph.

    `part` is what a graph of one `head`, or tower, takes and returns; None: all.
    """
    statistics = checkpoint.statistics
    layout = plan(conf, statistics)
    part = part or whole(layout, checkpoint.manifest.heads)
    taken = {
        one.name.removesuffix("_length") if one.source == LENGTHS else one.name
        for one in part.by_slot
    }
    adds = [name for table in layout.tables if table.linear for name in table.slots]
    slots = slots_for(conf, taken | set(adds if LINEAR in taken else ()))
    numeric = [name for name in conf.numeric if name in taken]
    heads = list(dict.fromkeys(one.of for one in part.outputs if one.kind == "logits"))
    return GraphManifest(
        format=GraphManifest.FORMAT,
        version=GraphManifest.VERSION,
        checkpoint=CheckpointReference.of(checkpoint),
        recipe=masked(checkpoint.manifest.recipe),
        head=head,
        heads=tuple(heads),
        frozen=False,
        predictions="logit" if conf.train.loss.name == "mse" else "sigmoid",
        logit_correction=checkpoint.manifest.logit_correction,
        labels=described_labels(conf, checkpoint.manifest.heads, heads),
        signatures=Signatures(
            by_slot=described_inputs(part.by_slot), packed=described_inputs(part.packed)
        ),
        outputs=described_outputs(part.outputs),
        data=described_data(conf),
        columns=tuple(columns_of(conf, slots, numeric)),
        slots={name: described_slot(conf, layout, statistics, name) for name in slots},
        numeric={name: described_numeric(conf, statistics, name) for name in numeric},
        linear=LinearSum(adds=tuple(adds if LINEAR in taken else ())),
        golden=None,
    )


def slots_for(conf: Conf, taken: set[str]) -> list[str]:
    """The slots of some inputs, and those that crosses among them are of, as in the conf."""
    crossed = {one for name in taken & conf.slots.keys() for one in conf.slots[name].cross or ()}
    return [name for name in conf.slots if name in taken | crossed]


def columns_of(conf: Conf, slots: list[str], numeric: list[str]) -> list[str]:
    """The columns that raw rows must have, each once."""
    found = [column for name in slots for column in slot_columns(conf, name, conf.slots[name])]
    found += [column for name in numeric for column in numeric_columns(name, conf.numeric[name])]
    return list(dict.fromkeys(found))


def described_inputs(inputs: list[Input]) -> tuple[SignatureInput, ...]:
    """Inputs in their order: `at` is where each stands in its source."""
    return tuple(
        SignatureInput(
            name=one.name,
            dtype=cast(Any, one.dtype),
            shape=one.shape,
            columns=one.columns,
            source=cast(Any, one.source),
            at=one.at,
        )
        for one in inputs
    )


def described_outputs(outputs: list[Output]) -> tuple[GraphOutput, ...]:
    """The outputs of the signatures, each float32 [B, *shape]."""
    return tuple(
        GraphOutput(name=one.name, kind=cast(Any, one.kind), head=one.of, shape=one.shape)
        for one in outputs
    )


def described_labels(
    conf: Conf, of_recipe: Sequence[str], heads: list[str]
) -> dict[str, LabelSource]:
    """What each of `heads` was trained on. A recipe's only head takes the only label."""
    labels: dict[str, Label] = conf.data.all_labels
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


def described_data(conf: Conf) -> RawData:
    """How raw rows were read."""
    data = conf.data
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
    )


def described_slot(conf: Conf, layout: Layout, statistics: Statistics, name: str) -> SlotInput:
    """How the values of a slot become ids, and their rows its input.

    Every slot has every key; a key that means nothing to it is null.
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
        ids=cast(Any, slot.ids),
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
    """Texts that do not change, or None."""
    return None if values is None else tuple(values)


def as_text(number: int | None) -> str | None:
    """A whole number as decimal text."""
    return None if number is None else str(number)


def described_numeric(conf: Conf, statistics: Statistics, name: str) -> NumericInput:
    """How the values of a numeric input are transformed before the graph takes them."""
    numeric = conf.numeric[name]
    mean, deviation = statistics.standardize.get(name, (None, None))
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
    )
