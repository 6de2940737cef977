"""Which checkpoint a command works on, and the conf that goes with it."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tnctl.cli import arguments, compose
from tnctl.cli.command_names import module_of
from tnctl.errors import UserError, refuse_if
from tnctl.model.quiet import quiet_tensorflow
from tnctl.saved_conf import conf_of, refuse_odd_urls
from tnctl.schema import Conf, Data, differences, from_values

if TYPE_CHECKING:
    from tnctl.checkpoint.chain import Checkpoint
    from tnctl.cluster.rank_0.cluster_processes import ClusterProcesses
    from tnctl.evaluation.inference import Inference
    from tnctl.evaluation.model_readers import LocalReader

# What the rows of a model mean: overrides of a checkpoint's own conf cannot change it. An override
# of recipe is allowed: recipe.name=FILE.py is how a user permits to run the code of a recipe.
OF_ROWS = ("slots", "numeric", "embedding")
# A composed conf (conf=NAME) that differs in any of these is the conf of another model.
FIXED = ("seed", "recipe", *OF_ROWS, "optimizer")


def with_checkpoint(
    given: list[str],
    takes: tuple[str, ...],
    job: Callable[..., int],
    runs_recipe: bool = True,
    name: str | None = None,
    check: Callable[..., None] = lambda _checkpoint, _conf, _taken: None,
) -> int:
    """Run job(checkpoint, conf, own arguments) and return its exit code.

    The checkpoint is the one at checkpoint=, else the newest of output=, else the newest of the
    output of conf=.
    The conf is the composed one with conf=, else the checkpoint's own, with the overrides. A job
    that `runs_recipe` gets a conf whose recipe is shipped, or a file that the user has named.
    `check` gets the same, and raises UserError or Failure before TensorFlow is imported. `name` is
    that of a command that workers can run, where the conf says so.
    """
    taken, overrides = arguments.part(given, takes)

    def run(checkpoint: "Checkpoint", conf: Conf) -> int:
        if runs_recipe and not compose.names_recipe(overrides):
            refuse_unnamed_recipe(checkpoint, conf.recipe_name, "conf" in taken)
        check(checkpoint, conf, taken)
        if name is not None and conf.cluster.start is not None:
            from tnctl.launch import reading_workers

            lead = module_of(name).lead
            return reading_workers.read(
                name, lead, conf, checkpoint.folder, taken, runs_recipe=runs_recipe
            )
        quiet_tensorflow()
        return job(checkpoint, conf, taken)

    def with_composed(conf: Conf) -> int:
        checkpoint = find(taken, conf.output)
        refuse_conf_of_another_model(checkpoint, conf)
        refuse_other_split(checkpoint.conf(), conf.data)
        return run(checkpoint, sized_as_trained(checkpoint, conf))

    if "conf" in taken:
        return compose.with_conf(
            compose.named_conf(taken), overrides, with_composed, takes_cluster=name is not None
        )
    output = output_of(overrides)
    refuse_if(
        "to" in takes and "to" not in taken and output is None and "checkpoint" in taken,
        "with checkpoint= alone give to=URL too: a checkpoint does not say where this command may "
        "write",
    )
    checkpoint = find(taken, output)
    saved = checkpoint.conf()
    conf_of(saved, checkpoint.folder)  # what is wrong with it is not the command line's fault

    def with_saved(conf: Conf) -> int:
        refuse_overrides_of_rows(saved, conf)
        refuse_other_split(saved, conf.data)
        refuse_odd_urls(dataclasses.asdict(conf), checkpoint.folder, compose.keys_given(overrides))
        return run(checkpoint, conf)

    return compose.with_saved(saved, overrides, with_saved, takes_cluster=name is not None)


def sized_as_trained(checkpoint: "Checkpoint", conf: Conf) -> Conf:
    """A conf with the batch size of a checkpoint, if it leaves that open."""
    from tnctl.data.batch_sizes import as_saved

    return as_saved(conf, checkpoint.conf())


def refuse_unnamed_recipe(checkpoint: "Checkpoint", name: str, of_user: bool) -> None:
    """Refuse a recipe's file that only a checkpoint names: its code is not run.

    `name` is the conf's recipe.name. `of_user` says that the conf is the user's own, and then the
    file need only be the one that the checkpoint was saved with. Raises UserError.
    """
    from tnctl.model import recipes

    digest = checkpoint.manifest.recipe.sha256
    if not name.endswith(".py"):
        return
    way = f"Look at it, and give recipe.name={name} to run it"
    refuse_if(
        not of_user,
        f"the model of {checkpoint.folder} is built by the code of {name}, and a checkpoint does "
        f"not make tnctl run code. {way}",
    )
    refuse_if(
        recipes.digest_of(name) != digest,
        f"{name} is not the file that {checkpoint.folder} was saved with. {way}",
    )


def refuse_overrides_of_rows(saved: dict[str, Any], conf: Conf) -> None:
    """Refuse overrides that change what the rows of a model mean. Raises UserError.

    `saved` is the checkpoint's own conf, `conf` the same with the overrides.
    """
    from tnctl.saved_conf import conf_to_json

    trained, now = conf_to_json(from_values(saved)), conf_to_json(conf)
    for name in OF_ROWS:
        for key in differences(now[name], trained[name], name):
            # The file of a vocabulary may have moved.
            refuse_if(
                not key.endswith(".vocabulary_file"),
                f"{key} is what the model was trained with, and cannot be another now. Leave it "
                "out, or train again",
            )


def refuse_other_split(saved: dict[str, Any], data: Data) -> None:
    """Refuse a data.split that gives a model rows to be measured on that it was trained on.

    `saved` is the checkpoint's own conf, `data` that of the command. Raises UserError.
    """
    trained = from_values(saved).data.split
    refuse_if(
        data.is_cut("train") and data.split != trained,
        "data.split differs from the one that the model was trained with, so rows that it was "
        "trained on would measure it. Leave it as it was, or name files: data.test=FILES",
    )


def find(taken: dict[str, str], output: str | None) -> "Checkpoint":
    """The checkpoint meant. Raises UserError when none is named, Failure when there is none."""
    if "checkpoint" not in taken and output is None:
        raise UserError("which model? Give output=URL of a run, checkpoint=URL, or conf=NAME")
    from tnctl.checkpoint import chain

    if "checkpoint" in taken:
        return chain.open_checkpoint(taken["checkpoint"])
    return chain.newest_or_fail(str(output))


def refuse_conf_of_another_model(checkpoint: "Checkpoint", conf: Conf) -> None:
    """Refuse a composed conf that is not of the checkpoint's model. Raises UserError."""
    from tnctl.checkpoint.chain import differing_keys
    from tnctl.saved_conf import conf_to_json

    keys = differing_keys(conf_to_json(conf), checkpoint.conf())
    differing = [key for key in keys if key.partition(".")[0] in FIXED]
    refuse_if(
        differing,
        f"{checkpoint.folder} was trained with another conf; these keys differ: "
        f"{', '.join(differing)}. Leave conf= out to take the checkpoint's own",
    )


