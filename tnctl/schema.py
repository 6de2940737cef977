"""Every key of a conf: its type, default, limit and sentence.

The dataclasses are Hydra's schema (a wrong key or type is refused when the conf is composed);
`__post_init__` runs on the composed values and checks their range. `documented(...)` puts the
sentence beside the key, where `--help` and the documentation read it.
"""

import dataclasses
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

from tnctl.errors import UserError, did_you_mean

SLOT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Names that the split graph and the exported files already use.
RESERVED_NAMES = {"linear", "x", "logits", "predictions"}


def documented(default: Any, sentence: str) -> Any:
    """A dataclass field with its default and the sentence that explains it."""
    if isinstance(default, list | dict) or dataclasses.is_dataclass(default):
        factory = type(default) if dataclasses.is_dataclass(default) else lambda: default.copy()
        return field(default_factory=factory, metadata={"sentence": sentence})
    return field(default=default, metadata={"sentence": sentence})


def one_of(key: str, value: Any, choices: Iterable[str]) -> None:
    """Refuse a value that is not among `choices`, naming the nearest."""
    if value not in choices:
        raise UserError(f"{key} has no choice '{value}'. {did_you_mean(str(value), choices)}")


def within(key: str, value: float, low: float, high: float = math.inf) -> None:
    """Refuse a number outside [low, high]."""
    if not low <= value <= high:  # NaN too
        limit = f"at least {low:,}" if high == math.inf else f"between {low:,} and {high:,}"
        raise UserError(f"{key} must be {limit}. Received: {key}={value}")


@dataclass
class Initial:
    """How weights of new rows start."""

    kind: str = documented("normal", "zeros, uniform (in ±scale) or normal (deviation = scale)")
    scale: float = documented(0.01, "the scale of uniform and normal")

    def __post_init__(self) -> None:
        one_of("kind", self.kind, ("zeros", "uniform", "normal"))
        within("scale", self.scale, 0, 1_000_000)


@dataclass
class Slot:
    """A named input field whose values are feature ids."""

    column: str | None = documented(None, "the column it is read from (default: the slot's name)")
    ids: str = documented(
        "hash", "how values become ids: hash (of the text), integer (as given), or quantiles"
    )
    seed: int = documented(0, "the seed of the hash; slots of one group must have the same")
    buckets: int = documented(64, "quantiles: how many buckets the distinct values are cut into")
    separator: str | None = documented(None, "splits the text into several values")
    missing: str = documented(
        "none", "a missing value: none (no id, reads zeros) or value (an id of its own)"
    )
    pooling: str = documented("sum", "sum, mean or sqrtn over the ids of an example")
    group: str | None = documented(None, "the share group (default: the slot alone)")
    initial_scale: float | None = documented(
        None, "the scale of new embeddings of this slot (default: embedding.initial.scale)"
    )

    def __post_init__(self) -> None:
        one_of("ids", self.ids, ("hash", "integer", "quantiles"))
        one_of("missing", self.missing, ("none", "value"))
        one_of("pooling", self.pooling, ("sum", "mean", "sqrtn"))
        within("buckets", self.buckets, 2, 1_000_000)
        # JSON readers that count in doubles must read the seed of serving.json right.
        within("seed", self.seed, 0, 2**53 - 1)
        if self.group is not None and not SLOT_NAME.fullmatch(self.group):
            raise UserError(f"group must be a plain name, as a slot's. Received: {self.group}")
        if self.initial_scale is not None:
            within("initial_scale", self.initial_scale, 0, 1e6)
        if self.separator is not None and not self.separator:
            raise UserError("separator must not be empty; leave it out for one value per example")
        if self.ids == "integer" and self.missing == "value":
            raise UserError("missing=value needs ids=hash or quantiles; an integer id has no text")
        if self.ids == "quantiles" and self.separator is not None:
            raise UserError("ids=quantiles takes one number per example; leave separator out")


@dataclass
class Numeric:
    """A named input field whose value is a number."""

    column: str | None = documented(None, "the column it is read from (default: its own name)")
    transform: str = documented(
        "none", "none, log1p (sign(v) * ln(1 + |v|)) or standardize ((v - mean) / deviation)"
    )
    default: float | None = documented(
        None, "stands for a missing value, before the transform (standardize: the mean; else 0)"
    )

    def __post_init__(self) -> None:
        one_of("transform", self.transform, ("none", "log1p", "standardize"))
        if self.default is not None and not math.isfinite(self.default):
            raise UserError(f"default must be a finite number. Received: default={self.default}")


@dataclass
class Label:
    """Where the label is."""

    column: str = documented("label", "the column of the label")
    positive: list[str] | None = documented(
        None, "the texts that count as 1 (all others 0); without it the label is a number in [0, 1]"
    )


