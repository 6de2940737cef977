"""Reading ahead: an iterator in a background thread, and a function on several threads."""

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Self, TypeVar

T = TypeVar("T")
R = TypeVar("R")

MOST_THREADS = 8


class _Shared(Generic[T]):
    """What both threads use.

    The reading thread refers to this only, so a `ReadAhead` that is no longer used is collected,
    which ends the thread. No executor: the collector may run while a thread is inside of one, whose
    lock a second call from the finalizer would wait for without end.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.changed = threading.Condition()
        self.values: deque[T] = deque()
        self.stopped = False
        self.ended = False
        self.error: BaseException | None = None

    def run(self, source: Iterator[T]) -> None:
        """The reading thread."""
        try:
            for value in source:
                with self.changed:
                    self.changed.wait_for(lambda: self.stopped or len(self.values) < self.depth)
                    self.values.append(value)
                    self.changed.notify_all()
                    if self.stopped:
                        break
        except BaseException as error:
            # It belongs to the consumer, which raises it.
            self.error = error
        finally:
            if hasattr(source, "close"):
                source.close()
            with self.changed:
                self.ended = True
                self.changed.notify_all()


def _stop(shared: _Shared[T], thread: threading.Thread) -> None:
    with shared.changed:
        shared.stopped = True
        shared.values.clear()
        shared.changed.notify_all()
    # Ctrl-C may come before it was started.
    if thread.ident is not None and thread is not threading.current_thread():
        thread.join()
    shared.values.clear()


class ReadAhead(Generic[T]):
    """Runs an iterator in a background thread, at most `depth` finished values ahead.

    What the iterator raises is raised here, after the values before it. Close it, or use it in a
    with-statement: the thread ends with the value it is at, and the iterator is closed.
    """

    def __init__(self, source: Iterator[T], depth: int = 1) -> None:
        self.seconds_waited = 0.0
        self._shared: _Shared[T] = _Shared(depth)
        thread = threading.Thread(
            target=self._shared.run, args=(source,), name="tnctl-read-ahead", daemon=True
        )
        # Also runs when the interpreter exits, while threads may still end in good order.
        self._finalizer = weakref.finalize(self, _stop, self._shared, thread)
        thread.start()

    def __iter__(self) -> Self:
        return self

    def ready(self, seconds: float | None = None) -> bool:
        """Wait, so long at most, for the next value or the end; whether it is there."""
        shared = self._shared
        start = time.perf_counter()
        with shared.changed:
            is_ready = shared.changed.wait_for(
                lambda: shared.values or shared.ended or shared.stopped, seconds
            )
            self.seconds_waited += time.perf_counter() - start
        return bool(is_ready)

    def __next__(self) -> T:
        self.ready()
        shared = self._shared
        with shared.changed:
            if shared.values:
                shared.changed.notify_all()
                return shared.values.popleft()
            error, shared.error = shared.error, None
        if error is not None:
            raise error
        raise StopIteration

    def close(self) -> None:
        """End the thread and drop what it has read. Idempotent."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def in_order(function: Callable[[T], R], values: Iterator[T]) -> Generator[R, None, None]:
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
