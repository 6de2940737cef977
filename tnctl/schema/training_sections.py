"""`train`, `evaluation`, `baseline`, `save` and `warm`.

How a model is trained, judged, compared, kept and started.
"""

import math
from dataclasses import dataclass

from tnctl.errors import refuse_if
from tnctl.schema.declarations import Section, choice, key, number

MOST_BATCH = 4096  # that is chosen where batch_size is null
AUTO = "auto"
AUTO_PASSES = 100  # most passes of epochs=auto


@dataclass
class Loss(Section):
    """What training minimises, per label; regularisers of the recipe are added."""

    name: str = choice(
        "cross_entropy",
        ("cross_entropy", "focal", "mse"),
        "cross_entropy, focal (Lin et al. 2017) or mse (squared error of the logit)",
    )
    smoothing: float = number(
        0.0,
        0,
        1,
        "a label y counts as y * (1 - smoothing) + smoothing / 2",
        only_for=("name", ("cross_entropy",)),
    )
    gamma: float = number(
        2.0, 0, 100, "how much easy examples are held back", only_for=("name", ("focal",))
    )
    alpha: float | None = number(
        None,
        0,
        1,
        "the weight of label 1; label 0 has 1 - alpha (default: both 1)",
        only_for=("name", ("focal",)),
    )


@dataclass
class Train(Section):
    """The training loop."""

    batch_size: int | None = number(
        None,
        1,
        1_048_576,
        "examples per step (null: chosen when a run begins, a power of two from 32 to 4096 with "
        "which a pass over data.train has some 150 steps)",
    )
    epochs: int | str = number(
        1,
        1,
        1_000_000,
        "passes over data.train; auto: until evaluation.patience evaluations were not better, at "
        "most 100 (one above 100 million rows, and one of each day with {day})",
        words=(AUTO,),
    )
    loss: Loss = key(Loss, "what is minimised")
    threads: int | None = number(
        None, 1, 64, "threads of the C tables (default: the CPUs, at most 8)"
    )
    precision: str = choice(
        "float32", ("float32", "bfloat16"), "of the dense model: float32 or bfloat16 (mixed)"
    )
    xla: bool = key(False, "compile the dense step with XLA (float32 only): rarely faster")
    deterministic: bool = key(
        False, "TensorFlow's op determinism too: no kernel may order its sums by chance (slower)"
    )
    tensorboard: bool = key(False, "write TensorBoard files into the output")
    profile: list[int] | None = key(
        None, "[first, last]: steps that TensorFlow's profiler records, for TensorBoard"
    )

    @property
    def most_passes(self) -> int:
        """The passes after which training ends whatever the evaluations say."""
        return AUTO_PASSES if isinstance(self.epochs, str) else self.epochs

    @property
    def batch_rows(self) -> int:
        """batch_size; where it is still open, as in commands that train nothing, the largest."""
        return MOST_BATCH if self.batch_size is None else self.batch_size

    def check(self) -> None:
        refuse_if(
            self.xla and self.precision != "float32",
            "xla=true needs precision=float32: XLA has no fast bfloat16 on CPUs",
        )
        refuse_if(
            self.profile is not None
            and not (len(self.profile) == 2 and 1 <= self.profile[0] <= self.profile[1]),
            f"profile must be [first, last]. Received: profile={self.profile}",
        )


@dataclass
class Evaluation(Section):
    """Evaluation while training, and what follows from it."""

    every_steps: int | None = number(
        None,
        1,
        math.inf,
        "also evaluate on data.validation every N steps (default: only after every epoch)",
    )
    monitor: str = choice(
        "auc",
        ("auc", "gauc", "ndcg", "logloss", "ne", "mse", "mae", "accuracy"),
        "the metric that decides what is better: auc, gauc, ndcg, logloss, ne (normalised "
        "entropy), mse, mae or accuracy",
    )
    ndcg_at: int | None = number(
        None,
        1,
        math.inf,
        "the last rank that counts: NDCG is reported per group of data.group (null: it is not)",
    )
    patience: int | None = number(
        None,
        1,
        math.inf,
        "evaluations without a better metric until training stops (default: never)",
    )
    min_delta: float = number(1e-6, 0, 1_000_000, "the least difference that counts as better")
    keep: str = choice(
        "auto",
        ("auto", "last", "best"),
        "the model that a run ends with, and its report is about: last (of the last step), best "
        "(of the best evaluation by `monitor`), or auto: the best where data.validation is given "
        "and data.train has no {day}, else the last",
    )
    recalibrate: bool | str = key(
        False,
        "fit a slope and an intercept of the logit at the end to data.validation (half of it "
        "without data.test), by days to the predictions of each day before it is trained, and keep "
        "them with the model (Platt scaling); auto: at the end, where data.validation is given and "
        "train.loss.name is not mse",
        words=(AUTO,),
    )
    test: bool = key(
        True,
        "whether a run ends with metrics of data.test; false: of data.validation, where runs are "
        "chosen by it and data.test stays unseen",
    )
    by: list[str] = key(
        list,
        "columns or slots: the report has AUC, NE and COPC for each of their 50 most frequent "
        "values, and for the rest",
    )
    ablate: bool = key(
        True, "at the end, measure what each input is worth on 50,000 rows, for report.html"
    )


