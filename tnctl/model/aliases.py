"""Memory of the C tables that TensorFlow uses in place, through DLPack.

The one place that makes aliases and that assigns trainable variables: any other assignment would
give a variable other memory, and the C optimizer would update memory that nothing reads.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray


def tensor_over(array: NDArray[Any]) -> tf.Tensor:
    """A TensorFlow tensor over the memory of an array, which must start on a 64-byte boundary."""
    if array.ctypes.data % 64:
        raise ValueError("TensorFlow aborts on memory that does not start on 64 bytes")
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def address(tensor: Any) -> int:
    """The address of the memory of an eager tensor."""
    return int(np.frombuffer(memoryview(tensor), np.uint8).ctypes.data)


def move_variables(variables: Sequence[Any], memory: Sequence[NDArray[np.float32]]) -> None:
    """Copy each variable's value into its memory, and make the variable an alias of the memory."""
    for variable, flat in zip(variables, memory, strict=True):
        view = flat.reshape(tuple(variable.shape))
        view[...] = variable.numpy()
        variable.assign(tensor_over(view))
    check_variables(variables, memory)


def check_variables(variables: Sequence[Any], memory: Sequence[NDArray[np.float32]]) -> None:
    """Raise RuntimeError unless every variable is still an alias of its memory."""
    for variable, flat in zip(variables, memory, strict=True):
        if address(variable.read_value()) != flat.ctypes.data:
            raise RuntimeError(
                f"variable {variable.name} left the memory of the dense table: something assigned "
                "it, and training would no longer reach it"
            )
