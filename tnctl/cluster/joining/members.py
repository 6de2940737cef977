"""Who belongs to a cluster: workers join at rank 0, which welcomes them once all are there.

All need the token of the run, the same tnctl, conf and recipe. The welcome names the
generation (liveness.py) and the address of each worker, so that they connect to each other. The
bodies of these messages, and those of errors, are JSON.
"""

import dataclasses
import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from pydantic import Field

from tnctl import documents
from tnctl.cluster.joining.membership import Membership
from tnctl.cluster.transport.kinds import MOST_MEMBERS, MOST_WORKERS, Body, MessageError
from tnctl.documents import Hash, Sha256, Text
from tnctl.errors import Failure, UserError, quoted
from tnctl.saved_conf import conf_to_json
from tnctl.schema import Conf

NO_DIGEST = hashlib.sha256(b"").hexdigest()
_LONGEST_MESSAGE = 16_384  # characters, of up to 12 bytes each in JSON

Rank = Annotated[int, Field(ge=0, lt=MOST_MEMBERS)]
_Document = TypeVar("_Document")
Address = Annotated[str, Field(min_length=1, max_length=255)]


class NotWelcome(Exception):
    """A connection that is refused, and why."""


class StartedAgain(Exception):
    """Another process has the rank of a worker that was welcomed, which therefore has ended."""


@dataclass(frozen=True)
class Digests:
    """SHA-256 of what must be the same on all workers: each section of the conf, the recipe."""

    conf: Annotated[dict[Text, Sha256], Field(max_length=100)]
    recipe: Sha256


def digests_of(conf: Conf, *, runs_recipe: bool = True) -> Digests:
    """The digests of a worker's conf and recipe; the file of one that is not run may be absent."""
    cluster = dataclasses.asdict(conf.cluster)
    del cluster["tls"]  # each machine may have files of its own
    values = conf_to_json(conf) | {"cluster": cluster}
    del values["paths"]  # and copies of the conf and its data elsewhere
    sections = {
        name: hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
        for name, value in values.items()
    }
    recipe = NO_DIGEST
    if runs_recipe:
        from tnctl.model import recipes

        recipe = recipes.digest_of(conf.recipe_name)
    return Digests(conf=sections, recipe=recipe)


@dataclass(frozen=True)
class Hello:
    """The first frame of a worker that joins.

    `version` is tnctl's, `address` the one under which this worker is reached, `process` a number
    that no other process has. Ranks from `workers` on are those of dedicated servers.
    """

    token: Text = field(repr=False)  # it must not be in a log
    version: Text
    rank: Rank
    workers: Annotated[int, Field(ge=1, le=MOST_WORKERS)]
    address: Address
    digests: Digests
    process: Hash
    servers: Annotated[int, Field(ge=0, le=MOST_WORKERS)] = 0

    @property
    def membership(self) -> Membership:
        """The processes of the cluster that it joins."""
        return Membership(self.workers, self.servers)


@dataclass(frozen=True)
class Welcome:
    """Rank 0's answer once all are there: the generation, address and process of each rank."""

    generation: Hash
    addresses: Annotated[tuple[Address, ...], Field(max_length=MOST_MEMBERS)]
    processes: Annotated[tuple[Hash, ...], Field(max_length=MOST_MEMBERS)]

    def on_machine_of(self, rank: int, among: Sequence[int]) -> int:
        """How many of some ranks have addresses on the host of a rank."""
        hosts = [address.rpartition(":")[0] for address in self.addresses]
        return [hosts[other] for other in among].count(hosts[rank])


@dataclass(frozen=True)
class Problem:
    """Why the training ends, in one line.

    `exit_code` is that of the command: 1 of a failure, 2 of a mistake of the user's, 130 or 143 of
    a request to stop.
    """

    message: Text
    exit_code: Annotated[int, Field(ge=1, le=143)] = 1

    def error(self) -> UserError:
        """The error that ends the command with this line."""
        if self.exit_code == 1:
            return Failure(self.message)
        return UserError(self.message, self.exit_code)


def problem_of(error: UserError) -> Problem:
    """An error as it is sent to another worker: what is longer than a frame may be is cut off."""
    message = str(error)
    if len(message) > _LONGEST_MESSAGE:
        message = message[:_LONGEST_MESSAGE] + "..."
    return Problem(message, error.exit_code)


