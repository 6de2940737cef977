"""Network namespaces of this machine in the place of nodes, joined by a link of a given speed."""

import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

NEEDED = ("unshare", "nsenter", "ip", "tc")
LINK = "tnctl0"  # the name of the interface in each of the namespaces
# Bytes that may be sent at once, and how long a packet may wait: tc's tbf.
BURST_SECONDS, LEAST_BURST, LATENCY = 0.004, 1 << 16, "50ms"


@dataclass
class Nodes:
    """The namespaces: node n is reached at `addresses[n]`."""

    addresses: tuple[str, str] = ("10.199.77.1", "10.199.77.2")
    keepers: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    def command(self, node: int, command: Sequence[str]) -> list[str]:
        """What runs a command in a namespace, as the process that is started."""
        return ["nsenter", "-t", str(self.keepers[node].pid), "-n", *command]

    def run(self, node: int, *command: str) -> None:
        """Run a command in a namespace. Raises CalledProcessError."""
        subprocess.run(self.command(node, command), check=True, capture_output=True)

    def limit(self, bits: float | None) -> None:
        """Limit both directions to so many bits per second; None: no limit."""
        for node in range(len(self.keepers)):
            with suppress(subprocess.CalledProcessError):  # without a limit so far
                self.run(node, "tc", "qdisc", "del", "dev", LINK, "root")
            if bits is not None:
                burst = max(round(bits / 8 * BURST_SECONDS), LEAST_BURST)
                self.run(
                    node, "tc", "qdisc", "add", "dev", LINK, "root", "tbf",
                    "rate", f"{round(bits)}bit", "burst", f"{burst}b", "latency", LATENCY,
                )  # fmt: skip

    def set_link(self, state: str) -> None:
        """Take the link "down" or "up"."""
        self.run(0, "ip", "link", "set", LINK, state)


def reason_against() -> str | None:
    """Why namespaces and limits cannot be had here; None if they can."""
    missing = [program for program in NEEDED if shutil.which(program) is None]
    if missing:
        return f"{', '.join(missing)} is not installed"
    script = (
        f"ip link add {LINK} type veth peer name other && "
        f"tc qdisc add dev {LINK} root tbf rate 1gbit burst 1mb latency {LATENCY}"
    )
    tried = subprocess.run(["unshare", "-n", "sh", "-c", script], capture_output=True, text=True)
    if tried.returncode:
        return f"no network namespaces with limits: {tried.stderr.strip()[:200]}"
    return None


@contextmanager
def two_nodes() -> Iterator[Nodes]:
    """Two namespaces with a link. They end with the block, and also when this process is killed."""
    nodes = Nodes()
    try:
        for _ in nodes.addresses:
            # A namespace lives as long as a process of it: this one until its input ends.
            pipes: Mapping[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            keeper = subprocess.Popen(["unshare", "-n", "sh", "-c", "echo; exec cat"], **pipes)
            nodes.keepers.append(keeper)
            assert keeper.stdout is not None
            keeper.stdout.readline()  # it is in its namespace
        other = str(nodes.keepers[1].pid)
        nodes.run(
            0, "ip", "link", "add", LINK, "type", "veth", "peer", "name", LINK, "netns", other
        )
        for node, address in enumerate(nodes.addresses):
            nodes.run(node, "ip", "address", "add", f"{address}/24", "dev", LINK)
            for interface in ("lo", LINK):
                nodes.run(node, "ip", "link", "set", interface, "up")
        yield nodes
    finally:
        for keeper in nodes.keepers:
            keeper.kill()
            keeper.communicate()
