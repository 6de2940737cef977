"""The dense table of TensorNet: text without names or shapes, put into a model in a given order.

TensorNet concatenates all dense variables in the order of their names, and each rank writes its
part (core/ps/table/dense_table.cc).
"""

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.csv as pc
from numpy.typing import NDArray

from tnctl import files
from tnctl.errors import Failure, UserError, did_you_mean, quoted
from tnctl.tables import RowOptimizer
from tnctl.tensornet.table_files import damage_reported, tabbed

if TYPE_CHECKING:
    from tnctl.model.building import Model

# The columns of a row: the weight, then tnctl's names of the states in TensorNet's order.
STATES = {"adam": ("m", "v"), "adagrad": ("d", "accumulator", "m")}
OF_CONF = {"adam": "adam", "tensornet_adam": "adam", "tensornet_adagrad": "adagrad"}
LONGEST_ROW = 128  # bytes: four floats
FILE_START = re.compile(rb"total_(?:elements|num):(\d{1,12})\s+rank_num:(\d{1,5})\s+")
BLOCK_START = re.compile(
    rb"opt_name:(\w{1,32})\s+array_size:(\d{1,12})\s+"
    rb"(?:beta1_power:(\S{1,32})\s+beta[12]_power:(\S{1,32})\s+)?"
)
LEAST_POWER = 1e-36  # below it a float has lost digits
MANY_STEPS = 100_000  # after which Adam corrects nothing any more

# A block of a file: its optimizer, float32 [n, 1 + states], and the power of beta2.
Block = tuple[str, NDArray[np.float32], float | None]


@dataclass(frozen=True)
class DenseWeights:
    """All dense weights in TensorNet's order: float32 [n] each, and their optimizer.

    `power` is beta2 to the power of the updates so far, of Adam; else None.
    """

    optimizer: str
    weights: NDArray[np.float32]
    states: dict[str, NDArray[np.float32]]
    power: float | None


def read(urls: Sequence[str], expected: int) -> DenseWeights:
    """The weights in the files of all ranks; `expected` is how many there should be.

    Raises Failure for files that are damaged or of other ranks, UserError for another number.
    """
    blocks: list[Block] = []
    for url in urls:
        text = files.read_bytes(url, most=(expected + 1000) * LONGEST_ROW)
        start = FILE_START.match(text)
        if start is None:
            raise Failure(
                f"{url} should begin with total_elements:NUMBER and rank_num:NUMBER. "
                f"Received: {quoted(text[:60])}"
            )
        total, ranks = int(start[1]), int(start[2])
        if total != expected:
            raise UserError(
                f"{url} is of {total:,} dense weights, and this conf's network has {expected:,}. "
                "Leave dense= out to begin with new ones, or take the recipe and the inputs of "
                "that network"
            )
        if ranks < len(urls):
            raise Failure(f"{url} is of {ranks} ranks, and there are files of {len(urls)}")
        blocks += blocks_of(url, text, start.end())
    names = {name for name, _, _ in blocks}
    weights = np.concatenate([values for _, values, _ in blocks] or [np.zeros((0, 1), np.float32)])
    if len(weights) != expected or len(names) != 1:
        raise Failure(
            f"{urls[0]} and the files of the other ranks have {len(weights):,} weights of "
            f"{expected:,}. Copy the dense table again"
        )
    [name] = names
    powers = [power for _, _, power in blocks if power is not None]
    states = {state: weights[:, at] for at, state in enumerate(STATES[name], 1)}
    return DenseWeights(name, weights[:, 0], states, min(powers) if powers else None)


def blocks_of(url: str, text: bytes, start: int) -> list[Block]:
    """The blocks of a file. Raises Failure."""
    heads = list(BLOCK_START.finditer(text, start))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    if not heads or heads[0].start() != start or text.count(b"opt_name:") != len(heads):
        raise Failure(f"{url} has a block without opt_name or array_size. Copy it again")
    blocks = []
    for head, end in zip(heads, ends, strict=True):
        name, size = head[1].decode().lower(), int(head[2])
        if name not in STATES:
            raise Failure(
                f"{url} is of the optimizer {quoted(head[1])}, which has no dense weights"
            )
        columns = ["w", *STATES[name]]
        rows = np.zeros((0, len(columns)), np.float32)
        if (lines := text[head.end() : end]).strip():
            with damage_reported(url):
                table = pc.read_csv(io.BytesIO(lines), *tabbed(columns))
            rows = np.stack([column.to_numpy() for column in table.columns], axis=1)
        if len(rows) != size or not np.isfinite(rows).all():
            raise Failure(
                f"{url} has a block of {len(rows):,} weights that says {size:,}, or one that is "
                "not finite. Copy it again"
            )
        blocks.append((name, rows, power_of(url, head[4]) if name == "adam" else None))
    return blocks


def power_of(url: str, text: bytes | None) -> float:
    """The power of beta2 in the head of a block. Raises Failure when it is none."""
    try:
        power = float(text or b"")
    except ValueError:
        power = math.nan
    if not 0 <= power <= 1:
        raise Failure(f"{url} has a beta2_power that is not from 0 to 1: {quoted(text or b'')}")
    return power


def order_of(given: str, model: "Model") -> list[int]:
    """The places of the variables that `dense=NAME,…` names, in its order. Raises UserError."""
    known = model.variable_names
    names = [name.strip() for name in given.strip("[] ").split(",")]
    for name in names:
        if name not in known:
            raise UserError(f"dense=: no variable {quoted(name)}. {did_you_mean(name, known)}")
    if sorted(names) != sorted(known):
        missing = sorted(set(known) - set(names)) or ["one of them once only"]
        raise UserError(f"dense= names every variable once, and misses {', '.join(missing)}")
    return [known.index(name) for name in names]


def usual_order(model: "Model") -> str:
    """The order in which TensorNet has variables whose layers are named in the network's order."""
    layers: dict[str, list[str]] = {}
    for name in model.variable_names:
        layers.setdefault(name.rpartition("/")[0], []).append(name)
    return ",".join(name for names in layers.values() for name in sorted(names))


def fill(model: "Model", dense: DenseWeights, order: Sequence[int]) -> None:
    """Give a model its dense weights and their states. Raises UserError for another optimizer."""
    rule = model.dense.optimizer
    if OF_CONF.get(rule.name) != dense.optimizer:
        raise UserError(
            f"the dense table was trained with {dense.optimizer}, and optimizer.dense is "
            f"{rule.name}. Take the same with compat=tensornet, or leave dense= out"
        )
    start = 0
    for place in order:
        end = start + model.dense.sizes[place]
        model.dense.weights[place][:] = dense.weights[start:end]
        for name, state in zip(model.dense.state_names, model.dense.states, strict=True):
            state[place][:] = dense.states[name][start:end]
        start = end
    model.dense.step = steps_of(rule, dense.power)


def steps_of(rule: RowOptimizer, power: float | None) -> int:
    """The updates after which beta2 has a power; 1 where the optimizer does not count them."""
    if power is None or power == 1:
        return int(power is None)
    if power < LEAST_POWER or not 0 < rule.beta2 < 1:
        return MANY_STEPS
    return round(math.log(power) / math.log(rule.beta2))
