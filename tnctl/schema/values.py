"""Plain values, as of a YAML file or a saved conf, and the Conf that they make."""

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from tnctl.errors import SHOWN, UserError, refuse_if
from tnctl.schema.conf import Conf
from tnctl.schema.declarations import default_of
from tnctl.schema.keys import NAME, branches, dataclass_of, hints_of, keys_like, no_key

KEYS_SHOWN = 4
# Sections whose names the user chooses, with values of no declared type.
NAMED = {"recipe": "recipe.SETTING=value", "warm.rename": "warm.rename.NEW=OLD"}
# The values of keys that a saved conf does not have, where the versions without the key worked by
# another value than its default. By path, such as train.epochs or slots.NAME.seed.
ABSENT: dict[str, Any] = {}


def from_values(values: Mapping[str, Any]) -> Conf:
    """A checked Conf from plain values, such as a composed or saved conf.

    Raises UserError that names the key by its path.
    """
    conf: Conf = converted(values, Conf, "", make=True)
    return conf


def converted(value: Any, hint: Any, key: str, make: bool = False) -> Any:
    """A plain value as the type of its key, with the conversions of OmegaConf.

    With `make`, sections become objects, which checks ranges and rules; else they stay mappings.
    Text with `${` is left unchanged: what it resolves to is checked when it is known. Raises
    UserError for a key that does not exist and a value of another type.
    """
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    kind, is_section = kinds[0], dataclasses.is_dataclass(kinds[0])
    if isinstance(value, str) and ("${" in value or value == "???") and not is_section:
        return value
    if value is None and NoneType not in kinds and hint is not Any:
        entry = "Write '' for an empty text, or leave the entry out"
        of_branch = key.rpartition(".")[0] in branches()  # leaving it out would be without it
        default = "Write {} for its defaults" if of_branch else "Leave it out for the default"
        way = entry if key.endswith("]") else default
        raise UserError(f"{key} needs a value, and null is none. {way}")
    if value is None or hint is Any:
        return value
    if is_section:
        return _section(value, kind, key, make)
    if get_origin(kind) is dict:
        # What has a name may be what another name has; a section may not.
        return {
            name: inner
            if "${" in str(inner) and isinstance(inner, str)
            else converted(inner, get_args(kind)[1], f"{key}.{name}", make)
            for name, inner in _names(value, key).items()
        }
    if get_origin(kind) is list:
        if not isinstance(value, list):
            raise UserError(
                f"{key} is a list: give it as {key}=[value,value]. Received: {_shown(key, value)}"
            )
        return [
            converted(entry, get_args(kind)[0], f"{key}[{place}]", make)
            for place, entry in enumerate(value)
        ]
    words, types, convert = SCALARS[kind]
    try:
        scalar = convert(value) if type(value) in types else None
    except (LookupError, ValueError, OverflowError):
        scalar = None
    if scalar is None and isinstance(value, str) and str in kinds:
        return value  # one of the words that its declaration has
    if scalar is None:
        raise UserError(f"{key} must be {words}. Received: {_shown(key, value)}")
    return value if value == scalar else scalar  # documents may write 1.0 as 1


def _section(value: Any, section: Any, key: str, make: bool) -> Any:
    hints, values = hints_of(section), {}
    for name, inner in _names(value, key).items():
        path = f"{key}.{name}".lstrip(".")
        if name not in hints and path in keys_like(path):
            nested = path.replace(".", ": {") + ": …" + "}" * path.count(".")
            raise UserError(f"no key '{path}' by one name. Write {nested}")
        if name not in hints:
            raise no_key(path)
        values[name] = converted(inner, hints[name], path, make)
    try:
        return section(**values) if make else values
    except UserError as error:
        raise UserError(f"{key}.{error}".lstrip("."), error.exit_code) from None


def _names(value: Any, key: str) -> Mapping[str, Any]:
    """A mapping whose names are text. Raises UserError for any other value."""
    if not isinstance(value, Mapping):
        raise _takes_no_value(key, value)
    for name in value:
        refuse_if(
            not isinstance(name, str),
            f"{key or 'the conf'} has the name {'null' if name is None else name}. YAML reads "
            "numbers, yes, no and null as values that are not text. Write the name in quotes",
        )
    return value


