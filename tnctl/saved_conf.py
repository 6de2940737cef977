"""The conf that a checkpoint carries, which may be a stranger's: plain values, and nothing else.

It is written after Hydra has resolved everything, so there is nothing left in it to resolve. What
would make Hydra or OmegaConf read files or the environment, or import code, is refused. URLs in it
are opened only where they are plain (tnctl.limits).
"""

import dataclasses
import math
import re
from collections.abc import Collection, Mapping
from types import NoneType
from typing import Any

from tnctl import shipped
from tnctl.errors import Failure, UserError, quoted
from tnctl.limits import PROTOCOLS, is_plain
from tnctl.masking import masked_conf, with_texts
from tnctl.schema import Conf, Paths, check_saved, from_values

PLAIN = (str, bool, int, float, NoneType)
# Sections that say nothing of the model, and what they say.
UNSAVED = {"cluster": "how a run is started", "monitor": "where its figures are written"}
# `${…}` is resolved by OmegaConf, `???` is a value that is missing.
INTERPOLATION = "${"
MISSING = "???"
# Keys that Hydra obeys wherever they stand, such as _target_.
OBEYED = re.compile(r"_\w+_|hydra|defaults")


def conf_to_json(conf: Conf) -> dict[str, Any]:
    """A conf as plain values without secrets, to be saved, shown and compared.

    Without `cluster` and `monitor`: the model depends neither on which machines train it nor on
    where they write its figures.
    """
    values = dataclasses.asdict(conf)
    for section in UNSAVED:
        del values[section]
    return masked_conf(values)


class ForeignValueError(ValueError):
    """What a saved conf cannot hold; the message names the key."""


def check(values: Mapping[str, Any]) -> None:
    """Raise ForeignValueError unless values are a conf as commands save it.

    Keys may be absent, for the conf may be an older one. Whether the values are in their ranges
    and fit together, `conf_of` finds out.
    """
    _check_plain(values, "")
    for section, meaning in UNSAVED.items():
        if section in values:
            raise ForeignValueError(f"{section} says {meaning}, and no checkpoint keeps it")
    try:
        check_saved(values)
    except UserError as error:
        raise ForeignValueError(str(error)) from error
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

    Also one that names a FIFO, a device or a file of /proc: reading it may never end.

    `values` is the conf of the checkpoint in `folder` with the command line's overrides, `given`
    the keys that these set. Raises UserError, naming every such key.
    """
    from tnctl import files  # which imports pyarrow, and `tnctl train --help` needs none

    texts: dict[str, str] = {}
    with_texts(values, texts.setdefault)
    start = Paths(**values.get("paths", {})).start("data.root")
    root = files.join(start, texts.get("data.root", ""))
    texts = {key: text for key, text in texts.items() if key.partition("[")[0] not in given}
    for key, text in texts.items():
        if kind := files.special_kind(text) or files.special_kind(files.join(root, text)):
            raise UserError(
                f"{key} in the conf of {folder} is {quoted(text)}, {kind}, and of what a "
                "checkpoint names only regular files are read. If you mean it, give "
                f"{key.partition('[')[0]}=… on the command line"
            )
    odd = [key for key, text in texts.items() if not is_plain(text)]
    if odd:
        key = odd[0]
        keys = " ".join(
            f"{name}=…" for name in dict.fromkeys(name.partition("[")[0] for name in odd)
        )
        raise UserError(
            f"{key} in the conf of {folder} is {quoted(texts[key])}, and of what a checkpoint "
            f"names only paths and URLs of {', '.join(PROTOCOLS)} are opened, without ::. If you "
            f"mean it, give {keys} on the command line, or conf=NAME"
        )


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
        for index, inner in enumerate(value):
            _check_plain(inner, f"{key}[{index}]")
    elif not isinstance(value, PLAIN):
        raise ForeignValueError(f"{key} is no text, number, true, false or null")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ForeignValueError(f"{key} is {value}")
    elif isinstance(value, str) and (INTERPOLATION in value or value == MISSING):
        raise ForeignValueError(
            f"{key} is {quoted(value)}, which names a value instead of being one"
        )
