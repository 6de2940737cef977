"""Exports that several workers write: the rows of one process, in files of each worker."""

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cluster_commands import until
from cluster_in_one_process import following
from test_export import CHANGING, FILTERS, history

from tnctl import manifest
from tnctl.checkpoint.chain import open_checkpoint
from tnctl.cluster.rank_0.cluster_processes import ClusterProcesses
from tnctl.cluster.workers import export_worker
from tnctl.cluster.workers.export_worker import ExportWorker
from tnctl.errors import Failure, UserError
from tnctl.serving.rows import export as exporting
from tnctl.serving.rows.embeddings import open_embeddings
from tnctl.serving.rows.export_document import ExportManifest, Filter
from tnctl.serving.rows.folding import fold


@pytest.fixture(scope="module")
def days(tmp_path_factory):
    """A run of some days whose rows change by decay, and its checkpoints; nobody writes there."""
    run, snapshots = history(tmp_path_factory.mktemp("days") / "run", CHANGING)
    return run, [str(folder) for folder, _ in snapshots]


def alone(run, folder, to, **more):
    return exporting.export(open_checkpoint(folder), run.conf, str(to), golden=0, **more)


def together(run, folder, to, workers=2, **more):
    with following(run.conf, workers) as (node, errors):
        content = alone(run, folder, to, writers=ClusterProcesses(node).writers(), **more)
    assert errors == []
    return content


def files_of(folder):
    return manifest.read(str(folder), ExportManifest).files


def check_same_rows(parts, whole, tmp_path):
    """Folded, the parts are the bytes of the export of one process."""
    fold(str(parts), str(tmp_path / "folded"))
    assert files_of(tmp_path / "folded") == files_of(whole)
    folded, content = (
        manifest.read(str(folder), ExportManifest) for folder in (tmp_path / "folded", whole)
    )
    for a, b in zip(folded.groups, content.groups, strict=True):
        # The root mean square is added up in another order.
        if b.error is not None:
            assert a.error.rms == pytest.approx(b.error.rms, rel=1e-12)
            a, b = (replace(entry, error=replace(entry.error, rms=0.0)) for entry in (a, b))
        assert a == b
    assert folded.version == content.version == 1
    lookups = [open_embeddings(str(folder)) for folder in (parts, whole)]
    for group, shape in lookups[0].groups.items():
        ids = np.arange(80, dtype=np.uint64)
        (a, known), (b, also) = (opened.lookup(group, ids) for opened in lookups)
        assert a.tobytes() == b.tobytes() and a.shape == (80, shape.columns)
        assert known.tolist() == also.tolist() and not known.all()
    for opened in lookups:
        opened.close()


@pytest.mark.parametrize(("encoding", "precision", "workers"), [
    ("text", "float32", 2), ("parquet", "int8", 3), ("dictionary", "float16", 2),
    ("dictionary", "float32", 3), ("parquet", "float32", 2),
])  # fmt: skip
def test_parts_have_the_rows_of_one_process(days, tmp_path, encoding, precision, workers):
    run, folders = days
    arguments = {"encoding": encoding, "precision": precision}
    alone(run, folders[-1], tmp_path / "alone", **arguments)
    content = together(run, folders[-1], tmp_path / "parts", workers, **arguments)
    assert (
        content.version == 2 and manifest.read(str(tmp_path / "parts"), ExportManifest) == content
    )
    for entry in content.groups:
        assert entry.file is None and len(entry.parts) == workers
        assert entry.parts[1].file == f"{entry.group}-00001{content.file_format.suffix}"
        assert sum(bool(part.rows) for part in entry.parts) > 1
    check_same_rows(tmp_path / "parts", tmp_path / "alone", tmp_path)


@pytest.mark.parametrize("name", FILTERS)
def test_filters_choose_the_same_rows(days, tmp_path, name):
    run, folders = days
    alone(run, folders[-1], tmp_path / "alone", filter=FILTERS[name])
    together(run, folders[-1], tmp_path / "parts", 3, filter=FILTERS[name])
    check_same_rows(tmp_path / "parts", tmp_path / "alone", tmp_path)


def test_one_worker_writes_the_bytes_of_one_process(days, tmp_path):
    run, folders = days
    alone(run, folders[-1], tmp_path / "alone")
    together(run, folders[-1], tmp_path / "parts", 1)
    names = sorted(path.name for path in (tmp_path / "alone").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "parts").iterdir())
    for name in names:
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


@pytest.mark.parametrize(("encoding", "filter"), [
    ("parquet", FILTERS["both"]), ("dictionary", Filter()), ("text", Filter()),
])  # fmt: skip
def test_deltas_of_any_number_of_workers_make_a_chain(days, tmp_path, encoding, filter):
    """Each is cut into other parts than the one before, or is of one process."""
    run, folders = days
    arguments = {"encoding": encoding, "filter": filter}
    together(run, folders[0], tmp_path / "0", 2, **arguments)
    counts, removed = [3, None, 2], 0
    for number, (folder, workers) in enumerate(zip(folders[1:], counts, strict=True), 1):
        since = {"since": str(tmp_path / str(number - 1))}
        if workers is None:
            alone(run, folder, tmp_path / str(number), **arguments, **since)
        else:
            content = together(run, folder, tmp_path / str(number), workers, **arguments, **since)
            assert content.kind == "delta" and content.number == number
            removed += sum(entry.removed for entry in content.groups)
    assert removed > 0
    alone(run, folders[-1], tmp_path / "alone", **arguments)
    check_same_rows(tmp_path / "3", tmp_path / "alone", tmp_path)


