"""Folders full of what commands of tnctl wrote and of other files, and a judge of what they do.

A `World` knows which paths commands have made, for it runs them itself; nothing of tnctl tells it.
"""

import hashlib
import json
import os
import random
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import generated_folders

from tnctl import manifest

CONF = """\
defaults: [schema, {recipe: lr}, _self_]
slots: {user_id: {}, item_id: {}}
data: {root: clicks, train: train.csv, window: 64}
train: {batch_size: 32}
evaluation: {ablate: false}
save: {every_steps: 1, full_every: 2, keep: 0}
"""
ROWS = {"train": 96, "test": 40}
TRAIN = ("train", "conf=small.yaml", "golden=0")
# What the template has, by the folders that the commands were told.
TEMPLATE = {
    "run": [*TRAIN, "output=run"],
    "graph": ["split-graph", "output=run", "to=graph", "golden=2"],
    "emb": [
        "export-embeddings", "checkpoint=run/checkpoints/step-0000000001", "to=emb",
        "format=dictionary", "golden=2",
    ],
    "delta": [
        "export-embeddings", "output=run", "to=delta", "since=emb", "format=dictionary", "golden=2",
    ],
    "prep": ["prepare", "conf=small.yaml", "to=prep", "data.test=test.csv"],
    "prediction": ["predict", "output=run", "data.test=test.csv", "format=csv"],
}  # fmt: skip
FORMATS = {
    "run": "run", "graph": "graph", "emb": "embeddings", "delta": "embeddings", "prep": "prepared",
}  # fmt: skip
MANIFESTS = ("manifest.json", "serving.json")
# Names below the log of a run that are the run's, whoever wrote the file.
OF_RUN = re.compile(
    r"predictions\.csv|\.tnctl-predictions\.json|tensorboard/events\.out\.tfevents\.mine"
    r"|(checkpoints|damaged)/step-[0-9]{10}/(conf\.json|dense\.bin|golden\.jsonl|extra/running)"
)
STEP = "run/checkpoints/step-0000000003"
PLACES = (
    "graph", "emb", "delta", "prep", "run", "run/graph", "run/embeddings", "run/checkpoints", STEP,
    "other", "other/checkpoints", "other/checkpoints/step-0000000002", "clicks", "clicks/raw",
    "mine", "mine/photos", "new", "new/a/b", ".", "..", "../outside", "../outside/tables", "empty",
    "to-graph", "to-outside", "to-nothing", "mine/notes.txt", "run/predictions.csv", "s.csv",
    "clicks/test.csv", "small.yaml", f"{STEP}/dense.bin", "../linked/graph", "graph/inner",
    "prep/train", "emb/data", "run/embeddings/data",
)  # fmt: skip
FOREIGN = (
    "thesis.tex", ".hidden", "photos/cat.jpg", "manifest.json.old", "user_id.parquet.crc", "a b",
    "variables/mine", "train/raw/data.csv", "step-0000000001/dense.bin", "tables/linear1/mine",
    ".x.0123456789abcdef.tnctl-part", "checkpoints/step-0000000099/dense.bin", "checkpoints/notes",
    "tensorboard/events.out.tfevents.mine", "aot/compiled.h", "user_id.txt", "saved_model.pb",
    "train/part-00000.parquet", "dense.bin", "predictions.csv", "log.jsonl", ".tnctl-new/thesis",
    ".tnctl-predictions.json", ".tnctl-lock", "damaged/step-0000000001/conf.json",
    "variables/variables.index", "golden.jsonl", "extra/running",
)  # fmt: skip


def stored(root: Path) -> dict[str, bytes | str | None]:
    """What lies below a folder, by path: bytes, `-> target` of a link, None for a folder."""
    held: dict[str, bytes | str | None] = {}
    for above, folders, names in os.walk(root):
        for name in [*folders, *names]:
            path = Path(above, name)
            key = path.relative_to(root).as_posix()
            if path.is_symlink():
                held[key] = f"-> {os.readlink(path)}"
            else:
                held[key] = None if path.is_dir() else path.read_bytes()
    return held


