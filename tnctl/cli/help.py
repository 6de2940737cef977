"""`tnctl COMMAND -h` and `--help`: arguments, groups and the keys that the command uses."""

import json
import shutil
import textwrap
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from tnctl import schema, shipped
from tnctl.cli.arguments import ARGUMENTS
from tnctl.schema import NAME, Declaration, Key

WIDEST = 110
GROUPS = ("data", "recipe", "cluster")  # of confs; a conf takes one file of each
# What keys each command reads; a command that is not here reads all of them.
SCORING = ("output", "data", "train.batch_size", "train.threads")
ON_WORKERS = tuple(
    f"cluster.{key}"
    for key in ("start", "workers", "servers", "cpus", "timeout", "patience", "restarts", "tls")
)
USED = {
    "evaluate": (*SCORING, *ON_WORKERS),
    "predict": (*SCORING, *ON_WORKERS),
    "ablate": SCORING,
    "prepare": ("seed", "output", "slots", "crosses", "numeric", "data", "train.batch_size"),
    "split-graph": ("output",),
    "export-embeddings": ("output", "train.threads", *ON_WORKERS),
    "verify-serving": ("output", "data", "train.threads", *ON_WORKERS),
    "checkpoint": (),
    "completion": (),
    "rollback": (),
    "runs": (),
    "fold": (),
    "init": (),
    "score": (),
}
# Keys of `data` that only training reads.
TRAINING_ONLY = {"data.train", "data.shuffle", "data.negatives", "data.prepared"}


# The keys of one class of the schema by the places where a conf has it: "" at the top, else such as
# "optimizer.dense"; then by their names there.
Places = dict[str, dict[str, Key]]


def sections(command: str = "train") -> dict[Any, Places]:
    """The keys that a command uses, by their class, in the order of the schema."""
    classes: dict[Any, Places] = {}
    for path, key in schema.all_keys().items():
        if used(command, path):
            place = path.removesuffix(key.name).rstrip(".")
            classes.setdefault(key.owner, {}).setdefault(place, {})[key.name] = key
    return classes


def used(command: str, path: str) -> bool:
    """Whether a command reads a key."""
    if path in TRAINING_ONLY and command in USED and command != "prepare":
        return False
    return any(f"{path}.".startswith(f"{prefix}.") for prefix in USED.get(command, [path]))


def first_line(owner: Any) -> str:
    """The sentence of a class of the schema."""
    return str(owner.__doc__).split("\n")[0]


def command_help(command: str, sentence: str, module: ModuleType, whole: bool) -> str:
    """The help of a command; the whole one has every key."""
    lines = _head(command, sentence, module.USAGE, module.TAKES)
    parts = sections(command)
    if not parts:
        return "\n".join(lines)
    show = _entry(
        "--cfg job", "show the conf as composed, and run nothing; --resolve: its ${…} too"
    )
    folder = _entry(
        "--config-dir FOLDER", "look for files of groups there too: FOLDER/data/mine.yaml"
    )
    sweep = _entry("-m", "train once for each of several values: -m seed=1,2 recipe=lr,fm")
    lines += ["", "options:", show, folder, *([sweep] if command == "train" else [])]
    groups = [_entry(f"{group}=", "|".join(options(group))) for group in groups_of(command)]
    lines += ["", "groups (files in conf/):", *groups]
    if not whole:
        lines += ["", "keys of the conf, as key=value (--help lists them):"]
        firsts = [(next(iter(places)), first_line(owner)) for owner, places in parts.items()]
        lines += [_entry(f"{place}.*" if place else "(at the top)", line) for place, line in firsts]
        return "\n".join(lines)
    lines += ["", "keys of the conf and their defaults; NAME is a name of yours:"]
    for owner, places in parts.items():
        title = ", ".join(place or "a conf" for place in places)
        lines += ["", textwrap.fill(f"{title}: {first_line(owner)}", _width())]
        place, keys = next(iter(places.items()))
        for name, key in keys.items():
            path = f"{place}.{name}".lstrip(".")
            meaning, limit = key.declaration.meaning, limits(key.declaration)
            text = f"{meaning} ({limit})" if limit else meaning
            lines += _key_lines(f"{path}={shown_defaults(places, name)}", text)
    return "\n".join(lines)


def part_help(name: str, part: Any) -> str:
    """The help of a command that is a part of another: `tnctl checkpoint list`."""
    lines = _head(name, part.sentence, part.usage, part.takes)
    return "\n".join([*lines, "", "options:", _entry("--json", "as JSON, on the standard output")])


def _head(command: str, sentence: str, usage: str, takes: Iterable[str]) -> list[str]:
    lines = [f"tnctl {command}: {sentence}", "", f"usage: tnctl {command} {usage}"]
    arguments = [_entry(f"{argument}=", ARGUMENTS[argument]) for argument in takes]
    return [*lines, "", "arguments:", *arguments] if arguments else lines


def _entry(word: str, text: str) -> str:
    return textwrap.fill(text, _width(), initial_indent=f"  {word:22} ", subsequent_indent=" " * 25)


def _key_lines(key: str, sentence: str) -> list[str]:
    # A long key leaves no room for its sentence on its line.
    start, first = (f"  {key:34}  ", []) if len(key) <= 34 else (" " * 38, [f"  {key}"])
    indent = " " * 38
    return first + textwrap.wrap(sentence, _width(), initial_indent=start, subsequent_indent=indent)


def _width() -> int:
    return min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST)


def shown_defaults(places: Places, name: str) -> str:
    """A key's default, and the defaults of other places where they differ."""
    [first, *_] = (keys[name].default for keys in places.values())
    # A null in a group of optimizers is no other default.
    differing = [
        f"{place}: {shown(keys[name].default)}"
        for place, keys in places.items()
        if keys[name].default != first and NAME not in place
    ]
    return shown(first) + (f" ({', '.join(differing)})" if differing else "")


def groups_of(command: str) -> list[str]:
    """The groups of confs of which a command takes a choice."""
    return [group for group in GROUPS if group != "cluster" or used(command, "cluster.start")]


def limits(declaration: Declaration) -> str:
    """The choices or the range of a key, where its sentence does not say them."""
    if any(choice not in declaration.sentence for choice in declaration.choices):
        return f"one of {', '.join(declaration.choices)}"
    return declaration.limit


def options(group: str) -> list[str]:
    """The choices of a group of confs."""
    return sorted(path.stem for path in (shipped.folder("conf") / group).glob("*.yaml"))


def shown(value: Any) -> str:
    """A default as one would write it in YAML."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return repr(value) if isinstance(value, str) and not value.isprintable() else str(value)
