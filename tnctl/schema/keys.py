"""Every key of a conf by its path, such as optimizer.dense.name."""

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from tnctl.errors import UserError, quoted
from tnctl.schema.conf import Conf
from tnctl.schema.declarations import Declaration, default_of

NAME = "NAME"  # in paths, a name that the user chooses
_RATES = ("optimizer.dense.learning_rate", "optimizer.embedding.learning_rate",
          "optimizer.linear.learning_rate")  # fmt: skip
# Last names of keys in other programs, or in other sections, and the keys that are meant.
SYNONYMS: dict[str, tuple[str, ...]] = {
    "learning_rate": _RATES,
    "lr": _RATES,
    "optimizer": ("optimizer.dense.name", "optimizer.embedding.name", "optimizer.linear.name"),
    "batch": ("train.batch_size",),
    "batch_size": ("train.batch_size",),
    "epoch": ("train.epochs",),
    "epochs": ("train.epochs",),
    "loss": ("train.loss.name",),
    "num_threads": ("train.threads",),
    "threads": ("train.threads",),
    "num_workers": ("cluster.workers",),
    "workers": ("cluster.workers",),
    "dim": ("embedding.width",),
    "embedding_dim": ("embedding.width",),
    "embedding_size": ("embedding.width",),
    "early_stopping": ("evaluation.patience",),
    "patience": ("evaluation.patience",),
    "metric": ("evaluation.monitor",),
    "metrics": ("evaluation.monitor",),
    "every": ("save.every_steps", "evaluation.every_steps"),
    "nodes": ("cluster.workers",),
    "precision": ("train.precision",),
    "width": ("embedding.width",),
    "baseline": ("baseline.enabled",),
    "label": ("data.label.column",),
    "train": ("data.train",),
    "validation": ("data.validation",),
    "test": ("data.test",),
    "seed": ("seed",),
}
_CPUS = "tnctl computes on CPUs; train.threads is the number of threads"
SENTENCES = {
    "device": _CPUS,
    "gpu": _CPUS,
    "gpus": _CPUS,
    "cuda": _CPUS,
    "step": "checkpoint=OUTPUT/checkpoints/step-… names the checkpoint of a step",
}
# Keys of earlier versions, and what to do instead.
REMOVED: dict[str, str] = {
    "cluster.min_workers": "After cluster.patience the command ends with exit code 75 and says for "
    "how many workers there is room: give that cluster.workers",
}


@dataclass(frozen=True)
class Key:
    """A key at one place of a conf: its class and name there, type, default and declaration."""

    owner: Any
    name: str
    hint: Any
    default: Any
    declaration: Declaration


def all_keys(cls: Any = Conf, path: str = "", defaults: Any = None) -> dict[str, Key]:
    """Every key by its path, in the order of the classes.

    `defaults` is an object of the class that holds its defaults at this place.
    """
    keys: dict[str, Key] = {}
    hints = hints_of(cls)
    for declared in dataclasses.fields(cls):
        hint, place = hints[declared.name], path + declared.name
        default = getattr(defaults, declared.name, default_of(declared))
        if (section := dataclass_of(hint)) is not None:
            keys |= all_keys(section, f"{place}.", default)
        elif get_origin(hint) is dict and dataclasses.is_dataclass(get_args(hint)[1]):
            keys |= all_keys(get_args(hint)[1], f"{place}.{NAME}.")
        else:
            keys[place] = Key(cls, declared.name, hint, default, declared.metadata["declaration"])
    return keys


@cache
def hints_of(cls: Any) -> Mapping[str, Any]:
    """The type of each key of a section."""
    hints = get_type_hints(cls)  # which takes long, and a conf has thousands of slots
    return {declared.name: hints[declared.name] for declared in dataclasses.fields(cls)}


def hint_of(key: str) -> Any:
    """The type of a key, or of a section, by its path with the user's names. Raises UserError."""
    hint: Any = Conf
    names = key.split(".")
    for place, name in enumerate(names):
        if (section := dataclass_of(hint)) is not None:
            hint = hints_of(section).get(name)
        elif get_origin(hint) is dict:
            hint = get_args(hint)[1]
        else:
            parent = ".".join(names[:place])
            raise UserError(f"{parent} is a value and has no keys. Give {parent}=…")
        if hint is None:
            raise no_key(key)
    return hint


def dataclass_of(hint: Any) -> Any:
    """The dataclass of a hint, also of `X | None`; None for any other."""
    if get_origin(hint) is dict:
        return None
    return next((kind for kind in (hint, *get_args(hint)) if dataclasses.is_dataclass(kind)), None)


def branches() -> list[str]:
    """The keys under which the user makes names, such as slots and numeric."""
    marked = (path.partition(f".{NAME}.") for path in all_keys())
    return list(dict.fromkeys(branch for branch, mark, _ in marked if mark))


def keys_like(path: str) -> dict[str, Key]:
    """Every key, with the names of `path` in it: slots.user.width when it is slots.user.x."""
    keys = all_keys()
    for branch in branches():
        if path.startswith(f"{branch}."):
            named = f"{branch}.{path.removeprefix(f'{branch}.').split('.')[0]}."
            keys = {key.replace(f"{branch}.{NAME}.", named): known for key, known in keys.items()}
    return keys


def no_key(key: str) -> UserError:
    """The error of a key that does not exist, with a key that is probably meant."""
    if key in REMOVED:
        return UserError(f"tnctl no longer has the key '{key}'. {REMOVED[key]}")
    way = meant_key(key) or "`tnctl train --help` lists every key"
    return UserError(f"no key '{key}'. {way}")


def meant_key(key: str) -> str:
    """What a synonym stands for, or the nearest name of the same section, or nothing."""
    names = key.split(".")
    meant = SYNONYMS.get(names[-1], ())
    type_there: Any = Conf
    for place, name in enumerate(names):
        if (section := dataclass_of(type_there)) is None:
            if get_origin(type_there) is not dict:
                break
            type_there = get_args(type_there)[1]
        elif name in hints_of(section):
            type_there = hints_of(section)[name]
        else:
            keys = hints_of(section)
            near = difflib.get_close_matches(name, keys, n=1, cutoff=0.7)
            if place == len(names) - 1 and meant:
                last_names = dict.fromkeys(key.rpartition(".")[2] for key in meant)
                near = [n for n in last_names if n in keys and dataclass_of(keys[n]) is None]
            if near:
                meant = tuple(".".join([*names[:place], last]) for last in near)
            break
    if not meant:
        return SENTENCES.get(names[-1], "")
    *others, last = map(quoted, meant)
    return f"Did you mean {', '.join(others)}{' or ' if others else ''}{last}?"
