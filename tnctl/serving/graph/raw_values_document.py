"""The parts of serving.json that describe how raw values become ids (docs/formats/graph.md)."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from tnctl.documents import Finite, Name, Uint64Text, omitted
from tnctl.errors import refuse_if
from tnctl.model.layout import CVM_COLUMNS
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

    def __post_init__(self) -> None:
        refuse_if(
            self.delimiter in '"\r\n',
            "data.delimiter is a sign that no delimiter can be",
            ValueError,
        )


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
            (self.column is None) != (self.cross is not None),
            "a slot has a column, or is a cross of several",
            ValueError,
        )
        refuse_if(
            self.has_rows != (self.group is not None),
            "group is the name of a slot's rows, and null without rows",
            ValueError,
        )
        refuse_if(
            self.default != (0 if self.has_rows else None),
            "default is 0 with rows, and null without",
            ValueError,
        )
        # Its input is as wide as its rows.
        of_rows = self.width + (CVM_COLUMNS if self.cvm else 0)
        refuse_if(
            self.indicator and (self.width or self.linear or self.cvm or not self.columns),
            "indicator is for slots without rows, whose columns count ids",
            ValueError,
        )
        refuse_if(
            not self.indicator and self.columns != of_rows,
            f"columns are {self.columns}, and its rows have {of_rows}",
            ValueError,
        )
        refuse_if(
            self.pooling == "none" and self.max_length is None,
            "pooling none keeps a sequence, which needs max_length",
            ValueError,
        )
        refuse_if(
            self.pooling == "none" and self.columns * (self.max_length or 0) > MOST_COLUMNS,
            f"a sequence has over {MOST_COLUMNS:,} floats",
            ValueError,
        )
        # Its kind of ids decides which of boundaries and vocabulary it has.
        served = ID_KINDS[self.ids].served
        refuse_if(
            (self.vocabulary is not None) != (served == "vocabulary"),
            "vocabulary is for ids vocabulary, and for no others",
            ValueError,
        )
        refuse_if(
            (self.boundaries is not None) != (served == "boundaries"),
            "boundaries are for ids boundaries and quantiles, and for no others",
            ValueError,
        )
        refuse_if(
            any(low >= high for low, high in pairwise(self.boundaries or ())),
            "boundaries do not ascend",
            ValueError,
        )
        refuse_if(
            (self.missing == "value") != (self.missing_id is not None),
            "missing_id is for missing value, and for nothing else",
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

    def __post_init__(self) -> None:
        refuse_if(
            (self.column is None) != (self.columns is not None),
            "a numeric input has a column, or several columns",
            ValueError,
        )
        refuse_if(
            (self.unit is not None) != (self.since is not None or self.since_column is not None),
            "unit is for since or since_column",
            ValueError,
        )
        if self.columns is not None and len(self.columns) != self.width:
            raise ValueError(f"width is {self.width}, and there are {len(self.columns)} columns")
        for key, moments in (("mean", self.mean), ("deviation", self.deviation)):
            refuse_if(
                (self.transform == "standardize") != (moments is not None),
                f"{key} is for transform standardize, and for no other",
                ValueError,
            )
            count = len(moments) if isinstance(moments, tuple) else self.width
            refuse_if(
                count != self.width,
                f"{key} has {count} numbers, and width is {self.width}",
                ValueError,
            )
        deviations = self.deviation if isinstance(self.deviation, tuple) else (self.deviation,)
        refuse_if(
            any(number is not None and not number > 0 for number in deviations),
            "deviation is not above 0",
            ValueError,
        )
