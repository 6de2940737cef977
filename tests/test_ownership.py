"""What tnctl takes for its own in a folder, against folders whose every file has a known owner."""

import contextlib
import errno
import fcntl
import os
import random
import re
import shutil
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import generated_folders
import io_faults
import pytest
from generated_folders import stored

from tnctl import files, manifest, outputs, ownership
from tnctl.errors import Failure, UserError

GRAPH = ownership.GRAPH
OLD = {"saved_model.pb": b"old graph", "variables/variables.index": b"old", "golden.jsonl": b"{}"}
NEW = {"saved_model.pb": b"new graph", "variables/variables.index": b"new", "aot/compiled.h": b""}


@pytest.fixture
def root():
    """A folder in memory where there is one, for thousands of trees are made in it."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


def survives(root, outside, chance):
    """Look at one generated folder, then empty it: only what is tnctl's may go."""
    tree = generated_folders.grow(root / "tree", outside, chance)
    by_name = ownership.survey_by_name(str(tree.folder), [tree.format])
    known = {*generated_folders.NAMES[tree.format.text], tree.format.manifest, *ownership.LISTS}
    assert set(by_name.owned) == known & (tree.owned | tree.foreign).keys()
    survey = ownership.survey(str(tree.folder), tree.format)
    assert set(survey.owned) == set(tree.owned)
    assert bool(survey.foreign) == bool(tree.foreign or tree.links)
    if survey.foreign and chance.random() < 0.1:
        with pytest.raises(UserError, match="tnctl did not write"):
            outputs.refuse_foreign(str(tree.folder), tree.format)
    if tree.format.manifest in tree.owned:
        assert survey.owned[-1] == tree.format.manifest
    ownership.remove(survey)
    assert stored(tree.folder) == tree.foreign | tree.links
    shutil.rmtree(tree.folder, ignore_errors=True)


def only_files_of_tnctl_are_removed(root, seeds):
    outside = root / "outside"
    generated_folders.put(outside / "secret", b"secret")
    for name in ("embedding8/00000.rows", "variables.index", "part-00000.parquet"):
        generated_folders.put(outside / name, b"theirs")
    contents = stored(outside)
    for seed in seeds:
        survives(root, outside, random.Random(seed))
    assert stored(outside) == contents


def test_only_files_of_tnctl_are_known_and_removed(root):
    only_files_of_tnctl_are_removed(root, range(4_000))


@pytest.mark.long
def test_of_many_folders_only_files_of_tnctl_are_removed(root):
    only_files_of_tnctl_are_removed(root, range(4_000, 24_000))


# ---- Writing a folder in the place of another ---------------------------------


@dataclass(frozen=True, kw_only=True)
class Bare(manifest.Manifest):
    """A manifest without keys of its own."""

    FORMAT = GRAPH.text


def commit(inventory):
    inventory.complete(Bare(format=Bare.FORMAT, version=1), "serving.json")


def write_graph(to, content, reads=()):
    """What a command does: files, then the manifest."""
    with outputs.output_folder(to, GRAPH, reads) as output:
        inventory = output.inventory()
        for name, data in content.items():
            inventory.write(name, data)
        commit(inventory)


def whole(folder):
    """The files of a folder whose manifest is there, which must be as it says; None without one."""
    if not files.exists(f"{folder}/serving.json"):
        return None
    content = manifest.read(str(folder), Bare, "serving.json")
    return {name: manifest.read_file(str(folder), content, name) for name in content.files}


def names_in(folder):
    return sorted(name for name, _ in ownership.contents(folder, lambda _: True))


