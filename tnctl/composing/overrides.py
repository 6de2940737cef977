"""`key=value` of the command line: Hydra's grammar, set in the plain values of a conf."""

import difflib
import os
import re
from collections.abc import Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_origin

from tnctl import schema
from tnctl.errors import UserError, quoted, refuse_if

SEARCH_PATH = "hydra.searchpath"  # what --config-dir sets
# Keys whose values are URLs or paths, which Hydra's grammar would misread.
TEXT_KEYS = re.compile(
    rf"\+{{0,2}}(?:output|save\.spool|data\.days|paths\.folder|{schema.READ})=(.*)",
    re.S,
)
CLUSTER = "cluster"
QUOTES = (
    "Give key=value; a value with blanks, letters beyond a to z, or any of ,{}[]()# goes in "
    "quotes: \"key='value'\""
)


def quoted_for_hydra(argument: str) -> str:
    """`key=value` with a path or URL in the quotes that Hydra's grammar wants."""
    match = TEXT_KEYS.fullmatch(argument)
    if not match or spelled_for_hydra(match[1]):
        return argument
    return f"{argument[: match.start(1)]}{in_quotes(match[1])}"


def in_quotes(text: str) -> str:
    """A text in the quotes of Hydra's grammar."""
    # In them a backslash counts only before a quote, and at the end.
    escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), text)
    return f"'{escaped}'"


def spelled_for_hydra(value: str) -> bool:
    """Whether a value is a list, a mapping, null, or in quotes already."""
    pairs = {"'": "'", '"': '"', "[": "]", "{": "}"}
    enclosed = len(value) > 1 and pairs.get(value[0]) == value[-1]
    return value == "null" or (enclosed and (value[0] != "{" or ":" in value))


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
    way = "its keys other values" if is_dataclass(hint) else f"{key}=null or another value"
    hints = [hint, schema.hint_of(".".join(above)) if above else None]
    refuse_if(
        dict not in [get_origin(kind) for kind in hints],
        f"{key} is always there; ~ takes away what you named, such as ~slots.NAME. Give {way}",
    )
    refuse_if(
        last not in section and get_origin(hint) is not dict,
        f"the conf has no {key}; --cfg job shows what it has",
    )
    old = section.pop(last, None)
    refuse_if(value not in (None, old), f"~{key} takes no value. Leave what follows it out")


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


def keys_of_cluster(overrides: list[str]) -> set[str]:
    """The keys of `cluster` whose values the command line says, and `cluster` for a choice."""
    return {key for key in keys_given(overrides) if key.partition(".")[0].lstrip("~") == CLUSTER}


def keys_given(overrides: list[str]) -> set[str]:
    """The keys whose values the command line says."""
    # A word without = is of an option, such as the folder of --config-dir.
    said = [override for override in overrides if "=" in override or override[:1] == "~"]
    return {override.partition("=")[0].lstrip("+") for override in said}


def names_recipe(overrides: list[str]) -> bool:
    """Whether the command line says which recipe it is."""
    # Only recipe=NAME and recipe.name=NAME do: a mapping sets keys of the recipe that the conf has.
    said = [override for override in overrides if not re.match(r"[+]*recipe=['\"]?\{", override)]
    return not keys_given(said).isdisjoint(("recipe", "recipe.name"))
