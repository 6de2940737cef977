"""`tnctl train -m sweep.trials=N`: a search for the best values, by Optuna."""

import contextlib
import itertools
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from tnctl import files, progress, schema
from tnctl.api.calls import COMPOSING, GOLDEN_ROWS, Url, in_one_line, overrides_of, text_of
from tnctl.composing import compose
from tnctl.composing.overrides import quoted_for_hydra
from tnctl.errors import UserError, did_you_mean, refuse_if
from tnctl.masking import masked
from tnctl.model import quiet_tensorflow
from tnctl.schema import Conf
from tnctl.training.search.search_confs import Parameter, Space, conf_of_all_data, words

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

TAGS = ("int", "log")
# What is searched where the command names nothing, as far as the conf takes it: what the sets of
# docs/defaults.md differ in.
DEFAULT_SPACE = (
    "recipe.dropout=interval(0, 0.5)",
    "optimizer.linear.learning_rate=tag(log, interval(0.02, 0.4))",
    "optimizer.embedding.learning_rate=tag(log, interval(0.01, 0.2))",
    "optimizer.embedding.lazy_l2=tag(log, interval(1e-5, 0.1))",
    "optimizer.dense.learning_rate=tag(log, interval(2e-4, 3e-3))",
)
# Keys by which trials would not be comparable, and what is no key of a conf.
NOT_SEARCHED = ("evaluation.monitor", "data.validation", "data.test", "hydra.searchpath")
MOST_CHOICES = 1_000
MOST_TRIALS = 10_000
NEEDS_OPTUNA = "sweep.trials needs a package that is not installed: pip install 'tnctl[sweep]'"
LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True)
class SearchCommand:
    """A command line: its overrides, with a Parameter in the place of each that is searched."""

    path: Path
    overrides: list[str | Parameter]

    def with_values(self, texts: dict[str, str]) -> list[str]:
        """The overrides with one value for each parameter."""
        return [
            entry if isinstance(entry, str) else f"{entry.key}={texts[entry.key]}"
            for entry in self.overrides
        ]

    def conf(self, texts: dict[str, str]) -> Conf:
        """The conf with these values. Raises UserError."""
        with COMPOSING:
            return compose.compose(self.path, self.with_values(texts))


@dataclass(frozen=True)
class SearchResult:
    """What a search has come to, and the command that trains the best conf.

    There is none without a trial that was trained to its end, and while other commands still train.
    """

    exit_code: int
    command: str | None = None
    best: Conf | None = None
    output: str = ""
    number: int = 0
    golden: int = GOLDEN_ROWS

    def refit(self) -> None:
        """Train the best conf on training and validation data, where no trial has failed."""
        if self.best is None:
            return
        if self.exit_code:
            progress.say("the best conf is not refitted yet (sweep.refit), as trials have failed")
            return
        from tnctl.training.report.terminal_tables import show_report
        from tnctl.training.search import search_loop

        with in_one_line():
            folder, report = search_loop.refit(self.best, self.output, self.number, self.golden)
            show_report(folder, report)


def search(
    conf: Url,
    overrides: Sequence[str],
    *,
    trials: int,
    seed: int = 1,
    prune: bool = True,
    storage: str | None = None,
    refit: bool = False,
    overwrite: bool = False,
    golden: int = GOLDEN_ROWS,
) -> SearchResult:
    """Make all trials of a search: `tnctl train -m sweep.trials=N`; with the keys of `sweep`.

    `overrides` with several values are what is searched; `refit` says that the result will be
    refitted. The exit code of the result is 1 when trials have failed. Raises UserError.
    """
    conf = text_of(conf, "conf")
    with in_one_line():
        with COMPOSING:
            path = compose.conf_file(conf)
            mixed, parameters = parameters_of(path, overrides_of(overrides))
            line = SearchCommand(path, mixed)
            refuse_beyond("sweep.trials", trials, 1, MOST_TRIALS)
            refuse_beyond("sweep.seed", seed, 0, LARGEST_SEED)
            check_values(line, parameters)
            refuse_if(find_spec("optuna") is None, NEEDS_OPTUNA)
        quiet_tensorflow()
        from tnctl.training.search import search_loop

        space = Space(parameters, line.conf)
        first = space.first()
        if refit:
            conf_of_all_data(first, 1)
        settings = search_loop.Settings(trials, seed, prune, storage, overwrite, golden)
        summary, code = search_loop.search(space, settings)
        if summary.under_way:
            progress.say(
                f"trials that other commands still train: {summary.under_way:,}; the last command "
                "to end shows the best"
            )
            return SearchResult(code)
        if (best := summary.best) is None:
            return SearchResult(code)
        texts = space.texts(best.params)
        said = command(conf, line.with_values(texts), first.output)
        return SearchResult(code, said, line.conf(texts), first.output, best.number, golden)


def refuse_beyond(key: str, value: int, least: int, most: int) -> None:
    """Raise UserError for a number out of its bounds."""
    refuse_if(
        not least <= value <= most,
        f"{key} must be between {least} and {most:,}. Received: {key}={value}",
    )


def check_values(line: SearchCommand, parameters: list[Parameter]) -> None:
    """Compose the conf with each value by itself, and the first of the others. Raises UserError."""
    first = {parameter.key: parameter.tested()[0] for parameter in parameters}
    tested = (
        first | {parameter.key: text} for parameter in parameters for text in parameter.tested()
    )
    for said, texts in {words(texts): texts for texts in tested}.items():
        try:
            line.conf(texts)
        except UserError as error:
            raise UserError(f"{said}: {error}", error.exit_code) from None


