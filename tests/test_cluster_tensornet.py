"""Tables for TensorNet that several workers write: the files of one process, byte for byte."""

import dataclasses
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import tensornet_files as tn
from cluster_in_one_process import following
from conftest import run_in_process
from test_tensornet import CONF, check_equal

from tnctl.checkpoint.chain import newest_or_fail
from tnctl.cli import compose, export_embeddings
from tnctl.cluster.messages import export_commands
from tnctl.cluster.rank_0.cluster_processes import ClusterProcesses
from tnctl.cluster.workers import export_parts
from tnctl.errors import Failure, UserError
from tnctl.tensornet import exporting

TABLES = "wide:linear,deep:embedding"


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """A run whose rows came from TensorNet, small signs and large ones; nobody writes there."""
    folder = tmp_path_factory.mktemp("imported")
    (folder / "mine.yaml").write_text(CONF)
    (folder / "train.csv").write_text("label,user,items\n1,1,2|3\n0,2,4\n")
    written = [tn.Table(name, dim, tn.rows(90, dim)) for name, dim in (("wide", 1), ("deep", 3))]
    tn.Weights(written, 2).write(folder / "tn")
    done = run_in_process("import", "tensornet=tn", "conf=mine.yaml", "output=run", cwd=folder)
    assert done.code == 0, done.err
    conf = compose.compose(folder / "mine.yaml", [f"output={folder}/run"])
    return folder, conf, written


def alone(imported, to, ranks=2, tables=TABLES, **more):
    folder, conf, _ = imported
    checkpoint = newest_or_fail(f"{folder}/run")
    exporting.export(checkpoint, conf, str(to), tables, ranks, **more)


def together(imported, to, workers=2, ranks=2, tables=TABLES):
    folder, conf, _ = imported
    given = {"format": "tensornet", "to": str(to), "ranks": str(ranks)}
    given |= {} if tables is None else {"tables": tables}
    task = {"checkpoint": newest_or_fail(f"{folder}/run").folder, "arguments": given}
    with following(conf, workers) as (node, errors):
        assert export_embeddings.lead(conf, ClusterProcesses(node), task) == 0
    assert errors == []


