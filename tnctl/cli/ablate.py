"""`tnctl ablate`."""

import dataclasses

from tnctl.api.opened_run import split_given
from tnctl.cli.checkpoint_choice import chosen
from tnctl.cli.printing import print_json

TAKES = ("conf", "checkpoint")
USAGE = "conf=NAME | output=URL | checkpoint=URL [data.validation=FILES] [key=value …]"


def run(given: list[str]) -> int:
    """Show what each input is worth, and print it as one JSON object."""
    opened, _ = chosen(given, TAKES)
    from tnctl.data import column_names, sources
    from tnctl.evaluation.importance import MEASURED_SPLITS

    conf = opened.conf
    split = split_given(conf.data, "score", MEASURED_SPLITS)
    sources.require(conf, [split], column_names.columns_read(conf))
    importance = opened.importance()
    from tnctl.training.report.terminal_tables import show_importance

    show_importance(importance)
    print_json({"checkpoint": opened.checkpoint, **dataclasses.asdict(importance)})
    return 0
