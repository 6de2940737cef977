"""The command that asks an owner for its hottest keys, and the reply."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from tnctl.documents import Count, Uint16, Uint64Text

MOST_KEYS = 1000  # of a reply


@dataclass(frozen=True, kw_only=True)
class ListHotKeys:
    """List the keys that most batches of the pass asked for; the reply is a `HotKeyList`."""

    command: Literal["list_hot_keys"] = "list_hot_keys"
    most: Annotated[int, Field(ge=1, le=MOST_KEYS)]


@dataclass(frozen=True, kw_only=True)
class HotKey:
    """A key of a table, by its number: the id in a share group, and how many batches have it.

    `batches` is estimated from a sample.
    """

    table: Count
    group: Uint16
    id: Uint64Text
    batches: Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class HotKeyList:
    """The hottest keys of an owner, of so many batches that asked it for so many keys."""

    batches: Count
    requested: Count
    keys: Annotated[tuple[HotKey, ...], Field(max_length=MOST_KEYS)]
