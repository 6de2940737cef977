"""From `conf=NAME key=value …` to a checked Conf, by Hydra; its errors in one line."""

import dataclasses
import itertools
import math
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tnctl import limits, saved_conf, schema, shipped
from tnctl.composing.mistakes import explained
from tnctl.composing.overrides import (
    CLUSTER,
    SEARCH_PATH,
    apply,
    in_quotes,
    is_choice,
    keys_of_cluster,
    keys_set,
    no_effect,
    parsed,
    without_folders,
)
from tnctl.errors import UserError, did_you_mean, refuse_if
from tnctl.masking import masked
from tnctl.model.recipes import shipped_recipes, source_settings
from tnctl.schema import Conf

SAVED = "saved"  # by this name Hydra knows the conf of a checkpoint
MOST_RUNS = 10_000  # of a sweep
# Keys and groups of Hydra in a conf file, where they would do nothing.
OF_HYDRA = re.compile(r"^hydra(?=\s*:)|^[^#\n]*\boverride (hydra/\w+)", re.M)


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
        beside = [str(Path(name).with_name(other.name)) for other in path.parent.glob("*.yaml")]
        raise UserError(
            f"no conf file {name}{'' if Path(name).is_absolute() else f' in {Path.cwd()}'}. Check "
            f"the path, or take a shipped one. {did_you_mean(name, [*beside, *shipped.confs()])}"
        )
    refuse_if(
        path.suffix == ".yml" or path.stem == "schema",
        f"a conf file is named NAME.yaml, and not schema. Rename {name}",
    )
    return path


def choose_conf(received: str) -> str:
    return did_you_mean(received, shipped.confs())


def compose_run(path: Path, overrides: list[str], *, takes_cluster: bool = False) -> Conf:
    """As `compose`, for a command that `takes_cluster` or not; keys of `cluster` are checked.

    A command that takes none refuses them in overrides, and in a file they have no effect. Without
    workers to start, only the choice of none is taken. Raises UserError.
    """
    given = keys_of_cluster(overrides)
    if given and not takes_cluster:
        raise UserError(
            f"{min(given)}= is for check, train, evaluate, predict, export-embeddings and "
            "verify-serving: this command runs in one process, on models of one worker or of "
            "several. Leave it out"
        )
    conf = compose(path, overrides)
    if conf.cluster.start is None and "cluster.start" not in given:
        for key in sorted(given - {CLUSTER}):
            raise UserError(
                f"{key} is for workers, which nothing starts. Leave it out, or add cluster=local"
            )
    return conf


def saved(values: dict[str, Any]) -> Path:
    """The path by which `compose` takes the conf that a checkpoint carries.

    It has no section `cluster`, so only the command line can say that workers run the command.
    """
    from hydra.core.config_store import ConfigStore

    saved_conf.check(values)
    # In memory, for YAML reads some texts otherwise than JSON, such as signs beyond 16 bits.
    node = {"defaults": ["schema", "_self_"], **values}
    ConfigStore.instance().store(name=SAVED, node=node)
    return shipped.folder("conf") / SAVED


def shown(path: Path, overrides: list[str], resolve: bool) -> str:
    """A conf as YAML, without secrets; with `resolve` also without `${…}`. Raises UserError."""
    from omegaconf import OmegaConf

    with _composed(path, overrides) as values:
        schema.check_types(values)
        # Before YAML breaks long texts into lines, and a password with them.
        values = masked(_resolved(values, path) if resolve else values)
        return str(masked(OmegaConf.to_yaml(OmegaConf.create(values))))


def compose(path: Path, overrides: list[str]) -> Conf:
    """The checked Conf of a conf file with overrides. Raises UserError."""
    with _composed(path, overrides) as composed:
        values = _resolved(composed, path)
    conf = schema.from_values(values)
    saved_conf.refuse_unsavable(values)
    return conf


def _resolved(values: dict[str, Any], path: Path) -> Any:
    """Plain values with their `${…}` resolved. Raises UserError for one that is missing."""
    from omegaconf import OmegaConf
    from omegaconf.errors import MissingMandatoryValue

    try:
        return OmegaConf.to_container(OmegaConf.create(values), resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        key, why = str(error.full_key), ""
        if key.startswith("recipe."):
            inputs = {recipe.name: recipe.inputs for recipe in shipped_recipes()}
            name = values["recipe"].get("name")
            why = f": recipe {name} needs {inputs[name]}" if name in inputs else ""
        raise UserError(f"{key} is not given{why}. Give {key}=…") from error
    except Exception as error:
        raise explained(error, path.name) from error


@contextmanager
def _composed(path: Path, lines: list[str]) -> Iterator[dict[str, Any]]:
    """The plain values of a conf file with overrides; `${…}` can be resolved inside the block.

    Hydra composes files and choices of groups. The defaults of the schema are below all of them,
    and other overrides above, so what is left to Hydra has no types.
    """
    with _hydra(path.parent):
        folders, overrides = without_folders(parsed(lines))
        places = [path.parent, *folders, shipped.folder("conf"), Path.cwd()]
        choices = [override for override in overrides if is_choice(override, places[:-1])]
        is_saved = path.name == SAVED
        for override in overrides:
            key = override.key_or_group
            refuse_if(
                is_saved and (key == "recipe" or (override in choices and key != CLUSTER)),
                f"{override.input_line} is part of a conf, and this model has its own. Leave it "
                "out, or name a conf with conf=NAME",
            )
        try:
            if not is_saved:
                _check_file(path)
            values = _of_files(path, choices, places[1:])
        except Exception as error:
            raise explained(error, path.name) from error
        given = {choice.key_or_group for choice in choices}
        for override in [override for override in overrides if override not in choices]:
            apply(override, values)
            given |= set(keys_set(override))
        values = schema.completed(values, absent={})
        paths = _fit_paths(values, path, given)
        if isinstance(values["recipe"], dict):
            _fit_settings(values["recipe"], paths, given, is_saved)
        recipes = [str(choice.value()) for choice in choices if choice.key_or_group == "recipe"]
        if recipes:
            _fit_width(values, recipes[-1], given, places)
        yield values


@contextmanager
def _hydra(folder: Path) -> Iterator[None]:
    from hydra import initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    # `???` in a group would not override a null.
    OmegaConf.register_new_resolver("required", _required, replace=True)
    # Confs name it first in their defaults. What it stands for is below the whole conf in any case.
    ConfigStore.instance().store(name="schema", node={})
    # A program that calls this may be an application of Hydra, with a conf of its own.
    of_program = HydraConfig.instance().cfg
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(folder), job_name="tnctl"):
            yield
    finally:
        HydraConfig.instance().cfg = of_program


