"""serving.json, the manifest of a split graph: docs/formats/graph.md."""

import dataclasses
from dataclasses import dataclass
from math import prod
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tnctl import documents, schema
from tnctl.checkpoint.chain import GOLDEN
from tnctl.checkpoint.document import RecipeReference
from tnctl.data.features import indicator_width
from tnctl.data.statistics import Scale, Statistics
from tnctl.documents import Finite, Name, Uint64Text, omitted
from tnctl.errors import UserError
from tnctl.manifest import Manifest
from tnctl.model.layout import CVM_COLUMNS, LINEAR
from tnctl.ownership import GRAPH
from tnctl.schema import Conf, Numeric, Slot
from tnctl.serving.aot_document import Compiled
from tnctl.serving.references import CheckpointReference, GraphKit, check_files
from tnctl.serving.rows.export_document import MOST_WIDTH, Pooling, check_uint64

MOST_COLUMNS = 2**24  # floats of an input, of one example
MOST_VALUES = 65_535  # places of a sequence
MOST_OOV = 2**31
MOST_TEXT = 65_536  # characters of a name of a column, a separator or a value

LENGTH = "_length"  # what the name of a sequence's number of values ends with
PACKED_INPUTS = ("x", LINEAR, "sequences", "lengths")
Text = Annotated[str, Field(max_length=MOST_TEXT)]
Columns = Annotated[int, Field(ge=1, le=MOST_COLUMNS)]


@dataclass(frozen=True, kw_only=True)
class SignatureInput:
    """An input [B, *shape] of a signature: `columns` of `source`, the first of which is `at`."""

    name: Name
    dtype: Literal["float32", "int32"]
    shape: Annotated[tuple[Columns, ...], Field(max_length=2)]
    columns: Columns
    source: Literal["x", "linear", "sequences", "lengths"]
    at: Annotated[int, Field(ge=0, lt=MOST_COLUMNS)]

    def __post_init__(self) -> None:
        if self.columns != prod(self.shape):
            raise ValueError(f"input {self.name} has {self.columns} columns, its shape others")
        if (self.dtype == "int32") != (self.source == "lengths"):
            raise ValueError(f"input {self.name} is {self.dtype}, which {self.source} is not")

    @property
    def end(self) -> int:
        """The column after its last one."""
        return self.at + self.columns


@dataclass(frozen=True, kw_only=True)
class Signatures:
    """The inputs of both signatures: as slots and numbers, and side by side."""

    by_slot: tuple[SignatureInput, ...]
    packed: tuple[SignatureInput, ...]

    def __post_init__(self) -> None:
        packed = {one.name: one for one in self.packed}
        if not packed or len(packed) < len(self.packed):
            raise ValueError("signature packed has no input, or one twice")
        for one in self.packed:
            if one.name not in PACKED_INPUTS or (one.source, one.at) != (one.name, 0):
                raise ValueError(f"signature packed has no input {one.name}")
            if one.shape != (one.columns,) or (one.name == LINEAR and one.columns != 1):
                raise ValueError(f"input {one.name} of signature packed has another shape")
        if len({one.name for one in self.by_slot}) < len(self.by_slot):
            raise ValueError("signature by_slot has an input twice")
        ends = dict.fromkeys(packed, 0)
        for one in sorted(self.by_slot, key=lambda one: one.at):
            if one.source not in packed or one.end > packed[one.source].columns:
                raise ValueError(f"input {one.name} is not inside of {one.source}")
            if one.at < ends[one.source]:
                raise ValueError(f"input {one.name} overlaps another input")
            ends[one.source] = one.end

    def of(self, signature: str) -> tuple[SignatureInput, ...]:
        """The inputs of `by_slot` or `packed`."""
        return self.by_slot if signature == "by_slot" else self.packed


@dataclass(frozen=True, kw_only=True)
class GraphOutput:
    """An output float32 [B, *shape] of the signatures: of a head, or the embedding of a tower."""

    name: Name
    kind: Literal["logits", "predictions", "embedding"]
    head: Name
    shape: Annotated[tuple[Columns, ...], Field(max_length=1)]

    def __post_init__(self) -> None:
        if (self.kind == "embedding") != bool(self.shape):
            raise ValueError(f"output {self.name} has a shape that {self.kind} do not have")


