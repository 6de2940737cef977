"""Makes the golden files of this folder anew, from clicks.csv and the code as it is.

    python tests/golden/make.py

They are committed as bytes: what an older tnctl wrote must stay readable. So run this only when a
format has got a new version, keep the old files beside the new ones, and say so in CHANGELOG.md.

No gradient here comes from TensorFlow. All are 2, and the settings are such that one update has
round results: AdaGrad 12 + 2^2 = 16, weight 0 - 2 / sqrt(16) * 2 = -1; Adam m = v = 1, weight
0.25 less. So every byte but those of the graph is the same on every machine.

    clicks.csv     six examples: four are trained on in step 1, two are only inserted in step 2
    ids.json       hashes of values and salts of groups
    checkpoint/    the checkpoint after step 2
    embeddings/    its export
    graph/         its split graph
    prepared/      clicks.csv as `tnctl prepare` writes it
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
STEPS = ((0, 4, True), (4, 6, False))  # first example, end, whether they are trained on
TEXTS = ("", "a", "u1", "ü", "-1", "12345678", "123456789", "18446744073709551615")
CONF: dict[str, Any] = {
    "seed": 7,
    "output": "run",
    "recipe": {"name": "deepfm", "hidden": [2]},
    "slots": {
        "user": {"missing": "value", "seed": 3},
        "item": {"separator": "|", "pooling": "mean"},
        "last_item": {"group": "item"},
        "age": {"ids": "quantiles", "buckets": 4, "missing": "value"},
        "campaign": {"ids": "integer"},
    },
    "numeric": {"price": {"transform": "standardize"}, "clicks": {"transform": "log1p"}},
    "embedding": {"width": 3, "initial": {"kind": "uniform", "scale": 0.5}},
    "optimizer": {
        "linear": {
            "name": "adagrad",
            "learning_rate": 2.0,
            "epsilon": 1e-30,
            "initial_accumulator": 12.0,
        },
        "embedding": {
            "name": "adam",
            "learning_rate": 0.25,
            "epsilon": 1e-30,
            "beta1": 0.5,
            "beta2": 0.75,
        },
        "dense": {
            "name": "adam",
            "learning_rate": 0.25,
            "epsilon": 1e-30,
            "beta1": 0.5,
            "beta2": 0.75,
        },
    },
    "data": {"train": "clicks.csv"},
    "train": {"batch_size": 8, "threads": 2},
}


def trained(values: dict[str, Any]) -> Any:
    """The model of a conf after the two steps; `values` as CONF, with a data.root if needed."""
    from tnctl import schema
    from tnctl.data import statistics
    from tnctl.data.windows import taken, windows
    from tnctl.model import building
    from tnctl.model.layout import slot_plans
    from tnctl.tables import Batch
    from tnctl.training.evaluation import features_of

    conf = schema.from_values(values)
    model = building.build(conf, statistics.measure(conf))
    [window] = windows(conf, features_of(conf, model), "train")
    [table], [layout] = model.tables, model.layout.tables
    workspace = Batch(table, slot_plans(conf, layout))
    for number, (first, end, applied) in enumerate(STEPS):
        batch = taken(window, np.arange(first, end, dtype=np.uint32))
        table.set_step(number + 1)
        workspace.find(batch.ids[0], batch.offsets[0], batch.rows, True, batch.weights[0])
        if applied:
            linear = np.full((batch.rows, 1), 2, np.float32)
            embeddings = np.full((batch.rows, model.layout.width), 2, np.float32)
            workspace.accumulate([linear, embeddings])
            workspace.apply()
    for weights in model.dense.weights:
        weights[:] = (np.arange(len(weights)) % 8 - 4) / 8
    model.dense.apply([np.full(size, 2, np.float32) for size in model.dense.sizes])
    return model


def save(model: Any, folder: str) -> None:
    """The checkpoint of a trained model."""
    from tnctl.checkpoint import save as saving
    from tnctl.data.windows import raw_rows

    saving.save(
        model,
        folder,
        step=len(STEPS),
        position=saving.Position(1, 0, 0),
        finished=True,
        golden=raw_rows(model.conf, "train", 6),
        metrics={"epochs": []},
    )


def hashes() -> dict[str, Any]:
    """Ids of TEXTS and salts of groups, as hexadecimal text: JSON's numbers end at 2^53."""
    from tnctl.tables import columns

    return {
        "ids": [
            {"text": text, "seed": seed, "id": f"{columns.hash_bytes(text.encode(), seed):016x}"}
            for seed in (0, 3)
            for text in TEXTS
        ],
        "salts": {name: f"{columns.group_salt(name):016x}" for name in ("user", "item")},
    }


def main() -> None:
    """Write everything. Files name each other by relative paths, so that no machine's show."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    from tnctl import schema
    from tnctl.checkpoint import load
    from tnctl.data import preparing
    from tnctl.serving import export, split

    os.chdir(HERE)
    Path("ids.json").write_text(json.dumps(hashes(), indent=1, ensure_ascii=False) + "\n")
    model = trained(CONF)
    save(model, "checkpoint")
    checkpoint = load.open_checkpoint("checkpoint")
    export.export(checkpoint, model.conf, "embeddings")
    split.split(checkpoint, model.conf, "graph")
    preparing.prepare(schema.from_values(CONF), "prepared")


if __name__ == "__main__":
    main()
