"""`optimizer`: which optimizer trains which weights, and how learning rates change."""

import math
from dataclasses import dataclass
from typing import Any

from tnctl.errors import refuse_if
from tnctl.optimizer_table import EXTRAS, KINDS
from tnctl.schema.declarations import UNLISTED, Section, choice, key, number

# Optimizers and settings that the conf calls otherwise than csrc/tn_optimizer.c.
NAMES_IN_C = {
    "adamw": "adam",
    "weight_decay": "decay",
    "momentum_decay": "beta1",  # of tensornet_adagrad only, as the next
    "gradient_decay": "beta2",
}


def _settings(name: str) -> dict[str, float | bool]:
    """The settings of an optimizer in the table in C with their defaults, by the conf's names."""
    decays = {"beta1": "momentum_decay", "beta2": "gradient_decay"}
    names = decays if name == "tensornet_adagrad" else {}
    declared = KINDS[NAMES_IN_C.get(name, name)].settings.items()
    return {names.get(key, key): value for key, value in declared if key not in EXTRAS}


# The settings that only some optimizers have, with their defaults. With compat=tensornet the rule
# of NAME is tensornet_NAME, where there is one.
RULES = {name: _settings(name) for name in sorted([*KINDS, "adamw"])}
OF_EVERY_RULE = ("l2", "weight_decay", "clip", "bound", "max_norm", "lazy_l2")


def having(setting: str) -> tuple[str, tuple[str, ...]]:
    """The `only_for` of a setting: the optimizers that have it, some with compat=tensornet."""
    rules = (
        name
        for name, settings in RULES.items()
        if setting in settings or setting in RULES.get(f"tensornet_{name}", {})
    )
    return "name", tuple(rules)


def default_of(setting: str) -> str:
    """In words, the default of a setting: one, or one for each optimizer that has it."""
    rules = {name: settings[setting] for name, settings in RULES.items() if setting in settings}
    listed = {name: value for name, value in rules.items() if not name.startswith(UNLISTED)}
    words = {name: f"{value:g}" if value else "0" for name, value in (listed or rules).items()}
    if len(set(words.values())) == 1:
        return "default: " + next(iter(words.values()))
    return "defaults: " + ", ".join(f"{name} {value}" for name, value in words.items())


