"""The settings of a recipe, read from its source: neither Keras nor the user's code is run."""

import ast
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tnctl import shipped


@dataclass(frozen=True)
class Tower:
    """The settings of a tower, as a parameter `tower: Tower` of a recipe.

    Its fields are settings of the recipe like any other (`recipe.hidden=[64,32]`); the default of
    the parameter has their defaults. `layers.Mlp` explains them; docs/recipes.md has them all.
    """

    hidden: Sequence[int] = (400, 400, 400)
    activation: str = "relu"
    batch_norm: bool = False
    dropout: float = 0.0
    residual: bool = False
    l2: float = 0.0


def settings_of(recipe: Any) -> dict[str, str] | None:
    """Setting -> default as written in the file, of a shipped recipe's name or a .py file's.

    None when the file or its `build` cannot be found or takes any setting: then loading it raises.
    """
    path = Path(str(recipe))
    if path.suffix != ".py":
        path = shipped.folder("recipes") / f"{recipe}.py"
    if not path.is_file():  # reading a pipe would wait for a writer
        return None
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "build":
            return None if node.args.kwarg else _defaults(node.args)
    return None


@functools.cache
def defaults_of(recipe: str) -> dict[str, Any]:
    """The settings of a shipped recipe that have defaults, as JSON holds them; of others none."""
    if recipe not in shipped.recipes():
        return {}
    texts = (settings_of(recipe) or {}).items()
    values = {setting: ast.literal_eval(text) for setting, text in texts if text}
    return {
        setting: list(value) if isinstance(value, tuple) else value
        for setting, value in values.items()
    }


def _defaults(parameters: ast.arguments) -> dict[str, str]:
    positional = [*parameters.posonlyargs, *parameters.args]
    required = [None] * (len(positional) - len(parameters.defaults))
    defaults = [*required, *parameters.defaults, *parameters.kw_defaults]
    settings: dict[str, str] = {}
    for parameter, default in zip([*positional, *parameters.kwonlyargs], defaults, strict=True):
        if parameter.annotation and ast.unparse(parameter.annotation).endswith("Tower"):
            settings |= _tower(default)
        elif parameter.arg != "inputs":
            settings[parameter.arg] = ast.unparse(default) if default is not None else ""
    return settings


def _tower(default: ast.expr | None) -> dict[str, str]:
    """The settings of a parameter of type Tower, whose default is `Tower(…)`."""
    call = default if isinstance(default, ast.Call) else ast.Call(ast.Name("Tower"), [], [])
    written = dict(zip(vars(Tower()), call.args, strict=False))
    written |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    given = {name: ast.unparse(value) for name, value in written.items()}
    return {name: repr(value) for name, value in vars(Tower()).items()} | given
