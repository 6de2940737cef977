"""baseline.json: the figures of a baseline that is trained, for a run that ends before its report.

docs/train.md has the keys.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from tnctl import documents, files, limits, manifest
from tnctl.data.formats.prepared_document import SPLITS
from tnctl.data.sources import fingerprints
from tnctl.documents import Sha256
from tnctl.errors import Failure
from tnctl.manifest import Manifest
from tnctl.progress import say
from tnctl.schema import Conf
from tnctl.training.report import Baseline
from tnctl.training.run_folder import BASELINE, NOT_COMPARED, compared


@dataclass(frozen=True, kw_only=True)
class BaselineFile(Manifest):
    """A baseline, what it is of, and how long it took to train and measure it."""

    FORMAT: ClassVar[str] = "tnctl baseline"

    of: Sha256
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    baseline: Baseline


def write(output: str, of: str, seconds: float, baseline: Baseline) -> BaselineFile:
    """Write the file into the folder of a run."""
    document = BaselineFile(
        format=BaselineFile.FORMAT, version=1, of=of, seconds=round(seconds, 3), baseline=baseline
    )
    files.write_bytes(files.join(output, BASELINE), manifest.sealed(document.body()))
    return document


def read(output: str, of: str) -> BaselineFile | None:
    """The file of a run, None without one of this conf and data; a damaged one is reported."""
    url = files.join(output, BASELINE)
    if not files.exists(url):
        return None
    try:
        text = files.read_bytes(url, most=limits.MANIFEST_BYTES)
        document = manifest.unsealed(text, output, url, BaselineFile)
    except Failure as error:
        say(f"the baseline is trained again ({error})")
        return None
    return document if document.of == of else None


def digest_of(conf: Conf) -> str:
    """The SHA-256, hexadecimal, of all that a baseline depends on: the conf, and the data's files.

    Without keys that change no result; those of `baseline` change this one.
    """
    values = compared(conf, NOT_COMPARED - {"baseline"})
    given = [split for split in SPLITS if conf.data.source(split) is not None]
    read = {split: documents.plain(fingerprints(conf, split)) for split in given}
    text = json.dumps([values, read], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
