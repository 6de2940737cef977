"""Exports beside what the tables read: filters, precision, deltas, refusals."""

import json
import struct
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from dataless_runs import Run, conf_of

from tnctl import manifest
from tnctl.checkpoint import rows
from tnctl.checkpoint.chain import open_checkpoint
from tnctl.checkpoint.compaction import compact
from tnctl.errors import Failure, UserError
from tnctl.serving.rows import export as exporting
from tnctl.serving.rows import precision as precisions
from tnctl.serving.rows import row_formats, selection
from tnctl.serving.rows.embeddings import open_embeddings
from tnctl.serving.rows.export_document import ExportManifest, Filter, GroupRows
from tnctl.serving.rows.precision import RowShape, decode, encode, parted
from tnctl.serving.rows.selection import Wanted, select
from tnctl.tables.columns import group_salt, mix64

# What a row reads changes although nobody touches it: every step, and every day.
CHANGING = {
    "life": {
        "shows": {"keep": True, "decay": 0.5, "cvm": True},
        "eviction": {"unseen_steps": 6},
    },
    "optimizer": {"embedding": {"name": "adagrad", "lazy_l2": 0.002}},
}
LIVES = {"plain": {}, "changing": CHANGING}
FILTERS = {
    "all": Filter(),
    "slots": Filter(slots=("last_item",)),
    "show": Filter(min_show=1.0),
    "top": Filter(top=9),
    "both": Filter(min_show=0.6, top=12),
}


def export(folder, run, to, **more):
    return exporting.export(open_checkpoint(str(folder)), run.conf, str(to), golden=0, **more)


def history(output, conf_more, stops=4):
    """A run of some days, and its checkpoints: [(folder, rows as they read then)]."""
    run = Run(conf_of(output, save={"full_every": 2}, **conf_more))
    snapshots = []
    for day in range(stops):
        run.days.append((10 + day, run.steps + 1))
        for table in run.model.tables:
            table.set_days(run.days)
        run.train(3)
        run.evict()
        # These runs have no golden rows: nothing here is served.
        snapshots.append((run.save(golden=[]), as_read(run)))
    return run, snapshots


def as_read(run):
    """{group: {id: (show, floats)}}, by looking up one key after the other."""
    rows_ = {}
    for layout, table in zip(run.model.layout.tables, run.model.tables, strict=True):
        decay = {name: run.conf.life_of(name).shows.decay for name in layout.groups}
        for name, number in layout.groups.items():
            rows_[name] = {}
            for id_ in range(60):
                if (floats := table.lookup(number, id_)) is not None:
                    rows_[name][id_] = (0.0, floats)
        if layout.kind.shows:
            names = {number: name for name, number in layout.groups.items()}
            firsts = [first for _, first in run.days]
            for record in np.concatenate(list(table.records())).tolist():
                row = dict(zip(table.record_dtype.names, record, strict=True))
                day = np.searchsorted(firsts, row["changed"], side="right") - 1
                unseen = run.days[-1][0] - run.days[max(day, 0)][0]
                name = names[row["group"]]
                show = float(row["show"][0]) * decay[name] ** unseen
                rows_[name][row["id"]] = (show, rows_[name][row["id"]][1])
    return rows_


def passing(state, run, filter):
    """The same, of the rows that a filter lets through, without shows."""
    chosen = {}
    slots = filter.slots or tuple(run.conf.slots)
    for name in {run.conf.slots[slot].group or slot for slot in slots}:
        order = sorted(state[name], key=lambda id_: (-state[name][id_][0], hash_of(name, id_)))
        kept = [id_ for id_ in order if state[name][id_][0] >= (filter.min_show or 0)]
        top = order[: filter.top]
        chosen[name] = {id_: state[name][id_][1] for id_ in kept if id_ in top}
    return chosen


def hash_of(group, id_):
    return int(mix64(np.array([id_], np.uint64) ^ np.uint64(group_salt(group)))[0])


def stored(shape, floats):
    """Floats as they come back from a precision, one weight after the other."""
    linear, embedding, counts = (part[0] for part in parted(floats[np.newaxis], shape))
    if shape.precision == "float16":
        embedding = [struct.unpack("<e", struct.pack("<e", weight))[0] for weight in embedding]
    if shape.precision == "int8":
        scale = np.float32(max(map(abs, embedding), default=0)) / np.float32(127)
        steps = [round(float(weight / scale)) if scale else 0 for weight in embedding]
        embedding = [np.float32(step) * scale for step in steps]
    return np.array([*linear, *embedding, *counts], np.float32)


