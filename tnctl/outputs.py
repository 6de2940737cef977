"""What commands write: a folder or a file, beside the one in force until it is complete.

Every command that takes `to=` writes through `output_folder` or `output_file`. They refuse, before
the first byte, a place that holds what tnctl did not write, or that overlaps what is read.
docs/trust.md has the promises.
"""

import contextlib
import ctypes
import dataclasses
import errno
import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tnctl import files, ownership
from tnctl.errors import Failure, UserError, refuse_if
from tnctl.manifest import Inventory
from tnctl.ownership import NEW, OLD, WRITING, Format, Survey
from tnctl.progress import say

CONTENT = "content"  # the name of a single file until it is whole
LONGEST_NAME = 200  # bytes of a name that others are made of; file systems take 255
RENAME_EXCHANGE = 2  # of renameat2(2)
AT_FDCWD = -100


@dataclass
class Output:
    """A folder to write into: `folder` is where its files go now, `to` where they will be.

    With `is_kept` the files stay when this process fails: other processes may still write there, or
    some are in force already. The next command to the same place removes them.
    """

    to: str
    folder: str
    is_kept: bool = False

    def inventory(self) -> Inventory:
        """What writes the files of the folder."""
        return Inventory(self.folder, self.to)


# A folder to write into, and what puts it in force.
Staging = tuple[str, Callable[[Output], None]]


def resolved(url: str, follow: bool = True) -> Path | None:
    """The path of a file or folder of this machine, without `..` and links; None on other storage.

    `a/..` is the folder above `a` also where there is no `a`. Unless `follow`, the last part is not
    resolved: the caller sees whether it is a link.
    """
    local = files.local_path(url)
    if local is None or follow:
        return None if local is None else Path(os.path.realpath(local))
    return Path(os.path.realpath(local.parent), local.name)


