"""What Hydra, OmegaConf and PyYAML raise, as one line that names the key and the way out.

Keys and values are checked by the schema before Hydra composes. What is left are entries of
`defaults`, `${…}` that resolve to nothing, and files that are no YAML.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tnctl import schema, shipped
from tnctl.cli.help import GROUPS
from tnctl.errors import UserError, did_you_mean

ENTRIES = "schema, _self_, the name of a conf, or {GROUP: NAME} such as {recipe: deepfm}"


def explained(error: Exception, key: str = "") -> Exception:
    """A UserError in one line for what Hydra and OmegaConf raise; other errors unchanged.

    `key` is the one that was set, where the error does not name it.
    """
    import yaml
    from hydra.errors import ConfigCompositionException, HydraException
    from omegaconf.errors import OmegaConfBaseException

    too_deep = UserError("the conf is nested too deep, or names itself. Write it flat")
    cases: list[tuple[Any, Callable[[Any], UserError]]] = [
        (UserError, lambda cause: cause),  # of ${required:KEY}
        (yaml.YAMLError, lambda cause: UserError(not_yaml("the conf", cause))),
        (RecursionError, lambda _: too_deep),
        (OmegaConfBaseException, lambda cause: _of_a_value(cause, str(cause.full_key or key))),
    ]
    for (kind, explain), cause in itertools.product(cases, _causes(error)):
        if isinstance(cause, kind):
            return explain(cause)
    if path := getattr(error, "missing_cfg_file", None):
        return _missing_file(str(path), error.options or ())  # type: ignore[attr-defined]
    if isinstance(error, HydraException | ValueError | OSError | AssertionError):
        of_defaults = isinstance(error, ConfigCompositionException) or "default" in str(error)
        way = f". Entries of defaults are {ENTRIES}; GROUP=NAME chooses another" * of_defaults
        return UserError(f"the conf cannot be composed: {_reason(error)}{way}")
    return error


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()  # OmegaConf makes errors that are causes of each other
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _reason(error: BaseException) -> str:
    """The first line of a message; the others help only people who know Hydra."""
    return str(error).split("\n")[0].rstrip(".").split("while resolving interpolation: ")[-1]


def not_yaml(name: str, error: Exception) -> str:
    """Where a file is not YAML, and why."""
    mark: Any = getattr(error, "problem_mark", None)
    if mark is None:
        return f"{name} is not YAML: {error}".replace(' in "<unicode string>"', "")
    name = Path(mark.name).name if str(mark.name).endswith(".yaml") else name
    why = ", ".join(filter(None, (getattr(error, "context", ""), getattr(error, "problem", ""))))
    way = ". Indent with blanks" if "'\\t'" in why else ""
    return f"{name} is not YAML: line {mark.line + 1}, column {mark.column + 1}: {why}{way}"


def _of_a_value(error: Any, key: str) -> UserError:
    """A value that OmegaConf cannot merge, or a `${…}` that cannot be read or resolved."""
    from omegaconf import errors

    reason = _reason(error)
    # OmegaConf names what could not be resolved in its messages only, in quotes or as last word.
    word = reason.split("'")[1] if reason.count("'") > 1 else reason.rpartition(" ")[2]
    cases = {
        errors.GrammarParseError: f": cannot read its ${{…}} ({reason}). A ${{data.root}} names a "
        "key; a value of a conf has no other ${",
        errors.UnsupportedInterpolationType: f": there is no ${{{word}:…}}. Take ${{oc.env:NAME}} "
        "for a variable of the environment",
        errors.InterpolationKeyError: f": ${{{word}}} names {schema.no_key(word)}",
        errors.InterpolationValidationError: f": {word} is not what the key takes. Name another "
        "key",
        errors.ConfigTypeError: " is a mapping where the conf has a list, or a list where it has a "
        "mapping; --cfg job shows what it has. Give it in that form",
        errors.OmegaConfBaseException: f": {reason}. `tnctl train --help` lists every key",
    }
    case = next(text for kind, text in cases.items() if isinstance(error, kind))
    if "Environment variable" in reason:
        case = (
            f" needs {word} of the environment, which is not set. Set it, or give a default: "
            f"${{oc.env:{word},VALUE}}"
        )
    if "Recursi" in reason or "parent node" in reason:
        case = " is taken from itself by a ${…}. Give it a plain value"
    key = "an entry of defaults" if key == "_dummy_" else key  # as Hydra calls it
    return UserError(f"{key or 'the conf'}{case}")


def _missing_file(path: str, options: Sequence[str]) -> UserError:
    group, _, name = path.rpartition("/")
    if not group:
        way = did_you_mean(name, ["schema", *shipped.confs()])
        return UserError(f"the defaults name '{name}', and there is no such conf. {way}")
    if not options:
        return UserError(f"no group '{group}' of confs. {did_you_mean(group, GROUPS)}")
    return UserError(f"no {group} '{name}'. {did_you_mean(name, options)}")
