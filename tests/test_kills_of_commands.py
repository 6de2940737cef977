"""Commands killed at any moment: the old output or the new one is there, never a mixture."""

import collections
import random
import shutil
import time

import command_folders
import pytest
from conftest import run_in_process
from io_faults import Fault, Forked

NEWEST = "checkpoint=run/checkpoints/step-0000000003"
OLDER = "checkpoint=run/checkpoints/step-0000000001"
# What is killed, and what made the output that was there before; both are told `to=made`.
COMMANDS = {
    "split-graph": (["split-graph", NEWEST], ["split-graph", OLDER]),
    "parquet": (["export-embeddings", NEWEST], ["export-embeddings", OLDER]),
    "text": (["export-embeddings", NEWEST, "format=text"], ["export-embeddings", OLDER]),
    "dictionary": (
        ["export-embeddings", NEWEST, "format=dictionary"],
        ["export-embeddings", OLDER, "format=dictionary"],
    ),
    "prepare": (
        ["prepare", "conf=small.yaml"], ["prepare", "conf=small.yaml", "data.train=test.csv"],
    ),
    "compact": (["checkpoint", "compact", "run"], None),
    "fold": (["fold", "embeddings=delta"], ["export-embeddings", OLDER]),
}  # fmt: skip
FORMATS = {"split-graph": "graph", "prepare": "prepared", "compact": "checkpoint"}
BESIDE = ("work/.made.tnctl-new", "work/.made.tnctl-old")
MOST_OPERATIONS = 60  # of a command, more than any has


class Killing:
    """Worlds with an old output, by command, and what each command makes of it."""

    def __init__(self, folder):
        self.folder = folder
        self.owner = command_folders.make_template(folder / "template", run_in_process)
        self.forked = Forked(folder)
        self.old, self.new, self.seconds, self.bytes = {}, {}, {}, {}
        self.counts = collections.Counter()
        for name, (command, preparation) in COMMANDS.items():
            root = folder / name
            shutil.copytree(folder / "template", root, symlinks=True)
            if preparation is not None:
                self.run(root, preparation)
            self.old[name] = self.made(command_folders.stored(root))
            place = self.copy(name)
            began = time.monotonic()
            self.run(place, command)
            self.seconds[name] = time.monotonic() - began
            self.new[name] = self.made(command_folders.stored(place))
            self.bytes[name] = sum(len(data) for data in self.new[name].values() if data)

    def run(self, root, arguments, fault=None):
        done = self.forked.run([*arguments, "to=made"], root / "work", fault)
        assert fault is not None or done.code == 0, (arguments, done)
        return done.code

    def copy(self, name):
        """The world of a command as it was before it."""
        place = self.folder / "killed"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.folder / name, place, symlinks=True)
        return place

    @staticmethod
    def made(held):
        """What lies in the output."""
        return {key: data for key, data in held.items() if command_folders.below(key, "work/made")}

    def kill(self, name, chance):
        """Kill the command at a random moment in a new world; its root, and before and after."""
        while True:
            kind = chance.choice(["byte", "any", "time"])
            number = {
                "byte": chance.randrange(int(self.bytes[name] * 1.5)),
                "any": chance.randrange(MOST_OPERATIONS),
                "time": int(1000 * chance.uniform(0, self.seconds[name])),
            }[kind]
            root = self.copy(name)
            contents = command_folders.stored(root)
            fault = Fault(str(root), kind, number, "kill")
            if self.run(root, COMMANDS[name][0], fault) == -9:
                return root, contents, command_folders.stored(root)

    def survives(self, name, chance):
        """One kill, and the command again: only the old output or the new one is ever there."""
        root, before, after = self.kill(name, chance)
        self.judge(name, root, before, after)
        kept = self.made(after)
        if kept == self.old[name]:
            state = "old"
        else:
            state = "new"
            self.is_new(name, kept)
        self.counts[name, state] += 1
        if name == "compact" and state == "new":
            return  # it replaces no checkpoint
        self.run(root, COMMANDS[name][0])
        again = command_folders.stored(root)
        self.judge(name, root, before, again)
        self.is_new(name, self.made(again))
        assert not any(command_folders.below(key, place) for key in again for place in BESIDE)

    def is_new(self, name, held):
        """All files of a command that nothing happened to are there, and no other."""
        assert command_folders.is_whole(held, "work/made")
        assert held.keys() == self.new[name].keys()
        # TensorFlow does not write the same bytes twice, and manifests have times.
        if name != "split-graph":
            for key, data in self.new[name].items():
                assert key.endswith(command_folders.MANIFESTS) or held[key] == data

    def judge(self, name, root, before, after):
        """Nothing is changed but the output and what is beside it."""
        format_ = FORMATS.get(name, "embeddings")
        may = {"work/made": {format_}} | {place: {format_} for place in BESIDE}
        owner = self.owner | dict.fromkeys(self.old[name], format_)
        world = command_folders.World(root, random.Random(), owner)
        command = command_folders.Command(COMMANDS[name][0], may)
        assert world.judge(command, before, after) == []


@pytest.fixture(scope="module")
def killing(tmp_path_factory):
    made = Killing(tmp_path_factory.mktemp("killing"))
    yield made
    made.forked.close()


@pytest.mark.long
@pytest.mark.parametrize("number", range(20))
def test_a_killed_command(killing, number):
    seed = random.SystemRandom().randrange(10_000)
    name = [*COMMANDS][number % len(COMMANDS)]
    try:
        killing.survives(name, random.Random(seed))
    except AssertionError as error:
        raise AssertionError(f"{name}, seed {seed}: {error}") from error
