"""Whether two checkouts of tnctl write the same files and say the same: a guard for refactoring.

    python tests/compare_versions.py OLD NEW FOLDER

OLD and NEW are checkouts with their own `.venv`. Each runs the commands below, as processes, in a
folder of its own below FOLDER, on the same data. Then the folders are compared: files byte for
byte, JSON documents and logs without what depends on the clock, the report page by its figures.
Messages that differ are listed and are no failure. Runs that OLD left in the middle of a pass, of
one process and of two workers, are resumed by NEW and the other way round, and must come to the
same checkpoints. To run these alone: --only 'half|train_deepfm|prepare'.

What a new version changes deliberately is named in EXPECTED, or by --expect: such differences are
listed with their reasons, and are no failure either.
"""

import argparse
import concurrent.futures
import filecmp
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import conftest  # in the main thread, for it sets the handler of a signal

# A pattern of differences as they are listed, such as `report\.json: life\b`, and the reason.
EXPECTED: dict[str, str] = {}
SMALL = ("conf=small.yaml", "evaluation.ablate=false")
# Each has a name, and arguments; a run is written to runs/NAME.
TRAINED = {
    "deepfm": ["conf=small.yaml"],
    "two_passes": [
        *SMALL, "train.epochs=2", "evaluation.every_steps=5", "save.every_steps=4", "save.keep=0",
        "save.full_every=3",
    ],
    "dcn": [*SMALL, "recipe=dcn", "recipe.hidden=[16,8]", "recipe.layers=2"],
    "dcn_experts": [
        *SMALL, "recipe=dcn", "recipe.hidden=[16]", "recipe.structure=stacked", "recipe.low_rank=4",
        "recipe.experts=2", "recipe.batch_norm=true", "train.deterministic=true",
    ],
    "wide_deep": [
        *SMALL, "recipe=wide_deep", "recipe.hidden=[16]", "recipe.dropout=0.2", "golden=5",
        "optimizer.linear={name: ftrl, l1: 0.1}", "recipe.batch_norm=true",
    ],
    "fm": [*SMALL, "recipe=fm", "~numeric", "optimizer.embedding={name: adam}", "train.epochs=2"],
    "lr": [*SMALL, "recipe=lr", "optimizer.linear={name: adagrad_coordinate, l2: 0.01}"],
    "din": [
        "conf=din", "data.train=0:6000", "data.validation=6000:7000", "data.test=7000:8000",
        "train.batch_size=512", "evaluation.ablate=false",
    ],
    "esmm": [
        "conf=esmm", "data.train=0:6000", "data.validation=6000:7000", "data.test=7000:8000",
        "train.batch_size=512", "evaluation.ablate=false",
    ],
    "optimizers": [
        *SMALL, "optimizer.linear={name: sgd, momentum: 0.9, nesterov: true}",
        "optimizer.embedding={name: adamw, weight_decay: 0.01, clip: 0.5, max_norm: 1}",
        "optimizer.dense={name: sgd, momentum: 0.5, learning_rate: 0.01}",
        "optimizer.clip_norm=0.5",
        "optimizer.schedule={name: cosine, warmup_steps: 3, decay_steps: 9}",
    ],
    "groups": [
        *SMALL, "recipe=wide_deep", "recipe.hidden=[16,8]",
        "+optimizer.groups.shared.embedding={name: ftrl, learning_rate: 0.02}",
        "slots.user_id.width=8", "slots.device.pooling=sqrtn", "slots.region.linear=false",
        "slots.region.group=null", "slots.item_id.frozen=true", "slots.item_id.initial=uniform",
        "optimizer.dense={name: ftrl, learning_rate: 0.05}",
    ],
    "updates_all": [
        *SMALL, "optimizer.updates=all", "optimizer.embedding={name: adam, l2: 0.001}",
        "optimizer.dense={name: adagrad, learning_rate: 0.02, bound: 2}",
    ],
    "tensornet": [
        *SMALL, "compat=tensornet", "optimizer.linear={name: ftrl}",
        "optimizer.embedding={name: adam}", "life.shows={keep: true, cvm: true}",
        "optimizer.dense={name: adagrad, momentum_decay: 0.9}",
    ],
    "life": [
        *SMALL, "life.admission.after=2", "life.sketch=65536", "life.shows.keep=true",
        "life.eviction={rows: 400, unseen_steps: 8, every_steps: 4}", "train.epochs=2",
        "save.every_steps=3", "save.keep=0", "save.full_every=2", "life.shows.cvm=true",
    ],
    "loss": [
        *SMALL, "train.loss={name: focal, alpha: 0.3}", "data.weight=price",
        "data.group=user_id", "train.precision=bfloat16", "evaluation.monitor=gauc",
    ],
    "negatives": [*SMALL, "data.negatives=0.5", "train.loss.smoothing=0.1", "train.xla=true"],
    "keep_best": [
        *SMALL, "train.epochs=4", "evaluation.keep=best", "evaluation.patience=2",
        "evaluation.every_steps=4", "train.loss.smoothing=0.1",
        "+optimizer.schedule={name: plateau, patience: 1}", "optimizer.embedding.learning_rate=0.5",
        "save.compression=zstd", "train.tensorboard=true", "save.keep=0", "save.every_steps=5",
    ],
    "inputs": [
        *SMALL, "+slots.pair={cross: [device, region]}", "slots.user_id.ids=modulo",
        "slots.user_id.size=500",
        "+slots.hours={column: price, ids: boundaries, boundaries: [1,5]}",
        "+slots.flag={column: region, indicator: true, ids: modulo, size: 7}",
        "slots.interests.max_length=2", "slots.interests.keep=last", "data.shuffle=false",
        "+slots.words={column: device, ids: vocabulary, vocabulary: ['1','2','3'], oov: 2}",
    ],
    "parquet": [
        *SMALL, "data.format=parquet", "data.train=train.parquet", "data.test=test.parquet",
        "data.validation=validation.parquet",
    ],
    "jsonl": [
        *SMALL, "data.format=jsonl", "data.train=train.jsonl.gz", "data.test=null",
        "data.validation=null", "data.window=500",
    ],
    "tsv": [
        *SMALL, "data.train=train.tsv", "data.validation=null", "data.test=null",
        "data.delimiter='\\t'", "data.bad_rows=10",
    ],
    "warm": [
        *SMALL, "warm.start=runs/deepfm", "~slots.device", "+slots.shop={column: device}",
        "warm.new=[shop]", "warm.drop=[device]", "embedding.width=6", "warm.optimizer=fresh",
    ],
    "warm_dcn": [
        *SMALL, "recipe=dcn", "recipe.hidden=[16,8]", "recipe.layers=2", "warm.start=runs/dcn",
        "~slots.user_id", "+slots.user={column: user_id}", "warm.rename={user: user_id}",
    ],
    "warm_days": [*SMALL, "warm.start=runs/life", "life.admission.after=2", "warm.dense=fresh"],
}  # fmt: skip
RESUMED = {"two_passes": 8, "life": 9, "keep_best": 20}  # steps in the middle of a pass
PARTS = ",".join(f"parts/2024-01-0{day}-{part}.csv" for day in (1, 2, 4) for part in "ab")
HALF = [*SMALL, f"data.train=[{PARTS}]", "save.every_steps=1", "save.keep=0"]
# Runs of one process and of two workers, and the steps of each in the middle of a pass or day.
HALVES = {
    "plain": ([*HALF, "train.epochs=2"], (12, 7)),
    "days": (
        [
            *HALF, "data.train=['parts/{day}-a.csv','parts/{day}-b.csv']", "data.validation=null",
            "data.days=2024-01-01..2024-01-02",
        ],
        (4, 3),
    ),
    "deltas": ([*HALF, "save.full_every=3", "save.compression=zstd"], (5, 3)),
    "life": (
        [
            *HALF, "life.admission.after=2", "life.sketch=65536", "life.shows.keep=true",
            "life.eviction={unseen_steps: 2, every_steps: 2}",
        ],
        (5, 3),
    ),
    "warm": ([*HALF, "warm.start=runs/deepfm"], (17, 15)),
    "prepared": (
        [
            *HALF, "data.prepared=prepared", "data.train=null", "data.validation=null",
            "data.test=null", "data.root=null",
        ],
        (7, 4),
    ),
}  # fmt: skip
for _name, (_arguments, _steps) in HALVES.items():
    TRAINED[f"half_{_name}"], RESUMED[f"half_{_name}"] = _arguments, _steps[0]
    TRAINED[f"half_{_name}_2"] = [*_arguments, "cluster=local", "cluster.workers=2"]
    RESUMED[f"half_{_name}_2"] = _steps[1]
