"""Small splits in every format, their rows as a set, and streams of batches over units."""

import gzip
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tnctl.data.features import Features
from tnctl.data.statistics_document import Statistics
from tnctl.schema import Conf, Data, Label, Numeric, Slot, Train

ROWS = 700
BAD = (3, 140, 141, 333, 690)  # rows of `bad` data that cannot be read: their label is no number
CLICKED = frozenset(np.flatnonzero(np.random.default_rng(3).random(ROWS) < 0.3).tolist())


def values(row):
    """The id, the words, the label and the number of a row; the number names the row."""
    return (
        f"a{row % 50}",
        [f"w{row % 7}", f"w{row % 3}"][: row % 3],
        int(row in CLICKED),
        float(row),
    )


def conf_of(folder, format, train, **data):
    """A conf of one slot with single ids, one with lists, and a number that is the row's own."""
    generated = format == "generated"
    return Conf(
        recipe={"name": "lr"},
        slots={"a": Slot(column="user_id"), "b": Slot(column="interests")}
        if generated
        else {"a": Slot(), "b": Slot(separator="|")},
        numeric={} if generated else {"n": Numeric()},
        data=Data(
            root=str(folder),
            format=format,
            train=train,
            label=Label(column="label" if generated else "y"),
            reference="planted" if generated else "n",
            **{"window": 64, **data},
        ),
        train=Train(batch_size=16),
    )


def features_of(conf):
    return Features(conf, [(["a"], [1]), (["b"], [1])], Statistics(dict.fromkeys(conf.numeric)))


def lines_of(rows, bad=()):
    """Rows as the lines of a CSV file."""
    lines = ["a,b,y,n"]
    for row in rows:
        a, b, y, n = values(row)
        lines.append(f"{a},{'|'.join(b)},{'x' if row in bad else y},{n}")
    return "\n".join(lines) + "\n"


def write_csv(folder, parts=1, suffix=".csv", bad=()):
    """ROWS rows in so many files of unequal length."""
    bounds = [0, *sorted(ROWS * (k * k + 1) // (parts * parts + 1) for k in range(1, parts)), ROWS]
    for number in range(parts):
        text = lines_of(range(bounds[number], bounds[number + 1]), bad).encode()
        data = gzip.compress(text, mtime=0) if suffix.endswith("gz") else text
        (folder / f"part-{number}{suffix}").write_bytes(data)
    return f"part-*{suffix}"


def write_parquet(folder, parts=1, group=40):
    """ROWS rows in `parts` files, `group` rows in each of their row groups."""
    for number in range(parts):
        rows = range(ROWS * number // parts, ROWS * (number + 1) // parts)
        columns = dict(zip("abyn", map(list, zip(*map(values, rows), strict=True)), strict=True))
        columns["b"] = ["|".join(words) for words in columns["b"]]
        table = pa.table(columns)
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=group)
    return "part-*.parquet"


def arrays_of(batch):
    """All arrays of a batch."""
    yield from (*batch.ids, *batch.offsets, batch.numeric, batch.labels, batch.reference)


def rows_of(batch):
    """Each example as a tuple of its ids, numbers, label and reference."""
    cells = []
    for ids, offsets in zip(batch.ids, batch.offsets, strict=True):
        bounds = offsets.tolist()
        flat = ids.tolist()
        cells.append([tuple(flat[a:b]) for a, b in pairwise(bounds)])
    numeric, labels = batch.numeric.tolist(), batch.labels.tolist()
    reference = batch.reference.tolist()
    return [
        (*ids, *numbers, *label, real)
        for *ids, numbers, label, real in zip(*cells, numeric, labels, reference, strict=True)
    ]
