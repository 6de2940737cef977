"""`tnctl export-embeddings`."""

from typing import TYPE_CHECKING

from tnctl import files
from tnctl.cli.target import with_checkpoint
from tnctl.errors import UserError
from tnctl.schema import Conf

if TYPE_CHECKING:
    from tnctl.checkpoint.load import Checkpoint

TAKES = ("conf", "checkpoint", "to", "format")
USAGE = "conf=NAME | output=URL | checkpoint=URL [to=URL] [format=parquet]"


def run(given: list[str]) -> int:
    """Write the embeddings to `to`, by default output/embeddings."""
    return with_checkpoint(given, TAKES, export)


def export(checkpoint: "Checkpoint", conf: Conf, own: dict[str, str]) -> int:
    from tnctl.serving import export as exporting

    if own.get("format", "parquet") != "parquet":
        raise UserError(f"no format '{own['format']}'. Choose from: parquet.")
    exporting.export(checkpoint, conf, own.get("to") or files.join(conf.output, "embeddings"))
    return 0
