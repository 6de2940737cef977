"""`tnctl train cluster=local`: a run whose workers are processes of this machine."""

import dataclasses
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tnctl import files
from tnctl.checkpoint.chain import FOLDER as CHECKPOINTS
from tnctl.checkpoint.chain import newest_first
from tnctl.cluster import NEEDS_GRPC
from tnctl.cluster.liveness import SILENCE
from tnctl.errors import refuse_if
from tnctl.launch.supervisor import Supervisor
from tnctl.manifest import NAME as MANIFEST
from tnctl.ownership import WORKER_LOGS, WORKERS, Claims
from tnctl.progress import say
from tnctl.schema import Conf


def train(conf: Conf, *, overwrite: bool, golden: int, accept: bool) -> int:
    """Train a conf by `cluster.workers` processes; the exit code of the run.

    They are given {"conf", "overwrite", "golden", "accept"}, as the arguments of
    `training_run.train`. Raises Failure while another process trains into the same output, and
    when workers are lost again and again.
    """
    refuse_if(find_spec("grpc") is None, NEEDS_GRPC)
    with files.locked(conf.output):
        pass  # rank 0 holds it; here only for an error before anything is started
    at_start = newest_checkpoint(conf.output)
    values = dataclasses.asdict(conf)

    def task(_: int) -> dict[str, Any]:
        # Until there is a checkpoint of this run, the one before may still be there.
        is_new = newest_checkpoint(conf.output) != at_start
        return {
            "conf": values,
            "overwrite": overwrite and not is_new,
            "golden": golden,
            "accept": accept,
        }

    with kept_logs(conf.output, conf.cluster.workers, overwrite) as logs:
        silence = conf.cluster.timeout * SILENCE
        return Supervisor(task, logs, lambda: newest_checkpoint(conf.output), silence).run()


@contextmanager
def kept_logs(output: str, workers: int, overwrite: bool) -> Iterator[list[Path]]:
    """The files that the output of each worker is appended to, on the list of tnctl's files.

    They are in the folder `workers` of the output; with `overwrite` they are emptied. Where the
    output is on another storage, they are written there when the block ends. Raises UserError when
    one of them is not tnctl's.
    """
    names = [f"rank-{rank}.log" for rank in range(workers)]
    above = files.join(output, WORKER_LOGS)
    folder = files.local_path(above)
    if folder is not None:
        with files.translated(above, "written"):
            folder.mkdir(parents=True, exist_ok=True)
    Claims(above, WORKERS).add(names)
    if folder is not None:
        logs = [folder / name for name in names]
        for log in logs:
            with files.translated(str(log), "written"):
                log.open("wb" if overwrite else "ab").close()
        yield logs
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
