"""Every key of a conf: its type, default, limit and sentence.

The dataclasses are Hydra's schema (a wrong key or type is refused when the conf is composed);
`__post_init__` runs on the composed values and checks their range. `documented(...)` puts the
sentence beside the key, where `--help` and the documentation read it.
"""

import dataclasses
import difflib
import keyword
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

from tnctl.errors import UserError, did_you_mean

SLOT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Names that the split graph and the exported files already use; TensorFlow uses self.
RESERVED_NAMES = {"linear", "x", "sequences", "lengths", "logits", "predictions", "self"}


def documented(default: Any, sentence: str) -> Any:
    """A dataclass field with its default and the sentence that explains it."""
    if isinstance(default, list | dict) or dataclasses.is_dataclass(default):
        factory = type(default) if dataclasses.is_dataclass(default) else lambda: default.copy()
        return field(default_factory=factory, metadata={"sentence": sentence})
    return field(default=default, metadata={"sentence": sentence})


class NoChoice(UserError):
    """A value that is not among the choices of a key."""

    def __init__(self, key: str, value: Any, choices: Iterable[str]) -> None:
        self.key, self.choices = key, tuple(choices)
        super().__init__(f"{key} has no choice '{value}'. {did_you_mean(str(value), self.choices)}")


class OutOfRange(UserError):
    """A number outside the range of a key."""

    def __init__(self, key: str, value: float, low: float, high: float) -> None:
        self.key, self.low, self.high = key, low, high
        super().__init__(f"{key} must be {limit(low, high)}. Received: {key}={value}")


def limit(low: float, high: float) -> str:
    """A range in words."""
    return f"at least {low:,}" if high == math.inf else f"between {low:,} and {high:,}"


def one_of(key: str, value: Any, choices: Iterable[str]) -> None:
    """Refuse a value that is not among `choices`, naming the nearest."""
    if value not in choices:
        raise NoChoice(key, value, choices)


def within(key: str, value: float, low: float, high: float = math.inf) -> None:
    """Refuse a number outside [low, high]."""
    if not low <= value <= high:  # NaN too
        raise OutOfRange(key, value, low, high)


@dataclass
class Initial:
    """How weights of new rows start."""

    kind: str = documented("normal", "zeros, uniform (in ±scale) or normal (deviation = scale)")
    scale: float = documented(0.01, "the scale of uniform and normal")

    def __post_init__(self) -> None:
        one_of("kind", self.kind, INITIALS)
        within("scale", self.scale, 0, 1_000_000)


INITIALS = ("zeros", "uniform", "normal")
IDS = ("hash", "modulo", "integer", "vocabulary", "boundaries", "quantiles")
# The kinds of ids that are 0 .. n - 1, and so can be one-hot inputs.
COUNTED_IDS = ("modulo", "integer", "vocabulary", "boundaries", "quantiles")


@dataclass
class Slot:
    """A named input field whose values are feature ids."""

    column: str | None = documented(None, "the column it is read from (default: the slot's name)")
    cross: list[str] | None = documented(
        None, "instead of a column: two or more slots or columns whose ids are combined"
    )
    separator: str | None = documented(
        None, "splits the text into several values; json: the text is a JSON list"
    )
    ids: str = documented(
        "hash",
        "how values become ids: hash (of the text), modulo (the hash modulo size), integer (as "
        "given), vocabulary (place in a list), boundaries (bucket of a number), or quantiles "
        "(boundaries measured on data.train)",
    )
    seed: int = documented(0, "the seed of the hash; slots of one group must have the same")
    size: int | None = documented(
        None, "modulo: how many ids there are; integer: ids from size on count as missing"
    )
    vocabulary: list[str] | None = documented(None, "vocabulary: the values, in order of their ids")
    vocabulary_file: str | None = documented(
        None, "vocabulary: a file or URL with one value per line, in order of their ids"
    )
    oov: int = documented(
        0, "vocabulary: ids after the list for other values, by hash (0: they count as missing)"
    )
    boundaries: list[float] | None = documented(
        None, "boundaries: ascending numbers; a value gets the number of boundaries at or below it"
    )
    buckets: int = documented(64, "quantiles: how many buckets the distinct values are cut into")
    missing: str = documented(
        "none", "a missing value: none (no id, reads zeros) or value (an id of its own)"
    )
    padding: int | None = documented(
        None, "an id that counts as no value: it reads zeros and never trains"
    )
    max_length: int | None = documented(
        None, "the most values of an example; of more the first are taken (see keep)"
    )
    keep: str = documented("first", "which values max_length keeps: first or last")
    weights: str | None = documented(
        None, "a column with one weight per value, for weighted pooling"
    )
    pooling: str = documented(
        "sum", "sum, mean or sqrtn over the ids of an example; none keeps them as a sequence"
    )
    group: str | None = documented(None, "the share group (default: the slot alone)")
    width: int | None = documented(None, "floats per embedding (default: embedding.width)")
    linear: bool | None = documented(
        None, "whether rows have a linear weight (default: embedding.linear)"
    )
    indicator: bool = documented(
        False, "one-hot: no rows; the counts of the ids are an input of the dense part"
    )
    initial: str | None = documented(
        None, "how new embeddings start: zeros, uniform or normal (default: embedding.initial.kind)"
    )
    initial_scale: float | None = documented(
        None, "the scale of new embeddings of this slot (default: embedding.initial.scale)"
    )
    max_norm: float | None = documented(
        None, "embeddings longer than this are shortened to it (default: the optimizer's)"
    )
    frozen: bool = documented(False, "rows keep their initial or loaded weights: nothing trains")

    def __post_init__(self) -> None:
        one_of("ids", self.ids, IDS)
        one_of("missing", self.missing, ("none", "value"))
        one_of("pooling", self.pooling, ("sum", "mean", "sqrtn", "none"))
        one_of("keep", self.keep, ("first", "last"))
        within("buckets", self.buckets, 2, 1_000_000)
        within("oov", self.oov, 0, 2**31)
        # JSON readers that count in doubles must read the seed of serving.json right.
        within("seed", self.seed, 0, 2**53 - 1)
        if self.group is not None and not SLOT_NAME.fullmatch(self.group):
            raise UserError(f"group must be a plain name, as a slot's. Received: {self.group}")
        for key, low, high in (
            ("initial_scale", 0, 1e6),
            ("max_norm", 0, 1e6),
            ("width", 0, 1024),
            ("max_length", 1, 65_535),
            ("size", 1, 2**63 - 1),
            ("padding", 0, 2**64 - 1),
        ):
            if (value := getattr(self, key)) is not None:
                within(key, value, low, high)
        if self.initial is not None:
            one_of("initial", self.initial, INITIALS)
        if self.separator is not None and not self.separator:
            raise UserError("separator must not be empty; leave it out for one value per example")
        self._check_ids()
        self._check_pooling()

    def _check_ids(self) -> None:
        if self.ids == "integer" and self.missing == "value":
            raise UserError(
                "missing=value needs ids of texts or buckets; an integer id has no text"
            )
        needs = {"modulo": "size", "boundaries": "boundaries"}.get(self.ids)
        if needs and not getattr(self, needs):
            raise UserError(f"ids={self.ids} needs {needs}")
        if self.ids == "vocabulary" and (self.vocabulary is None) == (self.vocabulary_file is None):
            raise UserError(
                "ids=vocabulary needs vocabulary (a list) or vocabulary_file, one of them"
            )
        belongs = {
            "size": ("modulo", "integer"),
            "vocabulary": ("vocabulary",),
            "vocabulary_file": ("vocabulary",),
            "boundaries": ("boundaries",),
        }
        for key, kinds in belongs.items():
            if getattr(self, key) is not None and self.ids not in kinds:
                raise UserError(f"{key} is for ids={' or '.join(kinds)}. Received: ids={self.ids}")
        for key, default, kinds in (
            ("seed", 0, ("hash", "modulo", "vocabulary")),
            ("oov", 0, ("vocabulary",)),
            ("buckets", 64, ("quantiles",)),
        ):
            if getattr(self, key) != default and self.ids not in kinds:
                raise UserError(f"{key} is for ids={' or '.join(kinds)}. Received: ids={self.ids}")
        if self.keep != "first" and self.max_length is None:
            raise UserError("keep says which values max_length keeps; give max_length too")
        if self.boundaries is not None:
            if not all(math.isfinite(one) for one in self.boundaries):
                raise UserError(f"boundaries must be finite. Received: {self.boundaries}")
            if self.boundaries != sorted(set(self.boundaries)):
                raise UserError(f"boundaries must ascend. Received: boundaries={self.boundaries}")
        if self.vocabulary is not None and not self.vocabulary:
            raise UserError("vocabulary is empty. Give its values, in order of their ids")
        if self.vocabulary is not None and len(set(self.vocabulary)) < len(self.vocabulary):
            raise UserError("vocabulary has a value twice")
        if self.cross is not None:
            if len(self.cross) < 2:
                raise UserError(f"cross needs two names or more. Received: cross={self.cross}")
            if self.ids not in ("hash", "modulo") or self.column or self.separator or self.weights:
                raise UserError(
                    "cross makes ids of the ids of others: leave column, separator and weights "
                    "out, and take ids=hash or modulo"
                )
        if self.indicator and (
            self.ids not in COUNTED_IDS or (self.ids == "integer" and self.size is None)
        ):
            raise UserError(
                f"indicator needs ids that are counted: {', '.join(COUNTED_IDS)} (integer with "
                f"size). Received: ids={self.ids}"
            )

    def _check_pooling(self) -> None:
        if self.pooling == "none" and self.max_length is None:
            raise UserError("pooling=none keeps a sequence, which needs max_length")
        if self.pooling == "none" and self.weights is not None:
            raise UserError("weights are for pooling; pooling=none keeps each value as it is")
        if self.indicator:
            if self.pooling == "none" or self.frozen:
                raise UserError("indicator makes no rows: leave pooling=none and frozen out")
            for key in ("width", "linear", "group", "initial", "initial_scale", "max_norm"):
                if getattr(self, key):
                    raise UserError(f"indicator makes no rows: leave {key} out")


