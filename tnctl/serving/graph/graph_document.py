"""serving.json, the manifest of a split graph: docs/formats/graph.md."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from tnctl import documents, schema
from tnctl.checkpoint.chain import GOLDEN
from tnctl.checkpoint.document import RecipeReference
from tnctl.data.statistics_document import Statistics
from tnctl.documents import (
    Count,
    Finite,
    Name,
    RelativePath,
    Sha256,
    Text,
    Uint16,
    Uint32,
    Uint64Text,
    omitted,
)
from tnctl.manifest import Manifest
from tnctl.model.layout import LINEARS
from tnctl.model.parameter_tables import Recalibration
from tnctl.ownership import GRAPH
from tnctl.schema import FORMATS, ID_KINDS, Conf, Numeric, Slot
from tnctl.serving.artefact_document import (
    CheckpointReference,
    GoldenEntry,
    check_files,
    document,
    named,
)
from tnctl.serving.rows.export_document import Pooling, Width
from tnctl.serving.rows.precision import Precision

MOST_ROWS = 65_536  # examples of a batch

Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}$")]
Rows = Annotated[int, Field(ge=1, le=MOST_ROWS)]
Separator = Annotated[Text, Field(min_length=1)]
NAME = "serving.json"
LENGTH = "_length"  # what the name of a sequence's number of values ends with
OF_LINEAR = "_linear"  # what the name of a slot's part of `linear` ends with
OF_WEIGHTS = "_weights"  # what the name of the weights of a slot's ids ends with
BY_ID, BY_VALUE, RANK = "by_id", "by_value", "rank"
Columns = Annotated[int, Field(ge=1, le=2**24)]  # floats of an input, of one example


@document
class CompiledSize:
    """The graph for batches of `rows` rows.

    `feeds` and `fetches` are the inputs and outputs of signature packed, with their names in the
    compiled graph.
    """

    rows: Rows
    class_: Annotated[Word, Field(alias="class")]
    header: RelativePath
    objects: tuple[RelativePath, ...]
    feeds: dict[Name, Name]
    fetches: dict[Name, Name]

    @property
    def paths(self) -> tuple[str, ...]:
        """Its files."""
        return (self.header, *self.objects)


@document
class Compiled:
    """A graph that was compiled ahead of time; `identity` is a checksum of all its files.

    The texts are written into C++ and makefiles, so each has a pattern that is harmless there.
    """

    identity: Sha256
    tensorflow: Word
    target_triple: Word
    target_cpu: Word
    runtime: tuple[RelativePath, ...]
    sizes: Annotated[tuple[CompiledSize, ...], Field(min_length=1)]

    @property
    def paths(self) -> list[str]:
        """The files of all sizes."""
        return [path for size in self.sizes for path in size.paths]


@document
class LabelSource:
    """What a head was trained on: a column, and how its values count."""

    column: Text
    positive: tuple[Text, ...] | None
    above: Finite | None


@document
class TimeColumn:
    """How a column writes times, as `data.times` of the conf has it."""

    format: Text
    offset: Text


@document
class RawData:
    """How the raw rows of the training data were read: keys of the conf's `data`."""

    format: Annotated[str, named(lambda: FORMATS)]
    delimiter: Annotated[str, Field(min_length=1, max_length=1)]
    header: bool
    columns: tuple[Text, ...] | None
    pairs: Literal["slot:value", "value:slot"]
    skip_rows: Uint32
    strip: bool
    missing: tuple[Text, ...]
    check_utf8: bool
    times: dict[Text, TimeColumn] | None = omitted()


def served_kinds() -> list[str]:
    """The kinds of ids that serving.json has: others are served as one of them."""
    return [name for name, kind in ID_KINDS.items() if kind.served_as is None]


