"""How a key is declared: type and default as in any dataclass, and a Declaration of the rest."""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tnctl.errors import UserError, did_you_mean, refuse_if

# Optimizers that compat=tensornet chooses. They can be named, but nothing recommends them.
UNLISTED = "tensornet_"


@dataclass(frozen=True)
class Declaration:
    """What a key takes and means. The check, `--help` and docs/conf.md read all of it.

    Completion reads the choices.
    """

    sentence: str
    low: float = -math.inf
    high: float = math.inf
    includes_low: bool = True
    choices: Collection[str] = ()
    words: Collection[str] = ()  # texts that a number may be instead
    removed: Mapping[str, str] = field(default_factory=dict)  # earlier choices, and the way out
    only_for: tuple[str, tuple[str, ...]] = ("", ())  # a key of the section, and values of it
    unit: str = ""

    @property
    def condition(self) -> str:
        """What `only_for` says, such as name=adam or adamw; empty for a key without it."""
        selector, users = self.only_for
        listed = [user for user in users if not user.startswith(UNLISTED)]
        return f"{selector}={' or '.join(listed)}" if users else ""

    @property
    def meaning(self) -> str:
        """The sentence, and what the key is only for."""
        return f"{self.sentence}; only for {self.condition}" if self.condition else self.sentence

    @property
    def limit(self) -> str:
        """The range in words, empty when every finite number is in it."""
        unit = f" {self.unit}" if self.unit else ""
        if self.high < math.inf:
            return f"between {self.low:,} and {self.high:,}{unit}"
        bound = "at least" if self.includes_low else "above"
        return f"{bound} {self.low:,}{unit}" if self.low > -math.inf else ""

    def check(self, key: str, value: Any) -> None:
        """Raise UserError for a number out of range, or a text that is not among the choices.

        Each entry of a list is checked; None is never refused.
        """
        if isinstance(value, list):
            for entry in value:
                self.check(key, entry)
        elif self.choices and value is not None and value not in self.choices:
            way = self.removed.get(value) or did_you_mean(str(value), self.choices)
            raise UserError(f"{key} has no choice '{value}'. {way}")
        elif self.words and isinstance(value, str):
            refuse_if(
                value not in self.words,
                f"{key} takes no text but {' or '.join(self.words)}. Received: {key}={value}",
            )
        elif isinstance(value, int | float) and not self._includes(value):
            raise UserError(f"{key} must be {self.limit or 'finite'}. Received: {key}={value}")

    def _includes(self, number: float) -> bool:
        inside = self.low <= number <= self.high and abs(number) < math.inf  # so no NaN is
        return inside and (self.includes_low or number > self.low)


def number(default: Any, low: float, high: float, sentence: str, **declared: Any) -> Any:
    """A number, or a list of numbers, in [low, high]."""
    return key(default, sentence, low=low, high=high, **declared)


def choice(default: str | None, choices: Sequence[str], sentence: str, **declared: Any) -> Any:
    """A text that is one of `choices`."""
    return key(default, sentence, choices=tuple(choices), **declared)


def key(default: Any | Callable[[], Any], sentence: str, **declared: Any) -> Any:
    """A dataclass field of any type; `default` is a value, or what makes one."""
    metadata = {"declaration": Declaration(sentence, **declared)}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def default_of(declared: dataclasses.Field) -> Any:
    """The default of a field, a new object where it is mutable."""
    factory = declared.default_factory
    return declared.default if factory is dataclasses.MISSING else factory()


class WrongKey(UserError, ValueError):
    """A UserError that names a key of a section; pydantic adds where the section is."""


class Section:
    """A part of a conf. Making one checks each key by its declaration, then keys together.

    A key with `only_for` may have its default everywhere: a composed conf has the defaults of all
    keys, and does not say which of them were given.
    """

    def __post_init__(self) -> None:
        """Raise WrongKey."""
        try:
            self.normalize()
            self._check_keys()
            self.check()
        except UserError as error:
            raise WrongKey(str(error)) from None

    def _check_keys(self) -> None:
        for declared in dataclasses.fields(self):  # type: ignore[arg-type]
            declaration: Declaration = declared.metadata["declaration"]
            value = getattr(self, declared.name)
            selector, users = declaration.only_for
            if users and value is not None and value != default_of(declared):
                selected = getattr(self, selector)
                refuse_if(
                    selected not in users,
                    f"{declared.name} is for {declaration.condition}. "
                    f"Received: {selector}={selected}",
                )
            declaration.check(declared.name, value)

    def normalize(self) -> None:
        """Replace values that can be written in several ways. Raises UserError."""

    def check(self) -> None:
        """Raise UserError for keys that do not fit together."""
