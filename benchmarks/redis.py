"""Writing rows to a Redis server of its own: as an export does, and as redis-py does by hand.

`by hand` is what one writes with a pipeline: HSET of the same fields into the same buckets, with a
Python object for each. `a key per row` is the other layout. Rows are in memory, in the order of
their hashes; the export checks, counts and switches too. Needs redis-server.
"""

import argparse
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from redis import ConnectionError as NotThereError
from redis import Redis

from benchmarks import timing
from tnctl.checkpoint.document import Clock
from tnctl.serving.artefact_document import CheckpointReference
from tnctl.serving.rows import redis_export
from tnctl.serving.rows.export import group_fields
from tnctl.serving.rows.export_document import Filter, GroupRows, RowsManifest
from tnctl.serving.rows.precision import RowShape, encode
from tnctl.serving.rows.redis_embeddings import RedisEmbeddings, buckets_of
from tnctl.serving.rows.redis_export import bucket_count
from tnctl.serving.rows.selection import SelectedGroup, SelectedRows
from tnctl.tables.columns import group_salt, mix64

GROUP = "id"
SHAPE = RowShape(linear=True, width=8, cvm=False)
PART = 1 << 16
LOOKUPS = 2000
PER_LOOKUP = 26


@dataclass
class Rows:
    """A selection of made-up rows."""

    groups: list[SelectedGroup]
    ids: NDArray[np.uint64]
    hashes: NDArray[np.uint64]
    rows: NDArray[np.float32]
    kind: str = "full"

    def parts(self) -> Iterator[SelectedRows]:
        for at in range(0, len(self.ids), PART):
            cut = slice(at, at + PART)
            yield SelectedRows(
                self.groups[0], self.ids[cut], self.hashes[cut], self.rows[cut], None
            )


def made(count: int) -> Rows:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 2**64, count, dtype=np.uint64)
    hashes = mix64(ids ^ np.uint64(group_salt(GROUP)))
    order = np.argsort(hashes)
    rows = rng.standard_normal((count, SHAPE.columns)).astype(np.float32)
    group = SelectedGroup(GROUP, "table", 0, SHAPE, group_salt(GROUP), count, 0)
    return Rows([group], ids[order], hashes[order], rows)


def content_of(rows: Rows) -> RowsManifest:
    [group] = rows.groups
    return RowsManifest(
        format=RowsManifest.FORMAT,
        version=RowsManifest.VERSION,
        checkpoint=CheckpointReference(folder="run", sha256="0" * 64, step=1),
        kind="full",
        base=None,
        number=0,
        encoding="redis",
        precision="float32",
        filter=Filter(),
        clock=Clock(1),
        sessions=(),
        groups=(GroupRows(**group_fields(group)),),
        slots=(),
        golden=None,
    )


def by_hand(client: Redis, rows: Rows) -> None:
    """HSET bucket after bucket, 64 of them in a pipeline."""
    count = bucket_count(len(rows.ids), 1)
    buckets = buckets_of(rows.hashes, count)
    values, ids = encode(rows.rows, SHAPE).tobytes(), rows.ids.tobytes()
    stride = SHAPE.stride
    starts = np.flatnonzero(np.diff(buckets, prepend=buckets[0] + np.uint64(1))).tolist()
    pipeline = client.pipeline(transaction=False)
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(ids) // 8], strict=True)):
        words: list[bytes] = []
        for i in range(start, end):
            words += (ids[8 * i : 8 * i + 8], values[stride * i : stride * (i + 1)])
        pipeline.execute_command("HSET", f"hand:{buckets[start]}", *words)
        if number % 64 == 63:
            pipeline.execute()
    pipeline.execute()


def key_per_row(client: Redis, rows: Rows) -> None:
    """SET of every row, 2,000 in a pipeline."""
    values, ids = encode(rows.rows, SHAPE).tobytes(), rows.ids.tobytes()
    stride = SHAPE.stride
    pipeline = client.pipeline(transaction=False)
    for i in range(len(rows.ids)):
        pipeline.set(b"row:" + ids[8 * i : 8 * i + 8], values[stride * i : stride * (i + 1)])
        if i % 2000 == 1999:
            pipeline.execute()
    pipeline.execute()


def memory_of(client: Redis, write: Any, rows: int) -> float:
    client.flushall()
    used = client.info("memory")["used_memory"]
    write(0)
    return float(client.info("memory")["used_memory"] - used) / rows


def latency(url: str, rows: Rows) -> list[float]:
    """Microseconds of lookups of 26 ids, ascending."""
    embeddings, rng = RedisEmbeddings(url), np.random.default_rng(1)
    taken = []
    for _ in range(LOOKUPS):
        ids = rows.ids[rng.integers(0, len(rows.ids), PER_LOOKUP)]
        start = time.perf_counter()
        _, known = embeddings.lookup(GROUP, ids)
        taken.append(1e6 * (time.perf_counter() - start))
        assert known.all()
    embeddings.close()
    return sorted(taken)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    rows = made(given.rows)
    folder = Path(tempfile.mkdtemp(prefix="tnctl-"))
    path = folder / "s"
    server = subprocess.Popen(
        ["redis-server", "--port", "0", "--unixsocket", path, "--dir", folder, "--save", ""],
        stdout=subprocess.DEVNULL,
    )
    try:
        client = Redis(unix_socket_path=str(path))
        while True:
            try:
                client.ping()
                break
            except NotThereError:
                time.sleep(0.05)
        url = f"unix://{path}"
        ways = {
            "export": lambda _: redis_export.write(rows, content_of(rows), url, grace=0),
            "by hand": lambda _: by_hand(client, rows),
            "a key per row": lambda _: key_per_row(client, rows),
        }
        memory = {name: memory_of(client, write, given.rows) for name, write in ways.items()}
        client.flushall()
        result = timing.compare(ways, given.rows, given.rounds, warm_up=0)
        for name in ways:
            ratio = result.ratio("export", name)
            print(
                f"{name:<14} {result.rate(name) / 1e6:6.2f} M rows/s  {memory[name]:6.1f} B a row  "
                f"export is {ratio.median:.2f} times as fast ({ratio.low:.2f} to {ratio.high:.2f})"
            )
        taken = latency(url, rows)
        median, high = statistics.median(taken), taken[int(0.99 * len(taken))]
        print(f"lookup of {PER_LOOKUP} ids from Python: {median:.0f} µs, p99 {high:.0f} µs")
        others = statistics.median(result.others)
        print(f"cores that others used, the server among them: {others:.2f}")
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
