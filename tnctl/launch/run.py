"""Commands on workers: training, and those that only read a checkpoint.

With `cluster=local` and `cluster=ray` the command starts all workers. With `cluster=env` a
scheduler starts the command once for each worker, anywhere, and this process supervises that one.
"""

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from tnctl import files
from tnctl.cluster import NEEDS_GRPC
from tnctl.cluster.joining.assignment import LOST
from tnctl.cluster.joining.liveness import SILENCE
from tnctl.cluster.joining.members import Problem
from tnctl.cluster.joining.patience import Patience
from tnctl.cluster.transport import certificates
from tnctl.errors import Failure, refuse_if
from tnctl.launch import environment
from tnctl.launch.environment import Place
from tnctl.launch.ray_driver import LOG_OF_RAY, RayDriver
from tnctl.launch.spawn import TRAIN, LocalProcesses, membership_of
from tnctl.launch.supervisor import Processes, supervise
from tnctl.ownership import WORKER_LOGS, WORKERS, foreign_file, survey_by_name
from tnctl.progress import say
from tnctl.schema import Cluster, Conf

NEEDS_RAY = "cluster=ray needs a package that is not installed: pip install 'tnctl[ray]'"
EXPORT = "export-embeddings"


def train(conf: Conf, *, overwrite: bool, golden: int, accept: bool) -> int:
    """Train a conf by the workers that it names; the exit code of the run.

    They are given {"command", "conf", "overwrite", "golden", "accept"}, as the arguments of
    `training_run.train`. Raises Failure while another process trains into the same output, and
    UserError for an environment that says no worker, or two. Workers that are lost again and again
    raise one with exit code 1; with cluster=env it is 75, by which a scheduler knows that it may
    start the command again.
    """
    _check(conf)
    place = None
    if conf.cluster.start == "env":
        refuse_if(
            overwrite,
            "overwrite=true is not for cluster=env: a scheduler may start the command again, and "
            "would remove what was trained. Choose a new output",
        )
        conf, place = placed(conf)
        conf.check_training()  # what depends on the number of workers
    task = {
        "command": TRAIN, "conf": dataclasses.asdict(conf), "overwrite": overwrite,
        "golden": golden, "accept": accept,
    }  # fmt: skip
    with logs_of(conf.output, conf.cluster, place, overwrite) as folder:
        processes = _processes(TRAIN, conf.cluster, folder, place)
        return supervise(processes, task, LOST if place else 1)


def read(
    command: str,
    lead: Callable[..., int],
    conf: Conf,
    checkpoint: str,
    arguments: dict[str, str],
    *,
    runs_recipe: bool,
) -> int:
    """Run a command that reads a checkpoint on the workers of a conf; its exit code.

    They are given {"command", "lead", "conf", "checkpoint", "arguments", "runs_recipe", "logs"}:
    the name of a function of a module, which rank 0 imports and calls as cluster.process.Lead; the
    checkpoint's folder, what the command line has beside the conf, whether they need the recipe,
    and where worker 0 may write a traceback, None where it is shown. Raises as `train`.
    """
    _check(conf)
    place = None
    if conf.cluster.start == "env":
        conf, place = placed(conf)
    if command == EXPORT:  # workers read the files of the checkpoint, and nobody owns rows
        if place and place.rank >= place.workers:
            say("an export needs no dedicated server: this one ends")
            return 0
        conf = dataclasses.replace(conf, cluster=dataclasses.replace(conf.cluster, servers=0))
    with temporary_logs(command) as folder:
        task = {
            "command": command,
            "lead": f"{lead.__module__}:{lead.__name__}",
            "conf": dataclasses.asdict(conf),
            "checkpoint": checkpoint,
            "arguments": arguments,
            "runs_recipe": runs_recipe,
            "logs": None if conf.cluster.start == "ray" else str(folder.parent),
        }
        processes = _processes(command, conf.cluster, folder, place)
        return supervise(processes, task, LOST if place else 1)


def _processes(name: str, cluster: Cluster, folder: Path, place: Place | None) -> Processes:
    """The processes that this command supervises."""
    if cluster.start == "ray":
        return RayDriver(name, cluster, folder)
    return LocalProcesses(name, membership_of(cluster), folder, cluster.timeout * SILENCE, place)


def _check(conf: Conf) -> None:
    """Raise UserError where workers could not be used, before anything is started."""
    refuse_if(find_spec("grpc") is None, NEEDS_GRPC)
    refuse_if(conf.cluster.start == "ray" and find_spec("ray") is None, NEEDS_RAY)
    certificates.read(conf.tls)