def check_equal(url, expected):
    """An export has the rows of {group: {id: floats}} and no others, bit by bit."""
    embeddings = open_embeddings(str(url))
    assert set(embeddings.groups) == set(expected)
    ids = np.arange(60, dtype=np.uint64)
    for name, shape in embeddings.groups.items():
        payload, known = embeddings.lookup(name, ids)
        assert sorted(ids[known].tolist()) == sorted(expected[name])
        for id_, floats in expected[name].items():
            assert payload[id_].tobytes() == stored(shape, floats).tobytes(), (name, id_)
    embeddings.close()


# ---- Full exports -----------------------------------------------------------


@pytest.fixture(scope="module")
def lives(tmp_path_factory):
    """Runs of some days, by the names of LIVES; nobody writes there."""
    folder = tmp_path_factory.mktemp("lives")
    return {name: history(folder / name, more) for name, more in LIVES.items()}


@pytest.mark.parametrize("precision", ["float16", "int8"])
@pytest.mark.parametrize("encoding", ["parquet", "dictionary"])
def test_lower_precision_and_its_error(lives, tmp_path, precision, encoding):
    run, checkpoints = lives["changing"]
    folder, state = checkpoints[-1]
    content = export(folder, run, tmp_path / "a", encoding=encoding, precision=precision)
    check_equal(tmp_path / "a", passing(state, run, Filter()))
    for entry in content.groups:
        shape = RowShape(entry.linear, entry.width, entry.cvm, precision)
        exact = np.array([floats for _, floats in state[entry.group].values()])
        kept = np.array([stored(shape, floats) for floats in exact])
        apart = np.abs(kept.astype(float) - exact)
        assert entry.error.max == apart.max() > 0
        weights = apart[:, 1 : 1 + shape.width]
        assert entry.error.rms == pytest.approx(np.sqrt((weights**2).mean()))
        assert entry.error.max <= entry.error.bound
        largest = np.abs(exact[:, 1 : 1 + shape.width]).max()
        half = largest / 254 if precision == "int8" else largest / 2048
        assert half / 2 < entry.error.bound <= half * 1.001


@pytest.mark.parametrize("name", [name for name in FILTERS if name != "all"])
def test_a_filter_lets_through_what_it_says(lives, tmp_path, name):
    run, checkpoints = lives["changing"]
    folder, state = checkpoints[-1]
    expected = passing(state, run, FILTERS[name])
    content = export(folder, run, tmp_path / "a", filter=FILTERS[name])
    check_equal(tmp_path / "a", expected)
    assert content.filter == FILTERS[name]
    assert {entry.group: entry.rows for entry in content.groups} == {
        group: len(rows_of_group) for group, rows_of_group in expected.items()
    }
    everything = passing(state, run, Filter())
    assert sum(map(len, expected.values())) < sum(map(len, everything.values()))
    assert all(slot.group in expected for slot in content.slots)


def test_selecting_of_many_with_equal_shows(monkeypatch):
    monkeypatch.setattr(selection, "SPARE", 7)
    rng = np.random.default_rng(3)
    for top in (1, 2, 5, 40, 99, 100, 101):
        shows = rng.integers(0, 6, 100).astype(float)
        hashes = np.sort(rng.integers(0, 2**63, 100, dtype=np.uint64))
        best = selection.TopRows(top)
        for first in range(0, 100, 9):
            best.add(shows[first : first + 9], hashes[first : first + 9])
        last = sorted(zip(-shows, hashes, strict=True))[min(top, 100) - 1]
        threshold = best.threshold()
        if top >= 100:
            assert threshold is None
        else:
            assert (threshold.show, threshold.hash) == (-last[0], str(last[1]))


