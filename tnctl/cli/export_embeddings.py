"""`tnctl export-embeddings`."""

from typing import TYPE_CHECKING, Any

from tnctl import files
from tnctl.cli import arguments
from tnctl.cli.checkpoint_choice import with_checkpoint
from tnctl.errors import UserError, quoted, refuse_if
from tnctl.schema import Conf
from tnctl.serving.rows.export_formats import file_formats, server_format

if TYPE_CHECKING:
    from tnctl.checkpoint.chain import Checkpoint
    from tnctl.cluster.rank_0.cluster_processes import ClusterProcesses
    from tnctl.serving.rows.export import Writers
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
    return with_checkpoint(
        given, TAKES, export, runs_recipe=False, name="export-embeddings", check=check
    )


def check(checkpoint: "Checkpoint", conf: Conf, taken: dict[str, str]) -> None:
    """Refuse a format that there is not, a place with a file, and workers that write to Redis.

    Raises UserError.
    """
    from tnctl import outputs

    if server_format(taken.get("to", "")) is None:
        refuse_if(
            taken.get("format") == "redis", "format= is of files. Give to=redis://HOST:PORT/DB"
        )
        refuse_if(
            taken.get("format") == "tensornet",
            "tnctl no longer writes TensorNet's tables. format=text has their columns, without the "
            "optimizer's state",
        )
        arguments.choice(taken, "format", file_formats())
        outputs.check_folder(place_of(checkpoint, conf.output, taken))
        return
    refuse_if(
        conf.cluster.start is not None,
        f"cluster={conf.cluster.start} is for exports to files: rows in Redis are written by one "
        "process, which needs no room for all of them. Leave it out",
    )


def place_of(checkpoint: "Checkpoint", output: str, taken: dict[str, str]) -> str:
    name = "embeddings" if "since" not in taken else f"embeddings-{checkpoint.step}"
    return taken.get("to") or files.join(output, name)


def lead(conf: Conf, processes: "ClusterProcesses", task: dict[str, Any]) -> int:
    """The same, as rank 0 of several workers."""
    from tnctl.checkpoint.chain import open_checkpoint

    checkpoint = open_checkpoint(task["checkpoint"])
    return export(checkpoint, conf, task["arguments"], processes.writers())


def export(
    checkpoint: "Checkpoint",
    conf: Conf,
    taken: dict[str, str],
    writers: "Writers | None" = None,
) -> int:
    from tnctl.serving.rows.embeddings import GRACE, PREFIX
    from tnctl.serving.rows.export import GOLDEN_ROWS, export
    from tnctl.serving.rows.precision import PRECISIONS

    golden = arguments.count(taken, "golden", GOLDEN_ROWS)
    precision = arguments.choice(taken, "precision", PRECISIONS)
    filter, since = filter_of(taken), taken.get("since")
    if server_format(taken.get("to", "")):
        refuse_if(
            "format" in taken, "format= is of files; rows in Redis have one form. Leave it out"
        )
    elif wrong := next((key for key in OF_REDIS if key in taken), None):
        raise UserError(f"{wrong}= is of Redis. Give to=redis://HOST:PORT/DB with it")
    elif since is not None and (since == "current" or server_format(since)):
        raise UserError(
            "since= is of Redis, and a delta in files needs a base in files. Name its "
            "folder, or give to=redis://HOST:PORT/DB"
        )
    export(
        checkpoint,
        conf,
        place_of(checkpoint, conf.output, taken),
        encoding=arguments.choice(taken, "format", file_formats()),
        precision=precision,
        filter=filter,
        since=since,
        golden=golden,
        prefix=taken.get("prefix", PREFIX),
        grace=arguments.count(taken, "grace", GRACE),
        writers=writers,
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
