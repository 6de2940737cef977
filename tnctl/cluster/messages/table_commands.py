"""What rank 0 says to the tables of all processes between passes over the data."""

from dataclasses import dataclass
from typing import Literal

from tnctl.documents import Uint32


@dataclass(frozen=True, kw_only=True)
class SetDays:
    """Set the days of the tables' clock: (day, first step)."""

    command: Literal["set_days"] = "set_days"
    days: tuple[tuple[Uint32, Uint32], ...]


@dataclass(frozen=True, kw_only=True)
class SetCounting:
    """Say whether occurrences count in the tables from now on."""

    command: Literal["set_counting"] = "set_counting"
    counting: bool
