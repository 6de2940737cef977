"""Which files of a folder tnctl wrote: only those are ever removed or replaced. docs/trust.md.

Of an output they are those that its sealed manifest names, with their size and checksum. In a
folder that a command works in, and below the log of a run, they are those whose names the format
can have. Everything else is foreign, and so is every symbolic link.
"""

import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from tnctl import documents, files, limits, manifest
from tnctl.documents import LONGEST_PATH, DocumentError, RelativePath
from tnctl.errors import Failure, UserError
from tnctl.manifest import FileEntry, Manifest

NEW = ".tnctl-new"  # the folder that an output is written into, beside its place or in it
OLD = ".tnctl-old"  # the output that was in force, while its names are given to the new one
# In an output on an object store that is not complete, and was empty before.
WRITING = ".tnctl-writing"
# In which earlier versions had the names of the files that they wrote.
LISTS = (".tnctl-files.json", ".tnctl-files-2.json", ".tnctl-predictions.json")
LOG = "log.jsonl"  # the log of a run
FIRST_EVENT = re.compile(
    rb'\{"event": "(workers|mlflow|step|evaluation|epoch|day|stopped|failed|pruned)", '
    rb'"(step|epoch)": \d'
)
FOLDER = os.O_RDONLY | os.O_DIRECTORY
Identity = tuple[int, int]  # device and inode

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
SAVED_MODEL = re.compile(
    r"saved_model\.pb|fingerprint\.pb|variables/variables\.(index|data-[0-9]{5}-of-[0-9]{5})"
)


@dataclass(frozen=True)
class Format:
    """A kind of folder: the name of its manifest, and the names that its files can have."""

    text: str  # the manifest's `format`
    manifest: str | None
    pattern: re.Pattern[str]

    def is_file(self, name: str) -> bool:
        """Whether the format itself can produce a file of a name, beside its manifest."""
        return len(name) <= LONGEST_PATH and self.pattern.fullmatch(name) is not None

    def can_have(self, name: str) -> bool:
        """Whether a command that writes the format can leave a file of a name when it is killed."""
        name = _completed(name)
        return name in (self.manifest, WRITING, *LISTS) or self.is_file(name)


CHECKPOINT = Format(
    "tnctl checkpoint",
    "manifest.json",
    re.compile(
        rf"conf\.json|golden\.jsonl|dense\.bin|graph/({SAVED_MODEL.pattern})|extra/{_NAME}"
        rf"|tables/{_NAME}/([0-9]{{5,}}\.rows(\.zst)?|(tombstones|sketch)(-[0-9]{{5}})?\.bin)"
    ),
)
GRAPH = Format(
    "tnctl graph",
    "serving.json",
    re.compile(
        rf"{SAVED_MODEL.pattern}|golden\.jsonl|assets\.extra/tf_serving_warmup_requests"
        r"|aot/([1-9][0-9]{0,4}/graph(\.h|\.o|_constants\.o)|compiled\.(h|mk))"
    ),
)
EMBEDDINGS = Format(
    "tnctl embeddings",
    "manifest.json",
    re.compile(
        rf"golden\.jsonl|{_NAME}(-[0-9]{{5}})?\.((removed\.)?(parquet|txt)|dictionary|index)"
        rf"|{_NAME}\.values\.parquet"
    ),
)
PREPARED = Format(
    "tnctl prepared",
    "manifest.json",
    re.compile(r"(train|validation|test)/(part-[0-9]{5,}\.parquet|first\.json)"),
)
# The files that a run has beside its checkpoints; it has no manifest.
RUN = Format(
    "tnctl run",
    None,
    re.compile(
        r"log\.jsonl|report\.(json|html)|baseline\.json|predictions\.(parquet|csv|jsonl)"
        r"|tensorboard/events\.out\.tfevents\.[A-Za-z0-9._-]+"
        r"|tensorboard/plugins/profile/[A-Za-z0-9._-]+/[A-Za-z0-9._-]+"
    ),
)
# The output of the workers of a run, the traceback of worker 0, and a file by which they see that
# they share the folder.
WORKER_LOGS = "workers"
WORKERS = Format(
    "tnctl workers",
    None,
    re.compile(r"(rank|server)-[0-9]{1,2}\.log|rank-0-traceback\.log|ray\.log|seen-by-all"),
)
# A file that is being written, alone in a folder beside its place.
FILE = Format("tnctl file", None, re.compile("content"))
FORMATS = {of.text: of for of in (CHECKPOINT, GRAPH, EMBEDDINGS, PREPARED, RUN, WORKERS, FILE)}


@dataclass(frozen=True, kw_only=True)
class OwnedFiles(Manifest):
    """A list of the files that an earlier version wrote into a folder."""

    FORMAT = "tnctl files"

    names: tuple[RelativePath, ...]


