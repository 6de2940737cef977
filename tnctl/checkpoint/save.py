"""Write a checkpoint: tables, dense weights, inference graph, conf, golden rows, manifest last."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tnctl import __version__, files
from tnctl.checkpoint import dense, rows
from tnctl.manifest import NAME, Inventory
from tnctl.model import graph, recipes
from tnctl.model.building import Model

FORMAT = "tnctl checkpoint"
CONF = "conf.json"
GOLDEN = "golden.jsonl"


@dataclass(frozen=True)
class Position:
    """Where training stands in the data: the next batch to consume."""

    epoch: int
    window: int
    offset: int


def folder_of(output: str, step: int) -> str:
    """The folder of the checkpoint of a step."""
    return files.join(output, f"checkpoints/step-{step:010d}")


def save(
    model: Model,
    folder: str,
    *,
    step: int,
    position: Position,
    finished: bool,
    golden: list[dict[str, Any]],
    metrics: dict[str, Any],
) -> None:
    """Write a checkpoint into `folder`; it counts only once its manifest is written."""
    model.check_aliases()
    # What a crash left there must not be taken for a part of this one.
    files.remove(files.join(folder, NAME))
    files.remove(folder)
    inventory = Inventory(folder)
    tables = [
        {
            **table_description(model, number),
            "files": rows.write(inventory, f"tables/{layout.name}", model.tables[number]),
        }
        for number, layout in enumerate(model.layout.tables)
    ]
    dense_part = dense.write(inventory, model)
    write_graph(inventory, model)
    inventory.write(CONF, as_json(graph.conf_to_json(model.conf)))
    # ASCII: bytes that are no UTF-8 come as lone surrogates, which only JSON's escapes can hold.
    lines = [json.dumps(row, allow_nan=False) for row in golden]
    inventory.write(GOLDEN, "".join(f"{line}\n" for line in lines).encode())
    recipe = model.conf.recipe
    inventory.commit(
        FORMAT,
        {
            "tnctl": __version__,
            "clock": {"step": step, "day": None},
            "position": vars(position),
            "finished": finished,
            "recipe": {**recipe, "sha256": recipes.digest_of(recipe["name"])},
            "statistics": model.statistics.to_json(),
            "tables": tables,
            "dense": dense_part,
            "heads": list(model.heads),
            "logit_correction": model.logit_correction,
            "graph": "graph",
            "conf": CONF,
            "golden": {"file": GOLDEN, "rows": len(golden)},
            "metrics": metrics,
        },
    )


def table_description(model: Model, number: int) -> dict[str, Any]:
    """What a reader of the rows needs: groups, slots, and the fields of a record."""
    layout, table = model.layout.tables[number], model.tables[number]
    return {
        "name": layout.name,
        "rows": table.rows,
        "slots": list(layout.slots),
        "segments": [
            {
                "name": segment.name,
                "width": segment.width,
                "output": segment.output,
                "optimizer": segment.optimizer.described(),
            }
            for segment in table.segments
        ],
        "groups": [
            {"name": name, "number": number_, "rows": table.group_rows(number_)}
            for name, number_ in layout.groups.items()
        ],
        "record": [
            {
                "name": name,
                "type": dtype.base.str,
                "count": int(dtype.itemsize // dtype.base.itemsize),
            }
            for name, dtype in (
                (name, fields[0]) for name, fields in (table.record_dtype.fields or {}).items()
            )
        ],
    }


def write_graph(inventory: Inventory, model: Model) -> None:
    """The inference graph, through a local folder: TensorFlow writes to no other storage."""
    with tempfile.TemporaryDirectory(prefix="tnctl-graph-") as temporary:
        graph.save(model, temporary)
        for path in sorted(Path(temporary).rglob("*")):
            if path.is_file():
                inventory.write(
                    f"graph/{path.relative_to(temporary).as_posix()}", path.read_bytes()
                )


def as_json(value: Any) -> bytes:
    """JSON text with a line end."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"
