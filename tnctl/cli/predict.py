"""`tnctl predict`."""

from tnctl.api.opened_run import PREDICTION_FORMATS as FORMATS
from tnctl.api.opened_run import Run, split_given
from tnctl.cli import arguments, compose
from tnctl.cli.checkpoint_choice import chosen, perform

TAKES = ("conf", "checkpoint", "to", "format", "overwrite")
USAGE = (
    "conf=NAME | output=URL | checkpoint=URL data.test=FILES [data.carry=[COLUMN,…]] "
    "[to=URL] [format=parquet|csv|jsonl] [overwrite=true]"
)


def run(given: list[str]) -> int:
    """Write the scores of data.test, else of data.validation, by default into the output."""
    opened, taken = chosen(given, TAKES, takes_cluster=True)
    check(opened, taken)
    return perform("predict", opened, taken)


def check(opened: Run, taken: dict[str, str]) -> None:
    """Refuse another file at the place of the output, and data that is not there.

    Raises UserError, Failure.
    """
    from tnctl import outputs
    from tnctl.data import column_names, sources
    from tnctl.evaluation import predictions

    conf = opened.conf
    split = split_given(conf.data, "score")
    predictions.check_carried(conf.data.carry, opened.heads)
    needed = [*column_names.columns_read(conf, labelled=False), *conf.data.carry]
    sources.require(conf, [split], list(dict.fromkeys(needed)))
    to, is_own = opened.place_of_predictions(taken.get("to"), format_of(taken))
    reads = [str(compose.conf_file(taken["conf"]))] if "conf" in taken else []
    outputs.refuse_overlap([to], [*reads, *sources.files_read(conf, [split])])
    outputs.check_file(to, is_own or arguments.flag(taken, "overwrite"))


def format_of(taken: dict[str, str]) -> str:
    """The format of format=, else the one that the name of the file has, else Parquet."""
    to = taken.get("to", "")
    by_name = next((kind for kind in FORMATS if to.endswith(f".{kind}")), FORMATS[0])
    return arguments.choice(taken, "format", FORMATS, by_name)


def read(opened: Run, taken: dict[str, str]) -> int:
    opened.predict_files(
        taken.get("to"), format_of(taken), overwrite=arguments.flag(taken, "overwrite")
    )
    return 0
