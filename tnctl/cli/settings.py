"""The settings of a recipe, read from its source: neither Keras nor the user's code is run."""

import ast
from pathlib import Path
from typing import Any

from tnctl import shipped
from tnctl.model import Tower


def settings_of(recipe: Any) -> dict[str, str] | None:
    """Setting -> default as written in the file, of a shipped recipe's name or a .py file's.

    None when the file or its `build` cannot be found or takes any setting: loading it will tell.
    """
    if not isinstance(recipe, str):
        return None
    own = recipe.endswith(".py")
    path = Path(recipe) if own else shipped.folder("recipes") / f"{recipe}.py"
    if not path.is_file():  # a pipe would wait for somebody who writes
        return None
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "build":
            return _defaults(node.args)
    return None


def _defaults(taken: ast.arguments) -> dict[str, str] | None:
    if taken.kwarg is not None:
        return None
    positional = [*taken.posonlyargs, *taken.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(taken.defaults))
    pairs = list(zip(positional, [*defaults, *taken.defaults], strict=True))
    pairs += zip(taken.kwonlyargs, taken.kw_defaults, strict=True)
    settings: dict[str, str] = {}
    for parameter, default in pairs:
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
