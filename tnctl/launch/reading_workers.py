"""Commands that only read a model, on several workers: evaluation, predictions, exports."""

import contextlib
import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from tnctl.cluster import NEEDS_GRPC
from tnctl.cluster.joining.assignment import LOST
from tnctl.cluster.joining.liveness import SILENCE
from tnctl.cluster.transport import certificates
from tnctl.errors import Failure, refuse_if
from tnctl.launch import env_workers
from tnctl.launch.local_processes import LocalProcesses, Place
from tnctl.launch.local_workers import LOG_OF_RAY, log_names, membership_of
from tnctl.launch.ray_processes import NEEDS_RAY, RayProcesses
from tnctl.launch.supervisor import Processes, Supervisor
from tnctl.launch.worker import PROGRAM
from tnctl.ownership import WORKER_LOGS
from tnctl.progress import say
from tnctl.schema import Cluster, Conf

EXPORT = "export-embeddings"


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
    and where worker 0 may write a traceback, None where it is shown. With cluster=env this process
    supervises the worker that the environment says. Raises UserError for an environment that says
    none or two, and when workers are lost again and again.
    """
    refuse_if(find_spec("grpc") is None, NEEDS_GRPC)
    refuse_if(conf.cluster.start == "ray" and find_spec("ray") is None, NEEDS_RAY)
    certificates.read(conf.tls)  # for an error before anything is started
    place = None
    if conf.cluster.start == "env":
        conf, place = env_workers.placed(conf)
    if command == EXPORT:  # workers read the files of the checkpoint, and nobody owns rows
        if place is not None and place.first >= place.workers:
            say("an export needs no dedicated server: this one ends")
            return 0
        conf = dataclasses.replace(conf, cluster=dataclasses.replace(conf.cluster, servers=0))
        place = None if place is None else dataclasses.replace(place, servers=0)
    task = {
        "command": command,
        "lead": f"{lead.__module__}:{lead.__name__}",
        "conf": dataclasses.asdict(conf),
        "checkpoint": checkpoint,
        "arguments": arguments,
        "runs_recipe": runs_recipe,
    }
    with _processes(command, conf.cluster, place) as (processes, folder):
        task["logs"] = folder
        return Supervisor(
            lambda _: task,
            lambda: None,
            processes,
            restarts=conf.cluster.restarts,
            lost_code=LOST if place else 1,
        ).run()


@contextmanager
def _processes(
    command: str, cluster: Cluster, place: Place | None
) -> Iterator[tuple[Processes, str | None]]:
    """The processes of a command, and a folder of this machine for tracebacks of worker 0.

    `place` says which of them this process supervises, None: all.
    """
    names = log_names(membership_of(cluster))
    if cluster.start == "ray":
        with (
            temporary_logs(command, [*names, LOG_OF_RAY]) as (*logs, log_of_ray),
            contextlib.closing(RayProcesses(logs, log_of_ray, cluster, command)) as processes,
        ):
            yield processes, None
        return
    if place is not None:
        names = [names[place.first]]
    with temporary_logs(command, names) as logs:
        silence, servers = cluster.timeout * SILENCE, 0 if place else cluster.servers
        yield (
            LocalProcesses(
                logs, silence, name=command, place=place, servers=servers, program=PROGRAM
            ),
            str(logs[0].parents[1]),
        )


@contextmanager
def temporary_logs(command: str, names: Sequence[str]) -> Iterator[list[Path]]:
    """The files that the output of each worker is appended to, in a folder of this machine.

    They stay, and a line says where they are, when workers were lost too often and when one of them
    has a traceback: a command that reads a checkpoint may write nowhere else.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"tnctl-{command}-"))
    (folder / WORKER_LOGS).mkdir()
    logs = [folder / WORKER_LOGS / name for name in names]
    is_kept = False
    try:
        for log in logs:
            log.touch()
        yield logs
    except Failure:
        is_kept = True
        raise
    finally:
        written = [log.read_bytes() for log in (folder / WORKER_LOGS).glob("*.log")]
        if is_kept or any(b"Traceback" in content for content in written):
            say(f"the output of each worker is in {folder / WORKER_LOGS}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