@dataclass
class Numeric:
    """A named input field whose values are numbers."""

    column: str | None = documented(None, "the column it is read from (default: its own name)")
    columns: list[str] | None = documented(
        None, "instead of column: several columns side by side, a vector"
    )
    width: int = documented(1, "numbers per example, of a list column or of text with separator")
    separator: str | None = documented(
        None, "splits the text into the numbers of a vector; json: the text is a JSON list"
    )
    transform: str = documented(
        "none", "none, log1p (sign(v) * ln(1 + |v|)) or standardize ((v - mean) / deviation)"
    )
    mean: float | None = documented(None, "standardize: given instead of measured on data.train")
    deviation: float | None = documented(None, "standardize: given instead of measured")
    clip: list[float | None] | None = documented(
        None, "[low, high]: numbers outside are moved to it, before the transform; null: no limit"
    )
    default: float | None = documented(
        None, "stands for a missing value, before the transform (standardize: the mean; else 0)"
    )

    def __post_init__(self) -> None:
        one_of("transform", self.transform, ("none", "log1p", "standardize"))
        within("width", self.width, 1, 65_536)
        for key in ("default", "mean", "deviation"):
            value = getattr(self, key)
            if value is not None and not math.isfinite(value):
                raise UserError(f"{key} must be a finite number. Received: {key}={value}")
        if (self.mean is None) != (self.deviation is None):
            raise UserError("mean and deviation are given together or not at all")
        if self.mean is not None and self.transform != "standardize":
            raise UserError("mean and deviation are for transform=standardize")
        if self.deviation is not None and self.deviation <= 0:
            raise UserError(f"deviation must be above 0. Received: deviation={self.deviation}")
        low, high = self._limits()
        if self.default is not None and not low <= self.default <= high:
            raise UserError(
                f"default must be inside of clip. Received: default={self.default}, "
                f"clip={self.clip}"
            )
        if self.columns is not None:
            if self.column is not None or self.separator is not None or self.width != 1:
                raise UserError("columns stands alone: leave column, separator and width out")
            if not self.columns:
                raise UserError("columns must name a column")

    def _limits(self) -> tuple[float, float]:
        """The ends of `clip`, infinite where it has none; null is the one way to say so."""
        if self.clip is None:
            return -math.inf, math.inf
        if len(self.clip) != 2:
            raise UserError(f"clip must be [low, high]. Received: clip={self.clip}")
        low = -math.inf if self.clip[0] is None else self.clip[0]
        high = math.inf if self.clip[1] is None else self.clip[1]
        if not low <= high:  # NaN too
            raise UserError(f"clip must be [low, high]. Received: clip={self.clip}")
        # JSON, in which checkpoints keep the conf, has no infinity.
        self.clip = [low if math.isfinite(low) else None, high if math.isfinite(high) else None]
        return low, high

    @property
    def numbers(self) -> int:
        """How many numbers of x this input is."""
        return len(self.columns) if self.columns else self.width


@dataclass
class Label:
    """Where a label is, and what it counts in the loss."""

    column: str = documented("label", "the column of the label")
    positive: list[str] | None = documented(
        None, "the texts that count as 1 (all others 0); without it the label is a number"
    )
    above: float | None = documented(
        None, "numbers above it count as 1 and all others as 0, such as ratings over 3"
    )
    weight: float = documented(1.0, "the weight of this label in the loss")

    def __post_init__(self) -> None:
        within("weight", self.weight, 0, 1e6)
        if self.positive is not None and self.above is not None:
            raise UserError("positive (of texts) and above (of numbers) exclude each other")
        if self.above is not None and not math.isfinite(self.above):
            raise UserError(f"above must be a finite number. Received: above={self.above}")


