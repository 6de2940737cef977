"""`tnctl prepare`."""

from tnctl.cli import compose
from tnctl.errors import refuse_if
from tnctl.model import quiet_tensorflow

TAKES = ("conf", "to")
USAGE = "conf=NAME to=URL [key=value …]"


def run(given: list[str]) -> int:
    """Write the data of a conf as ids and numbers, for training that parses nothing."""
    conf, taken = compose.composed(given, TAKES)
    refuse_if("to" not in taken, "give to=URL, the folder to write to")
    from tnctl.data import column_names, sources

    sources.require(conf, ("train", "validation", "test"), column_names.columns_read(conf))
    if conf.data.format == "tfrecord":
        quiet_tensorflow()
    from tnctl.data import preparing

    preparing.prepare(conf, taken["to"])
    return 0
