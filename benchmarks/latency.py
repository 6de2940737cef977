"""Scoring without Python: from raw values to scores, beside the graph alone.

DeepFM on the rows of benchmarks.input (26 slots, 13 counts, layers of 400), exported as an online
service has it. The programs of examples/serving time themselves, in one thread: `graph` is their
graph alone, fed with ready inputs; `values` starts from raw values in memory, `lines` from lines of
JSON. One runs the graph by TensorFlow's C API, the other has it compiled ahead of time. An idle
machine is needed.

`--inside` times, in Python, signatures `by_id` and `by_value` of the graph with the rows inside,
beside `packed` alone, and after looking up and pooling in dictionaries.

`--rank` times signature `rank` of one user, whose are 20 of the 26 slots, and 500 items, beside
`packed` of 500 rows. The bound is the ratio of the multiply-adds of their products of matrices.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import timing
from benchmarks.input import TSV, write
from benchmarks.workload import FOLDER, NUMERIC, SLOTS

EXAMPLE = Path(__file__).parent.parent / "examples" / "serving"
RUN = FOLDER / "latency"
ROWS = 20_000
SIZES = (1, 10, 100)  # rows of a call
ITEMS = 500  # of a call that ranks
OF_USER = 20  # slots, of 26
PROGRAMS = {"score": "TensorFlow's C API", "score_aot": "compiled"}
WAYS = {"graph": "graph alone", "values": "from values", "lines": "from lines"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--inside", action="store_true")
    parser.add_argument("--rank", action="store_true")
    given = parser.parse_args()
    if given.rank:
        rank(given.rounds)
        return
    made = RUN / "graph" / "aot", RUN / "embeddings" / "manifest.json"
    if not all(path.exists() for path in made):
        prepare()
    if given.inside:
        print(timing.machine())
        print(timing.table(inside(given.rounds)))
        return
    rows = "".join(rows_of(TSV, ROWS))
    table = [["us per batch", *WAYS.values(), "values / graph", "lines / graph"]]
    starts = [["", "first score after", "resident memory"]]
    for name, shown in PROGRAMS.items():
        program = built(name, f"GRAPH={RUN / 'graph'}")
        for times_of_batch in timed(program, rows, given.rounds):
            times = [f"{times_of_batch[f'{way}_us']:.1f}" for way in WAYS]
            ratios = [f"{times_of_batch[f'{way}_ratio']:.2f}" for way in ("values", "lines")]
            table.append([f"{shown}  B={times_of_batch['batch']}", *times, *ratios])
        runs = [first_score(program, rows.partition("\n")[0]) for _ in range(9)]
        seconds, mebibytes = (statistics.median(values) for values in zip(*runs, strict=True))
        starts.append([shown, f"{1e3 * seconds:.1f} ms", f"{mebibytes:.0f} MiB"])
    print(timing.machine())
    print(timing.table(table))
    print("\n" + timing.table(starts))


def prepare() -> None:
    """Train on the rows, then split and export."""
    if not TSV.exists():
        write(TSV)
    data = f"data.root={TSV.parent}", f"data.train={TSV.name}"
    tnctl("train", "conf=criteo", *data, f"output={RUN}", "overwrite=true", "golden=0")
    tnctl("split-graph", f"output={RUN}", f"to={RUN / 'graph'}", "aot=[1,32,256]")
    tnctl("export-embeddings", f"output={RUN}", f"to={RUN / 'embeddings'}", "format=dictionary")


def tnctl(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "tnctl", *arguments], check=True)


def inside(rounds: int) -> list[list[str]]:
    """Of each way the p50 and p99 of a call, by how many rows it has."""
    from tnctl.serving.graph.loaded_graph import open_graph
    from tnctl.serving.graph_inputs import RawInputs, id_arrays, pooled_inputs, served_lookup
    from tnctl.serving.rows.embeddings import open_embeddings

    folder = RUN / "inside"
    if not (folder / "serving.json").exists():
        tnctl("split-graph", f"output={RUN}", f"to={folder}", "rows=inside")
    graph, embeddings = open_graph(str(folder)), open_embeddings(str(RUN / "embeddings"))
    description, raw = graph.description, RawInputs(graph.description)
    lookup = served_lookup(description, embeddings)
    rows = [json.loads(line) for line in rows_of(TSV, ROWS)]
    # What a way is given for a batch of rows, and what is timed.
    ways: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
        "packed alone": (
            lambda part: pooled_inputs(description, raw.encode(part), lookup),
            lambda inputs: graph.outputs("packed", inputs),
        ),
        "dictionary, packed": (
            raw.encode,
            lambda ids: graph.outputs("packed", pooled_inputs(description, ids, lookup)),
        ),
        "by_id": (
            lambda part: id_arrays(description, raw.encode(part)),
            lambda inputs: graph.run("by_id", inputs),
        ),
        "by_value": (
            lambda part: raw.values(description, part, lambda row: ("rows", row + 1)),
            lambda inputs: graph.run("by_value", inputs),
        ),
    }
    table = [["us per call, p50 / p99", *map(str, SIZES)]]
    for way, (given, call) in ways.items():
        table.append([way])
        for size in SIZES:
            starts = range(0, min(ROWS, rounds * size), size)
            batches = [given(rows[at : at + size]) for at in starts]
            call(batches[0])
            table[-1].append(percentiles(call, batches))
    return table


def rank(rounds: int) -> None:
    """Print how fast rank is beside packed, with embeddings of 8 and of 32, and the bounds."""
    import numpy as np
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import (
        convert_variables_to_constants_v2,
    )

    from tnctl.serving.graph.loaded_graph import load_graph, open_graph, rank_inputs_of

    def multiply_adds(function: Any) -> int:
        constant = convert_variables_to_constants_v2(function)
        operations = constant.graph.get_operations()
        shapes = [[x.shape for x in op.inputs] for op in operations if op.type == "MatMul"]
        return sum((x[0] or ITEMS) * x[1] * y[1] for x, y in shapes)

    print(timing.machine())
    table = [
        ["embedding, us per call", "packed", "rank", "times as fast", "95 % interval", "bound"]
    ]
    for width in (8, 32):
        folder = ranked(width)
        description = open_graph(str(folder)).description
        graph = load_graph(str(folder))
        functions = {name: graph.signatures[name] for name in ("packed", "rank")}
        random = np.random.default_rng(1)
        packed = {
            part.name: random.normal(size=(ITEMS, part.columns)).astype(np.float32)
            for part in description.signatures.packed
        }
        of_rank = {side.name: side.of(packed) for side in rank_inputs_of(description)}
        given = {
            way: {name: tf.constant(x) for name, x in inputs.items()}
            for way, inputs in (("packed", packed), ("rank", of_rank))
        }
        calls = {way: partial(functions[way], **given[way]) for way in functions}
        steps: dict[str, timing.Step] = {
            way: lambda _, call=call: call() for way, call in calls.items()
        }
        done = timing.compare(steps, 1, rounds)
        ratio = done.ratio("rank", "packed")
        bound = multiply_adds(functions["packed"]) / multiply_adds(functions["rank"])
        times = [f"{1e6 / done.rate(way):.0f}" for way in functions]
        interval = f"{ratio.low:.2f} - {ratio.high:.2f}"
        table.append([str(width), *times, f"{ratio.median:.2f}", interval, f"{bound:.2f}"])
    print(timing.table(table))


def ranked(width: int) -> Path:
    """A graph with signature rank, of random rows: no score of it means anything."""
    folder = RUN.parent / f"rank{width}"
    if not (folder / "graph" / "serving.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        ids = "\t".join(f"{k:08x}" for k in range(SLOTS))
        lines = (f"{k % 2}\t" + "1\t" * NUMERIC + f"{ids}\n" for k in range(2000))
        (folder / "rows.tsv").write_text("".join(lines))
        sides = [f"+slots.C{k}.side=user" for k in range(1, OF_USER + 1)]
        data = f"data.root={folder}", "data.train=rows.tsv"
        tnctl("train", "conf=criteo", *data, "overwrite=true",
              f"output={folder / 'run'}", f"embedding.width={width}", *sides)  # fmt: skip
        tnctl("split-graph", f"output={folder / 'run'}", f"to={folder / 'graph'}")
    return folder / "graph"


def percentiles(call: Callable[[Any], Any], batches: list[Any]) -> str:
    """The p50 and p99 of a call with each of some batches, in microseconds."""
    seconds = []
    for batch in batches:
        begin = time.perf_counter()
        call(batch)
        seconds.append(time.perf_counter() - begin)
    ordered = sorted(seconds)
    places = (int(share * (len(ordered) - 1)) for share in (0.5, 0.99))
    return " / ".join(f"{1e6 * ordered[place]:.0f}" for place in places)


def rows_of(path: Path, count: int) -> Iterator[str]:
    """The first rows as JSON lines: counts as numbers, categories as texts."""
    counts = [f"I{i}" for i in range(1, NUMERIC + 1)]
    categories = [f"C{i}" for i in range(1, SLOTS + 1)]
    with path.open() as lines:
        for line, _ in zip(lines, range(count), strict=False):
            values = line.rstrip("\n").split("\t")[1:]
            row: dict[str, int | str | None] = {
                name: int(value) if value else None
                for name, value in zip(counts, values, strict=False)
            }
            row |= zip(categories, values[NUMERIC:], strict=True)
            yield f"{json.dumps(row)}\n"


def built(program: str, *settings: str) -> Path:
    """A program of the example, built as its Makefile says."""
    folder = FOLDER / "serving"
    make = ["make", "--silent", f"--directory={EXAMPLE}"]
    make += [f"PYTHON={sys.executable}", f"BUILD={folder}"]
    subprocess.run([*make, *settings, program], check=True)
    return folder / program


def timed(program: Path, rows: str, rounds: int) -> list[dict[str, float]]:
    """What a program says of itself, for each size of batch."""
    done = subprocess.run(
        [program, RUN / "graph", RUN / "embeddings", "--benchmark", str(rounds)],
        input=rows,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def first_score(program: Path, row: str) -> tuple[float, float]:
    """Seconds from the start of a program to its first score, and its resident MiB then."""
    begin = time.perf_counter()
    with subprocess.Popen(
        [program, RUN / "graph", RUN / "embeddings"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{row}\n")
        process.stdin.flush()
        process.stdout.readline()
        seconds = time.perf_counter() - begin
        status = Path(f"/proc/{process.pid}/status").read_text()
        process.stdin.close()
    kibibytes = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
    return seconds, int(kibibytes) / 1024


if __name__ == "__main__":
    main()
