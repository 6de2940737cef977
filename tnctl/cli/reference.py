"""`python -m tnctl.cli.reference` prints docs/conf.md: every key of a conf, from the schema."""

from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

from tnctl import shipped
from tnctl.cli.arguments import ARGUMENTS
from tnctl.cli.command_names import takers
from tnctl.cli.help import (
    GROUPS,
    Places,
    first_line,
    limits,
    options,
    sections,
    shown_defaults,
)
from tnctl.model.recipes import source_settings
from tnctl.schema import Key

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
