"""The parts of serving.json that describe how raw values become ids (docs/formats/graph.md)."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from tnctl.documents import Finite, Name, Uint64Text, omitted
from tnctl.errors import refuse_if
from tnctl.schema import ID_KINDS
from tnctl.serving.rows.export_document import MOST_WIDTH, Pooling

MOST_COLUMNS = 2**24  # floats of an input, of one example
MOST_VALUES = 65_535  # places of a sequence
MOST_OOV = 2**31
MOST_TEXT = 65_536  # characters of a name of a column, a separator or a value

Text = Annotated[str, Field(max_length=MOST_TEXT)]


@dataclass(frozen=True, kw_only=True)
class LabelSource:
    """What a head was trained on: a column, and how its values count."""

    column: Text
    positive: tuple[Text, ...] | None
    above: Finite | None


@dataclass(frozen=True, kw_only=True)
class TimeColumn:
    """How a column writes times, as `data.times` of the conf has it."""

    format: Text
    offset: Annotated[str, Field(max_length=6)]


@dataclass(frozen=True, kw_only=True)
class RawData:
    """How the raw rows of the training data were read: keys of the conf's `data`."""

    format: Literal[
        "csv", "parquet", "orc", "tfrecord", "libsvm", "paddle", "jsonl", "generated", "arrivals"
    ]
    delimiter: Annotated[str, Field(min_length=1, max_length=1)]
    header: bool
    columns: tuple[Text, ...] | None
    pairs: Literal["slot:value", "value:slot"]
    skip_rows: Annotated[int, Field(ge=0, lt=2**31)]
    strip: bool
    missing: tuple[Text, ...]
    check_utf8: bool
    times: dict[Text, TimeColumn] | None = omitted()


def check_id_kind(name: str) -> str:
    """A kind of ids that serving.json has. Raises PydanticCustomError for another text."""
    kinds = [known for known, kind in ID_KINDS.items() if kind.served_as is None]
    if name not in kinds:
        *names, last = map(repr, kinds)
        raise PydanticCustomError("ids", f"should be {', '.join(names)} or {last}")
    return name


@dataclass(frozen=True, kw_only=True)
class SlotInput:
    """How the values of a slot become ids, and the rows of those its input."""

    column: Text | None
    cross: tuple[Text, ...] | None
    separator: Annotated[str, Field(min_length=1, max_length=MOST_TEXT)] | None
    weights: Text | None
    ids: Annotated[str, AfterValidator(check_id_kind)]
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
        refuse_if(
            self.pooling == "none" and self.columns * (self.max_length or 0) > MOST_COLUMNS,
            f"a sequence has over {MOST_COLUMNS:,} floats",
            ValueError,
        )

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
    since: Annotated[str, Field(max_length=64)] | None = omitted()
    since_column: Text | None = omitted()
    unit: Literal["second", "minute", "hour", "day"] | None = omitted()
