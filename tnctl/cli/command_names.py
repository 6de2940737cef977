"""Every command, and which ones take an argument."""

from importlib import import_module
from types import ModuleType

COMMANDS = {
    "init": "write a first conf for data, each line with its evidence, or copy a shipped conf",
    "check": "look at a conf and a sample of its data before anything is trained",
    "prepare": "write the data of a conf as ids, for training that parses nothing",
    "train": "train a conf and save its model",
    "rollback": "set back a run to an earlier checkpoint, from which training resumes",
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


def module_of(command: str) -> ModuleType:
    """The file of a command."""
    return import_module(f"tnctl.cli.{command.replace('-', '_')}")


def takers(argument: str) -> list[str]:
    """The commands that take an argument, such as those of `format`."""
    return [command for command in COMMANDS if argument in module_of(command).TAKES]
