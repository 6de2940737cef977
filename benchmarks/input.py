"""Input: Criteo-like TSV to batches of ids, beside Arrow's own parser and the training step.

The first table is the data layer alone: the rows of one file, from the page cache, by
`pyarrow.csv.read_csv` into columns (no ids, no batches) and by tnctl into shuffled batches, from
TSV and from prepared Parquet. The second compares parsers at the same work, from TSV to ids:
Arrow's and tnctl's, each with tnctl's hashing. The third (`--step`) trains DeepFM on batches that
are arrays already, and on the same rows read from the files meanwhile.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from benchmarks import timing
from benchmarks.workload import FOLDER, HIDDEN, NUMERIC, SEED, SLOTS, load
from tnctl.data.bad_rows import Skipped
from tnctl.data.batches import Batch
from tnctl.data.features import Features
from tnctl.data.file_pieces import counted
from tnctl.data.formats.csv_files import CsvReader
from tnctl.data.preparing import prepare
from tnctl.data.read_ahead import ReadAhead, in_order
from tnctl.data.statistics_document import Statistics
from tnctl.data.unit_records import WHOLE, Remainder
from tnctl.data.windows import training_batches
from tnctl.evaluation.split_scoring import features_of
from tnctl.model.building import build
from tnctl.schema import Conf, Data, Label, Numeric, Slot, Train
from tnctl.training.step import TrainingStep
from tnctl.training.workers import BATCHES_AHEAD

ROWS = 1_000_000
BATCH = 4096
PIECE_ROWS = 16_384  # about as many as a block of tnctl's reader has
# Of the rows of a column, how many are empty: one column in three has gaps.
GAPS = (0.0, 0.0, 0.25)
TSV, PREPARED = FOLDER / "clicks.tsv", FOLDER / "clicks.prepared"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--step", action="store_true", help="the training step too (minutes)")
    given = parser.parse_args()
    if not TSV.exists():
        write(TSV)
    if not (PREPARED / "manifest.json").exists():
        prepare(conf_of(), str(PREPARED))
    reading = in_turns(
        {
            "Arrow's columns": lambda: arrow().num_rows,
            "tnctl, TSV": lambda: read(conf_of()),
            "tnctl, prepared": lambda: read(conf_of(prepared=str(PREPARED))),
        },
        given.rounds,
    )
    timing.show("reading", "rows", {"1 M rows": reading})
    conf = conf_of()
    parsers = {
        "Arrow's parser": lambda: ids_of(conf, arrow().to_batches(PIECE_ROWS)),
        "tnctl's parser": lambda: ids_of(conf, parsed(conf)),
    }
    timing.show("TSV to ids", "rows", {"1 M rows": in_turns(parsers, given.rounds)})
    if given.step:
        timing.show("training", "rows", {"B=4096": training(given.rounds)})


def write(path: Path) -> None:
    """A label, 13 counts and 26 categories of 8 hexadecimal digits per line."""
    workload, rng = load(), np.random.default_rng(SEED)
    columns = [pa.array(workload.labels[:ROWS].astype(np.int8))]
    for index in range(NUMERIC):
        counts = np.expm1(workload.numeric[:ROWS, index] * (1 + index % 4)).astype(np.int64)
        columns.append(pa.array(counts, mask=rng.random(ROWS) < GAPS[index % 3]))
    digits = np.array([b"%02x" % value for value in range(256)])
    for slot in range(SLOTS):
        low = np.ascontiguousarray(workload.ids[:ROWS, slot]).astype(">u4")
        texts = digits[low.view(np.uint8)].view("S8").astype("U8")
        columns.append(pa.array(texts, mask=rng.random(ROWS) < GAPS[slot % 3]))
    table = pa.table(columns, names=names())
    options = pyarrow.csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    part = path.with_suffix(".part")
    pyarrow.csv.write_csv(table, part, options)
    part.rename(path)


def names() -> list[str]:
    """The columns in file order."""
    return ["label", *(f"n{i}" for i in range(NUMERIC)), *(f"s{i}" for i in range(SLOTS))]


def conf_of(prepared: str | None = None) -> Conf:
    """DeepFM on the file, as conf=criteo reads Criteo's."""
    data = Data(
        train=str(TSV),
        delimiter="\t",
        header=False,
        columns=names(),
        label=Label(column="label"),
    )
    return Conf(
        recipe={"name": "deepfm", "hidden": list(HIDDEN)},
        slots={f"s{i}": Slot(missing="value") for i in range(SLOTS)},
        numeric={f"n{i}": Numeric(transform="log1p") for i in range(NUMERIC)},
        data=dataclasses.replace(data, prepared=prepared),
        train=Train(batch_size=BATCH),
    )


