"""`key=value` of the command line: Hydra's grammar, set in the plain values of a conf."""

import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_origin

from tnctl import schema
from tnctl.cli.arguments import SEARCH_PATH
from tnctl.errors import UserError, quoted, refuse_if

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


def no_effect(key: str) -> UserError:
    """The refusal of a key of Hydra, such as hydra.run.dir or hydra/launcher."""
    return UserError(
        f"no key '{key}': of Hydra only the composition of confs is used. Leave it out; output=URL "
        "says where a run is written, and --config-dir=FOLDER where files of groups are"
    )


def without_folders(overrides: Sequence[Any]) -> tuple[list[Path], list[Any]]:
    """The folders of --config-dir, and the other overrides. Raises UserError.

    Any other key of Hydra is refused.
    """
    folders: list[Path] = []
    others = []
    for override in overrides:
        key = override.key_or_group
        if key == SEARCH_PATH and not override.is_delete():
            names = override.value()
            folders += [_folder(str(n)) for n in (names if isinstance(names, list) else [names])]
        elif key.startswith(("hydra.", "hydra/")):
            raise no_effect(key)
        else:
            others.append(override)
    return folders, others


def _folder(name: str) -> Path:
    path = Path(name.removeprefix("file://"))
    refuse_if(
        not os.path.isdir(path),
        f"--config-dir: {quoted(name)} is no folder of this machine. It has folders such as data/ "
        "and recipe/, with NAME.yaml in them",
    )
    return path.resolve()


def is_choice(override: Any, folders: Sequence[Path]) -> bool:
    """Whether an override chooses the file of a group, which Hydra does; others are set here.

    Groups are folders in `folders`, but not one that has the name of a key with a value, such as
    `output`. Raises UserError for several values.
    """
    key = override.key_or_group
    refuse_if(
        override.is_sweep_override(),
        f"{override.input_line} has several values. Give -m to train once for each; a list is "
        f"written {key}=[value,value]",
    )
    known = schema.all_keys().get(key)
    is_section = known is None or get_origin(known.hint) is dict
    is_group = is_section and any((folder / key).is_dir() for folder in folders)
    # With a dict as value, the name is of a section whose keys it sets.
    return override.package is not None or (is_group and not isinstance(override.value(), dict))


def keys_set(override: Any) -> list[str]:
    """The keys whose values an override sets: with a mapping as value, those in it."""

    def keys_in(key: str, value: Any) -> list[str]:
        if not isinstance(value, dict):
            return [key]
        return [below for name in value for below in keys_in(f"{key}.{name}", value[name])]

    return keys_in(override.key_or_group, override.value())


def apply(override: Any, values: dict[str, Any]) -> None:
    """Set, add or delete a key in the plain values of a conf. Raises UserError."""
    key, value = override.key_or_group, override.value()
    hint = schema.hint_of(key)
    if not (override.is_add() or override.is_force_add()):
        _refuse_new(key, value, values)
    *above, last = key.split(".")
    section: Any = values
    for name in above:
        if section.get(name) is None:
            section[name] = {}
        section = section[name]
        refuse_if(
            not isinstance(section, dict),
            f"{key} is below {quoted(str(section))}, which has no keys",
        )
    if not override.is_delete():
        refuse_if(
            above == ["recipe"] and isinstance(section.get(last), list) and isinstance(value, dict),
            f"{key} is a list: give it as {key}=[value,value]",
        )
        section[last] = _merged(section.get(last), value)
        return
    hints = [hint, schema.hint_of(".".join(above)) if above else None]
    refuse_if(
        dict not in [get_origin(kind) for kind in hints],
        f"{key} is always there; ~ takes away what you named, such as ~slots.NAME. Give {key}=null "
        "or another value",
    )
    refuse_if(last not in section, f"the conf has no {key}; --cfg job shows what it has")
    refuse_if(
        value not in (None, section[last]), f"~{key} takes no value. Leave what follows it out"
    )
    del section[last]
    if get_origin(hint) is dict:
        section[last] = {}


def _merged(old: Any, value: Any) -> Any:
    """A value in the place of another: a mapping replaces only the keys that it has."""
    if not (isinstance(old, dict) and isinstance(value, dict)):
        return value
    return old | {name: _merged(old.get(name), inner) for name, inner in value.items()}


def _refuse_new(key: str, value: Any, values: dict[str, Any]) -> None:
    """Refuse names that the conf does not have, where the user makes names: mostly misspelt."""
    for branch in schema.branches():
        name, dot, rest = key.removeprefix(f"{branch}.").partition(".")
        names = [name] if key.startswith(f"{branch}.") else []
        if key == branch and isinstance(value, dict):
            names, dot, rest = list(value), "", ""
        known: Any = values
        for part in branch.split("."):
            known = known.get(part) if isinstance(known, dict) else None
        for name in [name for name in names if name not in (known or ())]:
            near = difflib.get_close_matches(str(name), map(str, known or ()), n=1, cutoff=0.6)
            way = f"Did you mean {quoted(f'{branch}.{near[0]}{dot}{rest}')}? " if near else ""
            raise UserError(
                f"the conf has no {branch}.{name}; --cfg job shows what it has. {way}A new one is "
                f"added with +{branch}.{name}{dot}{rest}=…"
            )
