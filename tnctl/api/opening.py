"""`tnctl.open`: which checkpoint is meant, and the conf that goes with it."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tnctl.api.calls import COMPOSING, Url, in_one_line, overrides_of, text_of
from tnctl.api.opened_run import Run
from tnctl.errors import UserError, refuse_if
from tnctl.saved_conf import conf_of, conf_to_json, refuse_odd_urls
from tnctl.schema import OF_SERVING, Conf, Data, differences, from_values

if TYPE_CHECKING:
    from tnctl.checkpoint.chain import Checkpoint

# What the rows of a model mean: overrides of a checkpoint's own conf cannot change it. An override
# of recipe is allowed: recipe.name=FILE.py is how a user permits to run the code of a recipe.
OF_ROWS = ("slots", "numeric", "embedding")
# A composed conf (conf=NAME) that differs in any of these is the conf of another model.
FIXED = ("seed", "recipe", *OF_ROWS, "optimizer")
LOOK = "Look at it, and give recipe.name={} to run it"


def open(
    output: Url | None = None, *, checkpoint: Url | None = None, overrides: Sequence[str] = ()
) -> Run:
    """The model of a run's newest complete checkpoint, or of the one in a folder.

    `output` is the folder or URL of the run, `checkpoint` the folder or URL of one checkpoint; the
    run may be under way. The conf is the checkpoint's own, with `overrides`. The model is loaded
    when it is first used. Raises UserError, and Failure when there is no such model or it is
    damaged.
    """
    given = overrides_of(overrides)
    refuse_if(
        any(override.startswith("output=") for override in given),
        "output= is among the overrides. Give it as the first argument",
    )
    if output is not None:
        output = text_of(output, "output")
        given += overrides_of([f"output={output}"])
    if checkpoint is not None:
        checkpoint = text_of(checkpoint, "checkpoint")
    with in_one_line(), COMPOSING:
        return with_own_conf(find(output, checkpoint), output, given)


def find(output: str | None, checkpoint: str | None) -> "Checkpoint":
    """The checkpoint meant. Raises UserError when none is named, Failure when there is none."""
    if checkpoint is None and output is None:
        raise UserError("which model? Give output=URL of a run, checkpoint=URL, or conf=NAME")
    from tnctl.checkpoint import chain

    if checkpoint is not None:
        return chain.open_checkpoint(checkpoint)
    return chain.newest_or_fail(str(output))


def with_own_conf(
    checkpoint: "Checkpoint",
    output: str | None,
    overrides: list[str],
    *,
    runs_recipe: bool = True,
    takes_cluster: bool = False,
) -> Run:
    """A checkpoint with the conf that it carries, and overrides; `output` where it was given.

    For who `runs_recipe`, the recipe is shipped, or a file that the overrides name. Keys of
    `cluster` are for who `takes_cluster`. Raises UserError, and Failure for a damaged conf.
    """
    from tnctl.composing import compose
    from tnctl.composing.overrides import keys_given, names_recipe

    saved = checkpoint.conf()
    conf_of(saved, checkpoint.folder)  # what is wrong with it is not the fault of the overrides
    conf = compose.compose_run(compose.saved(saved), overrides, takes_cluster=takes_cluster)
    _refuse_overrides_of_rows(saved, conf)
    _refuse_other_split(saved, conf.data)
    given = keys_given(overrides)
    refuse_odd_urls(dataclasses.asdict(conf), checkpoint.folder, given)
    name = conf.recipe_name
    refuse_if(
        runs_recipe and name.endswith(".py") and not names_recipe(overrides),
        f"the model of {checkpoint.folder} is built by the code of {name}, and a checkpoint does "
        f"not make tnctl run code. {LOOK.format(name)}",
    )
    return Run(checkpoint, conf, conf.output if output is not None else None)


def with_composed_conf(checkpoint: "Checkpoint", conf: Conf, *, permits_recipe: bool) -> Run:
    """A checkpoint with a conf that the user has composed, which must be of the same model.

    The recipe is shipped, or the file that the checkpoint was saved with, or any file with
    `permits_recipe`. Raises UserError.
    """
    from tnctl.checkpoint.chain import differing_keys
    from tnctl.data.batch_sizes import as_saved
    from tnctl.model import recipes

    saved = checkpoint.conf()
    keys = differing_keys(conf_to_json(conf), saved)
    differing = [key for key in keys if key.partition(".")[0] in FIXED]
    refuse_if(
        differing,
        f"{checkpoint.folder} was trained with another conf; these keys differ: "
        f"{', '.join(differing)}. Leave conf= out to take the checkpoint's own",
    )
    _refuse_other_split(saved, conf.data)
    name = conf.recipe_name
    if name.endswith(".py") and not permits_recipe:
        refuse_if(
            recipes.digest_of(name) != checkpoint.manifest.recipe.sha256,
            f"{name} is not the file that {checkpoint.folder} was saved with. {LOOK.format(name)}",
        )
    return Run(checkpoint, as_saved(conf, saved), conf.output)


def _refuse_overrides_of_rows(saved: dict[str, Any], conf: Conf) -> None:
    """Refuse overrides that change what the rows of a model mean. Raises UserError.

    `saved` is the checkpoint's own conf, `conf` the same with the overrides.
    """
    trained, now = conf_to_json(from_values(saved)), conf_to_json(conf)
    for name in OF_ROWS:
        for key in differences(now[name], trained[name], name):
            # The file of a vocabulary or of vectors may have moved.
            refuse_if(
                not key.endswith((".vocabulary_file", ".vectors"))
                and not OF_SERVING.fullmatch(key),
                f"{key} is what the model was trained with, and cannot be another now. Leave it "
                "out, or train again",
            )


def _refuse_other_split(saved: dict[str, Any], data: Data) -> None:
    """Refuse a data.split that gives a model rows to be measured on that it was trained on.

    `saved` is the checkpoint's conf, `data` the command's. Raises UserError.
    """
    trained = from_values(saved).data.split
    refuse_if(
        data.is_cut("train") and data.split != trained,
        "data.split differs from the one that the model was trained with, so rows that it was "
        "trained on would measure it. Leave it as it was, or name files: data.test=FILES",
    )
