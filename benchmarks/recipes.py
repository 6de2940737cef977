"""Recipes beside the same networks by hand, on data with the interactions that they are made for.

    python -m benchmarks.recipes [--only auc|step] [--recipes NAME,…] [--rows 1000000] [--seed 1]
    python -m benchmarks.recipes --real FOLDER [--recipes NAME,…] [--seeds 3]

`auc`: each recipe is trained on a generated set (benchmarks/recipe_sets.py), and so are its network
by hand (benchmarks/recipe_networks.py, in plain Keras layers) and tnctl's DeepFM. All have the same
batches in the same order, optimizers, learning rates, and distributions of first weights. An AUC is
of the test rows (of several labels the mean), and the best possible is that of the true logits.
DeepFM is trained for each label alone.

`step`: a training step with the recipe's default settings: tnctl's TrainingStep, and the network by
hand in a tf.function, with one variable for all embeddings, tf.unique, a segment sum and the sparse
AdaGrad kernel, in turns. 26 slots, 13 numbers, batches of 1024.

`--real`: the recipes of interactions with their default settings on UCI Adult and UCI Bank
Marketing (FOLDER/adult, FOLDER/bank), beside DeepFM: means of the test AUC over seeds.
"""

import argparse
import inspect
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import yaml
from numpy.typing import NDArray

import tnctl
from benchmarks import input as reading
from benchmarks import recipe_sets, timing
from benchmarks.recipe_networks import NETWORKS, Given
from benchmarks.recipe_sets import CANDIDATE, HISTORY, POSITION, Rows
from benchmarks.workload import FOLDER
from tnctl.data.statistics_document import Statistics
from tnctl.evaluation.metrics import auc
from tnctl.evaluation.split_scoring import features_of
from tnctl.model.building import build
from tnctl.schema import Conf
from tnctl.starting.first_conf import first_conf
from tnctl.training.step import TrainingStep

OUTPUT = FOLDER / "recipes"
BATCH, WIDTH = 1024, 8
ROWS_RATE, DENSE_RATE = 0.05, 0.001
ACCUMULATOR, EPSILON = 1e-6, 1e-8
POSITION_DROPOUT = 0.1
SCORED = 8192  # rows at a time
WITHIN, WITHIN_REAL, WITHIN_STEP = 0.003, 0.004, 1.15
WINDOWS, ROUNDS = 24, 12
TOWER = {"hidden": [64, 32]}
SEQUENCE = {"behavior": HISTORY, "target": CANDIDATE}
EXPERTS = {"expert_hidden": [64, 32], "hidden": [32]}
CONTEXTS = {"first_context": ["f0"], "second_context": ["f1"]}


@dataclass(frozen=True)
class Case:
    """What is measured of a recipe."""

    recipe: str
    data: str
    settings: dict[str, Any]  # on generated data
    needed: dict[str, Any] = field(default_factory=dict)  # beside default settings
    labels: int = 1


CASES = {
    "fwfm": Case("fwfm", "pairs", {}),
    "dlrm": Case("dlrm", "pairs", {"bottom": [16], **TOWER}),
    "finalmlp": Case(
        "finalmlp", "pairs", {"second": [64, 32], "gate": [32], **CONTEXTS, **TOWER}, CONTEXTS
    ),
    "xdeepfm": Case("xdeepfm", "triples", {"cin": [32, 32], **TOWER}),
    "gdcn": Case("gdcn", "triples", TOWER),
    "fcn": Case("fcn", "triples", {}),
    "wukong": Case(
        "wukong", "triples", {"depth": 2, "products": 16, "compressed": 16, **TOWER}
    ),
    "autoint": Case("autoint", "selected", {"attention": [16, 16]}),
    "masknet, serial": Case("masknet", "masked", {"hidden": [64, 64]}),
    "masknet, parallel": Case(
        "masknet", "masked", {"structure": "parallel", "blocks": 3, **TOWER},
        {"structure": "parallel", "blocks": 3},
    ),
    "shared_bottom": Case("shared_bottom", "similar", {"bottom": [64], "hidden": [32]}, labels=3),
    "mmoe": Case("mmoe", "chain", {"experts": 4, **EXPERTS}, labels=2),
    "ple": Case("ple", "opposed", {"shared_experts": 2, **EXPERTS}, labels=3),
    "din": Case("din", "candidate", {"attention": [32, 16], **SEQUENCE, **TOWER}, SEQUENCE),
    "bst": Case("bst", "order", {"heads": 4, **SEQUENCE, **TOWER}, SEQUENCE),
    "pepnet": Case(
        "pepnet", "domains", {"domain": ["f0"], "prior": ["f1"], "gate_hidden": 32, **TOWER},
        {"domain": ["f0"], "prior": ["f1"]},
    ),
    "position": Case("deepfm", "position", TOWER),
}  # fmt: skip
INTERACTIONS = (
    "dlrm", "fwfm", "xdeepfm", "autoint", "masknet, serial", "masknet, parallel", "finalmlp",
    "gdcn", "fcn", "wukong",
)  # fmt: skip


