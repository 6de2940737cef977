"""Recipes beside the same networks by hand, on data with the interactions that they are made for.

    python -m benchmarks.recipes [--only auc|step] [--recipes NAME,…] [--rows 1000000] [--seed 1]
    python -m benchmarks.recipes --only shipped [--recipes NAME,…]
    python -m benchmarks.recipes --real FOLDER [--recipes NAME,…] [--seeds 3]

`auc`: each recipe is trained on a generated set (benchmarks/recipe_sets.py), and so are its network
by hand (benchmarks/recipe_networks.py, in plain Keras layers) and tnctl's DeepFM. All have the same
batches in the same order, optimizers, learning rates, and distributions of first weights. An AUC is
of the test rows (of several labels the mean), and the best possible is the AUC of the true logits.
DeepFM is trained for each label alone.

`step`: a training step with the recipe's default settings: tnctl's TrainingStep, and the network by
hand in a tf.function, with one variable for all embeddings, tf.unique, a segment sum and the sparse
AdaGrad kernel, in turns. 26 slots, 13 numbers, batches of 1024.

`shipped`: that step of each shipped recipe, in turns with DeepFM's: the dense parameters and the
time in the table of docs/recipes.md. Recipes for any labels have two.

`--real`: the recipes of interactions with their default settings on UCI Adult and UCI Bank
Marketing (FOLDER/adult, FOLDER/bank), beside DeepFM: means of the test AUC over seeds.
"""

import argparse
import inspect
import shutil
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import yaml
from keras import ops

import tnctl
from benchmarks import recipe_networks, recipe_sets, timing
from benchmarks.input import of_pass
from benchmarks.recipe_sets import CANDIDATE, HISTORY, POSITION, Rows
from benchmarks.workload import FOLDER
from tnctl import shipped
from tnctl.data.statistics_document import Statistics
from tnctl.evaluation.metrics import auc
from tnctl.evaluation.split_scoring import features_of
from tnctl.model.building import build
from tnctl.schema import Conf
from tnctl.starting.first_conf import first_conf
from tnctl.training.step import TrainingStep

OUTPUT = FOLDER / "recipes"
BATCH = 512
# Of embeddings. With a width as the truth's fwfm and dlrm stay in a worse optimum, and some recipes
# normalise vectors.
WIDTH = 8
STEP_BATCH = 1024
RATES = (0.1, 0.003)  # of rows and of dense weights
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
    epochs: int = 2
    rates: tuple[float, float] = RATES


CASES = {
    "fwfm": Case("fwfm", "pairs", {}),
    "dlrm": Case("dlrm", "numbers", {"bottom": [32], **TOWER}),
    "finalmlp": Case(
        "finalmlp", "streams", {"second": [64, 32], "gate": [32], **CONTEXTS, **TOWER}, CONTEXTS
    ),
    "xdeepfm": Case("xdeepfm", "triples", {"cin": [32, 32], **TOWER}),
    "gdcn": Case("gdcn", "triples", TOWER),
    "fcn": Case("fcn", "triples", {}),
    "wukong": Case(
        "wukong", "triples",
        {"depth": 2, "products": 16, "compressed": 16, "rank": 16, "fm_hidden": [128], **TOWER},
        epochs=8, rates=(0.02, 0.002),
    ),
    "autoint": Case("autoint", "selected", {"attention": [16, 16], **TOWER}),
    "masknet, serial": Case("masknet", "masked", {"hidden": [64, 64]}),
    "masknet, parallel": Case(
        "masknet", "masked", {"structure": "parallel", "blocks": 3, **TOWER},
        {"structure": "parallel", "blocks": 3},
    ),
    "shared_bottom": Case("shared_bottom", "similar", {"bottom": [64], "hidden": [32]}, labels=3),
    "mmoe": Case("mmoe", "chain", {"experts": 4, **EXPERTS}, labels=2),
    "ple": Case("ple", "opposed", {"shared_experts": 2, **EXPERTS}, labels=3),
    "din": Case("din", "candidate", {"attention": [32, 16], **SEQUENCE, **TOWER}, SEQUENCE),
    "bst": Case("bst", "order", {"heads": 4, **SEQUENCE, **TOWER}, SEQUENCE, epochs=5),
    "pepnet": Case(
        "pepnet", "domains", {"domain": ["f0"], "prior": ["f1"], "gate_hidden": 32, **TOWER},
        {"domain": ["f0"], "prior": ["f1"]},
    ),
    "position": Case("deepfm", "position", TOWER),
}  # fmt: skip
SEVERAL_LABELS = ("esmm", "shared_bottom", "mmoe", "ple", "pepnet")
MUST_BE_GIVEN = {"din": SEQUENCE, "bst": SEQUENCE, "pepnet": CASES["pepnet"].needed}
INTERACTIONS = (
    "dlrm", "fwfm", "xdeepfm", "autoint", "masknet, serial", "masknet, parallel", "finalmlp",
    "gdcn", "fcn", "wukong",
)  # fmt: skip


