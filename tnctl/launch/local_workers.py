"""`cluster=local` and `cluster=ray`: commands whose workers the command itself starts."""

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tnctl import files
from tnctl.checkpoint.chain import FOLDER as CHECKPOINTS
from tnctl.checkpoint.chain import newest_first
from tnctl.cluster import NEEDS_GRPC
from tnctl.cluster.joining.liveness import SILENCE
from tnctl.cluster.joining.membership import Membership
from tnctl.cluster.transport import certificates
from tnctl.errors import refuse_if
from tnctl.launch.local_processes import LocalProcesses
from tnctl.launch.ray_processes import NEEDS_RAY, RayProcesses
from tnctl.launch.supervisor import TRAIN, Processes, Supervisor
from tnctl.launch.worker import PROGRAM
from tnctl.manifest import NAME as MANIFEST
from tnctl.ownership import WORKER_LOGS, WORKERS, foreign_file, survey_by_name
from tnctl.progress import say
from tnctl.schema import Cluster, Conf

LOG_OF_RAY = "ray.log"  # what Ray itself says


def train(conf: Conf, *, overwrite: bool, golden: int, accept: bool) -> int:
    """Train a conf by `cluster.workers` processes; the exit code of the run.

    They are given {"command", "conf", "overwrite", "golden", "accept"}, as the arguments of
    `training_run.train`. Raises Failure while another process trains into the same output, and
    when workers are lost again and again.
    """
    refuse_if(find_spec("grpc") is None, NEEDS_GRPC)
    refuse_if(conf.cluster.start == "ray" and find_spec("ray") is None, NEEDS_RAY)
    certificates.read(conf.tls)  # for an error before anything is started
    with files.locked(conf.output):
        pass  # rank 0 holds it; here only for an error before anything is started
    at_start = newest_checkpoint(conf.output)
    values = dataclasses.asdict(conf)

    def task(_: int) -> dict[str, Any]:
        # Until there is a checkpoint of this run, the one before may still be there.
        is_new = newest_checkpoint(conf.output) != at_start
        return {
            "command": TRAIN,
            "conf": values,
            "overwrite": overwrite and not is_new,
            "golden": golden,
            "accept": accept,
        }

    with started(conf.cluster, conf.output, overwrite) as processes:
        newest = partial(newest_checkpoint, conf.output)
        return Supervisor(task, newest, processes, restarts=conf.cluster.restarts).run()


@contextmanager
def started(cluster: Cluster, output: str, overwrite: bool) -> Iterator[Processes]:
    """The processes of a cluster, with their logs in its output; none is left after the block.

    Raises UserError when a log is a symbolic link.
    """
    names = log_names(membership_of(cluster))
    if cluster.start == "ray":
        names.append(LOG_OF_RAY)
    if overwrite:
        remove_logs(output)
    claim_logs(output, names)
    if cluster.start != "ray":
        with kept_logs(output, names) as logs:
            silence = cluster.timeout * SILENCE
            yield LocalProcesses(logs, silence, servers=cluster.servers, program=PROGRAM)
        return
    with (
        kept_logs(output, names) as (*logs, log_of_ray),
        contextlib.closing(RayProcesses(logs, log_of_ray, cluster)) as processes,
    ):
        yield processes


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


def membership_of(cluster: Cluster) -> Membership:
    """The workers and servers of a conf that says how many there are."""
    assert cluster.workers is not None
    return Membership(cluster.workers, cluster.servers)


def log_names(membership: Membership) -> list[str]:
    """The logs of all workers and servers, in the folder of logs."""
    return [membership.log_name(rank) for rank in range(membership.size)]


@contextmanager
def kept_logs(output: str, names: Sequence[str]) -> Iterator[list[Path]]:
    """The files that the output of workers is appended to, which `claim_logs` has made.

    They are in the folder `workers` of the output. Where the output is on another storage, they are
    written there when the block ends.
    """
    above = files.join(output, WORKER_LOGS)
    folder = files.local_path(above)
    if folder is not None:
        yield [folder / name for name in names]
        return
    with tempfile.TemporaryDirectory(prefix="tnctl-workers-") as temporary:
        logs = [Path(temporary) / name for name in names]
        say(f"the output of each worker is in {temporary}, and at the end in {above}")
        try:
            yield logs
        finally:
            for log in filter(Path.exists, logs):
                files.write_bytes(files.join(above, log.name), log.read_bytes())


def newest_checkpoint(output: str) -> object:
    """What differs when an output has another newest checkpoint; None without one."""
    for folder in newest_first(files.join(output, CHECKPOINTS)):
        return folder, files.fingerprint(files.join(folder, MANIFEST))
    return None
