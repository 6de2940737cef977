"""`tnctl predict`."""

from typing import TYPE_CHECKING, Any

from tnctl import files
from tnctl.cli import arguments, compose
from tnctl.cli.checkpoint_choice import lead_readers, local_reader, with_checkpoint
from tnctl.errors import UserError
from tnctl.schema import Conf

if TYPE_CHECKING:
    from tnctl.checkpoint.load import Checkpoint
    from tnctl.cluster.rank_0.cluster_processes import ClusterProcesses
    from tnctl.evaluation.model_readers import Readers

TAKES = ("conf", "checkpoint", "to", "format", "overwrite")
USAGE = (
    "conf=NAME | output=URL | checkpoint=URL data.test=FILES [data.carry=[COLUMN,…]] "
    "[to=URL] [format=parquet|csv|jsonl] [overwrite=true]"
)
FORMATS = ("parquet", "csv", "jsonl")


def run(given: list[str]) -> int:
    """Write the scores of data.test, else of data.validation, by default into the output."""
    return with_checkpoint(given, TAKES, predict, name="predict")


def lead(conf: Conf, processes: "ClusterProcesses", task: dict[str, Any]) -> int:
    """The same, as rank 0 of several workers."""
    return lead_readers(conf, processes, task, predict)


def predict(
    checkpoint: "Checkpoint",
    conf: Conf,
    taken: dict[str, str],
    readers: "Readers" = local_reader,
) -> int:
    to = taken.get("to", "")
    # The format that the name of the file has, else Parquet.
    kind = next((kind for kind in FORMATS if to.endswith(f".{kind}")), FORMATS[0])
    kind = arguments.choice(taken, "format", FORMATS, kind)
    from contextlib import closing

    from tnctl import ownership
    from tnctl.evaluation import predictions
    from tnctl.evaluation.split_scoring import REPORTED_SPLITS, first_given
    from tnctl.progress import say
    from tnctl.training.run_folder import PREDICTIONS, PREDICTIONS_LIST

    split = first_given(conf.data, REPORTED_SPLITS)
    if split is None:
        raise UserError("there is nothing to score. Give data.test=FILES or data.validation=FILES")
    replace, claims = arguments.flag(taken, "overwrite"), None
    if not to:
        to = files.join(conf.output, f"{PREDICTIONS}.{kind}")
        # Predictions that tnctl wrote there are replaced without overwrite=true.
        claims = ownership.Claims(conf.output, ownership.RUN, [PREDICTIONS_LIST])
    reader = readers(checkpoint, conf)
    reads = [link.folder for link in checkpoint.chain()]
    if "conf" in taken:
        reads.append(str(compose.conf_file(taken["conf"])))
    if conf.recipe_name.endswith(".py"):
        reads.append(conf.recipe_name)
    with closing(reader.predictions(split)) as tables:
        rows = predictions.predict(
            reader.model, tables, conf, split, to, kind, reads, replace, claims
        )
    say(
        f"{rows:,} predictions of data.{split} by the model of {checkpoint.step_in_words} "
        f"written to {to}"
    )
    return 0