def conf_of(
    folder: Path,
    rows: Rows,
    recipe: dict[str, Any],
    labels: Sequence[str],
    seed: int,
    position: bool = True,
    rates: tuple[float, float] = RATES,
    **more: Any,
) -> Conf:
    """The conf of a recipe with settings on folder/train.parquet and test.parquet."""
    numbers = 0 if rows.numbers is None else rows.numbers.shape[1]
    slots: dict[str, Any] = {f"f{k}": {"ids": "integer"} for k in range(rows.ids.shape[1])}
    if rows.history is not None:
        slots[CANDIDATE]["group"] = "candidate"
        slots[HISTORY] = {"ids": "integer", "group": "candidate"}
        if "behavior" in recipe:
            slots[HISTORY] |= {"pooling": "none", "max_length": rows.history.shape[1]}
    if position := position and rows.position is not None:
        slots[POSITION] = {"ids": "integer"}
    of_rows = {
        "name": "adagrad_coordinate", "learning_rate": rates[0],
        "initial_accumulator": ACCUMULATOR, "epsilon": EPSILON,
    }  # fmt: skip
    given = {
        "defaults": ["schema", {"recipe": recipe["name"]}, "_self_"],
        "data": {
            "train": str(folder / "train.parquet"), "test": str(folder / "test.parquet"),
            "format": "parquet", "shuffle": False, "labels": {n: {"column": n} for n in labels},
        },
        "slots": slots,
        "numeric": {f"n{k}": {} for k in range(numbers)},
        "position": {"slot": POSITION if position else None},
        "recipe": {key: value for key, value in recipe.items() if key != "name"},
        "embedding": {"width": WIDTH},
        "optimizer": {
            "linear": of_rows, "embedding": of_rows,
            "dense": {"name": "adam", "learning_rate": rates[1]},
        },
        "evaluation": {"ablate": False},
        "output": str(folder / "run"),
        "seed": seed,
    }  # fmt: skip
    path = folder / "conf.yaml"
    path.write_text(yaml.safe_dump(given | more, sort_keys=False))
    return tnctl.compose(path)


