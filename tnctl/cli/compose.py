"""From `conf=NAME key=value …` to a checked Conf, by Hydra; its errors in one line."""

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tnctl import saved_conf, schema, shipped
from tnctl.cli import arguments, conf_files
from tnctl.cli.mistakes import CHOSEN, explained, has_no_setting, one_each
from tnctl.cli.settings import settings_of
from tnctl.errors import UserError, did_you_mean
from tnctl.masking import masked
from tnctl.schema import Conf

SAVED = "saved"  # by this name Hydra knows the conf of a checkpoint


@dataclass
class Job:
    """One conf of a sweep: its overrides, and those of them that differ between jobs."""

    overrides: list[str]
    swept: dict[str, str]


def conf_file(name: str) -> Path:
    """The file of `conf=NAME`: a shipped name, or a path that ends in .yaml."""
    if name.endswith((".yaml", ".yml")):
        path = Path(name).resolve()
        if not path.is_file():
            raise UserError(
                f"no conf file {name}. Check the path, or take a shipped one. {choose_conf('')}"
            )
        if path.suffix == ".yml" or path.stem == "schema":
            raise UserError(f"a conf file is named NAME.yaml, and not schema. Rename {name}")
        conf_files.refuse_unusable(path)
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
    return _run(path.parent, path.stem, overrides, job)


def with_saved(values: dict[str, Any], overrides: list[str], job: Callable[[Conf], int]) -> int:
    """As with_conf, with the conf that a checkpoint carries; only overrides are resolved."""
    for override in overrides:
        key, equals, value = override.partition("=")
        if equals and key.lstrip("+") in CHOSEN and not value.strip("'\"").endswith(".py"):
            raise UserError(
                f"{override} chooses a file for a conf, and this model has its own. Leave it out, "
                "or name a conf with conf=NAME"
            )
    from hydra.core.config_store import ConfigStore

    saved_conf.check(values)
    # In memory, for YAML reads some texts otherwise than JSON, such as signs beyond 16 bits.
    node = {"defaults": ["schema", "_self_"], **values}
    ConfigStore.instance().store(name=SAVED, node=node)
    return _run(shipped.folder("conf"), SAVED, overrides, job)


def _run(folder: Path, name: str, overrides: list[str], job: Callable[[Conf], int]) -> int:
    options, overrides = arguments.options(overrides)
    if options.sweep:
        raise UserError("-m is for train: this command takes one conf")
    if options.show:
        from omegaconf import OmegaConf

        with _composed(folder, name, overrides) as composed:
            # Before YAML breaks long texts into lines, and a password with them.
            shown = OmegaConf.create(masked(OmegaConf.to_container(composed)))
            print(masked(OmegaConf.to_yaml(shown)), end="")
        return 0
    return job(compose(folder, name, overrides))


def compose(folder: Path, name: str, overrides: list[str]) -> Conf:
    """The checked Conf of a file in `folder` with overrides. Raises UserError."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    with _composed(folder, name, overrides) as composed:
        try:
            if missing := sorted(OmegaConf.missing_keys(composed)):
                raise UserError(f"{missing[0]} is not given. Say {missing[0]}=…")
            values = OmegaConf.to_container(composed, resolve=True)
        except OmegaConfBaseException as error:
            raise explained(error, overrides) from error
    saved_conf.refuse_unsavable(values)  # type: ignore[arg-type]
    return schema.from_values(values)  # type: ignore[arg-type]


@contextmanager
def _composed(folder: Path, name: str, overrides: list[str]) -> Iterator[Any]:
    """What Hydra makes of a file and overrides; interpolations resolve inside the block."""
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import open_dict

    spelled = [_spelled(override) for override in overrides]
    with _hydra(folder):
        try:
            composed = hydra.compose(name, [*_search(folder), *spelled], return_hydra_config=True)
        except Exception as error:
            raise _of_the_files(error, folder) or explained(error, overrides, spelled) from error
        HydraConfig.instance().set_config(composed)
        with open_dict(composed):
            del composed["hydra"]
            if "recipe" in composed:
                _fit_settings(composed["recipe"], overrides, name == SAVED)
        yield composed


def _of_the_files(error: Exception, folder: Path) -> UserError | None:
    """The key at fault, where Hydra tells only the file whose value is of another form."""
    if not (found := re.search(r"^In '(.+?)': \w+ raised while composing", str(error))):
        return None
    if "full_key: \n" not in str(error):
        return None
    return conf_files.misfit(folder, found[1])


@contextmanager
def _hydra(folder: Path) -> Iterator[None]:
    from hydra import initialize_config_dir

    schema.register()
    with initialize_config_dir(version_base="1.3", config_dir=str(folder), job_name="tnctl"):
        yield


def _search(folder: Path) -> list[str]:
    """The user's own folder first: what it has wins over what is shipped."""
    library = shipped.folder("conf")
    return [] if folder == library else [f"hydra.searchpath=['file://{library}']"]


