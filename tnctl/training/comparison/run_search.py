"""The runs in a folder, at any depth: what `train` and sweeps wrote there."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tnctl import files
from tnctl.checkpoint import listing
from tnctl.checkpoint.chain import FOLDER as CHECKPOINTS
from tnctl.errors import Failure
from tnctl.training.run_folder import FOLDERS, LOG, MADE_FROM_A_RUN, REPORT

# Folders of a run in which no other run is.
INNER = {*FOLDERS, *MADE_FROM_A_RUN}


@dataclass
class Search:
    """The runs under a folder by their names there, with the names of their files.

    `skipped` has a sentence for each folder that cannot be looked into.
    """

    folder: str
    runs: dict[str, set[str]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)

    def url(self, name: str) -> str:
        """The output of a run."""
        return self.folder if name == "." else files.join(self.folder, name)


def search(folder: str) -> Search:
    """All runs under a folder; one that is a run itself has the name `.`.

    Symbolic links and hidden folders are not followed. Raises Failure when the folder cannot be
    listed.
    """
    result = Search(folder.rstrip("/") or "/")
    for name, entries in _folders(result):
        if is_run(result.url(name), entries):
            result.runs[name] = {entry.name for entry in entries}
    result.runs = dict(sorted(result.runs.items()))
    return result


def is_run(url: str, entries: list[files.Listed]) -> bool:
    """Whether a folder has what a run begins or ends with: a log, a report or checkpoints."""
    kinds = {entry.name: entry.kind for entry in entries}
    if kinds.get(REPORT) == "file" or kinds.get(LOG) == "file":
        return True
    return kinds.get(CHECKPOINTS) == "folder" and any(
        listing.NAME.fullmatch(name) for name in files.list_folder(files.join(url, CHECKPOINTS))
    )


def _folders(result: Search) -> Iterator[tuple[str, list[files.Listed]]]:
    """Each folder with its entries, the first one before those in it."""
    remaining = ["."]
    while remaining:
        name = remaining.pop()
        try:
            entries = files.listed(result.url(name))
        except Failure as error:
            if name == ".":
                raise
            result.skipped.append(f"skipped {name}: {error}")
            continue
        yield name, entries
        remaining += [
            entry.name if name == "." else f"{name}/{entry.name}"
            for entry in entries
            if entry.kind == "folder" and entry.name not in INNER and entry.name[0] != "."
        ]
