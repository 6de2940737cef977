"""`tnctl.train`."""

import dataclasses
from typing import Any

from tnctl import schema
from tnctl.api.calls import in_one_line
from tnctl.api.opened_run import Run
from tnctl.api.opening import open
from tnctl.errors import Failure, UserError, quoted
from tnctl.model import quiet_tensorflow
from tnctl.schema import Conf


def train(conf: Conf, *, overwrite: bool = False, golden: int = 200, accept: bool = False) -> Run:
    """Train a conf to its end, as `tnctl train` does, and open the run.

    A finished run is not changed, and an unfinished one resumes. `overwrite`, `golden` and `accept`
    are the arguments of the command (`tnctl train --help`). Raises UserError and Failure, and after
    Ctrl-C `tnctl.errors.Stopped`, a KeyboardInterrupt, when a checkpoint of the last step is saved.
    """
    if not isinstance(conf, Conf):
        raise UserError(f"train takes a conf that compose made. Received: {quoted(repr(conf))}")
    if isinstance(golden, bool) or not isinstance(golden, int) or golden < 0:
        raise UserError(
            f"golden must be a whole number from 0 on. Received: {quoted(repr(golden))}"
        )
    # A program may have set attributes since.
    conf = schema.from_values(_values_of(conf))
    with in_one_line():
        code = train_to_end(conf, overwrite=bool(overwrite), golden=golden, accept=bool(accept))
    if code:
        raise Failure(
            f"the workers ended with exit code {code}. {conf.output}/workers has their logs"
        )
    recipe = conf.recipe_name
    # Whoever trains by a file of code has permitted to run it.
    return open(conf.output, overrides=[f"recipe.name={recipe}"] if recipe.endswith(".py") else ())


def train_to_end(conf: Conf, *, overwrite: bool, golden: int, accept: bool) -> int:
    """Train a checked conf, by the workers that it names; the exit code of `tnctl train`."""
    from tnctl.training import plan

    arguments: dict[str, Any] = {"overwrite": overwrite, "golden": golden, "accept": accept}
    start = conf.cluster.start
    conf.check_training()
    plan.check(conf, overwrite, accept)
    if start == "env":  # each of whose workers runs this command
        from tnctl.launch import env_workers

        return env_workers.train(conf, **arguments)
    plan.check_files(conf, overwrite)
    if start is not None:
        from tnctl.launch import local_workers

        return local_workers.train(conf, **arguments)
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