SERVERS = ["cluster=local", "cluster.workers=3", "cluster.servers=2"]
LIFE = HALVES["life"][0]
TRAINED |= {
    "half_one": [*HALF, "cluster=local", "cluster.workers=1"],
    "half_life_servers": [*LIFE, *SERVERS, "recipe.batch_norm=true", "recipe.dropout=0.2"],
    "half_clipped_servers": [*HALF, *SERVERS, "optimizer.clip_norm=0.3"],
    "half_clipped_2": [*HALF, "cluster=local", "cluster.workers=2", "optimizer.clip_norm=0.3"],
    "half_bfloat16": [*HALF, "cluster=local", "cluster.workers=3", "cluster.wire=bfloat16"],
}
DAYS = [
    "conf=small.yaml", "evaluation.ablate=false", "data.train=days/{day}.csv",
    "data.validation=null", "life.eviction.unseen_days=2", "life.shows.keep=true",
    "save.full_every=2", "save.keep=0", "output=runs/days",
]  # fmt: skip
EXPORTED = {
    "parquet": ["output=runs/deepfm", "golden=5"],
    "text": ["output=runs/tensornet", "format=text"],
    "dictionary": ["output=runs/groups", "format=dictionary"],
    "int8": ["output=runs/dcn", "format=dictionary", "precision=int8"],
    "float16": ["output=runs/fm", "precision=float16", "only=user_id,item_id"],
    "top": ["output=runs/life", "top=50", "min_show=1", "format=dictionary"],
    "days_1": ["checkpoint=runs/days/checkpoints/step-0000000006", "format=dictionary"],
    "days_2": ["output=runs/days", "since=exports/days_1", "format=dictionary"],
}
SPLIT = {
    "deepfm": ["output=runs/deepfm", "golden=5"],
    "frozen": ["output=runs/wide_deep", "frozen=true"],
    "head": ["output=runs/esmm", "head=cvr"],
    "din": ["output=runs/din"],
    "days": ["output=runs/days", "golden=3"],
}
WRONG = [
    ["train", "conf=smal.yaml"],
    ["train", "conf=small.yaml", "train.batch_sice=3"],
    ["train", "conf=small.yaml", "train.batch_size=0"],
    ["train", "conf=small.yaml", "train.batch_size=many"],
    ["train", "conf=small.yaml", "train=3"],
    ["train", "conf=small.yaml", "optimizer.embedding.name=adm"],
    ["train", "conf=small.yaml", "optimizer.embedding.beta1=0.5"],
    ["train", "conf=small.yaml", "slots.user.column=x"],
    ["train", "conf=small.yaml", "slots.user_id.ids=vocabulary"],
    ["train", "conf=small.yaml", "recipe=dnc"],
    ["train", "conf=small.yaml", "recipe.hiden=[3]"],
    ["train", "conf=small.yaml", "data.train=no.csv"],
    ["train", "conf=small.yaml", "data.label.column=lable"],
    ["train", "conf=small.yaml", "output=runs/deepfm", "seed=2"],
    ["train", "conf=small.yaml", "to=x"],
    ["train", "conf=small.yaml", "a=[1"],
    ["train", "conf=deepfm", "data=criteoo"],
    ["train", "conf=small.yaml", "evaluation={monitor: auk}"],
    ["train", "conf=small.yaml", "data.negatives=2"],
    ["train", "conf=small.yaml", "optimizer.schedule.name=linear"],
    ["train", "conf=small.yaml", "life.eviction.show=1"],
    ["train", "conf=small.yaml", "warm.start=runs/deepfm", "output=runs/w", "recipe=lr"],
    ["train", "conf=small.yaml", "warm.start=runs/deepfm", "output=runs/w", "~slots.device"],
    ["evaluate", "output=runs/none"],
    ["predict", "output=runs/deepfm", "data.test=test.csv", "to=clicks/test.csv"],
    ["split-graph", "checkpoint=runs/deepfm"],
    ["export-embeddings", "output=runs/deepfm", "format=csv"],
    ["export-embeddings", "output=runs/deepfm", "min_show=1", "to=exports/x"],
    ["fold", "embeddings=exports/parquet"],
    ["score", "graph=graphs/deepfm", "embeddings=exports/parquet", "input=none.jsonl"],
    ["checkpoint", "prun", "runs/deepfm"],
    ["tran"],
]


