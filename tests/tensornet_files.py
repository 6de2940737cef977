"""Checkpoints as TensorNet writes them, in plain Python: its lines, records, ranks and blocks.

It shares no code with what reads them. Numbers are written as C++ streams write floats: %g.
"""

import gzip
import json
import random
import struct
from dataclasses import dataclass, field
from pathlib import Path


def float32(value):
    """The nearest float32, as a Python float."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


@dataclass
class Row:
    """A row: `state` of AdaGrad is [g2sum], of Adam [m…, v…], of Ftrl [z…, n…]."""

    sign: int
    weights: list
    state: list
    show: float = 0.0
    age: int = 0
    click: float = 0.0


def line(row, optimizer, cvm=False, old=False):
    """A row of the text as TensorNet writes it; `old` is before no_show_days."""
    dim, cells = len(row.weights), [row.sign]
    if optimizer == "AdaGrad":
        cells += [dim, *(f"{w:g}" for w in row.weights), f"{row.state[0]:g}", f"{row.show:g}"]
        if not old:
            # Each has a tab after it, also the last where no click follows.
            cells += [row.age, f"{row.click:g}" if cvm else ""]
    else:
        for at, weight in enumerate(row.weights):
            cells += [f"{weight:g}", f"{row.state[at]:g}", f"{row.state[dim + at]:g}"]
        cells.append(f"{row.show:g}")
    return "\t".join(map(str, cells)) + "\n"


def record(row, optimizer, cvm=False, tool=False):
    """A row of the binary form; `tool` is what TensorNet's resizing tool writes."""
    data = struct.pack("<Q", row.sign)
    if tool:
        data += struct.pack("<i", len(row.weights))
    floats = [*row.weights, *row.state, row.show]
    data += struct.pack(f"<{len(floats)}f", *floats)
    if optimizer == "AdaGrad":
        data += struct.pack("<i", row.age)
        if cvm:
            data += struct.pack("<f", row.click)
    return data


@dataclass
class Table:
    """A sparse table; `form` is text or bin, `names` how its blocks are called."""

    name: str
    dim: int
    rows: list
    optimizer: str = "AdaGrad"
    form: str = "text"
    cvm: bool = False
    old: bool = False
    tool: bool = False
    names: str = "block_{}.gz"

    def block(self, rows):
        """The bytes of a block."""
        if self.form == "text":
            text = f"opt_name:{self.optimizer}\ndim:{self.dim}\n"
            text += "".join(line(row, self.optimizer, self.cvm, self.old) for row in rows)
            return (text + "\n").encode()
        records = b"".join(record(row, self.optimizer, self.cvm, self.tool) for row in rows)
        return struct.pack("<i", self.dim) + records + (b"" if self.tool else b"\n")

    def write(self, folder, ranks):
        for rank in range(ranks):
            for block in range(8):
                rows = [
                    row
                    for row in self.rows
                    if row.sign % ranks == rank and (row.sign >> 32) % 8 == block
                ]
                path = folder / "sparse_table" / self.name / f"rank_{rank}"
                path /= self.names.format(block)
                path.parent.mkdir(parents=True, exist_ok=True)
                data = self.block(rows)
                path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


@dataclass
class Dense:
    """A dense table: the values of all variables, one after the other, each with its states."""

    optimizer: str
    rows: list
    powers: tuple = (0.9, 0.999)

    def write(self, folder, ranks):
        share = -(-len(self.rows) // ranks)
        for rank in range(ranks):
            rows = self.rows[rank * share : (rank + 1) * share]
            if not rows:
                continue  # a rank without weights writes no file
            text = f"total_elements:{len(self.rows)}\nrank_num:{ranks}\n"
            size = -(-len(rows) // 8)
            for start in range(0, len(rows), size):
                block = rows[start : start + size]
                text += f"opt_name:{self.optimizer}\narray_size:{len(block)}\n"
                if self.optimizer == "Adam":
                    text += f"beta1_power:{self.powers[0]:g}\nbeta2_power:{self.powers[1]:g}\n"
                for row in block:
                    text += "\t".join(f"{value:g}" for value in row) + "\n"
                text += "\n\n"
            path = folder / "dense_table/0" / str(rank)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


@dataclass
class Weights:
    """What TensorNet saves: tables, by ranks, in the folder of a day."""

    tables: list
    ranks: int = 2
    day: str = "2020-05-10"
    dense: Dense | None = None
    files: list = field(default_factory=list)

    def write(self, folder):
        """Write all of it, and return the folder."""
        folder = Path(folder)
        for part in [*self.tables, *([self.dense] if self.dense else [])]:
            part.write(folder / self.day, self.ranks)
        (folder / "_checkpoint").write_text(json.dumps({"dt": self.day}))
        return folder


def ftrl_weight(z, n, rate=0.01, beta=1.0, lambda1=0.1, lambda2=1.0):
    """The weight that TensorNet's FTRL makes of its state, by its default settings."""
    if abs(z) <= lambda1:
        return 0.0
    return -(z - lambda1 if z > 0 else z + lambda1) / ((beta + n**0.5) * rate + lambda2)


def signs(count, seed=1):
    """Distinct signs, small ones and up to 2^64 - 1."""
    draw = random.Random(seed)
    return [*range(count // 4), 2**64 - 1, *(draw.getrandbits(64) for _ in range(count))][:count]


def rows(count, dim, optimizer="AdaGrad", seed=1, exact=False):
    """Rows with all that a table can have; of at most six digits unless they are `exact`."""
    draw = random.Random(seed + dim)

    def number(scale=1.0):
        value = draw.choice([0.0, 1.0, draw.gauss(0, scale), draw.gauss(0, 1e-5), -1e-9])
        return float32(value if exact else float(f"{value:g}"))

    made = []
    for sign in signs(count):
        weights = [number() for _ in range(dim)]
        if optimizer == "AdaGrad":
            state = [abs(number())]
        else:
            state = [number() for _ in range(dim)] + [abs(number()) for _ in range(dim)]
            if optimizer == "Adam":
                state[dim:] = [value * value for value in state[dim:]]
                state[dim:] = [float32(float(f"{value:g}")) for value in state[dim:]]
        if optimizer == "Ftrl":
            weights = [ftrl_weight(*zn) for zn in zip(state, state[dim:], strict=False)]
            weights = [float32(w if exact else float(f"{w:g}")) for w in weights]
        counts = random.Random(sign)  # equal in all tables of a model
        has_counts = optimizer == "AdaGrad"
        show = float32(float(f"{counts.choice([0, 1, 0.98**9, 12345.6, counts.random()]):g}"))
        click = float32(float(f"{show * 0.3:g}"))
        age = counts.choice([0, 0, 1, 3, 40])
        if not has_counts:
            show, click, age = 0.0, 0.0, 0
        made.append(Row(sign, weights, state, show, age, click))
    return made
