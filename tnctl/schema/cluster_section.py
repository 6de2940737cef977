"""`cluster`: training by several processes."""

from dataclasses import dataclass

from tnctl.errors import refuse_if
from tnctl.schema.declarations import Section, choice, key, number


@dataclass
class Tls(Section):
    """Mutual TLS between workers: each has a certificate that the authority has signed."""

    certificate: str | None = key(
        None, "PEM file with the certificate of this worker, and any between it and the authority"
    )
    authority: str | None = key(
        None, "PEM file with the certificates that sign the certificates of workers"
    )
    name: str | None = key(
        None,
        "the name in the certificates of all workers (default: the host of its address)",
    )
    # Last, for it hides the function.
    key: str | None = key(None, "PEM file with its private key, without a password")

    @property
    def is_used(self) -> bool:
        """Whether connections are encrypted."""
        return self.certificate is not None

    def check(self) -> None:
        given = {
            name: getattr(self, name) is not None for name in ("certificate", "key", "authority")
        }
        missing = [f"cluster.tls.{name}" for name, is_given in given.items() if not is_given]
        refuse_if(
            0 < len(missing) < 3 or (self.name is not None and missing),
            f"certificate, key and authority are needed together. Missing: {', '.join(missing)}",
        )


@dataclass
class Cluster(Section):
    """Training by several workers: without servers each owns a part of every table."""

    start: str | None = choice(
        None,
        ("env", "local", "ray"),
        "what starts the workers. local: tnctl, on this machine; ray: Ray, on the cluster of "
        "RAY_ADDRESS or on this machine; env: a scheduler starts the command for each worker, on "
        "any machine, and the environment says which worker it is (null: no workers)",
    )
    workers: int | None = number(
        1,
        1,
        64,
        "the processes that train; train.batch_size is the batch of one of them (null: as the "
        "environment says, for start=env)",
    )
    servers: int = number(
        0,
        0,
        64,
        "dedicated servers: processes that own all rows and dense weights, and compute nothing; "
        "workers then own none",
    )
    cpus: int | None = number(
        None,
        1,
        1024,
        "cluster=ray: the CPUs of a worker, which Ray reserves (null: as many as all can have)",
    )
    mode: str = choice(
        "sync",
        ("sync", "async"),
        "sync: a step is a batch of every worker, applied once; async: each batch is applied when "
        "it arrives, and workers wait for nobody",
        removed={"hybrid": "It is gone. Take sync or async, which continue its checkpoints."},
    )
    staleness: int | None = number(
        None,
        0,
        1_000_000,
        "async: the batches that a worker may be ahead of the slowest one",
    )
    warmup_batches: int = number(
        200,
        0,
        1_000_000_000,
        "async: the batches at the beginning of the training, of all workers together, in which "
        "workers take turns, so that none is trained with rows that are out of date",
    )
    backup: int = number(
        0,
        0,
        63,
        "backup workers: a step begins when all but N workers have sent their gradients; late "
        "gradients are dropped, and their batches trained again",
    )
    wire: str = choice(
        "float32",
        ("float32", "bfloat16"),
        "how rows and gradients travel between workers; bfloat16 halves their bytes and rounds "
        "them to 8 bits. Tables keep float32",
    )
    timeout: float = number(
        5.0,
        2,
        600,
        "how long a worker may be unreachable until all are started again from the last checkpoint",
        unit="seconds",
    )
    patience: float = number(
        120.0,
        1,
        86_400,
        "how long a worker that starts waits for the others, and with cluster=ray the command for "
        "Ray to place all of them",
        unit="seconds",
    )
    restarts: int = number(
        2, 0, 1000, "how often lost workers are started again without a new checkpoint in between"
    )
    tls: Tls = key(Tls, "encrypted connections between workers")

    @property
    def workers_of_step(self) -> int:
        """The workers whose batches together are a step; 1 with async and without workers."""
        together = self.start is not None and self.mode != "async"
        return (self.workers or 1) if together else 1

    def check(self) -> None:
        refuse_if(
            self.start != "env" and self.workers is None,
            "workers=null is for cluster=env. Give cluster.workers=N",
        )
