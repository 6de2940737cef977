"""Makes the golden files of this folder anew, from clicks.csv and the code as it is.

    python tests/golden/make.py

They are committed as bytes: what an older tnctl wrote must stay readable. So run this only when a
format has got a new version, keep the old files beside the new ones, and say so in CHANGELOG.md.

No gradient here comes from TensorFlow. All are 2, and the settings are such that one update has
round results: AdaGrad 12 + 2^2 = 16, weight 0 - 2 / sqrt(16) * 2 = -1; Adam m = v = 1, weight
0.25 less. So every byte but those of the graph, and of what it gives, is the same on every machine.

    clicks.csv     six examples: four are trained on in step 1, two are only inserted in step 2
    ids.json       hashes of values and salts of groups
    checkpoint/    the checkpoint after step 2
    chain/         a full checkpoint and a compressed delta of it: CHAIN, four steps, rows removed
    owners/        the model of the chain in one full checkpoint, as three owners write it
    embeddings/    its export
    exports/       of the chain, in the forms of EXPORTS, a full export and a delta of it, and
                   `parts` in text: the full one by two workers, the delta by three
    graph/         its split graph
    prepared/      clicks.csv as `tnctl prepare` writes it

Of a saved_model.pb that is there twice the second is a link to the first (LINKS).
"""

import json
import os
import shutil
import sys
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
CHAIN: dict[str, Any] = {
    **CONF,
    "output": "chain",
    "save": {"full_every": 2, "keep": 0, "compression": "zstd"},
    "life": {
        "sketch": 65_536,
        "admission": {"after": 2},
        "shows": {"keep": True, "decay": 0.5},
        "eviction": {"unseen_steps": 1},
    },
}
EXPORTS = {
    "text": {"encoding": "text"},
    "dictionary": {"encoding": "dictionary", "precision": "float16"},
    "parquet": {"encoding": "parquet", "precision": "int8"},
}
LINKS = {
    "graph/saved_model.pb": "../checkpoint/graph/saved_model.pb",
    "chain/checkpoints/step-0000000004/graph/saved_model.pb": (
        "../../step-0000000002/graph/saved_model.pb"
    ),
}
# First example, end, day; the clicks of the first two are 1. After steps 2 and 4 it is saved.
CHAIN_STEPS = ((0, 4, 10), (0, 4, 10), (2, 6, 12), (2, 6, 12))


def trained(values: dict[str, Any]) -> Any:
    """The model of a conf after the two steps; `values` as CONF, with a data.root if needed."""
    from tnctl import schema
    from tnctl.data import statistics
    from tnctl.data.batches import taken
    from tnctl.data.sources import Source
    from tnctl.data.windows import windows
    from tnctl.evaluation.split_scoring import features_of
    from tnctl.model import building
    from tnctl.model.layout import slot_plans
    from tnctl.tables import Workspace

    conf = schema.from_values(values)
    model = building.build(conf, statistics.measure(conf))
    [window] = windows(Source(conf, "train"), features_of(conf, model))
    [table], [layout] = model.tables, model.layout.tables
    workspace = Workspace(table, slot_plans(conf.slots, layout))
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
    from tnctl.checkpoint import staging
    from tnctl.checkpoint.document import Clock, Metrics, Position
    from tnctl.evaluation.inference import Inference
    from tnctl.evaluation.predictions import GoldenRows

    staging.save(
        model,
        folder,
        clock=Clock(len(STEPS)),
        position=Position(None, 1, 0, 0, 1),
        finished=True,
        golden=GoldenRows(model.conf, model, 6).lines(Inference(model, 8)),
        metrics=Metrics(),
    )


def chain(values: dict[str, Any]) -> list[str]:
    """Train the steps of CHAIN and save twice; the folders below the conf's output."""
    from tnctl import schema
    from tnctl.checkpoint.document import Clock, Metrics, Position
    from tnctl.checkpoint.saver import Saver
    from tnctl.checkpoint.staging import Contents
    from tnctl.data import statistics
    from tnctl.data.batches import taken
    from tnctl.data.sources import Source
    from tnctl.data.windows import windows
    from tnctl.evaluation.inference import Inference
    from tnctl.evaluation.predictions import GoldenRows
    from tnctl.evaluation.split_scoring import features_of
    from tnctl.model import building
    from tnctl.model.layout import slot_plans
    from tnctl.tables import Workspace

    conf = schema.from_values(values)
    model = building.build(conf, statistics.measure(conf))
    [window] = windows(Source(conf, "train"), features_of(conf, model))
    [table], [layout] = model.tables, model.layout.tables
    workspace, saver = Workspace(table, slot_plans(conf.slots, layout)), Saver(conf, None)
    days: list[tuple[int, int]] = []
    folders = []
    for number, (first, end, day) in enumerate(CHAIN_STEPS):
        if not days or day > days[-1][0]:
            days.append((day, number + 1))
            table.set_days(days)
        table.set_step(number + 1)
        batch = taken(window, np.arange(first, end, dtype=np.uint32))
        workspace.find(batch.ids[0], batch.offsets[0], batch.rows, True, batch.weights[0])
        workspace.count(np.array([1, 1, 0, 0], np.float32))
        linear = np.full((batch.rows, 1), 2, np.float32)
        workspace.accumulate([linear, np.full((batch.rows, model.layout.width), 2, np.float32)])
        workspace.apply()
        if number % 2:
            table.evict()
            folder = saver.save(
                model,
                Contents(
                    clock=Clock(number + 1, tuple(days)),
                    position=Position(str(day), 0, 0, end, number),
                    finished=False,
                    golden=GoldenRows(conf, model, 2).lines(Inference(model, 8)),
                    metrics=Metrics(),
                    extras={"running": b"figures"},
                ),
            )
            saver.wait()
            folders.append(folder)
    return folders


