"""Which worker or server of a cluster this process is, as the scheduler that started it says.

Each scheduler sets variables of its own. There is a parser for each, which returns None when the
scheduler has set nothing, and raises UserError that names the variable and its value.
"""

import os
import re
import stat
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tnctl import documents
from tnctl.cluster.joining import addresses
from tnctl.cluster.joining.addresses import HostPort
from tnctl.cluster.joining.membership import Membership
from tnctl.cluster.transport.kinds import MOST_WORKERS
from tnctl.documents import Count, DocumentError, Text
from tnctl.errors import UserError, quoted, refuse_if
from tnctl.progress import say

_NUMBERS = r"[0-9]{1,9}(?:-[0-9]{1,9})?"
_NODES = re.compile(rf"(?:[A-Za-z0-9._-]|\[{_NUMBERS}(?:,{_NUMBERS})*\])+(?=,|\Z)")
Environment = Mapping[str, str]
OWN = "TNCTL_RANK"
ROLES = ("worker", "server")  # of TNCTL_ROLE
SLURM_PORTS = range(15_000, 30_000)  # below those that systems choose for connections
TOKEN = re.compile(r"[!-~]{32,512}")
MAKE_A_TOKEN = "(umask 077; openssl rand -hex 32 > token)"


@dataclass(frozen=True)
class Place:
    """Which worker or dedicated server this process is: servers have the ranks behind workers."""

    source: str  # the variable that said so
    rank: int
    workers: int
    servers: int = 0
    address: HostPort | None = None  # where the others reach worker 0
    listen: HostPort | None = None  # where this process is told to listen
    endpoint: HostPort | None = None  # where the others reach this process; None where it listens
    token: str | None = field(default=None, repr=False)

    @property
    def membership(self) -> Membership:
        """All workers and servers."""
        return Membership(self.workers, self.servers)

    @property
    def words(self) -> str:
        """Which process it is, such as "worker 1 of 3"."""
        of = self.servers if self.membership.is_server(self.rank) else self.workers
        return f"{self.membership.name(self.rank)} of {of}"

    @property
    def addresses(self) -> dict[str, Any]:
        """Where it listens and is reached, and where worker 0 is, as in an Assignment."""
        known = [address for address in (self.listen, self.endpoint) if address]
        return {
            "host": known[0].host if known else None,
            "port": next((address.port for address in known if address.port), 0),
            "reached_at": str(self.endpoint) if self.endpoint and self.endpoint.port else None,
            "rank_0": str(self.address),
        }


def place(environment: Environment, servers: int = 0) -> Place:
    """Which worker or server this process is, of a conf with so many servers.

    Raises UserError for variables that miss or contradict.
    """
    given = environment
    if servers and "TNCTL_SERVERS" not in environment:
        environment = {**environment, "TNCTL_SERVERS": f"{servers}"}
    places = _places(environment)
    if not places:
        raise UserError(
            "cluster=env: no variable says which worker this is. Set TNCTL_RANK, TNCTL_WORKERS and "
            "TNCTL_ADDRESS, or TF_CONFIG, or Paddle's variables, or start it with srun or mpirun"
        )
    first, *others = places
    refuse_if(
        not 1 <= first.workers <= MOST_WORKERS or first.servers > MOST_WORKERS,
        f"{first.source} says {first.workers} workers and {first.servers} servers: a cluster has 1 "
        f"to {MOST_WORKERS} workers, and at most {MOST_WORKERS} servers",
    )
    for other in others:
        if (other.rank, other.membership) != (first.rank, first.membership):
            words = [f"{p.source} says {p.words}" for p in (first, other)]
            refuse_if(
                first.source != OWN,
                f"{', and '.join(words)}. Set TNCTL_RANK, TNCTL_WORKERS and, with dedicated "
                "servers, TNCTL_SERVERS to what is right",
            )
            say(f"{', and '.join(words)}: {first.source} counts")
    refuse_if(
        "TNCTL_SERVERS" in given and _servers(given) != first.servers,
        f"TNCTL_SERVERS={given.get('TNCTL_SERVERS')}, and {first.source} says {first.servers} "
        "servers. Leave TNCTL_SERVERS out, or list the servers there",
    )
    address = _address(environment, "TNCTL_ADDRESS") or first.address
    listen = _address(environment, "TNCTL_BIND", port_is_optional=True)
    refuse_if(
        address is None and first.membership.size > 1,
        f"{first.source} does not say where worker 0 is. Set TNCTL_ADDRESS=HOST:PORT to an address "
        "of its machine, for all workers",
    )
    address = address or HostPort("127.0.0.1")  # of the only worker
    endpoint = address if first.rank == 0 else first.endpoint
    return replace(first, address=address, listen=listen, endpoint=endpoint)


