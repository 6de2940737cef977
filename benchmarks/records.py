"""Rows to bytes and back: GB/s of encode and decode, and of whole files beside a plain copy.

The table is that of benchmarks.table: 10 million rows of 64 bytes, whose records have 60. They were
inserted in random order, so encoding meets them in random order too. Files are read with a cold
cache and count only once fsync has returned; the hash runs on a thread of its own, as in a
checkpoint. Rates are medians of turns, for a disk's speed drifts more than anything else here.
"""

import argparse
import hashlib
import os
import queue
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import timing
from benchmarks.table import fill, new_table, resident
from benchmarks.workload import KEYS, SLOTS
from tnctl.tables import SparseTable

AT_A_TIME = 1 << 16
THREADS = 2


def bytes_of(table: SparseTable) -> Iterator[NDArray[np.uint8]]:
    for records in table.records(at_a_time=AT_A_TIME):
        yield records.view("u1")


def load(pieces: Iterable[Any], rows: int) -> SparseTable:
    table = new_table(THREADS)
    table.reserve(rows)
    for piece in pieces:
        table.insert_records(piece)
    return table


def handed_over(pieces: Iterable[Any], use: Callable[[Any], object]) -> None:
    """Use each piece on a second thread, while the next is made on this one."""
    waiting: queue.Queue[Any] = queue.Queue(2)

    def work() -> None:
        while (piece := waiting.get()) is not None:
            use(piece)

    thread = threading.Thread(target=work)
    thread.start()
    for piece in pieces:
        waiting.put(piece)
    waiting.put(None)
    thread.join()


# ---- Files -----------------------------------------------------------------


def make_cold(path: Path) -> None:
    """Write a file back and drop it from the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def synced(path: Path, fill_file: Callable[[Any], object]) -> None:
    with path.open("wb") as file:
        fill_file(file)
        file.flush()
        os.fsync(file.fileno())


def pieces_of(path: Path, size: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(AT_A_TIME * size):
            yield piece


def copy(source: Path, target: Path) -> None:
    with source.open("rb") as file:
        synced(target, lambda out: shutil.copyfileobj(file, out, 1 << 20))


def save(table: SparseTable, target: Path) -> None:
    """Encode on this thread; hash and write on another."""
    hashed = hashlib.sha256()

    def write(file: Any) -> None:
        def use(piece: NDArray[np.uint8]) -> None:
            hashed.update(piece.data)
            file.write(piece.data)

        handed_over(bytes_of(table), use)

    synced(target, write)


def load_file(source: Path, rows: int, size: int) -> None:
    """Read and hash on this thread; insert on another."""
    hashed, table = hashlib.sha256(), new_table(THREADS)
    table.reserve(rows)

    def read() -> Iterator[bytes]:
        for piece in pieces_of(source, size):
            hashed.update(piece)
            yield piece

    handed_over(read(), table.insert_records)
    if table.rows != rows:
        raise AssertionError(f"{table.rows:,} rows of {rows:,}")


# ---- Measuring -------------------------------------------------------------


def seconds_of(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure_memory(table: SparseTable, rounds: int) -> list[list[str]]:
    records = np.concatenate(list(bytes_of(table)))
    size = len(records) // table.rows
    pieces = [records[i : i + AT_A_TIME * size] for i in range(0, len(records), AT_A_TIME * size)]
    target = np.zeros_like(records)
    runs: dict[str, Callable[[], object]] = {
        "memcpy": lambda: np.copyto(target, records),
        "SHA-256": lambda: hashlib.sha256(records.data),
        "encode": lambda: sum(len(piece) for piece in bytes_of(table)),
        "encode a delta of no rows": lambda: list(table.records(changed_from=2**32 - 1)),
        "decode": lambda: load(pieces, table.rows),
    }
    lines = [["in memory", "GB/s", "ns/row"]]
    for name, run in runs.items():
        seconds = statistics.median(seconds_of(run) for _ in range(rounds))
        rate = f"{len(records) / seconds / 1e9:.2f}"
        lines.append([name, rate, f"{seconds / table.rows * 1e9:.1f}"])
    return lines


def measure_files(table: SparseTable, folder: Path, rounds: int) -> list[list[str]]:
    size = table.record_dtype.itemsize
    source, target = folder / "source", folder / "target"
    save(table, source)
    runs: dict[str, Callable[[], object]] = {
        "plain copy": lambda: copy(source, target),
        "save": lambda: save(table, target),
        "load": lambda: load_file(source, table.rows, size),
    }
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            target.unlink(missing_ok=True)
            make_cold(source)
            taken[name].append(seconds_of(run))
    lines = [["files", "GB/s", "of the copy", "95 % interval"]]
    for name, times in taken.items():
        pairs = zip(taken["plain copy"], times, strict=True)
        ratio = timing.interval_of_median([plain / tnctl_rate for plain, tnctl_rate in pairs])
        rate = f"{size * table.rows / statistics.median(times) / 1e9:.2f}"
        between = f"{ratio.low:.0%} - {ratio.high:.0%}" if name != "plain copy" else ""
        lines.append([name, rate, f"{ratio.median:.0%}", between])
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure records of the sparse table.")
    parser.add_argument("--rows", type=int, default=KEYS, help="rows of the table")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each")
    parser.add_argument("--folder", help="where files are written (default: a temporary folder)")
    given = parser.parse_args()
    table = new_table(THREADS)
    fill(table, np.full(SLOTS, given.rows // SLOTS))
    print(timing.machine())
    print(f"{table.rows:,} rows; resident {resident() / 1e9:.2f} GB")
    print(timing.table(measure_memory(table, given.rounds)))
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        print(timing.table(measure_files(table, Path(folder), given.rounds)))


if __name__ == "__main__":
    main()
