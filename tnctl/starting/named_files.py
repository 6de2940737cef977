"""The files that the words of `tnctl init` name, and which of them train, validate and test."""

import contextlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from tnctl import files, schema
from tnctl.data.bad_rows import SPLITS
from tnctl.data.days import conf_of_day, daily, days_of, fixed_folder, in_words, none_there
from tnctl.data.file_pieces import partitions_of
from tnctl.data.formats.arrow_files import ParquetReader
from tnctl.data.read_ahead import in_order
from tnctl.data.sources import DAY, Source
from tnctl.data.vectors import columns_of_vectors
from tnctl.errors import Failure, quoted, refuse_if
from tnctl.schema import is_whole

ROLES = {
    "train": "train", "training": "train",
    "validation": "validation", "valid": "validation", "val": "validation", "dev": "validation",
    "eval": "validation",
    "test": "test", "testing": "test", "holdout": "test",
}  # fmt: skip
# Names of files that lie beside data.
NO_DATA = {
    ".md", ".rst", ".html", ".pdf", ".png", ".jpg", ".py", ".ipynb", ".sh", ".c", ".h", ".yaml",
    ".yml", ".toml", ".names", ".crc", ".md5", ".sha256", ".log", ".index", ".license",
}  # fmt: skip
DEPTH = 4  # of folders in the given folder
FEW_LISTED, MOST_LISTED = 4, 500  # names that a conf lists rather than a glob, or without one
DATE = re.compile(r"(?<!\d)(?:19|20)\d\d([-_]?)(?:0[1-9]|1[0-2])\1(?:0[1-9]|[12]\d|3[01])(?!\d)")
VALIDATION_PART = 10  # every tenth file of many that are alike
FEW_SCHEMAS = 20  # files that are opened to see whether they are of vectors
DAYS_READ = 4  # the last ones of daily training
Sizes = Mapping[str, int]  # the bytes of files by their names
_common_start = os.path.commonprefix  # of texts, not only of paths


@dataclass
class NamedFiles:
    """The files of each split, by names that start from `root`, and what shows the splits.

    `left_out` says why files of the folder are in no split; `empty` are the files without any
    byte, which are in none; `vectors` are files of vectors beside them, each with its column of
    values. `pattern` is data.train of daily training, with {day}, and `days` are
    its days; `names` then has the files of the last ones.
    """

    root: str | None
    names: dict[str, list[str]]
    empty: list[str] = field(default_factory=list)
    vectors: dict[str, str] = field(default_factory=dict)
    evidence: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    pattern: str | None = None
    days: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._every = self.names["train"]

    def urls(self, split: str) -> list[str]:
        """The URLs of the files of a split."""
        return [files.join(self.root, name) for name in self.names[split]]

    def root_from(self, folder: Path) -> str | None:
        """`root` for a conf file in a folder, from which its relative paths start.

        A path that the user gave as a relative one is relative in the conf too.
        """
        names = [name for split in self.names.values() for name in split]
        if is_whole(self.root or "") or (self.root is None and all(map(is_whole, names))):
            return self.root
        root = os.path.relpath(self.root or ".", folder)
        return None if root == "." else root

    def spec(self, split: str) -> str | list[str]:
        """The files as data.SPLIT names them: a name, a glob that matches no other, or a list."""
        if self.pattern is not None:
            return self.pattern
        names = self.names[split]
        if len(names) == 1:
            return names[0]
        if len(names) > FEW_LISTED and (glob := self.glob_of(names)):
            return glob
        refuse_if(
            len(names) > MOST_LISTED,
            f"{len(names):,} files would have to be listed. Name them by a glob that matches no "
            "other file, such as 'FOLDER/part-*.csv'",
        )
        return names

    def glob_of(self, names: list[str]) -> str | None:
        """A glob that matches these names, in this order, and no other file."""
        paths = [name.split("/") for name in names]
        if set("*?[").intersection("".join(names)) or len(set(map(len, paths))) > 1:
            return None
        patterns = [_pattern(parts) for parts in zip(*paths, strict=True)]
        matching = [
            name
            for name in self._every
            if len(parts := name.split("/")) == len(patterns)
            and all(map(fnmatchcase, parts, patterns))
        ]
        return "/".join(patterns) if matching == names else None


