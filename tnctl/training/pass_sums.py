"""Sums over the steps of a pass, which a checkpoint in the middle of the pass contains."""

import io
import math
import zipfile
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl import files
from tnctl.checkpoint.chain import EXTRA, Checkpoint
from tnctl.manifest import DamagedError
from tnctl.schema import Loss
from tnctl.tables import StreamingAuc

NAME = "running"  # of the checkpoint's extra file
BINS = 65_536  # of the logit
# What is saved: numpy's type, and shape.
ARRAYS: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
    "clicks": (np.dtype("<u8"), (BINS,)),
    "others": (np.dtype("<u8"), (BINS,)),
    "examples": (np.dtype("<i8"), (2,)),
    "losses": (np.dtype("<f8"), (2,)),
}


@dataclass
class PassSums:
    """Sums over the steps of a pass, of predictions made before each update."""

    classes: bool
    """whether labels are classes: of other numbers there is no AUC"""
    examples: int = 0
    losses: float = 0.0
    """loss times examples"""
    since_examples: int = 0
    """the same two since the last line of the log"""
    since_losses: float = 0.0
    auc: StreamingAuc = field(default_factory=StreamingAuc)
    fractions: bool = False
    """whether this process has seen a label between 0 and 1"""

    def add(self, loss: float, logits: Any, labels: Any) -> None:
        """Add a step: its mean loss, logits and labels float32 [B] of the main head."""
        if self.classes:
            self.auc.update(np.ascontiguousarray(logits), np.ascontiguousarray(labels))
            self.fractions = self.fractions or bool((labels % 1).any())
        self.losses += loss * len(logits)
        self.since_losses += loss * len(logits)
        self.examples += len(logits)
        self.since_examples += len(logits)

    @property
    def loss(self) -> float:
        return self.losses / max(self.examples, 1)

    def area(self) -> float | None:
        """The AUC so far; None where labels are no classes, or of one class only."""
        return self.auc.result() if self.classes else None

    @property
    def only_label(self) -> int | None:
        """The label of all examples so far, 0 or 1; None where they have several."""
        clicks, others = (bool(counts.any()) for counts in self.auc.counts)
        return None if self.fractions or clicks == others else int(clicks)

    def loss_since(self) -> float:
        """The mean loss since the last call."""
        loss = self.since_losses / max(self.since_examples, 1)
        self.since_losses, self.since_examples = 0.0, 0
        return loss

    def to_bytes(self) -> bytes:
        """All sums, exactly: a .npz of numpy. docs/formats/checkpoint.md."""
        clicks, others = self.auc.counts
        stream = io.BytesIO()
        np.savez_compressed(
            stream,
            clicks=clicks,
            others=others,
            examples=np.array([self.examples, self.since_examples], np.int64),
            losses=np.array([self.losses, self.since_losses], np.float64),
        )
        return stream.getvalue()

    def fill(self, data: bytes) -> None:
        """Continue from what `to_bytes` gave. Raises ValueError when it is something else."""
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                arrays = {name: _array(archive, name) for name in ARRAYS}
        except Exception as error:
            # zipfile, zlib and numpy raise errors of many types.
            raise ValueError(f"no running figures: {error}") from error
        if (arrays["examples"] < 0).any() or not np.isfinite(arrays["losses"]).all():
            raise ValueError("no running figures: examples below 0, or losses that are not finite")
        for counts, name in zip(self.auc.counts, ("clicks", "others"), strict=True):
            counts[:] = arrays[name]
        self.examples, self.since_examples = (int(count) for count in arrays["examples"])
        self.losses, self.since_losses = (float(loss) for loss in arrays["losses"])


def _array(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """An array of a .npz. Raises ValueError unless it has the type and shape that it must have."""
    dtype, shape = ARRAYS[name]
    with archive.open(f"{name}.npy") as member:
        np.lib.format.read_magic(member)
        header = np.lib.format.read_array_header_1_0(member)
        size = dtype.itemsize * math.prod(shape)
        content = member.read(size + 1)
    if header != (shape, False, dtype) or len(content) != size:
        raise ValueError(f"{name} should be {dtype} {list(shape)}")
    return np.frombuffer(content, dtype)


def read(checkpoint: Checkpoint, classes: bool) -> PassSums | None:
    """The running figures of a checkpoint; None where none were saved. Raises DamagedError."""
    data = checkpoint.extra(NAME)
    if data is None:
        return None
    sums = PassSums(classes)
    try:
        sums.fill(data)
    except ValueError as error:
        what = f"{files.join(checkpoint.folder, f'{EXTRA}/{NAME}')} has {error}"
        raise DamagedError(checkpoint.folder, what, "Take another checkpoint") from error
    return sums


def has_classes(loss: Loss) -> bool:
    """Whether labels are classes: for other numbers there is no AUC."""
    return loss.name != "mse"
