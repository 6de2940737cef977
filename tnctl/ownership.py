"""Which files of a folder tnctl wrote: only those are ever removed or replaced. docs/trust.md.

A file is known by a manifest that names it, whose format can have such a file, and whose size and
checksum it has; or by a list of files that was written before the first of them. Everything else is
foreign, and so is every symbolic link.
"""

import contextlib
import re
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tnctl import documents, files, folders, limits, manifest
from tnctl.documents import LONGEST_PATH, DocumentError, RelativePath
from tnctl.errors import Failure, UserError
from tnctl.manifest import FileEntry, Manifest

LIST = ".tnctl-files.json"
# A storage may lose the old text of a file when it fails to write a new one. There the list is
# written in turns to two names, so that one of them is always whole.
SPARE_LIST = ".tnctl-files-2.json"
LISTS = (LIST, SPARE_LIST)
LIST_START = b'{\n  "format": "tnctl files"'

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
        """The same, or it is the manifest's name."""
        return name == self.manifest or self.is_file(name)


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
_BLOCK = re.compile(r"sparse_table/[A-Za-z0-9_]{1,128}/rank_(0|[1-9][0-9]?)/block_[0-7]\.gz")
TENSORNET = Format("tnctl tensornet", "manifest.json", _BLOCK)  # of earlier versions
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
FORMATS = {
    of.text: of for of in (CHECKPOINT, GRAPH, EMBEDDINGS, TENSORNET, PREPARED, RUN, WORKERS, FILE)
}


@dataclass(frozen=True, kw_only=True)
class OwnedFiles(Manifest):
    """A list of files that tnctl writes into the folder it lies in; sealed as a manifest is.

    `files` has the finished ones: a file counts only while its bytes are as they were written.
    """

    FORMAT = "tnctl files"

    of: str  # the format of the folder
    names: tuple[RelativePath, ...]


@dataclass(frozen=True)
class Survey:
    """What a folder holds: files that tnctl wrote, and everything else, by relative names."""

    folder: str
    owned: tuple[str, ...]  # in the order in which they may be removed: the manifest first
    lists: tuple[str, ...]  # the lists that name files; removed after all of those
    foreign: tuple[str, ...]
    subfolders: tuple[str, ...]  # in which files of tnctl are, or can be
    complete: bool  # there is a manifest, and all files that it names are as it says
    identity: folders.Identity | None  # of the folder that was surveyed