@dataclass
class Data:
    """The input files and how to read them."""

    root: str | None = documented(None, "the folder or URL that relative file names start from")
    train: Any = documented(
        None, "file, URL, glob or list; or {files: …, skip_rows: N} (generated: a range of rows)"
    )
    validation: Any = documented(None, "as data.train; evaluated after every epoch")
    test: Any = documented(None, "as data.train; evaluated once, at the end")
    format: str = documented("csv", "csv, parquet or generated")
    delimiter: str = documented(",", "csv: one character; '\\t' for TSV")
    header: bool = documented(True, "csv: the first line names the columns")
    columns: list[str] | None = documented(
        None, "csv without header: the names, in file order (a header wins)"
    )
    skip_rows: int = documented(0, "csv: lines to skip at the start of each file")
    strip: bool = documented(False, "csv: remove ASCII blanks around values")
    missing: list[str] = documented(
        [""], "texts that mean a missing value (of text, ids and csv numbers)"
    )
    check_utf8: bool = documented(True, "refuse text that is not UTF-8 (false: hash its bytes)")
    label: Label = documented(Label(), "the label")
    reference: str | None = documented(
        None, "a column with another model's score: its AUC is reported beside this model's"
    )
    window: int = documented(262_144, "rows that are read, and shuffled, together")
    shuffle: bool = documented(True, "shuffle the rows of each window in training")

    def __post_init__(self) -> None:
        one_of("format", self.format, ("csv", "parquet", "generated"))
        # In a shell or in single quotes a tab is hard to spell.
        self.delimiter = {"\\t": "\t", "tab": "\t"}.get(self.delimiter, self.delimiter)
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n':
            raise UserError(
                f"delimiter must be one character. Received: {self.delimiter!r} "
                "(a tab is data.delimiter='\\t')"
            )
        within("window", self.window, 1, 2**31 - 1)
        within("skip_rows", self.skip_rows, 0)
        if self.format == "csv" and not self.header and not self.columns:
            raise UserError("header=false needs data.columns, the names in file order")


@dataclass
class Embedding:
    """The embedding of every slot."""

    width: int = documented(8, "floats per embedding; 0 leaves only the linear weight")
    initial: Initial = documented(Initial(), "how embeddings of new rows start")

    def __post_init__(self) -> None:
        within("width", self.width, 0, 1024)


@dataclass
class Optimizer:
    """An optimizer of rows or of dense weights; keys left null take the optimizer's default."""

    name: str = documented("adagrad", "adagrad (one accumulator per row) or adam")
    learning_rate: float = documented(0.05, "the step size")
    epsilon: float | None = documented(None, "added to the root (adagrad 1e-8, adam 1e-7)")
    initial_accumulator: float | None = documented(
        None, "adagrad: where the accumulator starts (1e-6)"
    )
    beta1: float | None = documented(None, "adam: decay of the first moment (0.9)")
    beta2: float | None = documented(None, "adam: decay of the second moment (0.999)")

    DEFAULTS: ClassVar[dict[str, dict[str, float]]] = {
        "adagrad": {"epsilon": 1e-8, "initial_accumulator": 1e-6},
        "adam": {"epsilon": 1e-7, "beta1": 0.9, "beta2": 0.999},
    }

    def __post_init__(self) -> None:
        one_of("name", self.name, self.DEFAULTS)
        within("learning_rate", self.learning_rate, 0, 1_000_000)
        known = self.DEFAULTS[self.name]
        for key in ("epsilon", "initial_accumulator", "beta1", "beta2"):
            value = getattr(self, key)
            if value is not None and key not in known:
                raise UserError(f"{key} is no setting of {self.name}. {did_you_mean(key, known)}")
            if value is not None:
                least = 1e-30 if key == "epsilon" else 0
                within(key, value, least, 0.9999 if key.startswith("beta") else 1_000_000)

    def settings(self) -> dict[str, float]:
        """The settings of this optimizer, its defaults where the conf says nothing."""
        given = {key: getattr(self, key) for key in self.DEFAULTS[self.name]}
        return self.DEFAULTS[self.name] | {k: v for k, v in given.items() if v is not None}


@dataclass
class Optimizers:
    """Which optimizer trains which weights."""

    linear: Optimizer = documented(Optimizer(), "of the linear weight of every row")
    embedding: Optimizer = documented(Optimizer(), "of the embedding of every row")
    dense: Optimizer = field(
        default_factory=lambda: Optimizer(name="adam", learning_rate=0.001),
        metadata={"sentence": "of the dense weights"},
    )


