"""Conf files of the user's own, checked before Hydra reads them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tnctl import limits, schema, shipped
from tnctl.cli import search_path
from tnctl.cli.mistakes import ENTRIES, not_yaml
from tnctl.errors import UserError, quoted, refuse_if

BEGIN = "Begin it with `defaults: [schema, {recipe: deepfm}, _self_]`"
PACKAGE = re.compile(r"^#\s*@package\s+(\S+)", re.M)


class Entry(NamedTuple):
    """An entry of defaults. The group of a whole conf is empty."""

    group: str
    name: str
    package: str | None  # the section that its file is about; None when only Hydra knows
    overrides: bool  # the choice of another entry


@dataclass
class ConfFile:
    """A file of a conf: its group and package as in Entry, and its values as text."""

    path: Path
    group: str
    package: str | None
    values: dict[str, Any]

    def entries(self) -> Iterator[Entry]:
        """What its defaults name but itself, each name of a list by itself."""
        for entry in self.values.get("defaults") or ():
            for words, names in (entry if isinstance(entry, Mapping) else {"": entry}).items():
                group, at, package = "".join(str(words).split()[-1:]).partition("@")
                names = names if isinstance(names, list) else [names]
                for name in (name for name in names if name != "_self_"):
                    path = f"{group}/{name}" if group else str(name)
                    path = path[1:] if path[0] == "/" else f"{self.group}/{path}".strip("/")
                    folder, _, stem = path.rpartition("/")
                    place = None if at and self.package else package if at else folder
                    yield Entry(folder, stem, place, "override" in str(words).split())


def files_of(path: Path, chosen: Mapping[str, str], places: Sequence[Path]) -> Iterator[ConfFile]:
    """A conf file and those that its defaults name, each before those that it names.

    `chosen` has the names that overrides choose of groups, and `places` the folders with files of
    groups. A file that is not there is left out. Raises UserError for one that cannot be read, and
    one that names itself.
    """
    return _files_of(path, Entry("", path.stem, "", False), dict(chosen), places, [])


def _files_of(
    path: Path, entry: Entry, chosen: dict[str, str], places: Sequence[Path], above: list[Path]
) -> Iterator[ConfFile]:
    """`above` are the files that lead to this one."""
    file = ConfFile(path, entry.group, entry.package, read(path))
    yield file
    entries = list(file.entries())
    chosen.update({below.group: below.name for below in entries if below.overrides} | chosen)
    for below in entries:
        name = chosen.get(below.group, below.name) if below.group else below.name
        place = search_path.file_of(places, f"{below.group}/{name}")
        refuse_if(
            place in (*above, path),
            f"{path.name}: its defaults name {name}, which names it. Leave it out",
        )
        if place is not None:
            yield from _files_of(place, below, chosen, places, [*above, path])


def check(path: Path, chosen: Mapping[str, str], places: Sequence[Path]) -> list[Entry]:
    """The entries of defaults of a conf file, and of all files that it takes.

    `places` are the folders with files of groups. Raises UserError for a file that is no conf, or
    has keys or values that the schema does not.
    """
    entries: list[Entry] = []
    forms: dict[str, tuple[str, str]] = {}

    def look_at(files: Iterator[ConfFile]) -> None:
        for file in files:
            _check_forms(file, forms)
            if shipped.folder("conf") not in file.path.parents:
                if not file.group:
                    _check_defaults(file.path.name, file.values.get("defaults"))
                _check_values(file)
            for entry in file.entries():
                if entry.group.partition("/")[0] == "hydra":
                    raise search_path.no_effect(entry.group)
                entries.append(entry)

    look_at(files_of(path, chosen, places))
    listed = {entry.group for entry in entries}
    for group, name in chosen.items():
        place = search_path.file_of(places, f"{group}/{name}")
        if group not in listed and place is not None:
            added = Entry(group, name, group, False)
            look_at(_files_of(place, added, dict(chosen), places, []))
    return entries


def _check_defaults(name: str, defaults: Any) -> None:
    """Raise UserError unless defaults begin with the schema, or with a conf that names it."""
    entries = defaults if isinstance(defaults, list) else []
    bases = [entry for entry in entries if isinstance(entry, str) and entry != "_self_"]
    # A recipe may come first: the schema has no setting of a recipe to reset, but every other key.
    first = entries[: entries.index("schema")] if "schema" in entries else []
    refuse_if(
        not bases
        or not all(isinstance(entry, str) or _is_group(entry) for entry in entries)
        or not all(_is_group(entry) and "recipe" in entry for entry in first),
        f"{name}: its defaults must be a list that begins with schema, or with a conf that names "
        f"it. Entries are {ENTRIES}. {BEGIN}. Received: {_shown(defaults)}",
    )


def _is_group(entry: Any) -> bool:
    """Whether an entry of defaults is the choice of a group."""
    return isinstance(entry, Mapping) and len(entry) == 1


def _check_values(file: ConfFile) -> None:
    """Raise UserError for keys that do not exist, and values of other types.

    Raises as OmegaConf does for a file that it cannot load.
    """
    from omegaconf import OmegaConf

    values: Any = OmegaConf.to_container(OmegaConf.load(file.path))
    if (key := _section_of(file)) is None:
        return
    values.pop("defaults", None)  # of Hydra
    if isinstance(values.get("hydra"), dict) and not key:
        raise search_path.no_effect(".".join(("hydra", *map(str, list(values["hydra"])[:1]))))
    schema.converted(values, schema.hint_of(key) if key else schema.Conf, key)


def _section_of(file: ConfFile) -> str | None:
    """The section that the keys of a file are in, "" at the top; None when only Hydra knows."""
    header = PACKAGE.search(file.path.read_text("utf-8-sig"))
    package = header[1] if header else file.package
    key = "" if package == "_global_" else str(package).replace("/", ".")
    return None if package is None or key.startswith("_") else key


def _check_forms(file: ConfFile, forms: dict[str, tuple[str, str]]) -> None:
    """Raise UserError for a list where another file has a mapping, which Hydra cannot merge.

    `forms` has the form of each key of the other files and the name of a file; it is extended.
    """
    if (section := _section_of(file)) is None:
        return
    remaining = [(section, name, value) for name, value in file.values.items()]
    while remaining:
        parent, name, value = remaining.pop()
        key = f"{parent}.{name}".lstrip(".")
        if key == f"{section}.defaults".lstrip(".") or not isinstance(value, dict | list):
            continue
        form = "a list" if isinstance(value, list) else "a mapping"
        form_elsewhere, elsewhere = forms.setdefault(key, (form, file.path.name))
        refuse_if(
            form != form_elsewhere,
            f"{elsewhere}: {key} is {form_elsewhere}, and {form} in {file.path.name}. Write {form}",
        )
        if isinstance(value, dict):
            remaining += [(key, inner_name, inner) for inner_name, inner in value.items()]


def read(path: Path) -> dict[str, Any]:
    """The keys of a YAML file; each value that is no list and no mapping is its text.

    Raises UserError when it cannot be read or is no mapping.
    """
    import yaml

    size = path.stat().st_size if path.is_file() else 0  # reading it reports what is no file
    refuse_if(
        size > limits.CONF_BYTES,
        f"{path.name} has {size:,} bytes, and a conf at most {limits.CONF_BYTES:,}. Put lists into "
        "files (vocabulary_file), or name a conf",
    )
    try:
        # No text is a number or a date here: what a value may be is the schema's matter.
        values = yaml.load(path.read_text("utf-8-sig"), yaml.BaseLoader)
    except UnicodeDecodeError as error:
        raise UserError(f"{path.name} is not UTF-8. Save it as UTF-8") from error
    except OSError as error:
        raise UserError(f"cannot read {path.name}: {error.strerror or error}", 1) from error
    except yaml.YAMLError as error:
        raise UserError(not_yaml(path.name, error)) from error
    except RecursionError as error:
        raise UserError(f"{path.name}: its values are nested too deep. Write them flat") from error
    refuse_if(values is None or values == "", f"{path.name} is empty. {BEGIN}")
    if not isinstance(values, dict):
        raise UserError(f"{path.name} must hold `key: value`. {BEGIN}. Received: {_shown(values)}")
    return values


def _shown(value: Any) -> str:
    """A value of the file, short enough for a message."""
    return quoted(value if isinstance(value, str) else str(value).replace("'", ""))
