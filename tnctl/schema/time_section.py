"""`data.times`: how columns write times."""

import re
from dataclasses import dataclass
from datetime import date

from tnctl.errors import UserError, refuse_if
from tnctl.schema.declarations import Section, key

ISO = "iso"
NUMBERS = ("epoch_s", "epoch_ms", "epoch_us", "epoch_ns")
MOST_FORMAT = 64  # bytes; as in csrc/tn_time.h
DIRECTIVE = re.compile(r"%(.?)", re.DOTALL)
FIELDS = {  # of a pattern, each at most once; `%b` is a month too, `%y` a year, `%I` an hour
    "Y": "year", "y": "year", "m": "month", "b": "month", "d": "day", "a": "weekday",
    "H": "hour", "I": "hour", "p": "half of the day", "M": "minute", "S": "second",
    "f": "fraction", "z": "zone",
}  # fmt: skip
# What the C library takes as a time in the format iso (csrc/tn_time.c); seconds and zone may lack.
ISO_TEXT = re.compile(
    r"(\d{4})(-?)(\d\d)\2(\d\d)"
    r"(?:[T ](?:[01]\d|2[0-3])"
    r"(?::[0-5]\d(?::[0-5]\d(?:[.,]\d{1,9})?)?|[0-5]\d(?:[0-5]\d(?:[.,]\d{1,9})?)?)?"
    r"(?: ?(?:Z|UTC|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?))?)?",
    re.ASCII,
)
OFFSET = re.compile(r"([+-])([01]\d|2[0-3]):([0-5]\d)", re.ASCII)
EXAMPLES = "iso, epoch_s, epoch_ms, or a pattern such as %d/%m/%Y %H:%M:%S"


@dataclass
class Time(Section):
    """How a column writes times."""

    format: str = key(
        ISO,
        "iso (2026-11-20T13:45:09Z, 2026-11-20 13:45, 20261120), epoch_s, epoch_ms, epoch_us or "
        "epoch_ns (a number since 1970), or a pattern of %Y %y %m %b %d %a %H %I %p %M %S %f %z %%",
    )
    offset: str = key(
        "+00:00",
        "the zone, ahead of UTC, of times that name none, and in which hours and days are counted",
    )

    def check(self) -> None:
        refuse_if(
            OFFSET.fullmatch(self.offset) is None,
            f"offset must be ±HH:MM, such as +01:00. Received: offset={self.offset}",
        )
        if self.format != ISO and not self.is_number:
            _check_pattern(self.format)

    @property
    def is_number(self) -> bool:
        """Whether values are numbers since 1970; else they are texts."""
        return self.format in NUMBERS

    @property
    def seconds_ahead(self) -> int:
        """`offset` in seconds."""
        sign, hours, minutes = self.offset[0], int(self.offset[1:3]), int(self.offset[4:6])
        return (-1 if sign == "-" else 1) * (hours * 3600 + minutes * 60)


def _check_pattern(pattern: str) -> None:
    refuse_if("%" not in pattern, f"format must be {EXAMPLES}. Received: format={pattern}")
    refuse_if(
        len(pattern.encode()) > MOST_FORMAT or "\0" in pattern,
        f"format has at most {MOST_FORMAT} bytes, none of them 0",
    )
    fields = []
    for letter in DIRECTIVE.findall(pattern):
        refuse_if(
            letter not in FIELDS and letter != "%",
            f"format has no directive %{letter}. It takes "
            f"{', '.join(f'%{name}' for name in FIELDS)} and %%. Received: format={pattern}",
        )
        if letter != "%":
            refuse_if(FIELDS[letter] in fields, f"format has the {FIELDS[letter]} twice: {pattern}")
            fields.append(FIELDS[letter])
    for field, ways in (("year", "%Y or %y"), ("month", "%m or %b"), ("day", "%d")):
        refuse_if(
            field not in fields,
            f"format lacks the {field}: {ways}. A time needs its date. Received: format={pattern}",
        )
    refuse_if(
        ("I" in DIRECTIVE.findall(pattern)) != ("half of the day" in fields),
        f"format needs %I and %p together, or %H. Received: format={pattern}",
    )
    refuse_if(
        re.search(r"%f(?:\d|%[YymdHIMS])", pattern) is not None,
        f"format must not have a digit after %f, whose length differs. Received: format={pattern}",
    )


def check_iso(name: str, text: str) -> None:
    """Raise UserError unless a text is a time in the format iso; `name` is its key."""
    match = ISO_TEXT.fullmatch(text)
    try:
        if match is not None:
            date(int(match[1]), int(match[3]), int(match[4]))
            return
    except ValueError:
        pass
    raise UserError(f"{name} must be a time such as 2026-11-20T13:45:09Z. Received: {name}={text}")