@dataclass(frozen=True, kw_only=True)
class LabelSource:
    """What a head was trained on: a column, and how its values count."""

    column: Text
    positive: tuple[Text, ...] | None
    above: Finite | None


@dataclass(frozen=True, kw_only=True)
class RawData:
    """How the raw rows of the training data were read: keys of the conf's `data`."""

    format: Literal["csv", "parquet", "tfrecord", "libsvm", "paddle", "jsonl", "generated"]
    delimiter: Annotated[str, Field(min_length=1, max_length=1)]
    header: bool
    columns: tuple[Text, ...] | None
    pairs: Literal["slot:value", "value:slot"]
    skip_rows: Annotated[int, Field(ge=0, lt=2**31)]
    strip: bool
    missing: tuple[Text, ...]
    check_utf8: bool

    def __post_init__(self) -> None:
        if self.delimiter in '"\r\n':
            raise ValueError("data.delimiter is a sign that no delimiter can be")


@dataclass(frozen=True, kw_only=True)
class SlotInput:
    """How the values of a slot become ids, and the rows of those its input."""

    column: Text | None
    cross: tuple[Text, ...] | None
    separator: Annotated[str, Field(min_length=1, max_length=MOST_TEXT)] | None
    weights: Text | None
    ids: Literal["hash", "modulo", "integer", "vocabulary", "boundaries", "quantiles"]
    seed: Annotated[int, Field(ge=0, lt=2**53)]
    size: Uint64Text | None
    vocabulary: tuple[Text, ...] | None
    oov: Annotated[int, Field(ge=0, le=MOST_OOV)]
    boundaries: tuple[Finite, ...] | None
    missing: Literal["none", "value"]
    missing_id: Uint64Text | None
    padding: Uint64Text | None
    max_length: Annotated[int, Field(ge=1, le=MOST_VALUES)] | None
    keep: Literal["first", "last"]
    pooling: Pooling
    indicator: bool
    group: Name | None
    linear: bool
    width: Annotated[int, Field(ge=0, le=MOST_WIDTH)]
    cvm: bool
    columns: Annotated[int, Field(ge=0, le=MOST_COLUMNS)]
    default: Finite | None

    def __post_init__(self) -> None:
        for key, number in (
            ("size", self.size), ("missing_id", self.missing_id), ("padding", self.padding)
        ):  # fmt: skip
            if number is not None:
                check_uint64(key, number)
        if (self.column is None) != (self.cross is not None):
            raise ValueError("a slot has a column, or is a cross of several")
        if self.has_rows != (self.group is not None):
            raise ValueError("group is the name of a slot's rows, and null without rows")
        if self.default != (0 if self.has_rows else None):
            raise ValueError("default is 0 with rows, and null without")
        self._check_columns()
        self._check_ids()

    def _check_columns(self) -> None:
        """Raise ValueError unless its input is as wide as its rows."""
        of_rows = self.width + (CVM_COLUMNS if self.cvm else 0)
        if self.indicator and (self.width or self.linear or self.cvm or not self.columns):
            raise ValueError("indicator is for slots without rows, whose columns count ids")
        if not self.indicator and self.columns != of_rows:
            raise ValueError(f"columns are {self.columns}, and its rows have {of_rows}")
        if self.pooling == "none" and self.max_length is None:
            raise ValueError("pooling none keeps a sequence, which needs max_length")
        if self.pooling == "none" and self.columns * (self.max_length or 0) > MOST_COLUMNS:
            raise ValueError(f"a sequence has over {MOST_COLUMNS:,} floats")

    def _check_ids(self) -> None:
        """Raise ValueError unless boundaries and vocabulary are those of its kind of ids."""
        if (self.vocabulary is not None) != (self.ids == "vocabulary"):
            raise ValueError("vocabulary is for ids vocabulary, and for no others")
        if (self.boundaries is not None) != (self.ids in ("boundaries", "quantiles")):
            raise ValueError("boundaries are for ids boundaries and quantiles, and for no others")
        if self.boundaries is not None:
            later = self.boundaries[1:]
            if any(low >= high for low, high in zip(self.boundaries, later, strict=False)):
                raise ValueError("boundaries do not ascend")
        if (self.missing == "value") != (self.missing_id is not None):
            raise ValueError("missing_id is for missing value, and for nothing else")

    @property
    def has_rows(self) -> bool:
        """Whether it reads rows: it is not one-hot, nor only a part of a cross."""
        return not self.indicator and bool(self.width or self.linear)