def _pattern(parts: Sequence[str]) -> str:
    """What parts of names have in common at their start and end, with `*` between."""
    start = _common_start(parts)
    if all(part == start for part in parts):
        return start
    end = _common_start([part[len(start) :][::-1] for part in parts])[::-1]
    return f"{start}*{end}"


def named_files(words: Sequence[str]) -> NamedFiles:
    """The files of words that name files, globs, a folder or days, with their splits.

    Raises `UserError` or `Failure` when nothing is there that could be trained on.
    """
    if any(DAY in word for word in words):
        return _daily(words)
    if len(words) > 1:
        return _with_rows(None, _sizes([url for word in words for url in _expanded(word)]))
    [word] = words
    try:
        urls = _expanded(word.rstrip("/") or word)
    except Failure:
        # Not earlier: to list a folder of an HTTP server is to read the file.
        if sizes := _data_files(word):
            return _with_rows(word.rstrip("/") or "/", sizes)
        local = files.local_path(word)
        if local is not None and local.is_dir():
            raise Failure(
                f"{word} is a folder without files that could be data. Name a file"
            ) from None
        raise
    folder = files.fixed_folder(word)
    if not all(url.startswith(folder) for url in urls):
        folder = ""
    root, names = _root_of(folder), [url[len(folder) :] for url in urls]
    if len(urls) == 1:  # an empty one is refused where it is read
        return NamedFiles(root, {"train": names})
    return _with_rows(root, dict(zip(names, _sizes(urls).values(), strict=True)))


def _root_of(folder: str) -> str | None:
    return folder.rstrip("/") or ("/" if folder else None)


def _expanded(word: str) -> list[str]:
    """The files of a name or glob, relative to the working directory where the word is."""
    path = files.local_path(word)
    urls = files.expand(word)
    if path is None or path.is_absolute():
        return urls
    return [os.path.relpath(url) if os.path.isabs(url) else url for url in urls]


def _sizes(urls: Sequence[str]) -> Sizes:
    return dict(zip(urls, in_order(files.size, iter(urls)), strict=True))


def _data_files(folder: str) -> Sizes:
    """The files in a folder, by relative names, that can be data."""
    return {
        name: size
        for name, size in sorted(_walk(folder, "", DEPTH))
        if PurePosixPath(name).suffix.lower() not in NO_DATA
        and PurePosixPath(name).stem.lower() not in ("readme", "license")
    }


def _walk(folder: str, prefix: str, depth: int) -> Iterator[tuple[str, int]]:
    for entry in files.listed(folder):
        if entry.name[0] in "._":  # _SUCCESS, _temporary and such
            continue
        url, name = files.join(folder, entry.name), f"{prefix}{entry.name}"
        if entry.kind == "folder" and depth:
            yield from _walk(url, f"{name}/", depth - 1)
        elif entry.kind == "file":
            yield name, entry.bytes
        elif (local := files.local_path(url)) and local.is_file():
            yield name, local.stat().st_size  # of the file that a link leads to


def _with_rows(root: str | None, sizes: Sizes) -> NamedFiles:
    """The files that have bytes, with their splits. Raises `Failure` when none has."""
    names = [name for name, size in sizes.items() if size]
    refuse_if(
        not names, f"{next(iter(sizes))} and others have no bytes. Name a file with rows", Failure
    )
    named = NamedFiles(root, {"train": names}, [name for name in sizes if name not in set(names)])
    if len(names) > 1:  # a single one is trained on, whatever its name says
        _take_vectors(named)
        _split_by_names(named)
        _cut_validation(named)
    return named


def _take_vectors(named: NamedFiles) -> None:
    """Take files of vectors out of the data. Files named alike but for digits are parts of it."""
    names = [name for name in named.names["train"] if PurePosixPath(name).suffix == ".parquet"]
    alike = Counter(re.sub(r"\d+", "0", name) for name in names)
    for name in [name for name in names if alike[re.sub(r"\d+", "0", name)] == 1][:FEW_SCHEMAS]:
        with contextlib.suppress(Failure):  # reading the data reports it
            columns = columns_of_vectors(ParquetReader.schema_of(files.join(named.root, name)))
            if columns is not None:
                named.vectors[name] = columns[0]
    data = [name for name in named.names["train"] if name not in named.vectors]
    named.names["train"] = data or named.names["train"]


