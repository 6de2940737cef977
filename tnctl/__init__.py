"""tnctl trains large sparse click-through-rate models and ships them to an online service.

    run = tnctl.train(tnctl.compose("deepfm", ["train.epochs=2"]))
    run = tnctl.open("runs/first")
    run.predict(table)

docs/python.md describes it. Nothing is imported before it is used.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Where the names are that are imported when they are used; __init__.pyi has their types.
_MODULES = {
    "Conf": "schema",
    "Failure": "errors",
    "Run": "api.opened_run",
    "UserError": "errors",
    "check": "api.training",
    "compose": "api.calls",
    "first_conf": "api.starting",
    "fold": "api.artefacts",
    "ids": "api.opened_run",
    "import_tensornet": "api.starting",
    "open": "api.opening",
    "prepare": "api.training",
    "rollback": "api.training",
    "runs": "api.training",
    "score": "api.artefacts",
    "search": "api.search",
    "shipped_recipes": "api.starting",
    "sweep": "api.sweep",
    "train": "api.training",
    "verify_artefacts": "api.artefacts",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'tnctl' has no attribute {name!r}")
    value = getattr(import_module(f"tnctl.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
