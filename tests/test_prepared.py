"""Prepared data: the same windows, the same model, and refused where it does not belong."""

import dataclasses
import hashlib
import importlib
import json
import shutil
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tnctl import documents, files, manifest, schema
from tnctl.data import preparing, statistics
from tnctl.data.arrow_tables import raw_rows
from tnctl.data.features import Features
from tnctl.data.formats import prepared_files
from tnctl.data.formats.prepared_files import PreparedManifest
from tnctl.data.sources import Source
from tnctl.data.windows import count_hint, windows
from tnctl.errors import Failure, UserError
from tnctl.schema import Conf, Data, Label, Numeric, Slot, Split, Time, Train

GOLDEN = Path(__file__).parent / "golden"
SLOTS = {
    "plain": Slot(),
    "gaps": Slot(column="gap"),
    "filled": Slot(column="gap", missing="value"),
    "many": Slot(separator="|", max_length=3),
    "weighed": Slot(column="many", separator="|", weights="amounts"),
    "sequence": Slot(column="many", separator="|", pooling="none", max_length=2, keep="last"),
    "number": Slot(ids="integer"),
    "bucket": Slot(column="x", ids="quantiles", buckets=5),
    "bucket_of_rows": Slot(column="x", ids="row_quantiles", buckets=5),
    "pair": Slot(cross=["plain", "number"]),
    "one_hot": Slot(column="number", ids="integer", size=4, indicator=True),
}
NUMERIC = {
    "score": Numeric(column="x", transform="standardize"),
    "vector": Numeric(separator=" ", width=2, default=0.5),
}
LABELS = {"click": Label(column="click"), "long": Label(column="planted", above=0.5)}


def write_rows(path, first, n):
    """Rows with everything missing now and then."""
    lines = ["plain,gap,many,amounts,number,x,vector,click,w,planted,user"]
    for row in range(first, first + n):
        rng = np.random.default_rng(row)
        count = int(rng.integers(0, 5))
        many = "|".join(f"m{v}" for v in rng.integers(0, 20, count))
        amounts = "|".join(f"{v / 8}" for v in rng.integers(1, 9, count))
        gap = "" if row % 7 == 0 else f"g{rng.integers(0, 9)}"
        fields = [
            f"p{rng.integers(0, 50)}", gap, many, amounts, rng.integers(0, 9),
            rng.normal() if row % 5 else "", f"{rng.random():.3f} 2", rng.integers(0, 2),
            rng.integers(0, 3), f"{rng.random():.6f}", f"u{rng.integers(0, 6)}",
        ]  # fmt: skip
        lines.append(",".join(map(str, fields)))
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def conf(tmp_path):
    for split, first in (("train", 0), ("validation", 1000), ("test", 2000)):
        write_rows(tmp_path / f"{split}.csv", first, 230 if split == "train" else 90)
    return Conf(
        recipe={"name": "lr"},
        slots=dict(SLOTS),
        numeric=dict(NUMERIC),
        data=Data(
            root=str(tmp_path),
            train="train.csv",
            validation="validation.csv",
            test="test.csv",
            labels=dict(LABELS),
            weight="w",
            reference="planted",
            group="user",
            carry=["user", "gap"],
            window=32,
        ),
        train=Train(batch_size=16),
    )


def changed(conf, **data):
    return dataclasses.replace(conf, data=dataclasses.replace(conf.data, **data))


def features_of(conf, **options):
    tables = [
        (["plain", "gaps", "filled", "many", "number", "bucket", "pair"], [1] * 7),
        (["weighed"], [1]),
        (["sequence"], [2]),
    ]
    return Features(conf, tables, statistics.measure(conf), **options)


def same(a, b):
    assert type(a) is type(b)
    if a is None:
        return
    if isinstance(a, list):
        assert len(a) == len(b)
        for value, other in zip(a, b, strict=True):
            same(value, other)
    elif isinstance(a, pa.Table):
        assert a.to_pylist() == b.to_pylist()
    else:
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.tobytes() == b.tobytes()


