"""The files that the words of `tnctl init` name, and which of them train, validate and test."""

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from tnctl import files
from tnctl.data.partitions import partitions_of
from tnctl.data.read_ahead import in_order
from tnctl.data.sources import DAY
from tnctl.errors import Failure, UserError, quoted, refuse_if
from tnctl.masking import masked
from tnctl.schema import is_whole

SPLITS = ("train", "validation", "test")
ROLES = {
    "train": {"train", "training"},
    "validation": {"validation", "valid", "val", "dev", "eval"},
    "test": {"test", "testing", "holdout"},
}
# Names of files that lie beside data.
NO_DATA = {
    ".md", ".rst", ".html", ".pdf", ".png", ".jpg", ".py", ".ipynb", ".sh", ".c", ".h", ".yaml",
    ".yml", ".toml", ".names", ".crc", ".md5", ".sha256", ".log", ".index", ".license",
}  # fmt: skip
DEPTH = 4  # of folders in the one that is named
MOST_ENTRIES = 100_000
FEW_LISTED, MOST_LISTED = 4, 500  # names that a conf lists rather than a glob, or without one
DATE = re.compile(r"(?<!\d)(?:19|20)\d\d([-_]?)(?:0[1-9]|1[0-2])\1(?:0[1-9]|[12]\d|3[01])(?!\d)")
VALIDATION_PART = 10  # every tenth file of many that are alike


