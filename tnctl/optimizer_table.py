"""The table of optimizers in csrc/tn_optimizer.c: names, settings, defaults. It needs no numpy."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tnctl._tables import ffi, lib

Settings = Mapping[str, float | bool]  # a name -> its default


@dataclass(frozen=True)
class Kind:
    """An optimizer: its number in C, the settings beside the learning rate and the extras."""

    number: int
    settings: Settings
    rows_only: bool  # dense weights cannot have it


def _settings(first: Any) -> Settings:
    """The settings of a list of tn_setting that ends with a name that is NULL."""
    settings: dict[str, float | bool] = {}
    while first[len(settings)].name:
        setting = first[len(settings)]
        default = bool(setting.initial) if setting.type == lib.TN_SWITCH else setting.initial
        settings[ffi.string(setting.name).decode()] = default
    return settings


def _kinds() -> Iterator[tuple[str, Kind]]:
    number = 1
    while kind := lib.tn_optimizer_kind(number):
        name = ffi.string(kind.name).decode()
        yield name, Kind(number, _settings(kind.settings), bool(kind.rows_only))
        number += 1


KINDS = dict(_kinds())
# What every optimizer has beside its own settings; off at 0. max_norm is for rows only.
EXTRAS = _settings(lib.tn_optimizer_extras())
# Every setting of any optimizer, in a fixed order: checkpoints have them in it.
TYPES = {
    name: type(default)
    for settings in (*(kind.settings for kind in KINDS.values()), EXTRAS)
    for name, default in settings.items()
}
