"""Hostile files: how long reading them takes, and how much memory at its peak, each alone.

Every case is read in a process of its own, from files or rows that are made for it, and ends with
an error of one line or with all rows read. The memory is that beyond the process before the read.
"""

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tnctl.data.features import Features
from tnctl.data.statistics import Statistics
from tnctl.data.windows import windows
from tnctl.errors import UserError
from tnctl.schema import Conf, Data, Label, Slot

MB, MIB = 1_000_000, 1 << 20
PATIENCE = 120  # seconds until a case is given up
SIZES = (50, 200, 1000)  # MB of one line or record
FIRST = {  # what each format's file has before and after its rows
    "csv": (b"a,y\n", b",0\n"),
    "jsonl": (b'{"y": 0, "a": "', b'"}\n'),
    "libsvm": (b"0 ", b"\n"),
    "paddle": (b"y:0 a:", b"\n"),
}


def long_line(path: Path, kind: str, size: int) -> None:
    before, after = FIRST[kind]
    with open(path, "wb") as file:
        file.write(before)
        for _ in range(size):
            file.write(b"x" * MB)
        file.write(after)


def long_record(path: Path, _: str, size: int) -> None:
    from tnctl.tables.checksums import crc32c

    def masked(crc: int) -> bytes:
        return (((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32).to_bytes(4, "little")

    length, crc = (size * MB).to_bytes(8, "little"), 0
    with open(path, "wb") as file:
        file.write(length + masked(crc32c(length)))
        for _ in range(size):
            file.write(bytes(MB))
            crc = crc32c(bytes(MB), crc)
        file.write(masked(crc))


def bomb(path: Path, kind: str, size: int, row: bytes = b"\0") -> None:
    """`size` MB of one row again and again, gzip's members of 100 MB one after the other."""
    before = {"csv": b"a,y\n"}.get(kind, b"")
    member = gzip.compress(row * (100 * MB // len(row)), 6)
    path.write_bytes(gzip.compress(before) + member * (size // 100))


def bomb_of_lines(path: Path, kind: str, size: int) -> None:
    bomb(path, kind, size, {"csv": b"x,0\n", "jsonl": b'{"y": 0}\n', "libsvm": b"0 1\n"}[kind])


def many_ids(path: Path, kind: str, size: int) -> None:
    ids = np.arange(size) + 10**7
    if kind == "parquet":
        pq.write_table(pa.table({"a": [ids], "y": [0]}), path)
    elif kind == "tfrecord":
        import tensorflow as tf

        features = {
            "a": tf.train.Feature(int64_list=tf.train.Int64List(value=ids.tolist())),
            "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[0])),
        }
        with tf.io.TFRecordWriter(str(path)) as writer:
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
    else:
        before, after = FIRST[kind]
        text = {"csv": "|", "jsonl": ",", "libsvm": " ", "paddle": " a:"}[kind].join(
            map(str, ids.tolist())
        )
        if kind == "jsonl":
            before, after = before[:-1] + b"[", b"]}\n"
        path.write_bytes(before + text.encode() + after)


Case = tuple[str, Callable[[Path, str, int], None], int, str]
CASES: dict[str, Case] = {
    **{
        f"{kind}, a line of {size} MB": (kind, long_line, size, "")
        for kind in FIRST
        for size in SIZES
    },
    **{f"tfrecord, a record of {size} MB": ("tfrecord", long_record, size, "") for size in SIZES},
    **{f"{kind}.gz, 10 GB of zeros": (kind, bomb, 10_000, ".gz") for kind in FIRST},
    **{
        f"{kind}.gz, 10 GB of one line": (kind, bomb_of_lines, 10_000, ".gz")
        for kind in ("csv", "jsonl", "libsvm")
    },
    **{
        f"{kind}, a row of {size:,} ids": (kind, many_ids, size, "")
        for kind in (*FIRST, "parquet", "tfrecord")
        for size in (250_000, 1_000_000)
    },
}


def conf_of(url: Path, kind: str) -> Conf:
    column = {"libsvm": "features"}.get(kind, "a")
    return Conf(
        recipe={"name": "lr"},
        slots={"a": Slot(column=column, separator="|" if kind == "csv" else None)},
        data=Data(
            train=str(url),
            format=kind,
            label=Label(column={"libsvm": "label"}.get(kind, "y")),
            window=1024,
        ),
    )


def read(url: Path, kind: str) -> str:
    """Read all rows of a file; what came of it."""
    conf = conf_of(url, kind)
    features = Features(conf, [(["a"], [1])], Statistics())
    try:
        return f"{sum(window.rows for window in windows(conf, features, 'train')):,} rows"
    except UserError as error:
        return str(error)


def measured(url: Path, kind: str) -> dict[str, object]:
    if kind == "tfrecord":
        many_ids(url.with_suffix(".small"), kind, 1)
        read(url.with_suffix(".small"), kind)
    before, start = peak(), time.perf_counter()
    outcome = read(url, kind)
    return {
        "seconds": time.perf_counter() - start,
        "MiB": peak() - before,
        "outcome": outcome.replace(str(url.parent) + "/", ""),
    }


def peak() -> float:
    """The most memory that this process has had, in MiB."""
    # Not ru_maxrss, which a process inherits from the one that starts it.
    [line] = [line for line in Path("/proc/self/status").open() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="the cases whose names have this in them")
    parser.add_argument("--read", nargs=2, metavar=("FILE", "FORMAT"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read:
        print(json.dumps(measured(Path(given.read[0]), given.read[1])))
        return
    print(f"{'':34} {'seconds':>8} {'MiB':>7}  outcome")
    for name, (kind, write, size, suffix) in CASES.items():
        if given.only not in name:
            continue
        with tempfile.TemporaryDirectory(prefix="tnctl-bounds-") as folder:
            path = Path(folder) / f"a.{kind}{suffix}"
            write(path, kind, size)
            command = [sys.executable, "-m", "benchmarks.bounds", "--read", str(path), kind]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                print(f"{name:34} {'over':>4} {PATIENCE}", flush=True)
                continue
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [""])[-1]
            print(f"{name:34} failed ({done.returncode}): {last}", flush=True)
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{name:34} {found['seconds']:8.2f} {found['MiB']:7.0f}  {found['outcome'][:150]}",
            flush=True,
        )


if __name__ == "__main__":
    main()
