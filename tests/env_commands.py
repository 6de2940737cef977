"""`tnctl train cluster=env` as a scheduler starts it: one command for each worker."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from cluster_commands import EPOCHS, SECONDS, all_ended, is_a_worker

TOKEN = "0123456789abcdef" * 3
TRAIN = [
    "train", "conf=small.yaml", "cluster=env", "output=run", "data.train=part-*.csv",
    "train.batch_size=8", f"train.epochs={EPOCHS}", "save.every_steps=50", "train.threads=1",
    "evaluation.ablate=false", "golden=0",
]  # fmt: skip
# Those of schedulers in which the tests may run.
OTHERS = ("TNCTL_", "TF_CONFIG", "PADDLE_", "POD_IP", "TRAINING_ROLE", "SLURM_", "OMPI_", "PMI_")


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def of_tnctl(rank, workers=2, port=29400):
    return {
        "TNCTL_RANK": str(rank), "TNCTL_WORKERS": str(workers),
        "TNCTL_ADDRESS": f"127.0.0.1:{port}",
    }  # fmt: skip


class Command:
    """The command of one worker, and what it says."""

    def __init__(self, folder, number, variables, overrides, prefix=()):
        self.err = folder / f"stderr-{number}"
        environment = {name: os.environ[name] for name in os.environ if not name.startswith(OTHERS)}
        environment |= {"TNCTL_TOKEN": TOKEN} | variables
        with self.err.open("ab") as err:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "tnctl", *TRAIN, *overrides], cwd=folder,
                stderr=err, stdout=err, env=environment, start_new_session=True,
            )  # fmt: skip
        self.seen = set()

    @property
    def said(self):
        return self.err.read_text()

    def worker(self):
        """The process id of its worker; None without one."""
        pid = self.process.pid
        with contextlib.suppress(OSError):
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                if is_a_worker(int(child)):
                    self.seen.add(int(child))
                    return int(child)
        return None

    def end(self):
        self.worker()
        self.process.kill()
        self.process.wait()
        for pid in self.seen:
            if is_a_worker(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


class Scheduled:
    """The commands of all workers; all processes end with the block."""

    def __init__(self, folder, variables, *overrides, timeout=60, prefixes=()):
        self.prefixes = prefixes
        self.folder, self.run, self.variables = folder, folder / "run", list(variables)
        self.overrides = [f"cluster.timeout={timeout}", *overrides]
        self.commands = []
        for rank in range(len(self.variables)):
            self.start(rank)

    def start(self, rank, *overrides):
        """Start the command of a worker, the first time or again."""
        prefix = self.prefixes[rank] if self.prefixes else ()
        overrides = [*self.overrides, *overrides]
        command = Command(self.folder, rank, self.variables[rank], overrides, prefix)
        self.commands[rank : rank + 1] = [command]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for command in self.commands:
            command.end()

    @property
    def said(self):
        return "".join(command.said for command in self.commands)

    def checkpoints(self):
        return {path.parent.name for path in self.run.glob("checkpoints/*/manifest.json")}

    def until(self, condition):
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.said
            for command in self.commands:
                command.worker()
            time.sleep(0.02)

    def until_saved(self, more_than=()):
        self.until(lambda: self.checkpoints() - set(more_than))

    def wait(self):
        """The exit codes."""
        codes = [command.process.wait(timeout=SECONDS) for command in self.commands]
        self.until(lambda: all(all_ended(command.seen) for command in self.commands))
        return codes
