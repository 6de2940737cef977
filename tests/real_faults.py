"""Faults of a real network and disk, and what a training must have done in spite of faults."""

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections import Counter

import cluster_commands
import numpy as np
import pytest
from cluster_commands import EPOCHS, FILES, ROWS, Training, trained_once

from tnctl.checkpoint import load, rows

KEEP_SHOWS = ["life.shows.keep=true"]


def number_rows(folder):
    """Give each row an id of its own, as another slot: its shows say how often it was trained."""
    conf = (folder / "small.yaml").read_text()
    (folder / "small.yaml").write_text(conf.replace("slots:\n", "slots:\n  row: {}\n"))
    others = [folder / f"clicks/{split}.csv" for split in ("train", "validation", "test")]
    for path in (*others, *(folder / f"clicks/part-{number}.csv" for number in range(FILES))):
        header, *lines = path.read_text().splitlines()
        numbered = [f"{line},{path.stem}-{place}" for place, line in enumerate(lines)]
        path.write_text("\n".join([f"{header},row", *numbered, ""]))


def check_rows(run, epochs=EPOCHS):
    """Each row was trained once per pass, as the report and the log say; of the first, also shows.

    These need `number_rows` and KEEP_SHOWS.
    """
    assert trained_once(run, epochs)
    assert shows_of_rows(run) == {1: ROWS}


def shows_of_rows(run):
    """How many rows were shown how often."""
    checkpoint = load.newest(str(run))
    [(table, group)] = [
        (table, group)
        for table in checkpoint.manifest.tables
        for group in table.groups
        if group.name == "row"
    ]
    saved = np.concatenate(list(rows.stream(checkpoint, table.name)))
    return Counter(saved["show"][saved["group"] == group.number, 0].tolist())


def resume(folder, *overrides, run="run"):
    """The same command trains to the end, every row once."""
    with Training(folder, *overrides) as training:
        assert training.wait() == 0, training.said
    assert f"resuming from {run}/checkpoints/" in training.said
    assert trained_once(folder / run)
    assert "Traceback" not in training.said
    return training


def may_have_networks():
    if not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        return False
    command = ["unshare", "-n", "ip", "link", "set", "lo", "up"]
    return subprocess.run(command, capture_output=True).returncode == 0


@contextlib.contextmanager
def network_of(pid):
    """A descriptor of the network of a process, which is not that of this one."""
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        # To take this machine's own interface down would cut off all that run here.
        assert not os.path.samestat(os.fstat(network), os.stat("/proc/self/ns/net"))
        yield network
    finally:
        os.close(network)


def set_loopback(network, state):
    enter = ["nsenter", f"--net=/proc/self/fd/{network}"]
    command = [*enter, "ip", "link", "set", "lo", state]
    subprocess.run(command, check=True, pass_fds=[network])


def train_through_a_cut(folder, seconds, *overrides):
    """Train in a network of its own, whose only interface is taken down for some seconds."""
    if not may_have_networks():
        pytest.skip("networks of one's own are not permitted here, or there is no iproute2")
    prefix = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    with Training(folder, "save.keep=100", *overrides, prefix=prefix, timeout=5) as training:
        training.until_saved()
        pids, saved = training.workers(), training.checkpoints()
        with network_of(training.supervisor.pid) as network:
            set_loopback(network, "down")
            time.sleep(seconds)
            set_loopback(network, "up")
        if seconds < 3:
            training.until_saved(saved)
            assert training.workers() == pids, training.said
        assert training.wait() == 0, training.said
    assert trained_once(training.run) and "Traceback" not in training.said
    if seconds > 3:
        reason = r"worker \d: worker \d (has been silent|could not be reached) for (\d+\.\d) s"
        assert float(re.search(reason, training.said)[2]) < 8  # the machine may be busy
        assert "all workers start again" in training.said
        assert "resuming from run/checkpoints/" in training.said
    else:
        assert "start again" not in training.said
    return training


def train_on_a_full_disk(folder, *overrides):
    """Train on a real disk, which fills meanwhile, and again when it has room."""
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this user may not mount a tmpfs")
    overrides = [*overrides, "output=disk/run", "save.keep=1"]
    try:
        with Training(folder, *overrides) as training:
            training.run = disk / "run"
            training.until_saved()
            with (disk / "ballast").open("wb", buffering=0) as ballast:
                training.until(lambda: fills(ballast))
            assert training.supervisor.wait(cluster_commands.SECONDS) == 1, training.said
        last = training.said.splitlines()[-1]
        assert "no space is left there" in last and "disk/run" in last
        assert last.startswith("tnctl train: ") and "Traceback" not in training.said
        (disk / "ballast").unlink()
        return resume(folder, *overrides, run="disk/run")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def fills(file):
    try:
        while file.write(bytes(4096)):
            pass
    except OSError:
        return True
    return False
