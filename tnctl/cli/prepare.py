"""`tnctl prepare`."""

from tnctl.cli import arguments, compose
from tnctl.cli.quiet import quiet_tensorflow
from tnctl.errors import UserError
from tnctl.schema import Conf

TAKES = ("conf", "to")
USAGE = "conf=NAME to=URL [key=value …]"


def run(given: list[str]) -> int:
    """Write the data of a conf as ids and numbers, for training that parses nothing."""
    own, overrides = arguments.part(given, TAKES)
    if "conf" not in own:
        raise UserError(f"give conf=NAME. {compose.choose_conf('')}")
    if "to" not in own:
        raise UserError("give to=URL, the folder to write to")
    path = compose.conf_file(own["conf"])
    return compose.with_conf(path, overrides, lambda conf: prepare(conf, own["to"]))


def prepare(conf: Conf, to: str) -> int:
    if conf.data.format == "tfrecord":
        quiet_tensorflow()
    from tnctl.data import preparing

    preparing.prepare(conf, to)
    return 0