def commands() -> dict[str, list[str]]:
    """What is run, in this order, by name."""
    arguments_of = {
        "help": ["--help"],
        "version": ["--version"],
        "check": ["check", "conf=small.yaml", "rows=1000"],
        "check_json": ["check", "conf=small.yaml", "rows=1000", "format=json"],
        "cfg": ["train", "conf=small.yaml", "--cfg", "job"],
    }
    for name in (
        "train", "evaluate", "predict", "ablate", "split-graph", "export-embeddings", "fold",
        "verify-serving", "score", "checkpoint", "prepare", "check", "completion",
    ):  # fmt: skip
        arguments_of[f"help_{name}"] = [name, "--help"]
    arguments_of["prepare"] = ["prepare", "conf=small.yaml", "to=prepared"]
    for name, arguments in TRAINED.items():
        arguments_of[f"train_{name}"] = ["train", f"output=runs/{name}", *arguments]
    arguments_of["train_again"] = ["train", "output=runs/deepfm", "conf=small.yaml"]
    arguments_of["train_prepared"] = [
        "train", *SMALL, "output=runs/prepared", "data.prepared=prepared", "data.train=null",
        "data.validation=null", "data.test=null", "data.root=null",
    ]  # fmt: skip
    arguments_of["sweep"] = ["train", *SMALL, "output=runs/sweep", "-m", "seed=1,2", "recipe=lr,fm"]
    arguments_of["days_1"] = ["train", *DAYS, "data.days=2024-01-01..2024-01-02"]
    arguments_of["days_gate"] = ["train", *DAYS]
    arguments_of["days_accept"] = ["train", *DAYS, "accept=true"]
    for name, arguments in EXPORTED.items():
        arguments_of[f"export_{name}"] = ["export-embeddings", *arguments, f"to=exports/{name}"]
    arguments_of["fold"] = ["fold", "embeddings=exports/days_2", "to=exports/folded"]
    for name, arguments in SPLIT.items():
        arguments_of[f"split_{name}"] = ["split-graph", *arguments, f"to=graphs/{name}"]
    arguments_of |= {
        "verify": [
            "verify-serving", "output=runs/deepfm", "graph=graphs/deepfm",
            "embeddings=exports/parquet",
        ],
        "score": [
            "score", "graph=graphs/deepfm", "embeddings=exports/parquet", "to=scores.jsonl",
            "input=graphs/deepfm/golden.jsonl",
        ],
        "predict_parquet": ["predict", "output=runs/deepfm", "to=deepfm.parquet"],
        "predict_csv": ["predict", "output=runs/din", "to=din.csv", "format=csv"],
        "evaluate": ["evaluate", "output=runs/two_passes", "data.test=validation.csv"],
        "evaluate_esmm": ["evaluate", "output=runs/esmm"],
        "ablate": ["ablate", "output=runs/wide_deep"],
        "list": ["checkpoint", "list", "runs/two_passes"],
        "list_json": ["checkpoint", "list", "runs/life", "--json"],
        "inspect": ["checkpoint", "inspect", "runs/groups"],
        "inspect_json": ["checkpoint", "inspect", "runs/days", "--json"],
        "verify_checkpoint": ["checkpoint", "verify", "runs/life"],
        "diff": [
            "checkpoint", "diff", "runs/two_passes/checkpoints/step-0000000012", "runs/two_passes",
        ],
        "compact": ["checkpoint", "compact", "runs/life", "to=compacted"],
        "prune": ["checkpoint", "prune", "runs/two_passes", "keep=2"],
        "prune_yes": ["checkpoint", "prune", "runs/days", "keep=1", "yes=true"],
    }  # fmt: skip
    arguments_of |= {f"wrong_{number}": arguments for number, arguments in enumerate(WRONG)}
    return arguments_of