@pytest.mark.parametrize("encoding", ["parquet", "text", "dictionary"])
def test_bytes_do_not_depend_on_how_rows_come(lives, tmp_path, monkeypatch, encoding):
    """A chain or the full checkpoint that it amounts to, read in large parts or small ones."""
    run, checkpoints = lives["changing"]
    folder = checkpoints[-1][0]
    assert open_checkpoint(folder).manifest.parent is not None
    compact(open_checkpoint(folder), str(tmp_path / "compact"))
    sessions = open_checkpoint(str(tmp_path / "compact")).sessions
    assert sessions == open_checkpoint(folder).sessions != ()
    monkeypatch.setattr(row_formats.BlockFormat, "rows_per_block", 8)
    contents = [export(folder, run, tmp_path / "a", encoding=encoding)]
    monkeypatch.setattr(rows, "BYTES_PER_READ", 200)
    contents.append(export(tmp_path / "compact", run, tmp_path / "b", encoding=encoding))
    assert contents[0].files == contents[1].files
    assert all(entry.bytes for entry in contents[0].files.values())


# ---- Deltas -----------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["parquet", "text", "dictionary"])
@pytest.mark.parametrize("life", LIVES)
def test_deltas_over_a_full_export_are_a_full_export(lives, tmp_path, life, encoding):
    run, checkpoints = lives[life]
    since = None
    for number, (folder, state) in enumerate(checkpoints):
        to = tmp_path / str(number)
        content = export(folder, run, to, encoding=encoding, since=since)
        check_equal(to, passing(state, run, Filter()))
        assert content.number == number
        if number:
            assert content.kind == "delta"
            assert content.base.folder == str(number - 1)
        since = str(to)


@pytest.mark.parametrize("precision", precisions.PRECISIONS)
@pytest.mark.parametrize("name", FILTERS)
def test_a_delta_is_what_differs(lives, precision, name):
    """Of any two checkpoints: no row that reads the same, and all that do not."""
    run, checkpoints = lives["changing"]
    opened = [(open_checkpoint(folder), state) for folder, state in checkpoints]
    for first, last in ((0, 1), (1, 2), (0, 3), (2, 3), (3, 3)):
        (base, was), (checkpoint, now) = opened[first], opened[last]
        filter, old = FILTERS[name], {}
        selected = select(base, run.conf.slots, Wanted(filter, precision))
        since = exporting.described(
            exporting.ExportRequest(
                checkpoint=base,
                conf=run.conf,
                encoding="parquet",
                precision=precision,
                filter=filter,
                golden=0,
            ),
            [GroupRows(**exporting.group_fields(group)) for group in selected.groups],
        )
        for part in selected.parts():
            assert part.removed is None
            payload = encode(part.rows, part.group.shape)
            for id_, row in zip(part.ids.tolist(), payload, strict=True):
                old[part.group.name, id_] = row.tobytes()
        delta = select(checkpoint, run.conf.slots, Wanted(filter, precision, since))
        after, counts = dict(old), {}
        changed = {
            (group, id_)
            for group, rows_of_group in now.items()
            for id_ in rows_of_group
            if id_ not in was[group]
            or was[group][id_][1].tobytes() != rows_of_group[id_][1].tobytes()
        }
        for part in delta.parts():
            assert (part.hashes[1:] > part.hashes[:-1]).all()
            removed = np.zeros(len(part.ids), bool) if part.removed is None else part.removed
            assert not part.rows[removed].any()
            gone, there = counts.get(part.group.name, (0, 0))
            more = int(removed.sum())
            counts[part.group.name] = gone + more, there + len(removed) - more
            payload = encode(part.rows, part.group.shape)
            for id_, out, row in zip(part.ids.tolist(), removed, payload, strict=True):
                key = part.group.name, id_
                if out:
                    after.pop(key, None)
                else:
                    # Nothing is told again that nobody has changed.
                    assert key in changed or key not in old, key
                    after[key] = row.tobytes()
        for group in delta.groups:
            assert counts.get(group.name, (0, 0)) == (group.removed, group.rows)
        expected = {}
        for part in select(checkpoint, run.conf.slots, Wanted(filter, precision)).parts():
            payload = encode(part.rows, part.group.shape)
            for id_, row in zip(part.ids.tolist(), payload, strict=True):
                expected[part.group.name, id_] = row.tobytes()
        assert after == expected


def test_an_empty_delta(lives, tmp_path):
    run, checkpoints = lives["changing"]
    folder, state = checkpoints[0]
    export(folder, run, tmp_path / "a")
    content = export(folder, run, tmp_path / "b", since=str(tmp_path / "a"))
    assert all(entry.rows == 0 for entry in content.groups)
    check_equal(tmp_path / "b", passing(state, run, Filter()))


