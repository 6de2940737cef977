"""Units of a pass: every row once over any number of workers, also after a restart with another."""

import hashlib
import json
import os
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from units import (
    BAD,
    CLICKED,
    ROWS,
    arrays_of,
    conf_of,
    features_of,
    rows_of,
    write_csv,
    write_parquet,
)

from tnctl import documents
from tnctl.checkpoint.document import Position
from tnctl.data import preparing
from tnctl.data.bad_rows import Skipped
from tnctl.data.file_pieces import EmptyError
from tnctl.data.sources import Source
from tnctl.data.unit_records import (
    WHOLE,
    Progress,
    Remainder,
    Unit,
    UnitsProgress,
    UnitsRecord,
    checksum,
    dealt,
    remaining,
)
from tnctl.data.windows import none_left, training_batches, windows
from tnctl.documents import DocumentError
from tnctl.errors import Failure
from tnctl.tables.columns import mix64
from tnctl.training.state import PassPosition


def prepared(folder):
    conf = conf_of(folder, "csv", write_csv(folder, 3), window=32)
    preparing.prepare(conf, str(folder / "to"))
    return replace(conf, data=replace(conf.data, prepared=str(folder / "to"), window=64))


WORLDS = {
    "csv": lambda folder: conf_of(folder, "csv", write_csv(folder, 1)),
    "files": lambda folder: conf_of(folder, "csv", write_csv(folder, 5)),
    "negatives": lambda folder: conf_of(folder, "csv", write_csv(folder, 5), negatives=0.5),
    "bad": lambda folder: conf_of(folder, "csv", write_csv(folder, 5, bad=BAD), bad_rows=9),
    "plain": lambda folder: conf_of(folder, "csv", write_csv(folder, 5), shuffle=False),
    "parquet": lambda folder: conf_of(folder, "parquet", write_parquet(folder, 2)),
    "generated": lambda folder: conf_of(folder, "generated", "100:800"),
    "windows": lambda folder: conf_of(folder, "parquet", write_parquet(folder, 1, 20), window=16),
    "prepared": prepared,
}
# SHA-256 of all batches before there were units: of a first pass, and of a fourth one from row 48
# of window 4 on.
ONE_WORKER = {
    "csv": ("9c296014bc2b50cb", "19cf234014c9cc9d"),
    "files": ("9c296014bc2b50cb", "19cf234014c9cc9d"),
    "negatives": ("98d720533d51f714", "a5cff3e092206345"),
    "bad": ("b9448d368d12b499", "b1033c1e4b346451"),
    "plain": ("c0e3a0491cfb3c4a", "8476d3bfad1b690b"),
    "parquet": ("9c296014bc2b50cb", "19cf234014c9cc9d"),
    "generated": ("268d839d947e57d5", "001e3729dea89453"),
}


def stream(conf, remainders, passes=0, skipped=None):
    skipped = skipped or Skipped("train", conf.data.bad_rows)
    return training_batches(conf, features_of(conf), passes, remainders, skipped)


def digest(batches):
    whole = hashlib.sha256()
    for batch in batches:
        whole.update(str(batch.rows).encode())
        for array in arrays_of(batch):
            whole.update(array.tobytes())
    return whole.hexdigest()[:16]


def stored(position):
    """A position as a manifest gives it back."""
    return documents.parse(Position, json.dumps(documents.plain(position)).encode())


class Run:
    """Workers that take a batch each, step after step, and what they trained."""

    def __init__(self, conf, position, workers):
        self.conf = conf
        self.skipped = Skipped("train", conf.data.bad_rows)
        self.place = PassPosition(conf, stored(position), workers, self.skipped)
        self.of_worker = [Skipped("train", conf.data.bad_rows) for _ in range(workers)]
        self.streams = [
            stream(conf, remainders, position.passes, skipped)
            for remainders, skipped in zip(self.place.dealt(), self.of_worker, strict=True)
        ]
        self.rows = Counter()
        self.sizes = [[] for _ in self.streams]
        self.count = 0

    def step(self):
        """A batch of every worker that has one; whether there was any."""
        trained = False
        for batches, sizes in zip(self.streams, self.sizes, strict=True):
            if (cut := next(batches, None)) is not None:
                self.rows.update(rows_of(cut[0]))
                self.place.add(cut[1])
                sizes.append(cut[0].rows)
                trained = True
        self.count += trained
        return trained

    def steps(self, count=None):
        """So many steps, or all; returns the run."""
        while count != 0 and self.step():
            count = None if count is None else count - 1
        return self

    def close(self):
        for batches in self.streams:
            batches.close()
        return self.place.position