def _places(environment: Environment) -> list[Place]:
    """What each scheduler says, in the order of precedence."""
    places: list[Place] = []
    for parser in PARSERS:
        try:
            received = parser(environment)
        except UserError as error:
            if not places or places[0].source != OWN:
                raise
            say(f"{error}: {OWN} counts")
        else:
            places += [] if received is None else [received]
    return places


# ---- A parser for each scheduler -----------------------------------------------


def of_tnctl(environment: Environment) -> Place | None:
    """TNCTL_RANK and TNCTL_WORKERS; with TNCTL_SERVERS servers have the ranks behind the workers.

    With TNCTL_ROLE=server TNCTL_RANK counts servers from 0.
    """
    role, servers = environment.get("TNCTL_ROLE"), _servers(environment)
    refuse_if(
        role not in (None, *ROLES),
        f"TNCTL_ROLE is worker or server. Received: {quoted(role or '')}",
    )
    if OWN not in environment:
        return None
    workers, number = _count(environment, "TNCTL_WORKERS"), _count(environment, OWN)
    ranks = {"worker": workers, "server": servers, None: workers + servers}[role]
    refuse_if(
        number >= ranks,
        f"TNCTL_RANK={number}, with TNCTL_WORKERS={workers}, TNCTL_SERVERS={servers} and "
        f"TNCTL_ROLE={role or 'not set'}: it is below {ranks}",
    )
    return Place(OWN, number + (workers if role == "server" else 0), workers, servers)


@dataclass(frozen=True)
class TfCluster:
    """The addresses of processes, by what they do."""

    chief: tuple[Text, ...] = ()
    master: tuple[Text, ...] = ()
    worker: tuple[Text, ...] = ()
    ps: tuple[Text, ...] = ()


@dataclass(frozen=True)
class TfTask:
    """Which of them this process is."""

    type: Text
    index: Count


@dataclass(frozen=True)
class TfConfig:
    """TensorFlow's description of a cluster."""

    cluster: TfCluster
    task: TfTask


def of_tensorflow(environment: Environment) -> Place | None:
    """TF_CONFIG; the chief, if there is one, is worker 0."""
    text = environment.get("TF_CONFIG", "")
    if not text:
        return None
    try:
        config = documents.parse(TfConfig, text.encode(errors="replace"))
    except DocumentError as error:
        raise UserError(f"TF_CONFIG: {error}") from None
    groups = {"chief": config.cluster.chief or config.cluster.master}
    groups |= {"master": groups["chief"], "worker": config.cluster.worker}
    groups |= {"ps": config.cluster.ps}
    task = config.task
    refuse_if(
        task.type not in groups,
        f"TF_CONFIG: task.type is chief, worker or ps. Received: {quoted(task.type)}, for which no "
        "command is needed",
    )
    count = len(groups[task.type])
    refuse_if(
        task.index >= count,
        f"TF_CONFIG: task.index is {task.index}, and cluster.{task.type} has {count} addresses",
    )
    listed = [_parsed("TF_CONFIG", text) for text in (*groups["chief"], *groups["worker"])]
    workers, servers = len(listed), len(groups["ps"])
    listed += [_parsed("TF_CONFIG", text) for text in groups["ps"]]
    first = {"worker": len(groups["chief"]), "ps": workers}.get(task.type, 0)
    rank = task.index + first
    return Place("TF_CONFIG", rank, workers, servers, address=listed[0], endpoint=listed[rank])


