"""`tnctl train -m`: one conf trained several times, with other keys or groups each time."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tnctl.api.calls import COMPOSING, GOLDEN_ROWS, Url, in_one_line, overrides_of, text_of
from tnctl.composing import compose
from tnctl.errors import UserError, refuse_if
from tnctl.masking import masked
from tnctl.model import quiet_tensorflow

if TYPE_CHECKING:
    from tnctl.training.sweeping import Run

LONGEST_NAME = 200  # of a folder; file systems take 255 bytes


def sweep(
    conf: Url,
    overrides: Sequence[str],
    *,
    overwrite: bool = False,
    golden: int = GOLDEN_ROWS,
    accept: bool = False,
) -> int:
    """Train a conf once for each of the values of overrides such as seed=1,2: `tnctl train -m`.

    All confs are checked before the first is trained. A job that fails does not stop the others.
    Returns the worst exit code, 0 when all are trained. Raises UserError.
    """
    from tnctl import files

    with COMPOSING:
        path = compose.conf_file(text_of(conf, "conf"))
        jobs = compose.sweep(path, overrides_of(overrides))
    names = folders([job.swept for job in jobs])
    runs: list[Run] = []
    for job, name in zip(jobs, names, strict=True):
        try:
            with COMPOSING:
                made = compose.compose(path, job.overrides)
        except UserError as error:
            raise UserError(f"{words(job.swept)}: {error}", error.exit_code) from None
        refuse_if(
            made.cluster.start is not None,
            "-m trains its runs in this process, without workers. Leave out cluster=local "
            "and its keys; where the conf file itself starts workers, give cluster.start=null",
        )
        runs.append((words(job.swept), replace(made, output=files.join(made.output, name))))
    quiet_tensorflow()
    from tnctl.training import sweeping

    with in_one_line():
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
