"""`tnctl train`."""

from tnctl.cli import arguments, compose, sweep
from tnctl.errors import refuse_if
from tnctl.model.quiet import quiet_tensorflow
from tnctl.schema import Conf

OF_A_SEARCH = ("sweep.trials", "sweep.seed", "sweep.prune", "sweep.storage", "sweep.refit")
TAKES = ("conf", "overwrite", "golden", "accept", *OF_A_SEARCH)
USAGE = "conf=NAME [output=URL] [key=value …] [-m key=value,value … [sweep.trials=N]]"


def run(given: list[str]) -> int:
    """Train a conf; exit code 0 when it is trained, now or before."""
    taken, overrides = arguments.part(given, TAKES)
    path = compose.named_conf(taken)
    overwrite, golden = arguments.flag(taken, "overwrite"), arguments.count(taken, "golden", 200)
    accept = arguments.flag(taken, "accept")
    is_sweep = arguments.options(overrides)[0].sweep
    for key in OF_A_SEARCH:
        refuse_if(key in taken and not is_sweep, f"{key}= is for sweeps: add -m")
        refuse_if(
            key in taken and "sweep.trials" not in taken,
            f"{key}= is for a search. Add sweep.trials=N, or leave it out",
        )
    if "sweep.trials" in taken:
        from tnctl.cli import search

        return search.train(path, taken, overrides, golden)
    if is_sweep:
        return sweep.train(path, overrides, overwrite, golden, accept)
    return compose.with_conf(
        path,
        overrides,
        lambda conf: train(conf, overwrite, golden, accept),
        takes_cluster=True,
    )


def train(conf: Conf, overwrite: bool, golden: int, accept: bool) -> int:
    from tnctl.training import plan

    conf.check_training()
    plan.check(conf, overwrite, accept)
    if conf.cluster.start != "env":  # each of whose workers runs this command
        plan.check_files(conf, overwrite)
    if conf.cluster.start in ("local", "ray"):
        from tnctl.launch import local_workers

        return local_workers.train(conf, overwrite=overwrite, golden=golden, accept=accept)
    if conf.cluster.start == "env":
        from tnctl.launch import env_workers

        return env_workers.train(conf, overwrite=overwrite, golden=golden, accept=accept)
    quiet_tensorflow()
    from tnctl.training.report.terminal_tables import show_report
    from tnctl.training.run import train as train_conf

    report = train_conf(conf, overwrite=overwrite, golden=golden, accept=accept)
    show_report(conf.output, report)
    return 0
