"""Which worker or server of a cluster this process is, as the scheduler that started it says.

Each scheduler sets variables of its own. There is a parser for each, which returns None when the
scheduler has set nothing, and raises UserError that names the variable and its value.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from tnctl import documents
from tnctl.cluster.joining import addresses
from tnctl.cluster.joining.addresses import HostPort
from tnctl.cluster.joining.membership import Membership
from tnctl.cluster.transport.kinds import MOST_WORKERS
from tnctl.documents import Count, DocumentError, Text
from tnctl.errors import UserError, quoted, refuse_if
from tnctl.progress import say

LONGEST_LIST = 1 << 20  # characters of a list of nodes
_RANGE = r"[0-9]{1,9}(?:-[0-9]{1,9})?"
_NODES = re.compile(rf"(?:[A-Za-z0-9._-]|\[{_RANGE}(?:,{_RANGE})*\])+")
_BRACKETS = re.compile(r"\[([^\]]*)\]")

Environment = Mapping[str, str]
OWN = "TNCTL_RANK"
ROLES = ("worker", "server")  # of TNCTL_ROLE
SLURM_PORTS = range(15_000, 30_000)  # below those that systems choose for connections


def nodes(text: str) -> Iterator[str]:
    """The names in Slurm's list of nodes, such as `a[1-3,5],b`. Raises ValueError."""
    if len(text) > LONGEST_LIST:
        raise ValueError(f"it has {len(text):,} characters")
    parts = re.split(r",(?![^\[]*\])", text)
    for part in parts:
        if not _NODES.fullmatch(part):
            raise ValueError(f"{quoted(part)} is no name of nodes")
        for first, last in re.findall(r"([0-9]+)-([0-9]+)", " ".join(_BRACKETS.findall(part))):
            if int(last) < int(first):
                raise ValueError(f"{first}-{last} ends before it begins")
    return itertools.chain.from_iterable(map(_names, parts))


def _names(part: str) -> Iterator[str]:
    match = _BRACKETS.search(part)
    if match is None:
        yield part
        return
    for text in match[1].split(","):
        first, _, last = text.partition("-")
        for number in range(int(first), int(last or first) + 1):
            for rest in _names(part[match.end() :]):
                # Numbers keep the zeros that they begin with.
                yield f"{part[: match.start()]}{number:0{len(first)}d}{rest}"


@dataclass(frozen=True)
class Place:
    """Which worker or dedicated server this process is: servers have the ranks behind workers."""

    source: str  # the variable that said so
    rank: int
    workers: int
    servers: int = 0
    address: HostPort | None = None  # where the others reach worker 0
    listen: HostPort | None = None  # where this worker listens; None where it reaches worker 0 from
    endpoint: HostPort | None = None  # where the others reach this worker; None where it listens

    @property
    def membership(self) -> Membership:
        """All workers and servers."""
        return Membership(self.workers, self.servers)

    @property
    def words(self) -> str:
        """Which process it is, such as "worker 1 of 3"."""
        of = self.servers if self.membership.is_server(self.rank) else self.workers
        return f"{self.membership.name(self.rank)} of {of}"


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
    for other in others:
        if (other.rank, other.membership) != (first.rank, first.membership):
            words = [f"{p.source} says {p.words}" for p in (first, other)]
            refuse_if(
                first.source != OWN,
                f"{', and '.join(words)}. Set TNCTL_RANK, TNCTL_WORKERS and, with dedicated "
                "servers, TNCTL_SERVERS to what is right",
            )
            say(f"{', and '.join(words)}: {first.source} counts")
    _check_servers(given, first)
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


