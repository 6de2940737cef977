"""Files to windows of ids, numbers and labels."""

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Uint32s = NDArray[np.uint32]
Uint64s = NDArray[np.uint64]
Float32s = NDArray[np.float32]
Float64s = NDArray[np.float64]
