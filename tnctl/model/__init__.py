"""The dense model: inputs, layers, recipes, and its weights in the memory of the C tables.

Inputs and layers are imported on first use, so that the layout is read without TensorFlow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tnctl.model.recipe_settings import Tower

if TYPE_CHECKING:
    from tnctl.model import layers
    from tnctl.model.inputs import Inputs

__all__ = ["Inputs", "Tower", "layers"]


def __getattr__(name: str) -> Any:
    if name == "Inputs":
        return import_module("tnctl.model.inputs").Inputs
    if name == "layers":
        return import_module("tnctl.model.layers")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