class Claims:
    """The list of the files that a command writes into a folder, kept in the folder itself.

    `lists` are the names that the list can have. Raises UserError when a file with such a name is
    no list of this format.
    """

    def __init__(self, folder: str, format: Format, lists: Sequence[str] = LISTS) -> None:
        self.folder, self.format = folder, format
        self._lists = lists[:1] if files.local_path(folder) is not None else lists
        self._writes = 0
        self._lock = threading.Lock()
        # What a file that is finished has to be; None while it is written.
        self.names: dict[str, FileEntry | None] = {}
        for name in self._lists:
            url = files.join(folder, name)
            if files.is_link(url):
                raise foreign_file(folder, name)
            if files.exists(url) and not _is_cut_list(url):
                known = read_list(folder, [name])
                if known is None or known.of != format.text:
                    raise foreign_file(folder, name)
                self.names |= {name: known.files.get(name) for name in known.names}

    def add(self, names: Iterable[str]) -> None:
        """Write names into the list, before the files are.

        Raises UserError when a file has such a name already that is not on the list or was changed
        since it was finished, or a symbolic link has one that is.
        """
        with self._lock:
            unlisted = []
            for name in names:
                url = files.join(self.folder, name)
                if not self.format.can_have(name):
                    raise ValueError(f"a {self.format.text} has no file {name}")
                is_listed = name in self.names
                if files.is_link(url) or not self.is_unchanged(name):
                    raise foreign_file(self.folder, name)
                if not is_listed and files.lies_at(url):
                    raise foreign_file(self.folder, name)
                if not is_listed or self.names[name] is not None:
                    unlisted.append(name)
            if unlisted:
                self.names |= dict.fromkeys(unlisted)
                self._write()

    def is_unchanged(self, name: str) -> bool:
        """Whether a file of the list, if it is there, is what it was when it was finished."""
        entry, url = self.names.get(name), files.join(self.folder, name)
        return entry is None or not files.exists(url) or manifest.entry_of(url) == entry

    def finish(self, entries: Mapping[str, FileEntry]) -> None:
        """Write the sizes and checksums of files into the list, now that they are complete."""
        with self._lock:
            self.names |= entries
            for _ in self._lists:
                self._write()

    def take(self, names: Iterable[str]) -> None:
        """Write names of files into the list that are known to be tnctl's.

        Parts of files that are being written go with these.
        """
        with self._lock:
            self.names |= dict.fromkeys(filter(self.format.can_have, names))
            self._write()

    def drop(self, names: Iterable[str]) -> None:
        """Take names off the list whose files were not written, from its next writing on."""
        with self._lock:
            for name in names:
                self.names.pop(name, None)

    def withdraw(self) -> None:
        """Remove the list: from now on the manifest says what the files are."""
        for name in self._lists:
            files.remove_file(files.join(self.folder, name))

    def _write(self) -> None:
        finished = {name: entry for name, entry in self.names.items() if entry is not None}
        document = OwnedFiles(
            format=OwnedFiles.FORMAT,
            version=1,
            files=finished,
            of=self.format.text,
            names=tuple(self.names),
        )
        url = files.join(self.folder, self._lists[self._writes % len(self._lists)])
        files.write_bytes(url, manifest.sealed(document.body()), durable=False)
        self._writes += 1


class ListedFiles:
    """The list of a folder that another process keeps, for a process that writes files on it."""

    def __init__(self, folder: str, format: Format) -> None:
        self.folder, self.format = folder, format
        self._names: set[str] = set()

    def require(self, names: Iterable[str]) -> None:
        """Raise Failure unless all names are on the list: before the files are written.

        Raises UserError when a symbolic link has such a name.
        """
        wanted = list(names)
        if not self._names.issuperset(wanted):
            self._read()
        for name in wanted:
            if name not in self._names:
                raise Failure(
                    f"{self.folder} has no list with {name}, which is to be written there. All "
                    "workers need the same output: give a folder that all machines share"
                )
            if files.is_link(files.join(self.folder, name)):
                raise foreign_file(self.folder, name)

    def _read(self) -> None:
        for name in LISTS:
            document = read_list(self.folder, [name])
            if document is not None and document.of == self.format.text:
                self._names.update(document.names)


def foreign_file(folder: str, name: str) -> UserError:
    """The refusal of a folder for a file in it that tnctl did not write, or for another format."""
    if name in LISTS and (known := read_list(folder, [name])) is not None:
        return UserError(
            f"{folder} has the files of a {known.of}, which this command does not replace. Name "
            "another place"
        )
    url, written = files.join(folder, name), read_list(folder)
    is_changed = written is not None and name in written.names and not files.is_link(url)
    reason = "was changed since tnctl wrote it"
    if not is_changed:
        reason = "tnctl did not write there and will not remove"
    return UserError(
        f"{folder} holds {name}, which {reason}. Give an empty or new folder, or move that file "
        "away"
    )


def read_list(folder: str, lists: Iterable[str] = LISTS) -> OwnedFiles | None:
    """The first list of a folder that is whole and of files of its format; None without one."""
    for name in lists:
        url = files.join(folder, name)
        if files.is_link(url):
            continue
        with contextlib.suppress(Failure):
            text = files.read_bytes(url, most=limits.MANIFEST_BYTES)
            document = manifest.unsealed(text, folder, url, OwnedFiles)
            format_ = FORMATS.get(document.of)
            if format_ is not None and all(map(format_.can_have, document.names)):
                return document
    return None


