"""`tnctl split-graph`."""

from typing import TYPE_CHECKING, get_args

from tnctl import files
from tnctl.cli import arguments
from tnctl.cli.checkpoint_choice import with_checkpoint
from tnctl.errors import refuse_if
from tnctl.schema import Conf

if TYPE_CHECKING:
    from tnctl.checkpoint.chain import Checkpoint

TAKES = ("conf", "checkpoint", "to", "head", "frozen", "linear", "golden", "aot", "target_cpu")
USAGE = (
    "conf=NAME | output=URL | checkpoint=URL [to=URL] [head=NAME] [frozen=true] "
    "[linear=sum|inputs] [golden=N] [aot=[1,32]] [target_cpu=NAME]"
)


def run(given: list[str]) -> int:
    """Write the graph to `to`, by default output/graph."""
    return with_checkpoint(
        given,
        TAKES,
        split,
        runs_recipe=False,
        check=lambda _checkpoint, conf, taken: check(conf.output, taken),
    )


def place_of(output: str, taken: dict[str, str]) -> str:
    return taken.get("to") or files.join(output, "graph")


def check(output: str, taken: dict[str, str]) -> None:
    """Refuse arguments that do not go together, and a place with a file. Raises UserError."""
    from tnctl import outputs

    refuse_if(
        "target_cpu" in taken and "aot" not in taken,
        "target_cpu= says what aot= compiles for; give aot=[1,32] too",
    )
    outputs.check_folder(place_of(output, taken))


def split(checkpoint: "Checkpoint", conf: Conf, taken: dict[str, str]) -> int:
    from tnctl.model.graph import BY_SLOT, PACKED
    from tnctl.progress import say, waiting
    from tnctl.serving.graph import aot, splitting

    frozen = arguments.flag(taken, "frozen")
    golden = arguments.count(taken, "golden", splitting.GOLDEN_ROWS)
    sizes = aot.sizes_of(taken["aot"]) if "aot" in taken else []
    to = place_of(conf.output, taken)
    with waiting("splitting the graph"):
        described = splitting.split(
            checkpoint,
            conf,
            to,
            head=taken.get("head"),
            frozen=frozen,
            linear=arguments.choice(taken, "linear", get_args(splitting.Linear)),
            golden=golden,
            sizes=sizes,
            target_cpu=taken.get("target_cpu", aot.TARGET_CPU),
        )
    for name in (BY_SLOT, PACKED):
        say(f"signature {name}: {len(described.signatures.of(name))} inputs")
    say(f"graph of {checkpoint.step_in_words} written to {to}")
    return 0