def of_paddle(environment: Environment) -> Place | None:
    """PADDLE_TRAINER_ID with PADDLE_TRAINERS_NUM, PADDLE_TRAINER_ENDPOINTS, POD_IP.

    With dedicated servers PADDLE_PSERVERS_IP_PORT_LIST; one of them has TRAINING_ROLE=PSERVER.
    """
    role = environment.get("TRAINING_ROLE", "TRAINER")
    refuse_if(
        role not in ("TRAINER", "PSERVER"),
        f"TRAINING_ROLE is TRAINER or PSERVER. Received: {quoted(role)}",
    )
    servers = _parsed_list(environment, "PADDLE_PSERVERS_IP_PORT_LIST")
    listed = _parsed_list(environment, "PADDLE_TRAINER_ENDPOINTS")
    if listed:
        environment = {**environment, "PADDLE_TRAINERS_NUM": str(len(listed))}
    address = listed[0] if listed else None
    if role == "PSERVER":
        return replace(_paddle_server(environment, servers), address=address)
    counted = _counted(environment, "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM")
    if counted is None:
        return None
    endpoint = listed[counted.rank] if listed else None
    if endpoint is None and (pod := environment.get("POD_IP")):
        endpoint = _parsed("POD_IP", pod, port_is_optional=True)
    return replace(counted, servers=len(servers), address=address, endpoint=endpoint)


def _paddle_server(environment: Environment, servers: list[HostPort]) -> Place:
    """The place of one of Paddle's servers: its address is POD_IP and PADDLE_PORT."""
    for name in ("POD_IP", "PADDLE_PORT"):
        refuse_if(name not in environment, f"TRAINING_ROLE=PSERVER, and {name} is not set. Set it")
    endpoint = HostPort(environment["POD_IP"], _count(environment, "PADDLE_PORT", 65_535))
    refuse_if(
        endpoint not in servers,
        f"POD_IP and PADDLE_PORT are {endpoint}, which is not in PADDLE_PSERVERS_IP_PORT_LIST="
        f"{quoted(environment.get('PADDLE_PSERVERS_IP_PORT_LIST', ''))}",
    )
    workers = _count(environment, "PADDLE_TRAINERS_NUM")
    rank = workers + servers.index(endpoint)
    return Place("TRAINING_ROLE", rank, workers, len(servers), endpoint=endpoint)


def of_slurm(environment: Environment) -> Place | None:
    """SLURM_PROCID and SLURM_NTASKS; worker 0 is on the first node of the step."""
    counted = _counted(environment, "SLURM_PROCID", "SLURM_NTASKS", _servers(environment))
    name = "SLURM_STEP_NODELIST" if "SLURM_STEP_NODELIST" in environment else "SLURM_JOB_NODELIST"
    if counted is None or name not in environment:
        return counted
    nodes = _NODES.match(environment[name])
    if nodes is None:
        raise UserError(f"{name} is no list of nodes. Received: {quoted(environment[name])}")
    # Numbers keep the zeros that they begin with, as in gpu[07-09,12].
    first = re.sub(r"\[([0-9]+)[^\]]*\]", r"\1", nodes[0])
    job = _count(environment, "SLURM_JOB_ID", 2**63 - 1)
    port = SLURM_PORTS[job % len(SLURM_PORTS)]
    return replace(counted, address=HostPort(first, port))


def of_open_mpi(environment: Environment) -> Place | None:
    """OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE."""
    names = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"
    return _counted(environment, *names, _servers(environment))


