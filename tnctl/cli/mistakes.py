"""What Hydra, OmegaConf and PyYAML raise, as one line that names the key and the way out.

Keys and values are checked by the schema before Hydra composes. What is left are entries of
`defaults`, `${…}` that resolve to nothing, and files that are no YAML.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tnctl import schema, shipped
from tnctl.errors import UserError, did_you_mean

ENTRIES = "schema, _self_, the name of a conf, or {GROUP: NAME} such as {recipe: deepfm}"
CHOSEN = ("data", "recipe")  # groups of confs, of which a conf takes one file each


def explained(
    error: Exception, key: str = "", entries: Sequence[Any] = (), choices: Sequence[Any] = ()
) -> Exception:
    """A UserError in one line for what Hydra and OmegaConf raise; other errors as they are.

    `key` is the one that was set, where the error does not name it. `entries` are those of the
    defaults of the conf's files, and `choices` the overrides of groups.
    """
    import yaml
    from hydra.errors import ConfigCompositionException, HydraException
    from omegaconf.errors import OmegaConfBaseException

    causes = list(_causes(error))
    for kind in (UserError, yaml.YAMLError, RecursionError, OmegaConfBaseException):
        cause: Any = next((cause for cause in causes if isinstance(cause, kind)), None)
        if cause is None:
            continue
        if isinstance(cause, UserError):  # of ${required:KEY}
            return cause
        if isinstance(cause, yaml.YAMLError):
            return UserError(not_yaml("the conf", cause))
        if isinstance(cause, RecursionError):
            return UserError("the conf is nested too deep, or names itself. Write it flat")
        return _of_a_value(cause, str(cause.full_key or key))
    if isinstance(error, ConfigCompositionException):
        return _of_the_defaults(error, entries, choices)
    if isinstance(error, HydraException | ValueError | OSError | AssertionError):
        way = f". Entries of defaults are {ENTRIES}" if "default" in str(error) else ""
        return UserError(f"the conf cannot be composed: {_reason(error)}{way}")
    return error


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _reason(error: BaseException) -> str:
    """The first line of a message; the others are of use to those who know Hydra."""
    return str(error).split("\n")[0].rstrip(".").split("while resolving interpolation: ")[-1]


def not_yaml(name: str, error: Exception) -> str:
    """Where a file is not YAML, and why."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        why = str(error).replace(' in "<unicode string>"', "")
        return f"{name} is not YAML: {why}"
    if str(mark.name).endswith(".yaml"):
        name = str(mark.name).split("/")[-1]
    parts = (getattr(error, "context", ""), getattr(error, "problem", ""))
    why = ", ".join(part for part in parts if part)
    way = ". Indent with blanks" if "'\\t'" in why else ""
    return f"{name} is not YAML: line {mark.line + 1}, column {mark.column + 1}: {why}{way}"


def _of_a_value(error: Any, key: str) -> UserError:
    """A value that OmegaConf cannot merge, or a `${…}` that cannot be read or resolved."""
    from omegaconf import errors

    reason = _reason(error)
    # OmegaConf names what could not be resolved in its messages only, in quotes or as last word.
    word = reason.split("'")[1] if reason.count("'") > 1 else reason.split()[-1]
    known = schema.all_keys()
    cases = {
        errors.GrammarParseError: f": cannot read its ${{…}} ({reason}). A ${{data.root}} names a "
        "key; no value of a conf has a ${ of its own",
        errors.UnsupportedInterpolationType: f": there is no ${{{word}:…}}. Take ${{oc.env:NAME}} "
        "for a variable of the environment",
        errors.InterpolationKeyError: f": ${{{word}}} names {schema.no_key(word, known)}",
        errors.InterpolationValidationError: f": {word} is not what the key takes. Name another "
        "key",
        errors.KeyValidationError: " has the name null, which is no text to YAML. Write it in "
        "quotes",
        errors.ConfigTypeError: " has keys where the conf has a list, or the reverse. Write it as "
        "the conf has it",
        errors.InterpolationResolutionError: f": its ${{…}} cannot be resolved: {reason}. Give a "
        "plain value",
        errors.OmegaConfBaseException: f": {reason}. `tnctl train --help` lists every key",
    }
    case = next(text for kind, text in cases.items() if isinstance(error, kind))
    if "Environment variable" in reason:
        case = (
            f" needs {word} of the environment, which is not set. Set it, or give a default: "
            f"${{oc.env:{word},VALUE}}"
        )
    if "Recursi" in reason or "parent node" in reason:
        case = " is taken from itself by a ${…}. Give it a value of its own"
    return UserError(f"{key or 'a setting of recipe'}{case}")


def _of_the_defaults(error: Any, entries: Sequence[Any], choices: Sequence[Any]) -> UserError:
    """A file or group that the defaults of a conf, or overrides of them, name wrongly."""
    if path := getattr(error, "missing_cfg_file", None):
        return _missing_file(str(path), error.options or ())
    groups = [entry.group for entry in entries if entry.group and not entry.overrides]
    for entry in entries:
        if entry.overrides and entry.group not in groups:
            return UserError(
                f"the defaults of the conf have no {entry.group}: leave `override` out"
            )
    for override in choices:
        group, argument = override.key_or_group, override.input_line
        if override.is_add() and group in groups:
            return UserError(f"the conf has a {group} already: leave the + out")
        if override.is_delete():
            return UserError(
                f"the defaults of the conf have no {argument[1:]}: leave {argument} out"
            )
        if not override.is_add() and group not in groups:
            return UserError(
                f"the defaults of the conf have no {group}. Add one with +{group}=NAME"
            )
    if twice := [group for group in groups if groups.count(group) > 1]:
        return UserError(f"the defaults of the conf have {twice[0]} twice. Leave one out")
    return UserError(
        f"the conf cannot be composed: {_reason(error)}. Entries of defaults are {ENTRIES}"
    )


def _missing_file(path: str, options: Sequence[str]) -> UserError:
    group, _, name = path.rpartition("/")
    if not group:
        choices = ["schema", *shipped.confs()]
        return UserError(
            f"the defaults name '{name}', and there is no such conf. {did_you_mean(name, choices)}"
        )
    if not options:
        return UserError(f"no group '{group}' of confs. {did_you_mean(group, CHOSEN)}")
    return UserError(f"no {group} '{name}'. {did_you_mean(name, options)}")


def has_no_setting(recipe: str, setting: str, known: Iterable[str]) -> UserError:
    """A setting that a recipe does not take."""
    choices = [f"recipe.{name}" for name in known]
    return UserError(
        f"no key 'recipe.{setting}': recipe {recipe} has no setting '{setting}'. "
        f"{did_you_mean(f'recipe.{setting}', choices)}"
    )
