"""`tnctl score`."""

from pathlib import PurePosixPath

from tnctl.cli import arguments
from tnctl.cli.quiet import quiet_tensorflow
from tnctl.errors import UserError, did_you_mean, refuse_if

TAKES = ("graph", "embeddings", "prefix", "input", "skip_rows", "to", "format", "overwrite")
USAGE = (
    "graph=URL embeddings=URL|redis://… [prefix=NAME] [input=FILE|-] [skip_rows=N] [to=FILE|-] "
    "[format=jsonl|csv] [overwrite=true]"
)
FORMATS = ("jsonl", "csv")
NAMES = {".jsonl": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "csv"}


def run(given: list[str]) -> int:
    """Write the scores of raw rows, in their order; from standard input to standard output.

    Files are read and written by their names, and else as format= says (jsonl).
    """
    taken, rest = arguments.part(given, TAKES)
    if rest:
        key = rest[0].partition("=")[0]
        raise UserError(f"score has no conf, and takes no {key}=. {did_you_mean(key, TAKES)}")
    for key in ("graph", "embeddings"):
        refuse_if(key not in taken, f"score needs {key}=URL: {arguments.ARGUMENTS[key]}")
    source, to = taken.get("input", "-"), taken.get("to", "-")
    kind = arguments.choice(taken, "format", FORMATS, format_of(source))
    to_kind = kind if "format" in taken else format_of(to) or kind
    skip_rows = arguments.count(taken, "skip_rows", 0)
    quiet_tensorflow()
    from tnctl.progress import say
    from tnctl.serving import scoring

    rows = scoring.score(
        taken["graph"],
        taken["embeddings"],
        taken.get("prefix", "tnctl"),
        source,
        kind,
        to,
        to_kind,
        skip_rows,
        arguments.flag(taken, "overwrite"),
    )
    if to != "-":
        say(f"{rows:,} scores written to {to}")
    return 0


def format_of(url: str) -> str:
    """The format that the name of a file has, empty for another."""
    suffixes = [suffix for suffix in PurePosixPath(url).suffixes if suffix not in (".gz", ".zst")]
    return NAMES.get(suffixes[-1], "") if suffixes else ""