def placed(conf: Conf) -> tuple[Conf, Place]:
    """A conf with the number of workers and servers that the environment says, and which this is.

    Raises UserError for an environment that says no worker, or two, or contradicts the conf.
    """
    place = environment.place(os.environ, conf.cluster.servers)
    place = dataclasses.replace(place, token=environment.take_token(os.environ))
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
    shows = " and shows the progress" if place.rank else ""
    say(f"{place.words} ({place.source}), worker 0 is at {place.address}{shows}")
    return dataclasses.replace(conf, cluster=cluster), place


# ---- What workers write ------------------------------------------------------------


@contextmanager
def logs_of(output: str, cluster: Cluster, place: Place | None, overwrite: bool) -> Iterator[Path]:
    """The folder for the logs of the processes of this command, which are in the output.

    Worker 0, which writes none, makes those of all, and other commands wait for theirs. Raises
    UserError when a log is a symbolic link, and with exit code 75 when worker 0 does not come.
    """
    membership, patience = membership_of(cluster), cluster.patience
    names = [membership.log_name(rank) for rank in range(1, membership.size)]
    if cluster.start == "ray":
        names.append(LOG_OF_RAY)
    if not place or place.rank == 0:
        # Rank 0 holds it; here for an error before anything is started.
        _wait_for_lock(output, patience if place else 0)
        if overwrite:
            remove_logs(output)
        claim_logs(output, names)
        names = [] if place else names
    else:
        names = [membership.log_name(place.rank)]
        _wait_for_log(files.join(output, f"{WORKER_LOGS}/{names[0]}"), patience)
    with kept_logs(output, names) as folder:
        yield folder


def claim_logs(output: str, names: Sequence[str]) -> None:
    """Make the logs of the workers of an output that are not there yet.

    Raises UserError when one of them is a symbolic link.
    """
    above = files.join(output, WORKER_LOGS)
    for name in names:
        url = files.join(above, name)
        if files.is_link(url):
            raise foreign_file(above, name)
        if not files.exists(url):
            files.write_bytes(url, b"", durable=False)


def remove_logs(output: str) -> None:
    """Remove what the workers of an earlier run wrote below an output, tracebacks too."""
    folder = files.join(output, WORKER_LOGS)
    for name in survey_by_name(folder, [WORKERS]).owned:
        files.remove_file(files.join(folder, name))


def _wait_for_lock(output: str, patience: float) -> None:
    """Return when no process trains into the output: one whose command was killed may still end."""

    def look() -> None:
        with files.locked(output):
            pass

    Patience(patience).attempt(look, files.HeldError, after=0)


def _wait_for_log(log: str, patience: float) -> None:
    """Return when worker 0 has made a log. Raises UserError when it does not come in time."""
    try:
        Patience(patience).attempt(
            lambda: refuse_if(not files.exists(log), f"{log} is not there", Failure),
            Failure,
            "worker 0 has not begun, or has another output: ",
        )
    except Failure as error:
        raise Problem(
            f"worker 0 has not begun within {patience:g} s, or has another output: {error}",
            LOST,
        ).error() from None


@contextmanager
def kept_logs(output: str, names: Sequence[str]) -> Iterator[Path]:
    """The folder of logs that are appended to, which `claim_logs` has made.

    It is `workers` in the output. Where the output is on another storage, it is one of this
    machine, whose files are written there when the block ends.
    """
    above = files.join(output, WORKER_LOGS)
    folder = files.local_path(above)
    if folder is not None:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="tnctl-workers-") as temporary:
        if names:
            say(f"the output of each worker is in {temporary}, and at the end in {above}")
        try:
            yield Path(temporary)
        finally:
            for log in Path(temporary).iterdir():
                files.write_bytes(files.join(above, log.name), log.read_bytes())


@contextmanager
def temporary_logs(command: str) -> Iterator[Path]:
    """A folder of this machine for the logs of a command that may write nowhere else.

    It stays, and a line says where it is, when workers were lost too often and when one of them has
    a traceback.
    """
    above = Path(tempfile.mkdtemp(prefix=f"tnctl-{command}-"))
    folder = above / WORKER_LOGS
    folder.mkdir()
    is_kept = False
    try:
        yield folder
    except Failure:
        is_kept = True
        raise
    finally:
        if is_kept or any(b"Traceback" in log.read_bytes() for log in folder.glob("*.log")):
            say(f"the output of each worker is in {folder}")
        else:
            shutil.rmtree(above, ignore_errors=True)
