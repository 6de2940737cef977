"""From `conf=NAME key=value …` to a checked Conf, by Hydra; its errors in one line."""

import dataclasses
import itertools
import math
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tnctl import saved_conf, schema, shipped
from tnctl.cli import arguments, conf_files, search_path
from tnctl.cli.help import GROUPS
from tnctl.cli.mistakes import explained
from tnctl.cli.overrides import apply, check, is_choice, keys_set, line_of_choice, parsed
from tnctl.errors import UserError, did_you_mean, quoted, refuse_if
from tnctl.masking import masked
from tnctl.model.recipe_settings import settings_of
from tnctl.schema import Conf

SAVED = "saved"  # by this name Hydra knows the conf of a checkpoint
CLUSTER = "cluster"
MOST_RUNS = 10_000  # of a sweep
GROUPS_OF_A_MODEL = [group for group in GROUPS if group != CLUSTER]


@dataclasses.dataclass
class Job:
    """One conf of a sweep: its overrides, and which of them differ between jobs."""

    overrides: list[str]
    swept: dict[str, str]


def conf_file(name: str) -> Path:
    """The file of `conf=NAME`: a shipped name, or a path that ends in .yaml."""
    if not name.endswith((".yaml", ".yml")):
        if name not in shipped.confs():
            raise UserError(
                f"no conf '{name}'. {choose_conf(name)} A file of your own ends in .yaml"
            )
        return shipped.folder("conf") / f"{name}.yaml"
    path = Path(name).resolve()
    if not path.is_file():
        raise UserError(
            f"no conf file {name}{'' if Path(name).is_absolute() else f' in {Path.cwd()}'}. Check "
            f"the path, or take a shipped one. {choose_conf('')}"
        )
    refuse_if(
        path.suffix == ".yml" or path.stem == "schema",
        f"a conf file is named NAME.yaml, and not schema. Rename {name}",
    )
    return path


def choose_conf(received: str) -> str:
    return did_you_mean(received, shipped.confs())


def named_conf(taken: dict[str, str]) -> Path:
    """The file of the argument conf=. Raises UserError when it is not given."""
    if "conf" not in taken:
        raise UserError(f"give conf=NAME, or conf=FILE.yaml of your own. {choose_conf('')}")
    return conf_file(taken["conf"])


def composed(
    given: list[str], takes: Sequence[str], *, takes_cluster: bool = False
) -> tuple[Conf, dict[str, str]]:
    """As compose_line, with the conf of conf=; and the arguments of the command itself."""
    taken, overrides = arguments.part(given, takes)
    return compose_line(named_conf(taken), overrides, takes_cluster=takes_cluster), taken


def compose_line(path: Path, overrides: list[str], *, takes_cluster: bool = False) -> Conf:
    """The checked conf of a conf file with the overrides and options of a command line.

    `--cfg job` shows the conf, and ends the command with exit code 0. Unless the command
    `takes_cluster`, keys of that section are refused in overrides, and those of a file have no
    effect. Raises UserError.
    """
    options, overrides = arguments.options(overrides)
    refuse_if(options.sweep, "-m is for train: this command takes one conf")
    if not takes_cluster:
        refuse_cluster(overrides)
    if not options.show:
        return compose_run(path, overrides)
    from omegaconf import OmegaConf

    with _composed(path, overrides) as composed:
        values = _resolved(composed) if options.resolve else OmegaConf.to_container(composed)
        # Before YAML breaks long texts into lines, and a password with them.
        shown = OmegaConf.create(masked(values))
        print(masked(OmegaConf.to_yaml(shown)), end="")
    sys.exit(0)


def compose_saved(
    values: dict[str, Any], overrides: list[str], *, takes_cluster: bool = False
) -> Conf:
    """As compose_line, with the conf that a checkpoint carries; only overrides are resolved.

    It has no section `cluster`, so only the command line can say that workers run the command.
    """
    if not takes_cluster:
        refuse_cluster(overrides)
    for override in overrides:
        key, equals, value = override.partition("=")
        refuse_if(
            equals
            and key.lstrip("+") in GROUPS_OF_A_MODEL
            and not value.strip("'\"").endswith(".py"),
            f"{override} chooses a file for a conf, and this model has its own. Leave it out, or "
            "name a conf with conf=NAME",
        )
    from hydra.core.config_store import ConfigStore

    saved_conf.check(values)
    # In memory, for YAML reads some texts otherwise than JSON, such as signs beyond 16 bits.
    node = {"defaults": ["schema", "_self_"], **values}
    ConfigStore.instance().store(name=SAVED, node=node)
    path = shipped.folder("conf") / SAVED
    return compose_line(path, overrides, takes_cluster=takes_cluster)


def compose_run(path: Path, overrides: list[str]) -> Conf:
    """As `compose`; keys of workers are refused where nothing starts workers. Raises UserError."""
    conf = compose(path, overrides)
    if conf.cluster.start is None and "cluster.start" not in keys_of_cluster(overrides):
        for key in sorted(keys_of_cluster(overrides) - {CLUSTER}):
            raise UserError(
                f"{key} is for workers, which nothing starts. Leave it out, or add cluster=local"
            )
    return conf


