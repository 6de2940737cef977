"""Random commands over folders of tnctl's files and others': what is not its own stays as it is."""

import random
import re
import shutil
import tempfile
from pathlib import Path

import command_folders
import pytest
from conftest import run_in_process
from io_faults import Fault, Forked, armed

COMMANDS_PER_WORLD = 4
SEED = 465  # of the short form; the long form draws one
CODES = {0, 1, 2, 130, 143}
LEFT = re.compile(r"tmp/tnctl\.|(.*/)?\.[^/]+\.tnctl-(new|old)(/|$)")
REFUSED = re.compile(r"(?:tnctl [a-z-]+: )?(\S+) holds (.+), which tnctl did not write there")


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """What every world begins as, and whose paths are tnctl's."""
    root = tmp_path_factory.mktemp("template") / "world"
    return root, command_folders.make_template(root, run_in_process)


def run_with_fault(arguments, cwd, fault):
    """A command in this process, with a fault or without."""
    with armed(fault):
        return run_in_process(*arguments, cwd=cwd)


def fault_of(world, errors):
    """A random fault, or none in half of the cases."""
    chance = world.chance
    if chance.random() < 0.5:
        return None
    kind = chance.choice(["write", "write", "rename", "remove", "any"])
    stays = chance.random() < 0.3
    number = int(chance.expovariate(1 / 6))
    return Fault(str(world.root), kind, number, chance.choice(errors), stays)


def follow(world, run, errors):
    """One command with what is claimed of it, and again if it failed; how many commands ran."""
    command, fault = world.command(), fault_of(world, errors)
    done = judged(world, command, run, fault)
    if fault is None or done.code == 0:
        return 1
    done = judged(world, command, run, None)
    return 2


def judged(world, command, run, fault):
    """Run a command and look at everything: nothing foreign changed, and the old one is whole."""
    before = command_folders.stored(world.root)
    done = run(command.arguments, world.work, fault)
    after = command_folders.stored(world.root)
    case = (command.arguments, fault, done)
    assert done.code in CODES | ({-9} if fault and fault.error == "kill" else set()), case
    assert "Traceback" not in done.err + done.out, case
    wrong = world.judge(command, before, after)
    assert not wrong, (wrong, case)
    said = done.err.splitlines()
    if fault is None:
        if done.code != 0:
            # But what a killed command left in the temporary folder and beside its output.
            left = {key for key in before.keys() - after.keys() if LEFT.match(key)}
            assert after == {key: before[key] for key in before.keys() - left}, case
            assert said, case
        if done.code == 0:
            left = [key for key in after.keys() - before.keys() if ".tnctl-" in key]
            assert all(key.startswith("tmp/") for key in left), (case, left)
        if match := REFUSED.search(said[-1] if said else ""):
            # What it names is there, and not tnctl's, or belongs to an output around the folder.
            key = world.key(f"{match[1]}/{match[2]}".removeprefix("file://"))
            around = list(Path(world.key(match[1].removeprefix("file://"))).parents)
            belongs = any(
                (world.root / p / name).exists()
                for p in around
                for name in command_folders.MANIFESTS
            )
            # Results are not tnctl's once their log is lost.
            is_result = command.arguments[0] == "train"
            assert belongs or is_result or not world.may_replace(command, key), case
    if command.checks is not None and command_folders.is_whole(before, command.checks):
        assert command_folders.is_whole(after, command.checks), case
    return done


def over_trees(template, folder, run, count, seed, errors):
    """Run so many commands over worlds of a seed."""
    root, owner = template
    ran, number = 0, 0
    while ran < count:
        place = folder / f"world-{number}"
        try:
            world = command_folders.new_world(root, owner, place, random.Random(f"{seed} {number}"))
            tempfile.tempdir = str(place / "tmp")
            for _ in range(COMMANDS_PER_WORLD):
                ran += follow(world, run, errors)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, world {number}: {error}") from error
        finally:
            tempfile.tempdir = None
        shutil.rmtree(place)
        number += 1


@pytest.mark.short
def test_40_commands(template, tmp_path):
    over_trees(
        template, tmp_path, run_with_fault, 40, SEED, ["ENOSPC", "EIO", "EACCES", "interrupt"]
    )


@pytest.mark.long
def test_100_processes(template, tmp_path):
    seed = random.SystemRandom().randrange(1000)
    forked = Forked(tmp_path)
    errors = ["ENOSPC", "EIO", "EACCES", "interrupt", "kill"]
    over_trees(template, tmp_path, forked.run, 100, seed, errors)
    forked.close()
