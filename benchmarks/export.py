"""Exporting rows beside pyarrow, which writes the same arrays from memory.

Both write Parquet with the same settings, a file for each of 26 groups, and end with the bytes on
the disk. The export reads the checkpoint besides (from the page cache), reads decayed weights,
parts rows by group, and takes checksums of what it reads and writes. They take turns.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks import timing
from benchmarks.checkpoint import MIB, Peak, made, seconds

OTHERS = {
    "parquet, float16": {"precision": "float16"},
    "parquet, int8": {"precision": "int8"},
    "dictionary": {"encoding": "dictionary"},
    "text": {"encoding": "text"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where to write (default: the temporary folder)")
    parser.add_argument("--make", help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if given.make:
        make(given.rows, Path(given.make))
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as temporary:
        # The table's memory must not be there for the export to use.
        command = [sys.executable, "-m", "benchmarks.export", "--rows", str(given.rows)]
        subprocess.run([*command, "--make", temporary], check=True)
        measure(given.rounds, Path(temporary))


def make(rows: int, root: Path) -> None:
    """A full checkpoint of so many rows of 64 bytes."""
    from tnctl.checkpoint import staging
    from tnctl.checkpoint.document import Clock, Metrics, Position

    staging.save(
        made(rows, root / "run", "none"),
        str(root / "checkpoint"),
        clock=Clock(1),
        position=Position(),
        finished=False,
        golden=[],
        metrics=Metrics(),
    )


def write_again(tables: dict[str, "pq.Table"], folder: Path, rows: int) -> None:
    """Tables as Parquet files, with pyarrow alone."""
    folder.mkdir(exist_ok=True)
    for name, table in tables.items():
        with (folder / name).open("wb") as file:
            settings = {"compression": "none", "use_dictionary": False, "write_statistics": False}
            pq.write_table(table, file, row_group_size=rows, **settings)
            file.flush()
            os.fsync(file.fileno())


def measure(rounds: int, root: Path) -> None:
    from tnctl import schema
    from tnctl.checkpoint.chain import open_checkpoint
    from tnctl.serving.rows.export import export
    from tnctl.serving.rows.row_formats import BlockFormat

    checkpoint = open_checkpoint(str(root / "checkpoint"))
    conf = schema.from_values(checkpoint.conf())

    def run(name: str, **more: str) -> float:
        return seconds(lambda: export(checkpoint, conf, str(root / name), **more))

    with Peak().watching() as peak:
        run("export")
    memory = peak.most - peak.before
    files = sorted((root / "export").glob("*.parquet"))
    tables = {path.name: pq.read_table(path) for path in files}
    rows = sum(table.num_rows for table in tables.values())
    size = sum(path.stat().st_size for path in files)
    took: dict[str, list[float]] = {"pyarrow alone": [], "parquet": []}
    used = []
    for _ in range(rounds):
        took["pyarrow alone"].append(
            seconds(lambda: write_again(tables, root / "alone", BlockFormat.rows_per_block))
        )
        start = time.process_time()
        took["parquet"].append(run("export"))
        used.append(time.process_time() - start)
    for name, more in OTHERS.items():
        took[name] = [run("other", **more) for _ in range(max(rounds // 2, 1))]
    print(timing.machine())
    lines = [["", "rows/s", "of pyarrow"]]
    for name, of_way in took.items():
        shown = ""
        if name == "parquet":
            pairs = zip(of_way, took["pyarrow alone"], strict=True)
            ratio = timing.interval_of_median([base / own_time for own_time, base in pairs])
            shown = f"{ratio.median:.0%} ({ratio.low:.0%} - {ratio.high:.0%})"
        lines.append([name, f"{rows / statistics.median(of_way):,.0f}", shown])
    print(timing.table(lines))
    print(
        f"{rows:,} rows, {size / MIB:,.0f} MiB of Parquet; the export takes "
        f"{memory / MIB:,.0f} MiB of memory and {statistics.median(used):.2f} s of CPU"
    )


if __name__ == "__main__":
    main()