FORMATS = ("csv", "parquet", "tfrecord", "libsvm", "paddle", "jsonl", "generated")


@dataclass
class Data:
    """The input files and how to read them."""

    root: str | None = documented(None, "the folder or URL that relative file names start from")
    train: Any = documented(
        None, "file, URL, glob or list; or {files: …, skip_rows: N} (generated: a range of rows)"
    )
    validation: Any = documented(None, "as data.train; evaluated after every epoch")
    test: Any = documented(None, "as data.train; evaluated once, at the end")
    prepared: str | None = documented(
        None, "the folder or URL that `tnctl prepare` wrote: rows come from it, already as ids"
    )
    format: str = documented(
        "csv",
        "csv, parquet, tfrecord (of tf.Example), libsvm (also libfm and libffm), paddle "
        "(slot:feature text), jsonl (a JSON object per line) or generated",
    )
    delimiter: str = documented(",", "csv: one character; '\\t' for TSV")
    header: bool = documented(True, "csv: the first line names the columns")
    columns: list[str] | None = documented(
        None,
        "csv without header: the names, in file order (a header wins); paddle: the slots of lines "
        "that have no names (MultiSlot), in file order",
    )
    pairs: str = documented(
        "slot:value", "paddle: which part of a word is the slot: slot:value or value:slot"
    )
    skip_rows: int = documented(0, "csv: lines to skip at the start of each file")
    strip: bool = documented(False, "csv: remove ASCII blanks around values")
    missing: list[str] = documented(
        [""], "texts that mean a missing value (of text, ids and numbers in text)"
    )
    check_utf8: bool = documented(True, "refuse text that is not UTF-8 (false: hash its bytes)")
    bad_rows: int = documented(
        0, "rows that cannot be read are skipped and counted, up to so many in one pass (0: stop)"
    )
    label: Label = documented(Label(), "the label")
    labels: dict[str, Label] = documented(
        {}, "several labels, by the names of the recipe's heads; used instead of label"
    )
    weight: str | None = documented(None, "a column with the weight of each example in the loss")
    days: Any = documented(
        None,
        "daily training, with {day} in data.train: a list of days, FIRST..LAST, FIRST.. or "
        "..LAST (default: all that are there)",
    )
    negatives: float = documented(
        1.0,
        "the share of examples with label 0 that are trained on, chosen by (seed, row); the "
        "logits of evaluation and serving are corrected for it",
    )
    group: str | None = documented(
        None, "a column, such as the user: AUC is reported per group of its values too (GAUC)"
    )
    carry: list[str] = documented([], "columns that predict writes beside the scores")
    reference: str | None = documented(
        None, "a column with another model's score: its AUC is reported beside this model's"
    )
    window: int = documented(262_144, "rows that are read, and shuffled, together")
    shuffle: bool = documented(True, "shuffle the rows of each window in training")

    def __post_init__(self) -> None:
        one_of("format", self.format, FORMATS)
        one_of("pairs", self.pairs, ("slot:value", "value:slot"))
        # In a shell or in single quotes a tab is hard to spell.
        self.delimiter = {"\\t": "\t", "tab": "\t"}.get(self.delimiter, self.delimiter)
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n':
            raise UserError(
                f"delimiter must be one character. Received: {self.delimiter!r} "
                "(a tab is data.delimiter='\\t')"
            )
        within("window", self.window, 1, 2**31 - 1)
        within("skip_rows", self.skip_rows, 0)
        within("bad_rows", self.bad_rows, 0)
        within("negatives", self.negatives, 1e-9, 1)
        if self.format == "csv" and not self.header and not self.columns:
            raise UserError("header=false needs data.columns, the names in file order")
        for name in self.labels:
            if not SLOT_NAME.fullmatch(name):
                raise UserError(f"labels.{name} is not a name a graph can use")

    @property
    def all_labels(self) -> dict[str, Label]:
        """The labels by name; a single one is called `label`."""
        return self.labels or {SINGLE_LABEL: self.label}


SINGLE_LABEL = "label"


@dataclass
class Embedding:
    """The rows of every slot, where the slot does not say otherwise."""

    width: int = documented(8, "floats per embedding; 0 leaves only the linear weight")
    linear: bool = documented(True, "whether rows have a linear weight")
    initial: Initial = documented(Initial(), "how embeddings of new rows start")
    linear_initial: Initial = field(
        default_factory=lambda: Initial(kind="zeros"),
        metadata={"sentence": "how linear weights of new rows start"},
    )

    def __post_init__(self) -> None:
        within("width", self.width, 0, 1024)


