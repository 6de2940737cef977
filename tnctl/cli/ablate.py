"""`tnctl ablate`."""

import dataclasses
from typing import TYPE_CHECKING

from tnctl.cli.checkpoint_choice import loaded, split_given, with_checkpoint
from tnctl.cli.printing import print_json
from tnctl.schema import Conf, Data

if TYPE_CHECKING:
    from tnctl.checkpoint.chain import Checkpoint

TAKES = ("conf", "checkpoint")
USAGE = "conf=NAME | output=URL | checkpoint=URL [data.validation=FILES] [key=value …]"


def run(given: list[str]) -> int:
    """Show what each input is worth, and print it as one JSON object."""
    return with_checkpoint(given, TAKES, ablate, check=check)


def split_of(data: Data) -> str:
    from tnctl.evaluation.importance import MEASURED_SPLITS

    return split_given(data, MEASURED_SPLITS, "score")


def check(_: "Checkpoint", conf: Conf, _taken: dict[str, str]) -> None:
    """Refuse data that is not there, or lacks a column. Raises UserError, Failure."""
    from tnctl.data import column_names, sources

    sources.require(conf, [split_of(conf.data)], column_names.columns_read(conf))


def ablate(checkpoint: "Checkpoint", conf: Conf, _: dict[str, str]) -> int:
    from tnctl.evaluation.importance import permutation_importance
    from tnctl.progress import waiting
    from tnctl.training.report.terminal_tables import show_importance

    split = split_of(conf.data)
    inference = loaded(checkpoint, conf)
    with waiting(f"scoring data.{split} with each input shuffled"):
        importance = permutation_importance(inference, conf, split)
    show_importance(importance)
    print_json({"checkpoint": checkpoint.folder, **dataclasses.asdict(importance)})
    return 0