def write_data(folder: Path) -> None:
    """small.yaml, and clicks in several formats and days; the third day looks broken."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    folder.mkdir(parents=True)
    clicks = folder / "clicks"
    conftest.write_clicks(clicks)
    (folder / "small.yaml").write_text(conftest.CONF)
    as_text = pa.csv.ConvertOptions(column_types={"user_id": pa.string(), "item_id": pa.string()})
    for split in conftest.ROWS:
        rows = pa.csv.read_csv(clicks / f"{split}.csv", convert_options=as_text)
        pa.parquet.write_table(rows, clicks / f"{split}.parquet", row_group_size=700)
    rows = pa.parquet.read_table(clicks / "train.parquet")
    commas = (clicks / "train.csv").read_text()
    (clicks / "train.tsv").write_text(commas.replace(",", "\t").replace('"', "") + "one value\n")
    lines = "".join(json.dumps(row) + "\n" for row in rows.to_pylist())
    with pa.output_stream(str(clicks / "train.jsonl.gz"), compression="gzip") as stream:
        stream.write(lines.encode())
    (clicks / "days").mkdir()
    (clicks / "parts").mkdir()
    plain = pa.csv.WriteOptions(quoting_style="none")
    for day in range(4):
        part = rows.slice(day * 700, 700)
        if day == 2:
            part = part.set_column(2, "device", pa.nulls(700, pa.string()))
        pa.csv.write_csv(part, clicks / "days" / f"2024-01-0{day + 1}.csv", plain)
        for letter, half in (("a", part.slice(0, 350)), ("b", part.slice(350))):
            pa.csv.write_csv(half, clicks / "parts" / f"2024-01-0{day + 1}-{letter}.csv", plain)
    set_times(clicks)


def set_times(folder: Path) -> None:
    """Give all files of a folder one time: checkpoints have the times of their data."""
    for path in folder.rglob("*"):
        os.utime(path, (1e9, 1e9))


def run(checkout: Path, folder: Path, name: str, arguments: list[str]) -> None:
    """A command as a process; exit code and output are kept in files."""
    environment = {**os.environ, "TMPDIR": str(folder / "tmp"), "COLUMNS": "200"}
    environment |= {"TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [str(checkout / ".venv/bin/python"), "-m", "tnctl", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    said = f"exit {done.returncode}\n--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
    (folder / "said" / f"{name}.txt").write_text(said.replace(str(folder), "FOLDER"))


def run_all(checkout: Path, folder: Path, only: str | None) -> None:
    write_data(folder)
    (folder / "said").mkdir()
    (folder / "tmp").mkdir()
    for name, arguments in commands().items():
        if only is None or re.search(only, name):
            run(checkout, folder, name, arguments)
            print(f"{folder.name}: {name}", flush=True)
        if name == "prepare":
            set_times(folder / "prepared")


# ---- Comparison ------------------------------------------------------------------

CLOCK_KEYS = ("timing", "saved", "sessions", "sha256", "crc", "bytes", "checksum", "written")
TIMES = re.compile(
    r"\d[\d,.]*\s?(ms|s|min|h|rows/s|steps/s|examples/s|/s|[kMG]?i?B(/s)?)\b|\d+:\d\d(:\d\d)?"
    r"|20\d\d-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?\S*"
)


def without_clock(value: object) -> object:
    """A JSON value without what depends on the clock, and checksums over it."""
    if isinstance(value, dict):
        return {k: without_clock(v) for k, v in value.items() if k not in CLOCK_KEYS}
    return [without_clock(part) for part in value] if isinstance(value, list) else value


def figures(page: str) -> list[str]:
    """The texts of a report page that do not depend on the clock."""
    page = re.sub(r"(?s)<(script|style)\b.*?</\1>", " ", page)
    texts = [text.strip() for text in re.sub(r"<[^>]*>", "\n", page).split("\n") if text.strip()]
    texts = [
        text
        for title, text in zip(["", *texts], texts, strict=False)
        if title != "examples per second" and not text.endswith("%)")
    ]
    return [TIMES.sub("T", text) for text in texts]


def content(path: Path) -> object:
    """What is compared of a file; bytes where every byte counts."""
    name = path.name
    if name.endswith(".json"):
        return without_clock(json.loads(path.read_text()))
    if name == "log.jsonl":
        return [without_clock(json.loads(line)) for line in path.read_text().splitlines()]
    if name.endswith(".html"):
        return figures(path.read_text())
    return path.read_bytes()


def differing(old: Path, new: Path) -> list[str]:
    """Files of two folders that differ, or are in one alone."""
    names: dict[str, None] = {}
    for folder in (old, new):
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if path.is_file() and not name.startswith(("said/", "tmp/")):
                names[name] = None
    differences = []
    for name in names:
        if "tfevents" in name or name.endswith("fingerprint.pb"):  # TensorFlow draws its number
            continue
        by_workers = (old / name).parent / "workers"
        if "/workers/" in name or (name.endswith(".html") and by_workers.is_dir()):
            continue  # they say how much workers waited for each other
        if not (old / name).is_file() or not (new / name).is_file():
            side = old.name if (old / name).is_file() else new.name
            differences.append(f"{name}: only in {side}")
        elif filecmp.cmp(old / name, new / name, shallow=False):
            continue
        else:
            pair = content(old / name), content(new / name)
            differences += [f"{name}{place}" for place in places(*pair)]
    return differences


def places(old: object, new: object, path: str = "") -> list[str]:
    """Where two contents differ: `: key.key`, or nothing where they are no JSON."""
    if isinstance(old, dict) and isinstance(new, dict):
        separator = "." if path else ": "
        return [
            place
            for name in dict.fromkeys([*old, *new])
            for place in places(old.get(name), new.get(name), f"{path}{separator}{name}")
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            place
            for number, pair in enumerate(zip(old, new, strict=True))
            for place in places(*pair, f"{path or ': '}[{number}]")
        ]
    return [] if old == new else [path]


def messages(folder: Path, name: str) -> list[str]:
    path = folder / "said" / name
    return [TIMES.sub("T", line) for line in path.read_text().splitlines()] if path.exists() else []


def print_messages(old: Path, new: Path) -> None:
    import difflib

    for path in sorted((old / "said").iterdir()):
        pair = messages(old, path.name), messages(new, path.name)
        if pair[0] != pair[1]:
            print(f"message of {path.stem}:")
            for line in difflib.unified_diff(*pair, lineterm="", n=0):
                if not line.startswith(("---", "+++", "@@")):
                    print(f"    {line}")


# ---- Resuming what the other version left ------------------------------------------


def cut(folder: Path, name: str, step: int) -> Path:
    """A run as it was when it was stopped at a step in the middle."""
    to = folder / "cut" / "runs" / name
    shutil.copytree(folder / "runs" / name, to)
    for checkpoint in (to / "checkpoints").glob("step-*"):
        if int(checkpoint.name.split("-")[1]) > step:
            shutil.rmtree(checkpoint)
    for left in ("report.json", "report.html"):
        (to / left).unlink(missing_ok=True)
    return to


CROSSED = (("old", "new"), ("new", "old"))  # which version began a run, and which ends it


def resume_across(
    checkouts: dict[str, Path], folders: dict[str, Path], begun: str, ended: str
) -> None:
    """A version resumes runs that the other began, in a folder such as `old-by-new`."""
    folder = folders[begun].with_name(f"{begun}-by-{ended}")
    write_data(folder)
    (folder / "said").mkdir()
    (folder / "tmp").mkdir()
    if (folders[begun] / "prepared").is_dir():
        shutil.copytree(folders[begun] / "prepared", folder / "prepared")
    for name, step in RESUMED.items():
        if (folders[begun] / "runs" / name).is_dir():
            shutil.move(cut(folders[begun], name, step), folder / "runs" / name)
            run(checkouts[ended], folder, name, ["train", f"output=runs/{name}", *TRAINED[name]])
            print(f"{folder.name}: {name}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", help="a pattern: commands whose names match")
    parser.add_argument("--compare", action="store_true", help="what was run before")
    parser.add_argument(
        "--expect", action="append", default=[], help="a pattern, as in EXPECTED: no failure"
    )
    given = parser.parse_args()
    checkouts = {"old": given.old.resolve(), "new": given.new.resolve()}
    folders = {side: given.folder.resolve() / side for side in checkouts}
    if not given.compare:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            list(
                pool.map(lambda side: run_all(checkouts[side], folders[side], given.only), folders)
            )
            list(pool.map(lambda sides: resume_across(checkouts, folders, *sides), CROSSED))
    print_messages(*folders.values())
    differences = differing(*folders.values())
    crossed = [given.folder.resolve() / f"{begun}-by-{ended}" for begun, ended in CROSSED]
    for name in RESUMED:
        runs = [folder / "runs" / name / "checkpoints" for folder in (*crossed, folders["old"])]
        if not all(path.is_dir() for path in runs):
            continue
        *ended, whole = (sorted(path.glob("step-*"))[-1] for path in runs)
        differences += [f"{name}, resumed: {line}" for line in differing(*ended)]
        # TensorFlow names the functions of a graph by what the process has made before.
        lines = [line for line in differing(ended[0], whole) if not line.startswith("graph/")]
        differences += [f"{name}, resumed or not: {line}" for line in lines]
    expected = {**EXPECTED, **dict.fromkeys(given.expect, "--expect")}
    for pattern, reason in expected.items():
        matching = [line for line in differences if re.search(pattern, line)]
        differences = [line for line in differences if line not in matching]
        print(f"{len(matching)} differences expected by {pattern} ({reason})", *matching, sep="\n")
    print("\n".join(["files that differ:", *differences]) if differences else "all files are equal")
    return bool(differences)


if __name__ == "__main__":
    sys.exit(main())
