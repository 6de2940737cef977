"""The processes of a cluster by rank: workers, then dedicated servers; and which of them own what.

Without servers each worker owns a part of the model. With servers these own all rows and dense
weights; rank 0 receives the figures of every step (loss, logits, labels, statistics of batch norms)
in either case, so it answers exchanges too, as an owner of nothing else.
"""

from dataclasses import dataclass

from tnctl.tables.plans import SHARDS, Shards, shards_of

NO_SHARDS = Shards(0, 0)


@dataclass(frozen=True)
class Membership:
    """`workers` have the ranks from 0 on, `servers` those behind them."""

    workers: int
    servers: int = 0

    @property
    def size(self) -> int:
        """How many processes there are."""
        return self.workers + self.servers

    @property
    def writers(self) -> range:
        """The ranks that own rows and dense weights, in the order of their parts."""
        return range(self.workers, self.size) if self.servers else range(self.workers)

    @property
    def owners(self) -> tuple[int, ...]:
        """The ranks that answer exchanges: rank 0, then the writers beside it."""
        return (0, *(rank for rank in self.writers if rank))

    def is_server(self, rank: int) -> bool:
        """Whether a rank is that of a server."""
        return self.workers <= rank < self.size

    def shards(self, rank: int) -> Shards:
        """The shards of every table that a rank owns."""
        if rank not in self.writers:
            return NO_SHARDS
        return shards_of(rank - self.writers.start, len(self.writers))

    @property
    def first_shards(self) -> list[int]:
        """The first shard of each of `owners`, then 64."""
        return [*(self.shards(rank).first for rank in self.owners), SHARDS]

    def name(self, rank: int) -> str:
        """What lines call a process, such as "worker 2" or "server 0"."""
        if self.is_server(rank):
            return f"server {rank - self.workers}"
        return f"worker {rank}"

    def log_name(self, rank: int) -> str:
        """The log of a process, in the folder of logs."""
        if self.is_server(rank):
            return f"server-{rank - self.workers}.log"
        return f"rank-{rank}.log"


ONLY_WORKERS = Membership(SHARDS)
