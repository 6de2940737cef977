"""`tnctl train`."""

from tnctl.cli import arguments, compose, sweep
from tnctl.errors import refuse_if

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
    conf = compose.compose_line(path, overrides, takes_cluster=True)
    from tnctl.api.training import train_to_end

    return train_to_end(conf, overwrite=overwrite, golden=golden, accept=accept)
