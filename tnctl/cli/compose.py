"""From `conf=NAME key=value …` to a checked Conf, by Hydra; its errors in one line."""

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

from tnctl import schema, shipped
from tnctl.errors import UserError, did_you_mean
from tnctl.schema import Conf

SETTINGS = [
    # A run writes under its output and nowhere else, and logs there itself.
    "hydra.run.dir=.",
    "hydra.output_subdir=null",
    "hydra/job_logging=none",
    "hydra/hydra_logging=none",
]


def conf_file(name: str) -> Path:
    """The file of `conf=NAME`: a shipped name, or a path that ends in .yaml."""
    if name.endswith((".yaml", ".yml")):
        path = Path(name).resolve()
        if not path.is_file():
            raise UserError(
                f"no conf file {name}. Check the path, or take a shipped one. {choose_conf('')}"
            )
        return path
    path = shipped.folder("conf") / f"{name}.yaml"
    if name not in shipped.confs():
        raise UserError(f"no conf '{name}'. {choose_conf(name)}")
    return path


def choose_conf(received: str) -> str:
    return did_you_mean(received, shipped.confs())


def with_conf(path: Path, overrides: list[str], job: Callable[[Conf], int]) -> int:
    """Compose a conf file with overrides and run the job with it; returns the exit code.

    `--cfg job` prints the conf instead of running.
    """
    home, library = path.parent, shipped.folder("conf")
    arguments = list(SETTINGS)
    if home != library:
        # The user's own folder first: what it has wins over what is shipped.
        arguments.append(f"hydra.searchpath=['file://{library}']")
    return hydra_main(home, path.stem, [*arguments, *overrides], job)


def with_saved(values: dict[str, Any], overrides: list[str], job: Callable[[Conf], int]) -> int:
    """As with_conf, with the conf that a checkpoint carries."""
    with TemporaryDirectory(prefix="tnctl-conf-") as folder:
        saved = {"defaults": ["schema", "_self_"], **values}
        (Path(folder) / "saved.yaml").write_text(json.dumps(saved))
        return hydra_main(Path(folder), "saved", [*SETTINGS, *overrides], job)


def hydra_main(folder: Path, name: str, arguments: list[str], job: Callable[[Conf], int]) -> int:
    """What @hydra.main does, with the primary conf chosen at run time."""
    import hydra
    from omegaconf import DictConfig

    schema.register()
    codes: list[int] = []
    mistakes: list[UserError] = []

    def task(composed: DictConfig) -> None:
        # Raised through Hydra it would be printed twice.
        try:
            codes.append(job(conf_of(composed, arguments)))
        except UserError as mistake:
            mistakes.append(mistake)

    # Hydra raises its errors instead of printing them over several lines.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    sys.argv = ["tnctl", *options_first(arguments)]
    check_options(sys.argv[1:])
    try:
        hydra.main(version_base="1.3", config_path=str(folder), config_name=name)(task)()
    except UserError:
        raise
    except SystemExit as stop:
        if stop.code in (0, None):
            return 0
        raise UserError(f"Hydra refused {' '.join(arguments[len(SETTINGS) :])}") from None
    except Exception as error:
        raise explained(error, arguments) from error
    if mistakes:
        raise mistakes[0]
    return max(codes, default=0)


def options_first(arguments: list[str]) -> list[str]:
    """Options such as `--cfg job` before the overrides: Hydra takes none in between."""
    options: list[str] = []
    overrides: list[str] = []
    after_option = False
    for argument in arguments:
        is_option = argument.startswith("-")
        is_value = after_option and re.fullmatch(r"[\w.]+", argument) is not None
        (options if is_option or is_value else overrides).append(argument)
        after_option = is_option
    return [*options, *overrides]


def check_options(arguments: list[str]) -> None:
    """Refuse an option that Hydra does not have, in one line where Hydra prints its usage."""
    from hydra._internal.utils import get_args_parser

    def refuse(message: str) -> NoReturn:
        raise UserError(f"{message}. The options are --help and --cfg job")

    parser = get_args_parser()
    parser.error = refuse  # type: ignore[method-assign]
    parser.parse_args(arguments)


