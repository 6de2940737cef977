"""The lines of golden.jsonl: raw rows with the model's inputs and outputs for them.

docs/formats/golden.md.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from tnctl.documents import DocumentError, Name, Uint64Text, first_problem
from tnctl.model.layout import LINEAR

MOST_BYTES = 64 << 20  # of a line
MOST_LINES = 1_000_000
LARGEST = 3.4028234663852886e38  # of float32

# By column, a value as the reader of the data gave it: text, number, bool, None, or a list of such.
# Texts may have lone surrogates, bytes that are not UTF-8, which pydantic refuses in a str.
RawRow = dict[Any, Any]

Float32 = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=-LARGEST, le=LARGEST)]
Length = Annotated[int, Field(strict=True, ge=0, lt=2**31)]


@dataclass(frozen=True, kw_only=True)
class GoldenLine:
    """A raw row, and the inputs and outputs that a correct service computes from it.

    `ids` has by slot the ids that are pooled, or are in the sequence, as decimal texts;
    `weights` the weight of each. `x`, `linear`, `sequences` and `lengths` are the inputs of
    signature `packed`, None where the model has no such input; `logits` and `predictions` are by
    head, the outputs of `towers` by tower.
    """

    row: RawRow
    ids: dict[Name, list[Uint64Text]]
    weights: dict[Name, list[Float32]] | None = None
    x: list[Float32] | None = None
    linear: Float32 | None = None
    sequences: list[Float32] | None = None
    lengths: list[Length] | None = None
    logits: dict[Name, Float32]
    predictions: dict[Name, Float32]
    towers: dict[Name, list[Float32]] | None = None

    @property
    def inputs(self) -> dict[str, list[float] | list[int]]:
        """The inputs of signature `packed`, by name."""
        linear = None if self.linear is None else [self.linear]
        inputs = {"x": self.x, "sequences": self.sequences, "lengths": self.lengths, LINEAR: linear}
        return {name: numbers for name, numbers in inputs.items() if numbers is not None}

    def with_values(
        self,
        inputs: Mapping[str, NDArray[Any]],
        logits: dict[str, float],
        predictions: dict[str, float],
        towers: dict[str, list[float]],
    ) -> "GoldenLine":
        """The same row with other inputs, [columns] by name, and the model's outputs for them."""
        values = {name: array.tolist() for name, array in inputs.items()}
        if LINEAR in values:
            [values[LINEAR]] = values[LINEAR]
        values |= {"logits": logits, "predictions": predictions, "towers": towers or self.towers}
        return dataclasses.replace(self, **values)

    def to_json(self) -> bytes:
        """The line as JSON, ended by LF; fields that are None are left out. The inverse of `parse`.

        It is ASCII. Readers of data give a byte that is not UTF-8 as a lone surrogate, which UTF-8
        cannot encode, but escapes of JSON can hold. Raises ValueError for NaN and infinity.
        """
        values = {
            field.name: value
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) is not None
        }
        return json.dumps(values, allow_nan=False).encode() + b"\n"


_adapter = cache(TypeAdapter)  # made at the first line: it takes long


def parse(text: bytes) -> GoldenLine:
    """The line in a text. Raises DocumentError.

    Not with pydantic's own reader of JSON, which refuses lone surrogates.
    """
    if len(text) > MOST_BYTES:
        raise DocumentError(f"it has over {MOST_BYTES:,} bytes, more than a line may have")
    try:
        return _adapter(GoldenLine).validate_python(json.loads(text, parse_constant=_no_number))
    except ValidationError as error:
        raise DocumentError(first_problem(error)) from error
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"no valid JSON: {error}") from error


def parse_lines(texts: Sequence[bytes]) -> list[GoldenLine]:
    """The lines of a file. Raises DocumentError, which names the line."""
    if len(texts) > MOST_LINES:
        raise DocumentError(f"it has over {MOST_LINES:,} lines, more than golden rows may have")
    lines = []
    for number, text in enumerate(texts, 1):
        try:
            lines.append(parse(text))
        except DocumentError as error:
            raise DocumentError(f"line {number}: no line of golden rows: {error}") from error
    return lines


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")