@document
class SlotInput:
    """How the values of a slot become ids, and the rows of those its input."""

    column: Text | None
    cross: tuple[Text, ...] | None
    separator: Separator | None
    weights: Text | None
    ids: Annotated[str, named(served_kinds)]
    seed: Annotated[int, Field(ge=0, lt=2**53)]
    size: Uint64Text | None
    vocabulary: tuple[Text, ...] | None
    oov: Uint32
    boundaries: tuple[Finite, ...] | None
    missing: Literal["none", "value"]
    missing_id: Uint64Text | None
    padding: Uint64Text | None
    max_length: Annotated[Uint16, Field(ge=1)] | None
    keep: Literal["first", "last"]
    pooling: Pooling
    indicator: bool
    group: Name | None
    linear: bool
    width: Width
    cvm: bool
    columns: Uint32
    default: Finite | None

    @property
    def has_rows(self) -> bool:
        """Whether it reads rows: it is not one-hot, nor only a part of a cross."""
        return not self.indicator and bool(self.width or self.linear)


@document
class NumericInput:
    """How the values of a numeric input are transformed before the graph takes them."""

    column: Text | None
    columns: Annotated[tuple[Text, ...], Field(min_length=1)] | None
    separator: Separator | None
    width: Annotated[Width, Field(ge=1)]
    default: Finite | None
    clip: Annotated[tuple[Finite | None, ...], Field(min_length=2, max_length=2)] | None
    transform: Literal["none", "log1p", "standardize"]
    mean: Finite | tuple[Finite, ...] | None
    deviation: Finite | tuple[Finite, ...] | None
    since: Text | None = omitted()
    since_column: Text | None = omitted()
    unit: Literal["second", "minute", "hour", "day"] | None = omitted()


@document
class SignatureInput:
    """An input [B, *shape] of a signature: `columns` of `source`, the first of which is `at`."""

    name: Name
    dtype: Literal["float32", "int32"]
    shape: Annotated[tuple[Columns, ...], Field(max_length=2)]
    columns: Columns
    source: Literal["x", "linear", "sequences", "lengths", "linears"]
    at: Uint32

    @property
    def end(self) -> int:
        """The column after its last one."""
        return self.at + self.columns


@document
class RowInput:
    """An input [B, *shape] of a graph that has the rows; null is any length, one for each slot.

    It `holds` ids or values, how many of them count, their weights, or numbers, of the slot or
    numeric input `of`.
    """

    name: Name
    dtype: Literal["int64", "int32", "float32", "float64", "string"]
    shape: Annotated[tuple[Columns | None, ...], Field(max_length=1)]
    of: Name
    holds: Literal["ids", "values", "length", "weights", "numbers"]


@document
class Signatures:
    """The inputs of each signature: as slots and numbers, side by side, and where rows are inside.

    `by_id` is absent without rows, `by_value` too where the graph cannot make ids of raw values.
    `rank` names the inputs of `by_slot` that are the user's, who is one row there.
    """

    by_slot: tuple[SignatureInput, ...]
    packed: tuple[SignatureInput, ...]
    by_id: tuple[RowInput, ...] | None = omitted()
    by_value: tuple[RowInput, ...] | None = omitted()
    rank: tuple[Name, ...] | None = omitted()

    @property
    def with_rows(self) -> dict[str, tuple[RowInput, ...]]:
        """The inputs of the signatures that look rows up, by signature."""
        inputs = {BY_ID: self.by_id, BY_VALUE: self.by_value}
        return {name: given for name, given in inputs.items() if given is not None}

    @property
    def linears(self) -> tuple[SignatureInput, ...]:
        """The inputs that `linear` is the sum of, where by_slot takes them in its place."""
        return tuple(part for part in self.by_slot if part.source == LINEARS)

    def of(self, signature: str) -> tuple[SignatureInput, ...]:
        """The inputs of `by_slot` or `packed`."""
        inputs: tuple[SignatureInput, ...] = getattr(self, signature)
        return inputs


@document
class GraphOutput:
    """An output float32 [B, *shape] of the signatures: of a head, or the embedding of a tower."""

    name: Name
    kind: Literal["logits", "predictions", "embedding"]
    head: Name
    shape: Annotated[tuple[Columns, ...], Field(max_length=1)]


@document
class LinearSum:
    """The slots in the order in which `linear` is added up."""

    adds: tuple[Name, ...]


@document
class InsideRows:
    """The rows that a graph has: how many of each group, in which precision.

    `bytes` is their size in memory, `dictionary_bytes` their size as dictionaries.
    """

    precision: Precision
    groups: dict[Name, Count]
    bytes: Count
    dictionary_bytes: Count


