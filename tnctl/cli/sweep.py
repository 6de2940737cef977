"""`tnctl train -m`: one conf trained several times, with other keys or groups each time."""

import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tnctl.cli import arguments, compose
from tnctl.errors import UserError, refuse_if
from tnctl.masking import masked
from tnctl.model import quiet_tensorflow

if TYPE_CHECKING:
    from tnctl.training.sweeping import Run

LONGEST_NAME = 200  # of a folder; file systems take 255 bytes


def train(
    path: Path, overrides: list[str], overwrite: bool, golden: int, accept: bool = False
) -> int:
    """Train every job of a sweep; the exit code is the worst of all.

    All confs are checked before the first is trained. A job that fails does not stop the others.
    """
    options, overrides = arguments.options(overrides)
    refuse_if(options.show, "--cfg job shows one conf: leave -m out")
    from tnctl import files

    jobs = compose.sweep(path, overrides)
    names = folders([job.swept for job in jobs])
    runs: list[Run] = []
    for job, name in zip(jobs, names, strict=True):
        try:
            conf = compose.compose(path, job.overrides)
        except UserError as error:
            raise UserError(f"{words(job.swept)}: {error}", error.exit_code) from None
        refuse_if(
            conf.cluster.start is not None,
            "-m trains its runs in this process, without workers. Leave out cluster=local "
            "and its keys; where the conf file itself starts workers, give cluster.start=null",
        )
        runs.append((words(job.swept), replace(conf, output=files.join(conf.output, name))))
    quiet_tensorflow()
    from tnctl.training import sweeping

    return sweeping.train(runs, overwrite=overwrite, golden=golden, accept=accept)


def words(swept: dict[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in swept.items())


def folders(jobs: list[dict[str, str]]) -> list[str]:
    """A folder's name for each job: its overrides, such as `recipe=lr,seed=1`."""
    whole = [masked(",".join(f"{key}={value}" for key, value in job.items())) for job in jobs]
    plain = [re.sub(r"[^\w.=+,-]+", "_", name) for name in whole]
    digests = [hashlib.sha256(name.encode()).hexdigest()[:8] for name in whole]
    return [
        name
        if plain.count(name) == 1 and len(name.encode()) <= LONGEST_NAME
        else f"{name.encode()[: LONGEST_NAME - 9].decode(errors='ignore')}-{digest}"
        for name, digest in zip(plain, digests, strict=True)
    ]
