"""The dense model: inputs, layers, recipes, and its weights in the memory of the C tables."""

from tnctl.model import layers
from tnctl.model.inputs import Inputs

__all__ = ["Inputs", "layers"]
