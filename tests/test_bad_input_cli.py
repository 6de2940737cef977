"""Bad input through the command line: one line with the file, the row and the way out.

After each failure nothing half-written counts, and the same command works when the fault is gone.
"""

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tnctl import files

TRAIN = ["train", "conf=small.yaml", "output=run"]
NOBODY = 65534


def refused(done, *words, code=1):
    assert done.code == code, done.err
    assert done.last.startswith("tnctl train: ")
    for word in words:
        assert word in done.last, done.last


def nothing_counts(folder):
    assert not list(folder.glob("run/**/manifest.json"))
    assert not (folder / "run/report.json").exists()


def works(cli, folder):
    done = cli(*TRAIN, cwd=folder)
    assert done.code == 0, done.err
    assert (folder / "run/report.json").exists()


def edited(path, line, change):
    """Change one line (from 1) of a file; returns its old bytes."""
    content = path.read_bytes()
    lines = content.splitlines(keepends=True)
    lines[line - 1] = change(lines[line - 1])
    path.write_bytes(b"".join(lines))
    return content


def cell(path, name, value):
    place = path.read_text().splitlines()[0].replace('"', "").split(",").index(name)

    def change(line):
        cells = line.split(b",")
        cells[place] = value + (b"\n" if cells[place].endswith(b"\n") else b"")
        return b",".join(cells)

    return change


# What a row can have wrong is in tests/test_data_errors.py.
FAULTS = {
    "too few columns": (None, lambda line: line.split(b",", 1)[1], ["expected 9", "received 8"]),
    "a label of 2": ("label", b"2", ["'label'", "from 0 to 1", "Received: 2", "positive"]),
}


@pytest.mark.parametrize(
    ("split", "fault"),
    [*(("train", fault) for fault in FAULTS), ("validation", "a label of 2")],
)
def test_a_bad_row(workspace, cli, fault, split):
    path = workspace / f"clicks/{split}.csv"
    name, change, words = FAULTS[fault]
    original = edited(path, 500, change if name is None else cell(path, name, change))
    done = cli(*TRAIN, cwd=workspace)
    refused(done, f"clicks/{split}.csv", *words)
    assert any(f"{word} 500" in done.last for word in ("line", "row")), done.last
    nothing_counts(workspace)
    if fault == "a label of 2":
        path.write_bytes(original)
        works(cli, workspace)


@pytest.fixture
def open_folder(workspace):
    """The workspace where another user can reach it: pytest's folders are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="tnctl-test-"))
    folder.chmod(0o755)
    shutil.copytree(workspace, folder / "workspace")
    yield folder / "workspace"
    shutil.rmtree(folder)


# What a command imports may lie where the other user may not look, so a command runs before.
AS_NOBODY = f"""
import os, sys
from tnctl.cli.main import main
given = sys.argv[1:]
if os.getuid() == 0:
    try:
        main({[*TRAIN, "output=before", "golden=0"]})
    except SystemExit as stop:
        assert not stop.code
    os.setegid({NOBODY})
    os.seteuid({NOBODY})
main(given)
"""


def as_nobody(folder, *arguments):
    """`tnctl` as a user whom file modes bind: root is not bound by them."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    home.chmod(0o777)
    return subprocess.run(
        [sys.executable, "-c", AS_NOBODY, *arguments],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(home)},
        capture_output=True,
        text=True,
        timeout=200,
    )


def the_line(done):
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


def test_a_file_that_may_not_be_read(open_folder, cli):
    (open_folder / "clicks/closed.csv").touch(mode=0)
    arguments = [*TRAIN, f"output={open_folder}/home/run"]
    line = the_line(as_nobody(open_folder, *arguments, "data.train=closed.csv"))
    assert "clicks/closed.csv could not be read: permission denied" in line
    assert "Give this user access" in line
    nothing_counts(open_folder / "home")
    shutil.copy(open_folder / "clicks/train.csv", open_folder / "clicks/closed.csv")
    (open_folder / "clicks/closed.csv").chmod(0o644)
    assert cli(*arguments, "data.train=closed.csv", cwd=open_folder).code == 0


@pytest.mark.long
def test_an_output_that_may_not_be_written(open_folder, cli):
    (open_folder / "closed").mkdir(mode=0o555)
    output = f"output={open_folder}/closed/run"
    line = the_line(as_nobody(open_folder, *TRAIN, output))
    assert f"{open_folder}/closed/run" in line
    assert "could not be written: permission denied" in line
    assert not list((open_folder / "closed").iterdir())
    (open_folder / "closed").chmod(0o777)
    assert cli(*TRAIN, output, cwd=open_folder).code == 0
    assert (open_folder / "closed/run/report.json").exists()


def test_an_output_below_a_file(workspace, cli):
    (workspace / "run").write_text("a file")
    refused(cli(*TRAIN, cwd=workspace), "run", "a part of its path is a file")
    (workspace / "run").unlink()
    works(cli, workspace)


@pytest.mark.parametrize("full_at", ["00000.rows", "manifest.json", "report.json"])
def test_a_full_output(workspace, cli, monkeypatch, full_at):
    """The disk refuses the first bytes of one file."""
    write = files.OutputFile.write

    def failing(self, data):
        part = files.PART_NAME.fullmatch(Path(self._url).name)
        if self._url.endswith(full_at) or (part and part[1] == full_at):
            with files.translated(self._url, "written"):
                raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, data)

    monkeypatch.setattr(files.OutputFile, "write", failing)
    done = cli(*TRAIN, cwd=workspace)
    refused(done, full_at, "no space is left there. Free some, or choose another")
    monkeypatch.undo()
    if full_at != "report.json":
        nothing_counts(workspace)
    assert not list(workspace.rglob(full_at))
    if full_at in ("00000.rows", "report.json"):
        works(cli, workspace)


def test_a_full_disk(trained, tmp_path, cli):
    """A real one: a file system of 700 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this user may not mount a tmpfs")
    try:
        ballast = disk / "ballast"
        ballast.write_bytes(b"\0" * (650 << 10))
        done = cli("train", "conf=small.yaml", f"output={disk}/run", cwd=trained)
        refused(done, f"{disk}/run", "no space is left there")
        nothing_counts(disk)
        ballast.unlink()
        done = cli("train", "conf=small.yaml", f"output={disk}/run", cwd=trained)
        assert done.code == 0, done.err
    finally:
        subprocess.run(["umount", str(disk)], check=True)
