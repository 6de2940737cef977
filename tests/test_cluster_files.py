"""The ready files of docs/cluster: those of shells are run, the others are read."""

import contextlib
import importlib
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import cluster_commands
import pytest
import yaml
from cluster_commands import trained_once
from env_commands import OTHERS, TRAIN, free_port
from test_cluster_conf import composed
from test_ray import needs_ray

from tnctl import shipped
from tnctl.launch import environment

FILES = Path(__file__).parent.parent / "docs/cluster"
# Starts a step of two tasks, as Slurm does.
SRUN = """#!/bin/bash
while [[ $1 == -* ]]; do shift; done
export SLURM_NTASKS=2 SLURM_JOB_NODELIST='localhost,other[1-3]'
for rank in 0 1; do SLURM_PROCID=$rank "$@" & pids+=" $!"; done
worst=0
for pid in $pids; do wait $pid; code=$?; ((code > worst)) && worst=$code; done
exit $worst
"""


def test_the_files_name_variables_and_addresses_that_there_are():
    source = Path(environment.__file__).read_text()
    known = set(re.findall(r"TNCTL_[A-Z_]+", source))
    for path in FILES.iterdir():
        assert set(re.findall(r"TNCTL_[A-Z_]+", path.read_text())) <= known, path


def test_the_kubernetes_job_gives_each_pod_its_place():
    service, job = yaml.safe_load_all((FILES / "kubernetes.yaml").read_text())
    assert service["spec"]["clusterIP"] == "None"
    spec = job["spec"]
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"]
    pod = spec["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"] and pod["restartPolicy"] == "Never"
    [container] = pod["containers"]
    values = {entry["name"]: entry.get("value") for entry in container["env"]}
    place = environment.place(values | {"TNCTL_RANK": "3"})
    assert place.workers == spec["completions"]
    name = f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert place.address.host == name and values["TNCTL_TOKEN"] is None
    [rule, _] = spec["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["containerName"] == container["name"]


def test_the_services_of_compose_are_the_workers():
    document = yaml.safe_load((FILES / "compose.yaml").read_text())
    services = document["services"]
    for rank, service in enumerate(services.values()):
        place = environment.place(service["environment"])
        assert (place.rank, place.workers) == (rank, len(services))
        assert place.address.host == next(iter(services))
        assert service["environment"]["TNCTL_TOKEN_FILE"] == "/run/secrets/token"
        assert service["secrets"] == list(document["secrets"])
        assert (FILES.parent.parent / service["build"] / "Dockerfile").exists()


def test_the_job_of_ray_has_a_pod_for_each_worker():
    spec = yaml.safe_load((FILES / "ray_job.yaml").read_text())["spec"]
    command = shlex.split(spec["entrypoint"])
    assert command[:3] == ["tnctl", "train", "conf=deepfm"]
    cluster = composed(shipped.folder("conf") / "deepfm.yaml", *command[3:]).cluster
    groups = spec["rayClusterSpec"]
    [workers] = groups["workerGroupSpecs"]
    assert cluster.start == "ray" and cluster.patience > 120
    assert {workers[f"{word}eplicas"] for word in ("r", "minR", "maxR")} == {cluster.workers}
    # A worker for each pod, and none on the head.
    assert groups["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}
    [container] = workers["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["cpu"] == container["resources"]["requests"]["cpu"]


# Says what it is given and what it finds, then runs what follows the two dashes.
RAY = """#!/bin/bash
echo "ray $@" >> said
stat -c '%a %s' "$RAY_AUTH_TOKEN_PATH" >> said
while [[ $1 != -- ]]; do shift; done
shift
exec "$@"
"""


def ray_slurm_script(folder, *overrides):
    """What programs were given by ray_slurm.sh on two nodes, in a folder."""
    programs = folder / "bin"
    programs.mkdir()
    srun = '#!/bin/bash\nwhile [[ $1 == -* ]]; do shift; done\nexec "$@"\n'
    scontrol = (
        '#!/bin/bash\n[[ "$*" == "show hostnames node[1-2]" ]] && printf "node1\\nnode2\\n"\n'
    )
    tnctl = '#!/bin/bash\necho "$RAY_ADDRESS $RAY_AUTH_MODE tnctl $@" >> said\nexit 3\n'
    texts = {"srun": srun, "scontrol": scontrol, "tnctl": tnctl, "ray": RAY}
    for name, text in texts.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    slurm = {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "7"}
    environment = os.environ | slurm | {"SLURM_CPUS_PER_TASK": "16"}
    environment["PATH"] = f"{programs}:{os.environ['PATH']}"
    command = ["bash", str(FILES / "ray_slurm.sh"), *overrides]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return done, (folder / "said").read_text().splitlines()


def test_the_slurm_script_of_ray_starts_a_worker_for_each_node(tmp_path):
    done, (ray, token, train) = ray_slurm_script(tmp_path, "conf=deepfm", "output=run")
    assert done.returncode == 3 and not done.stderr
    assert ray.startswith("ray symmetric-run --address node1:6379 --min-nodes 2 --num-cpus 16 -- ")
    assert token == "600 65" and not list(tmp_path.glob(".tnctl-ray-token*"))
    given = "cluster=ray cluster.workers=2 conf=deepfm output=run"
    assert train == f"auto token tnctl train {given}"


@needs_ray
def test_ray_has_the_options_of_the_slurm_script():
    symmetric = importlib.import_module("ray.scripts.symmetric_run").symmetric_run
    start = importlib.import_module("ray.scripts.scripts").start
    options = {
        option for command in (symmetric, start) for p in command.params for option in p.opts
    }
    text = (FILES / "ray_slurm.sh").read_text()
    used = re.findall(r"--[a-z-]+", text[text.index("ray symmetric-run --") :].partition(" -- ")[0])
    assert used == ["--address", "--min-nodes", "--num-cpus"] and set(used) <= options


class Script:
    """A ready file that runs in a workspace, with two workers; all processes end with the block."""

    def __init__(self, workspace, name, *overrides):
        self.workspace, self.run = workspace, workspace / "run"
        programs = workspace / "bin"
        programs.mkdir(exist_ok=True)
        tnctl = f'#!/bin/bash\nexec {sys.executable} -m tnctl "$@"\n'
        for program, text in (("tnctl", tnctl), ("srun", SRUN)):
            (programs / program).write_text(text)
            (programs / program).chmod(0o755)
        given = {name: os.environ[name] for name in os.environ if not name.startswith(OTHERS)}
        given |= {"PATH": f"{programs}:{os.environ['PATH']}", "TMPDIR": str(workspace)}
        given |= {"SLURM_JOB_ID": str(os.getpid()), "TNCTL_ADDRESS": f"127.0.0.1:{free_port()}"}
        workers = ["2"] if name == "loop.sh" else []
        given_overrides = [text for text in TRAIN[1:] if text != "cluster=env"]
        command = ["bash", str(FILES / name), *workers, *given_overrides, *overrides]
        self.err = workspace / "stderr"
        with self.err.open("w") as err:
            self.process = subprocess.Popen(
                command, cwd=workspace, env=given, stdout=err, stderr=err, process_group=0
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        for pid in [*self.commands(), *self.workers()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @property
    def said(self):
        return self.err.read_text()

    def pids(self, word):
        """The processes of the workspace with a word in their command line."""
        pids = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                is_of_workspace = (folder / "cwd").readlink() == self.workspace
                if is_of_workspace and word in (folder / "cmdline").read_bytes():
                    pids.append(int(folder.name))
        return sorted(pids)

    def commands(self):
        """Those that supervise a worker."""
        pids = self.pids(b"-m\0tnctl\0train")
        return [pid for pid in pids if not cluster_commands.is_a_worker(pid)]

    def workers(self):
        return [pid for pid in self.pids(b"tnctl") if cluster_commands.is_a_worker(pid)]

    def checkpoints(self):
        return {path.parent.name for path in self.run.glob("checkpoints/*/manifest.json")}

    def until_saved(self, more_than=frozenset()):
        def is_saved():
            assert self.process.poll() is None, self.said
            return self.checkpoints() - more_than and len(self.workers()) == 2

        cluster_commands.until(is_saved)

    def wait(self):
        code = self.process.wait(cluster_commands.SECONDS)
        cluster_commands.until(lambda: not self.pids(b"tnctl"), 10)
        assert not list(self.workspace.glob("**/*token*")), "the token is left"
        return code


SCRIPTS = pytest.mark.parametrize("script", ["loop.sh", "slurm.sh"])


@pytest.mark.long
@pytest.mark.alone
@SCRIPTS
def test_the_scripts_start_again_what_is_killed(parts, script):
    """First a worker, then the command of one."""
    with Script(parts, script, "cluster.timeout=10") as running:
        running.until_saved()
        os.kill(running.workers()[1], signal.SIGKILL)
        cluster_commands.until(lambda: "was killed by SIGKILL" in running.said)
        running.until_saved(running.checkpoints())
        commands = running.commands()
        assert len(commands) == 2
        os.kill(commands[0], signal.SIGKILL)
        assert running.wait() == 0, running.said
    assert trained_once(parts / "run") and "Traceback" not in running.said
    assert running.said.count("resuming from run/checkpoints/") >= 2


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_loop_saves_and_the_same_line_resumes(parts, number):
    """SIGINT is sent to all processes in the foreground of a terminal."""
    with Script(parts, "loop.sh") as running:
        running.until_saved()
        send = os.killpg if number == signal.SIGINT else os.kill
        send(running.process.pid, number)
        assert running.wait() == 143, running.said
    assert "is saved. Run the same command again to resume" in running.said
    with Script(parts, "loop.sh") as running:
        assert running.wait() == 0, running.said
    assert trained_once(parts / "run") and "Traceback" not in running.said
