# ruff: noqa: N999 (a command's module has its name)
"""`tnctl import`."""

from tnctl.cli import compose
from tnctl.errors import refuse_if

TAKES = ("tensornet", "conf", "tables", "dense")
USAGE = (
    "tensornet=URL conf=NAME [tables=NAME:GROUP.SEGMENT,…] [dense=NAME,…] [output=URL] "
    "[key=value …]"
)


def run(given: list[str]) -> int:
    """Write TensorNet's weights as the first checkpoint of a run, which train goes on from."""
    conf, taken = compose.composed(given, TAKES)
    refuse_if("tensornet" not in taken, "give tensornet=URL, the folder of TensorNet's weights")
    from tnctl.api.starting import import_tensornet

    import_tensornet(conf, taken["tensornet"], dense=taken.get("dense"), tables=taken.get("tables"))
    return 0