def arrow() -> pa.Table:
    """Read the file as Arrow does it best: every column typed, on all CPUs."""
    types = {name: pa.string() if name[0] == "s" else pa.float64() for name in names()}
    return pyarrow.csv.read_csv(
        TSV,
        pyarrow.csv.ReadOptions(column_names=names()),
        pyarrow.csv.ParseOptions(delimiter="\t", quote_char=False),
        pyarrow.csv.ConvertOptions(column_types=types),
    )


def parsed(conf: Conf) -> Iterator[pa.Table]:
    """The same columns by tnctl's parser, block by block."""
    return (piece.table for piece in CsvReader(conf).pieces(str(TSV), names()))


def ids_of(conf: Conf, tables: Iterable[pa.Table | pa.RecordBatch]) -> int:
    """Ids, numbers and labels of all rows, on all CPUs."""
    features = Features(conf, [(list(conf.slots), [1] * SLOTS)], Statistics())

    def encode(table: pa.Table | pa.RecordBatch) -> Batch:
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        return features.encode(table, counted(str(TSV), 1))

    return sum(batch.rows for batch in in_order(encode, iter(tables)))


def read(conf: Conf) -> int:
    """Every batch of an epoch, as training gets them."""
    features = Features(conf, [(list(conf.slots), [1] * SLOTS)], Statistics())
    return sum(batch.rows for batch in of_pass(conf, features))


def of_pass(conf: Conf, features: Features) -> Iterator[Batch]:
    """The batches of the first pass."""
    skipped = Skipped("train", conf.data.bad_rows)
    return (b for b, _ in training_batches(conf, features, 0, [Remainder(WHOLE)], skipped))


def training(rounds: int) -> timing.Comparison:
    """A pass over the file's rows, in whole batches, on a table that has all their ids."""
    conf, prepared = conf_of(), conf_of(prepared=str(PREPARED))
    model = build(conf, Statistics())
    features = features_of(conf, model)
    step = TrainingStep(model, BATCH)
    arrays = list(whole_batches(of_pass(conf, features)))

    def train(batches: Iterable[Batch]) -> int:
        for batch in batches:
            step(batch)
        return len(arrays) * BATCH

    def ahead(conf: Conf) -> int:
        features = features_of(conf, model)
        with ReadAhead(of_pass(conf, features), BATCHES_AHEAD) as batches:
            return train(whole_batches(batches))

    return in_turns(
        {
            "batches in memory": lambda: train(arrays),
            "from TSV": lambda: ahead(conf),
            "from prepared": lambda: ahead(prepared),
        },
        rounds,
    )


def whole_batches(batches: Iterator[Batch]) -> Iterator[Batch]:
    """All but the last batch, which has a function of its own."""
    return islice(batches, ROWS // BATCH)


def in_turns(passes: dict[str, Callable[[], int]], rounds: int) -> timing.Comparison:
    """Time whole passes; each returns how many rows it read."""
    for run_pass in passes.values():
        run_pass()
    rates: dict[str, list[float]] = {name: [] for name in passes}
    others = []
    for number in range(rounds):
        begin, used = time.perf_counter(), timing.cpu_of_others()
        for name in list(passes)[:: -1 if number % 2 else 1]:
            start = time.perf_counter()
            rows = passes[name]()
            rates[name].append(rows / (time.perf_counter() - start))
        others.append(max(0.0, (timing.cpu_of_others() - used) / (time.perf_counter() - begin)))
    return timing.Comparison(ROWS, rates, others)


if __name__ == "__main__":
    main()
