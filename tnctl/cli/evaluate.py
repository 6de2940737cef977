"""`tnctl evaluate`."""

from typing import TYPE_CHECKING, Any

from tnctl.cli.checkpoint_choice import (
    lead_readers,
    local_reader,
    split_given,
    with_checkpoint,
)
from tnctl.cli.printing import print_json
from tnctl.schema import Conf, Data

if TYPE_CHECKING:
    from tnctl.checkpoint.chain import Checkpoint
    from tnctl.cluster.rank_0.cluster_processes import ClusterProcesses
    from tnctl.evaluation.model_readers import Readers

TAKES = ("conf", "checkpoint")
USAGE = "conf=NAME | output=URL | checkpoint=URL [data.test=FILES] [key=value …]"


def run(given: list[str]) -> int:
    """Print the metrics of a checkpoint as one JSON object."""
    return with_checkpoint(given, TAKES, evaluate, name="evaluate", check=check)


def split_of(data: Data) -> str:
    from tnctl.evaluation.split_scoring import REPORTED_SPLITS

    return split_given(data, REPORTED_SPLITS, "evaluate on")


def check(_: "Checkpoint", conf: Conf, _taken: dict[str, str]) -> None:
    """Refuse data that is not there, or lacks a column. Raises UserError, Failure."""
    from tnctl.data import column_names, sources
    from tnctl.evaluation.value_figures import columns_of

    columns = [*column_names.columns_read(conf), *columns_of(conf).values()]
    sources.require(conf, [split_of(conf.data)], columns)


def lead(conf: Conf, processes: "ClusterProcesses", task: dict[str, Any]) -> int:
    """The same, as rank 0 of several workers."""
    return lead_readers(conf, processes, task, evaluate)


def evaluate(
    checkpoint: "Checkpoint", conf: Conf, _: dict[str, str], readers: "Readers" = local_reader
) -> int:
    from tnctl.documents import plain
    from tnctl.evaluation.value_figures import figures_by_value
    from tnctl.progress import waiting

    split = split_of(conf.data)
    reader = readers(checkpoint, conf)
    with waiting(f"evaluating on data.{split}"):
        metrics = reader.metrics(split)
        if conf.evaluation.by:
            inference = reader.inference(conf.train.batch_rows)
            metrics["by"] = plain(figures_by_value(inference, conf, split))
    metrics.pop("histogram", None)  # long, and for the page of a run
    print_json({"checkpoint": checkpoint.folder, "split": split, **metrics})
    return 0
