"""`tnctl train cluster=env`: a scheduler starts the command once for each worker, anywhere."""

import dataclasses
import os
import re
import stat
from collections.abc import MutableMapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from tnctl import files
from tnctl.cluster import NEEDS_GRPC
from tnctl.cluster.joining.assignment import LOST
from tnctl.cluster.joining.liveness import SILENCE
from tnctl.cluster.joining.members import Problem
from tnctl.cluster.joining.membership import Membership
from tnctl.cluster.joining.patience import Patience
from tnctl.cluster.transport import certificates
from tnctl.errors import Failure, UserError, refuse_if
from tnctl.launch import environment
from tnctl.launch.local_processes import LocalProcesses, Place
from tnctl.launch.local_workers import (
    claim_logs,
    kept_logs,
    log_names,
    membership_of,
    newest_checkpoint,
)
from tnctl.launch.supervisor import TRAIN, Supervisor
from tnctl.launch.worker import PROGRAM
from tnctl.ownership import WORKER_LOGS
from tnctl.progress import say
from tnctl.schema import Conf

TOKEN = re.compile(r"[!-~]{32,512}")
MAKE_A_TOKEN = "(umask 077; openssl rand -hex 32 > token)"


def train(conf: Conf, *, overwrite: bool, golden: int, accept: bool) -> int:
    """Train a conf as the worker or server that the environment says; the exit code of the run.

    This process supervises the worker. Raises UserError for an environment that says no worker, or
    two; with exit code 75, by which a scheduler knows that it may start the command again, when
    workers are lost again and again.
    """
    refuse_if(find_spec("grpc") is None, NEEDS_GRPC)
    certificates.read(conf.tls)  # for an error before anything is started
    refuse_if(
        overwrite,
        "overwrite=true is not for cluster=env: a scheduler may start the command again, and would "
        "remove what was trained. Choose a new output",
    )
    conf, place = placed(conf)
    conf.check_training()  # what depends on the number of workers
    membership = membership_of(conf.cluster)
    task = {
        "command": TRAIN, "conf": dataclasses.asdict(conf), "overwrite": False, "golden": golden,
        "accept": accept,
    }  # fmt: skip
    _claim_log(conf, membership, place.first)
    with kept_logs(conf.output, [membership.log_name(place.first)]) as logs:
        silence = conf.cluster.timeout * SILENCE
        return Supervisor(
            lambda _: task,
            partial(newest_checkpoint, conf.output),
            LocalProcesses(logs, silence, place=place, program=PROGRAM),
            restarts=conf.cluster.restarts,
            lost_code=LOST,
        ).run()


def placed(conf: Conf) -> tuple[Conf, Place]:
    """A conf with the number of workers and servers that the environment says, and which this is.

    Raises UserError for an environment that says no worker, or two, or contradicts the conf.
    """
    place = environment.place(os.environ, conf.cluster.servers)
    token = take_token(os.environ)
    refuse_if(
        conf.cluster.workers not in (None, place.workers),
        f"cluster.workers={conf.cluster.workers}, and the environment ({place.source}) says "
        f"{place.workers} workers. Leave cluster.workers out",
    )
    refuse_if(
        conf.cluster.servers not in (0, place.servers),
        f"cluster.servers={conf.cluster.servers}, and the environment ({place.source}) says "
        f"{place.servers} servers. Leave cluster.servers out",
    )
    cluster = dataclasses.replace(conf.cluster, workers=place.workers, servers=place.servers)
    say(f"{place.words} ({place.source}), worker 0 is at {place.address}")
    return dataclasses.replace(conf, cluster=cluster), assigned(place, token)


def assigned(place: environment.Place, token: str) -> Place:
    """Where the worker listens, and where it is reached."""
    known = [address for address in (place.listen, place.endpoint) if address is not None]
    ports = [address.port for address in known if address.port]
    return Place(
        first=place.rank,
        workers=place.workers,
        servers=place.servers,
        token=token,
        host=known[0].host if known else None,
        port=ports[0] if ports else 0,
        reached_at=str(place.endpoint) if place.endpoint and place.endpoint.port else None,
        rank_0=str(place.address),
    )


def _wait_for_lock(conf: Conf) -> None:
    """Return when no process trains into the output: one whose command was killed may still end."""

    def look() -> None:
        with files.locked(conf.output):
            pass

    Patience(conf.cluster.patience).attempt(look, files.HeldError, after=0)


def _claim_log(conf: Conf, membership: Membership, rank: int) -> None:
    """Worker 0 makes all logs, and the others wait for theirs."""
    if rank == 0:
        _wait_for_lock(conf)  # its worker holds it; here for an error before anything is started
        claim_logs(conf.output, log_names(membership))
        return
    log = files.join(conf.output, f"{WORKER_LOGS}/{membership.log_name(rank)}")
    try:
        Patience(conf.cluster.patience).attempt(
            lambda: refuse_if(not files.exists(log), f"{log} is not there", Failure),
            Failure,
            "worker 0 has not begun, or has another output: ",
        )
    except Failure as error:
        raise Problem(
            f"worker 0 has not begun within {conf.cluster.patience:g} s, or has another "
            f"output: {error}",
            LOST,
        ).error() from None


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