def killed_at(number, root, command):
    """Run a command in a child that dies at its so many-th change of a file; whether it died."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == signal.SIGKILL
    left = number

    def count(event, arguments):
        nonlocal left
        changes = event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "ctypes.dlsym")
        if event == "open":
            changes = str(root) in str(arguments[0])
        if changes:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    try:
        command()
    finally:
        os._exit(0)


@pytest.mark.parametrize(
    ("way", "old"),
    [
        ("exchange", OLD),
        pytest.param("two renames", OLD, marks=pytest.mark.long),
        pytest.param("mount point", OLD, marks=pytest.mark.long),
        pytest.param("exchange", {}, marks=pytest.mark.long),
        pytest.param("two renames", {}, marks=pytest.mark.long),
        pytest.param("mount point", {}, marks=pytest.mark.long),
    ],
)
def test_a_kill_at_any_moment_leaves_one_of_both(root, monkeypatch, way, old):
    to = root / "graph"
    if way == "two renames":
        monkeypatch.setattr(outputs, "exchange", lambda *_: False)
    if way == "mount point":
        monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == to)
    for number in range(1000):
        shutil.rmtree(to, ignore_errors=True)
        if old:
            write_graph(str(to), old)
        generated_folders.put(root / "notes.txt", b"mine")
        died = killed_at(number, root, lambda: write_graph(str(to), NEW))
        if way == "exchange" or (way == "mount point" and not old):
            assert whole(to) in (old or None, NEW)
        elif way == "two renames":
            aside = root / ".graph.tnctl-old"
            assert whole(to) in (old or None, NEW) or whole(aside) == old
        write_graph(str(to), NEW)
        assert whole(to) == NEW
        names = {*NEW, "serving.json"}
        assert set(stored(root)) == {"notes.txt", *(f"graph/{name}" for name in names)}
        if not died:
            break
    assert number > 10 and whole(to) == NEW


@pytest.mark.parametrize("storage", ["here", "memory"])
def test_what_fails_leaves_the_old_one(root, monkeypatch, storage):
    to = str(root / "graph") if storage == "here" else f"memory://{root.name}/graph"
    write_graph(to, OLD)
    listing = names_in(to)
    write = files.OutputFile.write
    for number in range(100):
        left = number

        def failing(self, data):
            nonlocal left
            left -= 1
            if left < 0:
                with files.translated(self._url, "written"):
                    raise OSError(errno.ENOSPC, "No space left on device")
            return write(self, data)

        with monkeypatch.context() as patch:
            patch.setattr(files.OutputFile, "write", failing)
            try:
                write_graph(to, NEW)
                break
            except Failure as error:
                assert "no space is left" in str(error)
        assert whole(to) == OLD and names_in(to) == listing
    assert number > 3
    assert whole(to) == NEW and set(names_in(to)) == {*NEW, "serving.json"}


def test_what_fails_while_files_are_copied_is_completed_by_the_next(root, monkeypatch):
    """On an object store neither output is in force for that time."""
    to = f"memory://{root.name}/copied"
    copy = outputs.files.move_file
    for number in range(100):
        write_graph(to, OLD)
        left = number

        def failing(*arguments):
            nonlocal left
            left -= 1
            if left < 0:
                raise Failure("broken")
            copy(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(files, "move_file", failing)
            try:
                write_graph(to, NEW)
                break
            except Failure:
                assert whole(to) == (None if number else OLD)
    assert number == len(NEW) + 2  # the old manifest, the files and the new manifest
    assert whole(to) == NEW and set(names_in(to)) == {*NEW, "serving.json"}


def test_a_removal_that_fails_can_be_repeated(root):
    for number in range(100):
        write_graph(str(root / "graph"), OLD)
        fault = io_faults.Fault(str(root), "remove", number, "EIO")
        try:
            with io_faults.armed(fault):
                ownership.remove(ownership.survey(str(root / "graph"), GRAPH))
        except Failure as error:
            assert "could not be removed" in str(error)
        if not fault.happened:
            break
        survey = ownership.survey(str(root / "graph"), GRAPH)
        assert not survey.foreign, number
        ownership.remove(survey)
        assert not (root / "graph").exists()
    assert number > 5


def test_what_a_killed_upload_left_goes(root):
    for old in ({}, OLD):
        to = f"memory://{root.name}/{len(old)}/graph"
        folder = f"{to}/{outputs.NEW}" if old else to
        if old:
            write_graph(to, old)
        else:
            files.write_bytes(f"{to}/{ownership.WRITING}", b"")
        manifest.Inventory(folder).write("aot/32/graph.o", b"half")
        write_graph(to, NEW)
        assert whole(to) == NEW and set(names_in(to)) == {*NEW, "serving.json"}


def test_who_writes_at_once_is_told(root):
    to = str(root / "graph")
    with (
        pytest.raises(Failure, match="another tnctl process is writing to"),
        outputs.output_folder(to, GRAPH) as output,
    ):
        output.inventory().write("saved_model.pb", b"mine")
        child = os.fork()
        if not child:
            try:
                write_graph(to, NEW)
            except Failure:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        write_graph(to, NEW)
    assert not Path(to).exists()


def test_a_working_folder_in_the_output_that_another_process_holds_stays(root):
    """To that process the folder is a mount point, such as that of a container."""
    to = root / "graph"
    write_graph(str(to), OLD)
    generated_folders.put(to / outputs.NEW / "saved_model.pb", b"half")
    contents = stored(root)
    held = os.open(to / outputs.NEW, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        with pytest.raises(Failure, match="another tnctl process is writing to"):
            write_graph(str(to), NEW)
    finally:
        os.close(held)
    assert stored(root) == contents
    write_graph(str(to), NEW)
    assert set(stored(to)) == {*NEW, "serving.json"}


@pytest.mark.parametrize("name", [outputs.NEW, outputs.OLD, ownership.WRITING])
def test_a_file_with_the_name_of_a_working_folder_stays(root, name):
    write_graph(str(root / "graph"), OLD)
    generated_folders.put(root / "graph" / name, b"mine")
    contents = stored(root)
    with pytest.raises(UserError, match=f"holds {re.escape(name)}, which tnctl did not write"):
        write_graph(str(root / "graph"), NEW)
    assert stored(root) == contents


def test_an_output_that_is_completed_before_its_folder_is_held_stays(root, monkeypatch):
    to = root / "graph"
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == to)
    write_graph(str(to), OLD)
    # As it is while another process puts its files in force, the manifest last.
    write_graph(str(root / "other"), NEW)
    (to / outputs.OLD).mkdir()
    os.rename(to / "serving.json", to / outputs.OLD / "serving.json")
    shutil.copytree(root / "other", to, dirs_exist_ok=True)
    (to / outputs.NEW).mkdir()
    os.rename(to / "serving.json", to / outputs.NEW / "serving.json")
    hold = outputs._held

    def completed(staging, url):
        if staging == to / outputs.NEW and (staging / "serving.json").exists() and seen:
            os.rename(staging / "serving.json", to / "serving.json")
        return hold(staging, url)

    seen = []
    refuse = outputs.refuse_foreign
    monkeypatch.setattr(outputs, "_held", completed)
    monkeypatch.setattr(outputs, "refuse_foreign", lambda *a: seen.append(a) or refuse(*a))
    (to / "golden.jsonl").unlink()
    with pytest.raises(Failure, match="broken"), outputs.output_folder(str(to), GRAPH):
        raise Failure("broken")
    assert whole(to) == NEW


def test_the_list_of_an_earlier_version_is_removed_after_its_files(root):
    body = {"format": "tnctl files", "version": 1, "names": [*OLD], "of": GRAPH.text, "files": {}}
    list_ = root / "graph" / ownership.LISTS[0]
    for number in range(100):
        for name, text in OLD.items():
            generated_folders.put(root / "graph" / name, text)
        generated_folders.put(list_, manifest.sealed(body))
        fault = io_faults.Fault(str(root), "remove", number, "EIO")
        with contextlib.suppress(Failure), io_faults.armed(fault):
            ownership.remove(ownership.survey(str(root / "graph"), GRAPH))
        assert not ownership.survey(str(root / "graph"), GRAPH).foreign, number
        if not fault.happened:
            break
    assert number > 3 and not (root / "graph").exists()


def test_a_file_that_came_meanwhile_stays(root):
    to = root / "graph"
    write_graph(str(to), OLD)
    with (
        pytest.raises(UserError, match=r"holds thesis\.tex"),
        outputs.output_folder(str(to), GRAPH) as output,
    ):
        inventory = output.inventory()
        inventory.write("saved_model.pb", b"new")
        (to / "thesis.tex").write_text("mine")
        commit(inventory)
    assert whole(to) == OLD and (to / "thesis.tex").read_text() == "mine"
    assert sorted(path.name for path in root.iterdir()) == ["graph"]


def swap(folder, theirs, kind):
    """Another process moves a folder away, and puts theirs in its place, or a link to it."""
    os.rename(folder, f"{folder}-moved")
    if kind == "link":
        Path(folder).symlink_to(theirs)
    else:
        os.rename(theirs, folder)


@pytest.mark.parametrize("kind", ["link", "folder"])
@pytest.mark.parametrize("fails", [True, False])
def test_what_replaces_the_folder_that_is_written_stays(root, capsys, kind, fails):
    """Its files are whole and of tnctl: only the folder shows that this command made none."""
    write_graph(str(root / "theirs"), OLD)
    contents = stored(root / "theirs")
    with (
        pytest.raises(Failure, match="disk" if fails else "is another folder now"),
        outputs.output_folder(str(root / "graph"), GRAPH) as output,
    ):
        inventory = output.inventory()
        inventory.write("saved_model.pb", b"new")
        commit(inventory)
        swap(output.folder, root / "theirs", kind)
        if fails:
            raise Failure("the disk is full")
    assert stored(output.folder) == contents
    assert not (root / "graph").exists()
    assert f"{output.folder} is another folder now, and stays" in capsys.readouterr().err


def test_what_replaces_the_folder_of_a_single_file_stays(root):
    generated_folders.put(root / "theirs" / outputs.CONTENT, b"theirs")
    for fails in (True, False):
        with (
            pytest.raises(OSError if fails else Failure, match="broken" if fails else "another"),
            outputs.output_file(str(root / "scores.csv")) as stream,
        ):
            stream.write(b"mine")
            swap(root / ".scores.csv.tnctl-new", root / "theirs", "link")
            if fails:
                raise OSError(errno.EIO, "broken")
        assert stored(root / "theirs") == {outputs.CONTENT: b"theirs"}
        assert not (root / "scores.csv").exists()
        (root / ".scores.csv.tnctl-new").unlink()
        shutil.rmtree(root / ".scores.csv.tnctl-new-moved")


@pytest.mark.parametrize(("below", "kind"), [("", "link"), ("", "folder"), ("variables", "link")])
def test_what_replaces_a_folder_after_it_was_looked_at_stays(root, below, kind):
    for name in ("graph", "theirs"):
        write_graph(str(root / name), OLD)
    surveyed = ownership.survey(str(root / "graph"), GRAPH)
    contents = stored(root / "theirs" / below)
    swap(root / "graph" / below, root / "theirs" / below, kind)
    with contextlib.nullcontext() if below else pytest.raises(Failure, match="another folder now"):
        ownership.remove(surveyed)
    assert stored(root / "graph" / below) == contents


def test_a_link_to_a_folder_is_written_through(root):
    write_graph(str(root / "graph"), OLD)
    (root / "current").symlink_to("graph")
    write_graph(str(root / "current"), NEW)
    assert (root / "current").is_symlink() and whole(root / "graph") == NEW


def test_a_list_alone_is_replaced(root):
    """Of a killed command of an earlier version: its list, and the folders of files on it."""
    to = root / "graph"
    names = {"format": "tnctl files", "version": 1, "names": ["variables/variables.index"]}
    generated_folders.put(to / generated_folders.LIST, manifest.sealed({**names, "files": {}}))
    (to / "variables").mkdir()
    write_graph(str(to), OLD)
    assert whole(to) == OLD and [path.name for path in root.iterdir()] == ["graph"]


def test_what_has_the_name_of_the_folder_beside(root):
    beside = root / ".graph.tnctl-new"
    (root / "outside").mkdir()
    for make in (lambda: beside.write_text("mine"), lambda: beside.symlink_to(root / "outside")):
        make()
        contents = stored(root)
        with pytest.raises(UserError, match=r"holds \.graph\.tnctl-new"):
            write_graph(str(root / "graph"), NEW)
        assert stored(root) == contents
        beside.unlink()


@pytest.mark.parametrize("there", [False, True])
def test_what_has_the_name_of_the_folder_inside(there, root):
    """A killed command's goes, another's is refused; where the output needs none."""
    to = root / "graph"
    if there:
        write_graph(str(to), OLD)
    inside = to / outputs.NEW
    generated_folders.put(inside / "saved_model.pb", b"half")
    write_graph(str(to), NEW)
    assert whole(to) == NEW and not inside.exists()
    inside.mkdir()
    (inside / "thesis").write_text("mine")
    contents = stored(root)
    with pytest.raises(UserError, match=r"\.tnctl-new holds thesis"):
        write_graph(str(to), OLD)
    assert stored(root) == contents


def test_folders_made_for_what_fails_go(root):
    (root / "a").mkdir()
    with pytest.raises(RuntimeError), outputs.output_folder(str(root / "a/b/c/graph"), GRAPH):
        raise RuntimeError
    assert not list((root / "a").iterdir())


@pytest.mark.parametrize(
    ("log", "is_run"),
    [
        (b"", True),
        (b'{"event": "workers", "step": 0, "workers": 1}\n', True),
        (b'{"event": "epoch", "epoch": 1, "step": 8}\n', True),
        (b'{"event": "step"}\n', False),
        (b'{"event": "signed in", "step": 1}\n', False),
        (b"mine", False),
        (b"{}", False),
    ],
)
def test_the_log_of_a_run(root, log, is_run):
    assert not ownership.is_run(str(root))
    (root / "log.jsonl").write_bytes(log)
    assert ownership.is_run(str(root)) == is_run
    (root / "log.jsonl").rename(root / "moved")
    (root / "log.jsonl").symlink_to(root / "moved")
    assert not ownership.is_run(str(root))


# ---- What a command reads -------------------------------------------------------


def test_no_output_overlaps_what_is_read(root):
    """Against real paths, compared by their parts."""
    chance = random.Random(1)
    names = ["a", "a/b", "a/b/c", "a/b.csv", "ab", "d", "d/e", "a/b/d"]
    for name in ("a/b/c", "ab", "d/e"):
        (root / name).mkdir(parents=True)
    (root / "a/b.csv").write_text("x")
    for link, target in (
        ("la", "a"),
        ("lab", "a/b"),
        ("ab/lc", "../a/b/c"),
        ("d/lf", "../a/b.csv"),
    ):
        (root / link).symlink_to(target)
        names.append(link)
    os.link(root / "a/b.csv", root / "d/hard.csv")
    spellings = ["{}", "{}/", "x/../{}", "./{}", "file://{root}/{}", "{root}/{}"]
    for _ in range(500):
        first_name, second_name = (chance.choice(names) for _ in range(2))
        to, read = (
            chance.choice(spellings).format(n, root=root) for n in (first_name, second_name)
        )
        to, read = (
            url if "/" in url[:1] or "://" in url else f"{root}/{url}" for url in (to, read)
        )
        first, second = ((root / name).resolve() for name in (first_name, second_name))
        overlaps = first.is_relative_to(second) or second.is_relative_to(first)
        if overlaps:
            with pytest.raises(UserError, match="which this command reads"):
                outputs.refuse_overlap([to], [read])
        else:
            outputs.refuse_overlap([to], [read])
    with pytest.raises(UserError, match="which this command reads"):
        outputs.refuse_overlap([str(root / "d/hard.csv")], [str(root / "a/b.csv")])
    for to, read in (("memory://x/a", "memory://x/a/b"), ("memory://x/a/./b/", "memory://x//a/b")):
        with pytest.raises(UserError, match="which this command reads"):
            outputs.refuse_overlap([to], [read])
    outputs.refuse_overlap(["memory://x/ab", "memory://y/a"], ["memory://x/a", str(root / "a")])
    outputs.refuse_overlap([str(root / "a/b.csv/below")], [str(root / "d")])


# ---- Single files ---------------------------------------------------------------


def write_file(to, data=b"new", **how):
    with outputs.output_file(str(to), **how) as stream:
        stream.write(data)


def test_a_file_is_replaced_only_when_told_to(root):
    to = root / "scores (1).csv"
    write_file(to, b"old")
    to.chmod(0o640)
    with pytest.raises(UserError, match=r"is there already.*overwrite=true"):
        write_file(to)
    write_file(to, replace=True)
    assert to.read_bytes() == b"new" and to.stat().st_mode & 0o777 == 0o640
    with pytest.raises(UserError, match="which this command reads"):
        write_file(to, replace=True, reads=[str(to)])
    (root / "link").symlink_to(to)
    with pytest.raises(UserError, match="symbolic link"):
        write_file(root / "link", replace=True)
    with pytest.raises(UserError, match="is a folder"):
        write_file(root, replace=True)
    with pytest.raises(RuntimeError), outputs.output_file(str(to), replace=True) as stream:
        stream.write(b"half")
        raise RuntimeError
    assert to.read_bytes() == b"new"
    write_file("/dev/null")
    assert sorted(path.name for path in root.iterdir()) == ["link", "scores (1).csv"]


def test_a_killed_file_leaves_the_old_one(root):
    to = root / "scores.csv"
    for number in range(100):
        to.write_bytes(b"old")
        died = killed_at(number, root, lambda: write_file(to, replace=True))
        assert to.read_bytes() in (b"old", b"new")
        write_file(to, replace=True)
        assert [path.name for path in root.iterdir()] == ["scores.csv"]
        if not died:
            break
    assert number > 5
