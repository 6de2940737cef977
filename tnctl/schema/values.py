"""Plain values, as of a YAML file or a saved conf, and the Conf that pydantic makes of them."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from pydantic_core import PydanticCustomError, SchemaValidator, ValidationError, core_schema

from tnctl.errors import SHOWN, UserError
from tnctl.schema.conf import Conf
from tnctl.schema.declarations import default_of
from tnctl.schema.keys import NAME, branches, dataclass_of, hints_of, keys_like, no_key

# The values of keys that a saved conf does not have, where the versions without the key worked by
# another value than its default. By path, such as train.epochs or slots.NAME.seed; … stays absent:
# no checkpoint keeps `cluster` and `monitor`, and the default of `output` is by the name of a conf
# file.
ABSENT: dict[str, Any] = {"cluster": ..., "monitor": ..., "output": ...}
MISSING = "???"  # of OmegaConf, for a value that is still to be given


def from_values(values: Mapping[str, Any]) -> Conf:
    """A checked Conf from plain values, such as a composed or saved conf.

    Raises UserError that names the key by its path.
    """
    conf: Conf = section_of(Conf, values)
    return conf


def section_of(section: Any, values: Any, key: str = "") -> Any:
    """The section of a conf at a key, from plain values. Raises UserError as from_values does."""
    made, mistakes = _validated(section, values)
    for mistake in mistakes:
        raise _explained(mistake, key)
    return made


def check_types(values: Mapping[str, Any]) -> None:
    """Raise UserError for keys that do not exist and values of another type.

    What is resolved later, `${…}` and `???`, may be anything, and rules between keys wait for it.
    """
    for mistake in _validated(Conf, values)[1]:
        is_open = mistake["input"] == MISSING or "${" in str(mistake["input"])
        if mistake["type"] != "value_error" and not is_open:
            raise _explained(mistake, "")


def check_saved(values: Mapping[str, Any]) -> None:
    """Raise UserError for keys that do not exist, and values that are not of their key's type.

    Values are not converted, and ranges and rules between keys are not checked.
    """
    for mistake in _validated(Conf, values, is_saved=True)[1]:
        raise _explained(mistake, "")


def _validated(section: Any, values: Any, is_saved: bool = False) -> tuple[Any, list[Any]]:
    """The object of a section, and what pydantic finds wrong."""
    try:
        return _validator(section, is_saved).validate_python(values), []
    except ValidationError as error:
        return None, list(error.errors(include_url=False))


@functools.cache
def _validator(section: Any, is_saved: bool) -> SchemaValidator:
    return SchemaValidator(_pydantic(section, is_saved))


def _pydantic(hint: Any, is_saved: bool) -> Any:
    """What pydantic makes of a key's type.

    Built without pydantic's own reading of dataclasses, which takes ten times as long and has no
    validator that checks types only.
    """
    if isinstance(hint, UnionType):
        kind, *others = get_args(hint)
        schema = _pydantic(kind, is_saved)
        if str in others:
            schema = core_schema.no_info_wrap_validator_function(_or_text, schema)
        return core_schema.nullable_schema(schema) if NoneType in others else schema
    if get_origin(hint) is dict:
        values = _pydantic(get_args(hint)[1], is_saved)
        return core_schema.dict_schema(core_schema.str_schema(strict=True), values)
    if get_origin(hint) is list:
        return core_schema.list_schema(_pydantic(get_args(hint)[0], is_saved), strict=True)
    if dataclasses.is_dataclass(hint):
        return _section(hint, is_saved)
    if hint is Any:
        return core_schema.any_schema()
    build, convert = SCALARS[hint]
    schema = build(strict=is_saved or hint is str)
    if is_saved or convert is None:
        return schema
    return core_schema.no_info_before_validator_function(convert, schema)


def _section(section: Any, is_saved: bool) -> Any:
    fields = []
    for declared in dataclasses.fields(section):
        schema = core_schema.with_default_schema(
            _pydantic(hints_of(section)[declared.name], is_saved),
            default_factory=functools.partial(default_of, declared),
        )
        fields.append(core_schema.dataclass_field(declared.name, schema))
    taken = core_schema.dataclass_args_schema(section.__name__, fields, extra_behavior="forbid")
    names = [declared.name for declared in dataclasses.fields(section)]
    return core_schema.dataclass_schema(section, taken, names, post_init=not is_saved)


def _or_text(value: Any, convert: Callable[[Any], Any]) -> Any:
    """A number or flag, or else one of the words that the declaration of its key has."""
    try:
        return convert(value)
    except ValidationError:
        if isinstance(value, str):
            return value
        raise


def _no_flag(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("number", "no number")
    return value


def _text(value: Any) -> Any:
    """What YAML reads as a number or flag may be meant as text, such as a label of 1."""
    return str(value) if isinstance(value, bool | int | float) else value


SCALARS: dict[Any, tuple[Callable[..., Any], Callable[[Any], Any] | None]] = {
    int: (core_schema.int_schema, _no_flag),
    float: (core_schema.float_schema, _no_flag),
    bool: (core_schema.bool_schema, None),
    str: (core_schema.str_schema, _text),
}
# What keys take, by how pydantic's names of errors begin.
TAKEN = {
    "int": "must be a whole number",
    "float": "must be a number",
    "finite": "must be a whole number",
    "number": "must be a number",
    "bool": "must be true or false",
    "string": "must be text, one value",
    "list": "is a list: give it as [value,value]",
}


def _explained(mistake: Any, key: str) -> UserError:
    """One of pydantic's errors in a section that is at a key."""
    location, kind, value = mistake["loc"] or ("",), mistake["type"], mistake["input"]
    is_name = kind == "invalid_key" or location[-1] == "[key]"
    for part in location[: -2 if is_name else None]:
        key += f"[{part}]" if isinstance(part, int) else f".{part}"
    key = key.strip(".")
    if kind == "value_error":
        return UserError(f"{key}.{mistake['ctx']['error']}".lstrip("."))
    if kind == "unexpected_keyword_argument" and "." in location[-1]:
        return UserError(f"no key '{key}' by one name. Write its section, and the key below it")
    if kind == "unexpected_keyword_argument":
        return no_key(key)
    if is_name:
        return UserError(
            f"{key or 'the conf'} has a name that is no text: {value}. YAML reads numbers, yes, no "
            "and null so. Write it in quotes"
        )
    keys = (known for known in keys_like(key) if known.startswith(f"{key}.".lstrip(".")))
    example = ("+" if key in branches() else "") + next(keys, f"{key}.NAME")
    kind = kind.partition("_")[0]
    if value is None:
        gives = "one" if kind in TAKEN else f"{{}}, or its keys, such as {example}=…"
        gives += ": '' for an empty text" if kind == "string" else ""
        return UserError(f"{key} needs a value, and null is none. Leave it out, or give {gives}")
    takes = TAKEN.get(kind, f"takes no value, its keys do, such as {example}=…")
    text = str(value)
    shown = f"{text[:SHOWN]}{'…' if len(text) > SHOWN else ''}"
    return UserError(f"{key or 'the conf'} {takes}. Received: {key}={shown}")


