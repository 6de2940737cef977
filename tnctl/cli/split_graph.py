"""`tnctl split-graph`."""

from typing import get_args

from tnctl.cli import arguments
from tnctl.cli.checkpoint_choice import chosen
from tnctl.errors import refuse_if
from tnctl.model import quiet_tensorflow

TAKES = ("conf", "checkpoint", "to", "head", "frozen", "linear", "golden", "aot", "target_cpu")
USAGE = (
    "conf=NAME | output=URL | checkpoint=URL [to=URL] [head=NAME] [frozen=true] "
    "[linear=sum|inputs] [golden=N] [aot=[1,32]] [target_cpu=NAME]"
)


def run(given: list[str]) -> int:
    """Write the graph to `to`, by default output/graph."""
    opened, taken = chosen(given, TAKES, runs_recipe=False)
    from tnctl import outputs

    refuse_if(
        "target_cpu" in taken and "aot" not in taken,
        "target_cpu= says what aot= compiles for; give aot=[1,32] too",
    )
    to = taken.get("to") or opened.place_of("graph")
    outputs.check_folder(to)
    quiet_tensorflow()
    from tnctl.serving.graph import aot, splitting

    opened.split_graph(
        to,
        head=taken.get("head"),
        frozen=arguments.flag(taken, "frozen"),
        linear=arguments.choice(taken, "linear", get_args(splitting.Linear)),
        golden=arguments.count(taken, "golden", splitting.GOLDEN_ROWS),
        sizes=aot.sizes_of(taken["aot"]) if "aot" in taken else [],
        target_cpu=taken.get("target_cpu", aot.TARGET_CPU),
    )
    return 0