@dataclass(frozen=True)
class Survey:
    """What a folder holds: files that tnctl wrote, and everything else, by relative names."""

    folder: str
    owned: tuple[str, ...]  # in the order in which they may be removed
    foreign: tuple[str, ...]
    subfolders: tuple[str, ...]  # in which files of tnctl are, or can be
    identity: Identity | None  # of the folder that was surveyed


def survey(folder: str, format: Format) -> Survey:
    """What an output holds. Raises Failure for what cannot be read.

    A file is tnctl's if a sealed manifest names it, with its size and checksum, and the format can
    have it. Where a command was killed while it replaced the files of the folder one by one, the
    manifests are in its working folders.
    """
    named = [_files_of(files.join(folder, above), format) for above in ("", NEW, OLD)]
    entries: dict[str, list[FileEntry]] = {}
    for names in named:
        for name, entry in (names or {}).items():
            entries.setdefault(name, []).append(entry)
    listed = set(_listed(folder, format))

    def is_owned(name: str, content: files.Listed) -> bool:
        if name in listed or _completed(name) in LISTS:
            return True
        if name == format.manifest:
            return named[0] is not None
        known = entries.get(name, [])
        is_possible = any(entry.bytes == content.bytes for entry in known)
        return is_possible and manifest.entry_of(files.join(folder, name)) in known

    # The manifest last: what is left of a removal is still known by it.
    enters = parents_of(listed | entries.keys()).__contains__
    return _surveyed(folder, enters, is_owned, lambda name: name == format.manifest)


def survey_by_name(
    folder: str,
    formats: Collection[Format] = (),
    enters: Callable[[str], bool] = lambda _name: True,
) -> Survey:
    """What a working folder or a part of a run holds: tnctl's is what `formats` can have, or any.

    `enters` says of which subfolders the content is looked at. The folder is no link.
    """
    formats = formats or FORMATS.values()
    manifests = {format.manifest for format in formats}
    return _surveyed(
        folder,
        enters,
        lambda name, _: any(format.can_have(name) for format in formats),
        # The manifest first: a folder that is half removed does not count.
        lambda name: name not in manifests,
    )


def _surveyed(
    folder: str,
    enters: Callable[[str], bool],
    is_owned: Callable[[str, files.Listed], bool],
    order: Callable[[str], bool],
) -> Survey:
    surveyed = identity(folder)
    owned, foreign, subfolders = list[str](), list[str](), list[str]()

    def enter(name: str) -> bool:
        if is_entered := enters(name):
            subfolders.append(name)
        return is_entered

    for name, content in contents(folder, enter):
        is_ours = content.kind == "file" and is_owned(name, content)
        (owned if is_ours else foreign).append(name)
    # By the lists of an earlier version other files are known.
    owned.sort(key=lambda name: (order(name), name in (WRITING, *LISTS), name))
    return Survey(folder, tuple(owned), tuple(sorted(foreign)), tuple(subfolders), surveyed)


def _completed(name: str) -> str:
    """The name of a file; of a part of one that is being written, the name that it will get."""
    above, slash, last = name.rpartition("/")
    match = files.PART_NAME.fullmatch(last)
    return name if match is None else above + slash + match[1]


def _files_of(folder: str, format: Format) -> dict[str, FileEntry] | None:
    """The files that the manifest of a folder names; None without one.

    One that names a file which the format cannot have was not written by tnctl, and is none.
    """
    if format.manifest is None:
        return None
    url = files.join(folder, format.manifest)
    with contextlib.suppress(files.MissingError, DocumentError, manifest.DamagedError):
        text = files.read_bytes(url, most=limits.MANIFEST_BYTES)
        header = documents.parse(Manifest, manifest.intact(text, folder, url, format.text))
        if header.format == format.text and all(map(format.is_file, header.files)):
            return header.files
    return None


def has_manifest(folder: str) -> bool:
    """Whether a folder has a sealed manifest of some format."""
    return any(_files_of(folder, format) is not None for format in FORMATS.values())


def _listed(folder: str, format: Format) -> Iterator[str]:
    """The names on the lists that an earlier version left in a folder when it was killed."""
    for name in LISTS:
        url = files.join(folder, name)
        with contextlib.suppress(Failure):
            if not files.is_link(url):
                text = files.read_bytes(url, most=limits.MANIFEST_BYTES)
                names = manifest.unsealed(text, folder, url, OwnedFiles).names
                yield from names if all(map(format.can_have, names)) else ()


def is_run(output: str) -> bool:
    """Whether a folder has the log of a run: it begins with an event of training, or is empty."""
    url = files.join(output, LOG)
    if files.is_link(url) or not files.exists(url):
        return False
    with files.open_input(url) as stream:
        head = stream.read(64)
    return not head or FIRST_EVENT.match(head) is not None