def together(conf, run):
    """The bad rows of all workers, as one process counts them."""
    skipped = Skipped("train", conf.data.bad_rows)
    for part in (run.skipped, *run.of_worker):
        skipped.add(part.rows, part.first)
    return skipped


def whole(conf):
    """Every row of the split, by one worker."""
    return Run(conf, Position(), 1).steps().rows


@pytest.fixture(params=[name for name in WORLDS if name != "negatives"])
def conf(request, tmp_path):
    return WORLDS[request.param](tmp_path)


@pytest.mark.parametrize("name", ONE_WORKER)
def test_one_worker_reads_the_same_batches_as_ever(tmp_path, name):
    conf, (first, fourth) = WORLDS[name](tmp_path), ONE_WORKER[name]
    assert Source(conf, "train").units(1) == [WHOLE]
    assert digest(batch for batch, _ in stream(conf, [Remainder(WHOLE)])) == first
    assert digest(batch for batch, _ in stream(conf, [Remainder(WHOLE, 4, 48)], 3)) == fourth


def test_the_position_of_one_worker_is_in_windows(tmp_path):
    conf = WORLDS["files"](tmp_path)
    run = Run(conf, Position(None, 2, 0, 0, 5), 1)
    places = []
    while run.step():
        position = run.place.position
        places.append((position.window, position.offset))
    assert places == [divmod(16 * (k + 1), 64) for k in range(ROWS // 16)] + [divmod(ROWS, 64)]
    assert list(documents.plain(position)) == ["day", "epoch", "window", "offset", "passes"]
    assert (position.epoch, position.passes, position.units) == (2, 5, None)


def test_every_row_is_in_one_unit(conf):
    expected = whole(conf)
    bad = len(BAD) if conf.data.bad_rows else 0
    assert len(expected) == sum(expected.values()) == ROWS - bad
    for workers in (2, 3, 5):
        run = Run(conf, Position(), workers).steps()
        assert run.rows == expected
        assert together(conf, run).rows == bad
        # Batches are filled over the ends of windows and units: only the last of a worker is short.
        assert all(set(sizes[:-1]) <= {16} for sizes in run.sizes)
        assert len(run.place.position.units.open) <= workers


@pytest.mark.parametrize("name", ["files", "negatives", "bad", "windows", "generated", "prepared"])
def test_a_pass_is_resumed_with_the_rows_that_are_left(tmp_path, name):
    conf = WORLDS[name](tmp_path)
    expected = Run(conf, Position(), 3).steps()
    for stop, workers in [(1, 1), (7, 2), (6, 5), (11, 1), (14, 2), (expected.count, 5)]:
        run = Run(conf, Position(), 3).steps(stop)
        rest = Run(conf, run.close(), workers).steps()
        assert run.rows + rest.rows == expected.rows
        # Rows that could not be read are counted again in open units, and kept of those done.
        assert together(conf, rest).rows == together(conf, expected).rows


@pytest.mark.parametrize("name", ["files", "windows", "bad", "generated"])
def test_a_pass_is_resumed_again_and_again(tmp_path, name):
    conf = WORLDS[name](tmp_path)
    expected = Run(conf, Position(passes=4), 3).steps().rows
    draws = random.Random(5)
    for _ in range(3):
        position, rows, workers = Position(passes=4), Counter(), 3
        while True:
            run = Run(conf, position, workers).steps(draws.randint(1, 9))
            if not run.rows:
                break
            rows += run.rows
            position, workers = run.close(), draws.choice([1, 2, 3, 5])
        assert rows == expected


def test_one_worker_that_was_interrupted_is_resumed_by_several(tmp_path):
    conf = WORLDS["files"](tmp_path)
    run = Run(conf, Position(), 1).steps(9)
    position = run.close()
    assert (position.window, position.offset) == (2, 16)
    rest = Run(conf, position, 3)
    assert rest.place.remainders == [Remainder(WHOLE, 2, 16)]
    assert run.rows + rest.steps().rows == whole(conf)
    assert rest.place.position == replace(position, window=10, offset=60)


def test_negatives_are_chosen_by_unit_and_place(tmp_path):
    conf = WORLDS["negatives"](tmp_path)
    seed = mix64(np.array([conf.seed ^ 0x6E65676174697665], np.uint64))
    place, unit_of, first = np.zeros(ROWS, np.uint64), 0, 0
    for unit in Source(conf, "train").units(2):
        count = Path(unit.file).read_text().count("\n") - 1
        place[first : first + count] = np.arange(count) + (unit.index << 40)
        first, unit_of = first + count, unit_of + 1
    assert (first, unit_of) == (ROWS, 5)
    kept = mix64(seed ^ place) < 2.0**63
    expected = {row for row in range(ROWS) if row in CLICKED or kept[row]}
    rows = Run(conf, Position(), 2).steps().rows
    assert {int(row[-1]) for row in rows} == expected
    assert max(rows.values()) == 1


def test_bad_rows_of_all_workers_count_together(tmp_path):
    conf = WORLDS["bad"](tmp_path)
    fewer = replace(conf, data=replace(conf.data, bad_rows=4))
    run = Run(fewer, Position(), 3).steps()  # no worker alone has five
    with pytest.raises(Failure, match=r"data.train has over 4 rows .*part-0.csv, line 5"):
        together(fewer, run)
    with pytest.raises(Failure, match="over 4 rows"):
        whole(fewer)
    position = run.close()
    assert position.units.skipped <= len(BAD)
    full = replace(position, units=replace(position.units, skipped=5))
    with pytest.raises(Failure, match="over 4 rows"):
        PassPosition(fewer, full, 2, Skipped("train", 4))


def row_counts(conf, workers):
    """The rows that each worker reads."""
    parts = dealt(map(Remainder, Source(conf, "train").units(workers)), workers)
    return [sum(batch.rows for batch, _ in stream(conf, part)) for part in parts]


def test_workers_have_about_as_many_rows(tmp_path):
    for workers in (2, 3, 5, 7):
        counts = row_counts(conf_of(tmp_path, "generated", "17:1000"), workers)
        assert sum(counts) == 983
        assert max(counts) - min(counts) <= 4
    for parts, group in ((1, 10), (3, 10), (5, 5)):
        folder = tmp_path / f"{parts}"
        folder.mkdir()
        conf = conf_of(folder, "parquet", write_parquet(folder, parts, group))
        for workers in (2, 3):
            assert max(row_counts(conf, workers)) <= 1.15 * ROWS / workers


@pytest.mark.parametrize(("workers", "groups"), [
    *[(2, (count,)) for count in (2, 3, 14, 36)], (3, (16,)), (3, (28,)),
    (4, (24,)), (7, (100,)), (2, (3, 5, 9, 3)), (3, (1, 1, 10, 7)),
])  # fmt: skip
def test_equal_row_groups_are_shared_equally(tmp_path, workers, groups):
    for number, count in enumerate(groups):
        table = pa.table({"a": ["x"] * (5 * count), "y": [0] * (5 * count)})
        pq.write_table(table, tmp_path / f"part-{number}.parquet", row_group_size=5)
    conf = conf_of(tmp_path, "parquet", "part-*.parquet", window=1)
    cut = Source(conf, "train").units(workers)
    shares = [sum(unit.end - unit.first for unit in cut[rank::workers]) for rank in range(workers)]
    assert max(shares) - min(shares) <= 1
    assert len(cut) > workers or sum(groups) < 2 * workers
    expected = [(f"{tmp_path}/part-{number}.parquet", group)
                for number, count in enumerate(groups) for group in range(count)]  # fmt: skip
    assert [(unit.file, group) for unit in cut for group in range(unit.first, unit.end)] == expected


def test_how_splits_are_cut(tmp_path):
    generated = conf_of(tmp_path, "generated", "0:1000000", window=1024)

    def cut(conf, workers):
        return Source(conf, "train").units(workers)

    assert len(cut(generated, 2)) == 2 * 61  # of 8 windows each
    assert cut(generated, 2)[1] == Unit(1, None, 8196, 16393)
    assert len(cut(replace(generated, data=replace(generated.data, window=16)), 3)) == 3 * 64
    assert len(cut(conf_of(tmp_path, "generated", "0:2"), 3)) == 2
    texts = conf_of(tmp_path, "csv", write_csv(tmp_path, 2))
    names = [f"{tmp_path}/part-{k}.csv" for k in range(2)]
    assert cut(texts, 3) == [Unit(k, name) for k, name in enumerate(names)]
    many = conf_of(tmp_path, "parquet", write_parquet(tmp_path, 9, 10))
    assert cut(many, 2)[8] == Unit(8, f"{tmp_path}/part-8.parquet")
    assert cut(many, 3)[0] == Unit(0, f"{tmp_path}/part-0.parquet", 0, 3)
    pq.write_table(pa.table({"a": pa.array([], pa.string())}), tmp_path / "empty.parquet")
    empty = conf_of(tmp_path, "parquet", "empty.parquet")
    assert cut(empty, 2) == [Unit(0, f"{tmp_path}/empty.parquet", 0, 1)]


@pytest.mark.parametrize("kind", ["parquet", "prepared"])
def test_other_row_groups_are_not_read(tmp_path, kind):
    conf = WORLDS[kind](tmp_path)
    unit = next(unit for unit in Source(conf, "train").units(3) if unit.first)
    expected = list(windows(Source(conf, "train"), features_of(conf), unit=unit))
    metadata = pq.read_metadata(unit.file)
    with open(unit.file, "r+b") as stream_:
        for group in range(metadata.num_row_groups):
            if not unit.first <= group < unit.end:
                columns = [metadata.row_group(group).column(c) for c in range(metadata.num_columns)]
                first = min(column.dictionary_page_offset or column.data_page_offset
                            for column in columns)  # fmt: skip
                size = sum(column.total_compressed_size for column in columns)
                stream_.seek(first)
                stream_.write(os.urandom(size))
    for ours, theirs in zip(
        windows(Source(conf, "train"), features_of(conf), unit=unit), expected, strict=True
    ):
        assert rows_of(ours) == rows_of(theirs)
    with pytest.raises(Failure):
        list(windows(Source(conf, "train"), features_of(conf)))
    beyond = replace(unit, end=metadata.num_row_groups + 1)
    with pytest.raises(Failure, match=r"row groups, and .* are to be read"):
        list(windows(Source(conf, "train"), features_of(conf), unit=beyond))


def test_a_bad_row_of_a_unit_is_named_by_its_place_in_the_file(tmp_path):
    rows = {"a": ["x"] * 90, "b": ["y"] * 90, "y": [0] * 80 + [7] + [1] * 9, "n": [1.0] * 90}
    pq.write_table(pa.table(rows), tmp_path / "some.parquet", row_group_size=10)
    conf = conf_of(tmp_path, "parquet", "some.parquet")
    [*_, last] = Source(conf, "train").units(2)
    with pytest.raises(Failure, match=r"some.parquet, row 81: the label"):
        list(windows(Source(conf, "train"), features_of(conf), unit=last))


def test_a_unit_may_have_no_row(tmp_path):
    conf = WORLDS["files"](tmp_path)
    for number in (0, 2, 4):
        (tmp_path / f"part-{number}.csv").write_text("a,b,y,n\n")
    expected = whole(conf)
    for workers in (2, 3):
        run = Run(conf, Position(), workers).steps(2)
        assert run.rows + Run(conf, run.close(), 2).steps().rows == expected
    for number in (1, 3):
        (tmp_path / f"part-{number}.csv").write_text("a,b,y,n\n")
    assert not Run(conf, Position(), 2).steps().rows
    with pytest.raises(EmptyError) as alone:
        whole(conf)
    assert str(none_left(Source(conf, "train"), Skipped("train", 0))) == str(alone.value)


def test_too_few_units_are_reported(tmp_path):
    def words(conf, workers, position=None):
        place = PassPosition(conf, position or Position(), workers, Skipped("train", 0))
        return Source(conf, "train").too_few(workers, place.remainders)

    text = conf_of(tmp_path, "csv", write_csv(tmp_path, 1))
    assert words(text, 2) == (
        f"data.train ({tmp_path}/part-0.csv) has 1 part for 2 workers. Workers without data: 1. "
        "Write it as 2 files or more of about the same size, or as Parquet, or train with fewer "
        "workers"
    )
    assert "in the rest of this pass. Workers that wait for the next one: 2" in words(
        text, 3, Position(window=1)
    )
    assert words(text, 1) is None
    table = conf_of(tmp_path, "parquet", write_parquet(tmp_path, 1, 400))
    assert "at least 3 row groups" in words(table, 3)
    assert words(table, 2) is None
    assert "Name more rows" in words(conf_of(tmp_path, "generated", "5:7"), 3)
    folder = tmp_path / "prepared"
    folder.mkdir()
    assert "smaller data.window" in words(WORLDS["prepared"](folder), 40)


def test_data_that_is_cut_otherwise_is_refused(tmp_path):
    conf = conf_of(tmp_path, "parquet", write_parquet(tmp_path, 1, 40))
    position = Run(conf, Position(), 3).steps(2).close()
    write_parquet(tmp_path, 1, 50)
    with pytest.raises(Failure, match=r"is cut into 1\d units, and was cut into 12 others"):
        PassPosition(conf, position, 3, Skipped("train", 0))
    secret = Unit(0, "s3://user:password@bucket/a")
    assert checksum([secret]) == checksum([Unit(0, "s3://bucket/a")])


def test_records_of_units_against_sets():
    draws = random.Random(7)
    for _ in range(200):
        count = draws.randint(1, 30)
        start = UnitsRecord(workers=3, count=count, sha256="0" * 64)
        kept, done, begun = UnitsProgress(start), {}, {}
        for unit in draws.sample(range(count), draws.randint(0, count)):
            kept.add(Progress(unit, 1, 5))
            begun[unit] = (1, 5)
            if draws.random() < 0.7:
                done[unit] = draws.randint(0, 3)
                kept.add(Progress(unit, 2, 0, ((unit, done[unit]),)))
                del begun[unit]
        record = kept.record()
        ranges = {unit for first, last in record.done for unit in range(first, last + 1)}
        assert ranges == set(done)
        assert all(b[0] - a[1] > 1 for a, b in zip(record.done, record.done[1:], strict=False))
        assert {unit: place for unit, *place in record.open} == {
            unit: list(place) for unit, place in begun.items()
        }
        assert record.skipped == sum(done.values())
        cut = [Unit(index, f"f{index}") for index in range(count)]
        left = remaining(cut, record)
        assert [rest.unit.index for rest in left] == sorted(begun) + sorted(
            set(range(count)) - set(done) - set(begun)
        )
        position = Position("2024-01-01", 1, passes=3, units=record)
        assert stored(position) == position


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("workers", 0, "units.workers"),
        ("count", 0, "units.count"),
        ("sha256", "00", "units.sha256"),
        ("skipped", -1, "units.skipped"),
        ("done", [[-1, 1]], "units.done"),
        ("open", [[5, 0, 2**32]], "units.open"),
    ],
)
def test_wrong_records_are_refused(key, value, words):
    record = {
        "workers": 3, "count": 9, "sha256": "a" * 64, "skipped": 0, "done": [[0, 3]],
        "open": [[5, 1, 2]],
    }  # fmt: skip
    position = {"day": None, "epoch": 0, "window": 0, "offset": 0, "passes": 0}
    text = json.dumps({**position, "units": record})
    assert documents.plain(documents.parse(Position, text.encode()))["units"] == record
    with pytest.raises(DocumentError) as refused:
        text = json.dumps({**position, "units": record | {key: value}})
        documents.parse(Position, text.encode())
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["files", "parquet", "bad"])
def test_a_split_is_scored_by_units(tmp_path, monkeypatch, name):
    from tnctl.evaluation import split_scoring

    conf = WORLDS[name](tmp_path)
    monkeypatch.setattr(split_scoring, "features_of", lambda conf, *_, **__: features_of(conf))

    class Inference(SimpleNamespace):
        def __call__(self, batch):
            return batch.numeric[:, :1] * 2

    inference = Inference(model=SimpleNamespace(conf=conf, trained_heads=["y"], heads=["y"]))
    alone = split_scoring.score(inference, conf, "train")
    for workers in (2, 3):
        cut = Source(conf, "train").units(workers)
        scored, skipped = {}, []
        for rank in range(workers):
            skipped.append(Skipped("train", conf.data.bad_rows))
            of_rank = cut[rank::workers]
            part, rows = split_scoring.score_units(inference, conf, "train", of_rank, skipped[-1])
            ends = np.cumsum(rows)
            assert len(rows) == len(of_rank) and ends[-1] == len(part.labels)
            for unit, end, count in zip(of_rank, ends, rows, strict=True):
                scored[unit.index] = part, slice(end - count, end)
        for array in ("logits", "labels", "reference"):
            in_order = [
                getattr(part, array)[span]
                for part, span in (scored[index] for index in range(len(cut)))
            ]
            assert b"".join(values.tobytes() for values in in_order) == (
                getattr(alone, array).tobytes()
            )
        assert sum(part.rows for part in skipped) == (len(BAD) if name == "bad" else 0)
