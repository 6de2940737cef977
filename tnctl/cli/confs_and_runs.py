"""The conf, or the run, that the words of a command mean."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tnctl.cli import arguments
from tnctl.composing import compose
from tnctl.composing.overrides import names_recipe
from tnctl.errors import UserError, refuse_if
from tnctl.schema import Conf

if TYPE_CHECKING:
    from tnctl.api.opened_run import Run


def named_conf(taken: dict[str, str]) -> Path:
    """The file of the argument conf=. Raises UserError when it is not given."""
    if "conf" not in taken:
        way = compose.choose_conf("")
        raise UserError(f"give conf=NAME, or conf=FILE.yaml of your own. {way}")
    return compose.conf_file(taken["conf"])


def composed(
    command: str, given: list[str], *, takes_cluster: bool = False
) -> tuple[Conf, dict[str, str]]:
    """The checked conf of conf= with the overrides, and the arguments of the command itself.

    With `--cfg job` it is shown, and the command ends with exit code 0. Raises UserError.
    """
    taken, words = arguments.part(command, given)
    path = named_conf(taken)
    overrides = without_options(path, words)
    return compose.compose_run(path, overrides, takes_cluster=takes_cluster), taken


def without_options(path: Path, words: list[str]) -> list[str]:
    """The overrides among the words of a command that takes one conf, and not several (-m)."""
    options, overrides = arguments.options(words)
    refuse_if(options.sweep, "-m is for train: this command takes one conf")
    if options.show:
        print(compose.shown(path, overrides, options.resolve), end="")
        sys.exit(0)
    return overrides


def chosen(
    command: str,
    given: list[str],
    *,
    runs_recipe: bool = True,
    takes_cluster: bool = False,
) -> tuple["Run", dict[str, str]]:
    """The run, and the command's own arguments.

    The checkpoint is the one at checkpoint=, else the newest of output=, else the newest of the
    output of conf=. The conf is the composed one with conf=, else the checkpoint's own, with the
    overrides. Of a command that `runs_recipe` the recipe is shipped, or a file that the user has
    named. A command that `takes_cluster` can be run by workers.
    """
    from tnctl.api import opening

    taken, words = arguments.part(command, given)
    url = taken.get("checkpoint")
    if "conf" in taken:
        conf, taken = composed(command, given, takes_cluster=takes_cluster)
        permits = not runs_recipe or names_recipe(words)
        checkpoint = opening.find(conf.output, url)
        return opening.with_composed_conf(checkpoint, conf, permits_recipe=permits), taken
    output = output_of(words)
    checkpoint = opening.find(output, url)
    run = opening.with_own_conf(
        checkpoint,
        output,
        without_options(compose.saved(checkpoint.conf()), words),
        runs_recipe=runs_recipe,
        takes_cluster=takes_cluster,
    )
    return run, taken


def output_of(words: list[str]) -> str | None:
    """The value of output=, if given."""
    given = (word for word in words if word.startswith("output="))
    if (word := next(given, None)) is None:
        return None
    output = word.removeprefix("output=").strip("'")
    refuse_if(not output, "output= is empty. Give the folder or URL of the run")
    return output