def conf_of(composed: Any, arguments: list[str]) -> Conf:
    """The checked dataclasses of a composed conf."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        if missing := sorted(OmegaConf.missing_keys(composed)):
            raise UserError(f"{missing[0]} is not given. Say {missing[0]}=…")
        values = OmegaConf.to_container(composed, resolve=True)
    except OmegaConfBaseException as error:
        raise explained(error, arguments) from error
    return schema.from_values(values)  # type: ignore[arg-type]


def explained(error: Exception, arguments: list[str]) -> Exception:
    """A UserError in one line for what Hydra and OmegaConf raise; other errors as they are."""
    import yaml
    from hydra.errors import HydraException, OverrideParseException
    from omegaconf.errors import OmegaConfBaseException

    cause = error.__cause__
    text = str(error) + ("\n" + str(cause) if isinstance(cause, OmegaConfBaseException) else "")
    if isinstance(error, OverrideParseException):
        return UserError(
            f"cannot read the argument {error.override}. Give key=value; a value with blanks or "
            "any of ,{}[]()# goes in quotes: \"key='value'\""
        )
    if isinstance(error, yaml.YAMLError):
        return UserError(f"the conf is not YAML: {error}")
    if not isinstance(error, HydraException | OmegaConfBaseException):
        return error
    if found := re.search(r"Could not find '(.+?)/([^/']+)'", text):
        options = re.findall(r"^\t(\S+)", text, re.M)
        return UserError(f"no {found[1]} '{found[2]}'. {did_you_mean(found[2], options)}")
    if found := re.search(r"Could not (?:override|append)[^']*'(\S+?)'", text):
        return key_error(found[1], text)
    key = next(iter(re.findall(r"full_key: (\S+)", text)), "")
    if found := re.search(r"(?:Key|key) '(\S+)' (?:is )?not in", text):
        return key_error(key or found[1], text)
    if found := re.search(r"Value '(.*)' (?:of type '.*' )?could not be converted to (\w+)", text):
        given = next((a for a in arguments if a.startswith(f"{key}=")), f"{key}={found[1]}")
        return UserError(f"{key} must be {TYPES.get(found[2], found[2])}. Received: {given}")
    if found := re.search(r"Value '(.*)' is not a valid (bool)", text):
        return UserError(f"{key} must be {TYPES[found[2]]}. Received: {key}={found[1]}")
    if found := re.search(r"UserError raised while resolving interpolation: (.*)", text):
        return UserError(found[1])  # of ${required:KEY}
    if found := re.search(r"override \+*([\w.]+).*\nInvalid type assigned", text):
        return branch_error(found[1])
    return UserError(" ".join(text.split("\n")[:2]))


def branch_error(key: str) -> UserError:
    """One value for what holds keys, or a key of a named input that the conf does not have."""
    group, *names = key.split(".")
    if group in ("slots", "numeric") and names:
        return UserError(
            f"cannot set {key} so. Change {group}.{names[0]}.column=… of an input of the conf, or "
            f'add an input with "+{group}={{{names[0]}: {{column: NAME}}}}"'
        )
    keys = [known for known in schema.sentences() if known.startswith(f"{key}.")]
    return UserError(f"{key} takes no value, its keys do: {', '.join(keys)}")


TYPES = {"Integer": "a whole number", "Float": "a number", "bool": "true or false"}


def key_error(key: str, text: str) -> UserError:
    """An unknown key, with the nearest known one; of a named input its own keys count."""
    known = set(schema.sentences()) | {"data", "recipe"}
    parts = key.split(".")
    if parts[0] in ("slots", "numeric") and len(parts) == 3:
        known = {name.replace("NAME", parts[1]) for name in known}
    if parts[0] == "recipe":
        known |= recipe_settings()
    if key in known and len(parts) == 3:
        return UserError(f"the conf has no {parts[0]}.{parts[1]}; --cfg job shows what it has")
    if key in known and "must be" not in text:
        return UserError(" ".join(text.split("\n")[:2]))
    return UserError(f"no key '{key}'. {did_you_mean(key, known) if nearest(key, known) else HINT}")


def recipe_settings() -> set[str]:
    """The settings of all shipped recipes, as keys of a conf."""
    import yaml

    confs = (shipped.folder("conf") / "recipe").glob("*.yaml")
    return {f"recipe.{key}" for path in confs for key in yaml.safe_load(path.read_text())["recipe"]}


HINT = "`tnctl train --help` lists every key."


def nearest(key: str, known: set[str]) -> bool:
    import difflib

    return bool(difflib.get_close_matches(key, known, n=1, cutoff=0.6))
