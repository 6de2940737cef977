"""`tnctl completion SHELL`: a script for bash, zsh or fish that completes tnctl's commands."""

from collections.abc import Iterable

from tnctl import schema, shipped
from tnctl.cli.arguments import ARGUMENTS
from tnctl.cli.command_names import COMMANDS, module_of
from tnctl.cli.help import GROUPS, groups_of, options, used
from tnctl.errors import did_you_mean, refuse_if
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
# Where there are no words the shell completes files.
SCRIPTS = {
    "bash": """\
_tnctl() {
    local line=${COMP_LINE:0:COMP_POINT} IFS=$'\\n'
    local word=${line##* } breaks=${COMP_WORDBREAKS//[^=:]/} had=
    [ -n "$breaks" ] && had=${word%"${word##*[$breaks]}"}
    COMPREPLY=($(tnctl completion words "$line" 2>/dev/null))
    case ${COMPREPLY[0]} in
        *[=.]) compopt -o nospace 2>/dev/null ;;
    esac
    COMPREPLY=("${COMPREPLY[@]#"$had"}")
}
complete -o default -F _tnctl tnctl
""",
    "zsh": """\
#compdef tnctl
_tnctl() {
    local -a found whole begun
    found=("${(@f)$(tnctl completion words "${(j: :)words[1,CURRENT-1]} $PREFIX" 2>/dev/null)}")
    whole=(${found:#*[=.]})
    begun=(${(M)found:#*[=.]})
    if (( $#whole )); then compadd -Q -- $whole; fi
    if (( $#begun )); then compadd -Q -S '' -- $begun; fi
    if (( ! $#whole && ! $#begun )); then compset -P '*='; _files; fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
compdef _tnctl tnctl
""",
    "fish": """\
complete -c tnctl -f -n 'tnctl completion words (commandline -cp) 2>/dev/null | string length -q' \\
    -a '(tnctl completion words (commandline -cp) 2>/dev/null)'
""",
}
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
        case [*_, "--cfg" | "-c"]:
            return _beginning(word, ["job"])
        case _ if word.startswith("-"):
            return _beginning(word, OPTIONS)
        case [command, *_] if not equals:
            return _keys_beginning(word, command, given)
    *listed, last = value.split(",") if "-m" in given or "--multirun" in given else [value]
    start = f"{key}={''.join(f'{part},' for part in listed)}"
    return [start + choice for choice in _values(key, last)]


def _checkpoint_words(word: str, given: list[str]) -> list[str]:
    """Words of `tnctl checkpoint`: its commands, then arguments and options of one."""
    from tnctl.cli.checkpoint import PARTS

    if not given or given[0] not in PARTS:
        return [] if given else _beginning(word, [*PARTS, "--help"])
    if word.startswith("-"):
        return _beginning(word, ["--json", "--help"])
    takes = PARTS[given[0]].takes
    key, equals, value = word.partition("=")
    if equals and key in takes:
        return [f"{key}={choice}" for choice in _values(key, value)]
    return _arguments(word, takes, given)


def _runs_words(word: str, given: list[str]) -> list[str]:
    """Words of `tnctl runs`: arguments and options."""
    from tnctl.cli.runs import TAKES as TAKEN

    if word.startswith("-"):
        return _beginning(word, ["--json", "--help"])
    key, equals, value = word.partition("=")
    if equals and key in TAKEN:
        return [f"{key}={choice}" for choice in _values(key, value)]
    return _arguments(word, TAKEN, given)


def _beginning(word: str, choices: Iterable[str]) -> list[str]:
    return [choice for choice in choices if choice.startswith(word)]


def _arguments(word: str, takes: Iterable[str], given: list[str]) -> list[str]:
    """The arguments of a command that the line has not yet."""
    return _beginning(word, (f"{key}=" for key in takes if _given(given, key) is None))


def _keys_beginning(word: str, command: str, given: list[str]) -> list[str]:
    """Arguments, groups and keys, each as far as the next dot."""
    takes = module_of(command).TAKES
    start = word.lstrip("+~")
    # With the name that the word has, such as slots.user.; else up to where the user names one.
    known = schema.keys_like(start.rpartition(".")[0])
    paths = [path.partition(f"{NAME}.")[0] for path in known if used(command, path)]
    recipes = [chosen] if (chosen := _given(given, "recipe")) else shipped.recipes()
    if command not in ("split-graph", "export-embeddings", "init", "rollback"):
        paths += [
            *groups_of(command),
            *(f"recipe.{key}" for recipe in recipes for key in settings_of(recipe) or ()),
        ]
    endings = [path[len(start) :].partition(".") for path in _beginning(start, paths)]
    keys = dict.fromkeys(f"{word}{name}{dot or '='}" for name, dot, _ in endings if name or dot)
    return _arguments(word, takes, given) + [
        key for key in keys if key.lstrip("+~") != "recipe.name="
    ]


def _values(key: str, value: str) -> list[str]:
    """What a key or argument can be set to, as far as tnctl knows it."""
    name = key.lstrip("+")
    if name == "conf" or name in GROUPS:
        return _beginning(value, shipped.confs() if name == "conf" else options(name))
    if name == "metric":
        return _beginning(value, schema.all_keys()["evaluation.monitor"].declaration.choices)
    known = None if name in ARGUMENTS else schema.keys_like(name).get(name)
    is_flag = known.hint in (bool, bool | None) if known else name in FLAGS
    choices = known.declaration.choices if known else ()
    return _beginning(value, ["true", "false"] if is_flag else choices)


def _given(given: list[str], key: str) -> str | None:
    return next((word.partition("=")[2] for word in given if word.startswith(f"{key}=")), None)