def _role_of(name: str) -> str | None:
    """The split that the words of a name say: train.csv, clicks/test/part-0.parquet."""
    words = reversed(re.split(r"[^a-z]+", name.lower()))
    return next((ROLES[word] for word in words if word in ROLES), None)


def _split_by_names(named: NamedFiles) -> None:
    """Give the files to the splits that their names say; the others are trained on."""
    names = named.names["train"]
    # A folder that all of several words share says nothing.
    shared = _common_start(names).rfind("/") + 1 if named.root is None else 0
    by_split: dict[str | None, list[str]] = {}
    for name in names:
        by_split.setdefault(_role_of(name[shared:]), []).append(name)
    for split in SPLITS:
        if members := by_split.get(split):
            named.names[split], named.evidence[split] = members, "by the name"
    plain = by_split.get(None, [])
    if "train" in by_split:
        named.left_out += [f"{name}: its name says no split" for name in plain]
        return
    refuse_if(
        not plain, f"no file to train on: the name of {quoted(names[0])} says another split. Add it"
    )
    named.names["train"] = plain


def _cut_validation(named: NamedFiles) -> None:
    """Keep the last day, or the last files of many, for validation where no file is named so."""
    names = named.names["train"]
    if "validation" in named.names or len(names) < 2:
        return
    dates = {name: match[0] for name in names if (match := DATE.search(name))}
    days = sorted(set(dates.values())) if len(dates) == len(names) else []
    if not days and any(map(partitions_of, names)):
        # The last files may be of one country alone.
        named.evidence["train"] = f"{len(names):,} files in folders that name columns"
        return
    if len(days) > 1:
        last = [name for name in names if dates[name] == days[-1]]
        reason = f"the last day; to train day by day, name the files with {DAY} for {days[-1]}"
    else:
        last = names[-max(1, len(names) // VALIDATION_PART) :]
        reason = f"the last {len(last)} of {len(names):,} files"
    trained = [name for name in names if name not in set(last)]
    if days:
        trained.sort(key=lambda name: (dates[name], name))
    if len(trained) > MOST_LISTED and named.glob_of(trained) is None:
        named.evidence["train"] = f"all {len(names):,} files"
        return
    if len(days) > 1:
        named.evidence["train"] = f"{len(days) - 1} days from {days[0]}, in their order"
    named.evidence["validation"] = reason
    named.names |= {"train": trained, "validation": last}


def _daily(words: Sequence[str]) -> NamedFiles:
    """The training files of the last days of a name with {day}, and the name itself.

    Raises `Failure` when no day is there, and `UserError` for several names.
    """
    refuse_if(
        len(words) > 1,
        f"with {DAY} give one name, whose files are one table: tnctl init 'clicks-{DAY}.csv'",
    )
    [word] = words
    if files.local_path(word) is not None and "://" not in word:
        word = os.path.normpath(word) + "/" * word.endswith("/")
    folder = fixed_folder(word)
    root, pattern = _root_of(folder), word[len(folder) :]
    conf = schema.from_values(
        {
            "recipe": {"name": "lr"},
            "output": "none",
            "slots": {"any": {}},
            "data": {"root": root, "train": pattern, "label": {"column": "any"}},
        }
    )
    daily(conf)  # for its errors
    days = days_of(conf).there
    if not days:
        raise none_there(conf)
    read = days[-DAYS_READ:]
    sizes = _sizes([url for day in read for url in Source(conf_of_day(conf, day), "train").files])
    names = [url.removeprefix(files.join(root, "")) for url, size in sizes.items() if size]
    refuse_if(not names, f"{word} on {in_words(read)} has only empty files", Failure)
    empty = [url for url, size in sizes.items() if not size]
    named = NamedFiles(root, {"train": names}, empty, pattern=pattern, days=days)
    named.evidence["train"] = (
        f"{len(days):,} days, of which {in_words(read)} were read; each is evaluated before it is "
        "trained"
    )
    return named