def conf_of(
    folder: Path, rows: Rows, recipe: dict[str, Any], labels: Sequence[str], seed: int, **more: Any
) -> Conf:
    """The conf of a recipe with settings on folder/train.parquet and test.parquet."""
    slots: dict[str, Any] = {f"f{k}": {"ids": "integer"} for k in range(rows.ids.shape[1])}
    if rows.history is not None:
        slots[CANDIDATE]["group"] = "candidate"
        slots[HISTORY] = {"ids": "integer", "group": "candidate"}
        if "behavior" in recipe:
            slots[HISTORY] |= {"pooling": "none", "max_length": rows.history.shape[1]}
    if "position" in more:
        slots[POSITION] = {"ids": "integer"}
    of_rows = {
        "name": "adagrad_coordinate", "learning_rate": ROWS_RATE,
        "initial_accumulator": ACCUMULATOR, "epsilon": EPSILON,
    }  # fmt: skip
    given = {
        "defaults": ["schema", {"recipe": recipe["name"]}, "_self_"],
        "data": {
            "train": str(folder / "train.parquet"), "test": str(folder / "test.parquet"),
            "format": "parquet", "shuffle": False, "labels": {n: {"column": n} for n in labels},
        },
        "slots": slots,
        "numeric": {f"n{k}": {} for k in range(rows.numbers.shape[1])},
        "recipe": {key: value for key, value in recipe.items() if key != "name"},
        "embedding": {"width": WIDTH},
        "optimizer": {
            "linear": of_rows, "embedding": of_rows,
            "dense": {"name": "adam", "learning_rate": DENSE_RATE},
        },
        "train": {"batch_size": BATCH},
        "evaluation": {"ablate": False},
        "output": str(folder / "run"),
        "seed": seed,
    }  # fmt: skip
    path = folder / "conf.yaml"
    path.write_text(yaml.safe_dump(given | more, sort_keys=False))
    return tnctl.compose(path)


# ---- by hand ----


