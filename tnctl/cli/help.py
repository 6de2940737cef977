"""`tnctl COMMAND --help`: the command's arguments and every key of a conf, from the schema."""

from types import ModuleType
from typing import Any

from tnctl import schema, shipped
from tnctl.cli.arguments import ARGUMENTS


def command_help(command: str, sentence: str, module: ModuleType) -> str:
    """The whole help of a command."""
    own = [f"  {name + '=':13} {ARGUMENTS[name]}" for name in module.TAKES]
    keys = [
        f"  {key}={shown(default)}\n      {text}"
        for key, (default, text) in schema.sentences().items()
    ]
    return "\n".join(
        [
            f"tnctl {command}: {sentence}",
            "",
            f"usage: tnctl {command} {module.USAGE}",
            "",
            "arguments:",
            *own,
            "",
            "groups (files in conf/):",
            f"  data={'|'.join(options('data'))}",
            f"  recipe={'|'.join(options('recipe'))}",
            "",
            "keys of the conf and their defaults; --cfg job shows a conf as composed:",
            *keys,
        ]
    )


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