class Place:
    """Where a path or URL is, the same for all spellings of it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._storage = ""
        self._identity: ownership.Identity | None = None
        self._above: list[ownership.Identity | None] = []  # of the folders around it
        if (path := resolved(url)) is None:
            self._storage, self._parts = files.remote_place(url)
            return
        self._parts = path.parts
        self._identity = ownership.identity(str(path))
        self._above = [ownership.identity(str(folder)) for folder in path.parents]

    def is_same(self, place: "Place") -> bool:
        """Whether both are one place; hard links and bind mounts are seen through."""
        is_one = self._identity is not None and self._identity == place._identity
        return self._storage == place._storage and (is_one or self._parts == place._parts)

    def is_inside(self, place: "Place") -> bool:
        """Whether this is below another place."""
        if self._storage != place._storage:
            return False
        count = len(place._parts)
        is_below = len(self._parts) > count and self._parts[:count] == place._parts
        return is_below or (place._identity is not None and place._identity in self._above)


def refuse_overlap(outputs: Iterable[str], reads: Iterable[str], key: str = "to") -> None:
    """Raise UserError if an output is, contains or lies in something that the command reads.

    All are paths or URLs of files or folders; `key` names the argument of the outputs.
    """
    for output, read in itertools.product(map(Place, outputs), list(map(Place, reads))):
        relations = {
            "is": output.is_same(read),
            "contains": read.is_inside(output),
            "lies in": output.is_inside(read),
        }
        if relation := next((words for words, holds in relations.items() if holds), None):
            raise UserError(
                f"{key}={output.url} {relation} {read.url}, which this command reads. Name "
                "another place"
            )


@contextlib.contextmanager
def output_folder(to: str, format: Format, reads: Iterable[str] = ()) -> Iterator[Output]:
    """A folder of a format, in force at `to` when the block has ended without an exception.

    The block writes the files and last the manifest into `Output.folder`. What tnctl wrote at `to`
    before stays until then, and is removed file by file afterwards. Raises UserError when `to`
    holds other files, or overlaps one of `reads`; Failure when another process writes there, and
    when the storage refuses.
    """
    refuse_overlap([to], reads)
    place = resolved(to)
    writing = _on_object_store(to, format) if place is None else _beside(to, place, format)
    with writing as (folder, put_in_force):
        output = Output(to, folder)
        # The folder beside the place is the old output after the exchange.
        made, previous = ownership.identity(folder), ownership.identity(to)
        try:
            yield output
            if not files.exists(files.join(folder, str(format.manifest))):
                raise ValueError(f"{folder} was written without its {format.manifest}")
            ownership.refuse_other(folder, made)
            put_in_force(output)
        except BaseException as error:
            if not output.is_kept:
                with contextlib.suppress(Failure):
                    content = ownership.survey_by_name(folder, [format])
                    if ownership.identity(folder) in (made, previous, None):
                        ownership.remove(content)
                    else:
                        say(f"{folder} is another folder now, and stays")
            if isinstance(error, UserError):
                # The user knows the place, and not the folder beside it.
                error.args = (str(error).replace(folder, to.rstrip("/")),)
            raise


def check_folder(to: str) -> None:
    """Raise UserError when `output_folder` would, for a file at `to`; Failure for one above it."""
    place = resolved(to)
    if place is None:
        return
    refuse_if(
        place.exists() and not place.is_dir(),
        f"{to} is a file, which tnctl will not remove. Give an empty or new folder as to=URL",
    )
    above = next(folder for folder in place.parents if folder.exists())
    with files.translated(to, "written"):
        if not above.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place))


def refuse_foreign(folder: str, format: Format) -> Survey:
    """What tnctl wrote in a folder. Raises UserError when anything else is in it."""
    content = ownership.survey(folder, format)
    for name in content.foreign:
        if name not in (NEW, OLD):
            raise ownership.foreign_file(folder, name)
    return content


def _refuse_new(folder: str, previous: Survey) -> None:
    """Raise UserError when a folder has other files now: who put them there keeps them.

    Raises Failure when it is another folder.
    """
    ownership.refuse_other(folder, previous.identity)
    for name, _ in ownership.contents(folder, previous.subfolders.__contains__):
        if name not in {*previous.owned, NEW, OLD}:
            raise ownership.foreign_file(folder, name)


def _left_in(folder: str) -> Survey:
    """What a killed command left in its working folder. Raises UserError for other files in it."""
    if files.is_link(folder):
        raise ownership.foreign_file(*folder.rsplit("/", 1))
    content = ownership.survey_by_name(folder)
    if content.foreign:
        raise ownership.foreign_file(folder, content.foreign[0])
    return content


def _cleared(previous: Survey, format: Format, staging: str) -> Survey:
    """What is in force in a folder, after what killed commands left in it was removed.

    Those are working folders, and the files of an output that was being replaced file by file.
    """
    inside = [files.join(previous.folder, name) for name in (NEW, OLD)]
    left = [_left_in(folder) for folder in {*inside, staging}]
    if format.manifest not in previous.owned:
        # Again: after `previous`, and before this command held the folder, another may have ended.
        previous = refuse_foreign(previous.folder, format)
    if format.manifest not in previous.owned:
        ownership.remove(previous, itself=False)
        previous = dataclasses.replace(previous, owned=())
    for content in left:
        ownership.remove(content, itself=content.folder != staging)
    return previous


@contextlib.contextmanager
def _beside(to: str, place: Path, format: Format) -> Iterator[Staging]:
    """A folder on this machine beside the output, or in it where it is a mount point."""
    check_folder(to)
    _restore(place)
    for working in (place / NEW, place / OLD):
        if os.path.lexists(working):
            with _held(working, to):  # refuses what is no folder, and in which another process is
                pass
    previous = refuse_foreign(str(place), format)
    inside = place.is_dir() and (os.path.ismount(place) or not os.access(place.parent, os.W_OK))
    staging = place / NEW if inside else _named_beside(place, NEW)

    def put_in_force(output: Output) -> None:
        _refuse_new(str(place), previous)
        with files.translated(to, "written"):
            for above, _, _ in os.walk(staging):
                files.sync(Path(above))
            if inside:
                _switch_by_file(output, str(place), previous, format)
            else:
                _switch_by_name(str(staging), str(place), previous)

    # Held open: some file systems change the inode number of a folder that no process has open.
    with ownership.opened(str(place), previous.identity), _held(staging, to):
        previous = _cleared(previous, format, str(staging))
        yield str(staging), put_in_force


def _named_beside(place: Path, suffix: str) -> Path:
    name = os.fsdecode(os.fsencode(place.name)[:LONGEST_NAME])
    return place.with_name(f".{name}{suffix}")


def _restore(place: Path) -> None:
    """Undo or complete what a killed command began by moving an output aside to make room."""
    aside = _named_beside(place, OLD)
    if aside.is_symlink():
        return
    if place.exists():
        content = ownership.survey_by_name(str(aside))
        if not content.foreign:
            ownership.remove(content)
    elif ownership.has_manifest(str(aside)):
        with files.translated(str(place), "written"):
            os.rename(aside, place)


@contextlib.contextmanager
def _held(staging: Path, to: str) -> Iterator[int]:
    """A folder that no other process writes into, given by its descriptor.

    It is removed afterwards if it is empty, and so are the folders above it that were made for it.
    Raises Failure when another process holds it, UserError when it is no folder.
    """
    created = [above for above in staging.parents if not above.exists()]

    def opened() -> int:
        if staging.is_symlink() or (staging.exists() and not staging.is_dir()):
            raise ownership.foreign_file(str(staging.parent), staging.name)
        with files.translated(to, "written"):
            staging.mkdir(parents=True, exist_ok=True)
            return os.open(staging, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)

    busy = f"another tnctl process is writing to {to}. Wait for it, or name another place"
    held = files.take_lock(staging, opened, lambda _: busy)
    try:
        yield held
    finally:
        os.close(held)
        for emptied in (staging, *created):
            files.remove_empty_folder(str(emptied))


def _switch_by_name(folder: str, place: str, previous: Survey) -> None:
    """Put a folder in force at a place, and remove the files that were there."""
    aside = folder
    if not files.listed(place):
        os.rename(folder, place)  # an empty folder that has this name is replaced
    else:
        shutil.copymode(place, folder)
        if not exchange(Path(folder), Path(place)):
            aside = str(_named_beside(Path(place), OLD))
            os.rename(place, aside)
            os.rename(folder, place)
        files.sync(Path(place).parent)
        ownership.remove(dataclasses.replace(previous, folder=aside))
        if os.path.exists(aside):
            say(f"{aside} has files that tnctl did not write, and stays")
    files.sync(Path(place).parent)


def _switch_by_file(output: Output, place: str, previous: Survey, format: Format) -> None:
    """Put the files of a folder in force at a place, the manifest last.

    Between the old manifest's end and the new one neither output is in force. Then the manifests in
    the working folders show which files are tnctl's.
    """
    content = ownership.survey_by_name(output.folder, [format])
    names = [*content.owned[1:], content.owned[0]]  # the manifest is the last
    output.is_kept = True
    aside = files.join(place, OLD)
    if format.manifest in previous.owned:
        files.move_file(files.join(place, names[-1]), files.join(aside, names[-1]))
    outdated = [name for name in previous.owned if name not in names]
    ownership.remove_files(place, previous.identity, outdated, previous.subfolders, itself=False)
    for name in names:
        files.move_file(files.join(output.folder, name), files.join(place, name))
    ownership.remove(content)
    ownership.remove(_left_in(aside))


@contextlib.contextmanager
def _on_object_store(to: str, format: Format) -> Iterator[Staging]:
    """A folder on a storage without names to exchange: in the output until it is whole."""
    staging, mark = files.join(to, NEW), files.join(to, WRITING)
    if files.exists(mark):
        if not ownership.has_manifest(to):
            ownership.remove(_left_in(to))
        files.remove_file(mark)
    previous = _cleared(refuse_foreign(to, format), format, staging)
    if not previous.owned:
        files.write_bytes(mark, b"")
        yield to, lambda _: files.remove_file(mark)
        return

    def put_in_force(output: Output) -> None:
        _refuse_new(to, previous)
        _switch_by_file(output, to, previous, format)

    yield staging, put_in_force


def exchange(folder: Path, target: Path) -> bool:
    """Give two folders of this machine each other's name at once; whether the system can."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    code = libc.renameat2(
        AT_FDCWD, os.fsencode(folder), AT_FDCWD, os.fsencode(target), RENAME_EXCHANGE
    )
    if code == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(folder))