class ByHand:
    """A network in plain Keras with plain TensorFlow around it, over the rows of a set."""

    def __init__(self, rows: Rows, network: str, settings: dict[str, Any], seed: int) -> None:
        keras.backend.clear_session()
        keras.utils.set_random_seed(seed)
        self.labels, self.with_position = list(rows.labels), rows.position is not None
        self.table = tf.Variable(tf.random.normal([int(ids_of(rows).max()) + 1, WIDTH], 0, 0.01))
        self.linear = tf.Variable(tf.zeros([self.table.shape[0], 1]))
        self.sums = [tf.Variable(tf.fill(t.shape, ACCUMULATOR)) for t in (self.table, self.linear)]
        self.slots = rows.ids.shape[1]
        self.length = 0 if rows.history is None else rows.history.shape[1]
        self.model = self._model(rows, network, settings)
        self.adam = keras.optimizers.Adam(DENSE_RATE)
        self.adam.build(self.model.trainable_variables)
        count = ids_of(rows).shape[1]
        types = ([BATCH, count], tf.int32), ([BATCH, rows.numbers.shape[1]], tf.float32), (
            [BATCH, len(self.labels)], tf.float32
        )  # fmt: skip
        specs = [tf.TensorSpec(shape, kind) for shape, kind in types]
        self.step = tf.function(self._step, input_signature=specs, autograph=False)
        self.logits = tf.function(self._logits, reduce_retracing=True, autograph=False)

    def _model(self, rows: Rows, network: str, settings: dict[str, Any]) -> keras.Model:
        count = ids_of(rows).shape[1]
        vectors, linear = keras.Input((count, WIDTH)), keras.Input((1,))
        numbers = keras.Input((rows.numbers.shape[1],))
        lengths = keras.Input((), dtype="int32")
        given = Given(
            vectors[:, : self.slots],
            linear,
            self.labels,
            numbers if rows.numbers.shape[1] else None,
            vectors[:, self.slots : self.slots + self.length] if self.length else None,
            lengths,
        )
        function = NETWORKS[network]
        names = inspect.signature(function).parameters.keys() & settings.keys()
        outputs = function(given, **{name: settings[name] for name in names})
        outputs = outputs if isinstance(outputs, list) else [outputs]
        served = keras.layers.Concatenate()(outputs) if len(outputs) > 1 else outputs[0]
        trained = served
        if self.with_position:
            of_position = keras.layers.Dense(1, use_bias=False)(vectors[:, -1])
            dropped = keras.layers.Dropout(POSITION_DROPOUT)(of_position)
            trained = served + dropped * (1 - POSITION_DROPOUT)
        return keras.Model([vectors, linear, numbers, lengths], [trained, served])

    def _inputs(self, ids: Any, numbers: Any) -> tuple[list[Any], list[Any], Any]:
        """The rows of embeddings and of linear weights; the numbers and the lengths."""
        gathered = [tf.gather(self.table, ids), tf.gather(self.linear, ids[:, : self.slots])]
        lengths = tf.math.count_nonzero(ids[:, self.slots :], axis=1, dtype=tf.int32)
        return gathered, [numbers, lengths], tf.cast(ids > 0, tf.float32)[..., None]

    def _step(self, ids: Any, numbers: Any, labels: Any) -> Any:
        gathered, others, present = self._inputs(ids, numbers)
        variables = [variable.value for variable in self.model.trainable_variables]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([*gathered, *variables])
            vectors = gathered[0] * present if self.length else gathered[0]
            inputs = [vectors, tf.reduce_sum(gathered[1], 1), *others]
            logits = self.model(inputs, training=True)[0]
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_sum(tf.reduce_mean(losses, axis=0))
        *of_rows, dense = tape.gradient(loss, [*gathered, variables])
        self.adam.apply(dense, self.model.trainable_variables)
        for table, accumulator, gradient in zip(
            (self.table, self.linear), self.sums, of_rows, strict=True
        ):
            if gradient is None:  # without linear weights
                continue
            indices = tf.reshape(ids[:, : gradient.shape[1]], [-1])
            unique, places = tf.unique(indices)
            gradient = tf.reshape(gradient, [-1, gradient.shape[2]])
            summed = tf.math.unsorted_segment_sum(gradient, places, tf.size(unique))
            tf.raw_ops.ResourceSparseApplyAdagradV2(
                var=table.handle, accum=accumulator.handle, lr=ROWS_RATE, epsilon=EPSILON,
                grad=summed, indices=unique,
            )  # fmt: skip
        return loss

    def _logits(self, ids: Any, numbers: Any) -> Any:
        gathered, others, present = self._inputs(ids, numbers)
        vectors = gathered[0] * present if self.length else gathered[0]
        inputs = [vectors, tf.reduce_sum(gathered[1], 1), *others]
        return self.model(inputs, training=False)[1]

    def area(self, train: Rows, test: Rows) -> float:
        """The mean AUC on the test rows after a pass over the training rows, in their order."""
        for batch in batches(train, BATCH):
            self.step(*batch)
        scores = np.concatenate([self.logits(*b[:2]).numpy() for b in batches(test, SCORED)])
        return mean_area(dict(zip(self.labels, scores.T, strict=True)), test)


def ids_of(rows: Rows) -> NDArray[np.int32]:
    """All ids, [n, slots and places of the history and the position]; 0 is none."""
    parts = [rows.ids, rows.history, None if rows.position is None else rows.position[:, None]]
    return np.concatenate([part for part in parts if part is not None], axis=1).astype(np.int32)


def batches(rows: Rows, size: int) -> Iterator[tuple[Any, ...]]:
    """Ids, numbers and labels. The last, short batch of training rows is left out."""
    ids, labels = ids_of(rows), np.stack(list(rows.labels.values()), axis=1)
    numbers = rows.numbers if len(rows.numbers) else np.zeros((len(ids), 0), np.float32)
    whole = len(ids) - len(ids) % size if size == BATCH else len(ids)
    for start in range(0, whole, size):
        part = slice(start, start + size)
        yield tuple(map(tf.constant, (ids[part], numbers[part], labels[part])))


