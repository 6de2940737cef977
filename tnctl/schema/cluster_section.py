"""`cluster`: training by several processes."""

from dataclasses import dataclass

from tnctl.schema.declarations import Section, choice, number


@dataclass
class Cluster(Section):
    """Training by several workers: each trains, and owns a part of every table."""

    start: str | None = choice(
        None, ("local",), "local: tnctl starts the workers, on this machine (null: no workers)"
    )
    workers: int = number(
        1, 1, 64, "the processes that train; train.batch_size is the batch of one of them"
    )
    mode: str = choice("sync", ("sync",), "sync: a step is a batch of every worker, applied once")
    timeout: float = number(
        5.0,
        2,
        600,
        "how long a worker may be unreachable until all are started again from the last checkpoint",
        unit="seconds",
    )
