"""The inputs of a model: `slots`, `numeric`, and the rows of `embedding`."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from tnctl.errors import UserError, did_you_mean, refuse_if
from tnctl.schema.declarations import Section, choice, key, number
from tnctl.schema.id_kinds import ID_KINDS, IdKind, in_words, kinds_with
from tnctl.schema.time_section import check_iso

MOST_CROSSES = 2000  # all pairs of 63 slots, all triples of 23
BETWEEN = "_x_"

SLOT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
INITIALS = ("zeros", "uniform", "normal")
UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}  # in seconds

# Keys of slots and numbers that only matter to a split graph: a run resumes when they differ.
SERVING_KEYS = frozenset({"side"})
OF_SERVING = re.compile(rf"(slots|numeric)\.\w+\.({'|'.join(SERVING_KEYS)})")


def side() -> Any:
    """The key `side` of slots and numeric inputs."""
    sentence = "user or item: a split graph computes the inputs of the user once for many items"
    return choice("item", ("user", "item"), sentence)


@dataclass
class Initial(Section):
    """How weights of new rows start."""

    kind: str = choice(
        "normal", INITIALS, "zeros, uniform (in ±scale) or normal (deviation = scale)"
    )
    scale: float = number(0.01, 0, 1_000_000, "the scale of uniform and normal")


@dataclass
class Slot(Section):
    """A named input field whose values are feature ids."""

    column: str | None = key(None, "the column it is read from (default: the slot's name)")
    cross: list[str] | None = key(
        None, "instead of a column: two or more slots or columns whose ids are combined"
    )
    separator: str | None = key(
        None, "splits the text into several values; json: the text is a JSON list"
    )
    ids: str = key("hash", f"how values become ids: {in_words()}", choices=ID_KINDS)
    # JSON readers that count in doubles must read the seed of serving.json right.
    seed: int = number(
        0,
        0,
        2**53 - 1,
        "the seed of the hash; slots of one group must have the same",
        only_for=kinds_with("seed"),
    )
    size: int | None = number(
        None,
        1,
        2**63 - 1,
        "modulo: the number of ids; integer: ids from size on count as missing",
        only_for=kinds_with("size"),
    )
    vocabulary: list[str] | None = key(
        None,
        "the values, in order of their ids",
        only_for=kinds_with("vocabulary"),
    )
    vocabulary_file: str | None = key(
        None,
        "a file or URL with one value per line, in order of their ids",
        only_for=kinds_with("vocabulary_file"),
    )
    oov: int = number(
        0,
        0,
        2**31,
        "ids after the list for other values, by hash (0: they count as missing)",
        only_for=kinds_with("oov"),
    )
    boundaries: list[float] | None = key(
        None,
        "ascending numbers; a value gets the number of boundaries at or below it",
        only_for=kinds_with("boundaries"),
    )
    buckets: int = number(
        64,
        2,
        1_000_000,
        "the number of buckets",
        only_for=kinds_with("buckets"),
    )
    missing: str = choice(
        "none",
        ("none", "value"),
        "a missing value: none (no id, reads zeros) or value (a separate id)",
    )
    padding: int | None = number(
        None, 0, 2**64 - 1, "an id that counts as no value: it reads zeros and never trains"
    )
    max_length: int | None = number(
        None,
        1,
        65_535,
        "the most values of an example; of more the first are taken (see keep)",
    )
    keep: str = choice("first", ("first", "last"), "which values max_length keeps: first or last")
    weights: str | None = key(None, "a column with one weight per value, for weighted pooling")
    pooling: str = choice(
        "sum",
        ("sum", "mean", "sqrtn", "none"),
        "sum, mean or sqrtn over the ids of an example; none keeps them as a sequence",
    )
    group: str | None = key(None, "the share group (default: the slot alone)")
    width: int | None = number(None, 0, 1024, "floats per embedding (default: embedding.width)")
    linear: bool | None = key(None, "whether rows have a linear weight (default: embedding.linear)")
    indicator: bool = key(
        False, "one-hot: no rows; the counts of the ids are an input of the dense part"
    )
    initial: str | None = choice(
        None,
        INITIALS,
        "how new embeddings start: zeros, uniform or normal (default: embedding.initial.kind)",
    )
    initial_scale: float | None = number(
        None,
        0,
        1_000_000,
        "the scale of new embeddings of this slot (default: embedding.initial.scale)",
    )
    vectors: str | None = key(
        None,
        "a file or URL of vectors, `width` wide, that rows start from: Parquet, or NAME.npy beside "
        "NAME.txt; a trained matrix makes them embedding.width wide",
        only_for=kinds_with("vectors"),
    )
    max_norm: float | None = number(
        None,
        0,
        1_000_000,
        "embeddings longer than this are shortened to it (default: the optimizer's)",
    )
    frozen: bool = key(False, "rows keep their initial or loaded weights: nothing trains")
    side: str = side()

    def check(self) -> None:
        refuse_if(
            self.group is not None and not SLOT_NAME.fullmatch(self.group),
            f"group must be a plain name, as a slot's. Received: {self.group}",
        )
        refuse_if(
            self.separator is not None and not self.separator,
            "separator must not be empty; leave it out for one value per example",
        )
        self._check_ids()
        self._check_lists()
        self._check_pooling()

    @property
    def kind(self) -> IdKind:
        """How its values become ids."""
        return ID_KINDS[self.ids]

    def _check_ids(self) -> None:
        kind = self.kind
        refuse_if(
            self.missing == "value" and not kind.has_missing_id,
            f"missing=value needs ids of texts or buckets; an {self.ids} id has no text",
        )
        refuse_if(
            kind.needs and not getattr(self, kind.needs), f"ids={self.ids} needs {kind.needs}"
        )
        refuse_if(
            "vocabulary_file" in kind.keys
            and (self.vocabulary is None) == (self.vocabulary_file is None),
            "ids=vocabulary needs vocabulary (a list) or vocabulary_file, one of them",
        )
        refuse_if(
            self.keep != "first" and self.max_length is None,
            "keep says which values max_length keeps; give max_length too",
        )
        refuse_if(
            self.indicator and (not kind.counted or ("size" in kind.keys and self.size is None)),
            "indicator needs ids that are counted: "
            f"{', '.join(name for name, kind in ID_KINDS.items() if kind.counted)} (integer with "
            f"size). Received: ids={self.ids}",
        )

    def _check_lists(self) -> None:
        if self.boundaries is not None and self.boundaries != sorted(set(self.boundaries)):
            raise UserError(f"boundaries must ascend. Received: boundaries={self.boundaries}")
        refuse_if(
            self.vocabulary is not None and not self.vocabulary,
            "vocabulary is empty. Give its values, in order of their ids",
        )
        refuse_if(
            self.vocabulary is not None and len(set(self.vocabulary)) < len(self.vocabulary),
            "vocabulary has a value twice",
        )
        if self.cross is not None:
            refuse_if(
                len(self.cross) < 2, f"cross needs two names or more. Received: cross={self.cross}"
            )
            refuse_if(
                not self.kind.of_texts or self.column or self.separator or self.weights,
                "cross makes ids of the ids of others: leave column, separator and weights "
                "out, and take ids=hash or modulo",
            )

        refuse_if(
            self.vectors is not None and (self.cross is not None or not self.width),
            "vectors are of the values of a column, so not of a cross, and need width: the floats "
            "of each",
        )

    def _check_pooling(self) -> None:
        refuse_if(
            self.pooling == "none" and self.max_length is None,
            "pooling=none keeps a sequence, which needs max_length",
        )
        refuse_if(
            self.pooling == "none" and self.weights is not None,
            "weights are for pooling; pooling=none keeps each value unchanged",
        )
        if self.indicator:
            refuse_if(
                self.pooling == "none" or self.frozen,
                "indicator makes no rows: leave pooling=none and frozen out",
            )
            for name in ("width", "linear", "group", "initial", "initial_scale", "max_norm"):
                refuse_if(getattr(self, name), f"indicator makes no rows: leave {name} out")


@dataclass
class Position(Section):
    """Where an example was shown: a part of what is trained, and not of what is served."""

    slot: str | None = key(
        None, "the slot of it, whose logit is combined with the recipe's in training only"
    )
    combine: str = choice(
        "add",
        ("add", "multiply"),
        "add the logits, or multiply the probabilities that it is seen and, if seen, clicked",
    )
    dropout: float = number(
        0.1, 0, 0.99, "add: the share of examples that a step trains without it"
    )


@dataclass
class Numeric(Section):
    """A named input field whose values are numbers."""

    column: str | None = key(None, "the column it is read from (default: its own name)")
    columns: list[str] | None = key(
        None, "instead of column: several columns side by side, a vector"
    )
    width: int = number(
        1, 1, 65_536, "numbers per example, of a list column or of text with separator"
    )
    separator: str | None = key(
        None, "splits the text into the numbers of a vector; json: the text is a JSON list"
    )
    since: str | None = key(
        None, "values are times (data.times); the number is the time from here, such as 2026-11-20"
    )
    since_column: str | None = key(
        None, "values are times; the number is the time from the time in this column"
    )
    unit: str = choice("day", tuple(UNITS), "since, since_column: the unit of the number")
    transform: str = choice(
        "none",
        ("none", "log1p", "standardize"),
        "none, log1p (sign(v) * ln(1 + |v|)) or standardize ((v - mean) / deviation)",
    )
    mean: float | None = key(
        None,
        "the mean, given instead of measured on data.train",
        only_for=("transform", ("standardize",)),
    )
    deviation: float | None = number(
        None,
        0,
        math.inf,
        "the standard deviation, given instead of measured",
        includes_low=False,
        only_for=("transform", ("standardize",)),
    )
    clip: list[float | None] | None = key(
        None, "[low, high]: numbers outside are moved to it, before the transform; null: no limit"
    )
    default: float | None = key(
        None, "replaces a missing value, before the transform (standardize: the mean; else 0)"
    )
    side: str = side()

    def normalize(self) -> None:
        low, high = self._limits()
        if self.clip is not None:
            # JSON, in which checkpoints keep the conf, has no infinity.
            self.clip = [low if math.isfinite(low) else None, high if math.isfinite(high) else None]

    def check(self) -> None:
        refuse_if(
            (self.mean is None) != (self.deviation is None),
            "mean and deviation are given together or not at all",
        )
        low, high = self._limits()
        refuse_if(
            self.default is not None and not low <= self.default <= high,
            f"default must be inside of clip. Received: default={self.default}, clip={self.clip}",
        )
        if self.columns is not None:
            refuse_if(
                self.column is not None or self.separator is not None or self.width != 1,
                "columns excludes column, separator and width: leave them out",
            )
            refuse_if(not self.columns, "columns must name a column")
        if self.since is not None:
            check_iso("since", self.since)
            refuse_if(
                self.since_column is not None,
                "since (a fixed time) and since_column (a column) exclude each other",
            )
        refuse_if(
            self.is_age and (self.separator is not None or self.width != 1),
            "since takes one time per column: leave separator and width out",
        )
        refuse_if(
            self.unit != "day" and not self.is_age, "unit is for since or since_column, of times"
        )

    @property
    def is_age(self) -> bool:
        """Whether its values are times, and the numbers how long they are after another."""
        return self.since is not None or self.since_column is not None

    def _limits(self) -> tuple[float, float]:
        """The ends of `clip`, infinite where it has none."""
        if self.clip is None:
            return -math.inf, math.inf
        if len(self.clip) == 2:
            low = -math.inf if self.clip[0] is None else self.clip[0]
            high = math.inf if self.clip[1] is None else self.clip[1]
            if low <= high:  # not so for NaN
                return low, high
        raise UserError(f"clip must be [low, high]. Received: clip={self.clip}")

    @property
    def numbers(self) -> int:
        """How many numbers of x this input is."""
        return len(self.columns) if self.columns else self.width


def time_columns(slots: Mapping[str, Slot], numeric: Mapping[str, Numeric]) -> list[str]:
    """The columns whose values are times, each once."""
    names = [slot.column or name for name, slot in slots.items() if slot.kind.of_times]
    for name, age in numeric.items():
        if age.is_age:
            names += age.columns or [age.column or name]
            names += [age.since_column] if age.since_column is not None else []
    return list(dict.fromkeys(names))


@dataclass
class Embedding(Section):
    """The rows of every slot, where the slot does not say otherwise."""

    width: int = number(8, 0, 1024, "floats per embedding; 0 leaves only the linear weight")
    linear: bool = key(True, "whether rows have a linear weight")
    initial: Initial = key(Initial, "how embeddings of new rows start")
    linear_initial: Initial = key(
        lambda: Initial(kind="zeros"), "how linear weights of new rows start"
    )


@dataclass
class Crosses(Section):
    """All pairs or triples of some slots, each a slot with a `cross` of them."""

    pairs: list[str] = key(list, "slots of which every two are crossed, as the slot a_x_b")
    triples: list[str] = key(list, "slots of which every three are crossed, as the slot a_x_b_x_c")
    width: int | None = number(
        None,
        0,
        1024,
        "floats per embedding of these crosses (0: only a linear weight; default: embedding.width)",
    )
    size: int | None = number(
        None, 1, 2**63 - 1, "the number of ids of each cross, by ids=modulo (default: ids=hash)"
    )

    def check(self) -> None:
        for name, slots, count in self._lists():
            refuse_if(
                len(set(slots)) < len(slots), f"{name} has a slot twice. Received: {name}={slots}"
            )
            refuse_if(
                0 < len(slots) < count, f"{name} needs {count} slots or more. Received: {slots}"
            )
        total = sum(math.comb(len(slots), count) for _, slots, count in self._lists())
        refuse_if(
            total > MOST_CROSSES,
            f"pairs and triples are {total:,} crosses, and at most {MOST_CROSSES:,} are made. Name "
            "fewer slots, or those crosses that matter in slots.NAME.cross",
        )
        refuse_if(
            total == 0 and (self.width is not None or self.size is not None),
            "width and size are of the crosses that pairs or triples make. Give pairs or triples",
        )

    def expanded(self, slots: Mapping[str, Slot]) -> dict[str, Slot]:
        """All slots, those given first.

        The parts of a cross are in the order of the alphabet, so its name and ids do not depend on
        the order of the list. A slot that is declared as the same cross stays as it is. Raises
        UserError for a part that is no slot, and a name that another slot has.
        """
        made: dict[str, Slot] = {}
        for name, parts, count in self._lists():
            _refuse_others(name, parts, slots)
            for cross in combinations(sorted(parts), count):
                slot = BETWEEN.join(cross)
                given = slots.get(slot, made.get(slot))
                refuse_if(
                    given is not None and set(given.cross or ()) != set(cross),
                    f"crosses.{name} makes slots.{slot} of {', '.join(cross)}, and the conf has "
                    "another slot of this name. Rename that, its `column` may be anything",
                )
                made[slot] = given or self._slot(list(cross))
        return {**slots, **made}

    def _lists(self) -> list[tuple[str, Sequence[str], int]]:
        return [("pairs", self.pairs, 2), ("triples", self.triples, 3)]

    def _slot(self, cross: list[str]) -> Slot:
        ids = "hash" if self.size is None else "modulo"
        return Slot(cross=cross, ids=ids, size=self.size, width=self.width)


def _refuse_others(name: str, parts: Sequence[str], slots: Mapping[str, Slot]) -> None:
    for part in parts:
        refuse_if(
            part not in slots,
            f"crosses.{name}: {part} is no slot. {did_you_mean(part, slots)}",
        )
        refuse_if(
            slots[part].cross is not None,
            f"crosses.{name}: {part} is a cross itself. Name the slots that it is made of",
        )