@dataclass
class Baseline(Section):
    """Gradient-boosted trees (LightGBM) on the same data, beside the recipe."""

    enabled: bool = key(
        False,
        "train them at the end of the run (baseline=true on the command line says the same); needs "
        "tnctl[baseline]",
    )
    rows: int | None = number(
        None,
        1,
        math.inf,
        "the most rows of data.train, a sample by hash (default: as many as fit into memory)",
    )
    trees: int | None = number(
        None,
        1,
        100_000,
        "the most trees (default: 2,000 with data.validation, by which fewer are kept; else 200)",
    )
    leaves: int = number(31, 2, 131_072, "leaves of a tree")
    learning_rate: float = number(0.05, 0, 1, "how much of each tree is added", includes_low=False)
    patience: int = number(
        50, 1, 100_000, "trees without a better evaluation.monitor until training ends"
    )


@dataclass
class Save(Section):
    """Checkpoints: when one is written, how, and which stay."""

    every_steps: int | None = number(
        None, 1, math.inf, "a checkpoint every N steps (default: none)"
    )
    every_minutes: float | None = number(
        30.0,
        0.01,
        100_000,
        "a checkpoint N minutes after the last one (null: none)",
        unit="minutes",
    )
    keep: int = number(
        3,
        0,
        math.inf,
        "the number of newest checkpoints that stay, with the best (evaluation.monitor) and the "
        "parents of deltas (0: all)",
    )
    full_every: int = number(
        1,
        1,
        1_000,
        "each Nth checkpoint is full, the others are deltas (1: all are full)",
    )
    compression: str = choice("none", ("none", "zstd"), "of rows: none or zstd")
    spool: str | None = key(
        None,
        "a local folder where checkpoints wait for their upload (default: the system's temporary "
        "folder; a local output needs none)",
    )
    tombstone_days: int = number(
        30,
        1,
        100_000,
        "the days for which the keys of evicted rows are kept, for deltas of exports",
        unit="days",
    )

    def check(self) -> None:
        refuse_if(
            self.spool is not None and "://" in self.spool.removeprefix("file://"),
            f"spool is a folder of this machine. Received: spool={self.spool}",
        )


@dataclass
class Monitor(Section):
    """Where figures are written: docs/operations.md."""

    prometheus: str | None = key(
        None, "a text file of figures for Prometheus, FILE.prom, written again as they change"
    )
    mlflow: str | None = key(
        None, "the tracking URI of an MLflow that gets a run with parameters and metrics"
    )

    def check(self) -> None:
        refuse_if(
            self.prometheus is not None and not self.prometheus.endswith(".prom"),
            "prometheus names a file that ends in .prom, for node_exporter reads no other. "
            f"Received: prometheus={self.prometheus}",
        )


@dataclass
class Warm(Section):
    """Starting a new run from the weights of a checkpoint with another conf."""

    start: str | None = key(None, "the checkpoint, or the output of a run, to start from")
    rename: dict[str, str] = key(
        dict, "slots and numeric inputs with another name in the checkpoint: {new name: old name}"
    )
    drop: list[str] = key(
        list, "slots and numeric inputs of the checkpoint that this conf does not have"
    )
    new: list[str] = key(list, "slots and numeric inputs of this conf that are reinitialised")
    optimizer: str = choice(
        "match",
        ("match", "fresh"),
        "match: the optimizer state is loaded too, so optimizers must be equal; fresh: it starts "
        "from its initial values",
    )
    dense: str = choice(
        "match",
        ("match", "fresh"),
        "match: dense weights are loaded by name and shape, and reinitialised for new inputs; "
        "fresh: all are reinitialised",
    )

    def check(self) -> None:
        refuse_if(
            self.start is None and (self.rename or self.drop or self.new),
            "rename, drop and new are for start=CHECKPOINT, which is not given",
        )