@document
class GraphManifest(Manifest):
    """All that a scorer needs to make the inputs of a split graph from raw values.

    Version 4 has signature rank, which older ones have in another form that is not used; version 3
    has the rows inside, version 2 times or an input of each slot in the place of `linear`; without
    them version 1 is written.
    """

    FORMAT: ClassVar[str] = "tnctl graph"
    VERSION: ClassVar[int] = 4
    WITH_ROWS: ClassVar[int] = 3
    WITHOUT_ROWS: ClassVar[int] = 2
    PLAIN: ClassVar[int] = 1  # the version of a graph without times and linear inputs

    checkpoint: CheckpointReference
    recipe: RecipeReference
    head: Name | None
    heads: tuple[Name, ...]
    frozen: bool
    predictions: Literal["sigmoid", "logit"]
    logit_correction: Finite
    recalibration: dict[Name, Recalibration] | None = omitted()
    labels: dict[Name, LabelSource]
    signatures: Signatures
    outputs: Annotated[tuple[GraphOutput, ...], Field(min_length=1)]
    data: RawData
    columns: tuple[Text, ...]
    slots: dict[Name, SlotInput]
    numeric: dict[Name, NumericInput]
    linear: LinearSum
    golden: GoldenEntry | None
    aot: Compiled | None = omitted()
    rows: InsideRows | None = omitted()

    def __post_init__(self) -> None:
        if self.sha256:  # else its files are not written yet
            expected = {"saved_model.pb"} | ({GOLDEN} if self.golden else set())
            if self.aot is not None:
                expected |= {"aot/compiled.h", "aot/compiled.mk", *self.aot.paths}
            # The files of aot/ are named by the key aot.
            possible = {n for n in self.files if GRAPH.is_file(n) and not n.startswith("aot/")}
            check_files(self.files, expected, frozenset(possible))

    @property
    def inputs(self) -> dict[str, SignatureInput]:
        """The inputs of signature by_slot, by name."""
        return {part.name: part for part in self.signatures.by_slot}


def fed_slots(description: GraphManifest) -> dict[str, SlotInput]:
    """The slots that are inputs of the graph, or of the sum `linear`."""
    read = {*description.inputs, *description.linear.adds}
    return {name: slot for name, slot in description.slots.items() if name in read}


def has_times(slots: Mapping[str, SlotInput], numeric: Mapping[str, NumericInput]) -> bool:
    """Whether one of the inputs is made of times."""
    return any(ID_KINDS[slot.ids].of_times for slot in slots.values()) or any(
        number.unit is not None for number in numeric.values()
    )


def conf_of(description: GraphManifest) -> tuple[Conf, Statistics]:
    """As much of the conf as raw rows need, and what was measured or read for it.

    Raises UserError for what no conf has.
    """
    statistics = Statistics({}, {}, {})
    slots = {name: conf_values(slot, Slot) for name, slot in description.slots.items()}
    for name, values in slots.items():
        for key in ("size", "padding"):
            values[key] = None if values[key] is None else int(values[key])
        if ID_KINDS[values["ids"]].measured:
            statistics.boundaries[name] = values.pop("boundaries")
    numeric = {name: conf_values(number, Numeric) for name, number in description.numeric.items()}
    for name, values in numeric.items():
        if values["columns"] is not None:
            del values["width"]
        moments = values.pop("mean"), values.pop("deviation")
        if values["transform"] == "standardize":
            statistics.standardize[name] = moments
    raw = documents.plain(description.data)
    data = {"missing": raw["missing"], "strip": raw["strip"], "times": raw.get("times", {})}
    # Raw rows are read alike with any recipe.
    conf = {"recipe": {"name": "lr"}, "slots": slots, "numeric": numeric, "data": data}
    return schema.from_values(conf), statistics


def conf_values(given: SlotInput | NumericInput, kind: type[Slot | Numeric]) -> dict[str, Any]:
    """Those keys of a described input that its conf has, as plain values."""
    plain = documents.plain(given)
    return {
        field.name: plain[field.name] for field in dataclasses.fields(kind) if field.name in plain
    }
