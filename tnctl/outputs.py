"""What commands write: a folder or a file, beside the one in force until it is complete.

Every command that takes `to=` writes through `output_folder` or `output_file`. They refuse, before
the first byte, a place that holds what tnctl did not write, or that overlaps what is read.
docs/trust.md has the promises.
"""

import contextlib
import errno
import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from tnctl import files, folders, ownership
from tnctl.errors import Failure, UserError, refuse_if
from tnctl.folders import Place
from tnctl.manifest import HashingWriter, Inventory
from tnctl.ownership import FILE, FORMATS, LISTS, Claims, Format, Survey
from tnctl.progress import say

NEW = ".tnctl-new"  # the folder that an output is written into, beside its place or in it
OLD = ".tnctl-old"  # the output that was in force, where two names cannot be exchanged at once
CONTENT = "content"  # the name of a single file until it is whole
LONGEST_NAME = 200  # bytes of a name that others are made of; file systems take 255


@dataclass
class Output:
    """A folder to write into: `folder` is where its files go now, `to` where they will be.

    While other processes write too, `is_shared` is set. When this one fails then, its list of files
    stays, with the files, for others may still write: the next command to the same place removes
    them.
    """

    to: str
    folder: str
    claims: Claims
    is_shared: bool = False

    def inventory(self) -> Inventory:
        """What writes the files of the folder."""
        return Inventory(self.folder, self.claims.add, self.to)


# A folder to write into, and what puts it in force; it is given the list of the folder's files.
Staging = tuple[str, Callable[[Claims], None]]


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
    place = folders.resolved(to)
    writing = _on_object_store(to, format) if place is None else _beside(to, place, format)
    with writing as (folder, put_in_force):
        claims = Claims(folder, format)
        output = Output(to, folder, claims)
        # The folder beside the place is the old output after the exchange.
        made, previous = folders.identity(folder), folders.identity(to)
        try:
            yield output
            if not files.exists(files.join(folder, str(format.manifest))):
                raise ValueError(f"{folder} was written without its {format.manifest}")
            folders.refuse_other(folder, made)
            put_in_force(claims)
        except BaseException as error:
            if not output.is_shared:
                with contextlib.suppress(Failure):
                    content = ownership.survey(folder, format)
                    if content.identity in (made, previous, None):
                        ownership.remove(content, format)
                    else:
                        say(f"{folder} is another folder now, and stays")
            if isinstance(error, UserError):
                # The user knows the place, and not the folder beside it.
                error.args = (str(error).replace(folder, to.rstrip("/")),)
            raise


def check_folder(to: str) -> None:
    """Raise UserError when `output_folder` would, for a file at `to`; Failure for one above it."""
    place = folders.resolved(to)
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
        if name != NEW:
            raise ownership.foreign_file(folder, name)
    return content


def _refuse_new(folder: str, previous: Survey) -> None:
    """Raise UserError when a folder has other files now: who put them there keeps them.

    Raises Failure when it is another folder.
    """
    folders.refuse_other(folder, previous.identity)
    for name, _ in folders.contents(folder, set(previous.subfolders)):
        if name not in {*previous.owned, *previous.lists, NEW}:
            raise ownership.foreign_file(folder, name)


@contextlib.contextmanager
def _beside(to: str, place: Path, format: Format) -> Iterator[Staging]:
    """A folder on this machine beside the output, or in it where it is a mount point."""
    check_folder(to)
    _restore(place)
    previous = refuse_foreign(str(place), format)
    inside = place.is_dir() and (os.path.ismount(place) or not os.access(place.parent, os.W_OK))
    if not inside and os.path.lexists(place / NEW):
        with _held(place / NEW, to):  # from a time when the output was a mount point
            pass
    staging = place / NEW if inside else _named_beside(place, NEW)
    switch = _switch_by_file if inside else _switch_by_name

    def put_in_force(_: Claims) -> None:
        _refuse_new(str(place), previous)
        with files.translated(to, "written"):
            folders.sync(staging)
            switch(str(staging), str(place), previous, format)

    # Held open: some file systems change the inode number of a folder that no process has open.
    with folders.opened(str(place), previous.identity), _held(staging, to):
        yield str(staging), put_in_force


def _named_beside(place: Path, suffix: str) -> Path:
    name = os.fsdecode(os.fsencode(place.name)[:LONGEST_NAME])
    return place.with_name(f".{name}{suffix}")


def _restore(place: Path) -> None:
    """Undo or complete what a killed command began by moving an output aside to make room."""
    aside = _named_beside(place, OLD)
    if aside.is_symlink() or ownership.read_list(str(aside)) is None:
        return
    if place.exists():
        _remove_left_behind(str(aside))
        files.remove_empty_folder(str(aside))
    else:
        with files.translated(str(place), "written"):
            os.rename(aside, place)


