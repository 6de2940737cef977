"""`tnctl score`."""

from pathlib import Path, PurePosixPath
from typing import Any

from tnctl import files
from tnctl.cli import arguments
from tnctl.cli.verify_serving import require_serving
from tnctl.errors import UserError, did_you_mean, refuse_if
from tnctl.model import quiet_tensorflow

TAKES = ("graph", "embeddings", "prefix", "input", "to", "format", "overwrite")
USAGE = (
    "graph=URL embeddings=URL|redis://… [prefix=NAME] [input=FILE|-] [to=FILE|-] "
    "[format=jsonl|csv] [data.bad_rows=N] [data.skip_rows=N] [data.KEY=VALUE …] [overwrite=true]"
)
FORMATS = ("jsonl", "csv")
SECTION = "data."
KEYS = tuple(
    SECTION + name
    for name in ("delimiter", "header", "columns", "check_utf8", "skip_rows", "bad_rows")
)
NAMES = {".jsonl": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "csv"}


def run(given: list[str]) -> int:
    """Write the scores of raw rows, in their order; from standard input to standard output.

    Files are read and written by their names, and else as format= says (jsonl). Keys of data say
    how the rows are read, else CSV is read as training read it. With data.bad_rows=N, rows that
    cannot be read are left out, at most N of them, and each score has the line of its row.
    """
    taken, rest = arguments.part(given, TAKES)
    for argument in rest:
        key, equals, _ = argument.partition("=")
        if not equals or key not in KEYS:
            raise UserError(
                f"score has no conf, and takes no {key}=. {did_you_mean(key, (*TAKES, *KEYS))}"
            )
    for key in ("graph", "embeddings"):
        refuse_if(key not in taken, f"score needs {key}=URL: {arguments.ARGUMENTS[key]}")
    source, to = taken.get("input", "-"), taken.get("to", "-")
    kind = arguments.choice(taken, "format", FORMATS, format_of(source))
    to_kind = kind if "format" in taken else format_of(to) or kind
    keys = values_of(rest)
    require_serving(taken["graph"], taken["embeddings"])
    if source != "-" and not files.exists(source):
        with files.open_input(source):  # raises what is wrong; a pipe could be opened only once
            pass
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
        keys,
        arguments.flag(taken, "overwrite"),
    )
    if to != "-":
        say(f"{rows:,} scores written to {to}")
    return 0


def values_of(overrides: list[str]) -> dict[str, Any]:
    """The values of keys of data, by their names in it. Raises UserError for one given twice."""
    if not overrides:
        return {}
    from tnctl.cli.compose import parsed_overrides

    values: dict[str, Any] = {}
    for override in parsed_overrides(Path.cwd() / "conf.yaml", overrides):
        key = override.key_or_group
        refuse_if(override.is_sweep_override(), f"{key} takes one value")
        name = key.removeprefix(SECTION)
        refuse_if(name in values, f"{key}= is given twice")
        values[name] = override.value()
    return values


def format_of(url: str) -> str:
    """The format that the name of a file has, empty for another."""
    suffixes = [suffix for suffix in PurePosixPath(url).suffixes if suffix not in (".gz", ".zst")]
    return NAMES.get(suffixes[-1], "") if suffixes else ""