def is_stream(to: str) -> bool:
    """Whether a path is a device or a pipe, which is written to and not replaced."""
    path = resolved(to)
    if path is None:
        return False
    special = path.exists() and not path.is_file() and not path.is_dir()
    # A shell's redirection to a file is written to as well, and not replaced.
    given = str(files.local_path(to))
    return special or given.startswith(("/dev/std", "/dev/fd/", "/proc/"))


@contextlib.contextmanager
def output_file(to: str, reads: Iterable[str] = (), replace: bool = False) -> Iterator[IO[bytes]]:
    """A file open for writing, in force at `to` when the block has ended without an exception.

    Raises UserError when there is a file already, unless it may be replaced, when it is a folder or
    a symbolic link, and when it overlaps one of `reads`. A device or pipe is written to directly.
    """
    refuse_overlap([to], reads)
    check_file(to, replace)
    place = resolved(to, follow=False)
    with (
        files.open_output(to) if place is None or is_stream(to) else _replaced(to, place) as stream
    ):
        yield stream


def check_file(to: str, replace: bool = False) -> None:
    """Raise UserError when `output_file` would, for what is at `to`."""
    if is_stream(to):
        return
    place = resolved(to, follow=False)
    if place is not None:
        refuse_if(place.is_symlink(), f"to={to} is a symbolic link. Name the file itself")
        refuse_if(place.is_dir(), f"to={to} is a folder. Name a file in it")
    refuse_if(
        not replace and files.exists(str(place or to)),
        f"to={to} is there already. Name another file, or give overwrite=true",
    )


@contextlib.contextmanager
def _replaced(to: str, place: Path) -> Iterator[IO[bytes]]:
    """A file on this machine, written in a folder beside its place."""
    staging = _named_beside(place, NEW)
    with _held(staging, to) as held:
        ownership.remove(_left_in(str(staging)), itself=False)
        folder, made = str(staging), ownership.identity(str(staging))
        content = files.join(folder, CONTENT)
        try:
            with files.open_output(content) as stream:
                yield stream
            ownership.refuse_other(folder, made)
            with files.translated(to, "written"):
                if place.exists():
                    shutil.copymode(place, content)
                os.replace(CONTENT, place, src_dir_fd=held)
                files.sync(place.parent)
        finally:
            files.remove_file(content, held)