def split_given(data: Data, splits: Sequence[str], what: str) -> str:
    """The first of some splits that the conf has data for. Raises UserError without one."""
    from tnctl.evaluation.split_scoring import first_given

    split = first_given(data, splits)
    if split is None:
        given = " or ".join(f"data.{name}=FILES" for name in splits)
        raise UserError(f"there is nothing to {what}. Give {given}")
    return split


def loaded(checkpoint: "Checkpoint", conf: Conf) -> "Inference":
    """The model of a checkpoint, ready to score."""
    from tnctl.checkpoint.load import load
    from tnctl.evaluation.inference import Inference
    from tnctl.progress import waiting

    with waiting(f"loading {checkpoint.folder}"):
        return Inference(load(checkpoint, conf), conf.train.batch_rows)


def local_reader(checkpoint: "Checkpoint", conf: Conf) -> "LocalReader":
    """The model of a checkpoint, in this process."""
    from tnctl.evaluation.model_readers import LocalReader

    return LocalReader(checkpoint, conf)


def lead_readers(
    conf: Conf, processes: "ClusterProcesses", task: dict[str, Any], job: Callable[..., int]
) -> int:
    """Rank 0: run a job(checkpoint, conf, own arguments, readers) of a task; its exit code."""
    from tnctl.checkpoint.chain import open_checkpoint

    return job(open_checkpoint(task["checkpoint"]), conf, task["arguments"], processes.readers)


def output_of(overrides: list[str]) -> str | None:
    """The value of output=, if given."""
    given = (override for override in overrides if override.startswith("output="))
    if (override := next(given, None)) is None:
        return None
    output = override.removeprefix("output=").strip("'")
    refuse_if(not output, "output= is empty. Give the folder or URL of the run")
    return output
