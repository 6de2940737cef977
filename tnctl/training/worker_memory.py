"""What each worker and each dedicated server of a cluster needs of memory, as an estimate."""

from dataclasses import dataclass

# Of a process beside its model: 605 MiB after its imports (TensorFlow 2.21), and data on its way.
PROCESS_BYTES = 700 << 20
SERVER_BYTES = 200 << 20  # of a dedicated server, which does not import TensorFlow

Bounds = tuple[float, float, float]  # estimate, low, high


@dataclass
class WorkerMemory:
    """The memory of each worker at the end of the data, where several train.

    `tables` are the bytes of its part of all tables, those of each server with `servers`.
    """

    workers: int
    tables: Bounds
    dense_bytes: int
    process_bytes: int = PROCESS_BYTES
    servers: int = 0
    server_bytes: int = SERVER_BYTES

    @property
    def bytes(self) -> Bounds:
        """All of a worker."""
        parts = (0.0, 0.0, 0.0) if self.servers else self.tables
        estimate, low, high = (part + self.dense_bytes + self.process_bytes for part in parts)
        return estimate, low, high

    @property
    def bytes_of_server(self) -> Bounds:
        """All of a server."""
        estimate, low, high = (part + self.dense_bytes + self.server_bytes for part in self.tables)
        return estimate, low, high

    def together(self, bound: int) -> float:
        """All workers and servers: 0 is the estimate, 1 the lower bound, 2 the upper one."""
        servers = self.servers * self.bytes_of_server[bound] if self.servers else 0.0
        return self.workers * self.bytes[bound] + servers

    @property
    def words(self) -> str:
        """How many there are, such as "3 workers and 1 servers"."""
        return f"{self.workers} workers" + (f" and {self.servers} servers" if self.servers else "")