@dataclass
class Optimizer:
    """An optimizer of rows or of dense weights; keys left null take the optimizer's default."""

    name: str = documented(
        "adagrad",
        "adagrad (one accumulator per row; dense: per weight), adagrad_coordinate (per weight), "
        "adam, adamw, ftrl or sgd",
    )
    learning_rate: float = documented(0.05, "the step size")
    epsilon: float | None = documented(None, "added to the root (adagrad 1e-8, adam 1e-7)")
    initial_accumulator: float | None = documented(
        None, "adagrad, ftrl: where the accumulator starts (adagrad 1e-6, ftrl 0)"
    )
    beta1: float | None = documented(None, "adam: decay of the first moment (0.9)")
    beta2: float | None = documented(None, "adam: decay of the second moment (0.999)")
    momentum: float | None = documented(None, "sgd: the share of the last step that is kept (0)")
    nesterov: bool | None = documented(None, "sgd: look ahead along the momentum (false)")
    l1: float | None = documented(None, "ftrl: makes weights exactly zero (0)")
    beta: float | None = documented(None, "ftrl: added to the root, smooths the first steps (1)")
    l2: float = documented(
        0.0, "adds l2 * w to the gradient (λ/2 of the squared norm); of rows: those of the batch"
    )
    weight_decay: float = documented(
        0.0, "every step takes learning_rate * weight_decay * w off every weight (decoupled)"
    )
    clip: float = documented(0.0, "gradients are clipped to ± this, weight by weight (0: not)")
    bound: float = documented(0.0, "weights are kept within ± this (0: not)")
    max_norm: float = documented(0.0, "longer embeddings are shortened to it (0: not; rows only)")
    gradient_decay: float | None = documented(
        None, "compat=tensornet, dense adagrad: decay of the squared gradients (1)"
    )
    momentum_decay: float | None = documented(
        None, "compat=tensornet, dense adagrad: decay of the momentum (TensorNet: 1, never moves)"
    )

    DEFAULTS: ClassVar[dict[str, dict[str, float]]] = {
        "adagrad": {"epsilon": 1e-8, "initial_accumulator": 1e-6},
        "adagrad_coordinate": {"epsilon": 1e-8, "initial_accumulator": 1e-6},
        "adam": {"epsilon": 1e-7, "beta1": 0.9, "beta2": 0.999},
        "adamw": {"epsilon": 1e-7, "beta1": 0.9, "beta2": 0.999},
        "ftrl": {"initial_accumulator": 0.0, "l1": 0.0, "beta": 1.0},
        "sgd": {"momentum": 0.0, "nesterov": False},
        "tensornet_adagrad": {
            "epsilon": 1e-8,
            "initial_accumulator": 0.0,
            "gradient_decay": 1.0,
            "momentum_decay": 1.0,
        },
        "tensornet_adam": {"epsilon": 1e-8, "beta1": 0.9, "beta2": 0.999},
        "tensornet_ftrl": {"l1": 0.1, "beta": 1.0},
    }
    OWN: ClassVar[tuple[str, ...]] = (
        "epsilon", "initial_accumulator", "beta1", "beta2", "momentum", "nesterov", "l1", "beta",
        "gradient_decay", "momentum_decay",
    )  # fmt: skip
    EVERYWHERE: ClassVar[tuple[str, ...]] = ("l2", "weight_decay", "clip", "bound", "max_norm")

    def __post_init__(self) -> None:
        one_of("name", self.name, self.DEFAULTS)
        within("learning_rate", self.learning_rate, 0, 1_000_000)
        # What only compat=tensornet has is checked where the compat is known.
        known = self.DEFAULTS[self.name] | self.DEFAULTS.get(f"tensornet_{self.name}", {})
        for key in self.OWN:
            value = getattr(self, key)
            if value is not None and key not in known:
                raise UserError(f"{key} is no setting of {self.name}. {did_you_mean(key, known)}")
            if value is not None and key != "nesterov":
                least = 1e-30 if key == "epsilon" else 0
                most = 0.9999 if key in ("beta1", "beta2", "momentum") else 1_000_000
                most = 1 if key.endswith("_decay") else most
                within(key, value, least, most)
        for key in self.EVERYWHERE:
            within(key, getattr(self, key), 0, 1_000_000)
        if self.name in ("ftrl", "tensornet_ftrl"):
            own = self.settings()
            if self.weight_decay:
                raise UserError(
                    "ftrl makes weights anew from its sums, so weight_decay would be undone; "
                    "take its l2"
                )
            if not (own["beta"] or own["l2"] or own.get("initial_accumulator")):
                raise UserError(
                    "ftrl divides by beta + l2 + the root of its accumulator: one of beta, l2 and "
                    "initial_accumulator must be above 0"
                )
        if self.learning_rate * self.weight_decay >= 1:
            raise UserError("weight_decay * learning_rate must be below 1: nothing would be left")

    def settings(self, rule: str | None = None) -> dict[str, Any]:
        """The settings of this optimizer under a rule's name (default: its own).

        The rule's defaults where the conf says nothing.
        """
        defaults = self.DEFAULTS[rule or self.name]
        given = {key: getattr(self, key) for key in defaults if getattr(self, key) is not None}
        return defaults | given | {key: getattr(self, key) for key in self.EVERYWHERE}


@dataclass
class GroupOptimizers:
    """The optimizers of one share group's rows, where they are not those of all."""

    linear: Optimizer | None = documented(None, "of the linear weight")
    embedding: Optimizer | None = documented(None, "of the embedding")


@dataclass
class Schedule:
    """How learning rates change: every optimizer's rate times one factor."""

    name: str = documented(
        "constant", "constant, exponential, step, cosine or plateau (all after a linear warm-up)"
    )
    warmup_steps: int = documented(0, "steps in which the factor rises from 0 to 1")
    decay_steps: int = documented(
        10_000, "exponential: steps per decay_rate; cosine: steps until the end"
    )
    decay_rate: float = documented(0.96, "exponential: the factor after decay_steps")
    boundaries: list[int] = documented([], "step: the steps after which the factor changes")
    factors: list[float] = documented([], "step: the factor after each of the boundaries")
    end: float = documented(0.0, "exponential, cosine, plateau: the factor never falls below it")
    reduce: float = documented(0.1, "plateau: what the factor is multiplied by")
    patience: int = documented(
        2, "plateau: evaluations without a better monitored metric until it is reduced"
    )

    def __post_init__(self) -> None:
        one_of("name", self.name, ("constant", "exponential", "step", "cosine", "plateau"))
        within("warmup_steps", self.warmup_steps, 0)
        within("decay_steps", self.decay_steps, 1)
        within("decay_rate", self.decay_rate, 0, 1)
        within("end", self.end, 0, 1)
        within("reduce", self.reduce, 0, 1)
        within("patience", self.patience, 1)
        for factor in self.factors:
            within("factors", factor, 0, 1_000_000)
        if len(self.boundaries) != len(self.factors):
            raise UserError(
                "boundaries and factors have one entry for each change. Received: "
                f"{len(self.boundaries)} boundaries and {len(self.factors)} factors"
            )
        if self.boundaries != sorted(set(self.boundaries)):
            raise UserError(f"boundaries must ascend. Received: boundaries={self.boundaries}")
        if self.name == "step" and not self.boundaries:
            raise UserError("a step schedule needs boundaries and factors")


@dataclass
class Optimizers:
    """Which optimizer trains which weights."""

    linear: Optimizer = documented(Optimizer(), "of the linear weight of every row")
    embedding: Optimizer = documented(Optimizer(), "of the embedding of every row")
    dense: Optimizer = field(
        default_factory=lambda: Optimizer(name="adam", learning_rate=0.001),
        metadata={"sentence": "of the dense weights"},
    )
    groups: dict[str, GroupOptimizers] = documented({}, "of the rows of single share groups")
    schedule: Schedule = documented(Schedule(), "how all learning rates change")
    clip_norm: float = documented(
        0.0, "all gradients of a step are shortened to this norm together (0: not)"
    )
    updates: str = documented(
        "touched",
        "touched: a step updates the rows of its batch; all: every row, as a dense variable trains",
    )

    def __post_init__(self) -> None:
        within("clip_norm", self.clip_norm, 0, 1_000_000)
        one_of("updates", self.updates, ("touched", "all"))
        if self.dense.max_norm:
            raise UserError("dense.max_norm: a maximum norm is for rows; dense takes bound")


@dataclass
class Loss:
    """What training minimises, per label; regularisers of the recipe are added."""

    name: str = documented(
        "cross_entropy",
        "cross_entropy, focal (Lin et al. 2017) or mse (squared error of the logit)",
    )
    smoothing: float = documented(
        0.0, "cross_entropy: a label y counts as y * (1 - smoothing) + smoothing / 2"
    )
    gamma: float = documented(2.0, "focal: how much easy examples are held back")
    alpha: float | None = documented(
        None, "focal: the weight of label 1, that of 0 being 1 - alpha (default: both 1)"
    )

    def __post_init__(self) -> None:
        one_of("name", self.name, ("cross_entropy", "focal", "mse"))
        within("smoothing", self.smoothing, 0, 1)
        within("gamma", self.gamma, 0, 100)
        if self.alpha is not None:
            within("alpha", self.alpha, 0, 1)
        for key, name in (("smoothing", "cross_entropy"), ("alpha", "focal")):
            if getattr(self, key) and self.name != name:
                raise UserError(f"{key} is for name={name}. Received: name={self.name}")


