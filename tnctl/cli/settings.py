"""The settings of a recipe, read from its source: neither Keras nor the user's code is run."""

import ast
from pathlib import Path
from typing import Any

from tnctl import shipped


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


def _defaults(parameters: ast.arguments) -> dict[str, str]:
    positional = [*parameters.posonlyargs, *parameters.args]
    required = [None] * (len(positional) - len(parameters.defaults))
    defaults = [*required, *parameters.defaults, *parameters.kw_defaults]
    return {
        parameter.arg: ast.unparse(default) if default is not None else ""
        for parameter, default in zip([*positional, *parameters.kwonlyargs], defaults, strict=True)
        if parameter.arg != "inputs"
    }
