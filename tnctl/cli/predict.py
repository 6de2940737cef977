"""`tnctl predict`."""

from typing import TYPE_CHECKING, Any

from tnctl import files
from tnctl.cli import arguments, compose
from tnctl.cli.checkpoint_choice import (
    lead_readers,
    local_reader,
    split_given,
    with_checkpoint,
)
from tnctl.schema import Conf, Data

if TYPE_CHECKING:
    from tnctl.checkpoint.chain import Checkpoint
    from tnctl.cluster.rank_0.cluster_processes import ClusterProcesses
    from tnctl.evaluation.model_readers import Readers
    from tnctl.ownership import Claims

TAKES = ("conf", "checkpoint", "to", "format", "overwrite")
USAGE = (
    "conf=NAME | output=URL | checkpoint=URL data.test=FILES [data.carry=[COLUMN,…]] "
    "[to=URL] [format=parquet|csv|jsonl] [overwrite=true]"
)
FORMATS = ("parquet", "csv", "jsonl")


def run(given: list[str]) -> int:
    """Write the scores of data.test, else of data.validation, by default into the output."""
    return with_checkpoint(given, TAKES, predict, name="predict", check=check)


def split_of(data: Data) -> str:
    from tnctl.evaluation.split_scoring import REPORTED_SPLITS

    return split_given(data, REPORTED_SPLITS, "score")


def output_of(output: str, taken: dict[str, str]) -> "tuple[str, str, bool, Claims | None]":
    """The format, the file, whether it may be replaced, and the list that it is on."""
    from tnctl import ownership
    from tnctl.training.run_folder import PREDICTIONS, PREDICTIONS_LIST

    to = taken.get("to", "")
    # The format that the name of the file has, else Parquet.
    kind = next((kind for kind in FORMATS if to.endswith(f".{kind}")), FORMATS[0])
    kind = arguments.choice(taken, "format", FORMATS, kind)
    replace = arguments.flag(taken, "overwrite")
    if to:
        return kind, to, replace, None
    # Predictions that tnctl wrote there are replaced without overwrite=true.
    claims = ownership.Claims(output, ownership.RUN, [PREDICTIONS_LIST])
    return kind, files.join(output, f"{PREDICTIONS}.{kind}"), replace, claims


def check(checkpoint: "Checkpoint", conf: Conf, taken: dict[str, str]) -> None:
    """Refuse another file at the place of the output, and data that is not there.

    Raises UserError, Failure.
    """
    from tnctl import outputs
    from tnctl.data import column_names, sources
    from tnctl.evaluation import predictions

    predictions.check_carried(conf.data.carry, tuple(checkpoint.manifest.heads))
    needed = [*column_names.columns_read(conf, labelled=False), *conf.data.carry]
    sources.require(conf, [split_of(conf.data)], list(dict.fromkeys(needed)))
    _kind, to, replace, claims = output_of(conf.output, taken)
    outputs.refuse_overlap([to], sources.files_read(conf, [split_of(conf.data)]))
    outputs.check_file(to, replace, claims)


def lead(conf: Conf, processes: "ClusterProcesses", task: dict[str, Any]) -> int:
    """The same, as rank 0 of several workers."""
    return lead_readers(conf, processes, task, predict)


def predict(
    checkpoint: "Checkpoint",
    conf: Conf,
    taken: dict[str, str],
    readers: "Readers" = local_reader,
) -> int:
    from contextlib import closing

    from tnctl.evaluation import predictions
    from tnctl.progress import say

    split = split_of(conf.data)
    kind, to, replace, claims = output_of(conf.output, taken)
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