def survey(
    folder: str, format: Format, lists: Collection[str] = LISTS, follow: bool = True
) -> Survey:
    """Which files of a folder of a format tnctl wrote. Raises Failure for what cannot be read.

    Files are read for their checksums, unless one of the `lists` of the folder names them as files
    that may still have been written to. Unless `follow`, no file is removed by this survey if the
    folder is a symbolic link.
    """
    identity = folders.identity(folder, follow)
    listed: set[str] = set()
    finished: dict[str, FileEntry] = {}
    for name in lists:
        document = read_list(folder, [name])
        if document is not None and document.of == format.text:
            listed |= {name, *document.names}
            finished |= document.files
    listed -= finished.keys()
    in_manifest = _files_of_manifest(folder, format)
    entries = finished | (in_manifest or {})
    manifests = [str(format.manifest)] if in_manifest is not None else []
    known = {*listed, *entries, *manifests}
    owned: list[str] = []
    foreign: list[str] = []
    intact = 0
    subfolders = folders.parents_of(known)
    for name, content in folders.contents(folder, subfolders):
        entry, url, is_file = entries.get(name), files.join(folder, name), content.kind == "file"
        agrees = entry is not None and is_file and content.bytes == entry.bytes
        if agrees and name not in listed:
            agrees = manifest.entry_of(url) == entry
        intact += agrees
        is_ours = (
            agrees
            or name in listed
            or name in manifests
            or _is_part(folder, name, known)
            or (name in lists and is_file and _is_cut_list(url))
        )
        (owned if is_ours and is_file else foreign).append(name)
    # The manifest first, so that a folder that is half removed does not count.
    owned.sort(key=lambda name: (name != format.manifest, name))
    return Survey(
        folder,
        tuple(name for name in owned if name not in lists),
        tuple(name for name in owned if name in lists),
        tuple(sorted(foreign)),
        tuple(subfolders),
        in_manifest is not None and intact == len(entries),
        identity,
    )


def _files_of_manifest(folder: str, format: Format) -> dict[str, manifest.FileEntry] | None:
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


def _is_part(folder: str, name: str, known: Collection[str]) -> bool:
    """Whether a file is what a killed command left of a known file that it was writing."""
    above, slash, last = name.rpartition("/")
    match = files.PART_NAME.fullmatch(last)
    if match is None:
        return False
    if above + slash + match[1] in known:
        return True
    # The first list of a folder has no other that names it.
    return match[1] == LIST and _begins_as_list(files.read_bytes(files.join(folder, name)))


def _begins_as_list(text: bytes) -> bool:
    return LIST_START.startswith(text[: len(LIST_START)])


def _is_cut_list(url: str) -> bool:
    """Whether a file begins as a list does, and does not end as one: its writing was cut short."""
    text = files.read_bytes(url, most=limits.MANIFEST_BYTES)
    return _begins_as_list(text) and not text.endswith(b'"\n}\n')


def remove(content: Survey, format: Format, itself: bool = True) -> None:
    """Remove the files of a folder that tnctl wrote, and the folder if nothing else is in it.

    The folder `itself` stays if that is false. What an interruption leaves stays known, by a list.
    """
    names, lists = list(content.owned), content.lists
    if not lists and len(names) > 1:
        try:
            folders.refuse_other(content.folder, content.identity)
            Claims(content.folder, format).take(names)
            lists = LISTS
        except Failure:  # on a full disk: then the manifest is the last to go
            names.reverse()
    folders.remove(content.folder, content.identity, names, content.subfolders, lists, itself)


def remove_inner(folder: str, format: Format) -> None:
    """Remove the files of a folder that lies in one that the user names, if it is no link."""
    if not files.is_link(folder):
        remove(survey(folder, format, follow=False), format)
