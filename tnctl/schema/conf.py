"""A whole conf, and the rules between its sections."""

import keyword
from dataclasses import dataclass, replace
from typing import Any

from tnctl.errors import UserError, did_you_mean, refuse_if
from tnctl.schema.cluster_section import Cluster, Tls
from tnctl.schema.data_section import Data, Gate
from tnctl.schema.declarations import Section, choice, key, number
from tnctl.schema.input_sections import (
    SLOT_NAME,
    Crosses,
    Embedding,
    Numeric,
    Position,
    Slot,
    time_columns,
)
from tnctl.schema.life_section import Admission, Eviction, GroupLife, Life, RowLife, Shows
from tnctl.schema.optimizer_section import Optimizers
from tnctl.schema.paths_section import Paths
from tnctl.schema.training_sections import Baseline, Evaluation, Monitor, Save, Train, Warm

# Names that the split graph and the exported files already use; TensorFlow uses self.
RESERVED_NAMES = {"linear", "x", "sequences", "lengths", "logits", "predictions", "self"}
# Keys that must be equal in all slots of a share group.
SHARED_BY_A_GROUP = (
    "ids", "seed", "size", "vocabulary", "vocabulary_file", "oov", "boundaries",
    "initial", "initial_scale", "vectors", "width", "linear", "max_norm", "frozen",
)  # fmt: skip


def can_name_input(name: str) -> bool:
    """Whether a name can be that of a slot or number, which are arguments of the graph."""
    taken = name in RESERVED_NAMES or keyword.iskeyword(name) or name[:1] == "_"
    return SLOT_NAME.fullmatch(name) is not None and not taken


