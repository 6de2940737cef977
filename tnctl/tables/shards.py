"""The shards of sparse tables: 64 equal ranges of the hash, which processes can divide."""

from dataclasses import dataclass

SHARDS = 64
HASHES_PER_SHARD = 2**64 // SHARDS


@dataclass(frozen=True)
class Shards:
    """Consecutive shards of a table: `count` of them, the first one has the number `first`."""

    first: int
    count: int

    @property
    def end(self) -> int:
        """The number after the last shard."""
        return self.first + self.count

    @property
    def hashes(self) -> tuple[int, int]:
        """The first and the last hash, both inclusive."""
        return self.first * HASHES_PER_SHARD, self.end * HASHES_PER_SHARD - 1


ALL_SHARDS = Shards(0, SHARDS)


def shards_of(rank: int, owners: int) -> Shards:
    """The shards of one of N owners. Raises ValueError unless 0 <= rank < N <= 64."""
    if not 0 <= rank < owners <= SHARDS:
        raise ValueError(f"expected a rank below 1 to {SHARDS} owners. Received: {rank}, {owners}")
    first, end = (SHARDS * number // owners for number in (rank, rank + 1))
    return Shards(first, end - first)