def test_an_export_replaces_one_of_other_parts(days, tmp_path):
    run, folders = days
    for workers in (3, 2):
        together(run, folders[-1], tmp_path / "to", workers)
    assert {path.name for path in (tmp_path / "to").iterdir()} == {
        "manifest.json", *files_of(tmp_path / "to")
    }  # fmt: skip
    alone(run, folders[-1], tmp_path / "to")
    assert not list((tmp_path / "to").glob("*-0000*"))


def test_golden_parts_have_the_rows_of_the_golden_exports(tmp_path):
    exports = Path(__file__).parent / "golden/exports"
    for number, name in enumerate(("parts", "text", "parts-2", "text-2")):
        fold(str(exports / name), str(tmp_path / str(number)))
    folded = [files_of(tmp_path / str(number)) for number in range(4)]
    assert folded[0] == folded[1] != folded[2] == folded[3]
    content = manifest.read(str(exports / "parts-2"), ExportManifest)
    assert [len(entry.parts) for entry in content.groups] == [3] * len(content.groups)


def test_another_storage(days):
    run, folders = days
    together(run, folders[-1], "memory://exports/parts", encoding="dictionary")
    opened = open_embeddings("memory://exports/parts")
    assert all(
        opened.lookup(group, np.arange(60, dtype=np.uint64))[1].any() for group in opened.groups
    )
    opened.close()


def test_what_cannot_be_exported_is_said_as_by_one_process(days, tmp_path):
    run, folders = days
    together(run, folders[-1], tmp_path / "0", 2)
    with pytest.raises(UserError, match="no slot nothing with rows") as error:
        together(run, folders[-1], tmp_path / "1", filter=Filter(slots=("nothing",)))
    assert "worker" not in str(error.value)
    with pytest.raises(UserError, match="is after step"):
        together(run, folders[0], tmp_path / "1", since=str(tmp_path / "0"))
    assert not (tmp_path / "1").exists()


def test_a_worker_that_fails_ends_the_export_and_the_next_one_completes_it(
    days, tmp_path, monkeypatch
):
    run, folders = days
    add = exporting.write_groups.__globals__["GroupWriting"].add

    def full(self, part):
        if part.group.part == 1:
            # Or the export may end before the other worker has begun to write.
            until(lambda: any(tmp_path.glob(".to.tnctl-new/*")))
            raise Failure("no space left on device")
        add(self, part)

    with monkeypatch.context() as patch:
        patch.setattr(exporting.write_groups.__globals__["GroupWriting"], "add", full)
        with pytest.raises(Failure, match=r"^worker 1: no space left on device$"):
            together(run, folders[-1], tmp_path / "to")
    # The files of another worker stay beside the place, unless it has removed what it began.
    assert not (tmp_path / "to").exists()
    together(run, folders[-1], tmp_path / "to")
    assert [path.name for path in tmp_path.iterdir()] == ["to"]


def test_another_checkpoint_at_a_worker_is_refused(days, tmp_path, monkeypatch):
    run, folders = days
    other = replace(open_checkpoint(folders[-1]).manifest, sha256="0" * 64)
    monkeypatch.setattr(export_worker, "open_checkpoint", lambda _: SimpleNamespace(manifest=other))
    with pytest.raises(Failure, match=r"^worker 1: .*/step-\d+ is not what worker 0 has read"):
        together(run, folders[-1], tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_a_folder_that_a_worker_does_not_share_is_refused(days, tmp_path, monkeypatch):
    run, folders = days
    numbers = itertools.count()
    write = ExportWorker.write_selected

    def write_selected(self, folder, to):
        if self.node.rank:
            folder = str(tmp_path / f"elsewhere-{next(numbers)}")
        return write(self, folder, to)

    monkeypatch.setattr(ExportWorker, "write_selected", write_selected)
    with pytest.raises(UserError, match=r"worker 0 does not see .*-00001\.parquet, which worker 1"):
        together(run, folders[-1], tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_a_damaged_file_of_the_base_is_noticed_by_its_worker(days, tmp_path):
    run, folders = days
    together(run, folders[0], tmp_path / "0", 2, encoding="dictionary")
    path = next((tmp_path / "0").glob("*-00001.dictionary"))
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    with pytest.raises(Failure, match=r"^worker 1: .*-00001.dictionary is damaged"):
        together(run, folders[1], tmp_path / "1", encoding="dictionary", since=str(tmp_path / "0"))
    assert not (tmp_path / "1").exists()