class ByHand:
    """A recipe's network in plain Keras with plain TensorFlow around it, on the rows of a set."""

    def __init__(self, rows: Rows, conf: Conf) -> None:
        keras.backend.clear_session()
        keras.utils.set_random_seed(conf.seed)
        self.sizes = [rows.ids.shape[1]]  # of slots; places of the history and the position
        self.sizes += [] if rows.history is None else [rows.history.shape[1]]
        self.sizes += [] if rows.position is None else [1]
        self.linear, self.width = conf.embedding.linear, conf.embedding.width
        self.train, self.rows_rate = conf.train, conf.optimizer.embedding.learning_rate
        self.model = self._model(rows, conf)
        ids = int(arrays(rows)[0].max()) + 1
        weights = [tf.random.normal([ids, self.width], 0, 0.01), tf.zeros([ids, int(self.linear)])]
        self.table = tf.Variable(tf.concat(weights, axis=1))
        self.accumulator = tf.Variable(tf.fill(self.table.shape, ACCUMULATOR))
        self.adam = keras.optimizers.Adam(conf.optimizer.dense.learning_rate)
        self.adam.build(self.model.trainable_variables)
        self.step = tf.function(self._step, autograph=False)
        self.served = tf.function(self._served, autograph=False, reduce_retracing=True)

    def _model(self, rows: Rows, conf: Conf) -> keras.Model:
        """Of dictionaries: the inputs that there are, and the logits `trained` and `served`."""
        inputs = {"vectors": keras.Input((self.sizes[0], self.width), name="vectors")}
        if self.linear:
            inputs["linear"] = keras.Input((1,), name="linear")
        if rows.numbers is not None:
            inputs["numbers"] = keras.Input(rows.numbers.shape[1:], name="numbers")
        if rows.history is not None:
            inputs["history"] = keras.Input((self.sizes[1], self.width), name="history")
            inputs["lengths"] = keras.Input((), dtype="int32", name="lengths")
        function = getattr(recipe_networks, conf.recipe_name)
        names = inspect.signature(function).parameters.keys() & conf.recipe.keys()
        given = recipe_networks.Given(labels=list(rows.labels), **inputs)
        logits = function(given, **{name: conf.recipe[name] for name in names})
        served = ops.concatenate(logits, axis=1) if isinstance(logits, list) else logits
        trained = served
        if rows.position is not None:
            inputs["position"] = keras.Input((1, self.width), name="position")
            of_position = keras.layers.Dense(1, use_bias=False)(inputs["position"][:, 0])
            dropped = keras.layers.Dropout(POSITION_DROPOUT)(of_position)
            trained = served + dropped * (1 - POSITION_DROPOUT)
        return keras.Model(inputs, {"trained": trained, "served": served})

    def _outputs(self, ids: Any, numbers: Any, gathered: Any, training: bool) -> Any:
        # tf.split, not slices: a slice's gradient is padded to full size and then added
        vectors, linear = tf.split(gathered, [self.width, int(self.linear)], axis=2)
        vectors, *others = tf.split(vectors, self.sizes, axis=1)
        inputs = {"vectors": vectors}
        if self.linear:
            inputs["linear"] = tf.reduce_sum(linear[:, : self.sizes[0]], axis=1)
        if "numbers" in self.model.input:
            inputs["numbers"] = numbers
        if "history" in self.model.input:
            present = ids[:, self.sizes[0] :] > 0
            inputs["history"] = others[0] * tf.cast(present, tf.float32)[..., None]
            inputs["lengths"] = tf.math.count_nonzero(present, axis=1, dtype=tf.int32)
        if "position" in self.model.input:
            inputs["position"] = others[-1]
        return self.model(inputs, training=training)

    def _step(self, ids: Any, numbers: Any, labels: Any) -> Any:
        gathered = tf.gather(self.table, ids)
        variables = [variable.value for variable in self.model.trainable_variables]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([gathered, *variables])
            logits = self._outputs(ids, numbers, gathered, True)["trained"]
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_sum(tf.reduce_mean(losses, axis=0))
        of_rows, *dense = tape.gradient(loss, [gathered, *variables])
        self.adam.apply(dense, self.model.trainable_variables)
        unique, places = tf.unique(tf.reshape(ids, [-1]))
        of_rows = tf.reshape(of_rows, [-1, of_rows.shape[2]])
        tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=self.table.handle,
            accum=self.accumulator.handle,
            lr=self.rows_rate,
            epsilon=EPSILON,
            grad=tf.math.unsorted_segment_sum(of_rows, places, tf.size(unique)),
            indices=unique,
        )
        return loss

    def _served(self, ids: Any, numbers: Any) -> Any:
        return self._outputs(ids, numbers, tf.gather(self.table, ids), False)["served"]

    def area(self, train: Rows, test: Rows) -> float:
        """The mean AUC on the test rows after passes over the training rows, in their order."""
        for _ in range(self.train.epochs):
            for batch in batches(train, self.train.batch_size):
                self.step(*batch)
        scores = np.concatenate([self.served(*b[:2]).numpy() for b in batches(test, SCORED)])
        return mean_area(dict(zip(test.labels, scores.T, strict=True)), test)


def arrays(rows: Rows) -> tuple[Any, ...]:
    """Ids int32 [n, of slots, history and position] (0 is none), numbers [n, N], labels [n, k]."""
    parts = (rows.ids, rows.history, None if rows.position is None else rows.position[:, None])
    ids = np.concatenate([part for part in parts if part is not None], axis=1, dtype=np.int32)
    numbers = np.zeros((len(ids), 0), np.float32) if rows.numbers is None else rows.numbers
    return ids, numbers, np.stack(list(rows.labels.values()), axis=1)


def batches(rows: Rows, size: int) -> Iterator[list[Any]]:
    given = arrays(rows)
    for start in range(0, len(given[0]), size):
        yield [tf.constant(array[start : start + size]) for array in given]


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


