"""`tnctl evaluate`."""

from typing import TYPE_CHECKING, Any

from tnctl.cli.checkpoint_choice import lead_readers, local_reader, with_checkpoint
from tnctl.cli.printing import print_json
from tnctl.errors import UserError
from tnctl.schema import Conf

if TYPE_CHECKING:
    from tnctl.checkpoint.load import Checkpoint
    from tnctl.cluster.rank_0.cluster_processes import ClusterProcesses
    from tnctl.evaluation.model_readers import Readers

TAKES = ("conf", "checkpoint")
USAGE = "conf=NAME | output=URL | checkpoint=URL [data.test=FILES] [key=value …]"


def run(given: list[str]) -> int:
    """Print the metrics of a checkpoint as one JSON object."""
    return with_checkpoint(given, TAKES, evaluate, name="evaluate")


def lead(conf: Conf, processes: "ClusterProcesses", task: dict[str, Any]) -> int:
    """The same, as rank 0 of several workers."""
    return lead_readers(conf, processes, task, evaluate)


def evaluate(
    checkpoint: "Checkpoint", conf: Conf, _: dict[str, str], readers: "Readers" = local_reader
) -> int:
    from tnctl.evaluation.split_scoring import REPORTED_SPLITS, first_given
    from tnctl.progress import waiting

    split = first_given(conf.data, REPORTED_SPLITS)
    if split is None:
        raise UserError(
            "there is nothing to evaluate on. Give data.test=FILES or data.validation=FILES"
        )
    reader = readers(checkpoint, conf)
    with waiting(f"evaluating on data.{split}"):
        metrics = reader.metrics(split)
    metrics.pop("histogram", None)  # long, and for the page of a run
    print_json({"checkpoint": checkpoint.folder, "split": split, **metrics})
    return 0
