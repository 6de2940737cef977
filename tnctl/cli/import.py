# ruff: noqa: N999 (a command's module has its name)
"""`tnctl import`."""

from tnctl.cli import compose
from tnctl.errors import refuse_if
from tnctl.model import quiet_tensorflow

TAKES = ("tensornet", "conf", "tables", "dense")
USAGE = (
    "tensornet=URL conf=NAME [tables=NAME:GROUP.SEGMENT,…] [dense=NAME,…] [output=URL] "
    "[key=value …]"
)


def run(given: list[str]) -> int:
    """Write TensorNet's weights as the first checkpoint of a run, which train goes on from."""
    conf, taken = compose.composed(given, TAKES)
    refuse_if("tensornet" not in taken, "give tensornet=URL, the folder of TensorNet's weights")
    quiet_tensorflow()
    from tnctl.tensornet.importing import import_tables

    import_tables(conf, taken["tensornet"], taken.get("tables"), taken.get("dense"))
    return 0
