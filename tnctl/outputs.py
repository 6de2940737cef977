"""What commands write: a folder or a file, beside the one in force until it is whole.

Every command that takes `to=` writes through `output_folder` or `output_file`. They refuse, before
the first byte, a place that holds what tnctl did not write, or that overlaps what is read.
docs/trust.md has the promises.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from tnctl import files, folders, ownership
from tnctl.errors import Failure, UserError
from tnctl.folders import Place
from tnctl.manifest import HashingWriter, Inventory
from tnctl.ownership import FILE, FORMATS, LISTS, Claims, Format, Survey
from tnctl.progress import say

NEW = ".tnctl-new"  # the folder that an output is written into, beside its place or in it
OLD = ".tnctl-old"  # the output that was in force, where two names cannot be exchanged at once
CONTENT = "content"  # the name of a single file until it is whole
LONGEST_NAME = 200  # bytes of a name that others are made of; file systems take 255


@dataclass(frozen=True)
class Output:
    """A folder to write into: `folder` is where its files go now, `to` where they will be."""

    to: str
    folder: str
    claims: Claims

    def inventory(self) -> Inventory:
        """What writes the files of the folder."""
        return Inventory(self.folder, self.claims.add, self.to)


def refuse_overlap(outputs: Iterable[str], reads: Iterable[str], key: str = "to") -> None:
    """Raise UserError if an output is, contains or lies in something that the command reads.

    All are paths or URLs of files or folders; `key` names the argument of the outputs.
    """
    read = [Place(url) for url in reads]
    for output in map(Place, outputs):
        for other in read:
            if output.is_same(other):
                relation = "is"
            elif other.is_inside(output):
                relation = "contains"
            elif output.is_inside(other):
                relation = "lies in"
            else:
                continue
            raise UserError(
                f"{key}={output.url} {relation} {other.url}, which this command reads. Name "
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
    local = files.local_path(to)
    if local is not None:
        writing = _beside(to, Path(os.path.realpath(local)), format)
    else:
        writing = _on_object_store(to, format)
    folder = to
    try:
        with writing as output:
            folder = output.folder
            yield output
    except UserError as error:
        # The user knows the place, and not the folder beside it.
        error.args = (str(error).replace(folder, to.rstrip("/")),)
        raise


def refuse_foreign(folder: str, format: Format) -> Survey:
    """What tnctl wrote in a folder. Raises UserError when anything else is in it."""
    found = ownership.survey(folder, format)
    foreign = [name for name in found.foreign if name != NEW]
    if foreign:
        raise ownership.foreign_file(folder, foreign[0])
    return found


def _require_manifest(folder: str, format: Format) -> None:
    assert format.manifest is not None
    if not files.exists(files.join(folder, format.manifest)):
        raise ValueError(f"{folder} was written without its {format.manifest}")


def _refuse_new(folder: str, before: Survey) -> None:
    """Raise UserError when a folder has other files now: who put them there keeps them."""
    for name, _ in folders.contents(folder, set(before.subfolders)):
        if name not in {*before.owned, *before.lists, NEW}:
            raise ownership.foreign_file(folder, name)


@contextlib.contextmanager
def _beside(to: str, place: Path, format: Format) -> Iterator[Output]:
    """An output on this machine, made in a folder beside it, or in it where it is a mount point."""
    if place.exists() and not place.is_dir():
        raise UserError(
            f"{to} is a file, which tnctl will not remove. Give an empty or new folder as to=URL"
        )
    _restore(place)
    before = refuse_foreign(str(place), format)
    inside = place.is_dir() and (os.path.ismount(place) or not os.access(place.parent, os.W_OK))
    if not inside and os.path.lexists(place / NEW):
        with _held(place / NEW, to):  # of a time when the output was a mount point
            pass
    staging = place / NEW if inside else _named_beside(place, NEW)
    with _held(staging, to) as folder:
        claims = Claims(folder, format)
        try:
            yield Output(to, folder, claims)
            _require_manifest(folder, format)
            _refuse_new(str(place), before)
            with files.translated(to, "written"):
                folders.sync(staging)
                if inside:
                    _switch_by_file(folder, str(place), before, format)
                else:
                    _switch_by_name(staging, place, before, format)
        except BaseException:
            with contextlib.suppress(Failure):
                ownership.remove(ownership.survey(folder, format), format)
            raise


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
def _held(staging: Path, to: str) -> Iterator[str]:
    """An empty folder that no other process writes into; what a killed one left in it is removed.

    The folder is removed afterwards if it is empty, and so are those above it that were made for
    it. Raises Failure when another process holds it, UserError when it has files that tnctl did not
    write.
    """
    folder = str(staging)
    made = [above for above in staging.parents if not above.exists()]
    while True:
        if staging.is_symlink() or (staging.exists() and not staging.is_dir()):
            raise ownership.foreign_file(str(staging.parent), staging.name)
        with files.translated(to, "written"):
            staging.mkdir(parents=True, exist_ok=True)
            held = os.open(staging, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            raise Failure(
                f"another tnctl process is writing to {to}. Wait for it, or name another place"
            ) from None
        except OSError:
            pass  # a file system without locks
        # Whoever held it before may have removed it, or put it in force, since it was opened.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(held), staging.stat(follow_symlinks=False)):
                break
        os.close(held)
    try:
        _remove_left_behind(folder)
        yield folder
    finally:
        os.close(held)
        for emptied in (staging, *made):
            files.remove_empty_folder(str(emptied))


def _remove_left_behind(folder: str) -> None:
    """Empty a folder in which a killed command was writing."""
    left = ownership.read_list(folder)
    kinds = [FORMATS[left.of]] if left is not None else list(FORMATS.values())
    for kind in kinds:
        found = ownership.survey(folder, kind)
        if not found.foreign:
            ownership.remove(found, kind, itself=False)
            return
    raise ownership.foreign_file(folder, found.foreign[0])


def _switch_by_name(staging: Path, place: Path, before: Survey, format: Format) -> None:
    """Put a folder in force at a place, and remove the files that were there."""
    if files.listed(str(place)):  # a list of files alone, or an empty folder of theirs, counts too
        shutil.copymode(place, staging)
        # So that a kill after the exchange leaves files that are known to be tnctl's.
        Claims(str(place), format).take(before.owned)
        left = staging
        if not folders.exchange(staging, place):
            left = _named_beside(place, OLD)
            os.rename(place, left)
            os.rename(staging, place)
        files.sync(place.parent)
        folders.remove(str(left), before.owned, before.subfolders, LISTS)
        if left.exists():
            say(f"{left} has files that tnctl did not write, and stays")
    else:
        os.rename(staging, place)  # an empty folder that has this name is replaced
    Claims(str(place), format).withdraw()
    files.sync(place.parent)


def _switch_by_file(folder: str, place: str, before: Survey, format: Format) -> None:
    """Put the files of a folder in force at a place, the manifest last.

    Between the old manifest's end and the new one neither output is in force.
    """
    made = ownership.survey(folder, format)
    names = made.owned[::-1]  # the manifest is the last
    claims = Claims(place, format)
    claims.take([*before.owned, *names])
    outdated = [name for name in before.owned if name == format.manifest or name not in names]
    folders.remove(place, outdated, itself=False)
    for name in names:
        files.move_file(files.join(folder, name), files.join(place, name))
    folders.remove(folder, names, made.subfolders, made.lists)
    claims.withdraw()


@contextlib.contextmanager
def _on_object_store(to: str, format: Format) -> Iterator[Output]:
    """An output on a storage without names to exchange: beside the old one until it is whole."""
    staging = files.join(to, NEW)
    _remove_left_behind(staging)
    before = refuse_foreign(to, format)
    if before.owned and not before.complete:
        ownership.remove(before, format)
        before = ownership.survey(to, format)
    folder = staging if before.owned else to
    claims = Claims(folder, format)
    try:
        yield Output(to, folder, claims)
        _require_manifest(folder, format)
        if before.owned:
            _refuse_new(to, before)
            _switch_by_file(folder, to, before, format)
        else:
            claims.withdraw()
    except BaseException:
        with contextlib.suppress(Failure):
            ownership.remove(ownership.survey(folder, format), format)
        raise


def is_stream(to: str) -> bool:
    """Whether a path is a device or a pipe, which is written to and not replaced."""
    local = files.local_path(to)
    if local is None:
        return False
    path = Path(os.path.realpath(local))
    special = path.exists() and not path.is_file() and not path.is_dir()
    # A shell's redirection to a file is written to as well, and not replaced.
    return special or str(local).startswith(("/dev/std", "/dev/fd/", "/proc/"))


@contextlib.contextmanager
def output_file(
    to: str, reads: Iterable[str] = (), replace: bool = False, claims: Claims | None = None
) -> Iterator[IO[bytes]]:
    """A file open for writing, in force at `to` when the block has ended without an exception.

    Raises UserError when there is a file already, unless it may be replaced, when it is a folder or
    a symbolic link, and when it overlaps one of `reads`. A device or pipe is written to as it is.
    A file that is on the list of `claims`, of its folder, may be replaced unless it was changed; it
    is on the list then.
    """
    name = to.rpartition("/")[2]
    refuse_overlap([to], reads)
    local = files.local_path(to)
    if is_stream(to):
        with files.open_output(to) as stream:
            yield stream
        return
    if local is not None:
        # As the file is found below: `a/..` names the folder above also where there is no `a`.
        local = Path(os.path.realpath(local.parent), local.name)
        is_there = local.exists()
    else:
        is_there = files.exists(to)
    if local is not None and local.is_symlink():
        raise UserError(f"to={to} is a symbolic link. Name the file itself")
    if local is not None and local.is_dir():
        raise UserError(f"to={to} is a folder. Name a file in it")
    is_known = claims is not None and name in claims.names and claims.is_unchanged(name)
    if is_there and not (replace or is_known):
        raise UserError(f"to={to} is there already. Name another file, or give overwrite=true")
    if local is None:
        if claims is not None:
            claims.take([name])
        with files.open_output(to) as stream:
            writer = HashingWriter(stream)
            yield cast(IO[bytes], writer)
        if claims is not None:
            claims.finish({name: writer.entry()})
        return
    place = Path(os.path.realpath(local))
    with _held(_named_beside(place, NEW), to) as folder:
        Claims(folder, FILE).add([CONTENT])
        made = files.join(folder, CONTENT)
        try:
            with files.open_output(made) as stream:
                writer = HashingWriter(stream)
                yield cast(IO[bytes], writer)
            with files.translated(to, "written"):
                if place.exists():
                    shutil.copymode(place, made)
                if claims is not None:
                    claims.take([name])
                os.replace(made, place)
                files.sync(place.parent)
            if claims is not None:
                claims.finish({name: writer.entry()})
        finally:
            folders.remove(folder, [CONTENT], last=LISTS)
