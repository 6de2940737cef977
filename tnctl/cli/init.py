"""`tnctl init`, and `tnctl recipes`: what a conf can begin with."""

import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from tnctl import shipped
from tnctl.cli import arguments
from tnctl.cli.commands import COMMANDS
from tnctl.cli.confs_and_runs import named_conf
from tnctl.cli.printing import print_json, table, urls_and_json
from tnctl.composing import compose
from tnctl.errors import UserError, did_you_mean, refuse_if

if TYPE_CHECKING:
    from tnctl.starting.first_conf import FirstConf

OPTION = re.compile(r"[\w.]+=.*", re.S)
PATTERN = re.compile(r"[*?\[]|\{day\}")  # in the name of several files, such as dt=*/part-0.csv
LINES_SHOWN = 20  # warnings and doubts, on the terminal; the file has all


def run(given: list[str]) -> int:
    """Write a conf for data, or copy a shipped conf to edit."""
    taken, words = arguments.part("init", given)
    for word in words:
        is_option = OPTION.fullmatch(word) and not (PATTERN.search(word) or Path(word).exists())
        if word.startswith("-") or is_option:
            key = word.partition("=")[0]
            raise UserError(f"init takes no {key}. {did_you_mean(key, COMMANDS['init'].takes)}")
    refuse_if(
        "conf" in taken and (words or taken.keys() & {"label", "positive"}),
        "conf=NAME copies a shipped conf: leave the data, label= and positive= out",
    )
    to = place_of(taken, words)
    if "conf" in taken:
        path = named_conf(taken)
        refuse_if(
            shipped.folder("conf") not in path.parents,
            f"conf={taken['conf']} is no shipped conf: copy your own file as any other",
        )
        write(path.read_text("utf-8"), to, words)
        result = None
    else:
        from tnctl.api.starting import first_conf

        positive = list(filter(None, taken.get("positive", "").split(",")))
        result = first_conf(words, taken.get("label"), positive, name="" if to == "-" else to)
        check(result.text)
        write(result.text, to, words)
    if to != "-":
        show(to, result)
    return 0


def recipes(given: list[str]) -> int:
    """Print the shipped recipes as a table, or JSON."""
    _, words, as_json = urls_and_json("recipes", given)
    refuse_if(words, f"recipes takes --json only. Received: {' '.join(words)}")
    from tnctl.api.starting import shipped_recipes

    listed = [asdict(recipe) for recipe in shipped_recipes()]
    if as_json:
        print_json(listed)
    else:
        table("", ("recipe", "what it is", "inputs"), map(dict.values, listed), left=range(3))
    return 0


def place_of(taken: dict[str, str], words: Sequence[str]) -> str:
    """Where the conf goes: to=, else a name in this folder. Raises UserError if a file is there."""
    refuse_if(
        not words and "conf" not in taken,
        "name the data, as in tnctl init clicks.csv, or a shipped conf to copy: conf=NAME",
    )
    to = taken.get("to")
    if to is None:
        last = PurePosixPath((taken.get("conf") or words[0]).rstrip("/")).name
        stem = last.replace("{day}", "").split(".")[0]
        stem = re.sub(r"[^A-Za-z0-9_-]+", "_", stem).strip("_-") or "data"
        to = f"{stem}.yaml"
    if to == "-":
        return to
    path = Path(to)
    refuse_if(
        "://" in to or path.suffix != ".yaml" or path.stem == "schema",
        f"to={to} is no name of a conf: it is a file of this machine that ends in .yaml, and not "
        "schema.yaml",
    )
    if os.path.lexists(to):
        raise UserError(
            f"{to} is there already, and is not replaced. Name another file: to=FILE.yaml"
        )
    return to


def check(text: str) -> None:
    """Raise UserError unless the text is a conf: nothing that cannot be read is written."""
    with tempfile.TemporaryDirectory(prefix="tnctl-") as folder:
        path = Path(folder) / "first.yaml"
        path.write_text(text, "utf-8")
        compose.compose(path, [])


def write(text: str, to: str, reads: Sequence[str]) -> None:
    """Write the conf to a new file, or to the standard output."""
    if to == "-":
        sys.stdout.write(text)
        return
    from tnctl import outputs

    with outputs.output_file(to, words_of_files(reads)) as stream:
        stream.write(text.encode())


def words_of_files(words: Sequence[str]) -> list[str]:
    """The words that name one file each: a folder may be where the conf goes."""
    return [word for word in words if not Path(word).is_dir() and not PATTERN.search(word)]


def show(to: str, result: "FirstConf | None") -> None:
    """What was recognised, and what comes next."""
    from tnctl.progress import say

    if result is not None:
        kinds = Counter(column.kind for column in result.columns.values())
        counted = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
        say(f"read {result.sample.rows:,} rows of {result.form.format}: {counted}")
        say(f"label {result.label.column}: {result.label.evidence}")
        lines = [f"warning: {text}" for text in result.warnings]
        lines += [f"not known: {text}" for text in result.doubts]
        for line in lines[:LINES_SHOWN]:
            say(line)
        if len(lines) > LINES_SHOWN:
            say(f"and {len(lines) - LINES_SHOWN} more, in the file")
    say(f"{to} written. Next: tnctl check conf={to}, then tnctl train conf={to}")