def foreign_file(folder: str, name: str) -> UserError:
    """The refusal of a folder for a file in it that tnctl did not write, or has changed since."""
    return UserError(
        f"{folder} holds {name}, which tnctl did not write there and will not remove. Give an "
        "empty or new folder, or move that file away"
    )


def remove(content: Survey, itself: bool = True) -> None:
    """Remove the files of a folder that tnctl wrote, and the folder if nothing else is in it.

    The folder `itself` stays if that is false.
    """
    remove_files(content.folder, content.identity, content.owned, content.subfolders, itself)


def remove_known(folder: str, format: Format) -> None:
    """Remove the files of a folder of a run that a format can have, if the folder is no link."""
    if not files.is_link(folder):
        remove(survey_by_name(folder, [format]))


# ---- Folders: no symbolic link is followed, and no tree is removed ----------


def parents_of(names: Iterable[str]) -> set[str]:
    """The folders that files with these relative names lie in, without the outermost, `.`."""
    above = {str(folder) for name in names for folder in PurePosixPath(name).parents}
    return above - {"."}


def contents(folder: str, enters: Callable[[str], bool]) -> Iterator[tuple[str, files.Listed]]:
    """What lies in a folder, by relative names, and in the subfolders that `enters` accepts.

    Any other subfolder is one entry. Symbolic links are entries of their own, and not followed.
    Nothing when there is no folder. Raises Failure.
    """
    waiting = [""]
    while waiting:
        above = waiting.pop()
        for entry in files.listed(files.join(folder, above) if above else folder):
            name = f"{above}/{entry.name}" if above else entry.name
            if entry.kind == "folder" and enters(name):
                waiting.append(name)
            else:
                yield name, entry


def identity(folder: str) -> Identity | None:
    """What no other folder of this machine has; None if there is none, and on other storages."""
    local = files.local_path(folder)
    with files.translated(folder), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if local is not None:
            status = local.stat()
            return status.st_dev, status.st_ino
    return None


def refuse_other(folder: str, known: Identity | None) -> None:
    """Raise Failure when another folder, or a link to one, has the name of a known one now."""
    if identity(folder) not in (None, known):
        raise _other(folder)


def _other(folder: str) -> Failure:
    return Failure(
        f"{folder} is another folder now than the one that tnctl wrote or looked at, and stays. "
        "Move it away, and run the command again"
    )


@contextlib.contextmanager
def opened(folder: str, known: Identity | None) -> Iterator[int | None]:
    """The descriptor of a known folder of this machine; None if it is not there any more.

    Raises Failure when another has its name now.
    """
    local = files.local_path(folder)
    if local is None or known is None or not local.exists():
        yield None
        return
    with files.translated(folder):
        descriptor = os.open(local, FOLDER)
    try:
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) != known:
            raise _other(folder)
        yield descriptor
    finally:
        os.close(descriptor)


def remove_files(
    folder: str,
    known: Identity | None,
    names: Iterable[str],
    subfolders: Iterable[str] = (),
    itself: bool = True,
) -> None:
    """Remove files of a folder by their relative names, in this order, then folders left empty.

    Those are the folders of the files and `subfolders`, and in the end the folder `itself`, unless
    that is false. The last file, if it is in no subfolder, is removed after these: the manifest, by
    which the others are known. Raises Failure before that when an empty subfolder cannot be
    removed; and before anything is, when another folder of this machine has the name of the `known`
    one now.
    """
    removed = list(names)
    last = removed.pop() if removed and "/" not in removed[-1] else None
    with opened(folder, known) as held:
        if held is None and files.local_path(folder) is not None:
            return
        for name in removed:
            _remove(files.remove_file, folder, name, held)
        emptied = parents_of(removed) | set(subfolders)
        for subfolder in sorted(emptied, key=lambda name: -name.count("/")):
            _remove(files.remove_empty_folder, folder, subfolder, held)
            url = files.join(folder, subfolder)
            local = files.local_path(url)
            if local is not None and local.is_dir() and not any(local.iterdir()):
                raise Failure(f"the empty folder {url} could not be removed. Run the command again")
        if last is not None:
            _remove(files.remove_file, folder, last, held)
        if itself:
            refuse_other(folder, known)
            files.remove_empty_folder(folder)


def _remove(
    remove_it: Callable[[str, int | None], None], folder: str, name: str, held: int | None
) -> None:
    """Remove what has a relative name in a folder, which is `held` open if it is of this machine.

    What lies behind a symbolic link stays.
    """
    url = files.join(folder, name)
    with (
        files.translated(url, "removed"),
        contextlib.suppress(FileNotFoundError, NotADirectoryError),
        contextlib.ExitStack() as way,
    ):
        for above in name.split("/")[:-1] if held is not None else ():
            held = os.open(above, FOLDER | os.O_NOFOLLOW, dir_fd=held)
            way.callback(os.close, held)
        remove_it(url, held)
