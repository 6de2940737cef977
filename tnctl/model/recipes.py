"""A recipe by its name: the function `build(inputs, **settings)` of a file.

A name is the name of a shipped recipe (a file in recipes/), or the path of a user's file, ending in
.py. An error in a user's file is reported in one line, with the file and the line number.
`source_settings` reads the settings without running Keras or the user's code.
"""

import ast
import functools
import hashlib
import inspect
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tnctl import shipped
from tnctl.errors import UserError, did_you_mean

Recipe = Callable[..., Any]

# User's file -> digest of its source as loaded; the file may change while it trains.
_digests: dict[Path, str] = {}


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


def load(name: str) -> Recipe:
    """The `build` of a shipped recipe, or of the user's own file."""
    if name.endswith(".py"):
        return load_file(name)
    if name not in shipped.recipes():
        raise UserError(
            f"no recipe '{name}'. {did_you_mean(name, shipped.recipes())} A recipe of your own is "
            "the path of a file that ends in .py"
        )
    build: Recipe = import_module(f"tnctl.recipes.{name}").build
    return build


def load_file(name: str) -> Recipe:
    """The `build` of a user's file; a relative path starts at the working directory.

    Unlike an import, nothing is written beside the file: a run writes only into its output.
    """
    path, source = file_of(name), source_of(name)
    _digests[path] = hashlib.sha256(source).hexdigest()
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    with errors_as_lines(name, path):
        exec(compile(source, str(path), "exec"), module.__dict__)
    build = getattr(module, "build", None)
    if not callable(build):
        raise UserError(
            f"{name} has no function build(inputs, …) that returns the logit [B, 1]; "
            "docs/recipes.md shows one"
        )

    return errors_as_lines(name, path)(build)


def source_of(name: str) -> bytes:
    """The source of a user's file. Raises UserError when it cannot be read."""
    path = file_of(name)
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"recipe.name={name}: {path} is no file. Name the file of a recipe")
        return path.read_bytes()
    except OSError as error:
        raise UserError(
            f"recipe.name={name}: cannot read {path} ({error.strerror}). A model is built by its "
            "recipe, so its file must be where the conf says"
        ) from None


def file_of(name: str) -> Path:
    """The user's file of a name that ends in .py."""
    return Path(name).expanduser().resolve()


@contextmanager
def errors_as_lines(name: str, path: Path) -> Iterator[None]:
    """A context in which an error of a user's file becomes a UserError that names its line."""
    try:
        yield
    except Exception as error:
        line = line_of(error, path)
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        where = name if line is None else f"{name}, line {line}"
        raise UserError(f"recipe {where}: {kind}{reason_of(error)}") from error


def line_of(error: Exception, path: Path) -> int | None:
    """The innermost line of a file in the traceback of an error, or None."""
    if isinstance(error, SyntaxError):
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == str(path)), None)


def reason_of(error: Exception) -> str:
    """The message of an error, without the colors and the list of arguments that Keras adds."""
    if isinstance(error, SyntaxError):
        return error.msg
    text = re.sub(r"\x1b\[\d*m", "", str(error)).partition("Arguments received by")[0]
    return text.strip() or "(no message)"


def declared(build: Recipe) -> dict[str, inspect.Parameter]:
    """The settings of a recipe by name, as parameters; each field of a Tower is one."""
    settings = []
    for parameter in _parameters(build):
        if parameter.annotation is Tower:
            settings += [
                parameter.replace(name=field, annotation=hint, default=value)
                for (field, value), hint in zip(
                    vars(_default(parameter)).items(), get_type_hints(Tower).values(), strict=True
                )
            ]
        elif parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            settings.append(parameter)
    return {setting.name: setting for setting in settings}


def _parameters(build: Recipe) -> list[inspect.Parameter]:
    """The parameters of a recipe but the first, which is its inputs, whatever its name."""
    try:
        signature = inspect.signature(build, eval_str=True)
    except (NameError, TypeError):  # annotations with names that only a type checker knows
        signature = inspect.signature(build)
    return list(signature.parameters.values())[1:]


def _default(tower: inspect.Parameter) -> Tower:
    return tower.default if isinstance(tower.default, Tower) else Tower()