@dataclass
class Evaluation:
    """Evaluation while training, and what follows from it."""

    every_steps: int | None = documented(
        None, "evaluate on data.validation every so many steps too (default: after every epoch)"
    )
    monitor: str = documented(
        "auc", "the metric that decides what is better: auc, gauc, logloss, mse, mae or accuracy"
    )
    patience: int | None = documented(
        None, "evaluations without a better metric until training stops (default: never)"
    )
    min_delta: float = documented(1e-6, "the least difference that counts as better")
    keep: str = documented(
        "last", "last or best: which model the run ends with, and the report is about"
    )
    ablate: bool = documented(
        True, "at the end, measure what each input is worth on 50,000 rows, for report.html"
    )

    def __post_init__(self) -> None:
        if self.every_steps is not None:
            within("every_steps", self.every_steps, 1)
        if self.patience is not None:
            within("patience", self.patience, 1)
        within("min_delta", self.min_delta, 0, 1e6)
        one_of("monitor", self.monitor, ("auc", "gauc", "logloss", "mse", "mae", "accuracy"))
        one_of("keep", self.keep, ("last", "best"))

    @property
    def higher_is_better(self) -> bool:
        return self.monitor in ("auc", "gauc", "accuracy")


@dataclass
class Train:
    """The training loop."""

    batch_size: int = documented(4096, "examples per step")
    epochs: int = documented(1, "passes over data.train")
    loss: Loss = documented(Loss(), "what is minimised")
    threads: int | None = documented(None, "threads of the C tables (default: the CPUs, at most 8)")
    precision: str = documented("float32", "of the dense model: float32 or bfloat16 (mixed)")
    xla: bool = documented(False, "compile the dense step with XLA (float32 only): rarely faster")
    deterministic: bool = documented(
        False, "TensorFlow's op determinism too: no kernel may order its sums by chance (slower)"
    )
    tensorboard: bool = documented(False, "write TensorBoard files into the output")
    profile: list[int] | None = documented(
        None, "[first, last]: steps that TensorFlow's profiler records, for TensorBoard"
    )

    def __post_init__(self) -> None:
        within("batch_size", self.batch_size, 1, 1_048_576)
        within("epochs", self.epochs, 1, 1_000_000)
        if self.threads is not None:
            within("threads", self.threads, 1, 64)
        one_of("precision", self.precision, ("float32", "bfloat16"))
        if self.xla and self.precision != "float32":
            raise UserError("xla=true needs precision=float32: XLA has no fast bfloat16 on CPUs")
        if self.profile is not None and not (
            len(self.profile) == 2 and 1 <= self.profile[0] <= self.profile[1]
        ):
            raise UserError(f"profile must be [first, last]. Received: profile={self.profile}")


@dataclass
class Save:
    """Checkpoints: when one is written, how, and which stay."""

    every_steps: int | None = documented(None, "a checkpoint every so many steps (default: not)")
    every_minutes: float | None = documented(
        30.0, "a checkpoint when so many minutes have passed since the last one (null: not)"
    )
    keep: int = documented(
        3,
        "how many of the newest checkpoints stay, beside the best (evaluation.monitor) and those "
        "that a delta is built on (0: all)",
    )
    full_every: int = documented(
        1, "every so many checkpoints is a full one, those between are deltas (1: all are full)"
    )
    compression: str = documented("none", "of rows: none or zstd")
    spool: str | None = documented(
        None,
        "a local folder where checkpoints wait for their upload (default: the system's temporary "
        "folder; a local output needs none)",
    )
    tombstone_days: int = documented(
        30, "how many days the keys of evicted rows are kept, for deltas of exports"
    )

    def __post_init__(self) -> None:
        if self.every_steps is not None:
            within("every_steps", self.every_steps, 1)
        if self.every_minutes is not None:
            within("every_minutes", self.every_minutes, 0.01, 100_000)
        within("keep", self.keep, 0)
        within("full_every", self.full_every, 1, 1_000)
        one_of("compression", self.compression, ("none", "zstd"))
        within("tombstone_days", self.tombstone_days, 1, 100_000)
        if self.spool is not None and "://" in self.spool.removeprefix("file://"):
            raise UserError(f"spool is a folder of this machine. Received: spool={self.spool}")


@dataclass
class Admission:
    """When an id gets a row; until then it reads zeros and takes no memory."""

    after: int = documented(1, "the occurrence of an id that makes its row (1: the first)")
    probability: float = documented(
        1.0, "instead of `after`: the chance of each occurrence, a function of seed, id and number"
    )

    def __post_init__(self) -> None:
        within("after", self.after, 1, 255)
        within("probability", self.probability, 1e-6, 1)
        if self.after > 1 and self.probability < 1:
            raise UserError(
                "takes `after` or `probability`, not both. Received: "
                f"after={self.after} and probability={self.probability}"
            )


@dataclass
class Shows:
    """How often ids were shown and clicked (the first label), decayed day by day."""

    keep: bool = documented(
        False, "keep show and click of each row; eviction by them, and cvm, keep them too"
    )
    decay: float = documented(0.98, "what a day (of daily training) leaves of show and click")
    cvm: bool = documented(
        False,
        "show and ln(click+1) - ln(show+1) stand after each embedding, as inputs that nothing "
        "trains; slots of width 0 have none",
    )

    def __post_init__(self) -> None:
        within("decay", self.decay, 0, 1)


