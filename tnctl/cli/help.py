"""`tnctl COMMAND -h` and `--help`: arguments, groups and the keys that the command uses.

`python -m tnctl.cli.help` prints docs/conf.md: every key of a conf, from the schema.
"""

import json
import shutil
import textwrap
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

from tnctl import schema, shipped
from tnctl.cli.arguments import ARGUMENTS
from tnctl.cli.commands import COMMANDS, Command, takers
from tnctl.composing.mistakes import GROUPS
from tnctl.model.recipes import source_settings
from tnctl.schema import NAME, Declaration, Key

WIDEST = 110
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
    prefixes = COMMANDS[command].keys
    if prefixes is None:
        return True
    if path in TRAINING_ONLY and command != "prepare":
        return False
    return any(f"{path}.".startswith(f"{prefix}.") for prefix in prefixes)


def first_line(owner: Any) -> str:
    """The sentence of a class of the schema."""
    return str(owner.__doc__).split("\n")[0]


def command_help(command: str, first: str, whole: bool) -> str:
    """The help of a command, or of its part that the `first` word names; or with every key."""
    entry = COMMANDS[command]
    if part := entry.parts.get(first):
        lines = _head(f"{command} {first}", part)
        as_json = _entry("--json", "as JSON, on the standard output")
        return "\n".join([*lines, "", "options:", as_json])
    lines = _head(command, entry)
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
    groups = [_entry(f"{group}=", ", ".join(options(group))) for group in groups_of(command)]
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


def _head(name: str, command: Command) -> list[str]:
    lines = [f"tnctl {name}: {command.sentence}", "", f"usage: tnctl {name} {command.usage}"]
    arguments = [_entry(f"{argument}=", ARGUMENTS[argument]) for argument in command.takes]
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


# ---- docs/conf.md ----

INTRODUCTION = """\
# Every key of a conf

<!-- Made by `make docs` from tnctl/schema/; a test compares. Do not edit. -->

A conf is a YAML file, composed by [Hydra](https://hydra.cc) from the schema, which is this page, the
files of its `defaults`, and what the command line says. `conf=deepfm` is the shipped
[conf/deepfm.yaml](../conf/deepfm.yaml); a name that ends in `.yaml` is your own file. `--cfg job`
shows what a conf says in the end.

| on the command line | meaning |
|---|---|
| `train.batch_size=1024` | a key |
| `data.train=[a.csv,b.csv]` | a list |
| `data.validation=null` | no value |
| `data=criteo`, `recipe=lr` | a file of a group: `conf/data/criteo.yaml`, `conf/recipe/lr.yaml` |
| `data=mine` | your own file `data/mine.yaml`, beside your conf or in the current folder |
| `--config-dir my` | files of groups are looked for in the folder `my` too: `my/data/mine.yaml` |
| `recipe.hidden=[64,32]` | a setting of the recipe |
| `recipe=my.py` | a recipe of your own, by its file |
| `slots.user.pooling=mean` | a key of an input that the conf has |
| `+slots.user.column=uid` | a new input, with this key; so also `+data.labels.…`, `+optimizer.groups.…` |
| `~slots.user` | without this input |
| `-m seed=1,2 recipe=lr,fm` | `train` only: a sweep, one run for each of the four, in folders under `output`; `choice(1,2)` and `range(1,4)` are values too |
| `--cfg job`, `--resolve` | show the conf and run nothing; `--resolve` shows what each `${…}` stands for |

A `+` before any other key changes nothing. A file is looked for beside the conf, in the folders of
`--config-dir` (or `hydra.searchpath=[my]`), among the shipped ones, and last in the current folder.
Of Hydra only the composition of confs is used: other keys of `hydra`, such as `hydra.run.dir`, are
refused.

Relative paths in a conf file of your own that are read start from its folder, and those on the command
line, in a shipped conf, and `output` from the working folder: [data.md](data.md#where-relative-paths-start).

A value with blanks or any of `,{}[]()#` is quoted twice, once for the shell: `"data.missing=['?','n, a']"`.
URLs and paths need no quotes but the shell's.

A conf that chooses another recipe on the command line leaves out settings that this recipe does not
have.
"""  # noqa: E501 (a row of a table is one line)


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION, "## Keys\n"]
    parts += [_section(owner, places) for owner, places in sections().items()]
    parts += ["## Recipes\n", _recipes(), "## Groups\n", _groups(), "## Arguments\n", _arguments()]
    return "\n".join(parts)


def _section(owner: Any, places: Places) -> str:
    titles = ", ".join(f"`{place}`" if place else "A conf" for place in places)
    head = [f"### {titles}\n", f"{first_line(owner)}\n"]
    rows = [
        _row(
            f"`{name}`",
            ", ".join(filter(None, (_kind_of(key), limits(key.declaration)))),
            f"`{shown_defaults(places, name)}`",
            key.declaration.meaning,
        )
        for name, key in next(iter(places.values())).items()
    ]
    return "\n".join([*head, *_table("key | type | default | meaning", rows)])


def _table(titles: str, rows: list[str]) -> list[str]:
    return [f"| {titles} |", f"|{'---|' * (titles.count('|') + 1)}", *rows, ""]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _kind_of(key: Key) -> str:
    return " or ".join([kind(key.hint), *key.declaration.words])


def kind(hint: Any) -> str:
    """A type in words."""
    words = {int: "whole number", float: "number", bool: "true or false", str: "text", Any: "any"}
    if isinstance(hint, UnionType):
        return kind(get_args(hint)[0])
    if get_origin(hint) is list:
        return f"list of {kind(get_args(hint)[0])}s"
    return words.get(hint, "names and values")


def _recipes() -> str:
    recipes = {name: source_settings(name) or {} for name in shipped.recipes()}
    rows = [
        _row(
            f"[`{name}`](../recipes/{name}.py)",
            ", ".join(f"`{key}={default}`" for key, default in settings.items()) or "none",
        )
        for name, settings in recipes.items()
    ]
    return "\n".join(_table("`recipe=` | settings, as `recipe.KEY=`", rows))


def _groups() -> str:
    files = {f"{group}=": [f"{group}/{name}" for name in options(group)] for group in GROUPS}
    rows = [
        _row(f"`{key}`", ", ".join(f"[`{Path(n).name}`](../conf/{n}.yaml)" for n in names))
        for key, names in {**files, "conf=": shipped.confs()}.items()
    ]
    return "\n".join(_table("group | choices", rows))


def _arguments() -> str:
    rows = [
        _row(f"`{argument}=`", ", ".join(f"`{command}`" for command in commands), sentence)
        for argument, sentence in ARGUMENTS.items()
        if (commands := takers(argument))
    ]
    note = "Arguments belong to a command, not to a conf, and other commands refuse them.\n"
    return "\n".join([note, *_table("argument | commands | meaning", rows)])


if __name__ == "__main__":
    print(page(), end="")