def same_windows(conf, other, split, **options):
    """Whether two confs give the same bytes; how many windows."""
    read = list(windows(Source(conf, split), features_of(conf, **options)))
    others = list(windows(Source(other, split), features_of(other, **options)))
    assert len(read) == len(others)
    for a, b in zip(read, others, strict=True):
        for field in dataclasses.fields(a):
            same(getattr(a, field.name), getattr(b, field.name))
    return len(read)


@pytest.mark.parametrize("root", ["local", "memory"])
def test_windows_are_those_of_the_files(conf, tmp_path, root):
    folder = str(tmp_path / "to") if root == "local" else f"memory://to-{uuid.uuid4().hex}"
    preparing.prepare(conf, folder)
    prepared = changed(conf, prepared=folder)
    for split, expected in (("train", 8), ("validation", 3), ("test", 3)):
        assert same_windows(conf, prepared, split) == expected
        assert count_hint(Source(prepared, split)) == (230 if split == "train" else 90)
        assert raw_rows(Source(prepared, split), 50) == raw_rows(Source(conf, split), 50)
    assert same_windows(conf, prepared, "test", labelled=False) == 3
    assert same_windows(conf, prepared, "test", carry=["gap"]) == 3
    measured = statistics.measure(prepared)
    assert measured == statistics.measure(conf)
    # Nothing of the files is read any more.
    gone = changed(prepared, root=None)
    for split in ("train", "validation", "test"):
        (tmp_path / f"{split}.csv").unlink()
    assert len(list(windows(Source(gone, "train"), features_of(gone)))) == 8


@pytest.mark.parametrize(("window", "batch_size"), [(1, 8), (100, 16), (10_000, 64)])
def test_windows_of_other_sizes(conf, tmp_path, window, batch_size):
    preparing.prepare(conf, str(tmp_path / "to"))
    conf = dataclasses.replace(changed(conf, window=window), train=Train(batch_size=batch_size))
    same_windows(conf, changed(conf, prepared=str(tmp_path / "to")), "train")


def test_negatives_are_chosen_when_reading(conf, tmp_path):
    conf = changed(conf, labels={}, label=Label(column="click"), negatives=0.4)
    preparing.prepare(conf, str(tmp_path / "to"))
    prepared = changed(conf, prepared=str(tmp_path / "to"))
    assert manifest.read(prepared.data.prepared, PreparedManifest).splits["train"].rows == 230
    windows_left = same_windows(conf, prepared, "train")
    assert windows_left < 8
    more = [changed(source, negatives=0.8) for source in (conf, prepared)]
    assert same_windows(*more, "train") > windows_left


def test_bad_rows_are_left_out_and_told(conf, tmp_path):
    with (tmp_path / "train.csv").open("a") as out:
        out.write("p1,g1,m1,1,notanumber,1,1 2,1,1,0.5,u1\n" + "p1,g1,m1,1,1,1,1 2,7,1,0.5,u1\n")
    with pytest.raises(Failure, match=r"train\.csv, (line|row) 232"):
        preparing.prepare(conf, str(tmp_path / "to"))
    assert not files.exists(str(tmp_path / "to" / "manifest.json"))
    conf = changed(conf, bad_rows=2)
    preparing.prepare(conf, str(tmp_path / "to"))
    train = manifest.read(str(tmp_path / "to"), PreparedManifest).splits["train"]
    assert (train.rows, train.skipped) == (230, 2)
    prepared = changed(conf, prepared=str(tmp_path / "to"))
    same_windows(conf, prepared, "train")
    # Negatives are chosen by the number of the row among those that can be read.
    one_label = {"labels": {}, "label": Label(column="click"), "negatives": 0.5}
    conf = changed(conf, **one_label)
    preparing.prepare(conf, str(tmp_path / "to"))
    same_windows(conf, changed(prepared, **one_label), "train")