def of_pmi(environment: Environment) -> Place | None:
    """PMI_RANK and PMI_SIZE, of MPICH and others."""
    return _counted(environment, "PMI_RANK", "PMI_SIZE", _servers(environment))


PARSERS: tuple[Callable[[Environment], Place | None], ...] = (
    of_tnctl, of_tensorflow, of_paddle, of_slurm, of_open_mpi, of_pmi,
)  # fmt: skip

# ---- Values of variables -------------------------------------------------------


def _counted(
    environment: Environment, rank_name: str, tasks_name: str, servers: int = 0
) -> Place | None:
    """The place among tasks that are all alike, of which the last are servers; None without one."""
    if rank_name not in environment:
        return None
    tasks, rank = _count(environment, tasks_name), _count(environment, rank_name)
    refuse_if(
        rank >= tasks, f"{rank_name}={rank}, and {tasks_name}={tasks}: ranks are 0 to {tasks - 1}"
    )
    return Place(rank_name, rank, tasks - servers, servers)


def _servers(environment: Environment) -> int:
    """How many dedicated servers there are, as TNCTL_SERVERS says; by default none."""
    return _count(environment, "TNCTL_SERVERS") if "TNCTL_SERVERS" in environment else 0


def _count(environment: Environment, name: str, most: int = 2**31) -> int:
    text = environment.get(name)
    if text is None:
        raise UserError(f"{name} is not set. Set it, or let the scheduler start the command")
    is_count = text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most
    refuse_if(not is_count, f"{name} is a number from 0 on. Received: {quoted(text)}")
    return int(text)


def _parsed(name: str, text: str, *, port_is_optional: bool = False) -> HostPort:
    try:
        return addresses.parse(text, port_is_optional=port_is_optional)
    except ValueError as error:
        form = "HOST or HOST:PORT" if port_is_optional else "HOST:PORT"
        raise UserError(f"{name} has {form}. Received: {quoted(text)}, {error}") from None


def _parsed_list(environment: Environment, name: str) -> list[HostPort]:
    """The addresses of a list with commas, blanks around them ignored; empty without the list."""
    text = environment.get(name, "")
    return [_parsed(name, part.strip()) for part in text.split(",")] if text else []


def _address(
    environment: Environment, name: str, *, port_is_optional: bool = False
) -> HostPort | None:
    if name not in environment:
        return None
    return _parsed(name, environment[name], port_is_optional=port_is_optional)


# ---- The token -----------------------------------------------------------------


def take_token(environment: MutableMapping[str, str]) -> str:
    """The secret that all workers share; it is removed from the environment.

    Raises UserError without one, and for a file that others can read.
    """
    path, token = environment.get("TNCTL_TOKEN_FILE"), environment.pop("TNCTL_TOKEN", None)
    refuse_if(
        path is not None and token is not None,
        "TNCTL_TOKEN and TNCTL_TOKEN_FILE are set. Unset one",
    )
    if path is not None:
        token = _token_of(path)
    if token is None:
        raise UserError(
            "cluster=env: workers know each other by a secret of the run. Make it with "
            f"{MAKE_A_TOKEN}, and set TNCTL_TOKEN_FILE=token for all of them"
        )
    token = token.strip()
    refuse_if(
        not TOKEN.fullmatch(token),
        f"{'TNCTL_TOKEN' if path is None else 'TNCTL_TOKEN_FILE'} has {len(token)} characters; a "
        f"token has 32 to 512, none of them a space. Make it with {MAKE_A_TOKEN}",
    )
    return token


def _token_of(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            refuse_if(
                stat.S_IMODE(mode) & 0o077,
                f"TNCTL_TOKEN_FILE={path} can be read or written by others (mode "
                f"{stat.S_IMODE(mode):04o}). Give it chmod 600",
            )
            return file.read(1024).decode("ascii", "replace")
    except OSError as error:
        raise UserError(f"TNCTL_TOKEN_FILE={path} cannot be read: {error.strerror}") from None