@dataclass
class Eviction:
    """Which rows are removed: at each day's end, at each epoch's without days."""

    unseen_days: int | None = documented(
        None, "rows without an update for more days (of daily training) than this"
    )
    unseen_steps: int | None = documented(None, "rows without an update for more steps than this")
    show: float | None = documented(None, "rows whose decayed show is below this")
    logic: str = documented(
        "or", "or: below show, or unseen (TensorNet's logic 0); and: below show and unseen (1)"
    )
    score: float | None = documented(
        None, "rows whose (show - click) * nonclick + click * click_weight is below this (Paddle's)"
    )
    nonclick: float = documented(0.1, "score: the weight of a show without a click")
    click_weight: float = documented(1.0, "score: the weight of a click")
    rows: int | None = documented(
        None,
        "a bound of each share group: beyond so many rows the least valuable go at once, down to "
        "15/16",
    )
    bytes: int | None = documented(None, "the same bound in bytes of rows, without their index")
    every_steps: int | None = documented(None, "remove rows every so many steps too")

    def __post_init__(self) -> None:
        for key in ("unseen_days", "unseen_steps", "every_steps"):
            if getattr(self, key) is not None:
                within(key, getattr(self, key), 1, 2**31)
        for key in ("show", "score"):
            if getattr(self, key) is not None:
                within(key, getattr(self, key), 0, 1e9)
        for key in ("nonclick", "click_weight"):
            within(key, getattr(self, key), 0, 1e6)
        one_of("logic", self.logic, ("or", "and"))
        if self.rows is not None:
            within("rows", self.rows, 1, 2**40)
        if self.bytes is not None:
            within("bytes", self.bytes, 1024, 2**50)
        if self.rows is not None and self.bytes is not None:
            raise UserError("is bounded by `rows` or by `bytes`, not by both")
        unseen = self.unseen_days is not None or self.unseen_steps is not None
        if self.logic == "and" and not (self.show is not None and unseen):
            raise UserError("logic=and needs show, and unseen_days or unseen_steps")
        if self.every_steps is not None and not self.removes:
            raise UserError(
                "every_steps says how often; say which rows too: unseen_steps, unseen_days, show "
                "or score"
            )

    @property
    def removes(self) -> bool:
        """Whether it has a rule, beside the bound."""
        rules = (self.unseen_days, self.unseen_steps, self.show, self.score)
        return any(rule is not None for rule in rules)

    @property
    def bounds(self) -> bool:
        """Whether it has a bound."""
        return self.rows is not None or self.bytes is not None


@dataclass
class GroupLife:
    """The life of one share group's rows, where a part of it is not that of all."""

    admission: Admission | None = documented(None, "when an id gets a row")
    shows: Shows | None = documented(None, "show and click")
    eviction: Eviction | None = documented(None, "which rows are removed")


@dataclass(frozen=True)
class RowLife:
    """The life of one share group's rows, complete."""

    admission: Admission
    shows: Shows
    eviction: Eviction

    @property
    def waits(self) -> bool:
        """Whether ids are counted before they get a row."""
        return self.admission.after > 1 or self.admission.probability < 1

    @property
    def counts(self) -> bool:
        """Whether rows keep show and click."""
        by_shows = self.eviction.show is not None or self.eviction.score is not None
        return self.shows.keep or self.shows.cvm or by_shows

    @property
    def eventful(self) -> bool:
        """Whether anything is on: else a row is made at once, counts nothing and stays."""
        return self.waits or self.counts or self.eviction.removes or self.eviction.bounds


@dataclass
class Life:
    """The life of rows, from the first occurrence of an id to their removal."""

    admission: Admission = documented(Admission(), "when an id gets a row")
    shows: Shows = documented(Shows(), "show and click")
    eviction: Eviction = documented(Eviction(), "which rows are removed")
    sketch: int = documented(
        16_777_216, "bytes, per table, of the sketch that counts ids that have no row yet"
    )
    groups: dict[str, GroupLife] = documented(
        {}, "of the rows of single share groups: a part given here replaces that of all"
    )

    def __post_init__(self) -> None:
        within("sketch", self.sketch, 65_536, 2**36)


@dataclass
class Gate:
    """What a day must look like, beside the days before it, to be trained on."""

    enabled: bool = documented(True, "whether a day that looks broken is refused")
    days: int = documented(7, "how many of the last trained days a day is compared to")
    coverage: float = documented(
        0.2, "the most that a slot's coverage (share of examples with an id) may move"
    )
    new_ids: float = documented(
        0.5,
        "the most of the occurrences of ids that have a row already that may be gone: of 90 % half",
    )
    length: float = documented(1.5, "the most that ids per example may grow or shrink, as a factor")
    distinct: float = documented(
        10.0, "the most that distinct ids may grow or shrink beside the examples, as a factor"
    )
    label_rate: float = documented(2.0, "the most that the label's mean may move, as a factor")
    stability: float = documented(
        1.0, "the most that an input's population stability index may be (0.25 is a large shift)"
    )

    def __post_init__(self) -> None:
        within("days", self.days, 1, 10_000)
        for key in ("coverage", "new_ids"):
            within(key, getattr(self, key), 0, 1)
        for key in ("length", "distinct", "label_rate"):
            within(key, getattr(self, key), 1, 1e9)
        within("stability", self.stability, 0, 1e9)


@dataclass
class Warm:
    """Where the weights of a new run come from, when its conf is another."""

    start: str | None = documented(None, "the checkpoint, or the output of a run, to start from")
    rename: dict[str, str] = documented(
        {}, "slots and numeric inputs that had another name there: {new name: old name}"
    )
    drop: list[str] = documented([], "slots and numeric inputs of there that are not wanted here")
    new: list[str] = documented([], "slots and numeric inputs of here that start anew")
    optimizer: str = documented(
        "match", "match: state of rows and weights comes along, so optimizers must be equal; fresh"
    )
    dense: str = documented(
        "match",
        "match: dense weights come along by name and shape, those of new inputs start anew; fresh",
    )

    def __post_init__(self) -> None:
        one_of("optimizer", self.optimizer, ("match", "fresh"))
        one_of("dense", self.dense, ("match", "fresh"))
        if self.start is None and (self.rename or self.drop or self.new):
            raise UserError("rename, drop and new are for start=CHECKPOINT, which is not given")