def settings_of(recipe: dict[str, Any], build: Recipe) -> dict[str, Any]:
    """The keyword arguments of `build` by a conf's recipe.

    Raises UserError for a setting that `build` does not have, or not with this value, and for one
    without a default that is not given.
    """
    settings = {key: value for key, value in recipe.items() if key != "name"}
    known, parameters = declared(build), _parameters(build)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    for key, value in settings.items():
        if key in known:
            check(f"recipe.{key}", value, known[key].annotation)
        elif not takes_any:
            raise UserError(
                f"recipe {recipe['name']} has no setting '{key}'. {did_you_mean(key, known)} "
                f"(~recipe.{key} takes it out of the conf)"
            )
    for name, setting in known.items():
        if setting.default is setting.empty and name not in settings:
            raise UserError(
                f"recipe {recipe['name']} needs recipe.{name}={spelled(setting.annotation)}"
            )
    for parameter in parameters:
        if parameter.annotation is Tower:
            fields = {key: settings.pop(key) for key in vars(Tower()) if key in settings}
            settings[parameter.name] = replace(_default(parameter), **fields)
    return settings


def check(key: str, value: Any, hint: Any) -> None:
    """Refuse a value from a conf that is not of the type that a recipe declares."""
    if fits(value, hint):
        return
    near = ""
    if get_origin(hint) is Literal and isinstance(value, str):
        near = f". {did_you_mean(value, map(str, get_args(hint)))}"
    raise UserError(f"{key} must be {spelled(hint)}. Received: {key}={value}{near}")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value from a conf is of the type that a recipe declares."""
    kind, of = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return any(fits(value, option) for option in of)
    if kind is Literal:
        return any(type(value) is type(choice) and value == choice for choice in of)
    if kind in (Sequence, list, tuple):
        return isinstance(value, list | tuple) and all(fits(entry, of[0]) for entry in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint in (None, NoneType):
        return value is None
    return type(value) is hint if hint in (int, str, bool) else True


NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def spelled(hint: Any) -> str:
    """A type in words."""
    kind, of = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return " or ".join(map(spelled, of))
    if kind is Literal:
        return " or ".join(map(str, of))
    if kind in (Sequence, list, tuple):
        return f"a list of {of[0].__name__}" if of[0] in NAMES else "a list"
    if hint in (None, NoneType):
        return "null"
    if hint is inspect.Parameter.empty:
        return "a value"
    return NAMES.get(hint, getattr(hint, "__name__", str(hint)))


def digest_of(name: str) -> str:
    """SHA-256 of a recipe's source, which a checkpoint records. A user's file is not run for it."""
    if not name.endswith(".py"):
        return hashlib.sha256(Path(inspect.getfile(load(name))).read_bytes()).hexdigest()
    return _digests.get(file_of(name)) or hashlib.sha256(source_of(name)).hexdigest()


def source_settings(recipe: Any) -> dict[str, str] | None:
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
            return None if node.args.kwarg else _written_defaults(node.args)
    return None


@dataclass(frozen=True)
class ShippedRecipe:
    """A shipped recipe: what it is, and which `inputs` of a conf it reads."""

    name: str
    sentence: str
    inputs: str


def shipped_recipes() -> list[ShippedRecipe]:
    """The recipes that `recipe=` takes: the first line of each file, and its INPUTS."""
    listed = []
    for name in shipped.recipes():
        tree = ast.parse((shipped.folder("recipes") / f"{name}.py").read_bytes())
        [inputs] = [
            ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "INPUTS"
        ]
        listed.append(ShippedRecipe(name, str(ast.get_docstring(tree)).split("\n")[0], inputs))
    return listed


@functools.cache
def defaults_of(recipe: str) -> dict[str, Any]:
    """The settings of a shipped recipe that have defaults, as JSON holds them; of others none."""
    if recipe not in shipped.recipes():
        return {}
    texts = (source_settings(recipe) or {}).items()
    values = {setting: ast.literal_eval(text) for setting, text in texts if text}
    return {
        setting: list(value) if isinstance(value, tuple) else value
        for setting, value in values.items()
    }


def _written_defaults(parameters: ast.arguments) -> dict[str, str]:
    positional = [*parameters.posonlyargs, *parameters.args]
    required = [None] * (len(positional) - len(parameters.defaults))
    defaults = [*required, *parameters.defaults, *parameters.kw_defaults]
    settings: dict[str, str] = {}
    for parameter, default in zip([*positional, *parameters.kwonlyargs], defaults, strict=True):
        if parameter.annotation and ast.unparse(parameter.annotation).endswith("Tower"):
            settings |= _written_tower(default)
        elif parameter.arg != "inputs":
            settings[parameter.arg] = ast.unparse(default) if default is not None else ""
    return settings


def _written_tower(default: ast.expr | None) -> dict[str, str]:
    """The settings of a parameter of type Tower, whose default is `Tower(…)`."""
    call = default if isinstance(default, ast.Call) else ast.Call(ast.Name("Tower"), [], [])
    written = dict(zip(vars(Tower()), call.args, strict=False))
    written |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    given = {name: ast.unparse(value) for name, value in written.items()}
    return {name: repr(value) for name, value in vars(Tower()).items()} | given
