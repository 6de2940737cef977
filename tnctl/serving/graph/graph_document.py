"""serving.json, the manifest of a split graph: docs/formats/graph.md."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from tnctl import documents, schema
from tnctl.checkpoint.chain import GOLDEN
from tnctl.checkpoint.document import RecipeReference
from tnctl.data.statistics import Statistics
from tnctl.documents import Finite, Name, omitted
from tnctl.errors import refuse_if
from tnctl.manifest import Manifest
from tnctl.model.layout import LINEARS
from tnctl.model.recalibration import Recalibration
from tnctl.ownership import GRAPH
from tnctl.schema import ID_KINDS, Conf, Numeric, Slot
from tnctl.serving.artefact_document import CheckpointReference, GraphGolden, check_files
from tnctl.serving.graph.aot_document import Compiled
from tnctl.serving.graph.raw_values_document import (
    MOST_COLUMNS,
    LabelSource,
    NumericInput,
    RawData,
    SlotInput,
    Text,
)

NAME = "serving.json"
LENGTH = "_length"  # what the name of a sequence's number of values ends with
OF_LINEAR = "_linear"  # what the name of a slot's part of `linear` ends with
Columns = Annotated[int, Field(ge=1, le=MOST_COLUMNS)]


@dataclass(frozen=True, kw_only=True)
class SignatureInput:
    """An input [B, *shape] of a signature: `columns` of `source`, the first of which is `at`."""

    name: Name
    dtype: Literal["float32", "int32"]
    shape: Annotated[tuple[Columns, ...], Field(max_length=2)]
    columns: Columns
    source: Literal["x", "linear", "sequences", "lengths", "linears"]
    at: Annotated[int, Field(ge=0, lt=MOST_COLUMNS)]

    @property
    def end(self) -> int:
        """The column after its last one."""
        return self.at + self.columns


@dataclass(frozen=True, kw_only=True)
class Signatures:
    """The inputs of both signatures: as slots and numbers, and side by side."""

    by_slot: tuple[SignatureInput, ...]
    packed: tuple[SignatureInput, ...]

    @property
    def linears(self) -> tuple[SignatureInput, ...]:
        """The inputs that `linear` is the sum of, where by_slot takes them in its place."""
        return tuple(part for part in self.by_slot if part.source == LINEARS)

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


@dataclass(frozen=True, kw_only=True)
class LinearSum:
    """The slots in the order in which `linear` is added up."""

    adds: tuple[Name, ...]


@dataclass(frozen=True, kw_only=True)
class GraphManifest(Manifest):
    """All that a scorer needs to make the inputs of a split graph from raw values.

    Version 2 has an input of each slot in the place of `linear`; without them version 1 is written.
    """

    FORMAT: ClassVar[str] = "tnctl graph"
    VERSION: ClassVar[int] = 2
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
    golden: GraphGolden | None
    aot: Compiled | None = omitted()

    def __post_init__(self) -> None:
        heads = [output.head for output in self.outputs if output.kind == "logits"]
        refuse_if(
            self.heads != tuple(dict.fromkeys(heads)),
            "heads are not those of the outputs of kind logits",
            ValueError,
        )
        if self.sha256:  # else its files are not written yet
            self._check_files()

    def _check_files(self) -> None:
        """Raise ValueError unless its files are the files of a split graph."""
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
    slots: dict[str, dict[str, Any]] = {}
    for name, slot in description.slots.items():
        values = slots[name] = conf_values(slot, Slot)
        for key in ("size", "padding"):
            values[key] = None if values[key] is None else int(values[key])
        if ID_KINDS[slot.ids].measured:
            statistics.boundaries[name] = values.pop("boundaries")
    numeric: dict[str, dict[str, Any]] = {}
    for name, number in description.numeric.items():
        values = numeric[name] = conf_values(number, Numeric)
        if number.columns is not None:
            del values["width"]
        moments = values.pop("mean"), values.pop("deviation")
        if number.transform == "standardize":
            statistics.standardize[name] = moments
    times = description.data.times or {}
    data = {
        "missing": list(description.data.missing),
        "strip": description.data.strip,
        "times": {column: documents.plain(time) for column, time in times.items()},
    }
    # Raw rows are read alike with any recipe.
    recipe = {"name": "lr"}
    return (
        schema.from_values({"recipe": recipe, "slots": slots, "numeric": numeric, "data": data}),
        statistics,
    )


def conf_values(given: SlotInput | NumericInput, kind: type[Slot | Numeric]) -> dict[str, Any]:
    """Those keys of a described input that its conf has, as plain values."""
    plain = documents.plain(given)
    return {
        field.name: plain[field.name] for field in dataclasses.fields(kind) if field.name in plain
    }
