"""Documents that are read from files or the network: JSON, parsed once into typed values.

A document is a frozen dataclass. Its annotations are its format: pydantic checks types, ranges and
patterns where the bytes come in, and `__post_init__` (which raises ValueError) what spans several
fields, so the rest of the code reads attributes and never a raw `dict`. Keys that a dataclass does
not have are ignored, as the formats promise. The fields are in the order in which their keys are
written.
"""

import dataclasses
import json
import math
import re
from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Annotated, Any, LiteralString, TypeVar, cast

from pydantic import AfterValidator, Field, JsonValue, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from tnctl.errors import quoted

Document = TypeVar("Document")

LONGEST_PATH = 1024  # characters
LONGEST_NAME = 255  # characters of a name, also of a part of a path: the limit of file systems
LONGEST_TEXT = 65_536  # characters of a text that only people read
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
OMITTED, FLAT = "omitted", "flat"  # keys of a field's metadata


def is_name(text: str) -> bool:
    """Whether a text can be the name of a slot, share group, table, segment, head or tower."""
    return len(text) <= LONGEST_NAME and NAME.fullmatch(text) is not None


def is_relative_path(path: str) -> bool:
    """Whether a path stays in its folder: `/` between plain parts, no `..`, no hidden part."""
    parts = path.split("/")
    return len(path) <= LONGEST_PATH and all(
        len(part) <= LONGEST_NAME and PART.fullmatch(part) for part in parts
    )


def _is_moment(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _that(holds: Callable[[str], bool], rule: LiteralString) -> AfterValidator:
    """The validator of a text with a rule, in words too."""

    def check(text: str) -> str:
        if not holds(text):
            raise PydanticCustomError("text", rule)
        return text

    return AfterValidator(check)


def _uint64(text: str) -> str:
    if int(text) >= 2**64:
        raise PydanticCustomError("uint64", "should be an integer of at most 64 bits")
    return text


def check_tree(value: JsonValue) -> JsonValue:
    """Refuse numbers that this program would not write: NaN, infinite, or beyond 64 bits."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            check_tree(inner)
    elif isinstance(value, float) and not math.isfinite(value):
        raise PydanticCustomError("finite", "should have finite numbers only")
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise PydanticCustomError("integer", "should have integers of 64 bits only")
    return value


def _figures(values: dict[str, JsonValue]) -> dict[str, JsonValue]:
    for value in values.values():
        if isinstance(value, list):
            raise PydanticCustomError("figures", "should have numbers and texts, not lists")
        if isinstance(value, dict):
            _figures(value)
        else:
            check_tree(value)
    return values


Name = Annotated[str, _that(is_name, "should be a name of letters, digits and _")]
RelativePath = Annotated[str, _that(is_relative_path, "should be a relative path of plain names")]
FolderName = Annotated[
    str,
    _that(
        lambda text: is_relative_path(text) and "/" not in text,
        "should be the plain name of a folder",
    ),
]
Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
Moment = Annotated[Text, _that(_is_moment, "should be a time of ISO 8601 with its offset")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, lt=2**63)]  # 0 or more
Uint16 = Annotated[int, Field(ge=0, lt=2**16)]
Uint32 = Annotated[int, Field(ge=0, lt=2**32)]
# Decimal.
Uint64Text = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,19})$"), AfterValidator(_uint64)]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]  # 64 bits, hexadecimal
Finite = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
# Values whose keys are of the user's, such as the settings of a recipe: any JSON.
Tree = Annotated[JsonValue, AfterValidator(check_tree)]
TreeByName = dict[str, Tree]
# The metrics of a model by their names; its other heads' metrics are nested under `heads`.
Figures = Annotated[dict[str, JsonValue], AfterValidator(_figures)]


def omitted() -> Any:
    """A field whose key is not written while it is None."""
    return dataclasses.field(default=None, metadata={OMITTED: True})


def flat() -> Any:
    """A field that is a dict, whose keys are written beside the keys of the document.

    The class needs a validator that separates them.
    """
    return dataclasses.field(default_factory=dict, metadata={FLAT: True})


class DocumentError(ValueError):
    """A document whose text is not what its format says: a wrong field by its path, in one line."""


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def parse(kind: type[Document], text: bytes) -> Document:
    """The document of a class in a JSON text. Raises DocumentError.

    Types are strict: no text is read as a number, and no number as a truth value.
    """
    try:
        document: Document = _adapter(cast(Any, kind)).validate_json(text, strict=True)
    except ValidationError as error:
        raise DocumentError(first_problem(error)) from error
    return document


def first_problem(error: ValidationError) -> str:
    """The first wrong field: its path, the rule and what was received."""
    [first, *_] = error.errors(include_url=False, include_context=False)
    path = ".".join(str(part) for part in first["loc"]).removesuffix(".[key]")
    # A rule reads as in "Input should be greater than 0"; the input is the field.
    rule = first["msg"].removeprefix("Input ").removeprefix("String ").removeprefix("Value error, ")
    match first["type"]:
        case "json_invalid":
            return f"no valid JSON: {first['msg'].removeprefix('Invalid JSON: ')}"
        case "missing":
            return f"key {quoted(path)} is missing"
        case "value_error":  # of a document: its sentence has what was received
            return f"key {quoted(path)}: {rule}" if path else rule
    subject = f"key {quoted(path)}" if path else "it"
    return f"{subject} {rule}. It has {shown(first['input'])}"


def shown(received: Any) -> str:
    """A value that was received, as a message shows it: quoted, and cut where it is long."""
    if isinstance(received, dict | list | tuple):
        return f"{'an object' if isinstance(received, dict) else 'a list'} of {len(received):,}"
    if isinstance(received, int) and not isinstance(received, bool) and abs(received) >= 2**64:
        return "an integer of more than 64 bits"
    return quoted(received if isinstance(received, str) else json.dumps(received, default=str))


@cache
def _layout(kind: Any) -> list[tuple[str, str, bool, bool]]:
    """The fields of a document: (attribute, key, omitted while None, flat)."""
    return [
        (field.name, field.name.rstrip("_"), OMITTED in field.metadata, FLAT in field.metadata)
        for field in dataclasses.fields(kind)
    ]


def plain(document: Any) -> Any:
    """A document as the values that JSON has, keys in the order of its fields.

    Dicts, lists and scalars inside of it are converted too. A field `from_` has the key `from`;
    fields of `omitted()` are left out while None, fields of `flat()` are spread into the document.
    """
    if isinstance(document, dict):
        return {key: plain(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [plain(entry) for entry in document]
    if not dataclasses.is_dataclass(document):
        return document
    values: dict[str, Any] = {}
    for name, key, omitted_, flat_ in _layout(cast(Any, type(document))):
        value = getattr(document, name)
        if flat_:
            values |= plain(value)
        elif not omitted_ or value is not None:
            values[key] = plain(value)
    return values
