"""`tnctl completion SHELL`: a script for bash, zsh or fish that completes tnctl's commands."""

from collections.abc import Iterable

from tnctl import schema, shipped
from tnctl.cli.commands import COMMANDS
from tnctl.cli.help import groups_of, used
from tnctl.cli.help import options as options_of
from tnctl.composing.mistakes import GROUPS
from tnctl.errors import did_you_mean, refuse_if
from tnctl.model.recipes import source_settings
from tnctl.schema import NAME

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
    command, *given = [*start.split()[1:], ""]
    key, equals, value = word.partition("=")
    if not command:
        return _beginning(word, [*COMMANDS, "--help", "--version"])
    if command not in COMMANDS or command == "completion":
        return _beginning(word, SCRIPTS if command == "completion" else ())
    entry = COMMANDS[command]
    if parts := entry.parts:
        if given[0] not in parts:
            return [] if given[0] else _beginning(word, [*parts, "--help"])
        entry = parts[given[0]]
    options = ["--json", "--help"] if "[--json]" in entry.usage else list(OPTIONS)
    if given[-2:-1] in (["--cfg"], ["-c"]):
        return _beginning(word, ["job"])
    if word.startswith("-"):
        return _beginning(word, options)
    if not equals:
        named = {argument.partition("=")[0]: argument.partition("=")[2] for argument in given}
        free = [f"{argument}=" for argument in entry.takes if argument not in named]
        return _beginning(word, free) + _keys_beginning(word, command, named.get("recipe"))
    *listed, last = value.split(",") if "-m" in given or "--multirun" in given else [value]
    start = f"{key}={''.join(f'{part},' for part in listed)}"
    return [start + choice for choice in _values(key.lstrip("+"), last)]


def _beginning(word: str, choices: Iterable[str]) -> list[str]:
    return [choice for choice in choices if choice.startswith(word)]


def _keys_beginning(word: str, command: str, recipe: str | None) -> list[str]:
    """Groups and keys, each as far as the next dot."""
    start = word.lstrip("+~")
    # With the name that the word has, such as slots.user.; else up to where the user names one.
    known = schema.keys_like(start.rpartition(".")[0])
    paths = [path.partition(f"{NAME}.")[0] for path in known if used(command, path)]
    if used(command, "data.root"):  # it reads data, by a recipe
        paths += groups_of(command)
        for name in [recipe] if recipe else shipped.recipes():
            paths += [f"recipe.{setting}" for setting in source_settings(name) or ()]
    endings = [path[len(start) :].partition(".") for path in _beginning(start, paths)]
    keys = dict.fromkeys(f"{word}{name}{dot or '='}" for name, dot, _ in endings if name or dot)
    return list(keys)


def _values(key: str, value: str) -> list[str]:
    """What a key or argument can be set to, as far as tnctl knows it."""
    if key == "conf" or key in GROUPS:
        return _beginning(value, shipped.confs() if key == "conf" else options_of(key))
    if key == "metric":
        key = "evaluation.monitor"
    known = schema.keys_like(key).get(key)
    is_flag = known.hint in (bool, bool | None) if known else key in FLAGS
    choices = known.declaration.choices if known else ()
    return _beginning(value, ["true", "false"] if is_flag else choices)