def below(key: str, folder: str) -> bool:
    """Whether a relative path is a folder's, or the folder."""
    return key == folder or key.startswith(f"{folder}/") or folder == "."


def is_whole(held: dict, folder: str) -> bool:
    """Whether every file that the manifest of a folder names is as it says."""
    for name in MANIFESTS:
        if isinstance(data := held.get(f"{folder}/{name}"), bytes):
            try:
                entries = json.loads(data)["files"]
            except ValueError:
                return False
            for file, entry in entries.items():
                content = held.get(f"{folder}/{file}")
                if not isinstance(content, bytes):
                    return False
                if hashlib.sha256(content).hexdigest() != entry["sha256"]:
                    return False
            return True
    return False


@dataclass
class Command:
    """Arguments, and what they allow: `may` has folders, each with the formats to be replaced.

    A format "anything" is that of overwrite=true at a file. `checks` says which folder should be
    whole after a failure, if it was before, and `reads` what has to stay as it is.
    """

    arguments: list[str]
    may: dict[str, set[str]] = field(default_factory=dict)
    checks: str | None = None
    reads: list[str] = field(default_factory=list)


@dataclass
class World:
    """`root` has `work`, where commands run, and `outside`; `owner` the formats of our paths."""

    root: Path
    chance: random.Random
    owner: dict[str, str]

    @property
    def work(self) -> Path:
        return self.root / "work"

    def key(self, path: str) -> str:
        """Where a path of `work` is, relative to the root, links followed."""
        return os.path.relpath(os.path.realpath(self.work / path), os.path.realpath(self.root))

    def put(self, path: Path, data: bytes) -> None:
        """A foreign file, if nothing is in its way."""
        above = [part for part in path.parents if part.is_relative_to(self.root)]
        if not os.path.lexists(path) and all(p.is_dir() or not os.path.lexists(p) for p in above):
            generated_folders.put(path, data)

    # ---- What other people do -----------------------------------------------------

    def disturb(self) -> None:
        """One change of the world that is not by tnctl."""
        ways = (
            self.add_foreign, self.add_foreign, self.add_link, self.change_own, self.link_own,
            self.leave_behind, self.forge_list, self.forge_manifest, self.add_data,
            self.forge_temporary, self.lose_own,
        )  # fmt: skip
        self.chance.choice(ways)()

    def folder(self) -> Path:
        return self.work / self.chance.choice(PLACES[:22])

    def add_foreign(self) -> None:
        self.put(self.folder() / self.chance.choice(FOREIGN), b"mine")

    def add_link(self) -> None:
        names = (
            "photos", "tensorboard", "graph", "checkpoints/step-0000000050", "damaged", "aot",
            "log.jsonl", "variables", "embeddings", ".tnctl-lock", ".tnctl-files.json", "train",
        )  # fmt: skip
        path = self.folder() / self.chance.choice(names)
        if not os.path.lexists(path) and path.parent.is_dir():
            path.symlink_to(self.root / "outside" / self.chance.choice(["", "secret", "nothing"]))

    def own_file(self, formats: set[str]) -> str | None:
        keys = sorted(
            key
            for key, of in self.owner.items()
            if of in formats and (self.root / key).is_file() and "/.tnctl" not in key
        )
        near = [key for key in keys if key.count("/") == 2]
        return self.chance.choice(self.chance.choice([keys, near or keys])) if keys else None

    def disown(self, key: str) -> None:
        """A file is not tnctl's any more, and without their manifest others are not either."""
        self.owner.pop(key)
        if Path(key).name in MANIFESTS and "/checkpoints/" not in key:
            above = os.path.dirname(key)
            self.owner = {k: v for k, v in self.owner.items() if not below(k, above)}

    def change_own(self) -> None:
        """A file of ours that the user changed is the user's, where no list has it."""
        if key := self.own_file({"graph", "embeddings", "prepared"}):
            (self.root / key).write_bytes((self.root / key).read_bytes() + b"!")
            self.disown(key)

    def link_own(self) -> None:
        """The user moved a file of ours to another disk, and left a link."""
        if key := self.own_file({"graph", "embeddings", "prepared", "run"}):
            moved = self.root / "outside" / f"moved-{len(os.listdir(self.root / 'outside'))}"
            (self.root / key).rename(moved)
            (self.root / key).symlink_to(moved)
            self.disown(key)

    def lose_own(self) -> None:
        if key := self.own_file({"graph", "embeddings", "prepared", "run"}):
            (self.root / key).unlink()
            self.disown(key)

    def leave_behind(self) -> None:
        """What a killed command leaves beside an output, real and not."""
        name = self.chance.choice(["graph", "emb", "prep", "new", "s.csv", "mine", "delta"])
        suffix = self.chance.choice([".tnctl-new", ".tnctl-new", ".tnctl-old"])
        folder = self.work / f".{name}{suffix}"
        if os.path.lexists(folder):
            return
        way = self.chance.choice(["real", "foreign", "list", "sealed", "file", "link", "empty"])
        if way == "real":
            kind, file = self.chance.choice(
                [("tnctl graph", "saved_model.pb"), ("tnctl embeddings", "user_id.parquet")]
            )
            self.put(folder / file, b"half")
            self.put(folder / generated_folders.LIST, listed(kind, [file]))
            for path in (folder, folder / file, folder / generated_folders.LIST):
                self.owner[path.relative_to(self.root).as_posix()] = "left"
        elif way == "file":
            self.put(folder, b"mine")
        elif way == "link":
            folder.symlink_to(self.root / "outside")
        else:
            folder.mkdir()
            if way == "empty":
                self.owner[folder.relative_to(self.root).as_posix()] = "left"
                return
            self.put(folder / "thesis.tex", b"mine")
            if way == "list":
                self.put(folder / generated_folders.LIST, b'{"names": ["thesis.tex"]}')
            if way == "sealed":
                kind = self.chance.choice([*generated_folders.NAMES])
                self.put(folder / generated_folders.LIST, listed(kind, ["thesis.tex"]))

    def forge_list(self) -> None:
        text = self.chance.choice([
            b"{}", b"mine", b"\xff", listed("tnctl graph", ["../../outside/secret"]),
            listed("tnctl graph", ["thesis.tex", "saved_model.pb"]), listed("tnctl run", ["notes"]),
            listed("tnctl run", ["log.jsonl"]).replace(b"run", b"rum"),
        ])  # fmt: skip
        self.put(self.folder() / generated_folders.LIST, text)

    def forge_manifest(self) -> None:
        """Another's folder, whose manifest says that photos and a thesis are files of ours."""
        folder = self.work / self.chance.choice(["mine", "new", "mine/photos", "empty", "theirs"])
        if not os.path.lexists(folder / "manifest.json") and folder.parent.is_dir():
            self.put(folder / "thesis.tex", b"mine")
            names = {"thesis.tex": generated_folders.entry(b"mine")}
            if self.chance.random() < 0.5:
                names["../../outside/secret"] = generated_folders.entry(b"secret")
            kind = self.chance.choice(["tnctl embeddings", "tnctl graph", "tnctl prepared"])
            name = "serving.json" if kind == "tnctl graph" else "manifest.json"
            body = {"format": kind, "version": 1, "files": names}
            self.put(folder / name, manifest.sealed(body))

    def add_data(self) -> None:
        """Inputs where commands write."""
        for name in ("train.csv", "test.csv"):
            self.put(
                self.work
                / self.chance.choice(["emb/data", "run/embeddings/data", "clicks/raw"])
                / name,
                (self.work / "clicks" / name).read_bytes(),
            )

    def forge_temporary(self) -> None:
        folder = self.root / f"tmp/tnctl.graph.{self.chance.randrange(10**6)}"
        self.put(folder / ".tnctl-temporary", f"{folder.name} 17\n".encode())
        self.put(folder / "content/thesis.tex", b"mine")

    # ---- Commands -----------------------------------------------------------------

    def spelled(self, path: str) -> str:
        """A place as somebody may say it."""
        return self.chance.choice([
            "{0}", "{0}", "{0}", "./{0}", "{0}/", "empty/../{0}", "{1}/work/{0}", "{0}//",
            "file://{1}/work/{0}", "../linked/{0}", "{1}/linked/{0}", "empty/../{0}", "x/../{0}",
        ]).format(path, self.root)  # fmt: skip

    def place(self, *natural: str) -> str:
        """Where to write: natural places in half of the cases."""
        return self.chance.choice(natural if self.chance.random() < 0.6 else PLACES)

    def command(self, name: str | None = None) -> Command:
        """A random command."""
        weights = {
            "train": 3, "prepare": 5, "split-graph": 5, "export-embeddings": 6, "fold": 6,
            "predict": 3, "score": 3, "compact": 6, "prune": 4, "look": 3, "evaluate": 1,
        }  # fmt: skip
        name = name or self.chance.choices([*weights], [*weights.values()])[0]
        return getattr(self, f"_{name.replace('-', '_')}")()

    def _to(self, arguments: list[str], to: str, format: str) -> Command:
        root = self.key(to)
        above, last = os.path.split(root)
        beside = {
            os.path.join(above, f".{last}.tnctl-{end}"): {format, "left"} for end in ("new", "old")
        }
        return Command([*arguments, f"to={self.spelled(to)}"], {root: {format}, **beside}, root)

    def _run(self) -> str:
        return self.chance.choice(
            ["output=run"] * 5 + ["output=other", f"output={self.place('run')}"]
        )

    def _prepare(self) -> Command:
        roots = ["clicks", "clicks/raw", "emb/data", "run/embeddings/data"]
        root = self.chance.choice(
            [root for root in roots if (self.work / root / "train.csv").exists()]
        )
        arguments = ["prepare", "conf=small.yaml", f"data.root={root}"]
        return self._to(arguments, self.place("prep", "new", "new/a/b"), "prepared")

    def _split_graph(self) -> Command:
        return self._to(
            ["split-graph", self._run(), "golden=2"], self.place("graph", "new"), "graph"
        )

    def _export_embeddings(self) -> Command:
        kind = self.chance.choice(["parquet", "text", "dictionary"])
        arguments = ["export-embeddings", self._run(), f"format={kind}", "golden=2"]
        since = self.chance.random() < 0.3
        if since:
            arguments.append(f"since={self.spelled('emb')}")
        to = self.place("emb", "delta", "new", "to-nothing")
        command = self._to(arguments, to, "embeddings")
        command.reads = [self.key("emb")] if since else []
        return command

    def _fold(self) -> Command:
        source = self.chance.choice(["delta", "delta", "delta", "emb", "mine"])
        arguments = ["fold", f"embeddings={self.spelled(source)}"]
        command = self._to(arguments, self.place("new", "emb", "delta", "empty"), "embeddings")
        command.reads = [self.key(source)]
        return command

    def _compact(self) -> Command:
        arguments = [
            "checkpoint",
            "compact",
            self.spelled(self.chance.choice(["run", STEP, "other"])),
        ]
        return self._to(arguments, self.place("new", "new/a/b", "empty"), "checkpoint")

    def _file(self, arguments: list[str], to: str) -> Command:
        command = self._to(arguments, to, "file")
        if self.chance.random() < 0.5:
            command.arguments.append("overwrite=true")
            command.may[command.checks or ""] = {"anything"}
        command.checks = None
        return command

    def _predict(self) -> Command:
        arguments = ["predict", "output=run", "data.test=test.csv", "format=csv"]
        if self.chance.random() < 0.4:
            may = {self.key("run/predictions.csv"): {"prediction"}}
            may[self.key("run") + "/.predictions.csv.tnctl-new"] = {"prediction"}
            return Command(arguments, may)
        return self._file(arguments, self.place("s.csv", "new/p.csv"))

    def _score(self) -> Command:
        source = self.chance.choice(["delta", "delta", "emb"])
        arguments = ["score", "graph=graph", f"embeddings={source}", "input=clicks/test.csv"]
        return self._file(arguments, self.place("s.csv", "new/s.csv"))

    def _look(self) -> Command:
        kind = self.chance.choice(["list", "verify", "inspect", "diff"])
        url = self.chance.choice(["run", "other", "run/checkpoints", STEP, *PLACES])
        return Command(
            ["checkpoint", kind, self.spelled(url), *(["run"] if kind == "diff" else [])]
        )

    def _evaluate(self) -> Command:
        return Command(["evaluate", "output=run", "data.test=test.csv"])

    def _prune(self) -> Command:
        to = self.place("run", "other")
        arguments = ["checkpoint", "prune", self.spelled(to), "keep=1"]
        if self.chance.random() < 0.8:
            arguments.append("yes=true")
        return Command(arguments, {self.key(to): {"run"}, self.key(f"{to}/checkpoints"): {"run"}})

    def _train(self) -> Command:
        to = self.place("run", "new", "run", "other")
        root = self.key(to)
        arguments = [*TRAIN, f"output={self.spelled(to)}"]
        may = {
            os.path.normpath(f"{root}/{name}"): {"run"}
            for name in ("checkpoints", "damaged", "log.jsonl", "report.json", "report.html",
                         ".tnctl-lock")
        }  # fmt: skip
        may[f"{root}/."] = {"run"}  # parts of files beside them
        if self.chance.random() < 0.6:
            arguments.append("overwrite=true")
            may[root] = {"run", "prediction"}
            for name, format_ in (("graph", "graph"), ("embeddings", "embeddings")):
                may[os.path.normpath(f"{root}/{name}")] = {format_}
        if self.chance.random() < 0.3:
            arguments.append("train.epochs=2")
        return Command(arguments, may)

    # ---- The judge ----------------------------------------------------------------

    def judge(self, command: Command, before: dict, after: dict) -> list[str]:
        """What a command did that it may not, in words. What it made is known as tnctl's then."""
        wrong = []
        for key, content in before.items():
            if key in after and after[key] == content:
                continue
            # A folder with nothing but a list of an earlier version goes with the list.
            if {k for k in before if below(k, key)} == {key, f"{key}/{generated_folders.LIST}"}:
                continue
            is_read = any(below(key, place) for place in command.reads)
            if is_read or not self.may_replace(command, key):
                what = "removed" if key not in after else "changed"
                wrong.append(f"{what} {key} ({self.owner.get(key, 'foreign')})")
        format_ = next((f for fs in command.may.values() for f in fs if f != "left"), "?")
        for key in after.keys() - before.keys():
            # A folder above an output; `x/../run` is in one that is made as well.
            is_way = after[key] is None and (key == "work/x" or self._is_way(command, key))
            # Folders of a process are named by it, and go with it. TensorFlow's own files are left
            # in the temporary folder by a process that is killed.
            temporary = key.startswith(("tmp/tnctl.", "tmp/__autograph_generated_file"))
            if not (is_way or temporary or self._place_of(command, key)):
                wrong.append(f"made {key}")
        for key in {*before, *after}:
            if key not in after:
                self.owner.pop(key, None)
            elif self._is_way(command, key):
                continue
            elif key not in before or before[key] != after[key]:
                self.owner[key] = self._format_of(command, key, format_)
        return wrong

    def _is_way(self, command: Command, key: str) -> bool:
        return any(below(place, key) and place != key for place in command.may)

    def _place_of(self, command: Command, key: str) -> str | None:
        """The most exact of the places where a command may write that a path is in."""
        places = [p for p in command.may if below(key, p)]
        if places:
            return max(places, key=len)
        run = os.path.dirname(key)
        part = os.path.basename(key).endswith(".tnctl-part")
        run = run or "."
        return f"{run}/." if part and f"{run}/." in command.may else None

    def may_replace(self, command: Command, key: str) -> bool:
        if key.startswith("tmp/"):
            return key in self.owner
        place = self._place_of(command, key)
        if place is None:
            return False
        formats = set().union(*(fs for p, fs in command.may.items() if below(key, p)))
        if "anything" in formats and key == place:
            return True
        if os.path.basename(key) == generated_folders.LIST:
            return True
        return self.owner.get(key) in formats or ("run" in formats and self._is_of_run(key))

    def _is_of_run(self, key: str) -> bool:
        """Whether a path is a name of a run, in a folder that has or had the log of one."""
        return any(
            self.owner.get(f"{above}/log.jsonl") == "run" and OF_RUN.fullmatch(key, len(above) + 1)
            for above in map(str, Path(key).parents)
        )

    def _format_of(self, command: Command, key: str, default: str) -> str:
        if command.arguments[0] == "train":
            return "run"
        if command.arguments[0] == "predict" and key.startswith("work/run/"):
            return "prediction"
        return "file" if default == "anything" else default


