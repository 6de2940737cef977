"""Which checkpoints of an output are removed: by save.keep, and by `tnctl checkpoint prune`."""

from collections.abc import Collection
from dataclasses import dataclass

from tnctl import files, ownership
from tnctl.checkpoint.chain import FOLDER
from tnctl.checkpoint.listing import Stored, stored
from tnctl.ownership import CHECKPOINT


@dataclass(frozen=True)
class Pruning:
    """What pruning would do: folders to remove in this order, and why others stay, by name."""

    removed: list[Stored]
    kept: dict[str, str]


def plan(entries: list[Stored], keep: int, protected_steps: Collection[int]) -> Pruning:
    """Keep the `keep` newest usable checkpoints, the protected steps, and what these build on.

    What cannot be used (damaged, never completed, a delta without its parent) is neither counted
    nor removed: whoever owns it may still want to look at it. Nor is a symbolic link. keep=0 keeps
    all.
    """
    usable = {entry.name: entry for entry in entries if entry.problem is None}
    links = [name for name, checkpoint in usable.items() if files.is_link(checkpoint.folder)]
    newest = [name for name in usable if name not in links][-keep:]
    best = [name for name, checkpoint in usable.items() if checkpoint.step in protected_steps]
    kept: dict[str, str] = {}
    for names, why in ((newest, "newest"), (best, "best"), (links, "a symbolic link")):
        for name in names:
            kept.setdefault(name, why)
    for name in list(kept):
        child = usable[name]
        while child.parent is not None and child.parent not in kept:
            kept[child.parent] = f"{child.name} is built on it"
            child = usable[child.parent]
    kept |= {entry.name: entry.problem for entry in entries if entry.problem is not None}
    # The newest first: stopped midway, no delta is left without its parent.
    removed = [usable[name] for name in reversed(usable) if name not in kept]
    return Pruning(removed, kept)


def prune(output: str, keep: int, protected_steps: Collection[int]) -> list[str]:
    """Remove the checkpoints of an output that `plan` says; returns their folders."""
    return remove(plan(stored(files.join(output, FOLDER)), keep, protected_steps))


def remove(chosen: Pruning) -> list[str]:
    """Remove what a plan says; returns the folders. Files in them that tnctl did not write stay."""
    for entry in chosen.removed:
        ownership.remove_known(entry.folder, CHECKPOINT)
    return [entry.folder for entry in chosen.removed]