@dataclass(frozen=True, kw_only=True)
class NumericInput:
    """How the values of a numeric input are transformed before the graph takes them."""

    column: Text | None
    columns: Annotated[tuple[Text, ...], Field(min_length=1)] | None
    separator: Annotated[str, Field(min_length=1, max_length=MOST_TEXT)] | None
    width: Annotated[int, Field(ge=1, le=MOST_WIDTH)]
    default: Finite | None
    clip: Annotated[tuple[Finite | None, ...], Field(min_length=2, max_length=2)] | None
    transform: Literal["none", "log1p", "standardize"]
    mean: Finite | tuple[Finite, ...] | None
    deviation: Finite | tuple[Finite, ...] | None

    def __post_init__(self) -> None:
        if (self.column is None) != (self.columns is not None):
            raise ValueError("a numeric input has a column, or several columns")
        if self.columns is not None and len(self.columns) != self.width:
            raise ValueError(f"width is {self.width}, and there are {len(self.columns)} columns")
        for key, moments in (("mean", self.mean), ("deviation", self.deviation)):
            if (self.transform == "standardize") != (moments is not None):
                raise ValueError(f"{key} is for transform standardize, and for no other")
            count = len(moments) if isinstance(moments, tuple) else self.width
            if count != self.width:
                raise ValueError(f"{key} has {count} numbers, and width is {self.width}")
        deviations = self.deviation if isinstance(self.deviation, tuple) else (self.deviation,)
        if any(number is not None and not number > 0 for number in deviations):
            raise ValueError("deviation is not above 0")


@dataclass(frozen=True, kw_only=True)
class LinearSum:
    """The slots in the order in which `linear` is added up."""

    adds: tuple[Name, ...]


