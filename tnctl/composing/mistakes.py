"""What Hydra, OmegaConf and PyYAML raise, as one line that names the key or file."""

import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tnctl import schema, shipped
from tnctl.errors import UserError, did_you_mean

GROUPS = ("data", "recipe", "cluster")  # of confs; a conf takes one file of each
ENTRIES = (
    "a list of schema, _self_, names of confs, and {GROUP: NAME} such as {recipe: deepfm}; "
    "GROUP=NAME chooses another"
)


def explained(error: Exception, name: str) -> Exception:
    """A UserError for what composing the conf `name` raises; other errors unchanged."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    causes = list(_causes(error))
    if in_file := re.match("In '(.+?)': ", str(error)):
        name = f"{in_file[1]}.yaml"
    for kind in (UserError, YAMLError, RecursionError, OmegaConfBaseException):
        for cause in causes:
            if isinstance(cause, kind):
                return _line(cause, name)
    if path := getattr(error, "missing_cfg_file", None):
        group, _, missing = str(path).rpartition("/")
        choices = error.options if group else ["schema", *shipped.confs()]  # type: ignore[attr-defined]
        if group and not choices:
            return UserError(f"no group '{group}' of confs. {did_you_mean(group, GROUPS)}")
        return UserError(f"no {group or 'conf'} '{missing}'. {did_you_mean(missing, choices)}")
    if isinstance(error, UnicodeDecodeError):
        return UserError(f"{name} is not UTF-8. Save it as UTF-8")
    if isinstance(error, HydraException | ValueError | TypeError | OSError | AssertionError):
        return UserError(f"{name} cannot be composed: {_reason(error)}. Its defaults are {ENTRIES}")
    return error


def _line(cause: Any, name: str) -> UserError:
    from omegaconf.errors import (
        GrammarParseError,
        InterpolationResolutionError,
        OmegaConfBaseException,
    )

    if isinstance(cause, UserError):  # of ${required:KEY}
        return cause
    if isinstance(cause, RecursionError):
        return UserError(f"{name} is nested too deep, or names itself. Write it flat")
    if not isinstance(cause, OmegaConfBaseException):
        return _no_yaml(cause, name)
    key = cause.full_key
    if "Cannot merge" in str(cause):
        # OmegaConf does not say which key it is at.
        frames = [frame for frame, _ in traceback.walk_tb(cause.__traceback__)]
        keys = [f.f_locals["key"] for f in frames if f.f_code.co_name == "_map_merge"]
        key = ".".join(map(str, keys))
        return UserError(
            f"{name}: {key} is a list where another file has a mapping, or a mapping where it has "
            "a list. Write the same form"
        )
    is_resolved = isinstance(cause, InterpolationResolutionError | GrammarParseError)
    way = f". {_way(cause)}" if is_resolved else ""
    return UserError(f"{name if key in (None, '', '_dummy_') else key}: {_reason(cause)}{way}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()  # OmegaConf makes errors that are causes of each other
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _reason(error: BaseException) -> str:
    """The first line of a message; the others help only people who know Hydra."""
    return str(error).split("\n")[0].rstrip(".").split("while resolving interpolation: ")[-1]


def _way(error: Any) -> str:
    """The way out of a `${…}` that cannot be resolved, by what OmegaConf says of it."""
    from omegaconf.errors import InterpolationKeyError, UnsupportedInterpolationType

    if isinstance(error, InterpolationKeyError):
        return (
            schema.meant_key(_reason(error).split("'")[1]) or "`tnctl train --help` has every key"
        )
    if isinstance(error, UnsupportedInterpolationType):
        return "Take ${oc.env:NAME} for a variable of the environment"
    if "Environment variable" in str(error):
        return "Set it, or give a default: ${oc.env:NAME,VALUE}"
    return "Give a plain value, or name another key"


def _no_yaml(error: Any, name: str) -> UserError:
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return UserError(f"{name} is not YAML: {error}")
    name = Path(mark.name).name if str(mark.name).endswith(".yaml") else name
    why = ", ".join(filter(None, (error.context, error.problem)))
    way = ". Indent with blanks" if "'\\t'" in why else ""
    place = f"line {mark.line + 1}, column {mark.column + 1}"
    return UserError(f"{name} is not YAML: {place}: {why}{way}")
