"""`tnctl completion SHELL`: a script by which bash, zsh or fish completes words of tnctl."""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from tnctl import schema, shipped
from tnctl.cli import conf_files
from tnctl.cli.arguments import ARGUMENTS, TEXT_KEYS
from tnctl.cli.help import options, used
from tnctl.cli.settings import settings_of
from tnctl.errors import UserError, did_you_mean
from tnctl.schema import NAME, Key, NoChoice

TAKES = ()
USAGE = """bash|zsh|fish

In a start-up file of the shell:

  bash   source <(tnctl completion bash)
  zsh    source <(tnctl completion zsh)
  fish   tnctl completion fish | source"""

# The shells ask `tnctl completion words LINE` for whole words, LINE being what stands before the
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
PATH_ARGUMENTS = ("conf", "checkpoint", "to", "graph", "embeddings")
OPTIONS = ("--help", "--cfg", "-m")


def run(given: list[str]) -> int:
    """Print the script of a shell, or the words that can stand at the end of a line."""
    if len(given) == 2 and given[0] == "words":
        print("\n".join(words(given[1])))
        return 0
    if len(given) != 1:
        raise UserError(f"give one shell: {', '.join(SCRIPTS)}")
    if given[0] not in SCRIPTS:
        raise UserError(f"no script for '{given[0]}'. {did_you_mean(given[0], SCRIPTS)}")
    print(SCRIPTS[given[0]], end="")
    return 0


def words(line: str) -> list[str]:
    """What the last word of a line can become: whole words, or up to the next dot or `=`."""
    before, _, word = line.lstrip().rpartition(" ")
    given = before.split()[1:]
    from tnctl.cli.main import COMMANDS

    if not given:
        return _beginning(word, [*COMMANDS, "--help", "--version"])
    command = given[0]
    if command not in COMMANDS:
        return []
    if command == "completion":
        return _beginning(word, SCRIPTS)
    if command == "checkpoint":
        return _checkpoint_words(word, given[1:])
    if given[-1] in ("--cfg", "-c"):
        return _beginning(word, ["job"])
    if word.startswith("-"):
        return _beginning(word, OPTIONS)
    takes = import_module(f"tnctl.cli.{command.replace('-', '_')}").TAKES
    key, equals, value = word.partition("=")
    if not equals:
        return _keys_beginning(word, command, takes, given)
    *listed, last = value.split(",") if "-m" in given or "--multirun" in given else [value]
    start = f"{key}={''.join(f'{one},' for one in listed)}"
    return [start + one for one in _values(key, last, given)]


def _checkpoint_words(word: str, given: list[str]) -> list[str]:
    """Words of `tnctl checkpoint`: its commands, then URLs, arguments and options of one."""
    from tnctl.cli.checkpoint import PARTS

    if not given:
        return _beginning(word, [*PARTS, "--help"])
    if given[0] not in PARTS:
        return []
    if word.startswith("-"):
        return _beginning(word, ["--json", "--help"])
    takes = PARTS[given[0]].takes
    key, equals, value = word.partition("=")
    if equals and key in takes:
        return [f"{key}={one}" for one in _values(key, value, given)]
    done = {one.partition("=")[0] for one in given}
    return _beginning(word, [f"{one}=" for one in takes if one not in done]) + _files(word)


def _beginning(word: str, choices: Any) -> list[str]:
    return [one for one in choices if one.startswith(word)]


def _keys_beginning(word: str, command: str, takes: tuple[str, ...], given: list[str]) -> list[str]:
    """Arguments, groups and keys, each as far as the next dot."""
    done = {one.partition("=")[0] for one in given}
    sign = word[: len(word) - len(word.lstrip("+~"))]
    word = word.lstrip("+~")
    arguments = [f"{one}=" for one in takes if one not in done and not sign]
    named = _names(given)
    paths: list[str] = []
    for path in schema.all_keys():
        if not used(command, path):
            continue
        branch, _, rest = path.partition(f".{NAME}.")
        names = named.get(branch, []) if rest else [""]
        paths += [f"{branch}.{name}.{rest}" if rest else path for name in names]
    if command not in ("split-graph", "export-embeddings"):
        paths += ["data", "recipe", *(f"recipe.{one}" for one in settings_of(_recipe(given)) or ())]
    found = dict.fromkeys(_as_far_as_a_dot(word, path) for path in paths if path.startswith(word))
    return _beginning(word, arguments) + [f"{sign}{one}" for one in found if one != "recipe.name="]


