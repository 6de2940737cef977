"""Commands of which a write, rename or removal fails, in this process or in one of their own."""

import atexit
import builtins
import contextlib
import errno
import gc
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest import mock

from conftest import Result

from tnctl import files, outputs

ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EACCES": errno.EACCES}
REMOVALS = ("unlink", "remove", "rmdir")


@dataclass
class Fault:
    """The `number`-th operation of a kind (from 0) below `root` fails; the later ones if it stays.

    `error` is the name of an error number, "interrupt" for Ctrl-C, or "kill" for SIGKILL. Of the
    kind "byte" the number is that of a byte written, and of "time" that of milliseconds.
    """

    root: str
    kind: str  # write, rename, remove, any, byte, time
    number: int
    error: str
    stays: bool = False
    happened: bool = False

    def fail(self) -> None:
        self.happened = True
        if self.error == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.error == "interrupt":
            raise KeyboardInterrupt
        raise OSError(ERRORS[self.error], os.strerror(ERRORS[self.error]))

    def count(self, kind: str, path: object) -> None:
        """Fail if this operation is the one."""
        if self.kind not in (kind, "any") or (self.happened and not self.stays):
            return
        if not os.path.abspath(os.fspath(path)).startswith(self.root):  # type: ignore[call-overload]
            return
        self.number -= 1
        if self.number < 0:
            self.fail()


@contextlib.contextmanager
def armed(fault: Fault | None):
    """The block with a fault in it."""
    if fault is None or fault.kind == "time":
        yield
        return
    with contextlib.ExitStack() as patches:
        for name in ("rename", "replace", *REMOVALS, "mkdir"):
            kind = "remove" if name in REMOVALS else "rename"
            patches.enter_context(mock.patch.object(os, name, _counted(fault, kind, name)))
        patches.enter_context(mock.patch.object(outputs, "exchange", _exchange(fault)))
        patches.enter_context(mock.patch.object(files.OutputFile, "write", _write(fault)))
        opened = _open(fault)
        patches.enter_context(mock.patch.object(builtins, "open", opened))
        patches.enter_context(mock.patch.object(io, "open", opened))
        yield


def _counted(fault: Fault, kind: str, name: str):
    real = getattr(os, name)

    def operation(path, *arguments, **keys):
        above = keys.get("dir_fd", keys.get("src_dir_fd"))
        within = "" if above is None else os.readlink(f"/proc/self/fd/{above}")
        if "/tnctl." not in within:  # no temporary folder
            fault.count(kind if name != "mkdir" else "write", os.path.join(within, path))
        return real(path, *arguments, **keys)

    return operation


def _exchange(fault: Fault):
    real = outputs.exchange

    def exchange(folder, other):
        fault.count("rename", folder)
        return real(folder, other)

    return exchange


def _write(fault: Fault):
    real = files.OutputFile.write

    def write(self, data):
        path = files.local_path(self._url) or self._url
        with files.translated(self._url, "written"):
            if fault.kind == "byte" and os.path.abspath(path).startswith(fault.root):
                view = memoryview(data).cast("B")
                if view.nbytes > fault.number:
                    real(self, view[: fault.number])
                    self._stream.flush()
                    fault.fail()
                fault.number -= view.nbytes
            fault.count("write", path)
        return real(self, data)

    return write


def _open(fault: Fault):
    real = builtins.open

    def opened(file, mode="r", *arguments, **keys):
        if not isinstance(file, int) and mode[0] in "wax":
            fault.count("write", file)
        return real(file, mode, *arguments, **keys)

    return opened


# ---- Processes ------------------------------------------------------------------

# What commands import, which takes longer than all that they do.
IMPORTED = (
    "tnctl.cli.checkpoint", "tnctl.cli.model_commands", "tnctl.cli.serving_commands",
    "tnctl.cli.training_commands", "tnctl.api.artefacts", "tnctl.api.training",
    "tnctl.checkpoint.compaction", "tnctl.checkpoint.inspection", "tnctl.data.preparing",
    "tnctl.serving.publishing", "tnctl.serving.rows.export",
    "tnctl.serving.rows.folding", "tnctl.serving.scoring", "tnctl.serving.graph.splitting",
    "tnctl.training.run", "tnctl.evaluation.predictions",
    "tnctl.training.report.terminal_tables", "tnctl.training.check.forecast",
)  # fmt: skip


class Forked:
    """Runs commands as processes: children of one that has imported what they need."""

    def __init__(self, folder: Path) -> None:
        self.out, self.err = folder / "out", folder / "err"
        self.server = subprocess.Popen(
            [sys.executable, __file__, str(self.out), str(self.err)],
            cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        )  # fmt: skip

    def run(self, arguments, cwd, fault: Fault | None = None) -> Result:
        """A command's end; the code of one that was killed is -9."""
        job = {
            "arguments": [*map(str, arguments)],
            "cwd": str(cwd),
            "fault": asdict(fault) if fault else None,
            "temporary": tempfile.gettempdir(),
        }
        print(json.dumps(job), file=self.server.stdin, flush=True)
        code = self.server.stdout.readline()
        assert code, "the server of processes has died"
        return Result(int(code), self.out.read_text(), self.err.read_text())

    def close(self) -> None:
        self.server.stdin.close()
        assert self.server.wait(60) == 0


def serve(out: str, err: str) -> None:
    """Fork a child for each line of standard input, and print its exit code."""
    from importlib import import_module

    from tnctl.model import quiet_tensorflow

    quiet_tensorflow()
    for name in IMPORTED:
        import_module(name)
    gc.freeze()  # so that children do not write to the memory of what was imported
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if not child:
            become(job, out, err)
        if job["fault"] and job["fault"]["kind"] == "time":
            time.sleep(job["fault"]["number"] / 1000)
            os.kill(child, signal.SIGKILL)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def become(job, out: str, err: str) -> None:
    """Be the process of a command, to its end."""
    from tnctl.cli.main import main

    for number, name in ((0, os.devnull), (1, out), (2, err)):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        descriptor = os.open(name, flags, 0o666)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(job["cwd"])
    tempfile.tempdir = job["temporary"]
    code: object = 1
    try:
        with armed(Fault(**job["fault"]) if job["fault"] else None):
            main(job["arguments"])
    except SystemExit as stop:
        code = stop.code
    except BaseException:
        traceback.print_exc()
    # Not through the end of the interpreter, which frees the memory of the server object by object.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    serve(*sys.argv[1:])