@dataclass(frozen=True, kw_only=True)
class GraphManifest(Manifest):
    """All that a scorer needs to make the inputs of a split graph from raw values."""

    FORMAT: ClassVar[str] = "tnctl graph"

    checkpoint: CheckpointReference
    recipe: RecipeReference
    head: Name | None
    heads: tuple[Name, ...]
    frozen: bool
    predictions: Literal["sigmoid", "logit"]
    logit_correction: Finite
    labels: dict[Name, LabelSource]
    signatures: Signatures
    outputs: Annotated[tuple[GraphOutput, ...], Field(min_length=1)]
    data: RawData
    columns: tuple[Text, ...]
    slots: dict[Name, SlotInput]
    numeric: dict[Name, NumericInput]
    linear: LinearSum
    golden: GraphKit | None
    aot: Compiled | None = omitted()

    def __post_init__(self) -> None:
        of_heads = [one.head for one in self.outputs if one.kind == "logits"]
        if self.heads != tuple(dict.fromkeys(of_heads)):
            raise ValueError("heads are not those of the outputs of kind logits")
        if of_heads != [one.head for one in self.outputs if one.kind == "predictions"]:
            raise ValueError("outputs of kind predictions are not those of kind logits")
        if len({one.name for one in self.outputs}) < len(self.outputs):
            raise ValueError("an output is there twice")
        if self.labels.keys() - set(self.heads):
            raise ValueError("labels are of heads that the graph does not have")
        if both := self.slots.keys() & self.numeric.keys():
            raise ValueError(f"{min(both)} is a slot and a numeric input")
        for one in self.signatures.by_slot:
            self._check_input(one)
        self._check_linear()
        self._check_conf()
        if self.sha256:  # else its files are on their way
            self._check_files()

    def _check_input(self, one: SignatureInput) -> None:
        """Raise ValueError unless an input of by_slot is that of its slot or numeric input."""
        if one.source == LINEAR:
            expected: tuple[int, ...] | None = (1,) if one.name == LINEAR else None
        elif one.source == "lengths":
            slot = self.slots.get(one.name.removesuffix(LENGTH))
            sequence = slot is not None and slot.pooling == "none" and slot.has_rows
            expected = () if sequence and one.name.endswith(LENGTH) else None
        elif (slot := self.slots.get(one.name)) is not None:
            pooled = slot.pooling != "none" or slot.indicator
            expected = (slot.columns,) if pooled else (slot.max_length or 0, slot.columns)
            expected = expected if pooled == (one.source == "x") else None
        elif (numeric := self.numeric.get(one.name)) is not None:
            expected = (numeric.width,) if one.source == "x" else None
        else:
            expected = None
        if one.shape != expected:
            raise ValueError(
                f"input {one.name} of {one.source} with shape {list(one.shape)} is not that of a "
                "slot or numeric input"
            )

    def _check_linear(self) -> None:
        """Raise ValueError unless `linear` is the sum of slots that have linear weights."""
        adds = self.linear.adds
        if len(set(adds)) < len(adds):
            raise ValueError("linear adds a slot twice")
        for name in adds:
            if name not in self.slots or not self.slots[name].linear:
                raise ValueError(f"linear adds {name}, which has no linear weights")
        if adds and LINEAR not in {one.name for one in self.signatures.packed}:
            raise ValueError("linear adds slots, and signature packed has no input linear")

    def _check_files(self) -> None:
        """Raise ValueError unless its files are those that a split graph has."""
        expected = {"saved_model.pb"} | ({GOLDEN} if self.golden else set())
        if self.aot is not None:
            expected |= {"aot/compiled.h", "aot/compiled.mk", *self.aot.paths}
        # Those of aot/ are named by the key aot.
        possible = {n for n in self.files if GRAPH.is_file(n) and not n.startswith("aot/")}
        check_files(self.files, expected, frozenset(possible))

    def _check_conf(self) -> None:
        """Raise ValueError unless slots and numeric inputs are such as a conf can have."""
        try:
            conf, statistics = conf_of(self)
            widths = {
                name: indicator_width(name, conf.slots[name], statistics)
                for name, slot in self.slots.items()
                if slot.indicator
            }
        except UserError as error:
            raise ValueError(str(error)) from error
        for name, width in widths.items():
            if self.slots[name].columns != width:
                raise ValueError(
                    f"slot {name} has {self.slots[name].columns} columns, and {width} ids"
                )

    @property
    def inputs(self) -> dict[str, SignatureInput]:
        """The inputs of signature by_slot, by name."""
        return {one.name: one for one in self.signatures.by_slot}


def conf_of(description: GraphManifest) -> tuple[Conf, Statistics]:
    """As much of the conf as raw rows need, and what was measured or read for it.

    Raises UserError for what no conf has.
    """
    boundaries: dict[str, NDArray[np.float64]] = {}
    standardize: dict[str, Scale] = {}
    slots: dict[str, dict[str, Any]] = {}
    for name, given in description.slots.items():
        slot = slots[name] = conf_values(given, Slot)
        for key, text in (("size", given.size), ("padding", given.padding)):
            slot[key] = None if text is None else int(text)
        if given.ids == "quantiles":
            boundaries[name] = np.array(slot.pop("boundaries"), np.float64)
    numeric: dict[str, dict[str, Any]] = {}
    for name, one in description.numeric.items():
        numeric[name] = conf_values(one, Numeric)
        if one.columns is not None:
            del numeric[name]["width"]
        mean, deviation = numeric[name].pop("mean"), numeric[name].pop("deviation")
        if one.transform == "standardize":
            standardize[name] = (mean, deviation)
    data = {"missing": list(description.data.missing), "strip": description.data.strip}
    # What the recipe is does not matter to raw rows.
    values = {"recipe": {"name": "lr"}, "slots": slots, "numeric": numeric, "data": data}
    return schema.from_values(values), Statistics(standardize, boundaries, {})


def conf_values(given: SlotInput | NumericInput, kind: type[Slot | Numeric]) -> dict[str, Any]:
    """Those keys of a described input that its conf has, as plain values."""
    plain = documents.plain(given)
    return {
        field.name: plain[field.name] for field in dataclasses.fields(kind) if field.name in plain
    }
