"""`tnctl predict`."""

from typing import TYPE_CHECKING

from tnctl import files
from tnctl.cli import arguments, compose
from tnctl.cli.target import loaded, with_checkpoint
from tnctl.errors import UserError, did_you_mean
from tnctl.schema import Conf

if TYPE_CHECKING:
    from tnctl.checkpoint.load import Checkpoint

TAKES = ("conf", "checkpoint", "to", "format", "overwrite")
USAGE = (
    "conf=NAME | output=URL | checkpoint=URL data.test=FILES [data.carry=[COLUMN,…]] "
    "[to=URL] [format=parquet|csv|jsonl] [overwrite=true]"
)
FORMATS = ("parquet", "csv", "jsonl")


def run(given: list[str]) -> int:
    """Write the scores of data.test to `to`, by default output/predictions.<format>."""
    return with_checkpoint(given, TAKES, predict)


def predict(checkpoint: "Checkpoint", conf: Conf, own: dict[str, str]) -> int:
    kind = own.get("format") or format_of(own.get("to", ""))
    if kind not in FORMATS:
        raise UserError(f"no format '{kind}'. {did_you_mean(kind, FORMATS)}")
    if conf.data.test is None:
        raise UserError("there is nothing to score. Give data.test=FILES")
    from tnctl import ownership
    from tnctl.progress import say
    from tnctl.training import predicting
    from tnctl.training.run import PREDICTIONS, PREDICTIONS_LIST

    replace, claims = arguments.flag(own, "overwrite"), None
    if (to := own.get("to")) is None:
        to = files.join(conf.output, f"{PREDICTIONS}.{kind}")
        # Predictions that tnctl wrote there are replaced without overwrite=true.
        claims = ownership.Claims(conf.output, ownership.RUN, [PREDICTIONS_LIST])
    inference = loaded(checkpoint, conf)
    reads = [one.folder for one in checkpoint.chain()]
    if "conf" in own:
        reads.append(str(compose.conf_file(own["conf"])))
    reads += [slot.vocabulary_file for slot in conf.slots.values() if slot.vocabulary_file]
    if (recipe := str(conf.recipe["name"])).endswith(".py"):
        reads.append(recipe)
    rows = predicting.predict(inference, conf, "test", to, kind, reads, replace, claims)
    say(f"{rows:,} predictions of step {checkpoint.step} written to {to}")
    return 0


def format_of(to: str) -> str:
    """The format that a file's name says, else Parquet."""
    return next((kind for kind in FORMATS if to.endswith(f".{kind}")), "parquet")
