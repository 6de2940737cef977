"""The commands, their help, and exit codes: 0 done, 1 failed, 2 wrong arguments."""

import os
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import NoReturn

from tnctl import __version__, shipped
from tnctl.errors import Stopped, UserError, did_you_mean
from tnctl.masking import masked
from tnctl.out_of_memory import MORE_MEMORY, OutOfMemory, is_out_of_memory

COMMANDS = {
    "init": "write a first conf for data, each line with its evidence, or copy a shipped conf",
    "check": "look at a conf and a sample of its data before anything is trained",
    "prepare": "write the data of a conf as ids, for training that parses nothing",
    "train": "train a conf and save its model",
    "rollback": "set back a run to an earlier checkpoint, from which training goes on",
    "import": "begin a run with the weights that TensorNet has trained",
    "evaluate": "the metrics of a trained model on its test or validation data",
    "predict": "write a model's scores of data.test, in file order, beside columns of the data",
    "ablate": "what each input is worth to a trained model, beside the bytes it costs",
    "split-graph": "write the dense inference graph, servable without tnctl",
    "export-embeddings": "write the rows of a trained model, to files on any storage or to Redis",
    "fold": "make one full export of a full one and its deltas",
    "verify-serving": "prove that graph and embeddings score as the trained model does",
    "score": "raw rows in, scores out, by a split graph and exported embeddings alone",
    "runs": "runs side by side: what differs in their confs, metrics, time, spread over seeds",
    "checkpoint": "list, inspect, verify, diff, compact and prune checkpoints",
    "completion": "a script for bash, zsh or fish that completes commands, arguments and keys",
}


def main(arguments: list[str] | None = None) -> None:
    """Run a command and leave with its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    command = arguments[0] if arguments else ""
    name = f"tnctl {command}" if command in COMMANDS else "tnctl"
    leave_with(name, lambda: run(command, arguments[1:]))


def leave_with(name: str, action: Callable[[], int]) -> NoReturn:
    """Leave with the exit code of an action, or with the line of what it raises."""
    code = 1
    try:
        sys.exit(action())
    except (UserError, Stopped) as error:
        message, code = f"{name}: {error}", error.exit_code
    except KeyboardInterrupt:
        message, code = f"{name}: interrupted", 130
    except BrokenPipeError:
        # The reader of the pipe has ended, and nobody reads a message.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if is_out_of_memory(error):
            message = f"{name}: {OutOfMemory(error, MORE_MEMORY)}"
        else:
            # As Python shows it, but libraries put URLs into their messages with all they hold.
            message = masked(traceback.format_exc()).rstrip("\n")
    print(message, file=sys.stderr)
    sys.exit(code)


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
    module = import_module(f"tnctl.cli.{command.replace('-', '_')}")
    if any(argument in ("-h", "--help") for argument in arguments):
        from tnctl.cli.help import command_help, part_help

        part = getattr(module, "PARTS", {}).get(arguments[0])
        if part is not None:
            print(part_help(f"{command} {arguments[0]}", part))
            return 0
        print(command_help(command, COMMANDS[command], module, whole="--help" in arguments))
        return 0
    return int(module.run(arguments))


def usage() -> str:
    """What `tnctl --help` prints."""
    width = max(len(name) for name in COMMANDS)
    lines = [f"  {name:{width}}  {sentence}" for name, sentence in COMMANDS.items()]
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
