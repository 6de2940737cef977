"""The commands before and of training: `tnctl prepare`, `train`, `rollback` and `import`."""

from typing import Any

from tnctl.cli import arguments
from tnctl.cli.confs_and_runs import composed, named_conf, output_of
from tnctl.errors import UserError, refuse_if

OF_A_SEARCH = "sweep."


def prepare(given: list[str]) -> int:
    """Write the data of a conf as ids and numbers, for training that parses nothing."""
    conf, taken = composed("prepare", given)
    refuse_if("to" not in taken, "give to=URL, the folder to write to")
    from tnctl.api import training

    training.prepare(conf, taken["to"])
    return 0


def train(given: list[str]) -> int:
    """Train a conf; exit code 0 when it is trained, now or before."""
    taken, words = arguments.part("train", given)
    named_conf(taken)  # for its errors
    settings: dict[str, Any] = {
        "overwrite": arguments.flag(taken, "overwrite"),
        "golden": arguments.count(taken, "golden", 200),
    }
    accept = arguments.flag(taken, "accept")
    options, overrides = arguments.options(words)
    for key in (key for key in taken if key.startswith(OF_A_SEARCH)):
        refuse_if(not options.sweep, f"{key}= is for sweeps: add -m")
        refuse_if(
            "sweep.trials" not in taken,
            f"{key}= is for a search. Add sweep.trials=N, or leave it out",
        )
    if not options.sweep:
        conf, _ = composed("train", given, takes_cluster=True)
        from tnctl.api.training import train_to_end

        return train_to_end(conf, **settings, accept=accept)
    refuse_if(options.show, "--cfg job shows one conf: leave -m out")
    if "sweep.trials" in taken:
        refuse_if("accept" in taken, "accept= is for days, which sweep.trials does not take")
        return _search(taken, overrides, settings)
    from tnctl.api.sweep import sweep

    return sweep(taken["conf"], overrides, **settings, accept=accept)


def _search(taken: dict[str, str], overrides: list[str], settings: dict[str, Any]) -> int:
    """Search, print the best conf as a command, and train it with sweep.refit=true."""
    from tnctl.api.search import search

    prune = "sweep.prune" not in taken or arguments.flag(taken, "sweep.prune")
    refit = arguments.flag(taken, "sweep.refit")
    result = search(
        taken["conf"],
        overrides,
        trials=arguments.count(taken, "sweep.trials", 1),
        seed=arguments.count(taken, "sweep.seed", 1),
        prune=prune,
        storage=taken.get("sweep.storage"),
        refit=refit,
        **settings,
    )
    if result.command is not None:
        print(result.command, flush=True)
    if refit:
        result.refit()
    return result.exit_code


def rollback(given: list[str]) -> int:
    """Go back to a checkpoint of a run."""
    taken, rest = arguments.part("rollback", given)
    output = output_of(rest)
    if output is None or len(rest) > 1:
        raise UserError(f"give output=RUN and step=N or day=DAY. Received: {' '.join(given)}")
    step = arguments.count(taken, "step", 0) if "step" in taken else None
    from tnctl.api import training
    from tnctl.progress import say

    checkpoint, moved = training.rollback(output, step=step, day=taken.get("day"))
    for folder in moved:
        say(f"moved to {folder}")
    say(f"{output} is as it was at {checkpoint}: `tnctl train` trains on from there")
    return 0


def import_weights(given: list[str]) -> int:
    """Write TensorNet's weights as the first checkpoint of a run, which train goes on from."""
    conf, taken = composed("import", given)
    refuse_if("tensornet" not in taken, "give tensornet=URL, the folder of TensorNet's weights")
    from tnctl.api.starting import import_tensornet

    import_tensornet(conf, taken["tensornet"], dense=taken.get("dense"), tables=taken.get("tables"))
    return 0
