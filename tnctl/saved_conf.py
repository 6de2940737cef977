"""The conf that a checkpoint carries, which may be a stranger's: plain values, and nothing else.

It is written after Hydra has resolved everything, so there is nothing left in it to resolve. What
would make Hydra or OmegaConf read files or the environment, or import code, is refused. URLs in it
are opened only where they are plain (tnctl.file_urls).
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from tnctl import shipped
from tnctl.errors import Failure, UserError, quoted
from tnctl.file_urls import PROTOCOLS, is_plain
from tnctl.masking import OF_DATA
from tnctl.schema import Conf, dataclass_of, from_values

PLAIN = (str, bool, int, float, NoneType)
# `${…}` is resolved by OmegaConf, `???` is a value that is missing.
INTERPOLATION = "${"
MISSING = "???"
# Keys that Hydra obeys wherever they stand, such as _target_.
OBEYED = re.compile(r"_\w+_|hydra|defaults")


class ForeignValueError(ValueError):
    """What a saved conf cannot hold; the message names the key."""


def check(values: Mapping[str, Any]) -> None:
    """Raise ForeignValueError unless values are those of a conf that a command has saved.

    Keys may be absent, for the conf may be an older one. Whether the values are in their ranges
    and fit together, `conf_of` finds out.
    """
    _check_plain(values, "")
    _check_types(values, Conf, "")
    name = values.get("recipe", {}).get("name")
    if isinstance(name, str) and not name.endswith(".py") and name not in shipped.recipes():
        raise ForeignValueError(
            f"recipe.name is {quoted(name)}, which is neither a shipped recipe nor a .py file"
        )


def conf_of(values: dict[str, Any], folder: str) -> Conf:
    """The Conf of the values that a checkpoint in `folder` carries. Raises Failure."""
    try:
        return from_values(values)
    except UserError as error:
        raise Failure(
            f"the conf of {folder} cannot be used: {error}. Take another checkpoint"
        ) from error


def refuse_odd_urls(values: Mapping[str, Any], folder: str, given: Collection[str]) -> None:
    """Refuse a conf with a URL that only a checkpoint names, and that does more than name a file.

    `values` are those of the checkpoint in `folder` with the command line's, `given` the keys that
    the command line has. Raises UserError, naming every such key.
    """
    odd = {
        key: text
        for key, text in _texts(values, "")
        if not is_plain(text) and key.partition("[")[0] not in given
    }
    if odd:
        [(first, text), *_] = odd.items()
        keys = " ".join(f"{key}=…" for key in dict.fromkeys(key.partition("[")[0] for key in odd))
        raise UserError(
            f"{first} in the conf of {folder} is {quoted(text)}, and of what a checkpoint names "
            f"only paths and URLs of {', '.join(PROTOCOLS)} are opened, without ::. If you mean "
            f"it, give {keys} on the command line, or conf=NAME"
        )


def _texts(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """The texts of a conf by their keys, but those of its data, which nobody opens."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            # Settings of a recipe have names of its own.
            if isinstance(inner, Mapping) or key.split(".")[0] == "recipe" or name not in OF_DATA:
                yield from _texts(inner, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _texts(inner, f"{key}[{place}]")
    elif isinstance(value, str):
        yield key, value


def refuse_unsavable(values: Mapping[str, Any]) -> None:
    """Refuse a composed conf with a value that no checkpoint could carry. Raises UserError."""
    try:
        _check_plain(values, "")
    except ForeignValueError as error:
        raise UserError(f"{error}. Give another value") from error


def _check_plain(value: Any, key: str) -> None:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            below = f"{key}.{name}".lstrip(".")
            if not isinstance(name, str) or INTERPOLATION in name or OBEYED.fullmatch(name):
                raise ForeignValueError(f"{quoted(below)} is no key of a conf's values")
            _check_plain(inner, below)
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            _check_plain(inner, f"{key}[{place}]")
    elif not isinstance(value, PLAIN):
        raise ForeignValueError(f"{key} is no text, number, true, false or null")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ForeignValueError(f"{key} is {value}")
    elif isinstance(value, str) and (INTERPOLATION in value or value == MISSING):
        raise ForeignValueError(
            f"{key} is {quoted(value)}, which is not a value but a way to get one, and a conf of "
            "values has none"
        )


def _check_types(value: Any, hint: Any, key: str) -> None:
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if value is None and NoneType in kinds:
        return
    if (kind := dataclass_of(hint)) is not None and isinstance(value, Mapping):
        hints = get_type_hints(kind)
        for name, inner in value.items():
            below = f"{key}.{name}".lstrip(".")
            if name not in hints:
                raise ForeignValueError(f"{quoted(below)} is no key of a conf")
            _check_types(inner, hints[name], below)
    elif not any(_fits(value, kind, key) for kind in kinds):
        raise ForeignValueError(f"{key} cannot be {quoted(str(value))}")


def _fits(value: Any, kind: Any, key: str) -> bool:
    """Whether a value is of a type; values in lists and mappings are checked as it is."""
    if kind is Any:
        return True
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if get_origin(kind) is list and isinstance(value, list):
        for place, inner in enumerate(value):
            _check_types(inner, get_args(kind)[0], f"{key}[{place}]")
        return True
    if get_origin(kind) is dict and isinstance(value, Mapping):
        for name, inner in value.items():
            _check_types(inner, get_args(kind)[1], f"{key}.{name}")
        return True
    return type(value) is kind
