"""The run that the words of a command mean, and where what is asked of it is done."""

from typing import TYPE_CHECKING, Any

from tnctl.api import opening
from tnctl.api.opened_run import Run
from tnctl.cli import arguments, compose
from tnctl.cli.command_names import module_of
from tnctl.errors import refuse_if
from tnctl.schema import Conf

if TYPE_CHECKING:
    from tnctl.cluster.rank_0.cluster_processes import ClusterProcesses


def chosen(
    given: list[str],
    takes: tuple[str, ...],
    *,
    runs_recipe: bool = True,
    takes_cluster: bool = False,
) -> tuple[Run, dict[str, str]]:
    """The run, and the command's own arguments.

    The checkpoint is the one at checkpoint=, else the newest of output=, else the newest of the
    output of conf=. The conf is the composed one with conf=, else the checkpoint's own, with the
    overrides. Of a command that `runs_recipe` the recipe is shipped, or a file that the user has
    named. One that `takes_cluster` can be run by workers.
    """
    taken, overrides = arguments.part(given, takes)
    url = taken.get("checkpoint")
    if "conf" in taken:
        path = compose.named_conf(taken)
        conf = compose.compose_line(path, overrides, takes_cluster=takes_cluster)
        permits = not runs_recipe or compose.names_recipe(overrides)
        checkpoint = opening.find(conf.output, url)
        return opening.with_composed_conf(checkpoint, conf, permits_recipe=permits), taken
    output = output_of(overrides)
    run = opening.with_own_conf(
        opening.find(output, url),
        output,
        overrides,
        runs_recipe=runs_recipe,
        takes_cluster=takes_cluster,
    )
    return run, taken


def perform(command: str, run: Run, taken: dict[str, str], *, runs_recipe: bool = True) -> int:
    """What a command asks of a run, here or by the workers that the conf names; its exit code.

    `runs_recipe` says whether these need the recipe.
    """
    conf = run.conf
    if conf.cluster.start is None:
        return int(module_of(command).read(run, taken))
    from tnctl.launch import reading_workers

    return reading_workers.read(command, lead, conf, run.checkpoint, taken, runs_recipe=runs_recipe)


def lead(conf: Conf, processes: "ClusterProcesses", task: dict[str, Any]) -> int:
    """The same, as rank 0 of several workers."""
    from tnctl.checkpoint.chain import open_checkpoint

    checkpoint = open_checkpoint(task["checkpoint"])
    run = Run(checkpoint, conf, conf.output, processes)
    return int(module_of(task["command"]).read(run, task["arguments"]))


def output_of(overrides: list[str]) -> str | None:
    """The value of output=, if given."""
    given = (override for override in overrides if override.startswith("output="))
    if (override := next(given, None)) is None:
        return None
    output = override.removeprefix("output=").strip("'")
    refuse_if(not output, "output= is empty. Give the folder or URL of the run")
    return output
