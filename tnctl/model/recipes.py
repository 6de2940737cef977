"""A recipe by its name: the function `build(inputs, **settings)` of a file in recipes/."""

import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from tnctl import shipped
from tnctl.errors import UserError, did_you_mean


def load(name: str) -> Callable[..., Any]:
    """The `build` of a shipped recipe."""
    if name not in shipped.recipes():
        raise UserError(f"no recipe '{name}'. {did_you_mean(name, shipped.recipes())}")
    build: Callable[..., Any] = import_module(f"tnctl.recipes.{name}").build
    return build


def settings_of(recipe: dict[str, Any], build: Callable[..., Any]) -> dict[str, Any]:
    """The settings of a conf's recipe, refused when `build` does not take one of them."""
    known = [name for name in inspect.signature(build).parameters if name != "inputs"]
    settings = {key: value for key, value in recipe.items() if key != "name"}
    for key in settings:
        if key not in known:
            raise UserError(
                f"recipe {recipe['name']} has no setting '{key}'. {did_you_mean(key, known)}"
            )
    return settings


def source_of(name: str) -> Path:
    """The file of a recipe, whose digest a checkpoint records."""
    return Path(inspect.getfile(load(name)))