def test_a_delta_elsewhere_names_its_base_by_its_path(lives, tmp_path):
    run, checkpoints = lives["plain"]
    export(checkpoints[0][0], run, tmp_path / "a/full")
    content = export(
        checkpoints[1][0], run, tmp_path / "b/delta", since=str(tmp_path / "a/full")
    )  # fmt: skip
    assert content.base.folder == str(tmp_path / "a/full")
    check_equal(tmp_path / "b/delta", passing(checkpoints[1][1], run, Filter()))


# ---- What is refused --------------------------------------------------------


def refused(text, folder, run, to, **more):
    with pytest.raises(UserError, match=text) as error:
        export(folder, run, to, **more)
    assert "\n" not in str(error.value)


def test_what_a_delta_cannot_be_of(lives, tmp_path):
    run, checkpoints = lives["changing"]
    (first, _), (second, _), *_ = checkpoints
    base = str(tmp_path / "base")
    export(first, run, base)
    to = tmp_path / "delta"
    refused("precision float32", second, run, to, since=base, precision="int8")
    refused("has filter", second, run, to, since=base, filter=Filter(top=3))
    refused("is parquet, not text", second, run, to, since=base, encoding="text")
    refused("which this command reads", second, run, base, since=base)
    refused("which this command reads", second, run, f"{base}/", since=base)
    assert not to.exists()
    export(second, run, tmp_path / "later")
    refused("after step 3", first, run, to, since=str(tmp_path / "later"))
    other, of_other = lives["plain"]
    refused("another training", of_other[1][0], other, to, since=base)
    with pytest.raises(Failure, match="manifest"):
        export(second, run, to, since=str(tmp_path / "nothing"))
    open_embeddings(base).close()


def test_no_more_deltas_than_readers_stack(lives, tmp_path):
    run, checkpoints = lives["plain"]
    export(checkpoints[0][0], run, tmp_path / "0")
    for number in range(1, 9):
        export(
            checkpoints[1][0], run, tmp_path / str(number), since=str(tmp_path / f"{number - 1}")
        )
    check_equal(tmp_path / "8", passing(checkpoints[1][1], run, Filter()))
    refused("tnctl fold", checkpoints[1][0], run, tmp_path / "9", since=str(tmp_path / "8"))


def test_who_came_from_whom(tmp_path):
    """By the processes that trained: steps and rows alone are alike in any two runs."""
    conf = conf_of(tmp_path / "run")
    run = Run(conf)
    early, late = run.train(2).save(golden=[]), run.train(2).save(golden=[])
    export(early, run, tmp_path / "early")
    export(late, run, tmp_path / "late")
    [(session, first)] = open_checkpoint(late).sessions
    assert first == 1
    # It goes on from the first checkpoint as if the second had never been.
    again = Run(conf, last=open_checkpoint(early), model=run.model, steps=2)
    branch = again.train(4).save(golden=[])
    assert open_checkpoint(branch).sessions[0] == (session, 1)
    assert open_checkpoint(branch).sessions[1][1] == 3
    to = tmp_path / "delta"
    refused("another training", branch, run, to, since=str(tmp_path / "late"))
    export(branch, again, to, since=str(tmp_path / "early"))
    # And what begins anew came from nothing, though its steps are the same.
    anew = Run(conf_of(tmp_path / "anew"))
    refused(
        "another training", anew.train(4).save(golden=[]), anew, to, since=str(tmp_path / "early")
    )


def test_what_was_removed_too_long_ago(tmp_path):
    conf = conf_of(
        tmp_path / "run",
        save={"full_every": 1, "tombstone_days": 2},
        life={"eviction": {"unseen_steps": 1}},
    )
    run, state = Run(conf), {}
    for day in range(4):
        run.days.append((day + 1, run.steps + 1))
        for table in run.model.tables:
            table.set_days(run.days)
        run.train(2)
        run.evict()
        state[day] = run.save(golden=[]), as_read(run)
        export(state[day][0], run, tmp_path / str(day))
    # Days 3 and 4 are kept, so what day 2 left can be told from; what day 1 left cannot.
    export(state[3][0], run, tmp_path / "delta", since=str(tmp_path / "1"))
    check_equal(tmp_path / "delta", passing(state[3][1], run, Filter()))
    refused("kept for 2 days", state[3][0], run, tmp_path / "no", since=str(tmp_path / "0"))


