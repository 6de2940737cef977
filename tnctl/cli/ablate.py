"""`tnctl ablate`."""

import dataclasses
from typing import TYPE_CHECKING

from tnctl.cli.checkpoint_choice import loaded, with_checkpoint
from tnctl.cli.printing import print_json
from tnctl.errors import UserError
from tnctl.schema import Conf

if TYPE_CHECKING:
    from tnctl.checkpoint.load import Checkpoint

TAKES = ("conf", "checkpoint")
USAGE = "conf=NAME | output=URL | checkpoint=URL [data.validation=FILES] [key=value …]"


def run(given: list[str]) -> int:
    """Show what each input is worth, and print it as one JSON object."""
    return with_checkpoint(given, TAKES, ablate)


def ablate(checkpoint: "Checkpoint", conf: Conf, _: dict[str, str]) -> int:
    from tnctl.evaluation.importance import MEASURED_SPLITS, permutation_importance
    from tnctl.evaluation.split_scoring import first_given
    from tnctl.progress import waiting
    from tnctl.training.terminal_tables import show_importance

    split = first_given(conf.data, MEASURED_SPLITS)
    if split is None:
        raise UserError("there is nothing to score. Give data.validation=FILES or data.test=FILES")
    inference = loaded(checkpoint, conf)
    with waiting(f"scoring data.{split} with each input shuffled"):
        importance = permutation_importance(inference, conf, split)
    show_importance(importance)
    print_json({"checkpoint": checkpoint.folder, **dataclasses.asdict(importance)})
    return 0