@dataclass
class Train:
    """The training loop."""

    batch_size: int = documented(4096, "examples per step")
    epochs: int = documented(1, "passes over data.train")
    threads: int | None = documented(None, "threads of the C tables (default: the CPUs, at most 8)")
    precision: str = documented("float32", "of the dense model: float32 or bfloat16 (mixed)")
    xla: bool = documented(False, "compile the dense step with XLA (float32 only): rarely faster")
    deterministic: bool = documented(
        False, "TensorFlow's op determinism too: no kernel may order its sums by chance (slower)"
    )

    def __post_init__(self) -> None:
        within("batch_size", self.batch_size, 1, 1_048_576)
        within("epochs", self.epochs, 1, 1_000_000)
        if self.threads is not None:
            within("threads", self.threads, 1, 64)
        one_of("precision", self.precision, ("float32", "bfloat16"))


@dataclass
class Conf:
    """A run, from files to a trained model."""

    seed: int = documented(1, "of initial weights and of the order of examples")
    output: str = documented("runs/${hydra:job.config_name}", "the folder or URL of the run")
    recipe: dict[str, Any] = documented({}, "the dense model: its name and its settings")
    slots: dict[str, Slot] = documented({}, "the inputs that are feature ids, by name")
    numeric: dict[str, Numeric] = documented({}, "the inputs that are numbers, by name")
    embedding: Embedding = documented(Embedding(), "the embedding of every slot")
    optimizer: Optimizers = documented(Optimizers(), "which optimizer trains which weights")
    data: Data = documented(Data(), "the input files and how to read them")
    train: Train = documented(Train(), "the training loop")

    def __post_init__(self) -> None:
        within("seed", self.seed, 0, 2**63 - 1)
        if not self.output.strip():
            raise UserError("output is empty. Give the folder or URL of the run")
        if "name" not in self.recipe:
            raise UserError("recipe needs a name: choose one with recipe=deepfm or recipe=lr")
        if not self.slots and not self.numeric:
            raise UserError("the conf names no inputs; give slots or numeric, or choose data=NAME")
        for kind, names in (("slots", self.slots), ("numeric", self.numeric)):
            for name in names:
                if not SLOT_NAME.fullmatch(name) or name in RESERVED_NAMES:
                    raise UserError(
                        f"{kind}.{name} is not a name a graph can use. Take letters, digits and _, "
                        f"not {', '.join(sorted(RESERVED_NAMES))}; `column` may be anything"
                    )
        if both := sorted(self.slots.keys() & self.numeric.keys()):
            raise UserError(f"{both[0]} names a slot and a numeric input; rename one of them")
        groups: dict[str, tuple[str, Slot]] = {}
        for name, slot in self.slots.items():
            group = slot.group or name
            first, other = groups.setdefault(group, (name, slot))
            for key in ("ids", "seed", "initial_scale"):
                if getattr(slot, key) != getattr(other, key):
                    raise UserError(
                        f"slots {first} and {name} share the rows of group {group}, so their "
                        f"{key} must be the same. Received: {key}={getattr(other, key)} and "
                        f"{key}={getattr(slot, key)}"
                    )


def from_values(values: dict[str, Any]) -> Conf:
    """A checked Conf from plain values, such as a composed or saved conf.

    Raises UserError that names the key by its path.
    """
    conf: Conf = _build(Conf, values, "")
    return conf


def _build(cls: Any, values: dict[str, Any], path: str) -> Any:
    hints = get_type_hints(cls)
    arguments = {}
    for name, value in values.items():
        if name not in hints:
            raise UserError(f"no key '{path}{name}'. {did_you_mean(path + name, sentences())}")
        arguments[name] = _converted(hints[name], value, f"{path}{name}.")
    try:
        return cls(**arguments)
    except UserError as error:
        raise UserError(f"{path}{error}", error.exit_code) from None


def _converted(hint: Any, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _build(hint, value or {}, path)
    if get_origin(hint) is dict and dataclasses.is_dataclass(get_args(hint)[1]):
        return {
            name: _build(get_args(hint)[1], one or {}, f"{path}{name}.")
            for name, one in (value or {}).items()
        }
    return value


def sentences(cls: Any = Conf, path: str = "") -> dict[str, tuple[Any, str]]:
    """Every key of a conf by its path: (default, sentence). Named inputs stand as NAME."""
    found: dict[str, tuple[Any, str]] = {}
    hints = get_type_hints(cls)
    for one in dataclasses.fields(cls):
        hint, where = hints[one.name], path + one.name
        default = (
            one.default if one.default_factory is dataclasses.MISSING else one.default_factory()
        )
        if dataclasses.is_dataclass(hint):
            for key, (_, sentence) in sentences(hint, f"{where}.").items():
                value = default
                for name in key.removeprefix(f"{where}.").split("."):
                    value = getattr(value, name)
                found[key] = (value, sentence)
        elif get_origin(hint) is dict and dataclasses.is_dataclass(get_args(hint)[1]):
            found |= sentences(get_args(hint)[1], f"{where}.NAME.")
        else:
            found[where] = (default, one.metadata["sentence"])
    return found


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