def completed(
    value: Any,
    hint: Any = Conf,
    key: str = "",
    defaults: Any = None,
    absent: Mapping[str, Any] = ABSENT,
) -> Any:
    """Plain values of a section with all its keys, in the order of the schema.

    A key that the section does not have is the one in `absent`, by its path with `NAME` for each
    name of the user, else its default: of `defaults`, an object that has the section's defaults at
    its place, or of the section. What is no section where one should be stays as it is. `hint` is
    the type of the section, and `key` where it is.
    """
    section = dataclass_of(hint)
    if not isinstance(value, Mapping) or (section is None and get_origin(hint) is not dict):
        return value
    if section is None:
        inner_hint = get_args(hint)[1]
        return {
            name: completed(inner, inner_hint, f"{key}.{NAME}", None, absent)
            for name, inner in value.items()
        }
    full = {}
    for declared in dataclasses.fields(section):
        name = declared.name
        path = f"{key}.{name}".lstrip(".")
        default = default_of(declared) if defaults is None else getattr(defaults, name)
        inner = value[name] if name in value else absent.get(path, default)
        inner = {} if dataclasses.is_dataclass(inner) else inner
        if inner is not ...:
            full[name] = completed(inner, hints_of(section)[name], path, default, absent)
    return full | {name: inner for name, inner in value.items() if name not in full}


def differences(values: Any, others: Any, path: str = "") -> list[str]:
    """The dotted keys whose values differ, of two confs as plain values."""
    if isinstance(values, dict) and isinstance(others, dict):
        return [
            key
            for name in dict.fromkeys([*values, *others])
            for key in differences(values.get(name), others.get(name), f"{path}.{name}".lstrip("."))
        ]
    return [] if values == others else [path]
