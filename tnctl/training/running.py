"""What the steps of a pass add up to: figures that a checkpoint in the middle of it carries."""

import io
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tnctl.tables import StreamingAuc

NAME = "running"  # of the checkpoint's extra file


@dataclass
class Running:
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

    def add(self, loss: float, logits: Any, labels: Any) -> None:
        """Count a step: its mean loss, logits and labels float32 [B] of the main head."""
        if self.classes:
            self.auc.update(np.ascontiguousarray(logits), np.ascontiguousarray(labels))
        self.losses += loss * len(logits)
        self.since_losses += loss * len(logits)
        self.examples += len(logits)
        self.since_examples += len(logits)

    @property
    def loss(self) -> float:
        return self.losses / self.examples

    def area(self) -> float | None:
        """The AUC so far; None where there is none."""
        return self.auc.result() if self.classes else None

    def loss_since(self) -> float:
        """The mean loss since this was last asked."""
        found = self.since_losses / self.since_examples
        self.since_losses, self.since_examples = 0.0, 0
        return found

    def to_bytes(self) -> bytes:
        """All of it, exactly: a .npz of numpy. docs/formats/checkpoint.md."""
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
        """Go on from what `to_bytes` gave. Raises ValueError when it is something else."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as found:
                for counts, name in zip(self.auc.counts, ("clicks", "others"), strict=True):
                    counts[:] = found[name]
                self.examples, self.since_examples = (int(one) for one in found["examples"])
                self.losses, self.since_losses = (float(one) for one in found["losses"])
        except Exception as error:
            # zipfile, zlib and numpy each have errors of their own.
            raise ValueError(f"no running figures: {error}") from error