def _check_servers(environment: Environment, first: Place) -> None:
    """Refuse TNCTL_SERVERS and TNCTL_ROLE that contradict the variable that counts."""
    refuse_if(
        "TNCTL_SERVERS" in environment and _servers(environment) != first.servers,
        f"TNCTL_SERVERS={environment.get('TNCTL_SERVERS')}, and {first.source} says "
        f"{first.servers} servers. Leave TNCTL_SERVERS out, or list the servers there",
    )
    role_of_rank = ROLES[first.membership.is_server(first.rank)]
    role = environment.get("TNCTL_ROLE", role_of_rank)
    words = f"TNCTL_ROLE={role}, and {first.source} says {first.words}. Leave TNCTL_ROLE out"
    refuse_if(role != role_of_rank, f"{words}: it is for {OWN}")


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
    role = environment.get("TNCTL_ROLE")
    refuse_if(
        role is not None and role not in ROLES,
        f"TNCTL_ROLE is worker or server. Received: {quoted(role or '')}",
    )
    servers = _servers(environment)
    refuse_if(
        role == "server" and OWN in environment and not servers,
        "TNCTL_ROLE=server needs TNCTL_SERVERS, the number of servers, in all processes",
    )
    if OWN not in environment or not servers:
        return _counted(environment, OWN, "TNCTL_WORKERS")
    workers = _workers("TNCTL_WORKERS", _count(environment, "TNCTL_WORKERS", 2**31))
    number = _count(environment, OWN, 2**31)
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
    workers = _workers("TF_CONFIG", len(listed))
    listed += [_parsed("TF_CONFIG", text) for text in groups["ps"]]
    servers = _servers_within("TF_CONFIG: cluster.ps", len(groups["ps"]))
    _refuse_repeated("TF_CONFIG", listed)
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
    name, text = "PADDLE_TRAINER_ENDPOINTS", environment.get("PADDLE_TRAINER_ENDPOINTS", "")
    listed = _parsed_list(name, text)
    servers = _paddle_servers(environment)
    if role == "PSERVER":
        return _paddle_server(environment, servers, listed)
    if "PADDLE_TRAINER_ID" not in environment:
        return None
    if listed and "PADDLE_TRAINERS_NUM" not in environment:
        environment = {**environment, "PADDLE_TRAINERS_NUM": str(len(listed))}
    counted = _counted(environment, "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM")
    assert counted is not None
    refuse_if(
        listed and len(listed) != counted.workers,
        f"PADDLE_TRAINERS_NUM={counted.workers}, and PADDLE_TRAINER_ENDPOINTS has {len(listed)}: "
        f"{quoted(text)}",
    )
    address, endpoint = (listed[0], listed[counted.rank]) if listed else (None, None)
    pod = environment.get("POD_IP", "")
    if pod:
        pod = _parsed("POD_IP", pod, port_is_optional=True).host
        refuse_if(
            endpoint is not None and addresses.is_ip(endpoint.host) and endpoint.host != pod,
            f"POD_IP={quoted(pod)}, and PADDLE_TRAINER_ENDPOINTS has {endpoint} for this worker",
        )
        endpoint = endpoint or HostPort(pod)
    return replace(counted, servers=len(servers), address=address, endpoint=endpoint)


def _paddle_servers(environment: Environment) -> list[HostPort]:
    """The addresses of Paddle's servers."""
    name = "PADDLE_PSERVERS_IP_PORT_LIST"
    text = environment.get(name, "")
    listed = _parsed_list(name, text)
    _servers_within(name, len(listed))
    return listed


def _paddle_server(
    environment: Environment, servers: list[HostPort], trainers: list[HostPort]
) -> Place:
    """The place of one of Paddle's servers: its address is POD_IP and PADDLE_PORT."""
    for name in ("POD_IP", "PADDLE_PORT"):
        refuse_if(name not in environment, f"TRAINING_ROLE=PSERVER, and {name} is not set. Set it")
    endpoint = HostPort(environment["POD_IP"], _count(environment, "PADDLE_PORT", 65_535))
    refuse_if(
        endpoint not in servers,
        f"POD_IP and PADDLE_PORT are {endpoint}, which is not in PADDLE_PSERVERS_IP_PORT_LIST="
        f"{quoted(environment.get('PADDLE_PSERVERS_IP_PORT_LIST', ''))}",
    )
    if trainers and "PADDLE_TRAINERS_NUM" not in environment:
        environment = {**environment, "PADDLE_TRAINERS_NUM": str(len(trainers))}
    name = "PADDLE_TRAINERS_NUM"
    workers = _workers(name, _count(environment, name, 2**31))
    rank = workers + servers.index(endpoint)
    address = trainers[0] if trainers else None
    return Place("TRAINING_ROLE", rank, workers, len(servers), address=address, endpoint=endpoint)


def of_slurm(environment: Environment) -> Place | None:
    """SLURM_PROCID and SLURM_NTASKS; worker 0 is on the first node of the step."""
    counted = _with_servers(environment, "SLURM_PROCID", "SLURM_NTASKS")
    if counted is None:
        return None
    name = "SLURM_STEP_NODELIST" if "SLURM_STEP_NODELIST" in environment else "SLURM_JOB_NODELIST"
    if name not in environment:
        return counted
    try:
        first = next(nodes(environment[name]))
    except ValueError as error:
        value = quoted(environment[name])
        raise UserError(f"{name} is no list of nodes: {error}. Received: {value}") from None
    job = _count(environment, "SLURM_JOB_ID", 2**63 - 1)
    port = SLURM_PORTS[job % len(SLURM_PORTS)]
    return replace(counted, address=HostPort(first, port))


