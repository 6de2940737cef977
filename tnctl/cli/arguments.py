"""Arguments of one command (conf, to, …), taken before Hydra reads the rest."""

from collections.abc import Sequence
from dataclasses import dataclass

from tnctl.cli.commands import COMMANDS, takers
from tnctl.composing.overrides import SEARCH_PATH, in_quotes, quoted_for_hydra
from tnctl.errors import UserError, did_you_mean, refuse_if
from tnctl.schema import meant_key

ARGUMENTS = {
    "conf": "a shipped conf by name, or a YAML file of your own",
    "checkpoint": "the folder or URL of one checkpoint",
    "to": "the folder, file or URL to write to; - is standard output where the usage has it",
    "format": "the format, one of those in the usage line",
    "graph": "the folder or URL of a split graph",
    "embeddings": "the folder or URL of exported embeddings",
    "overwrite": "true: replace what tnctl wrote to output before, or the file to=",
    "rows": "of check the number of rows of data.train that are read (default 100,000); of "
    "split-graph inside: the graph has the exported rows, and takes ids",
    "accept": "true: train on a day that came late, is empty, or looks broken",
    "golden": "the number of raw validation rows kept with a model (default 200; 0: none)",
    "label": "the column of the label (default: by names and values)",
    "positive": "the texts of the label that count as 1, by commas",
    "step": "the steps of the checkpoint to go back to",
    "day": "the day at whose end the checkpoint to go back to was saved",
    "keep": "the number of newest checkpoints, or published versions, that stay",
    "full": "true publishes all rows, also of a checkpoint that is in force",
    "precision": "how the floats of embeddings are stored: float32, float16 or int8",
    "only": "slots, by commas, whose rows are exported (default: all)",
    "min_show": "the least show, decayed to today, of the rows that are exported",
    "top": "the number of rows of each share group that are exported, by the highest show",
    "since": "an earlier export: only what is new or removed since then is written",
    "prefix": "what the names of keys in Redis begin with (default tnctl)",
    "grace": "the seconds for which the previous version stays in Redis (default 600; 0: none)",
    "input": "a file or URL of raw rows; - is standard input",
    "endpoint": "the URL of a running model: http://HOST:PORT/v1/models/NAME",
    "head": "the one head, or tower, of the recipe that is cut out",
    "frozen": "true: weights become constants of the graph",
    "linear": "how linear weights enter the graph: their sum, or inputs, one of each slot",
    "aot": "batch sizes to compile ahead of time, such as [1,32,256]",
    "target_cpu": "the CPU that aot= compiles for (default x86-64-v3)",
    "metric": "the metric that orders runs (default: the one that most of them monitor)",
    "tensornet": "the folder or URL that TensorNet saved its weights to, or of a day in it",
    "tables": "which weights each table of TensorNet has: NAME:GROUP.linear,NAME:GROUP.embedding",
    "dense": "the dense variables of the conf's network in the order of their names in TensorNet",
    "yes": "true: do it, and not only say what would be done",
    "sweep.trials": "with -m: search the values that are given, with N runs",
    "sweep.seed": "of the values that are tried (default 1)",
    "sweep.prune": "false: every trial is trained to its end (default: poor ones are stopped)",
    "sweep.storage": "a file, or database URL, for the record (default: OUTPUT/sweep.journal)",
    "sweep.refit": "true: then train the best conf on training and validation data",
}
# Arguments of earlier versions, and what to do instead.
REMOVED = {
    "html": "`tnctl runs --json` has all figures, each run its report.html, and `tensorboard "
    "--logdir FOLDER` shows the curves of runs that were trained with train.tensorboard=true.",
    "sweep.workers": "Give the same command several times, at the same time: they share the "
    "trials.",
    "ranks": "format=text has the columns of TensorNet's tables, without the optimizer's state.",
    "values": "In Python, tnctl.ids(run, slot, values) has the ids of values.",
}
LONGEST_COUNT = 18  # digits


def part(command: str, given: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The arguments that a command takes, and the rest for Hydra with URLs and paths quoted.

    Raises UserError for an argument of another command, one given twice, or one without `=`.
    """
    name, _, inner = command.partition(" ")
    takes = (COMMANDS[name].parts[inner] if inner else COMMANDS[name]).takes
    values: dict[str, str] = {}
    rest: list[str] = []
    for argument in given:
        key, equals, value = argument.partition("=")
        if equals and key in REMOVED:
            raise UserError(f"tnctl no longer has {key}=. {REMOVED[key]}")
        if equals and key in ARGUMENTS:
            if key not in takes:
                *others, last = takers(key)
                commands = f"{', '.join(others)} and {last} take" if others else f"{last} takes"
                way = meant_key(key) or "Leave it out"
                raise UserError(f"this command takes no {key}=; {commands} it. {way}")
            if key in values:
                raise UserError(f"{key}= is given twice: {values[key]} and {value}")
            refuse_if(not value, f"{key}= is empty. Leave it out, or give {ARGUMENTS[key]}")
            values[key] = value
        elif equals and key.startswith("sweep."):
            choices = [known for known in ARGUMENTS if known.startswith("sweep.")]
            raise UserError(f"no argument {key}=. {did_you_mean(key, choices)}")
        else:
            rest.append(quoted_for_hydra(argument))
    return values, rest


@dataclass
class Options:
    """The options with dashes."""

    show: bool = False  # --cfg job
    resolve: bool = False  # --resolve
    sweep: bool = False  # -m


def options(arguments: Sequence[str]) -> tuple[Options, list[str]]:
    """The options, wherever they stand, and the rest."""
    chosen, rest = Options(), []
    given = iter(arguments)
    for argument in given:
        name, equals, value = argument.partition("=")
        if name in ("--cfg", "-c", "--config-dir", "-cd") and not equals:
            value = next(given, "")
        if name in ("--cfg", "-c"):
            refuse_if(value != "job", f"{name} takes job: it shows the conf. Received: '{value}'")
            chosen.show = True
        elif name in ("--config-dir", "-cd"):
            refuse_if(not value, f"{name} takes a folder: {name} FOLDER")
            rest.append(f"{SEARCH_PATH}=[{in_quotes(value)}]")
        elif argument in ("-m", "--multirun"):
            chosen.sweep = True
        elif argument == "--resolve":
            chosen.resolve = True
        elif argument.startswith("-"):
            raise UserError(
                f"no option {argument}. They are --help, --cfg job, --resolve, --config-dir and "
                "-m; conf=NAME names a conf, or conf=FILE.yaml"
            )
        else:
            rest.append(argument)
    refuse_if(
        chosen.resolve and not chosen.show,
        "--resolve goes with --cfg job: it shows the conf with its ${…} resolved",
    )
    return chosen, rest


def flag(values: dict[str, str], key: str) -> bool:
    """A true/false argument."""
    value = values.get(key, "false")
    refuse_if(
        value.lower() not in ("true", "false"), f"{key} is true or false. Received: {key}={value}"
    )
    return value.lower() == "true"


def count(values: dict[str, str], key: str, default: int) -> int:
    """A whole number from 0 on."""
    value = values.get(key, str(default))
    refuse_if(
        not value.isdecimal() or len(value) > LONGEST_COUNT,
        f"{key} must be a whole number from 0 on. Received: {key}={value[: LONGEST_COUNT + 1]}",
    )
    return int(value)