@dataclass
class Optimizer(Section):
    """An optimizer of rows or of dense weights; keys left null take the optimizer's default."""

    name: str = choice(
        "adagrad",
        tuple(RULES),
        "adagrad (one accumulator per row; dense: per weight), adagrad_coordinate (per weight), "
        "adam, adamw, ftrl or sgd",
    )
    learning_rate: float = number(0.05, 0, 1_000_000, "the step size")
    epsilon: float | None = number(
        None,
        1e-30,
        1_000_000,
        f"added to the root ({default_of('epsilon')})",
        only_for=having("epsilon"),
    )
    initial_accumulator: float | None = number(
        None,
        0,
        1_000_000,
        f"where the accumulator starts ({default_of('initial_accumulator')})",
        only_for=having("initial_accumulator"),
    )
    initial_gradients: float | None = number(
        None,
        0,
        1_000_000,
        "rows only, instead of initial_accumulator: the accumulator starts at initial_gradients / "
        "batch_size ** 2, so that the first updates of a row do not depend on the batch size",
        only_for=("name", ("adagrad", "adagrad_coordinate")),
    )
    beta1: float | None = number(
        None,
        0,
        0.9999,
        f"decay of the first moment ({default_of('beta1')})",
        only_for=having("beta1"),
    )
    beta2: float | None = number(
        None,
        0,
        0.9999,
        f"decay of the second moment ({default_of('beta2')})",
        only_for=having("beta2"),
    )
    momentum: float | None = number(
        None,
        0,
        0.9999,
        f"the share of the last step that is kept ({default_of('momentum')})",
        only_for=having("momentum"),
    )
    nesterov: bool | None = key(
        None, "look ahead along the momentum (default: false)", only_for=having("nesterov")
    )
    l1: float | None = number(
        None,
        0,
        1_000_000,
        f"makes weights exactly zero ({default_of('l1')})",
        only_for=having("l1"),
    )
    beta: float | None = number(
        None,
        0,
        1_000_000,
        f"added to the root, smooths the first steps ({default_of('beta')})",
        only_for=having("beta"),
    )
    l2: float = number(
        0.0,
        0,
        1_000_000,
        "adds l2 * w to the gradient (λ/2 of the squared norm); of rows: only in the batch",
    )
    weight_decay: float = number(
        0.0,
        0,
        1_000_000,
        "every step takes learning_rate * weight_decay * w off every weight (decoupled)",
    )
    clip: float = number(
        0.0, 0, 1_000_000, "gradients are clipped to ± this, weight by weight (0: not)"
    )
    bound: float = number(0.0, 0, 1_000_000, "weights are kept within ± this (0: not)")
    max_norm: float = number(
        0.0, 0, 1_000_000, "longer embeddings are shortened to it (0: not; rows only)"
    )
    lazy_l2: float = number(
        0.0,
        0,
        1_000_000,
        "rows only: as l2, of every row at every step, also of those outside the batch (a row that "
        "is read or updated catches up); of the learning rate without its schedule",
        only_for=("name", ("adagrad",)),
    )
    gradient_decay: float | None = number(
        None,
        0,
        1,
        "compat=tensornet, dense weights: decay of the squared gradients "
        f"({default_of('gradient_decay')})",
        only_for=having("gradient_decay"),
    )
    momentum_decay: float | None = number(
        None,
        0,
        1,
        "compat=tensornet, dense weights: decay of the momentum, where 1 never moves a weight "
        f"({default_of('momentum_decay')})",
        only_for=having("momentum_decay"),
    )

    def check(self) -> None:
        if self.name in ("ftrl", "tensornet_ftrl"):
            settings = self.settings()
            refuse_if(
                self.weight_decay,
                "ftrl computes weights from its sums, so weight_decay would be undone; take its l2",
            )
            refuse_if(
                not (settings["beta"] or settings["l2"] or settings.get("initial_accumulator")),
                "ftrl divides by beta + l2 + the root of its accumulator: one of beta, l2 and "
                "initial_accumulator must be above 0",
            )
        refuse_if(
            self.initial_gradients is not None and self.initial_accumulator is not None,
            "initial_gradients takes the place of initial_accumulator. Leave one of them out",
        )
        refuse_if(
            self.lazy_l2 and self.weight_decay,
            "lazy_l2 and weight_decay both shrink all rows. Leave one of them out",
        )
        refuse_if(
            self.learning_rate * self.weight_decay >= 1,
            "weight_decay * learning_rate must be below 1: nothing would be left",
        )

    def settings(self, rule: str | None = None) -> dict[str, Any]:
        """The settings of this optimizer under a rule's name (default: its own).

        The rule's defaults where the conf says nothing.
        """
        defaults = RULES[rule or self.name]
        given = {name: getattr(self, name) for name in defaults if getattr(self, name) is not None}
        return defaults | given | {name: getattr(self, name) for name in OF_EVERY_RULE}

    def in_c(self, compat: str | None, batch_size: int) -> tuple[str, dict[str, Any]]:
        """The name and the settings of this optimizer as csrc/tn_optimizer.c calls them.

        `batch_size` is the examples of a step, of all workers together.
        """
        name = NAMES_IN_C.get(self.name, self.name)
        if compat == "tensornet" and f"tensornet_{name}" in RULES:
            name = f"tensornet_{name}"
        settings = self.settings(name)
        if self.initial_gradients is not None:
            settings["initial_accumulator"] = self.initial_gradients / batch_size**2
        return name, {NAMES_IN_C.get(key, key): value for key, value in settings.items()}


@dataclass
class GroupOptimizers(Section):
    """The optimizers of one share group's rows, where they differ from `optimizer`'s."""

    linear: Optimizer | None = key(None, "of the linear weight")
    embedding: Optimizer | None = key(None, "of the embedding")