@dataclass
class Conf:
    """A run, from files to a trained model."""

    seed: int = documented(1, "of initial weights and of the order of examples")
    output: str = documented("runs/${hydra:job.config_name}", "the folder or URL of the run")
    compat: str | None = documented(
        None,
        "tensornet: adagrad, adam and ftrl by TensorNet's formulas, and new weights, linear ones "
        "too, from N(0, 1/width) times embedding.initial.scale; conf=tensornet has its rates",
    )
    recipe: dict[str, Any] = documented(
        {}, "the dense model: its name, or the .py file of your own, and its settings"
    )
    slots: dict[str, Slot] = documented({}, "the inputs that are feature ids, by name")
    numeric: dict[str, Numeric] = documented({}, "the inputs that are numbers, by name")
    embedding: Embedding = documented(Embedding(), "the rows of every slot")
    optimizer: Optimizers = documented(Optimizers(), "which optimizer trains which weights")
    data: Data = documented(Data(), "the input files and how to read them")
    train: Train = documented(Train(), "the training loop")
    evaluation: Evaluation = documented(Evaluation(), "evaluation while training")
    save: Save = documented(Save(), "checkpoints")
    life: Life = documented(Life(), "admission, show and click, eviction of rows")
    gate: Gate = documented(Gate(), "daily training: what a day must look like")
    warm: Warm = documented(Warm(), "starting from a checkpoint of another conf")

    def __post_init__(self) -> None:
        within("seed", self.seed, 0, 2**63 - 1)
        if not self.output.strip():
            raise UserError("output is empty. Give the folder or URL of the run")
        if self.compat is not None:
            one_of("compat", self.compat, ("tensornet",))
        if "name" not in self.recipe:
            raise UserError("recipe needs a name: choose one with recipe=deepfm or recipe=lr")
        if not isinstance(self.recipe["name"], str):
            raise UserError(f"recipe.name must be text. Received: {self.recipe['name']}")
        if not self.slots and not self.numeric:
            raise UserError("the conf names no inputs; give slots or numeric, or choose data=NAME")
        for kind, names in (("slots", self.slots), ("numeric", self.numeric)):
            for name in names:
                taken = name in RESERVED_NAMES or keyword.iskeyword(name) or name[:1] == "_"
                if not SLOT_NAME.fullmatch(name) or taken:
                    raise UserError(
                        f"{kind}.{name} is not a name a graph can use. Take letters, digits and _, "
                        "a letter first, no keyword of Python and not "
                        f"{', '.join(sorted(RESERVED_NAMES))}; `column` may be anything"
                    )
        if both := sorted(self.slots.keys() & self.numeric.keys()):
            raise UserError(f"{both[0]} names a slot and a numeric input; rename one of them")
        for name, slot in self.slots.items():
            if slot.pooling == "none" and f"{name}_length" in self.slots | self.numeric:
                raise UserError(
                    f"slots.{name} is a sequence, and {name}_length is how the graph calls its "
                    "length; rename the input of this name, its `column` may be anything"
                )
        self._check_optimizers()
        self._check_labels()
        self._check_groups()
        self._check_rows()
        self._check_life()

    def _check_optimizers(self) -> None:
        """What TensorNet's formulas have, and where."""
        tensornet = self.compat == "tensornet"
        dense = self.optimizer.dense
        of_rows = {"linear": self.optimizer.linear, "embedding": self.optimizer.embedding}
        for group, own in self.optimizer.groups.items():
            of_rows |= {f"groups.{group}.linear": own.linear or Optimizer()}
            of_rows |= {f"groups.{group}.embedding": own.embedding or Optimizer()}
        for where, one in {"dense": dense, **of_rows}.items():
            has_them = where == "dense" and (tensornet or one.name.startswith("tensornet"))
            for key in ("gradient_decay", "momentum_decay"):
                if getattr(one, key) is not None and not has_them:
                    raise UserError(
                        f"optimizer.{where}.{key} is a setting of dense adagrad with "
                        "compat=tensornet; leave it out"
                    )
        rule = f"tensornet_{dense.name}" if tensornet else dense.name
        if rule == "tensornet_ftrl":
            raise UserError(
                "TensorNet has no ftrl for dense weights (its kernel is empty). Take "
                "optimizer.dense.name=adam or adagrad"
            )
        if rule == "tensornet_adagrad" and dense.settings(rule)["momentum_decay"] == 1:
            raise UserError(
                "TensorNet's dense adagrad never moves with its default momentum_decay of 1. Give "
                "optimizer.dense.momentum_decay below 1, such as 0.9, or take another optimizer"
            )

    def _check_labels(self) -> None:
        if self.data.negatives < 1 and self.train.loss.name != "cross_entropy":
            raise UserError(
                "data.negatives corrects the logits of train.loss=cross_entropy only. "
                f"Received: loss={self.train.loss.name}"
            )
        if self.data.negatives < 1 and self.data.labels:
            raise UserError("data.negatives is for one label; the conf has data.labels")
        if self.evaluation.monitor == "gauc" and self.data.group is None:
            raise UserError("evaluation.monitor=gauc needs data.group, the column of the groups")

    def _check_groups(self) -> None:
        """Slots of one group share rows, so what makes rows and ids must agree."""
        groups: dict[str, tuple[str, Slot]] = {}
        for name, slot in self.slots.items():
            if slot.indicator:
                continue
            group = slot.group or name
            first, other = groups.setdefault(group, (name, slot))
            for key in (
                "ids", "seed", "size", "vocabulary", "vocabulary_file", "oov", "boundaries",
                "initial", "initial_scale", "width", "linear", "max_norm", "frozen",
            ):  # fmt: skip
                if getattr(slot, key) != getattr(other, key):
                    one, two = (
                        "the default" if value is None else value
                        for value in (getattr(other, key), getattr(slot, key))
                    )
                    raise UserError(
                        f"slots {first} and {name} share the rows of group {group}, so their "
                        f"{key} must be the same. Received: {key}={one} and {key}={two}"
                    )
        for key, named in (("optimizer", self.optimizer.groups), ("life", self.life.groups)):
            for group in named:
                if group not in groups:
                    raise UserError(
                        f"{key}.groups.{group}: no slot has this group. "
                        f"{did_you_mean(group, groups)}"
                    )

    def _check_rows(self) -> None:
        """Every slot must be good for something."""
        crossed = {name for slot in self.slots.values() for name in slot.cross or ()}
        for name, slot in self.slots.items():
            if slot.indicator:
                continue
            if slot.pooling == "none" and not self.width_of(slot):
                raise UserError(f"slots.{name}: pooling=none needs a width above 0")
            if not self.width_of(slot) and not self.has_linear(slot) and name not in crossed:
                raise UserError(
                    f"slots.{name} has width 0 and no linear weight, so it is no input. Give it "
                    "one of them, or use it in a cross"
                )
        for name, slot in self.slots.items():
            for other in slot.cross or ():
                if other in self.slots and self.slots[other].cross is not None:
                    raise UserError(
                        f"slots.{name}: {other} is a cross itself; name its columns instead"
                    )

    def _check_life(self) -> None:
        """What counts, waits or goes must be able to."""
        of_all = self._own_life(GroupLife())
        lives = {"life": of_all}
        for group, own in self.life.groups.items():
            lives[f"life.groups.{group}"] = life = self._own_life(own)
            members = [slot for name, slot in self.slots.items() if (slot.group or name) == group]
            if members[0].frozen and own != GroupLife():
                raise UserError(
                    f"life.groups.{group}: its rows are frozen, so they are never updated and "
                    "have no life (that of all leaves them out too). Leave it out"
                )
            if own.shows is not None and life.shows.cvm and not self.width_of(members[0]):
                raise UserError(
                    f"life.groups.{group}.shows.cvm stands after an embedding, and its slots have "
                    "width 0. Give them a width, or take shows.keep"
                )
        if of_all.shows.cvm and not any(map(self.width_of, self.slots.values())):
            raise UserError(
                "life.shows.cvm stands after embeddings, and no slot has one. Give "
                "embedding.width, or take shows.keep"
            )
        for key, life in lives.items():
            if life.eventful and self.optimizer.updates == "all":
                raise UserError(
                    f"optimizer.updates=all has every row from the start and updates it at every "
                    f"step: leave {key} out, or take updates=touched"
                )
            if self.train.loss.name == "mse" and (
                life.shows.cvm or life.eviction.score is not None
            ):
                raise UserError(
                    f"{key} counts clicks, labels of 0 and 1; train.loss=mse has none. Leave cvm "
                    "and score out"
                )

    def life_of(self, group: str) -> RowLife:
        """The life of a share group's rows: its own where it has one, else that of all.

        Frozen rows have none: nothing updates them, so they would all seem unseen.
        """
        if any(slot.frozen for name, slot in self.slots.items() if (slot.group or name) == group):
            return RowLife(Admission(), Shows(), Eviction())
        return self._own_life(self.life.groups.get(group, GroupLife()))

    def _own_life(self, own: GroupLife) -> RowLife:
        return RowLife(
            own.admission or self.life.admission,
            own.shows or self.life.shows,
            own.eviction or self.life.eviction,
        )

    def cvm_of(self, name: str) -> bool:
        """Whether two counts stand after the embedding of a slot."""
        slot = self.slots[name]
        return self.width_of(slot) > 0 and self.life_of(slot.group or name).shows.cvm

    def width_of(self, slot: Slot) -> int:
        """Floats per embedding of a slot."""
        if slot.indicator:
            return 0
        return self.embedding.width if slot.width is None else slot.width

    def has_linear(self, slot: Slot) -> bool:
        """Whether the rows of a slot have a linear weight."""
        if slot.indicator:
            return False
        return self.embedding.linear if slot.linear is None else slot.linear