def _as_far_as_a_dot(word: str, path: str) -> str:
    dot = path.find(".", len(word))
    return f"{path}=" if dot < 0 else path[: dot + 1]


def _values(key: str, value: str, given: list[str]) -> list[str]:
    """What a key or argument can be set to."""
    name = key.lstrip("+")
    if name == "conf":
        return _beginning(value, shipped.confs()) + _own_files(value, (".yaml", ".yml"))
    if name == "recipe":
        return _beginning(value, options("recipe")) + _own_files(value, (".py",))
    if name == "data":
        return _beginning(value, options("data"))
    if name in ARGUMENTS:
        flags = ["true", "false"] if name in ("overwrite", "accept", "yes") else []
        return _files(value) if name in PATH_ARGUMENTS else _beginning(value, flags)
    if name in ("data.train", "data.validation", "data.test"):
        return _files(value, root=_given(given, "data.root"))
    if TEXT_KEYS.fullmatch(f"{name}="):
        return _files(value)
    found = _key(name)
    return _beginning(value, _choices(found)) if found else []


def _key(name: str) -> Key | None:
    known = schema.all_keys()
    spelled = dict(zip(schema.keys_like(name), known, strict=True))
    return known[spelled[name]] if name in spelled else None


def _choices(key: Key) -> list[str]:
    if key.hint is bool or key.hint == bool | None:
        return ["true", "false"]
    rule = key.rule
    return list(rule.choices) if isinstance(rule, NoChoice) else []


def _own_files(value: str, suffixes: tuple[str, ...]) -> list[str]:
    """Files of the user's where names are what is meant first: only when one is begun."""
    return _files(value, suffixes) if value else []


def _files(value: str, suffixes: tuple[str, ...] = (), root: str | None = None) -> list[str]:
    """Files and folders whose path begins so; folders end in a slash."""
    name = value.rpartition("/")[2]
    start = value[: len(value) - len(name)]
    found = []
    try:
        for entry in sorted(
            os.scandir(os.path.join(root or "", start) or "."), key=lambda e: e.name
        ):
            hidden = entry.name.startswith(".") and not name.startswith(".")
            if not entry.name.startswith(name) or hidden:
                continue
            if entry.is_dir():
                found.append(f"{start}{entry.name}/")
            elif not suffixes or entry.name.endswith(suffixes):
                found.append(start + entry.name)
    except OSError:
        return []
    return found


def _given(given: list[str], key: str) -> str | None:
    return next((one.partition("=")[2] for one in given if one.startswith(f"{key}=")), None)


def _conf_files(given: list[str]) -> list[dict[str, Any]]:
    """The conf that the line names, and the files of groups that it, or the line, chooses."""
    import yaml

    conf = _given(given, "conf")
    if conf is None:
        return []
    library = shipped.folder("conf")
    own = conf.endswith((".yaml", ".yml"))
    found, waiting, seen = [], [Path(conf) if own else library / f"{conf}.yaml"], set()
    while waiting:
        path = waiting.pop()
        try:
            conf_files.read(path)
            content = yaml.safe_load(path.read_text())
        except (OSError, ValueError, yaml.YAMLError, UserError):
            continue
        if path in seen or not isinstance(content, dict):
            continue
        seen.add(path)
        found.append(content)
        for one in content.get("defaults", []):
            names = one.items() if isinstance(one, dict) else [("", one)]
            for group, name in names:
                chosen = _given(given, group) or name
                for folder in (path.parent, library):
                    if (file := folder / group / f"{chosen}.yaml").is_file():
                        waiting.append(file)
                        break
    return found


def _names(given: list[str]) -> dict[str, list[str]]:
    """The user's names under each branch, as far as the files of the conf have them."""
    found: dict[str, list[str]] = {branch: [] for branch in schema.branches()}
    for content in _conf_files(given):
        for branch, names in found.items():
            value: Any = content
            for part in branch.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            names += value if isinstance(value, dict) else []
    # A slot is its own share group unless it says otherwise.
    found["optimizer.groups"] += found["slots"]
    return found


def _recipe(given: list[str]) -> str | None:
    """The recipe that the line chooses, or its conf."""
    chosen = _given(given, "recipe") or _given(given, "recipe.name")
    if chosen:
        return chosen
    names = [one["recipe"].get("name") for one in _conf_files(given) if "recipe" in one]
    return next((name for name in names if name), None)