@dataclass
class NamedFiles:
    """The files of each split, by names that start from `root`, and what shows the splits.

    `left_out` says of files in the folder why they are in no split; `empty` are those without any
    byte, which are in none. `days` are the days that the
    names of training files have. `pattern` is data.train of daily training, with {day}; `names`
    then has the files of the last days, and `day_of` the day of each by its URL.
    """

    root: str | None
    names: dict[str, list[str]]
    every: list[str]
    evidence: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    days: list[str] = field(default_factory=list)
    pattern: str | None = None
    day_of: dict[str, str] = field(default_factory=dict)

    def urls(self, split: str) -> list[str]:
        """The URLs of the files of a split."""
        return [files.join(self.root, name) for name in self.names.get(split, ())]

    def root_from(self, folder: Path) -> str | None:
        """`root` for a conf file in a folder, from which its relative paths start.

        What the user named by a relative path is relative in the conf too.
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
        glob = _common_glob(names)
        if glob is None:
            return None
        patterns = glob.split("/")
        matching = [name for name in self.every if _matches(name.split("/"), patterns)]
        return glob if matching == names else None


def _common_glob(names: Sequence[str]) -> str | None:
    """A glob that matches names of one depth, folder by folder; None where there is none."""
    paths = [name.split("/") for name in names]
    if set("*?[").intersection("".join(names)) or len({len(path) for path in paths}) > 1:
        return None
    return "/".join(_pattern(parts) for parts in zip(*paths, strict=True))


def _pattern(parts: Sequence[str]) -> str:
    """What parts of names have in common at their start and end, with `*` between."""
    if len(set(parts)) == 1:
        return parts[0]
    start = _common_start(parts)
    end = _common_start([part[len(start) :][::-1] for part in parts])[::-1]
    return f"{start}*{end}"


def _common_start(parts: Sequence[str]) -> str:
    """The characters with which all parts begin."""
    first, last = min(parts), max(parts)
    differing = (at for at, sign in enumerate(first) if last[at : at + 1] != sign)
    return first[: next(differing, len(first))]


def _matches(path: list[str], patterns: list[str]) -> bool:
    return len(path) == len(patterns) and all(map(fnmatchcase, path, patterns))


def named_files(words: Sequence[str]) -> NamedFiles:
    """The files of words that name files, globs or folders, dealt to splits.

    Raises `UserError` when nothing is there or files are of several kinds.
    """
    refuse_if(not words, "name the data: tnctl init FILE, a glob, or a folder")
    if len(words) > 1:
        urls = [url for word in words for url in _expanded(word)]
        return _with_rows(" ".join(words), None, zip(urls, _sizes(urls), strict=True))
    [word] = words
    local = files.local_path(word)
    try:
        urls = _expanded(word.rstrip("/") or word)
    except Failure:
        # Not before: to ask an HTTP server for a folder is to read the file.
        if entries := _data_files(word):
            return _with_rows(word, word.rstrip("/") or "/", entries, in_folder=True)
        if local is not None and local.is_dir():
            raise Failure(
                f"{word} is a folder without files that could be data. Name a file"
            ) from None
        raise
    start = word[: min((word.find(sign) for sign in "*?[" if sign in word), default=len(word))]
    folder = start[: start.rfind("/") + 1] if urls != [word] else word[: word.rfind("/") + 1]
    if not all(url.startswith(folder) for url in urls):
        folder = ""
    names = [url[len(folder) :] for url in urls]
    root = folder.rstrip("/") or ("/" if folder else None)
    if len(urls) > 1:
        return _with_rows(word, root, zip(names, _sizes(urls), strict=True))
    dealt = _dealt(root, names)
    _add_siblings(dealt)
    return dealt


def _expanded(word: str) -> list[str]:
    """The files of a name or glob, relative to the working directory where the word is."""
    path = files.local_path(word)
    urls = files.expand(word)
    if path is None or path.is_absolute():
        return urls
    return [os.path.relpath(url) if os.path.isabs(url) else url for url in urls]


def _sizes(urls: Sequence[str]) -> Iterator[int]:
    return in_order(files.size, iter(urls))


def _with_rows(
    word: str, root: str | None, entries: Iterable[tuple[str, int]], in_folder: bool = False
) -> NamedFiles:
    """The files that have bytes, dealt to splits. Raises `Failure` when none has."""
    names, empty = without_empty(entries)
    if not names:
        raise Failure(f"{word} has only empty files. Name a file with rows")
    dealt = _dealt(root, names, in_folder)
    dealt.empty = empty
    return dealt


def _data_files(folder: str) -> list[tuple[str, int]]:
    """The files in a folder, by relative names, that can be data, with their bytes."""
    return sorted(
        (name, size)
        for name, size in _walk(folder, "", DEPTH)
        if PurePosixPath(name).suffix.lower() not in NO_DATA
        and PurePosixPath(name).stem.lower() not in ("readme", "license")
    )


def _walk(folder: str, prefix: str, depth: int) -> Iterator[tuple[str, int]]:
    for count, entry in enumerate(files.listed(folder)):
        if count > MOST_ENTRIES:
            raise Failure(f"{folder} has over {MOST_ENTRIES:,} entries. Name its files by a glob")
        if entry.name[0] in "._":  # _SUCCESS, _temporary and such
            continue
        if entry.kind == "folder" and depth:
            yield from _walk(files.join(folder, entry.name), f"{prefix}{entry.name}/", depth - 1)
        elif entry.kind == "file":
            yield f"{prefix}{entry.name}", entry.bytes


def without_empty(entries: Iterable[tuple[str, int]]) -> tuple[list[str], list[str]]:
    """The names of files with their bytes that have some, and of those that have none."""
    names: list[str] = []
    empty: list[str] = []
    for name, size in entries:
        (names if size else empty).append(name)
    return names, empty


def role_of(name: str) -> str | None:
    """The split that the words of a name say: train.csv, clicks/test/part-0.parquet."""
    tokens = [token for token in re.split(r"[^a-z]+", name.lower()) if token]
    for token in reversed(tokens):
        for split, words in ROLES.items():
            if token in words:
                return split
    return None


def weekday_of(name: str) -> int | None:
    """The weekday of the day that a name has, from Monday 0 on; None without a day."""
    match = DATE.search(name)
    try:
        return date.fromisoformat(re.sub("[-_]", "", match[0])).weekday() if match else None
    except ValueError:  # a day that the month does not have
        return None


def _dealt(root: str | None, names: list[str], in_folder: bool = False) -> NamedFiles:
    dealt = NamedFiles(root, {"train": names}, list(names))
    if len(names) == 1:  # it is trained on, whatever its name says
        return dealt
    # A folder that all of several words share says nothing.
    shared = _common_start(names).rfind("/") + 1 if root is None else 0
    roles = {name: role_of(name[shared:]) for name in names}
    plain = [name for name, role in roles.items() if role is None]
    for split in SPLITS:
        if members := [name for name, role in roles.items() if role == split]:
            dealt.names[split] = members
            dealt.evidence[split] = "by the name"
    if "train" in roles.values():
        dealt.left_out += [f"{name}: its name says no split" for name in plain]
    else:
        refuse_if(
            not plain,
            f"no file to train on: {quoted(names[0])} is for {roles[names[0]]} by its name. Name a "
            "file to train on too",
        )
        if in_folder:
            _refuse_several_kinds(root, plain)
        dealt.names["train"] = plain
    _cut_validation(dealt)
    return dealt


def _refuse_several_kinds(root: str | None, names: list[str]) -> None:
    """Files whose names differ in more than numbers are not parts of one table."""
    # The values of a table's own folders, such as country=DE, are no kinds.
    plain = {name: re.sub(r"=[^/]*/", "=/", name.lower()) for name in names}
    without_keys = {name: re.sub(r"[0-9a-f-]{32,}", "", short) for name, short in plain.items()}
    kinds = {re.sub(r"[^a-z/.]+", "", short): name for name, short in without_keys.items()}
    if len(kinds) > 1:
        first, second, *_ = sorted(kinds.values())
        raise UserError(
            f"{root or 'the command'} names files of several kinds, such as {quoted(first)} and "
            f"{quoted(second)}. Name those of one table, by a file or a glob"
        )


def _cut_validation(dealt: NamedFiles) -> None:
    """Keep the last day, or the last files of many, for validation where no file is named so."""
    names = dealt.names["train"]
    days = {name: match[0] for name in names if (match := DATE.search(name))}
    if len(days) == len(names):
        dealt.days = sorted(set(days.values()))
    if "validation" in dealt.names or len(names) < 2:
        return
    if not dealt.days and any(partitions_of(name) for name in names):
        # The last files may be of one country alone.
        dealt.evidence["train"] = f"{len(names):,} files in folders that name columns"
        return
    by_day = _daily_command(dealt.root, days) if len(dealt.days) > 1 else ""
    if len(dealt.days) > 1:
        last = [name for name in names if days[name] == dealt.days[-1]]
        reason = f"the last day, {dealt.days[-1]}{by_day}"
    else:
        last = names[-max(1, len(names) // VALIDATION_PART) :]
        reason = f"the last {len(last)} of {len(names):,} files"
    trained = [name for name in names if name not in set(last)]
    if dealt.days:
        trained.sort(key=lambda name: (days[name], name))
    if len(trained) > MOST_LISTED and dealt.glob_of(trained) is None:
        dealt.evidence["train"] = f"all {len(names):,} files{by_day}"
        return
    if len(dealt.days) > 1:
        dealt.evidence["train"] = f"{len(dealt.days) - 1} days from {dealt.days[0]}, in their order"
    dealt.evidence["validation"] = reason
    dealt.names |= {"train": trained, "validation": last}


def _daily_command(root: str | None, days: dict[str, str]) -> str:
    """How the files, by the day that each name has, are trained day by day; empty if not known."""
    patterns = sorted({name.replace(day, DAY) for name, day in days.items()})
    pattern = _common_glob(patterns)
    if pattern is None or DAY not in pattern:
        return ""
    command = f"tnctl init {shlex.quote(masked(files.join(root, pattern)))}"
    return f"; to train day by day: {command}"


def _add_siblings(dealt: NamedFiles) -> None:
    """The files for validation and test that lie beside a single one, named alike."""
    [name] = dealt.names["train"]
    parts = dealt.urls("train")[0].rpartition("/")
    listed = files.listed(parts[0] or ("/" if parts[1] else "."))
    for entry in listed:
        role = role_of(entry.name)
        if (
            entry.kind == "file"
            and entry.bytes
            and role in ("validation", "test")
            and role not in dealt.names
            and entry.name != parts[2]
            and _stem(entry.name) == _stem(parts[2])
        ):
            dealt.names[role] = [name[: len(name) - len(parts[2])] + entry.name]
            dealt.evidence[role] = f"beside {parts[2]}"


def _stem(name: str) -> list[str]:
    """The words of a name without those that say a split or a format."""
    known = set().union(*ROLES.values(), {"csv", "tsv", "txt", "data", "gz", "zst", "dat"})
    return [token for token in re.split(r"[^a-z]+", name.lower()) if token and token not in known]