def test_filters_that_cannot_be(lives, tmp_path):
    run, checkpoints = lives["plain"]
    folder, to = checkpoints[0][0], tmp_path / "a"
    refused("no slot usr.*user", folder, run, to, filter=Filter(slots=("usr",)))
    refused("life.shows.keep=true", folder, run, to, filter=Filter(top=1))
    refused("life.shows.keep=true", folder, run, to, filter=Filter(min_show=1))
    for bad in (float("nan"), -1.0, float("inf")):
        refused("from 0 on", folder, run, to, filter=Filter(min_show=bad))
    refused("from 1 on", folder, run, to, filter=Filter(top=0))
    assert not to.exists()


# ---- Rows in three precisions -----------------------------------------------


@pytest.mark.parametrize("precision", precisions.PRECISIONS)
@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("cvm", [False, True])
@pytest.mark.parametrize("width", [0, 1, 5, 8])
def test_payloads(precision, linear, cvm, width):
    shape = RowShape(linear, width, cvm, precision)
    rng = np.random.default_rng(width)
    rows_ = rng.normal(size=(9, shape.columns)).astype(np.float32)
    rows_[0] = 0
    rows_[1] = np.float32(1e-30)
    payload = encode(rows_, shape)
    assert payload.shape == (9, shape.stride)
    assert shape.stride % 4 == 0
    back = decode(payload, shape)
    expected = np.array([stored(shape, row) for row in rows_]).reshape(back.shape)
    assert back.tobytes() == expected.tobytes()
    assert encode(back, RowShape(linear, width, cvm)).tobytes() == back.tobytes()
    assert encode(rows_[:0], shape).shape == (0, shape.stride)


def test_int8_steps_are_the_nearest_and_the_even_ones():
    shape = RowShape(False, 4, False, "int8")
    row = np.array([[127.0, 0.5, -1.5, -127.0]], np.float32)
    payload = encode(row, shape)
    assert struct.unpack("<f4b", payload[0].tobytes()) == (1.0, 127, 0, -2, -127)


def test_weights_that_float16_cannot_hold():
    shape = RowShape(True, 2, False, "float16")
    largest = np.array([[1e30, 65504, -65504]], np.float32)
    assert decode(encode(largest, shape), shape).tobytes() == largest.tobytes()
    with pytest.raises(Failure, match=r"70000 .*precision=float32 or int8"):
        encode(np.array([[0, 1, -70000]], np.float32), shape)


# ---- The files --------------------------------------------------------------


def test_parquet_columns_of_lower_precision(lives, tmp_path):
    run, checkpoints = lives["changing"]
    types = {
        "float32": {
            "id": "uint64", "linear": "float",
            "embedding": "fixed_size_list<element: float>[5]",
        },
        "float16": {
            "id": "uint64", "linear": "float", "counts": "fixed_size_list<element: float>[2]",
            "embedding": "fixed_size_list<element: halffloat>[3]",
        },
        "int8": {
            "id": "uint64", "linear": "float", "counts": "fixed_size_list<element: float>[2]",
            "scale": "float", "embedding": "fixed_size_list<element: int8>[3]",
        },
    }  # fmt: skip
    for precision, expected in types.items():
        export(checkpoints[0][0], run, tmp_path / precision, precision=precision)
        schema = pq.read_schema(tmp_path / precision / "item.parquet")
        assert {field.name: str(field.type) for field in schema} == expected


GOLDEN = Path(__file__).parent / "golden"


def read_group(folder, entry, encoding):
    """{id: floats, or None where removed}, in their order; written from docs/formats alone."""
    width, rows_of_group, removed = entry.width, {}, []
    if encoding == "text":
        for line in (folder / entry.file).read_text().splitlines():
            id_, dim, *floats = line.split("\t")
            assert int(dim) == len(floats)
            rows_of_group[int(id_)] = np.array(floats, np.float32)
        if entry.removed_file:
            removed = map(int, (folder / entry.removed_file).read_text().splitlines())
    elif encoding == "parquet":
        table = pq.read_table(folder / entry.file).to_pydict()
        rows_ = zip(*(table[key] for key in ("id", "linear", "scale", "embedding")), strict=True)
        for id_, linear, scale, steps in rows_:
            weights = np.array(steps, np.float32) * np.float32(scale)
            rows_of_group[id_] = np.array([linear, *weights], np.float32)
        if entry.removed_file:
            removed = pq.read_table(folder / entry.removed_file)["id"].to_pylist()
    else:
        data = (folder / entry.file).read_bytes()
        magic, version, start, count = struct.unpack_from("<8sIIQ", data)
        delta, (stride, size) = data[47], struct.unpack_from("<II", data, 48)
        assert (magic, version, size) == (b"tnctldic", 1, 8 + 4 * delta + stride)
        inverse = {hash_of(entry.group, id_): id_ for id_ in known_ids()}
        for at in range(start, start + count * size, size):
            id_ = inverse[struct.unpack_from("<Q", data, at)[0]]
            if delta and struct.unpack_from("<I", data, at + 8)[0]:
                rows_of_group[id_] = None
                continue
            floats = struct.unpack_from(f"<f{width}e", data, at + 8 + 4 * delta)
            rows_of_group[id_] = np.array(floats, np.float32)
    return rows_of_group | dict.fromkeys(removed)


