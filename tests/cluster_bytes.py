"""Whether two checkouts of tnctl train the same bytes with several workers.

    python tests/cluster_bytes.py OLD NEW FOLDER [--only PATTERN]

OLD and NEW are checkouts with their own `.venv`. Each trains the confs below with one, two and
three workers, dedicated servers, clipping, bfloat16, a row's life and deltas, in a folder of its
own below FOLDER. One command is killed in the middle and given again. Then every checkpoint is
compared, file by file, manifests without what depends on the clock.
"""

import argparse
import concurrent.futures
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import compare_versions as versions

LIFE = [
    "life.admission.after=2", "life.sketch=65536", "life.shows={keep: true, cvm: true}",
    "life.eviction={unseen_steps: 4, every_steps: 3}", "optimizer.clip_norm=0.8",
    "optimizer.embedding.lazy_l2=0.001", "recipe.batch_norm=true", "recipe.dropout=0.2",
]  # fmt: skip
DELTAS = ["save.full_every=3", "save.compression=zstd"]
WORKERS = {count: ["cluster=local", f"cluster.workers={count}"] for count in (1, 2, 3)}
CONFS = {
    "one": WORKERS[1],
    "two": WORKERS[2],
    "three": WORKERS[3],
    "server": [*WORKERS[2], "cluster.servers=1"],
    "servers": [*WORKERS[3], "cluster.servers=2"],
    "clipped": [*WORKERS[2], "optimizer.clip_norm=0.3"],
    "clipped_servers": [*WORKERS[2], "cluster.servers=2", "optimizer.clip_norm=0.3"],
    "bfloat16": [*WORKERS[2], "cluster.wire=bfloat16"],
    "life": [*WORKERS[2], *LIFE],
    "life_three": [*WORKERS[3], *LIFE, *DELTAS],
    "deltas": [*WORKERS[2], *DELTAS, "train.epochs=2"],
    "killed": [*WORKERS[2], *LIFE, *DELTAS, "train.epochs=2"],
}
KILLED_AT = 4  # steps


def kill_in_the_middle(checkout: Path, folder: Path, arguments: list[str]) -> None:
    """Starts a command and kills it, with its workers, when a checkpoint of some steps is there."""
    begun = subprocess.Popen(
        [str(checkout / ".venv/bin/python"), "-m", "tnctl", *arguments],
        cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    checkpoints = folder / "runs" / "killed" / "checkpoints"
    until = time.monotonic() + 300
    while not any(
        int(manifest.parent.name.split("-")[1]) >= KILLED_AT
        for manifest in checkpoints.glob("step-*/manifest.json")
    ):
        if begun.poll() is not None or time.monotonic() > until:
            break  # the comparison tells what it has left
        time.sleep(0.02)
    os.killpg(begun.pid, signal.SIGKILL)
    begun.wait()
    time.sleep(2)  # workers end when they notice


def train(checkout: Path, folder: Path, only: str) -> None:
    """Trains the confs whose names match `only`, each to runs/NAME of `folder`."""
    versions.write_data(folder)
    for name in ("said", "tmp"):
        (folder / name).mkdir()
    for name, given in CONFS.items():
        if not re.search(only, name):
            continue
        arguments = ["train", f"output=runs/{name}", *versions.HALF, *given]
        if name == "killed":
            kill_in_the_middle(checkout, folder, arguments)
        versions.run(checkout, folder, name, arguments)
        print(f"{folder.name}: {name}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="a pattern: confs whose names match")
    given = parser.parse_args()
    folders = {side: given.folder.resolve() / side for side in ("old", "new")}
    checkouts = {"old": given.old.resolve(), "new": given.new.resolve()}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda side: train(checkouts[side], folders[side], given.only), folders))
    failed = [
        f"{side}: {path.stem} did not train, see {path}"
        for side, folder in folders.items()
        for path in sorted((folder / "said").iterdir())
        if not path.read_text().startswith("exit 0")
    ]
    differences = versions.differing(*(folder / "runs" for folder in folders.values()))
    differences = [
        line
        for line in differences
        if "/checkpoints/" in line and not line.endswith("conf.json: paths.folder")
    ]
    count = sum(1 for _ in (folders["old"] / "runs").glob("*/checkpoints/*/manifest.json"))
    print(*failed, *differences, sep="\n")
    print(f"{count} checkpoints, {len(differences)} differences, {len(failed)} failures")
    return bool(failed or differences or not count)


if __name__ == "__main__":
    sys.exit(main())