def files_of(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize(("ranks", "workers", "tables"), [
    (2, 1, TABLES), (2, 2, TABLES), (3, 2, None), (1, 3, TABLES), (2, 3, None),
    (1, 9, "deep:embedding"),
])  # fmt: skip
def test_the_files_are_those_of_one_process(imported, tmp_path, ranks, workers, tables):
    alone(imported, tmp_path / "alone", ranks, tables)
    together(imported, tmp_path / "together", workers, ranks=ranks, tables=tables)
    expected = files_of(tmp_path / "alone")
    assert files_of(tmp_path / "together") == expected
    assert len(expected) == 1 + 8 * ranks * (1 if tables == "deep:embedding" else 2)
    assert {path.name for path in tmp_path.iterdir()} == {"alone", "together"}


@pytest.mark.parametrize(("ranks", "workers"), [(1, 1), (2, 2), (3, 2), (2, 3), (1, 9)])
def test_each_file_has_one_worker_and_each_id_its_file(ranks, workers):
    shares = [exporting.Share(ranks, worker, workers) for worker in range(workers)]
    names = {
        number: name
        for share in shares
        for number, name in zip(share.numbers.tolist(), share.names("t"), strict=True)
    }
    assert len(names) == sum(len(share.numbers) for share in shares) == 8 * ranks
    signs = tn.signs(200)
    numbers = shares[0].numbers_of(np.array(signs, np.uint64)).tolist()
    for sign, number in zip(signs, numbers, strict=True):
        block = (sign >> 32) % 8
        assert names[number] == f"sparse_table/t/rank_{sign % ranks}/block_{block}.gz"
    # Ids below 2^32 are shared too, where there are several ranks.
    small = {
        number % workers for sign, number in zip(signs, numbers, strict=True) if sign < 1 << 32
    }
    assert len(small) == min(ranks, workers)


def test_tensornet_gets_them_back(imported, cli, tmp_path):
    folder, _, written = imported
    together(imported, tmp_path / "tn", 3)
    for name in ("mine.yaml", "train.csv"):
        shutil.copy(folder / name, tmp_path)
    done = cli("import", "tensornet=tn", "conf=mine.yaml", "output=run", cwd=tmp_path)
    assert done.code == 0, done.err
    check_equal(tmp_path, written)


def test_a_worker_that_fails_leaves_nothing_in_force_and_the_next_export_completes_it(
    imported, tmp_path, monkeypatch
):
    write = exporting.TableWriter.write

    def full(self, records, counts):
        if self._share.worker == 1:
            raise Failure("no space left on device")
        write(self, records, counts)

    alone(imported, tmp_path / "to", tables="deep:embedding")
    in_force = files_of(tmp_path / "to")
    for to in ("to", "new"):
        with monkeypatch.context() as patch:
            patch.setattr(exporting.TableWriter, "write", full)
            with pytest.raises(Failure, match=r"^worker 1: no space left on device$"):
                together(imported, tmp_path / to)
        # Others may have written: their files stay, with their list, beside the place.
        assert (tmp_path / f".{to}.tnctl-new/.tnctl-files.json").exists()
    assert files_of(tmp_path / "to") == in_force
    assert not (tmp_path / "new").exists()
    for to in ("to", "new"):
        together(imported, tmp_path / to, 3)
    alone(imported, tmp_path / "alone")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone", "new", "to"]
    expected = files_of(tmp_path / "alone")
    assert files_of(tmp_path / "to") == files_of(tmp_path / "new") == expected


def test_what_ends_one_worker_ends_another_in_the_middle_of_a_table(
    imported, tmp_path, monkeypatch
):
    stream, blocks = exporting.known_rows, []

    def by_tens(*arguments):
        for records in stream(*arguments):
            for at in range(0, len(records), 10):
                if len(blocks) == 4:
                    node.fail(Failure("the run has ended"))
                    node.close()  # after what is in its queue
                blocks.append(at)
                yield records[at : at + 10]

    with following(imported[1], 1) as (node, _):
        monkeypatch.setattr(exporting, "known_rows", by_tens)
        with pytest.raises(Failure, match="the run has ended"):
            alone(imported, tmp_path / "to", write=ClusterProcesses(node).tables().write)
    assert len(blocks) == 5 and not (tmp_path / "to").exists()


def test_what_cannot_be_exported_is_said_as_by_one_process(imported, tmp_path):
    for more in ({"ranks": 65}, {"tables": "deep:nothing"}, {"tables": "wide-1:linear"}):
        lines = []
        for write in (alone, together):
            with pytest.raises(UserError) as error:
                write(imported, tmp_path / "to", **more)
            lines.append(str(error.value))
        assert lines[0] == lines[1] and error.value.exit_code == 2
    assert not (tmp_path / "to").exists()


def test_a_folder_that_a_worker_does_not_share_is_refused(imported, tmp_path, monkeypatch):
    write = export_parts.write_tables

    def elsewhere(node, request, _, to):
        return write(node, request, str(tmp_path / "elsewhere"), to)

    monkeypatch.setattr(export_parts, "write_tables", elsewhere)  # rank 0 has imported the other
    with pytest.raises(UserError, match=r"worker 0 does not see .*\.gz, which worker 1 wrote"):
        together(imported, tmp_path / "to")
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize(("change", "message"), [
    (lambda files, rows: (dict(list(files.items())[1:]), rows), "has written other files"),
    (lambda files, rows: (files, (rows[0] - 1, rows[1])), r"table wide has 89 rows .* 90 were"),
    (lambda files, rows: (files, rows[1:]), "has written other tables"),
], ids=["files", "rows", "tables"])  # fmt: skip
def test_what_a_worker_says_is_checked(imported, tmp_path, monkeypatch, change, message):
    follow = export_parts.ExportFollower._write_tables

    def changed(self, command):
        written = follow(self, command)
        files, rows = change(written.files, written.rows)
        return export_commands.TablesWritten(files=files, rows=rows)

    monkeypatch.setattr(export_parts.ExportFollower, "_write_tables", changed)
    with pytest.raises(Failure, match=message):
        together(imported, tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_another_checkpoint_at_a_worker_is_refused(imported, tmp_path, monkeypatch):
    other = dataclasses.replace(newest_or_fail(f"{imported[0]}/run").manifest, sha256="0" * 64)
    monkeypatch.setattr(export_parts, "open_checkpoint", lambda _: SimpleNamespace(manifest=other))
    with pytest.raises(Failure, match=r"^worker 1: .*/step-\d+ is not what worker 0 has read"):
        together(imported, tmp_path / "to")
    assert not (tmp_path / "to").exists()