def to_body(document: Hello | Welcome | Problem) -> bytes:
    """The body of a frame with a document."""
    return json.dumps(documents.plain(document)).encode()


def parse_problem(body: Body) -> Problem:
    """The problem in the body of a fatal frame. Raises MessageError."""
    return _parsed(Problem, body)


@dataclass
class Roster:
    """The workers that rank 0 knows, from the first to join until all are welcomed.

    `hello` is rank 0's own, which the others must agree with. `generation` is a number that no
    generation had before, such as a random one of 64 bits.
    """

    hello: Hello
    generation: int
    _members: dict[int, Hello] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._members[0] = self.hello

    @property
    def missing(self) -> list[int]:
        """The ranks that have not joined."""
        return [rank for rank in range(self.hello.membership.size) if rank not in self._members]

    def join(self, body: Body) -> int:
        """Take the hello of a worker: its rank. Raises NotWelcome and StartedAgain.

        A worker whose connection broke sends its hello again. Until all are there the last process
        with a rank has it, for the one before has ended; later on that ends the generation.
        """
        hello = _agreeing(self.hello, body)
        # Its address may be the same.
        if not self.missing and self._members[hello.rank].process != hello.process:
            raise StartedAgain(f"{hello.membership.name(hello.rank)} was started again")
        self._members[hello.rank] = hello
        return hello.rank

    def welcome(self) -> Welcome | None:
        """What all are to be answered, once all are there."""
        if self.missing:
            return None
        members = [self._members[rank] for rank in range(self.hello.membership.size)]
        return Welcome(
            f"{self.generation:016x}",
            tuple(member.address for member in members),
            tuple(member.process for member in members),
        )


def parse_welcome(body: Body, hello: Hello) -> Welcome:
    """The welcome in a body, for the worker that sent a hello. Raises MessageError."""
    welcome = _parsed(Welcome, body)
    if (
        not len(welcome.addresses) == len(welcome.processes) == hello.membership.size
        or int(welcome.generation, 16) == 0
    ):
        raise MessageError(
            f"rank 0 welcomes {len(welcome.addresses)} workers to generation "
            f"{welcome.generation}, this one is of {hello.membership.size}"
        )
    if welcome.processes[hello.rank] != hello.process:
        raise MessageError(f"rank 0 welcomes another process as worker {hello.rank}")
    return welcome


def _agreeing(expected: Hello, body: Body) -> Hello:
    try:
        hello = _parsed(Hello, body)
    except MessageError as error:
        raise NotWelcome(f"no hello of a worker ({error})") from error
    # Before anything else of it is used, and in a time that does not depend on the token.
    if not hmac.compare_digest(hello.token.encode(errors="replace"), expected.token.encode()):
        raise NotWelcome("a wrong token")
    name = hello.membership.name(hello.rank)
    if hello.version != expected.version:
        raise NotWelcome(f"{name} has tnctl {quoted(hello.version)}, this one {expected.version}")
    if hello.membership != expected.membership or hello.rank >= expected.membership.size:
        servers = f" and {expected.servers} servers" if expected.servers or hello.servers else ""
        of_servers = f" and {hello.servers}" if servers else ""
        raise NotWelcome(
            f"{name} of {hello.workers}{of_servers} joins a cluster of {expected.workers} "
            f"workers{servers} (cluster.workers{', cluster.servers' if servers else ''})"
        )
    if hello.rank == expected.rank:
        raise NotWelcome(f"another process has rank {expected.rank} too")
    # The keys of both are the sections of a conf of one version.
    other = [
        key
        for key, digest in expected.digests.conf.items()
        if hello.digests.conf.get(key) != digest
    ]
    if other:
        raise NotWelcome(f"{name} has another conf ({', '.join(other)}): all workers need the same")
    is_server = hello.membership.is_server(hello.rank)  # it runs no recipe
    if hello.digests.recipe != expected.digests.recipe and not is_server:
        raise NotWelcome(f"{name} has another recipe: all workers need the same")
    return hello


def _parsed(kind: type[_Document], body: Body) -> _Document:
    try:
        return documents.parse(kind, bytes(body))
    except documents.DocumentError as error:
        raise MessageError(str(error)) from error
