"""What the command and its process in Ray (`ray_driver`) send each other, pickled."""

from dataclasses import dataclass, field
from typing import Any

# ---- From the command ------------------------------------------------------------


@dataclass(frozen=True)
class Connect:
    """The first: which Ray is used, and what it places."""

    address: str | None  # as in RAY_ADDRESS; None: a Ray is started on this machine
    temporary: str  # a folder for the files of a Ray that is started
    workers: int
    servers: int  # dedicated ones, beside the workers
    patience: float  # seconds in which Ray is to place all of them
    cpus: int | None  # of each worker, None: as many as are there for all
    silence: float  # seconds after which a stopped worker is lost


@dataclass(frozen=True)
class Start:
    """Start all workers, with a task that names the command."""

    generation: int
    token: str = field(repr=False)
    task: dict[str, Any] = field(repr=False)
    folder: str  # in which they run


@dataclass(frozen=True)
class Signal:
    """Send a signal to a worker."""

    rank: int
    number: int


@dataclass(frozen=True)
class End:
    """Kill all workers that are left, and answer with Over."""


@dataclass(frozen=True)
class Leave:
    """The last: leave Ray, and end."""


# ---- From its process in Ray --------------------------------------------------------


@dataclass(frozen=True)
class Connected:
    """Ray can be used."""


@dataclass(frozen=True)
class Began:
    """All workers and dedicated servers are placed, and started."""


@dataclass(frozen=True)
class Note:
    """A line for people."""

    line: str


@dataclass(frozen=True)
class Refused:
    """The run cannot continue, as the message says, and ends with this exit code."""

    message: str
    exit_code: int = 1


@dataclass(frozen=True)
class Written:
    """What a worker has written to its standard output or error.

    `is_printed` says that it is a result, for the command's own standard output.
    """

    rank: int
    content: bytes
    is_printed: bool = False


@dataclass(frozen=True)
class Port:
    """Rank 0 listens; between an actor and the process in Ray only."""

    port: int


@dataclass(frozen=True)
class Ended:
    """A worker has ended; a negative code is the signal that killed it. `cause` is in words."""

    rank: int
    code: int
    cause: str


@dataclass(frozen=True)
class Lost:
    """A worker was lost together with what supervises it."""

    rank: int
    cause: str


@dataclass(frozen=True)
class Over:
    """No worker is left: the codes of those that have ended by themselves."""

    codes: dict[int, int]