def test_a_stranger_reads_it(conf, tmp_path):
    """By docs/formats/prepared.md, without tnctl."""
    preparing.prepare(conf, str(tmp_path / "to"))
    content = json.loads((tmp_path / "to" / "manifest.json").read_bytes())
    assert content["format"] == "tnctl prepared"
    assert content["version"] == 1
    for split, part in content["splits"].items():
        assert set(part["parts"]) | {part["first"]} <= set(content["files"])
        tables = [pq.read_table(tmp_path / "to" / name) for name in part["parts"]]
        assert sum(len(table) for table in tables) == part["rows"]
        [window] = windows(Source(changed(conf, window=1000), split), features_of(conf))
        column = [row for table in tables for row in table["ids_sequence"].to_pylist()]
        sequence = np.diff(window.offsets[2]).reshape(-1, 2).sum(axis=1)
        assert [len(ids or []) for ids in column] == sequence.tolist()
        assert [id_ for ids in column for id_ in ids or []] == window.ids[2].tolist()
        numbers = b"".join(value for table in tables for value in table["numeric"].to_pylist())
        assert numbers == window.numeric.tobytes()
        for number, name in enumerate(conf.data.labels):
            column = [row for table in tables for row in table[f"label_{name}"].to_pylist()]
            assert column == window.labels[:, number].tolist()
        first = json.loads((tmp_path / "to" / part["first"]).read_text())
        assert len(first) == part["rows"]
    names = {field.name for field in tables[0].schema}
    assert names == {
        *(f"ids_{name}" for name in SLOTS if name != "one_hot"), "weights_weighed", "numeric",
        "label_click", "label_long", "weight", "reference", "group", "carry_user", "carry_gap",
    }  # fmt: skip


def test_the_golden_files_are_read(monkeypatch):
    """What tests/golden/make.py wrote once: the rows of clicks.csv."""
    monkeypatch.syspath_prepend(str(GOLDEN))
    monkeypatch.chdir(GOLDEN)
    conf = schema.from_values(importlib.import_module("make").CONF)
    prepared = changed(conf, prepared="prepared")
    read = []
    for source in (conf, prepared):
        features = Features(source, [(list(conf.slots), [1] * 5)], statistics.measure(source))
        read += windows(Source(source, "train"), features)
    assert len(read) == 2
    for field in dataclasses.fields(read[0]):
        same(getattr(read[0], field.name), getattr(read[1], field.name))
    assert raw_rows(Source(prepared, "train"), 9) == raw_rows(Source(conf, "train"), 9)


def test_keys_that_are_newer_than_the_data_are_at_their_defaults(conf, tmp_path):
    preparing.prepare(conf, str(tmp_path / "to"))
    content = json.loads((tmp_path / "to" / "manifest.json").read_text())
    del content["sha256"], content["conf"]["slots"]["plain"]["keep"]
    del content["conf"]["numeric"]["score"]["clip"], content["conf"]["data"]["pairs"]
    (tmp_path / "to" / "manifest.json").write_bytes(manifest.sealed(content))
    prepared_files.open_folder(changed(conf, prepared=str(tmp_path / "to")))

    times = {"user": Time(format="%d.%m.%Y")}
    conf = dataclasses.replace(conf, slots={"hour": Slot(column="user", ids="hour")})
    conf = changed(conf, times=times, split=Split(validation=0.1), validation=None)
    content["conf"] = documents.plain(prepared_files.deciding(conf))
    data = content["conf"]["data"]
    del data["times"]["user"]["offset"], data["split"]["seed"]
    del data["labels"]["long"]["positive"]
    (tmp_path / "to" / "manifest.json").write_bytes(manifest.sealed(content))
    conf = changed(conf, prepared=str(tmp_path / "to"))
    prepared_files.open_folder(conf)
    with pytest.raises(UserError, match=r"keys differ: data.times.user.offset, data.split.seed\."):
        prepared_files.open_folder(
            changed(
                conf,
                times={"user": Time(format="%d.%m.%Y", offset="+01:00")},
                split=Split(validation=0.1, seed=3),
            )
        )


