"""Hostile files: how long reading them takes, and how much memory at its peak, each alone.

Every case is read in a process of its own, from files or rows that are made for it, and ends with
an error of one line or with all rows read. The memory is that beyond the process before the read.
"""

import argparse
import gzip
import io
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

from tnctl import limits
from tnctl.data.features import Features
from tnctl.data.sources import Source
from tnctl.data.statistics_document import Statistics
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
    path.write_bytes(framed(bytes(size * MB)))


def bomb(path: Path, kind: str, size: int) -> None:
    """`size` MB of zeros, gzip's members of 100 MB one after the other."""
    header = {"csv": b"a,y\n"}.get(kind, b"")
    member = gzip.compress(bytes(100 * MB), 6)
    path.write_bytes(gzip.compress(header) + member * (size // 100))


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


LINE = limits.LINE_BYTES
# What is within the limits, or found out late to be beyond them: format, then the bytes.
WORST: dict[str, tuple[str, Callable[[], bytes]]] = {
    "csv, a line of separators": ("csv", lambda: b"a,y\n" + b"|" * (LINE - 2) + b",0\n"),
    "csv, a line of quotes": ("csv", lambda: b'a,y\n"' + b'""' * (LINE // 2 - 4) + b'",0\n'),
    "csv, a header of names": ("csv", lambda: b"ab," * (LINE // 3) + b"\n"),
    "csv, lines of 3 bytes": ("csv", lambda: b"a,y\n" + b"a,0\n" * (16 << 20)),
    "csv, line feeds": ("csv", lambda: b"a,y\nx,0\n" + b"\n" * (64 << 20)),
    "csv, hard numbers": ("csv", lambda: b"a,y\n" + b"a,0x0\n" * (1 << 16)),
    "jsonl, a line of lists": ("jsonl", lambda: json_line(b"[]")),
    "jsonl, a line of objects": ("jsonl", lambda: json_line(b"{}")),
    "jsonl, a line of numbers": ("jsonl", lambda: json_line(b"12345")),
    "jsonl, a line of keys": (
        "jsonl",
        lambda: b"{" + b",".join(b'"%07d":1' % k for k in range(LINE // 13)) + b"}\n",
    ),
    "jsonl, lines of 11 bytes": ("jsonl", lambda: b'{"y": 0.1}\n' * (4 << 20)),
    "jsonl, texts beside lists": (
        "jsonl",
        lambda: b'{"a":1,"y":0}\n{"a":[1],"y":0}\n{"a":"x","y":0}\n' * (1 << 20),
    ),
    "libsvm, a line of words": ("libsvm", lambda: b"1 " * (LINE // 2)),
    "libsvm, lines at the limit": (
        "libsvm",
        lambda: (b"0" + b" 1" * limits.ROW_VALUES + b"\n") * 40,
    ),
    "libsvm, words of one byte": ("libsvm", lambda: b"0 1\n" * (16 << 20)),
    "libffm, words of five bytes": ("libsvm", lambda: b"0 1:2:3 1:2:3\n" * (4 << 20)),
    "paddle, words": ("paddle", lambda: b"y:0 a:1 a:2\n" * (4 << 20)),
    "tfrecord, a record of values": ("tfrecord", lambda: packed(LINE - 64)),
    "tfrecord, records of values": ("tfrecord", lambda: packed(limits.ROW_VALUES) * 200),
    "tfrecord, empty records": ("tfrecord", lambda: framed(b"") * (1 << 20)),
    "parquet, a row of 2^28 zeros": ("parquet", lambda: zeros(limits.GROUP_VALUES - 2**10, 1)),
    "parquet, 2^28 zeros in rows": ("parquet", lambda: zeros(2**16, 2**12 - 1)),
}


def json_line(value: bytes) -> bytes:
    return b'{"y":0,"a":[' + (value + b",") * (LINE // (len(value) + 1) - 8) + value + b"]}\n"


def framed(payload: bytes) -> bytes:
    from tnctl.tables.text import crc32c

    def masked(data: bytes) -> bytes:
        crc = crc32c(data)
        return (((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32).to_bytes(4, "little")

    length = len(payload).to_bytes(8, "little")
    return length + masked(length) + payload + masked(payload)


def packed(values: int) -> bytes:
    """A record of an Example whose feature a has so many integers of one byte each."""

    def field(number: int, data: bytes) -> bytes:
        size, length = len(data), bytearray()
        while size >= 128:
            length.append(size & 127 | 128)
            size >>= 7
        return bytes([number << 3 | 2]) + bytes(length) + bytes([size]) + data

    def entry(name: bytes, data: bytes) -> bytes:
        return field(1, field(1, name) + field(2, field(3, field(1, data))))

    return framed(field(1, entry(b"y", b"\0") + entry(b"a", bytes(values))))


def zeros(values: int, rows: int) -> bytes:
    column = pa.ListArray.from_arrays(
        pa.array(np.arange(rows + 1, dtype=np.int32) * values),
        pa.array(np.zeros(values * rows, np.int64)),
    )
    file = io.BytesIO()
    pq.write_table(pa.table({"a": column, "y": np.zeros(rows)}), file, row_group_size=rows)
    return file.getvalue()


def write_worst(path: Path, _: str, __: int) -> None:
    path.write_bytes(WORST[path.stem][1]())


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
        f"{kind}, a row of {size:,} ids": (kind, many_ids, size, "")
        for kind in (*FIRST, "parquet", "tfrecord")
        for size in (250_000, 1_000_000)
    },
    **{name: (kind, write_worst, 0, "") for name, (kind, _) in WORST.items()},
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
        return f"{sum(window.rows for window in windows(Source(conf, 'train'), features)):,} rows"
    except UserError as error:
        return str(error)


def measured(url: Path, kind: str) -> dict[str, object]:
    if kind == "tfrecord":
        many_ids(url.with_suffix(".small"), kind, 1)
        read(url.with_suffix(".small"), kind)
    peak_before, start = peak(), time.perf_counter()
    outcome = read(url, kind)
    return {
        "seconds": time.perf_counter() - start,
        "MiB": peak() - peak_before,
        "outcome": outcome.replace(str(url.parent) + "/", ""),
    }


def peak() -> float:
    """The most memory that this process has had, in MiB."""
    # Not ru_maxrss, which a process inherits from the one that starts it.
    status = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in status if line.startswith("VmHWM")]
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
            stem = name if name in WORST else "a"
            path = Path(folder) / f"{stem}.{kind}{suffix}"
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
        result = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{name:34} {result['seconds']:8.2f} {result['MiB']:7.0f}  {result['outcome'][:150]}",
            flush=True,
        )


if __name__ == "__main__":
    main()