def compose(path: Path, overrides: list[str]) -> Conf:
    """The checked Conf of a conf file with overrides. Raises UserError."""
    with _composed(path, overrides) as composed:
        values = _resolved(composed)
    saved_conf.refuse_unsavable(values)
    return schema.from_values(values)


def _resolved(composed: Any) -> Any:
    """The plain values of a composed conf. Raises UserError for one that is missing."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        for key in sorted(OmegaConf.missing_keys(composed)):
            raise UserError(f"{key} is not given. Give {key}=…")
        return OmegaConf.to_container(composed, resolve=True)
    except OmegaConfBaseException as error:
        raise explained(error) from error


@contextmanager
def _composed(path: Path, arguments: list[str]) -> Iterator[Any]:
    """What Hydra makes of a file and overrides; interpolations resolve inside the block.

    Keys, types and forms are checked before, so that Hydra's own messages are rarely needed.
    """
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import open_dict

    folder, name = path.parent, path.stem
    with _hydra(folder):
        folders, overrides = search_path.split(parsed(arguments))
        places = search_path.of_conf(path, folders)
        for override in overrides:
            check(override, places)
        choices = [override for override in overrides if is_choice(override, places)]
        if name != SAVED:
            places = search_path.of_conf(path, folders, choices)
        lines = search_path.line_for_hydra(places)
        entries: list[conf_files.Entry] = []
        try:
            if name != SAVED:
                chosen = {choice.key_or_group: str(choice.value()) for choice in choices}
                entries = conf_files.check(path, chosen, places)
            # A saved conf has its own data and recipe, and takes no other.
            lines += [
                line_of_choice(choice, entries)
                for choice in choices
                if name != SAVED or choice.key_or_group == CLUSTER
            ]
            composed = hydra.compose(name, lines, return_hydra_config=True)
        except Exception as error:
            raise explained(error) from error
        HydraConfig.instance().set_config(composed)
        with open_dict(composed):
            del composed["hydra"]
        for override in overrides:
            if override not in choices:
                apply(override, composed)
        paths = _fit_paths(composed, path, [o for o in overrides if o not in choices])
        with open_dict(composed):
            if "recipe" in composed:
                _fit_settings(composed["recipe"], paths, arguments, name == SAVED)
                if name != SAVED:
                    _fit_width(composed, choices, arguments, places)
        yield composed


@contextmanager
def _hydra(folder: Path) -> Iterator[None]:
    from hydra import initialize_config_dir
    from hydra.core.hydra_config import HydraConfig

    schema.register()
    # A program that calls this may be an application of Hydra, with a conf of its own.
    of_program = HydraConfig.instance().cfg
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(folder), job_name="tnctl"):
            yield
    finally:
        HydraConfig.instance().cfg = of_program


def overrides_of(given: Sequence[str]) -> list[str]:
    """Overrides from Python, as the command line takes them, ready for Hydra. Raises UserError.

    Options, and arguments of commands such as to=, are refused: functions have their own.
    """
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise UserError(
            "overrides is a list of texts, such as ['train.epochs=2']. Received: "
            f"{quoted(repr(given))}"
        )
    for override in given:
        if not isinstance(override, str) or override.startswith("-"):
            shown = quoted(repr(override))
            raise UserError(f"an override is a text such as 'train.epochs=2'. Received: {shown}")
        key = override.partition("=")[0]
        refuse_if(
            key in arguments.ARGUMENTS, f"{key}= is an argument of commands, and no key of a conf"
        )
    return [arguments.quoted_for_hydra(override) for override in given]


def keys_of_cluster(overrides: list[str]) -> set[str]:
    """The keys of `cluster` whose values the command line says, and `cluster` for a choice."""
    return {key for key in keys_given(overrides) if key.partition(".")[0].lstrip("~") == CLUSTER}


def refuse_cluster(overrides: list[str]) -> None:
    """Refuse the keys of `cluster`, for a command that runs in one process. Raises UserError."""
    for key in sorted(keys_of_cluster(overrides)):
        raise UserError(
            f"{key}= is for check, train, evaluate, predict, export-embeddings and verify-serving: "
            "this command runs in one process, on models of one worker or of several. Leave it out"
        )


def keys_given(overrides: list[str]) -> set[str]:
    """The keys whose values the command line says."""
    # A word without = is of an option, such as the folder of --config-dir.
    said = [override for override in overrides if "=" in override or override[:1] == "~"]
    return {override.partition("=")[0].lstrip("+") for override in said}


def names_recipe(overrides: list[str]) -> bool:
    """Whether the command line says which recipe it is."""
    return not keys_given(overrides).isdisjoint(("recipe", "recipe.name"))


def _fit_paths(composed: Any, path: Path, overrides: Sequence[Any]) -> schema.Paths:
    """Set in a composed conf where the paths start that it names to be read; returns that.

    A saved conf keeps its folder. `overrides` are those that set keys.
    """
    from omegaconf import OmegaConf

    values: Any = OmegaConf.to_container(composed["paths"], resolve=True)
    is_own = path.name != SAVED and shipped.folder("conf") not in path.parents
    if is_own and values["folder"] is None:
        values["folder"] = str(path.parent)
    if values["folder"] is not None:
        keys = [key for override in overrides for key in keys_set(override)]
        given = [key for key in keys if re.fullmatch(schema.READ, key)]
        values["given"] = sorted({*values["given"], *given})
    paths: schema.Paths = schema.converted(values, schema.Paths, "paths", make=True)
    OmegaConf.update(composed, "paths", values)
    return paths


def _fit_settings(recipe: Any, paths: schema.Paths, overrides: list[str], saved: bool) -> None:
    """Refuse a setting that the recipe does not have.

    When the command line chose another recipe than the conf, settings of the conf that are only
    of that recipe are left out. A file that only a `saved` conf names is not looked at.
    """
    name, chosen = recipe.get("name"), names_recipe(overrides)
    is_looked_at = chosen or not saved or not str(name).endswith(".py")
    file = paths.path("recipe.name", str(name)) if str(name).endswith(".py") else name
    if not is_looked_at or (known := settings_of(file)) is None:
        return
    for setting in [setting for setting in recipe if setting not in ("name", *known)]:
        near = did_you_mean(setting, known)
        refuse_if(
            not chosen or f"recipe.{setting}" in keys_given(overrides),
            f"no key 'recipe.{setting}': recipe {name} has no setting '{setting}'. {near}",
        )
        del recipe[setting]


def _fit_width(
    composed: Any, choices: Sequence[Any], overrides: list[str], folders: Sequence[Path]
) -> None:
    """Give rows no embeddings when the command line chose a recipe that reads none.

    The widths of the conf are then of the recipe that the conf names itself; those that the command
    line gives are kept. A recipe that reads none is one whose file in the group says
    embedding.width: 0, in the first of `folders` that has the file.
    """
    from omegaconf import OmegaConf

    chosen = next((str(c.value()) for c in choices if c.key_or_group == "recipe"), None)
    paths = (folder / "recipe" / f"{chosen}.yaml" for folder in folders)
    path = next((path for path in paths if path.is_file()), None)
    if path is None or OmegaConf.select(OmegaConf.load(path), "embedding.width") != 0:
        return
    given = keys_given(overrides)
    if "embedding.width" not in given:
        composed["embedding"]["width"] = 0
    if composed["crosses"]["width"] is not None and "crosses.width" not in given:
        composed["crosses"]["width"] = 0
    # As they are written: an interpolation that leads nowhere is refused later.
    slots = OmegaConf.to_container(composed, resolve=False)["slots"]  # type: ignore[index, call-overload]
    for name, slot in slots.items() if isinstance(slots, dict) else ():
        is_pooled = isinstance(slot, dict) and slot.get("pooling") != "none"
        if is_pooled and slot.get("width") and f"slots.{name}.width" not in given:
            composed["slots"][name]["width"] = 0


def parsed_overrides(path: Path, overrides: list[str]) -> list[Any]:
    """Each override as Hydra's grammar reads it, for a conf file. Raises UserError."""
    with _hydra(path.parent):
        return parsed(overrides)


