"""Documents that are read from files or the network: JSON, parsed once into typed values.

A document is a frozen dataclass. Its annotations are its format: pydantic checks types, ranges and
patterns where the bytes come in, so the rest of the code reads attributes and never a raw `dict`.
Keys that a dataclass does not have are ignored, as the formats promise.
"""

import dataclasses
import json
import re
from functools import cache
from typing import Annotated, Any, TypeVar, cast

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from tnctl.errors import quoted

Document = TypeVar("Document")

LONGEST_PATH = 1024  # characters
LONGEST_NAME = 255  # characters of a name, also of a part of a path: the limit of file systems
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


def is_name(text: str) -> bool:
    """Whether a text can be the name of a slot, share group, table, segment, head or tower."""
    return len(text) <= LONGEST_NAME and NAME.fullmatch(text) is not None


def is_relative_path(path: str) -> bool:
    """Whether a path stays in its folder: `/` between plain parts, no `..`, no hidden part."""
    parts = path.split("/")
    return len(path) <= LONGEST_PATH and all(
        len(part) <= LONGEST_NAME and PART.fullmatch(part) for part in parts
    )


def _name(text: str) -> str:
    if not is_name(text):
        raise PydanticCustomError("name", "should be a name of letters, digits and _")
    return text


def _relative_path(path: str) -> str:
    if not is_relative_path(path):
        raise PydanticCustomError("path", "should be a relative path of plain names")
    return path


Name = Annotated[str, AfterValidator(_name)]
RelativePath = Annotated[str, AfterValidator(_relative_path)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, lt=2**63)]  # 0 or more
Uint32 = Annotated[int, Field(ge=0, lt=2**32)]
Uint64Text = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,19})$")]  # decimal
Finite = Annotated[float, Field(allow_inf_nan=False)]


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
        raise DocumentError(_first_problem(error)) from error
    return document


def _first_problem(error: ValidationError) -> str:
    """The first wrong field: its path, the rule and what was received."""
    [first, *_] = error.errors(include_url=False, include_context=False)
    path = ".".join(str(part) for part in first["loc"]).removesuffix(".[key]") or "document"
    # A rule reads as in "Input should be greater than 0"; the input is the field.
    rule = first["msg"].removeprefix("Input ").removeprefix("String ").removeprefix("Value error, ")
    received = first["input"]
    if first["type"] == "json_invalid":
        return f"no JSON of tnctl ({first['msg']})"
    if first["type"] == "missing":
        return f"key {quoted(path)} is missing"
    shown = received if isinstance(received, str) else json.dumps(received, default=str)
    return f"key {quoted(path)} {rule}. It has {quoted(shown)}"


def plain(document: Any) -> Any:
    """A document as the values that JSON has, keys in the order of its fields."""
    return dataclasses.asdict(document)
