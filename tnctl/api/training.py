"""What is done with a conf, and with runs: `tnctl.check`, `prepare`, `train` and others."""

import dataclasses
from typing import TYPE_CHECKING, Any

from tnctl import schema
from tnctl.api.calls import GOLDEN_ROWS, Url, in_one_line, text_of
from tnctl.api.opened_run import Run
from tnctl.api.opening import open
from tnctl.errors import Failure, UserError, quoted, refuse_if
from tnctl.model import quiet_tensorflow
from tnctl.schema import Conf

if TYPE_CHECKING:
    from tnctl.training.check.forecast import Forecast
    from tnctl.training.comparison import RunComparison

SPLITS = ("train", "validation", "test")


def check(conf: Conf, rows: int = 100_000) -> "Forecast":
    """What a conf and the first `rows` rows of its data come to: `tnctl check`.

    Raises UserError and Failure for what would keep the conf from being trained.
    """
    conf = given_conf(conf)
    conf.check_training()
    refuse_if(rows < 1, f"rows must be at least 1. Received: rows={rows}")
    refuse_if(
        conf.cluster.start is not None and conf.cluster.workers is None,
        "only the scheduler knows the number of workers. Give cluster.workers=N",
    )
    from tnctl.data import column_names, sources

    with in_one_line():
        sources.require(conf, SPLITS, column_names.columns_read(conf))
        quiet_tensorflow()
        from tnctl.progress import waiting
        from tnctl.training.check import forecast

        with waiting(f"looking at the first {rows:,} rows of data.train"):
            return forecast.inspect(conf, rows)


def prepare(conf: Conf, to: Url) -> None:
    """Write the data of a conf to a folder or URL as ids and numbers: `tnctl prepare`.

    Training then parses nothing. Raises UserError and Failure.
    """
    conf, to = given_conf(conf), text_of(to, "to")
    from tnctl.data import column_names, sources

    with in_one_line():
        sources.require(conf, SPLITS, column_names.columns_read(conf))
        if conf.data.format == "tfrecord":
            quiet_tensorflow()
        from tnctl.data import preparing

        preparing.prepare(conf, to)


def rollback(
    output: Url, *, step: int | None = None, day: str | None = None
) -> tuple[str, list[str]]:
    """Set back a run to the checkpoint of a step, or of the end of a day: `tnctl rollback`.

    Returns the folder of that checkpoint, and where the later ones are now. Raises UserError and
    Failure.
    """
    from tnctl.training.run_folder import roll_back

    refuse_if(
        (step is None) == (day is None),
        "give either step=N or day=DAY: which checkpoint to go back to",
    )
    with in_one_line():
        checkpoint, moved = roll_back(text_of(output, "output"), step, day)
        return checkpoint.folder, moved


def runs(folder: Url, metric: str | None = None) -> "RunComparison":
    """The runs below a folder or URL side by side, the best first: `tnctl runs`.

    `metric` orders them, by default the one that most of them monitor. Raises UserError and
    Failure.
    """
    from tnctl.training.comparison import compare

    with in_one_line():
        return compare(text_of(folder, "folder"), metric)


def train(
    conf: Conf, *, overwrite: bool = False, golden: int = GOLDEN_ROWS, accept: bool = False
) -> Run:
    """Train a conf to its end, as `tnctl train` does, and open the run.

    A finished run is not changed, and an unfinished one resumes. `overwrite`, `golden` and `accept`
    are the arguments of the command (`tnctl train --help`). Raises UserError and Failure, and after
    Ctrl-C `tnctl.errors.Stopped`, a KeyboardInterrupt, when a checkpoint of the last step is saved.
    """
    if isinstance(golden, bool) or not isinstance(golden, int) or golden < 0:
        raise UserError(
            f"golden must be a whole number from 0 on. Received: {quoted(repr(golden))}"
        )
    conf = given_conf(conf)
    with in_one_line():
        code = train_to_end(conf, overwrite=bool(overwrite), golden=golden, accept=bool(accept))
    if code:
        raise Failure(
            f"the workers ended with exit code {code}. {conf.output}/workers has their logs"
        )
    recipe = conf.recipe_name
    # Whoever trains by a file of code has permitted to run it.
    return open(conf.output, overrides=[f"recipe.name={recipe}"] if recipe.endswith(".py") else ())


def given_conf(conf: Conf) -> Conf:
    """A conf checked again: a program may have set attributes since. Raises UserError."""
    if not isinstance(conf, Conf):
        raise UserError(f"give a conf that compose made. Received: {quoted(repr(conf))}")
    return schema.from_values(_values_of(conf))


def train_to_end(conf: Conf, *, overwrite: bool, golden: int, accept: bool) -> int:
    """Train a checked conf, by the workers that it names; the exit code of `tnctl train`."""
    from tnctl.training import plan

    arguments: dict[str, Any] = {"overwrite": overwrite, "golden": golden, "accept": accept}
    start = conf.cluster.start
    conf.check_training()
    plan.check(conf, overwrite, accept)
    if start != "env":  # each of whose workers runs this command
        plan.check_files(conf, overwrite)
    if start is not None:
        from tnctl.launch import run

        return run.train(conf, **arguments)
    quiet_tensorflow()
    from tnctl.training.report.terminal_tables import show_report
    from tnctl.training.run import train as train_conf

    show_report(conf.output, train_conf(conf, **arguments))
    return 0


def _values_of(value: Any) -> Any:
    """A conf as plain values, with attributes that are no keys, which are refused later."""
    if dataclasses.is_dataclass(value):
        kind, keys = type(value), {field.name for field in dataclasses.fields(value)}
        return {
            name: _values_of(inner)
            for name, inner in vars(value).items()
            if name in keys or not hasattr(kind, name)  # no cached property
        }
    if isinstance(value, dict):
        return {key: _values_of(inner) for key, inner in value.items()}
    return [_values_of(inner) for inner in value] if isinstance(value, list | tuple) else value
