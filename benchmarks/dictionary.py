"""Lookups in a dictionary of exported embeddings, by the C reader, beside memory alone.

    python -m benchmarks.dictionary [--rows N] [--rounds N] [--folder DIR]

10 million rows of 9 floats; ids are drawn evenly, so nearly every lookup is of a row that is in no
cache. One thread, and the file in the page cache. "memory alone" copies the same rows from places
that are known beforehand. It needs a C compiler (CC, or cc).
"""

import argparse
import os
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np

from benchmarks import timing
from tnctl.tables import DictionaryWriter
from tnctl.tables.columns import mix64

ROOT = Path(__file__).resolve().parent.parent
WIDTH, SALT, LOOKUPS = 8, 12345, 2_000_000
BASE = "memory alone"


def write(folder: Path, rows: int) -> int:
    """A dictionary, its index, and what is to be looked up; returns the bytes of both files."""
    rng = np.random.default_rng(7)
    ids = np.unique(rng.integers(0, 2**64, rows + rows // 1000, dtype=np.uint64))
    ids = rng.permutation(ids)[:rows]
    hashes = np.sort(mix64(ids ^ np.uint64(SALT)))
    stride = 4 * (WIDTH + 1)
    with (folder / "rows.dictionary").open("wb") as file:
        writer = DictionaryWriter(
            file.write,
            salt=SALT,
            linear=True,
            width=WIDTH,
            cvm=False,
            precision="float32",
            stride=stride,
            records=rows,
            removed=0,
            delta=False,
        )
        for start in range(0, rows, 1 << 16):
            part = hashes[start : start + (1 << 16)]
            writer.add(part, rng.integers(0, 256, (len(part), stride), dtype=np.uint8))
        index = writer.finish()
    (folder / "rows.index").write_bytes(index)
    known = rng.choice(ids, LOOKUPS)
    known.tofile(folder / "known")
    places = np.searchsorted(hashes, mix64(known ^ np.uint64(SALT)))
    places.astype(np.uint64).tofile(folder / "places")
    rng.integers(0, 2**64, LOOKUPS, dtype=np.uint64).tofile(folder / "unknown")
    return (folder / "rows.dictionary").stat().st_size + len(index)


def compiled(folder: Path) -> Path:
    program = folder / "lookups"
    sources = [ROOT / "benchmarks/dictionary.c", *(ROOT / "csrc").glob("tn_dictionary*.c")]
    command = [os.environ.get("CC", "cc"), "-std=c11", "-O3", f"-I{ROOT / 'csrc'}"]
    subprocess.run([*command, *sources, "-o", program], check=True)
    return program


def measure(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Lookups per second by way, one per round; and "open", in microseconds."""
    names = ["rows.dictionary", "rows.index", "known", "unknown", "places"]
    command = [compiled(folder), *(folder / name for name in names), str(rounds)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rates = defaultdict(list)
    for line in printed.splitlines():
        name, number = line.split("\t")
        rates[name].append(float(number))
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure lookups in a dictionary.")
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the dictionary")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each")
    parser.add_argument("--folder", help="where files are written (default: a temporary folder)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        size = write(Path(name), given.rows)
        measured = measure(Path(name), given.rounds)
    (opening,) = measured.pop("open")
    lines = [["lookups", "M/s", "ns each", "of memory alone", "95 % interval"]]
    for way, rates in measured.items():
        rate = timing.interval_of_median(rates)
        pairs = zip(rates, measured[BASE], strict=True)
        ratio = timing.interval_of_median([of_way / base for of_way, base in pairs])
        between = f"{ratio.low:.0%} - {ratio.high:.0%}" if way != BASE else ""
        line = [f"{rate.median / 1e6:.1f}", f"{1e9 / rate.median:.0f}", f"{ratio.median:.0%}"]
        lines.append([way, *line, between])
    print(timing.machine())
    print(f"{given.rows:,} rows of {4 * (WIDTH + 1)} bytes: {size / given.rows:.2f} bytes a row")
    print(f"opened in {opening:.0f} µs; {given.rounds} rounds")
    print(timing.table(lines))


if __name__ == "__main__":
    main()