def compare_areas(names: Sequence[str], rows: int, seed: int) -> None:
    heading_of_figures = ["tnctl", "by hand", "difference", "DeepFM", "over it", "best", "wanted"]
    table = [["", "set", "epochs", *heading_of_figures]]
    of_set: dict[Any, tuple[Path, Rows, Rows, float]] = {}
    for name in names:
        case = CASES[name]
        of_train = {"batch_size": BATCH, "epochs": case.epochs}
        data = case.data, case.epochs, case.rates
        if data not in of_set:
            folder = OUTPUT / case.data
            folder.mkdir(parents=True, exist_ok=True)
            train, test = recipe_sets.drawn(case.data, rows, seed)
            recipe_sets.write(train, folder / "train.parquet")
            recipe_sets.write(test, folder / "test.parquet")
            deepfm = {"name": "deepfm", **TOWER}
            confs = [
                conf_of(folder, train, deepfm, [label], seed, False, case.rates, train=of_train)
                for label in train.labels
            ]
            of_set = {data: (folder, train, test, statistics.mean(map(trained_area, confs)))}
        folder, train, test, base = of_set[data]
        recipe = {"name": case.recipe, **case.settings}
        labels = list(train.labels)
        conf = conf_of(folder, train, recipe, labels, seed, rates=case.rates, train=of_train)
        area, by_hand = trained_area(conf), ByHand(train, conf).area(train, test)
        good = abs(area - by_hand) <= WITHIN and area > base
        difference, gain = (f"{area - other:+.4f}" for other in (by_hand, base))
        best = mean_area(test.logits, test)
        figures = [f"{figure:.4f}" for figure in (area, by_hand, base, best)]
        cells = [*figures[:2], difference, figures[2], gain, figures[3], "yes" if good else "NO"]
        table.append([name, case.data, str(case.epochs), *cells])
        print(*table[-1], flush=True)
    heading = f"{rows:,} rows, as many test rows, seed {seed}"
    print(heading, timing.table(table), sep="\n")


def compare_steps(names: Sequence[str], seed: int) -> None:
    random, folder = np.random.default_rng(seed), OUTPUT / "step"
    folder.mkdir(parents=True, exist_ok=True)
    comparisons, table = {}, [["time of tnctl / by hand", "ratio", "95 % interval", "wanted"]]
    for name in names:
        rows = workload(CASES[name], random)
        recipe_sets.write(rows, folder / "train.parquet")
        recipe = {"name": CASES[name].recipe, **CASES[name].needed}
        conf = conf_of(
            folder, rows, recipe, list(rows.labels), seed,
            train={"batch_size": STEP_BATCH},
        )  # fmt: skip
        steps = {"by hand": step_by_hand(rows, conf), "tnctl": tnctl_step(conf)}
        compared = timing.compare(steps, STEP_BATCH, rounds=ROUNDS, warm_up=WINDOWS)
        comparisons[name] = compared
        ratio = compared.ratio("by hand", "tnctl")  # of speeds
        good = "yes" if ratio.median <= WITHIN_STEP else "NO"
        table.append([name, f"{ratio.median:.2f}", f"{ratio.low:.2f} - {ratio.high:.2f}", good])
        print(*table[-1], flush=True)
    timing.show("training step", "samples", comparisons)
    print(timing.table(table))


def compare_shipped(names: Sequence[str], seed: int) -> None:
    deepfm = tnctl_step(conf_of_shipped("deepfm", seed))
    table = [["", "dense parameters", "ms/step", "of DeepFM's", "95 % interval"]]
    for name in names:
        conf = conf_of_shipped(name, seed)
        steps = {"DeepFM": deepfm, name: tnctl_step(conf)}
        compared = timing.compare(steps, STEP_BATCH, rounds=ROUNDS, warm_up=WINDOWS)
        milliseconds = 1e3 * STEP_BATCH / compared.rate(name)
        ratio = compared.ratio("DeepFM", name)  # of speeds
        interval = f"{ratio.low:.2f} - {ratio.high:.2f}"
        figures = [f"{parameters_of(conf):,}", f"{milliseconds:.2f}", f"{ratio.median:.2f}"]
        table.append([name, *figures, interval])
        print(*table[-1], flush=True)
    print(timing.machine(), timing.table(table), sep="\n")


def conf_of_shipped(name: str, seed: int) -> Conf:
    """The conf of a recipe with default settings, on rows that it writes."""
    folder = OUTPUT / name
    folder.mkdir(parents=True, exist_ok=True)
    case = Case(name, "", {}, MUST_BE_GIVEN.get(name, {}), 2 if name in SEVERAL_LABELS else 1)
    rows = workload(case, np.random.default_rng(seed))
    if name == "esmm":
        labels = dict(zip(("ctr", "ctcvr"), rows.labels.values(), strict=True))
        rows = replace(rows, labels=labels)
    recipe_sets.write(rows, folder / "train.parquet")
    recipe = {"name": name, **case.needed}
    of_train = {"batch_size": STEP_BATCH}
    # The width of embeddings is the default, 8, or the recipe's.
    return conf_of(folder, rows, recipe, list(rows.labels), seed, train=of_train, embedding={})


