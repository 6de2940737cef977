"""`tnctl train -m sweep.trials=N`: a search for the best values, by Optuna."""

import shlex
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tnctl import files, progress
from tnctl.cli import arguments, compose, search_space
from tnctl.cli.quiet import quiet_tensorflow
from tnctl.errors import UserError, refuse_if
from tnctl.masking import masked
from tnctl.schema import Conf
from tnctl.training.search.search_parameters import Parameter, words

MOST_TRIALS = 10_000
NEEDS_OPTUNA = "sweep.trials needs a package that is not installed: pip install 'tnctl[sweep]'"
LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True)
class Line:
    """A command line: its overrides, with a Parameter in the place of each that is searched."""

    path: Path
    overrides: list[str | Parameter]

    def with_values(self, texts: dict[str, str]) -> list[str]:
        """The overrides with one value for each parameter."""
        return [
            entry if isinstance(entry, str) else f"{entry.key}={texts[entry.key]}"
            for entry in self.overrides
        ]

    def conf(self, texts: dict[str, str]) -> Conf:
        """The conf with these values. Raises UserError."""
        return compose.compose(self.path, self.with_values(texts))


def train(path: Path, taken: dict[str, str], given: list[str], golden: int) -> int:
    """Make all trials, print the best conf as a command, and train it with sweep.refit=true.

    The exit code is 1 when trials have failed.
    """
    options, overrides = arguments.options(given)
    refuse_if(options.show, "--cfg job shows one conf: leave -m out")
    refuse_if("accept" in taken, "accept= is for days, which sweep.trials does not take")
    mixed, parameters = search_space.parameters_of(path, overrides)
    line, refits = Line(path, mixed), arguments.flag(taken, "sweep.refit")
    trials = bounded(taken, "sweep.trials", 1, 1, MOST_TRIALS)
    seed = bounded(taken, "sweep.seed", 1, 0, LARGEST_SEED)
    prune = "sweep.prune" not in taken or arguments.flag(taken, "sweep.prune")
    check_values(line, parameters)
    refuse_if(find_spec("optuna") is None, NEEDS_OPTUNA)
    quiet_tensorflow()
    from tnctl.training.search import refit, results, search_loop
    from tnctl.training.terminal_tables import show_report

    space = search_loop.Space(parameters, line.conf)
    first = space.first()
    if refits:
        refit.conf_of_all_data(first, 1)
    settings = search_loop.Settings(
        trials, seed, prune, taken.get("sweep.storage"),
        arguments.flag(taken, "overwrite"), golden,
    )  # fmt: skip
    summary, code = search_loop.search(space, settings)
    if summary.under_way:
        progress.say(
            f"trials that other commands still train: {summary.under_way:,}; the last command to "
            "end shows the best"
        )
        return code
    if (best := summary.best) is None:
        return code
    texts = space.texts(best.params)
    print(command(taken["conf"], line.with_values(texts), first.output), flush=True)
    if refits and code:
        progress.say("the best conf is not refitted yet (sweep.refit), as trials have failed")
    elif refits:
        passes = results.passes_of_best(results.report_of(first.output, best.number))
        report = refit.refit(line.conf(texts), first.output, best.number, passes, golden)
        show_report(files.join(first.output, refit.folder_of(best.number)), report)
    return code


def bounded(taken: dict[str, str], key: str, default: int, least: int, most: int) -> int:
    """A whole number within bounds. Raises UserError."""
    value = arguments.count(taken, key, default)
    refuse_if(
        not least <= value <= most,
        f"{key} must be between {least} and {most:,}. Received: {key}={value}",
    )
    return value


def check_values(line: Line, parameters: list[Parameter]) -> None:
    """Compose the conf with each value by itself, and the first of the others. Raises UserError."""
    first = {parameter.key: parameter.tested()[0] for parameter in parameters}
    checked: list[dict[str, str]] = []
    for parameter in parameters:
        for text in parameter.tested():
            if (texts := first | {parameter.key: text}) not in checked:
                checked.append(texts)
                try:
                    line.conf(texts)
                except UserError as error:
                    raise UserError(f"{words(texts)}: {error}", error.exit_code) from None


def command(conf: str, overrides: list[str], output: str) -> str:
    """The command that trains a conf, into a folder of its own under the output of the search."""
    kept = [override for override in overrides if override.partition("=")[0] != "output"]
    said = [f"conf={conf}", *map(plain, kept), f"output={files.join(output, 'best')}"]
    return shlex.join(["tnctl", "train", *(str(masked(word)) for word in said)])


def plain(override: str) -> str:
    """A path without the quotes that it was given for Hydra."""
    key, _, value = override.partition("=")
    unquoted = f"{key}={value.strip(chr(39))}"
    return unquoted if arguments.quoted_for_hydra(unquoted) == override else override
