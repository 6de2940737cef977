"""Whether this CPU would train a model faster in bfloat16."""

from pathlib import Path

from tnctl.schema import Train

# What the kernel calls instructions that multiply bfloat16.
INSTRUCTIONS = ("amx_bf16", "avx512_bf16")
CPU_INFO = Path("/proc/cpuinfo")
# With fewer a step is no faster: products of small matrices take less time than rounding them.
FEWEST_WEIGHTS = 80_000


def bfloat16_advice(train: Train, dense_weights: int) -> str | None:
    """A line on train.precision=bfloat16 if it would pay on this CPU, else None."""
    if train.precision != "float32" or train.xla or dense_weights < FEWEST_WEIGHTS:
        return None
    try:
        words = set(CPU_INFO.read_text().split())
    except OSError:  # not Linux
        return None
    present = [name for name in INSTRUCTIONS if name in words]
    if not present:
        return None
    return (
        f"this CPU computes in bfloat16 ({', '.join(present)}): with train.precision=bfloat16 a "
        "step takes less time (figures: docs/train.md#bfloat16)"
    )