def parameters_of(conf: Conf) -> int:
    return sum(build(conf, Statistics()).dense.sizes)


def workload(case: Case, random: np.random.Generator) -> Rows:
    """Ids, numbers and labels by chance, in the shape that a recipe needs."""
    n, slots, ids, length = WINDOWS * STEP_BATCH, 26, 10_000, 20
    labels = {f"label_{k}": random.integers(0, 2, n).astype(np.float32) for k in range(case.labels)}
    present = np.arange(length) < random.integers(1, length + 1, (n, 1))
    history = np.where(present, random.integers(1, ids, (n, length)), 0)
    return Rows(
        1 + ids * np.arange(slots) + random.integers(0, ids, (n, slots)),
        {},
        labels,
        random.normal(size=(n, 13)).astype(np.float32),
        history if "behavior" in case.needed else None,
        1 + ids * slots + random.integers(0, 10, n) if case.data == "position" else None,
    )


def step_by_hand(rows: Rows, conf: Conf) -> timing.Step:
    by_hand, given = ByHand(rows, conf), arrays(rows)

    def run(number: int) -> Any:
        first = number % WINDOWS * STEP_BATCH
        batch = [tf.constant(array[first : first + STEP_BATCH]) for array in given]
        return by_hand.step(*batch).numpy()

    return run


def tnctl_step(conf: Conf) -> timing.Step:
    model = build(conf, Statistics())
    windows = list(of_pass(conf, features_of(conf, model)))
    step = TrainingStep(model, STEP_BATCH)
    return lambda number: step(windows[number % WINDOWS])


def compare_real(names: Sequence[str], folder: Path, seeds: int) -> None:
    """Recipes with default settings; DeepFM with the small tower that the confs give it."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    bank = OUTPUT / "bank.yaml"
    bank.write_text(first_conf([str(folder / "bank/bank-additional-full.csv")], name="bank").text)
    of_adult = [f"data.root={folder}/adult", "data.split.validation=0.1", "train.epochs=auto"]
    confs = {"adult": ("adult", [*of_adult, "evaluation.patience=3"]), "bank": (bank, [])}
    table = [["", "", "mean AUC", "deviation", "over DeepFM", f"within {WITHIN_REAL} or above"]]
    for data, (conf, words) in confs.items():
        means: list[float] = []
        for name in ("deepfm", *names):
            case = CASES.get(name, Case("deepfm", "", {}))
            settings = [f"recipe={case.recipe}", f"output={OUTPUT}/run", "evaluation.ablate=false"]
            if name.startswith("masknet"):
                settings += [f"recipe.{key}={value}" for key, value in case.needed.items()]
            if data == "bank" and means:
                settings += ["~recipe.hidden", "~recipe.dropout"]
            areas = [
                trained_area(tnctl.compose(conf, [*words, *settings, f"seed={seed}"]))
                for seed in range(1, seeds + 1)
            ]
            means.append(statistics.mean(areas))
            deviation = f"{statistics.stdev(areas):.4f}" if seeds > 1 else ""
            gain = means[-1] - means[0]
            cells = [f"{means[-1]:.4f}", deviation, f"{gain:+.4f}"]
            table.append([data, name, *cells, "yes" if gain >= -WITHIN_REAL else "NO"])
            print(*table[-1], flush=True)
    print(f"{seeds} seeds\n{timing.table(table)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("auc", "step", "shipped"))
    parser.add_argument("--recipes", help=f"by commas, of: {'; '.join(CASES)} (default: all)")
    parser.add_argument("--rows", type=int, default=1_000_000, help="generated; as many to test")
    parser.add_argument("--seed", type=int, default=1, help="of generated rows and first weights")
    parser.add_argument("--real", type=Path, metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=3, help="of --real")
    given = parser.parse_args()
    wanted = given.recipes.split(",") if given.recipes else None
    known = {name: case.recipe for name, case in CASES.items()}
    if given.only == "shipped":
        known = {name: name for name in shipped.recipes()}
    names = [name for name, recipe in known.items() if wanted is None or {name, recipe} & {*wanted}]
    if not names:
        sys.exit(f"no recipe of {given.recipes}; there are {'; '.join(known)}")
    shutil.rmtree(OUTPUT, ignore_errors=True)
    if given.only == "shipped":
        compare_shipped(names, given.seed)
        return
    if given.real:
        compare_real([name for name in INTERACTIONS if name in names], given.real, given.seeds)
        return
    if given.only != "step":
        compare_areas(names, given.rows, given.seed)
    if given.only != "auc":
        compare_steps(names, given.seed)


if __name__ == "__main__":
    main()