def mean_area(scores: dict[str, Any], rows: Rows) -> float:
    """The mean over labels of the AUC of scores [n]."""
    return statistics.mean(
        auc(scores[name], of_label) or 0.5 for name, of_label in rows.labels.items()
    )


# ---- what is measured ----


def trained_area(conf: Conf) -> float:
    """The test AUC of a run, the mean over its labels."""
    metrics = tnctl.train(conf, overwrite=True, golden=0).report.metrics
    return statistics.mean([metrics["auc"], *(v["auc"] for v in metrics.get("heads", {}).values())])


def compare_areas(names: Sequence[str], rows: int, test_rows: int, seed: int) -> None:
    table = [["", "set", "tnctl", "by hand", "difference", "DeepFM", "over it", "best", "wanted"]]
    of_set: dict[str, tuple[Rows, Rows]] = {}
    of_deepfm: dict[str, float] = {}
    for name in names:
        case = CASES[name]
        folder = OUTPUT / case.data
        if case.data not in of_set:
            of_set = {case.data: recipe_sets.drawn(case.data, rows - rows % BATCH, test_rows, seed)}
            folder.mkdir(parents=True, exist_ok=True)
            for split, part in zip(("train", "test"), of_set[case.data], strict=True):
                recipe_sets.write(part, folder / f"{split}.parquet")
        train, test = of_set[case.data]
        deepfm = {"name": "deepfm", **TOWER}
        if case.data not in of_deepfm:
            of_deepfm[case.data] = statistics.mean(
                trained_area(conf_of(folder, train, deepfm, [label], seed))
                for label in train.labels
            )
        more = {"position": {"slot": POSITION}} if train.position is not None else {}
        recipe = {"name": case.recipe, **case.settings}
        conf = conf_of(folder, train, recipe, list(train.labels), seed, **more)
        area, settings = trained_area(conf), dict(conf.recipe)
        by_hand = ByHand(train, case.recipe, settings, seed).area(train, test)
        best, base = mean_area(test.logits, test), of_deepfm[case.data]
        good = abs(area - by_hand) <= WITHIN and area > base
        figures = [area, by_hand, area - by_hand, base, area - base, best]
        signs = ["", "", "+", "", "+", ""]
        cells = [f"{figure:{sign}.4f}" for figure, sign in zip(figures, signs, strict=True)]
        table.append([name, case.data, *cells, "yes" if good else "NO"])
        print(*table[-1], flush=True)
    print(f"{rows:,} rows, {test_rows:,} test rows, seed {seed}\n{timing.table(table)}")


def compare_steps(names: Sequence[str], seed: int) -> None:
    random, folder = np.random.default_rng(seed), OUTPUT / "step"
    folder.mkdir(parents=True, exist_ok=True)
    comparisons, table = {}, [["tnctl's step beside the one by hand", "ratio", "95 %", "wanted"]]
    for name in names:
        case = CASES[name]
        rows = workload(case, random)
        recipe_sets.write(rows, folder / "train.parquet")
        more = {"position": {"slot": POSITION}} if rows.position is not None else {}
        recipe = {"name": case.recipe, **case.needed}
        conf = conf_of(folder, rows, recipe, list(rows.labels), seed, **more)
        steps = {"by hand": step_by_hand(rows, conf, seed), "tnctl": tnctl_step(conf)}
        compared = timing.compare(steps, BATCH, rounds=ROUNDS, warm_up=WINDOWS)
        comparisons[name] = compared
        ratio = compared.ratio("by hand", "tnctl")  # of speeds, so of times the other way round
        bounds = f"{ratio.low:.2f} - {ratio.high:.2f}"
        good = "yes" if ratio.median <= WITHIN_STEP else "NO"
        table.append([name, f"{ratio.median:.2f}", bounds, good])
        print(*table[-1], flush=True)
    timing.show("training step", "samples", comparisons)
    print(timing.table(table))


def workload(case: Case, random: np.random.Generator) -> Rows:
    """Ids, numbers and labels by chance, in the shape that a recipe needs."""
    n, slots, ids = WINDOWS * BATCH, 26, 10_000
    labels = {f"label_{k}": random.integers(0, 2, n).astype(np.float32) for k in range(case.labels)}
    lengths = random.integers(1, 21, (n, 1))
    history = np.where(np.arange(20) < lengths, random.integers(1, ids, (n, 20)), 0)
    return Rows(
        1 + ids * np.arange(slots) + random.integers(0, ids, (n, slots)),
        {},
        labels,
        random.normal(size=(n, 13)).astype(np.float32),
        history if "behavior" in case.needed else None,
        1 + ids * slots + random.integers(0, 10, n) if case.data == "position" else None,
    )


