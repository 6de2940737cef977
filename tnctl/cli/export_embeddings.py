"""`tnctl export-embeddings`."""

from typing import TYPE_CHECKING, TypeVar

from tnctl import files
from tnctl.cli import arguments
from tnctl.cli.target import with_checkpoint
from tnctl.errors import UserError, quoted
from tnctl.schema import Conf

if TYPE_CHECKING:
    from tnctl.checkpoint.load import Checkpoint
    from tnctl.serving.export_document import Filter

Choice = TypeVar("Choice", bound=str)
OF_REDIS = ("prefix", "grace")
TAKES = (
    "conf",
    "checkpoint",
    "to",
    "format",
    "precision",
    "only",
    "min_show",
    "top",
    "since",
    "golden",
    *OF_REDIS,
)
USAGE = (
    "conf=NAME | output=URL | checkpoint=URL [to=URL] [format=parquet|text|dictionary] "
    "[precision=float32|float16|int8] [only=SLOT,…] [min_show=X] [top=N] [since=URL] [golden=N] "
    "[prefix=NAME] [grace=SECONDS]"
)


def run(given: list[str]) -> int:
    """Write the embeddings to `to`, by default output/embeddings, a delta to embeddings-STEP."""
    return with_checkpoint(given, TAKES, export, runs_recipe=False)


def export(checkpoint: "Checkpoint", conf: Conf, own: dict[str, str]) -> int:
    from tnctl.serving import export as exporting
    from tnctl.serving.embeddings import REDIS
    from tnctl.serving.export_document import ENCODINGS
    from tnctl.serving.precision import PRECISIONS

    golden = arguments.count(own, "golden", exporting.GOLDEN_ROWS)
    precision = one_of(own, "precision", PRECISIONS)
    filter, since = filter_of(own), own.get("since")
    if "to" in own and own["to"].startswith(REDIS):
        if "format" in own:
            raise UserError("format= is of files; rows in Redis have one form. Leave it out")
        from tnctl.serving import redis_export, redis_store

        exporting.export_to_redis(
            checkpoint,
            conf,
            own["to"],
            prefix=own.get("prefix", redis_store.PREFIX),
            grace=arguments.count(own, "grace", redis_export.GRACE),
            precision=precision,
            filter=filter,
            since=since,
            golden=golden,
        )
        return 0
    if wrong := next((key for key in OF_REDIS if key in own), None):
        raise UserError(f"{wrong}= is of Redis. Give to=redis://HOST:PORT/DB with it")
    if since is not None and (since == "current" or since.startswith(REDIS)):
        raise UserError(
            "since= is of Redis, and a delta in files needs a base in files. Name its "
            "folder, or give to=redis://HOST:PORT/DB"
        )
    name = "embeddings" if since is None else f"embeddings-{checkpoint.step}"
    exporting.export(
        checkpoint,
        conf,
        own.get("to") or files.join(conf.output, name),
        encoding=one_of(own, "format", ENCODINGS),
        precision=precision,
        filter=filter,
        since=since,
        golden=golden,
    )
    return 0


def one_of(own: dict[str, str], key: str, choices: tuple[Choice, ...]) -> Choice:
    """A word of some; the first one when it is not given."""
    value: str = own.get(key, choices[0])
    for choice in choices:
        if value == choice:
            return choice
    raise UserError(f"no {key} {quoted(value)}. Choose from: {', '.join(choices)}.")


def filter_of(own: dict[str, str]) -> "Filter":
    """Which rows are asked for."""
    from tnctl.serving.selection import Filter

    slots = None
    if "only" in own:
        slots = tuple(dict.fromkeys(name.strip() for name in own["only"].strip("[]").split(",")))
    return Filter(
        slots=slots,
        min_show=number(own["min_show"]) if "min_show" in own else None,
        top=arguments.count(own, "top", 0) if "top" in own else None,
    )


def number(text: str) -> float:
    """A number for min_show."""
    try:
        return float(text)
    except ValueError:
        raise UserError(f"min_show must be a number from 0 on. Received: {quoted(text)}") from None
