"""Where the shipped conf/ and recipes/ are: inside the installed package, or beside it."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def folder(name: str) -> Path:
    """The folder `conf` or `recipes`: in a checkout it is beside the package."""
    inside = PACKAGE / name
    return inside if inside.is_dir() else PACKAGE.parent / name


def confs() -> list[str]:
    """The names that `conf=` takes."""
    return sorted(path.stem for path in folder("conf").glob("*.yaml"))


def recipes() -> list[str]:
    """The names that `recipe=` takes."""
    return sorted(p.stem for p in folder("recipes").glob("*.py") if p.stem != "__init__")
