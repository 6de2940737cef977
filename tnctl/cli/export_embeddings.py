"""`tnctl export-embeddings`."""

from typing import TYPE_CHECKING

from tnctl.api.opened_run import Run
from tnctl.cli import arguments
from tnctl.cli.checkpoint_choice import chosen, perform
from tnctl.errors import UserError, quoted, refuse_if
from tnctl.serving.rows import file_formats, server_format

if TYPE_CHECKING:
    from tnctl.serving.rows.export_document import Filter

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
    "conf=NAME | output=URL | checkpoint=URL [to=URL] "
    f"[format={'|'.join(file_formats())}] "
    "[precision=float32|float16|int8] [only=SLOT,…] [min_show=X] [top=N] [since=URL] [golden=N] "
    "[prefix=NAME] [grace=SECONDS]"
)


def run(given: list[str]) -> int:
    """Write the embeddings to `to`, by default output/embeddings, a delta to embeddings-STEP."""
    opened, taken = chosen(given, TAKES, runs_recipe=False, takes_cluster=True)
    check(opened, taken)
    return perform("export-embeddings", opened, taken, runs_recipe=False)


def check(opened: Run, taken: dict[str, str]) -> None:
    """Refuse arguments that do not go together, a place with a file, and workers for Redis.

    Raises UserError.
    """
    from tnctl import outputs

    if server_format(taken.get("to", "")):
        start = opened.conf.cluster.start
        refuse_if(
            start is not None,
            f"cluster={start} is for exports to files: rows in Redis are written by one process, "
            "which needs no room for all of them. Leave it out",
        )
        refuse_if(
            "format" in taken, "format= is of files; rows in Redis have one form. Leave it out"
        )
        return
    refuse_if(taken.get("format") == "redis", "format= is of files. Give to=redis://HOST:PORT/DB")
    refuse_if(
        taken.get("format") == "tensornet",
        "tnctl no longer writes TensorNet's tables. format=text has their columns, without the "
        "optimizer's state",
    )
    arguments.choice(taken, "format", file_formats())
    outputs.check_folder(place_of(opened, taken))
    for key in OF_REDIS:
        refuse_if(key in taken, f"{key}= is of Redis. Give to=redis://HOST:PORT/DB with it")
    since = taken.get("since", "")
    refuse_if(
        since == "current" or server_format(since),
        "since= is of Redis, and a delta in files needs a base in files. Name its folder, or give "
        "to=redis://HOST:PORT/DB",
    )


def place_of(opened: Run, taken: dict[str, str]) -> str:
    name = "embeddings" if "since" not in taken else f"embeddings-{opened.step}"
    return taken.get("to") or opened.place_of(name)


def read(opened: Run, taken: dict[str, str]) -> int:
    from tnctl.model import quiet_tensorflow

    quiet_tensorflow()
    from tnctl.serving.rows.embeddings import GRACE, PREFIX
    from tnctl.serving.rows.export import GOLDEN_ROWS
    from tnctl.serving.rows.precision import PRECISIONS

    opened.export_embeddings(
        place_of(opened, taken),
        encoding=arguments.choice(taken, "format", file_formats()),
        precision=arguments.choice(taken, "precision", PRECISIONS),
        filter=filter_of(taken),
        since=taken.get("since"),
        golden=arguments.count(taken, "golden", GOLDEN_ROWS),
        prefix=taken.get("prefix", PREFIX),
        grace=arguments.count(taken, "grace", GRACE),
    )
    return 0


def filter_of(taken: dict[str, str]) -> "Filter":
    """Which rows to export."""
    from tnctl.serving.rows.export_document import Filter

    slots = None
    if "only" in taken:
        slots = tuple(dict.fromkeys(name.strip() for name in taken["only"].strip("[]").split(",")))
    return Filter(
        slots=slots,
        min_show=number(taken["min_show"]) if "min_show" in taken else None,
        top=arguments.count(taken, "top", 0) if "top" in taken else None,
    )


def number(text: str) -> float:
    """A number for min_show."""
    try:
        return float(text)
    except ValueError:
        raise UserError(f"min_show must be a number from 0 on. Received: {quoted(text)}") from None
