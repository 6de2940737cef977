"""`tnctl evaluate`."""

from tnctl.api.opened_run import Run, split_given
from tnctl.cli.checkpoint_choice import chosen, perform
from tnctl.cli.printing import print_json

TAKES = ("conf", "checkpoint")
USAGE = "conf=NAME | output=URL | checkpoint=URL [data.test=FILES] [key=value …]"


def run(given: list[str]) -> int:
    """Print the metrics of a checkpoint as one JSON object."""
    opened, taken = chosen(given, TAKES, takes_cluster=True)
    from tnctl.data import column_names, sources
    from tnctl.evaluation.split_scoring import columns_of

    conf = opened.conf
    columns = [*column_names.columns_read(conf), *columns_of(conf).values()]
    sources.require(conf, [split_given(conf.data, "evaluate on")], columns)
    return perform("evaluate", opened, taken)


def read(opened: Run, _: dict[str, str]) -> int:
    print_json(opened.evaluate())
    return 0
