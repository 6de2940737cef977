"""Reading ahead: an iterator in a thread of its own, and a function on several threads."""

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")
R = TypeVar("R")

MOST_THREADS = 8


class _Shared(Generic[T]):
    """What both threads see.

    The reading thread holds this only, so that a forgotten `ReadAhead` is collected, and ends it.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.changed = threading.Condition()
        self.items: deque[T] = deque()
        self.stopped = False
        self.ended = False
        self.error: BaseException | None = None

    def put(self, item: T) -> bool:
        """Hand an item over when there is room; False when the consumer has gone."""
        with self.changed:
            self.changed.wait_for(lambda: self.stopped or len(self.items) < self.depth)
            self.items.append(item)
            self.changed.notify_all()
            return not self.stopped

    def run(self, source: Iterator[T]) -> None:
        """The reading thread."""
        try:
            for item in source:
                if not self.put(item):
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
        shared.items.clear()
        shared.changed.notify_all()
    # Ctrl-C may come before it was started.
    if thread.ident is not None and thread is not threading.current_thread():
        thread.join()
    shared.items.clear()


class ReadAhead(Generic[T]):
    """Runs an iterator in a background thread, at most `depth` finished items ahead.

    What the iterator raises is raised here, after the items before it. Close it, or use it in a
    with-statement: the thread ends with the item it is at, and the iterator is closed.
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
        """Wait, so long at most, for the next item or the end; whether it is there."""
        shared = self._shared
        start = time.perf_counter()
        with shared.changed:
            found = shared.changed.wait_for(
                lambda: shared.items or shared.ended or shared.stopped, seconds
            )
            self.seconds_waited += time.perf_counter() - start
        return bool(found)

    def __next__(self) -> T:
        self.ready()
        shared = self._shared
        with shared.changed:
            if shared.items:
                shared.changed.notify_all()
                return shared.items.popleft()
            error, shared.error = shared.error, None
        if error is not None:
            raise error
        raise StopIteration

    def close(self) -> None:
        """End the thread and drop what it has read. Idempotent."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def in_order(function: Callable[[T], R], items: Iterator[T]) -> Iterator[R]:
    """function(item) of each item, in their order, on as many threads as there are CPUs to use.

    At most one item per thread is begun ahead. What the iterator or the function raises is raised
    here, after the results before it. The iterator runs in the caller's thread.
    """
    threads = min(len(os.sched_getaffinity(0)), MOST_THREADS)
    pool = ThreadPoolExecutor(threads, "tnctl-input")
    begun: deque[Future[R]] = deque()
    try:
        for future in _futures(pool, function, items):
            begun.append(future)
            if len(begun) > threads:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _futures(
    pool: ThreadPoolExecutor, function: Callable[[T], R], items: Iterator[T]
) -> Iterator[Future[R]]:
    try:
        for item in items:
            yield pool.submit(function, item)
    except Exception as error:
        failed: Future[R] = Future()
        failed.set_exception(error)
        yield failed
