"""Completion: the words themselves, and each shell asking for them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tnctl import shipped
from tnctl.cli.commands import COMMANDS
from tnctl.cli.completion import SCRIPTS, words


@pytest.mark.parametrize(
    ("line", "completions"),
    [
        ("tnctl tra", ["train"]),
        ("tnctl nope x", []),
        ("tnctl train conf=deepf", ["conf=deepfm"]),
        ("tnctl train overwrite=", ["overwrite=true", "overwrite=false"]),
        ("tnctl train overwrite=true over", []),
        ("tnctl evaluate over", []),
        ("tnctl train opti", ["optimizer."]),
        ("tnctl train optimizer.dense.learn", ["optimizer.dense.learning_rate="]),
        ("tnctl train optimizer.dense.name=adamw", ["optimizer.dense.name=adamw"]),
        ("tnctl train data.shuf", ["data.shuffle="]),
        ("tnctl train data.shuffle=t", ["data.shuffle=true"]),
        ("tnctl train data=crit", ["data=criteo", "data=criteo_x1", "data=criteo_x4"]),
        ("tnctl train -m recipe=lr,deepf", ["recipe=lr,deepfm"]),
        ("tnctl train recipe=lr,deepf", []),
        ("tnctl train clu", ["cluster.", "cluster="]),
        ("tnctl train cluster=", ["cluster=env", "cluster=local", "cluster=ray"]),
        ("tnctl evaluate clu", ["cluster.", "cluster="]),
        (
            "tnctl train cluster.start=",
            ["cluster.start=env", "cluster.start=local", "cluster.start=ray"],
        ),
        ("tnctl train --c", ["--cfg", "--config-dir"]),
        ("tnctl train conf=lr --cfg ", ["job"]),
        ("tnctl train conf=deepfm slots.user_id.pool", ["slots.user_id.pooling="]),
        ("tnctl train conf=deepfm slots.item_id.pooling=m", ["slots.item_id.pooling=mean"]),
        ("tnctl train ~slots.user_id.pool", ["~slots.user_id.pooling="]),
        ("tnctl train slots.", []),  # the name is the user's
        ("tnctl train conf=lr +optimizer.groups.hour.l", ["+optimizer.groups.hour.linear."]),
        ("tnctl train conf=deepfm recipe.hid", ["recipe.hidden="]),
        ("tnctl train recipe=lr recipe.hid", []),
        ("tnctl train conf=lr recipe=deepfm recipe.hid", ["recipe.hidden="]),
        ("tnctl completion z", ["zsh"]),
        ("tnctl init la", ["label="]),
        ("tnctl split-graph optim", []),
        ("tnctl train bogus.key=", []),
        ("tnctl train data.train=", []),  # files are completed by the shell
        ("tnctl checkpoint list ", []),
        ("tnctl runs met", ["metric="]),
        ("tnctl rec", ["recipes"]),
        ("tnctl recipes --", ["--json", "--help"]),
        ("tnctl runs --", ["--json", "--help"]),
        ("tnctl checkpoint ver", ["verify"]),
        ("tnctl checkpoint list --j", ["--json"]),
        ("tnctl checkpoint list ke", []),
        ("tnctl checkpoint prune run k", ["keep="]),
        ("tnctl checkpoint prune run keep=1 yes=t", ["yes=true"]),
    ],
)  # fmt: skip
def test_words(line, completions, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert words(line) == completions


def test_words_of_every_command_and_group():
    assert set(COMMANDS) < set(words("tnctl "))
    assert words("tnctl train conf=") == [f"conf={name}" for name in shipped.confs()]
    keys = {"golden=", "data.", "recipe=", "recipe.", "slots."}
    assert keys <= set(words("tnctl train conf=deepfm "))
    confs = (shipped.folder("conf") / "recipe").glob("*.yaml")
    assert words("tnctl train recipe=") == [
        f"recipe={name}" for name in sorted(p.stem for p in confs)
    ]


def ask(shell, script):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    arguments = {"bash": ["--norc", "-c"], "zsh": ["-f", "-c"], "fish": ["--no-config", "-c"]}
    done = subprocess.run(
        [shell, *arguments[shell], script],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
    )
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout.split("\n")[:-1]


BASH = """\
source <(tnctl completion bash)
complete -p tnctl
COMP_LINE='{line}' COMP_POINT=${{#COMP_LINE}}
_tnctl
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("line", "completions"),
    [
        ("tnctl tra", ["train"]),
        # What stands before = is a word of its own to bash, and stays.
        ("tnctl train conf=deepf", ["deepfm"]),
        ("tnctl train optimizer.dense.learn", ["optimizer.dense.learning_rate="]),
        ("tnctl train -m recipe=lr,deepf", ["lr,deepfm"]),
    ],
)
def test_bash(line, completions):
    first, *rest = ask("bash", BASH.format(line=line))
    assert first == "complete -o default -F _tnctl tnctl"
    assert rest == completions


def test_bash_without_breaks():
    script = "COMP_WORDBREAKS=' '\n" + BASH.format(line="tnctl train conf=deepf")
    assert ask("bash", script)[1:] == ["conf=deepfm"]


ZSH = """\
compdef() {{ print "compdef $*" }}
source <(tnctl completion zsh)
compadd() {{ print -r -- "$@" }}
compset() {{ print -r -- "without $2" }}
_files() {{ print files }}
words=({words}) CURRENT={current} PREFIX='{prefix}'
_tnctl
"""


def test_zsh():
    script = ZSH.format(words="tnctl train op", current=3, prefix="op")
    assert ask("zsh", script) == ["compdef _tnctl tnctl", "-Q -S  -- optimizer."]
    script = ZSH.format(words="tnctl tra", current=2, prefix="tra")
    assert ask("zsh", script)[1:] == ["-Q -- train"]
    script = ZSH.format(words="tnctl train data.train=cl", current=3, prefix="data.train=cl")
    assert ask("zsh", script)[1:] == ["without *=", "files"]


def test_zsh_of_a_real_start():
    script = "source <(tnctl completion zsh); print $_comps[tnctl]"
    assert ask("zsh", script) == ["_tnctl"]


@pytest.mark.parametrize(
    ("line", "completions"),
    [
        ("tnctl tra", ["train"]),
        ("tnctl train conf=deepf", ["conf=deepfm"]),
        ("tnctl train data.train=tr", ["data.train=trace.csv"]),
    ],
)
def test_fish(line, completions, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.csv").touch()
    assert ask("fish", f"tnctl completion fish | source; complete -C '{line}'") == completions


def test_the_command(cli, tmp_path):
    for shell, script in SCRIPTS.items():
        done = cli("completion", shell, cwd=tmp_path)
        assert (done.code, done.out, done.err) == (0, script, "")
    done = cli("completion", "tcsh", cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "'tcsh'" in done.line
    assert "bash" in done.line
    assert "bash" in cli("completion", cwd=tmp_path).line