def step_by_hand(rows: Rows, conf: Conf, seed: int) -> timing.Step:
    by_hand = ByHand(rows, conf.recipe_name, dict(conf.recipe), seed)
    ids, labels = ids_of(rows), np.stack(list(rows.labels.values()), axis=1)

    def run(number: int) -> Any:
        first = number % WINDOWS * BATCH
        part = slice(first, first + BATCH)
        given = (ids[part], rows.numbers[part], labels[part])
        return by_hand.step(*map(tf.constant, given)).numpy()

    return run


def tnctl_step(conf: Conf) -> timing.Step:
    model = build(conf, Statistics())
    windows = list(reading.of_pass(conf, features_of(conf, model)))
    step = TrainingStep(model, BATCH)
    return lambda number: step(windows[number % WINDOWS])


def compare_real(names: Sequence[str], folder: Path, seeds: int) -> None:
    """Recipes with default settings; DeepFM as conf=adult and `tnctl init` have it."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    first = OUTPUT / "bank.yaml"
    text = first_conf([str(folder / "bank/bank-additional-full.csv")], name=first.name).text
    first.write_text(text)
    plain = OUTPUT / "bank-defaults.yaml"
    kept = [line for line in text.splitlines() if not line.startswith(("recipe:", "defaults:"))]
    stopping = ["train.epochs=auto", "evaluation.patience=3", "data.split.validation=0.1"]
    table = [["", "", "mean AUC", "deviation", "over DeepFM", f"within {WITHIN_REAL} or above"]]

    def overrides(name: str) -> list[str]:
        settings = CASES[name].needed if name.startswith("masknet") else {}
        return [f"recipe.{key}={value}" for key, value in settings.items()]

    for data in ("adult", "bank"):
        base = 0.0
        for name in ("deepfm", *names):
            recipe = "deepfm" if name == "deepfm" else CASES[name].recipe
            words = [] if name == "deepfm" else overrides(name)
            conf: str | Path = "adult"
            if data == "adult":
                words += [f"recipe={recipe}", f"data.root={folder}/adult", *stopping]
            else:
                conf = first if name == "deepfm" else plain
                lines = kept if conf is plain else text.splitlines()
                head = f"defaults: [schema, {{recipe: {recipe}}}, _self_]"
                body = [line for line in lines if not line.startswith("defaults:")]
                conf.write_text("\n".join([head, *body]))
            areas = [
                trained_area(
                    tnctl.compose(
                        conf,
                        [*words, f"seed={seed}", f"output={OUTPUT}/run", "evaluation.ablate=false"],
                    )
                )
                for seed in range(1, seeds + 1)
            ]
            mean = statistics.mean(areas)
            base = base or mean
            deviation = f"{statistics.stdev(areas):.4f}" if seeds > 1 else ""
            good = "yes" if mean >= base - WITHIN_REAL else "NO"
            table.append([data, name, f"{mean:.4f}", deviation, f"{mean - base:+.4f}", good])
            print(*table[-1], flush=True)
    print(f"{seeds} seeds\n{timing.table(table)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("auc", "step"))
    parser.add_argument("--recipes", help=f"by commas, of: {'; '.join(CASES)} (default: all)")
    parser.add_argument("--rows", type=int, default=1_000_000, help="to train on, generated")
    parser.add_argument("--test-rows", type=int, help="generated (default: as many as --rows)")
    parser.add_argument("--seed", type=int, default=1, help="of generated rows and first weights")
    parser.add_argument("--real", type=Path, metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=3, help="of --real")
    given = parser.parse_args()
    wanted = given.recipes.split(",") if given.recipes else None
    names = [
        name for name in CASES if wanted is None or CASES[name].recipe in wanted or name in wanted
    ]
    if not names:
        sys.exit(f"no recipe of {given.recipes}; there are {'; '.join(CASES)}")
    shutil.rmtree(OUTPUT, ignore_errors=True)
    if given.real:
        compare_real([name for name in INTERACTIONS if name in names], given.real, given.seeds)
        return
    if given.only != "step":
        compare_areas(names, given.rows, given.test_rows or given.rows, given.seed)
    if given.only != "auc":
        compare_steps(names, given.seed)


if __name__ == "__main__":
    main()
