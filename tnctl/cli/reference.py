"""`python -m tnctl.cli.reference` prints docs/conf.md: every key of a conf, from the schema."""

import types
from importlib import import_module
from typing import Any, Union, get_args, get_origin

from tnctl import shipped
from tnctl.cli.arguments import ARGUMENTS
from tnctl.cli.help import Section, options, sections, shown_defaults
from tnctl.cli.main import COMMANDS
from tnctl.cli.settings import settings_of
from tnctl.schema import Key, NoChoice, limit

INTRODUCTION = """\
# Every key of a conf

<!-- Made by `make docs` from tnctl/schema.py; a test compares. Do not edit. -->

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
| `recipe.hidden=[64,32]` | a setting of the recipe |
| `recipe=my.py` | a recipe of your own, by its file |
| `slots.user.pooling=mean` | a key of an input that the conf has |
| `+slots.user.column=uid` | a new input, with this key; so also `+data.labels.…`, `+optimizer.groups.…` |
| `~slots.user` | without this input |
| `-m seed=1,2 recipe=lr,fm` | `train` only: a sweep, one run for each of the four, in folders under `output` |

A value with blanks or any of `,{}[]()#` is quoted twice, once for the shell: `"data.missing=['?','n, a']"`.
URLs and paths need no quotes but the shell's.

A conf that chooses another recipe on the command line leaves out settings that this recipe does not
have.
"""  # noqa: E501 (a row of a table is one line)


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION, "## Keys\n"]
    parts += [_section(section) for section in sections()]
    parts += ["## Recipes\n", _recipes(), "## Groups\n", _groups(), "## Arguments\n", _arguments()]
    return "\n".join(parts)


def _section(section: Section) -> str:
    titles = ", ".join(f"`{place}`" if place else "A conf" for place in section.places)
    rows = [
        _row(
            f"`{key.name}`",
            kind(key.hint) + limits(key),
            f"`{shown_defaults(section, key)}`",
            key.sentence,
        )
        for key in section.keys
    ]
    return "\n".join(
        [
            f"### {titles}\n",
            f"{section.sentence}\n",
            "| key | type | default | meaning |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def limits(key: Key) -> str:
    """The choices or the range of a key, where its sentence does not say them."""
    rule = key.rule
    if rule is None:
        return ""
    if isinstance(rule, NoChoice):
        unsaid = [choice for choice in rule.choices if choice not in key.sentence]
        return f": {', '.join(rule.choices)}" if unsaid else ""
    return f", {limit(rule.low, rule.high)}"


def kind(hint: Any) -> str:
    """A type in words."""
    words = {int: "whole number", float: "number", bool: "true or false", str: "text", Any: "any"}
    if get_origin(hint) in (types.UnionType, Union):
        return kind(next(one for one in get_args(hint) if one is not type(None)))
    if get_origin(hint) is list:
        return f"list of {kind(get_args(hint)[0])}{'s' if get_args(hint)[0] is not Any else ''}"
    if get_origin(hint) is dict:
        return "names and values"
    return words.get(hint, str(hint))


def _recipes() -> str:
    rows = []
    for name in shipped.recipes():
        settings = settings_of(name) or {}
        shown_settings = ", ".join(f"`{key}={default}`" for key, default in settings.items())
        rows.append(_row(f"[`{name}`](../recipes/{name}.py)", shown_settings or "none"))
    return "\n".join(["| `recipe=` | settings, as `recipe.KEY=` |", "|---|---|", *rows, ""])


def _groups() -> str:
    rows = []
    for group in ("data", "recipe"):
        links = ", ".join(f"[`{one}`](../conf/{group}/{one}.yaml)" for one in options(group))
        rows.append(_row(f"`{group}=`", links))
    confs = ", ".join(f"[`{one}`](../conf/{one}.yaml)" for one in shipped.confs())
    rows.append(_row("`conf=`", confs))
    return "\n".join(["| group | choices |", "|---|---|", *rows, ""])


def _arguments() -> str:
    lines = [
        "Arguments belong to a command, not to a conf, and other commands refuse them.\n",
        "| argument | commands | meaning |",
        "|---|---|---|",
    ]
    for argument, sentence in ARGUMENTS.items():
        takers = [name for name in COMMANDS if argument in _takes(name)]
        if takers:
            names = ", ".join(f"`{name}`" for name in takers)
            lines.append(_row(f"`{argument}=`", names, sentence))
    return "\n".join([*lines, ""])


def _takes(command: str) -> tuple[str, ...]:
    module = import_module(f"tnctl.cli.{command.replace('-', '_')}")
    return tuple(module.TAKES)


if __name__ == "__main__":
    print(page(), end="")
