"""`tnctl predict`."""

from typing import TYPE_CHECKING

from tnctl import files
from tnctl.cli.target import loaded, with_checkpoint
from tnctl.errors import UserError, did_you_mean
from tnctl.schema import Conf

if TYPE_CHECKING:
    from tnctl.checkpoint.load import Checkpoint

TAKES = ("conf", "checkpoint", "to", "format")
USAGE = (
    "conf=NAME | output=URL | checkpoint=URL data.test=FILES [data.carry=[COLUMN,…]] "
    "[to=URL] [format=parquet|csv|jsonl]"
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
    from tnctl.data import sources
    from tnctl.progress import say
    from tnctl.serving.embeddings import place
    from tnctl.training import predicting
    from tnctl.training.run import PREDICTIONS

    to = own.get("to") or files.join(conf.output, f"{PREDICTIONS}.{kind}")
    if any(place(one) == place(to) for one in sources.files_of(conf, "test")):
        raise UserError(f"to={to} is a file of data.test, which would be lost. Name another")
    inference = loaded(checkpoint, conf)
    rows = predicting.predict(inference, conf, "test", to, kind)
    say(f"{rows:,} predictions of step {checkpoint.step} written to {to}")
    return 0


def format_of(to: str) -> str:
    """The format that a file's name says, else Parquet."""
    return next((kind for kind in FORMATS if to.endswith(f".{kind}")), "parquet")
