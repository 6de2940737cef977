"""Reading ahead: an iterator in a background thread, and a function on several threads."""

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")
R = TypeVar("R")

MOST_THREADS = 8
THREAD_NAME = "tnctl-read-ahead"
END: Any = object()


def _stop(pool: ThreadPoolExecutor, begun: deque[Future[Any]], source: Iterator[Any]) -> None:
    for future in begun:
        future.cancel()
    begun.clear()
    if hasattr(source, "close"):
        try:
            pool.submit(source.close)
        except RuntimeError:  # the interpreter exits, and has ended the thread
            source.close()
    # The garbage collector may run this in the reading thread.
    pool.shutdown(wait=not threading.current_thread().name.startswith(THREAD_NAME))


class ReadAhead(AbstractContextManager["ReadAhead[T]"], Generic[T]):
    """Runs an iterator in a background thread, at most `depth` finished values ahead.

    What the iterator raises is raised here, after the values before it. Close it, or use it in a
    with-statement: the thread ends with the value it is at, and the iterator is closed. A
    `ReadAhead` that is no longer used is collected, and then closed.
    """

    def __init__(self, source: Iterator[T], depth: int = 1) -> None:
        self.seconds_waited = 0.0
        self._source = source
        self._pool = ThreadPoolExecutor(1, THREAD_NAME)
        # `depth` finished values, and the one that the thread is at.
        self._begun = deque(self._pool.submit(next, source, END) for _ in range(depth + 1))
        # Also runs when the interpreter exits.
        self._finalizer = weakref.finalize(self, _stop, self._pool, self._begun, source)

    def __iter__(self) -> Self:
        return self

    def ready(self, seconds: float | None = None) -> bool:
        """Wait, so long at most, for the next value or the end; whether it is there."""
        start = time.perf_counter()
        done, _ = wait([self._begun[0]] if self._begun else [], seconds)
        self.seconds_waited += time.perf_counter() - start
        return bool(done) or not self._begun

    def __next__(self) -> T:
        if not self._finalizer.alive:
            raise StopIteration
        self.ready()
        future = self._begun.popleft()
        self._begun.append(self._pool.submit(next, self._source, END))
        value: T = future.result()
        if value is END:
            raise StopIteration
        return value

    def close(self) -> None:
        """End the thread and drop what it has read. Idempotent."""
        self._finalizer()

    def __exit__(self, *exception: object) -> None:
        self.close()


def in_order(function: Callable[[T], R], values: Iterator[T]) -> Iterator[R]:
    """function(value) of each value, in their order, on as many threads as there are CPUs to use.

    At most one value per thread is begun ahead. What the iterator or the function raises is raised
    here, after the results before it. The iterator runs in the caller's thread.
    """
    threads = min(len(os.sched_getaffinity(0)), MOST_THREADS)
    pool = ThreadPoolExecutor(threads, "tnctl-input")
    begun: deque[Future[R]] = deque()
    try:
        for future in _futures(pool, function, values):
            begun.append(future)
            if len(begun) > threads:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _futures(
    pool: ThreadPoolExecutor, function: Callable[[T], R], values: Iterator[T]
) -> Iterator[Future[R]]:
    try:
        for value in values:
            yield pool.submit(function, value)
    except Exception as error:
        failed: Future[R] = Future()
        failed.set_exception(error)
        yield failed
