"""Which checkpoints stay, and the removal of the others."""

from collections.abc import Collection
from dataclasses import dataclass

from tnctl import files, ownership
from tnctl.checkpoint.chain import FOLDER
from tnctl.checkpoint.listing import Stored, stored
from tnctl.ownership import CHECKPOINT


@dataclass(frozen=True)
class Plan:
    """What pruning would do: folders to remove in this order, and why others stay, by name."""

    removed: list[Stored]
    kept: dict[str, str]


def plan(found: list[Stored], keep: int, protected_steps: Collection[int]) -> Plan:
    """The `keep` newest usable checkpoints stay, those of protected steps, and what they build on.

    What cannot be used (damaged, never completed, a delta without its parent) is neither counted
    nor removed: whoever owns it may still want to look at it. Nor is a symbolic link. keep=0 keeps
    all.
    """
    usable = {one.name: one for one in found if one.problem is None}
    links = [name for name, checkpoint in usable.items() if files.is_link(checkpoint.folder)]
    newest = [name for name in usable if name not in links][-keep:]
    kept = dict.fromkeys(newest, "newest")
    for name, checkpoint in usable.items():
        if checkpoint.step in protected_steps:
            kept.setdefault(name, "best")
    for name in links:
        kept.setdefault(name, "a symbolic link")
    for name in list(kept):
        child = usable[name]
        while child.parent is not None and child.parent not in kept:
            kept[child.parent] = f"{child.name} is built on it"
            child = usable[child.parent]
    kept |= {one.name: one.problem for one in found if one.problem is not None}
    # The newest first: stopped midway, no delta is left without its parent.
    removed = [usable[name] for name in reversed(usable) if name not in kept]
    return Plan(removed, kept)


def prune(output: str, keep: int, protected_steps: Collection[int]) -> list[str]:
    """Remove the checkpoints of an output that `plan` says; returns their folders."""
    return remove(plan(stored(files.join(output, FOLDER)), keep, protected_steps))


def remove(chosen: Plan) -> list[str]:
    """Remove what a plan says; returns the folders. Files in them that tnctl did not write stay."""
    for one in chosen.removed:
        ownership.remove_inner(one.folder, CHECKPOINT)
    return [one.folder for one in chosen.removed]
