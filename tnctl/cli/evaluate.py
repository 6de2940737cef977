"""`tnctl evaluate`."""

from typing import TYPE_CHECKING

from tnctl.cli.checkpoint_choice import loaded, with_checkpoint
from tnctl.cli.printing import print_json
from tnctl.errors import UserError
from tnctl.schema import Conf

if TYPE_CHECKING:
    from tnctl.checkpoint.load import Checkpoint

TAKES = ("conf", "checkpoint")
USAGE = "conf=NAME | output=URL | checkpoint=URL [data.test=FILES] [key=value …]"


def run(given: list[str]) -> int:
    """Print the metrics of a checkpoint as one JSON object."""
    return with_checkpoint(given, TAKES, evaluate)


def evaluate(checkpoint: "Checkpoint", conf: Conf, _: dict[str, str]) -> int:
    from tnctl.evaluation.split_scoring import REPORTED_SPLITS, first_given, score
    from tnctl.progress import waiting

    split = first_given(conf.data, REPORTED_SPLITS)
    if split is None:
        raise UserError(
            "there is nothing to evaluate on. Give data.test=FILES or data.validation=FILES"
        )
    inference = loaded(checkpoint, conf)
    with waiting(f"evaluating on data.{split}"):
        metrics = score(inference, conf, split).metrics()
    print_json({"checkpoint": checkpoint.folder, "split": split, **metrics})
    return 0
