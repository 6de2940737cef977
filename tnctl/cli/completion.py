"""`tnctl completion SHELL`: a script for bash, zsh or fish that completes tnctl's commands."""

import contextlib
import itertools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tnctl import schema, shipped
from tnctl.cli import conf_files
from tnctl.cli.arguments import ARGUMENTS, TEXT_KEYS
from tnctl.cli.command_names import COMMANDS, module_of
from tnctl.cli.help import GROUPS, groups_of, options, used
from tnctl.errors import UserError, did_you_mean, refuse_if
from tnctl.model.recipe_settings import settings_of
from tnctl.schema import NAME

TAKES = ()
USAGE = """bash|zsh|fish

In a start-up file of the shell:

  bash   source <(tnctl completion bash)
  zsh    source <(tnctl completion zsh)
  fish   tnctl completion fish | source"""

# The shells ask `tnctl completion words LINE` for whole words, LINE being what is before the
# cursor. bash by itself starts a new word after = and :, so what it has already is taken away.
SCRIPTS = {
    "bash": """\
_tnctl() {
    local line=${COMP_LINE:0:COMP_POINT} IFS=$'\\n'
    local word=${line##* } breaks=${COMP_WORDBREAKS//[^=:]/} had=
    [ -n "$breaks" ] && had=${word%"${word##*[$breaks]}"}
    COMPREPLY=($(tnctl completion words "$line" 2>/dev/null))
    case ${COMPREPLY[0]} in
        *[=./,]) compopt -o nospace 2>/dev/null ;;
    esac
    COMPREPLY=("${COMPREPLY[@]#"$had"}")
}
complete -F _tnctl tnctl
""",
    "zsh": """\
#compdef tnctl
_tnctl() {
    local -a found whole begun
    found=("${(@f)$(tnctl completion words "${(j: :)words[1,CURRENT-1]} $PREFIX" 2>/dev/null)}")
    whole=(${found:#*[=./,]})
    begun=(${(M)found:#*[=./,]})
    if (( $#whole )); then compadd -Q -- $whole; fi
    if (( $#begun )); then compadd -Q -S '' -- $begun; fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
compdef _tnctl tnctl
""",
    "fish": """\
complete -c tnctl -f -a '(tnctl completion words (commandline -cp) 2>/dev/null)'
""",
}
PATH_ARGUMENTS = (
    "conf", "checkpoint", "to", "graph", "embeddings", "tensornet", "values",
    "sweep.storage",
)  # fmt: skip
FLAGS = ("overwrite", "accept", "yes", "sweep.prune", "sweep.refit")
OPTIONS = ("--help", "--cfg", "--resolve", "--config-dir", "-m")


def run(given: list[str]) -> int:
    """Print the script of a shell, or the words that can complete a line."""
    if len(given) == 2 and given[0] == "words":
        print("\n".join(words(given[1])))
        return 0
    refuse_if(len(given) != 1, f"give one shell: {', '.join(SCRIPTS)}")
    [shell] = given
    refuse_if(shell not in SCRIPTS, f"no script for '{shell}'. {did_you_mean(shell, SCRIPTS)}")
    print(SCRIPTS[shell], end="")
    return 0


def words(line: str) -> list[str]:
    """What the last word of a line can become: whole words, or up to the next dot or `=`."""
    start, _, word = line.lstrip().rpartition(" ")
    given = start.split()[1:]
    key, equals, value = word.partition("=")
    match given:
        case []:
            return _beginning(word, [*COMMANDS, "--help", "--version"])
        case ["completion", *_]:
            return _beginning(word, SCRIPTS)
        case ["checkpoint", *rest]:
            return _checkpoint_words(word, rest)
        case ["runs", *rest]:
            return _runs_words(word, rest)
        case [command, *_] if command not in COMMANDS:
            return []
        case ["init", *_] if not equals and not word.startswith("-"):
            return _keys_beginning(word, "init", given) + _files(word)
        case [*_, "--cfg" | "-c"]:
            return _beginning(word, ["job"])
        case _ if word.startswith("-"):
            return _beginning(word, OPTIONS)
        case [command, *_] if not equals:
            return _keys_beginning(word, command, given)
    *listed, last = value.split(",") if "-m" in given or "--multirun" in given else [value]
    start = f"{key}={''.join(f'{part},' for part in listed)}"
    return [start + choice for choice in _values(key, last, given)]


def _checkpoint_words(word: str, given: list[str]) -> list[str]:
    """Words of `tnctl checkpoint`: its commands, then URLs, arguments and options of one."""
    from tnctl.cli.checkpoint import PARTS

    if not given or given[0] not in PARTS:
        return [] if given else _beginning(word, [*PARTS, "--help"])
    if word.startswith("-"):
        return _beginning(word, ["--json", "--help"])
    takes = PARTS[given[0]].takes
    key, equals, value = word.partition("=")
    if equals and key in takes:
        return [f"{key}={choice}" for choice in _values(key, value, given)]
    return _arguments(word, takes, given) + _files(word)


def _runs_words(word: str, given: list[str]) -> list[str]:
    """Words of `tnctl runs`: a folder, arguments and options."""
    from tnctl.cli.runs import TAKES as TAKEN

    if word.startswith("-"):
        return _beginning(word, ["--json", "--help"])
    key, equals, value = word.partition("=")
    if equals and key in TAKEN:
        return [f"{key}={choice}" for choice in _values(key, value, given)]
    return _arguments(word, TAKEN, given) + _files(word)


