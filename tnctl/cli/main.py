"""The commands and their help."""

import sys

from tnctl import __version__, shipped
from tnctl.cli.commands import COMMANDS
from tnctl.errors import UserError, did_you_mean
from tnctl.system import leave_with


def main(arguments: list[str] | None = None) -> None:
    """Run a command and leave with its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    command = arguments[0] if arguments else ""
    name = f"tnctl {command}" if command in COMMANDS else "tnctl"
    leave_with(name, lambda: run(command, arguments[1:]))


def run(command: str, arguments: list[str]) -> int:
    """Dispatch; returns the exit code."""
    if command in ("", "-h", "--help", "help"):
        print(usage())
        return 0
    if command in ("--version", "version"):
        print(f"tnctl {__version__}")
        return 0
    if command not in COMMANDS:
        raise UserError(f"no command '{command}'. {did_you_mean(command, COMMANDS)}")
    if any(argument in ("-h", "--help") for argument in arguments):
        from tnctl.cli.help import command_help

        print(command_help(command, arguments[0], whole="--help" in arguments))
        return 0
    return COMMANDS[command].load()(arguments)


def usage() -> str:
    """What `tnctl --help` prints."""
    width = max(len(name) for name in COMMANDS)
    lines = [f"  {name:{width}}  {command.sentence}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "tnctl trains large sparse click-through-rate models and ships them.",
            "",
            "usage: tnctl COMMAND [conf=NAME] [key=value …]",
            "",
            *lines,
            "",
            "`tnctl COMMAND -h` lists its arguments, and --help every key; --cfg job shows a conf.",
            f"confs: {', '.join(shipped.confs())}; conf=my/run.yaml is your own.",
        ]
    )