@dataclass
class Schedule(Section):
    """How learning rates change: every optimizer's rate times one factor."""

    name: str = choice(
        "constant",
        ("constant", "exponential", "step", "cosine", "plateau", "day"),
        "constant, exponential, step, cosine, plateau, or day (from 1 to `end` within each pass "
        "over a day); all after a linear warm-up",
    )
    warmup_steps: int = number(0, 0, math.inf, "steps in which the factor rises from 0 to 1")
    decay_steps: int = number(
        10_000,
        1,
        math.inf,
        "exponential: steps per decay_rate; cosine: steps until the end",
        only_for=("name", ("exponential", "cosine")),
    )
    decay_rate: float = number(
        0.96, 0, 1, "the factor after decay_steps", only_for=("name", ("exponential",))
    )
    boundaries: list[int] = number(
        list, 0, math.inf, "the steps after which the factor changes", only_for=("name", ("step",))
    )
    factors: list[float] = number(
        list, 0, 1_000_000, "the factor after each of the boundaries", only_for=("name", ("step",))
    )
    end: float = number(
        0.0,
        0,
        1,
        "the factor never falls below it",
        only_for=("name", ("exponential", "cosine", "plateau", "day")),
    )
    reduce: float = number(
        0.1, 0, 1, "what the factor is multiplied by", only_for=("name", ("plateau",))
    )
    patience: int = number(
        2,
        1,
        math.inf,
        "evaluations without a better monitored metric until the factor is reduced",
        only_for=("name", ("plateau",)),
    )

    def check(self) -> None:
        refuse_if(
            len(self.boundaries) != len(self.factors),
            "boundaries and factors have one entry for each change. Received: "
            f"{len(self.boundaries)} boundaries and {len(self.factors)} factors",
        )
        refuse_if(
            self.boundaries != sorted(set(self.boundaries)),
            f"boundaries must ascend. Received: boundaries={self.boundaries}",
        )
        refuse_if(
            self.name == "step" and not self.boundaries,
            "a step schedule needs boundaries and factors",
        )


@dataclass
class Optimizers(Section):
    """Which optimizer trains which weights."""

    linear: Optimizer = key(Optimizer, "of the linear weight of every row")
    embedding: Optimizer = key(Optimizer, "of the embedding of every row")
    dense: Optimizer = key(
        lambda: Optimizer(name="adam", learning_rate=0.001), "of the dense weights"
    )
    groups: dict[str, GroupOptimizers] = key(dict, "of the rows of single share groups")
    schedule: Schedule = key(Schedule, "how all learning rates change")
    clip_norm: float = number(
        0.0, 0, 1_000_000, "all gradients of a step are shortened to this norm together (0: not)"
    )
    updates: str = choice(
        "touched",
        ("touched", "all"),
        "touched: a step updates the rows of its batch; all: every row, as a dense variable trains",
    )

    def check(self) -> None:
        refuse_if(
            self.dense.max_norm, "dense.max_norm: a maximum norm is for rows; dense takes bound"
        )
        refuse_if(self.dense.lazy_l2, "dense.lazy_l2: it is for rows; dense takes l2")
        refuse_if(
            self.dense.initial_gradients is not None,
            "dense.initial_gradients: it is for rows; dense takes initial_accumulator",
        )

    def check_compat(self, compat: str | None) -> None:
        """Raise UserError for settings and rules that TensorNet's formulas do not have."""
        of_rows = {"linear": self.linear, "embedding": self.embedding}
        for group, optimizers in self.groups.items():
            of_rows |= {f"groups.{group}.linear": optimizers.linear or Optimizer()}
            of_rows |= {f"groups.{group}.embedding": optimizers.embedding or Optimizer()}
        for place, optimizer in {"dense": self.dense, **of_rows}.items():
            by_formula = compat == "tensornet" or optimizer.name.startswith("tensornet")
            for setting in ("gradient_decay", "momentum_decay"):
                refuse_if(
                    getattr(optimizer, setting) is not None
                    and not (place == "dense" and by_formula),
                    f"optimizer.{place}.{setting} is a setting of dense adagrad with "
                    "compat=tensornet; leave it out",
                )
        rule = f"tensornet_{self.dense.name}" if compat == "tensornet" else self.dense.name
        refuse_if(
            rule == "tensornet_ftrl",
            "TensorNet has no ftrl for dense weights (its kernel is empty). Take "
            "optimizer.dense.name=adam or adagrad",
        )
        refuse_if(
            rule == "tensornet_adagrad" and self.dense.settings(rule)["momentum_decay"] == 1,
            "TensorNet's dense adagrad never moves with its default momentum_decay of 1. Give "
            "optimizer.dense.momentum_decay below 1, such as 0.9, or take another optimizer",
        )
