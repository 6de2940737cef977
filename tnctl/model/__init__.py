"""The dense model: inputs, layers, recipes, and its weights in the memory of the C tables.

Inputs and layers are imported on first use, so that the layout is read without TensorFlow.
"""

import os
import sys
import tempfile
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tnctl.model.recipes import Tower

if TYPE_CHECKING:
    from tnctl.model import layers
    from tnctl.model.inputs import Inputs

__all__ = ["Inputs", "Tower", "layers", "quiet_tensorflow"]


def __getattr__(name: str) -> Any:
    if name == "Inputs":
        return import_module("tnctl.model.inputs").Inputs
    if name == "layers":
        return import_module("tnctl.model.layers")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def quiet_tensorflow() -> None:
    """Import TensorFlow; of what its C++ side says, only errors are shown."""
    if "tensorflow" in sys.modules:
        return
    chatty = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3") < "2"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("ABSL_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    if chatty:
        return
    # Made while stderr is held back, its console would think that there is no terminal.
    import_module("tnctl.progress")
    # Until its logging has started TensorFlow heeds no level, so what it writes while it is
    # imported is held back, and shown only when the import fails.
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            import_module("tnctl.model.layers")
        except BaseException:
            held.seek(0)
            os.write(terminal, held.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
