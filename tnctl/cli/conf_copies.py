"""A shipped conf as one file to edit: the conf itself, with the files of its data in it."""

import itertools
import re
from pathlib import Path
from typing import Any

import yaml

from tnctl import shipped
from tnctl.starting.conf_text import scalar

PACKAGE = re.compile(r"^#\s*@package .*\n", re.M)
IN_A_LINE = re.compile(r"^defaults:[ \t]*(\[.*\])[ \t]*(?:#.*)?$", re.M)
TOP_KEY = re.compile(r"^([A-Za-z_]+):", re.M)


def copied(path: Path, to: str) -> str:
    """The text of a conf file whose `data` and what belongs to it are no files of their own.

    Its recipe stays a choice, so that recipe=NAME works on the command line.
    """
    text = path.read_text("utf-8")
    head, entries, body = _parts(text)
    blocks: dict[str, list[str]] = {}
    remarks: list[str] = []
    kept: list[str] = []
    chosen = _chosen(entries)
    for entry in entries:
        if entry == "_self_":
            _add(body, blocks)
        inlined = _inlined(entry, chosen)
        if inlined is None:
            kept.append(entry)
            continue
        if inlined.is_file():
            remark = _add(PACKAGE.sub("", inlined.read_text("utf-8")), blocks)
            remarks.append(remark)
    is_own = shipped.folder("conf") not in path.parents
    if is_own and "paths" not in blocks and (not to or Path(to).resolve().parent != path.parent):
        remark = "  # of the copied conf, from which its relative paths start"
        blocks["paths"] = [f"paths: {{folder: {scalar(str(path.parent))}}}{remark}"]
    lines = [head.rstrip(), *(remark.rstrip() for remark in remarks if remark.strip())]
    name = f" {to}" if to else ""
    lines.insert(0, f"# A copy of conf={path.stem} to edit{name and ','}{name}:\n#")
    defaults = "defaults:\n" + "\n".join(f"  - {entry}" for entry in kept)
    parts = [_merged(texts) for texts in blocks.values()]
    return "\n".join([*lines, defaults, "", *parts]).rstrip() + "\n"


def _parts(text: str) -> tuple[str, list[str], str]:
    """What is above the list of defaults, its entries (in one line or several), and the rest."""
    if in_a_line := IN_A_LINE.search(text):
        entries = [
            entry if isinstance(entry, str) else ", ".join(f"{k}: {v}" for k, v in entry.items())
            for entry in yaml.safe_load(in_a_line[1])
        ]
        return text[: in_a_line.start()], entries, text[in_a_line.end() :].lstrip("\n")
    head, _, rest = text.partition("defaults:\n")
    lines = rest.splitlines()
    count = next(
        (at for at, line in enumerate(lines) if not line.lstrip().startswith("- ")), len(lines)
    )
    entries = [line.strip()[2:].partition(" #")[0].strip() for line in lines[:count]]
    return head, entries, "\n".join(lines[count:]) + "\n"


def _chosen(entries: list[str]) -> str:
    """The file of the group data that a conf takes."""
    return next((e.partition(":")[2].strip() for e in entries if e.startswith("data:")), "")


def _inlined(entry: str, data: str) -> Path | None:
    """The file of an entry that is about the data, which is to be in the copy."""
    folder = shipped.folder("conf")
    group, _, name = entry.removeprefix("optional ").partition(":")
    if group == "data":
        return folder / "data" / f"{name.strip()}.yaml"
    if name.strip() == "${data}":
        return folder / group / f"{data}.yaml"
    return None


def _add(text: str, blocks: dict[str, list[str]]) -> str:
    """Add the top keys of a file, each with its text; returns the remarks above the first."""
    starts = [match.start() for match in TOP_KEY.finditer(text)]
    for start, end in itertools.pairwise([*starts, len(text)]):
        block = text[start:end].rstrip()
        blocks.setdefault(block.partition(":")[0], []).append(block)
    return text[: starts[0]] if starts else text


def _merged(texts: list[str]) -> str:
    """The block of a key; of several files, their values merged, later ones first."""
    if len(texts) == 1:
        return texts[0]
    from omegaconf import OmegaConf

    values: Any = OmegaConf.merge(*(OmegaConf.create(text) for text in texts))
    plain = OmegaConf.to_container(values)
    return yaml.safe_dump(plain, sort_keys=False, default_flow_style=None, width=96).rstrip()