@contextlib.contextmanager
def _held(staging: Path, to: str) -> Iterator[int]:
    """An empty folder that no other process writes into; what a killed one left in it is removed.

    It is given by its descriptor. It is removed afterwards if it is empty, and so are the folders
    above it that were made for it. Raises Failure when another process holds it, UserError when it
    has files that tnctl did not write.
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
        _remove_left_behind(str(staging))
        yield held
    finally:
        os.close(held)
        for emptied in (staging, *created):
            files.remove_empty_folder(str(emptied))


def _remove_left_behind(folder: str) -> None:
    """Empty a folder in which a killed command was writing."""
    names = ownership.read_list(folder)
    for format in FORMATS.values() if names is None else [FORMATS[names.of]]:
        content = ownership.survey(folder, format, follow=False)
        if not content.foreign:
            ownership.remove(content, format, itself=False)
            return
    raise ownership.foreign_file(folder, content.foreign[0])


def _switch_by_name(folder: str, place: str, previous: Survey, format: Format) -> None:
    """Put a folder in force at a place, and remove the files that were there."""
    aside = folder
    if not files.listed(place):
        os.rename(folder, place)  # an empty folder that has this name is replaced
    else:  # also with nothing but a list of files, or empty subfolders
        shutil.copymode(place, folder)
        # So that a kill after the exchange leaves files that are known to be tnctl's.
        Claims(place, format).take(previous.owned)
        if not folders.exchange(Path(folder), Path(place)):
            aside = str(_named_beside(Path(place), OLD))
            os.rename(place, aside)
            os.rename(folder, place)
        files.sync(Path(place).parent)
        folders.remove(aside, previous.identity, previous.owned, previous.subfolders, LISTS)
        if os.path.exists(aside):
            say(f"{aside} has files that tnctl did not write, and stays")
    Claims(place, format).withdraw()
    files.sync(Path(place).parent)


def _switch_by_file(folder: str, place: str, previous: Survey, format: Format) -> None:
    """Put the files of a folder in force at a place, the manifest last.

    Between the old manifest's end and the new one neither output is in force.
    """
    content = ownership.survey(folder, format)
    names = content.owned[::-1]  # the manifest is the last
    claims = Claims(place, format)
    claims.take([*previous.owned, *names])
    outdated = [name for name in previous.owned if name == format.manifest or name not in names]
    folders.remove(place, previous.identity, outdated, itself=False)
    for name in names:
        files.move_file(files.join(folder, name), files.join(place, name))
    folders.remove(folder, content.identity, names, content.subfolders, content.lists)
    claims.withdraw()


@contextlib.contextmanager
def _on_object_store(to: str, format: Format) -> Iterator[Staging]:
    """A folder on a storage without names to exchange: in the output until it is whole."""
    staging = files.join(to, NEW)
    _remove_left_behind(staging)
    previous = refuse_foreign(to, format)
    if previous.owned and not previous.complete:
        ownership.remove(previous, format)
        previous = ownership.survey(to, format)
    if not previous.owned:
        yield to, Claims.withdraw
        return

    def put_in_force(_: Claims) -> None:
        _refuse_new(to, previous)
        _switch_by_file(staging, to, previous, format)

    yield staging, put_in_force


def is_stream(to: str) -> bool:
    """Whether a path is a device or a pipe, which is written to and not replaced."""
    path = folders.resolved(to)
    if path is None:
        return False
    special = path.exists() and not path.is_file() and not path.is_dir()
    # A shell's redirection to a file is written to as well, and not replaced.
    given = str(files.local_path(to))
    return special or given.startswith(("/dev/std", "/dev/fd/", "/proc/"))


@contextlib.contextmanager
def output_file(
    to: str, reads: Iterable[str] = (), replace: bool = False, claims: Claims | None = None
) -> Iterator[IO[bytes]]:
    """A file open for writing, in force at `to` when the block has ended without an exception.

    Raises UserError when there is a file already, unless it may be replaced, when it is a folder or
    a symbolic link, and when it overlaps one of `reads`. A device or pipe is written to directly.
    A file that is on the list of `claims`, of its folder, may be replaced unless it was changed; it
    is on the list then.
    """
    refuse_overlap([to], reads)
    if is_stream(to):
        with files.open_output(to) as stream:
            yield stream
        return
    name, place = to.rpartition("/")[2], folders.resolved(to, follow=False)
    check_file(to, replace, claims)

    def claim() -> None:
        if claims is not None:
            claims.take([name])

    if place is None:
        claim()
    with files.open_output(to) if place is None else _replaced(to, place, claim) as stream:
        writer = HashingWriter(stream)
        yield cast(IO[bytes], writer)
    if claims is not None:
        claims.finish({name: writer.entry()})


def check_file(to: str, replace: bool = False, claims: Claims | None = None) -> None:
    """Raise UserError when `output_file` would, for what is at `to`."""
    if is_stream(to):
        return
    name, place = to.rpartition("/")[2], folders.resolved(to, follow=False)
    if place is not None:
        refuse_if(place.is_symlink(), f"to={to} is a symbolic link. Name the file itself")
        refuse_if(place.is_dir(), f"to={to} is a folder. Name a file in it")
    if files.exists(str(place or to)):
        is_known = claims is not None and name in claims.names and claims.is_unchanged(name)
        refuse_if(
            not (replace or is_known),
            f"to={to} is there already. Name another file, or give overwrite=true",
        )


@contextlib.contextmanager
def _replaced(to: str, place: Path, claim: Callable[[], None]) -> Iterator[IO[bytes]]:
    """A file on this machine, written in a folder beside its place."""
    staging = _named_beside(place, NEW)
    with _held(staging, to) as held:
        folder, made = str(staging), folders.identity(str(staging))
        Claims(folder, FILE).add([CONTENT])
        content = files.join(folder, CONTENT)
        try:
            with files.open_output(content) as stream:
                yield stream
            folders.refuse_other(folder, made)
            with files.translated(to, "written"):
                if place.exists():
                    shutil.copymode(place, content)
                claim()
                os.replace(CONTENT, place, src_dir_fd=held)
                files.sync(place.parent)
        finally:
            for name in (CONTENT, *LISTS):
                files.remove_file(files.join(folder, name), held)
