"""`tnctl train`."""

from tnctl.cli import arguments, compose, sweep
from tnctl.cli.quiet import quiet_tensorflow
from tnctl.errors import UserError
from tnctl.schema import Conf

TAKES = ("conf", "overwrite", "golden")
USAGE = "conf=NAME [output=URL] [key=value …] [-m key=value,value …]"


def run(given: list[str]) -> int:
    """Train a conf; exit code 0 when it is trained, now or before."""
    own, overrides = arguments.part(given, TAKES)
    if "conf" not in own:
        raise UserError(f"give conf=NAME. {compose.choose_conf('')}")
    overwrite, golden = arguments.flag(own, "overwrite"), arguments.count(own, "golden", 200)
    path = compose.conf_file(own["conf"])
    if arguments.options(overrides)[0].sweep:
        return sweep.train(path, overrides, overwrite, golden)
    return compose.with_conf(path, overrides, lambda conf: train(conf, overwrite, golden))


def train(conf: Conf, overwrite: bool, golden: int) -> int:
    quiet_tensorflow()
    from tnctl.training import loop, show

    show.report(conf.output, loop.train(conf, overwrite=overwrite, golden=golden))
    return 0