def command(conf: str, overrides: list[str], output: str) -> str:
    """The command that trains a conf, into a folder of its own under the output of the search."""
    kept = [override for override in overrides if override.partition("=")[0] != "output"]
    said = [f"conf={conf}", *map(plain, kept), f"output={files.join(output, 'best')}"]
    return shlex.join(["tnctl", "train", *(str(masked(word)) for word in said)])


def plain(override: str) -> str:
    """A path without the quotes that it was given for Hydra."""
    key, _, value = override.partition("=")
    unquoted = f"{key}={value.strip(chr(39))}"
    return unquoted if quoted_for_hydra(unquoted) == override else override


def parameters_of(
    path: Path, overrides: list[str]
) -> tuple[list[str | Parameter], list[Parameter]]:
    """The overrides, with a Parameter in the place of each that has several values.

    And all parameters, by default those of DEFAULT_SPACE. Raises UserError where there is none, and
    for one that cannot be searched.
    """
    parsed = compose.parsed_overrides(path, overrides)
    if not any(override.is_sweep_override() for override in parsed):
        space = default_space(path, overrides)
        overrides = [*overrides, *space]
        parsed = compose.parsed_overrides(path, overrides)
        progress.say(f"what is searched: {'  '.join(space)}")
    mixed = [
        _parameter(override, text) if override.is_sweep_override() else text
        for override, text in zip(parsed, overrides, strict=True)
    ]
    parameters = [entry for entry in mixed if isinstance(entry, Parameter)]
    refuse_if(
        not parameters,
        "sweep.trials needs keys with several values, such as "
        "optimizer.dense.learning_rate='tag(log, interval(1e-4, 1e-1))' or recipe=deepfm,dcn",
    )
    keys = [override.get_key_element().lstrip("+") for override in parsed]
    for key in keys:
        refuse_if(keys.count(key) > 1, f"{key} is given twice. Give it once")
    return mixed, parameters


def default_space(path: Path, overrides: list[str]) -> list[str]:
    """The parameters of DEFAULT_SPACE that are not given and that the conf takes."""
    given = {override.partition("=")[0].lstrip("+") for override in overrides}
    conf = compose.compose(path, overrides)
    has_embeddings = any(map(conf.width_of, conf.slots.values()))
    takes = []
    for entry in DEFAULT_SPACE:
        key = entry.partition("=")[0]
        if key in given or (key.startswith("optimizer.embedding") and not has_embeddings):
            continue
        [parsed] = compose.parsed_overrides(path, [entry])
        value = _parameter(parsed, entry).tested()[-1]
        with contextlib.suppress(UserError):
            compose.compose(path, [*overrides, f"{key}={value}"])
            takes.append(entry)
    return takes


def _parameter(override: "Override", text: str) -> Parameter:
    key, path = override.get_key_element(), override.key_or_group
    refuse_if(
        path in NOT_SEARCHED or path.startswith(("cluster", "data.split")),
        f"{path} must be the same for all trials. Give one value",
    )
    if override.is_choice_sweep():
        choices = list(itertools.islice(override.sweep_string_iterator(), MOST_CHOICES + 1))
        _refuse_number(len(choices), MOST_CHOICES, text, "Give fewer")
        return Parameter(key=key, kind="choice", choices=tuple(dict.fromkeys(choices)))
    value: Any = override.value()
    for tag in sorted(value.tags):
        refuse_if(tag not in TAGS, f"{text} has no tag '{tag}'. {did_you_mean(tag, TAGS)}")
    bounds = _of_interval if override.is_interval_sweep() else _of_range
    is_whole = "int" in value.tags or _is_whole(path)
    parameter = Parameter(key=key, log="log" in value.tags, **bounds(value, is_whole, text))
    parameter.refuse_odd(text)
    return parameter


def _refuse_number(values: int, most: int, text: str, way: str) -> None:
    """Refuse an override without values, or with over `most`. Raises UserError."""
    refuse_if(values == 0, f"{text} matches nothing")
    refuse_if(values > most, f"{text} has over {most:,} values. {way}")


def _of_interval(interval: Any, is_whole: bool, text: str) -> dict[str, Any]:
    """The kind and the bounds of a parameter."""
    low, high = interval.start, interval.end
    refuse_if(
        isinstance(low, str) or isinstance(high, str) or not math.isfinite(low + high),
        f"{text} has bounds that are no finite numbers",
    )
    if is_whole or (isinstance(low, int) and isinstance(high, int)):
        return {"kind": "int", "low": math.ceil(low), "high": math.floor(high), "step": 1}
    return {"kind": "float", "low": float(low), "high": float(high)}


def _of_range(range_: Any, is_whole: bool, text: str) -> dict[str, Any]:
    """The kind, the bounds and the step of a parameter."""
    try:
        few = list(itertools.islice(range_.range(), compose.MOST_RUNS + 1))
    except Exception as error:  # a step of 0: ValueError of range, or Hydra's own
        raise UserError(f"{text} is no range. Give range(start, end, step)") from error
    _refuse_number(len(few), compose.MOST_RUNS, text, "Give an interval, or a greater step")
    low, high, step = min(few), max(few), abs(range_.step)
    if all(isinstance(value, int) for value in few):
        return {"kind": "int", "low": low, "high": high, "step": step}
    refuse_if(is_whole, f"{text} has fractions, and its key is a whole number")
    # By its decimal digits: sums of binary fractions would end beside the last value.
    high = float(f"{low + (len(few) - 1) * float(step):.12g}")
    return {"kind": "float", "low": low, "high": high, "step": float(step)}


def _is_whole(key: str) -> bool:
    """Whether the schema says that a key is a whole number."""
    try:
        hint = schema.hint_of(key)
    except UserError:  # a group; composing says what is wrong with others
        return False
    kinds = get_args(hint) or (hint,)
    return int in kinds and float not in kinds
