"""`key=value` of the command line: Hydra's grammar, checked by the schema, set in a conf."""

import difflib
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any, get_origin

from tnctl import schema
from tnctl.cli.conf_files import Entry
from tnctl.cli.help import options
from tnctl.cli.mistakes import explained
from tnctl.errors import UserError, did_you_mean, quoted, refuse_if

QUOTES = (
    "Give key=value; a value with blanks, letters beyond a to z, or any of ,{}[]()# goes in "
    "quotes: \"key='value'\""
)


def parsed(arguments: Sequence[str]) -> list[Any]:
    """Each argument as Hydra's Override. Raises UserError for what is no `key=value`."""
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create(GlobalHydra.instance().config_loader())
    overrides = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        refuse_if(not key.lstrip("+~"), f"the argument {argument} has no key. Give key=value")
        if key == "recipe" and value.strip("'\"").endswith(".py"):
            argument = f"recipe.name={value}"  # a recipe may be a file
        elif key == "baseline" and value[:1] != "{":
            argument = f"baseline.enabled={value}"
        try:
            overrides += parser.parse_overrides([argument])
        except (HydraException, ValueError) as error:
            raise UserError(f"cannot read the argument {argument}. {QUOTES}") from error
    return overrides


def is_choice(override: Any, places: Sequence[Path]) -> bool:
    """Whether Hydra applies an override: it chooses a file of a group.

    All others are checked and set here. Groups are the folders in `places`, but not one that has
    the name of a key with a value, such as `output`.
    """
    key = override.key_or_group
    if override.package is not None:
        return True
    is_group = any((place / key).is_dir() for place in places) and not _is_value(key)
    # With a dict as value, the name is of a section whose keys it sets.
    return is_group and not isinstance(override.value(), dict)


def _is_value(key: str) -> bool:
    """Whether a key has a value, and not names below it as a section and `recipe` have."""
    known = schema.all_keys().get(key)
    return known is not None and get_origin(known.hint) is not dict


def line_of_choice(choice: Any, entries: Sequence[Entry]) -> str:
    """A choice as Hydra takes it, for a conf whose defaults have these entries.

    A group that they do not list is added at their end, so that its file is merged last.
    """
    group, line = choice.key_or_group, str(choice.input_line)
    is_plain = choice.package is None and not (choice.is_add() or choice.is_delete())
    is_listed = any(entry.group == group for entry in entries)
    return line if is_listed or not is_plain else f"+{line}"


def check(override: Any, places: Sequence[Path]) -> None:
    """Raise UserError for several values, keys that do not exist, and values of another type."""
    key, value, argument = override.key_or_group, override.value(), override.input_line
    refuse_if(override.is_sweep_override(), f"{argument} has several values. {one_each(key)}")
    if not is_choice(override, places):
        hint = schema.hint_of(key)
        schema.converted(value, Any if override.is_delete() else hint, key)
    else:
        refuse_if(override.is_force_add(), f"{key} takes no ++. Give {key}=NAME")
        if not override.is_delete() and not isinstance(value, str | list):
            raise UserError(f"{argument} names none. {did_you_mean('', options(key))}")


def keys_set(override: Any) -> list[str]:
    """The keys whose values an override sets: with a mapping as value, those in it."""

    def keys_in(key: str, value: Any) -> list[str]:
        if not isinstance(value, dict):
            return [key]
        return [below for name in value for below in keys_in(f"{key}.{name}", value[name])]

    return keys_in(override.key_or_group, override.value())


def one_each(key: str) -> str:
    return f"Give -m to train once for each; a list is written {key}=[value,value]"


def apply(override: Any, conf: Any) -> None:
    """Set, add or delete the key of a checked override in a composed conf. Raises UserError."""
    from omegaconf.errors import OmegaConfBaseException

    try:
        (_delete if override.is_delete() else _set)(override, override.key_or_group, conf)
    except OmegaConfBaseException as error:
        raise explained(error, override.key_or_group) from error


def _set(override: Any, key: str, conf: Any) -> None:
    from omegaconf import OmegaConf
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError

    value = override.value()
    adds = override.is_add() or override.is_force_add()
    branch = next((path for path in schema.branches() if key.startswith(f"{path}.")), "")
    if adds and branch:
        # By itself OmegaConf would make a mapping without types of a new name.
        names = key.removeprefix(f"{branch}.").split(".")
        key, value = branch, reduce(lambda inner, name: {name: inner}, reversed(names), value)
    # A setting of a recipe, or a name in warm.rename, need not be in the conf.
    open_key = key.startswith(("recipe.", "warm.rename"))
    try:
        OmegaConf.update(conf, key, value, merge=True, force_add=adds or open_key)
    except (ConfigAttributeError, ConfigKeyError) as error:
        near = _near(override.key_or_group, branch, conf)
        way = f"{'A new one is added' if near else 'Add it'} with "
        way += f"+{override.key_or_group if branch else error.full_key}=…"
        raise UserError(
            f"the conf has no {error.full_key}; --cfg job shows what it has. {near}{way}"
        ) from error


def _near(key: str, branch: str, conf: Any) -> str:
    """`Did you mean …? ` with the name in a branch of the conf that is nearest to a key's."""
    from omegaconf import OmegaConf

    name, dot, rest = key.removeprefix(f"{branch}.").partition(".")
    names = [str(known) for known in OmegaConf.select(conf, branch) or ()] if branch else []
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"Did you mean {quoted(f'{branch}.{near[0]}{dot}{rest}')}? " if near else ""


def _delete(override: Any, key: str, conf: Any) -> None:
    from omegaconf import OmegaConf, open_dict
    from omegaconf.errors import ConfigTypeError

    value = OmegaConf.select(conf, key, throw_on_missing=False)
    if value is None:
        branch = next((path for path in schema.branches() if key.startswith(f"{path}.")), "")
        near = _near(key, branch, conf).strip()
        raise UserError(f"the conf has no {key}; --cfg job shows what it has. {near}".rstrip(". "))
    refuse_if(
        override.value() not in (None, value),
        f"~{key} takes no value. Leave what follows it out",
    )
    section, _, name = key.rpartition(".")
    try:
        with open_dict(conf):
            del (OmegaConf.select(conf, section) if section else conf)[name]
    except ConfigTypeError as error:
        raise UserError(
            f"{key} is always there; ~ takes away what you named, such as ~slots.NAME. Give "
            f"{key}=null or another value"
        ) from error
