"""A conf file of the user's own, looked at before Hydra reads it, and where Hydra names no key."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from tnctl import limits, shipped
from tnctl.cli.mistakes import ENTRIES, a_list, branch_error, not_text, not_yaml
from tnctl.errors import UserError, quoted
from tnctl.schema import Conf, dataclass_of

BEGIN = "Begin it with `defaults: [schema, {recipe: deepfm}, _self_]`"


def refuse_unusable(path: Path) -> None:
    """Raise UserError for a file that is no conf, or whose defaults are none."""
    _refuse(path, [])


def _refuse(path: Path, above: list[Path]) -> None:
    values, name = read(path), path.name
    given = values.get("defaults")
    if not given or given in ("null", "~"):
        raise UserError(f"{name} does not name the schema, which has the keys of a conf. {BEGIN}")
    if not isinstance(given, list):
        raise UserError(f"{name}: defaults must be a list. {BEGIN}. Received: {shown(given)}")
    for entry in given:
        if not isinstance(entry, str) and not (isinstance(entry, Mapping) and len(entry) == 1):
            raise UserError(f"{name}: {shown(entry)} is no entry of defaults. Those are {ENTRIES}")
    if "schema" in given:
        for entry in given[: given.index("schema")]:
            if isinstance(entry, str) or "recipe" not in entry:
                raise UserError(
                    f"{name}: in its defaults schema stands after {shown(entry)}, and would set "
                    "every key back. Put schema first"
                )
    bases = [one for one in given if isinstance(one, str) and one not in ("_self_", "schema")]
    if not bases and "schema" not in given:
        raise UserError(f"{name} does not name the schema, which has the keys of a conf. {BEGIN}")
    for entry in given:
        if isinstance(entry, Mapping):
            [(group, name)] = entry.items()
            _refuse_large_choice(path.parent, str(group), name)
    for base in bases:
        if (found := _file(path.parent, base)) is None:
            continue  # Hydra says that it is not there
        if found in (*above, path):
            raise UserError(f"{name}: its defaults name {base}, which names it. Leave it out")
        if found.parent != shipped.folder("conf"):
            _refuse(found, [*above, path])


def _refuse_large_choice(folder: Path, group: str, names: Any) -> None:
    """Raise UserError for a file of the user's that an entry of defaults chooses, when too large.

    The group may be `override /recipe@package`, and the choice a list.
    """
    group = group.split()[-1].partition("@")[0].strip("/") if group.split() else ""
    for name in names if isinstance(names, list) else [names]:
        found = _file(folder, f"{group}/{name}")
        if found is not None and shipped.folder("conf") not in found.parents:
            read(found)


def _file(folder: Path, name: str) -> Path | None:
    """The file that a name in defaults stands for: the user's own, else a shipped one."""
    files = [one / f"{name.removesuffix('.yaml')}.yaml" for one in (folder, shipped.folder("conf"))]
    return next((file for file in files if file.is_file()), None)


def read(path: Path) -> dict[str, Any]:
    """The keys of a YAML file; each value that is no list and no mapping is its text.

    Raises UserError when it cannot be read or is no mapping.
    """
    import yaml

    refuse_long(path)
    try:
        # No text is a number or a date here: what a value may be is left to Hydra.
        values = yaml.load(path.read_text("utf-8-sig"), yaml.BaseLoader)
    except UnicodeDecodeError as error:
        raise UserError(f"{path.name} is not UTF-8. Save it as UTF-8") from error
    except OSError as error:
        raise UserError(f"cannot read {path.name}: {error.strerror or error}", 1) from error
    except yaml.YAMLError as error:
        raise UserError(not_yaml(path.name, error)) from error
    except RecursionError as error:
        raise UserError(f"{path.name}: its values are nested too deep. Write them flat") from error
    if values is None or values == "":
        raise UserError(f"{path.name} is empty. {BEGIN}")
    if _values(values, {}) > limits.CONF_VALUES:
        raise UserError(
            f"{path.name} has over {limits.CONF_VALUES:,} keys and values, its aliases (*name) "
            "counted as what they repeat. Leave aliases out, or put lists into files "
            "(vocabulary_file)"
        )
    if not isinstance(values, dict):
        raise UserError(f"{path.name} must hold `key: value`. {BEGIN}. Received: {shown(values)}")
    return values


def refuse_long(path: Path) -> None:
    """Raise UserError for a file of more bytes than a conf may have, before it is read."""
    try:
        size = path.stat().st_size
    except OSError:
        return  # whoever reads it says so
    if size > limits.CONF_BYTES:
        raise UserError(
            f"{path.name} has {size:,} bytes, and a conf at most {limits.CONF_BYTES:,}. Put lists "
            "into files (vocabulary_file), or name a conf"
        )


def _values(value: Any, counted: dict[int, int]) -> int:
    """The keys and values that a value has in it; `counted` are those of lists and mappings."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in counted:
        keys, inner = (len(value), value.values()) if isinstance(value, dict) else (0, value)
        counted[id(value)] = 1 + keys + sum(_values(one, counted) for one in inner)
    return counted[id(value)]


def misfit(folder: Path, name: str) -> UserError | None:
    """The first key of a file whose value is of another form than the schema's."""
    if (path := _file(folder, name)) is None:
        return None
    values: Any = read(path)
    if "/" in name and "@package _global_" not in path.read_text("utf-8-sig"):
        values = {name.split("/")[0]: values}
    return _misfit(values, Conf, "")


def _misfit(value: Any, hint: Any, key: str) -> UserError | None:
    if isinstance(value, str) and value in ("", "null", "~", "???"):
        return None
    if (kind := dataclass_of(hint)) is not None:
        if not isinstance(value, Mapping):
            return branch_error(key, [])
        hints = get_type_hints(kind)
        inner = [(name, one, hints[name]) for name, one in value.items() if name in hints]
    elif get_origin(hint) is dict:
        if not isinstance(value, Mapping):
            return branch_error(key, [])
        of = get_args(hint)[1]
        # What has a name may be what another name has, a part of the schema may not.
        inner = [(name, one, of) for name, one in value.items() if "${" not in one]
    else:
        kinds = (hint, *get_args(hint))
        if isinstance(value, str) and "${" in value:
            return None
        if any(get_origin(one) is list for one in kinds):
            return None if isinstance(value, list) else a_list(key)
        if str in kinds and not isinstance(value, str):
            return not_text(key, shown(value))
        return None
    found = (_misfit(one, of, f"{key}.{name}".lstrip(".")) for name, one, of in inner)
    return next((one for one in found if one is not None), None)


def shown(value: Any) -> str:
    """A value of the file, short enough for a message."""
    return quoted(value if isinstance(value, str) else str(value).replace("'", ""))