def known_ids():
    """All ids of the golden chain."""
    for step in (2, 4):
        checkpoint = open_checkpoint(str(GOLDEN / f"chain/checkpoints/step-000000000{step}"))
        for records in rows.stream(checkpoint, "embedding3"):
            yield from records["id"].tolist()
        for removed in rows.tombstones(checkpoint, "embedding3"):
            yield from removed["id"].tolist()


@pytest.mark.parametrize(
    ("encoding", "precision"),
    [("text", "float32"), ("dictionary", "float16"), ("parquet", "int8")],
)
def test_golden_exports(encoding, precision):
    groups = {}
    for name, step in ((encoding, 2), (f"{encoding}-2", 4)):
        folder = GOLDEN / "exports" / name
        content = manifest.read(str(folder), ExportManifest)
        checkpoint = open_checkpoint(str(GOLDEN / f"chain/checkpoints/step-000000000{step}"))
        assert (content.encoding, content.precision) == (encoding, precision)
        for file in content.files:
            manifest.check_stored(str(folder), content, file)
        for entry in content.groups:
            rows_ = read_group(folder, entry, encoding)
            lost = [id_ for id_, floats in rows_.items() if floats is None]
            assert (len(rows_) - len(lost), len(lost)) == (entry.rows, entry.removed)
            groups.setdefault(entry.group, {}).update(rows_)
        [part] = checkpoint.manifest.tables
        names = {group.number: group.name for group in part.groups}
        expected = {name: {} for name in names.values()}
        for record in np.concatenate(list(rows.stream(checkpoint, part.name))):
            shape = RowShape(True, 3, False, precision)
            floats = np.array([*record["linear"], *record["embedding"]], np.float32)
            expected[names[record["group"]]][int(record["id"])] = stored(shape, floats).tobytes()
        kept = {
            group: {
                id_: floats.tobytes() for id_, floats in rows_of_group.items() if floats is not None
            }
            for group, rows_of_group in groups.items()
        }
        assert kept == expected


# ---- The command ------------------------------------------------------------


def test_the_command_line(run_copy, cli, ran):
    """What it takes, where it writes, and what it says of what does not go together."""
    done = ran(
        "export-embeddings", "output=run", "precision=int8", "only=item_id,interests", cwd=run_copy
    )
    assert "int8" in done.err
    content = manifest.read(str(run_copy / "run/embeddings"), ExportManifest)
    assert {entry.group for entry in content.groups} == {"item_id", "interests"}
    done = ran(
        "export-embeddings", "output=run", "since=run/embeddings", "precision=int8",
        "only=item_id,interests", cwd=run_copy,
    )  # fmt: skip
    content = json.loads((run_copy / "run/embeddings-12/manifest.json").read_text())
    assert (content["kind"], content["base"]["folder"]) == ("delta", "embeddings")
    for arguments, text in (
        (["format=csv"], "no format 'csv'. Choose from: dictionary, parquet, text"),
        (["precision=float8"], "no precision 'float8'. Did you mean 'float"),
        (["top=many"], "top must be a whole number"),
        (["min_show=often"], "min_show must be a number"),
        (["only=user"], "no slot user with rows"),
        (["prefix=a"], "prefix= is of Redis"),
        (["since=current"], "since= is of Redis"),
        (["to=redis://h:1/0", "format=text"], "format= is of files"),
        (["format=text", "precision=int8"], "no precision=int8 of it"),
    ):
        done = cli("export-embeddings", "output=run", *arguments, cwd=run_copy)
        assert done.code == 2, (arguments, done.err)
        assert text in done.last