def _beginning(word: str, choices: Iterable[str]) -> list[str]:
    return [choice for choice in choices if choice.startswith(word)]


def _arguments(word: str, takes: Iterable[str], given: list[str]) -> list[str]:
    """The arguments of a command that the line has not yet."""
    return _beginning(word, (f"{key}=" for key in takes if _given(given, key) is None))


def _keys_beginning(word: str, command: str, given: list[str]) -> list[str]:
    """Arguments, groups and keys, each as far as the next dot."""
    takes = module_of(command).TAKES
    start = word.lstrip("+~")
    names, paths = _names(given), list[str]()
    for path in schema.all_keys():
        branch, _, rest = path.partition(f".{NAME}.")
        if used(command, path):
            named = (f"{branch}.{name}.{rest}" for name in names.get(branch, []))
            paths += named if rest else [path]
    if command not in ("split-graph", "export-embeddings", "init", "rollback"):
        paths += [
            *groups_of(command),
            *(f"recipe.{key}" for key in settings_of(_recipe(given)) or ()),
        ]
    endings = [path[len(start) :].partition(".") for path in _beginning(start, paths)]
    keys = dict.fromkeys(f"{word}{name}{dot or '='}" for name, dot, _ in endings)
    return _arguments(word, takes, given) + [
        key for key in keys if key.lstrip("+~") != "recipe.name="
    ]


def _values(key: str, value: str, given: list[str]) -> list[str]:
    """What a key or argument can be set to; files of the user's only when one is begun."""
    name = key.lstrip("+")
    if name == "conf" or name in GROUPS:
        suffixes = {"conf": (".yaml", ".yml"), "recipe": (".py",)}.get(name)
        files = _files(value, suffixes) if value and suffixes else []
        names = shipped.confs() if name == "conf" else _choices(name, given)
        return _beginning(value, names) + files
    if name in ("data.train", "data.validation", "data.test"):
        return _files(value, root=_given(given, "data.root") or "")
    if name in PATH_ARGUMENTS or TEXT_KEYS.fullmatch(f"{name}="):
        return _files(value)
    if name == "metric":
        return _beginning(value, schema.all_keys()["evaluation.monitor"].declaration.choices)
    known = None if name in ARGUMENTS else schema.keys_like(name).get(name)
    is_flag = known.hint in (bool, bool | None) if known else name in FLAGS
    choices = known.declaration.choices if known else ()
    return _beginning(value, ["true", "false"] if is_flag else choices)


def _choices(group: str, given: list[str]) -> list[str]:
    """The names of the files of a group: shipped, beside the conf, and in the current folder."""
    conf = _given(given, "conf") or ""
    places = {Path.cwd(), Path(conf).parent if conf.endswith((".yaml", ".yml")) else Path.cwd()}
    names = {path.stem for place in places for path in (place / group).glob("*.yaml")}
    return sorted({*options(group), *names})


def _files(value: str, suffixes: tuple[str, ...] = ("",), root: str = "") -> list[str]:
    """Files and folders whose path begins so; folders end in a slash."""
    name = value.rpartition("/")[2]
    start = value.removesuffix(name)
    try:
        entries = sorted(os.scandir(os.path.join(root, start) or "."), key=lambda entry: entry.name)
    except OSError:
        return []
    return [
        f"{start}{entry.name}{'/' if entry.is_dir() else ''}"
        for entry in entries
        if entry.name.startswith(name)
        and (name[:1] == "." or entry.name[0] != ".")
        and (entry.is_dir() or entry.name.endswith(suffixes))
    ]


def _given(given: list[str], key: str) -> str | None:
    return next((word.partition("=")[2] for word in given if word.startswith(f"{key}=")), None)


def _conf_values(given: list[str]) -> list[dict[str, Any]]:
    """The values of the conf that the line names, and of the files that it and the line choose."""
    conf = _given(given, "conf") or ""
    is_file = conf.endswith((".yaml", ".yml"))
    path = Path(conf) if is_file else shipped.folder("conf") / f"{conf}.yaml"
    chosen = {group: name for group in GROUPS if (name := _given(given, group))}
    values: list[dict[str, Any]] = []
    with contextlib.suppress(UserError):
        values.extend(file.values for file in conf_files.files_of(path, chosen))
    return values


def _names(given: list[str]) -> dict[str, list[str]]:
    """The user's names under each branch, as far as the files of the conf have them."""
    names: dict[str, list[str]] = {branch: [] for branch in schema.branches()}
    for values, branch in itertools.product(_conf_values(given), names):
        section: Any = values
        for part in branch.split("."):
            section = section.get(part) if isinstance(section, dict) else None
        names[branch] += section if isinstance(section, dict) else []
    # A slot is its own share group unless it says otherwise.
    names["optimizer.groups"] += names["slots"]
    return names


def _recipe(given: list[str]) -> str | None:
    """The recipe that the line chooses, or its conf."""
    sections = (values.get("recipe") for values in _conf_values(given))
    names = [section.get("name") for section in sections if isinstance(section, dict)]
    return (
        _given(given, "recipe") or _given(given, "recipe.name") or next(filter(None, names), None)
    )
