"""`tnctl COMMAND -h` and `--help`: arguments, groups and the keys that the command uses."""

import shutil
import textwrap
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tnctl import schema, shipped
from tnctl.cli.arguments import ARGUMENTS
from tnctl.schema import NAME, Key

WIDEST = 110
# What keys each command reads; a command that is not here reads all of them.
SCORING = ("output", "data", "train.batch_size", "train.threads")
USED = {
    "evaluate": SCORING,
    "predict": SCORING,
    "ablate": SCORING,
    "prepare": ("seed", "output", "slots", "numeric", "data", "train.batch_size"),
    "split-graph": ("output",),
    "export-embeddings": ("output", "train.threads"),
    "verify-serving": ("output", "data", "train.threads"),
    "checkpoint": (),
    "completion": (),
    "fold": (),
    "score": (),
}
# Keys of `data` that only training reads.
TRAINING_ONLY = {"data.train", "data.shuffle", "data.negatives", "data.prepared"}


@dataclass
class Section:
    """The keys of one class of the schema, and the places where a conf has it."""

    places: list[str]  # "" at the top, else such as "optimizer.dense"
    sentence: str
    keys: list[Key]
    defaults: dict[str, list[Any]]  # name of a key -> its default at each of the places

    @property
    def title(self) -> str:
        return ", ".join(place or "a conf" for place in self.places)


def sections(command: str = "train") -> list[Section]:
    """The keys that a command uses, in the order of the schema."""
    found: dict[Any, Section] = {}
    for path, key in schema.all_keys().items():
        if not used(command, path):
            continue
        place = path.removesuffix(key.name).rstrip(".")
        section = found.setdefault(key.owner, Section([], _first_line(key.owner), [], {}))
        if place not in section.places:
            section.places.append(place)
        if all(one.name != key.name for one in section.keys):
            section.keys.append(key)
        section.defaults.setdefault(key.name, []).append(key.default)
    return list(found.values())


def used(command: str, path: str) -> bool:
    """Whether a command reads a key."""
    if command not in USED:
        return True
    if path in TRAINING_ONLY and command != "prepare":
        return False
    return any(path == one or path.startswith(f"{one}.") for one in USED[command])


def _first_line(owner: Any) -> str:
    return str(owner.__doc__).split("\n")[0]


def command_help(command: str, sentence: str, module: ModuleType, whole: bool) -> str:
    """The help of a command; the whole one has every key."""
    lines = [f"tnctl {command}: {sentence}", "", f"usage: tnctl {command} {module.USAGE}"]
    if module.TAKES:
        lines += ["", "arguments:", *(_entry(f"{one}=", ARGUMENTS[one]) for one in module.TAKES)]
    parts = sections(command)
    if not parts:
        return "\n".join(lines)
    lines += [
        "",
        "options:",
        _entry("--cfg job", "show the conf as composed, and run nothing"),
    ]
    if command == "train":
        lines.append(
            _entry("-m", "train once for each of several values: -m seed=1,2 recipe=lr,fm")
        )
    lines += ["", "groups (files in conf/):"]
    lines += [_entry(f"{one}=", "|".join(options(one))) for one in ("data", "recipe")]
    if not whole:
        lines += ["", "keys of the conf, as key=value (--help lists them):"]
        return "\n".join(lines + [_entry(_range(part), part.sentence) for part in parts])
    lines += ["", "keys of the conf and their defaults; NAME is a name of yours:"]
    for part in parts:
        lines += ["", textwrap.fill(f"{part.title}: {part.sentence}", _width())]
        for key in part.keys:
            place = part.places[0]
            path = f"{place}.{key.name}" if place else key.name
            lines += _key_lines(f"{path}={shown_defaults(part, key)}", key.sentence)
    return "\n".join(lines)


def part_help(name: str, part: Any) -> str:
    """The help of a command that is a part of another: `tnctl checkpoint list`."""
    lines = [f"tnctl {name}: {part.sentence}", "", f"usage: tnctl {name} {part.usage}"]
    if part.takes:
        lines += ["", "arguments:", *(_entry(f"{one}=", ARGUMENTS[one]) for one in part.takes)]
    return "\n".join([*lines, "", "options:", _entry("--json", "as JSON, on the standard output")])


def _range(part: Section) -> str:
    """The keys of a section in short: slots.NAME.*."""
    return " ".join(f"{place}.*" if place else "(at the top)" for place in part.places[:1])


def _entry(word: str, text: str) -> str:
    return textwrap.fill(text, _width(), initial_indent=f"  {word:22} ", subsequent_indent=" " * 25)


def _key_lines(key: str, sentence: str) -> list[str]:
    width = _width()
    if len(key) <= 34:
        first = f"  {key:34}  "
        return textwrap.wrap(sentence, width, initial_indent=first, subsequent_indent=" " * 38)
    return [
        f"  {key}",
        *textwrap.wrap(sentence, width, initial_indent=" " * 38, subsequent_indent=" " * 38),
    ]


def _width() -> int:
    return min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST)


def shown_defaults(section: Section, key: Key) -> str:
    """A key's default, with those of other places where they differ."""
    first, *others = section.defaults[key.name]
    places = section.places[1:]
    # What is null in a group of optimizers has no default of its own.
    differing = [
        f"{place}: {shown(value)}"
        for place, value in zip(places, others, strict=True)
        if value != first and NAME not in place
    ]
    return shown(first) + (f" ({', '.join(differing)})" if differing else "")


def options(group: str) -> list[str]:
    """The choices of a group of confs."""
    return sorted(path.stem for path in (shipped.folder("conf") / group).glob("*.yaml"))


def shown(value: Any) -> str:
    """A default as one would write it in YAML."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, str) and not value.isprintable() else str(value)