def owners(values: dict[str, Any], folder: str, to: str, count: int = 3) -> None:
    """Write the model of a checkpoint as owners do that have a range of hashes each."""
    from tnctl import schema
    from tnctl.checkpoint import load, rows, staging
    from tnctl.checkpoint.owners import PartRequest, PartSize, named, write_part
    from tnctl.manifest import Inventory
    from tnctl.model import building
    from tnctl.tables import shards_of

    checkpoint, conf = load.open_checkpoint(folder), schema.from_values(values)
    inventory, size = Inventory(to), PartSize(files=(1,), bytes=0)
    models, staged = [], []
    [table] = checkpoint.manifest.tables
    for rank, names in enumerate(named([table.name], [size] * count, "")):
        shards = shards_of(rank, count)
        models.append(building.build(conf, checkpoint.statistics))
        load.fill(checkpoint, models[-1], shards)
        request = PartRequest(folder="owners", step=checkpoint.step, changed_from=0, tables=names)
        removed = rows.tombstones(checkpoint, table.name, *shards.hashes)
        part = write_part(inventory.writing, models[-1], request, [removed], shards)
        staged.append(part)
    contents = staging.Contents(
        clock=checkpoint.clock,
        position=checkpoint.position,
        finished=False,
        golden=checkpoint.golden(),
        metrics=checkpoint.manifest.metrics,
    )
    document = staging.stage(
        inventory.writing, models[0], contents, staging.InferenceGraph(), staged
    )
    staging.write_golden(inventory.writing, contents.golden)
    inventory.complete(document)


def exports(values: dict[str, Any], folders: list[str], to: str) -> None:
    """Export the first checkpoint of the chain in full, and the second as a delta."""
    from tnctl import schema
    from tnctl.checkpoint import load
    from tnctl.serving.rows import export

    full, delta = map(load.open_checkpoint, folders)
    conf = schema.from_values(values)
    for name, more in EXPORTS.items():
        # Without golden rows: its numbers are TensorFlow's, and other folders have one.
        export.export(full, conf, f"{to}/{name}", golden=0, **more)
        since = f"{to}/{name}"
        export.export(delta, conf, f"{to}/{name}-2", since=since, golden=0, **more)


def parts(values: dict[str, Any], folders: list[str], to: str) -> None:
    """The same in parts: a full export of two workers, and a delta of three."""
    sys.path.insert(0, str(HERE.parent))
    from cluster_in_one_process import following

    from tnctl import schema
    from tnctl.checkpoint import load
    from tnctl.cluster.rank_0.cluster_processes import ClusterProcesses
    from tnctl.serving.rows import export

    conf, since = schema.from_values(values), None
    for workers, folder, name in ((2, folders[0], to), (3, folders[1], f"{to}-2")):
        with following(conf, workers) as (node, _):
            writers = ClusterProcesses(node).writers()
            checkpoint = load.open_checkpoint(folder)
            export.export(
                checkpoint, conf, name, golden=0, encoding="text", since=since, writers=writers
            )
        since = name


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
    from tnctl.serving.graph import splitting
    from tnctl.serving.rows import export

    os.chdir(HERE)
    Path("ids.json").write_text(json.dumps(hashes(), indent=1, ensure_ascii=False) + "\n")
    model = trained(CONF)
    save(model, "checkpoint")
    shutil.rmtree("chain", ignore_errors=True)
    folders = chain(CHAIN)
    shutil.rmtree("owners", ignore_errors=True)
    owners(CHAIN, f"chain/{folders[-1]}", "owners")
    exports(CHAIN, [f"chain/{folder}" for folder in folders], "exports")
    parts(CHAIN, [f"chain/{folder}" for folder in folders], "exports/parts")
    checkpoint = load.open_checkpoint("checkpoint")
    export.export(checkpoint, model.conf, "embeddings")
    shutil.rmtree("graph", ignore_errors=True)
    splitting.split(checkpoint, model.conf, "graph")
    preparing.prepare(schema.from_values(CONF), "prepared")
    for name, target in LINKS.items():
        path = Path(name)
        assert path.read_bytes() == (path.parent / target).read_bytes(), name
        path.unlink()
        path.symlink_to(target)


if __name__ == "__main__":
    main()
