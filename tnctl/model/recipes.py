"""A recipe by its name: the function `build(inputs, **settings)` of a file in recipes/."""

import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

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
    hints = get_type_hints(build)
    known = [name for name in inspect.signature(build).parameters if name != "inputs"]
    settings = {key: value for key, value in recipe.items() if key != "name"}
    for key in settings:
        if key not in known:
            raise UserError(
                f"recipe {recipe['name']} has no setting '{key}'. {did_you_mean(key, known)}"
            )
        hint = hints.get(key)
        if not fits(settings[key], hint):
            of = "".join(f" of {one.__name__}" for one in get_args(hint))
            kind = f"{getattr(hint, '__name__', hint)}{of}"
            raise UserError(f"recipe.{key} must be {kind}. Received: recipe.{key}={settings[key]}")
    return settings


def fits(value: Any, hint: Any) -> bool:
    """Whether a value from a conf is of the type that a recipe declares."""
    if get_origin(hint) is Sequence:
        return isinstance(value, list | tuple) and all(fits(v, get_args(hint)[0]) for v in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is hint if hint in (int, str, bool) else True


def source_of(name: str) -> Path:
    """The file of a recipe, whose digest a checkpoint records."""
    return Path(inspect.getfile(load(name)))
