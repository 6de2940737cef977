"""What a user may not look into is said, and is not taken for absent."""

import contextlib
import errno
import os

import pytest

from tnctl import files
from tnctl.errors import Failure
from tnctl.manifest import DamagedError, Manifest, present
from tnctl.outputs import Place

NOBODY = 65534
DENIED = "permission denied. Give this user access to it"


@pytest.fixture
def closed(tmp_path):
    """A folder that `other_user` may not look into."""
    folder = tmp_path / "closed"
    (folder / "run").mkdir(parents=True)
    (folder / "run/a").touch()
    folder.chmod(0o700 if os.getuid() == 0 else 0)
    yield folder
    folder.chmod(0o700)


@contextlib.contextmanager
def other_user():
    """Root becomes another user; others are bound by modes themselves."""
    root = os.getuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_folder_that_may_not_be_looked_into(closed):
    url = str(closed / "run")
    with other_user():
        for look in (files.list_folder, files.exists, Place):
            with pytest.raises(Failure, match=DENIED):
                look(url)
    closed.chmod(0o700)
    assert files.list_folder(url) == ["a"]
    assert files.list_folder(f"{url}/a") == files.list_folder(f"{url}/gone") == []


def test_a_folder_that_cannot_be_locked_is_told_by_whoever_writes(closed):
    with other_user(), files.locked(str(closed / "run")), pytest.raises(Failure, match=DENIED):
        files.write_bytes(str(closed / "run/b"), b"")


def test_a_read_only_file_system():
    words = "run could not be written: its file system is read-only"
    with pytest.raises(Failure, match=words), files.translated("run", "written"):
        raise OSError(errno.EROFS, "Read-only file system", "run/.hidden")


def test_a_checkpoint_that_is_removed_while_it_is_read(tmp_path):
    folder = str(tmp_path)
    content = Manifest(format="tnctl checkpoint", version=1)
    for left, words in (
        (["manifest.json"], "a is missing, though the manifest names it"),
        ([], r"was removed while it was read .* Run the command again"),
    ):
        for path in tmp_path.iterdir():
            path.unlink()
        for name in left:
            (tmp_path / name).touch()
        with pytest.raises(DamagedError, match=words), present(folder, content, "a"):
            raise files.MissingError("a")
