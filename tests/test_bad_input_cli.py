"""Bad input through the command line: one line with the file, the row and the way out.

After each failure nothing half-written counts, and the same command works when the fault is gone.
"""

import errno
import shutil
import subprocess
from pathlib import Path

import pytest

from tnctl import files

TRAIN = ["train", "conf=small.yaml", "output=run"]


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


def test_a_full_disk(trained, tmp_path, cli, ran):
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
        done = ran("train", "conf=small.yaml", f"output={disk}/run", cwd=trained)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