def sweep(path: Path, overrides: list[str]) -> list[Job]:
    """Every job of a sweep: `seed=1,2 recipe=lr,fm` are four, in the order given."""
    choices = []
    with _hydra(path.parent):
        for override, text in zip(parsed(overrides), overrides, strict=True):
            values = [text]
            if override.is_discrete_sweep():
                key = override.get_key_element()
                try:
                    few = list(itertools.islice(override.sweep_string_iterator(), MOST_RUNS + 1))
                except Exception as error:  # a step of 0, or no number
                    raise UserError(
                        f"{text} has no values. Give choice(a,b) or range(start, end, step)"
                    ) from error
                values = [f"{key}={value}" for value in few]
            elif override.is_sweep_override():
                raise UserError(
                    f"{text} has no list of values. Give values, as in seed=1,2 or "
                    "seed=choice(1,2) or seed=range(1,4); with sweep.trials=N a search draws them"
                )
            refuse_if(not values, f"{text} matches nothing")
            choices.append(values)
    several = {override for values in choices if len(values) > 1 for override in values}
    refuse_if(not several, "-m trains once for each of several values, such as -m seed=1,2")
    refuse_if(
        math.prod(map(len, choices)) > MOST_RUNS,
        f"-m has over {MOST_RUNS:,} runs. Give fewer values",
    )
    return [
        Job(list(job), dict(word.lstrip("+").split("=", 1) for word in job if word in several))
        for job in itertools.product(*choices)
    ]