def test_columns_are_as_narrow_as_their_rows(tmp_path):
    """One id in every row, then none or one, then many: a new file each time, and no way back."""
    texts = ["a"] * 8 + ["a", ""] * 4 + ["a|b", ""] * 4 + ["a"] * 8
    rows = "".join(f"{text},x,1\n" for text in texts)
    (tmp_path / "a.csv").write_text("s,t,label\n" + rows)
    conf = Conf(
        recipe={"name": "lr"},
        slots={"s": Slot(separator="|"), "t": Slot()},
        data=Data(root=str(tmp_path), train="a.csv", window=8),
        train=Train(batch_size=8),
    )
    preparing.prepare(conf, str(tmp_path / "to"))
    parts = manifest.read(str(tmp_path / "to"), PreparedManifest).splits["train"].parts
    fields = [pq.read_schema(tmp_path / "to" / name).field("ids_s") for name in parts]
    assert [field.type for field in fields] == [pa.uint64(), pa.uint64(), pa.list_(pa.uint64())]
    assert [field.nullable for field in fields[:2]] == [False, True]
    read = []
    for source in (conf, changed(conf, prepared=str(tmp_path / "to"))):
        features = Features(source, [(["s", "t"], [1, 1])], statistics.measure(source))
        read.append(list(windows(Source(source, "train"), features)))
    for a, b in zip(*read, strict=True):
        same([*a.ids, *a.offsets], [*b.ids, *b.offsets])


# ---- Refusals


def other_slot(conf, name, **keys):
    slots = {**conf.slots, name: dataclasses.replace(conf.slots[name], **keys)}
    return dataclasses.replace(conf, slots=slots)


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        (lambda c: other_slot(c, "plain", seed=1), ["slots.plain.seed"]),
        (lambda c: other_slot(c, "many", pooling="none"), ["slots.many.sequence"]),
        (lambda c: changed(c, missing=["", "-"]), ["data.missing"]),
        (lambda c: changed(c, train="other.csv", strip=True), ["data.strip", "data.train"]),
        (lambda c: changed(c, weight=None), ["data.weight"]),
        (
            lambda c: changed(c, labels={**LABELS, "long": Label(column="planted", above=0.6)}),
            ["data.labels.long.above"],
        ),
        (
            lambda c: dataclasses.replace(
                c, numeric={**NUMERIC, "score": Numeric(column="x", transform="log1p")}
            ),
            ["numeric.score.transform"],
        ),
        (
            lambda c: dataclasses.replace(c, slots={**c.slots, "new": Slot(column="plain")}),
            ["slots.new"],
        ),
    ],
)
def test_another_conf_is_refused(conf, tmp_path, change, keys):
    preparing.prepare(conf, str(tmp_path / "to"))
    other = change(changed(conf, prepared=str(tmp_path / "to")))
    with pytest.raises(UserError, match="prepared with another conf") as caught:
        prepared_files.open_folder(other)
    assert f"differ: {', '.join(keys)}. " in str(caught.value)


def test_what_may_differ(conf, tmp_path):
    preparing.prepare(changed(conf, test=None), str(tmp_path / "to"))
    conf = changed(conf, prepared=str(tmp_path / "to"), root=None, window=77, shuffle=False)
    with pytest.raises(UserError, match=r"differ: data\.test"):
        prepared_files.open_folder(conf)
    conf = other_slot(changed(conf, test=None, validation=None), "plain", pooling="mean", width=3)
    conf = dataclasses.replace(conf, seed=9, train=Train(batch_size=5))
    prepared_files.open_folder(conf)


def test_folders_that_are_not_whole(conf, tmp_path):
    folder = tmp_path / "to"
    prepared = changed(conf, prepared=str(folder))
    with pytest.raises(Failure, match=r"has no manifest\.json"):
        prepared_files.open_folder(prepared)
    preparing.prepare(conf, str(folder))
    with pytest.raises(UserError, match="prepared already"):
        preparing.prepare(prepared, str(tmp_path / "again"))
    [part] = sorted((folder / "train").glob("*.parquet"))[:1]
    whole = part.read_bytes()
    part.write_bytes(whole[:-100])
    with pytest.raises(Failure, match="cut short or too long"):
        list(windows(Source(prepared, "train"), features_of(prepared)))
    middle = len(whole) // 2
    part.write_bytes(whole[:middle] + bytes(64) + whole[middle + 64 :])
    with pytest.raises(Failure, match=r"is not a whole Parquet file .*\. Prepare the data again$"):
        list(windows(Source(prepared, "train"), features_of(prepared)))
    part.unlink()
    with pytest.raises(Failure, match="was not found"):
        list(windows(Source(prepared, "train"), features_of(prepared)))