def listed(of: str, names: list[str]) -> bytes:
    """A list of ownership, sealed as tnctl does."""
    return manifest.sealed(
        {"format": "tnctl files", "version": 1, "of": of, "names": names, "files": {}}
    )


def make_template(root: Path, cli) -> dict[str, str]:
    """Make the folder that worlds begin as; returns the formats of its paths that are ours."""
    work = root / "work"
    (root / "outside/tables/linear1").mkdir(parents=True)
    for name in ("secret", "data.csv", "variables.index", "tables/linear1/00000.rows", "dense.bin"):
        (root / "outside" / name).write_text("secret")
    (work / "clicks").mkdir(parents=True)
    for split, rows in ROWS.items():
        lines = [f"u{i % 7},i{i % 11},{i % 2}" for i in range(rows)]
        (work / f"clicks/{split}.csv").write_text("\n".join(["user_id,item_id,label", *lines, ""]))
    (work / "small.yaml").write_text(CONF)
    (work / "mine/photos").mkdir(parents=True)
    (work / "mine/notes.txt").write_text("mine")
    (work / "mine/photos/cat.jpg").write_text("mine")
    (work / "empty").mkdir()
    (root / "tmp").mkdir()
    (root / "linked").symlink_to("work")
    (work / "to-graph").symlink_to("graph")
    (work / "to-outside").symlink_to("../outside")
    (work / "to-nothing").symlink_to("nothing")
    owner: dict[str, str] = {}
    before = stored(root)
    for name, arguments in TEMPLATE.items():
        done = cli(*arguments, cwd=work)
        assert done.code == 0, done.err
        after = stored(root)
        owner |= dict.fromkeys(after.keys() - before.keys(), FORMATS.get(name, name))
        before = after
    # A run of its own, of the same command; a copy would say so as well.
    done = cli(*TRAIN, "output=other", cwd=work)
    assert done.code == 0, done.err
    owner |= dict.fromkeys(stored(root).keys() - before.keys(), "run")
    return owner


def new_world(template: Path, owner: dict[str, str], root: Path, chance: random.Random) -> World:
    """A copy of the template, disturbed."""
    shutil.copytree(template, root, symlinks=True)
    world = World(root, chance, dict(owner))
    for _ in range(chance.randint(1, 6)):
        world.disturb()
    return world