def of_open_mpi(environment: Environment) -> Place | None:
    """OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE."""
    return _with_servers(environment, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")


def of_pmi(environment: Environment) -> Place | None:
    """PMI_RANK and PMI_SIZE, of MPICH and others."""
    return _with_servers(environment, "PMI_RANK", "PMI_SIZE")


PARSERS: tuple[Callable[[Environment], Place | None], ...] = (
    of_tnctl, of_tensorflow, of_paddle, of_slurm, of_open_mpi, of_pmi,
)  # fmt: skip

# ---- Values of variables -------------------------------------------------------


def _with_servers(environment: Environment, rank_name: str, tasks_name: str) -> Place | None:
    """The place among tasks that are all alike, of which the last TNCTL_SERVERS are servers."""
    servers = _servers(environment)
    if not servers or rank_name not in environment:
        return _counted(environment, rank_name, tasks_name)
    tasks = _count(environment, tasks_name, 2**31)
    refuse_if(
        tasks <= servers,
        f"{tasks_name}={tasks}, of which {servers} are servers (TNCTL_SERVERS, cluster.servers): "
        "no worker is left",
    )
    rank = _count(environment, rank_name, 2**31)
    refuse_if(
        rank >= tasks, f"{rank_name}={rank}, and {tasks_name}={tasks}: ranks are 0 to {tasks - 1}"
    )
    return Place(rank_name, rank, _workers(tasks_name, tasks - servers), servers)


def _servers(environment: Environment) -> int:
    """How many dedicated servers there are, as TNCTL_SERVERS says; by default none."""
    if "TNCTL_SERVERS" not in environment:
        return 0
    return _servers_within("TNCTL_SERVERS", _count(environment, "TNCTL_SERVERS", 2**31))


def _servers_within(name: str, servers: int) -> int:
    refuse_if(
        servers > MOST_WORKERS,
        f"{name}: a cluster has at most {MOST_WORKERS} servers. Received: {servers}",
    )
    return servers


def _counted(environment: Environment, rank_name: str, workers_name: str) -> Place | None:
    """The place that two variables say; None when neither is set or only the number of workers."""
    if rank_name not in environment:
        refuse_if(
            rank_name == OWN and workers_name in environment,
            f"{workers_name} is set without {rank_name}. Set both",
        )
        return None
    workers = _workers(workers_name, _count(environment, workers_name, 2**31))
    rank = _count(environment, rank_name, 2**31)
    refuse_if(
        rank >= workers,
        f"{rank_name}={rank}, and {workers_name}={workers}: ranks are 0 to {workers - 1}",
    )
    return Place(rank_name, rank, workers)


def _count(environment: Environment, name: str, most: int) -> int:
    text = environment.get(name)
    if text is None:
        raise UserError(f"{name} is not set. Set it, or let the scheduler start the command")
    is_count = text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most
    refuse_if(not is_count, f"{name} is a number from 0 on. Received: {quoted(text)}")
    return int(text)


def _workers(name: str, workers: int) -> int:
    refuse_if(
        not 1 <= workers <= MOST_WORKERS,
        f"{name}: a cluster has 1 to {MOST_WORKERS} workers. Received: {workers}",
    )
    return workers


def _parsed(name: str, text: str, *, port_is_optional: bool = False) -> HostPort:
    try:
        return addresses.parse(text, port_is_optional=port_is_optional)
    except ValueError as error:
        form = "HOST or HOST:PORT" if port_is_optional else "HOST:PORT"
        raise UserError(f"{name} has {form}. Received: {quoted(text)}, {error}") from None


def _parsed_list(name: str, text: str) -> list[HostPort]:
    """The addresses of a list with commas, blanks around them ignored."""
    listed = [_parsed(name, part.strip()) for part in text.split(",")] if text else []
    _refuse_repeated(name, listed)
    return listed


def _refuse_repeated(name: str, listed: list[HostPort]) -> None:
    for place, address in enumerate(listed):
        refuse_if(address in listed[:place], f"{name} has {address} twice. Give each its own")


def _address(
    environment: Environment, name: str, *, port_is_optional: bool = False
) -> HostPort | None:
    if name not in environment:
        return None
    return _parsed(name, environment[name], port_is_optional=port_is_optional)
