"""What all wrappers of C need: checked pointers, codes as exceptions, aligned memory, threads."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tnctl._tables import ffi, lib

_INTEGERS = ("uint8", "uint16", "int32", "uint32", "int64", "uint64")
_CTYPES = {np.dtype(name): f"{name}_t[]" for name in _INTEGERS}
_CTYPES |= {np.dtype("float32"): "float[]", np.dtype("float64"): "double[]"}


class NotOwnedError(ValueError):
    """A key is of a shard that the table does not own; nothing was changed."""


class NotFiniteError(ArithmeticError):
    """A gradient is NaN, infinite or beyond 2^58; no weight was changed."""


def check(code: int) -> None:
    """Raise the Python exception for a code of the C library."""
    if code == lib.TN_OK:
        return
    message = ffi.string(lib.tn_message(code)).decode()
    if code == lib.TN_NO_MEMORY:
        raise MemoryError(message)
    if code == lib.TN_NOT_FINITE:
        raise NotFiniteError(message)
    if code == lib.TN_NOT_OWNED:
        raise NotOwnedError(message)
    raise ValueError(message)


def pointer(array: NDArray[Any], dtype: DTypeLike, write: bool = False) -> Any:
    """The array's own memory for C: never a copy, never another dtype.

    Raises TypeError for another dtype and ValueError for an array that is not contiguous, or is
    read-only and to be written.
    """
    if array.dtype != dtype:
        raise TypeError(f"expected an array of {np.dtype(dtype)}. Received: {array.dtype}")
    if not array.flags.c_contiguous:
        raise ValueError("expected a C-contiguous array; take numpy.ascontiguousarray of it")
    if write and not array.flags.writeable:
        raise ValueError("expected an array that can be written")
    return ffi.from_buffer(_CTYPES[array.dtype], array, require_writable=write)


def output(array: NDArray[Any]) -> Any:
    """The memory of an array that this package has just made, for C to write."""
    return pointer(array, array.dtype, True)


def items(buffer: Any, dtype: type[np.generic], count: int, write: bool = False) -> Any:
    """The memory of a bytes-like object or array that holds `count` items of a dtype, for C.

    Raises TypeError for an array of another dtype, and ValueError for another size, and for a
    buffer that is not contiguous, is read-only and to be written, or starts within an item.
    """
    if isinstance(buffer, np.ndarray):
        array: NDArray[Any] = buffer
    else:
        view = memoryview(buffer)
        array = np.frombuffer(view, dtype) if view.nbytes else np.empty(0, dtype)
    if array.size != count:
        raise ValueError(f"expected {count} items of {np.dtype(dtype)}. Received: {array.size}")
    if not array.flags.aligned:
        raise ValueError(
            f"expected items of {np.dtype(dtype)} at a multiple of their size in memory. "
            f"Received: a buffer at {array.ctypes.data % array.itemsize} bytes beyond one"
        )
    return pointer(array, dtype, write)


def array_over(address: Any, count: int, dtype: DTypeLike) -> NDArray[Any]:
    """A numpy view [count] of C memory, which the caller keeps alive."""
    return np.frombuffer(ffi.buffer(address, count * np.dtype(dtype).itemsize), dtype)


def aligned(shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """A zeroed array of a shape on a 64-byte boundary: TensorFlow uses such memory in place."""
    count = int(np.prod(shape))
    size = max(1, count * np.dtype(dtype).itemsize)
    memory = lib.tn_aligned_new(size)
    if memory == ffi.NULL:
        raise MemoryError(f"no memory for an array of {size:,} bytes")
    owned = ffi.gc(memory, lib.tn_aligned_free, size)
    return np.frombuffer(ffi.buffer(owned, size), dtype, count=count).reshape(shape)


class Pool:
    """`threads` threads (the caller's own among them) that tables run their calls on."""

    def __init__(self, threads: int) -> None:
        out = ffi.new("tn_thread_pool **")
        check(lib.tn_thread_pool_new(threads, out))
        self.threads = threads
        self.handle = ffi.gc(out[0], lib.tn_thread_pool_free)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Keep the threads spinning between the calls of a burst: waking one costs as much."""
        lib.tn_thread_pool_hold(self.handle, 1)
        try:
            yield
        finally:
            lib.tn_thread_pool_hold(self.handle, 0)