@dataclass
class Conf(Section):
    """A run, from files to a trained model."""

    seed: int = number(1, 0, 2**63 - 1, "of initial weights and of the order of examples")
    output: str = key("runs/${hydra:job.config_name}", "the folder or URL of the run")
    compat: str | None = choice(
        None,
        ("tensornet",),
        "tensornet: adagrad, adam and ftrl by TensorNet's formulas, and new weights, linear ones "
        "too, from N(0, 1/width) times embedding.initial.scale; conf=tensornet has its rates",
    )
    recipe: dict[str, Any] = key(
        dict, "the dense model: its name, or the .py file of your own, and its settings"
    )
    slots: dict[str, Slot] = key(dict, "the inputs that are feature ids, by name")
    crosses: Crosses = key(Crosses, "all pairs or triples of slots; a checkpoint has them as slots")
    numeric: dict[str, Numeric] = key(dict, "the inputs that are numbers, by name")
    position: Position = key(Position, "where examples were shown, which is not served")
    embedding: Embedding = key(Embedding, "the rows of every slot")
    optimizer: Optimizers = key(Optimizers, "which optimizer trains which weights")
    data: Data = key(Data, "the input files and how to read them")
    train: Train = key(Train, "the training loop")
    evaluation: Evaluation = key(Evaluation, "evaluation while training")
    baseline: Baseline = key(Baseline, "boosted trees on the same data, beside the recipe")
    save: Save = key(Save, "checkpoints")
    life: Life = key(Life, "admission, show and click, eviction of rows")
    gate: Gate = key(Gate, "daily training: what a day must look like")
    warm: Warm = key(Warm, "starting from a checkpoint of another conf")
    cluster: Cluster = key(Cluster, "training by several processes; no checkpoint keeps it")
    monitor: Monitor = key(Monitor, "where figures of training are written; no checkpoint keeps it")
    paths: Paths = key(Paths, "where relative paths start")

    def check(self) -> None:
        # From here on they are slots like others.
        self.slots, self.crosses = self.crosses.expanded(self.slots), Crosses()
        refuse_if(not self.output.strip(), "output is empty. Give the folder or URL of the run")
        name = self.recipe.get("name")
        refuse_if(
            not isinstance(name, str),
            f"recipe needs a name: choose one with recipe=deepfm or recipe=lr. Received: {name}",
        )
        self._check_names()
        self._check_times()
        self.optimizer.check_compat(self.compat)
        self._check_labels()
        self._check_groups()
        self._check_rows()
        self._check_position()
        self._check_life()
        inputs = self.slots | self.numeric
        for name in [name for name in self.gate.exempt if name not in inputs]:
            raise UserError(
                f"gate.exempt: no slot and no numeric input is called {name}. "
                f"{did_you_mean(name, inputs)}"
            )

    def root_of(self, key: str) -> str | None:
        """What the names of files of a key start from, a folder or URL; None: the working folder.

        The key is such as data.train, or that of a vocabulary.
        """
        root = self.data.root
        return self.paths.path("data.root", root) if root else self.paths.start(key)

    @property
    def recipe_name(self) -> str:
        """The name of a shipped recipe, or the path of the user's file from where it starts."""
        name: str = self.recipe["name"]
        return self.paths.path("recipe.name", name) if name.endswith(".py") else name

    @property
    def rows_of_step(self) -> int:
        """The examples of a step: the batch, of all workers that take a step together."""
        return self.train.batch_rows * self.cluster.workers_of_step

    @property
    def tls(self) -> Tls:
        """`cluster.tls` with paths from where they start."""
        tls = self.cluster.tls
        names = [name for name in ("certificate", "authority", "key") if getattr(tls, name)]
        paths = {name: self.paths.path(f"cluster.tls.{name}", getattr(tls, name)) for name in names}
        return replace(tls, **paths)

    def _check_names(self) -> None:
        """Inputs become arguments of the graph, by their names."""
        refuse_if(
            not self.slots and not self.numeric,
            "the conf names no inputs; give slots or numeric, or choose data=NAME",
        )
        for section, names in (("slots", self.slots), ("numeric", self.numeric)):
            for name in names:
                refuse_if(
                    not can_name_input(name),
                    f"{section}.{name} is not a name a graph can use. Take letters, digits "
                    "and _, a letter first, no keyword of Python and not "
                    f"{', '.join(sorted(RESERVED_NAMES))}; `column` may be anything",
                )
        for name in sorted(self.slots.keys() & self.numeric.keys()):
            raise UserError(f"{name} names a slot and a numeric input; rename one of them")
        for name, slot in self.slots.items():
            refuse_if(
                slot.pooling == "none" and f"{name}_length" in self.slots | self.numeric,
                f"slots.{name} is a sequence, and {name}_length is how the graph calls its "
                "length; rename the input of this name, its `column` may be anything",
            )

    def _check_times(self) -> None:
        """A misspelt column would silently have the default format and offset."""
        read = time_columns(self.slots, self.numeric)
        for column in [column for column in self.data.times if column not in read]:
            raise UserError(
                f"data.times.{column}: no slot and no numeric input reads times from column "
                f"{column}. Give one ids=hour, or since; or leave it out"
            )

    def _check_labels(self) -> None:
        refuse_if(
            self.data.negatives < 1 and self.train.loss.name != "cross_entropy",
            "data.negatives corrects the logits of train.loss=cross_entropy only. "
            f"Received: loss={self.train.loss.name}",
        )
        refuse_if(
            self.data.negatives < 1 and self.data.labels,
            "data.negatives is for one label; the conf has data.labels",
        )
        refuse_if(
            self.evaluation.monitor == "gauc" and self.data.group is None,
            "evaluation.monitor=gauc needs data.group, the column of the groups",
        )
        refuse_if(
            self.evaluation.ndcg_at is not None and self.data.group is None,
            "evaluation.ndcg_at needs data.group, the column of the groups that are ranked",
        )
        refuse_if(
            self.evaluation.monitor == "ndcg" and self.evaluation.ndcg_at is None,
            "evaluation.monitor=ndcg needs evaluation.ndcg_at=K, the last rank that counts",
        )

    def _check_groups(self) -> None:
        """Slots of one group share rows, so what makes rows and ids must agree.

        And every group that the optimizer or `life` has rules for must be a slot's.
        """
        groups: dict[str, tuple[str, Slot]] = {}
        for name, slot in self.slots.items():
            if slot.indicator:
                continue
            group = slot.group or name
            first_name, first = groups.setdefault(group, (name, slot))
            for setting in SHARED_BY_A_GROUP:
                values = [getattr(first, setting), getattr(slot, setting)]
                # Not refuse_if: the message of vocabularies takes long to format.
                if values[0] != values[1]:
                    shown = ["the default" if value is None else value for value in values]
                    raise UserError(
                        f"slots {first_name} and {name} share the rows of group {group}, so their "
                        f"{setting} must be the same. Received: {setting}={shown[0]} and "
                        f"{setting}={shown[1]}"
                    )
        for section, names in (("optimizer", self.optimizer.groups), ("life", self.life.groups)):
            for group in [group for group in names if group not in groups]:
                raise UserError(
                    f"{section}.groups.{group}: no slot has this group. "
                    f"{did_you_mean(group, groups)}"
                )

    def _check_rows(self) -> None:
        """Every slot must be an input of the model, by itself or in a cross."""
        crossed = {name for slot in self.slots.values() for name in slot.cross or ()}
        for name, slot in self.slots.items():
            for part in slot.cross or ():
                refuse_if(
                    part in self.slots and self.slots[part].cross is not None,
                    f"slots.{name}: {part} is a cross itself; name its columns instead",
                )
                refuse_if(
                    slot.side == "user" and part in self.slots and self.slots[part].side == "item",
                    f"slots.{name} is not the user's: slots.{part} is of items. Leave side out, or "
                    f"give slots.{part}.side=user",
                )
            if slot.indicator:
                continue
            refuse_if(
                slot.pooling == "none" and not self.width_of(slot),
                f"slots.{name}: pooling=none needs a width above 0",
            )
            refuse_if(
                slot.vectors is not None and not self.embedding.width,
                f"slots.{name}: vectors are read embedding.width wide. Give it a width above 0",
            )
            refuse_if(
                not self.width_of(slot) and not self.has_linear(slot) and name not in crossed,
                f"slots.{name} has width 0 and no linear weight, so it is no input. Give it "
                "one of them, or use it in a cross",
            )

    def _check_position(self) -> None:
        """What is not served must be in no other input, and in no sum with others."""
        name = self.position.slot
        if name is None:
            return
        refuse_if(
            name not in self.slots,
            f"position.slot: no slot is called {name}. {did_you_mean(name, self.slots)}",
        )
        slot = self.slots[name]
        refuse_if(
            slot.pooling == "none" or not self.width_of(slot) or slot.linear or slot.vectors,
            f"position.slot={name} needs a pooled embedding and no linear weight: give "
            f"slots.{name} a width, and leave pooling=none, indicator, linear and vectors out",
        )
        self.slots[name] = replace(slot, linear=False)
        rows, columns = slot.group or name, {name, slot.column}
        others = [
            other
            for other, of in self.slots.items()
            if other != name and ((of.group or other) == rows or columns & {*(of.cross or ())})
        ]
        refuse_if(
            others,
            f"position.slot={name} is not served, but slots.{', '.join(others)} has its rows or "
            "crosses it. Give it a group of its own, and make a cross the position.slot instead",
        )
        refuse_if(
            self.position.combine == "multiply" and self.train.loss.name == "mse",
            "position.combine=multiply multiplies probabilities; train.loss=mse has none. Take add",
        )

    def _check_life(self) -> None:
        """Rows that are counted, admitted or removed must be trained, and have what that needs."""
        of_all = self._merged_life(GroupLife())
        lives = {"life": of_all}
        for group, settings in self.life.groups.items():
            lives[f"life.groups.{group}"] = life = self._merged_life(settings)
            members = [slot for name, slot in self.slots.items() if (slot.group or name) == group]
            refuse_if(
                members[0].frozen and settings != GroupLife(),
                f"life.groups.{group}: its rows are frozen, so they are never updated, and "
                "nothing of `life` is for them. Leave it out",
            )
            refuse_if(
                settings.shows is not None and life.shows.cvm and not self.width_of(members[0]),
                f"life.groups.{group}.shows.cvm follows an embedding, and its slots have "
                "width 0. Give them a width, or take shows.keep",
            )
        refuse_if(
            of_all.shows.cvm and not any(map(self.width_of, self.slots.values())),
            "life.shows.cvm follows embeddings, and no slot has one. Give "
            "embedding.width, or take shows.keep",
        )
        for section, life in lives.items():
            refuse_if(
                life.eventful and self.optimizer.updates == "all",
                f"optimizer.updates=all has every row from the start and updates it at every "
                f"step: leave {section} out, or take updates=touched",
            )
            refuse_if(
                self.train.loss.name == "mse"
                and (life.shows.cvm or life.eviction.score is not None),
                f"{section} counts clicks, labels of 0 and 1; train.loss=mse has none. Leave "
                "cvm and score out",
            )

    def check_training(self) -> None:
        """Refuse what several workers cannot train, though they can read such a model.

        They do not train every row at each step. Raises UserError.
        """
        if self.cluster.start is None:
            return
        refuse_if(
            self.cluster.cpus is not None and self.cluster.start != "ray",
            "cluster.cpus is for cluster=ray; other workers share the CPUs of their machine. "
            "Leave it out",
        )
        way = f"Leave it out, or train on one machine, without cluster={self.cluster.start}"
        refuse_if(
            self.optimizer.updates == "all",
            f"optimizer.updates=all is not for several workers yet. {way}",
        )
        refuse_if(self.baseline.enabled, f"baseline is for one process. {way}")
        workers = self.cluster.workers
        refuse_if(
            workers is not None and self.cluster.backup >= workers,
            f"cluster.backup={self.cluster.backup} leaves no worker for a step: it must be below "
            f"cluster.workers={workers}",
        )
        refuse_if(
            self.train.deterministic and self.cluster.mode != "sync",
            f"train.deterministic=true is for cluster.mode=sync: with {self.cluster.mode} the "
            "order in which batches are applied is that of their arrival",
        )
        refuse_if(
            self.train.deterministic and self.cluster.backup > 0,
            f"train.deterministic=true is for cluster.backup=0. With cluster.backup="
            f"{self.cluster.backup} the time of arrival decides whose batch is left out",
        )
        refuse_if(
            self.cluster.backup and self.cluster.mode == "async",
            "cluster.backup is for cluster.mode=sync: with async no worker waits for another. "
            "Leave it out",
        )
        refuse_if(
            self.optimizer.clip_norm > 0 and self.cluster.mode != "sync",
            f"optimizer.clip_norm is for cluster.mode=sync: with {self.cluster.mode} no owner has "
            "a whole gradient. Leave it out, or take cluster.mode=sync",
        )
        refuse_if(
            self.cluster.staleness is not None and self.cluster.mode == "sync",
            "cluster.staleness is for cluster.mode=async: with sync no worker is ahead of another. "
            "Leave it out",
        )

    def life_of(self, group: str) -> RowLife:
        """The life of a share group's rows: as set for the group, else for all.

        Frozen rows have none: nothing updates them, so they would all seem unseen.
        """
        if any(slot.frozen for name, slot in self.slots.items() if (slot.group or name) == group):
            return RowLife(Admission(), Shows(), Eviction())
        return self._merged_life(self.life.groups.get(group, GroupLife()))

    def _merged_life(self, group: GroupLife) -> RowLife:
        return RowLife(
            group.admission or self.life.admission,
            group.shows or self.life.shows,
            group.eviction or self.life.eviction,
        )

    def cvm_of(self, name: str) -> bool:
        """Whether two counts follow the embedding of a slot."""
        slot = self.slots[name]
        return self.width_of(slot) > 0 and self.life_of(slot.group or name).shows.cvm

    def width_of(self, slot: Slot) -> int:
        """Floats per embedding of a slot."""
        width = self.embedding.width if slot.width is None else slot.width
        return 0 if slot.indicator else width

    def has_linear(self, slot: Slot) -> bool:
        """Whether the rows of a slot have a linear weight."""
        linear = self.embedding.linear if slot.linear is None else slot.linear
        return linear and not slot.indicator