def from_values(values: dict[str, Any]) -> Conf:
    """A checked Conf from plain values, such as a composed or saved conf.

    Raises UserError that names the key by its path.
    """
    conf: Conf = _build(Conf, values, "")
    return conf


def _build(cls: Any, values: dict[str, Any], path: str) -> Any:
    if not isinstance(values, Mapping):
        raise UserError(f"{path.rstrip('.')} takes no value, its keys do. Received: {values}")
    hints = get_type_hints(cls)
    arguments = {}
    for name, value in values.items():
        if name not in hints:
            raise no_key(f"{path}{name}")
        arguments[name] = _converted(hints[name], value, f"{path}{name}.")
    try:
        return cls(**arguments)
    except UserError as error:
        raise UserError(f"{path}{error}", error.exit_code) from None


def _converted(hint: Any, value: Any, path: str) -> Any:
    if (kind := dataclass_of(hint)) is not None:
        if value is None and type(None) in get_args(hint):
            return None
        return _build(kind, value or {}, path)
    if get_origin(hint) is dict:
        if not isinstance(value or {}, Mapping):
            raise UserError(f"{path.rstrip('.')} takes no value, its names do. Received: {value}")
        if dataclasses.is_dataclass(kind := get_args(hint)[1]):
            return {
                name: _build(kind, one or {}, f"{path}{name}.")
                for name, one in (value or {}).items()
            }
    if isinstance(value, list) and any(get_origin(one) is list for one in (hint, *get_args(hint))):
        for place, one in enumerate(value):
            if isinstance(one, list | dict):  # which OmegaConf lets through
                key = f"{path.rstrip('.')}[{place}]"
                raise UserError(f"{key} must be one value. Received: {one}")
    return value


def dataclass_of(hint: Any) -> Any:
    """The dataclass of a hint, also of `X | None`; None for any other."""
    if get_origin(hint) is dict:
        return None
    return next((one for one in (hint, *get_args(hint)) if dataclasses.is_dataclass(one)), None)


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """The dotted keys whose values differ, of two confs as plain values."""
    if isinstance(one, dict) and isinstance(other, dict):
        return [
            found
            for key in dict.fromkeys([*one, *other])
            for found in differences(one.get(key), other.get(key), f"{path}.{key}".lstrip("."))
        ]
    return [] if one == other else [path]


@dataclass(frozen=True)
class Key:
    """What there is to know of a key: its class and name there, type, default and sentence."""

    owner: Any
    name: str
    hint: Any
    default: Any
    sentence: str

    @property
    def rule(self) -> NoChoice | OutOfRange | None:
        """What the class says to a value that no key can take: its choices, or its range."""
        refused: Any = "\0" if str in (self.hint, *get_args(self.hint)) else math.nan
        # A setting of one optimizer is refused by the others before its range is looked at.
        for others in ({}, *({"name": name} for name in getattr(self.owner, "DEFAULTS", ()))):
            try:
                self.owner(**{**others, self.name: refused})
            except (NoChoice, OutOfRange) as error:
                if error.key == self.name:
                    return error
            except (UserError, TypeError, ValueError):
                continue
        return None


def all_keys(cls: Any = Conf, path: str = "") -> dict[str, Key]:
    """Every key by its path, in the order of the classes."""
    found: dict[str, Key] = {}
    hints = get_type_hints(cls)
    for one in dataclasses.fields(cls):
        hint, where = hints[one.name], path + one.name
        default = (
            one.default if one.default_factory is dataclasses.MISSING else one.default_factory()
        )
        if (kind := dataclass_of(hint)) is not None:
            for name, key in all_keys(kind, f"{where}.").items():
                value = default
                for part in name.removeprefix(f"{where}.").split("."):
                    value = getattr(value, part, key.default)
                found[name] = key if default is None else dataclasses.replace(key, default=value)
        elif get_origin(hint) is dict and dataclasses.is_dataclass(get_args(hint)[1]):
            found |= all_keys(get_args(hint)[1], f"{where}.{NAME}.")
        else:
            found[where] = Key(cls, one.name, hint, default, one.metadata["sentence"])
    return found


NAME = "NAME"


def branches() -> list[str]:
    """The keys under which the user makes names, such as slots and numeric."""
    return list(
        dict.fromkeys(key.split(f".{NAME}.")[0] for key in all_keys() if f".{NAME}." in key)
    )


def keys_like(key: str) -> list[str]:
    """Every key, with the names of `key` in it: slots.user.width when `key` is slots.user.x."""
    found = list(all_keys())
    for branch in branches():
        if key.startswith(f"{branch}."):
            name = key.removeprefix(f"{branch}.").split(".")[0]
            found = [one.replace(f"{branch}.{NAME}.", f"{branch}.{name}.") for one in found]
    return found


def no_key(key: str, known: Iterable[str] | None = None) -> UserError:
    """A key that is not there, with the nearest one that is, by default of all keys."""
    choices = list(keys_like(key) if known is None else known)
    near = difflib.get_close_matches(key, choices, n=1, cutoff=0.6)
    way = did_you_mean(key, near) if near else "`tnctl train --help` lists every key."
    return UserError(f"no key '{key}'. {way}")


def required(key: str) -> None:
    """What `${required:KEY}` stands for in a shipped conf: a key that the user must give."""
    raise UserError(f"{key} is not given. Say {key}=…")


def register() -> None:
    """Give Hydra the schema, which every conf names first in its defaults."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    # `???` in a group would not override the schema's null.
    OmegaConf.register_new_resolver("required", required, replace=True)
    ConfigStore.instance().store(name="schema", node=Conf)