def _spelled(override: str) -> str:
    """An override as Hydra must be told it.

    A setting of a recipe, or a name in warm.rename, need not be in the conf; a recipe may be a
    file; and `+` adds a named input, label or group, of which Hydra by itself would make a mapping
    without types.
    """
    key, equals, value = override.partition("=")
    if not equals:
        return override
    if key.startswith(("recipe.", "warm.rename.")) or key == "warm.rename":
        return f"++{override}"
    if key == "recipe" and value.strip("'\"").endswith(".py"):
        return f"++recipe.name={value}"
    name = key.lstrip("+")
    branch = next((one for one in schema.branches() if name.startswith(f"{one}.")), None)
    if not key.startswith("+") or branch is None:
        return override
    nested = value or "''"
    for part in reversed(name.removeprefix(f"{branch}.").split(".")):
        nested = f"{{{part}: {nested}}}"
    return f"++{branch}={nested}"


def keys_given(overrides: list[str]) -> set[str]:
    """The keys whose values the command line says."""
    return {override.partition("=")[0].lstrip("+") for override in overrides}


def names_recipe(overrides: list[str]) -> bool:
    """Whether the command line says which recipe it is."""
    return not keys_given(overrides).isdisjoint(("recipe", "recipe.name"))


def _fit_settings(recipe: Any, overrides: list[str], saved: bool) -> None:
    """Refuse a setting that the recipe does not have.

    When the command line chose another recipe than the conf, settings of the conf that are only
    of its own recipe are left out. A file that only a `saved` conf names is not looked at.
    """
    name, chosen = recipe.get("name"), names_recipe(overrides)
    if saved and not chosen and str(name).endswith(".py"):
        return
    if (known := settings_of(name)) is None:
        return
    keys = keys_given(overrides)
    for setting in [one for one in recipe if one != "name" and one not in known]:
        if not chosen or f"recipe.{setting}" in keys:
            raise has_no_setting(str(recipe["name"]), str(setting), known)
        del recipe[setting]


def sweep(path: Path, overrides: list[str]) -> list[Job]:
    """Every job of a sweep: `seed=1,2 recipe=lr,fm` are four, in the order given."""
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser

    with _hydra(path.parent):
        try:
            parser = OverridesParser.create(GlobalHydra.instance().config_loader())
            parsed = parser.parse_overrides(overrides)
            choices = [
                [f"{one.get_key_element()}={value}" for value in one.sweep_string_iterator()]
                if one.is_discrete_sweep()
                else [text]
                for one, text in zip(parsed, overrides, strict=True)
            ]
        except Exception as error:
            raise explained(error, overrides) from error
    for one, values in zip(parsed, choices, strict=True):
        if one.is_sweep_override() and not one.is_discrete_sweep():
            raise UserError(f"{one.input_line} has no list of values. {one_each(one.key_or_group)}")
        if not values:
            raise UserError(f"{one.input_line} matches nothing")
    swept = [len(values) > 1 for values in choices]
    if not any(swept):
        raise UserError("-m trains once for each of several values, such as -m seed=1,2")
    return [
        Job(
            list(chosen),
            dict(
                override.lstrip("+").split("=", 1)
                for override, several in zip(chosen, swept, strict=True)
                if several
            ),
        )
        for chosen in itertools.product(*choices)
    ]