def _required(key: str) -> None:
    raise UserError(f"{key} is not given. Give {key}=…")


def _check_file(path: Path) -> None:
    """Refuse a conf file that is too large, or that sets keys of Hydra. Raises UserError."""
    try:
        size = path.stat().st_size
        refuse_if(
            size > limits.CONF_BYTES,
            f"{path.name} has {size:,} bytes, and a conf at most {limits.CONF_BYTES:,}. Put lists "
            "into files (vocabulary_file), or name a conf",
        )
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise UserError(f"cannot read {path.name}: {error.strerror or error}", 1) from error
    if of_hydra := OF_HYDRA.search(text):
        raise no_effect(of_hydra[1] or of_hydra[0])


def _of_files(path: Path, choices: Sequence[Any], places: Sequence[Path]) -> dict[str, Any]:
    """What Hydra makes of a conf file and choices of groups, as plain values with their `${…}`.

    A group that its defaults do not list is added at their end, so that its file is merged last.
    """
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import ConfigCompositionException
    from omegaconf import OmegaConf, open_dict

    urls = [in_quotes(f"file://{place}") for place in places]
    lines = [choice.input_line for choice in choices]
    composed = None
    while composed is None:
        search = f"{SEARCH_PATH}=[{','.join(urls)}]"
        try:
            composed = hydra.compose(path.stem, [search, *lines], return_hydra_config=True)
        except ConfigCompositionException as error:
            start = re.match("Could not override '(.+?)'", str(error))
            unlisted = [line for line in lines if start and line.startswith(f"{start[1]}=")]
            if not unlisted:
                raise
            lines = [f"+{line}" if line in unlisted else line for line in lines]
    HydraConfig.instance().set_config(composed)
    with open_dict(composed):
        del composed["hydra"]
    values: Any = OmegaConf.to_container(composed)
    return values


def _fit_paths(values: dict[str, Any], path: Path, given: Collection[str]) -> schema.Paths:
    """Set in a composed conf where the paths start that it names to be read; returns that.

    A saved conf keeps its folder. `given` are the keys that the command line sets.
    """
    paths: schema.Paths = schema.section_of(schema.Paths, values["paths"], "paths")
    is_own = path.name != SAVED and shipped.folder("conf") not in path.parents
    if is_own and paths.folder is None:
        paths.folder = str(path.parent)
    if paths.folder is not None:
        read = [key for key in given if re.fullmatch(schema.READ, key)]
        paths.given = sorted({*paths.given, *read})
    values["paths"] = dataclasses.asdict(paths)
    return paths


def _fit_settings(
    recipe: dict[str, Any], paths: schema.Paths, given: Collection[str], saved: bool
) -> None:
    """Refuse a setting that the recipe does not have.

    When the command line chose another recipe than the conf, settings of the conf that are only
    of that recipe are left out. A file that only a `saved` conf names is not looked at.
    """
    name, chosen = str(recipe.get("name")), "recipe" in given or "recipe.name" in given
    is_file = name.endswith(".py")
    if is_file and saved and not chosen:
        return
    known = source_settings(paths.path("recipe.name", name) if is_file else name)
    if known is None:
        return
    for setting in [setting for setting in recipe if setting not in ("name", *known)]:
        refuse_if(
            not chosen or f"recipe.{setting}" in given,
            f"no key 'recipe.{setting}': recipe {name} has no setting '{setting}'. "
            f"{did_you_mean(str(setting), known)}",
        )
        del recipe[setting]


def _fit_width(
    values: dict[str, Any], recipe: str, given: Collection[str], folders: Sequence[Path]
) -> None:
    """Give rows no embeddings when the command line chose a recipe that reads none.

    The widths of the conf are then of the recipe that the conf names itself; those that the command
    line gives are kept. A recipe that reads none is one whose file in the group says
    embedding.width: 0, in the first of `folders` that has the file.
    """
    from omegaconf import OmegaConf

    files = [path for folder in folders if (path := folder / f"recipe/{recipe}.yaml").is_file()]
    if not files:
        return
    of_recipe = OmegaConf.load(files[0])
    if not OmegaConf.is_dict(of_recipe) or OmegaConf.select(of_recipe, "embedding.width") != 0:
        return
    sections = {"embedding": values["embedding"], "crosses": values["crosses"]}
    if isinstance(values["slots"], dict):
        sections |= {f"slots.{name}": slot for name, slot in values["slots"].items()}
    for key, section in sections.items():
        is_pooled = isinstance(section, dict) and section.get("pooling") != "none"
        if is_pooled and section["width"] and f"{key}.width" not in given:
            section["width"] = 0


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