def lists(array, kind):
    return pa.array([[value] for value in array.to_pylist()], pa.list_(kind))


COLUMNS = {
    "no ids": ("ids_plain", None, "should be there once"),
    "ids of another type": ("ids_plain", lambda old: old.cast(pa.int64(), safe=False), "int64"),
    "texts": ("ids_many", lambda old: pa.array(["x"] * len(old)), "lists of it. It has string"),
    "lists of numbers": ("ids_plain", lambda old: lists(pa.nulls(len(old)), pa.float64()),
                         "lists of it"),
    "nulls in lists": ("ids_plain", lambda old: lists(pa.nulls(len(old)), pa.uint64()),
                       "a value in every row"),
    "fewer weights": ("weights_weighed", lambda old: pa.array([[1.0]] * len(old), pa.list_(
        pa.float32())), "a weight for each id"),
    "wide numbers": ("numeric", lambda old: pa.array([b"1234" * 99] * len(old), pa.binary(396)),
                     "99 numbers in each row"),
    "odd numbers": ("numeric", lambda old: pa.array([b"123"] * len(old), pa.binary(3)), "4 bytes"),
    "a label beyond 1": ("label_click", lambda old: pa.array([2.0] * len(old), pa.float32()),
                         "labels from 0 to 1"),
    "a label of no number": ("label_click", lambda old: pa.array([np.nan] * len(old), pa.float32()),
                             "labels from 0 to 1"),
    "no label": ("label_long", None, "should be there once"),
    "a negative weight": ("weight", lambda old: pa.array([-1.0] * len(old), pa.float32()),
                          "at least 0"),
    "a group as text": ("group", lambda old: pa.array(["g"] * len(old)), "should be uint64"),
    "null references": ("reference", lambda old: pa.nulls(len(old), pa.float64()), "every row"),
}  # fmt: skip


def test_columns_that_nothing_of_tnctl_wrote(conf, tmp_path):
    """Parquet files of hostile columns, whose sizes and checksums the manifest has."""
    folder = tmp_path / "to"
    preparing.prepare(changed(conf, validation=None, test=None), str(folder))
    [part] = sorted((folder / "train").glob("*.parquet"))[:1]
    whole = pq.read_table(part)
    content = json.loads((folder / "manifest.json").read_text())
    prepared = changed(conf, prepared=str(folder), validation=None, test=None)
    features = features_of(prepared)
    for case, (name, change, said) in COLUMNS.items():
        column = whole.column(name).combine_chunks()
        table = whole.remove_column(whole.column_names.index(name))
        if change is not None:
            table = table.append_column(name, change(column))
        pq.write_table(table, part)
        data = part.read_bytes()
        entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        content["files"][part.relative_to(folder).as_posix()] = entry
        content.pop("sha256", None)
        (folder / "manifest.json").write_bytes(manifest.sealed(content))
        with pytest.raises(Failure) as caught:
            list(windows(Source(prepared, "train"), features))
        line = str(caught.value)
        assert said in line and name in line and line.endswith("Prepare the data again"), case


# ---- From outside


UNLIKE = ("manifest.json", "conf.json", "fingerprint.pb")


def checkpoint_files(run: Path):
    """Every file of the checkpoints, but what names the conf, and a random number of TensorFlow."""
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in sorted((run / "checkpoints").rglob("*"))
        if path.is_file() and path.name not in UNLIKE
    }


def test_training_gives_the_same_bytes(workspace, copied_process, ran):
    done = ran("prepare", "conf=small.yaml", "to=prepared", cwd=workspace)
    assert "data.prepared=prepared" in done.err
    command = ("train", "conf=small.yaml", "train.deterministic=true")
    assert copied_process(*command, "output=a", cwd=workspace).code == 0
    shutil.rmtree(workspace / "clicks")
    prepared = ("data.prepared=prepared", "data.root=null")
    done = copied_process(*command, "output=b", *prepared, cwd=workspace)
    assert done.code == 0, done.err
    assert checkpoint_files(workspace / "a") == checkpoint_files(workspace / "b")
    reports = [json.loads((workspace / run / "report.json").read_text()) for run in "ab"]
    for report in reports:
        report.pop("timing")
    assert reports[0] == reports[1]
