"""Which checkpoint a command works on, and the conf that goes with it."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tnctl.cli import arguments, compose
from tnctl.cli.quiet import quiet_tensorflow
from tnctl.errors import UserError
from tnctl.masking import bare_conf
from tnctl.saved_conf import conf_of, refuse_odd_urls
from tnctl.schema import Conf, differences, from_values

if TYPE_CHECKING:
    from tnctl.checkpoint.load import Checkpoint
    from tnctl.evaluation.inference import Inference

# What a checkpoint was trained with cannot be changed by a conf that is composed later.
OF_ROWS = ("slots", "numeric", "embedding")
FIXED = ("seed", "recipe", *OF_ROWS, "optimizer")


def with_checkpoint(
    given: list[str], takes: tuple[str, ...], job: Callable[..., int], runs_recipe: bool = True
) -> int:
    """Run job(checkpoint, conf, own arguments) and return its exit code.

    The checkpoint is that of checkpoint=, else the newest of output=, else of the output of conf=.
    The conf is the composed one with conf=, else the checkpoint's own, with the overrides. A job
    that `runs_recipe` gets a conf whose recipe is shipped, or a file that the user has named.
    """
    own, overrides = arguments.part(given, takes)

    def allowed(checkpoint: "Checkpoint", conf: Conf, own: dict[str, str]) -> int:
        if runs_recipe and not compose.names_recipe(overrides):
            refuse_unnamed_recipe(checkpoint, conf, "conf" in own)
        return job(checkpoint, conf, own)

    if "conf" in own:
        return compose.with_conf(
            compose.conf_file(own["conf"]),
            overrides,
            lambda conf: with_composed(own, conf, allowed),
        )
    output = output_of(overrides)
    if "to" in takes and "to" not in own and output is None and "checkpoint" in own:
        raise UserError(
            "with checkpoint= alone give to=URL too: a checkpoint does not say where this command "
            "may write"
        )
    checkpoint = find(own, output)
    saved = checkpoint.conf()
    conf_of(saved, checkpoint.folder)  # what is wrong with it is not the command line's fault

    def with_saved(conf: Conf) -> int:
        refuse_another_model(saved, conf)
        refuse_odd_urls(dataclasses.asdict(conf), checkpoint.folder, compose.keys_given(overrides))
        return allowed(checkpoint, conf, own)

    return compose.with_saved(saved, overrides, with_saved)


def refuse_unnamed_recipe(checkpoint: "Checkpoint", conf: Conf, of_user: bool) -> None:
    """Refuse a recipe's file that only a checkpoint names: its code is not run.

    `of_user` says that the conf is the user's own, and then the file need only be the one that the
    checkpoint was saved with. Raises UserError.
    """
    from tnctl.model import recipes

    name, digest = str(conf.recipe["name"]), checkpoint.manifest.recipe.sha256
    if not name.endswith(".py"):
        return
    way = f"Look at it, and give recipe.name={name} to run it"
    if not of_user:
        raise UserError(
            f"the model of {checkpoint.folder} is built by the code of {name}, and a checkpoint "
            f"does not make tnctl run code. {way}"
        )
    if recipes.digest_of(name) != digest:
        raise UserError(f"{name} is not the file that {checkpoint.folder} was saved with. {way}")


def refuse_another_model(saved: dict[str, Any], conf: Conf) -> None:
    """Refuse overrides that change what the rows of the checkpoint's model are."""
    from tnctl.model.graph import conf_to_json

    # Of an older tnctl it may lack keys, which are then what they are without.
    own, now = conf_to_json(from_values(saved)), conf_to_json(conf)
    differing = [key for name in OF_ROWS for key in differences(now[name], own[name], name)]
    # The file of a vocabulary may have moved.
    if differing := [key for key in differing if not key.endswith(".vocabulary_file")]:
        raise UserError(
            f"{differing[0]} is what the model was trained with, and cannot be another now. Leave "
            "it out, or train again"
        )


def find(own: dict[str, str], output: str | None) -> "Checkpoint":
    """The checkpoint meant. Raises UserError when none is named, Failure when there is none."""
    if "checkpoint" not in own and output is None:
        raise UserError("which model? Give output=URL of a run, checkpoint=URL, or conf=NAME")
    quiet_tensorflow()
    from tnctl.checkpoint import load

    if "checkpoint" in own:
        return load.open_checkpoint(own["checkpoint"])
    assert output is not None
    return load.newest_or_fail(output)


def with_composed(own: dict[str, str], conf: Conf, job: Callable[..., int]) -> int:
    """Run the job with a composed conf, which must be of the model that the checkpoint has."""
    checkpoint = find(own, conf.output)
    from tnctl.model.graph import conf_to_json

    saved, now = bare_conf(checkpoint.conf()), bare_conf(conf_to_json(conf))
    differing = [key for name in FIXED for key in differences(now[name], saved[name], name)]
    if differing:
        raise UserError(
            f"{checkpoint.folder} was trained with another conf; these keys differ: "
            f"{', '.join(differing)}. Leave conf= out to take the checkpoint's own"
        )
    return job(checkpoint, conf, own)


def loaded(checkpoint: "Checkpoint", conf: Conf) -> "Inference":
    """The model of a checkpoint, ready to score."""
    from tnctl.checkpoint.load import load
    from tnctl.evaluation.inference import Inference
    from tnctl.progress import waiting

    with waiting(f"loading {checkpoint.folder}"):
        return Inference(load(checkpoint, conf), conf.train.batch_size)


def output_of(overrides: list[str]) -> str | None:
    """The value of output=, if given."""
    for override in overrides:
        if override.startswith("output="):
            if not (output := override.removeprefix("output=").strip("'")):
                raise UserError("output= is empty. Give the folder or URL of the run")
            return output
    return None
