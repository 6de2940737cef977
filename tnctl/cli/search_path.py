"""The folders in which files of groups are looked for, and what else of Hydra a command refuses.

They are, in this order: the folder of the conf, those of `--config-dir` (`hydra.searchpath`), and
the shipped one. A file that is in none of them may be in the current folder.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tnctl import shipped
from tnctl.cli.arguments import SEARCH_PATH, in_quotes
from tnctl.errors import UserError, quoted, refuse_if


def no_effect(key: str) -> UserError:
    """The refusal of a key of Hydra, such as hydra.run.dir or hydra/launcher."""
    return UserError(
        f"no key '{key}': of Hydra only the composition of confs is used. Leave it out; output=URL "
        "says where a run is written, and --config-dir=FOLDER where files of groups are"
    )


def split(overrides: Sequence[Any]) -> tuple[list[Path], list[Any]]:
    """The folders of `hydra.searchpath`, and the other overrides. Raises UserError.

    `overrides` are Hydra's. Any other key of Hydra is refused.
    """
    folders: list[Path] = []
    rest = []
    for override in overrides:
        key = override.key_or_group
        if key == SEARCH_PATH and not override.is_delete():
            value = override.value()
            refuse_if(not isinstance(value, list | str), f"{override.input_line} names no folder")
            folders += [
                folder(str(name)) for name in ([value] if isinstance(value, str) else value)
            ]
        elif key.startswith(("hydra.", "hydra/")):
            raise no_effect(key)
        else:
            rest.append(override)
    return folders, rest


def folder(name: str) -> Path:
    """A folder of --config-dir, by its path or file:// URL. Raises UserError."""
    path = Path(name.removeprefix("file://"))
    refuse_if(
        not os.path.isdir(path),
        f"--config-dir: {quoted(name)} is no folder of this machine. It has folders such as data/ "
        "and recipe/, with NAME.yaml in them",
    )
    return path.resolve()


def of_conf(conf: Path, folders: Sequence[Path], choices: Sequence[Any] = ()) -> tuple[Path, ...]:
    """Where the files of groups of a conf file are, the first place that has one winning.

    `folders` are those of --config-dir. The current folder is the last of them when a choice of
    `choices` (GROUP=NAME, Hydra's overrides) is a file that only it has.
    """
    places = tuple(dict.fromkeys((conf.parent, *folders, shipped.folder("conf"))))
    current = Path.cwd()
    for choice in choices:
        name = f"{choice.key_or_group}/{choice.value()}"
        if file_of(places, name) is None and file_of([current], name) is not None:
            return (*places, current)
    return places


def file_of(places: Sequence[Path], name: str) -> Path | None:
    """The file of GROUP/NAME in the first of the places that has it, else None."""
    relative = f"{name.strip('/').removesuffix('.yaml')}.yaml"
    return next((place / relative for place in places if os.path.isfile(place / relative)), None)


def line_for_hydra(places: Sequence[Path]) -> list[str]:
    """The override that tells Hydra of all places but the first, which it is started in."""
    urls = [in_quotes(f"file://{place}") for place in places[1:]]
    return [f"{SEARCH_PATH}=[{','.join(urls)}]"] if urls else []