def _takes_no_value(key: str, value: Any) -> UserError:
    """The error of a value for a section, which has keys or names."""
    received = f". Received: {_shown(key, value)}"
    if key in NAMED:
        return UserError(f"{key} holds names and values: give {NAMED[key]}{received}")
    keys = [known for known in keys_like(key) if known.startswith(f"{key}.")]
    if key in branches():
        return UserError(f"{key} takes no value, its names do. Add one with +{keys[0]}=…{received}")
    more = ", …" if len(keys) > KEYS_SHOWN else ""
    return UserError(
        f"{key} takes no value, its keys do: {', '.join(keys[:KEYS_SHOWN])}{more}{received}"
    )


def _shown(key: str, value: Any) -> str:
    text = str(value)
    return f"{key}={text[:SHOWN]}{'…' if len(text) > SHOWN else ''}"


FLAGS = dict.fromkeys(("yes", "y", "on", "true"), 1)
FLAGS |= dict.fromkeys(("no", "n", "off", "false"), 0)
# In words, the types that OmegaConf takes, and the conversion.
SCALARS: dict[Any, tuple[str, tuple[type, ...], Callable[[Any], Any]]] = {
    int: ("a whole number", (int, str), int),
    float: ("a number", (float, int, str), float),
    bool: (
        "true or false",
        (bool, int, str),
        lambda flag: bool(int(FLAGS.get(str(flag).lower(), flag))),
    ),
    str: ("text, one value", (str, int, float, bool), str),
}


def completed(
    values: Mapping[str, Any], section: Any = Conf, path: str = "", defaults: Any = None
) -> dict[str, Any]:
    """Plain values of a saved section with all its keys, those of other versions too.

    `path` is where the section is, with a dot at its end and `NAME` for each name of the user, and
    `defaults` an object of the section with its defaults there. What is no section where one should
    be stays as it is. Without `cluster`, which no saved conf has.
    """
    full = dict(values)
    for declared in dataclasses.fields(section):
        name, hint = declared.name, hints_of(section)[declared.name]
        key, kind = path + name, dataclass_of(hint)
        if key == "cluster":
            continue
        default = None if name in values and kind is None else _default(declared, defaults)
        if name not in values:
            # An output that is absent has no default that could be resolved here.
            if isinstance(default, str) and "${" in default:
                continue
            value = ABSENT.get(key, default)
            full[name] = {} if dataclasses.is_dataclass(value) else copy.deepcopy(value)
        if isinstance(full[name], Mapping):
            if kind is not None:
                full[name] = completed(full[name], kind, f"{key}.", default)
            elif get_origin(hint) is dict and dataclasses.is_dataclass(get_args(hint)[1]):
                full[name] = {
                    of_user: completed(inner, get_args(hint)[1], f"{key}.{NAME}.")
                    if isinstance(inner, Mapping)
                    else inner
                    for of_user, inner in full[name].items()
                }
    return full


def _default(declared: dataclasses.Field, defaults: Any) -> Any:
    """The default of a key, at the place of an object that has its section's defaults there."""
    return default_of(declared) if defaults is None else getattr(defaults, declared.name)


def differences(values: Any, others: Any, path: str = "") -> list[str]:
    """The dotted keys whose values differ, of two confs as plain values."""
    if isinstance(values, dict) and isinstance(others, dict):
        return [
            key
            for name in dict.fromkeys([*values, *others])
            for key in differences(values.get(name), others.get(name), f"{path}.{name}".lstrip("."))
        ]
    return [] if values == others else [path]


def required(key: str) -> None:
    """The resolver of `${required:KEY}` in a shipped conf: a key that the user must give."""
    raise UserError(f"{key} is not given. Give {key}=…")


@functools.cache  # it takes a fifth of the time of a conf
def register() -> None:
    """Give Hydra the schema, which every conf names first in its defaults."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    # `???` in a group would not override the schema's null.
    OmegaConf.register_new_resolver("required", required, replace=True)
    ConfigStore.instance().store(name="schema", node=Conf)
